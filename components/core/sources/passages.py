"""A text for a language model, divided by position and cut into passages."""

import dataclasses
import hashlib
from collections.abc import Iterator

import numpy as np

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.artifacts import TEST, TRAIN, VALIDATION
from tpu_components.core.examples.interface import PADDING, UNKNOWN, CorpusInput
from tpu_components.core.files import storage
from tpu_components.core.sources.params import WriteParams

_RESERVED = {PADDING: "[PAD]", UNKNOWN: "[UNK]"}  # Longer than a character, so they are none.
_FOR_OTHERS = ("image_size", "channels", "encoding", "crop_margin", "class_names", "vocabulary_size", "truncate")


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A text, divided.

    Attributes:
        input: Description of a passage.
        class_names: Characters that the ids stand for.
        ids: The text of each split as ids, of the input's stored dtype; splits without characters are left out.
        starts: Position in the text at which each split begins.
        strides: Number of characters that a passage of each split predicts; its others are read only.
        version: SHA-256 of the file.
    """

    input: CorpusInput
    class_names: tuple[str, ...]
    ids: dict[str, np.ndarray]
    starts: dict[str, int]
    strides: dict[str, int]
    version: str

    @property
    def split_rule(self) -> str:
        """The rule by which the splits are made, in words."""
        return "by position: " + ", ".join(
            f"{name} {self.starts[name]:,} to {self.starts[name] + len(ids):,}" for name, ids in self.ids.items()
        )

    def ends(self, split: str) -> np.ndarray:
        """Return int64[passages]: where in the split each ends. The first is full; each of the others adds a stride."""
        size, stride = len(self.ids[split]), self.strides[split]
        ends = np.arange(self.input.num_tokens, max(size + stride, self.input.num_tokens + 1), stride)
        return np.minimum(ends, size)[: 1 + -(-max(size - self.input.num_tokens, 0) // stride)]

    def passage(self, split: str, start: int, end: int) -> np.ndarray:
        """Return the num_tokens + 1 ids that end at `end`; 0 where the split has not begun."""
        ids, width = self.ids[split], self.input.num_tokens + 1
        known = ids[max(end - width, 0) : end]
        return np.concatenate([np.full(width - len(known), PADDING, ids.dtype), known])


def read_corpus(location: str, params: WriteParams) -> Corpus:
    """Read a text and divide it: the last part tests, the part before it validates, all before these trains.

    Raises:
        InputError: If it is not UTF-8, or a split that was asked for gets no characters, or fewer than two differ.
    """
    for name in _FOR_OTHERS:
        if getattr(params, name) != getattr(WriteParams(params.source), name):
            raise InputError(
                f"{name} is not for a corpus. Received: {name}={getattr(params, name)!r} with {params.source!r}. "
                "Remove it."
            )
    content = storage.read_bytes(location)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"Cannot read {location}: expected text in UTF-8, received {error}. Convert it.") from error
    sizes = {
        VALIDATION: round(len(text) * params.validation_fraction),
        TEST: round(len(text) * params.test_fraction),
    }
    sizes = {TRAIN: len(text) - sum(sizes.values()), **sizes}
    asked = {TRAIN: 1.0, VALIDATION: params.validation_fraction, TEST: params.test_fraction}
    for name, fraction in asked.items():
        if fraction and not sizes[name]:
            raise InputError(
                f"The {name!r} split has no characters: {location} has {len(text)}, of which it gets "
                f"{fraction if name != TRAIN else 'the rest'}. Give a longer text"
                + (f", or set data.{name}_fraction to 0." if name != TRAIN else ", or smaller fractions.")
            )
    known = sorted(set(text[: sizes[TRAIN]]))
    if len(known) < 2:
        raise InputError(
            f"A language model needs at least two different characters to train on. Received: {known} in the first "
            f"{sizes[TRAIN]:,} characters of {location}. Give another text."
        )
    passages = CorpusInput(params.num_tokens, len(known) + len(_RESERVED))
    ids = _to_ids(text, known).astype(passages.stored_dtype)
    parts, starts, at = {}, {}, 0
    for name, size in sizes.items():
        if size:
            parts[name], starts[name] = ids[at : at + size], at
        at += size
    strides = dict.fromkeys(parts, params.num_tokens - params.context_tokens) | {TRAIN: params.num_tokens}
    version = hashlib.sha256(content).hexdigest()
    return Corpus(passages, (*_RESERVED.values(), *known), parts, starts, strides, version)


def _to_ids(text: str, known: list[str]) -> np.ndarray:
    """Return the id of every character, int64[characters]."""
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    alphabet = np.array([ord(character) for character in known], np.uint32)
    places = np.minimum(np.searchsorted(alphabet, points), len(known) - 1)
    return np.where(alphabet[places] == points, places + len(_RESERVED), UNKNOWN)


def list_passages(corpus: Corpus) -> Iterator[tuple[str, str, int, int]]:
    """Yield split, key, start and end of every passage, which predicts the characters from start to end."""
    for split in corpus.ids:
        start = 0
        for end in corpus.ends(split).tolist():
            offset = corpus.starts[split]
            yield split, f"characters {offset + start}-{offset + end}", start, end
            start = end
