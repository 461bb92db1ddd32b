"""All that can be known of a configuration within seconds: what would stop a run, and what would spoil it."""

import contextlib
import dataclasses
import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.artifacts import VALIDATION
from tpu_components.core.examples.interface import CLASSIFICATION, Interface
from tpu_components.core.machines.machine_spec import billed_by
from tpu_components.core.models.step.augmentation import check_images, check_labels
from tpu_components.core.sources.kinds import find_source
from tpu_components.create_tfrecords.planning import DatasetPlan
from tpu_components.preflight_training import sandbox
from tpu_pipelines.checking.checks import check_deploy, check_inputs
from tpu_pipelines.checking.model_check import check_model, sample_interface
from tpu_pipelines.checking.workspace import with_registry
from tpu_pipelines.config.configuration import Config
from tpu_pipelines.starting.data_overview import DataOverview, overview_of

OK, HINT, ERROR = "ok", "hint", "error"
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        about: Name of what was looked at, as `data`.
        state: `ok`, `hint` or `error`.
        said: Sentence about it.
    """

    about: str
    state: str
    said: str


def is_sound(findings: Sequence[Finding]) -> bool:
    """Return whether nothing that was found would stop a run."""
    return all(finding.state != ERROR for finding in findings)


def check_config(config: Config, workspace: Path) -> list[Finding]:
    """Look at the data, some examples of them, the model, the machine, and settings that contradict one another.

    What does not depend on a mistake is looked at all the same, so that one call finds as many as there are.

    Args:
        config: Configuration to check, already read.
        workspace: Folder for runs, which may hold the champion.
    """
    findings = [Finding("settings", OK, f"{config.name}: {config.data.asked}, {config.training.epochs} epochs")]
    findings += _check_machine(config)
    here = with_registry(config, workspace.absolute())
    _found(findings, "deploy", lambda: check_deploy(here))
    plan = None
    if find_source(config.data.source)[0].is_downloaded:
        findings.append(Finding("data", HINT, f"{config.data.source} is downloaded first; nothing of it was looked at"))
    else:
        plan = _found(findings, "data", lambda: check_inputs(here, workspace))
    if plan is None:
        return findings + [Finding("settings", HINT, said) for said in contradictions(config)]
    overview = overview_of(plan, config.data)
    findings += [Finding("data", OK, line) for line in overview.lines()]
    findings += _check_damage(config, overview)
    findings += [Finding("settings", HINT, said) for said in contradictions(config, overview)]
    if interface := _found(findings, "data", lambda: _read_sample(config, plan)):
        findings += _check_model(config, interface)
    return findings


def _found(findings: list[Finding], about: str, look: Callable[[], T]) -> T | None:
    try:
        return look()
    except InputError as error:
        findings.append(Finding(about, ERROR, str(error)))
        return None


def _read_sample(config: Config, plan: DatasetPlan) -> Interface:
    with contextlib.redirect_stderr(io.StringIO()):  # Which speaks of records that nobody is to have.
        return sample_interface(config, plan)


def _check_machine(config: Config) -> Iterator[Finding]:
    for machine in config.machine.candidates if config.machine else ():
        price = machine.paid.price
        cost = (
            f"{price.usd_per_hour:.2f} $ an hour in {price.region} at {billed_by(price.target)}"
            if price
            else "of no known price"
        )
        yield Finding("machine", OK, f"{machine.name}: {machine.slice.devices} devices, {cost}")
        if (hosts := machine.slice.hosts) > 1:
            yield Finding("machine", HINT, f"{machine.name} has {hosts} hosts: submit it; `run` trains on one")
    if config.preflight:
        try:
            sandbox.require_compiler()
        except InputError as error:
            yield Finding("machine", HINT, f"preflight would be left out. {error}")


def _check_damage(config: Config, overview: DataOverview) -> Iterator[Finding]:
    most, unusable, damaged = config.data.max_bad_fraction, overview.unusable, overview.damaged
    said = [
        (unusable, overview.num_inputs, f"{len(unusable):,} of {overview.num_inputs:,} examples cannot be used"),
        (damaged, overview.num_looked_at, "{:.1%} of the examples that were read are damaged"),
    ]
    for bad, count, what in said:
        if len(bad) > most * count:
            expected = f"expected at most data.max_bad_fraction={most:g}. Repair or remove them, or raise it."
            yield Finding("data", ERROR, f"{what.format(len(bad) / count)}: {expected}")


def _check_model(config: Config, interface: Interface) -> list[Finding]:
    model = config.training.model
    try:
        check_images(config.training, (None, *interface.input.shape))
        check_labels(config.training, interface.task_name)
        warnings = check_model(config, interface)
    except InputError as error:
        return [Finding("model", ERROR, str(error))]
    formats = f", and can be exported as {', '.join(config.required_formats)}" if config.required_formats else ""
    built = Finding("model", OK, f"{model}: is built for {interface.input}, rebuilt{formats}")
    return [built, *(Finding("model", HINT, warning) for warning in warnings)]


def contradictions(config: Config, overview: DataOverview | None = None) -> Iterator[str]:
    """Settings of which one makes another useless, in words; with the data, also those that these make useless."""
    training = config.training
    shortest = min((stage.epochs for stage in training.stages), default=training.epochs)
    if training.warmup_epochs >= shortest:
        which = f"a stage, epochs={shortest}" if training.stages else f"training.epochs={shortest}"
        yield (
            f"training.warmup_epochs={training.warmup_epochs:g} lasts all of {which}: the learning rate never reaches "
            "its peak"
        )
    if config.machine and training.accelerator in ("cpu", "gpu"):
        yield f"training.accelerator={training.accelerator} leaves the machine {config.machine.name} unused"
    if overview is None:
        return
    if training.early_stopping_epochs and VALIDATION not in overview.split_examples:
        yield (
            "training.early_stopping_epochs looks at the training loss, as there is no validation split: set "
            "data.validation_fraction"
        )
    counts = overview.class_examples
    if config.data.asked == CLASSIFICATION and counts:
        name, most = max(counts.items(), key=lambda item: item[1])
        share, asked = most / sum(counts.values()), config.gate.minimum.get("accuracy", 1.0)
        if asked <= share:
            yield f"gate.minimum.accuracy={asked:g} is reached by always answering {name!r}, {share:.2f} of them all"
