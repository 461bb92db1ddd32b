"""Kill what Beam's workers write at any moment, run it again, and compare with what one machine writes.

It is records, or with `--export` the answers of that model. For a Python with Apache Beam: `make kills-beam`. Of four
kills one is just before a change of the disk and one at any moment, one is at any moment of workers that are processes
of their own, and one is of such a worker alone.
"""

import argparse
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.evidence.kills.__main__ import Kill, Undisturbed, conclude, differing, run_undisturbed, try_each, try_kill
from tests.evidence.kills.outcome import differences
from tests.evidence.kills.steps import WAIT_SECONDS, Step, write_inputs

NUM_RANGES = 4
OUTPUT = "written"
_GOLDEN = (5**0.5 - 1) / 2
_WORKERS = {"direct_num_workers": "2", "direct_running_mode": "multi_processing"}
_WORKING_SECONDS = 4.0  # Of which a worker needs the most to start.
_LOST_SECONDS = 10.0  # Runners on this machine do not all notice that a worker is gone.


def make_steps(shared: Path, export: Path | None) -> list[Step]:
    """By workers in the command's own process, by workers in others, and by one machine."""
    params: dict[str, Any] = {"source": f"images:{shared / 'images'}", "num_workers": 1}
    if export:
        params |= {"export": export, "part_examples": 100}
        module, with_beam = "tpu_components.predict_batch", ("tpu_components.predict_batch", {"engine": "beam"})
    else:
        params["engine_tasks"] = NUM_RANGES
        module, with_beam = (
            "tpu_components.create_tfrecords",
            ("tpu_components.create_tfrecords.engines", {"": ["beam"]}),
        )

    def step(name: str, module: str, more: Mapping[str, Any]) -> Step:
        return Step(name, module, lambda folder: {**params, **more, "output": folder / OUTPUT}, (OUTPUT,))

    by_beam = [
        step(name, with_beam[0], {**with_beam[1], "beam_options": options})
        for name, options in (("beam", {}), ("workers", _WORKERS))
    ]
    return [*by_beam, step("alone", module, {})]


def kill_number(number: int) -> Kill:
    """The kill of a number; one of a worker alone is `is_alone`."""
    share = (number // 4 + 1) * _GOLDEN % 1
    return Kill(number, "beam" if number % 4 < 2 else "workers", share, number % 4 == 0, number % 4 == 3)


def kill_a_worker(expected: Undisturbed, kill: Kill, work: Path) -> list[str]:
    """Kill one of the workers, and run the command again; returns what is not as it should be."""
    folder, step = work / str(kill.number), expected.step
    step.prepare(folder)
    process = step.start(folder)
    end = time.monotonic() + WAIT_SECONDS
    while not (workers := workers_of(process.pid)) and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(kill.share * _WORKING_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.kill(workers[kill.number % len(workers)], signal.SIGKILL)
    code = process.wait(_LOST_SECONDS)
    if code is None:
        process.kill()
    faults = [] if code == 0 or not step.left_in(folder) else ["it is there, and the command had not ended"]
    step.finish(folder)
    faults += differing(step.left_in(folder), expected.left)
    print(f"     killed one of {len(workers)} workers; the command ended with {code}", flush=True)
    if not faults:
        shutil.rmtree(folder)
    return faults


def workers_of(pid: int) -> list[int]:
    """The processes of Beam's workers that a process has started, or those have."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if b"sdk_worker_main" in path.read_bytes() and os.getpgid(int(path.parent.name)) == pid:
                found.append(int(path.parent.name))
    return sorted(found)


def main() -> int:
    """Kill; returns 1 if something else was left."""
    parser = argparse.ArgumentParser(prog="python -m tests.evidence.kills.beam", description=__doc__)
    parser.add_argument("--kills", type=int, default=20, help="how many")
    parser.add_argument("--export", type=Path, help="folder of the model whose answers are killed, and no records")
    arguments = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="kills-beam-"))
    shared = work / "shared"
    import apache_beam  # noqa: F401 (once for all processes)

    write_inputs(shared)
    expected = {}
    for step in make_steps(shared, arguments.export):
        expected[step.name] = run_undisturbed(step, shared / step.name)
        seconds, changes = expected[step.name].seconds, expected[step.name].num_changes
        print(f"{step.name}: {seconds:.1f} s, {changes} changes", flush=True)
    left = {name: each.left[OUTPUT] for name, each in expected.items()}
    num_wrong = len([*differences(left["beam"], left["alone"]), *differences(left["workers"], left["alone"])])
    print(f"by Beam and alone: {num_wrong} files differ")
    kills = map(kill_number, range(arguments.kills))
    done = try_each(kills, lambda kill: (kill_a_worker if kill.is_alone else try_kill)(expected[kill.step], kill, work))
    return conclude(work, num_wrong > 0 or any(faults for _, faults in done))


if __name__ == "__main__":
    sys.exit(main())
