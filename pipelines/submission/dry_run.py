"""What a submitted run would be, in a few lines: machine, price, image, data, model, and what is missing."""

import dataclasses
from collections.abc import Sequence

from tpu_components.core.base.errors import InputError
from tpu_components.create_tfrecords.planning import DatasetPlan
from tpu_components.preflight_training import sandbox
from tpu_components.preflight_training.accuracy import INTERVALS
from tpu_components.preflight_training.examining import examine
from tpu_components.preflight_training.findings import LEFT_OUT
from tpu_pipelines.checking.preflight import describe_data
from tpu_pipelines.config.configuration import Config, preflight_params
from tpu_pipelines.config.resources import paid_on
from tpu_pipelines.pipeline.compile import require_step_image
from tpu_pipelines.submission.submit import Plan


@dataclasses.dataclass(frozen=True)
class DryRun:
    """A run as it would be sent.

    Attributes:
        lines: A name and what there is to say of it, each.
        missing: Reasons why it cannot run, and how to mend them.
    """

    lines: tuple[tuple[str, str], ...]
    missing: tuple[str, ...]

    def __str__(self) -> str:
        missing = [("missing", text) for text in self.missing or ("nothing that is known here",)]
        return "\n".join(f"  {name:<9}{text}" for name, text in (*self.lines, *missing))


def describe(config: Config, plan: Plan, target: str) -> DryRun:
    """Return what a run would be.

    Args:
        config: Its configuration.
        plan: The run as it would be sent.
        target: The platform, as `vertex`.
    """
    machines = [f"{job.machine.name} in {job.machine.region}".removesuffix(" in ") for job in plan.jobs]
    sizes = [f"{place}, {len(content):,} bytes" for place, content in plan.carried.items()]
    lines = (
        ("machine", ", then ".join(machines)),
        *(("price", line) for line in prices(config, plan, target)),
        *([("", INTERVALS), ("", LEFT_OUT)] if config.preflight and plan.data else []),
        ("image", plan.image),
        ("data", _data(config, plan.data)),
        *((("asks for", plan.resources),) if plan.resources else ()),
        ("model", config.training.model + "".join(f", as {size}" for size in sizes)),
    )
    return DryRun(lines, tuple(_missing(plan, target)))


def prices(config: Config, plan: Plan, target: str) -> Sequence[str]:
    """Return what preflight says of each machine, at the target's price; compiled before, it is known at once."""
    if config.preflight is None:
        return ["not known: preflight is switched off"]
    if plan.data is None:
        return [f"not known before the data are there: tpu-pipelines preflight {config.name}"]
    try:
        sandbox.require_compiler()
        machines = [paid_on(config, job.machine, target) for job in plan.jobs]
        cache_dir = sandbox.default_cache_dir()
        params = preflight_params(config, machines[0])
        data = describe_data(config, plan.data.listing, cache_dir)
        return [machine.summary for machine in examine(params, data, machines, cache_dir).machines]
    except InputError as error:
        return [f"not known: {error}"]


def _data(config: Config, data: DatasetPlan | None) -> str:
    splits = data.split_examples if data else {}
    return ", ".join([config.data.source, *(f"{count:,} to {split}" for split, count in splits.items())])


def _missing(plan: Plan, target: str) -> Sequence[str]:
    try:
        require_step_image(plan.image, target)
    except InputError as error:
        return (f"the image. {error}",)
    return ()
