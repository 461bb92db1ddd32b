"""Tokenizers for texts: in plain Python for writing and serving, and in TensorFlow for SavedModels.

Both tokenizers return the same token IDs.

Each data set and each model stores the name of its tokenization rule (see `Tokenization`). All rules treat ASCII
characters alike. Letters become lower case. `<br />` tags and characters other than letters, digits and apostrophes
become spaces. Spaces separate tokens. The rules differ for non-ASCII characters:

- `words`, the only rule in earlier versions: byte-order marks become spaces, and all other characters are letters.
- `unicode_words`: capitals become lower case, and Unicode spaces, punctuation and control characters become spaces.
  Each symbol, such as € or an emoji, is a token. Typographic apostrophes and full-width letters and digits become
  ASCII. Invisible characters are removed. All other characters are letters. A token has the same ID in the Unicode
  forms NFC and NFD: a SavedModel cannot convert one to the other, so its lookup table has both.
- `words_and_characters`: like `unicode_words`, but each letter of a script that is written without spaces (Han, kana,
  Bopomofo, Thai, Lao, Khmer and Myanmar) is a token, together with its combining marks.

The character classes are in `characters` and do not depend on the versions of Python and TensorFlow. Importing this
module does not import TensorFlow.
"""

import dataclasses
import functools
import hashlib
import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tpu_components.core.base.errors import InputError, did_you_mean
from tpu_components.core.base.frameworks import tf
from tpu_components.core.examples import characters
from tpu_components.core.examples.interface import PADDING, UNKNOWN, AnyInput, TextInput, UnreadableError
from tpu_components.core.files import storage

WORDS, UNICODE_WORDS, WORDS_AND_CHARACTERS = "words", "unicode_words", "words_and_characters"
START, END = "start", "end"
VOCABULARY_FILE = "vocabulary.txt"
_RESERVED = (b"[PAD]", b"[UNK]")  # No token contains brackets.
_BREAK = "<br */?>|\ufeff"  # U+FEFF is the byte-order mark that some editors begin a file with.
_KEPT = b"0123456789abcdefghijklmnopqrstuvwxyz'"
_TO_SPACE = bytes(c if c in _KEPT or c >= 128 else 32 for c in range(256))
_BREAKS = re.compile(_BREAK.encode())
_BYTE_ORDER_MARK = "\ufeff".encode()
_IN_WORDS = re.compile(rb"[0-9A-Za-z'\x80-\xff]")
_NON_ASCII = re.compile(rb"[\x80-\xff]+")
_SHORT_BYTES = 32  # Shorter runs of non-ASCII characters are cached: accented letters and Russian words recur.
_CACHED_RUNS = 1 << 15
# Control characters that separate tokens: the end of a single-character token, and the start of a combining mark. If
# they are adjacent, the mark belongs to the token.
_END, _MARK = "\x1e", "\x1f"
_FIRST_BYTES = 64  # Nearly every text has a word in its first bytes.
_MOST_CACHED = 1 << 16  # Limits the memory for characters that are in no list.


def split_words(text: bytes) -> list[bytes]:
    """Split a UTF-8 text into tokens by the rule `words`.

    Example:
        >>> split_words(b"It's GREAT!<br />10/10")
        [b"it's", b'great', b'10', b'10']
    """
    lowered = text.lower()
    plain = lowered.replace(b"<br />", b" ")
    if b"<br" in plain or _BYTE_ORDER_MARK in plain:  # Rare; the pattern takes a third of the time.
        plain = _BREAKS.sub(b" ", lowered)
    return plain.translate(_TO_SPACE).split()


class Tokenization:
    """Rule that splits texts into tokens. This class implements the rule `words`.

    Attributes:
        name: Name of the rule in data sets and models.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __reduce__(self) -> tuple[Any, ...]:
        return find_tokenization, (self.name,)

    def split(self, text: bytes) -> list[bytes]:
        """Split a UTF-8 text into tokens. For bytes that are not UTF-8, the tokens are the same as in TensorFlow."""
        return split_words(text)

    def split_ops(self) -> tuple[Callable[[Any], Any], list[Any]]:
        """Return `split` as a TensorFlow function, and the lookup tables that the function uses.

        The function maps string[batch] to a ragged string[batch, (tokens)]. A module that saves the function must
        reference the lookup tables.
        """
        to_space = "[" + "".join(f"\\x{c:02x}" for c in range(128) if _TO_SPACE[c] == 32) + "]"

        def split(texts: Any) -> Any:
            plain = tf.strings.regex_replace(tf.strings.lower(texts), _BREAK, " ")
            return tf.strings.split(tf.strings.regex_replace(plain, to_space, " "))

        return split, []

    def has_words(self, text: bytes) -> bool:
        """Return whether a text contains at least one token. The text is split only if necessary.

        Example:
            >>> rule = find_tokenization("words")
            >>> rule.has_words(b" ok"), rule.has_words(b"!"), rule.has_words(b"<br />")
            (True, False, False)
        """
        is_plain = text.isascii() and b"<" not in text
        return _IN_WORDS.search(text) is not None and (is_plain or bool(self.split(text)))

    def spellings(self, token: bytes) -> tuple[bytes, ...]:
        """Return all forms of a token that have the same ID: the token and, in some rules, its NFD form."""
        return (token,)

    def unite(self, counts: Counter[bytes]) -> Counter[bytes]:
        """Add up the counts of all spellings of each token. The rule `words` has only one spelling for each token."""
        return counts


class UnicodeTokenization(Tokenization):
    """Rule that uses Unicode character classes, for all scripts. The module docstring describes the rules.

    Args:
        name: Name of the rule.
        single: Characters that are tokens on their own, as a list of code points (see `characters`).
        marks: Combining marks, as a list of code points. If a mark follows a character in `single`, both are one token.
    """

    def __init__(self, name: str, single: str, marks: str = "") -> None:
        super().__init__(name)
        self._single = single
        self._marks = marks
        self._fold_short = functools.lru_cache(_CACHED_RUNS)(self._fold)

    @functools.cached_property
    def _folded(self) -> "_Folded":
        return _Folded(self._single, self._marks)

    def split(self, text: bytes) -> list[bytes]:
        """Split a UTF-8 text into tokens; see `Tokenization.split`."""
        return split_words(text if text.isascii() else _NON_ASCII.sub(self._replace, text))

    def _replace(self, match: re.Match[bytes]) -> bytes:
        run = match[0]
        return self._fold_short(run) if len(run) <= _SHORT_BYTES else self._fold(run)

    def _fold(self, run: bytes) -> bytes:
        """Convert a run of non-ASCII characters to lower case, with ASCII separators around tokens."""
        folded = run.decode(errors="replace").translate(self._folded)
        return folded.replace(_END + _MARK, "").encode()

    def split_ops(self) -> tuple[Callable[[Any], Any], list[Any]]:
        """Return `split` as a TensorFlow function; see `Tokenization.split_ops`.

        If all texts of a batch are ASCII, most operations are skipped.
        """
        split, tables = super().split_ops()
        replaced = {chr(character): chr(other) for character, other in _replacements().items()}
        initializer = tf.lookup.KeyValueTensorInitializer(list(replaced), list(replaced.values()))
        table = tf.lookup.StaticHashTable(initializer, "")
        single, marks = (f"[{characters.as_class(ranges)}]" for ranges in (self._single, self._marks))
        tokens = f"{single}?{marks}+|{single}" if self._marks else single
        steps = (
            (f"[{characters.as_class(characters.SEPARATORS)}]", " "),
            (f"[{characters.as_class(characters.IGNORED)}]", ""),
            (f"({tokens})", r" \1 "),
        )

        def fold(texts: Any) -> Any:
            each = tf.strings.unicode_split(texts, "UTF-8")
            others = table.lookup(each.flat_values)
            folded = tf.where(tf.equal(others, ""), each.flat_values, others)
            texts = tf.strings.reduce_join(each.with_flat_values(folded), axis=-1)
            for pattern, replacement in steps:
                texts = tf.strings.regex_replace(texts, pattern, replacement)
            return texts

        def split_unicode(texts: Any) -> Any:
            are_ascii = tf.strings.regex_full_match(texts, "[\\x00-\\x7f]*")
            return split(tf.cond(tf.reduce_all(are_ascii), lambda: texts, lambda: fold(texts)))

        return split_unicode, [*tables, table]

    def has_words(self, text: bytes) -> bool:
        """Return whether a text contains at least one token; see `Tokenization.has_words`."""
        if text.isascii() or b"<" in text:
            return super().has_words(text)
        return bool(self.split(text[:_FIRST_BYTES]) or self.split(text))

    def spellings(self, token: bytes) -> tuple[bytes, ...]:
        """Return the forms of a token: the token and, if the token is in NFC and its NFD form differs, the NFD form."""
        if token.isascii():
            return (token,)
        text = token.decode()
        decomposed = unicodedata.normalize("NFD", text)
        has_other = decomposed != text and unicodedata.normalize("NFC", text) == text
        return (token, decomposed.encode()) if has_other else (token,)

    def unite(self, counts: Counter[bytes]) -> Counter[bytes]:
        """Add up the counts of the NFC and NFD forms of each token."""
        united = counts.copy()
        for token in [token for token in counts if not token.isascii()]:
            composed = unicodedata.normalize("NFC", token.decode()).encode()
            if composed != token and token in self.spellings(composed):
                united[composed] += united.pop(token)
        return united


def _code_points(ranges: str) -> Iterator[int]:
    return itertools.chain.from_iterable(characters.parse_ranges(ranges))


class _Folded(dict[int, str | None]):
    """Table for `str.translate` that replaces capitals, separators, ignored characters and single-character tokens.

    The parameters are the same as for `UnicodeTokenization`.
    """

    def __init__(self, single: str, marks: str) -> None:
        self._single = re.compile(f"[{characters.as_class(single)}]")
        self.update((character, self._separate(other)) for character, other in _replacements().items())
        self.update(dict.fromkeys(_code_points(characters.SEPARATORS), " "))
        self.update(dict.fromkeys(_code_points(characters.IGNORED)))
        self.update((character, f"{_MARK}{chr(character)}{_END}") for character in _code_points(marks))

    def _separate(self, character: int) -> str:
        text = chr(character)
        return f" {text}{_END}" if self._single.match(text) else text

    def __missing__(self, character: int) -> str:
        replacement = self._separate(character)
        if character < _MOST_CACHED:
            self[character] = replacement
        return replacement


@functools.cache
def _replacements() -> dict[int, int]:
    """Return {code point: replacement}: lower-case letters for capitals, and ASCII for variants of ASCII characters."""
    return {
        **characters.parse_replacements(characters.CAPITALS),
        **characters.parse_replacements(characters.ASCII_VARIANTS),
    }


_RULES = (
    UnicodeTokenization(
        WORDS_AND_CHARACTERS,
        single=characters.SYMBOLS + characters.LETTERS_WITHOUT_SPACES,
        marks=characters.MARKS_WITHOUT_SPACES,
    ),
    UnicodeTokenization(UNICODE_WORDS, single=characters.SYMBOLS),
    Tokenization(WORDS),
)
TOKENIZATIONS = {rule.name: rule for rule in _RULES}


def find_tokenization(name: str) -> Tokenization:
    """Return the tokenization rule called `name`.

    Raises:
        InputError: If this version does not have the rule.
    """
    if name not in TOKENIZATIONS:
        raise InputError(
            f"Unknown tokenization {name!r}: expected one of {', '.join(TOKENIZATIONS)}."
            f"{did_you_mean(name, TOKENIZATIONS)} A newer version may have written the files: upgrade tpu-pipelines."
        )
    return TOKENIZATIONS[name]


def build_vocabulary(counts: Counter[bytes], size: int) -> tuple[bytes, ...]:
    """Return the most frequent tokens, at most `size` - 2, because IDs 0 and 1 are padding and unknown.

    The tokens are sorted by descending frequency. Tokens of equal frequency are sorted by their bytes.
    """
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return tuple(token for token, _ in ranked[: size - len(_RESERVED)])


@dataclasses.dataclass(frozen=True)
class EncodedText:
    """A text as token IDs.

    Attributes:
        ids: Token IDs after truncation and padding, int32[…].
        num_tokens: Number of tokens before truncation.
        num_unknown: Number of unknown tokens after truncation.
    """

    ids: np.ndarray
    num_tokens: int
    num_unknown: int


class Tokenizer:
    """Converter from texts to token IDs.

    Args:
        inputs: Length, truncation and tokenization rule.
        vocabulary: The known tokens. The first token has the ID 2.
    """

    def __init__(self, inputs: TextInput, vocabulary: Sequence[bytes]) -> None:
        self._given = inputs
        self.shape = inputs.shape
        self.dtype = inputs.dtype
        self.noun = inputs.noun
        rule = find_tokenization(inputs.tokenization)
        self._split = rule.split
        self._ids = _ids_of(rule, vocabulary)

    def encode(self, text: bytes) -> EncodedText:
        """Convert a UTF-8 text to token IDs. The number of IDs is always `TextInput.num_tokens`.

        A longer text is cut, and a shorter text is padded. `TextInput.truncate` is the side where this happens.
        """
        tokens = self._split(text)
        wanted = self._given.num_tokens
        kept = tokens[:wanted] if self._given.truncate == END else tokens[-wanted:]
        ids = np.full(wanted, PADDING, np.int32)
        numbers = ids[: len(kept)] if self._given.truncate == END else ids[wanted - len(kept) :]
        numbers[:] = np.fromiter(map(self._ids.get, kept, itertools.repeat(UNKNOWN)), np.int32, len(kept))
        return EncodedText(ids, len(tokens), int(np.count_nonzero(numbers == UNKNOWN)))

    def encode_stored(self, content: bytes) -> EncodedText:
        """Convert a text from a file or table to token IDs. create_tfrecords and predict_batch share this function.

        Raises:
            UnreadableError: If the text is not UTF-8, or contains no word.
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
        """Return the token IDs of a text, int32[num_tokens].

        Raises:
            InputError: If the text contains no word, or half of a surrogate pair, which UTF-8 cannot encode.
        """
        try:
            encoded = self.encode(text.encode())
        except UnicodeEncodeError as error:
            raise InputError(
                f"the text cannot be encoded as UTF-8 ({error}). Remove or replace the invalid characters."
            ) from error
        if not encoded.num_tokens:
            raise InputError("expected a text with at least one word. Received: a text without a word.")
        return encoded.ids


def _ids_of(rule: Tokenization, vocabulary: Sequence[bytes]) -> dict[bytes, int]:
    """Return {spelling: ID} for all spellings of the tokens in a vocabulary."""
    return {spelling: id_ for id_, token in enumerate(vocabulary, len(_RESERVED)) for spelling in rule.spellings(token)}


def tokenizer_ops(inputs: TextInput, vocabulary: Sequence[bytes]) -> tuple[Callable[[Any], Any], list[Any]]:
    """Return the tokenizer as a TensorFlow function, and the lookup tables that the function uses.

    The function maps string[batch] to int32[batch, num_tokens]. A module that saves the function must reference the
    lookup tables.
    """
    rule = find_tokenization(inputs.tokenization)
    split, tables = rule.split_ops()
    ids = {b"": PADDING, **_ids_of(rule, vocabulary)}
    initializer = tf.lookup.KeyValueTensorInitializer(list(ids), tf.constant(list(ids.values()), tf.int32))
    lookup = tf.lookup.StaticHashTable(initializer, UNKNOWN)

    def tokenize(texts: Any) -> Any:
        tokens = split(texts)
        if inputs.truncate == END:
            kept = tokens[:, : inputs.num_tokens].to_tensor("", shape=(None, inputs.num_tokens))
        else:
            kept = tokens[:, -inputs.num_tokens :]
            missing = inputs.num_tokens - kept.row_lengths()
            padding = tf.RaggedTensor.from_row_lengths(tf.fill([tf.reduce_sum(missing)], ""), missing)
            kept = tf.concat([padding, kept], axis=1).to_tensor("", shape=(None, inputs.num_tokens))
        return lookup.lookup(kept)

    return tokenize, [*tables, lookup]


def vocabulary_bytes(vocabulary: Sequence[bytes]) -> bytes:
    """Return the content of `vocabulary.txt`: one token per line, in the order of IDs.

    The first lines are `[PAD]` and `[UNK]`.
    """
    return b"\n".join((*_RESERVED, *vocabulary)) + b"\n"


def save_vocabulary(vocabulary: Sequence[bytes], directory: Path) -> str:
    """Write `vocabulary.txt`, and return its SHA-256."""
    content = vocabulary_bytes(vocabulary)
    storage.write_bytes(directory / VOCABULARY_FILE, content)
    return hashlib.sha256(content).hexdigest()


def load_vocabulary(directory: Path, inputs: TextInput) -> tuple[bytes, ...]:
    """Return the tokens of `vocabulary.txt`, without the two reserved tokens.

    Raises:
        InputError: If the file is missing, or its SHA-256 is not `inputs.vocabulary_sha256`.
    """
    path = directory / VOCABULARY_FILE
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"Cannot read the vocabulary {path}: {error.strerror}. The file belongs in the folder of the "
            "manifest, model or export. Run the step that wrote this folder again."
        ) from error
    if (received := hashlib.sha256(content).hexdigest()) != inputs.vocabulary_sha256:
        raise InputError(
            f"The vocabulary {path} has changed: expected SHA-256 {inputs.vocabulary_sha256[:16]}…, received "
            f"{received[:16]}…. Restore the file, or create the records again and rerun all later steps."
        )
    return tuple(content[:-1].split(b"\n")[len(_RESERVED) :])


def copy_vocabulary(source: Path, target: Path, inputs: AnyInput) -> None:
    """Copy the vocabulary of text inputs from one folder to another. Other inputs have no vocabulary.

    Raises:
        InputError: See `load_vocabulary`.
    """
    if isinstance(inputs, TextInput):
        save_vocabulary(load_vocabulary(source, inputs), target)
