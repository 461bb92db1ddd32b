"""A language model through the steps: training, evaluation, export and prediction of one small model."""

import dataclasses
import json
import math
import re
import shutil

import numpy as np
import pytest
import sklearn.metrics

from tests.components.conftest import judged_here
from tests.components.corpora import QUICK_LANGUAGE_MODEL, TEXT, corpus_params
from tests.components.judging import said
from tests.support.browser import assert_opens, needs_browser
from tests.support.cli import tpu_pipelines_here
from tests.support.drawings import drawn
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.frameworks import tf
from tpu_components.core.examples import records
from tpu_components.core.examples.artifacts import Manifest, ModelInfo
from tpu_components.core.examples.interface import TASKS
from tpu_components.core.metrics.estimates import score_passages
from tpu_components.core.metrics.model_metrics import GroundTruth, compute_metrics
from tpu_components.create_tfrecords import write_records
from tpu_components.deploy_model import DeployParams, deploy_model, health_check
from tpu_components.evaluate_model import EvaluateParams, evaluate_model
from tpu_components.export_model import ExportParams, export_model
from tpu_components.serving.exported import load_model
from tpu_components.serving.inputs import continue_texts
from tpu_components.serving.instances import parse_request, render_predictions
from tpu_components.serving.params import ServeParams
from tpu_components.train_model import train_model

pytestmark = pytest.mark.heavy  # A language model is trained, judged and exported, several times: 25 s.

GATE = EvaluateParams(
    maximum={"bits_per_character": 5.0}, max_regression={"bits_per_character": 0.0}, backend="tensorflow"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Records, model, evaluation and export of the small text. Not to be written to."""
    folder = tmp_path_factory.mktemp("language")
    write_records(corpus_params(folder), folder / "records")
    train_model(QUICK_LANGUAGE_MODEL, folder / "records", folder / "model")
    with drawn():
        evaluate_model(GATE, folder / "records", folder / "model", folder / "evaluation")
    with judged_here():
        export_model(ExportParams(max_int8_accuracy_drop=0.05), folder / "records", folder / "model", folder / "export")
    return folder


def answers(folder, split="test"):
    """Targets, and the trained model's probabilities of every character."""
    from tpu_components.core.models.trained import load_trained_model

    manifest = Manifest.load(folder / "records")
    examples = records.load_split(folder / "records", manifest, split)
    return examples, load_trained_model(folder / "model").predict(examples.inputs, verbose=0)


def test_bits_per_character_are_those_of_an_independent_computation(folder):
    examples, outputs = answers(folder)
    counts = examples.labels != 0
    truth, probabilities = examples.labels[counts], outputs[counts]
    loss = sklearn.metrics.log_loss(truth, probabilities, labels=range(outputs.shape[-1]))
    figures = json.loads((folder / "evaluation" / "evaluation.json").read_text())["challenger"]
    assert figures["num_characters"] == len(truth) == round(len(TEXT) * 0.2)
    assert figures["loss"] == pytest.approx(loss, rel=1e-5)
    assert figures["bits_per_character"] == pytest.approx(loss / math.log(2), rel=1e-5)
    assert figures["accuracy"] == pytest.approx(sklearn.metrics.accuracy_score(truth, probabilities.argmax(1)))
    assert figures["bits_per_character"] < 4.0  # Of 24 characters alike it would be 4.6.


def test_what_does_not_count_changes_no_figure():
    random = np.random.default_rng(0)
    targets = random.integers(1, 5, (6, 9))
    targets[:, :3] = 0
    outputs = random.dirichlet(np.ones(5), (6, 9)).astype(np.float32)
    other = outputs.copy()
    other[:, :3] = random.dirichlet(np.ones(5), (6, 3))
    figures = [
        compute_metrics(
            GroundTruth(TASKS["language_model"], targets, "abcde"), score_passages(targets, given)
        ).as_dict()
        for given in (outputs, other)
    ]
    assert figures[0] == figures[1]
    assert figures[0]["num_characters"] == 36
    assert figures[0]["num_unknown"] == (targets == 1).sum()


@pytest.mark.parametrize("batch_size", [1, 7, 500])
def test_every_character_counts_once_whatever_the_batch_size(folder, tmp_path, batch_size):
    params = dataclasses.replace(GATE, batch_size_per_replica=batch_size)
    evaluate_model(params, folder / "records", folder / "model", tmp_path / "evaluation")
    expected, received = (
        json.loads((path / "evaluation.json").read_text())["challenger"]
        for path in (folder / "evaluation", tmp_path / "evaluation")
    )
    assert received["num_characters"] == expected["num_characters"]
    assert received["bits_per_character"] == pytest.approx(expected["bits_per_character"], rel=1e-6)


def test_training_tells_bits_per_character_that_agree_with_its_loss(folder):
    history = [json.loads(line) for line in (folder / "model" / "history.jsonl").read_text().splitlines()]
    for entry in history:
        # The last passage overlaps, and its overlap counts in neither.
        assert entry["bits_per_character"] == pytest.approx(entry["loss"] / math.log(2), rel=1e-4)
        assert entry["validation_bits_per_character"] == pytest.approx(entry["validation_loss"] / math.log(2))
    assert history[-1]["loss"] < history[0]["loss"]
    examples, outputs = answers(folder, "validation")
    counts, best = examples.labels != 0, ModelInfo.load(folder / "model").training["best_epoch"]
    loss = sklearn.metrics.log_loss(examples.labels[counts], outputs[counts], labels=range(outputs.shape[-1]))
    assert history[best - 1]["validation_loss"] == pytest.approx(loss, rel=1e-4)


def test_the_gate_bounds_bits_per_character_and_compares_them_with_the_champion(folder, tmp_path):
    low = dataclasses.replace(GATE, maximum={"bits_per_character": 0.5})
    refused = evaluate_model(low, folder / "records", folder / "model", tmp_path / "low")
    assert not refused.promote
    assert re.match(r"failed: bits_per_character \d\.\d{4}, required at most 0\.5000", said(refused)[0])
    with_champion = dataclasses.replace(GATE, champion=str(folder / "model"))
    tied = evaluate_model(with_champion, folder / "records", folder / "model", tmp_path / "tied")
    assert not tied.promote
    assert any("ties with the champion's" in reason for reason in said(tied))
    assert tied.champion_metrics == tied.metrics
    report = (tmp_path / "tied" / "report.html").read_text()
    assert "champion" in report
    assert "no difference" in report


def test_the_report_shows_bits_samples_and_the_hardest_passages(folder):
    report = (folder / "evaluation" / "report.html").read_text()
    figures = json.loads((folder / "evaluation" / "evaluation.json").read_text())["challenger"]
    assert f"{figures['bits_per_character']:.4f}" in report
    assert "bits per character by epoch" in report
    assert report.count("temperature 0.5") == report.count("temperature 1.0") == 2
    assert "Confusion matrix" not in report
    hardest = [float(bits) for bits in re.findall(r"characters \d+-\d+: ([\d.]+) bits per character", report)]
    assert hardest == sorted(hardest, reverse=True)
    with np.load(folder / "evaluation" / "predictions.npz") as stored:
        bits = stored["bits"].sum(1) / (stored["bits"] > 0).sum(1)
    assert hardest[0] == pytest.approx(bits.max(), abs=0.006)


@needs_browser
def test_the_report_opens_in_a_browser_without_a_complaint(folder, tmp_path):
    assert_opens(folder / "evaluation" / "report.html", tmp_path)


def test_characters_of_the_text_cannot_break_the_report(tmp_path):
    text = ("<script>&\"'\n" * 40) + "<b>" * 20
    write_records(corpus_params(tmp_path, text), tmp_path / "records")
    train_model(dataclasses.replace(QUICK_LANGUAGE_MODEL, epochs=1), tmp_path / "records", tmp_path / "model")
    evaluate_model(GATE, tmp_path / "records", tmp_path / "model", tmp_path / "evaluation")
    report = (tmp_path / "evaluation" / "report.html").read_text()
    assert "<script" not in report
    assert "&lt;" in report


def test_every_format_answers_as_the_trained_model(folder):
    facts = json.loads((folder / "export" / "export.json").read_text())
    for name in ("saved_model", "float"):
        assert facts["formats"][name]["agreement"] == 1.0
        assert facts["formats"][name]["max_difference"] < 1e-5
    assert facts["formats"]["int8"]["max_difference"] > 1e-5
    assert facts["formats"]["int8"]["bytes"] < facts["formats"]["float"]["bytes"]
    examples, outputs = answers(folder)
    counts = examples.labels != 0
    assert facts["trained_accuracy"] == pytest.approx((outputs.argmax(-1) == examples.labels)[counts].mean())


def test_the_saved_model_takes_strings(folder):
    text = tf.saved_model.load(str(folder / "export" / "saved_model")).signatures["text"]
    model = load_model(folder / "export")
    prompts = ["the cat", "a", "é dog?", TEXT[:40]]
    received = text(text=tf.constant(prompts))["probabilities"].numpy()
    expected = model.predict(np.stack([model.reader.read(prompt) for prompt in prompts]))
    np.testing.assert_allclose(received, expected, atol=1e-5)


def test_the_exported_model_answers_for_the_last_character_of_each_text(folder):
    examples, outputs = answers(folder)
    model = load_model(folder / "export")
    np.testing.assert_allclose(model.predict(examples.inputs), outputs[:, -1], atol=1e-5)
    cut = examples.inputs.copy()
    cut[::2, 5:] = 0  # A shorter text beside a whole one.
    received = model.predict(cut)
    np.testing.assert_allclose(received[::2], outputs[::2, 4], atol=1e-5)
    np.testing.assert_allclose(received[1::2], outputs[1::2, -1], atol=1e-5)


def test_writing_on_is_what_the_whole_model_would_write(folder):
    from tpu_components.core.models.trained import load_trained_model

    model, names = load_trained_model(folder / "model"), Manifest.load(folder / "records").class_names
    exported = load_model(folder / "export")
    text = "the c"
    (written,) = continue_texts(folder / "export", [text], length=8, temperature=0)
    for character in written.text:
        probabilities = model.predict(exported.reader.read(text)[None], verbose=0)[0, len(text) - 1]
        assert names[2:][probabilities[2:].argmax()] == character
        text += character
    assert text == "the c" + written.text


def test_predict_continues_a_prompt_the_same_for_a_seed_without_tensorflow(folder):
    export = str(folder / "export")
    texts = [
        tpu_pipelines_here("predict", export, "the ", "a dog", "--length", "30", "--seed", seed, "--json")
        for seed in ("4", "4", "5")
    ]
    assert texts[0].returncode == 0, texts[0].stderr
    assert texts[0].stdout == texts[1].stdout != texts[2].stdout
    lines = [json.loads(line) for line in texts[0].stdout.splitlines()]
    assert [line["input"] for line in lines] == ["the ", "a dog"]
    assert all(len(line["continuation"]) == 30 for line in lines)
    plain = tpu_pipelines_here("predict", export, "the ", "--length", "30", "--seed", "4")
    assert plain.stdout == "the " + lines[0]["continuation"] + "\n"


def test_an_empty_prompt_is_refused(folder):
    with pytest.raises(InputError, match="Cannot continue an empty prompt"):
        list(continue_texts(folder / "export", [""]))


def test_a_served_text_gets_the_probabilities_of_the_next_character(folder):
    model = load_model(folder / "export")
    body = json.dumps({"instances": [{"text": "the c"}, "a do"], "parameters": {"top": 2}}).encode()
    asked = parse_request(body, model.reader, ServeParams())
    answer = json.loads(render_predictions(model, model.predict(asked.inputs), asked.top))["predictions"]
    assert [len(one["probabilities"]) for one in answer] == [2, 2]
    (written,) = continue_texts(folder / "export", ["the c"], length=1, temperature=0)
    assert answer[0]["class"] == written.text
    with pytest.raises(InputError, match=r'instances\[0\]: expected a string, or {"text": "…"}. Received: a number'):
        parse_request(b'{"instances": [3]}', model.reader, ServeParams())
    with pytest.raises(InputError, match=r"instances\[0\]: expected a text with at least one character"):
        parse_request(b'{"instances": [""]}', model.reader, ServeParams())


def test_the_champion_answers_as_it_was_evaluated(folder, tmp_path):
    params = DeployParams(registry=str(tmp_path / "registry"), model_name="small", health_check_examples=5)
    paths = [folder / name for name in ("records", "model", "export", "evaluation")]
    result = deploy_model(params, *paths, tmp_path / "deployment")
    assert result.version == "0001"
    assert result.health_check.num_examples == 5
    assert result.health_check.max_difference < 1e-5


def _answer_here(function, *arguments, **_):
    return function(*arguments)


def test_the_health_check_sees_an_export_that_answers_otherwise_than_was_evaluated(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(health_check, "in_fresh_process", _answer_here)  # Where TensorFlow is imported already.
    shutil.copytree(folder / "evaluation", tmp_path / "evaluation")
    with np.load(tmp_path / "evaluation" / "predictions.npz") as stored:
        arrays = dict(stored)
    arrays["probabilities"] = np.roll(arrays["probabilities"], 1, axis=0)
    np.savez(tmp_path / "evaluation" / "predictions.npz", **arrays)
    params = DeployParams(registry=str(tmp_path / "registry"), model_name="small", health_check_examples=5)
    paths = [*(folder / name for name in ("records", "model", "export")), tmp_path / "evaluation"]
    with pytest.raises(RuntimeError, match=r"of 5 passages, a probability differs by"):
        deploy_model(params, *paths, tmp_path / "deployment")
