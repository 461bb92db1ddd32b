"""Whether records still look like those that a registered version was made of."""

from tpu_components.find_drift.finding import find_drift
from tpu_components.find_drift.params import DriftParams, DriftResult

__all__ = ["DriftParams", "DriftResult", "find_drift"]
