"""What a submitted run would be, as findings: machine, price, image, data, model, and what is missing."""

from collections.abc import Iterator

from tpu_components.core.base.states import Status
from tpu_components.preflight_training.accuracy import INTERVALS
from tpu_components.preflight_training.findings import LEFT_OUT
from tpu_pipelines.checking.check_list import image_check, model_findings
from tpu_pipelines.checking.preflight import judge_machines
from tpu_pipelines.config.configuration import Config
from tpu_pipelines.config.resources import paid_on
from tpu_pipelines.doctor.findings import CannotAskError, Check, Finding, answer
from tpu_pipelines.submission.submit import RunPlan


def describe(config: Config, plan: RunPlan, target: str) -> Iterator[Finding]:
    """Yield what a run would be, and what it lacks.

    Args:
        config: Its configuration.
        plan: The run as it would be sent.
        target: The platform, as `vertex`.
    """
    machines = [f"{job.machine.name} in {job.machine.region}".removesuffix(" in ") for job in plan.jobs]
    splits = plan.data.split_examples if plan.data else {}
    yield Finding("machine", Status.OK, ", then ".join(machines))
    yield from answer(Check("price", lambda: prices(config, plan, target)))
    yield from answer(image_check(plan.image, target))
    data = [config.data.source, *(f"{count:,} to {split}" for split, count in splits.items())]
    yield Finding("data", Status.OK, ", ".join(data))
    if plan.resources:
        yield Finding("asks for", Status.OK, plan.resources)
    yield from model_findings(config.training.model, plan.carried)


def prices(config: Config, plan: RunPlan, target: str) -> Iterator[Finding]:
    """Yield what preflight says of each machine, at the target's price.

    Raises:
        CannotAskError: If there is no preflight, or the data have to be downloaded first.
        InputError: If the compiler is not installed, or the training cannot be compiled.
    """
    if plan.data is None:
        raise CannotAskError(f"not known before the data are there: tpu-pipelines preflight {config.name}")
    reports = judge_machines(config, plan.data.listing, [paid_on(config, job.machine, target) for job in plan.jobs])
    told = [report.summary for report in reports]
    yield from (Finding("price", Status.OK, said) for said in (*told, INTERVALS, LEFT_OUT))
