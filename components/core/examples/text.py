"""Tokenizes texts: in plain Python for writing and serving, and in TensorFlow for the SavedModel, with equal results.

The rule `words`: ASCII letters become lower case. `<br />` tags, byte-order marks and ASCII characters other than
letters, digits and apostrophes become spaces. Tokens are separated by spaces. All non-ASCII characters are letters.
Importing this module imports no TensorFlow.
"""

import dataclasses
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.frameworks import keras, tf
from tpu_components.core.examples.interface import PADDING, UNKNOWN, AnyInput, TextInput, UnreadableError
from tpu_components.core.files import storage

WORDS = "words"
START, END = "start", "end"
VOCABULARY_FILE = "vocabulary.txt"
_RESERVED = (b"[PAD]", b"[UNK]")  # No token contains brackets.
_BREAK = "<br */?>|\ufeff"  # U+FEFF is the byte-order mark that some editors begin a file with.
_KEPT = b"0123456789abcdefghijklmnopqrstuvwxyz'"
_TO_SPACE = bytes(c if c in _KEPT or c >= 128 else 32 for c in range(256))
_BREAKS = re.compile(_BREAK.encode())
_IN_WORDS = re.compile(rb"[0-9A-Za-z'\x80-\xff]")


def split_words(text: bytes) -> list[bytes]:
    """Return the tokens of a text in UTF-8.

    Example:
        >>> split_words(b"It's GREAT!<br />10/10")
        [b"it's", b'great', b'10', b'10']
    """
    return _BREAKS.sub(b" ", text.lower()).translate(_TO_SPACE).split()


def has_words(text: bytes) -> bool:
    """Return whether a text has a token; tokenizes the text only if necessary.

    Example:
        >>> has_words(b" ok"), has_words(b"!"), has_words(b"<br />")
        (True, False, False)
    """
    return _IN_WORDS.search(text) is not None and (b"<" not in text or bool(split_words(text)))


def build_vocabulary(counts: Counter[bytes], size: int) -> tuple[bytes, ...]:
    """Return the most frequent tokens, sorted by descending frequency, then by bytes; at most `size` - 2.

    The IDs 0 and 1 are padding and unknown.
    """
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return tuple(token for token, _ in ranked[: size - len(_RESERVED)])


@dataclasses.dataclass(frozen=True)
class EncodedText:
    """Token IDs of a text, int32[num_tokens]; its number of tokens before, and of unknown tokens after truncation."""

    ids: np.ndarray
    num_tokens: int
    num_unknown: int


class Tokenizer:
    """Turns texts into ids.

    Args:
        inputs: Description of the inputs.
        vocabulary: The known tokens; the first has the id 2.
    """

    def __init__(self, inputs: TextInput, vocabulary: Sequence[bytes]) -> None:
        self._given = inputs
        self.shape, self.dtype, self.noun = inputs.shape, inputs.dtype, inputs.noun
        self._ids = {token: id_ for id_, token in enumerate(vocabulary, len(_RESERVED))}

    def encode(self, text: bytes) -> EncodedText:
        """Return the ids of a text in UTF-8, cut or padded at the side that `truncate` says."""
        tokens = split_words(text)
        wanted = self._given.num_tokens
        kept = tokens[:wanted] if self._given.truncate == END else tokens[-wanted:]
        numbers = [self._ids.get(token, UNKNOWN) for token in kept]
        ids = np.full(wanted, PADDING, np.int32)
        if self._given.truncate == END:
            ids[: len(numbers)] = numbers
        else:
            ids[wanted - len(numbers) :] = numbers
        return EncodedText(ids, len(tokens), numbers.count(UNKNOWN))

    def encode_stored(self, content: bytes) -> EncodedText:
        """Return the token ids of a text from a file or table; training and predict_batch share this function.

        Raises:
            UnreadableError: If it is not UTF-8, or has no word.
        """
        try:
            content.decode()
        except UnicodeDecodeError as error:
            raise UnreadableError(f"not UTF-8: {error.reason} at byte {error.start}") from error
        encoded = self.encode(content)
        if not encoded.num_tokens:
            raise UnreadableError("no word in it")
        return encoded

    def read(self, text: str) -> np.ndarray:
        """Return the token ids of a text, int32[num_tokens].

        Raises:
            InputError: If the text holds half a surrogate pair, which UTF-8 cannot encode.
        """
        try:
            return self.encode(text.encode()).ids
        except UnicodeEncodeError as error:
            raise InputError(f"Expected text that can be written in UTF-8. Received: {error}.") from error

    def read_all(self, texts: Sequence[str]) -> np.ndarray:
        """Return the ids of texts, int32[len(texts), num_tokens]; see `read`."""
        return np.stack([self.read(text) for text in texts])


def tokenizer_ops(inputs: TextInput, vocabulary: Sequence[bytes]) -> tuple[Callable[[Any], Any], Any]:
    """Build the tokenizer from TensorFlow operations: a function from string[batch] to int32[batch, num_tokens].

    Also returns its lookup table, a keras.layers.StringLookup. A module that saves the function must reference the
    table.
    """
    lookup = keras.layers.StringLookup(
        vocabulary=[token.decode() for token in vocabulary], mask_token="", num_oov_indices=1, dtype="int64"
    )
    to_space = "[" + "".join(f"\\x{c:02x}" for c in range(128) if _TO_SPACE[c] == 32) + "]"

    def tokenize(texts: Any) -> Any:
        plain = tf.strings.regex_replace(tf.strings.lower(texts), _BREAK, " ")
        tokens = tf.strings.split(tf.strings.regex_replace(plain, to_space, " "))
        if inputs.truncate == END:
            kept = tokens[:, : inputs.num_tokens].to_tensor("", shape=(None, inputs.num_tokens))
        else:
            kept = tokens[:, -inputs.num_tokens :]
            missing = inputs.num_tokens - kept.row_lengths()
            padding = tf.RaggedTensor.from_row_lengths(tf.fill([tf.reduce_sum(missing)], ""), missing)
            kept = tf.concat([padding, kept], axis=1).to_tensor("", shape=(None, inputs.num_tokens))
        return tf.cast(lookup(kept), tf.int32)

    return tokenize, lookup


def vocabulary_bytes(vocabulary: Sequence[bytes]) -> bytes:
    """Return the content of the vocabulary's file: one token per line, in the order of IDs; first `[PAD]`, `[UNK]`."""
    return b"\n".join((*_RESERVED, *vocabulary)) + b"\n"


def save_vocabulary(vocabulary: Sequence[bytes], directory: Path) -> str:
    """Write `vocabulary.txt`; returns its SHA-256."""
    content = vocabulary_bytes(vocabulary)
    storage.write_bytes(directory / VOCABULARY_FILE, content)
    return hashlib.sha256(content).hexdigest()


def load_vocabulary(directory: Path, inputs: TextInput) -> tuple[bytes, ...]:
    """Return the tokens of `vocabulary.txt`, without the two that are reserved.

    Raises:
        InputError: If the file is missing, or has another SHA-256 than `inputs.vocabulary_sha256`.
    """
    path = directory / VOCABULARY_FILE
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"Cannot read the vocabulary {path}: {error.strerror}. Expected it beside the manifest, the model or the "
            "export; write these again."
        ) from error
    if (received := hashlib.sha256(content).hexdigest()) != inputs.vocabulary_sha256:
        raise InputError(
            f"The vocabulary {path} has changed: expected SHA-256 {inputs.vocabulary_sha256[:16]}…, received "
            f"{received[:16]}…. Write the records, the model or the export again."
        )
    return tuple(content[:-1].split(b"\n")[len(_RESERVED) :])


def copy_vocabulary(source: Path, target: Path, inputs: AnyInput) -> None:
    """Copy the vocabulary of text inputs from one folder to another; other inputs have none.

    Raises:
        InputError: See `load_vocabulary`.
    """
    if isinstance(inputs, TextInput):
        save_vocabulary(load_vocabulary(source, inputs), target)
