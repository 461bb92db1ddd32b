"""One long text."""

import numpy as np

from tpu_components.core.sources.listing import Listing, Source
from tpu_components.core.sources.params import WriteParams
from tpu_components.core.sources.passages import list_passages, read_corpus


def list_corpus(location: str, params: WriteParams) -> Listing:
    """List the passages of a text in UTF-8; a label is how many characters a passage predicts."""
    corpus = read_corpus(location, params)
    splits, keys, starts, ends = zip(*list_passages(corpus), strict=True)
    return Listing(
        source=params.source,
        keys=keys,
        labels=np.array(ends, np.int32) - np.array(starts, np.int32),
        class_names=corpus.class_names,
        splits=np.array(splits),
        corpus=corpus,
        version=corpus.version,
    )


SOURCE = Source("corpus:FILE", list_corpus, takes=("context_tokens",))
