import dataclasses
import functools
import html
import re
import types

import numpy as np
import pytest

from tests.support.browser import assert_opens, find, needs_browser, photograph
from tests.support.html_page import Page
from tpu_components.core.base.terminal import visible
from tpu_components.core.examples.artifacts import Manifest, Split
from tpu_components.core.examples.interface import TASKS, ImageInput, Regression
from tpu_components.core.metrics.comparisons import Difference
from tpu_components.core.metrics.model_metrics import GroundTruth, compute_metrics
from tpu_components.core.pages import page
from tpu_components.core.pages.evaluation import describe_training
from tpu_components.core.results.evaluation_info import Decision, EvaluatedModel, Evaluation, Rule
from tpu_components.evaluate_model.baseline import find_baseline
from tpu_components.evaluate_model.report import chart_training, describe_run, render_report, show_examples

_HOSTILE = "<script>alert(1)</script>\"' onerror=alert(2) {{ 7 * 7 }} ]]>&amp;\x1b[2J\u202e"
_TRAINING = {
    "learning_rate": 0.1,
    "batch_size_per_replica": 32,
    "num_replicas": 8,
    "accelerator": "tpu",
    "backend": "jax",
    "precision": "float32",
    "epochs": 3,
    "best_epoch": 2,
    "seconds": 9.0,
    "examples_per_second": 500.0,
}
_HISTORY = [{"epoch": i, "loss": 1 / i, "accuracy": 1 - 0.5 / i, "validation_loss": 1.1 / i} for i in (1, 2, 3)]


def _manifest(task="classification", source="sklearn:digits"):
    return Manifest(
        fingerprint="f" * 64,
        source=source,
        split_rule="",
        input=ImageInput((8, 8, 1), "raw"),
        task=task,
        features={},
        class_names=("a", "b"),
        splits={"test": Split(60, (), ())},
        quarantined=(),
    )


def _evaluation(figures, champion=None, *, reasons=(), promote=True, **changes):
    """As evaluation.json has them: the figures of the model and of the champion."""
    evaluation = Evaluation(
        split="test",
        dataset_fingerprint="",
        model=EvaluatedModel("digits_cnn", {}, "best", ""),
        class_names=("a", "b"),
        gate=Decision(promote, tuple(reasons)),
        challenger=figures,
        champion=champion,
        registered_champion=None,
    )
    return dataclasses.replace(evaluation, **changes)


@functools.cache
def _drawn(num_classes, num_examples, lean):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, num_classes, num_examples)
    odds = np.exp(rng.normal(size=(num_examples, num_classes)) + lean * np.eye(num_classes)[labels])
    return labels, odds / odds.sum(axis=1, keepdims=True)


def _classes(num_classes=3, num_examples=60, lean=3.0, names=None):
    names = names or [f"class {i}" for i in range(num_classes)]
    labels, outputs = _drawn(num_classes, num_examples, lean)
    return compute_metrics(GroundTruth(TASKS["classification"], labels, names), outputs).as_dict()


def _render(evaluation=None, task="classification", history=(), examples=(), name="digits_cnn", **manifest):
    info = types.SimpleNamespace(name=name, training=_TRAINING, parameters={"width": 8})
    evaluation, gate = evaluation or _evaluation(_classes()), {"minimum": {"accuracy": 0.9}, "maximum": {}}
    return render_report(evaluation, _manifest(task, **manifest), info, history, examples, gate)


def test_the_report_lists_all_settings():
    words = _words(_render())
    for said in (
        "model.width 8",
        "training.learning_rate 0.1",
        'gate.minimum {"accuracy": 0.9}',
        "data.task classification",
    ):
        assert said in words, said
    assert "gate.maximum" not in words


def _words(text):
    return " ".join(" ".join(Page(text).words).split())


def _examples(task, targets, *outputs, names=("cat", "dog", "fox"), num_shown=60, contents=None, keys=None):
    """The sections that show examples, of one picture each."""
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    asked = Regression((0.0,) * len(names), (1.0,) * len(names)) if task == "regression" else TASKS[task]
    keys = keys or [f"{i}.png" for i in range(len(targets))]

    def pick(indices):
        return {i: (contents or {}).get(i, pixels) for i in indices}

    return show_examples(asked, names, keys, np.array(targets), outputs, num_shown, pick)


def _shown(*arguments, **options):
    return page.render("t", _examples(*arguments, **options))


def _answers(*rows):
    """Probabilities of three classes: of every row the first is the answer, the second its probability."""
    return np.array([np.where(np.arange(3) == answer, sure, (1 - sure) / 2) for answer, sure in rows])


def _labels_report(names=("sky", "sea", "sun")):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, (50, 3))
    probabilities = (0.2 + 0.5 * labels + 0.3 * rng.random(labels.shape)).clip(0, 1)
    labels[0], probabilities[0] = [1, 0, 1], [0.91, 0.73, 0.18]
    figures = compute_metrics(GroundTruth(TASKS["multi_label"], labels, names), probabilities).as_dict()
    history = [{"epoch": i, "loss": 1 / i, "binary_accuracy": 1 - 0.5 / i} for i in (1, 2)]
    examples = _examples("multi_label", labels, probabilities, probabilities, names=names)
    return _render(_evaluation(figures, figures), "multi_label", history, examples)


def _numbers_report(names=("mass", "width"), num_examples=700):
    rng = np.random.default_rng(0)
    targets = rng.normal(size=(num_examples, len(names)))
    values = targets + 0.1 * rng.normal(size=targets.shape)
    targets[0, 0], values[0, 0] = 2, -1.25
    task = Regression((0.0,) * len(names), (1.0,) * len(names))
    figures = compute_metrics(GroundTruth(task, targets, names), values).as_dict()
    history = [{"epoch": i, "loss": 1 / i, "mean_absolute_error": 1 / i} for i in (1, 2)]
    examples = _examples("regression", targets, values, values, names=names)
    return _render(_evaluation(figures, figures), "regression", history, examples)


def _hostile_report(num_classes):
    names = [f"{_HOSTILE}{i}" for i in range(num_classes)]
    figures = _classes(num_classes, lean=0.5, names=names)
    examples = _examples("classification", *_drawn(num_classes, 60, 0.5), names=names, keys=[_HOSTILE] * 60)
    evaluation = _evaluation(figures, figures, reasons=[Rule(True, "", _HOSTILE)], promote=False)
    return _render(evaluation, history=_HISTORY, examples=examples, name=_HOSTILE, source=_HOSTILE)


_REPORTS = {
    **{f"{number} classes": functools.partial(_hostile_report, number) for number in (2, 3, 40)},
    "labels": lambda: _labels_report([f"{_HOSTILE}{i}" for i in range(3)]),
    "numbers": lambda: _numbers_report([f"{_HOSTILE}{i}" for i in range(3)]),
}


@pytest.mark.parametrize("report", _REPORTS)
def test_a_report_shows_hostile_names_as_text_and_loads_nothing(report, drawings):
    text = _REPORTS[report]()
    shown = Page(text)
    assert "<script" not in text.lower()
    assert not [name for _, attributes in shown.tags for name in attributes if name.startswith("on")]
    assert any(visible(_HOSTILE) in word for word in shown.words)
    assert not re.search(r"https?://|@import|<link|<iframe", text)
    assert all(value.startswith("data:image/png;base64,") for value in shown.values("src"))
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in shown.values("content")
    # Drawings refer to ids that exist once.
    ids = shown.values("id")
    assert len(ids) == len(set(ids))
    assert {value.removeprefix("#") for value in shown.values("href")} <= set(ids)
    assert {target.removeprefix("#") for target in re.findall(r"url\(([^)]*)\)", text)} <= set(ids)
    assert not re.search("#0000a[0-9]", text)


def _facts(info):
    return dict(describe_training("test", _manifest(source="images:x"), info).known)


def test_the_report_is_named_after_its_run_and_says_how_it_was_trained(monkeypatch):
    info = types.SimpleNamespace(name="runs/.objects/cnn-c4a2.keras", training=_TRAINING)
    title, _ = describe_run(_manifest(source="images:x"), info)
    assert title == "cnn-c4a2.keras on images:x"
    assert _facts(info)["Model"] == "runs/.objects/cnn-c4a2.keras"
    info.name = "cnn"
    title, subtitle = describe_run(_manifest(source="images:x"), info)
    assert title == "cnn on images:x"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC, learning rate 0.1, batch 32 × 8, trained on 8 × tpu", subtitle)
    monkeypatch.setenv("TPU_PIPELINES_RUN", "flowers")
    stages = [{"epochs": 3, "frozen": ["backbone"], "learning_rate": 0.001}]
    stages.append({"epochs": 5, "frozen": [], "learning_rate": 0.0})
    info.training = {**_TRAINING, "epochs": 6, "stages": stages, "host": "2 × AMD EPYC"}  # Stopped early.
    title, subtitle = describe_run(_manifest(source="images:x"), info)
    assert title == "flowers: cnn on images:x"
    assert "learning rate 0.001 then 0.1, batch" in subtitle
    assert subtitle.endswith("8 × tpu of 2 × AMD EPYC")
    assert "6 epochs (3 with backbone frozen, then 3 with nothing frozen)" in _facts(info)["Training"]
    text = _render(source="images:x")
    assert re.search(r"<title>flowers: digits_cnn on images:x: [^<]* UTC, learning rate", text)


def test_a_training_of_one_epoch_has_no_fraction_of_an_epoch_on_its_axis(drawings):
    for chart in chart_training(_HISTORY[:1])[0]:
        before, _, _ = chart.partition(">epoch</text>")
        assert re.findall(r">([^<>]+)</text>", before) == ["1"]


def test_every_point_of_a_curve_tells_its_values_under_the_pointer_and_the_legend_covers_none(drawings):
    text = _render(history=_HISTORY)
    told = re.findall(r'<circle class="point" cx="([\d.]+)" cy="([\d.]+)" r="4.5"><title>([^<]*)', text)
    points = {text: (float(x), float(y)) for x, y, text in told}
    assert {"train: epoch 1, loss 1", "validation: epoch 3, loss 0.3667", "train: epoch 2, accuracy 75.00%"} <= {
        *points
    }
    first, last = points["train: epoch 1, loss 1"], points["train: epoch 3, loss 0.3333"]
    assert 0 < first[0] < last[0] < 331, "later is further right"
    assert 0 < first[1] < last[1] < 223, "less is lower"
    drawing = text[text.index('aria-label="training loss') :]
    drawing = drawing[: drawing.index("</svg>")]
    lowest = max(float(height) for height in re.findall(r'class="point" cx="[\d.]+" cy="([\d.]+)"', drawing))
    names = re.findall(r"translate\([\d.]+ ([\d.]+)\)[^>]*>(?:train|validation)</text>", drawing)
    names += re.findall(r'y="([\d.]+)"[^>]*>(?:train|validation)</text>', drawing)
    assert len(names) == 2
    assert min(map(float, names)) > lowest + 20, "below the axis and its name"


def test_a_stage_begins_at_a_dotted_line(drawings):
    text = _render(history=[{**epoch, "stage": stage} for epoch, stage in zip(_HISTORY, (1, 1, 2), strict=True)])
    assert "Dotted lines mark the starts" in text
    assert text.count("stroke-dasharray: 1,1.65") == 2, "of two figures"


@pytest.mark.parametrize(
    "row", [{}, {"validation_loss": None}, {"validation_loss": float("nan")}, {"validation_accuracy": 0.5}]
)
def test_training_curves_accept_a_single_epoch_and_missing_values(row, drawings):
    text = _render(history=[{"epoch": 1, "loss": 2.3, "accuracy": 0.1, **row}])
    assert {"training loss: loss by epoch", "training accuracy: accuracy by epoch"} <= set(
        Page(text).values("aria-label")
    )
    assert "dotted" not in text
    assert "training seconds" not in text


def test_the_time_of_every_epoch_is_split_by_what_the_device_waited_for(drawings):
    row = {"epoch": 2, "loss": 2.3, "compute_seconds": 4.0, "checkpoint_seconds": 0.25, "host_seconds": 0.5}
    text = _render(history=[{**row, "epoch": 1}, {**row, "input_seconds": 1.5}])
    assert "training seconds: seconds by epoch" in Page(text).values("aria-label")
    for words in ("the device computes: epoch 2, seconds 4", "the device waits for input: epoch 2, seconds 1.5"):
        assert f"<title>{words}</title>" in text
    assert "<title>the device computes, including its input: epoch 2, seconds 4</title>" in _render(history=[row])


@pytest.mark.parametrize(("promote", "words"), [(True, "✓ Passed the gate"), (False, "✗ Did not pass the gate")])
def test_report_opens_with_the_decision_and_its_reasons(promote, words):
    rules = [Rule(True, "accuracy", "accuracy 0.98 is enough"), Rule(promote, "loss", "loss 0.2 is too")]
    text = _words(_render(_evaluation(_classes(), reasons=rules, promote=promote)))
    assert f"{words} ✓ accuracy 0.98 is enough {words[0]} loss 0.2 is too" in text
    assert text.index(words) < text.index("Headline figures")


def _looks(text):
    looks = [attributes.get("class") for tag, attributes in Page(text).tags if tag == "dd"]
    return [look for look in looks if look and look != "value"]


def test_headline_figures_compare_with_the_champion():
    better = {**_classes(), "accuracy": 0.9512, "loss": 0.25, "macro_f1": 0.9, "calibration_error": 0.01}
    champion = {**_classes(), "accuracy": 0.94, "loss": 0.2, "macro_f1": 0.9, "calibration_error": 0.02}
    text = _render(_evaluation(better, champion))
    assert _looks(text) == ["good", "note", "bad", "note", "good"]
    assert "Accuracy 95.12% champion 94.00% +1.12 points" in _words(text)
    assert "Loss 0.2500 champion 0.2000 +0.0500" in _words(text)
    assert "Calibration error 1.00% champion 2.00% −1.00 points" in _words(text)


def test_headline_figures_show_what_chance_leaves_of_them_and_judge_no_difference_that_it_explains():
    figures, champion = ({**_classes(), "accuracy": value, "loss": 1 - value} for value in (0.95, 0.9))
    text = _render(
        _evaluation(
            figures,
            champion,
            intervals={"accuracy": (0.91, 1.2), "loss": (-0.1, 0.2)},
            differences={
                "accuracy": Difference(advantage=0.05, least=0.012, most=0.088, luck=0.02),
                "loss": Difference(advantage=0.05, least=-0.01, most=0.11, luck=0.1),
            },
        )
    )
    assert "Accuracy 95.00% 91.00% to 100.00% champion 90.00% +5.00 points (+1.20 to +8.80)" in _words(text)
    assert "Loss 0.0500 0.0000 to 0.2000 champion 0.1000 −0.0500 (−0.1100 to +0.0100)" in _words(text)
    assert _looks(text)[:5] == ["note", "good", "note", "note", "note"]


def test_headline_figures_say_what_a_constant_answer_reaches_and_which_classes_are_absent():
    labels, answers, names = np.array([0] * 6 + [2] * 4), np.eye(3)[[0] * 6 + [2, 2, 2, 0]], ["cat", "absent", "dog"]
    figures = compute_metrics(GroundTruth(TASKS["classification"], labels, names), answers).as_dict()
    baseline = find_baseline(GroundTruth(TASKS["classification"], labels, names), answers)
    text = _words(_render(_evaluation(figures, baseline=baseline)))
    assert "Accuracy 90.00% baseline 60.00%: always predicting 'cat'" in text
    note = "1 of 3 classes have no examples and count as 0; the mean of the other classes is 0.8901"
    assert f"Macro F1 0.5934 {note}" in text
    assert "champion" not in text
    listed = text[text.index("weakest first") :]
    assert listed.index("dog 4") < listed.index("cat 6") < listed.index("absent 0"), "without examples last"
    assert "No history of the training run was recorded" in text


@pytest.mark.parametrize(
    ("accuracy", "shown"), [(0.99999, ">99.99%"), (1.0, "100.00%"), (0.00001, "<0.01%"), (0.0, "0.00%")]
)
def test_shares_read_100_or_0_percent_only_if_they_are(accuracy, shown):
    assert f"Accuracy {shown}" in _words(_render(_evaluation({**_classes(), "accuracy": accuracy})))


@pytest.mark.parametrize(("num_classes", "is_matrix"), [(2, True), (30, True), (31, False), (100, False), (101, False)])
def test_many_classes_are_shown_as_the_most_confused_pairs(num_classes, is_matrix):
    figures = _classes(num_classes, num_examples=400, lean=1.0)
    text = _render(_evaluation(figures))
    assert ("Confusion matrix" in text) == is_matrix
    assert ("Most confused classes" in text) != is_matrix
    assert ("The positive class is class 1" in text) == ("ROC" in _words(text).split()) == (num_classes == 2)
    cells = [attributes["class"].split()[0] for tag, attributes in Page(text).tags if attributes.get("class")]
    if is_matrix:
        assert cells.count("hit") + cells.count("miss") == np.count_nonzero(figures["confusion_matrix"])
    else:
        assert cells.count("bad") == 30


def test_wrong_predictions_come_before_right_ones_with_answer_truth_and_confidence():
    text = _words(_shown("classification", [0, 0, 0, 1], _answers((1, 0.9), (1, 0.8), (0, 0.7), (2, 0.6)), num_shown=2))
    assert "2 of 3, the most confident first" in text
    assert "dog 90% true cat 5% 0.png dog 80% true cat 10% 1.png Right predictions" in text
    assert text.endswith("cat 70% 2.png")


def test_examples_that_the_champion_has_right_are_shown():
    before = _answers((0, 0.9), (0, 0.9), (1, 0.9), (0, 0.9))
    after = _answers((1, 0.7), (1, 0.8), (0, 0.9), (0, 0.9))
    text = _words(_shown("classification", [0, 0, 0, 0], after, before, num_shown=1))
    assert (
        "Changed since the champion 1 newly correct, 2 newly wrong: of these 1, the worst first. dog "
        "80% true cat 10% 1.png Wrong predictions"
    ) in text
    assert "0 newly correct, 0 newly wrong." in _words(_shown("classification", [0] * 4, after, after))
    assert "Changed since" not in _shown("classification", [0] * 4, after)


def test_a_model_without_a_mistake_and_one_without_a_right_answer_have_a_report():
    text = _words(_shown("classification", [0, 1], _answers((0, 0.9), (1, 0.9))))
    assert "None: all 2 examples were predicted correctly" in text
    assert "Right predictions" not in _shown("classification", [2], _answers((0, 0.9)))


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 300, 3), (300, 1, 1), (28, 28, 1), (32, 32, 3), (500, 400, 3)])
def test_pictures_of_every_shape_are_shown(shape):
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    text = _shown("classification", [0], _answers((1, 0.9)), contents={0: pixels})
    (image,) = [attributes for tag, attributes in Page(text).tags if tag == "img"]
    assert ("class" in image) == (max(shape) < 96)
    assert len(image["src"]) < 200_000


def test_a_text_is_shown_by_its_beginning_and_end():
    long = "<b>good</b><br />" + "x" * 400 + " and " + "y" * 400
    text = _words(_shown("classification", [0], _answers((1, 0.9)), contents={0: long}))
    assert f"<b>good</b> {'x' * 288} […] {'y' * 400} dog" in text


def test_report_of_100_small_pictures_is_below_2_mb():
    pixels = dict(enumerate(np.random.default_rng(0).integers(0, 256, (100, 32, 32, 3), dtype=np.uint8)))
    text = _shown("classification", [0] * 100, _answers(*[(1, 0.9)] * 100), contents=pixels, num_shown=100)
    assert text.count("<img") == 100
    assert len(text.encode()) < 2_000_000


def test_report_of_several_labels_shows_which_are_wrong_in_red():
    text = _labels_report()
    red = [attributes["class"] for _, attributes in Page(text).tags if "bad" in attributes.get("class", "").split()]
    assert {"answer bad", "truth bad"} <= set(red)
    assert "sea 73% sky 91% missed sun 18% true sky, sun" in _words(text)
    assert "Average precision" in text
    assert "Confusion matrix" not in text
    assert "no difference" in text


def test_report_of_numbers_shows_true_predicted_error_and_two_drawings_for_every_target():
    text = _numbers_report()
    assert "mass true 2 predicted \N{MINUS SIGN}1.25 error \N{MINUS SIGN}3.25" in _words(text)
    assert "500 of 700 examples, spread evenly" in text
    assert sum(tag == "svg" for tag, _ in Page(text).tags) == 2 + 2 * 2
    assert "Mean absolute error" in text


@needs_browser
def test_on_a_telephone_every_column_of_the_classes_is_seen(tmp_path):
    names = ["Turnschuh", "Sicherheitsschnürschuh", "Donaudampfschifffahrtsgesellschaftskapitän"]
    text = _render(_evaluation(_classes(names=names)))
    marked = text.replace("F1</th>", '<span style="background:#fe01dc;color:#fe01dc">F1</span></th>')
    assert marked != text
    (tmp_path / "page.html").write_text(
        f'<iframe style="border:0" width="390" height="1800" srcdoc="{html.escape(marked)}"></iframe>'
    )
    screen, _ = photograph(tmp_path / "page.html", tmp_path, 600, 1900)
    _, columns = find(screen, (254, 1, 220))
    assert columns.max() - columns.min() >= 8, "the whole word"


@needs_browser
def test_browser_shows_wrong_predictions_first_with_picture_and_red_answer(drawings, tmp_path):
    magenta, cyan = (255, 0, 255), (0, 255, 255)
    pixels = {i: np.full((8, 8, 3), color, np.uint8) for i, color in enumerate((magenta, cyan))}
    examples = _examples("classification", [0, 1], _answers((1, 0.9), (1, 0.9)), contents=pixels)
    (tmp_path / "report.html").write_text(_render(history=_HISTORY, examples=examples))
    screen, console = photograph(tmp_path / "report.html", tmp_path)
    assert console == []
    (wrong_rows, wrong_columns), (right_rows, _) = find(screen, magenta), find(screen, cyan)
    assert len(wrong_rows) == len(right_rows) == 96 * 96
    assert wrong_rows.max() < right_rows.min()
    # The answer stands below its picture, in red; the right one's in green.
    below = screen[wrong_rows.max() : wrong_rows.max() + 40, wrong_columns.min() - 12 : wrong_columns.max() + 12]
    assert len(find(below, (220, 38, 38), 40)[0]) > 20
    assert len(find(below, (21, 128, 61), 40)[0]) == 0


@needs_browser
@pytest.mark.parametrize("make", [_labels_report, _numbers_report])
def test_reports_of_other_tasks_open_in_a_browser_without_a_complaint(make, drawings, tmp_path):
    (tmp_path / "report.html").write_text(make())
    assert_opens(tmp_path / "report.html", tmp_path)


@needs_browser
def test_browser_tells_what_a_page_complains_of(tmp_path):
    """So that silence means something."""
    (tmp_path / "page.html").write_text("<script>console.error('no')</script>")
    assert "no" in photograph(tmp_path / "page.html", tmp_path)[1][0]
