import dataclasses
import html
import re

import numpy as np
import pytest

from tests.browser import assert_opens, find, needs_browser, photograph
from tests.html_page import Page
from tpu_components.core.examples.interface import Regression
from tpu_components.core.results.evaluation_info import Difference, Rule
from tpu_components.evaluate_model.baseline import find_baseline
from tpu_components.evaluate_model.metrics import compute_metrics
from tpu_components.evaluate_model.multi_label import compute_multi_label_metrics
from tpu_components.evaluate_model.regression import compute_regression_metrics
from tpu_components.evaluate_model.report import (
    Answer,
    Prediction,
    ReportContent,
    render_report,
)

_HOSTILE = "<script>alert(1)</script>\"' onerror=alert(2) {{ 7 * 7 }} ]]>&amp;"


def _metrics(num_classes=3, num_examples=60, names=None, seed=0, lean=3.0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, num_classes, num_examples)
    odds = np.exp(rng.normal(size=(num_examples, num_classes)) + lean * np.eye(num_classes)[labels])
    names = names or [f"class {i}" for i in range(num_classes)]
    return compute_metrics(labels, odds / odds.sum(axis=1, keepdims=True), names)


def _prediction(key="a.png", shape=(8, 8, 1), true_class="cat", predicted_class="dog"):
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    is_right = true_class == predicted_class
    truth = [] if is_right else [Answer(true_class, "5 %", note="true")]
    return Prediction(key, pixels, [Answer(predicted_class, "93 %", "good" if is_right else "bad"), *truth])


def _content(**changes):
    epochs = [{"epoch": i, "loss": 1 / i, "accuracy": 1 - 0.5 / i, "validation_loss": 1.1 / i} for i in (1, 2, 3)]
    content = ReportContent(
        title="digits_cnn on sklearn:digits",
        facts={"Model": "digits_cnn"},
        metrics=_metrics(),
        champion=None,
        promote=True,
        reasons=[Rule(True, "", "there is no other champion to beat")],
        history=epochs,
        wrong=[_prediction("wrong.png")],
        num_wrong=7,
        right=[_prediction("right.png", predicted_class="cat")],
    )
    return dataclasses.replace(content, **changes)


def _text(content):
    return " ".join(" ".join(Page(render_report(content)).words).split())


def _hostile_content(num_classes):
    names = [f"{_HOSTILE}{i}" for i in range(num_classes)]
    metrics = _metrics(num_classes, names=names, lean=0.5)
    prediction = _prediction(_HOSTILE, true_class=_HOSTILE, predicted_class=_HOSTILE)
    return ReportContent(
        title=_HOSTILE,
        facts={_HOSTILE: _HOSTILE},
        metrics=metrics,
        champion=metrics,
        promote=False,
        reasons=[Rule(True, "", _HOSTILE)],
        history=_content().history,
        wrong=[prediction],
        num_wrong=1,
        right=[prediction],
    )


@pytest.mark.parametrize("num_classes", [2, 3, 40])
def test_report_shows_hostile_names_as_text_and_never_as_markup(num_classes):
    text = render_report(_hostile_content(num_classes))
    page = Page(text)
    assert "<script" not in text.lower()
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert {*page.values("alt")} == {_HOSTILE}
    assert {value for value in page.values("title") if "→" not in value} <= {
        _HOSTILE,
        *(f"{_HOSTILE}{i}" for i in range(num_classes)),
    }
    assert _HOSTILE in page.words


def test_the_title_tells_a_run_from_others_of_its_name():
    text = render_report(_content(title="flowers: cnn on images:x", subtitle="2026-11-22 09:30 UTC, batch 32"))
    assert "<title>flowers: cnn on images:x: 2026-11-22 09:30 UTC, batch 32</title>" in text
    assert "2026-11-22 09:30 UTC, batch 32" in Page(text).words


def test_every_point_of_a_curve_tells_its_values_under_the_pointer():
    told = re.findall(
        r'<circle class="point" cx="([\d.]+)" cy="([\d.]+)" r="4.5"><title>([^<]*)', render_report(_content())
    )
    points = {text: (float(x), float(y)) for x, y, text in told}
    assert {"train: epoch 1, loss 1", "validation: epoch 3, loss 0.3667", "train: epoch 2, accuracy 75.00%"} <= {
        *points
    }
    first, last = points["train: epoch 1, loss 1"], points["train: epoch 3, loss 0.3333"]
    assert 0 < first[0] < last[0] < 331, "later is further right"
    assert 0 < first[1] < last[1] < 223, "less is lower"


def test_a_stage_begins_at_a_dotted_line():
    epochs = [{**epoch, "stage": stage} for epoch, stage in zip(_content().history, (1, 1, 2), strict=True)]
    assert "A dotted line stands where a stage" in _text(_content(history=epochs))
    assert render_report(_content(history=epochs)).count("stroke-dasharray: 1,1.65") == 2, "of two figures"
    assert "dotted" not in _text(_content())


@pytest.mark.parametrize("num_classes", [2, 3])
def test_report_loads_nothing(num_classes):
    text = render_report(_content(metrics=_metrics(num_classes)))
    page = Page(text)
    assert not re.search(r"https?://|@import|<link|<script|<iframe", text)
    assert all(value.startswith("data:image/png;base64,") for value in page.values("src"))
    assert all(value.startswith("#") for value in page.values("href"))
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", text))


def test_report_forbids_itself_scripts_and_the_network():
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in Page(render_report(_content())).values(
        "content"
    )


@pytest.mark.parametrize("num_classes", [2, 3])
def test_report_drawings_refer_to_ids_that_exist_once(num_classes):
    text = render_report(_content(metrics=_metrics(num_classes)))
    page = Page(text)
    ids = page.values("id")
    used = {value[1:] for value in page.values("href")} | set(re.findall(r"url\(#(\w+)\)", text))
    assert len(ids) == len(set(ids))
    assert used <= set(ids)
    assert not re.search("#0000a[0-9]", text)


def test_report_is_deterministic():
    assert render_report(_content()) == render_report(_content())


def test_report_puts_wrong_predictions_before_right_ones():
    text = _text(_content())
    assert text.index("Wrong predictions") < text.index("wrong.png") < text.index("Right predictions")
    assert text.index("Right predictions") < text.index("right.png") < text.index("Calibration How often")


def test_wrong_predictions_show_answer_truth_confidence_and_how_many_there_are():
    text = _text(_content())
    assert "1 of 7, the most confident first" in text
    assert "dog 93 % true cat 5 % wrong.png" in text


@pytest.mark.parametrize(("promote", "words"), [(True, "✓ Passed the gate"), (False, "✗ Did not pass the gate")])
def test_report_opens_with_the_decision_and_its_reasons(promote, words):
    rules = [Rule(True, "accuracy", "accuracy 0.98 is enough"), Rule(promote, "loss", "loss 0.2 is too")]
    text = _text(_content(promote=promote, reasons=rules))
    assert f"{words} ✓ accuracy 0.98 is enough {words[0]} loss 0.2 is too" in text
    assert text.index(words) < text.index("Headline figures")


def test_headline_figures_compare_with_the_champion():
    metrics = _metrics()
    better = dataclasses.replace(metrics, accuracy=0.9512, loss=0.25, macro_f1=0.9, calibration_error=0.01)
    champion = dataclasses.replace(metrics, accuracy=0.94, loss=0.2, macro_f1=0.9, calibration_error=0.02)
    page = Page(render_report(_content(metrics=better, champion=champion)))
    looks = [value for tag, attributes in page.tags if tag == "dd" and (value := attributes.get("class"))]
    assert [look for look in looks if look != "value"] == ["good", "note", "bad", "note", "good"]
    words = " ".join(" ".join(page.words).split())
    assert "Accuracy 95.12 % champion 94.00 % +1.12 points" in words
    assert "Loss 0.2500 champion 0.2000 +0.0500" in words
    assert "Calibration error 1.00 % champion 2.00 % −1.00 points" in words
    assert "champion" not in _text(_content(reasons=[]))


def test_headline_figures_show_what_chance_leaves_of_them_and_judge_no_difference_that_it_explains():
    metrics, champion = (dataclasses.replace(_metrics(), accuracy=value, loss=1 - value) for value in (0.95, 0.9))
    known = {
        "accuracy": Difference(advantage=0.05, least=0.012, most=0.088, luck=0.02),
        "loss": Difference(advantage=0.05, least=-0.01, most=0.11, luck=0.1),
    }
    content = _content(
        metrics=metrics, champion=champion, intervals={"accuracy": (0.91, 1.2), "loss": (-0.1, 0.2)}, differences=known
    )
    text = _text(content)
    assert "Accuracy 95.00 % 91.00 % to 100.00 % champion 90.00 % +5.00 points (+1.20 to +8.80)" in text
    assert "Loss 0.0500 0.0000 to 0.2000 champion 0.1000 −0.0500 (−0.1100 to +0.0100)" in text
    page = Page(render_report(content))
    looks = [value for tag, attributes in page.tags if tag == "dd" and (value := attributes.get("class"))]
    assert [look for look in looks if look != "value"][:4] == ["note", "good", "note", "note"]


def test_examples_that_the_champion_has_right_are_shown():
    broken = _content(broken=[_prediction("broken.png")], changed=(3, 4))
    assert "Changed since the champion 3 right that were wrong, 4 wrong that were right:" in _text(broken)
    text = _text(broken)
    assert text.index("broken.png") < text.index("Wrong predictions")
    assert "of these 1, the worst first" in text
    assert "0 wrong that were right." in _text(_content(changed=(2, 0)))
    assert "Changed since" not in _text(_content())


def test_headline_figures_say_what_a_constant_answer_reaches_and_which_classes_are_absent():
    labels, predicted = np.array([0] * 6 + [2] * 4), [0] * 6 + [2, 2, 2, 0]
    metrics = compute_metrics(labels, np.eye(3)[predicted], ["cat", "absent", "dog"])
    baseline = find_baseline("classification", labels, np.eye(3)[predicted], ["cat", "absent", "dog"])
    text = _text(_content(metrics=metrics, baseline=baseline))
    assert "Accuracy 90.00 % baseline 60.00 %: always answering 'cat'" in text
    assert "Macro F1 0.5934 1 of 3 classes have no examples and count 0; the mean of the others is 0.8901" in text


def test_shares_read_100_percent_only_if_nothing_is_missing():
    almost = dataclasses.replace(_metrics(), accuracy=0.99999, macro_f1=0.0, calibration_error=0.00001)
    text = _text(_content(metrics=almost))
    assert "Accuracy >99.99 %" in text
    assert "Calibration error <0.01 %" in text
    assert "Accuracy 100.00 %" in _text(_content(metrics=dataclasses.replace(almost, accuracy=1.0)))


@pytest.mark.parametrize(("num_classes", "heading"), [(2, "matrix"), (30, "matrix"), (31, "classes"), (100, "classes")])
def test_many_classes_are_shown_as_the_most_confused_pairs(num_classes, heading):
    metrics = _metrics(num_classes, num_examples=400, lean=1.0)
    page = Page(render_report(_content(metrics=metrics)))
    words = " ".join(" ".join(page.words).split())
    assert ("Confusion matrix" in words) == (heading == "matrix")
    assert ("Most confused classes" in words) == (heading == "classes")
    cells = [attributes["class"].split()[0] for tag, attributes in page.tags if tag == "td" and "class" in attributes]
    if heading == "matrix":
        assert cells.count("hit") + cells.count("miss") == np.count_nonzero(metrics.confusion_matrix)
    else:
        assert cells.count("bad") == 30


def test_classes_come_weakest_first_and_those_without_examples_last():
    names = ["strong", "absent", "weak"]
    labels, predicted = np.array([0, 0, 0, 2, 2]), [0, 0, 0, 2, 0]
    text = _text(_content(metrics=compute_metrics(labels, np.eye(3)[predicted], names)))
    listed = text[text.index("weakest first") : text.index("Wrong predictions")]
    assert listed.index("weak 2") < listed.index("strong 3") < listed.index("absent 0")


def test_roc_is_drawn_for_two_classes_only():
    assert "Positive is class 1" in _text(_content(metrics=_metrics(2)))
    assert "ROC" not in _text(_content(metrics=_metrics(3)))


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 300, 3), (300, 1, 1), (28, 28, 1), (32, 32, 3), (500, 400, 3)])
def test_pictures_of_every_shape_are_shown(shape):
    content = _content(wrong=[_prediction(shape=shape)], right=[])
    page = Page(render_report(content))
    (image,) = [attributes for tag, attributes in page.tags if tag == "img"]
    assert ("class" in image) == (max(shape) < 96)
    assert len(image["src"]) < 200_000


def test_report_works_without_history_mistakes_or_right_predictions():
    perfect = compute_metrics(np.arange(3), np.eye(3), ["a", "b", "c" * 500])
    text = _text(_content(metrics=perfect, history=[], wrong=[], num_wrong=0, right=[], facts={}, reasons=[]))
    assert "No history of the training was recorded" in text
    assert "None: all 3 examples were predicted right" in text
    assert "Right predictions" not in text


@pytest.mark.parametrize(
    "row", [{}, {"validation_loss": None}, {"validation_loss": float("nan")}, {"validation_accuracy": 0.5}]
)
def test_training_curves_accept_a_single_epoch_and_missing_values(row):
    text = render_report(_content(history=[{"epoch": 1, "loss": 2.3, "accuracy": 0.1, **row}]))
    assert {"training loss: loss by epoch", "training accuracy: accuracy by epoch"} <= set(
        Page(text).values("aria-label")
    )


def test_the_time_of_every_epoch_is_split_by_what_the_device_waited_for():
    seconds = {"compute_seconds": 4.0, "input_seconds": 1.5, "checkpoint_seconds": 0.25, "host_seconds": 0.5}
    row = {"loss": 2.3, "accuracy": 0.1}
    text = render_report(_content(history=[{"epoch": epoch, **row, **seconds} for epoch in (1, 2)]))
    assert "training seconds: seconds by epoch" in Page(text).values("aria-label")
    for words in ("the device computes: epoch 2, seconds 4", "it waits for input: epoch 1, seconds 1.5"):
        assert f"<title>{words}</title>" in text
    del seconds["input_seconds"]
    text = render_report(_content(history=[{"epoch": 1, **row, **seconds}]))
    assert "<title>the device computes and is fed: epoch 1, seconds 4</title>" in text
    assert "training seconds" not in render_report(_content(history=[{"epoch": 1, **row}]))


def test_report_of_100_small_pictures_is_below_2_mb():
    pictures = [_prediction(f"{i}.png", shape=(32, 32, 3)) for i in range(100)]
    assert len(render_report(_content(wrong=pictures, num_wrong=100)).encode()) < 2_000_000


def test_a_legend_lies_below_its_drawing_and_covers_no_point():
    text = render_report(_content())
    drawing = text[text.index('aria-label="training loss') :]
    drawing = drawing[: drawing.index("</svg>")]
    lowest = max(float(height) for height in re.findall(r'class="point" cx="[\d.]+" cy="([\d.]+)"', drawing))
    names = re.findall(r"translate\([\d.]+ ([\d.]+)\)[^>]*>(?:train|validation)</text>", drawing)
    names += re.findall(r'y="([\d.]+)"[^>]*>(?:train|validation)</text>', drawing)
    assert len(names) == 2
    assert min(map(float, names)) > lowest + 20, "below the axis and its name"


@needs_browser
def test_on_a_telephone_every_column_of_the_classes_is_seen(tmp_path):
    names = ["Turnschuh", "Sicherheitsschnürschuh", "Donaudampfschifffahrtsgesellschaftskapitän"]
    text = render_report(_content(metrics=_metrics(names=names), wrong=(), right=(), num_wrong=0, history=()))
    marked = text.replace("F1</th>", '<span style="background:#fe01dc;color:#fe01dc">F1</span></th>')
    assert marked != text
    (tmp_path / "page.html").write_text(
        f'<iframe style="border:0" width="390" height="1800" srcdoc="{html.escape(marked)}"></iframe>'
    )
    screen, _ = photograph(tmp_path / "page.html", tmp_path, 600, 1900)
    _, columns = find(screen, (254, 1, 220))
    assert columns.max() - columns.min() >= 8, "the whole word"


def _labels_content(names=("sky", "sea", "sun"), **changes):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, (50, len(names)))
    probabilities = (0.2 + 0.5 * labels + 0.3 * rng.random(labels.shape)).clip(0, 1)
    pixels = np.zeros((8, 8, 3), np.uint8)
    answers = [Answer(names[1], "73 %", "bad"), Answer(names[0], "91 %", "good")]
    answers += [Answer(names[2], "18 %", "bad", "missed"), Answer(", ".join([names[0], names[2]]), note="true")]
    prediction = Prediction("wrong.png", pixels, answers)
    metrics = compute_multi_label_metrics(labels, probabilities, names)
    history = [{"epoch": i, "loss": 1 / i, "binary_accuracy": 1 - 0.5 / i} for i in (1, 2)]
    return _content(metrics=metrics, champion=metrics, history=history, wrong=[prediction], right=[], **changes)


def _numbers_content(names=("mass", "width"), num_examples=700):
    rng = np.random.default_rng(0)
    targets = rng.normal(size=(num_examples, len(names)))
    values = targets + 0.1 * rng.normal(size=targets.shape)
    task = Regression((0.0,) * len(names), (1.0,) * len(names))
    metrics = compute_regression_metrics(targets, values, names, task)
    lines = (Answer("true", "2"), Answer("predicted", "−1.25"), Answer("error", "−3.25", "bad"))
    answers = [answer for name in names for answer in (Answer(name), *lines)]
    prediction = Prediction("far.png", np.zeros((8, 8, 1), np.uint8), answers)
    history = [{"epoch": i, "loss": 1 / i, "mean_absolute_error": 1 / i} for i in (1, 2)]
    changes = {"history": history, "wrong": [prediction], "num_wrong": num_examples, "right": []}
    return _content(metrics=metrics, champion=metrics, answers=(targets, values), **changes)


def test_report_of_several_labels_shows_which_are_wrong_in_red():
    page = Page(render_report(_labels_content()))
    words = [" ".join(word.split()) for word in page.words]
    red = [attributes.get("class", "") for _, attributes in page.tags if "bad" in attributes.get("class", "").split()]
    assert "answer bad" in red
    assert "truth bad" in red
    text = " ".join(filter(None, words))
    assert "sea 73 % sky 91 % missed sun 18 % true sky, sun" in text
    assert "Average precision" in text
    assert "Confusion matrix" not in text
    assert "no difference" in text


def test_report_of_numbers_shows_true_predicted_error_and_two_drawings_for_every_target():
    content = _numbers_content()
    page = Page(render_report(content))
    text = " ".join(" ".join(page.words).split())
    assert "mass true 2 predicted \N{MINUS SIGN}1.25 error \N{MINUS SIGN}3.25" in text
    assert "500 of 700 examples, spread evenly" in text
    assert sum(tag == "svg" for tag, _ in page.tags) == 2 + 2 * 2
    for target in content.metrics.per_target:
        assert f"{target.mean_absolute_error:.4g}" in text


@pytest.mark.parametrize("make", [_labels_content, _numbers_content])
def test_report_of_any_task_shows_hostile_names_as_text_and_loads_nothing(make):
    text = render_report(make(names=(_HOSTILE + "1", _HOSTILE + "2", _HOSTILE + "3")))
    page = Page(text)
    assert "<script" not in text.lower()
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert not re.search(r"https?://|@import|<link|<iframe", text)
    assert any(_HOSTILE in word for word in page.words)
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    assert {value[1:] for value in page.values("href")} <= set(ids)


@needs_browser
def test_browser_shows_wrong_predictions_first_with_picture_and_red_answer(tmp_path):
    magenta, cyan = (255, 0, 255), (0, 255, 255)
    wrong, right = (np.full((8, 8, 3), color, np.uint8) for color in (magenta, cyan))
    content = _content(
        wrong=[dataclasses.replace(_prediction(), content=wrong)],
        right=[dataclasses.replace(_prediction(), content=right)],
    )
    (tmp_path / "report.html").write_text(render_report(content))
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
@pytest.mark.parametrize("make", [_labels_content, _numbers_content])
def test_reports_of_other_tasks_open_in_a_browser_without_a_complaint(make, tmp_path):
    (tmp_path / "report.html").write_text(render_report(make()))
    assert_opens(tmp_path / "report.html", tmp_path)


@needs_browser
def test_browser_tells_what_a_page_complains_of(tmp_path):
    """So that silence means something."""
    (tmp_path / "page.html").write_text("<script>console.error('no')</script>")
    assert "no" in photograph(tmp_path / "page.html", tmp_path)[1][0]
