"""Examples to be scored that a model has trained on: they say nothing of what it can do."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import numpy as np

from components.artifacts import TRAIN
from components.identities import find_seen, load_identities

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


def find_seen_examples(split: str, records_dir: Path, models: Sequence[Path]) -> np.ndarray | None:
    """bool[models, examples]: what each model has trained on; None where none has trained on any.

    The training split is scored by whoever asks for it. A model that does not say what it trained on, as one of an
    earlier version, is taken for one that has seen nothing.
    """
    identities = None if split == TRAIN else load_identities(records_dir, split)
    if identities is None:
        return None
    found = [find_seen(model_dir, identities) for model_dir in models]
    seen = np.stack([np.zeros(len(identities), bool) if one is None else one for one in found])
    return seen if seen.any() else None
