"""Submits the smallest run to a platform twice, and reports facts about the platform that are not documented."""

import dataclasses
import secrets
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.formatting import byte_size
from tpu_components.core.base.retries import PlatformError
from tpu_components.core.base.states import State
from tpu_components.core.files import storage, typed_json
from tpu_components.core.machines.machine_spec import PaidMachine, billed_by
from tpu_components.core.pages.blocks import Table
from tpu_components.core.sources.kinds import list_examples
from tpu_components.train_model.environment_report import REPORT_VARIABLE
from tpu_pipelines.config.configuration import Config, load_config
from tpu_pipelines.config.settings import Settings, variable
from tpu_pipelines.platforms.findings import CannotAskError
from tpu_pipelines.platforms.jobs import PlatformClient, Submission
from tpu_pipelines.platforms.platform import Platform
from tpu_pipelines.sizing.preflight import judge_machines
from tpu_pipelines.submission.submit import RunPlan, plan_submission, submit, wait

_SEVERAL_HOSTS = (
    "what the hosts of a slice are told of each other (tpu_components.core.machines.hosts): needs a machine that has "
    "several, as --machine v5e-16"
)
# Open questions of the code that this run does not answer.
_OPEN = (
    "how CPUs and memory that a step asks for are rounded to a machine (tpu_pipelines.platforms.resources)",
    "how long a change of an endpoint's traffic takes (tpu_components.deploy_model.vertex): needs deploy.endpoint",
    "what becomes of a boot disk type that the machine does not have (tpu_components.core.machines.machine_spec)",
    "why a pod waits, on Kubeflow (tpu_pipelines.platforms.kubeflow.client)",
)


@dataclasses.dataclass(frozen=True)
class Smoke:
    """Plan of the smallest run.

    Attributes:
        config: Configuration of the run.
        plan: Jobs of the run.
        report_uri: URI of the environment report that the training writes.
        platform: The platform.
    """

    config: Config
    plan: RunPlan
    report_uri: str
    platform: Platform

    @property
    def paid(self) -> PaidMachine:
        """Machine of the training, with the conditions of its price."""
        return self.plan.runs[0].paid

    @property
    def usd_per_hour(self) -> float | None:
        """Price of the machine in US dollars per hour; None if unknown."""
        price = self.paid.price
        return price.usd_per_hour if price else None

    @property
    def price(self) -> str:
        """Highest price of both submissions, as text; the second trains again unless the platform's cache is used."""
        machine = self.plan.jobs[0].machine
        minutes = machine.timeout_seconds / 60
        what = f"two trainings on {machine.name}, each of them stopped after {minutes:g} minutes at the latest"
        if (usd := self.usd_per_hour) is None:
            return f"{what}; no price is known"
        return (
            f"at most ${2 * usd * minutes / 60:.2f} at {billed_by(self.paid.target)}: {what} (${usd:g} an hour); "
            "the other steps, disks and storage come on top"
        )


def plan_smoke(platform: Platform, machine: str, settings: Settings, overrides: Sequence[str] = ()) -> Smoke:
    """Compile the smallest run: the ready example `smoke`.

    Args:
        platform: The platform.
        machine: Machine to train on, for example `v5e-1`.
        settings: Project, region, bucket and images; must have a bucket.
        overrides: Changes of the configuration, `section.key=value` each.

    Raises:
        InputError: If settings are missing, or the run cannot be compiled.
    """
    if not settings.bucket_location.is_remote:
        raise InputError(
            f"The training writes its environment report to a bucket: expected one that can be read from here, such as "
            f"gs://BUCKET. Received: {settings.bucket!r}. Set {variable('bucket')}."
        )
    # A unique number, so that the first submission does not come from the cache.
    number = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    report_uri = str(settings.bucket_location.child(f"smoke/{number}/training.json"))
    config = load_config("smoke", [f"machine.name={machine}", *overrides])
    settings = dataclasses.replace(settings, environment={**settings.environment, REPORT_VARIABLE: report_uri})
    return Smoke(config, plan_submission(config, platform, settings), report_uri, platform)


@dataclasses.dataclass(frozen=True)
class SmokeReport:
    """Answers of the platform in a smoke test.

    Attributes:
        rows: Pairs of question and answer.
        has_succeeded: Whether both runs have succeeded.
        answers: Rows about the platform itself, without those about this run.
        source: Platform, machine and day of the answers.
    """

    rows: tuple[tuple[str, str], ...]
    has_succeeded: bool
    answers: tuple[tuple[str, str], ...] = ()
    source: str = ""

    def as_rules(self) -> str:
        """Return the answers as comment lines for tests/support/fakes: `# Rule: …`, with the source."""
        rules = (f"Rule: {question}: {answer} ({self.source})" for question, answer in self.answers)
        lines = (textwrap.wrap(rule, 118, break_long_words=False, break_on_hyphens=False) for rule in rules)
        return "".join(f"# {line}\n" for rule in lines for line in rule)

    def __str__(self) -> str:
        return Table({"question": "<", "answer": "<"}, self.rows).markdown()


def run_smoke(
    smoke: Smoke,
    submitter: PlatformClient,
    report: Callable[[Submission], None] = lambda _: None,
    poll_seconds: float = 20,
) -> SmokeReport:
    """Submit the run, wait for its end, and submit it again to test the platform's cache; returns the report.

    Args:
        smoke: The run.
        submitter: Client of the platform.
        report: Called with every state of the runs.
        poll_seconds: Seconds between two requests.

    Raises:
        PlatformError: If a job was deleted.
    """
    plan = smoke.plan
    sent = time.time()
    is_slice = plan.jobs[0].machine.slice.hosts > 1
    first = wait(plan, submit(plan, submitter), submitter, report, poll_seconds)
    told = _read(smoke.report_uri)
    second = None
    again = told
    if first.state is State.SUCCEEDED:
        second = wait(plan, submit(plan, submitter, again=True), submitter, report, poll_seconds)
        again = _read(smoke.report_uri)
    answers = _environment(told)
    cached = _cache(second, told, again) if second else ()
    rows = (
        ("machine", first.machine),
        *_outcome("first run", first),
        *answers,
        *_times(smoke, told, sent),
        *(_outcome("second run", second) if second else ()),
        *cached,
        *(("not asked here", question) for question in (_OPEN if is_slice else (_SEVERAL_HOSTS, *_OPEN))),
    )
    source = f"tpu-pipelines smoke of {time.strftime('%Y-%m-%d')}, {smoke.platform.name}, {first.machine}"
    return SmokeReport(
        rows, second is not None and second.state is State.SUCCEEDED, (*answers, *cached) if told else (), source
    )


def _read(uri: str) -> Mapping[str, Any]:
    """Return the environment report of a training; empty if there is none."""
    try:
        return dict(typed_json.decode(storage.read_bytes(uri)))
    except (ValueError, TypeError, PlatformError):
        return {}


def _outcome(what: str, run: Submission) -> Sequence[tuple[str, str]]:
    steps = ", ".join(f"{step} {state}" for step, state in run.steps.items())
    return [(what, f"{run.job_id}: {run.state}{f', {run.error}' if run.error else ''}"), (f"{what}, steps", steps)]


def _environment(told: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """Return the rows of an environment report."""
    if not told:
        return [("environment of the training", "not told: it failed before, or may not write into the bucket")]
    user = told["user"]
    host = told["host"]
    mount = dict(told["mount"])
    folder = mount.pop("folder")
    locked = told["locked_memory_bytes"]
    files = "; ".join(f"{path}: {mode}" for path, mode in told["device_files"].items())
    return [
        ("user", f"uid {user['uid']}, gid {user['gid']}, groups {', '.join(map(str, user['groups'])) or 'none'}"),
        ("device files of the TPU", files or "none"),
        ("memory that may be locked", "any" if locked < 0 else byte_size(locked)),
        ("devices seen", f"{len(told['devices'])}: {', '.join(dict.fromkeys(told['devices']))}"),
        ("hosts", "; ".join(f"{where}: {answer}" for where, answer in told.get("hosts", {}).items())),
        (f"rights in {folder}", "; ".join(f"{action}: {answer}" for action, answer in mount.items())),
        (
            "host",
            f"{host['name']}, {byte_size(host['memory_bytes'])} of memory, "
            f"{byte_size(host['free_disk_bytes'])} free on the local disk",
        ),
        ("libraries", ", ".join([f"Python {told['python']}", *(f"{k} {v}" for k, v in told["libraries"].items())])),
    ]


def _times(smoke: Smoke, told: Mapping[str, Any], sent: float) -> Sequence[tuple[str, str]]:
    """Return rows with the measured times and preflight's estimate."""
    if not told:
        return []
    result = told["result"]
    batch = smoke.config.training.batch_size_per_replica * result["num_replicas"]
    seconds = told["ended"] - told["started"]
    usd = smoke.usd_per_hour
    price = "" if usd is None else f", ${usd * seconds / 3600:.4f} at {billed_by(smoke.paid.target)}"
    return [
        ("from the submission to the training", f"{told['started'] - sent:.0f} s, by the clocks of both"),
        ("from there to the end of its first step", f"{result['first_step_seconds']:.1f} s"),
        ("a step, measured", f"{1000 * batch / result['examples_per_second']:.3f} ms (median of the epochs)"),
        ("a step, by preflight", _estimate(smoke)),
        ("the training", f"{seconds:.0f} s{price}; what is billed, the invoice says"),
    ]


def _estimate(smoke: Smoke) -> str:
    """Return preflight's estimate of the time of a training step, as text."""
    try:
        listing = smoke.plan.data.listing if smoke.plan.data else list_examples(smoke.config.data)
        (report,) = judge_machines(smoke.config, listing, (smoke.paid,))
    except (CannotAskError, InputError) as error:
        return f"not known: {error}"
    return f"{report.step.total_ms:.3f} ms on the device" if report.step else report.summary


def _cache(second: Submission, told: Mapping[str, Any], again: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """Return table rows that say which steps of the second run the cache answered, the training among them."""
    hits = [step for step, state in second.steps.items() if state == State.CACHED]
    if not told:
        training = "not known: the training tells nothing"
    elif again.get("started") == told["started"]:
        training = "hit: it was not trained again"
    else:
        training = "miss: it was trained again"
    return [
        ("cache, training of the second run", training),
        ("cache, steps that the platform calls answered", ", ".join(hits) or "none"),
    ]
