"""Runs the whole pipeline on this machine with kfp.local.

The pipeline object is the same as the one that is compiled for the cloud.
"""

import contextlib
import dataclasses
import functools
import importlib.util
import io
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from tpu_components.core.base import extras
from tpu_components.core.base.digest import digest_of
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.import_path import safe_children, with_variables
from tpu_components.core.base.progress import TERMINAL_VARIABLE, is_quiet, is_verbose, say, show_line
from tpu_components.core.base.states import State
from tpu_components.core.base.terminal import hide_credentials, paragraph
from tpu_components.core.component.step_record import RUN_VARIABLE, RUNNER_VARIABLE, STEP_RECORD_FILE, StepRecord
from tpu_components.core.examples.artifacts import (
    PREFLIGHT_FILE,
    PREFLIGHT_REPORT_FILE,
    REPORT_FILE,
    Manifest,
    ModelInfo,
)
from tpu_components.core.files import storage
from tpu_components.core.files.location import Location
from tpu_components.core.machines.device import describe_host
from tpu_components.core.registry.opening import open_registry, parse_reference
from tpu_components.core.registry.reference import MODEL_DIR, reference
from tpu_components.core.registry.versions import Version, model_digest, now
from tpu_components.core.results.evaluation_info import Decision, Evaluation
from tpu_components.core.results.export_info import ExportInfo
from tpu_components.core.results.receipt import Receipt
from tpu_components.core.sources.listing import Listing
from tpu_components.core.sources.params import LOCAL
from tpu_components.deploy_model.params import DeployResult
from tpu_components.preflight_training.findings import PreflightReport
from tpu_components.preflight_training.receipts.store import RECEIPTS_VARIABLE
from tpu_pipelines.config.configuration import Config
from tpu_pipelines.config.steps import STEP_TABLE, STEPS
from tpu_pipelines.pipeline.cache_keys import lineage, step_keys
from tpu_pipelines.platforms.local.runner import Runner, session
from tpu_pipelines.runs import history, tracking
from tpu_pipelines.runs.prerequisites import check_accelerator, check_model_works, needs_check
from tpu_pipelines.runs.resolution import LocalRun, resolve
from tpu_pipelines.runs.step_cache import StepCache, entry_key
from tpu_pipelines.runs.summary import StepSummary, Summary
from tpu_pipelines.runs.workspace import LOG_FILE, SUMMARY_FILE, check_history, history_dir

# Pages that `artifacts` of a summary names: the step that writes each, and its file.
_PAGES = {
    "preflight_report": ("preflight_training", PREFLIGHT_REPORT_FILE),
    "report": ("evaluate_model", REPORT_FILE),
}


@dataclasses.dataclass(frozen=True)
class RunOutcome:
    """Summary of a run, and whether a failure was caused by a mistake of the user."""

    summary: Summary
    is_input_error: bool = False


def run_local(
    config: Config,
    workspace: Path,
    runner: Runner = Runner.SUBPROCESS,
    force: bool = False,
    tell: Callable[[RunOutcome], Any] = lambda _: None,
    listing: Listing | None = None,
) -> RunOutcome:
    """Run the pipeline on this machine.

    If the inputs, parameters and code of a step are unchanged, its result is taken from an earlier run.

    The previous run with the same name is moved to a numbered folder; see `tpu_pipelines.runs.history`.

    Args:
        config: Configuration to run.
        workspace: Folder for runs. The results are written to `workspace/<name>`.
        runner: `subprocess`, or `docker` with the image in TPU_PIPELINES_IMAGE.
        force: Whether to run every step, even if it is unchanged.
        tell: Function that is called with the outcome before it is recorded in an experiment tracker, which may not
            respond.
        listing: Examples of the data set. If None, this function lists them.

    Raises:
        InputError: If the data or the configuration cannot be used, or TensorFlow or Keras is not installed. This is
            checked before any step runs.
    """
    for package in ("keras", "tensorflow") if runner is Runner.SUBPROCESS else ():
        if importlib.util.find_spec(package) is None:
            raise InputError(extras.advice_for(package))
    tracker = tracking.chosen_tool()
    start = time.monotonic()
    run = resolve(config, workspace, listing)
    run_dir = run.run_dir
    with _only_run(run_dir, run.cache_dir):
        session = _LocalSession(run, force)
        if runner is Runner.SUBPROCESS and not session.is_trained:
            check_accelerator(run.config.training)
        if needs_check(run.config) and not session.is_trained:
            say("train_model", "testing the model before training")
            check_model_works(run.config, run.data)
        if not session.is_the_same_again():
            history.set_aside(run_dir)
        run_dir.mkdir(exist_ok=True)
        (run_dir / SUMMARY_FILE).unlink(missing_ok=True)  # It describes the previous run.
        if (run_dir / LOG_FILE).is_symlink() or not (run_dir / LOG_FILE).is_file():
            storage.new_file(run_dir / LOG_FILE).close()
        with storage.naming_full_disk(run_dir), safe_children():
            session.run(runner)
        outcome = session.finish(start)
        tell(outcome)
        tracking.record(run_dir, tracker)
        return outcome


@contextlib.contextmanager
def _only_run(run_dir: Path, cache_dir: Path) -> Iterator[None]:
    """Hold the lock of a run, so that no other process writes to its folders.

    The operating system releases the lock when the process ends in any way.

    Raises:
        InputError: If another process holds the lock.
    """
    cache_dir.mkdir(parents=True, exist_ok=True)
    run_dir.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(storage.locked(cache_dir / "lock", wait=False))
        except BlockingIOError as error:
            raise InputError(
                f"Another run is writing to {run_dir}. Wait until it ends, or use another workspace or name."
            ) from error
        yield


class _StepOutput(io.TextIOBase):
    """Writes the output of kfp.local and the steps to the log. The lines of the steps are also written to stderr."""

    def __init__(self, log: TextIO) -> None:
        self._log = log
        self._line = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self._log.write(hide_credentials(line) + "\n")
            if is_verbose() or (not is_quiet() and line.strip().startswith(tuple(f"[{step}]" for step in STEPS))):
                show_line(line.strip())
        self._log.flush()
        return len(text)


class _LocalSession:
    """Prepares the cache for a run, runs the pipeline and publishes the results."""

    def __init__(self, run: LocalRun, force: bool = False) -> None:
        self._run = run
        self._config = run.config  # Aliases of models are replaced with their versions below.
        self._run_dir = run.run_dir
        self._cache_dir = run.cache_dir
        self._cache = StepCache(run.cache_dir)
        # The last process of an interrupted run may still write into its folder.
        self._earlier = set(run.cache_dir.glob("training-pipeline-*"))
        if force:
            self._cache.keep_only(())
            shutil.rmtree(run.cache_dir / "checkpoints", ignore_errors=True)
        data = run.data_version
        self._receipts = run.receipts
        receipts_digest = self._receipts.digest() if run.config.preflight else ""
        self._step_keys = functools.partial(step_keys, data=data, receipts_digest=receipts_digest)
        self._keys = self._step_keys(self._config)
        self._drop_leftovers()
        if not force:
            self._share_records()
        initial_digest = self._pin_initial_model()
        self._champion, champion_digest = self._pin_champion()
        self._keys = self._step_keys(run.config, champion_digest=champion_digest, initial_digest=initial_digest)
        self._drop_undone_deployment()
        self._steps = run.config.steps
        self._cached = {step for step in self._steps if self._outputs(step) is not None}

    @property
    def _checkpoint_dir(self) -> Path:
        return self._cache_dir / "checkpoints" / self._keys["train_model"][:16]

    @property
    def is_trained(self) -> bool:
        """Whether the trained model is taken from the cache."""
        return "train_model" in self._cached

    def _entry(self, step: str) -> str:
        return entry_key(step, self._keys[step])

    def _outputs(self, step: str) -> Path | None:
        """Return the path of the step's artifact in the cache, or None if the step is not done."""
        return self._cache.output(self._entry(step), STEP_TABLE[step].artifact)

    def _drop_leftovers(self) -> None:
        """Remove cached records that do not match their manifest, and leftovers of interrupted runs."""
        self._drop_damaged(self._outputs("create_tfrecords"))
        self._cache.drop_leftovers()
        storage.drop_half_written(self._run_dir)
        for replaced in self._run_dir.glob(".*.old"):
            shutil.rmtree(replaced, ignore_errors=True)

    def _pin_initial_model(self) -> str:
        """Replace the alias of the initial model with its version. Return the model's digest for the cache keys.

        If an earlier run of this configuration created that version, return the digest of the model with which the
        earlier run started. In that case, the cache keys are equal, and the results are reused.
        """
        config = self._config
        named = config.training.initial_model
        if not named:
            return ""
        if (referred := parse_reference(named)) is None:
            is_here = not Location(named).is_remote
            initial = model_digest(Path(named)) if is_here else digest_of([storage.list_files(named)])
        elif (version := referred[0].find(referred[1])) is None:
            return ""
        else:
            if isinstance(version, Version):
                made = ModelInfo.load(version.directory / MODEL_DIR).training.get("initial_model_digest", "")
                self._keys = self._step_keys(config, initial_digest=str(made))
                trained = self._outputs("train_model")
                if trained and model_digest(trained) == version.model_digest:
                    return str(made)
            initial = version.model_digest
            pinned = reference(referred[0].root, referred[0].model_name, version.number)
            self._config = config.changed("training", initial_model=pinned)
        self._keys = self._step_keys(config, initial_digest=initial)
        return initial

    def _pin_champion(self) -> tuple[str, str]:
        """Return the reference of the champion's current version, and its model's digest for the cache keys.

        If the champion is not a registered version, return the configured champion and an empty digest.

        The run uses this version to its end, and deploy_model checks whether the alias has moved since then. If an
        earlier execution of this run already made its model the champion, return the version before it, so that a
        repeated run has the same keys.
        """
        if (named := parse_reference(self._config.champion)) is None:
            return self._config.champion, ""
        (registry, version), trained = named, self._outputs("train_model")
        champion = registry.champion(version, model_digest(trained) if trained else "")
        if champion is None:
            return self._config.champion, ""
        return reference(registry.root, registry.model_name, champion.number), champion.model_digest

    def _drop_undone_deployment(self) -> None:
        """Remove the cached deployment if its version is no longer the champion, because the step has to run again."""
        deployment = self._outputs("deploy_model")
        deploy = self._config.deploy
        if deployment is not None and deploy is not None:
            current = open_registry(deploy.registry, deploy.model_name).find(deploy.alias)
            if not current or current.number != DeployResult.load(deployment).version:
                self._cache.remove(deployment)

    def is_the_same_again(self) -> bool:
        """Return whether the workspace already contains all results of this run. Then no step needs to run."""
        there = Summary.find(self._run_dir)
        same = there is not None and there.fingerprints == self._run.fingerprints
        return same and self._cached.issuperset(self._expected(self._evaluation()))

    def _share_records(self) -> None:
        """Reuse records from another run in the workspace, by hard links, if that run has cached the same step.

        Nothing happens if this run has its records already.
        """
        others = sorted(path for path in self._cache_dir.parent.iterdir() if path.is_dir() and not path.is_symlink())
        for other in others:
            if self._outputs("create_tfrecords") is not None:
                return
            self._drop_damaged(self._cache.adopt(self._entry("create_tfrecords"), "records", other))

    def _drop_damaged(self, records: Path | None) -> None:
        if records is None:
            return
        try:
            Manifest.load(records)
        except InputError as error:
            print(paragraph(f"hint: cached records are not used: {error}"), file=sys.stderr)
            self._cache.remove(records)

    def run(self, runner: Runner) -> None:
        """Run the pipeline. The outcome is read from the files that the steps write."""
        known = self._expected(self._evaluation())
        for step in known:
            if step in self._cached:
                say(step, "unchanged, taken from the cache")
        # Importing kfp takes 2 s: not needed if all steps are cached.
        if self._cached.issuperset(known):
            return
        from tpu_pipelines.pipeline.training_pipeline import training_pipeline

        variables = {
            "AIP_CHECKPOINT_DIR": str(self._checkpoint_dir),
            RUNNER_VARIABLE: str(os.getpid()),
            RUN_VARIABLE: self._config.name,
            RECEIPTS_VARIABLE: self._receipts.uri,
        }
        if sys.stderr.isatty():
            variables[TERMINAL_VARIABLE] = "1"
        with (
            storage.new_file(self._run_dir / LOG_FILE) as log,
            contextlib.redirect_stdout(_StepOutput(log)),
            with_variables(variables),
            session(runner, self._config, self._cache_dir, self._cache.for_kfp()),
        ):
            config = self._config
            if "create_tfrecords" in self._cached:  # The records are cached, so there is nothing to fan out.
                config = config.changed("data", engine=LOCAL)
            pipeline = training_pipeline(
                config,
                cache_keys=self._keys,
                data_version=self._run.source_version,
                lineage=lineage(self._config),
                images=self._run.images,
            )
            pipeline(champion=self._champion)

    def _evaluation(self) -> Evaluation | None:
        """Return the evaluation in the cache, or None if the step is not done."""
        path = self._outputs("evaluate_model")
        return None if path is None else Evaluation.load(path)

    def _expected(self, evaluation: Evaluation | None) -> list[str]:
        """Return the expected steps. Export and deployment are expected only if the gate promotes the model."""
        promoted = evaluation is not None and evaluation.gate.promote
        return [step for step in self._steps if promoted or not STEP_TABLE[step].needs_promotion]

    def finish(self, start: float) -> RunOutcome:
        """Publish the artifacts of the steps that are done, and write the summary."""
        evaluation = self._evaluation()
        expected = self._expected(evaluation)
        done = {step: path for step in expected if (path := self._outputs(step)) is not None}
        failure, report = self._failure()
        if failure is None and (missing := [step for step in expected if step not in done]):
            failure = StepRecord(
                missing[0], State.FAILED, error=f"the step did not run; see {self._run_dir / LOG_FILE}"
            )
        if report:  # The report explains why the run stopped.
            done["preflight_training"] = report
        folders = {name: self._run_dir / step.folder for name, step in STEP_TABLE.items()}
        for name, folder in folders.items():
            if name in done:
                storage.link_tree(done[name], folder)
            else:
                shutil.rmtree(folder, ignore_errors=True)
        if "train_model" in done:
            shutil.rmtree(self._checkpoint_dir.parent, ignore_errors=True)
        preflight = PreflightReport.load(folders["preflight_training"]) if "preflight_training" in done else None
        deployment = DeployResult.load(folders["deploy_model"]) if "deploy_model" in done else None
        artifacts = {folder.name: str(folder) for name, folder in folders.items() if name in done}
        artifacts |= {name: str(folders[step] / page) for name, (step, page) in _PAGES.items() if step in done}
        gate = evaluation.gate if evaluation else Decision(False, ())
        summary = Summary(
            status=State.FAILED if failure else State.SUCCEEDED if gate.promote else State.REJECTED,
            config=self._config.as_dict(),
            fingerprints=self._run.fingerprints,
            seconds=time.monotonic() - start,
            ended=now(),
            host=describe_host(),
            steps={step: self._step_summary(step, done.get(step), failure) for step in STEPS},
            metrics=evaluation.metrics if evaluation else {},
            gate=gate,
            preflight=preflight.machines[0] if preflight else None,  # The machine that the run is for.
            receipt=self._receipt(done),
            export=ExportInfo.load(folders["export_model"]) if "export_model" in done else None,
            deployment=deployment,
            artifacts=artifacts | ({"version": deployment.version_dir} if deployment else {}),
            error=f"{failure.step}: {failure.error}" if failure else "",
        )
        summary.save(self._run_dir)
        return RunOutcome(summary, bool(failure and failure.is_input_error))

    def _receipt(self, done: Mapping[str, Path]) -> Receipt | None:
        """Return the receipt of the training, with preflight's prediction if the model was evaluated."""
        receipts = (Receipt.find(done[step]) for step in ("evaluate_model", "train_model") if step in done)
        return next(filter(None, receipts), None)

    def _failure(self) -> tuple[StepRecord | None, Path | None]:
        """Return the record of the failed step, if there is one, and preflight's report if preflight failed."""
        folders = (path for path in self._cache_dir.glob("training-pipeline-*") if path not in self._earlier)
        for path in (path for folder in folders for path in folder.rglob(STEP_RECORD_FILE)):
            record = StepRecord.load(path.parent)
            if record.state == State.FAILED:
                report = path.parent / STEP_TABLE["preflight_training"].artifact
                return record, report if (report / PREFLIGHT_FILE).is_file() else None
        return None, None

    def _step_summary(self, step: str, artifact: Path | None, failure: StepRecord | None) -> StepSummary:
        cached = step in self._cached
        if failure and failure.step == step:
            return StepSummary(failure.seconds, State.FAILED, False)
        if artifact is None:
            return StepSummary(0.0, State.SKIPPED, False)
        has_record = not cached and (artifact.parent / STEP_RECORD_FILE).is_file()
        return StepSummary(StepRecord.load(artifact.parent).seconds if has_record else 0.0, State.SUCCEEDED, cached)


@dataclasses.dataclass(frozen=True)
class Deleted:
    """Folders of deleted runs, and the number of freed bytes."""

    places: tuple[Path, ...]
    num_bytes: int


def delete_runs(workspace: Path, name: str, number: str = "", keep: int = 0) -> Deleted:
    """Delete one run with a given name, or all runs before the latest.

    Also delete the cached steps that no other run uses.

    Args:
        workspace: Folder for runs.
        name: Name of the runs. At least one run with this name must exist.
        number: Number of the run, or `history.LATEST`. Empty means all runs before the latest, except the newest `keep`
            runs.
        keep: If `number` is empty, the number of earlier runs to keep, in addition to the latest run.

    Raises:
        InputError: If a run with that name is in progress.
    """
    run_dir = workspace.absolute() / name
    cache_dir = workspace.absolute() / ".cache" / name
    places = (run_dir, history_dir(run_dir), cache_dir)
    with _only_run(run_dir, cache_dir):
        check_history(run_dir)
        before = history.own_bytes(places)
        dropped = [history.delete_one(run_dir, number)] if number else history.delete_earlier(run_dir, keep)
        if number == history.LATEST:  # A killed or failed run would be continued from its cached steps.
            shutil.rmtree(cache_dir / "checkpoints", ignore_errors=True)
        StepCache(cache_dir).keep_only(folder for _, folder in history.runs_of(run_dir) if folder.is_dir())
        with contextlib.suppress(OSError):  # The folder contains the latest run.
            run_dir.rmdir()
        return Deleted(tuple(dropped), before - history.own_bytes(places))
