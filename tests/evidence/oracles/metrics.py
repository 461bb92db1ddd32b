"""What the project computes of the cases, and how far it is from the definitions."""

from collections.abc import Iterator, Mapping

import numpy as np

from tests.evidence.oracles import definitions
from tests.evidence.oracles.cases import cases
from tpu_components.core.examples.interface import TASKS, Regression
from tpu_components.core.metrics.estimates import score_passages
from tpu_components.core.metrics.model_metrics import GroundTruth, compute_metrics

TOP_K = 3


def compute(task: str, targets: np.ndarray, outputs: np.ndarray) -> dict[str, float]:
    """The figures as the evaluation computes them."""
    names = [f"name {i}" for i in range(outputs.shape[-1])]
    asked = Regression((0.0,) * len(names), tuple(stds(targets))) if task == "regression" else TASKS[task]
    answers = score_passages(targets, outputs) if task == "language_model" else outputs
    return compute_metrics(GroundTruth(asked, targets, names), answers, TOP_K).metrics


def define(task: str, targets: np.ndarray, outputs: np.ndarray) -> dict[str, float]:
    """The figures by their definitions; only those that are defined."""
    true, rows = targets.tolist(), outputs.astype(np.float64).tolist()
    figures: Mapping[str, float | None]
    if task == "classification":
        figures = definitions.classification(true, rows, max(1, min(TOP_K, outputs.shape[1] - 1)))
    elif task == "multi_label":
        figures = definitions.multi_label(true, rows)
    elif task == "regression":
        figures = definitions.regression(true, rows, stds(targets))
    else:
        figures = definitions.language_model(true, rows)
    return {name: value for name, value in figures.items() if value is not None}


def stds(targets: np.ndarray) -> list[float]:
    """Of a training split, any will do: a constant target has one, too."""
    return [float(i + 2) for i in range(targets.shape[1])]


def deviations() -> Iterator[tuple[str, str, str, float]]:
    """Task, case, figure, and how far what is computed is from its definition, as a share of it."""
    for task, name, targets, outputs in cases():
        computed, defined = compute(task, targets, outputs), define(task, targets, outputs)
        assert computed.keys() == defined.keys(), (task, name, computed.keys() ^ defined.keys())
        for figure, value in defined.items():
            yield (
                task,
                name,
                figure,
                abs(computed[figure] - value) / max(abs(value), 1e-300) if value else abs(computed[figure]),
            )
