"""Compile the training step for a TPU without a TPU, to know whether it fits, how long it takes and what it costs."""

from tpu_components.preflight_training.examining import preflight_training
from tpu_components.preflight_training.params import PreflightParams, PreflightResult

__all__ = ["PreflightParams", "PreflightResult", "preflight_training"]
