"""The gate's decision from metrics that a test names, and what it said, as text that a claim can be compared with."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tpu_components.core.examples.interface import CLASSIFICATION
from tpu_components.core.metrics.comparisons import Difference
from tpu_components.core.metrics.estimates import Estimate
from tpu_components.core.metrics.model_metrics import ModelMetrics
from tpu_components.core.results.evaluation_info import Decision
from tpu_components.evaluate_model import EvaluateParams
from tpu_components.evaluate_model.gate import Comparison, decide


def decide_on(
    params: EvaluateParams,
    challenger: Mapping[str, float],
    champion: Mapping[str, float] | None = None,
    differences: Mapping[str, Difference] = {},
    details: Mapping[str, Any] = {},
    **facts: Any,
) -> Decision:
    """Decide from the metrics of a model and a champion; nothing is known of what chance leaves of them."""
    estimates = {name: Estimate(value, np.zeros(1)) for name, value in challenger.items()}
    comparisons = [] if champion is None else [Comparison("the champion's", champion, differences)]
    return decide(params, ModelMetrics(CLASSIFICATION, 1, estimates, details), comparisons, **facts)


def said(judged: Any) -> tuple[str, ...]:
    """Return the rules of a decision, or of what holds its `reasons`, each as `passed: …` or `failed: …`."""
    return tuple(map(str, judged.reasons))
