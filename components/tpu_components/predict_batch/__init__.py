"""Writes an exported model's predictions for every example of a source. A restarted run keeps finished files."""

from tpu_components.predict_batch.params import PredictParams, PredictResult
from tpu_components.predict_batch.predicting import predict_batch
from tpu_components.predict_batch.prediction_files import inputs_version

__all__ = ["PredictParams", "PredictResult", "inputs_version", "predict_batch"]
