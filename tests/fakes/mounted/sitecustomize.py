"""Imported by every Python that is started with this folder in PYTHONPATH; see `tests.fakes.gcsfuse`."""

from tests.fakes.gcsfuse import mount_as_told

mount_as_told()
