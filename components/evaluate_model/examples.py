"""Examples for the report: mistakes with the worst first, right answers; of a language model texts and passages."""

import base64
import io
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import markupsafe
import numpy as np
from PIL import Image

from tpu_components.core.examples import records
from tpu_components.core.examples.artifacts import Manifest
from tpu_components.core.examples.generation import Alphabet, generate
from tpu_components.core.examples.interface import CLASSIFICATION, MULTI_LABEL, PADDING, REGRESSION, THRESHOLD, Task
from tpu_components.core.machines import device as devices
from tpu_components.core.pages import page
from tpu_components.core.pages.blocks import Block, Card, Cards, Cell, Charts, Figure, Passage, Passages, Section
from tpu_components.core.pages.scores import percent, plain_number
from tpu_components.evaluate_model.scoring import Scores

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_RIGHT_EXAMPLES = 20
_PICTURE_PIXELS = 96  # Side of a card's picture, as CSS shows it.
_TEXT_START, _TEXT_END = 300, 400  # Characters of a long text that a card shows.
_MAX_DOTS = 500
_MAX_CHARTED_TARGETS = 8
_TEMPERATURES = (0.5, 1.0)
_NUM_PROMPTS = 2
_PROMPT_LENGTH, _SAMPLE_LENGTH = 64, 300
_NUM_PASSAGES = 8
_BITS_OF_FULL_COLOUR = 10.0  # One chance in a thousand.
_NOTES = {
    CLASSIFICATION: "the most confident first: the model's answer, the true class, and the probability of each.",
    MULTI_LABEL: "the greatest loss first: labels predicted wrongly, rightly, and missed, with their probability.",
    REGRESSION: "the greatest loss first; an error is the predicted number less the true one.",
}


def show_examples(
    task: Task,
    names: Sequence[str],
    scores: Scores,
    num_shown: int,
    pick: Callable[[Sequence[int]], Mapping[int, Any]],
) -> list[Block]:
    """Return the sections of a report that show examples.

    Args:
        task: Any but a language model.
        names: Names of the classes, labels or targets.
        scores: Answers of the model and, if there is one, the champion.
        num_shown: Mistakes to show.
        pick: Returns for each place in the records' order the example's image, or its text.
    """
    (wrong, right), *others = [_find_mistakes(task, scores.targets, outputs) for outputs in scores.outputs]
    broken, num_fixed = wrong[:0], 0
    for wrong_before, right_before in others:
        broken, num_fixed = wrong[np.isin(wrong, right_before)], int(np.isin(right, wrong_before).sum())
    shown = [indices.tolist() for indices in (wrong[:num_shown], right[:_RIGHT_EXAMPLES], broken[:num_shown])]
    contents = pick([index for indices in shown for index in indices])

    def card(index: int) -> Card:
        lines = _describe(task.name, names, scores.targets[index], scores.outputs[0, index])
        return Card(scores.keys[index], _show(scores.keys[index], contents[index]), lines)

    of_wrong, of_right, of_broken = (Cards([card(index) for index in indices]) for indices in shown)
    sections: list[Block] = []
    if task.name == REGRESSION:
        sections += _chart_targets(names, scores.targets, scores.outputs[0])
    elif others:
        note = f"{num_fixed:,} right that were wrong, {len(broken):,} wrong that were right"
        rest = f" of these {len(shown[2]):,}, the worst first." if len(shown[2]) < len(broken) else ""
        sections.append(Section("Changed since the champion", [f"{note}{':' if shown[2] else '.'}{rest}", of_broken]))
    title = "Largest errors" if task.name == REGRESSION else "Wrong predictions"
    if len(wrong):
        sections.append(Section(title, [f"{len(shown[0]):,} of {len(wrong):,}, {_NOTES[task.name]}", of_wrong]))
    else:
        sections.append(Section(title, [f"None: all {len(scores.targets):,} examples were predicted right."]))
    if len(right):
        sections.append(Section("Right predictions", ["A sample, with the model's confidence.", of_right]))
    return sections


def _find_mistakes(task: Task, targets: np.ndarray, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of the examples that are wrong, the worst first, and of those that are right.

    Of a regression all are wrong.
    """
    if task.name == CLASSIFICATION:
        is_wrong, badness = outputs.argmax(axis=1) != targets, outputs.max(axis=1)
    else:
        is_wrong, badness = np.ones(len(targets), bool), task.losses(targets, outputs)
    if task.name == MULTI_LABEL:
        is_wrong = ((outputs > THRESHOLD) != (targets > 0)).any(axis=1)
    wrong = np.flatnonzero(is_wrong)
    return wrong[np.argsort(-badness[wrong], kind="stable")], np.flatnonzero(~is_wrong)


def _describe(task: str, names: Sequence[str], target: np.ndarray, output: np.ndarray) -> list[Figure]:
    """Return what the model answered to an example, and the truth."""
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
        predicted, true = int(output.argmax()), int(target)
        answer = Figure(names[predicted], percent(output[predicted], 0), look="good" if predicted == true else "bad")
        return [answer] if predicted == true else [answer, Figure(names[true], percent(output[true], 0), ["true"])]
    has, given = target > 0, output > THRESHOLD

    def those(mask: np.ndarray, look: str, *note: str) -> list[Figure]:
        return [Figure(names[i], percent(output[i], 0), note, look) for i in np.flatnonzero(mask).tolist()]

    answers = [*those(given & ~has, "bad"), *those(given & has, "good")] or [Figure("no label", "")]
    truth = ", ".join(names[i] for i in np.flatnonzero(has).tolist()) or "none"
    return [*answers, *those(has & ~given, "bad", "missed"), Figure(truth, "", ["true"])]


def _show(key: str, content: np.ndarray | str) -> str:
    """Return an image, uint8[height, width, channels], as markup; of a text its beginning and end on one line."""
    if isinstance(content, str):
        plain = " ".join(re.sub(r"<br */?>", " ", content).split())
        if len(plain) <= _TEXT_START + _TEXT_END:
            return plain
        return f"{plain[:_TEXT_START]} […] {plain[-_TEXT_END:]}"
    image = Image.fromarray(content.squeeze(-1) if content.shape[-1] == 1 else content)
    image.thumbnail((2 * _PICTURE_PIXELS, 2 * _PICTURE_PIXELS))  # Twice: screens of phones are dense.
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    is_small = max(content.shape[:2]) < _PICTURE_PIXELS
    look = markupsafe.Markup(' class="crisp"' if is_small else "")
    encoded = base64.b64encode(buffer.getvalue()).decode()
    return markupsafe.Markup('<img src="data:image/png;base64,{}" alt="{}"{}>').format(encoded, key, look)


def _chart_targets(names: Sequence[str], targets: np.ndarray, values: np.ndarray) -> list[Block]:
    """Return a section for each target: predicted by true numbers, and what is left by predicted ones."""
    # Evenly over the examples: more dots hide each other.
    shown = np.unique(np.linspace(0, len(targets) - 1, _MAX_DOTS).astype(int))
    first = f"; the first {_MAX_CHARTED_TARGETS} targets" if len(names) > _MAX_CHARTED_TARGETS else ""
    note = f"{len(shown):,} of {len(targets):,} examples, spread evenly{first}."
    return [
        Section(f"Predicted and true: {name}", [note, Charts(_draw_target(i, targets[shown, i], values[shown, i]))])
        for i, name in enumerate(names[:_MAX_CHARTED_TARGETS])
    ]


def _draw_target(number: int, true: np.ndarray, predicted: np.ndarray) -> list[markupsafe.Markup]:
    def plot_predicted(axes: "Axes") -> None:
        ends = [float(true.min()), float(true.max())]
        axes.plot(ends, ends, color=page.INK, linewidth=1, linestyle="--", label="perfect")
        axes.scatter(true, predicted, s=9, color=page.BLUE, alpha=0.5, linewidths=0, label="model")
        page.legend(axes)

    def plot_residuals(axes: "Axes") -> None:
        axes.axhline(0, color=page.INK, linewidth=1, linestyle="--")
        axes.scatter(predicted, predicted - true, s=9, color=page.BLUE, alpha=0.5, linewidths=0)

    return [
        page.draw(f"target {number + 1}", "true", "predicted", plot_predicted),
        page.draw(f"residuals {number + 1}", "predicted", "predicted − true", plot_residuals),
    ]


def show_passages(
    split: str, device: devices.Device, records_dir: Path, manifest: Manifest, model_dir: Path, scores: Scores
) -> list[Block]:
    """Return the sections of a language model's report: texts that it writes, and the passages that it finds hardest.

    It continues two places of the split at two temperatures, the same every time on the same machine.
    """
    from tpu_components.core.models.stepping import StepModel
    from tpu_components.core.models.trained import load_trained_model

    counts, bits = scores.targets != PADDING, scores.outputs[0, ..., 0] / np.log(2)
    means = bits.sum(axis=1) / counts.sum(axis=1)
    hardest = np.argsort(-means, kind="stable")[:_NUM_PASSAGES].tolist()
    prompted = np.linspace(0, len(counts) - 1, _NUM_PROMPTS + 2).astype(int)[1:-1].tolist()
    inputs = records.pick_inputs(records_dir, manifest, split, [*hardest, *prompted])
    alphabet = Alphabet(manifest.class_names)

    with device.scope():
        model = StepModel(load_trained_model(model_dir))
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
        # A target that does not count is the next input.
        following = [*inputs[index][1:].tolist(), scores.targets[index, -1].item()]
        rows = zip(following, bits[index].tolist(), counts[index].tolist(), strict=True)
        parts = [_show_character(alphabet.decode([id_]), value, counted) for id_, value, counted in rows]
        passages.append(Passage(f"{scores.keys[index]}: {means[index]:.2f} bits per character", parts))
    written = (
        "What the model writes after a prompt (grey) from the text it was scored on; at a lower temperature it keeps "
    )
    colours = "The redder a character, the less the model expected it; grey ones were only read. Hover for the bits."
    return [
        Section("Samples", [f"{written}to what is likely.", Passages(samples)]),
        Section("Hardest passages", [colours, Passages(passages)]),
    ]


def _show_character(character: str, bits: float, counted: bool) -> Cell:
    if not counted:
        return Cell(character, "read")
    share = min(bits / _BITS_OF_FULL_COLOUR, 1.0)
    return Cell("↵\n" if character == "\n" else character, "bits", share, hint=f"{bits:.1f} bits")
