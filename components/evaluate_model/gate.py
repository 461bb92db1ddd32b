"""May the challenger be promoted? A pure function of numbers, with its reasons in words."""

import math
from collections.abc import Mapping

from components.evaluate_model.params import EvaluateParams
from components.evaluation_info import Baseline, Decision
from components.metric_table import BY_NAME, direction, show

# Share of a value below which a difference is rounding: sums of the same numbers in another order.
_TOLERANCE = 1e-9


def decide(
    params: EvaluateParams,
    challenger: Mapping[str, float],
    champion: Mapping[str, float] | None,
    num_not_finite: int = 0,
    baseline: Baseline | None = None,
    notes: Mapping[str, str] | None = None,
) -> Decision:
    """Judge a challenger's metrics.

    Args:
        params: The thresholds.
        challenger: Scalar metrics by name.
        champion: The champion's on the same examples, or None if there is no champion.
        num_not_finite: Examples for which the challenger gave NaN or infinity; one is too many.
        baseline: Comparison of the challenger with the best constant answer.
        notes: Remarks on metrics, by name; said where the metric is bounded.

    Returns:
        The decision. Every threshold is checked and gives a reason, also when an earlier one has failed.
    """
    checks: list[tuple[bool, str]] = []
    if num_not_finite:
        checks.append((False, f"{num_not_finite} predictions are not finite numbers"))
    for bounds, word in ((params.minimum, "at least"), (params.maximum, "at most")):
        for metric, bound in bounds.items():
            passed, text = _check_bound(metric, challenger.get(metric), bound, word)
            note = (notes or {}).get(metric)
            checks.append((passed, f"{text} ({note})" if note else text))
    if champion is None:
        checks.append((True, "there is no other champion to beat"))  # None but, where it is judged again, itself.
    else:
        for metric, allowed in params.max_regression.items():
            checks.append(_compare(metric, challenger.get(metric), champion.get(metric), allowed))
    if baseline is not None and params.beat_baseline:
        checks.append((baseline.is_beaten, baseline.reason))
    promote = all(passed for passed, _ in checks)
    return Decision(promote, tuple(f"{'passed' if passed else 'failed'}: {text}" for passed, text in checks))


def _check_bound(metric: str, value: float | None, bound: float, word: str) -> tuple[bool, str]:
    if value is None:
        return False, f"{metric} was not measured: {_why_undefined(metric)}"
    if math.isnan(value):
        return False, f"{metric} is {show(value)}, required {word} {show(bound)}"
    if _tie(value, bound):
        return True, f"{metric} {show(value)}, required {word} {show(bound)}"
    holds = direction(metric) * (value - bound) > 0
    return holds, f"{metric} {show(value, bound)}, required {word} {show(bound, value)}"


def _compare(metric: str, challenger: float | None, champion: float | None, allowed: float) -> tuple[bool, str]:
    if challenger is None or champion is None:
        return False, f"{metric} cannot be compared: {_why_undefined(metric)}"
    limit = f"it may be worse by {show(allowed)}"
    if _tie(challenger, champion):
        return True, f"{metric} {show(challenger)} ties with the champion's {show(champion)}; {limit}"
    if math.isnan(challenger) or math.isnan(champion):
        text = f"{metric} is {show(challenger)}, the champion's is {show(champion)}"
        return not math.isnan(challenger), text
    worse_by = (champion - challenger) * direction(metric)
    standing = "is worse than" if worse_by > 0 else "beats"
    passed = worse_by <= allowed or _tie(champion - direction(metric) * allowed, challenger)
    shown = show(challenger, champion), show(champion, challenger)
    return passed, f"{metric} {shown[0]} {standing} the champion's {shown[1]}; {limit}"


def _tie(value: float, other: float) -> bool:
    return math.isclose(value, other, rel_tol=_TOLERANCE)


def _why_undefined(metric: str) -> str:
    return f"it needs {needs}" if (needs := BY_NAME[metric].needs) else "it is of another task"
