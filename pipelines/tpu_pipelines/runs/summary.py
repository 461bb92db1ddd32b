"""`summary.json`: the outcome of a local run, and the results of its steps."""

import dataclasses
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from tpu_components.core.base.states import NOT_PROMOTED, PASSED, PROMOTED, State, result_of
from tpu_components.core.base.terminal import in_one_line
from tpu_components.core.examples.artifacts import MODEL_FILE, TEST
from tpu_components.core.files.typed_json import JsonFile
from tpu_components.core.models.training_step.hyperparameters import TrainParams
from tpu_components.core.pages.receipts import describe_step
from tpu_components.core.registry.reference import MODEL_DIR
from tpu_components.core.results.evaluation_info import Decision
from tpu_components.core.results.export_info import ExportInfo
from tpu_components.core.results.receipt import Receipt
from tpu_components.deploy_model.params import DeployResult
from tpu_components.preflight_training.findings import MachineReport
from tpu_pipelines.runs.workspace import SUMMARY_FILE

# Fields that are None if a run does not have the step. The file has an empty mapping instead.
_OF_STEPS = ("preflight", "receipt", "export", "deployment")
# Defaults that a compiled model replaces.
_REPLACEABLE = {name: getattr(TrainParams, name) for name in ("optimizer", "learning_rate", "loss")}
_HEADLINES = (
    "bits_per_character",
    "accuracy",
    "micro_f1",
    "r2",
    "mean_absolute_error",
    "loss",
    "macro_f1",
    "mean_average_precision",
)


@dataclasses.dataclass(frozen=True)
class TrainedModel(JsonFile, name=MODEL_FILE, what="the description of a model", step="the pipeline"):
    """The fields of `model.json` that reports and lists of runs use. Every version of the file has these fields."""

    training: Mapping[str, Any]
    dataset_fingerprint: str


@dataclasses.dataclass(frozen=True)
class StepSummary:
    """The outcome of a step: its duration in seconds, and whether its result was taken from an earlier run.

    The seconds can be negative in files of older versions, if the clock was set back during the step.
    """

    seconds: float
    state: Annotated[str, (State.SUCCEEDED, State.FAILED, State.SKIPPED)]
    cached: bool


@dataclasses.dataclass(frozen=True)
class Summary(JsonFile, name=SUMMARY_FILE, what="the summary of a run", step="the pipeline"):
    """Content of `summary.json`.

    Attributes:
        status: `succeeded`; `rejected` by the gate; or `failed`.
        config: The configuration, with defaults.
        fingerprints: Fingerprints of the run's `data`, `configuration` and `code`.
        seconds: Duration of the run; see `StepSummary`.
        ended: Time at which the run ended, UTC, ISO 8601. Empty in older files.
        host: Description of the machine on which the run took place. Empty in older files.
        steps: Outcome of every step, by name.
        metrics: Metrics of the model on the split that the gate scores.
        gate: Decision whether to promote the model, with the reasons.
        preflight: Preflight's findings for the machine of the configuration, without those about single layers.
        receipt: Measured time and memory of the training, next to preflight's prediction.
        export: Exported formats and their measurements.
        deployment: Registered version of the model.
        artifacts: Paths of the artifacts, by name.
        error: Failed step and its error message. Empty if no step failed.
    """

    status: Annotated[str, (State.SUCCEEDED, State.REJECTED, State.FAILED)]
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    fingerprints: Mapping[str, str] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0
    ended: str = ""
    host: str = ""
    steps: Mapping[str, StepSummary] = dataclasses.field(default_factory=dict)
    metrics: Mapping[str, int | float | None] = dataclasses.field(default_factory=dict)
    gate: Decision = dataclasses.field(default_factory=lambda: Decision(False, ()))
    preflight: MachineReport | None = None
    receipt: Receipt | None = None
    export: ExportInfo | None = None
    deployment: DeployResult | None = None
    artifacts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    error: str = ""

    @property
    def is_registered(self) -> bool:
        """Whether the run registered its model. It is always false for a run without a registry."""
        return bool(self.artifacts.get("version"))

    @property
    def result(self) -> str:
        """The run's result: `promoted`, `passed`, `not promoted` or `failed`."""
        return result_of(self.status, self.is_registered)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the configuration by their full names, for example `training.epochs`."""
        return dict(_flatten(self.config))

    @property
    def scored_split(self) -> str:
        """The split on which `metrics` were measured: the setting `gate.split`, or `test` in files without it."""
        return str(self.settings.get("gate.split", TEST))

    def number(self, setting: str) -> float | None:
        """Return a setting by its full name.

        Return None if it is not a number, or is missing in an older file.
        """
        value = self.settings.get(setting)
        return value if isinstance(value, int | float) else None

    def as_dict(self) -> dict[str, Any]:
        """Return the content of the file."""
        preflight = self.preflight.as_dict() if self.preflight else {}
        preflight.pop("layers", None)
        plain = dataclasses.asdict(dataclasses.replace(self, preflight=None, export=None))
        return plain | {
            "preflight": preflight,
            "receipt": plain["receipt"] or {},
            "export": self.export.as_dict() if self.export else {},
            "deployment": plain["deployment"] or {},
        }

    @staticmethod
    def upgrade(raw: Mapping[str, Any]) -> dict[str, Any]:
        """Convert the fields of a `summary.json` of any older version to those of this version."""
        return {**raw, **{name: raw.get(name) or None for name in _OF_STEPS}}


def as_trained(summary: Summary, run_dir: Path) -> Summary:
    """Return a run's summary with the hyper-parameters that training actually used, in `config["training"]`.

    A model may have its own optimizer, learning rate and loss, and the precision depends on the device. If the run has
    not trained a model, it is unknown whether training would have used the default optimizer, learning rate and loss,
    so these defaults are left out.

    Args:
        summary: The summary.
        run_dir: The run's folder.
    """
    configured = summary.config.get("training")
    if not isinstance(configured, Mapping):  # A file of an older version.
        configured = {}
    if trained := TrainedModel.find(run_dir / MODEL_DIR):
        # `metrics` in model.json is what was measured.
        used = {name: value for name, value in trained.training.items() if name in configured and name != "metrics"}
        training = {**configured, **used}
    else:
        training = {name: value for name, value in configured.items() if value != _REPLACEABLE.get(name)}
    return dataclasses.replace(summary, config={**summary.config, "training": training})


def _flatten(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in section.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def as_text(summary: Summary) -> str:
    """Return the text that a run prints when it ends."""
    lines = [f"{summary.config.get('name', 'run')}: {summary.status} in {summary.seconds:.1f} s", ""]
    for name, step in summary.steps.items():
        time = State.CACHED if step.cached else f"{step.seconds:.1f} s" if step.seconds else ""
        lines.append(f"  {name:<20}{step.state:<11}{time:>8}")
    if summary.preflight:
        lines += ["", f"  preflight: {summary.preflight.summary}"]
    if summary.receipt and (compared := describe_step(summary.receipt)):
        lines.append(f"  a step: {compared}")
    if metrics := summary.metrics:
        shown = ", ".join(f"{name} {metrics[name]:.4f}" for name in _HEADLINES if metrics.get(name) is not None)
        lines += ["", f"  {summary.scored_split}: {shown} ({metrics.get('num_examples') or 0:,} examples)"]
        passed = PROMOTED if summary.is_registered else PASSED
        lines += [f"  gate: {passed if summary.gate.promote else NOT_PROMOTED}"]
        lines += [f"        {rule}" for rule in summary.gate.reasons]
    if summary.export:
        lines += describe_export(summary.export)
    if deployment := summary.deployment:
        line = f"  {deployment.model_name} version {deployment.version} is the {deployment.alias}"
        lines += ["", line + (f", after {deployment.previous}" if deployment.previous else "")]
    if summary.artifacts:
        lines += [""] + [f"  {name:<18}{os.path.relpath(path)}" for name, path in summary.artifacts.items() if path]
    return "\n".join(map(in_one_line, lines))


def describe_export(export: ExportInfo) -> list[str]:
    """Return a line for each format of an export."""
    lines = []
    for name, facts in export.formats.items():
        judged = "" if facts.score is None else f"{export.judged} {facts.score:.4f}  "
        lines.append(f"  {name:<12}{facts.bytes / 2**20:8.2f} MiB  {judged}{facts.latency} ms for one  {facts.rate}/s")
    return lines + [f"  {name:<12}left out: {reason}" for name, reason in export.left_out.items()]
