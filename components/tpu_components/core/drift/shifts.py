"""Tests of whether two data sets differ, using the statistics that create_tfrecords has recorded.

Every statistic has its own test. A difference counts as drift if it is significant, with Bonferroni's correction for
the number of tests, and its effect size reaches a threshold. The threshold is needed because even tiny differences are
significant if there are many examples.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from scipy import special

from tpu_components.core.base.errors import InputError
from tpu_components.core.drift.sketches import DataSketch, find_distance
from tpu_components.core.examples.artifacts import Distribution
from tpu_components.core.examples.class_names import class_name
from tpu_components.core.examples.interface import MULTI_LABEL

CLASSES, SINGLE_CLASS, COMMON_WORDS, SET_ASIDE = "classes", "single class", "common words", "set aside"
_WORDS, _LABELS = "words", "labels"  # Names of distributions: words per text, labels per example.
_OF_ITS_OWN = ("unknown_share",)  # Not comparable: it depends on the data set's own vocabulary.
_OF_WORDS = (_WORDS, "word_length")  # Not comparable if the data sets use different tokenizations.
_DISTANCE = "largest difference between the two cumulative distributions"
_MOVED = "share of the examples that would need another class to remove the difference"
_HAVE = "difference between the shares of examples with a class"
_OTHERS = "share of the words that would have to change to remove the difference"
_SHIFT = "difference of the means, in standard deviations"
_SPREAD = "share by which one standard deviation is smaller than the other"
_SHARE = "difference between the shares"
# For each kind of effect size: the smallest value that counts as drift, and the test.
MEASURES = {
    _DISTANCE: (0.1, "the Kolmogorov-Smirnov test"),
    _MOVED: (0.1, "the chi-squared test"),
    _HAVE: (0.1, "Fisher's exact test, for all classes"),
    _OTHERS: (0.05, "the chi-squared test"),
    _SHIFT: (0.2, "Welch's test"),
    _SPREAD: (0.2, "the normal test of the log ratio of standard deviations"),
    _SHARE: (0.05, "Fisher's exact test"),
}
_MOST_EXACT = 10_000_000  # Examples that Fisher's exact test counts within a tenth of a second.
_LEAST_EXPECTED = 5  # Smallest expected count per class for which the chi-squared test is valid.
_LEAST_KURTOSIS = 9  # Of targets whose kurtosis is unknown: that of an exponential distribution; see `_targets`.
_LEAST_FOR_SPREAD = 100  # In fewer examples, rare values may be missing by chance, which changes the spread.
_POWER = 0.8  # Power of the test for the reported size of a shift.


@dataclasses.dataclass(frozen=True)
class Shift:
    """Difference of one statistic between two data sets, and the test of this difference.

    Attributes:
        figure: Name of the statistic: a name from `Split.distributions`, `target NAME` (mean of a regression target),
            `spread of target NAME` (its standard deviation), `classes` (class shares), `single class` (in multi-label
            data, the share of the label that differs most), `common words` (shares of words) or `set aside` (share of
            quarantined inputs).
        effect: Effect size.
        measure: Description of the effect size.
        luck: p-value of the test.
        now: Statistic of the new data, as text.
        before: Statistic of the old data, as text.
        test: Name of the test.
        threshold: Smallest effect size that counts as drift.
        allowed: Significance level: (1 - confidence) / number of tests.
        drifted: Whether `luck` is below `allowed`, and `effect` is at least `threshold`.
    """

    figure: str
    effect: float
    measure: str
    luck: float
    now: str
    before: str
    _: dataclasses.KW_ONLY
    test: str = ""
    threshold: float = 0.0
    allowed: float = 0.0
    drifted: bool = False


def find_shifts(new: DataSketch, old: DataSketch, confidence: float = 0.99) -> tuple[Shift, ...]:
    """Compare two data sets, each over all its splits. Return one `Shift` per statistic.

    The results are sorted by the ratio of the effect size to its threshold, the largest first.

    Args:
        new: Sketch of the new data.
        old: Sketch of the data to compare with.
        confidence: Minimum probability that no drift is reported between two samples of the same distribution.

    Raises:
        InputError: If the sketches differ in kind or task.
    """
    for what in ("kind", "task"):
        ours, theirs = getattr(new, what), getattr(old, what)
        if ours != theirs:
            raise InputError(
                f"Cannot compare {new.source!r} with {old.source!r}: expected the same {what}, received {ours} and "
                f"{theirs}. Choose data of the same {what}."
            )
    compared = [shift for compare in (_figures, _classes, _targets, _words, _set_aside) for shift in compare(new, old)]
    allowed = (1 - confidence) / max(len(compared), 1)
    judged = [judge(shift, *MEASURES[shift.measure], allowed) for shift in compared]
    return tuple(sorted(judged, key=lambda shift: -shift.effect / shift.threshold))


def judge(shift: Shift, threshold: float, test: str, allowed: float) -> Shift:
    """Decide whether a shift counts as drift. Return a copy of the shift that contains the decision.

    Args:
        shift: Difference of a statistic, with its effect size and p-value.
        threshold: Smallest effect size that counts as drift.
        test: Name of the test that gave the p-value, for reports.
        allowed: Significance level. A shift counts as drift only if its p-value is lower.
    """
    drifted = shift.luck < allowed and shift.effect >= threshold
    return dataclasses.replace(shift, test=test, threshold=threshold, allowed=allowed, drifted=drifted)


def say_verdict(shifts: Sequence[Shift]) -> str:
    """Return a summary of the shifts as text, for example `2 of 6 figures have drifted: brightness, contrast`."""
    drifted = [shift.figure.replace("_", " ") for shift in shifts if shift.drifted]
    if not drifted:
        return f"none of {len(shifts)} figures has drifted" if shifts else "the data sets have no figure in common"
    verb = "has" if len(drifted) == 1 else "have"
    return f"{len(drifted)} of {len(shifts)} figures {verb} drifted: {', '.join(drifted)}"


def say_rule(shifts: Sequence[Shift]) -> str:
    """Return a description of the decision rule and the tests, or an empty string if there are no shifts."""
    if not shifts:
        return ""
    allowed = shifts[0].allowed
    figures_by_test = dict[str, list[str]]()
    for shift in shifts:
        figures_by_test.setdefault(shift.test, []).append(shift.figure.replace("_", " "))
    tests = "; ".join(f"{test} ({', '.join(figures)})" for test, figures in figures_by_test.items())
    return (
        "A figure has drifted if its effect is at least the threshold and the p-value of its test is below "
        f"{allowed:.3g}, which is {allowed * len(shifts):.3g} (for a confidence of "
        f"{1 - allowed * len(shifts):.6g}) divided among {len(shifts)} tests (Bonferroni). Tests: {tests}."
    )


def say_power(new: DataSketch, old: DataSketch, shifts: Sequence[Shift], noun: str) -> str:
    """Describe the smallest shift of a distribution that the tests detect with a probability of 80%.

    Args:
        new: Sketch of the new data.
        old: Sketch of the data to compare with.
        shifts: Result of `find_shifts` for the sketches.
        noun: Plural noun for the examples.

    Returns:
        A sentence, or an empty string if the sketches have no distribution in common.
    """
    if not (pairs := figures_of(new, old)):
        return ""
    ours, theirs = (min(pair[side].num_examples for pair in pairs.values()) for side in (0, 1))
    least_independent = (
        min(data.count_independent(name, pair[side].num_examples) for name, pair in pairs.items())
        for side, data in enumerate((new, old))
    )
    spread = math.sqrt(sum(1 / number for number in least_independent))
    least = float(special.kolmogi(shifts[0].allowed)) * spread
    grouped = ", which are grouped and therefore not independent," if new.independence or old.independence else ""
    said = f"{ours:,} {noun}, compared with {theirs:,}{grouped or ','}"
    if least >= 1:
        return f"{said} are too few to detect even a large shift of a distribution."
    # At the point of the largest distance, the measured distance is normal with at most this standard deviation.
    sure = max(least, MEASURES[_DISTANCE][0]) + float(special.ndtri(_POWER)) * spread / 2
    return (
        f"{said} are enough to detect a shift of a distribution by {min(1.0, math.ceil(1000 * sure) / 1000):g} or more "
        f"in at least {_POWER:.0%} of cases."
    )


def figures_of(new: DataSketch, old: DataSketch) -> dict[str, tuple[Distribution, Distribution]]:
    """Return the distributions that both sketches have and that can be compared, as {name: (new, old)}."""
    skipped = _OF_ITS_OWN if new.divides_like(old) else _OF_ITS_OWN + _OF_WORDS
    names = [name for name in new.distributions if name not in skipped and name in old.distributions]
    return {name: (new.distributions[name], old.distributions[name]) for name in names}


def _figures(new: DataSketch, old: DataSketch) -> Iterator[Shift]:
    """Compare distributions by the Kolmogorov-Smirnov test, which is conservative for binned values."""
    for name, (ours, theirs) in figures_of(new, old).items():
        distance = find_distance(ours, theirs)
        numbers = [data.count_independent(name, own.num_examples) for data, own in ((new, ours), (old, theirs))]
        size = math.prod(numbers) / sum(numbers)
        luck = float(special.kolmogorov(distance * math.sqrt(size)))
        yield Shift(name, distance, _DISTANCE, luck, *(f"{each.mean:.4g} ± {each.std:.3g}" for each in (ours, theirs)))


def _count_by_name(data: DataSketch) -> Counter[str]:
    """Return the number of examples by class name.

    Class names in sketches of earlier versions are not normalized.
    """
    counts = Counter[str]()
    for name, count in data.class_counts.items():
        counts[class_name(name)] += count
    return counts


def _classes(new: DataSketch, old: DataSketch) -> Iterator[Shift]:
    """Compare the class frequencies by the chi-squared test.

    In multi-label data, the labels of one example are not independent, so each example counts as at most one draw; see
    `_effective`. In addition, the label whose share of the examples differs most is compared by Fisher's exact test,
    with Bonferroni's correction for the number of labels.
    """
    counts = [_count_by_name(data) for data in (new, old)]
    names = sorted({*counts[0], *counts[1]})
    table = np.array([[of_one[name] for name in names] for of_one in counts], float)
    if not table.sum(axis=1).all():
        return
    sizes = np.array([[data.count_independent(CLASSES, data.num_examples)] for data in (new, old)])
    draws = _effective(sizes, new, old, _LABELS) if new.task == MULTI_LABEL else sizes
    if new.task == MULTI_LABEL:
        shares = table / np.array([[new.num_examples], [old.num_examples]])
        table = shares * sizes
        most = int(np.abs(shares[0] - shares[1]).argmax())
        luck = min(1.0, len(names) * _fisher(table[:, most], sizes[:, 0] - table[:, most]))
        effect = float(abs(shares[0] - shares[1])[most])
        yield Shift(SINGLE_CLASS, effect, _HAVE, luck, *_most_moved(names, shares))
    if draws is not None:
        shares = table / table.sum(axis=1, keepdims=True)
        moved = float(np.abs(shares[0] - shares[1]).sum() / 2)
        yield Shift(CLASSES, moved, _MOVED, _luck_of_mix(_join_rare(shares * draws)), *_most_moved(names, shares))


def _most_moved(names: Sequence[str], shares: np.ndarray) -> list[str]:
    """Return the name whose share differs most, with its share in the new and in the old data, as two texts.

    Args:
        names: Names of the first columns of `shares`.
        shares: Shares in new and in old data, float[2, names or more].
    """
    most = int(np.abs(shares[0] - shares[1])[: len(names)].argmax())
    return [f"{names[most]!r} {row[most]:.1%}" for row in shares]


def _effective(sizes: np.ndarray, new: DataSketch, old: DataSketch, figure: str) -> np.ndarray | None:
    """Return Kish's effective sample sizes, float[2, 1], from the distribution of labels or words per example.

    `sizes` contains the numbers of examples of the new and of the old data, float[2, 1].

    The effective sizes are smaller than the numbers of examples if the number of labels or words varies (Kish, Survey
    Sampling, 1965, 11.7). If one data set lacks the distribution, the distribution of the other data set is used.
    Return None if both lack it.
    """
    counted = [data.distributions.get(figure) for data in (new, old)]
    design = [1 + (own.std / own.mean) ** 2 if own and own.mean else None for own in counted]
    known = [effect for effect in design if effect]
    return sizes / np.array([[effect or known[0]] for effect in design]) if known else None


def _words(new: DataSketch, old: DataSketch) -> Iterator[Shift]:
    """Compare the shares of the old data's frequent words by the chi-squared test.

    Rare words form one category, and all unlisted words another. The words of one text are not independent, so each
    text counts as at most one draw (see `_effective`), which is conservative. If the new data do not list a frequent
    word of the old data, the word is counted as often as the rarest word that they list.
    """
    if not (new.common_words and old.common_words and new.num_training and old.num_training):
        return
    if not new.divides_like(old):
        return
    names = [word for word in old.common_words if word]
    shares = np.array([_shares_of_words(data.common_words, names) for data in (new, old)])
    sizes = np.array([[data.count_independent(COMMON_WORDS, data.num_training)] for data in (new, old)])
    draws = _effective(sizes, new, old, _WORDS)
    table = shares * (sizes if draws is None else draws)
    table = _join_rare(np.hstack([_join_rare(table[:, :-1]), table[:, -1:]]))
    joined = table / table.sum(axis=1, keepdims=True)
    moved = float(np.abs(joined[0] - joined[1]).sum() / 2)
    yield Shift(COMMON_WORDS, moved, _OTHERS, _luck_of_mix(table), *_most_moved(names, shares))


def _shares_of_words(counts: Mapping[str, int], names: Sequence[str]) -> np.ndarray:
    """Return the share of each word in `names`, followed by the share of all other words: float[words + 1]."""
    listed = [count for word, count in counts.items() if word]
    least = min(listed) if counts.get("") else 0
    known = np.array([counts.get(name, least) for name in names], float)
    total = sum(counts.values())
    return np.array([*known, max(total - known.sum(), 0.0)]) / total


def _join_rare(table: np.ndarray) -> np.ndarray:
    """Merge the columns of counts, float[2, kinds], whose expected count is below 5, and drop empty columns."""
    expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / max(table.sum(), 1)
    is_rare = (expected < _LEAST_EXPECTED).any(axis=0)
    joined = np.concatenate([table[:, ~is_rare], table[:, is_rare].sum(axis=1, keepdims=True)], axis=1)
    return joined[:, joined.sum(axis=0) > 0]


def _luck_of_mix(table: np.ndarray) -> float:
    """Return the p-value of the chi-squared test for counts, float[2, kinds]."""
    from scipy import stats

    return float(stats.chi2_contingency(table, correction=False).pvalue) if table.shape[1] > 1 else 1.0


def _targets(new: DataSketch, old: DataSketch) -> Iterator[Shift]:
    """Compare the means and the standard deviations of the targets that both data sets have.

    Means are compared by Welch's t-test. The log ratio of two standard deviations is approximately normal with the
    standard error √((κ - 1) / 4 · (1 / n₁ + 1 / n₂)), where κ is the kurtosis of the targets (Bonett, Applied
    Psychological Measurement 30, 2006). Sketches do not contain the kurtosis, so the test uses an upper bound from
    the range, but never less than 9. This makes the test conservative. Sketches from older versions have no range, so 9
    is used; if the targets have heavier tails than an exponential distribution, the test may then report drift by
    chance.
    """
    from scipy import stats

    for name in new.targets.keys() & old.targets.keys():
        ours, theirs = new.targets[name], old.targets[name]
        count = new.count_independent(name, ours.num_examples)
        other_count = old.count_independent(name, theirs.num_examples)
        if min(count, other_count) < 2 or not ours.std + theirs.std > 0:
            continue
        luck = stats.ttest_ind_from_stats(
            ours.mean, ours.std, count, theirs.mean, theirs.std, other_count, equal_var=False
        ).pvalue
        effect = abs(ours.mean - theirs.mean) / max(theirs.std, 1e-12 + ours.std * (theirs.std == 0))
        words = [f"{each.mean:.4g} ± {each.std:.3g}" for each in (ours, theirs)]
        yield Shift(f"target {name}", float(effect), _SHIFT, float(luck), *words)
        if min(count, other_count) >= _LEAST_FOR_SPREAD:
            smaller, larger = sorted((ours.std, theirs.std))
            log_ratio = math.log(larger / smaller) if smaller > 0 else math.inf
            kurtosis = max(_LEAST_KURTOSIS, ours.most_kurtosis, theirs.most_kurtosis)
            error = math.sqrt((kurtosis - 1) / 4 * (1 / count + 1 / other_count))
            luck = 2 * special.ndtr(-log_ratio / error)
            yield Shift(f"spread of target {name}", 1 - smaller / larger, _SPREAD, float(luck), *words)


def _set_aside(new: DataSketch, old: DataSketch) -> Iterator[Shift]:
    """Compare the shares of quarantined inputs by Fisher's exact test."""
    bad, good = np.array([(data.num_set_aside, data.num_examples) for data in (new, old)], float).T
    if bad.any():
        shares = bad / (bad + good)
        scale = [data.count_independent(SET_ASIDE, 1) for data in (new, old)]
        effect = float(abs(shares[0] - shares[1]))
        luck = _fisher(bad * scale, good * scale)
        yield Shift(SET_ASIDE, effect, _SHARE, luck, *(f"{share:.2%}" for share in shares))


def _fisher(having: np.ndarray, lacking: np.ndarray) -> float:
    """Return the p-value of Fisher's exact test for a property of examples in two data sets.

    With more than ten million examples, the exact test takes too long, so the chi-squared test computes the p-value.

    Args:
        having: Number of new and of old examples with the property: float[2].
        lacking: Number of new and of old examples without it: float[2].
    """
    from scipy import stats

    table = np.rint(np.stack([having, lacking], axis=1))
    if table.sum() <= _MOST_EXACT:
        return float(stats.fisher_exact(table.astype(int)).pvalue)
    return _luck_of_mix(_join_rare(table))


def as_dict(shifts: Sequence[Shift]) -> Mapping[str, object]:
    """Return a dict for JSON: `drifted`, true if any statistic has drifted, and `figures`, the shifts as dicts."""
    return {
        "drifted": any(shift.drifted for shift in shifts),
        "figures": [dataclasses.asdict(shift) for shift in shifts],
    }
