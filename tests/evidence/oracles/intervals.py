"""Simulations of the gate's intervals and tests: how often an interval holds the truth, how often a test errs.

A population is a pool of examples with the answers of two models. A data set is drawn from it with replacement, so the
true figures are those of the pool. In a pool of equal models every example stands twice, the second time with the two
answers exchanged: both models have the same true figures.
"""

import dataclasses
import functools
import itertools
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np

from tests.evidence.oracles.years import WEEKS, Years, simulate_creep, simulate_equal
from tpu_components.core.examples.interface import Classification, LanguageModel, MultiLabel, Regression
from tpu_components.core.metrics.class_means import mean_area, mean_average_precision
from tpu_components.core.metrics.comparisons import compare_metrics
from tpu_components.core.metrics.definitions import Estimators, direction, estimators
from tpu_components.core.metrics.estimates import score_passages
from tpu_components.core.metrics.model_metrics import GroundTruth, ModelMetrics
from tpu_components.evaluate_model import EvaluateParams
from tpu_components.evaluate_model.baseline import find_baseline
from tpu_components.evaluate_model.gate import decide
from tpu_components.evaluate_model.slices import find_slices

CONFIDENCE = 0.95
_NUM_IN_POOL = 40_000
_TOP_K = 2
_SKILL, _BETTER = 1.5, 1.62  # Equal models have the first; a better one has the second.
_NUMBERS = Regression(mean=(0.0, 0.0), std=(1.0, 5.0))
_THRESHOLD = 0.5


@dataclasses.dataclass(frozen=True)
class Pool:
    """A population.

    Attributes:
        targets: Targets of the examples.
        outputs: Answers of the model and of the champion.
        task: Their task.
        num_positive: Examples of class 1 that every data set has; None for a random number.
        draw_targets: Draws the targets of a data set from the model's answers; None for those of the pool.
        group_size: Examples of a group, which are drawn together and stand side by side; 0 without groups.
    """

    targets: np.ndarray
    outputs: list[np.ndarray]
    task: Any
    num_positive: int | None = None
    draw_targets: Callable[[np.random.Generator, np.ndarray], np.ndarray] | None = None
    group_size: int = 0

    def draw(self, rng: np.random.Generator, num_examples: int) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return the targets of a data set and the answers of both models."""
        if size := self.group_size:
            first = size * rng.integers(0, len(self.targets) // size, num_examples // size)
            rows = (first[:, None] + np.arange(size)).ravel()
        elif self.num_positive is None:
            rows = rng.integers(0, len(self.targets), num_examples)
        else:
            kinds = [np.flatnonzero(self.targets == kind) for kind in (1, 0)]
            counts = self.num_positive, num_examples - self.num_positive
            rows = np.concatenate([rng.choice(*pair) for pair in zip(kinds, counts, strict=True)])
        outputs = [answers[rows] for answers in self.outputs]
        return self.draw_targets(rng, outputs[0]) if self.draw_targets else self.targets[rows], outputs

    def estimators(self, targets: np.ndarray, answers: np.ndarray) -> Estimators:
        """Return what estimates one model's figures."""
        groups = np.arange(len(targets)) // self.group_size if self.group_size else None
        return estimators(self.task, targets, answers, min(_TOP_K, answers.shape[-1] - 1), groups)

    def figures(self, targets: np.ndarray, answers: np.ndarray) -> ModelMetrics:
        """Return the figures of one model."""
        found = {name: make() for name, make in self.estimators(targets, answers).items()}
        return ModelMetrics(self.task.name, len(targets), {name: own for name, own in found.items() if own}, {})

    @functools.cached_property
    def _truths(self) -> list[tuple[Mapping[str, float], list[np.ndarray], Mapping[str, np.ndarray]]]:
        return [
            (self.figures(self.targets, answers).metrics, _count(self.targets, answers), self._areas(answers))
            for answers in self.outputs
        ]

    def _areas(self, answers: np.ndarray) -> Mapping[str, np.ndarray]:
        """Return the true area of each label, by the name of the mean over labels."""
        if self.task.name != MultiLabel().name:
            return {}
        columns = [(self.targets[:, [label]] > 0, answers[:, [label]]) for label in range(answers.shape[1])]
        areas = {"mean_average_precision": mean_average_precision, "macro_roc_auc": mean_area}
        return {name: np.array([find(*column).value for column in columns]) for name, find in areas.items()}  # type: ignore[union-attr]

    def truths(self, targets: np.ndarray, outputs: list[np.ndarray]) -> list[Mapping[str, float]]:
        """Return the true figures of both models; means over classes are over those that a data set has."""
        results = []
        for answers, (figures, (hits, true, predicted), areas) in zip(outputs, self._truths, strict=True):
            has_any = (targets > 0).any(axis=0) & ~(targets > 0).all(axis=0) if areas else slice(None)
            macro: dict[str, float] = {name: float(values[has_any].mean()) for name, values in areas.items()}
            if "macro_f1" in figures:
                _, num_true, num_predicted = _count(targets, answers)
                macro |= {
                    "macro_recall": np.where(num_true, hits / np.maximum(true, 1), 0).mean(),
                    "macro_precision": np.where(num_predicted, hits / np.maximum(predicted, 1), 0).mean(),
                    "macro_f1": np.where(num_true + num_predicted, 2 * hits / (true + predicted), 0).mean(),
                }
            truth = {**figures, **macro}
            if self.draw_targets:
                truth["calibration_error"] = 0.0
            results.append(truth)
        return results


def _count(targets: np.ndarray, answers: np.ndarray) -> list[np.ndarray]:
    """Return by class how many are right, true and predicted."""
    if targets.ndim == 1 and answers.ndim == 2:
        predicted = answers.argmax(axis=1)
        those = targets[targets == predicted], targets, predicted
        return [np.bincount(labels, minlength=answers.shape[1]) for labels in those]
    true, said = targets > 0, answers > _THRESHOLD
    return [those.sum(axis=0) for those in (true & said, true, said)] if true.shape == said.shape else [targets] * 3


def _noises(rng: np.random.Generator, shape: tuple[int, ...]) -> list[np.ndarray]:
    common = rng.normal(size=shape)
    return [(0.8 * common + 0.6 * rng.normal(size=shape)).astype(np.float32) for _ in range(2)]


def _pool(targets: np.ndarray, outputs: list[np.ndarray], skills: tuple[float, float], **rest: Any) -> Pool:
    if skills[0] == skills[1]:
        targets = np.concatenate([targets, targets])
        outputs = [np.concatenate(outputs), np.concatenate(outputs[::-1])]
    return Pool(targets, outputs, **rest)


def classes(shares: np.ndarray, skills: tuple[float, float], num_positive: int | None = None) -> Pool:
    """Return a population of classes with these shares."""
    rng = np.random.default_rng(0)
    labels = rng.choice(len(shares), _NUM_IN_POOL, p=shares)
    outputs = []
    for skill, noise in zip(skills, _noises(rng, (len(labels), len(shares))), strict=True):
        noise[np.arange(len(labels)), labels] += skill + np.log(len(shares) / 4) / 2
        outputs.append(_softmax(2 * noise))
    return _pool(labels, outputs, skills, task=Classification(), num_positive=num_positive)


def patients(skills: tuple[float, float], correlation: float, group_size: int = 25) -> Pool:
    """Return a population of patients with 25 pictures of four classes; how sure a model is depends on the patient."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, _NUM_IN_POOL)
    of_patients = _noises(rng, (_NUM_IN_POOL // group_size,))
    outputs = []
    for skill, noise, own in zip(skills, _noises(rng, (len(labels), 4)), of_patients, strict=True):
        of_patient = np.repeat(own, group_size) * np.sqrt(correlation / (1 - correlation))
        noise[np.arange(len(labels)), labels] += skill + of_patient
        outputs.append(_softmax(2 * noise))
    return _pool(labels, outputs, skills, task=Classification(), group_size=group_size)


def calibrated(skills: tuple[float, float]) -> Pool:
    """Return a population of four classes, and a model that gives their true probabilities."""
    rng = np.random.default_rng(0)
    outputs = [_softmax(2 * noise) for noise in _noises(rng, (_NUM_IN_POOL, 4))]
    labels = _draw_classes(rng, outputs[0])
    return Pool(labels, outputs, Classification(), draw_targets=_draw_classes)


def _draw_classes(rng: np.random.Generator, probabilities: np.ndarray) -> np.ndarray:
    sums = probabilities.cumsum(axis=1)
    return (rng.random((len(sums), 1)) * sums[:, -1:] > sums).sum(axis=1)


def _softmax(logits: np.ndarray) -> np.ndarray:
    powers: np.ndarray = np.exp(logits)
    return powers / powers.sum(axis=-1, keepdims=True)


def labels(shares: np.ndarray, skills: tuple[float, float], skill: float = 0.0) -> Pool:
    """Return a population of labels with these shares."""
    rng = np.random.default_rng(0)
    true = (rng.random((_NUM_IN_POOL, len(shares))) < shares).astype(np.float32)
    cut = 0.5 * np.log((1 - shares) / shares) / _SKILL  # The best threshold of a rare label is higher.
    outputs = [
        (1 / (1 + np.exp(-2 * (noise + (own + skill) * (2 * true - 1) - cut)))).astype(np.float32)
        for own, noise in zip(skills, _noises(rng, true.shape), strict=True)
    ]
    return _pool(true, outputs, skills, task=MultiLabel())


def numbers(skills: tuple[float, float]) -> Pool:
    """Return a population of two targets."""
    rng = np.random.default_rng(0)
    targets = rng.normal(size=(_NUM_IN_POOL, 2)) * _NUMBERS.std
    outputs = [
        targets + noise / skill * _NUMBERS.std for skill, noise in zip(skills, _noises(rng, targets.shape), strict=True)
    ]
    return _pool(targets, outputs, skills, task=_NUMBERS)


def passages(skills: tuple[float, float]) -> Pool:
    """Return a population of passages of 20 to 40 characters, some of which are harder than others."""
    rng = np.random.default_rng(0)
    targets = rng.integers(1, 7, (_NUM_IN_POOL // 8, 40))
    targets[np.arange(40) < rng.integers(0, 20, (len(targets), 1))] = 0
    hardness = rng.normal(size=(len(targets), 1)) / 2
    outputs = []
    for skill, noise in zip(skills, _noises(rng, (*targets.shape, 7)), strict=True):
        np.put_along_axis(noise, targets[..., None], noise.max(-1, keepdims=True) * 0 + skill, -1)
        noise += np.eye(7, dtype=np.float32)[targets] * hardness[..., None]
        outputs.append(score_passages(targets, _softmax(2 * noise).astype(np.float32)))
    return _pool(targets, outputs, skills, task=LanguageModel())


def zipf(num: int) -> np.ndarray:
    """Return shares that fall as 1, 1/2, 1/3 and so on."""
    shares: np.ndarray = 1 / np.arange(1, num + 1)
    return shares / shares.sum()


def _two_classes(num_positive: int) -> Callable[[tuple[float, float]], Pool]:
    share = num_positive / 500
    return lambda skills: classes(np.array([1 - share, share]), skills, num_positive)


# How to make the population, the sizes of the data sets, and how many are drawn at most.
KINDS: Mapping[str, tuple[Callable[[tuple[float, float]], Pool], Mapping[int, int]]] = {
    "4 balanced classes": (lambda skills: classes(np.full(4, 0.25), skills), {50: 2000, 500: 2000, 10_000: 2000}),
    "4 classes, calibrated": (calibrated, {50: 2000, 500: 2000}),
    "2 balanced classes": (lambda skills: classes(np.full(2, 0.5), skills), {50: 2000, 500: 2000}),
    "2 classes, 3 positives": (_two_classes(3), {500: 2000}),
    "2 classes, 5 positives": (_two_classes(5), {500: 2000}),
    "2 classes, 10 positives": (_two_classes(10), {500: 2000}),
    "2 classes, 30 positives": (_two_classes(30), {500: 2000}),
    "20 Zipf classes": (lambda skills: classes(zipf(20), skills), {500: 2000}),
    "100 Zipf classes": (lambda skills: classes(zipf(100), skills), {1000: 2000, 10_000: 2000}),
    "40 patients, correlation 0.1": (lambda skills: patients(skills, 0.1), {1000: 2000}),
    "40 patients, correlation 0.3": (lambda skills: patients(skills, 0.3), {1000: 2000}),
    "3 labels": (lambda skills: labels(np.full(3, 0.3), skills), {50: 2000, 500: 2000}),
    "80 Zipf labels": (lambda skills: labels(0.4 / np.arange(1, 81), skills), {500: 2000}),
    "2 numbers": (numbers, {50: 2000, 500: 2000}),
    "passages": (passages, {20: 2000, 200: 2000}),
}


@dataclasses.dataclass(frozen=True)
class Rates:
    """How often what happened, as shares of the data sets.

    Attributes:
        shown: An interval is given.
        holds: The interval has the true figure in it, where one is given.
        promoted: The gate promotes an equal model; None where it cannot compare so few examples.
        beyond: One of the two bounds of a difference is on the wrong side of the true one, the worse of both.
        power: The gate promotes a model that is better.
        ideal: A test would that knew how the difference is distributed, and promotes as many equal models.
    """

    shown: float
    holds: float | None
    promoted: float | None
    beyond: float | None
    power: float | None
    ideal: float | None


def simulate(kind: str, num_examples: int, repetitions: int) -> Iterator[tuple[str, Rates]]:
    """Yield every figure with its rates."""
    make = KINDS[kind][0]
    rng = np.random.default_rng(zlib.crc32(f"{kind} {num_examples}".encode()))
    counted: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for name, skill in (("equal", _SKILL), ("better", _BETTER)):
        pool = make((skill, _SKILL))
        for _ in range(repetitions):
            targets, outputs = pool.draw(rng, num_examples)
            truth, truth_of_champion = pool.truths(targets, outputs)
            models = [pool.figures(targets, answers) for answers in outputs]
            intervals, differences = models[0].intervals, compare_metrics(*models, CONFIDENCE)
            for metric in models[0].estimates:
                counts = counted[metric]
                if name == "equal":
                    interval = intervals.get(metric)
                    counts["shown"].append(interval is not None)
                    if interval:
                        counts["holds"].append(interval[0] - 1e-9 <= truth[metric] <= interval[1] + 1e-9)
                difference = differences.get(metric)
                if difference and not pool.draw_targets:
                    gain = direction(metric) * (truth[metric] - truth_of_champion[metric])
                    counts[name].append(difference.luck <= 1 - CONFIDENCE and difference.least is not None)
                    counts[f"{name} by"].append(difference.advantage)
                    counts[f"{name} least"].append(difference.least is not None and difference.least > gain)
                    counts[f"{name} most"].append(difference.most is not None and difference.most < gain)
    for metric, counts in counted.items():
        yield metric, _rates(counts)


def _rates(counts: Mapping[str, list[float]]) -> Rates:
    means = {key: float(np.mean(values)) for key, values in counts.items()}
    ideal = None
    if "better" in means:
        promoted = means["equal"]
        needed = np.quantile(counts["equal by"], 1 - promoted) if promoted else np.max(counts["equal by"])
        ideal = float(np.mean(np.array(counts["better by"]) > needed))
    bounds = [means[f"{name} {bound}"] for name in ("equal", "better") for bound in ("least", "most") if name in means]
    return Rates(
        shown=means["shown"],
        holds=means.get("holds"),
        promoted=means.get("equal"),
        beyond=max(bounds, default=None),
        power=means.get("better"),
        ideal=ideal,
    )


_FIGURES = ModelMetrics("classification", 1, {}, {})
_RARE = "80 rare labels"


def refused_by_slices(kind: str, num_examples: int, repetitions: int) -> float:
    """Return how often the slices refuse a model that is equal to the champion."""
    pool = (_rare_labels if kind == _RARE else KINDS[kind][0])((_SKILL, _SKILL))
    task = Classification() if pool.targets.ndim == 1 else MultiLabel()
    names = tuple(map(str, range(pool.outputs[0].shape[-1])))
    params = EvaluateParams(max_regression={}, max_slice_regression=0.0 if task.name == "classification" else 0.05)
    rng = np.random.default_rng(zlib.crc32(f"{kind} {num_examples}".encode()))
    refused = 0
    for _ in range(repetitions):
        targets, outputs = pool.draw(rng, num_examples)
        slices = find_slices(params, GroundTruth(task, targets, names), np.stack(outputs))
        refused += not decide(params, _FIGURES, slices=slices).promote
    return refused / repetitions


def _rare_labels(skills: tuple[float, float]) -> Pool:
    return labels(0.2 / np.arange(1, 81), skills, skill=0.5)


def refused_by_sites(num_sites: int, num_examples: int, repetitions: int) -> float:
    """Return how often a least accuracy of 0.9 in every site refuses a model whose accuracy is 0.95."""
    params = EvaluateParams(slices=("site",), slice_minimum=0.9)
    sites = {"site": np.repeat([f"site {i}" for i in range(num_sites)], num_examples)}
    rng = np.random.default_rng(num_sites * num_examples)
    truth = GroundTruth(Classification(), np.zeros(num_sites * num_examples, int), ("no", "yes"), properties=sites)
    refused = 0
    for _ in range(repetitions):
        answers = np.eye(2)[(rng.random(num_sites * num_examples) > 0.95).astype(int)][None]
        slices = find_slices(params, truth, answers)
        refused += not decide(params, _FIGURES, slices=slices).promote
    return refused / repetitions


def beaten_by_guesses(num_classes: int, num_examples: int, repetitions: int) -> float:
    """Return how often a model that guesses beats the baseline."""
    rng = np.random.default_rng(num_classes * num_examples)
    names = [str(i) for i in range(num_classes)]
    beaten = 0
    for _ in range(repetitions):
        targets = rng.integers(0, num_classes, num_examples)
        beaten += find_baseline(
            GroundTruth(Classification(), targets, names), rng.random((num_examples, num_classes))
        ).is_beaten
    return beaten / repetitions


def passed_at_the_bound(kind: str, num_examples: int, metric: str, repetitions: int) -> float:
    """Return how often `bound_confidence` of 0.95 passes a model whose true figure is just the bound."""
    pool = KINDS[kind][0]((_SKILL, _SKILL))
    rng = np.random.default_rng(zlib.crc32(f"{kind} {num_examples} {metric}".encode()))
    name = "minimum" if direction(metric) > 0 else "maximum"
    passed = 0
    for _ in range(repetitions):
        targets, outputs = pool.draw(rng, num_examples)
        bound = {metric: float(pool.truths(targets, outputs)[0][metric])}
        estimate = pool.estimators(targets, outputs[0])[metric]()
        assert estimate is not None
        params = EvaluateParams(bound_confidence=CONFIDENCE, **{name: bound})  # type: ignore[arg-type]
        passed += decide(params, ModelMetrics(pool.task.name, num_examples, {metric: estimate}, {})).promote
    return passed / repetitions


SLICES: tuple[tuple[str, Callable[[int], float], int], ...] = (
    *(
        (
            f"slices refuse an equal model: {kind}, {num_examples:,} examples",
            functools.partial(refused_by_slices, kind, num_examples),
            repetitions,
        )
        for kind, num_examples, repetitions in (
            ("4 balanced classes", 500, 2000),
            ("100 Zipf classes", 1000, 500),
            ("80 Zipf labels", 500, 2000),
            (_RARE, 500, 2000),
            (_RARE, 2000, 1000),
            (_RARE, 5000, 1000),
        )
    ),
    *(
        (
            f"slice_minimum 0.9 refuses an accuracy of 0.95: 20 sites of {num_examples}",
            functools.partial(refused_by_sites, 20, num_examples),
            2000,
        )
        for num_examples in (1, 10, 100)
    ),
    *(
        (
            f"a model that guesses beats the baseline: {num_classes} classes, {num_examples} examples",
            functools.partial(beaten_by_guesses, num_classes, num_examples),
            2000,
        )
        for num_classes, num_examples in ((2, 50), (2, 500), (10, 50))
    ),
    *(
        (
            f"bound_confidence 0.95 passes a model at the bound: {metric}, {kind}, {num_examples:,} examples",
            functools.partial(passed_at_the_bound, kind, num_examples, metric),
            2000,
        )
        for metric, kind, num_examples in (
            ("accuracy", "4 balanced classes", 50),
            ("accuracy", "4 balanced classes", 359),
            ("accuracy", "40 patients, correlation 0.3", 1000),
            ("macro_recall", "20 Zipf classes", 500),
            ("roc_auc", "2 classes, 10 positives", 500),
            ("loss", "4 balanced classes", 500),
        )
    ),
)
# Each simulates that many years.
YEARS: tuple[tuple[str, Callable[[int], Years], int], ...] = (
    ("equal models, 2,000 examples, test_decisions 1", lambda number: simulate_equal(2000, number, 1), 2000),
    ("equal models, 2,000 examples, test_decisions 52", lambda number: simulate_equal(2000, number, WEEKS), 2000),
    (
        "accuracy 0.001 lower each week, margin 0.01, 10,000 examples, test_decisions 52",
        lambda number: simulate_creep(10_000, number, WEEKS, 0.01, anchored=True),
        2000,
    ),
)
_YEAR_COLUMNS = (
    *("52 weeks", "years", "error", "promotions", "points lost", "champion overrated", "better promoted"),
    "by an ideal test",
)
_COLUMNS = (
    *("data", "examples", "figure", "data sets", "interval shown", "interval holds", "equal promoted", "bound wrong"),
    *("better promoted", "by an ideal test"),
)


def write_table(
    figures: Iterable[tuple[str, int, int, str, Rates]],
    slices: Iterable[tuple[str, int, float]],
    years: Iterable[tuple[str, int, Years]],
) -> Iterator[str]:
    """Yield the lines of `components/tpu_components/evaluate_model/intervals.md`."""
    yield from (
        "# Intervals and tests of the gate, simulated",
        "",
        "`python -m tests.evidence.oracles intervals` makes this file; `tests/evidence/oracles/intervals.py` says how.",
        "All rates are percentages of the data sets, which are drawn from a population whose true figures are known.",
        "",
        f"- interval holds: the true figure is in the 95% interval. Nominal: {100 * CONFIDENCE:g} or more.",
        "- equal promoted: an equal model is promoted, without a margin. Nominal: 5 or less.",
        "- bound wrong: error rate of the one-sided bound that a margin uses; the worst of four cases (equal or",
        "  different models, lower or upper bound). Nominal: 5 or less.",
        "- better promoted: a better model is promoted. The next column is the same rate of an ideal test, which knows",
        "  the true distribution of the difference and promotes as many equal models.",
        "- –: too few examples, too large a bias, or (calibrated classes) no second model to compare with. A",
        "  `max_regression` of a figure without a comparison rejects the model.",
        "",
        f"| {' | '.join(_COLUMNS)} |",
        f"|---|{'--:|' + '---|' + '--:|' * (len(_COLUMNS) - 3)}",
    )
    for kind, num_examples, repetitions, metric, rates in figures:
        shown = [_percent(value) for value in dataclasses.astuple(rates)]
        yield f"| {' | '.join((kind, f'{num_examples:,}', metric, f'{repetitions:,}', *shown))} |"
    yield from ("", "| gate | data sets | happens | nominal |", "|---|--:|--:|--:|")
    for name, repetitions, rate in slices:
        yield f"| {name} | {repetitions:,} | {_percent(rate)} | {100 * (1 - CONFIDENCE):.0f} or less |"
    yield from (
        "",
        "52 weeks, a new model each week, one test set (`tests/evidence/oracles/years.py`). Error: one or more",
        "promotions of an equal model, or a champion that is in the end worse than the first by more than the margin.",
        "Points are per cent of right answers. Better promoted: share of the weeks in which a model that has 2 points",
        "more would be promoted. Champion overrated: its accuracy on the test set minus its true accuracy, at the end.",
        "",
        f"| {' | '.join(_YEAR_COLUMNS)} |",
        f"|---|{'--:|' * (len(_YEAR_COLUMNS) - 1)}",
    )
    for name, repetitions, year in years:
        told = (
            *(f"{repetitions:,}", _percent(year.false), f"{year.number:.2f}", f"{year.fell:.2f}"),
            *(f"{year.flattered:.2f}", _percent(year.better), _percent(year.ideal)),
        )
        yield f"| {name} | {' | '.join(told)} |"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"


def _simulate_lines(kind: str, num_examples: int, number: int) -> list[tuple[str, int, int, str, Rates]]:
    return [(kind, num_examples, number, *line) for line in simulate(kind, num_examples, number)]


def _simulate_gate(index: int, most: int) -> tuple[str, int, float]:
    name, refuse, repetitions = SLICES[index]
    return name, (number := min(repetitions, most)), refuse(number)


def _simulate_year(index: int, most: int) -> tuple[str, int, Years]:
    name, make, repetitions = YEARS[index]
    return name, (number := min(repetitions, most)), make(number)


def simulate_all(most: int) -> Iterator[str]:
    """Yield the lines of the table, of at most so many data sets for each line; all cores work on it."""
    jobs = [(kind, size, min(number, most)) for kind, (_, sizes) in KINDS.items() for size, number in sizes.items()]
    with ProcessPoolExecutor() as pool:
        figures = pool.map(_simulate_lines, *zip(*jobs, strict=True))
        gates = pool.map(_simulate_gate, range(len(SLICES)), itertools.repeat(most))
        years = pool.map(_simulate_year, range(len(YEARS)), itertools.repeat(most))
        yield from write_table(itertools.chain.from_iterable(figures), gates, years)
