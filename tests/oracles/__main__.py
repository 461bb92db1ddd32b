"""Prints how far every figure is from its definition at most, as a share of it: `python -m tests.oracles`."""

from components.table import lay_out
from tests.oracles.figures import deviations


def main() -> None:
    """Print one line for each figure of each task."""
    largest: dict[tuple[str, str], float] = {}
    for task, _, figure, deviation in deviations():
        largest[task, figure] = max(largest.get((task, figure), 0.0), deviation)
    rows = [(task, figure, f"{value:.1e}") for (task, figure), value in largest.items()]
    print("\n".join(lay_out({"task": "<", "figure": "<", "largest deviation": ">"}, rows)))


if __name__ == "__main__":
    main()
