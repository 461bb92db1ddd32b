"""Rules for class names and missing labels, the same for every source.

Class names are texts in Unicode NFC, without surrounding spaces. A whole number loses its decimal point and zeros:
`1.0` becomes the class `1`, because pandas writes `1.0` for `1` if another cell of the column is empty. All other texts
stay as they are, for example `007`, `1e3` and `1.5`.

A label is missing if it is empty, null, or a text that libraries write for a missing value: `nan` (also with capitals
or a minus sign), `<NA>`, `NaT` and `#N/A`. `None`, `NA` and `null` are classes, because they are also used as names.
`-1` is a class too, unless the source uses `-1` for a missing label, as Hugging Face does. `data.class_names` overrides
these rules: a listed name is a class, and `-1` is a missing label if it is not listed.
"""

import math
import re
import unicodedata
from collections.abc import Collection, Sequence
from typing import Any

from tpu_components.core.base.formatting import quoted
from tpu_components.core.base.names import as_nfc
from tpu_components.core.examples.interface import LANGUAGE_MODEL

MISSING = frozenset(("", "nan", "NaN", "NAN", "Nan", "-nan", "-NaN", "<NA>", "NaT", "#N/A"))
_UNLABELLED = "-1"
_UNLABELLED_FORMS = frozenset((_UNLABELLED, "-1.0"))  # pandas writes -1.0 if the column has an empty cell.
_SHOWN = 5
# In lower case: missing values of programs and databases, and errors in cells of Excel.
_OFTEN_MISSING = frozenset(
    (
        *("none", "na", "n/a", "null", "nil", "(null)", "<null>", "<none>", "<nan>", "\\n", "(blank)", "?", "--"),
        *("#nv", "#n/d", "#ref!", "#value!", "#div/0!", "#name?", "#null!", "#num!", "#wert!", "#bezug!", "#valeur!"),
    )
)
_QUOTES = "\"'\u2018\u2019\u201c\u201d\u00ab\u00bb"
# Variation selectors. They choose how the preceding character looks, for example as text or as an emoji.
_SELECTORS = re.compile("[\ufe00-\ufe0f]")
_WHOLE = re.compile(r"(-?(?:0|[1-9][0-9]*))\.0*")


def class_name(text: str) -> str:
    r"""Return the class name for a label's text.

    Example:
        >>> [class_name(text) for text in (" cat ", "1.0", "-0.0", "007.0", "1.5")]
        ['cat', '1', '0', '007.0', '1.5']
        >>> class_name("Cafe\u0301") == "Caf\u00e9"
        True
    """
    name = as_nfc(text.strip())
    if "." not in name or not (whole := _WHOLE.fullmatch(name)):
        return name
    return "0" if whole[1] == "-0" else whole[1]


def text_of(value: Any) -> str | None:
    r"""Convert a label from a table or a record to text. Return None for a missing label.

    Raises:
        UnicodeDecodeError: If bytes are not UTF-8.
        TypeError: If the value is a list, a tuple or a dict, which cannot be a class name.

    Example:
        >>> [text_of(value) for value in (b"caf\xc3\xa9", 7, 7.0, float("nan"), None)]
        ['café', '7', '7', None, None]
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, float):
        if math.isnan(value):
            return None
        return str(int(value)) if value.is_integer() else str(value)
    if isinstance(value, dict | list | tuple):
        raise TypeError(f"expected one value, received {value!r}")
    return None if value is None else str(value)


def missing_labels(class_names: Collection[str] = ()) -> frozenset[str]:
    """Return the texts that stand for a missing label.

    Args:
        class_names: Classes from `data.class_names`, or an empty list if `data.class_names` is not set.

    Example:
        >>> "nan" in missing_labels(), "-1" in missing_labels(), "-1" in missing_labels(["cat", "dog"])
        (True, False, True)
    """
    if not class_names:
        return MISSING
    unlabelled = _UNLABELLED_FORMS if _UNLABELLED not in class_names else frozenset()
    return (MISSING | unlabelled) - set(class_names)


def notes_on(class_names: Sequence[str]) -> list[str]:
    """Return a warning for each problem with class names, for example names that look like missing labels.

    Different spellings of one class are also a problem, and so are control characters in a name.

    Args:
        class_names: Names of the classes in the data, from `class_name`.
    """
    by_look: dict[str, list[str]] = {}
    for name in class_names:
        by_look.setdefault(_visible(name), []).append(name)
    notes = [_note_on_alike(names) for names in by_look.values() if len(names) > 1]
    if placeholders := [name for name in class_names if name.lower() in _OFTEN_MISSING]:
        notes.append(f"{quoted(placeholders)} is used as a class. If it means a missing label, leave the label empty")
    if controls := [name for name in class_names if any(map(_is_control, name))]:
        shown = ", ".join(map(ascii, controls[:_SHOWN]))
        notes.append(f"classes {shown} contain control characters. Check the encoding of the labels")
    numbers = [name for name in class_names if name.removeprefix("-").isdecimal()]
    negative = [name for name in numbers if name.startswith("-")]
    if negative == [_UNLABELLED] and "0" in numbers:
        notes.append(
            f"{_UNLABELLED!r} is used as a class. If it means a missing label, list the other classes in "
            "data.class_names"
        )
    return notes


def _note_on_alike(names: Sequence[str]) -> str:
    what = "case or spaces"
    listed = quoted(names)
    if len({" ".join(name.lower().split()) for name in names}) > 1:
        what = "case, spaces, quotation marks or the form of letters"
        if len({_in_plain_letters(name) for name in names}) > 1:
            what = "case, spaces or invisible characters"
            listed = ", ".join(map(ascii, names[:_SHOWN]))
    return f"classes {listed} differ only in {what}. If they are the same class, use one spelling"


def _is_control(character: str) -> bool:
    return character < " " or "\x7f" <= character < "\xa0"


def _in_plain_letters(name: str) -> str:
    """Return a name in lower case, in plain letters, with single spaces, and without outer quotation marks.

    Wide letters, ligatures and letters in circles become plain letters. Superscripts and fractions stay as they are.
    """
    name = name.strip(_QUOTES) or name
    if not name.isascii():
        name = "".join(map(_plain, name))
    return " ".join(name.casefold().split())


def _plain(character: str) -> str:
    is_letter = unicodedata.category(character)[0] in "LZP" or unicodedata.decomposition(character).startswith("<wide>")
    return unicodedata.normalize("NFKC", character) if is_letter else character


def _visible(name: str) -> str:
    """Return a name in plain letters and without invisible characters."""
    if not name.isascii() or not name.isprintable():
        visible = (character for character in name if unicodedata.category(character) not in ("Cf", "Cc"))
        name = _SELECTORS.sub("", "".join(visible))
    return _in_plain_letters(name)


def advise_on_order(task: str, names: Sequence[str], others: Sequence[str]) -> str:
    """Return advice for an error message if a model and the data have the same classes in different orders.

    Otherwise, return an empty string.

    Args:
        task: Task of the model.
        names: Classes of the model.
        others: Classes of the data.
    """
    same = task != LANGUAGE_MODEL and sorted(map(class_name, names)) == sorted(map(class_name, others))
    if not same or are_same(task, names, others):
        return ""
    return f" (the classes are the same in another order: set data.class_names={[class_name(name) for name in names]})"


def are_same(task: str, names: Sequence[str], others: Sequence[str]) -> bool:
    r"""Return whether two lists name the same classes in the same order.

    The names are normalized before the comparison (Unicode form, `1.0` as `1`), because earlier versions of this
    project stored them as they were. The names of a language model are characters, and are compared without
    normalization.

    Example:
        >>> are_same("classification", ["Cafe\u0301", "1.0"], ["Caf\u00e9", "1"])
        True
        >>> are_same("language_model", ["a", "b"], ["a", "b"]), are_same("language_model", ["a", "A"], ["a", "a"])
        (True, False)
    """
    if len(names) != len(others) or task == LANGUAGE_MODEL:
        return tuple(names) == tuple(others)
    return all(
        name == other or class_name(name) == class_name(other) for name, other in zip(names, others, strict=True)
    )
