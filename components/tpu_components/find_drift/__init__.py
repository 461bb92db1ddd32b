"""Detects drift: compares records with the data of a registered version, or with other records."""

from tpu_components.find_drift.finding import find_drift
from tpu_components.find_drift.params import DriftParams, DriftResult

__all__ = ["DriftParams", "DriftResult", "find_drift"]
