import gc
import os
import tempfile

from tests.fakes.storage import bucket, s3_server, storage_server  # noqa: F401 (fixtures)

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")  # Tests judge numbers on the CPU, also where there is a GPU.
if "PYTEST_XDIST_WORKER" not in os.environ:  # Whose processes inherit what is set here.
    # Compilations are kept between tests, and apart from the user's own; deleted when the tests end.
    _cache = tempfile.TemporaryDirectory(prefix="tpu-pipelines-tests-")
    os.environ["TPU_PIPELINES_CACHE_DIR"] = _cache.name


def pytest_collection_finish() -> None:
    """Leave what was imported out of every collection of garbage: it stays, and there is much of it."""
    gc.collect()
    gc.freeze()
