"""`tpu-pipelines serve` under load, and the loop over `model.predict` that one would write instead."""

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

REQUESTS, AT_A_TIME = 1000, 32


def load_server(export_dir: Path, images: np.ndarray) -> tuple[float, float]:
    """Requests/s of a fresh server, one image each and 32 at a time; and the 99th percentile of their time, in ms."""
    command = [sys.executable, "-m", "tpu_pipelines.cli", "serve", str(export_dir), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline().split("http://")[1].split(":")[1].split("/")[0])
            asyncio.run(_ask(port, images, 100))  # Warms up.
            return asyncio.run(_ask(port, images, REQUESTS))
        finally:
            server.terminate()


async def _ask(port: int, images: np.ndarray, count: int) -> tuple[float, float]:
    bodies = [json.dumps({"instances": [image.tolist()]}).encode() for image in images]
    left, seconds = iter(range(count)), []

    async def ask() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for number in left:
            body = bodies[number % len(bodies)]
            start = time.perf_counter()
            writer.write(b"POST /predict HTTP/1.1\r\nHost: here\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            assert b" 200 " in head, head
            await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r")[0]))
            seconds.append(time.perf_counter() - start)
        writer.close()

    start = time.perf_counter()
    await asyncio.gather(*(ask() for _ in range(AT_A_TIME)))
    return count / (time.perf_counter() - start), float(np.percentile(seconds, 99) * 1e3)


def predict_in_a_loop(model_dir: Path, images: np.ndarray) -> dict[str, float]:
    """The same images, one at a time through Keras's `predict`."""
    from tpu_components.core.machines import device

    device.prepare("tensorflow", "cpu", 1, "float32")
    from tpu_components.core.models.trained import load_trained_model

    model: Any = load_trained_model(model_dir)
    model.predict(images[:1], verbose=0)
    seconds = []
    for image in images:
        start = time.perf_counter()
        model.predict(image[None], verbose=0)
        seconds.append(time.perf_counter() - start)
    return {"rate": 1 / float(np.mean(seconds)), "p99_ms": float(np.percentile(seconds, 99) * 1e3)}


if __name__ == "__main__":
    print(json.dumps(predict_in_a_loop(Path(sys.argv[1]), np.load(sys.argv[2]))))
