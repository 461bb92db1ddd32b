"""Parameters and result of an export."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

from tpu_components.core.base.typed_values import Positive, Share, check_fields
from tpu_components.core.examples.artifacts import SPLITS, TEST
from tpu_components.export_model.formats import FORMATS


@dataclasses.dataclass(frozen=True)
class ExportParams:
    """The formats to export and how close they must be; one field per component input.

    Attributes:
        tolerance: Largest difference of a probability, or of a number in its target's standard deviations, SavedModel
            and float LiteRT against the trained model.
        min_agreement: Least share of examples for which these predict the same class or the same labels as the trained
            model, or numbers within a twentieth of a standard deviation.
        max_int8_accuracy_drop: Accuracy that int8 may lose against the trained model; of multi-label data micro_f1, of
            a regression r2. It is left out where it loses more with 95 % confidence, which few examples do not give.
        calibration_examples: Training images that set the ranges of int8; texts need none.
        split: The split to compare on.
        required: Formats without which nothing is exported, of `saved_model`, `float` and `int8`. Another that cannot
            be made, or is not close enough, is left out with its reason.
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
    """The exported formats, and those left out.

    Attributes:
        num_examples: Examples compared.
        judged: Metric that is compared: `accuracy` (of the next character for a language model), `micro_f1` or `r2`.
        trained_score: The trained model's metric on these examples; None if it is not defined, as R² of equal targets.
        formats: Measurements by format (`saved_model`, `float`, `int8`): file, bytes, the metric, drop_interval (least
            and largest loss of the metric against the trained model, each with 95 % confidence), agreement,
            max_difference, latency_ms at batch 1 (median), examples_per_second at batch 64, num_compared, and
            most_disagreeing (largest number of all examples that it answers differently, with 95 % confidence).
        left_out: Reasons why formats were not exported, by format.
    """

    num_examples: int
    judged: str
    trained_score: float | None
    formats: Mapping[str, Mapping[str, Any]]
    left_out: Mapping[str, str] = dataclasses.field(default_factory=dict)
