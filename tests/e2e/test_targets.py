"""Several labels and numbers, from the source to a server's answer, with the very model files of the README."""

import csv
import itertools
import json

import numpy as np
import pytest
import yaml
from PIL import Image
from sklearn.datasets import load_digits

from tests.support.cli import assert_user_error, readme_model, tpu_pipelines
from tpu_components.core.examples.artifacts import Manifest
from tpu_components.serving.exported import load_model
from tpu_components.serving.instances import render_predictions

_LABELS = ("above 4", "even", "prime")
_TRAINING = {"epochs": 1, "batch_size_per_replica": 32, "learning_rate": 0.002}


def labels_of(digit):
    return [name for name, has in zip(_LABELS, (digit > 4, digit % 2 == 0, digit in (2, 3, 5, 7)), strict=True) if has]


def write_multi_label(folder):
    digits = load_digits()
    with open(folder / "digits.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label"])
        for i, (image, digit) in enumerate(zip(digits.images, digits.target.tolist(), strict=True)):
            Image.fromarray(np.round(image * (255 / 16)).astype(np.uint8)).save(folder / f"{i}.png")
            writer.writerow([f"{i}.png", "|".join(labels_of(digit))])
    return {"source": f"csv:{folder / 'digits.csv'}", "task": "multi_label"}


def write_regression(folder):
    digits = load_digits()
    images = np.round(digits.images * (255 / 16)).astype(np.uint8)
    # One target is small around a large mean, where float32 and int8 have few digits left.
    year = 2000 + images.mean(axis=(1, 2)) / 1000
    np.savez(folder / "digits.npz", images=images, labels=np.stack([digits.target, year], axis=1))
    return {
        "source": f"npz:{folder / 'digits.npz'}",
        "task": "regression",
        "target_columns": ["digit", "year"],
    }


def run(folder, *arguments):
    done = tpu_pipelines("run", str(folder / "run.yaml"), "--workspace", str(folder / "runs"), "--json", *arguments)
    return done, json.loads(done.stdout) if done.stdout else None


_EACH = itertools.product(["multi_label", "regression"], ["tensorflow", "jax"])


@pytest.fixture(scope="module", params=_EACH, ids="-".join)
def finished(request, tmp_path_factory):
    """Two runs of one configuration, the second of them trained for longer."""
    task, backend = request.param
    folder = tmp_path_factory.mktemp(task)
    write, file = {
        "multi_label": (write_multi_label, "my_labels.py"),
        "regression": (write_regression, "my_numbers.py"),
    }[task]
    (folder / file).write_text(readme_model(file))
    config = {
        "name": "run",
        "data": write(folder),
        "model": {"name": str(folder / file), "parameters": {"filters": 16}},
        "training": {**_TRAINING, "backend": backend},
        "export": {"calibration_examples": 100, "max_int8_accuracy_drop": 0.03},
        "preflight": False,
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(config))
    first, second = run(folder), run(folder, "--set", "training.epochs=12")
    for done, _ in (first, second):
        assert done.returncode == 0, done.stderr
    return task, folder, first[1], second[1]


@pytest.mark.slow  # Two runs of each on each backend: 4 minutes on 2 cores.
def test_the_second_run_beats_the_first_by_its_tasks_own_figure(finished):
    task, _, first, second = finished
    judged, least = {"multi_label": ("micro_f1", 0.93), "regression": ("r2", 0.8)}[task]
    assert second["metrics"][judged] > max(first["metrics"][judged], least)
    assert f"{judged} {second['metrics'][judged]:.4f} beats the champion's" in second["gate"]["reasons"][0]["text"]
    assert (second["deployment"]["version"], second["deployment"]["previous"]) == ("0002", "0001")


@pytest.mark.slow  # See above.
def test_every_format_answers_as_the_trained_model_does(finished):
    task, _, _, summary = finished
    judged = {"multi_label": "micro_f1", "regression": "r2"}[task]
    formats = summary["export"]["formats"]
    assert summary["export"][f"trained_{judged}"] == pytest.approx(summary["metrics"][judged], abs=1e-6)
    for name in ("saved_model", "float"):
        assert formats[name]["agreement"] == 1.0
        assert formats[name][judged] == pytest.approx(summary["metrics"][judged], abs=1e-5)
    assert formats["int8"][judged] >= summary["metrics"][judged] - 0.03


@pytest.mark.slow  # See above.
def test_predict_and_serve_name_what_is_asked(finished):
    task, folder, _, _ = finished
    export = folder / "runs" / "run" / "export"
    digits = load_digits()
    images = np.round(digits.images * (255 / 16)).astype(np.uint8)[:100]
    np.save(folder / "some.npy", images)
    done = tpu_pipelines("predict", str(export), str(folder / "some.npy"), "--json")
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    model = load_model(export)
    served = json.loads(render_predictions(model, model.predict(images[..., None]), None))["predictions"]
    true = digits.target[:100].tolist()
    if task == "multi_label":
        right = [sorted(answer["labels"]) == labels_of(digit) for answer, digit in zip(answers, true, strict=True)]
        assert np.mean(right) > 0.8
        assert [sorted(one["labels"]) for one in served] == [sorted(answer["labels"]) for answer in answers]
        assert all(one["probabilities"].keys() == set(_LABELS) for one in served)
    else:
        values = np.array([[answer["values"]["digit"], answer["values"]["year"]] for answer in answers])
        assert np.abs(values[:, 0] - true).mean() < 1.2
        np.testing.assert_allclose(values[:, 1], 2000 + images.mean(axis=(1, 2)) / 1000, atol=0.02)
        for one, answer in zip(served, answers, strict=True):
            assert one["values"] == pytest.approx(answer["values"], rel=1e-5)


@pytest.mark.slow  # See above.
def test_the_manifest_and_the_page_speak_of_the_task(finished):
    task, folder, _, summary = finished
    manifest = Manifest.load(folder / "runs" / "run" / "records")
    page = (folder / "runs" / "run" / "evaluation" / "report.html").read_text()
    if task == "multi_label":
        truth = [labels_of(digit) for digit in load_digits().target.tolist()]
        counts = np.sum([split.class_counts for split in manifest.splits.values()], axis=0)
        assert counts.tolist() == [sum(name in labels for labels in truth) for name in _LABELS]
        assert "Labels, weakest first" in page
    else:
        assert manifest.splits["train"].targets[1].mean == pytest.approx(2000, abs=1)
        assert "Largest errors" in page
        assert page.count("<svg") == 3 + 2 * 2  # Three of the training, two of each target.
    assert manifest.task == summary["config"]["data"]["task"] == task


@pytest.mark.slow  # See above.
def test_a_model_of_another_task_is_refused_before_anything_runs(finished):
    task, folder, _, _ = finished
    other = {"multi_label": "accuracy", "regression": "micro_f1"}[task]
    done, _ = run(folder, "--set", f"gate.minimum={{{other}: 0.5}}")
    assert_user_error(done, f"Cannot use gate: '{other}' in minimum is not a metric of the task {task}")
