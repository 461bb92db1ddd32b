"""Kill the commands that write records together at any moment, run them again, and compare with undisturbed ones.

What one machine alone writes is compared too. A range that is killed keeps its whole parts, and goes on behind them.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.evidence.kills.__main__ import Kill, conclude, run_undisturbed, try_each, try_kill
from tests.evidence.kills.outcome import differences
from tests.evidence.kills.process import warm_up
from tests.evidence.kills.steps import Step, write_inputs

NUM_RANGES = 2
_TURNS = ("write", "merge", "write", "merge", "plan")
_GOLDEN = (5**0.5 - 1) / 2


def make_steps(shared: Path) -> list[Step]:
    """The commands in their order; each reads what those before it left in `shared/<name>`."""
    params = {"source": f"images:{shared / 'images'}", "num_workers": 2, "engine_tasks": NUM_RANGES}
    plan = shared / "plan" / "planned"
    parts = [str(shared / f"write{number}" / "parts") for number in range(NUM_RANGES)]

    def step(name: str, command: str, output: str, pattern: str, **more: Any) -> Step:
        def words(folder: Path) -> dict[str, Any]:
            return {"": [command, *more.get("words", [])], **more.get("flags", {}), **params, "output": folder / output}

        return Step(name, "tpu_components.create_tfrecords.engines", words, (pattern,))

    writers = [
        step(f"write{number}", "write", "parts", "parts/whole/*.npz", flags={"plan": plan, "number": number})
        for number in range(NUM_RANGES)
    ]
    merge = step("merge", "merge", "records", "records", words=["--parts", *parts], flags={"plan": plan})
    alone = Step(
        "alone",
        "tpu_components.create_tfrecords",
        lambda folder: {**params, "output": folder / "records"},
        ("records",),
    )
    return [step("plan", "plan", "planned", "planned"), *writers, merge, alone]


def kill_number(number: int) -> Kill:
    """The kill of a number: which command, and when."""
    rounds, turn = divmod(number, len(_TURNS))
    name = _TURNS[turn]
    share = (number // 2 + 1) * _GOLDEN % 1
    return Kill(number, f"write{rounds % NUM_RANGES}" if name == "write" else name, share, number % 2 == 1, False)


def main() -> int:
    """Kill; returns 1 if something else was left."""
    parser = argparse.ArgumentParser(prog="python -m tests.evidence.kills.fan_out", description=__doc__)
    parser.add_argument("--kills", type=int, default=20, help="how many")
    arguments = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="kills-fan-out-"))
    shared = work / "shared"
    warm_up()
    write_inputs(shared)
    expected = {}
    for step in make_steps(shared):
        expected[step.name] = run_undisturbed(step, shared / step.name)
        print(
            f"{step.name}: {expected[step.name].seconds:.1f} s, {expected[step.name].num_changes} changes", flush=True
        )
    num_wrong = len(list(differences(expected["merge"].left["records"], expected["alone"].left["records"])))
    print(f"merged and alone: {num_wrong} files differ")
    kills = map(kill_number, range(arguments.kills))
    done = try_each(kills, lambda kill: try_kill(expected[kill.step], kill, work))
    return conclude(work, num_wrong > 0 or any(faults for _, faults in done))


if __name__ == "__main__":
    sys.exit(main())
