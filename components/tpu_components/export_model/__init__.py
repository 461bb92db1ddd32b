"""Exports a trained model for CPU serving, and compares every exported format with the model."""

from tpu_components.export_model.exporting import export_model
from tpu_components.export_model.params import ExportParams, ExportResult

__all__ = ["ExportParams", "ExportResult", "export_model"]
