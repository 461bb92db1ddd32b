"""Parameters and result of find_drift."""

import dataclasses
from typing import Annotated

from tpu_components.core.base.typed_values import Range, check_fields


@dataclasses.dataclass(frozen=True)
class DriftParams:
    """Data to compare with, and confidence of the tests.

    Attributes:
        against: Data to compare with: a registered version, for example `runs/registry/digits@champion` or
            `projects/PROJECT/locations/REGION/models/digits@champion`, or a folder of records, local or in a bucket.
        confidence: Probability that no drift is reported between two samples of the same distribution.
        stop: Whether the step fails in a pipeline if the data have drifted. On the command line, the exit code is 3 if
            the data have drifted, whatever `stop` is.
    """

    against: str
    confidence: Annotated[float, Range(0.5, below=1)] = 0.99
    stop: bool = False

    def __post_init__(self) -> None:
        check_fields(self)


@dataclasses.dataclass(frozen=True)
class DriftResult:
    """Result of a comparison of two data sets.

    Attributes:
        alike: Whether no statistic has drifted.
        drifted: Names of the drifted statistics, sorted by effect size divided by threshold, the largest first.
    """

    alike: bool
    drifted: tuple[str, ...]
