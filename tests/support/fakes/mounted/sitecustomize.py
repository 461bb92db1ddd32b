"""Imported by every Python that is started with this folder in PYTHONPATH; see `tests.support.fakes.gcsfuse`."""

from tests.support.fakes.gcsfuse import mount_as_told

mount_as_told()
