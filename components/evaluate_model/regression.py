"""How close predicted numbers are: scikit-learn's figures of every target, and their means."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.interface import REGRESSION, Task
from tpu_components.evaluate_model.metrics import check_finite, check_not_empty


@dataclasses.dataclass(frozen=True)
class TargetMetrics:
    """One target, in its own unit; `r2` is the share of its variance that is explained, None where it has none."""

    name: str
    mean_absolute_error: float
    root_mean_squared_error: float
    median_absolute_error: float
    r2: float | None


@dataclasses.dataclass(frozen=True)
class RegressionMetrics:
    """Every figure of one evaluation, as plain Python numbers; of several targets each figure is the mean.

    Attributes:
        num_examples: Examples that were scored.
        mean_absolute_error: In the targets' unit.
        root_mean_squared_error: In the targets' unit.
        median_absolute_error: In the targets' unit.
        r2: Share of the variance that is explained; None where a target has none.
        loss: Mean squared error in standard deviations of the training split.
        per_target: One entry per target, in the order of the names.
    """

    task: ClassVar[str] = REGRESSION
    num_examples: int
    mean_absolute_error: float
    root_mean_squared_error: float
    median_absolute_error: float
    r2: float | None
    loss: float
    per_target: tuple[TargetMetrics, ...]


def compute_regression_metrics(
    targets: np.ndarray, values: np.ndarray, names: Sequence[str], task: Task
) -> RegressionMetrics:
    """Compare predicted numbers with the true ones.

    Args:
        targets: float[num_examples, num_targets].
        values: The same for what was predicted.
        names: One name per target.
        task: Their regression, which knows their scale.

    Raises:
        InputError: If there are no examples, the shapes disagree, or a number is not finite.
    """
    from sklearn import metrics as reference

    check_not_empty(targets)
    if not targets.shape == values.shape == (len(targets), len(names)):
        raise InputError(
            f"Targets and answers must be of shape [num_examples, num_targets]. Received: {list(targets.shape)} and "
            f"{list(values.shape)}, with {len(names)} names. Give the model one output per target."
        )
    check_finite(values)
    targets = targets.astype(np.float64)
    per_target = tuple(
        TargetMetrics(
            name=name,
            mean_absolute_error=float(reference.mean_absolute_error(true, said)),
            root_mean_squared_error=float(reference.root_mean_squared_error(true, said)),
            median_absolute_error=float(reference.median_absolute_error(true, said)),
            r2=float(reference.r2_score(true, said)) if true.var() > 0 else None,
        )
        for name, true, said in zip(names, targets.T, values.T, strict=True)
    )
    explained = [target.r2 for target in per_target if target.r2 is not None]
    return RegressionMetrics(
        num_examples=len(targets),
        mean_absolute_error=float(np.mean([target.mean_absolute_error for target in per_target])),
        root_mean_squared_error=float(np.mean([target.root_mean_squared_error for target in per_target])),
        median_absolute_error=float(np.mean([target.median_absolute_error for target in per_target])),
        r2=float(np.mean(explained)) if len(explained) == len(names) else None,
        loss=float(task.losses(targets, values).mean()),
        per_target=per_target,
    )
