"""Kill hosts that train together, at any moment, start all again, and compare with what an undisturbed training leaves.

Which host and when follows from the number of the kill: every fourth falls anywhere from the start on, the others
among the steps, after the session's first checkpoint.
"""

import argparse
import collections
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from tests.evidence.kills.outcome import differences, outcome
from tests.support.hosts import HostProcesses
from tpu_components.create_tfrecords import WriteParams, write_records
from tpu_components.train_model.checkpoints.checkpoint import CHECKPOINT_FILE, load_arrays

_GOLDEN = 0.6180339887498949  # Multiples of it, without their whole part, fill [0, 1) evenly.
_CODES = {137: "killed", 134: "connection to another host lost", 0: "done"}


def _command(arguments: argparse.Namespace, records: Path, output: Path) -> list[str]:
    words = [sys.executable, "-m", "tpu_components.train_model", "--records", str(records), "--output", str(output)]
    words += ["--model", arguments.model, "--epochs", str(arguments.epochs), "--backend", "jax", "--accelerator", "cpu"]
    words += ["--batch-size-per-replica", str(arguments.batch // arguments.hosts), "--precision", "float32"]
    words += ["--residency", arguments.residency, "--sharding", arguments.sharding]
    return [*words, "--checkpoint-seconds", "1", "--learning-rate", "0.001"]


def _run(arguments: argparse.Namespace, command: list[str], logs: Path) -> tuple[float, float]:
    """Train to the end; returns the seconds that it took, and those of them that it trained."""
    begun = time.monotonic()
    with HostProcesses(arguments.hosts, command, logs) as hosts:
        codes = hosts.wait(1800)
        if set(codes) != {0}:
            raise SystemExit(f"hosts ended with {codes}:\n{hosts.said(0)[-2000:]}")
        result = hosts.result()
    print(
        f"{result['sessions']} sessions, goodput {result['goodput']:.0%}, {result['steps']} steps, {result['metrics']}"
    )
    return time.monotonic() - begun, result["seconds"]


def _wait_for_moment(hosts: HostProcesses, number: int, checkpoint: Path, life: float, trained: float) -> None:
    """Wait until the moment of a kill has come, or a host has ended."""
    share, before = number * _GOLDEN % 1, time.time()
    if number % 4 == 0:
        hosts.wait_until(lambda: False, share * life)
        return
    hosts.wait_until(lambda: checkpoint.is_file() and checkpoint.stat().st_mtime > before)
    hosts.wait_until(lambda: False, share * trained)


def _check_checkpoint(path: Path) -> str:
    """Return where a checkpoint stands; it is whole, and nothing half written has its name."""
    if not path.is_file():
        return "no checkpoint"
    arrays, progress = load_arrays(path)
    assert progress is not None
    assert all(np.isfinite(array).all() for array in arrays.values() if array.dtype.kind == "f")
    return f"epoch {progress.epoch}, step {progress.step}"


def main() -> int:
    """Kill as often as asked for; returns 1 where the result differs."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.evidence.kills.hosts", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--first", type=int, default=0, help="Number of the first kill.")
    parser.add_argument("--records", type=Path, help="Records to train on; the digits' if not given.")
    parser.add_argument("--model", default="digits_cnn")
    parser.add_argument("--batch", type=int, default=64, help="Examples of a step, of all hosts together.")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--residency", default="auto")
    parser.add_argument("--sharding", default="replicated")
    parser.add_argument("--every", type=float, default=0.0, help="Seconds between a start and its kill; any if 0.")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kills-") as name:
        folder = Path(name)
        records = arguments.records or folder / "records"
        if not arguments.records:
            write_records(WriteParams("sklearn:digits", num_workers=1), records)
        whole, killed = folder / "whole", folder / "killed"
        life, trained = _run(arguments, _command(arguments, records, whole), folder / "logs")
        print(f"undisturbed: {life:.1f} s, of which training {trained:.1f}", flush=True)
        command, ends, noticed = _command(arguments, records, killed), collections.Counter[str](), 0.0
        killed_checkpoint = folder / "killed-checkpoints" / CHECKPOINT_FILE
        for number in range(arguments.first, arguments.first + arguments.kills):
            index = number % arguments.hosts
            with HostProcesses(arguments.hosts, command, folder / "logs") as hosts:
                if arguments.every:
                    hosts.wait_until(lambda: False, arguments.every)
                else:
                    _wait_for_moment(hosts, number, killed_checkpoint, life, trained)
                hosts.send(index, signal.SIGKILL)
                at = time.monotonic()
                if "hosts are connected" not in hosts.said(0):  # A host that is late looks like one that is gone.
                    ends["killed before all had met"] += 1
                    continue  # The others are killed, as a platform does where one of a job's containers fails.
                codes = hosts.wait(60)
            took = time.monotonic() - at
            noticed = max(noticed, took)
            ends.update(_CODES.get(code, f"exit {code}") for code in codes)
            stands = _check_checkpoint(killed_checkpoint)
            print(f"{number:>4} host {index} killed: {codes} within {took:.1f} s, {stands}", flush=True)
            if killed.exists():  # It was done before it was killed; that it is whole is seen below.
                _compare(whole, killed)
                shutil.rmtree(killed)
                shutil.rmtree(folder / "killed-checkpoints")
        _run(arguments, command, folder / "logs")
        print(f"{arguments.kills} kills: {dict(ends)}; the others noticed within {noticed:.1f} s")
        return _compare(whole, killed)


def _compare(whole: Path, killed: Path) -> int:
    different = differences(outcome(whole), outcome(killed))
    print("\n".join(different) if different else "the same weights, history and model")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
