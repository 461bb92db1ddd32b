"""Kill every step and the whole run at any moment, run them again, and compare with what undisturbed ones leave.

A kill has a number, from which step and moment follow; so a slice can be repeated, and so can one kill. Every other one
is at a moment of the step's life, the others are just before one of its changes of the disk.
"""

import argparse
import dataclasses
import math
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from tests.evidence.kills.outcome import Outcome, differences
from tests.evidence.kills.process import Process, warm_up
from tests.evidence.kills.steps import (
    RUN,
    WAIT_SECONDS,
    Step,
    leftovers,
    log_of,
    make_champion,
    make_steps,
    write_inputs,
)
from tpu_components.core.registry.versions import Version

# Whose turn it is, over and over: the cheap ones more often.
TURNS = (
    *("deploy_model", "train_model", "create_tfrecords", "evaluate_model", "export_model", "deploy_model"),
    *("train_model", "create_tfrecords", "evaluate_model", "predict_batch", "train_model", "preflight_training"),
    *("deploy_model", "create_tfrecords", "train_model", "evaluate_model", "predict_batch", "train_model"),
    *("create_tfrecords", "export_model", "deploy_model", "evaluate_model", "train_model", "deploy_model"),
    *("preflight_training", "create_tfrecords", "train_model", "evaluate_model", "deploy_model", RUN),
)
_GOLDEN = (
    math.sqrt(5) - 1
) / 2  # Multiples of it, without their whole part, fill [0, 1) evenly however many there are.
_EARLIER = 0.7  # Where it ended before it could be killed, this much of the time is tried next.
_TRIES = 12


@dataclasses.dataclass(frozen=True)
class Kill:
    """One kill.

    Attributes:
        number: Its number, from 0.
        step: What is killed.
        share: The part of its life, or of its changes, that has passed by then; in [0, 1).
        is_before_change: Whether just before a change of the disk, or else at a moment.
        is_alone: Whether the command alone is killed, and what it has started lives on for a moment, as a run's step.
    """

    number: int
    step: str
    share: float
    is_before_change: bool
    is_alone: bool

    def __str__(self) -> str:
        how = "before a change" if self.is_before_change else "at a moment"
        return f"{self.number:>4} {self.step:<19}{how:<16}{self.share:6.1%}{' alone' if self.is_alone else ''}"


def kill_of(number: int) -> Kill:
    """What a kill of this number is."""
    rounds, turn = divmod(number, len(TURNS))
    step = TURNS[turn]
    of_step = rounds * TURNS.count(step) + TURNS[:turn].count(step)
    return Kill(number, step, (of_step // 2 + 1) * _GOLDEN % 1, of_step % 2 == 1, step == RUN and of_step % 4 == 0)


def slice_of(kills: int, part: str) -> range:
    """The numbers of a part of all kills, as `2/3`.

    Example:
        >>> slice_of(300, "2/3")
        range(100, 200)
    """
    which, _, parts = part.partition("/")
    return range(kills * (int(which) - 1) // int(parts), kills * int(which) // int(parts))


@dataclasses.dataclass(frozen=True)
class Undisturbed:
    """A step that nobody kills: how long it takes, how many changes it makes, and what it leaves."""

    step: Step
    seconds: float
    num_changes: int
    left: Mapping[str, Outcome]


def run_undisturbed(step: Step, folder: Path) -> Undisturbed:
    """Run a step to its end."""
    step.prepare(folder)
    process = step.finish(folder)
    return Undisturbed(step, time.monotonic() - process.start, process.num_changes, step.left_in(folder))


def die(expected: Undisturbed, kill: Kill, work: Path) -> tuple[Path, Process, Mapping[str, Outcome]]:
    """Kill the step; returns where it ran, what was killed, and what had been there before."""
    share = kill.share
    for attempt in range(_TRIES):
        folder = work / f"{kill.number}-{attempt}"
        expected.step.prepare(folder)
        before = expected.step.left_in(folder)
        if kill.is_before_change:
            process = expected.step.start(folder, dies_at=int(share * expected.num_changes))
            is_killed = process.wait(WAIT_SECONDS) == -9
        else:
            process = expected.step.start(folder)
            is_killed = process.wait(share * expected.seconds) is None and process.kill(kill.is_alone)
        if is_killed:
            return folder, process, before
        share *= _EARLIER
        shutil.rmtree(folder)
    raise RuntimeError(f"{kill} ended by itself {_TRIES} times")


def try_kill(expected: Undisturbed, kill: Kill, work: Path) -> list[str]:
    """Kill a step, look at what is there, run it again; returns what is not as it should be."""
    folder, process, before = die(expected, kill, work)
    faults = [] if kill.is_alone else list(half_written(expected.step, folder, (before, expected.left)))
    return [*faults, *go_on(expected, folder, process, keep=bool(faults))]


def go_on(expected: Undisturbed, folder: Path, process: Process, keep: bool) -> list[str]:
    """Run a step again where it has ended too early; returns what is not as it should be.

    Args:
        expected: The step.
        folder: The folder that it ran in; deleted if all is well.
        process: The process that has ended.
        keep: Whether to keep the folder in any case.
    """
    step, faults = expected.step, list[str]()
    try:
        step.finish(folder)
    except RuntimeError as error:
        return [str(error)]
    finally:
        process.end_session()
    faults += differing(step.left_in(folder), expected.left)
    faults += [f"{name} is left half written" for name in leftovers(folder)]
    for version_dir in folder.glob("**/registry/*/versions/[0-9]*"):
        faults += [f"{version_dir}: {damage}" for damage in Version.load(version_dir).damage()]
    if not faults and not keep:
        shutil.rmtree(folder)
        log_of(folder).unlink()
    return faults


def differing(left: Mapping[str, Outcome], expected: Mapping[str, Outcome]) -> list[str]:
    """What of a step's outputs is not as expected."""
    return [
        f"{name}/{file} differs"
        for name in {*left, *expected}
        for file in differences(left.get(name, {}), expected.get(name, {}))
    ]


def half_written(step: Step, folder: Path, whole: Iterable[Mapping[str, Outcome]]) -> Iterable[str]:
    """What a killed step has left under a final name that is neither what was there before nor its result."""
    for name, found in [*step.left_in(folder).items(), *step.cached_in(folder)]:
        if all(differences(found, one.get(name, {})) for one in whole):
            yield f"{name} was there, and not whole"


def report(done: Iterable[tuple[Kill, list[str]]]) -> str:
    """A line for each step, and one for all."""
    done = list(done)
    lines = [f"{'':<20}{'kills':>6}{'at a moment':>13}{'before a change':>17}{'the same again':>16}"]
    for name in [*dict.fromkeys(TURNS), ""]:
        some = [(kill, faults) for kill, faults in done if name in ("", kill.step)]
        changes, good = sum(kill.is_before_change for kill, _ in some), sum(not faults for _, faults in some)
        lines.append(f"{name or 'in all':<20}{len(some):>6}{len(some) - changes:>13}{changes:>17}{good:>16}")
    return "\n".join(lines)


def try_each(kills: Iterable[Kill], attempt: Callable[[Kill], list[str]]) -> list[tuple[Kill, list[str]]]:
    """Kill one after the other, and print what became of it; returns what was not as it should be of each."""
    done = []
    for kill in kills:
        start = time.monotonic()
        done.append((kill, faults := attempt(kill)))
        print(f"{kill}  {'; '.join(faults) or 'the same again'} ({time.monotonic() - start:.1f} s)", flush=True)
    return done


def conclude(work: Path, is_wrong: bool) -> int:
    """Delete the folder of all kills, or keep it if something was not as it should be; returns the exit code."""
    if is_wrong:
        print(f"What is not the same is kept in {work}.")
        return 1
    shutil.rmtree(work)
    return 0


def main() -> int:
    """Run a slice of the kills; returns 1 if one left something else."""
    parser = argparse.ArgumentParser(prog="python -m tests.evidence.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=1000, help="how many there are in all")
    parser.add_argument("--slice", default="1/1", metavar="I/N", help="only the Ith of N equal parts of them")
    parser.add_argument("--only", type=int, nargs="+", metavar="NUMBER", help="only these")
    parser.add_argument("--work", type=Path, help="folder to work in; keeps what went wrong (default: a temporary one)")
    arguments = parser.parse_args()
    numbers = arguments.only or slice_of(arguments.kills, arguments.slice)
    work = arguments.work or Path(tempfile.mkdtemp(prefix="kills-"))
    shutil.rmtree(work, ignore_errors=True)
    shared = work / "shared"
    warm_up()
    write_inputs(shared)
    steps, expected = make_steps(shared), {}
    wanted = {kill_of(number).step for number in numbers}
    for step in steps:
        if step.name == "evaluate_model":
            make_champion(steps, shared)
        if step.name in wanted or step.name not in ("preflight_training", RUN):  # These two are only compared with.
            expected[step.name] = run_undisturbed(step, shared / step.name)
            seconds, changes = expected[step.name].seconds, expected[step.name].num_changes
            print(f"{step.name}: {seconds:.1f} s, {changes} changes of the disk", flush=True)
    done = try_each(map(kill_of, numbers), lambda kill: try_kill(expected[kill.step], kill, work))
    print(report(done))
    return conclude(work, any(faults for _, faults in done))


if __name__ == "__main__":
    sys.exit(main())
