"""Section `resources` of a configuration: processors, memory, disk, retries and time limit of a step."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Annotated, Any

from tpu_components.core.base.typed_values import NotNegative, Pattern, Range, check_fields, read_by_hand
from tpu_pipelines.config.steps import STEPS

_QUANTITY = Pattern(r"(?:([1-9]\d*)(Mi|Gi|Ti|M|G|T))?", "a whole number with a unit, as 16Gi")


_GIB = {"Mi": 2.0**-10, "Gi": 1.0, "Ti": 2.0**10, "M": 1e6 / 2**30, "G": 1e9 / 2**30, "T": 1e12 / 2**30}


@dataclasses.dataclass(frozen=True)
class StepResources:
    """The resources that a step asks for; what is left out follows from the configuration, see `resources_of`.

    Attributes:
        cpu: CPUs.
        memory: Memory, as `16Gi`.
        disk: Local disk, as `200Gi`.
        retries: Number of times that the step is started again when it fails.
        timeout: Seconds after which the step is stopped; 0 is never.

    Raises:
        InputError: If a value has the wrong form or range.
    """

    cpu: NotNegative = 0
    memory: Annotated[str, _QUANTITY] = ""
    disk: Annotated[str, _QUANTITY] = ""
    retries: Annotated[int, Range(-1)] = -1
    timeout: NotNegative = 0

    def __post_init__(self) -> None:
        check_fields(self)


def parse_resources(raw: Any) -> dict[str, StepResources]:
    """Return the section `resources` of a configuration: a mapping for each step that is named.

    Raises:
        InputError: If a step or key is unknown, or a value is of the wrong type or form.
    """
    kind = Mapping[Annotated[str, STEPS], StepResources]
    resources: dict[str, StepResources] = read_by_hand({} if raw is None else raw, kind, "resources")
    return resources


def as_dict(resources: Mapping[str, StepResources]) -> dict[str, dict[str, Any]]:
    """Return the section as in a configuration, with only the set values."""
    unset = dataclasses.asdict(StepResources())
    return {
        step: {key: value for key, value in dataclasses.asdict(asked).items() if value != unset[key]}
        for step, asked in resources.items()
    }


def gib(quantity: str) -> float:
    """Return a quantity in GiB.

    Example:
        >>> gib("512Mi"), gib("2Ti")
        (0.5, 2048.0)
    """
    number, unit = re.fullmatch(_QUANTITY.regex, quantity).groups()  # type: ignore[union-attr]  # Checked when it was read.
    return int(number) * _GIB[unit]
