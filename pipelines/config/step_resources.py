"""What a step may be given: processors, memory, disk, retries and time, as the configuration says it."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from tpu_components.core.base.errors import InputError, did_you_mean
from tpu_pipelines.config.steps import STEPS

KEYS = ("cpu", "memory", "disk", "retries", "timeout")


_QUANTITY = re.compile(r"([1-9]\d*)(Mi|Gi|Ti|M|G|T)")


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
        InputError: If a value is none that a platform takes.
    """

    cpu: int = 0
    memory: str = ""
    disk: str = ""
    retries: int = -1
    timeout: int = 0

    def __post_init__(self) -> None:
        for name in ("memory", "disk"):
            if (text := getattr(self, name)) and not _QUANTITY.fullmatch(text):
                raise InputError(f"{name} must be a whole number with a unit, as 16Gi. Received: {text!r}.")
        for name, least in (("cpu", 0), ("retries", -1), ("timeout", 0)):
            if getattr(self, name) < least:
                raise InputError(f"{name} must not be negative. Received: {getattr(self, name)}.")


def parse_resources(raw: Any) -> dict[str, StepResources]:
    """Return the section `resources` of a configuration: a mapping for each step that is named.

    Raises:
        InputError: If a step or key is unknown, or a value is of the wrong type or form.
    """
    if raw is None:
        return {}
    if not isinstance(raw, Mapping):
        raise InputError(f"Cannot use resources: expected a mapping of steps, received {raw!r}.")
    return {_known(step, STEPS, "resources"): _parse_step(step, values) for step, values in raw.items()}


def _known(key: Any, known: tuple[str, ...], where: str) -> str:
    if key not in known:
        raise InputError(
            f"Unknown key {key!r} in section {where}: expected one of {', '.join(known)}."
            f"{did_you_mean(str(key), known)}"
        )
    return str(key)


def _parse_step(step: str, values: Any) -> StepResources:
    where = f"resources.{step}"
    if not isinstance(values, Mapping):
        raise InputError(f"Cannot use {where}: expected a mapping, received {values!r}.")
    kinds = {field.name: field.type for field in dataclasses.fields(StepResources)}
    for key, value in values.items():
        kind = kinds[_known(key, KEYS, where)]
        if type(value) is not kind:
            raise InputError(f"{where}.{key} must be {getattr(kind, '__name__', kind)}. Received: {value!r}.")
    try:
        return StepResources(**values)
    except InputError as error:
        raise InputError(f"Section {where}: {error}") from error


def as_dict(resources: Mapping[str, StepResources]) -> dict[str, dict[str, Any]]:
    """Return the section as it stands in a configuration: what is set, and nothing else."""
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
    number, unit = _QUANTITY.fullmatch(quantity).groups()  # type: ignore[union-attr]  # Checked when it was read.
    return int(number) * _GIB[unit]
