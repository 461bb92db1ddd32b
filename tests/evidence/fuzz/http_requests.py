"""A server in this process, and requests as bytes: whatever arrives is answered, and never by 500."""

import asyncio
import functools
import json
import re
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.evidence.benchmarks.attacks import post
from tpu_components.core.examples.interface import ImageInput
from tpu_components.serving.application import Application
from tpu_components.serving.exported import ExportedModel
from tpu_components.serving.params import ServeParams
from tpu_components.serving.server import make_server

_PATIENCE_SECONDS = 0.03  # For the answer to a request that has no end.
_INPUT = ImageInput((2, 2, 1), "raw")


def _model() -> ExportedModel:
    def predict(images: np.ndarray) -> np.ndarray:
        return np.tile(np.array([1, 0], np.float32), (len(images), 1))

    return ExportedModel("pets", ("cat", "dog"), _INPUT, predict, _INPUT)


@functools.cache
def _port() -> int:
    """Start the server in a thread; returns its port."""
    listener, is_ready = socket.create_server(("127.0.0.1", 0)), threading.Event()
    application = Application(ServeParams())

    async def serve() -> None:
        async with application.ready(_model()):
            is_ready.set()
            await make_server(application).serve([listener])

    threading.Thread(target=asyncio.run, args=(serve(),), daemon=True).start()
    is_ready.wait()
    return int(listener.getsockname()[1])


def ask(path: Path) -> None:
    """Send the bytes of a file; raises RuntimeError if the answer is 500 or none of HTTP."""
    with socket.create_connection(("127.0.0.1", _port())) as client:
        client.settimeout(_PATIENCE_SECONDS)
        answer = b""
        try:
            client.sendall(path.read_bytes())
            while not _is_whole(answer) and (more := client.recv(1 << 16)):
                answer += more
        except (TimeoutError, ConnectionError):
            pass
    statuses = re.findall(rb"^HTTP/1\.1 (\d+)", answer, re.MULTILINE)
    if b"500" in statuses or (answer and not statuses):
        raise RuntimeError(answer.decode(errors="replace"))


def _is_whole(answer: bytes) -> bool:
    head, end, body = answer.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    return bool(end) and length is not None and len(body) >= int(length[1])


def _infer(inputs: Any) -> bytes:
    return post(json.dumps({"inputs": inputs, "id": "7"}).encode()).replace(b"/predict", b"/v2/models/pets/infer", 1)


def seeds(_: Path) -> Sequence[bytes]:
    """Return good requests."""
    import base64

    from tests.evidence.fuzz.readers import picture

    pixels = [[[7], [8]], [[9], [0]]]
    image = base64.b64encode(picture(size=(2, 2))).decode()
    instances = json.dumps({"instances": [pixels, {"b64": image}], "parameters": {"top": 1}}).encode()
    tensor = {"name": "x", "shape": [1, 2, 2, 1], "datatype": "UINT8", "data": [7, 8, 9, 0]}
    raw = picture(size=(2, 2))
    return [
        b"GET /health HTTP/1.1\r\nHost: here\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: here\r\nAccept: application/openmetrics-text\r\n\r\n",
        b"GET /v2/models/pets HTTP/1.1\r\nHost: here\r\n\r\n",
        post(instances),
        post(instances).replace(b"/predict", b"/v1/models/pets:predict", 1),
        _infer([tensor]),
        _infer([{**tensor, "shape": [1], "datatype": "BYTES", "data": [image]}]),
        post(raw).replace(b"Host:", b"Content-Type: image/png\r\nHost:").replace(b"/predict", b"/predict?top=2", 1),
        b"POST /predict HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n"
        + b"%x\r\n%s\r\n0\r\n\r\n" % (len(instances), instances),
    ]
