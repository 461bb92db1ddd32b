"""Tasks written by processes of this machine."""

import contextlib
import os
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

from components.create_tfrecords.parts import Task, Written, content_of, write_part
from components.create_tfrecords.preparing import Prepared
from components.safe_path import safe_children


class LocalEngine:
    """Worker processes of this machine.

    Args:
        num_workers: Most processes to use; 0 means one per core.
    """

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers or os.cpu_count() or 1

    def cut(self, prepared: Prepared) -> list[Task]:
        """Cut a data set into tasks enough for all processes."""
        return prepared.cut(self._num_workers)

    def write(self, prepared: Prepared, tasks: Sequence[Task], folder: Path) -> Written:
        """Yield what becomes of every task, as `Engine` says."""
        from joblib import Parallel, delayed

        listing, encoder = prepared.plan.listing, prepared.encoder
        num_workers = max(min(self._num_workers, len(tasks), prepared.num_useful_workers), 1)
        with tempfile.TemporaryDirectory(prefix=".parts.", dir=folder, ignore_cleanup_errors=True) as parts:
            jobs = (
                delayed(write_part)(
                    encoder,
                    os.path.join(parts, f"{number:06d}"),
                    listing.labels[indices].tolist(),
                    *content_of(listing, indices),
                    None if listing.hashes is None else [listing.hashes[i] for i in indices],
                )
                for number, (_, _, indices) in enumerate(tasks)
            )
            # One worker needs no second process; memory-mapping is off, since slices are small and copied once.
            runner = Parallel(
                n_jobs=num_workers,
                backend="sequential" if num_workers == 1 else "loky",
                return_as="generator",
                batch_size=1,
                max_nbytes=None,
            )
            # Closed first when something fails, so that no worker still writes while its folder is removed. joblib
            # warns of the work that this throws away; the error that caused it says enough.
            with (
                safe_children(),
                warnings.catch_warnings(action="ignore", category=UserWarning),
                contextlib.closing(runner(jobs)) as written,
            ):
                for part in written:
                    prepared.require_even(part)
                    content = Path(part.path).read_bytes()
                    os.unlink(part.path)
                    yield part, content
