"""One long text for a language model, which is divided into splits by position and cut into passages."""

import hashlib

import numpy as np

from tpu_components.core.base.errors import InputError, reading
from tpu_components.core.examples.artifacts import TEST, TRAIN, VALIDATION
from tpu_components.core.examples.interface import PADDING, UNKNOWN, CorpusInput
from tpu_components.core.files import storage
from tpu_components.core.sources.listing import Corpus, Listing, Source
from tpu_components.core.sources.params import WriteParams

_RESERVED = {PADDING: "[PAD]", UNKNOWN: "[UNK]"}  # Longer than one character, so they cannot equal a character.


def list_corpus(location: str, params: WriteParams, labelled: bool) -> Listing:
    """List the passages of a text in UTF-8: training passages first, then validation, and test at the end.

    The label of a passage is the number of characters to predict. These are the last characters of the passage. Every
    character of the text is predicted in exactly one passage. In the validation and test splits, every passage except
    the first begins with at least `context_tokens` characters of context. These characters are predicted in an earlier
    passage.

    Raises:
        InputError: If the text is not UTF-8, a requested split gets no characters, or the training split has fewer than
            two different characters.
    """
    content = storage.read_bytes(location)
    with reading(location, "text in UTF-8", "Convert the file to UTF-8."):
        text = content.decode("utf-8-sig")
    sizes = _divide(text, location, params)
    known = sorted(set(text[: sizes[TRAIN]]))
    if len(known) < 2:
        raise InputError(
            f"A language model needs at least two different characters to train on. Received: {known} in the first "
            f"{sizes[TRAIN]:,} characters of {location}. Use another text."
        )
    passages = CorpusInput(params.num_tokens, len(known) + len(_RESERVED))
    ids = _to_ids(text, known).astype(passages.stored_dtype)
    places = dict[str, int]()
    at = 0
    splits, starts, ends = list[str](), list[int](), list[int]()
    for split, size in sizes.items():
        if size:
            stride = params.num_tokens - (params.context_tokens if split != TRAIN else 0)
            own = [*range(params.num_tokens, size, stride), size]  # The first is full; the others add a stride each.
            places[split] = at
            splits += [split] * len(own)
            starts += [0, *own[:-1]]
            ends += own
        at += size
    offsets = [places[split] for split in splits]
    by_split = {split: ids[place : place + sizes[split]] for split, place in places.items()}
    return Listing(
        keys=[f"characters {at + start}-{at + end}" for at, start, end in zip(offsets, starts, ends, strict=True)],
        labels=np.array(ends, np.int32) - np.array(starts, np.int32),
        class_names=(*_RESERVED.values(), *known),
        splits=np.array(splits),
        corpus=Corpus(passages, by_split, places, np.array(ends)),
        version=hashlib.sha256(content).hexdigest(),
    )


def _divide(text: str, location: str, params: WriteParams) -> dict[str, int]:
    """Return the number of characters of each split, in the order of the splits in the text."""
    asked = {TRAIN: 1.0, VALIDATION: params.validation_fraction, TEST: params.test_fraction}
    sizes = {name: round(len(text) * fraction) for name, fraction in asked.items()}
    sizes[TRAIN] -= sizes[VALIDATION] + sizes[TEST]
    for name, fraction in asked.items():
        if fraction and not sizes[name]:
            raise InputError(
                (
                    f"The {name!r} split is empty: {location} has {len(text)} characters, and this split gets "
                    f"{f'{fraction} of them' if name != TRAIN else 'the rest'}. Use a longer text"
                )
                + (f", or set data.{name}_fraction to 0." if name != TRAIN else ", or smaller fractions.")
            )
    return sizes


def _to_ids(text: str, known: list[str]) -> np.ndarray:
    """Return the ID of every character, int64[characters]."""
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    alphabet = np.array([ord(character) for character in known], np.uint32)
    places = np.minimum(np.searchsorted(alphabet, points), len(known) - 1)
    return np.where(alphabet[places] == points, places + len(_RESERVED), UNKNOWN)


SOURCE = Source("corpus:FILE", list_corpus, suffixes=(".txt",), takes=("context_tokens",))
