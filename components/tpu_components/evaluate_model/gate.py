"""Decides from metrics whether the challenger may be promoted, and gives the reasons in words."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from tpu_components.core.base.formatting import level, percent, show
from tpu_components.core.metrics.comparisons import Difference
from tpu_components.core.metrics.definitions import BY_NAME, NO_CONFIDENCE
from tpu_components.core.metrics.details import macro_notes
from tpu_components.core.metrics.intervals import find_probability
from tpu_components.core.metrics.model_metrics import ModelMetrics
from tpu_components.core.results.evaluation_info import Baseline, Decision, Rule, SliceMetric
from tpu_components.evaluate_model.params import EvaluateParams

# Relative difference below which values count as equal: the same numbers may be summed in another order.
_TOLERANCE = 1e-9
_LISTED_SLICES = 5


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A comparison of the challenger with another model, on the same examples.

    Attributes:
        whose: Words that name the other model in a reason, before the value of a metric, such as `the champion's`.
        metrics: Metrics of the other model, by name.
        differences: Differences between the challenger and the other model, by metric, with confidence bounds.
    """

    whose: str
    metrics: Mapping[str, float]
    differences: Mapping[str, Difference]


def decide(
    params: EvaluateParams,
    challenger: ModelMetrics,
    comparisons: Sequence[Comparison] = (),
    num_not_finite: int = 0,
    slices: Sequence[SliceMetric] = (),
    baseline: Baseline | None = None,
    remarks: Sequence[Rule] = (),
) -> Decision:
    """Decide from a challenger's metrics whether it may be promoted.

    Args:
        params: Thresholds and confidence levels.
        challenger: Metrics of the challenger.
        comparisons: Comparison with the champion, followed by the comparison with the best model that was ever
            promoted, if that is another model. Empty without a champion.
        num_not_finite: Number of examples for which the challenger predicted NaN or infinity. It must be 0.
        slices: Metrics of slices of the examples, with bounds that hold for all slices together.
        baseline: Comparison of the challenger with the best constant prediction.
        remarks: Rules that always pass. They state on which examples and with which error rate the model is judged.
            `evaluation_info` defines the texts of these rules and of the baseline's rule, because model cards repeat
            them.

    Returns:
        The decision. Every threshold is checked and gives a reason, even if an earlier threshold has failed.
    """
    rules = [*remarks]
    if num_not_finite:
        rules.append(Rule(False, "", f"{num_not_finite} predictions are not finite numbers"))
    for bounds, word in ((params.minimum, "at least"), (params.maximum, "at most")):
        rules += [
            _check_bound(challenger, name, bound, word, params.bound_confidence) for name, bound in bounds.items()
        ]
    if not comparisons:
        # If the parameters name a champion, no model has been promoted yet, or only the challenger has.
        words = "there is no other champion to beat" if params.champion else "no champion was given to compare with"
        rules.append(Rule(True, "", words))
    for metric, allowed in params.max_regression.items():
        # Compare with the best model too: otherwise, margins add up if each model is a little worse than the last.
        for comparison in comparisons if allowed else comparisons[:1]:
            rules.append(_compare(challenger, comparison, metric, allowed, params.confidence))
    rules += _check_slices(params, slices)
    if baseline is not None and params.beat_baseline:
        rules.append(baseline.rule)
    return Decision(all(rule.passed for rule in rules), tuple(rules))


def _check_bound(challenger: ModelMetrics, metric: str, bound: float, word: str, confidence: float) -> Rule:
    if metric not in challenger.estimates:
        return Rule(False, metric, f"{metric} was not measured: {_why_undefined(metric)}")
    estimate = challenger.estimates[metric]
    value = estimate.value
    probability = find_probability(estimate, bound)
    passed = reached = _tie(value, bound) or (value > bound if word == "at least" else value < bound)
    digits = () if _tie(value, bound) else (value, bound)
    text = f"{metric} {show(value, *digits)}, required {word} {show(bound, *digits)}"
    if confidence > NO_CONFIDENCE:
        passed = reached and probability is not None and probability <= 1 - confidence
        unknown = "" if probability is not None else ", which cannot be tested with so few examples"
        text += f" with {level(confidence)} confidence{unknown}"
    if probability is not None:
        side = "high" if value >= bound else "low"
        share = percent(probability)
        text += f"; a model with a true value of {show(bound, *digits)} scores as {side} in {share} of cases"
    note = macro_notes(challenger.details).get(metric)
    return Rule(passed, metric, f"{text} ({note})" if note else text)


def _compare(challenger: ModelMetrics, comparison: Comparison, metric: str, allowed: float, confidence: float) -> Rule:
    ours, theirs = challenger.metrics.get(metric), comparison.metrics.get(metric)
    if ours is None or theirs is None:
        return Rule(False, metric, f"{metric} cannot be compared: {_why_undefined(metric)}")
    sign = challenger.sign_of(metric)
    difference = comparison.differences.get(metric)
    worse_by = (theirs - ours) * sign
    verb = "ties with" if _tie(ours, theirs) else "beats" if worse_by < 0 else "is worse than"
    text = f"{metric} {show(ours, theirs)} {verb} {comparison.whose} {show(theirs, ours)}"
    if confidence == NO_CONFIDENCE:
        passed = worse_by <= allowed or _tie(theirs - sign * allowed, ours)
        return Rule(passed, metric, f"{text}; it may be worse by {show(allowed)}")
    if difference is None:
        return Rule(False, metric, f"{text}, but there are too few examples to show whether this is chance")
    sure = f"with {level(confidence)} confidence"
    passed, limit = (_is_better if allowed == 0 else _is_no_worse)(difference, allowed, confidence, sure)
    if not passed and difference.detectable is not None:
        limit += f". These examples reveal a difference of {show(difference.detectable)} in 80% of cases"
    if not passed and allowed == 0 and _tie(ours, theirs):
        limit += f". With gate.max_regression.{metric} above 0, an equal model may pass"
    return Rule(passed, metric, f"{text}{limit}")


def _is_better(difference: Difference, allowed: float, confidence: float, sure: str) -> tuple[bool, str]:
    if difference.advantage <= 0:
        return False, f"; it must be better {sure}"
    counts = ""
    if difference.num_better is not None:
        counts = f" ({difference.num_better:,} newly correct, {difference.num_worse:,} newly wrong)"
    if difference.luck > 1 - confidence or difference.least is None:
        luck = percent(difference.luck)
        return False, f"{counts}, but chance alone gives this difference in {luck} of cases; it must be better {sure}"
    return True, f"{counts}, {sure} by more than {show(max(difference.least, 0.0))}"


def _is_no_worse(difference: Difference, allowed: float, confidence: float, sure: str) -> tuple[bool, str]:
    limit = f"; it may be worse by {show(allowed)}"
    if difference.least is None:
        return False, f"{limit}, which cannot be tested {sure} with so few examples"
    worst = show(-difference.least, allowed)
    if difference.least <= -allowed:
        return False, f"{limit}, but a loss of {worst} is not ruled out {sure}"
    if difference.least >= 0:
        return True, f"{limit}, and is no worse {sure}"
    return True, f"{limit}, and is worse by at most {worst} {sure}"


def _check_slices(params: EvaluateParams, slices: Sequence[SliceMetric]) -> list[Rule]:
    """Judge the slices by `slice_minimum`, and by the champion's slices.

    Return a failed rule for each slice that is significantly below the minimum, and for each slice that is
    significantly worse than the champion's. If more than five slices fail a check, one rule counts the rest. If no
    slice fails a check, the result has one passed rule for it.
    """
    sure = f"with {level(params.confidence)} confidence in all {len(slices):,} slices"
    rules = []
    if slices and params.slice_minimum:
        least = f"the minimum of slices, {show(params.slice_minimum)}"
        low = [
            f"{part.metric} {show(part.value)} of {part} is below {least}, {sure}"
            for part in sorted(slices, key=lambda part: part.value)
            if part.interval and part.interval[1] < params.slice_minimum * (1 - _TOLERANCE)
        ]
        rules += _list_slices(slices[0].metric, low, f"no slice is below {least}, {sure}")
    compared = [(part, part.difference.most) for part in slices if part.difference and part.difference.most is not None]
    if compared:
        margin = params.max_slice_regression
        broken = [
            f"{part.metric} {show(part.value)} of {part} is worse than the champion's {show(part.champion or 0.0)} by "
            f"more than {show(margin)}, {sure}"
            for part, most in sorted(compared, key=lambda pair: pair[1])
            if most < -margin * (1 + _TOLERANCE)
        ]
        otherwise = f"no slice is worse than the champion's by more than {show(margin)}, {sure}"
        rules += _list_slices(slices[0].metric, broken, otherwise)
    return rules


def _list_slices(metric: str, failed: Sequence[str], otherwise: str) -> list[Rule]:
    if not failed:
        return [Rule(True, metric, otherwise)]
    more = [f"{len(failed) - _LISTED_SLICES:,} more slices fail"] if len(failed) > _LISTED_SLICES else []
    return [Rule(False, metric, text) for text in [*failed[:_LISTED_SLICES], *more]]


def _tie(value: float, other: float) -> bool:
    return math.isclose(value, other, rel_tol=_TOLERANCE)


def _why_undefined(metric: str) -> str:
    needs = BY_NAME[metric].needs if metric in BY_NAME else "a model that measures it, and finite values from Keras"
    return f"this metric requires {needs}" if needs else "this metric belongs to another task"
