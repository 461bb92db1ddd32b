"""Reads a user's YAML file as a mapping, with clear error messages."""

import re
from pathlib import Path
from typing import Any

import yaml

from tpu_components.core.base.errors import InputError

_DEEPEST = 100  # Levels of lists and mappings, as in typed_json.
_MOST_VALUES = 100_000  # With aliases unfolded; a file of 300 bytes may have billions.


class _Loader(yaml.SafeLoader):
    """YAML loader that rejects repeated keys, deep nesting, and aliases that expand to too many values."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = self._num_values = 0
        self._sizes: dict[int, int] = {}  # Number of values in each finished node, by its `id`.

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose a node as the base class does, and limit what a malicious or broken file can do.

        Raises:
            yaml.YAMLError: If the file is nested too deeply, a value contains itself, or aliases expand to too many
                values.
        """
        is_alias = self.check_event(yaml.AliasEvent)
        before = self._num_values
        self._depth += 1
        if self._depth > _DEEPEST:
            raise yaml.YAMLError(f"the YAML is nested more than {_DEEPEST} levels deep")
        node = super().compose_node(parent, index)
        self._depth -= 1
        if is_alias and id(node) not in self._sizes:
            raise yaml.YAMLError("a value contains itself")
        self._num_values += self._sizes[id(node)] if is_alias else 1
        if self._num_values > _MOST_VALUES:
            raise yaml.YAMLError(f"the YAML contains more than {_MOST_VALUES:,} values")
        self._sizes[id(node)] = self._num_values - before
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Construct a mapping as the base class does, after checking that its keys are unique."""
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        if repeated := [key for key in keys if keys.count(key) > 1]:
            raise yaml.YAMLError(f"the key {repeated[0]!r} appears twice{node.start_mark}")
        mapping = super().construct_mapping(node, deep)
        return dict(_with_space(*item) for item in mapping.items()) if node.flow_style else mapping


def _with_space(key: Any, value: Any) -> tuple[Any, Any]:
    """Split a key such as `name:0.9` without a value into key and value. Return other items unchanged.

    YAML reads the mapping `{name:0.9}`, without a space after the colon, as the key `name:0.9` without a value.
    """
    match = re.fullmatch(r"([A-Za-z_][\w-]*):(\S.*)", key) if value is None and isinstance(key, str) else None
    return (match[1], yaml.safe_load(match[2])) if match else (key, value)


def read_value(text: str) -> Any:
    """Parse a text as YAML, and return its value.

    Raises:
        yaml.YAMLError: If the text is not YAML, repeats a key or contains too many values.
        ValueError: If YAML cannot convert a value.
    """
    return yaml.load(text, _Loader)


def read_mapping(path: Path, what: str, content: str) -> dict[str, Any]:
    """Read a mapping from a YAML file.

    Args:
        path: YAML file.
        what: Name of the file in error messages, for example "the configuration".
        content: What the file should contain, in words for error messages, for example "sections".

    Raises:
        InputError: If the file cannot be read, is not YAML, repeats a key, or contains no mapping.
    """
    try:
        raw = read_value(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"Cannot read {what} {path}: {error.strerror}. Check the path.") from error
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(
            f"Cannot read {what} {path}: it is not YAML ({' '.join(str(error).split())}). Correct the file."
        ) from error
    if not isinstance(raw, dict):
        raise InputError(
            f"Cannot read {what} {path}: expected {content}, received {type(raw).__name__}. Correct the file."
        )
    return raw
