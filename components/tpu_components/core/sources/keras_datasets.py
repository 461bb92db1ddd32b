"""Data sets that Keras downloads, such as MNIST."""

import contextlib
import dataclasses
import hashlib
import io
import re
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.frameworks import keras
from tpu_components.core.base.progress import is_quiet, say
from tpu_components.core.base.terminal import filter_stderr
from tpu_components.core.examples.artifacts import TEST, TRAIN
from tpu_components.core.examples.example_ids import identify_each
from tpu_components.core.examples.interface import TEXT
from tpu_components.core.sources.arrays import Arrays, list_arrays
from tpu_components.core.sources.columns import Names
from tpu_components.core.sources.listing import Listing, Source
from tpu_components.core.sources.params import WriteParams
from tpu_components.core.sources.targets import index_labels

_FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
# Class names in the order of labels; empty if the numbers are the names.
_KERAS_DATASETS: Mapping[str, tuple[str, ...]] = {
    "mnist": (),
    "fashion_mnist": _FASHION,
    "cifar10": _CIFAR10,
    "cifar100": (),
    "imdb": (),
}

# TensorFlow 2.21 prints these when it is imported, whatever TF_CPP_MIN_LOG_LEVEL says.
_EARLY_LOG = re.compile(rb"WARNING: All log messages before absl::InitializeLog|I\d{4} ")


@filter_stderr(lambda line: not _EARLY_LOG.match(line))
def _import_data_set(name: str) -> Any:
    return getattr(keras.datasets, name)


class _Messages(io.TextIOBase):
    """Stream that writes Keras's messages about a download to stderr. The progress bar is shown only on a terminal."""

    def write(self, text: str) -> int:
        if sys.stderr.isatty() and not is_quiet():
            sys.stderr.write(text)
        elif "\r" not in text and text.strip():
            say("create_tfrecords", text.strip())
        return len(text)


def list_keras(location: str, params: WriteParams, labelled: bool) -> Listing:
    """List the examples of a Keras data set. Keras downloads it if it is not yet in ~/.keras/datasets."""
    if location not in _KERAS_DATASETS:
        raise InputError(
            f"Unknown source {params.source!r}: expected keras:NAME, where NAME is {' or '.join(_KERAS_DATASETS)}."
        )
    module = _import_data_set(location)
    try:
        with contextlib.redirect_stdout(_Messages()):
            train, test = module.load_data()
            word_index = module.get_word_index() if location == "imdb" else {}
    except Exception as error:  # The downloader raises a plain Exception.
        raise InputError(
            f"Could not download {params.source!r}: {error}. Keras uses a file in ~/.keras/datasets only if the file "
            "is identical to the one that Keras downloads. If you have another copy of the data, use npz:FILE, "
            "idx:DIR, images:DIR or text:DIR."
        ) from error
    if location == "imdb":
        return _from_word_ids({TRAIN: train, TEST: test}, word_index, params)
    digest = hashlib.sha256(train[0].tobytes() + test[0].tobytes()).hexdigest()
    params = dataclasses.replace(params, class_names=params.class_names or _KERAS_DATASETS[location])
    return list_arrays({TRAIN: train, TEST: test}, digest, params)


_IMDB_FIRST_WORD = 3  # The first IDs are those of padding, start and unknown.


def _from_word_ids(arrays: Arrays, word_index: Mapping[str, int], params: WriteParams) -> Listing:
    """List the film reviews of IMDb as texts. Keras stores word IDs, which are converted back to words."""
    words = {index + _IMDB_FIRST_WORD: word for word, index in word_index.items()}
    digest = hashlib.sha256()
    texts: list[bytes] = []
    for reviews, labels in arrays.values():
        for review in reviews:
            texts.append(" ".join(words[id_] for id_ in review if id_ in words).encode())
            digest.update(texts[-1] + b"\n")
        digest.update(np.asarray(labels).tobytes())
    keys = [f"{split}/{i:08d}" for split, (reviews, _) in arrays.items() for i in range(len(reviews))]
    names = ("neg", "pos")
    ratings = [names[i] for _, stars in arrays.values() for i in stars.tolist()]
    indices, classes, _ = index_labels(ratings, params.class_names, keys)
    splits = np.concatenate([np.full(len(reviews), split, "<U10") for split, (reviews, _) in arrays.items()])
    hashes = identify_each(texts)
    return Listing(
        keys=tuple(keys),
        labels=indices,
        class_names=classes,
        splits=splits,
        texts=tuple(texts),
        kind=TEXT,
        version=digest.hexdigest(),
        identities=Names.of_hashes(hashes),
        hashes=hashes,
    )


SOURCE = Source("keras:NAME", list_keras, is_place=False, is_downloaded=True)
