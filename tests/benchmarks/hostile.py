"""Requests that cost a server far more than they cost their sender, one after the other: what each does to it.

    python -m tests.benchmarks.hostile --export-dir EXPORT

Each request gets a server of its own. While it is answered, another connection asks the health route every 10 ms.
"""

import argparse
import asyncio
import base64
import json
import lzma
import re
import struct
import time
from pathlib import Path

import numpy as np

from tests.benchmarks.soak import answer, connection, start_server

_LEAST_SECONDS = 1.0
TIFF_TYPES = {1: "B", 3: "H", 4: "I", 8: "h", 16: "Q", 17: "q"}  # BYTE, SHORT, LONG, SSHORT, LONG8, SLONG8.


def tiled_tiff(side: int, tile_side: int, pixel: int = 0, first: tuple[tuple[int, int, int], ...] = ()) -> bytes:
    """Return a grey TIFF file whose only tile is compressed by LZMA, https://libtiff.gitlab.io/libtiff/.

    Args:
        side: Height and width of the image.
        tile_side: Height and width of the tile.
        pixel: Value of all pixels.
        first: Tag, type and value of entries that come before the others of the same tag.
    """
    compressor, row = lzma.LZMACompressor(preset=0), bytes([pixel]) * tile_side
    tile = b"".join([*(compressor.compress(row) for _ in range(tile_side)), compressor.flush()])
    own = {256: side, 257: side, 258: 8, 259: 34925, 262: 1, 277: 1, 322: tile_side, 323: tile_side, 325: len(tile)}
    rows = sorted([*first, *((tag, 4, value) for tag, value in own.items()), (324, 4, 0)], key=lambda row: row[0])
    place = 8 + 2 + 12 * len(rows) + 4
    entries, wide = b"", b""
    for tag, kind, value in rows:
        size = struct.calcsize(TIFF_TYPES[kind])
        packed = struct.pack("<" + TIFF_TYPES[kind], place if tag == 324 else value)
        if size > 4:
            packed, wide = struct.pack("<I", place + len(tile) + len(wide)), wide + packed
        entries += struct.pack("<HHI4s", tag, kind, 1, packed)
    return b"II*\0" + struct.pack("<IH", 8, len(rows)) + entries + bytes(4) + tile + wide


def _post(path: str, body: bytes) -> bytes:
    return b"POST %s HTTP/1.1\r\nHost: here\r\nContent-Length: %d\r\n\r\n%s" % (path.encode(), len(body), body)


def _in_chunks(body: bytes) -> bytes:
    head = b"POST /predict HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"


def requests(name: str) -> dict[str, bytes]:
    """Requests by name; `name` is the model's."""
    infer = f"/v2/models/{name}/infer"

    def tensor(shape: str, data: str, kind: str) -> bytes:
        return b'{"inputs": [{"name": "x", "shape": %s, "datatype": "%s", "data": %s}]}' % (
            shape.encode(),
            kind.encode(),
            data.encode(),
        )

    words = json.dumps(["x" * 1_400_000] + ["a"] * 450)
    bomb = {"b64": base64.b64encode(tiled_tiff(1, 32768)).decode()}
    return {
        "shape of 500,001 sizes": _post(infer, tensor(f"[1{',99' * 500_000}]", '["x"]', "BYTES")),
        "sizes of 4,000 digits": _post(infer, tensor(f"[1{', ' + '9' * 4000}]", '["x"]', "BYTES")),
        "words for pixels, V1": _post("/predict", json.dumps({"instances": [json.loads(words)]}).encode()),
        "words for pixels, V2": _post(infer, tensor("[1, 8, 8, 1]", words, "UINT8")),
        "TIFF tile of 32,768²": _post("/predict", json.dumps({"instances": [bomb]}).encode()),
        "4 TIFF tiles of 32,768²": _post("/predict", json.dumps({"instances": [bomb] * 4}).encode()),
        "1.5 MB in chunks of 1 byte": _in_chunks(b" " * 1_500_000),
    }


async def _ask(port: int, sent: bytes) -> tuple[str, float]:
    """Return the status of the answer and the seconds that it took."""
    start = time.perf_counter()
    async with connection(port) as (reader, writer):
        writer.write(sent)
        try:
            status = str((await asyncio.wait_for(answer(reader), 120))[0])
        except (ConnectionError, asyncio.IncompleteReadError):
            status = "none"
    return status, time.perf_counter() - start


async def _try(port: int, sent: bytes) -> tuple[str, float, list[float]]:
    asking, health = asyncio.create_task(_ask(port, sent)), []
    end = time.perf_counter() + _LEAST_SECONDS
    while not asking.done() or time.perf_counter() < end:
        health.append((await _ask(port, b"GET /health HTTP/1.1\r\nHost: here\r\n\r\n"))[1])
        await asyncio.sleep(0.01)
    return *asking.result(), health


def main() -> None:
    """Print a line for each request."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.hostile", description=__doc__)
    parser.add_argument("--export-dir", type=Path, required=True, help="an export of digits")
    parser.add_argument("--only", default="", help="part of a request's name")
    arguments = parser.parse_args()
    name = json.loads((arguments.export_dir / "export.json").read_bytes())["model"]
    sent = {"nothing": b"GET /health HTTP/1.1\r\nHost: here\r\n\r\n", **requests(name)}
    for what, request in sent.items():
        if arguments.only not in what:
            continue
        server, port = start_server(arguments.export_dir)
        try:
            status, seconds, health = asyncio.run(_try(port, request))
            peak = int(re.findall(r"VmHWM:\s+(\d+)", Path(f"/proc/{server.pid}/status").read_text())[0]) / 1024
        finally:
            server.terminate()
            server.wait(30)
        p99, longest = np.percentile(health, 99) * 1e3, max(health) * 1e3
        print(
            f"{what:<28}{len(request):>10,} bytes  {status:>4} after {seconds:7.2f} s, peak {peak:7,.0f} MiB, "
            f"health p99 {p99:8,.1f} ms, longest {longest:8,.1f} ms",
            flush=True,
        )


if __name__ == "__main__":
    main()
