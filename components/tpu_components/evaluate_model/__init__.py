"""Scores a trained model and the champion on one split, and decides whether the model may be promoted."""

from tpu_components.evaluate_model.evaluation import evaluate_model
from tpu_components.evaluate_model.params import EvaluateParams, EvaluateResult

__all__ = ["EvaluateParams", "EvaluateResult", "evaluate_model"]
