"""Tasks of a worker in one file, with the examples of each part, so that the worker need not list the source."""

import io
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tpu_components.core.base.errors import InputError, reading
from tpu_components.core.files import storage, typed_json
from tpu_components.core.files.unpacking import read_arrays
from tpu_components.core.sources.columns import Pieces
from tpu_components.core.sources.listing import Listing
from tpu_components.core.sources.spans import Span, Spans, read_content

# Labels, keys, contents, hashes and weights of a task's examples, as `write_part` takes them.
Arguments = tuple[list[Any], list[str], Any, np.ndarray | None, np.ndarray | None]

_NUMBERS = ("hashes", "weights")


def arguments_of(listing: Listing, indices: np.ndarray) -> Arguments:
    """Return labels, keys, contents, hashes and weights of examples, by indices int[…]."""
    hashes, weights = (None if rows is None else rows[indices] for rows in (listing.hashes, listing.weights))
    return listing.labels[indices].tolist(), *listing.held(indices), hashes, weights


def pack_tasks(key: str, arguments: Arguments, counts: Mapping[int, int], are_in_place: bool) -> bytes:
    """Return the examples of several parts as the bytes of a file, which `load_tasks` reads.

    The file has the paths and byte ranges of contents in files. Contents in memory or unpacked on this machine are
    copied into it.

    Args:
        key: Digest of the settings and data that determine the parts.
        arguments: Labels, keys, contents, hashes and weights of all examples.
        counts: Number of examples of each part, by part number.
        are_in_place: Whether spans are byte ranges of the source's files, and not of files unpacked on this machine.
    """
    labels, keys, contents, *numbers = arguments
    arrays: dict[str, Any] = {
        "numbers": np.array(list(counts)),
        "counts": np.array(list(counts.values())),
        "told": _as_bytes(json.dumps({"key": key, "labels": labels, "keys": keys}).encode()),
    }
    arrays |= {name: rows for name, rows in zip(_NUMBERS, numbers, strict=True) if rows is not None}
    if isinstance(contents, np.ndarray):
        arrays["images"] = contents
    elif contents is not None and are_in_place:
        spans = Spans.collect(contents)
        arrays |= {"paths": np.array(spans.paths), "spans": np.stack([spans.files, spans.offsets, spans.sizes], 1)}
    elif contents is not None:
        held = [read_content("", *example) for example in zip(keys, contents, strict=True)]
        arrays |= {"held": _as_bytes(b"".join(held)), "sizes": np.array([len(content) for content in held])}
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def load_tasks(uri: str, key: str) -> Iterator[tuple[int, Arguments]]:
    """Yield the number of each part in a file, and the labels, keys, contents, hashes and weights of its examples.

    Raises:
        InputError: If the file is missing or damaged, or was written with another `key`.
    """
    with reading(uri, "tasks that the step has written whole", "Remove it, and run the step again."):
        arrays = read_arrays(uri, storage.read_bytes(uri))
        told = typed_json.decode(arrays["told"].tobytes())
        columns: list[Any] = [told["labels"], told["keys"], _contents(arrays), *map(arrays.get, _NUMBERS)]
        numbers, counts, stored_key = arrays["numbers"].tolist(), arrays["counts"].tolist(), str(told["key"])
        if len(numbers) != len(counts) or any(rows is not None and len(rows) != sum(counts) for rows in columns):
            raise ValueError("columns of different lengths")
    if stored_key != key:
        raise InputError(
            f"The tasks {uri} are of other data, parameters or code: expected {key[:12]}, received {stored_key[:12]}. "
            "Remove them, and run the step again."
        )
    start = 0
    for number, count in zip(numbers, counts, strict=True):
        some: Any = tuple(None if rows is None else rows[start : start + count] for rows in columns)
        yield number, some
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
