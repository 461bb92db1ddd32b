"""The answers of a classifier in a few figures: of each exported format to the test split, and of a server."""

import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from components import schema, storage
from components.artifacts import Distribution
from components.data_sketch import DataSketch, sketch_of
from components.distributions import count_bins
from components.errors import InputError
from components.interface import CLASSIFICATION
from components.registry.opening import Origin
from components.registry.reference import EXPORT_DIR

ANSWERS_FILE = "answers.json"  # In an export: the sketch of each format's answers.
ANSWERS = "answers"  # In the lineage of an older version: the sketch of the trained model's answers.
CONFIDENCE = "confidence"
FLOAT, INT8 = "float", "int8"  # Formats of an export.
_KIND = "predictions"
# What a confidence lacks to 1 is counted to two digits, down to a millionth: most answers of a good model are near 1.
_EDGES = np.array([0.0, *(round(1 - i / 10**k, 9) for k in range(2, 8) for i in range(99, 9, -1)), 1.0])


def sketch_answers(
    source: str, class_names: Sequence[str], predicted: np.ndarray, confidences: np.ndarray
) -> DataSketch:
    """Return the sketch of a classifier's answers.

    Args:
        source: Origin of the answers, in words.
        class_names: Names of the classes.
        predicted: int[answers]: the likeliest class of each.
        confidences: float[answers]: its probability; all finite.
    """
    counts = np.bincount(predicted, minlength=len(class_names)).tolist()
    bins = np.searchsorted(_EDGES[1:-1], confidences, side="right")
    edges, in_bins = count_bins(_EDGES[bins], _EDGES[bins + 1])
    confidence = Distribution(
        num_examples=len(confidences),
        mean=float(confidences.mean()),
        std=float(confidences.std()),
        minimum=float(confidences.min()),
        maximum=float(confidences.max()),
        edges=tuple(edges.tolist()),
        counts=tuple(in_bins.tolist()),
    )
    return DataSketch(
        source=source,
        fingerprint="",
        kind=_KIND,
        task=CLASSIFICATION,
        num_examples=len(predicted),
        num_set_aside=0,
        class_counts=dict(zip(class_names, counts, strict=True)),
        distributions={CONFIDENCE: confidence},
    )


def sketch_outputs(source: str, class_names: Sequence[str], outputs: np.ndarray) -> DataSketch:
    """Return the sketch of a classifier's answers, from float[answers, classes]: the probabilities."""
    return sketch_answers(source, class_names, outputs.argmax(axis=1), outputs.max(axis=1).astype(np.float64))


def save_answers(export_dir: Path, sketches: Mapping[str, DataSketch]) -> None:
    """Write the sketches of a classifier's answers, by format, into its export."""
    storage.write_json(export_dir / ANSWERS_FILE, {name: dataclasses.asdict(own) for name, own in sketches.items()})


def answers_of(origin: Origin, form: str) -> DataSketch:
    """Return the sketch of the answers that a format of a registered version gives.

    Args:
        origin: Origin of the version.
        form: Name of the format, as `int8`.

    Raises:
        InputError: If the version keeps none of that format.
    """
    uri = f"{origin.uri}/{EXPORT_DIR}/{ANSWERS_FILE}"
    if not storage.exists(uri):
        if form == INT8:
            raise InputError(
                f"Cannot compare answers of int8 with those of {origin.name}: expected a version that keeps a sketch "
                "of its int8 answers, received one from before versions kept it, or of another task. The next promoted "
                "run keeps one."
            )
        return sketch_of(origin, ANSWERS)
    with tempfile.TemporaryDirectory(prefix="version-") as scratch:
        sketches: Mapping[str, DataSketch] = schema.load(
            storage.localize(uri, Path(scratch)),
            "a sketch of answers",
            "export_model",
            lambda raw: schema.read(raw, Mapping[str, DataSketch], any_version=True),
        )
    if form not in sketches:
        raise InputError(
            f"Cannot compare answers of {form} with those of {origin.name}: expected one of its formats, "
            f"{', '.join(sketches)}. Name the version that answered."
        )
    return sketches[form]
