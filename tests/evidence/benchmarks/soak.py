"""`make soak`: the server under honest and hostile load at once, on this machine alone; bounded in time and number.

Quiet and hostile phases take turns, so that a machine that grows slower is not taken for a server that does. The honest
clients, the attackers and the server share this machine's processors: what an honest client waits for under attack is
also a processor that sends the attack, or judges the answers. The attackers let all others go first.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import pickle
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from tests.evidence.benchmarks.attacks import MODEL, hostile_requests, post

HONEST_CLIENTS = 8
HONEST_PAUSE_SECONDS = 0.02  # Between an answer and the next question: the server is not idle, and not full.
MOST_MS = 1000.0  # The 99th percentile of an honest answer's time under attack: requests are answered in their order.
MOST_GROWTH = 1.1  # Of memory: the middle value of the later half of the hostile phases, over that of the earlier half.
_TIMEOUT_SECONDS = 30.0
_HOSTILE_CLIENTS = {"says nothing": 50, "half a head": 50, "withholds the end of a body": 50}  # Of the others 2 each.


@dataclasses.dataclass
class Phase:
    """What was seen of one phase."""

    is_hostile: bool
    seconds: list[float] = dataclasses.field(default_factory=list)
    wrong: int = 0
    refused: Counter[int] = dataclasses.field(default_factory=Counter)
    rss_mib: float = 0.0


def start_server(export_dir: Path) -> tuple[subprocess.Popen[str], int]:
    """A server on a free port of the loopback, and that port."""
    command = [
        sys.executable,
        "-m",
        "tpu_pipelines.cli",
        "serve",
        str(export_dir),
        "--port",
        "0",
        "--model-name",
        MODEL,
    ]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert server.stdout is not None
    return server, int(server.stdout.readline().split("http://")[1].split(":")[1].split("/")[0])


def resident_mib(pid: int) -> float:
    """Memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 2**20


@contextlib.asynccontextmanager
async def connection(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection that is closed at once in the end, whatever was still to be sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Status and body."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    return int(head.split()[1]), await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r")[0]))


async def honest(port: int, images: np.ndarray, expected: list[str], phase: Phase, end: float) -> None:
    """Ask on one connection, one image at a time, as pixels or as a file; every answer is compared."""
    draw = random.Random(id(asyncio.current_task()))
    while time.monotonic() < end:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            async with connection(port) as (reader, writer):
                while time.monotonic() < end:
                    number = draw.randrange(len(images))
                    start = time.perf_counter()
                    writer.write(post(json.dumps({"instances": [images[number].tolist()]}).encode()))
                    status, body = await asyncio.wait_for(answer(reader), _TIMEOUT_SECONDS)
                    phase.seconds.append(time.perf_counter() - start)
                    if status != 200:
                        phase.refused[status] += 1
                    elif json.loads(body)["predictions"][0]["class"] != expected[number]:
                        phase.wrong += 1
                    await asyncio.sleep(HONEST_PAUSE_SECONDS)


async def hostile(port: int, sent: bytes, end: float, seconds: float) -> None:
    """Send something, wait for a while, and do it again on another connection."""
    while time.monotonic() < end:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            async with connection(port) as (reader, writer):
                writer.write(sent)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(), min(seconds, max(end - time.monotonic(), 0.01)))
        await asyncio.sleep(0.05)


async def attack(port: int, requests: Mapping[str, bytes], seconds: float) -> None:
    """Some 180 clients that do not mean well, until the time is over."""
    end = time.monotonic() + seconds
    work: list[Awaitable[None]] = []
    for name, sent in requests.items():
        work += [hostile(port, sent, end, 12.0) for _ in range(_HOSTILE_CLIENTS.get(name, 2))]
    await asyncio.gather(*work)


async def ask(port: int, images: np.ndarray, expected: list[str], phase: Phase, seconds: float) -> None:
    """The honest clients, until the time is over."""
    end = time.monotonic() + seconds
    await asyncio.gather(*(honest(port, images, expected, phase, end) for _ in range(HONEST_CLIENTS)))


@contextlib.contextmanager
def attacked(port: int, requests: Path, seconds: float) -> Iterator[None]:
    """Within the block another process attacks; it lets all others go first, as if it were another machine."""
    command = [sys.executable, "-m", "tests.evidence.benchmarks.soak", "--attack", str(port), str(requests)]
    command += ["--minutes", str(seconds / 60)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()  # It has begun.
        try:
            yield
        finally:
            process.wait(seconds + 30)


def soak(
    export_dir: Path, work: Path, seconds: float, phase_seconds: float, tell: Callable[[str], None]
) -> list[Phase]:
    """Run quiet and hostile phases in turn until the time is over."""
    from tpu_components.serving.exported import load_model

    images = np.random.default_rng(0).integers(0, 256, (200, 8, 8, 1), np.uint8)
    model = load_model(export_dir)
    expected = [model.class_names[i] for i in model.predict(images).argmax(1)]
    requests = work / "requests"
    requests.write_bytes(pickle.dumps(hostile_requests()))  # One of them takes seconds to make.
    server, port = start_server(export_dir)
    phases: list[Phase] = []
    try:
        end = time.monotonic() + seconds
        while time.monotonic() < end or len(phases) < 2:
            phase = Phase(is_hostile=len(phases) % 2 == 1)
            with attacked(port, requests, phase_seconds) if phase.is_hostile else contextlib.nullcontext():
                asyncio.run(ask(port, images, expected, phase, phase_seconds))
            phase.rss_mib = resident_mib(server.pid)
            phases.append(phase)
            tell(describe(phase))
    finally:
        server.terminate()
        server.wait(30)
    return phases


def p99_ms(phases: list[Phase]) -> float:
    """Of all honest answers of these phases."""
    return float(np.percentile([seconds for phase in phases for seconds in phase.seconds], 99) * 1e3)


def describe(phase: Phase) -> str:
    """A line on a phase."""
    kind = "hostile" if phase.is_hostile else "quiet"
    median = float(np.median(phase.seconds)) * 1e3
    return (
        f"{kind:<8}{len(phase.seconds):>7,} answers, {median:6.1f} ms in the middle, {p99_ms([phase]):7.1f} ms p99, "
        f"{phase.wrong} wrong, {sum(phase.refused.values())} refused, {phase.rss_mib:6.1f} MiB"
    )


@dataclasses.dataclass(frozen=True)
class Verdict:
    """One line of the table in the end."""

    what: str
    asked: str
    seen: str
    is_kept: bool


def judge(phases: list[Phase]) -> list[Verdict]:
    """What was asked of the server, and what was seen."""
    quiet, attacked_ones = ([one for one in phases if one.is_hostile is kind] for kind in (False, True))
    num_answers, wrong = sum(len(phase.seconds) for phase in phases), sum(phase.wrong for phase in phases)
    refused: Counter[int] = sum((phase.refused for phase in phases), Counter())
    before, after = p99_ms(quiet), p99_ms(attacked_ones)
    half = max(len(attacked_ones) // 2, 1)
    early, late = (
        float(np.median([one.rss_mib for one in some])) for some in (attacked_ones[:half], attacked_ones[-half:])
    )
    return [
        Verdict("honest answers that were wrong", "0", f"{wrong} of {num_answers:,}", wrong == 0),
        Verdict(
            "honest requests that were refused", "0", f"{sum(refused.values())} {dict(refused) or ''}", not refused
        ),
        Verdict(
            "p99 under attack",
            f"≤ {MOST_MS:g} ms",
            f"{after:.1f} ms ({before:.1f} ms without)",
            after <= MOST_MS,
        ),
        Verdict(
            "memory, later over earlier",
            f"≤ {MOST_GROWTH:g}×",
            f"{late / early:.2f}× ({early:.0f} and {late:.0f} MiB)",
            late <= MOST_GROWTH * early,
        ),
    ]


def table(verdicts: list[Verdict]) -> str:
    """A line for each verdict."""
    rows = [(one.what, one.asked, one.seen, "kept" if one.is_kept else "NOT KEPT") for one in verdicts]
    return "\n".join(f"{what:<36}{asked:<11}{seen:<34}{verdict}" for what, asked, seen, verdict in rows)


def main() -> int:
    """Run it; returns 1 if something was not as it should be."""
    parser = argparse.ArgumentParser(prog="python -m tests.evidence.benchmarks.soak", description=__doc__)
    parser.add_argument("--export-dir", type=Path, help="an export of digits (default: a run makes one)")
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--phase-seconds", type=float, default=30.0)
    parser.add_argument(
        "--attack", nargs=2, metavar=("PORT", "FILE"), help="only attack the server there, by the requests in a file"
    )
    arguments = parser.parse_args()
    if arguments.attack:
        os.nice(10)
        print("attacking", flush=True)
        port, file = arguments.attack
        asyncio.run(attack(int(port), pickle.loads(Path(file).read_bytes()), arguments.minutes * 60))
        return 0
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        export_dir = arguments.export_dir
        if export_dir is None:
            command = ["-m", "tpu_pipelines.cli", "run", "digits", "--workspace", folder, "--set", "deploy=false"]
            subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
            export_dir = Path(folder) / "digits" / "export"
        phases = soak(
            export_dir,
            Path(folder),
            arguments.minutes * 60,
            arguments.phase_seconds,
            lambda line: print(line, flush=True),
        )
    verdicts = judge(phases)
    print(f"\n{table(verdicts)}")
    return 0 if all(one.is_kept for one in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
