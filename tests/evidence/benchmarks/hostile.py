"""Requests that cost a server far more than they cost their sender, one after the other: what each does to it.

    python -m tests.evidence.benchmarks.hostile --export-dir EXPORT

Each request gets a server of its own. While it is answered, another connection asks the health route every 10 ms.
"""

import argparse
import asyncio
import re
import time
from pathlib import Path

import numpy as np

from tests.evidence.benchmarks.attacks import costly
from tests.evidence.benchmarks.soak import answer, connection, start_server

_LEAST_SECONDS = 1.0


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
    parser = argparse.ArgumentParser(prog="python -m tests.evidence.benchmarks.hostile", description=__doc__)
    parser.add_argument("--export-dir", type=Path, required=True, help="an export of digits")
    parser.add_argument("--only", default="", help="part of a request's name")
    arguments = parser.parse_args()
    sent = {"nothing": b"GET /health HTTP/1.1\r\nHost: here\r\n\r\n", **costly()}
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
