"""The formats of an export, by name."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

from tpu_components.core.examples.artifacts import FLOAT_TFLITE_FILE, INT8_TFLITE_FILE, SAVED_MODEL_DIR
from tpu_components.export_model.formats.litert import write_float, write_int8
from tpu_components.export_model.formats.saved_model import write_saved_model
from tpu_components.export_model.formats.trained import TrainedModel


@dataclasses.dataclass(frozen=True)
class Format:
    """A format of an export.

    Attributes:
        file: Name of its file or folder.
        write: Function that writes a trained model, and returns what of it is quantised, in words; empty for nothing.
        made_of: Format that it is quantised from, without which it is not made; empty for one that is not quantised.
        may_fail: Whether it has no form for some models, so that one is tried before it is trained.
    """

    file: str
    write: Callable[[TrainedModel, Path], str]
    made_of: str = ""
    may_fail: bool = True


FORMATS = {
    "saved_model": Format(SAVED_MODEL_DIR, write_saved_model, may_fail=False),
    "float": Format(FLOAT_TFLITE_FILE, write_float),
    "int8": Format(INT8_TFLITE_FILE, write_int8, made_of="float"),
}
