"""`python -m tests.evidence.oracles` prints the largest deviation of each figure and training step from its definition.

`python -m tests.evidence.oracles intervals` simulates the intervals and tests of the gate instead, for a quarter of an
hour, and writes `components/tpu_components/evaluate_model/intervals.md`; a number after it is the most data sets that a
line may have. `python -m tests.evidence.oracles fleet` simulates the intervals that preflight takes from receipts, in
three minutes; a number after it is the number of simulated fleets.
"""

import argparse
from pathlib import Path

from tests.evidence.oracles import fleet
from tests.evidence.oracles.intervals import simulate_all
from tests.evidence.oracles.metrics import deviations
from tests.evidence.oracles.steps import deviations_elsewhere
from tpu_components.core.pages.blocks import Table

_BACKENDS = ("tensorflow", "jax")


def print_deviations() -> None:
    """Print a line for each figure of each task, as a share of its value, and for each quantity of a training step."""
    largest: dict[tuple[str, str], float] = {}
    for task, _, figure, deviation in deviations():
        largest[task, figure] = max(largest.get((task, figure), 0.0), deviation)
    rows = [(task, figure, f"{value:.1e}") for (task, figure), value in largest.items()]
    print("\n".join(Table({"task": "<", "figure": "<", "largest deviation": ">"}, rows).lines()))
    found = [deviations_elsewhere(backend) for backend in _BACKENDS]
    steps = [(quantity, *(f"{on_backend[quantity]:.1e}" for on_backend in found)) for quantity in found[0]]
    print("\n" + "\n".join(Table({"training step": "<", **dict.fromkeys(_BACKENDS, ">")}, steps).lines()))


def write_intervals(most: int = 10_000) -> None:
    """Write the table of intervals and tests beside the README of the step."""
    path = Path(__file__).parents[3] / "components/tpu_components/evaluate_model/intervals.md"
    path.write_text("\n".join(simulate_all(most)) + "\n", encoding="utf-8")


def main() -> None:
    """Print the deviations, or write the table of intervals and tests."""
    parser = argparse.ArgumentParser(prog="python -m tests.evidence.oracles", description=__doc__)
    parser.add_argument("what", nargs="?", choices=("intervals", "fleet"), help="one of the simulations instead")
    parser.add_argument("most", nargs="?", type=int, help="data sets of a line, at most, or number of fleets")
    arguments = parser.parse_args()
    if arguments.what == "intervals":
        write_intervals(arguments.most or 10_000)
    elif arguments.what == "fleet":
        print("\n".join(fleet.table(arguments.most or 1_000)))
    else:
        print_deviations()


if __name__ == "__main__":
    main()
