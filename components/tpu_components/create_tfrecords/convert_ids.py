"""Adds current example IDs to files that an earlier version wrote (`examples.npy` and `trained_on.npy`).

Usage: `python -m tpu_components.create_tfrecords.convert_ids RECORDS FILES`

FILES contain only IDs of the old kind (scheme 1), which depend on the settings of the records. The command adds the IDs
of the current kind (scheme 2). The module `example_ids` describes both schemes. RECORDS is a folder with records that
contain the IDs of both schemes. To get these records, write the same data with this version and the original settings.
"""

import dataclasses
import io
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tpu_components.core.base.errors import DONE, InputError, reading
from tpu_components.core.component import command_line
from tpu_components.core.examples.artifacts import SPLITS
from tpu_components.core.examples.example_ids import as_ids, join_ids, load_identities
from tpu_components.core.files import storage
from tpu_components.core.files.unpacking import read_arrays


@dataclasses.dataclass(frozen=True)
class Converted:
    """Counts of the files that `convert_ids` converted, and of the examples in these files.

    Attributes:
        num_files: Number of converted files.
        num_ids: Number of examples in all files together.
        num_converted: Number of these examples that now have an ID of scheme 2. Examples that are no longer in the data
            keep only their IDs of scheme 1.
    """

    num_files: int
    num_ids: int
    num_converted: int


def convert_ids(records_dir: Path, files: Sequence[str]) -> Converted:
    """Add the IDs of scheme 2 to files that contain only example IDs of scheme 1; see `example_ids`.

    Args:
        records_dir: Records of the same data, written with the original settings (image_size, channels, encoding,
            crop_margin, apply_rotation) and without `retired_tests`.
        files: Files to convert in place, local or in a bucket: `examples.npy` of test sets, or `trained_on.npy` of
            models.

    Raises:
        InputError: If a file cannot be read, the records have no IDs of scheme 2, or no ID of a file is in the records.
    """
    by_split = [load_identities(records_dir, split) for split in SPLITS]
    if all(ids is None for ids in by_split):
        raise InputError(
            f"Found no example IDs in {records_dir}: expected a folder that create_tfrecords wrote. Check the path."
        )
    known = join_ids(*(ids for ids in by_split if ids is not None))
    if not known["scheme2"].any():
        raise InputError(
            f"Cannot use {records_dir} to convert files: an earlier version wrote these records, with IDs of scheme 1 "
            "only. Write the records again with this version and the same settings into another folder."
        )
    converted = {}
    for file in files:
        with reading(file, "example IDs, as in examples.npy or trained_on.npy", "Correct the path."):
            ids = as_ids(read_arrays(file, storage.read_bytes(file))[""])
        matched = known[np.isin(known["scheme1"], ids["scheme1"]) & (known["scheme2"] != 0)]
        if (ids["scheme2"] == 0).any() and not len(matched):
            raise InputError(
                f"Cannot convert {file}: none of its {len(ids):,} IDs is in {records_dir}. The IDs depend on the "
                "settings of the records (image_size, channels, encoding, crop_margin, apply_rotation). Write records "
                "of the same data with the settings that were used when this file was written."
            )
        converted[file] = join_ids(ids, matched)
    for file, ids in converted.items():
        content = io.BytesIO()
        np.save(content, ids)
        storage.write_file(file, content.getvalue())
    counts = [(len(ids), np.count_nonzero(ids["scheme2"])) for ids in converted.values()]
    return Converted(len(files), sum(count for count, _ in counts), sum(int(new) for _, new in counts))


def main() -> int:
    """Run the command and return the exit code."""
    parser = command_line.ArgumentParser(
        prog="python -m tpu_components.create_tfrecords.convert_ids",
        description="Add IDs of scheme 2 to files of example IDs that an earlier version wrote.",
    )
    parser.add_argument(
        "records",
        type=command_line.local_path,
        help="Folder of records of the same data, with all splits, written again with the original settings.",
    )
    parser.add_argument(
        "files", nargs="+", help="Files examples.npy and trained_on.npy to convert in place, local or in a bucket."
    )
    return command_line.run(parser, lambda arguments: (convert_ids(arguments.records, arguments.files), DONE))


if __name__ == "__main__":
    sys.exit(main())
