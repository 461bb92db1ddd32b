"""The steps of the pipeline: a table of their artifacts, folders and sections, and the resources that they request."""

import dataclasses
import re
from typing import Annotated

from tpu_components.core.base.typed_values import NotNegative, Pattern, Range, check_fields

_QUANTITY = Pattern(r"(?:([1-9]\d*)(Mi|Gi|Ti|M|G|T))?", "a whole number with a unit, for example 16Gi")
_GIB = {"Mi": 2.0**-10, "Gi": 1.0, "Ti": 2.0**10, "M": 1e6 / 2**30, "G": 1e9 / 2**30, "T": 1e12 / 2**30}


@dataclasses.dataclass(frozen=True)
class Step:
    """A step of the pipeline. `training_pipeline` connects the steps.

    Attributes:
        artifact: Name of the component's output that a run publishes.
        folder: Folder for the artifact in a run's folder.
        section: Section of the configuration with the step's parameters. Without the section, the step is left out.
        reads: Earlier steps whose artifacts the step reads.
        needs_promotion: Whether the step runs only if the gate promotes the model.
    """

    artifact: str
    folder: str
    section: str
    reads: tuple[str, ...] = ()
    needs_promotion: bool = False


STEP_TABLE = {
    "create_tfrecords": Step("records", "records", "data"),
    "preflight_training": Step("preflight", "preflight", "preflight", ("create_tfrecords",)),
    "train_model": Step("trained", "model", "training", ("create_tfrecords",)),
    "evaluate_model": Step("evaluation", "evaluation", "gate", ("train_model",)),
    "export_model": Step("export", "export", "export", ("train_model",), needs_promotion=True),
    "deploy_model": Step("deployment", "deployment", "deploy", ("evaluate_model", "export_model"), True),
}
STEPS = tuple(STEP_TABLE)


@dataclasses.dataclass(frozen=True)
class StepResources:
    """Resources that a step requests. `resources_of` replaces missing values with defaults.

    Attributes:
        cpu: Number of CPUs. 0 means the default, 3.
        memory: Memory, for example `16Gi`. Empty means 12Gi, or the step's estimated need if that is larger.
        disk: Local disk, for example `200Gi`. Empty means the estimated need of the data.
        retries: Number of times that the step is started again when it fails. -1 means the default: 5 on Kubeflow for
            training on a spot machine or on several hosts, otherwise 0.
        timeout: Seconds after which the step is stopped. 0 means never.
        machine: Machine with a TPU or GPU and one host for evaluate_model, for example `v5e-1` or `l4-1`. Empty means
            CPUs. Other steps cannot set it. The training step uses the section `machine`.

    Raises:
        InputError: If a value has the wrong form or range.
    """

    cpu: NotNegative = 0
    memory: Annotated[str, _QUANTITY] = ""
    disk: Annotated[str, _QUANTITY] = ""
    retries: Annotated[int, Range(-1)] = -1
    timeout: NotNegative = 0
    machine: str = ""

    def __post_init__(self) -> None:
        check_fields(self)


def gib(quantity: str) -> float:
    """Convert a Kubernetes quantity to GiB.

    Example:
        >>> gib("512Mi"), gib("2Ti")
        (0.5, 2048.0)
    """
    number, unit = re.fullmatch(_QUANTITY.regex, quantity).groups()  # type: ignore[union-attr]  # Checked when it was read.
    return int(number) * _GIB[unit]
