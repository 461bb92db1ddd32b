"""Claims about several labels and numbers for texts: from a table to the answers of every format and of the server."""

import csv
import dataclasses
import json
import random

import numpy as np
import pytest

from tests.components.conftest import QUICK, judged_here
from tpu_components.core.examples.artifacts import Manifest
from tpu_components.create_tfrecords import WriteParams, write_records
from tpu_components.evaluate_model import EvaluateParams, evaluate_model
from tpu_components.export_model import ExportParams, export_model
from tpu_components.serving.exported import load_model
from tpu_components.serving.inputs import predict_inputs
from tpu_components.serving.instances import render_predictions
from tpu_components.train_model import train_model

pytestmark = pytest.mark.heavy  # A model is trained for each task: 10 s.

_NEUTRAL, _PRAISE, _BLAME = (
    ["film", "plot", "scene", "actor", "story"],
    ["great", "lovely", "superb"],
    ["dull", "awful", "poor"],
)
_MODEL = """
import keras
from keras import layers


def build_model(vocabulary_size, num_tokens, {size}):
    return keras.Sequential([
        keras.Input((num_tokens,), dtype="int32"),
        layers.Embedding(vocabulary_size, 16),
        layers.{layer},
        layers.Dense({size}, activation={activation!r}, dtype="float32"),
    ])
"""
_TASKS = {
    # Columns of the table; what the model's output is.
    "multi_label": (("label",), "num_classes", "sigmoid"),
    "regression": (("stars", "year"), "num_targets", None),
}


def _targets(task, praise, blame):
    if task == "multi_label":
        return ["|".join(["praise"] * bool(praise) + ["blame"] * bool(blame))]
    # One target is small around a large mean, which float32 and int8 have few digits for.
    return [praise - blame, 2000 + praise / 100]


_MODELS = {
    **{task: (task, "GlobalAveragePooling1D()", 12) for task in _TASKS},
    **{f"{task} by an LSTM": (task, "LSTM(24)", 25) for task in _TASKS},
}


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=[pytest.mark.slow] * ("LSTM" in name)) for name in _MODELS]
)  # A recurrent network trains and converts for 10 s.
def folder(request, tmp_path_factory):
    """Records, model, evaluation and export of texts with words of praise, of blame, of both or of none."""
    task, layer, epochs = _MODELS[request.param]
    columns, size, activation = _TASKS[task]
    root = tmp_path_factory.mktemp(task)
    draw = random.Random(0)
    with open(root / "reviews.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", *columns])
        for _ in range(600):
            praise, blame = draw.randint(0, 2), draw.randint(0, 2)
            words = draw.choices(_NEUTRAL, k=3) + draw.choices(_PRAISE, k=praise) + draw.choices(_BLAME, k=blame)
            draw.shuffle(words)
            writer.writerow([" ".join(words), *_targets(task, praise, blame)])
    params = WriteParams(
        f"csv:{root}/reviews.csv",
        task=task,
        target_columns=columns if task == "regression" else (),
        num_tokens=8,
        vocabulary_size=20,
        num_workers=1,
    )
    write_records(params, root / "records")
    (root / "my_model.py").write_text(_MODEL.format(size=size, layer=layer, activation=activation))
    train = dataclasses.replace(
        QUICK, model=str(root / "my_model.py"), model_parameters={}, epochs=epochs, learning_rate=0.02
    )
    train_model(train, root / "records", root / "model")
    evaluate_model(EvaluateParams(max_regression={}), root / "records", root / "model", root / "evaluation")
    with judged_here():
        export_model(ExportParams(max_int8_accuracy_drop=0.05), root / "records", root / "model", root / "export")
    return root


def test_they_are_learnt(folder):
    metrics = json.loads((folder / "evaluation" / "evaluation.json").read_text())["challenger"]
    judged = "micro_f1" if Manifest.load(folder / "records").task == "multi_label" else "r2"
    assert metrics[judged] > 0.8


def test_every_format_answers_as_the_trained_model_does(folder):
    facts = json.loads((folder / "export" / "export.json").read_text())
    for name in ("saved_model", "float"):
        assert facts["formats"][name]["agreement"] == 1.0


def test_a_text_gets_its_labels_or_numbers(folder):
    texts = ["a great and lovely film", "a dull and poor film"]
    answers = [dict(one.classes) for one in predict_inputs(folder / "export", texts)]
    model = load_model(folder / "export")
    outputs = model.predict(np.stack([model.reader.read(text) for text in texts]))
    served = json.loads(render_predictions(model, outputs, None))["predictions"]
    if model.task == "multi_label":
        assert [set(answer) for answer in answers] == [{"praise"}, {"blame"}]
        assert [set(one["labels"]) for one in served] == [{"praise"}, {"blame"}]
    else:
        assert [answer["stars"] for answer in answers] == pytest.approx([2, -2], abs=0.7)
        assert [answer["year"] for answer in answers] == pytest.approx([2000.02, 2000.0], abs=0.01)
        assert [one["values"] for one in served] == [pytest.approx(answer, rel=1e-6) for answer in answers]


def test_the_report_shows_the_texts(folder):
    page = (folder / "evaluation" / "report.html").read_text()
    assert page.count("<blockquote>") >= 20
    assert "<img" not in page
    with np.load(folder / "evaluation" / "predictions.npz") as stored:
        assert len(stored[stored.files[0]]) == Manifest.load(folder / "records").splits["test"].num_examples
