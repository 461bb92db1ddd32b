"""Where runs of examples are written: by processes of this machine, or elsewhere, to the same bytes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from tpu_components.create_tfrecords.parts import Task, Written
from tpu_components.create_tfrecords.preparing import Prepared


class Engine(Protocol):
    """A way to have tasks written."""

    def cut(self, prepared: Prepared) -> list[Task]:
        """Cut a prepared data set into tasks."""

    def write(self, prepared: Prepared, tasks: Sequence[Task], folder: Path) -> Written:
        """Yield what becomes of every task, in order: its books, and its framed records.

        Args:
            prepared: The data set.
            tasks: Runs of its examples.
            folder: Folder for what is half done.

        Raises:
            InputError: If an image is of another shape than the others.
        """
