"""Resume state: a folder, local or in a bucket, with finished pieces of work from which a later process continues.

ROOT/begun.json       digest of everything that the pieces depend on
ROOT/whole/NAME       a piece
ROOT/notes/NAME.json  description and checksum of the piece; a piece is finished when this file exists
ROOT/tasks/00007.npz  input of a worker on another machine
"""

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import google_crc32c

from tpu_components.core.base import typed_values
from tpu_components.core.base.errors import InputError, reading
from tpu_components.core.base.partition import Share
from tpu_components.core.files import storage, typed_json
from tpu_components.core.files.location import Location
from tpu_components.core.work.workers import in_threads

_DIGEST_FILE = "begun.json"
_GIVEN_UP = "the data changed while they were being read"


class Piece(NamedTuple):
    """A finished piece of work: URI and content of its file, and its note (description, size and checksum)."""

    uri: str
    content: bytes
    note: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class ResumeState:
    """A folder with finished pieces of work, and with a digest of everything that the work depends on.

    Attributes:
        root: The folder.
    """

    root: str

    def holds(self, digest: str) -> bool:
        """Return whether the folder belongs to the work with this digest."""
        return self._digest() == digest

    def begin(self, digest: str) -> Self:
        """Create the folder for the work with this digest, or continue with an existing folder. Return this object.

        Pieces of the same work that an interrupted process finished are kept. Pieces of other work in a local folder
        are removed.

        Raises:
            InputError: If the folder is in a bucket and belongs to other work.
        """
        is_same = self.holds(digest)
        if Location(self.root).is_remote:
            if not is_same and self._digest():
                raise InputError(
                    f"Cannot write to {self.root}: expected an empty folder, or unfinished work with the same data, "
                    "parameters and code, received other work. Choose another folder, or remove this folder."
                )
        else:
            storage.require_writable(Path(self.root))
            if not is_same:
                Path(self.root, _DIGEST_FILE).unlink(missing_ok=True)
            for folder in (Path(self.root, name) for name in ("whole", "notes")):
                if not is_same:
                    shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True, exist_ok=True)
                storage.drop_half_written(folder)
        if not is_same:
            storage.write_file(f"{self.root}/{_DIGEST_FILE}", json.dumps(digest).encode())
        return self

    def finished(self) -> set[str]:
        """Return the names of the finished pieces, without verifying checksums."""
        notes = (name.removesuffix(".json") for name in storage.names_in(f"{self.root}/notes"))
        return storage.names_in(f"{self.root}/whole").intersection(notes)

    def whole(self, names: Iterable[str]) -> set[str]:
        """Return the subset of `names` whose pieces are finished and match their checksums."""
        there = sorted(self.finished().intersection(names))
        are_whole = in_threads(self.is_whole, self.root, there)
        return {name for name, is_whole in zip(there, are_whole, strict=True) if is_whole}

    def is_whole(self, name: str) -> bool:
        """Return whether a piece is finished and matches its checksum."""
        try:
            self.read(name)
        except InputError:
            return False
        return True

    def finish(self, name: str, content: bytes, note: Mapping[str, Any]) -> None:
        """Write a piece, then the note that marks the piece as finished. Each file is written atomically."""
        facts = {"num_bytes": len(content), "crc32c": _crc32c(content)}
        storage.write_file(f"{self.root}/whole/{name}", content)
        told = json.dumps({**note, "file": {**note.get("file", {}), **facts}}, ensure_ascii=False)
        storage.write_file(f"{self.root}/notes/{name}.json", told.encode())

    def read(self, name: str, fields: Mapping[str, Any] | None = None) -> Piece:
        """Read the file and the note of a finished piece.

        Args:
            name: Name of the piece.
            fields: Types of the fields that its note must have, besides size and checksum of the file.

        Raises:
            InputError: If the piece is missing or damaged, or a field of its note is missing or has the wrong type.
        """
        uri = f"{self.root}/whole/{name}"
        note_uri = f"{self.root}/notes/{name}.json"
        with reading(note_uri, "the note of a finished piece", f"Remove {self.root}, and run the step again."):
            note: dict[str, Any] = typed_values.read(typed_json.decode(storage.read_bytes(note_uri)), Mapping[str, Any])
            for field, kind in {"file": Mapping[str, int | str], **(fields or {})}.items():
                typed_values.read(note[field], kind, field)
        content = storage.read_bytes(uri)
        expected = note["file"].get("crc32c")
        if (received := _crc32c(content)) != expected:
            raise InputError(
                f"{uri} is damaged: expected checksum {expected}, received {received}. Remove the file, and run its "
                "range again."
            )
        return Piece(uri, content, note)

    def task(self, number: int) -> str:
        """Return the path of the input file for a worker's task."""
        return f"{self.root}/tasks/{number:05d}.npz"

    def hand_over(self, numbers: Iterable[int], pack: Callable[[int], bytes]) -> None:
        """Write the missing input files of tasks. `pack` returns the content of the file for a task's number."""
        there = storage.names_in(f"{self.root}/tasks")
        missing = [number for number in numbers if f"{number:05d}.npz" not in there]
        for _ in in_threads(storage.write_file, self.root, map(self.task, missing), map(pack, missing)):
            pass

    def _digest(self) -> str:
        try:
            return str(typed_json.decode(storage.read_bytes(f"{self.root}/{_DIGEST_FILE}")))
        except (OSError, ValueError):  # Includes InputError: the file is missing.
            return ""


@contextlib.contextmanager
def giving_up(*folders: ResumeState) -> Iterator[None]:
    """If the `with` block raises InputError, mark the folders so that their finished pieces are not used again.

    The block should check the data of the pieces. An InputError means that the data changed while they were read.
    """
    try:
        yield
    except InputError:
        for folder in folders:
            storage.write_file(f"{folder.root}/{_DIGEST_FILE}", json.dumps(_GIVEN_UP).encode())
        raise


def range_of(number: int, num_ranges: int, num_pieces: int) -> range:
    """Return the numbers of the pieces in range `number`.

    There are `num_ranges` ranges of nearly equal size.

    Raises:
        InputError: If `number` is not from 0 to `num_ranges - 1`.
    """
    if not 0 <= number < num_ranges:
        raise InputError(f"Unknown range {number}: expected a number from 0 to {num_ranges - 1}. Correct the number.")
    return Share(number, num_ranges).within(num_pieces)


def gather(
    folders: Sequence[ResumeState],
    digest: str,
    names: Sequence[str],
    num_ranges: int = 0,
    fields: Mapping[str, Any] | None = None,
) -> Iterator[Piece]:
    """Yield the named pieces from several folders, in the order of `names`.

    Args:
        folders: Folders that commands or workers have written, in any order.
        digest: Digest of the work.
        names: Names of the pieces.
        num_ranges: Number of ranges that the names were divided into, for messages, or 0 if unknown.
        fields: Types of the fields of the notes; see `ResumeState.read`.

    Raises:
        InputError: If a folder belongs to other work, or a piece is missing. During the iteration, if a piece is
            damaged.
    """
    if others := [folder.root for folder in folders if not folder.holds(digest)]:
        raise InputError(
            f"Cannot combine {others[0]} with the other folders: it is empty, or was written with other data, "
            "parameters or code. Write this range again, with the same data, parameters and code as the others."
        )
    finished = in_threads(ResumeState.finished, folders[0].root, folders)
    held = {name: folder for folder, there in zip(folders, finished, strict=True) for name in there}
    if missing := [number for number, name in enumerate(names) if name not in held]:
        ranges = (i for i in range(num_ranges) if set(range_of(i, num_ranges, len(names))).intersection(missing))
        without = f" without pieces of range {', '.join(map(str, ranges))}" if num_ranges else ""
        raise InputError(
            f"{len(missing):,} of {len(names):,} pieces are missing; the first is {names[missing[0]]}. Some ranges "
            f"of the work have not run, or their folders were not passed: received {len(folders)} folders{without}. "
            "Run the missing ranges, and pass all folders."
        )
    return in_threads(lambda name: held[name].read(name, fields), folders[0].root, names)


def _crc32c(content: bytes) -> str:
    return f"{google_crc32c.value(content):08x}"
