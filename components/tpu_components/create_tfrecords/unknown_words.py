"""Warns if at least half of the words in a held-out split are unknown, because a model's predictions are then poor."""

from collections.abc import Sequence

from tpu_components.core.base.terminal import in_one_line
from tpu_components.core.examples.interface import TextInput
from tpu_components.core.examples.text import WORDS_AND_CHARACTERS, find_tokenization

_MOST = 0.5
_FEW_WORDS = 1.5  # Words per text; with fewer, most texts are a single word.
_SHOWN_CHARACTERS = 30


def warn_of_unknown(
    split: str, num_unknown: int, num_words: int, num_texts: int, inputs: TextInput, vocabulary: Sequence[bytes]
) -> str:
    """Return a warning if at least half of the words in a held-out split are unknown.

    Otherwise, return an empty string.

    Args:
        split: Name of the split.
        num_unknown: Number of unknown words in the split, after truncation.
        num_words: Number of all words in the split, after truncation.
        num_texts: Number of texts in the split.
        inputs: Description of the texts.
        vocabulary: The known words, from the training split.
    """
    if not num_words or num_unknown < _MOST * num_words:
        return ""
    share = f"{num_unknown / num_words:.0%} of the words in {split} are unknown, because"
    return f"{share} {_find_cause(num_words / num_texts, inputs, vocabulary)}"


def _find_cause(words_per_text: float, inputs: TextInput, vocabulary: Sequence[bytes]) -> str:
    """Return the most likely cause of unknown words, with advice."""
    finer = find_tokenization(WORDS_AND_CHARACTERS)
    divided = [word for word in vocabulary if len(finer.split(word)) > 1]
    if inputs.tokenization != finer.name and len(divided) >= _MOST * len(vocabulary):
        return (
            f"the rule data.tokenization={inputs.tokenization} does not split texts such as {_shown(divided[0])}. Set "
            f"data.tokenization={finer.name}, which supports languages without spaces, and non-ASCII spaces"
        )
    if len(vocabulary) >= inputs.vocabulary_size - 2:
        return (
            f"only the {len(vocabulary):,} most frequent words of the training texts are known. Raise "
            "data.vocabulary_size"
        )
    if words_per_text < _FEW_WORDS:
        example = f" such as {_shown(vocabulary[0])}" if vocabulary else ""
        return f"most texts are a single word{example}. Separate their words with spaces"
    return (
        "they do not occur in the training texts. Check that the texts of all splits are in the same language, or add "
        "training texts"
    )


def _shown(word: bytes) -> str:
    text = in_one_line(word.decode(errors="replace"))
    return repr(text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…")
