"""A small text, and a language model of it that trains in seconds."""

import dataclasses
import itertools
from pathlib import Path

import numpy as np

from tpu_components.create_tfrecords import WriteParams
from tpu_components.train_model import TrainParams

LINES = ("the cat sat on the mat.\n", "a dog ran to the sun.\n", "no cat can run as a dog!\n", "see the red hen.\n")
TEXT = "".join(itertools.islice(itertools.cycle(LINES), 60)) + "".join(np.random.default_rng(0).permutation(LINES * 8))

QUICK_LANGUAGE_MODEL = TrainParams(
    model="shakespeare_lstm",
    model_parameters={"embedding": 8, "units": 24, "num_layers": 2, "dropout": 0.1},
    epochs=3,
    batch_size_per_replica=8,
    learning_rate=0.02,
    backend="tensorflow",
    accelerator="cpu",
    num_replicas=1,
    precision="float32",
)


def corpus_params(directory: Path, text: str = TEXT, **changes) -> WriteParams:
    """What writes the text's passages."""
    path = directory / "text.txt"
    path.write_bytes(text.encode())
    given = WriteParams(f"corpus:{path}", test_fraction=0.2, num_tokens=16, context_tokens=8)
    return dataclasses.replace(given, **changes)
