"""Run every step, and whole runs, on a disk that gets full, or that cannot be read, or by a clock that steps.

    python -m tests.evidence.kills.faults full damaged clock --times 50

Each ends as it would have, or refuses in words; and run again without the fault, it leaves the same as undisturbed
ones. A library that is preloaded makes the faults: `full` fails every write from one on, `damaged` one read, and
`clock` moves the time of the day by up to an hour, twice a second. Needs a C compiler.
"""

import argparse
import ctypes
import functools
import itertools
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from tests.evidence.kills.__main__ import (
    TURNS,
    Kill,
    Undisturbed,
    conclude,
    differing,
    go_on,
    half_written,
    kill_of,
    run_undisturbed,
    try_each,
)
from tests.evidence.kills.process import warm_up
from tests.evidence.kills.steps import RUN, WAIT_SECONDS, log_of, make_champion, make_steps, write_inputs

_MODES = {"full": 1, "damaged": 2, "clock": 3}
_LIBRARY, _CONTROL = "libfaults.so", "control"
_DEFECT = "Traceback (most recent call last)"


class Control(ctypes.Structure):
    """What is to happen, as in faults.c: in memory that all processes share."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("mode", "at", "writes", "reads", "seed")),
        ("top", ctypes.c_char * 1024),
        ("source", ctypes.c_char * 1024),
    ]

    def watch(self, folder: Path, source: Path, mode: int = 0, at: int = 0, seed: int = 0) -> None:
        """Begin to count, and to fail."""
        self.writes = self.reads = 0
        self.at, self.seed = at, seed
        self.top, self.source, self.mode = f"{folder}/".encode(), f"{source}/".encode(), mode

    def stop(self) -> None:
        """Let everything succeed."""
        self.mode, self.top, self.source = 0, b"", b""


def preload(work: Path) -> None:
    """Compile the library, and become the same command with it."""
    source = Path(__file__).with_suffix(".c")
    library = work / _LIBRARY
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, source, "-ldl"], check=True)
    (work / _CONTROL).write_bytes(bytes(ctypes.sizeof(Control)))
    environment = {**os.environ, "LD_PRELOAD": str(library), "FAULTS": str(work / _CONTROL)}
    os.execve(sys.executable, [sys.executable, "-m", "tests.evidence.kills.faults", *sys.argv[1:]], environment)


def open_control() -> Control:
    """Return what the preloaded library reads."""
    with open(os.environ["FAULTS"], "r+b") as file:
        return Control.from_buffer(mmap.mmap(file.fileno(), 0))


class Trial:
    """Steps that are run with faults.

    Args:
        expected: The steps.
        counts: How many writes and reads each makes below its folder.
        control: What the preloaded library reads.
        work: Folder to work in.
    """

    def __init__(
        self,
        expected: Mapping[str, Undisturbed],
        counts: Mapping[str, tuple[int, int]],
        control: Control,
        work: Path,
    ) -> None:
        self._expected, self._counts, self._control, self._work = expected, counts, control, work
        self.ends = Counter[int]()

    def attempt(self, kind: str, fault: Kill) -> list[str]:
        """Run a step with a fault, look at what is there, run it again; returns what is not as it should be."""
        expected, folder = self._expected[fault.step], self._work / f"{kind}-{fault.number}"
        step, at = expected.step, int(fault.share * self._counts[fault.step][kind == "damaged"])
        step.prepare(folder)
        before = step.left_in(folder)
        self._control.watch(folder, self._work / "shared" / "images", _MODES[kind], at, fault.number)
        process = step.start(folder)
        code = process.wait(WAIT_SECONDS)
        self._control.stop()
        if code is None:
            process.kill()
        self.ends[-1 if code is None else code] += 1
        faults = [] if code in (0, 1, 2, 3) else [f"it ended with {code}"]
        said = log_of(folder).read_text(errors="replace")
        if code and _DEFECT in said:
            faults.append(f"a stack trace: {said[-1500:]}")
        if code == 0:
            faults += differing(step.left_in(folder), expected.left)
        faults += half_written(step, folder, (before, expected.left))
        if faults:
            shutil.copy(log_of(folder), folder.with_suffix(".first.log"))
        return [*faults, *go_on(expected, folder, process, keep=bool(faults))]


def main() -> int:
    """Run it; returns 1 if something was not as it should be."""
    parser = argparse.ArgumentParser(prog="python -m tests.evidence.kills.faults", description=__doc__)
    parser.add_argument("kinds", nargs="+", choices=_MODES)
    parser.add_argument("--times", type=int, default=50, help="of each kind")
    parser.add_argument("--steps", nargs="+", default=[*dict.fromkeys(TURNS)], help="only these; `run` is a whole run")
    parser.add_argument("--work", type=Path, help="folder to work in; keeps what went wrong (default: a temporary one)")
    arguments = parser.parse_args()
    if "FAULTS" not in os.environ:
        work = (arguments.work or Path(tempfile.mkdtemp(prefix="faults-"))).absolute()
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        preload(work)
    work = Path(os.environ["FAULTS"]).parent
    control, shared = open_control(), work / "shared"
    warm_up()
    write_inputs(shared)
    steps, expected = make_steps(shared), {}
    counts = dict[str, tuple[int, int]]()
    for step in steps:
        if {*arguments.steps} <= {*expected}:
            break
        if step.name == "evaluate_model":
            make_champion(steps, shared)
        if step.name in arguments.steps or step.name not in ("preflight_training", "predict_batch", RUN):
            control.watch(shared / step.name, shared / "images")
            expected[step.name] = run_undisturbed(step, shared / step.name)
            counts[step.name] = control.writes, control.reads
            control.stop()
            print(f"{step.name}: {expected[step.name].seconds:.1f} s, {control.writes} writes, {control.reads} reads")
    is_wrong = False
    for kind in arguments.kinds:
        trial = Trial(expected, counts, control, work)
        wanted = (fault for fault in map(kill_of, itertools.count()) if fault.step in arguments.steps)
        some = itertools.islice(wanted, arguments.times)
        done = try_each(some, functools.partial(trial.attempt, kind))
        good = sum(not faults for _, faults in done)
        print(f"{kind}: {good} of {len(done)} the same again; exit codes at first {dict(trial.ends)}", flush=True)
        is_wrong |= good < len(done)
    return conclude(work, is_wrong)


if __name__ == "__main__":
    sys.exit(main())
