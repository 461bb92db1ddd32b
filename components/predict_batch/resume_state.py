"""What is finished of predictions: a folder, here or in a bucket, that whoever comes next goes on with.

ROOT/begun.json     digest of the model, the source and the parameters, which are the same for all that is in it
ROOT/whole/NAME     a file of predictions
ROOT/notes/NAME.json  what is in it; it comes after the file, and says that this is there
"""

import dataclasses
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import google_crc32c

from tpu_components.core.base import typed_values
from tpu_components.core.base.errors import InputError
from tpu_components.core.files import storage, typed_json

_DIGEST_FILE = "begun.json"
# What a note holds.
_NOTE = {"file": Mapping[str, int | str], "set_aside": list[Mapping[str, Any]], "predicted": Mapping[str, int]}


@dataclasses.dataclass(frozen=True)
class Begun:
    """Folder of what is finished.

    Attributes:
        root: The folder.
    """

    root: str

    def holds(self, digest: str) -> bool:
        """Return whether the folder was begun for this model, source and parameters."""
        return self._digest() == digest

    def begin(self, digest: str) -> None:
        """Have the folder, with what a killed run of the same has finished.

        Raises:
            InputError: If it is in a bucket, and was begun for something else; on a disk that is removed.
        """
        is_same = self.holds(digest)
        if storage.is_remote(self.root):
            if not is_same and self._digest():
                raise InputError(
                    f"Cannot write answers to {self.root}: expected an empty folder, or answers of this model to this "
                    "source by these parameters, received others. Choose another folder, or remove it."
                )
        else:
            if not is_same:
                shutil.rmtree(self.root, ignore_errors=True)
            for name in ("whole", "notes"):
                Path(self.root, name).mkdir(parents=True, exist_ok=True)
                storage.drop_half_written(Path(self.root, name))
        if not is_same:
            storage.write_file(f"{self.root}/{_DIGEST_FILE}", json.dumps(digest).encode())

    def finished(self) -> set[str]:
        """Return the names of the files that are finished."""
        return {name.removesuffix(".json") for name in storage.names_in(f"{self.root}/notes")}

    def has(self, name: str) -> bool:
        """Return whether a file is finished."""
        return storage.exists(f"{self.root}/notes/{name}.json")

    def finish(self, name: str, content: bytes, note: dict[str, Any]) -> None:
        """Write a file, and last the note that says so; each appears whole or not at all."""
        facts = {"num_bytes": len(content), "crc32c": _crc32c(content)}
        storage.write_file(f"{self.root}/whole/{name}", content)
        told = json.dumps({**note, "file": {**note["file"], **facts}}, ensure_ascii=False)
        storage.write_file(f"{self.root}/notes/{name}.json", told.encode())

    def note(self, name: str) -> dict[str, Any]:
        """Return what the note of a finished file says.

        Raises:
            InputError: If it says something else.
        """
        uri = f"{self.root}/notes/{name}.json"
        try:
            note: dict[str, Any] = typed_values.read(typed_json.decode(storage.read_bytes(uri)), Mapping[str, Any])
            for field, kind in _NOTE.items():
                typed_values.read(note[field], kind, field)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"Cannot use {uri}: expected the note of a finished file, received something else ({error!r}). Remove "
                f"{self.root}, and predict again."
            ) from error
        return note

    def read(self, name: str) -> tuple[bytes, dict[str, Any]]:
        """Return a finished file, and its note.

        Raises:
            InputError: If it is not as it was written.
        """
        note, content = self.note(name), storage.read_bytes(f"{self.root}/whole/{name}")
        expected = note["file"]["crc32c"]
        if (received := _crc32c(content)) != expected:
            raise InputError(
                f"{self.root}/whole/{name} is damaged: expected checksum {expected}, received {received}. Remove that "
                "folder, and answer its range again."
            )
        return content, note

    def _digest(self) -> str:
        try:
            return str(typed_json.decode(storage.read_bytes(f"{self.root}/{_DIGEST_FILE}")))
        except (OSError, ValueError):  # Also an InputError: there is none.
            return ""


def _crc32c(content: bytes) -> str:
    return f"{google_crc32c.value(content):08x}"
