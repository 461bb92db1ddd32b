"""The answers of a classifier in a few figures: those that its evaluation saw, and those that a server gives later."""

from collections.abc import Sequence

import numpy as np

from components.artifacts import Distribution
from components.data_sketch import DataSketch
from components.interface import CLASSIFICATION

ANSWERS = "answers"  # In the lineage of a version: the answers that its evaluation saw.
CONFIDENCE = "confidence"
_KIND = "predictions"
# Narrow where most of the answers of a good model are.
_EDGES = (*(i / 20 for i in range(19)), *(i / 100 for i in range(91, 100)), 0.995, 0.999, 0.9999, 1.0)


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
    bins = np.bincount(np.searchsorted(_EDGES[1:-1], confidences, side="right"), minlength=len(_EDGES) - 1)
    confidence = Distribution(
        num_examples=len(confidences),
        mean=float(confidences.mean()),
        std=float(confidences.std()),
        minimum=float(confidences.min()),
        maximum=float(confidences.max()),
        edges=_EDGES,
        counts=tuple(bins.tolist()),
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
