"""Compiles the training step for a TPU, without a TPU, to estimate its memory, time and price."""

from tpu_components.preflight_training.examining import preflight_training
from tpu_components.preflight_training.params import PreflightParams, PreflightResult

__all__ = ["PreflightParams", "PreflightResult", "preflight_training"]
