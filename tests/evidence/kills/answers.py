"""Kill predict_batch over very many pictures at any moment, run it again, and find every picture answered exactly once.

Each kill is of a run of its own; then one run is killed as many times in a row. What is left is compared with what an
undisturbed run leaves, byte for byte, and that is read line by line.
"""

import argparse
import dataclasses
import json
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Collection
from pathlib import Path

import numpy as np

from tests.evidence.kills.__main__ import Kill, Undisturbed, conclude, differing, run_undisturbed, try_each, try_kill
from tests.evidence.kills.process import warm_up
from tests.evidence.kills.steps import Step, make_steps, write_inputs

_GOLDEN = (5**0.5 - 1) / 2
_PER_FOLDER = 10_000
_LEAST_FILES = 10


def write_pictures(folder: Path, count: int) -> set[str]:
    """Write pictures of noise, of the size of the digits; returns their names."""
    from PIL import Image

    noise = np.random.default_rng(0)
    names = set()
    for number in range(count):
        path = folder / f"{number // _PER_FOLDER}" / f"{number:07d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise.integers(0, 256, (8, 8), np.uint8)).save(path)
        names.add(path.relative_to(folder).as_posix())
    return names


def find_faults(predictions: Path, names: Collection[str]) -> list[str]:
    """Return what is wrong with answers to the pictures of these names; empty where each has been answered once."""
    answered = Counter(
        json.loads(line)["key"]
        for path in sorted(predictions.glob("predictions-*.jsonl"))
        for line in path.read_text().splitlines()
    )
    stated = json.loads((predictions / "predictions.json").read_text())["num_predicted"]
    faults = {
        "not answered": len(set(names) - answered.keys()),
        "answered more than once": sum(count > 1 for count in answered.values()),
        "not among the pictures": len(answered.keys() - set(names)),
        "stated too many or too few": abs(stated - len(names)),
    }
    return [f"{count:,} {what}" for what, count in faults.items() if count]


def kill_number(number: int) -> Kill:
    """The kill of a number: every other one just before a change of the disk."""
    return Kill(number, "predict_batch", (number // 2 + 1) * _GOLDEN % 1, number % 2 == 1, False)


def kill_in_a_row(expected: Undisturbed, times: int, folder: Path) -> list[str]:
    """Kill one run again and again, and let it end then; returns what is not as it should be."""
    step = expected.step
    step.prepare(folder)
    for _ in range(times):
        process = step.start(folder)
        if process.wait(expected.seconds / (times + 1)) is not None or not process.kill():
            return [f"ended before it had been killed {times} times"]
    step.finish(folder)
    return differing(step.left_in(folder), expected.left)


def _kill_all(step: Step, names: Collection[str], kills: int, work: Path) -> bool:
    """Kill the step; returns whether something is not as it should be."""
    expected = run_undisturbed(step, work / "shared" / step.name)
    rate = len(names) / expected.seconds
    faults = find_faults(work / "shared" / step.name / "predictions", names)
    print(
        f"undisturbed: {expected.seconds:.1f} s ({rate:,.0f} pictures/s), {expected.num_changes} changes of the disk, "
        f"{'; '.join(faults) or 'every picture answered once'}",
        flush=True,
    )
    done = try_each(map(kill_number, range(kills)), lambda kill: try_kill(expected, kill, work))
    in_a_row = kill_in_a_row(expected, kills, work / "in-a-row")
    print(f"killed {kills} times in a row: {'; '.join(in_a_row) or 'the same again'}", flush=True)
    return bool(faults or in_a_row) or any(faulty for _, faulty in done)


def make_export(shared: Path) -> dict[str, Step]:
    """Write records, train and export; returns the steps by their names."""
    write_inputs(shared)
    steps = {step.name: step for step in make_steps(shared)}
    for name in ("create_tfrecords", "train_model", "export_model"):
        run_undisturbed(steps[name], shared / name)
    return steps


def main() -> int:
    """Kill; returns 1 if something else was left, or a picture was not answered exactly once."""
    parser = argparse.ArgumentParser(prog="python -m tests.evidence.kills.answers", description=__doc__)
    parser.add_argument("--kills", type=int, default=10, help="how many")
    parser.add_argument("--images", type=int, default=100_000, help="how many pictures are answered")
    parser.add_argument(
        "--only-export", type=Path, metavar="FOLDER", help="write an export for tests.evidence.kills.beam there"
    )
    arguments = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="kills-answers-"))
    shared = work / "shared"
    warm_up()
    steps = make_export(shared)
    if arguments.only_export:
        shutil.copytree(shared / "export_model" / "export", arguments.only_export, dirs_exist_ok=True)
        return conclude(work, False)
    names = write_pictures(shared / "pictures", arguments.images)
    step = _over(steps["predict_batch"], shared / "pictures", arguments.images)
    return conclude(work, _kill_all(step, names, arguments.kills, work))


def _over(step: Step, pictures: Path, count: int) -> Step:
    """Return predict_batch over other pictures, with files of a usual size, or some files at least."""
    changes = {"source": f"images:{pictures}", "part_examples": min(4096, -(-count // _LEAST_FILES))}
    return dataclasses.replace(step, words=lambda folder: {**step.words(folder), **changes})


if __name__ == "__main__":
    sys.exit(main())
