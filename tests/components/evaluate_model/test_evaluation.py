import dataclasses
import json
import re
import shutil
import types

import h5py
import numpy as np
import pytest

from tests.components.judging import said
from tpu_components.core.base.errors import InputError
from tpu_components.core.examples import records
from tpu_components.core.examples.artifacts import Manifest, ModelInfo, file_sha256
from tpu_components.core.examples.example_ids import load_identities
from tpu_components.core.results.metric_table import scalars
from tpu_components.create_tfrecords import WriteParams, write_records
from tpu_components.evaluate_model import EvaluateParams, evaluate_model, evaluation
from tpu_components.evaluate_model.metrics import compute_metrics

_CPU = EvaluateParams(backend="tensorflow", accelerator="cpu", num_replicas=1)


def _scored(output):
    return json.loads((output / "evaluation.json").read_text())


@pytest.fixture
def broken_model(trained_digits, tmp_path):
    """A model whose weights are NaN, as after a training that diverged."""
    directory = tmp_path / "broken"
    shutil.copytree(trained_digits, directory)
    with h5py.File(directory / "best.weights.h5", "r+") as file:
        found = []
        file.visititems(lambda path, item: found.append(item) if isinstance(item, h5py.Dataset) else None)
        for item in found:
            if item.dtype.kind == "f":
                item[...] = np.nan
    raw = json.loads((directory / "model.json").read_text())  # As the training that made it would have written it.
    raw["digests"]["best.weights.h5"] = file_sha256(directory / "best.weights.h5")
    (directory / "model.json").write_text(json.dumps(raw))
    return directory


def test_the_report_is_named_after_its_run_and_says_how_it_was_trained(monkeypatch):
    manifest = types.SimpleNamespace(source="images:x")
    training = {"learning_rate": 0.1, "batch_size_per_replica": 32, "num_replicas": 8, "accelerator": "tpu"}
    info = types.SimpleNamespace(name="cnn", training=training)
    assert evaluation._title(manifest, info) == "cnn on images:x"
    monkeypatch.setenv("TPU_PIPELINES_RUN", "flowers")
    assert evaluation._title(manifest, info) == "flowers: cnn on images:x"
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d UTC, learning rate 0.1, batch 32 × 8, trained on 8 × tpu",
        evaluation._subtitle(info),
    )
    stages = [{"epochs": 3, "frozen": ["backbone"], "learning_rate": 0.001}, {"epochs": 5, "learning_rate": 0.0}]
    info.training = {**training, "stages": stages, "host": "2 × AMD EPYC"}
    assert "learning rate 0.001 then 0.1, batch" in evaluation._subtitle(info)
    assert evaluation._subtitle(info).endswith("8 × tpu of 2 × AMD EPYC")


def test_every_example_of_the_split_is_scored_once(digits_records, trained_digits, tmp_path):
    result = evaluate_model(_CPU, digits_records, trained_digits, tmp_path / "evaluation")
    examples = records.load_split(digits_records, Manifest.load(digits_records), "test")
    with np.load(tmp_path / "evaluation" / "predictions.npz") as predictions:
        assert np.array_equal(predictions["labels"], examples.labels)
        assert predictions["probabilities"].shape == (359, 10)
        again = compute_metrics(examples.labels, predictions["probabilities"], [str(i) for i in range(10)])
    assert result.num_examples == 359
    assert result.metrics == scalars(again)
    assert np.sum(_scored(tmp_path / "evaluation")["challenger"]["confusion_matrix"]) == 359
    assert result.metrics["accuracy"] > 0.85
    paid = ModelInfo.load(trained_digits).training["paid_seconds"]
    report = (tmp_path / "evaluation" / "report.html").read_text()
    assert f"s in 1 session: {paid['trained']:,.0f} training, {paid['start_up']:,.0f} start-up" in report
    assert {path.name for path in (tmp_path / "evaluation").iterdir()} == {
        "evaluation.json",
        "report.html",
        "predictions.npz",
    }


@pytest.mark.parametrize("split", ["train", "validation"])
def test_another_split_can_be_scored(digits_records, trained_digits, tmp_path, split):
    result = evaluate_model(dataclasses.replace(_CPU, split=split), digits_records, trained_digits, tmp_path / "e")
    assert result.num_examples == {"train": 1259, "validation": 179}[split]
    assert _scored(tmp_path / "e")["split"] == split


def test_result_does_not_depend_on_the_batch_size(digits_records, trained_digits, tmp_path):
    """Which class is predicted never does. Of probabilities the last bit may, where kernels sum in another order."""
    scored = []
    for batch_size in (1, 7, 256):
        params = dataclasses.replace(_CPU, batch_size_per_replica=batch_size)
        evaluate_model(params, digits_records, trained_digits, tmp_path / "evaluation")
        scored.append(_scored(tmp_path / "evaluation")["challenger"])
    for other in scored[1:]:
        for name in ("num_examples", "accuracy", "top_k_accuracy", "macro_f1", "per_class", "confusion_matrix"):
            assert other[name] == scored[0][name]
        assert other["loss"] == pytest.approx(scored[0]["loss"], rel=1e-6)


def test_same_batch_size_gives_the_same_numbers_again(digits_records, trained_digits, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "tpu_components.core.pages.page.now", lambda: "2026-11-22 09:30 UTC"
    )  # Its minute may end between the two.
    for name in ("once", "again"):
        evaluate_model(_CPU, digits_records, trained_digits, tmp_path / name)
    assert _scored(tmp_path / "once") == _scored(tmp_path / "again")
    assert (tmp_path / "once" / "report.html").read_bytes() == (tmp_path / "again" / "report.html").read_bytes()


@pytest.mark.slow  # A process of eight replicas: 20 s.
def test_eight_replicas_give_exactly_the_numbers_of_one(digits_records, trained_digits, tmp_path, run_step):
    params = dataclasses.replace(_CPU, batch_size_per_replica=32)
    evaluate_model(params, digits_records, trained_digits, tmp_path / "one")
    eight = dataclasses.replace(params, num_replicas=8)
    paths = {"records": digits_records, "model": trained_digits, "output": tmp_path / "eight"}
    done = run_step("evaluate_model", eight, **paths)
    assert done.returncode == 0, done.stderr
    assert _scored(tmp_path / "eight")["challenger"] == _scored(tmp_path / "one")["challenger"]


@pytest.mark.slow  # Two processes, and JAX compiles in each: 20 s.
def test_eight_jax_replicas_give_exactly_the_numbers_of_one(digits_records, trained_digits, tmp_path, run_step):
    params = dataclasses.replace(_CPU, backend="jax", batch_size_per_replica=32)
    for num_replicas in (1, 8):
        done = run_step(
            "evaluate_model",
            dataclasses.replace(params, num_replicas=num_replicas),
            records=digits_records,
            model=trained_digits,
            output=tmp_path / str(num_replicas),
        )
        assert done.returncode == 0, done.stderr
    assert _scored(tmp_path / "8")["challenger"] == _scored(tmp_path / "1")["challenger"]
    evaluate_model(_CPU, digits_records, trained_digits, tmp_path / "tensorflow")
    tensorflow = _scored(tmp_path / "tensorflow")["challenger"]
    assert _scored(tmp_path / "1")["challenger"]["confusion_matrix"] == tensorflow["confusion_matrix"]
    assert _scored(tmp_path / "1")["challenger"]["loss"] == pytest.approx(tensorflow["loss"], rel=1e-5)


def test_champion_is_scored_in_the_same_run_on_the_same_examples(digits_records, trained_digits, tmp_path):
    params = dataclasses.replace(_CPU, champion=str(trained_digits), max_regression={"accuracy": 0.0, "loss": 0.0})
    result = evaluate_model(params, digits_records, trained_digits, tmp_path / "evaluation")
    assert not result.promote, "a tie is no better"
    assert result.champion_metrics == result.metrics
    scored = _scored(tmp_path / "evaluation")
    assert scored["champion"] == scored["challenger"]
    *ties, slices, beaten = scored["gate"]["reasons"]
    assert (slices["passed"], slices["metric"]) == (True, "accuracy")
    assert slices["text"].startswith("no slice is worse")
    assert [part["name"] for part in scored["slices"]] == scored["class_names"]
    assert re.fullmatch(r"accuracy 0\.\d{4} beats the 0\.1\d* of always answering '\d'", beaten["text"])
    assert scored["baseline"]["advantage"] > scored["baseline"]["margin"] > 0
    assert scored["baseline"]["answer"] in (tmp_path / "evaluation" / "report.html").read_text().replace("&#39;", "'")
    assert len(ties) == 2
    assert scored["differences"]["accuracy"]["num_better"] == scored["differences"]["accuracy"]["num_worse"] == 0
    low, high = scored["intervals"]["accuracy"]
    assert low < scored["challenger"]["accuracy"] < high
    assert set(scored["intervals"]) == set(result.metrics)
    assert [(rule["passed"], rule["metric"]) for rule in ties] == [(False, "accuracy"), (False, "loss")]
    assert all("ties with the champion's" in rule["text"] for rule in ties)


def test_broken_model_is_rejected_with_exit_code_3_and_a_readable_report(
    digits_records, broken_model, trained_digits, tmp_path, run_step_here
):
    params = dataclasses.replace(_CPU, champion=str(trained_digits))
    done = run_step_here(
        "evaluate_model", params, records=digits_records, model=broken_model, output=tmp_path / "evaluation"
    )
    assert done.returncode == 3, done.stderr
    assert json.loads(done.stdout)["promote"] is False
    gate = _scored(tmp_path / "evaluation")["gate"]
    assert gate["promote"] is False
    assert gate["reasons"][0] == {"passed": False, "metric": "", "text": "359 predictions are not finite numbers"}
    assert "359 predictions are not finite numbers" in (tmp_path / "evaluation" / "report.html").read_text()
    assert "NaN" not in (tmp_path / "evaluation" / "evaluation.json").read_text()


def test_what_a_model_has_trained_on_is_left_out_of_the_comparison_and_named(digits_records, trained_digits, tmp_path):
    champion = tmp_path / "champion"
    shutil.copytree(trained_digits, champion)
    test = load_identities(digits_records, "test")
    np.save(champion / "trained_on.npy", np.unique(test[:100]))
    params = dataclasses.replace(_CPU, champion=str(champion))
    result = evaluate_model(params, digits_records, trained_digits, tmp_path / "e")
    scored = _scored(tmp_path / "e")
    keys = records.load_split(digits_records, Manifest.load(digits_records), "test", with_keys=True).keys
    assert said(result)[0] == (
        "passed: judged on 259 examples, without 100 which have been trained on (by the model 0, by the champion 100)"
    )
    assert scored["unseen"]["keys"] == list(keys[:100])
    assert result.num_examples == 359
    with np.load(tmp_path / "e" / "predictions.npz") as predictions:
        rest = compute_metrics(predictions["labels"][100:], predictions["probabilities"][100:], list("0123456789"))
    assert scored["unseen"]["scalars"] == [scalars(rest)] * 2
    assert f"accuracy {rest.accuracy:.4f} ties with" in said(result)[1]


def test_a_split_that_was_all_trained_on_is_judged_and_said(digits_records, trained_digits, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(trained_digits, model)
    np.save(model / "trained_on.npy", np.unique(load_identities(digits_records, "test")))
    result = evaluate_model(_CPU, digits_records, model, tmp_path / "e")
    assert said(result)[0] == "passed: judged on all 359 examples, though all have been trained on (by the model 359)"


def test_a_model_that_does_not_say_what_it_trained_on_is_judged_on_all(digits_records, trained_digits, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(trained_digits, model)
    (model / "trained_on.npy").unlink()
    evaluate_model(_CPU, digits_records, model, tmp_path / "e")
    assert _scored(tmp_path / "e")["unseen"] is None


def test_broken_champion_does_not_stop_its_successor(digits_records, broken_model, trained_digits, tmp_path):
    params = dataclasses.replace(_CPU, champion=str(broken_model))
    assert evaluate_model(params, digits_records, trained_digits, tmp_path / "evaluation").promote


def test_model_below_the_minimum_is_rejected_in_words(digits_records, trained_digits, tmp_path):
    params = dataclasses.replace(_CPU, minimum={"accuracy": 0.9999})
    result = evaluate_model(params, digits_records, trained_digits, tmp_path / "evaluation")
    assert not result.promote
    assert said(result)[0].startswith("failed: accuracy 0.")
    assert "required at least 0.9999" in said(result)[0]


@pytest.fixture(scope="module")
def other_records(tmp_path_factory):
    """Images of another shape, of two classes."""
    folder = tmp_path_factory.mktemp("other")
    images = np.random.default_rng(0).integers(0, 256, (40, 6, 6, 3), np.uint8)
    np.savez(folder / "data.npz", x_train=images, y_train=np.arange(40) % 2)
    write_records(WriteParams(f"npz:{folder / 'data.npz'}", num_workers=1), folder / "records")
    return folder / "records"


def test_model_of_another_data_set_is_refused(other_records, trained_digits, tmp_path):
    with pytest.raises(
        InputError, match=r"The model in .*does not fit.*expected classification with \['0', '1'\].*\(8, 8, 1\)"
    ):
        evaluate_model(_CPU, other_records, trained_digits, tmp_path / "evaluation")
    assert not (tmp_path / "evaluation").exists()


def test_champion_of_another_data_set_is_refused(digits_records, trained_digits, tmp_path):
    champion = tmp_path / "champion"
    champion.mkdir()
    dataclasses.replace(ModelInfo.load(trained_digits), class_names=("cat", "dog")).save(champion)
    params = dataclasses.replace(_CPU, champion=str(champion))
    with pytest.raises(
        InputError, match=r"The champion in .*received classification with \['cat', 'dog'\].*gate\.champion left empty"
    ):
        evaluate_model(params, digits_records, trained_digits, tmp_path / "evaluation")


def test_missing_champion_is_refused_by_path(digits_records, trained_digits, tmp_path):
    params = dataclasses.replace(_CPU, champion=str(tmp_path / "gone"))
    with pytest.raises(InputError, match=r"gone/model\.json: there is no such file"):
        evaluate_model(params, digits_records, trained_digits, tmp_path / "evaluation")


def test_split_without_examples_is_refused_by_name(trained_digits, tmp_path):
    write_records(WriteParams("sklearn:digits", test_fraction=0.0, num_workers=1), tmp_path / "records")
    with pytest.raises(InputError, match=r"no 'test' split"):
        evaluate_model(_CPU, tmp_path / "records", trained_digits, tmp_path / "evaluation")


@pytest.mark.parametrize("file", ["architecture.json", "best.weights.h5"])
@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_damaged_model_is_refused_by_path(digits_records, trained_digits, tmp_path, file, damage):
    model = tmp_path / "model"
    shutil.copytree(trained_digits, model)
    if damage == "missing":
        (model / file).unlink()
    else:
        (model / file).write_bytes((model / file).read_bytes()[:300])
    with pytest.raises(InputError, match=f"Cannot load the model in {model}"):
        evaluate_model(_CPU, digits_records, model, tmp_path / "evaluation")
    assert not (tmp_path / "evaluation").exists()
