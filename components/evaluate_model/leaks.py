"""Examples to be scored that a model has trained on: they say nothing of what it can do."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tpu_components.core.examples.artifacts import TRAIN, ModelInfo
from tpu_components.core.examples.example_ids import find_seen, load_copied, load_identities


def find_seen_examples(split: str, records_dir: Path, fingerprint: str, models: Sequence[Path]) -> np.ndarray | None:
    """Return bool[models, examples]: what each model has trained on; None where none has trained on any.

    Near copies of what it trained on count for a model of these very records. The training split is scored by whoever
    asks for it. A model that does not say what it trained on, as one of an
    earlier version, is taken for one that has seen nothing.
    """
    identities = None if split == TRAIN else load_identities(records_dir, split)
    if identities is None:
        return None
    seen = np.zeros((len(models), len(identities)), bool)
    for row, model_dir in zip(seen, models, strict=True):
        trained_on = find_seen(model_dir, identities)
        if trained_on is not None:
            row |= trained_on
            if ModelInfo.load(model_dir).dataset_fingerprint == fingerprint:
                row |= load_copied(records_dir, split)
    return seen if seen.any() else None
