import ast
import errno
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn import metrics

from tpu_components.core.examples.interface import TASKS
from tpu_components.core.results.export_info import with_spread
from tpu_components.export_model import verification
from tpu_components.export_model.comparison import Judge, Scorer
from tpu_components.export_model.formats import FORMATS
from tpu_components.serving import lite

_SOURCE = Path(verification.__file__)


def _imported():
    """The packages that verification.py and the module beside it import, wherever in them."""
    for node in (*ast.walk(ast.parse(_SOURCE.read_text())), *ast.walk(ast.parse(Path(lite.__file__).read_text()))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "A relative import."
            yield node.module.partition(".")[0]


def test_verification_imports_nothing_of_this_project():
    others = set(_imported()) - set(sys.stdlib_module_names)
    assert others == {"numpy", "scipy", "tensorflow", "ai_edge_litert"}


def test_verification_cannot_import_this_project_even_if_it_wanted_to(tmp_path):
    program = (
        "import runpy, sys\n"
        f"space = runpy.run_path({str(_SOURCE)!r})\n"
        f"folder = space['Path']({str(tmp_path)!r})\n"
        "space['main'](folder, folder, ['float=model.tflite'])\n"  # There is nothing to verify.
        "for name in ('tpu_components', 'tpu_pipelines', 'tpu_components.core.models.ready'):\n"
        "    try:\n"
        "        __import__(name)\n"
        "    except ImportError:\n"
        "        continue\n"
        "    sys.exit(f'{name} was imported')\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=_SOURCE.parents[2])


def _work(folder, expected):
    rng = np.random.default_rng(0)
    np.save(folder / verification.INPUTS_FILE, rng.integers(0, 256, (len(expected), 8, 8, 1), np.uint8))
    np.save(folder / verification.EXPECTED_FILE, expected)
    task = {
        "task": "classification",
        "answer": "probabilities",
        "num_outputs": 10,
        "num_threads": 2,
        "margin": [0, 0],
    }
    (folder / verification.TASK_FILE).write_text(json.dumps(task))
    return folder


def judge(task, labels, answers):
    """The metric by which formats are compared."""
    judged = "accuracy" if task == "language_model" else TASKS[task].judged
    return Scorer(TASKS[task], judged, labels, answers).trained


def _verify(export_dir, work, *formats):
    """What the script prints in a process of its own."""
    words = [sys.executable, "-I", _SOURCE, export_dir, work, *formats]
    return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, cwd=work).stdout


@pytest.mark.slow  # Another process with TensorFlow: 5 s.
def test_a_judge_that_nobody_asks_any_more_ends(tmp_path):
    assert _verify(tmp_path, tmp_path) == ""


@pytest.mark.slow  # Another process with TensorFlow: 5 s.
def test_verification_tells_wrong_expectations(exported_digits, tmp_path):
    """Expectations that no model meets: the facts must say so, whatever the trained model was."""
    work = _work(tmp_path, np.full((20, 10), -1, np.float32))
    formats = [f"{name}={form.file}" for name, form in FORMATS.items()]
    for facts in json.loads(_verify(exported_digits.path, work, *formats).splitlines()[-1]).values():
        assert facts["max_difference"] > 1
        assert facts["agreement"] < 1


@pytest.mark.slow  # Another process with TensorFlow: 5 s.
def test_a_damaged_format_is_named_and_the_others_are_measured(exported_digits, tmp_path):
    export_dir = shutil.copytree(exported_digits.path, tmp_path / "export")
    file = export_dir / "model.tflite"
    file.write_bytes(file.read_bytes()[:1000])
    work = _work(tmp_path, np.full((20, 10), 0.1, np.float32))
    facts = json.loads(_verify(export_dir, work, "float=model.tflite", "int8=model_int8.tflite").splitlines()[-1])
    assert facts["float"]["error"].startswith("The format does not predict in a new process: ")
    assert facts["int8"]["agreement"] <= 1


def test_a_file_that_the_disk_cannot_read_is_no_format_to_leave_out(monkeypatch, tmp_path):
    """A read error in the judging process left the float and int8 formats out, with exit code 0."""
    facts = {"saved_model": {"agreement": 1.0}, "float": {"error": "The format does not predict", "errno": errno.EIO}}
    judge = tmp_path / "judge"
    judge.touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(judge))

    def measure():
        judge.write_text(f"#!/bin/sh\necho '{json.dumps(facts)}'\n")
        with Judge(tmp_path, tmp_path) as process:
            return process.measure()

    with pytest.raises(OSError, match=r"Input/output error: 'model\.tflite'"):
        measure()
    del facts["float"]["errno"]
    assert measure() == facts


def test_what_a_format_loses_is_an_interval_of_the_paired_difference():
    """Against a bootstrap of the examples, and, where every example counts alike, the textbook's formula."""
    rng = np.random.default_rng(0)
    truth = rng.normal(5, 2, (300, 2))
    ours, theirs = (truth + rng.normal(0, noise, truth.shape) for noise in (0.3, 0.6))
    low, high = Scorer(TASKS["regression"], "r2", truth, ours).score(theirs, np.arange(300))["drop_interval"]
    drops = []
    for _ in range(2000):
        some = rng.integers(0, 300, 300)
        drops.append(np.subtract(*(judge("regression", truth[some], one[some]) for one in (ours, theirs))))
    np.testing.assert_allclose([low, high], np.quantile(drops, [0.05, 0.95]), atol=0.006)
    labels, expected = np.zeros(100, int), np.tile([1.0, 0.0], (100, 1))
    answers = np.where(np.arange(100)[:, None] < 9, [0.0, 1.0], expected)
    half = 1.645 * math.sqrt(0.09 * 0.91 / 100)
    scorer = Scorer(TASKS["classification"], "accuracy", labels, expected)
    facts = scorer.score(answers, np.arange(100))
    assert facts["drop_interval"] == pytest.approx([0.09 - half, 0.09 + half], rel=0.01)
    assert scorer.score(answers[:1], np.arange(1))["drop_interval"] is None


def test_the_score_on_a_sample_is_that_of_all_examples_minus_what_the_sample_loses():
    labels, expected = np.zeros(10, int), np.tile([1.0, 0.0], (10, 1))
    expected[9] = [0.0, 1.0]
    scorer = Scorer(TASKS["classification"], "accuracy", labels, expected)
    answers = np.array([[0.0, 1.0], [1.0, 0.0]])
    assert scorer.score(answers, np.array([0, 1]))["score"] == pytest.approx(0.9 - 0.5)


def test_a_format_that_answers_with_no_number_has_no_score():
    labels, expected = np.zeros(4, int), np.tile([1.0, 0.0], (4, 1))
    facts = Scorer(TASKS["classification"], "accuracy", labels, expected).score(expected * np.nan, np.arange(4))
    assert math.isnan(facts["score"])
    assert facts["drop_interval"] is None


@pytest.mark.parametrize(("count", "compared", "disagreeing"), [(60, 20, 0), (60, 20, 2), (25, 24, 1), (40, 3, 0)])
def test_what_a_sample_can_miss_is_counted_exactly(count, compared, disagreeing):
    """Against every number that there might be, by whole numbers alone."""

    def chance(among_all):
        ways = sum(math.comb(among_all, x) * math.comb(count - among_all, compared - x) for x in range(disagreeing + 1))
        return ways / math.comb(count, compared)

    credible = [k for k in range(disagreeing, count - compared + disagreeing + 1) if chance(k) > 0.05]
    assert verification.most_disagreeing(count, compared, disagreeing) == max(credible)


def test_nothing_is_missed_where_all_are_compared():
    assert [verification.most_disagreeing(2000, 2000, k) for k in (0, 7, 2000)] == [0, 7, 2000]
    assert verification.most_disagreeing(25_000, 2000, 0) == 35


def _takes_one(path):
    """Write a LiteRT file whose batch size is fixed at 1, as that of a model with a loop is."""
    import tensorflow as tf

    function = tf.function(lambda pixels: pixels + 1, input_signature=[tf.TensorSpec((1, 4))])
    path.write_bytes(tf.lite.TFLiteConverter.from_concrete_functions([function.get_concrete_function()]).convert())
    return path


def test_large_splits_are_compared_on_a_sample_smaller_for_a_file_that_takes_one_at_a_time(exported_digits, tmp_path):
    float_file, takes_one = Path(exported_digits.path) / "model.tflite", _takes_one(tmp_path / "one.tflite")
    assert verification.choose_examples(float_file, 10_000).tolist() == list(range(10_000))
    assert verification.choose_examples(takes_one, 2000).tolist() == list(range(2000))
    for path, size in ((float_file, 10_000), (float_file.parent, 10_000), (takes_one, 2000)):
        chosen = verification.choose_examples(path, 25_000).tolist()
        assert len(chosen) == size
        assert chosen == sorted(set(chosen))


@pytest.mark.parametrize(("count", "num_early"), [(5, 0), (700, 700 - 512)])
def test_a_format_answers_what_it_can_before_the_trained_model_and_is_timed_afterwards(count, num_early, tmp_path):
    asked = []

    def double(inputs):
        asked.append(inputs)
        return 2.0 * inputs

    chosen = np.arange(0, 2 * count, 2)
    candidate = verification.Candidate(tmp_path / "model", double, np.arange(2000), chosen)
    candidate.answer_untimed()
    assert sum(map(len, candidate.answers)) == num_early
    asked.clear()
    times = candidate.time()
    assert np.concatenate(candidate.answers).tolist() == (2 * chosen).tolist()
    timed, repeats = np.unique(np.concatenate([some for some in asked if len(some) > 1]), return_counts=True)
    assert timed.tolist() == chosen[num_early:].tolist(), "the untimed ones are answered once"
    assert set(repeats.tolist()) == {5}
    assert sum(len(some) == 1 for some in asked) == 5 * 10 + 1, "for the latency, after a warm-up"
    for figure, spread in (("latency_ms", "latency_spread"), ("examples_per_second", "rate_spread")):
        least, most = times[spread]
        assert least <= times[figure] <= most
        assert least < most, "several measurements"


def test_lite_predictor_follows_the_batch(exported_digits):
    predict = lite.load_predictor(Path(exported_digits.path) / "model.tflite", 2)
    images = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 1), np.uint8)
    whole = predict(images)
    assert whole.shape == (6, 10)
    for one, expected in zip(images, whole, strict=True):
        np.testing.assert_allclose(predict(one[None])[0], expected, atol=1e-6)


def test_the_figures_by_which_formats_are_compared_agree_with_scikit_learn():
    rng = np.random.default_rng(0)
    labels, probabilities = rng.integers(0, 2, (50, 3)), rng.random((50, 3))
    expected = metrics.f1_score(labels, probabilities > 0.5, average="micro")
    assert judge("multi_label", labels, probabilities) == pytest.approx(expected)
    targets = rng.normal(2000, 0.1, (50, 2)).astype(np.float32)
    values = targets + rng.normal(0, 0.02, (50, 2))
    expected = metrics.r2_score(targets.astype(np.float64), values)
    assert judge("regression", targets, values) == pytest.approx(expected)
    classes, answers = rng.integers(0, 3, 50), rng.random((50, 3))
    expected = metrics.accuracy_score(classes, answers.argmax(1))
    assert judge("classification", classes, answers) == expected


def test_padding_does_not_count_in_the_accuracy_of_the_next_character():
    answers = np.eye(3)[[[0, 1, 2], [1, 1, 2]]]
    assert judge("language_model", np.array([[0, 1, 1], [1, 1, 1]]), answers) == 3 / 5


def test_the_compared_figure_of_a_target_that_never_changes_is_not_finite():
    targets = np.ones((4, 2), np.float32)
    for values in (targets, targets + 1):
        assert not np.isfinite(judge("regression", targets, values))


def test_without_any_label_the_compared_figure_is_zero():
    assert judge("multi_label", np.zeros((3, 2)), np.zeros((3, 2))) == 0.0


def test_a_step_of_float32_around_a_large_mean_is_no_difference():
    expected = np.array([[101_325.0], [101_300.0]])
    rounded = np.nextafter(expected.astype(np.float32), np.float32(np.inf)).astype(np.float64)
    assert ((rounded - expected) / 50 > 1e-4).all(), "more than is allowed"
    assert verification.differences(rounded, expected, [50.0]).max() == 0
    assert verification.differences(expected + 1, expected, [50.0]).max() == pytest.approx(0.02, rel=0.02)
    assert verification.differences(expected, expected + 1e-7, None).max() == pytest.approx(1e-7, rel=0.1)
    assert np.isnan(verification.differences(expected * np.nan, expected, [50.0])).all()
    seconds = np.array([[1.7e9]])
    rounded = np.nextafter(seconds.astype(np.float32), np.float32(np.inf)).astype(np.float64)
    assert verification.agree("regression", rounded, seconds, [1000.0]).tolist() == [True]


def test_answers_agree_where_they_mean_the_same():
    expected = np.array([[0.9, 0.1], [0.6, 0.4]])
    near = np.array([[0.51, 0.5], [0.4, 0.4]])
    assert verification.agree("multi_label", near, expected, 1.0).tolist() == [True, False]
    moved = expected + np.array([[0.0, 0.9], [0.0, 1.1]])  # A twentieth of a standard deviation of 20 is 1.
    assert verification.agree("regression", moved, expected, [1.0, 20.0]).tolist() == [True, False]


@pytest.mark.parametrize(
    ("value", "spread", "text"),
    [
        (21_274.4, (19_800.0, 22_600.0), "21,000"),
        (21_274.4, (21_270.0, 21_280.0), "21,300"),  # Three digits at most.
        (109_214.0, (40_000.0, 300_000.0), "100,000"),
        (0.674, (0.61, 0.7), "0.67"),
        (0.0312, None, "0.031"),
        (0.0, None, "0"),
    ],
)
def test_a_speed_has_the_digits_that_its_spread_allows(value, spread, text):
    assert with_spread(value, spread) == text
