"""Examples to be scored that a model has trained on: they say nothing of what it can do."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import numpy as np

from components.artifacts import TRAIN, ModelInfo
from components.identities import find_seen, load_copied, load_identities

_LISTED = 100


@dataclasses.dataclass(frozen=True)
class Unseen:
    """What is left of a split without the examples that a model has trained on.

    Attributes:
        num_examples: Examples that no model has trained on.
        num_seen: Those left out, which at least one has trained on.
        num_seen_by: Of these, the model's and, if there is one, the champion's.
        keys: The first of those left out.
        scalars: The figures of the model and of the champion on what is left; none where nothing is.
    """

    num_examples: int
    num_seen: int
    num_seen_by: Sequence[int]
    keys: Sequence[str]
    scalars: Sequence[Mapping[str, float]]

    @classmethod
    def of(cls, seen: np.ndarray, keys: Sequence[str], scalars: Sequence[Mapping[str, float]]) -> Self:
        """From bool[models, examples] and the examples' names."""
        some = seen.any(axis=0)
        left_out = np.flatnonzero(some)
        return cls(
            num_examples=int(np.count_nonzero(~some)),
            num_seen=len(left_out),
            num_seen_by=seen.sum(axis=1).tolist(),
            keys=[keys[i] for i in left_out[:_LISTED].tolist()],
            scalars=scalars,
        )

    @property
    def reason(self) -> str:
        """What was left out, among the gate's reasons."""
        who = ", ".join(
            f"by the {who} {count:,}" for who, count in zip(("model", "champion"), self.num_seen_by, strict=False)
        )
        if not self.num_examples:
            return f"passed: judged on all {self.num_seen:,} examples, though all have been trained on ({who})"
        left_out = f"{self.num_seen:,} which have been trained on ({who})"
        return f"passed: judged on {self.num_examples:,} examples, without {left_out}"


def find_seen_examples(split: str, records_dir: Path, fingerprint: str, models: Sequence[Path]) -> np.ndarray | None:
    """bool[models, examples]: what each model has trained on; None where none has trained on any.

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
