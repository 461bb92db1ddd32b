"""Parameters and result of import_model."""

import dataclasses
import math
from typing import Annotated

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.typed_values import check_fields
from tpu_components.core.examples.class_names import class_name

AUTO, PROBABILITIES, LOGITS = OUTPUTS = ("auto", "probabilities", "logits")


@dataclasses.dataclass(frozen=True)
class ImportParams:
    """Facts about the model's inputs and outputs that its file does not contain.

    Attributes:
        class_names: Names of the classes in the order of the model's outputs or, for a regression, names of the
            targets. They must match the names in the records, in the same order.
        pixel_range: [low, high]: values that the model expects for the pixels 0 and 255, for example [0, 255], [0, 1]
            or [-1, 1]. Leave it empty if the model takes uint8, or begins with a layer that scales pixels of 0 to 255.
        outputs: Kind of the model's outputs, `probabilities` or `logits`. With `auto`, the outputs of a .keras file are
            treated as logits if its last layer has no activation. All other outputs must be probabilities; otherwise,
            the step fails. Ignored for a regression.
        signature: For a SavedModel, the name of the signature that takes images and returns predictions.
        output_name: For a SavedModel, the name of the signature's output that contains the predictions. You can leave
            it empty if only one output has the right shape.
        code: Path of a .py file, local or on gs://, that registers the custom classes of a .keras file with Keras. The
            .py file is saved with the model.
        name: Name of the model in reports. Empty means the name of its file.
    """

    class_names: tuple[str, ...]
    pixel_range: tuple[float, ...] = ()
    outputs: Annotated[str, OUTPUTS] = AUTO
    signature: str = "serving_default"
    output_name: str = ""
    code: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "class_names", tuple(map(class_name, self.class_names)))
        scale = self.pixel_range
        if scale and (len(scale) != 2 or not all(map(math.isfinite, scale)) or scale[0] >= scale[1]):
            raise InputError(
                "pixel_range must be [low, high], the values that the model expects for the pixels 0 and 255, with low "
                f"below high. Received: pixel_range={list(scale)}."
            )
        if self.code and not self.code.endswith(".py"):
            raise InputError(f"code must be a .py file. Received: code={self.code!r}.")


@dataclasses.dataclass(frozen=True)
class ImportResult:
    """Facts about an imported model.

    Attributes:
        name: Name of the model.
        kind: Kind of the imported file: `keras` or `saved_model`.
        outputs: Kind of the original model's outputs: `probabilities`, `logits` or, for a regression, `numbers`.
        pixel_range: Values that the original model expects for the pixels 0 and 255.
        num_parameters: Number of the model's weights.
        num_compared: Number of examples that were predicted to check the outputs and the saved copy.
    """

    name: str
    kind: str
    outputs: str
    pixel_range: tuple[float, ...]
    num_parameters: int
    num_compared: int
