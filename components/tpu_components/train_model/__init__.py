"""Trains a Keras model on TFRecords, on a TPU, GPU or CPU. A restarted job continues from its last checkpoint."""

from tpu_components.core.models.training_step.hyperparameters import TrainParams
from tpu_components.train_model.result import TrainResult
from tpu_components.train_model.training import train_model

__all__ = ["TrainParams", "TrainResult", "train_model"]
