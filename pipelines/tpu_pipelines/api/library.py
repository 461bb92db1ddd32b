"""Public functions of `tpu_pipelines`: the commands, which also accept Keras models and NumPy arrays."""

import dataclasses
import hashlib
import html
import inspect
import io
import json
import math
import os
import re
import tempfile
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.formatting import show
from tpu_components.core.base.states import State
from tpu_components.core.base.terminal import visible
from tpu_components.core.examples.artifacts import EXPORT_FILE, PREFLIGHT_FILE, REPORT_FILE, load_history
from tpu_components.core.files import storage
from tpu_components.core.files.location import Location
from tpu_components.core.pages.display import Displayed
from tpu_components.core.registry.reference import EXPORT_DIR
from tpu_components.core.registry.versions import fetch_folder
from tpu_components.core.results.evaluation_info import Rule
from tpu_components.core.sources.params import WriteParams
from tpu_components.preflight_training import report
from tpu_components.preflight_training.findings import PreflightReport
from tpu_components.preflight_training.receipts.store import ReceiptStore
from tpu_components.serving.inputs import ExamplePrediction, predict_inputs
from tpu_pipelines.api.turns import in_turn
from tpu_pipelines.checks.check_list import UNASKED, examine
from tpu_pipelines.config.configuration import load_config, read_data
from tpu_pipelines.config.schema import settings
from tpu_pipelines.config.settings import load_settings
from tpu_pipelines.platforms.findings import Finding, as_lines, errors_in
from tpu_pipelines.runs import comparison
from tpu_pipelines.runs.exports import export_run, find_export
from tpu_pipelines.runs.run_local import run_local
from tpu_pipelines.runs.summary import Summary, as_text
from tpu_pipelines.sizing import preflight as compiling
from tpu_pipelines.starting.data_overview import DataOverview, look_at, source_of
from tpu_pipelines.starting.first_configuration import batch_for

Place = str | Path
_WORKSPACE = Path("runs")
# Default share of the examples in the training split.
_TRAINED = 1 - WriteParams.validation_fraction - WriteParams.test_fraction
_OBJECTS_DIR = ".objects"  # Folder in a workspace for models and arrays that are passed as objects.


class RunFailedError(RuntimeError):
    """Raised when a step of a run fails; `summary` is the content of summary.json."""

    def __init__(self, summary: Mapping[str, Any]) -> None:
        super().__init__(summary["error"])
        self.summary = summary


@dataclasses.dataclass(frozen=True)
class Page:
    """An HTML page that a notebook shows as the output of a cell.

    Attributes:
        text: HTML of the page.
        height: Height in a notebook, in pixels.
    """

    text: str = dataclasses.field(repr=False)
    height: int

    def _repr_html_(self) -> str:
        # In an iframe, so that the styles of page and notebook do not mix.
        return (
            f'<iframe srcdoc="{html.escape(self.text)}" width="100%" height="{self.height}" frameborder="0"></iframe>'
        )


@dataclasses.dataclass(frozen=True, repr=False)
class Run(Displayed):
    """A finished run of the pipeline. `to_pandas` returns the training history with one row per epoch.

    Attributes:
        path: Folder of the run.
        facts: Content of summary.json, as a dataclass.
    """

    path: Path
    facts: Summary

    def __str__(self) -> str:
        return as_text(self.facts)

    def rows(self) -> list[dict[str, Any]]:
        """Return the training history as `history` does: one mapping per epoch."""
        return self.history()

    @property
    def summary(self) -> Mapping[str, Any]:
        """Content of summary.json, as plain values."""
        return self.facts.as_dict()

    @property
    def name(self) -> str:
        """The configuration's name."""
        return str(self.facts.config["name"])

    @property
    def status(self) -> str:
        """`succeeded`, `rejected` by the gate, or `failed`."""
        return self.facts.status

    @property
    def metrics(self) -> Mapping[str, float | None]:
        """Metrics on the split that the gate scores, by name. An undefined metric is None."""
        return self.facts.metrics

    @property
    def reasons(self) -> tuple[Rule, ...]:
        """Outcomes of the gate's rules; each has `passed`, `metric` and `text`."""
        return self.facts.gate.reasons

    @property
    def report(self) -> Path:
        """Path of the evaluation's HTML report."""
        return self.path / "evaluation" / REPORT_FILE

    def history(self) -> list[dict[str, Any]]:
        """Return the training history: for each epoch, a mapping of losses, metrics, learning rate and seconds."""
        return list(map(dict, load_history(self.path / "model")))

    def plot(self) -> Page:
        """Return a page with charts of the losses, the metrics and the time per epoch."""
        from tpu_components.core.pages import page
        from tpu_components.evaluate_model.report import chart_training

        blocks = chart_training(self.history())
        num_charts = sum(len(block) for block in blocks if isinstance(block, list))
        height = 120 + 385 * math.ceil(num_charts / 2)  # Pixels of the heading, and of each row of two charts.
        return Page(page.render(f"Training of {self.name}", blocks), height)

    def show(self) -> Page:
        """Return the evaluation's HTML report as a page for a notebook."""
        return Page(self.report.read_text(encoding="utf-8"), 800)

    @in_turn
    def export(self, **settings: Any) -> Path:
        """Export the model, even if the gate has rejected it, and return the export's folder.

        Args:
            settings: Settings of the configuration section `export`. They override the settings of the run.
        """
        overrides = _overrides("export", settings)
        output = self.path / EXPORT_DIR
        export_run(self.path, overrides, output)
        return output

    def predict(self, *inputs: Place | np.ndarray, top: int = 3) -> list[ExamplePrediction]:
        """Return predictions of the run's exported model.

        `inputs` and `top` have the same meaning as in `tpu_pipelines.predict`.

        Raises:
            InputError: If the run has exported no model, for example because the gate has rejected it.
        """
        if not (self.path / EXPORT_DIR / EXPORT_FILE).is_file():
            raise InputError(
                f"Cannot predict with {self.name}: the run's status is '{self.status}', and it has no exported model. "
                "Call `export()` on the run to export the model even if the gate rejected it."
            )
        return predict(self.path, *inputs, top=top)

    def _repr_html_(self) -> str:
        known = {name: value for name, value in self.metrics.items() if value is not None}
        rows = {name: f"{value:,}" if isinstance(value, int) else show(value) for name, value in known.items()}
        rows |= {name: State.CACHED if step.cached else step.state for name, step in self.facts.steps.items()}
        cells = (f"<tr><th>{html.escape(name)}</th><td>{html.escape(text)}</td></tr>" for name, text in rows.items())
        items = "".join(f"<li>{html.escape(str(rule))}</li>" for rule in self.reasons)
        table = f"<table>{''.join(cells)}</table>"
        return visible(f"<h4>{html.escape(self.name)}: {self.status}</h4>{table}<ul>{items}</ul>")


@dataclasses.dataclass(frozen=True, repr=False)
class Checks(Displayed):
    """Findings of `check` on a configuration."""

    findings: tuple[Finding, ...]

    @property
    def is_sound(self) -> bool:
        """Whether a run can start, that is, whether no finding is an error."""
        return not errors_in(self.findings)

    def __str__(self) -> str:
        return "\n".join(f"{state:<9}{text}" for state, text in as_lines(self.findings))

    def rows(self) -> list[dict[str, Any]]:
        """Return the fields of each finding."""
        return [finding.as_dict() for finding in self.findings]


def _overrides(section: str, settings: Mapping[str, Any]) -> list[str]:
    return [f"{section}.{key}={json.dumps(value)}" for key, value in settings.items()]


@in_turn
@storage.naming_faults()
def look(data: Any, kind: str = "", **settings: Any) -> DataOverview:
    """Inspect data, and return an overview: number of examples, classes, sizes and damaged files.

    Args:
        data: A folder, a file, a source such as `images:DIR`, or arrays in any form that `train` accepts.
        kind: Kind of the data: `images`, `csv`, `texts`, `arrays` or `corpus`. It is only needed if it cannot be
            detected from the files.
        settings: Settings of the configuration section `data`.

    Returns:
        An overview of the data, which prints as text.

    Raises:
        InputError: If the data cannot be used.
    """
    with tempfile.TemporaryDirectory(prefix="look-") as scratch:
        section = {"source": source_of(str(data), kind)} if kind else data_section(data, Path(scratch))
        source = section.pop("source")
        overrides = _overrides("data", section | settings)
        return look_at(read_data(source, overrides), overrides)


@in_turn
@storage.naming_faults()
def train(
    model: Any,
    data: Any,
    *,
    name: str = "",
    workspace: Place = _WORKSPACE,
    force: bool = False,
    **sections: Any,
) -> Run:
    """Train, evaluate, export and register a model on this machine.

    Steps that have not changed since an earlier run are skipped, and their results are reused.

    Args:
        model: A keras.Model, whose current weights are the initial weights; the name of a ready-made model; or the
            path of a model file.
        data: Arrays `(x, y)`, or `((x, y), (x_validation, y_validation))`; a mapping of arrays with keys such as
            `x_train`; a folder, file or source; or a mapping with the settings of the configuration section `data`.
        name: Name of the run. The default is the name of the model.
        workspace: Folder for runs.
        force: Whether to run every step, even if it has not changed.
        sections: Other sections of a configuration, for example `training={"epochs": 3}`. The settings of all sections
            are listed at the end of `help(tpu_pipelines.train)`. If `data` is a tuple of arrays, the default batch size
            grows with the number of training examples, from 8 to 128 (for 2,560 examples or more).

    Returns:
        The run, even if the gate has rejected its model.

    Raises:
        InputError: If the model, the data or a setting cannot be used.
        RunFailedError: If a step failed.
    """
    config = training_config(model, data, Location(workspace).as_path() / _OBJECTS_DIR, name, sections)
    return run(config, workspace=workspace, force=force)


def training_config(
    model: Any, data: Any, folder: Path, name: str = "", sections: Mapping[str, Any] = {}
) -> dict[str, Any]:
    """Return the configuration that `train` runs. Models and arrays are saved as files in `folder`.

    The name of each file contains a hash of its content.

    Args:
        model: Model in any form that `train` accepts.
        data: Data in any form that `train` accepts. For a tuple of arrays, the default batch size depends on the number
            of training examples.
        folder: Folder for models and arrays. It is created if it is missing.
        name: Name of the run. The default is the name of the model.
        sections: Other sections of the configuration.

    Raises:
        InputError: If the model or the data cannot be used.
    """
    default = dict[str, Any]()
    if isinstance(data, tuple):
        data = _by_name(data)
        trained = len(data["x_train"]) if "x_train" in data else math.ceil(_TRAINED * len(data["x"]))
        default = {"training": {"batch_size_per_replica": batch_for(trained), **sections.get("training", {})}}
    raw = {"data": data_section(data, folder), "model": model_value(model, folder), **sections, **default}
    named = model if isinstance(model, str | Path) else model.name
    raw["name"] = name or Path(str(named).rpartition(":")[2]).stem
    return raw


@in_turn
@storage.naming_faults()
def run(
    config: Place | Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    workspace: Place = _WORKSPACE,
    force: bool = False,
) -> Run:
    """Run the whole pipeline on this machine.

    Steps that have not changed since an earlier run are skipped, and their results are reused.

    Args:
        config: Name of an example configuration that comes with the package, path of a YAML file, or a mapping of
            sections.
        overrides: Changed settings, each in the form `section.key=value`.
        workspace: Folder for runs.
        force: Whether to run every step, even if it has not changed.

    Returns:
        The run, even if the gate has rejected its model.

    Raises:
        InputError: If the configuration or the data cannot be used.
        RunFailedError: If a step failed.
    """
    folder = Location(workspace).as_path()
    outcome = run_local(load_config(config, overrides), folder, force=force)
    summary = outcome.summary
    if outcome.is_input_error:
        raise InputError(summary.error)
    if summary.status == State.FAILED:
        raise RunFailedError(summary.as_dict())
    return Run(folder / summary.config["name"], summary)


def load_run(path: Place) -> Run:
    """Load a finished run from its folder.

    Raises:
        InputError: If the folder does not contain a run.
    """
    return Run(Path(path), Summary.load(Path(path)))


def compare(*runs: Place | Run) -> comparison.RunComparison:
    """Return a comparison of runs: metrics, speed, sizes, and the differences between their configurations.

    Args:
        runs: Runs, or folders of runs.

    Raises:
        InputError: If an argument is not a run, or all arguments are the same run.
    """
    return comparison.compare([run.path if isinstance(run, Run) else Path(run) for run in runs])


@in_turn
@storage.naming_faults()
def check(config: Place | Mapping[str, Any], overrides: Sequence[str] = (), *, workspace: Place = _WORKSPACE) -> Checks:
    """Check a configuration within seconds for problems that would stop a run or bias its result.

    `config`, `overrides` and `workspace` have the same meaning as in `run`.

    Returns:
        The findings, which print as text. The property `is_sound` says whether a run can start.

    Raises:
        InputError: If the configuration cannot be read, or a key or value is wrong.
    """
    parsed = load_config(config, overrides)
    return Checks(
        tuple(examine(parsed, UNASKED, settings=load_settings(os.environ), workspace=Location(workspace).as_path()))
    )


@dataclasses.dataclass(frozen=True, repr=False)
class Preflight(Displayed, PreflightReport, name=PREFLIGHT_FILE, what="a preflight report", step="preflight_training"):
    """Findings of preflight for each machine; see `PreflightReport`."""

    def __str__(self) -> str:
        return report.as_text(self)

    def rows(self) -> list[dict[str, Any]]:
        """Return one mapping per machine: the fields of its findings, except that `layers` is the number of layers."""
        return [{**machine.as_dict(), "layers": len(machine.layers)} for machine in self.machines]


@in_turn
@storage.naming_faults()
def preflight(
    config: Place | Mapping[str, Any],
    *machines: str,
    overrides: Sequence[str] = (),
    workspace: Place = _WORKSPACE,
) -> Preflight:
    """Compile the training step for TPUs, without a TPU, and estimate its memory, time and price.

    Args:
        config: Configuration in any form that `run` accepts.
        machines: Names of machines, for example v5e-4. If there are none, the machines of the configuration are used.
        overrides: Changed settings, each in the form `section.key=value`.
        workspace: Folder for the report.

    Returns:
        The findings for each machine, which print as text.

    Raises:
        InputError: If the configuration cannot be used, or the compiler is not installed.
    """
    parsed = load_config(config, overrides)
    folder = Location(workspace).as_path() / f"{parsed.name}-preflight"
    store = ReceiptStore.of_workspace(Location(workspace).as_path())
    compiling.preflight(parsed, machines, folder, region=load_settings(os.environ).region, store=store)
    return Preflight.load(folder)


@in_turn
@storage.naming_faults()
def predict(
    model: Place, *inputs: Place | np.ndarray, top: int = 3, workspace: Place = _WORKSPACE
) -> list[ExamplePrediction]:
    """Return the predictions of an exported model for images or texts, on CPU.

    Args:
        model: Folder of an export or a run, or a registered model: `NAME`, `NAME@ALIAS` or `NAME@0001`.
        inputs: Files, folders or texts, as for the command `predict`, or arrays of images, uint8[N, height, width,
            channels].
        top: Number of most probable classes to return for each input.
        workspace: Folder for runs, which also contains the registry.

    Raises:
        InputError: If the model does not exist, or an input cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="predict-") as scratch:
        export_dir = fetch_folder(find_export(str(model), Location(workspace).as_path()), Path(scratch))
        answers = predict_inputs(export_dir, [*input_paths(inputs, Path(scratch))], top)
        return [dataclasses.replace(answer, name=answer.name.removeprefix(f"{scratch}/")) for answer in answers]


def input_paths(inputs: Sequence[Any], folder: Path) -> Iterator[str]:
    """Yield the inputs of `predict` as paths or texts. Arrays are saved as .npy files in `folder`.

    Args:
        inputs: Paths or texts, lists of them, or arrays of images, uint8[N, height, width, channels].
        folder: Existing folder for the arrays.
    """
    for i, item in enumerate(inputs):
        if isinstance(item, str | Path):
            yield str(item)
        elif isinstance(item, list | tuple) and all(isinstance(path, str | Path) for path in item):
            yield from map(str, item)
        else:
            path = folder / f"array_{i}.npy"
            np.save(path, _as_array(item))
            yield str(path)


def _as_array(values: Any) -> np.ndarray:
    """Return values as an array of numbers or strings.

    Raises:
        InputError: If rows differ in length, or a value is neither a number nor a string.
    """
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise InputError(
            f"Cannot convert the lists to an array: {str(error).rstrip('.')}. Use rows of equal length."
        ) from error
    if array.dtype.hasobject and all(isinstance(value, str) for value in array.flat):  # As pandas holds strings.
        array = array.astype(str)
    if array.dtype.hasobject:
        kinds = ", ".join(sorted({type(value).__name__ for value in array.flat}))
        raise InputError(f"Cannot use an array of {kinds}: expected only numbers or only strings. Convert the values.")
    return array


def model_value(model: Any, folder: Path) -> Any:
    """Return the section `model` of a configuration for a model. A Keras model is saved as a file in `folder`.

    The name of the saved file contains a hash of the model.

    Raises:
        InputError: If `model` is neither a Keras model nor a name, path or mapping, or if the shapes of a Keras model
            are unknown.
    """
    if isinstance(model, str | Path | Mapping):
        return str(model) if isinstance(model, Path) else model
    import keras

    if not isinstance(model, keras.Model):
        raise InputError(
            f"Cannot train {type(model).__name__}: expected a keras.Model, the name of a ready-made model such as "
            "'digits_cnn', or the path of a model file."
        )
    if not model.built:
        raise InputError(
            "Cannot train a model with unknown shapes. Start it with keras.Input(image_shape, dtype='uint8')."
        )
    digest = hashlib.sha256(model.to_json().encode())
    for weight in model.get_weights():
        digest.update(weight.tobytes())
    plain = re.sub(r"[^\w-]", "_", model.name)
    path = folder / f"{plain}-{digest.hexdigest()[:12]}.keras"
    if not path.is_file():  # A second save would change the file's bytes, and so its digest.
        path.parent.mkdir(parents=True, exist_ok=True)
        model.save(path)
    return str(path)


def data_section(data: Any, folder: Path) -> Any:
    """Return the section `data` of a configuration for some data. Arrays are saved as one file in `folder`.

    The name of the file contains a hash of the arrays.

    Args:
        data: Data in any form that `train` accepts.
        folder: Folder for the arrays. It is created if it is missing.

    Raises:
        InputError: If `train` does not accept data of this type or form.
    """
    if isinstance(data, str | Path):
        return {"source": source_of(str(data))}
    if isinstance(data, tuple):
        data = _by_name(data)
    if not isinstance(data, Mapping):
        raise InputError(
            f"Cannot use {type(data).__name__} as data: expected (x, y), a mapping of arrays, a folder or file, or the "
            "section `data` of a configuration."
        )
    arrays = {name: value for name, value in data.items() if hasattr(value, "__array__")}
    if not arrays:
        return dict(data)
    settings = {name: value for name, value in data.items() if name not in arrays}
    return {"source": f"npz:{_save_arrays(arrays, folder)}", **settings}


def _by_name(arrays: Sequence[Any]) -> dict[str, np.ndarray]:
    """Return arrays by name: `x` and `y` for (x, y), and `x_train`, …, `y_validation` for ((x, y), (x, y))."""
    is_split = all(isinstance(pair, tuple) for pair in arrays)
    pairs = dict(zip(("_train", "_validation"), arrays, strict=False)) if is_split else {"": arrays}
    if len(arrays) != 2 or any(len(pair) != 2 for pair in pairs.values()):
        raise InputError(
            f"Cannot use {len(arrays)} arrays: expected (x, y), or ((x, y), (x_validation, y_validation))."
        )
    return {side + split: _as_array(array) for split, (x, y) in pairs.items() for side, array in (("x", x), ("y", y))}


def _save_arrays(arrays: Mapping[str, Any], folder: Path) -> Path:
    plain = {name: np.ascontiguousarray(_as_array(value)) for name, value in sorted(arrays.items())}
    digest = hashlib.sha256()
    for name, value in plain.items():
        digest.update(repr((name, value.dtype.str, value.shape)).encode())
        digest.update(value.tobytes())
    path = folder / f"arrays-{digest.hexdigest()[:12]}.npz"
    if not path.is_file():
        np.savez(buffer := io.BytesIO(), **plain)  # type: ignore[arg-type]  # NumPy's own flag is a keyword too.
        storage.write_bytes(path, buffer.getvalue())
    return path


def _list_settings() -> Iterator[str]:
    """Yield lines for `help`: every setting with its default and meaning."""
    for setting in settings():
        default = "" if setting.default is None else f" = {json.dumps(setting.default)}"
        yield f"    {setting.name}{default}"
        yield textwrap.indent(textwrap.fill(setting.meaning, 100), " " * 8)


if train.__doc__:  # Python's -OO leaves out docstrings.
    train.__doc__ = "\n".join([inspect.cleandoc(train.__doc__), "", "Settings:", *_list_settings()])
