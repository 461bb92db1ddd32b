"""What a user may set, and what comes back."""

import dataclasses
from typing import Annotated

from tpu_components.core.base.typed_values import Range, check_fields


@dataclasses.dataclass(frozen=True)
class DriftParams:
    """The data to compare with, and when a difference counts.

    Attributes:
        against: Version whose data these are compared with, as `runs/registry/digits@champion`, or folder of other
            records, here or in a bucket.
        confidence: Share of the data that are alike of which nothing is said to have drifted.
        stop: Whether a pipeline's step fails where the data have drifted; the command says it by its exit code.
    """

    against: str
    confidence: Annotated[float, Range(0.5, below=1)] = 0.99
    stop: bool = False

    def __post_init__(self) -> None:
        check_fields(self)


@dataclasses.dataclass(frozen=True)
class DriftResult:
    """Whether the data are alike, and the figures that have drifted, the largest difference first."""

    alike: bool
    drifted: tuple[str, ...]
