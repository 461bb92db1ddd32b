"""Imports a model that another program trained, so that other steps can evaluate, export and register it."""

from tpu_components.import_model.importing import import_model
from tpu_components.import_model.params import ImportParams, ImportResult

__all__ = ["ImportParams", "ImportResult", "import_model"]
