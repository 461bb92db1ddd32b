"""May the challenger be promoted? A pure function of numbers, with its reasons in words."""

import dataclasses
from collections.abc import Mapping

from components.evaluate_model.params import LOWER_IS_BETTER, EvaluateParams

# Differences below this are rounding: sums of the same numbers in another order.
_TOLERANCE = 1e-9
# Why a metric may be undefined.
_NEEDS = {
    "roc_auc": "two classes, both in the split",
    "macro_roc_auc": "a label that some examples of the split have and others have not",
    "mean_average_precision": "an example in the split that has a label",
    "r2": "targets that differ within the split",
}


@dataclasses.dataclass(frozen=True)
class Decision:
    """Whether to promote, and why."""

    promote: bool
    reasons: tuple[str, ...]


def decide(
    params: EvaluateParams,
    challenger: Mapping[str, float],
    champion: Mapping[str, float] | None,
    num_not_finite: int = 0,
) -> Decision:
    """Judge a challenger's metrics.

    Args:
        params: The thresholds.
        challenger: Scalar metrics by name.
        champion: The champion's on the same examples, or None if there is no champion.
        num_not_finite: Examples for which the challenger gave NaN or infinity; one is too many.

    Returns:
        The decision. Every threshold is checked and gives a reason, also when an earlier one has failed.
    """
    checks: list[tuple[bool, str]] = []
    if num_not_finite:
        checks.append((False, f"{num_not_finite} predictions are not finite numbers"))
    for names, sign, word in ((params.minimum, 1, "at least"), (params.maximum, -1, "at most")):
        for metric, bound in names.items():
            if metric not in challenger:
                why = f"it needs {_NEEDS[metric]}" if metric in _NEEDS else "it is of another task"
                checks.append((False, f"{metric} was not measured: {why}"))
                continue
            value = challenger[metric]
            checks.append(
                (sign * (value - bound) >= -_TOLERANCE, f"{metric} {_shown(value)}, required {word} {_shown(bound)}")
            )
    if champion is None:
        checks.append((True, "there is no champion to beat"))
    else:
        for metric, allowed in params.max_regression.items():
            if metric in challenger and metric in champion:
                checks.append(_compare(metric, challenger[metric], champion[metric], allowed))
            else:
                checks.append((False, f"{metric} cannot be compared: it needs {_NEEDS[metric]}"))
    promote = all(passed for passed, _ in checks)
    return Decision(promote, tuple(f"{'passed' if passed else 'failed'}: {text}" for passed, text in checks))


def _compare(metric: str, challenger: float, champion: float, allowed: float) -> tuple[bool, str]:
    regression = (champion - challenger) * (-1 if metric in LOWER_IS_BETTER else 1)
    standing = "ties with" if abs(regression) <= _TOLERANCE else "is worse than" if regression > 0 else "beats"
    text = f"{metric} {_shown(challenger)} {standing} the champion's {_shown(champion)}"
    return regression <= allowed + _TOLERANCE, f"{text}; it may be worse by {_shown(allowed)}"


def _shown(value: float) -> str:
    """To four places, and of a number too small for them to four digits: errors have any unit."""
    return f"{value:.4g}" if 0 < abs(value) < 1e-3 else f"{value:.4f}"
