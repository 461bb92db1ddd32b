"""What a user may set, and what comes back."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from components.errors import InputError
from components.registry import CHAMPION, check_alias, check_model_name


@dataclasses.dataclass(frozen=True)
class DeployParams:
    """Where to register and what to check before; one field per component input.

    Attributes:
        registry: Folder of the registry, on this machine. In a configuration, empty is `registry` in the workspace of a
            local run; a compiled pipeline is then without this step.
        model_name: Name in the registry: runs that share it compete for its alias. In a configuration, the run's own
            where it is left out.
        alias: The alias that moves to the new version.
        health_check_examples: Images that the registered export has to answer before the alias moves.
        health_check_tolerance: Largest difference of a probability, or of a number in its target's standard deviations,
            between its answers and those that were evaluated.
        lineage: What to record with the version beside what the artifacts say, as the run and its configuration.
    """

    registry: str
    model_name: str
    alias: str = CHAMPION
    health_check_examples: int = 32
    health_check_tolerance: float = 0.01
    lineage: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        check_model_name(self.model_name)
        check_alias(self.alias)
        if self.health_check_examples < 1:
            raise InputError(f"health_check_examples must be at least 1. Received: {self.health_check_examples}.")
        if not 0 < self.health_check_tolerance <= 1:
            raise InputError(
                f"health_check_tolerance must be above 0 and at most 1. Received: {self.health_check_tolerance}."
            )


@dataclasses.dataclass(frozen=True)
class DeployResult:
    """Where the model is now.

    Attributes:
        registry: Folder of the registry.
        model_name: Name in it.
        version: The version's number, as `0001`.
        version_dir: Its folder.
        alias: The alias that stands there.
        previous: The version where the alias stood before; empty if there was none.
        health_check: Images answered, and the largest difference of a probability or standardised number.
    """

    registry: str
    model_name: str
    version: str
    version_dir: str
    alias: str
    previous: str
    health_check: Mapping[str, float]
