"""Writes the predictions of an exported model for every example of a source; a restart continues where it ended."""

from tpu_components.predict_batch.params import PredictParams, PredictResult
from tpu_components.predict_batch.predicting import predict_batch

__all__ = ["PredictParams", "PredictResult", "predict_batch"]
