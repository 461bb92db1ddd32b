"""`export.json`: inputs, outputs and formats of an exported model, and its difference from the trained model."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Annotated, Any

from tpu_components.core.base import typed_values
from tpu_components.core.base.typed_values import Amount, Share
from tpu_components.core.examples.artifacts import EXPORT_FILE
from tpu_components.core.examples.interface import CLASSIFICATION, IMAGE, TASKS, AnyInput, as_fields
from tpu_components.core.files.typed_json import JsonFile
from tpu_components.core.metrics.definitions import BY_NAME

_TRAINED = "trained_"  # Prefix of the metric's name in the file.


@dataclasses.dataclass(frozen=True, kw_only=True)
class FormatFacts:
    """Properties of one format of an export, measured in a separate process.

    Attributes:
        file: Name of the format's file or folder.
        bytes: Size in bytes.
        score: Value of the metric by which formats are compared, or None if it is undefined. In the file, the key is
            the name of the metric.
        drop_interval: Bounds (low, high), each with 95% confidence, of how much lower `score` is than the score of the
            trained model, or None if unknown.
        agreement: Share of the compared examples for which the format predicts the same as the trained model.
        num_compared: Number of compared examples. These are all examples, or a random sample if the format takes one
            example at a time. With a sample, `score` is the trained model's score on all examples minus the drop that
            was measured on the sample. None in older files, for which all examples were compared.
        most_disagreeing: Upper bound, with 95% confidence, on the number of examples for which the predictions of the
            format and of the trained model differ.
        max_difference: Largest absolute difference between an output of the format and the same output of the trained
            model. Outputs are probabilities or, for a regression, standardised numbers.
        latency_ms: Time to predict one example, in milliseconds.
        examples_per_second: Throughput with batches; None in older files.
        latency_spread: Smallest and largest latency of the repeated measurements; None in older files, which measured
            once.
        rate_spread: Smallest and largest `examples_per_second` of the repeated measurements; None in older files.
    """

    file: str
    bytes: int
    score: float | None
    drop_interval: tuple[float, float] | None = None
    agreement: Share
    max_difference: Amount
    latency_ms: Amount
    examples_per_second: Amount | None = None
    num_compared: int | None = None
    most_disagreeing: int | None = None
    latency_spread: tuple[float, float] | None = None
    rate_spread: tuple[float, float] | None = None

    @property
    def latency(self) -> str:
        """Time to predict one example, in milliseconds, rounded by `with_spread`."""
        return with_spread(self.latency_ms, self.latency_spread)

    @property
    def rate(self) -> str:
        """Examples per second with batches, rounded by `with_spread`, or `?` in older files, which lack the value."""
        return "?" if self.examples_per_second is None else with_spread(self.examples_per_second, self.rate_spread)


def with_spread(value: float, spread: tuple[float, float] | None) -> str:
    """Format a measurement with only as many digits as its precision justifies.

    The value is rounded to the decimal place of the first digit of half the spread (the difference between the largest
    and the smallest result), but to at most three significant digits. A single measurement is rounded to two digits.

    Args:
        value: The measurement.
        spread: Smallest and largest result of the repeated measurements, or None for a single measurement.

    Example:
        >>> with_spread(21_274, (19_800, 22_600)), with_spread(0.674, (0.671, 0.679)), with_spread(109_214, None)
        ('21,000', '0.674', '110,000')
    """
    if value <= 0:
        return f"{value:g}"
    leading = math.floor(math.log10(value))
    half = (spread[1] - spread[0]) / 2 if spread else 0.0
    place = min(math.floor(math.log10(half)), leading) if half > 0 else leading - (2 if spread else 1)
    place = max(place, leading - 2)
    return f"{round(value, -place):,.{max(-place, 0)}f}"


@dataclasses.dataclass(frozen=True)
class Output:
    """Name of the output and, for a regression, the scale and offset that convert it to the units of the targets.

    Scale and offset are None for other tasks.
    """

    name: str
    scale: tuple[float, ...] | None = None
    offset: tuple[float, ...] | None = None


@dataclasses.dataclass(frozen=True)
class ComparedOn:
    """The examples on which the formats were compared with the trained model."""

    split: str
    num_examples: int


@dataclasses.dataclass(frozen=True)
class ExportInfo(JsonFile, name=EXPORT_FILE, what="the description of an export", step="export_model"):
    """Content of `export.json`.

    Attributes:
        model: Name of the model in its configuration, or name under which it was imported.
        model_digest: Digest of the exported model; see `versions.model_digest`. Empty in older files.
        class_names: Class names, in the order of the model's outputs; for a regression, the names of the targets.
        task: Task of the model, a key of `interface.TASKS`.
        input: Input of the model.
        signatures: For each signature of the SavedModel, by name, a description of the signature's input.
        output: Output of the model.
        quantization: Description of the parts of the int8 format that are int8, or None without this format.
        dataset_fingerprint: Fingerprint of the data set on which the formats were compared.
        compared_on: Examples on which the formats were compared.
        judged: Metric by which the formats are compared; one of `METRICS`.
        trained_score: Score of the trained model, or None if it is undefined.
        formats: Formats of the export, by name.
        left_out: Reasons why formats were left out, by the name of the format.
        range: Smallest and largest value of an image's pixels, or None for other inputs.
        columns: `Manifest.columns` of the data set on which the formats were compared.
    """

    model: str
    class_names: tuple[str, ...]
    task: Annotated[str, tuple(TASKS)]
    input: AnyInput
    signatures: Mapping[str, str]
    output: Output
    dataset_fingerprint: str
    compared_on: ComparedOn
    judged: Annotated[str, tuple(BY_NAME)]
    trained_score: float | None
    formats: Mapping[str, FormatFacts]
    model_digest: str = ""
    quantization: str | None = None
    left_out: Mapping[str, str] = dataclasses.field(default_factory=dict)
    range: tuple[int, int] | None = None
    columns: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the content of `export.json`."""
        fields = {**as_fields(self.input), "dtype": self.input.dtype, "shape": [None, *self.input.shape]}
        pixels = {"range": self.range} if self.range else {}
        output = dataclasses.asdict(self.output)
        return {
            "model": self.model,
            "model_digest": self.model_digest,
            "class_names": self.class_names,
            "task": self.task,
            "input": {**fields, **pixels, "signatures": self.signatures},
            "output": {name: value for name, value in output.items() if value is not None},
            "quantization": self.quantization,
            "dataset_fingerprint": self.dataset_fingerprint,
            "compared_on": dataclasses.asdict(self.compared_on),
            f"{_TRAINED}{self.judged}": self.trained_score,
            "formats": {
                name: _renamed(dataclasses.asdict(facts), "score", self.judged) for name, facts in self.formats.items()
            },
            "left_out": self.left_out,
            "columns": self.columns,
        }

    @staticmethod
    def upgrade(raw: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of `ExportInfo` from a file of any version.

        Files of the first version do not name a task: all models were image classifiers then.
        """
        task = typed_values.read(raw.get("task", CLASSIFICATION), Annotated[str, tuple(TASKS)], "task")
        judged = min((name for name in raw if name.startswith(_TRAINED)), default="").removeprefix(_TRAINED)
        fields = typed_values.read(raw["input"], Mapping[str, Any], "input")
        shape = typed_values.read(fields["shape"], tuple[int | None, ...], "input.shape")
        fields = {"kind": IMAGE, "image_shape": list(shape[1:]), "encoding": "raw", **fields}
        known = typed_values.read(fields, AnyInput, "input", any_version=True)
        if shape[1:] != known.shape:
            raise TypeError(f"input.shape is {list(shape)}, expected {[None, *known.shape]}")
        formats = typed_values.read(raw["formats"], Mapping[str, Mapping[str, Any]], "formats")
        return {
            "output": {"name": TASKS[task].answer},
            **raw,
            "task": task,
            "input": fields,
            "range": fields.get("range"),
            "signatures": fields["signatures"],
            "judged": judged,
            "trained_score": raw.get(f"{_TRAINED}{judged}"),
            "formats": {name: _renamed(facts, judged, "score") for name, facts in formats.items()},
        }


def _renamed(raw: Mapping[str, Any], name: str, other: str) -> dict[str, Any]:
    """Return a copy of a mapping with the key `name` renamed to `other`."""
    return {other if key == name else key: value for key, value in raw.items()}
