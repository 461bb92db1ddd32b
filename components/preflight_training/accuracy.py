"""How far the compiler's estimates were from step times that others measured and published, for each generation.

`python -m tests.benchmarks.truth` derives these figures, names every step time with its source, and says how the rule
was tried on networks that it had not seen; a test holds the two together.
"""

import dataclasses

from tpu_components.core.machines.machine_spec import Generation

_FEW = 3  # Programs; with fewer, other generations decide much of it.
# Published step times of all generations that lie in the interval which follows without their own program, of so many.
HELD_OUT = (68, 81)
INTERVALS = (
    f"In brackets: meant to hold nine of ten steps. Of the published steps that it was not made of, it held "
    f"{HELD_OUT[0]} of {HELD_OUT[1]} ({HELD_OUT[0] / HELD_OUT[1]:.0%})"
)


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """The time of a generation's steps, as multiples of the compiler's own estimate.

    Attributes:
        factor: Factor that is expected.
        low: Least of the interval that is meant to hold nine of ten.
        high: Most of it.
        steps: Published step times of this generation that it follows from.
        programs: Compiled programs through which they were compared.
        held_out: Number of these steps that lie in the interval which follows without their own program; None where
            that was not tried.
    """

    factor: float
    low: float
    high: float
    steps: int
    programs: int
    held_out: int | None = None

    def words(self, generation: str) -> str:
        """Say where the interval comes from."""
        few = ", so few that other generations count too and the interval is wide" if self.programs < _FEW else ""
        tried = "" if self.held_out is None else f"; held out, the interval held {self.held_out} of these {self.steps}"
        return (
            f"{generation}: the compiler's estimate times {self.factor:g}, nine of ten meant to be at {self.low:g} to "
            f"{self.high:g} times it, by published step times: {self.steps}, through {self.programs} compiled "
            f"program{'s' * (self.programs != 1)}{few}{tried}"
        )


_ACCURACIES = {
    "v2": Accuracy(0.91, 0.71, 1.17, 1, 1, 1),
    "v3": Accuracy(0.92, 0.73, 1.18, 7, 3, 7),
    "v5e": Accuracy(0.85, 0.66, 1.1, 24, 1, 24),
    "v6e": Accuracy(0.8, 0.62, 1.03, 18, 1, 6),
    "7x": Accuracy(0.88, 0.68, 1.13, 7, 1, 7),
}


def accuracy_of(generation: Generation) -> Accuracy:
    """Return what is known of a generation of the catalogue."""
    return _ACCURACIES[generation.name]
