"""How far the compiler's estimates were from step times that others measured and published, for each generation.

`python -m tests.benchmarks.truth` derives these figures, names every step time with its source, and says how the rule
was tried on networks that it had not seen; a test holds the two together.
"""

import dataclasses

from components.machine_spec import Generation

_FEW = 3  # Programs; with fewer, other generations decide much of it.


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """The time of a generation's steps, as multiples of the compiler's own estimate.

    Attributes:
        factor: Factor that is expected.
        low: Least of the interval in which nine of ten are expected.
        high: Most of it.
        steps: Published step times of this generation that it follows from.
        programs: Compiled programs through which they were compared.
    """

    factor: float
    low: float
    high: float
    steps: int
    programs: int

    def words(self, generation: str) -> str:
        """Say where the interval comes from."""
        few = ", so few that other generations count too and the interval is wide" if self.programs < _FEW else ""
        return (
            f"{generation}: the compiler's estimate times {self.factor:g}, nine of ten at {self.low:g} to "
            f"{self.high:g} times it, by published step times: {self.steps}, through {self.programs} compiled "
            f"program{'s' * (self.programs != 1)}{few}"
        )


_ACCURACIES = {
    "v2": Accuracy(0.91, 0.71, 1.17, 1, 1),
    "v3": Accuracy(0.92, 0.73, 1.18, 7, 3),
    "v5e": Accuracy(0.85, 0.66, 1.1, 24, 1),
    "v6e": Accuracy(0.8, 0.62, 1.03, 18, 1),
    "7x": Accuracy(0.88, 0.68, 1.13, 7, 1),
}


def accuracy_of(generation: Generation) -> Accuracy:
    """Return what is known of a generation of the catalogue."""
    return _ACCURACIES[generation.name]
