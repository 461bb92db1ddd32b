"""Records runs in an experiment tracker: MLflow or Weights & Biases."""

import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.retries import PlatformError
from tpu_components.core.base.states import State
from tpu_components.core.base.terminal import hide_credentials, paragraph
from tpu_components.core.base.termination import end_with
from tpu_components.core.examples.artifacts import TEST, load_history
from tpu_components.core.files import storage
from tpu_components.core.work.workers import in_fresh_process
from tpu_pipelines.runs.summary import Summary, as_trained
from tpu_pipelines.runs.workspace import SUMMARY_FILE

VARIABLE = "TPU_PIPELINES_TRACKING"
TRACKED_FILE = "tracking.json"  # In a run's folder: the tool and the address of its record.
_LIMIT_SECONDS = 60.0


def chosen_tool() -> str:
    """Return the tool in TPU_PIPELINES_TRACKING, or an empty string if the variable is not set.

    Raises:
        InputError: If the tool is unknown or not installed.
    """
    tool = os.environ.get(VARIABLE, "")
    if tool and tool not in _TOOLS:
        raise InputError(f"Cannot use {VARIABLE}: expected {' or '.join(_TOOLS)}, received {tool!r}.")
    try:
        if tool:
            importlib.import_module(tool)
    except ImportError as error:
        raise InputError(f"{VARIABLE} is {tool}, but this tool is not installed. Run: pip install {tool}") from error
    return tool


def record(run_dir: Path, tool: str, limit_seconds: float = _LIMIT_SECONDS) -> None:
    """Record a run in a tracker: settings, metrics of each epoch and of the scored split, price, version and report.

    A run is recorded once. An error is printed as a hint, because the run itself is done. To try again, run the same
    command again. The tool runs in a separate process, which is killed after the time limit, because a server that
    does not respond keeps its client busy for minutes.

    Args:
        run_dir: The run's folder, with its `summary.json`.
        tool: Name of the tool, from `chosen_tool`. If empty, nothing is recorded.
        limit_seconds: Time limit.
    """
    if not tool or (run_dir / TRACKED_FILE).exists():
        return
    try:
        place = in_fresh_process(_record, run_dir, tool, seconds=limit_seconds)
    except (PlatformError, RuntimeError) as error:
        is_late = isinstance(error.__cause__, TimeoutError)
        reason = f"it did not respond within {limit_seconds:g} s" if is_late else str(error).rstrip(".")
        text = f"hint: the run was not recorded in {tool}: {reason}. Run the same command again to record it."
        print(paragraph(text), file=sys.stderr)
        return
    storage.write_json(run_dir / TRACKED_FILE, {"tool": tool, "place": place})
    print(paragraph(f"recorded in {tool}: {place}"), file=sys.stderr)


def _record(run_dir: Path, tool: str) -> str:
    """Record a run, and return the address of the record without credentials."""
    end_with(os.getppid())
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # A tool that asks for a key gets no answer.
    try:
        return hide_credentials(_TOOLS[tool](Summary.load(run_dir), run_dir))
    except Exception as error:  # Each tool has errors of its own, and none may cost a training.
        raise PlatformError(hide_credentials(str(error) or type(error).__name__)) from None


def _settings(summary: Summary, run_dir: Path) -> dict[str, Any]:
    summary = as_trained(summary, run_dir)
    return {name: value for name, value in summary.settings.items() if value not in ("", None, [], ())}


def _figures(values: Mapping[str, Any], before: str = "") -> dict[str, float]:
    return {before + name: value for name, value in values.items() if isinstance(value, int | float)}


def _epochs(run_dir: Path) -> Iterator[tuple[int, dict[str, float]]]:
    for epoch in load_history(run_dir / "model"):
        yield int(epoch["epoch"] or 0), _figures({name: value for name, value in epoch.items() if name != "epoch"})


def _results(summary: Summary) -> dict[str, float]:
    """Return the summary's metrics, `run_seconds`, and preflight's expected price as `expected_usd`.

    The metrics are named `test_NAME`. If the gate scored another split, they are named, for example,
    `final_validation_NAME`, because each epoch has a `validation_NAME`.
    """
    prefix = "test_" if summary.scored_split == TEST else f"final_{summary.scored_split}_"
    cost = summary.preflight.cost if summary.preflight else None
    price = {"expected_usd": cost.usd_per_run} if cost and cost.usd_per_run is not None else {}
    return _figures(summary.metrics, prefix) | price | {"run_seconds": summary.seconds}  # An epoch has `seconds` too.


def _name(summary: Summary, run_dir: Path) -> str:
    """Return the name of a record: the minute in which the run ended.

    The experiment has the name of the run.
    """
    return summary.ended[:16].replace("T", " ") or run_dir.name


def _labels(summary: Summary) -> dict[str, str]:
    version = summary.artifacts.get("version", "")
    return {"status": summary.status, "model_version": version, "host": summary.host, **summary.fingerprints}


def _files(run_dir: Path) -> Iterator[Path]:
    wanted = (SUMMARY_FILE, "evaluation/report.html", "preflight/preflight.html", "records/data.html")
    return (path for path in map(run_dir.joinpath, wanted) if path.is_file())


def _to_mlflow(summary: Summary, run_dir: Path) -> str:
    """Record a run in MLflow at MLFLOW_TRACKING_URI, in an experiment with the run's name. Return its address."""
    import mlflow

    mlflow.set_experiment(run_dir.name)
    # After an error, the block ends the run as failed: the process may record another one.
    with mlflow.start_run(run_name=_name(summary, run_dir), tags=_labels(summary)) as run:
        mlflow.log_params(_settings(summary, run_dir))
        for epoch, figures in _epochs(run_dir):
            mlflow.log_metrics(figures, step=epoch)
        mlflow.log_metrics(_results(summary))
        for path in _files(run_dir):
            mlflow.log_artifact(str(path))
        mlflow.end_run("FAILED" if summary.status == State.FAILED else "FINISHED")
    return f"{mlflow.get_tracking_uri()}, run {run.info.run_id}"


def _to_wandb(summary: Summary, run_dir: Path) -> str:
    """Record a run in Weights & Biases, in a project with the run's name. Return its address.

    wandb reads the variables WANDB_….
    """
    import wandb

    run = wandb.init(
        project=run_dir.name,
        name=_name(summary, run_dir),
        config=_settings(summary, run_dir),
        dir=str(run_dir),
    )
    for epoch, figures in _epochs(run_dir):
        run.log(figures, step=epoch)
    run.summary.update({**_labels(summary), **_results(summary)})
    for path in _files(run_dir):
        run.save(str(path), base_path=str(run_dir), policy="now")
    run.finish(exit_code=int(summary.status == State.FAILED))
    return str(run.url or Path(run.dir).parent)  # Offline, the folder that `wandb sync` takes.


_TOOLS = {"mlflow": _to_mlflow, "wandb": _to_wandb}
