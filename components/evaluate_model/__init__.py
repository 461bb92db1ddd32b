"""Score a trained model, and the champion beside it, on one split; decide whether it may be promoted."""

from tpu_components.evaluate_model.evaluation import evaluate_model
from tpu_components.evaluate_model.params import EvaluateParams, EvaluateResult

__all__ = ["EvaluateParams", "EvaluateResult", "evaluate_model"]
