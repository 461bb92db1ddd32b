"""Tasks written by processes of this machine."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tpu_components.core.sources.tasks import arguments_of
from tpu_components.core.work.workers import in_processes
from tpu_components.create_tfrecords.parts import Task, Written, write_part
from tpu_components.create_tfrecords.preparing import Prepared


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
        listing, encoder = prepared.plan.listing, prepared.encoder
        num_workers = max(min(self._num_workers, len(tasks), prepared.num_useful_workers), 1)
        with tempfile.TemporaryDirectory(prefix=".parts.", dir=folder, ignore_cleanup_errors=True) as parts:
            free: list[str] = []  # Files whose content has been taken: written over, they cost less than new ones.
            calls = (
                (
                    encoder,
                    free.pop() if free else os.path.join(parts, f"{number:06d}"),
                    *arguments_of(listing, indices),
                )
                for number, (_, _, indices) in enumerate(tasks)
            )
            with in_processes(write_part, calls, num_workers) as written:
                for part in written:
                    prepared.require_even(part)
                    with open(part.path, "rb") as file:
                        content = file.read(sum(part.sizes))
                    free.append(part.path)
                    yield part, content
