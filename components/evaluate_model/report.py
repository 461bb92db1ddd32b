"""The evaluation as one HTML file that needs nothing else: no network, no script, no second file."""

import base64
import dataclasses
import functools
import io
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import markupsafe
import numpy as np
from PIL import Image

from tpu_components.core.examples.interface import TASKS
from tpu_components.core.pages import page
from tpu_components.core.pages.blocks import Cell, Fields, Figure, Sentences, Table
from tpu_components.core.pages.scores import Score, list_scores, percent, table_of
from tpu_components.core.results.evaluation_info import Baseline, Difference, Rule, Slice
from tpu_components.core.results.metric_table import BY_NAME, scalars, show
from tpu_components.evaluate_model.language_model import LanguageMetrics, Passage, Sample
from tpu_components.evaluate_model.metrics import ClassMetrics, Metrics, macro_notes
from tpu_components.evaluate_model.multi_label import LabelMetrics, MultiLabelMetrics
from tpu_components.evaluate_model.regression import RegressionMetrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PICTURE_PIXELS = 96  # Side of a card's picture, as CSS shows it.
_TEXT_START, _TEXT_END = 300, 400  # Characters of a long text that a card shows.
_MAX_MATRIX_CLASSES = 30
_MAX_PAIRS = _MAX_SLICES = 30
_MAX_DOTS = 500
_WRONG = "Wrong predictions"
_BITS_OF_FULL_COLOUR = 10.0  # One chance in a thousand.
_MAX_CHARTED_TARGETS = 8
# Of an epoch, by what the host waited for: see `Stopwatch` of train_model.
_TIMES = (
    ("compute_seconds", "the device computes", page.BLUE),
    ("input_seconds", "it waits for input", page.ORANGE),
    ("checkpoint_seconds", "for checkpoints", page.GREEN),
    ("host_seconds", "for the host", page.VIOLET),
)
_COMPUTES_AND_IS_FED = ("compute_seconds", "the device computes and is fed", page.BLUE)
_CURVES = ("loss", "penalty", *(task.metric for task in TASKS.values()))


@dataclasses.dataclass(frozen=True)
class Answer:
    """A line below an example: what the model answered, or the truth.

    Attributes:
        name: A class, a label or a target; or what the number is.
        number: The probability, or the number, as it is shown.
        look: `good` or `bad`; empty for neither.
        note: Word before the name, such as `true`; empty for the model's own answer.
    """

    name: str
    number: str = ""
    look: str = ""
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Prediction:
    """One example to show.

    Attributes:
        key: The example's name, such as its file's path.
        content: An image, uint8[height, width, channels] of one channel or three; or a text.
        answers: The lines below it.
    """

    key: str
    content: np.ndarray | str
    answers: Sequence[Answer]


@dataclasses.dataclass(frozen=True)
class ReportContent:
    """The content of the report, from top to bottom.

    Attributes:
        title: Heading and page title.
        facts: Facts about the model, the data and the evaluation.
        metrics: The model's figures.
        champion: The figures of the model in service, on the same examples, if there is one.
        promote: The gate's decision.
        reasons: The rules that it follows from.
        history: One mapping per epoch with `epoch`, `loss`, the task's metric and, where measured, `validation_loss`,
            the metric with the same prefix, `learning_rate` and `examples_per_second`; empty if unknown.
        wrong: Mistakes to show, the worst first; of a regression, predictions by their error.
        num_wrong: Number of mistakes in all.
        right: Right predictions to show.
        broken: Predictions to show that are wrong where the champion is right, the worst first.
        changed: Numbers of examples that only the model has right, and only the champion; None without one.
        answers: True and predicted numbers of a regression, float[examples, targets] each.
        baseline: Figure of the best constant answer.
        intervals: Bounds of figures with 95 % confidence, by name; empty where they are of other examples.
        differences: The model beside the champion, by figure; see `intervals`.
        slices: Parts of the examples; shown, the worst beside the champion's first, where there is one.
        samples: Texts that a language model wrote.
        passages: Passages that it found hardest.
        subtitle: Facts that tell this run from others of the name: when, at which rate, where.
    """

    title: str
    facts: Mapping[str, str]
    metrics: Any
    champion: Any
    promote: bool
    reasons: Sequence[Rule]
    history: Sequence[Mapping[str, float | None]]
    wrong: Sequence[Prediction] = ()
    num_wrong: int = 0
    right: Sequence[Prediction] = ()
    broken: Sequence[Prediction] = ()
    changed: tuple[int, int] | None = None
    answers: tuple[np.ndarray, np.ndarray] | None = None
    baseline: Baseline | None = None
    intervals: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    differences: Mapping[str, Difference] = dataclasses.field(default_factory=dict)
    slices: Sequence[Slice] = ()
    samples: Sequence[Sample] = ()
    passages: Sequence[Passage] = ()
    subtitle: str = ""


@dataclasses.dataclass(frozen=True)
class _Confusion:
    """Examples of one class that were taken for another; `share` is of all examples of the true class."""

    true_class: str
    predicted_class: str
    count: int
    share: float


def render_report(content: ReportContent) -> str:
    """Return the report as one HTML document; the same content gives the same text.

    Names, keys and reasons are shown as they are, whatever characters they hold. Pictures are inlined; larger ones
    are reduced to 192 pixels.
    """
    title = "Passed the gate" if content.promote else "Did not pass the gate"
    rules = [f"{'✓' if rule.passed else '✗'} {rule.text}" for rule in content.reasons]
    folder = Path(__file__).parent
    templates = page.environment(folder, percent=percent, data_uri=_data_uri, number=plain_number, cut=_cut)
    return templates.get_template("report.html.jinja").render(
        content=content,
        title=content.title,
        subtitle=content.subtitle,
        head=[Sentences(rules, title, content.promote), Fields(list(content.facts.items()))],
        metrics=content.metrics,
        figures=[
            *_headline_figures(
                content.metrics, content.champion, content.baseline, content.intervals, content.differences
            ),
            *_counts(content.metrics),
        ],
        curves=_training_curves(content.history),
        slices=_slices(content.slices),
        picture_pixels=_PICTURE_PIXELS,
        **_sections(content.metrics, content),
    )


def _counts(metrics: Any) -> list[Figure]:
    if isinstance(metrics, LanguageMetrics):
        return [Figure("Characters", f"{metrics.num_characters:,}"), Figure("Unknown", f"{metrics.num_unknown:,}")]
    return [Figure("Examples", f"{metrics.num_examples:,}")]


@functools.singledispatch
def _sections(metrics: Any, content: ReportContent) -> dict[str, Any]:
    """Return what the page shows of this task alone, and as `body` the template that shows it."""
    raise TypeError(f"No report of {type(metrics)}.")


@_sections.register
def _(metrics: Metrics, content: ReportContent) -> dict[str, Any]:
    return {
        "body": "classification.html.jinja",
        "wrong": _WRONG,
        "wrong_note": "the most confident first: the model's answer, the true class, and the probability of each.",
        "classes": sorted(metrics.per_class, key=_weakest_first),
        "matrix": _matrix(metrics) if len(metrics.per_class) <= _MAX_MATRIX_CLASSES else None,
        "pairs": _confused_pairs(metrics),
        "reliability": page.draw(
            "reliability", "confidence", "accuracy", lambda axes: _plot_reliability(axes, metrics)
        ),
        "roc": page.draw("roc", "false positive rate", "true positive rate", lambda axes: _plot_roc(axes, metrics))
        if metrics.roc
        else None,
    }


@_sections.register
def _(metrics: MultiLabelMetrics, content: ReportContent) -> dict[str, Any]:
    return {
        "body": "multi_label.html.jinja",
        "wrong": _WRONG,
        "wrong_note": "the greatest loss first: labels predicted wrongly, rightly, and missed, with their probability.",
        "classes": sorted(metrics.per_class, key=_weakest_first),
    }


@_sections.register
def _(metrics: RegressionMetrics, content: ReportContent) -> dict[str, Any]:
    charts = []
    if content.answers is not None:
        # Evenly over the examples: more dots hide each other.
        shown = np.unique(np.linspace(0, metrics.num_examples - 1, _MAX_DOTS).astype(int))
        targets, values = (numbers[shown] for numbers in content.answers)
        for i, target in enumerate(metrics.per_target[:_MAX_CHARTED_TARGETS]):
            charts.append((target.name, *_draw_target(i, targets[:, i], values[:, i])))
    return {
        "body": "regression.html.jinja",
        "wrong": "Largest errors",
        "wrong_note": "the greatest loss first; an error is the predicted number less the true one.",
        "charts": charts,
        "num_dots": min(metrics.num_examples, _MAX_DOTS),
    }


@_sections.register
def _(metrics: LanguageMetrics, content: ReportContent) -> dict[str, Any]:
    return {"body": "language.html.jinja", "full_colour": _BITS_OF_FULL_COLOUR}


def _draw_target(number: int, true: np.ndarray, predicted: np.ndarray) -> tuple[markupsafe.Markup, markupsafe.Markup]:
    """Draw predicted by true numbers, and what is left (predicted - true) by predicted ones."""

    def plot_predicted(axes: "Axes") -> None:
        ends = [float(true.min()), float(true.max())]
        axes.plot(ends, ends, color=page.INK, linewidth=1, linestyle="--", label="perfect")
        axes.scatter(true, predicted, s=9, color=page.BLUE, alpha=0.5, linewidths=0, label="model")
        page.legend(axes)

    def plot_residuals(axes: "Axes") -> None:
        axes.axhline(0, color=page.INK, linewidth=1, linestyle="--")
        axes.scatter(predicted, predicted - true, s=9, color=page.BLUE, alpha=0.5, linewidths=0)

    return (
        page.draw(f"target {number + 1}", "true", "predicted", plot_predicted),
        page.draw(f"residuals {number + 1}", "predicted", "predicted − true", plot_residuals),
    )


def plain_number(value: float) -> str:
    """Return a number of any size, to four digits."""
    return f"{value:.4g}".replace("-", "\N{MINUS SIGN}")


def _headline_figures(
    metrics: Any,
    champion: Any,
    baseline: Baseline | None,
    intervals: Mapping[str, tuple[float, float]],
    differences: Mapping[str, Difference],
) -> list[Figure]:
    """Return the headline figures that are defined, each beside the champion's, with what to know of them.

    See `ReportContent` for the arguments.
    """
    notes = macro_notes(metrics)
    if baseline is not None and baseline.value is not None:
        value = percent(baseline.value, 2) if BY_NAME[baseline.metric].is_share else show(baseline.value)
        notes[baseline.metric] = f"baseline {value}: {baseline.answer}"
    theirs, top_k = scalars(champion) if champion else {}, getattr(metrics, "top_k", None)
    figures = []
    for score in list_scores(metrics.task, scalars(metrics), theirs, intervals, differences, top_k):
        if score.metric.is_headline:
            interval, note = Cell(score.interval, "note"), Cell(notes.get(score.metric.name, ""), "note")
            beside: list[str | Cell] = (
                [f"champion {score.champion}", Cell(score.difference, score.look)] if score.champion else []
            )
            details = [cell for cell in (interval, *beside, note) if str(cell)]
            figures.append(Figure(score.label, score.value, details))
    return figures


def _slices(slices: Sequence[Slice]) -> Table | None:
    """Return the slices that fell furthest behind the champion's, each with its figure."""
    compared = [(part.difference.advantage, i) for i, part in enumerate(slices) if part.difference]
    scores = [Score.of_slice(slices[i]) for _, i in sorted(compared)[:_MAX_SLICES]]
    return table_of("slice", scores) if scores else None


def _weakest_first(item: ClassMetrics | LabelMetrics) -> tuple[bool, float]:
    return item.support == 0, item.f1


def _confused_pairs(metrics: Metrics) -> list[_Confusion]:
    names = [item.name for item in metrics.per_class]
    pairs = [
        _Confusion(names[i], names[j], count, count / metrics.per_class[i].support)
        for i, row in enumerate(metrics.confusion_matrix)
        for j, count in enumerate(row)
        if i != j and count
    ]
    return sorted(pairs, key=lambda pair: (-pair.count, -pair.share))[:_MAX_PAIRS]


def _matrix(metrics: Metrics) -> list[tuple[str, list[_Confusion]]]:
    """Return a row per true class, with its name."""
    names = [item.name for item in metrics.per_class]
    return [
        (
            item.name,
            [
                _Confusion(item.name, name, count, count / max(1, item.support))
                for name, count in zip(names, row, strict=True)
            ],
        )
        for item, row in zip(metrics.per_class, metrics.confusion_matrix, strict=True)
    ]


def _cut(text: str) -> str:
    """Return a text's beginning and end, without markup for line breaks."""
    plain = " ".join(re.sub(r"<br */?>", " ", text).split())
    if len(plain) <= _TEXT_START + _TEXT_END:
        return plain
    return f"{plain[:_TEXT_START]} […] {plain[-_TEXT_END:]}"


def _data_uri(pixels: np.ndarray) -> str:
    image = Image.fromarray(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels)
    image.thumbnail((2 * _PICTURE_PIXELS, 2 * _PICTURE_PIXELS))  # Twice: screens of phones are dense.
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _training_curves(history: Sequence[Mapping[str, float | None]]) -> list[markupsafe.Markup]:
    """Return a drawing for every figure that the history has, of training and validation, and one of the time."""
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    def curve(name: str, lines: Iterable[tuple[str, str, str]]) -> markupsafe.Markup:
        def plot(axes: "Axes") -> None:
            for figure, label, color in lines:
                points = [(row["epoch"], row[figure]) for row in history if row.get(figure) is not None]
                if points:
                    marker = "o" if len(points) <= 30 else ""
                    axes.plot(*zip(*points, strict=True), label=label, color=color, marker=marker, markersize=3)
            for before, row in itertools.pairwise(history):
                if before.get("stage") != row.get("stage"):
                    axes.axvline((row["epoch"] or 0) - 0.5, color=page.INK, linewidth=1, linestyle=":")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            if name.endswith("accuracy"):
                axes.yaxis.set_major_formatter(PercentFormatter(1))
            page.legend(axes)

        return page.draw(f"training {name}", "epoch", name, plot)

    def has(figure: str) -> bool:
        return any(row.get(figure) is not None for row in history)

    curves = [
        curve(
            metric.replace("_", " "),
            ((metric, "train", page.BLUE), (f"validation_{metric}", "validation", page.ORANGE)),
        )
        for metric in _CURVES
        if has(metric)
    ]
    if not has("compute_seconds"):
        return curves
    # Where nobody measures the input, as with TensorFlow, it is a part of what the device takes.
    times = _TIMES if has("input_seconds") else (_COMPUTES_AND_IS_FED, *_TIMES[2:])
    return [*curves, curve("seconds", times)]


def _plot_reliability(axes: "Axes", metrics: Metrics) -> None:
    bins = metrics.calibration
    axes.plot([0, 1], [0, 1], color=page.INK, linewidth=1, linestyle="--", label="perfect")
    axes.bar(
        [item.lower for item in bins],
        [item.accuracy for item in bins],
        width=[item.upper - item.lower for item in bins],
        align="edge",
        color=page.BLUE,
        alpha=0.25,
    )
    axes.scatter(
        [item.confidence for item in bins],
        [item.accuracy for item in bins],
        s=[12 + 120 * item.count / metrics.num_examples for item in bins],
        color=page.BLUE,
        label="model",
        zorder=3,
        clip_on=False,
    )
    _unit_square(axes)


def _plot_roc(axes: "Axes", metrics: Metrics) -> None:
    axes.plot([0, 1], [0, 1], color=page.INK, linewidth=1, linestyle="--", label="chance")
    axes.plot(
        [0, *(point.false_positive_rate for point in metrics.roc)],
        [0, *(point.true_positive_rate for point in metrics.roc)],
        color=page.BLUE,
        label="model",
    )
    _unit_square(axes)


def _unit_square(axes: "Axes") -> None:
    from matplotlib.ticker import PercentFormatter

    axes.set(xlim=(0, 1), ylim=(0, 1.02))
    axes.xaxis.set_major_formatter(PercentFormatter(1))
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    page.legend(axes)
