"""Reads a user's YAML file as a mapping, with clear error messages."""

from pathlib import Path
from typing import Any

import yaml

from tpu_components.core.base.errors import InputError


class _Loader(yaml.SafeLoader):
    """YAML that refuses a key given twice instead of taking the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Construct a mapping as the base class does, after a check of its keys."""
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        if repeated := [key for key in keys if keys.count(key) > 1]:
            raise yaml.YAMLError(f"the key {repeated[0]!r} is given twice{node.start_mark}")
        return super().construct_mapping(node, deep)


def read_mapping(path: Path, what: str, content: str) -> dict[str, Any]:
    """Return the mapping that a file holds.

    Args:
        path: The file.
        what: Name of the file in errors, as "the configuration".
        content: Name of its content in errors, as "sections".

    Raises:
        InputError: If it cannot be read, is not YAML, gives a key twice, or holds something else.
    """
    try:
        raw = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        raise InputError(f"Cannot read {what} {path}: {error.strerror}. Check the path.") from error
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"Cannot read {what} {path}: it is not YAML ({' '.join(str(error).split())}).") from error
    if not isinstance(raw, dict):
        raise InputError(f"Cannot read {what} {path}: expected {content}, received {type(raw).__name__}.")
    return raw
