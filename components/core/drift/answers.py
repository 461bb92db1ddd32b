"""Sketches of a classifier's predictions: of each exported format on the test split, and of a server's log."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tpu_components.core.drift.data_sketch import DataSketch
from tpu_components.core.drift.distributions import count_bins
from tpu_components.core.examples.artifacts import Distribution
from tpu_components.core.examples.interface import CLASSIFICATION
from tpu_components.core.files import storage

ANSWERS_FILE = "answers.json"  # In an export: the sketch of each format's predictions.
ANSWERS = "answers"  # In the lineage of old versions: the sketch of the trained model's predictions.
CONFIDENCE = "confidence"
FLOAT, INT8 = "float", "int8"  # Formats of an export.
_KIND = "predictions"
# Bins of the confidence, finer towards 1 (down to a millionth): most confidences of a good model are there.
_EDGES = np.array([0.0, *(round(1 - i / 10**k, 9) for k in range(2, 8) for i in range(99, 9, -1)), 1.0])


def sketch_answers(
    source: str, class_names: Sequence[str], predicted: np.ndarray, confidences: np.ndarray
) -> DataSketch:
    """Return the sketch of a classifier's predictions.

    Args:
        source: Description of the predictions' origin.
        class_names: Names of the classes.
        predicted: int[predictions]: index of the most probable class.
        confidences: float[predictions]: probability of that class; must be finite.
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
    """Return the sketch of a classifier's predictions from its outputs: probabilities, float[predictions, classes]."""
    return sketch_answers(source, class_names, outputs.argmax(axis=1), outputs.max(axis=1).astype(np.float64))


def save_answers(export_dir: Path, sketches: Mapping[str, DataSketch]) -> None:
    """Write the sketches of a classifier's predictions, by format, into its export."""
    storage.write_json(export_dir / ANSWERS_FILE, {name: dataclasses.asdict(own) for name, own in sketches.items()})
