"""Compares runs side by side: metrics, speed, sizes, and differences between their configurations."""

import dataclasses
import json
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.formatting import percent, show
from tpu_components.core.base.states import State
from tpu_components.core.examples.artifacts import MODEL_FILE, TEST, VALIDATION, learning_rates, load_history
from tpu_components.core.examples.interface import TASKS, judged_figure
from tpu_components.core.files import storage
from tpu_components.core.machines.machine_spec import billed_by
from tpu_components.core.metrics.definitions import HIGHER, LOWER, NEITHER, direction
from tpu_components.core.pages import page
from tpu_components.core.pages.blocks import Cell, Section, Sentences, Table, cut
from tpu_components.core.pages.display import Displayed
from tpu_components.core.results.export_info import with_spread
from tpu_components.export_model.formats import FORMATS
from tpu_pipelines.runs.summary import Summary, TrainedModel, as_trained
from tpu_pipelines.runs.workspace import SUMMARY_FILE

_NOTHING = "–"
_MAX_TEXT = 60
_WIDTH = 110  # Of a terminal; wider comparisons have a line for each run.
_MOST_COLUMNS = 5  # Runs side by side on a page; with more, the page has a line for each run.
_FIGURES = 7  # Properties in a table of a page that has a line for each run.
_LABEL = 26
_LINES = (("-", "o"), (":", "s"), ("-.", "^"))  # Line and marker; when all colours are used, the next pair follows.
_LEGEND_CHARACTERS, _TITLED = 24, 3
_COUNTS = ("num_examples", "top_k", "num_absent_classes")
_NAMES = ("name", "deploy.registry", "deploy.model_name")  # Keys that are ignored when runs are compared.
_CURVES = ("loss", "penalty", *(task.metric for task in TASKS.values()))
_JUDGED = tuple(task.judged for task in TASKS.values())


@dataclasses.dataclass(frozen=True)
class ComparedRun:
    """Results of a run.

    Attributes:
        label: Name of the run, unique in the comparison.
        summary: Content of the run's `summary.json`.
        hyperparameters: Hyper-parameters of the training run, by name; see `as_trained`.
        trained: Facts about the training run: section `training` of `model.json`.
        history: One mapping of metrics per epoch. Empty if the run did not train.
        dataset: Fingerprint of the data set. Empty if the run did not train.
    """

    label: str
    summary: Summary
    hyperparameters: Mapping[str, Any]
    trained: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    history: tuple[Mapping[str, float | None], ...] = ()
    dataset: str = ""


@dataclasses.dataclass(frozen=True)
class Row:
    """One property of the compared runs, with its value for each run.

    Attributes:
        name: Name of the property.
        values: Value of each run, or None if a run has no value.
        texts: The formatted values.
        direction: Which values are better: `HIGHER`, `LOWER` or `NEITHER`.
    """

    name: str
    values: tuple[Any, ...]
    texts: tuple[str, ...]
    direction: int = NEITHER

    @property
    def best(self) -> frozenset[int]:
        """Set that contains the index of the best run. Empty if runs tie, or if fewer than two runs have a value."""
        known = [value for value in self.values if value is not None] if self.direction else []
        if len(known) < 2:
            return frozenset()
        top = self.values.index(max(known) if self.direction == HIGHER else min(known))
        return frozenset([top]) if self.texts.count(self.texts[top]) == 1 else frozenset()


@dataclasses.dataclass(frozen=True, repr=False)
class RunComparison(Displayed):
    """Comparison of runs.

    Attributes:
        runs: The runs, the best on the validation split first. If they are not ranked, they are in the requested order.
        sections: Rows by section: `validation`, `results`, `training`, `export`, `preflight` and `configuration`.
        notes: Remarks to read before trusting the comparison.
        ranked_by: Metric of the validation split that ranks the runs. Empty if they are not ranked.
    """

    runs: tuple[ComparedRun, ...]
    sections: Mapping[str, tuple[Row, ...]]
    notes: tuple[str, ...]
    ranked_by: str = ""

    @property
    def split(self) -> str:
        """The split that the gate scored. Its metrics are in the section `results`.

        Empty if the gates of the runs scored different splits.
        """
        return _common_split(self.runs)

    def heading(self, row: Row) -> str:
        """Return the heading of a column that shows a property of the runs.

        For a metric of the scored split, the heading is the split and the metric, such as `test accuracy`. For a
        setting, the heading is the setting without its section, such as `epochs`. For other properties, it is the name.
        """
        if row in self.sections.get("results", ()) and direction(row.name):
            return f"{self.split} {row.name}".lstrip()
        return row.name.rpartition(".")[2] if row in self.sections.get("configuration", ()) else row.name

    @property
    def advice(self) -> str:
        """Advice on how to choose a run, in words, or an empty string if the runs are not ranked."""
        if not self.ranked_by:
            return ""
        best = f"the best of {len(self.runs)} runs looks better there than it is"
        if self.split == VALIDATION:
            return f"Ranked by {self.ranked_by}: {best}. Judge it on the test split."
        other = f"the {self.split} split" if self.split else "the gate's metrics"
        return f"Ranked by {self.ranked_by}. Choose a run by the validation split, not by {other}: {best}."

    def __str__(self) -> str:
        return as_text(self)

    def rows(self) -> list[dict[str, Any]]:
        """Return one dict per run: the label of the run as `run`, and {property: value} for all sections."""
        properties = [row for rows in self.sections.values() for row in rows]
        return [
            {"run": run.label} | {row.name: row.values[place] for row in properties}
            for place, run in enumerate(self.runs)
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return a dict for JSON, with `runs`, `notes`, `ranked_by` and a key for each section.

        A section maps each property to a list with one value per run.
        """
        sections = {title: {row.name: list(row.values) for row in rows} for title, rows in self.sections.items()}
        runs = [run.label for run in self.runs]
        return {"runs": runs, **sections, "notes": list(self.notes), "ranked_by": self.ranked_by}


def select_runs(paths: Sequence[Path]) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Divide paths, such as those from `runs/*`, into finished runs and others.

    Raises:
        InputError: If a path does not exist, or none of the paths is a run.
    """
    if missing := [path for path in paths if not path.exists()]:
        raise InputError(f"Cannot compare {missing[0]}: there is no such folder. Check the path.")
    runs = tuple(path for path in paths if (path / SUMMARY_FILE).is_file())
    if not runs:
        raise InputError(
            f"Cannot compare {', '.join(map(str, paths))}: {SUMMARY_FILE} was not found there. Expected folders of "
            "runs that have ended, for example runs/digits."
        )
    return runs, tuple(path for path in paths if path not in runs)


def compare(folders: Sequence[Path]) -> RunComparison:
    """Compare runs.

    Args:
        folders: Folders of runs. A folder that is named twice, for example by a link to the latest run, counts once.

    Raises:
        InputError: If a folder is not a run's folder, or all folders are the same.
    """
    places = list(dict.fromkeys(folder.resolve() for folder in folders))
    if len(places) == 1 < len(folders):
        raise InputError(
            f"Cannot compare a run with itself. Received: {', '.join(map(str, folders))}. Name two or more runs."
        )
    runs = tuple(_load(place, label) for place, label in zip(places, _labels(places), strict=True))
    one_dataset = len({run.dataset for run in runs if run.dataset}) < 2
    runs, ranked_by = _rank(runs) if one_dataset else (runs, "")
    sections = {
        "validation": _validation(runs, one_dataset),
        "results": _results(runs, one_dataset),
        "training": _training(runs),
        "export": _export(runs, one_dataset),
        "preflight": _preflight(runs),
        "configuration": _configuration(runs),
    }
    notes = []
    if not one_dataset:
        notes.append("The runs were trained and scored on different data, so their results are not comparable.")
    elif not _common_split(runs):
        notes.append("The gates scored different splits (gate.split), so the results are not comparable.")
    elif not _have_common_examples(runs):
        notes.append(
            "The gates scored the runs on different examples, because a gate leaves out examples on which a model was "
            "trained. The results are not comparable."
        )
    notes += [f"{run.label} failed: {run.summary.error}" for run in runs if run.summary.status == State.FAILED]
    notes += [
        f"{run.label}: {absent:,} classes have no examples in the split and count as 0 in macro averages"
        for run in runs
        if (absent := run.summary.metrics.get("num_absent_classes", 0))
    ]
    return RunComparison(runs, {title: rows for title, rows in sections.items() if rows}, tuple(notes), ranked_by)


def _load(folder: Path, label: str) -> ComparedRun:
    summary = Summary.load(folder)
    model_dir = folder / "model"
    hyperparameters = as_trained(summary, folder).config["training"]
    if not (model_dir / MODEL_FILE).is_file():
        return ComparedRun(label, summary, hyperparameters)
    info = TrainedModel.load(model_dir)
    history = load_history(model_dir)
    return ComparedRun(label, summary, hyperparameters, info.training, history, info.dataset_fingerprint)


def _labels(places: Sequence[Path]) -> list[str]:
    """Return a unique name for each folder: its name, with as many parent folders as needed."""
    labels = [place.name for place in places]
    depth = 1
    while len(set(labels)) < len(labels):
        depth += 1
        labels = ["/".join(place.parts[-depth:]) for place in places]
    return labels


def _row(name: str, values: Iterable[Any], form: Callable[[Any], str] = str, direction: int = NEITHER) -> Row:
    values = tuple(values)
    return Row(name, values, tuple(_NOTHING if value is None else form(value) for value in values), direction)


def _known(*rows: Row) -> tuple[Row, ...]:
    """Return the rows in which at least one run has a value."""
    return tuple(row for row in rows if any(value is not None for value in row.values))


def _validation(runs: Sequence[ComparedRun], one_dataset: bool) -> tuple[Row, ...]:
    """Return, for each run, the validation metrics of the epoch whose weights were kept, as one row per metric."""
    kept = [
        next((epoch for epoch in run.history if epoch["epoch"] == run.trained.get("best_epoch")), {}) for run in runs
    ]
    names = dict.fromkeys((*(task.metric for task in TASKS.values()), "loss"))
    return _known(
        *(
            _row(
                f"validation {name}".replace("_", " "),
                [epoch.get(f"validation_{name}") for epoch in kept],
                show,
                direction(name) if one_dataset else NEITHER,
            )
            for name in names
        )
    )


def _rank(runs: tuple[ComparedRun, ...]) -> tuple[tuple[ComparedRun, ...], str]:
    """Return the runs, the best on the validation split first, and the name of the metric that ranks them.

    If fewer than two runs have a validation metric, the order is not changed, and the name is empty.
    """
    for row in _validation(runs, one_dataset=True):
        places = [place for place, value in enumerate(row.values) if value is not None]
        if row.direction and len(places) > 1:
            places.sort(key=lambda place: -row.direction * row.values[place])
            others = [place for place in range(len(runs)) if place not in places]
            return tuple(runs[place] for place in (*places, *others)), row.name
    return runs, ""


def _common_split(runs: Sequence[ComparedRun]) -> str:
    """Return the split on which the gate scored all runs that have metrics, or "" if the splits differ."""
    scored = [run.summary for run in runs if run.summary.metrics] or [runs[0].summary]
    splits = {summary.scored_split for summary in scored}
    return splits.pop() if len(splits) == 1 else ""


def _have_common_examples(runs: Sequence[ComparedRun]) -> bool:
    """Return whether the gate scored all runs on the same number of examples.

    The gate leaves out examples on which a model was trained.
    """
    return len({run.summary.metrics["num_examples"] for run in runs if "num_examples" in run.summary.metrics}) < 2


def _results(runs: Sequence[ComparedRun], one_dataset: bool) -> tuple[Row, ...]:
    metrics = [run.summary.metrics for run in runs]
    comparable = one_dataset and _common_split(runs) and _have_common_examples(runs)
    names = dict.fromkeys(name for figures in metrics for name in figures if name not in _COUNTS)
    return _known(
        _row("status", [run.summary.status for run in runs]),
        *(
            _row(name, [figures.get(name) for figures in metrics], show, direction(name) if comparable else NEITHER)
            for name in names
        ),
        _row("examples", [figures.get("num_examples") for figures in metrics], "{:,}".format),
    )


def _training(runs: Sequence[ComparedRun]) -> tuple[Row, ...]:
    def read(name: str, kind: Any = int | float) -> list[Any]:
        facts = [run.trained.get(name) for run in runs]  # An older file lacks some.
        return [fact if isinstance(fact, kind) else None for fact in facts]

    def read_settings(name: str, kind: Any = int | float) -> list[Any]:
        values = [run.hyperparameters.get(name) for run in runs]
        return [value if isinstance(value, kind) else None for value in values]

    devices = [
        f"{run.trained.get('num_replicas')} × {run.trained.get('accelerator')}" if run.dataset else None for run in runs
    ]
    return _known(
        _row("host", [run.summary.host or None for run in runs]),
        # To the minute, in UTC.
        _row("ended", [run.summary.ended or None for run in runs], lambda ended: ended[:16].replace("T", " ")),
        _row("epochs", read("epochs")),
        _row("optimizer", read_settings("optimizer", str)),
        _row("learning rate", [learning_rates(run.hyperparameters) or None for run in runs]),
        _row("batch per replica", read_settings("batch_size_per_replica"), "{:,}".format),
        _row("trained in, s", read("seconds"), "{:,.1f}".format, LOWER),
        _row("examples/s", read("examples_per_second"), "{:,.0f}".format, HIGHER),
        _row("sessions", read("sessions")),
        _row("goodput", read("goodput"), percent, HIGHER),
        _row("devices", devices),
        _row("precision", read("precision", str)),
        _row("backend", read("backend", str)),
    )


def _export(runs: Sequence[ComparedRun], one_dataset: bool) -> tuple[Row, ...]:
    rows: list[Row] = []
    exports = [run.summary.export for run in runs]
    splits = {run.summary.settings.get("export.split", TEST) for run in runs if run.summary.export}
    comparable = one_dataset and len(splits) < 2
    for form in FORMATS:
        facts = [export.formats.get(form) if export else None for export in exports]
        sizes = [fact and fact.bytes / 2**20 for fact in facts]
        latencies = [fact and fact.latency_ms for fact in facts]
        rates = [fact and fact.examples_per_second for fact in facts]
        rows.append(_row(f"{form}, MiB", sizes, "{:.2f}".format, LOWER))
        for figure in _JUDGED:
            scores = [
                fact.score if export and fact and export.judged == figure else None
                for export, fact in zip(exports, facts, strict=True)
            ]
            rows.append(_row(f"{form}, {figure}", scores, show, direction(figure) if comparable else NEITHER))
        rows.append(_row(f"{form}, ms for one", latencies, partial(with_spread, spread=None), LOWER))
        rows.append(_row(f"{form}, in bulk, per s", rates, partial(with_spread, spread=None), HIGHER))
    return _known(*rows)


def _preflight(runs: Sequence[ComparedRun]) -> tuple[Row, ...]:
    reports = [run.summary.preflight for run in runs]
    steps, epochs, costs = (
        [report and getattr(report, part) for report in reports] for part in ("step", "epoch", "cost")
    )
    return _known(
        _row("machine", [report and report.machine for report in reports]),
        _row("computation of a step, ms", [step and step.compute_ms for step in steps], "{:.3g}".format, LOWER),
        _row("epoch, s", [epoch and epoch.seconds for epoch in epochs], "{:.3g}".format, LOWER),
        _row("run, expected, $", [cost and cost.usd_per_run for cost in costs], "{:.2g}".format, LOWER),
        _row("which is", [cost and billed_by(cost.target) for cost in costs]),
    )


def _configuration(runs: Sequence[ComparedRun]) -> tuple[Row, ...]:
    """Return a row for each setting that differs between the configurations."""
    configs = [run.summary.settings for run in runs]
    rows = [
        _row(key, [config.get(key) for config in configs], _shorten)
        for key in dict.fromkeys(key for config in configs for key in config)
        if key not in _NAMES and not _is_told_by_its_section(key, configs)
    ]
    return tuple(row for row in rows if any(value != row.values[0] for value in row.values))


def _is_told_by_its_section(key: str, configs: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a setting differs only because some runs have its section switched off.

    An example is `preflight: false`.
    """
    section = key.rpartition(".")[0]
    values = [config[key] for config in configs if key in config]
    is_same = all(value == values[0] for value in values)
    return is_same and all(section in config for config in configs if key not in config)


def _shorten(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _MAX_TEXT else f"…{text[1 - _MAX_TEXT :]}"


def as_text(comparison: RunComparison) -> str:
    """Return tables for a terminal of 110 columns. A star marks the best value of each property.

    If one column per run fits, the tables have a column for each run and a line for each property. Otherwise, they have
    a line for each run and a column for each property. In that case, they show only properties that differ between the
    runs, and omit the sections `export` and `preflight`.
    """
    remarks = filter(None, [*comparison.notes, comparison.advice])
    ending = ["\n".join(textwrap.wrap(text, _WIDTH, break_on_hyphens=False)) for text in remarks]
    columns = {"": "<"} | {f"{run.label} ": ">" for run in comparison.runs}  # The space is for the star.
    blocks = []
    for title, rows in comparison.sections.items():
        cells = [
            [row.name, *(text + ("*" if place in row.best else " ") for place, text in enumerate(row.texts))]
            for row in rows
        ]
        blocks.append("\n".join([title, *(f"  {line}" for line in Table(columns, cells).lines())]))
    if max((len(line) for block in blocks for line in block.split("\n")), default=0) > _WIDTH:
        blocks = ["\n".join(_as_lines(comparison, rows)) for rows in _columns_that_fit(comparison)]
    return "\n\n".join([*blocks, *ending])


def _differing(comparison: RunComparison, *titles: str) -> list[Row]:
    """Return the rows whose values differ between the runs, from the sections with these titles."""
    rows = [row for title in titles for row in comparison.sections.get(title, ())]
    return [row for row in rows if len(set(row.texts)) > 1]


def _columns_that_fit(comparison: RunComparison) -> Iterator[list[Row]]:
    """Yield the differing rows in groups that fit a terminal as columns, the most important first."""
    left = _differing(comparison, "validation", "configuration", "results", "training")
    left.sort(key=lambda row: row.name not in (comparison.ranked_by, *_JUDGED))
    while left:
        count = 1
        while count < len(left) and max(map(len, _as_lines(comparison, left[: count + 1]))) <= _WIDTH:
            count += 1
        yield left[:count]
        left = left[count:]


def _as_lines(comparison: RunComparison, rows: Sequence[Row]) -> list[str]:
    """Return a table with a line for each run and a column for each row."""
    cells = [
        [cut(run.label, _LABEL), *(row.texts[place] + ("*" if place in row.best else " ") for row in rows)]
        for place, run in enumerate(comparison.runs)
    ]
    return Table({"run": "<"} | {f"{comparison.heading(row)} ": ">" for row in rows}, cells).lines()


def as_markdown(comparison: RunComparison) -> str:
    """Return a Markdown table with a row for each run: its metrics, speed, exports on a CPU, and machine."""
    rows = {row.name: row.texts for rows in comparison.sections.values() for row in rows}

    def join(place: int, *names: str) -> str:
        return " / ".join(rows[name][place] for name in names if name in rows)

    def judged(place: int) -> str:
        name = judged_figure(comparison.runs[place].summary.metrics)
        return f"{name.replace('_', ' ')} {rows[name][place]}" if name else _NOTHING

    columns = {
        "trained in, s": ["trained in, s"],
        "examples/s": ["examples/s"],
        **{
            f"{', '.join(FORMATS)}: {fact}": [f"{form}, {fact}" for form in FORMATS]
            for fact in ("MiB", *_JUDGED, "ms for one")
            if any(f"{form}, {fact}" in rows for form in FORMATS)
        },
    }
    hosts = rows.get("host", ())
    one_host = len(set(hosts)) == 1
    if hosts and not one_host:
        columns["host"] = ["host"]
    cells: list[list[str]] = [
        [run.label, judged(place), *(join(place, *names) for names in columns.values())]
        for place, run in enumerate(comparison.runs)
    ]
    scored = f"on the {comparison.split} split" if comparison.split else "on the split of its gate"
    lines: list[str] = [Table(dict.fromkeys(["run", scored, *columns], "<"), cells).markdown()]
    if one_host:
        lines += ["", f"Host: {hosts[0]}."]
    for note in comparison.notes:
        lines += ["", note]
    if len(comparison.runs) > 2 and comparison.advice:
        lines += ["", comparison.advice]
    return "\n".join(lines)


def check_page(path: Path) -> None:
    """Check that the HTML page can be written to a path.

    Raises:
        InputError: If the path does not end in .html, or the file cannot be written.
    """
    if path.suffix not in (".html", ".htm"):
        raise InputError(f"Cannot write {path}: expected a name that ends in .html. Choose another name.")
    storage.require_file(path)


def write_page(comparison: RunComparison, path: Path) -> None:
    """Write the comparison, with the curves of all training runs, as a self-contained HTML page.

    For up to five runs, the tables have a column for each run and a line for each property. For more runs, they have a
    line for each run and a column for each property, and show only properties that differ between the runs.
    """
    names = [run.label for run in comparison.runs]
    columns: dict[str | Cell, str] = {"": "<"}
    columns |= {Cell(name, f"series{place % len(page.SERIES)}"): ">" for place, name in enumerate(names)}
    sections = []
    for title, rows in comparison.sections.items():
        cells: list[list[str | Cell]] = [
            [row.name, *(Cell(text, "best" if place in row.best else "") for place, text in enumerate(row.texts))]
            for row in rows
        ]
        curves = [list(_curves(comparison.runs))] if title == "training" else []
        heading = "Differences in configuration" if title == "configuration" else title.capitalize()
        tables = [Table(columns, cells)] if len(names) <= _MOST_COLUMNS else _tables_of_lines(comparison, title)
        if tables or any(curves):
            sections.append(Section(heading, [*tables, *curves]))
    title = f"{', '.join(names[:_TITLED])}{' and more' if len(names) > _TITLED else ''}: {len(names)} runs"
    head = [Sentences(comparison.notes, passed=False)] if comparison.notes else []
    head += [Sentences([comparison.advice])] if comparison.advice else []
    storage.write_bytes(path, page.render(title, sections, head).encode())


def _tables_of_lines(comparison: RunComparison, title: str) -> list[Table]:
    """Return tables of a section with a line for each run, each with as many columns as fit a page."""
    rows = _differing(comparison, title)
    return [
        Table(
            {"run": "<"} | {comparison.heading(row): ">" for row in some},
            [
                [
                    f"{place + 1} {run.label}",  # As in the legends of the curves.
                    *(Cell(row.texts[place], "best" if place in row.best else "") for row in some),
                ]
                for place, run in enumerate(comparison.runs)
            ],
        )
        for some in (rows[start : start + _FIGURES] for start in range(0, len(rows), _FIGURES))
    ]


def _curves(runs: Sequence[ComparedRun]) -> Iterator[Any]:
    """Yield a chart of each metric in the histories. The legend has the number and name of each run."""
    followed = dict.fromkeys(name for run in runs for epoch in run.history for name in epoch)
    for name in (name for name in followed if name.removeprefix("validation_") in _CURVES):

        def plot(axes: Any, figure: str = name) -> None:
            for place, run in enumerate(runs):
                points = [(epoch["epoch"], epoch[figure]) for epoch in run.history if epoch.get(figure) is not None]
                if points:
                    turn, place_of_color = divmod(place, len(page.SERIES))
                    style, marker = _LINES[turn % len(_LINES)]
                    color = page.SERIES[place_of_color]
                    name = re.sub(r"[^\w./-]", "_", run.label)  # Other characters have a meaning for matplotlib.
                    label = f"{place + 1} {name[-_LEGEND_CHARACTERS:]}"
                    # A marker for each epoch, because a run of one epoch has no line.
                    axes.plot(
                        *zip(*points, strict=True),
                        color=color,
                        label=label,
                        linestyle=style,
                        marker=marker,
                        markersize=3.5,
                    )
            page.mark_epochs(axes)
            page.legend(axes)

        title = name.replace("_", " ")
        yield page.draw(title, "epoch", title, plot)
