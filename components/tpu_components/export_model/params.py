"""Parameters and result of export_model."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

from tpu_components.core.base.typed_values import Positive, Share, check_fields
from tpu_components.core.examples.artifacts import SPLITS, TEST
from tpu_components.export_model.formats import FORMATS


@dataclasses.dataclass(frozen=True)
class ExportParams:
    """The required formats, and limits for the differences between formats and the trained model.

    Each field is an input of the component.

    Attributes:
        tolerance: Largest allowed difference between predictions of the trained model and of the SavedModel or float
            LiteRT file, as a probability or, for a regression, in standard deviations of the target.
        min_agreement: Smallest share of examples for which the SavedModel and the float LiteRT file must agree with the
            trained model. They agree if they predict the same class or the same labels or, for a regression, numbers
            that differ by at most a twentieth of a standard deviation.
        max_int8_accuracy_drop: Largest allowed loss of accuracy of the int8 format compared with the trained model; for
            multi-label data, loss of micro_f1, and for a regression, of r2. The format is left out if the loss is
            significantly larger, with 95% confidence.
        calibration_examples: Number of training images with which int8 is calibrated. Not used for texts, or for models
            with a loop.
        split: Split on which the formats are compared with the trained model.
        required: Formats without which the export fails: any of `saved_model`, `float` and `int8`. Other formats are
            left out, with the reason, if they cannot be made or differ too much from the trained model.
    """

    tolerance: Share = 1e-4
    min_agreement: Share = 1.0
    max_int8_accuracy_drop: Share = 0.01
    calibration_examples: Positive = 500
    split: Annotated[str, SPLITS] = TEST
    required: tuple[Annotated[str, tuple(FORMATS)], ...] = ()

    def __post_init__(self) -> None:
        check_fields(self)


@dataclasses.dataclass(frozen=True)
class ExportResult:
    """The exported formats with their measurements, and the formats that were left out.

    Attributes:
        num_examples: Number of compared examples.
        judged: Metric that is compared: `accuracy` (of the next character for a language model), `micro_f1` or `r2`.
        trained_score: The trained model's metric on these examples, or None if it is undefined, for example R² if all
            targets are equal.
        formats: Measurements by format (`saved_model`, `float`, `int8`): file, bytes, the metric, drop_interval (lower
            and upper bound of the metric's loss compared with the trained model, each with 95% confidence), agreement,
            max_difference, latency_ms at batch 1 (median), examples_per_second at batch 64, num_compared, and
            most_disagreeing (upper bound, with 95% confidence, on how many of all examples disagree).
        left_out: Reasons why formats were not exported, by format.
    """

    num_examples: int
    judged: str
    trained_score: float | None
    formats: Mapping[str, Mapping[str, Any]]
    left_out: Mapping[str, str] = dataclasses.field(default_factory=dict)
