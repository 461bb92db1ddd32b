"""Selections of examples for workers, passed as arguments or in a file, so that workers need not list the source."""

import dataclasses
import io
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tpu_components.core.base.errors import InputError, reading
from tpu_components.core.examples.interface import UnreadableError
from tpu_components.core.files import storage, typed_json
from tpu_components.core.files.unpacking import read_arrays
from tpu_components.core.sources.columns import Pieces
from tpu_components.core.sources.spans import Span, Spans
from tpu_components.core.work.workers import in_threads

_NUMBERS = ("hashes", "weights")


@dataclasses.dataclass(frozen=True)
class Selection:
    """Some examples of a listing, with all data that a worker needs to read them.

    Attributes:
        root: Folder that keys are relative to.
        keys: Keys of the examples.
        contents: Contents of the examples: each is bytes, an element of an array, or a `Span` of a larger file. None if
            each key is the path of a file below `root`.
        values: For each example, the value that is stored with its content: the label or, for predictions, the columns
            to copy.
        hashes: Results of `identify` for the contents, uint64[count], if the source has computed them; otherwise None.
        weights: Weights of the examples, float32[count], or None without weights.
    """

    root: str
    keys: list[str]
    contents: Iterable[Any] | None
    values: list[Any]
    hashes: np.ndarray | None = None
    weights: np.ndarray | None = None

    def read_each(self, convert: Callable[[str, Any], Any] | None = None) -> Iterator[Any]:
        """Yield the content of each example, or the error if the example cannot be read.

        Several contents are read at a time if they are in a bucket.

        Args:
            convert: Function that is called with the key and the content of each example. The function's result is
                yielded instead of the content. If the function raises InputError or UnreadableError, the error is
                yielded.
        """

        def read(key: str, content: Any) -> Any:
            try:
                if content is None:
                    content = storage.read_bytes(f"{self.root}/{key}")
                elif isinstance(content, Span):
                    content = content.read()
                return convert(key, content) if convert else content
            except (InputError, UnreadableError) as error:
                return error

        contents: Iterable[Any] = itertools.repeat(None) if self.contents is None else self.contents
        place = self.root
        if isinstance(contents, Sequence) and contents and isinstance(contents[0], Span):
            place = contents[0].path
        return in_threads(read, place, self.keys, contents)


def pack_tasks(key: str, examples: Selection, counts: Mapping[int, int]) -> bytes:
    """Serialize the examples of several parts of a listing as the content of a file that `load_tasks` reads.

    If other machines can read all contents from existing files, the new file only refers to them, by path and byte
    range. If any content is only in memory or in a file unpacked on this machine, all contents are copied.

    Args:
        key: Digest of the settings and data that determine the parts.
        examples: The examples of all parts, one part after the other.
        counts: Number of examples of each part, by part number.
    """
    contents = examples.contents
    told = {"key": key, "root": examples.root, "keys": examples.keys, "values": examples.values}
    arrays: dict[str, Any] = {
        "numbers": np.array(list(counts)),
        "counts": np.array(list(counts.values())),
        "told": _as_bytes(json.dumps(told).encode()),
    }
    arrays |= {name: rows for name in _NUMBERS if (rows := getattr(examples, name)) is not None}
    if isinstance(contents, np.ndarray):
        arrays["images"] = contents
    elif contents is not None:
        held = list(contents)
        if all(isinstance(content, Span) and not content.is_copy for content in held):
            spans = Spans.collect(held)
            arrays |= {"paths": np.array(spans.paths), "spans": np.stack([spans.files, spans.offsets, spans.sizes], 1)}
        else:
            held = [content.read() if isinstance(content, Span) else content for content in held]
            arrays |= {"held": _as_bytes(b"".join(held)), "sizes": np.array([len(content) for content in held])}
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def load_tasks(uri: str, key: str) -> Iterator[tuple[int, Selection]]:
    """Yield (part number, examples) for each part in a file that `pack_tasks` wrote.

    Raises:
        InputError: If the file is missing or damaged, or was written with another `key`.
    """
    with reading(uri, "complete tasks that the step has written", "Remove the file, and run the step again."):
        arrays = read_arrays(uri, storage.read_bytes(uri))
        told = typed_json.decode(arrays["told"].tobytes())
        root = str(told["root"])
        columns = [told["keys"], _contents(arrays), told["values"], *map(arrays.get, _NUMBERS)]
        numbers = arrays["numbers"].tolist()
        counts = arrays["counts"].tolist()
        stored_key = str(told["key"])
        if len(numbers) != len(counts) or any(rows is not None and len(rows) != sum(counts) for rows in columns):
            raise ValueError("columns of different lengths")
    if stored_key != key:
        raise InputError(
            f"The tasks in {uri} belong to other data, parameters or code: expected the digest {key[:12]}, received "
            f"{stored_key[:12]}. Remove the file, and run the step again."
        )
    start = 0
    for number, count in zip(numbers, counts, strict=True):
        some: Any = (None if rows is None else rows[start : start + count] for rows in columns)
        yield number, Selection(root, *some)
        start += count


def _contents(arrays: Mapping[str, np.ndarray]) -> Any:
    if "images" in arrays:
        return arrays["images"]
    if "spans" in arrays:
        paths = arrays["paths"].tolist()
        return [Span(paths[file], offset, size) for file, offset, size in arrays["spans"].tolist()]
    if "held" in arrays:
        return list(Pieces(arrays["held"].tobytes(), np.cumsum(arrays["sizes"])))
    return None


def _as_bytes(content: bytes) -> np.ndarray:
    return np.frombuffer(content, np.uint8)
