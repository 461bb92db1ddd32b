"""Renders the evaluation as a single HTML file that needs no network access and no scripts.

The report shows the decision, the metrics, the training run, and examples: wrong predictions, the worst first, and
correct predictions.
"""

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import markupsafe
import numpy as np

from tpu_components.core.base.formatting import percent, plain_number, show
from tpu_components.core.examples.artifacts import Manifest, ModelInfo, learning_rates
from tpu_components.core.examples.generation import Alphabet, generate
from tpu_components.core.examples.interface import (
    CLASSIFICATION,
    LANGUAGE_MODEL,
    MULTI_LABEL,
    PADDING,
    REGRESSION,
    TASKS,
    THRESHOLD,
    Task,
)
from tpu_components.core.metrics.definitions import BY_NAME
from tpu_components.core.metrics.details import list_confusions, macro_notes
from tpu_components.core.pages import page
from tpu_components.core.pages.blocks import (
    Block,
    Card,
    Cell,
    Figure,
    Matrix,
    Passage,
    Section,
    Table,
)
from tpu_components.core.pages.evaluation import (
    compare_slices,
    describe_decision,
    describe_training,
    list_replicas,
    list_settings,
    tabulate_names,
)
from tpu_components.core.pages.pictures import show_picture
from tpu_components.core.pages.receipts import compare_prediction
from tpu_components.core.pages.scores import list_scores
from tpu_components.core.results.evaluation_info import Evaluation
from tpu_components.core.results.receipt import Receipt

_MAX_SHOWN_CLASSES = 30  # In the matrix on the page.
_MAX_PAIRS = 30
# Time of an epoch by what the host waited for: see `Stopwatch` of train_model.
_TIMES = (
    ("compute_seconds", "the device computes", page.BLUE),
    ("input_seconds", "the device waits for input", page.ORANGE),
    ("checkpoint_seconds", "for checkpoints", page.GREEN),
    ("host_seconds", "the device waits for the host", page.VIOLET),
)
_COMPUTES_AND_IS_FED = ("compute_seconds", "the device computes, including its input", page.BLUE)
_CURVES = ("loss", "penalty", *(task.metric for task in TASKS.values()))
_RIGHT_EXAMPLES = 20
_PICTURE_PIXELS = 96  # Side of a card's picture, as CSS shows it.
_TEXT_START, _TEXT_END = 300, 400  # Characters of a long text that a card shows.
_MAX_DOTS = 500
_MAX_CHARTED_TARGETS = 8
_TEMPERATURES = (0.5, 1.0)
_NUM_PROMPTS = 2
_PROMPT_LENGTH, _SAMPLE_LENGTH = 64, 300
_NUM_PASSAGES = 8
_BITS_OF_FULL_COLOUR = 10.0  # A probability of one in a thousand.
_NOTES = {
    CLASSIFICATION: "the most confident first: the predicted class, the true class, and the probability of each.",
    MULTI_LABEL: "the greatest loss first: wrong, correct and missed labels, with their probabilities.",
    REGRESSION: "the greatest loss first. An error is the predicted number minus the true number.",
}

History = Sequence[Mapping[str, float | None]]


def render_report(
    evaluation: Evaluation,
    manifest: Manifest,
    info: ModelInfo,
    history: History,
    examples: Sequence[Block],
    gate: Mapping[str, Any],
    receipt: Receipt | None = None,
) -> str:
    """Return the report as one HTML document.

    Equal arguments give equal text, except for the time in the subtitle.

    Args:
        evaluation: The metrics and the gate's decision.
        manifest: The data set.
        info: The model.
        history: One mapping per epoch with `epoch`, `learning_rate`, `examples_per_second`, `loss` and the task's
            metric. With a validation split, also the loss and the metric of validation, with the prefix `validation_`.
            Empty if the history is unknown.
        examples: Sections that show examples.
        gate: The parameters of the evaluation: the fields of `EvaluateParams`, by name.
        receipt: Receipt of the training run, or None if the model has none.
    """
    title, subtitle = describe_run(manifest, info)
    confused, calibration = _classification(evaluation.challenger) if manifest.task == CLASSIFICATION else ([], [])
    return page.render(
        title,
        [
            Section(
                "Headline figures",
                ["Ranges below values are 95% confidence intervals.", _headline_figures(evaluation, manifest.task)],
            ),
            *compare_slices(evaluation),
            Section("Training", chart_training(history)),
            *compare_prediction(receipt),
            *confused,
            *tabulate_names(evaluation, manifest, info),
            *examples,
            *calibration,
            Section("Settings", [list_settings(manifest, info, gate)], is_folded=True),
        ],
        [describe_decision(evaluation), describe_training(evaluation.split, manifest, info)],
        subtitle,
    )


def describe_run(manifest: Manifest, info: ModelInfo) -> tuple[str, str]:
    """Return the title and the subtitle of a report."""
    training = info.training
    title = f"{info.name.rpartition('/')[2]} on {manifest.source}"
    title = f"{page.run_name()}: {title}" if page.run_name() else title
    if not training:
        return title, f"{page.now()}, trained by another program"
    several = f" × {training['num_replicas']:,}" if training["num_replicas"] > 1 else ""
    batch = f"{training['batch_size_per_replica']:,}{several}"
    host = f" of {training['host']}" if training.get("host") else ""
    trained_on = f"trained on {list_replicas(training)}{host}"
    subtitle = f"{page.now()}, learning rate {learning_rates(training)}, batch {batch}, {trained_on}"
    return title, subtitle


def _headline_figures(evaluation: Evaluation, task: str) -> list[Figure]:
    """Return the defined headline metrics, each with its interval, the champion's value and notes."""
    ours, baseline = evaluation.challenger, evaluation.baseline
    notes = macro_notes(ours)
    if baseline is not None and baseline.value is not None:
        value = percent(baseline.value, 2) if BY_NAME[baseline.metric].is_share else show(baseline.value)
        notes[baseline.metric] = f"baseline {value}: {baseline.answer}"
    known = evaluation.intervals, evaluation.differences
    figures = []
    for score in list_scores(task, ours, evaluation.champion or {}, *known, ours.get("top_k")):
        if score.metric.is_headline:
            interval = Cell(score.interval, "note")
            note = Cell(notes.get(score.metric.name, ""), "note")
            beside: list[str | Cell] = (
                [f"champion {score.champion}", Cell(score.difference, score.look)] if score.champion else []
            )
            details = [cell for cell in (interval, *beside, note) if str(cell)]
            figures.append(Figure(score.label, score.value, details))
    if task == LANGUAGE_MODEL:
        counts = {"Characters": "num_characters", "Unknown": "num_unknown"}
        return [*figures, *(Figure(name, f"{ours[key]:,}") for name, key in counts.items())]
    seen = evaluation.unseen
    left_out = [Cell(f"without {seen.num_seen:,} used in training", "note")] if seen and seen.num_examples else []
    return [*figures, Figure("Examples", f"{ours['num_examples']:,}", left_out)]


def _classification(figures: Mapping[str, Any]) -> tuple[list[Block], list[Block]]:
    """Return two groups of sections for a classification.

    The first group has confusions, and comes before the examples in the report. The second group has calibration and
    ROC, and comes after the examples.
    """
    rows = figures["per_class"]
    calibration: list[Block] = [
        Section(
            "Calibration",
            [
                (
                    "Accuracy of the model at each confidence. Larger dots have more examples. Below the line, the "
                    "model is overconfident."
                ),
                [page.draw("reliability", "confidence", "accuracy", lambda axes: _plot_reliability(axes, figures))],
            ],
        )
    ]
    if figures["roc"]:
        roc = page.draw("roc", "false positive rate", "true positive rate", lambda axes: _plot_roc(axes, figures))
        calibration.append(Section("ROC", [f"The positive class is {rows[1]['name']}.", [roc]]))
    is_small = len(rows) <= _MAX_SHOWN_CLASSES
    confused = (
        _matrix(rows, figures["confusion_matrix"]) if is_small else _confused_pairs(rows, list_confusions(figures))
    )
    return [confused], calibration


def _matrix(rows: Sequence[Mapping[str, Any]], counts: Sequence[Sequence[int]]) -> Section:
    names = [item["name"] for item in rows]

    def cell(i: int, j: int) -> Cell:
        count = counts[i][j]
        share = counts[i][j] / max(1, rows[i]["support"])
        # Mistakes are rare: the square root makes one in a hundred visible.
        look, heat = ("hit", share) if i == j else ("miss", share**0.5)
        hint = f"{names[i]} → {names[j]}: {count} ({percent(share, 1)})"
        return Cell(f"{count}", look, heat, hint) if count else Cell("·", "none")

    note = "Rows are true classes, and columns are predictions. The shade shows the share of the row."
    places = range(len(names))
    return Section("Confusion matrix", [note, Matrix(names, [[cell(i, j) for j in places] for i in places])])


def _confused_pairs(rows: Sequence[Mapping[str, Any]], confusions: Sequence[tuple[int, int, int]]) -> Section:
    pairs = [
        (-count, -count / rows[true]["support"], rows[true]["name"], rows[predicted]["name"])
        for true, predicted, count in confusions
        if true != predicted
    ]
    table = Table(
        {"True class": "<", "Predicted as": "<", "Examples": ">", "Share of the class": ">"},
        [
            (true, Cell(predicted, "bad"), f"{-count:,}", percent(-share, 1))
            for count, share, true, predicted in sorted(pairs, key=lambda pair: pair[:2])[:_MAX_PAIRS]
        ],
    )
    return Section("Most confused classes", [table if pairs else "No class was confused with another."])


def chart_training(history: History) -> list[Block]:
    """Return a chart for each metric of the history, and a chart of the durations of the epochs."""
    known = {name for row in history for name, value in row.items() if value is not None}
    if not known & {*_CURVES}:
        return ["No history of the training run was recorded."]
    curves = [
        _draw_curve(
            history,
            metric.replace("_", " "),
            [(metric, "train", page.BLUE), (f"validation_{metric}", "validation", page.ORANGE)],
        )
        for metric in _CURVES
        if metric in known
    ]
    if "compute_seconds" in known:
        # The TensorFlow backend does not measure waiting for input separately from computing.
        times = _TIMES if "input_seconds" in known else (_COMPUTES_AND_IS_FED, *_TIMES[2:])
        curves.append(_draw_curve(history, "seconds", times))
    notes: list[Block] = []
    if "penalty" in history[-1]:
        notes.append(
            "The loss excludes the penalty of the model's regularisers, which has a separate curve, so that training "
            "and validation are comparable."
        )
    if "stage" in history[-1]:
        notes.append("Dotted lines mark the starts of training stages.")
    return [*notes, curves]


def _draw_curve(history: History, name: str, lines: Sequence[tuple[str, str, str]]) -> markupsafe.Markup:
    """Draw values of the history by epoch. Each of `lines` is a name in the history, a label and a colour."""
    from matplotlib.ticker import PercentFormatter

    def plot(axes: "page.Axes") -> None:
        for figure, label, color in lines:
            points = [(row["epoch"], row[figure]) for row in history if row.get(figure) is not None]
            if points:
                marker = "o" if len(points) <= 30 else ""
                axes.plot(*zip(*points, strict=True), label=label, color=color, marker=marker, markersize=3)
        for before, row in itertools.pairwise(history):
            if before.get("stage") != row.get("stage"):
                axes.axvline((row["epoch"] or 0) - 0.5, color=page.INK, linewidth=1, linestyle=":")
        page.mark_epochs(axes)
        if name.endswith("accuracy"):
            axes.yaxis.set_major_formatter(PercentFormatter(1))
        page.legend(axes)

    return page.draw(f"training {name}", "epoch", name, plot)


def _plot_reliability(axes: "page.Axes", figures: Mapping[str, Any]) -> None:
    bins = figures["calibration"]
    accuracy = [item["accuracy"] for item in bins]
    axes.bar(
        [item["lower"] for item in bins],
        accuracy,
        width=[item["upper"] - item["lower"] for item in bins],
        align="edge",
        color=page.BLUE,
        alpha=0.25,
    )
    axes.scatter(
        [item["confidence"] for item in bins],
        accuracy,
        s=[12 + 120 * item["count"] / figures["num_examples"] for item in bins],
        color=page.BLUE,
        label="model",
        zorder=3,
        clip_on=False,
    )
    _finish_unit_square(axes, "perfect")


def _plot_roc(axes: "page.Axes", figures: Mapping[str, Any]) -> None:
    rates = ([0, *(point[name] for point in figures["roc"])] for name in ("false_positive_rate", "true_positive_rate"))
    axes.plot(*rates, color=page.BLUE, label="model")
    _finish_unit_square(axes, "chance")


def _finish_unit_square(axes: "page.Axes", diagonal: str) -> None:
    from matplotlib.ticker import PercentFormatter

    axes.plot([0, 1], [0, 1], color=page.INK, linewidth=1, linestyle="--", label=diagonal)
    axes.set(xlim=(0, 1), ylim=(0, 1.02))
    axes.xaxis.set_major_formatter(PercentFormatter(1))
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    page.legend(axes)


def show_examples(
    task: Task,
    names: Sequence[str],
    keys: Sequence[str],
    targets: np.ndarray,
    models: Sequence[np.ndarray],
    num_shown: int,
    pick: Callable[[Sequence[int]], Mapping[int, Any]],
) -> list[Block]:
    """Return the sections of a report that show examples.

    Args:
        task: Task of the data. It must not be a language model; see `show_passages`.
        names: Names of the classes, labels or targets.
        keys: Names of the examples.
        targets: Targets of all examples.
        models: Predictions of the model and, if there is one, of the champion.
        num_shown: Number of wrong predictions to show.
        pick: Function that returns the images or texts of the examples at given indices, by index.
    """
    (wrong, right), *others = [_find_mistakes(task, targets, outputs) for outputs in models]
    broken = wrong[:0]
    num_fixed = 0
    for wrong_before, right_before in others:
        broken = wrong[np.isin(wrong, right_before)]
        num_fixed = int(np.isin(right, wrong_before).sum())
    shown = [indices.tolist() for indices in (wrong[:num_shown], right[:_RIGHT_EXAMPLES], broken[:num_shown])]
    contents = pick([index for indices in shown for index in indices])

    def card(index: int) -> Card:
        lines = _describe(task.name, names, targets[index], models[0][index])
        return Card(keys[index], _show(keys[index], contents[index]), lines)

    of_wrong, of_right, of_broken = ([card(index) for index in indices] for indices in shown)
    sections: list[Block] = []
    if task.name == REGRESSION:
        sections += _chart_targets(names, targets, models[0])
    elif others:
        note = f"{num_fixed:,} newly correct, {len(broken):,} newly wrong"
        rest = f" of these {len(shown[2]):,}, the worst first." if len(shown[2]) < len(broken) else ""
        sections.append(Section("Changed since the champion", [f"{note}{':' if shown[2] else '.'}{rest}", of_broken]))
    title = "Largest errors" if task.name == REGRESSION else "Wrong predictions"
    if len(wrong):
        sections.append(Section(title, [f"{len(shown[0]):,} of {len(wrong):,}, {_NOTES[task.name]}", of_wrong]))
    else:
        sections.append(Section(title, [f"None: all {len(targets):,} examples were predicted correctly."]))
    if len(right):
        sections.append(Section("Right predictions", ["A sample, with the confidence of the model.", of_right]))
    return sections


def _find_mistakes(task: Task, targets: np.ndarray, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of wrongly predicted examples, the worst first, and of correctly predicted examples.

    All examples of a regression count as wrongly predicted.
    """
    if task.name == CLASSIFICATION:
        is_wrong = outputs.argmax(axis=1) != targets
        badness = outputs.max(axis=1)
    else:
        is_wrong = np.ones(len(targets), bool)
        badness = task.losses(targets, outputs)
    if task.name == MULTI_LABEL:
        is_wrong = ((outputs > THRESHOLD) != (targets > 0)).any(axis=1)
    wrong = np.flatnonzero(is_wrong)
    return wrong[np.argsort(-badness[wrong], kind="stable")], np.flatnonzero(~is_wrong)


def _describe(task: str, names: Sequence[str], target: np.ndarray, output: np.ndarray) -> list[Figure]:
    """Return the model's prediction for an example, and its true class, labels or numbers."""
    if task == REGRESSION:
        return [
            line
            for name, true, predicted in zip(names, target, output, strict=True)
            for line in (
                Figure(name, ""),
                Figure("true", plain_number(true)),
                Figure("predicted", plain_number(predicted)),
                Figure("error", plain_number(predicted - true), look="bad"),
            )
        ]
    if task == CLASSIFICATION:
        predicted = int(output.argmax())
        true = int(target)
        answer = Figure(names[predicted], percent(output[predicted]), look="good" if predicted == true else "bad")
        return [answer] if predicted == true else [answer, Figure(names[true], percent(output[true]), ["true"])]
    has = target > 0
    answered = output > THRESHOLD

    def those(mask: np.ndarray, look: str, *note: str) -> list[Figure]:
        return [Figure(names[i], percent(output[i]), note, look) for i in np.flatnonzero(mask).tolist()]

    answers = [*those(answered & ~has, "bad"), *those(answered & has, "good")] or [Figure("no label", "")]
    truth = ", ".join(names[i] for i in np.flatnonzero(has).tolist()) or "none"
    return [*answers, *those(has & ~answered, "bad", "missed"), Figure(truth, "", ["true"])]


def _show(key: str, content: np.ndarray | str) -> str:
    """Return an image, uint8[height, width, channels], as HTML. Return a text on one line, shortened if it is long."""
    if isinstance(content, str):
        plain = " ".join(re.sub(r"<br */?>", " ", content).split())
        if len(plain) <= _TEXT_START + _TEXT_END:
            return plain
        return f"{plain[:_TEXT_START]} […] {plain[-_TEXT_END:]}"
    return show_picture(content, _PICTURE_PIXELS, key)


def _chart_targets(names: Sequence[str], targets: np.ndarray, values: np.ndarray) -> list[Block]:
    """Return a section for each target of a regression.

    A section has charts of predicted over true numbers, and of errors over predicted numbers.
    """
    # Evenly spaced examples: more dots would hide each other.
    shown = np.unique(np.linspace(0, len(targets) - 1, _MAX_DOTS).astype(int))
    first = f"; the first {_MAX_CHARTED_TARGETS} targets" if len(names) > _MAX_CHARTED_TARGETS else ""
    note = f"{len(shown):,} of {len(targets):,} examples, spread evenly{first}."
    return [
        Section(f"Predicted and true: {name}", [note, (_draw_target(i, targets[shown, i], values[shown, i]))])
        for i, name in enumerate(names[:_MAX_CHARTED_TARGETS])
    ]


def _draw_target(number: int, true: np.ndarray, predicted: np.ndarray) -> list[markupsafe.Markup]:
    def plot_predicted(axes: "page.Axes") -> None:
        ends = [float(true.min()), float(true.max())]
        axes.plot(ends, ends, color=page.INK, linewidth=1, linestyle="--", label="perfect")
        axes.scatter(true, predicted, s=9, color=page.BLUE, alpha=0.5, linewidths=0, label="model")
        page.legend(axes)

    def plot_residuals(axes: "page.Axes") -> None:
        axes.axhline(0, color=page.INK, linewidth=1, linestyle="--")
        axes.scatter(predicted, predicted - true, s=9, color=page.BLUE, alpha=0.5, linewidths=0)

    return [
        page.draw(f"target {number + 1}", "true", "predicted", plot_predicted),
        page.draw(f"residuals {number + 1}", "predicted", "predicted − true", plot_residuals),
    ]


def show_passages(
    names: Sequence[str],
    keys: Sequence[str],
    targets: np.ndarray,
    scores: np.ndarray,
    pick: Callable[[Sequence[int]], Mapping[int, np.ndarray]],
    model: Any,
) -> list[Block]:
    """Return the sections of a language model's report: generated texts, and the passages with the greatest loss.

    Args:
        names: The character for each token ID.
        keys: Names of the passages.
        targets: Targets of all passages.
        scores: Scores of all passages; see `score_passages`.
        pick: Function that returns the inputs of the passages at given indices, by index.
        model: The model, a `StepModel`. It continues two passages, each at two temperatures. On the same machine, it
            always generates the same texts.
    """
    counts = targets != PADDING
    bits = scores[..., 0] / np.log(2)
    means = bits.sum(axis=1) / counts.sum(axis=1)
    hardest = np.argsort(-means, kind="stable")[:_NUM_PASSAGES].tolist()
    prompted = np.linspace(0, len(counts) - 1, _NUM_PROMPTS + 2).astype(int)[1:-1].tolist()
    inputs = pick([*hardest, *prompted])
    alphabet = Alphabet(names)
    prompts = np.repeat([inputs[index][-_PROMPT_LENGTH:] for index in prompted], len(_TEMPERATURES), axis=0)
    temperatures = _TEMPERATURES * _NUM_PROMPTS
    added = generate(model.compiled(), model.state_size, prompts, _SAMPLE_LENGTH, temperatures, seed=0)
    samples = [
        Passage(
            f"temperature {temperature}",
            [Cell(alphabet.decode(prompt.tolist()), "read"), Cell(alphabet.decode(text.tolist()))],
        )
        for temperature, prompt, text in zip(temperatures, prompts, added, strict=True)
    ]
    passages = []
    for index in hardest:
        # Characters come from the next inputs, because a target that does not count is 0.
        following = [*inputs[index][1:].tolist(), targets[index, -1].item()]
        rows = zip(following, bits[index].tolist(), counts[index].tolist(), strict=True)
        parts = [_show_character(alphabet.decode([id_]), value, counted) for id_, value, counted in rows]
        passages.append(Passage(f"{keys[index]}: {means[index]:.2f} bits per character", parts))
    written = (
        "Texts that the model writes after a prompt (grey) from the scored text. At a lower temperature, the text "
        "stays "
    )
    colours = (
        "The redder a character, the less the model expected it. Grey characters are context. Hover over a "
        "character to see its bits."
    )
    return [
        Section("Samples", [f"{written}closer to likely characters.", (samples)]),
        Section("Hardest passages", [colours, (passages)]),
    ]


def _show_character(character: str, bits: float, counted: bool) -> Cell:
    if not counted:
        return Cell(character, "read")
    share = min(bits / _BITS_OF_FULL_COLOUR, 1.0)
    return Cell("↵\n" if character == "\n" else character, "bits", share, hint=f"{bits:.1f} bits")
