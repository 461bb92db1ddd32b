"""Writes the predictions of an exported model for every example of a source. A restart continues."""

from tpu_components.predict_batch.params import PredictParams, PredictResult
from tpu_components.predict_batch.predicting import predict_batch

__all__ = ["PredictParams", "PredictResult", "predict_batch"]
