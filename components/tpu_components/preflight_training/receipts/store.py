"""Stores receipts in a folder. A receipt is a file with the measured step times of a training run.

The file name is a digest of the measurements, so a run that is added twice is stored once.
"""

import dataclasses
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from tpu_components.core.base.digest import digest_of
from tpu_components.core.base.errors import InputError
from tpu_components.core.files import storage, typed_json
from tpu_components.core.files.location import Location
from tpu_components.core.results.receipt import RECEIPT_FILE, Receipt

RECEIPTS_VARIABLE = "TPU_PIPELINES_RECEIPTS"  # Folder of the receipts, local or in a bucket.
RECEIPTS_DIR = "receipts"  # Name of this folder in a workspace.
_MOST_BYTES = 1 << 20  # A thousand times the size of a receipt.


@dataclasses.dataclass(frozen=True)
class Added:
    """Result of `ReceiptStore.add`, as numbers of runs.

    Attributes:
        new: Runs that were added.
        completed: Stored runs that had no prediction and got one.
        known: Runs that were already stored and did not change.
    """

    new: int
    completed: int
    known: int


@dataclasses.dataclass(frozen=True)
class ReceiptStore:
    """A folder with the receipts of a project's training runs, that is, their measured step times.

    Attributes:
        uri: The folder, local or in a bucket. A folder that does not exist counts as empty.
    """

    uri: str

    @classmethod
    def of_workspace(cls, workspace: str | Path = "runs") -> "ReceiptStore":
        """Return the store in the folder that TPU_PIPELINES_RECEIPTS names, by default `receipts` in the workspace."""
        return cls(os.environ.get(RECEIPTS_VARIABLE) or f"{workspace}/{RECEIPTS_DIR}")

    @classmethod
    def of_environment(cls) -> "ReceiptStore | None":
        """Return the store in the folder that TPU_PIPELINES_RECEIPTS names, or None if the variable is not set."""
        uri = os.environ.get(RECEIPTS_VARIABLE)
        return cls(uri) if uri else None

    def load(self) -> list[Receipt]:
        """Return the stored receipts, sorted by file name.

        Raises:
            InputError: If a file is damaged.
        """
        return [read_receipt(f"{self.uri}/{file.name}") for file in storage.list_known(self.uri) if _is_json(file.name)]

    def digest(self) -> str:
        """Return a digest of the stored receipts, or an empty string without receipts."""
        receipts = self.load()
        return digest_of([receipt.as_dict() for receipt in receipts]) if receipts else ""

    def add(self, receipts: Iterable[Receipt]) -> Added:
        """Add receipts of runs that are not stored yet.

        A new receipt of a run replaces the stored one only if the new one has a prediction and the stored one does not.

        Raises:
            InputError: If the folder cannot be written, or a stored receipt is damaged.
        """
        known = {receipt.id: receipt for receipt in self.load()}
        before = dict(known)
        for receipt in receipts:
            earlier = known.get(receipt.id)
            if earlier is None or (earlier.prediction is None and receipt.prediction is not None):
                known[receipt.id] = receipt
        for name, receipt in known.items():
            if receipt is not before.get(name):
                content = json.dumps(receipt.as_dict(), indent=2, allow_nan=False)
                storage.write_file(f"{self.uri}/{name}.json", f"{content}\n".encode())
        new = len(known.keys() - before.keys())
        completed = sum(known[name] is not receipt for name, receipt in before.items())
        return Added(new, completed, len(before) - completed)


def find_receipts(place: str) -> Iterator[Receipt]:
    """Yield the receipts in a file, or in a folder and its subfolders, local or in a bucket.

    In a folder, receipts are the files named `receipt.json`. If the folder has only JSON files and no subfolders, it is
    treated as the folder of another `ReceiptStore`, and all its files are receipts.

    Raises:
        InputError: If the place does not exist, has no receipt, or a receipt is damaged.
    """
    if place.endswith(".json"):
        yield read_receipt(place)
        return
    if not Location(place).is_remote and Path(place).is_file():
        raise InputError(
            f"Cannot add receipts from {place!r}: expected {RECEIPT_FILE}, a folder or a bucket. Check the path."
        )
    files = [file.name for file in storage.each_file(place)]
    is_store = all("/" not in name and _is_json(name) for name in files)
    names = [name for name in files if is_store or name.rpartition("/")[2] == RECEIPT_FILE]
    if not names:
        raise InputError(
            f"Found no {RECEIPT_FILE} in {place!r}. Expected the folder of a run, a workspace, or the bucket of a "
            "platform's runs. Check the path."
        )
    for name in names:
        yield read_receipt(f"{place.rstrip('/')}/{name}")


def read_receipt(uri: str) -> Receipt:
    """Read one receipt.

    Raises:
        InputError: If the file is missing, is too large, or is not a receipt that this version can read.
    """
    try:
        content = storage.read_bytes(uri)
        if len(content) > _MOST_BYTES:
            raise ValueError(f"it has {len(content):,} bytes, and a receipt has at most {_MOST_BYTES:,}")
        return Receipt.parse(typed_json.decode(content))
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError) and str(error).startswith("Cannot read"):
            raise
        reason = str(error) if isinstance(error, ValueError) else repr(error)
        raise InputError(
            f"Cannot use {uri!r}: it is not a receipt of a training run, or this version cannot read it "
            f"({reason.rstrip('.')}). Remove the file, or add only receipts that train_model or evaluate_model wrote."
        ) from error


def _is_json(name: str) -> bool:
    return name.endswith(".json")
