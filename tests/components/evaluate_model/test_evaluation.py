import dataclasses
import json
import re
import shutil

import numpy as np
import pytest

from tests.components.judging import said
from tests.support.html_page import Page
from tests.support.registered import copy_with_weights
from tpu_components.core.base.errors import InputError
from tpu_components.core.examples import records
from tpu_components.core.examples.artifacts import Manifest, ModelInfo
from tpu_components.core.examples.example_ids import load_identities
from tpu_components.core.examples.interface import TASKS
from tpu_components.core.metrics.model_metrics import GroundTruth, compute_metrics
from tpu_components.create_tfrecords import WriteParams, write_records
from tpu_components.evaluate_model import EvaluateParams, evaluate_model
from tpu_components.evaluate_model.predicting import find_seen_examples
from tpu_components.train_model import train_model

_CPU = EvaluateParams(backend="tensorflow", accelerator="cpu", num_replicas=1)


def _scored(output):
    return json.loads((output / "evaluation.json").read_text())


@pytest.fixture
def broken_model(trained_digits, tmp_path):
    """A model whose weights are NaN, as after a training that diverged."""
    return copy_with_weights(trained_digits, np.nan, tmp_path / "broken")


@pytest.fixture(scope="module")
def evaluated(digits_records, trained_digits, tmp_path_factory):
    """What the step returns, and the folder that it writes. Not to be written to."""
    output = tmp_path_factory.mktemp("evaluated") / "evaluation"
    return evaluate_model(_CPU, digits_records, trained_digits, output), output


def _compute(labels, probabilities):
    return compute_metrics(GroundTruth(TASKS["classification"], labels, "0123456789"), probabilities).metrics


def test_every_example_of_the_split_is_scored_once(digits_records, trained_digits, evaluated):
    result, output = evaluated
    examples = records.load_split(digits_records, Manifest.load(digits_records), "test")
    with np.load(output / "predictions.npz") as predictions:
        assert np.array_equal(predictions["labels"], examples.labels)
        assert predictions["probabilities"].shape == (359, 10)
        assert result.metrics == _compute(examples.labels, predictions["probabilities"])
    assert result.num_examples == 359
    assert np.sum(_scored(output)["challenger"]["confusion_matrix"]) == 359
    assert result.metrics["accuracy"] > 0.85
    paid = ModelInfo.load(trained_digits).training["paid_seconds"]
    report = (output / "report.html").read_text()
    assert f"s in 1 session: {paid['trained']:,.0f} training, {paid['start_up']:,.0f} start-up" in report
    assert {path.name for path in output.iterdir()} == {"evaluation.json", "report.html", "predictions.npz"}


def test_the_training_split_can_be_scored_though_a_model_has_seen_it(digits_records, trained_digits, tmp_path):
    result = evaluate_model(dataclasses.replace(_CPU, split="train"), digits_records, trained_digits, tmp_path / "e")
    assert result.num_examples == 1259
    assert (_scored(tmp_path / "e")["split"], _scored(tmp_path / "e")["unseen"]) == ("train", None)


def test_the_report_shows_what_weights_of_classes_changed_class_by_class(
    tiny, digits_records, trained_digits, tmp_path
):
    train_model(dataclasses.replace(tiny, epochs=2, class_weights={"8": 5.0}), digits_records, tmp_path / "model")
    params = dataclasses.replace(_CPU, champion=str(trained_digits))
    evaluate_model(params, digits_records, tmp_path / "model", tmp_path / "evaluation")
    scored = _scored(tmp_path / "evaluation")
    report = (tmp_path / "evaluation" / "report.html").read_text()
    text = " ".join(re.sub("<[^>]*>", " ", report[report.index("Classes, weakest first") :]).split())
    head, _, rest = text.partition("Weight in the loss ")
    assert head.strip().endswith("Class Examples Precision Recall F1 Champion&#39;s precision Champion&#39;s recall")
    of_8, theirs = (scored[who]["per_class"][8] for who in ("challenger", "champion"))
    figures = [*(of_8[name] for name in ("precision", "recall", "f1")), theirs["precision"], theirs["recall"]]
    assert f"8 {of_8['support']} {' '.join(f'{value:.3f}' for value in figures)} 5 " in rest
    assert of_8["recall"] > of_8["precision"]
    assert ModelInfo.load(tmp_path / "model").training["weights_by_class"] == {
        str(i): 1 + 4 * (i == 8) for i in range(10)
    }


def test_result_does_not_depend_on_the_batch_size(digits_records, trained_digits, evaluated, tmp_path):
    """Which class is predicted never does. Of probabilities the last bit may, where kernels sum in another order."""
    params = dataclasses.replace(_CPU, batch_size_per_replica=7)
    evaluate_model(params, digits_records, trained_digits, tmp_path / "evaluation")
    ours, theirs = (_scored(output)["challenger"] for output in (tmp_path / "evaluation", evaluated[1]))
    for name in ("num_examples", "accuracy", "top_k_accuracy", "macro_f1", "per_class", "confusion_matrix"):
        assert ours[name] == theirs[name]
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-6)


def test_same_batch_size_gives_the_same_numbers_again(digits_records, trained_digits, evaluated, tmp_path):
    evaluate_model(_CPU, digits_records, trained_digits, tmp_path / "again")
    outputs = evaluated[1], tmp_path / "again"
    assert _scored(outputs[0]) == _scored(outputs[1])
    once, again = (re.sub(r"[\d-]+ \d\d:\d\d UTC", "", (output / "report.html").read_text()) for output in outputs)
    assert once == again


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
    params = dataclasses.replace(
        _CPU,
        champion=str(trained_digits),
        minimum={"accuracy": 0.9999},
        max_regression={"accuracy": 0.0, "loss": 0.0},
    )
    result = evaluate_model(params, digits_records, trained_digits, tmp_path / "evaluation")
    assert not result.promote, "a tie is no better"
    assert result.champion_metrics == result.metrics
    scored = _scored(tmp_path / "evaluation")
    assert scored["champion"] == scored["challenger"]
    bound, *ties, slices, beaten = scored["gate"]["reasons"]
    assert not bound["passed"]
    probable = r"a model with a true value of 0\.9999 scores as low in (?:<1|\d+)% of cases"
    assert re.fullmatch(rf"accuracy 0\.\d+, required at least 0\.9999; {probable}", bound["text"])
    assert (slices["passed"], slices["metric"]) == (True, "accuracy")
    assert slices["text"].startswith("no slice is worse")
    assert [part["name"] for part in scored["slices"]] == scored["class_names"]
    assert re.fullmatch(r"accuracy 0\.\d{4} beats the 0\.1\d* of always predicting '\d'", beaten["text"])
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
    (told,) = re.findall("did not pass the gate: (.*)", done.stderr)
    assert "passed" not in told, "only what failed"
    assert "[evaluate_model] started" in done.stderr.splitlines()
    assert "359 predictions are not finite numbers" in told
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
        "passed: judged on 259 examples, without 100 that were used in training (0 by the model, 100 by the champion)"
    )
    assert scored["unseen"]["keys"] == list(keys[:100])
    assert result.num_examples == 259
    with np.load(tmp_path / "e" / "predictions.npz") as predictions:
        rest = _compute(predictions["labels"][100:], predictions["probabilities"][100:])
    assert {name: scored["challenger"][name] for name in rest} == rest
    assert scored["champion"] == scored["challenger"]
    assert result.metrics == rest
    low, high = scored["intervals"]["accuracy"]
    assert low < rest["accuracy"] < high
    assert np.sum(scored["challenger"]["confusion_matrix"]) == 259
    words = " ".join(Page((tmp_path / "e" / "report.html").read_text()).words)
    assert "259 without 100 used in training" in " ".join(words.split())
    assert f"accuracy {rest['accuracy']:.4f} ties with" in said(result)[1]


def test_a_split_that_was_all_trained_on_is_judged_and_said(digits_records, trained_digits, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(trained_digits, model)
    np.save(model / "trained_on.npy", np.unique(load_identities(digits_records, "test")))
    result = evaluate_model(_CPU, digits_records, model, tmp_path / "e")
    assert (
        said(result)[0] == "passed: judged on all 359 examples, although all were used in training (359 by the model)"
    )
    low, high = _scored(tmp_path / "e")["intervals"]["accuracy"]
    assert f"{low:.2%} to {high:.2%}" in (tmp_path / "e" / "report.html").read_text()


def test_a_class_of_which_all_examples_were_trained_on_is_said_where_a_macro_average_is_bounded(
    digits_records, trained_digits, tmp_path
):
    model = tmp_path / "model"
    shutil.copytree(trained_digits, model)
    labels = records.load_split(digits_records, Manifest.load(digits_records), "test").labels
    np.save(model / "trained_on.npy", np.unique(load_identities(digits_records, "test")[labels == 9]))
    params = dataclasses.replace(_CPU, minimum={"macro_f1": 0.1})
    _, bound, *_ = said(evaluate_model(params, digits_records, model, tmp_path / "e"))
    assert "(1 of 10 classes have no examples and count as 0; the mean of the other classes is " in bound


def test_a_model_that_does_not_say_what_it_trained_on_has_seen_nothing(digits_records, trained_digits, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(trained_digits, model)
    np.save(model / "trained_on.npy", np.unique(load_identities(digits_records, "test")))
    assert find_seen_examples("test", digits_records, "", [trained_digits, model]).sum(axis=1).tolist() == [0, 359]
    (model / "trained_on.npy").unlink()
    assert find_seen_examples("test", digits_records, "", [model]) is None


def test_broken_champion_does_not_stop_its_successor(digits_records, broken_model, trained_digits, tmp_path):
    params = dataclasses.replace(_CPU, champion=str(broken_model))
    assert evaluate_model(params, digits_records, trained_digits, tmp_path / "evaluation").promote


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
        InputError,
        match=r"The model in .*does not fit.*expected classification with the classes \['0', '1'\].*8, 8, 1",
    ):
        evaluate_model(_CPU, other_records, trained_digits, tmp_path / "evaluation")
    assert not (tmp_path / "evaluation").exists()


def test_champion_of_another_data_set_is_refused(digits_records, trained_digits, tmp_path):
    champion = tmp_path / "champion"
    champion.mkdir()
    dataclasses.replace(ModelInfo.load(trained_digits), class_names=("cat", "dog")).save(champion)
    params = dataclasses.replace(_CPU, champion=str(champion))
    with pytest.raises(
        InputError, match=r"The champion in .*with the classes \['cat', 'dog'\].*gate\.champion left empty"
    ):
        evaluate_model(params, digits_records, trained_digits, tmp_path / "evaluation")


def test_missing_champion_is_refused_by_path(digits_records, trained_digits, tmp_path):
    params = dataclasses.replace(_CPU, champion=str(tmp_path / "gone"))
    with pytest.raises(InputError, match=r"gone/model\.json': there is no such file"):
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
