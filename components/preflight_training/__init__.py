"""Compile the training step for a TPU before anyone pays for one: does it fit, how long, what does it cost."""

from tpu_components.preflight_training.examining import preflight_training
from tpu_components.preflight_training.params import PreflightParams, PreflightResult

__all__ = ["PreflightParams", "PreflightResult", "preflight_training"]
