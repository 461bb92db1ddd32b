"""Findings of a run: figures, the gate's rules and preflight's report, from its folder or a platform's storage."""

import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Self, TypeVar

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.retries import PlatformError
from tpu_components.core.base.states import State
from tpu_components.core.examples.artifacts import EVALUATION_FILE, PREFLIGHT_FILE
from tpu_components.core.files import storage
from tpu_components.core.files.typed_json import JsonFile
from tpu_components.core.registry.reference import CHAMPION, reference
from tpu_components.core.results.evaluation_info import Evaluation, Rule
from tpu_components.preflight_training.findings import PreflightReport
from tpu_pipelines.checking.footprints import NamedFootprint, load_baseline
from tpu_pipelines.config.configuration import Config
from tpu_pipelines.config.settings import Settings
from tpu_pipelines.platforms.jobs import Submission, Submitter
from tpu_pipelines.runs.data_drift import champion_of
from tpu_pipelines.runs.summary import Summary

_File = TypeVar("_File", bound=JsonFile)


@dataclasses.dataclass(frozen=True)
class RunFindings:
    """Findings of a run; what an unfinished run lacks is None or empty.

    Attributes:
        reasons: Rules of the gate.
        error: Why it failed, in words; empty if it did not.
        evaluation: Figures of the model, and of the champion.
        preflight: Report of preflight.
        champion: Footprint of the registered champion's training.
        same_as: Version of its model, if every step was cached; otherwise empty.
        unread: Reason why the figures of a successful run could not be read; otherwise empty.
    """

    reasons: tuple[Rule, ...] = ()
    error: str = ""
    evaluation: Evaluation | None = None
    preflight: PreflightReport | None = None
    champion: NamedFootprint | None = None
    same_as: str = ""
    unread: str = ""

    @classmethod
    def of_folder(cls, run_dir: Path) -> Self:
        """Read the findings from a local run's folder."""
        try:
            summary = Summary.load(run_dir)
        except InputError:
            return cls()
        evaluation = _load(Evaluation, run_dir / "evaluation")
        preflight = _load(PreflightReport, run_dir / "preflight") if summary.preflight else None
        deployed = summary.config.get("deploy") or {}
        named = reference(deployed.get("registry", ""), deployed.get("model_name", ""), CHAMPION)
        champion = _champion(evaluation, lambda: named) if preflight else None
        is_new = any(not step.cached for step in summary.steps.values())
        same_as = summary.deployment.version if summary.deployment and not is_new else ""
        return cls(summary.gate.reasons, summary.error, evaluation, preflight, champion, same_as)

    @classmethod
    def of_job(cls, submission: Submission, submitter: Submitter, config: Config, settings: Settings) -> Self:
        """Read the findings of a finished run on a platform; what cannot be read is left out.

        Args:
            submission: The run.
            submitter: The platform.
            config: Configuration of the run.
            settings: Place of a registry on Vertex AI.
        """
        if not submission.state.is_final:
            return cls()
        with tempfile.TemporaryDirectory() as folder:

            def fetch(step: str, output: str, name: str) -> Path:
                place = submitter.find_output(submission.job_id, step, output)
                if not place:
                    raise InputError(f"the platform does not say where it keeps what {step} has written")
                if not storage.is_remote(place):
                    raise InputError(f"what {step} has written lies in {place}, which cannot be read from here")
                return storage.localize(storage.join(place, name), Path(folder)).parent

            try:
                evaluation = Evaluation.load(fetch("evaluate_model", "evaluation", EVALUATION_FILE))
            except (InputError, PlatformError) as error:
                return cls(error=submission.error, unread=str(error) if submission.state is State.SUCCEEDED else "")
            try:
                preflight = PreflightReport.load(fetch("preflight_training", "preflight", PREFLIGHT_FILE))
            except (InputError, PlatformError):  # Also for a run without preflight.
                preflight = None
        champion = _champion(evaluation, lambda: champion_of(config, settings)) if preflight else None
        return cls(evaluation.gate.reasons, submission.error, evaluation, preflight, champion)


def _load(kind: type[_File], directory: Path) -> _File | None:
    try:
        return kind.load(directory)
    except InputError:
        return None


def _champion(evaluation: Evaluation | None, look_up: Callable[[], str]) -> NamedFootprint | None:
    """Return the training of the champion that an evaluation has compared with, where its version keeps that.

    Args:
        evaluation: The evaluation.
        look_up: Returns how the registry's champion is named now, of whatever version it is by now.
    """
    champion = evaluation.registered_champion if evaluation else None
    if not champion or not champion.version:
        return None
    try:
        return load_baseline(f"{look_up().rpartition('@')[0]}@{champion.version}")
    except (InputError, PlatformError):
        return None
