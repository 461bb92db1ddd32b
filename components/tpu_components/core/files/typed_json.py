"""Dataclasses that are stored as JSON files. On reading, every value is checked against the type of its field."""

import dataclasses
import json
import re
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.typed_values import read
from tpu_components.core.files import storage

T = TypeVar("T")
_DEEPEST = 100  # Levels of lists and mappings; ten times more than any file of this project.
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def decode(content: bytes | str, constant: Callable[[str], Any] | None = None) -> Any:
    """Parse untrusted JSON. Every error is a ValueError.

    Args:
        content: The text, or its bytes in UTF-8.
        constant: Function that converts NaN, Infinity and -Infinity, which are not valid JSON. With None, these values
            become floats.

    Raises:
        ValueError: If the content is not valid JSON, is nested more than 100 levels deep (recursive functions would
            fail), or contains a lone surrogate (UTF-8 cannot encode it).
    """
    text = content if isinstance(content, str) else content.decode("utf-8-sig")
    try:
        value = json.loads(text, parse_constant=constant)
    except RecursionError as error:
        raise ValueError(f"The JSON is nested more than {_DEEPEST} levels deep") from error
    if _SURROGATE.search(text):
        json.dumps(value, ensure_ascii=False).encode()  # Raises a UnicodeEncodeError, which is a ValueError.
    level: list[dict[str, Any] | list[Any]] = [[value]]
    for _ in range(_DEEPEST + 1):
        held = (node.values() if isinstance(node, dict) else node for node in level)
        level = [item for items in held for item in items if isinstance(item, dict | list)]
    if level:
        raise ValueError(f"The JSON is nested more than {_DEEPEST} levels deep")
    return value


def load(path: Path | str, what: str, step: str, parse: Callable[[Any], T]) -> T:
    """Read a JSON file that a step wrote.

    Args:
        path: The file, local or in a bucket.
        what: Description of the expected content for error messages, for example `a data set manifest`.
        step: Name of the step that writes the file.
        parse: Function that converts the parsed JSON to the result. If the JSON is malformed, it raises KeyError,
            TypeError or ValueError.

    Raises:
        InputError: If the file is missing or malformed. The message names the file and the field.
    """
    try:
        content = storage.read_bytes(str(path))
    except InputError as error:
        raise InputError(f"{error} Expected a file that {step} wrote.") from error
    try:
        raw = decode(content)
    except ValueError as error:
        raise InputError(f"Cannot read {path}: it is not valid JSON ({error}). Run {step} again.") from error
    try:
        return parse(raw)
    except (KeyError, TypeError, ValueError) as error:
        reason = str(error) if isinstance(error, InputError) else repr(error)
        raise InputError(
            f"Cannot use {path}: it is not {what} in the current format ({reason}). Run {step} again."
        ) from error


class JsonFile:
    """Base class of dataclasses that are stored as a JSON file in a folder.

    The class arguments are the file's name and, for error messages, the file's description and the step that writes it:
    `class Facts(JsonFile, name="facts.json", what="a model's facts", step="train_model")`.

    Files that other releases of this package wrote can be read, too; see `typed_values.read`.
    """

    _name: ClassVar[str]
    _what: ClassVar[str]
    _step: ClassVar[str]

    def __init_subclass__(cls, *, name: str, what: str, step: str) -> None:
        cls._name = name
        cls._what = what
        cls._step = step

    def as_dict(self) -> dict[str, Any]:
        """Return the content of the file as a dict."""
        return dataclasses.asdict(typing.cast(Any, self))

    def save(self, directory: Path) -> None:
        """Write the file into a folder.

        Raises:
            ValueError: If a number is not finite.
        """
        storage.write_json(directory / self._name, self.as_dict())

    @classmethod
    def load(cls, directory: Path | str) -> Self:
        """Read the file of this class from a folder.

        Args:
            directory: Local folder, or the URI of a folder in a bucket.

        Raises:
            InputError: If the file is missing or malformed. The message names the file and the field.
        """
        return load(f"{directory}/{cls._name}", cls._what, cls._step, cls.parse)

    @classmethod
    def find(cls, directory: Path) -> Self | None:
        """Read the file from a folder. Return None if the file is missing or malformed."""
        try:
            return cls.load(directory)
        except InputError:
            return None

    @classmethod
    def parse(cls, raw: Any) -> Self:
        """Convert parsed JSON to an instance of this class.

        Raises:
            KeyError, TypeError, ValueError: If the content is malformed.
        """
        return read(raw, cls, any_version=True)
