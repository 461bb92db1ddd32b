"""A Cloud Storage server in this process, for the real client."""

import socket
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from tpu_components.core.files import object_stores


@pytest.fixture(scope="module")
def storage_server() -> Iterator[Any]:
    """Run a server with one bucket, `gs://bucket`, and its objects in memory."""
    with warnings.catch_warnings(action="ignore"):  # They lack optional parts, and use deprecated parts of Python.
        import gcp_storage_emulator.server as emulator
        import google.cloud.storage  # noqa: F401
    with pytest.MonkeyPatch.context() as patch:
        read = emulator._read_data  # noqa: SLF001 (it has no option for this)
        # It crashes on an empty upload.
        patch.setattr(emulator, "_read_data", lambda *a: b"" if (data := read(*a)) is None else data)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        server = emulator.create_server("127.0.0.1", port, in_memory=True, default_bucket="bucket")
        server.start()
        patch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
        object_stores.google_client.cache_clear()
        yield server
        object_stores.google_client.cache_clear()
        server.stop()


@pytest.fixture
def bucket(storage_server: Any) -> Any:
    """Return the bucket `gs://bucket`, emptied, through the real client."""
    storage_server.wipe(keep_buckets=True)
    return object_stores.GoogleStorage().bucket("bucket")


@pytest.fixture(scope="module")
def s3_server() -> Iterator[Any]:
    """Run moto's S3 server in this process, with one bucket, `s3://bucket`."""
    with warnings.catch_warnings(action="ignore"):
        from moto.server import ThreadedMotoServer
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL_S3", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        object_stores.s3_client.cache_clear()
        object_stores.s3_client().create_bucket(Bucket="bucket")
        yield server
        object_stores.s3_client.cache_clear()
    server.stop()
