"""A host of a training that vanishes meanwhile, and what tells whether the training minded."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import h5py

from tpu_components.train_model.checkpoints.checkpoint import load_arrays


class HostLoss(threading.Thread):
    """Lets a host vanish once its training has done some epochs.

    Args:
        folder: Folder of the training's checkpoints, or one above.
        lose: Lets the host vanish.
        after: Epochs.

    Attributes:
        lost_at: Epochs done by then; 0 before.
    """

    def __init__(self, folder: Path, lose: Callable[[], None], after: int = 5) -> None:
        super().__init__(daemon=True)
        self._folder, self._lose, self._after = folder, lose, after
        self.lost_at = 0
        self.start()

    def run(self) -> None:
        while not self.lost_at:
            time.sleep(0.1)
            for path in self._folder.rglob("checkpoint.npz"):
                if (epoch := load_arrays(path)[1].epoch) >= self._after:
                    self._lose()
                    self.lost_at = epoch
                    return


def arrays(path: Path) -> dict[str, bytes]:
    """Return the bytes of every array of a file of weights, by its name there."""
    found = {}
    with h5py.File(path) as file:
        file.visititems(
            lambda name, item: found.update({name: item[()].tobytes()}) if isinstance(item, h5py.Dataset) else None
        )
    return found
