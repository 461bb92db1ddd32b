"""Build every image, look into it, run digits in containers and beside them, serve, and kill a training's container.

Exit code 0 where all of that holds, 1 where some of it does not, and 5 where containers cannot run here: no pass.
"""

import argparse
import os
import re
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from tests.cli import REPOSITORY
from tests.images.engine import CannotRunError, Engine
from tests.kills.outcome import differences, outcome

NO_CONTAINERS = 5
# Bytes. In `train`, TensorFlow weighs 0.9 GB, libtpu 0.7, compiled modules 0.3, jaxlib 0.35, the base 0.15.
BUDGETS = {"serving": 350e6, "steps": 2.2e9, "train": 3.1e9}
_STARTUP_SECONDS = 3.0  # A step in its container beside the plain process, and the server's first answer.
_COMPARED = ("records", "model", "evaluation")
_PORT = 8089
# Where anyone may write in any image: emptied, or mounted over, when a container starts.
_FOR_ALL = ("tmp", "var/tmp", "run/lock", "dev/shm")
_SECRETS = re.compile(r"(^|/)(\.git|\.netrc|\.ssh|\.aws|\.env|pip\.conf|id_rsa|credentials[^/]*\.json|[^/]*\.key)(/|$)")
_TESTS = re.compile(r"^opt/.*/tests(/|$)")
_Result = TypeVar("_Result")


class _Report:
    """What was seen, a line each, and whether all of it is as it should be."""

    def __init__(self) -> None:
        self.failed = False

    def timed(self, what: str, call: Callable[[], _Result]) -> _Result:
        """Return what a call gives, and say how long it took."""
        start = time.monotonic()
        result = call()
        print(f"      {time.monotonic() - start:7.1f} s  {what}", flush=True)
        return result

    def check(self, holds: bool, what: str) -> None:
        """Say whether something holds."""
        self.failed |= not holds
        print(f"{'  ok' if holds else 'FAIL'}             {what}", flush=True)


def _tag(name: str) -> str:
    return f"localhost/tpu-pipelines-{name}:test"


def _build(engine: Engine, base: str, report: _Report) -> None:
    for name, budget in BUDGETS.items():
        file, target = ("serving.Dockerfile", "") if name == "serving" else ("Dockerfile", name)
        report.timed(f"built {name}", lambda f=file, t=target, n=name: engine.build(_tag(n), f"docker/{f}", base, t))
        size = engine.size(_tag(name))
        report.check(size <= budget, f"{name} is {size / 1e6:,.0f} MB, at most {budget / 1e6:,.0f} wanted")
        unwanted = [entry.name for entry in engine.files(_tag(name)) if _is_unwanted(entry)]
        report.check(not unwanted, f"{name} has no tests, no secrets, nothing that all may write to: {unwanted[:5]}")


def _is_unwanted(entry: tarfile.TarInfo) -> bool:
    name = entry.name.removeprefix("./").rstrip("/")
    anyone_writes = bool(entry.mode & stat.S_IWOTH) and (entry.isfile() or entry.isdir()) and name not in _FOR_ALL
    return anyone_writes or bool(_SECRETS.search(name) or _TESTS.search(name))


def _digits(engine: Engine, work: Path, report: _Report) -> None:
    """Run digits as processes and as containers, and compare what they leave."""
    command = [sys.executable, "-P", "-m", "pipelines.cli", "run", "digits"]
    for name, options in {"processes": [], "containers": ["--runner", "docker"]}.items():
        with engine.socket() as address:
            said = {**os.environ, **address, "TPU_PIPELINES_IMAGE": _tag("train")}
            done = report.timed(
                f"digits in {name}",
                lambda n=name, o=options, e=said: subprocess.run(
                    [*command, *o, "--workspace", str(work / n)], env=e, cwd=REPOSITORY, capture_output=True, text=True
                ),
            )
        report.check(done.returncode == 0, f"digits in {name}: exit code {done.returncode}")
        if done.returncode:
            print(done.stderr[-2000:])
    left = {name: outcome(work / name / "digits", work / name) for name in ("processes", "containers")}
    for part in _COMPARED:
        ours, theirs = ({k: v for k, v in of.items() if k.startswith(part)} for of in left.values())
        report.check(bool(ours) and ours.keys() == theirs.keys(), f"{part}: the same {len(ours)} files")
        report.check(not (apart := differences(theirs, ours)), f"{part}: the same contents: {apart}")


def _serve(engine: Engine, export: Path, report: _Report) -> None:
    start = time.monotonic()
    options = ["--detach", "--volume", f"{export}:/export:ro", "--env", f"AIP_HTTP_PORT={_PORT}"]
    options += ["--network", "host"] if engine.name == "podman" else ["--publish", f"{_PORT}:{_PORT}"]
    container = engine.call("run", *options, _tag("serving"), "/export").stdout.strip()
    try:
        answer = _first_answer()
        seconds = time.monotonic() - start
        report.check(b"predictions" in answer, f"the server's answer: {answer[:80]!r}")
        report.check(seconds <= _STARTUP_SECONDS, f"its first prediction after {seconds:.1f} s")
    finally:
        engine.call("rm", "--force", container)


def _first_answer() -> bytes:
    blank = "[" + ",".join(["[" + ",".join(["0"] * 8) + "]"] * 8) + "]"
    body = f'{{"instances": [{blank}]}}'.encode()
    for _ in range(100):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{_PORT}/predict", body, timeout=5) as answer:
                return answer.read()
        except OSError:
            time.sleep(0.1)
    return b""


def _start_up(engine: Engine, report: _Report) -> None:
    step = ["-P", "-m", "components.create_tfrecords", "--help"]

    def seconds(call: Callable[[], object]) -> float:
        times = []
        for _ in range(3):
            start = time.monotonic()
            call()
            times.append(time.monotonic() - start)
        return min(times)

    here = seconds(lambda: subprocess.run([sys.executable, *step], check=True, capture_output=True, cwd=REPOSITORY))
    there = seconds(lambda: engine.run(_tag("steps"), ["python3", *step]))
    report.check(there <= here + _STARTUP_SECONDS, f"a step starts in {there:.1f} s, as a plain process in {here:.1f}")


def _kills(engine: Engine, work: Path, report: _Report) -> None:
    """Kill the container of a training, start it again, and compare the weights with an undisturbed one's."""
    mounted = ["--volume", f"{work}:{work}", "--user", f"{os.getuid()}:{os.getgid()}", "--env", "HOME=/tmp"]
    records = work / "processes" / "digits" / "records"
    train = ["python3", "-m", "components.train_model", "--records", str(records), "--model", "digits_cnn"]
    train += ["--epochs", "12", "--checkpoint-seconds", "1"]
    engine.run(_tag("train"), [*train, "--output", str(work / "undisturbed")], *mounted)
    output, checkpoint = work / "killed", work / "killed-checkpoints" / "checkpoint.npz"
    name = "tpu-pipelines-killed"
    engine.call("run", "--detach", "--name", name, *mounted, _tag("train"), *train, "--output", output)
    for _ in range(600):
        if checkpoint.is_file():
            break
        time.sleep(0.1)
    engine.call("kill", name)
    engine.call("wait", name)
    was_early = not output.exists()
    engine.call("rm", "--force", name)
    engine.run(_tag("train"), [*train, "--output", str(output)], *mounted)
    apart = [name for name in differences(outcome(output), outcome(work / "undisturbed")) if name.endswith(".h5")]
    report.check(was_early and not apart, f"killed in training, and again: the same weights {apart}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Build and try all; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.images", description=__doc__)
    parser.add_argument("--base", default="", help="What to build on; else docker/Dockerfile's, or Debian's own.")
    asked = parser.parse_args(arguments)
    report = _Report()
    with tempfile.TemporaryDirectory(prefix="images-") as folder:
        work = Path(folder)
        work.chmod(0o755)
        try:
            engine = Engine(work)
            base = report.timed("a base", lambda: engine.find_base(asked.base))
            _build(engine, base, report)
        except CannotRunError as error:
            print(f"skipped, which is no pass: {error}")
            return NO_CONTAINERS
        except subprocess.CalledProcessError as error:
            print(f"FAIL {' '.join(error.cmd)}:\n{error.stdout[-2000:]}{error.stderr[-4000:]}")
            return 1
        _digits(engine, work, report)
        _serve(engine, work / "processes" / "digits" / "export", report)
        _start_up(engine, report)
        _kills(engine, work, report)
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
