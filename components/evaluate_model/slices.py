"""Parts of the examples, each judged by itself: a better mean may hide a class that broke."""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.artifacts import Manifest
from tpu_components.core.examples.interface import CLASSIFICATION, MULTI_LABEL, REGRESSION, ImageInput, Task, TextInput
from tpu_components.core.examples.slice_values import SIZE, load_slices
from tpu_components.core.results.evaluation_info import Slice
from tpu_components.core.results.metric_table import direction
from tpu_components.evaluate_model.chance import compare, find_interval
from tpu_components.evaluate_model.influence import influences
from tpu_components.evaluate_model.params import CLASS, LENGTH, NO_CONFIDENCE, EvaluateParams

# The figure of a slice: one that a single class, and a handful of examples, has as well.
SLICED: Mapping[str, str] = {CLASSIFICATION: "accuracy", MULTI_LABEL: "micro_f1", REGRESSION: "loss"}
_UNITS: Mapping[str, str] = {LENGTH: "tokens", SIZE: "pixels"}
_NUM_QUARTERS = 4


@dataclasses.dataclass(frozen=True)
class _Part:
    """Examples of one value of a property: their places, the label that counts, if not all, and how many have it."""

    by: str
    name: str
    rows: np.ndarray
    num_examples: int
    label: int | None = None

    def select(self, values: np.ndarray) -> np.ndarray:
        """Return what belongs to it of an array of all examples."""
        return values[self.rows] if self.label is None else values[:, self.label : self.label + 1]


def check_slices(params: EvaluateParams, manifest: Manifest, records_dir: Path) -> None:
    """Check that the examples can be divided as the parameters say.

    Raises:
        InputError: If they do not have a property that is asked for.
    """
    known = [CLASS, *([LENGTH] if isinstance(manifest.input, TextInput) else [])]
    kept = [*known, *load_slices(records_dir, params.split)]
    if SIZE in params.slices and SIZE not in kept and isinstance(manifest.input, ImageInput):
        raise InputError(
            f"Cannot divide the examples by {SIZE!r}, as slices asks: expected the sizes of all pictures beside the "
            f"records, received none in {records_dir}, which an older version wrote. Run create_tfrecords again."
        )
    params.check_slices(kept)


def find_slices(
    params: EvaluateParams,
    manifest: Manifest,
    labels: np.ndarray,
    outputs: np.ndarray,
    properties: Mapping[str, np.ndarray],
) -> tuple[Slice, ...]:
    """Return the figures of every slice that has examples.

    All bounds together hold with the gate's confidence: that of each is higher, by Bonferroni's rule.

    Args:
        params: Properties by which to divide, and the confidence.
        manifest: The data set, of any task but a language model.
        labels: Targets of all examples, each shaped as `Interface.target_shape` says.
        outputs: float32[models, examples, ...]: answers of the model and, if there is one, the champion.
        properties: Arrays of all examples by name: `length`, int[examples], and what the records keep; see
            `load_slices`.
    """
    parts = [part for name in params.slices for part in _divide(name, manifest, labels, properties)]
    confidence = params.confidence
    if confidence != NO_CONFIDENCE:
        confidence = 1 - (1 - confidence) / max(len(parts), 1)
    return tuple(_judge(part, manifest.interface.task, labels, outputs, params.top_k, confidence) for part in parts)


def _divide(name: str, manifest: Manifest, labels: np.ndarray, properties: Mapping[str, np.ndarray]) -> Iterator[_Part]:
    if name != CLASS:
        values = properties[name]
        groups = _by_value(values) if values.dtype.kind == "U" else _in_quarters(values, _UNITS[name])
        for value, rows in groups:
            yield _Part(name, value, rows, len(rows))
    elif manifest.task == CLASSIFICATION:
        for i in np.unique(labels).tolist():
            rows = np.flatnonzero(labels == i)
            yield _Part(name, manifest.class_names[i], rows, len(rows))
    elif manifest.task == MULTI_LABEL:
        for i, count in enumerate((labels > 0).sum(axis=0).tolist()):
            if count:
                yield _Part(name, manifest.class_names[i], np.arange(len(labels)), count, label=i)


def _by_value(values: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    names, places = np.unique(values, return_inverse=True)
    for i, name in enumerate(names.tolist()):
        yield name, np.flatnonzero(places == i)


def _in_quarters(amounts: np.ndarray, unit: str) -> Iterator[tuple[str, np.ndarray]]:
    edges = np.unique(np.quantile(amounts, np.linspace(0, 1, _NUM_QUARTERS + 1)[1:], method="inverted_cdf"))
    quarters = np.searchsorted(edges, amounts)  # The first that its amount is not above.
    for i in range(len(edges)):
        rows = np.flatnonzero(quarters == i)
        yield f"{amounts[rows].min():,} to {amounts[rows].max():,} {unit}", rows


def _judge(part: _Part, task: Task, labels: np.ndarray, outputs: np.ndarray, top_k: int, confidence: float) -> Slice:
    metric = SLICED[task.name]
    model, *others = (influences(task, part.select(labels), part.select(of_one), top_k)[metric]() for of_one in outputs)
    interval = find_interval(model, 2 * confidence - 1)
    beside: dict[str, Any] = {}
    for champion in others:
        beside = {"champion": champion.value, "difference": compare(model, champion, direction(metric), confidence)}
    return Slice(part.by, part.name, part.num_examples, metric, model.value, interval, **beside)
