"""A model is compared with the champion that is served today."""

import dataclasses
import json
import shutil

import h5py
import numpy as np
import pytest

from tests.components.judging import said
from tests.support.html_page import Page
from tests.support.registered import copy_with_weights, renew_digest, write_model
from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.example_ids import load_identities
from tpu_components.core.files.location import Location
from tpu_components.core.registry.folder import ModelRegistry
from tpu_components.core.registry.held_out import HeldOutSet
from tpu_components.core.registry.versions import model_digest
from tpu_components.evaluate_model import EvaluateParams, evaluate_model, evaluation
from tpu_components.evaluate_model.predicting import predict_split
from tpu_components.evaluate_model.rivals import Rival, find_champion

_FACTS = {"metrics": {}, "reasons": [], "lineage": {}}


@pytest.fixture
def registry(trained_digits, tmp_path):
    """The small model is version 0001, and the champion."""
    registry = ModelRegistry(tmp_path / "registry", "digits")
    registry.register(trained_digits, write_model(tmp_path, "none")[1], **_FACTS)
    registry.promote("0001", "champion", "first", "")
    return registry


def test_a_champion_is_a_folder_or_a_registered_version_or_none(registry, tmp_path):
    model, scratch = str(registry.directory), tmp_path / "scratch"
    version = registry.version("0001")
    registered = Rival(version.model_dir, "0001", version.model_digest)
    assert find_champion("", "new", scratch) is None
    assert find_champion(str(tmp_path), "new", scratch) == Rival(tmp_path)
    assert find_champion(f"{model}@champion", "new", scratch) == registered
    assert find_champion(f"{model}@0001", "new", scratch) == registered
    assert find_champion(f"{tmp_path}/registry/letters@champion", "new", scratch) is None


def test_a_version_that_is_not_there_is_refused(registry, tmp_path):
    with pytest.raises(InputError, match=r"no version '0002' .* expected one of 0001"):
        find_champion(f"{registry.directory}@0002", "new", tmp_path)


def test_a_damaged_champion_is_named_and_never_beaten(registry, tmp_path):
    version = registry.version("0001")
    weights = version.model_dir / "best.weights.h5"
    zeros = bytes(weights.stat().st_size)
    weights.unlink()
    weights.write_bytes(zeros)
    for champion in (f"{registry.directory}@champion", f"{registry.directory}@0001", str(version.model_dir)):
        with pytest.raises(InputError, match=r"Version 0001 in .* is damaged: model/best\.weights\.h5"):
            find_champion(champion, "new", tmp_path)


def test_a_model_that_is_the_champion_is_not_compared_with_itself(registry, digits_records, trained_digits, tmp_path):
    params = EvaluateParams(
        champion=f"{registry.directory}@champion", backend="tensorflow", accelerator="cpu", num_replicas=1
    )
    result = evaluate_model(params, digits_records, trained_digits, tmp_path / "evaluation")
    assert said(result)[0] == "passed: there is no other champion to beat"
    scored = json.loads((tmp_path / "evaluation" / "evaluation.json").read_text())
    assert scored["registered_champion"] == {"version": "", "digest": ""}
    assert scored["model"]["digest"] == model_digest(trained_digits)

    twin = tmp_path / "twin"  # Other bytes, the same answers.
    shutil.copytree(trained_digits, twin)
    (twin / "architecture.json").write_text((twin / "architecture.json").read_text() + " ")
    result = evaluate_model(params, digits_records, twin, tmp_path / "evaluation")
    assert "ties with the champion's" in said(result)[0]
    scored = json.loads((tmp_path / "evaluation" / "evaluation.json").read_text())
    assert scored["registered_champion"]["version"] == "0001"
    assert not result.promote
    pinned = dataclasses.replace(params, champion=f"{registry.directory}@0001")
    result = evaluate_model(pinned, digits_records, trained_digits, tmp_path / "evaluation")
    assert said(result)[0] == "passed: there is no other champion to beat", "as where a run has pinned it"


def test_a_folder_with_other_weights_is_no_champion(digits_records, trained_digits, tmp_path):
    """As a file that was swapped or damaged: the weights load, and answer by chance."""
    folder = shutil.copytree(trained_digits, tmp_path / "champion")
    with h5py.File(folder / "best.weights.h5", "r+") as weights:
        weights.visititems(
            lambda _, item: item.write_direct(item[()][::-1].copy()) if getattr(item, "ndim", 0) else None
        )
    params = EvaluateParams(champion=str(folder), backend="tensorflow", accelerator="cpu", num_replicas=1)
    with pytest.raises(
        InputError, match=r"champion is damaged: model\.json expects SHA-256 .* for best\.weights\.h5, received"
    ):
        evaluate_model(params, digits_records, trained_digits, tmp_path / "evaluation")
    info = json.loads((folder / "model.json").read_text())
    del info["digests"]  # As an older training left it.
    (folder / "model.json").write_text(json.dumps(info))
    assert evaluate_model(params, digits_records, trained_digits, tmp_path / "evaluation").champion_metrics


def _with_other_bytes(model, target):
    """A model that gives the same answers and has another digest."""
    shutil.copytree(model, target)
    architecture = target / "architecture.json"
    architecture.write_text(architecture.read_text() + " " * len(target.name))
    renew_digest(architecture)
    return target


def _against_the_best(registry):
    """A margin, with which a model is also compared with the best that was ever promoted."""
    return EvaluateParams(
        champion=f"{registry.directory}@champion",
        max_regression={"accuracy": 0.3},
        test_decisions=52,
        backend="tensorflow",
        accelerator="cpu",
        num_replicas=1,
    )


def test_decisions_on_a_test_set_are_counted_and_compared_with_the_best_that_was_promoted(
    registry, digits_records, trained_digits, tmp_path
):
    params = _against_the_best(registry)
    first, second = (_with_other_bytes(trained_digits, tmp_path / name) for name in ("b", "bb"))
    for _ in range(2):  # A repeated evaluation is no second decision.
        result = evaluate_model(params, digits_records, first, tmp_path / "evaluation")
        assert said(result)[0] == (
            "passed: decision 1 on this test set; 52 decisions share an error rate of 5%; this one uses 1.1%"
        )
        assert "with 98.9% confidence" in said(result)[1]
    registry.register(first, tmp_path / "export", **_FACTS)
    registry.override("0002", "champion", "by hand")
    identities = load_identities(digits_records, "test")
    held_out = HeldOutSet.find(Location(registry.directory / "tests"), identities, "other")
    held_out.record(model_digest(trained_digits), True, {"accuracy": 1.0}, {})
    result = evaluate_model(params, digits_records, second, tmp_path / "evaluation")
    rules = said(result)
    assert rules[0].startswith("passed: decision 3 on this test set; 52 decisions share")
    assert "ties with the champion's" in rules[1]
    assert "ties with that of version 0001, the best that was promoted:" in rules[2]
    scored = json.loads((tmp_path / "evaluation" / "evaluation.json").read_text())
    assert scored["test_set"]["examples"] == held_out.examples_uri


@pytest.mark.parametrize("champion", ["champion", "0001"])
def test_a_version_that_was_rolled_back_is_not_the_best_that_was_promoted(
    registry, digits_records, trained_digits, tmp_path, champion
):
    first, second = (_with_other_bytes(trained_digits, tmp_path / name) for name in ("b", "bb"))
    registry.register(first, tmp_path / "export", **_FACTS)
    registry.promote("0002", "champion", "better")
    held_out = HeldOutSet.find(Location(registry.directory / "tests"), load_identities(digits_records, "test"), "other")
    held_out.record(model_digest(first), True, {"accuracy": 1.0}, {model_digest(trained_digits): {"accuracy": 0.9}})
    params = dataclasses.replace(_against_the_best(registry), champion=f"{registry.directory}@{champion}")
    registry.roll_back("champion", "it calls every 7 a 1")
    rules = said(evaluate_model(params, digits_records, second, tmp_path / "evaluation"))
    assert any("ties with the champion's" in rule for rule in rules)
    assert not any("the best that was promoted" in rule for rule in rules)
    registry.override("0002", "champion", "it was the camera")
    registry.register(_with_other_bytes(trained_digits, tmp_path / "bbb"), tmp_path / "export", **_FACTS)
    registry.override("0003", "champion", "it is faster")
    params = dataclasses.replace(params, champion=f"{registry.directory}@champion")
    rules = said(evaluate_model(params, digits_records, second, tmp_path / "evaluation"))
    assert any("that of version 0002, the best that was promoted" in rule for rule in rules), "promoted again by hand"


def test_the_report_shows_what_changed_since_the_champion_not_since_the_best(
    registry, digits_records, trained_digits, tmp_path
):
    registry.register(copy_with_weights(trained_digits, 0.0, tmp_path / "zeros"), tmp_path / "export", **_FACTS)
    registry.override("0002", "champion", "by hand")
    held_out = HeldOutSet.find(Location(registry.directory / "tests"), load_identities(digits_records, "test"), "other")
    held_out.record(model_digest(trained_digits), True, {"accuracy": 1.0}, {})
    params = _against_the_best(registry)
    model, output = _with_other_bytes(trained_digits, tmp_path / "b"), tmp_path / "evaluation"
    scored = evaluate_model(params, digits_records, model, output)
    assert "the best that was promoted" in said(scored)[2]
    difference = json.loads((output / "evaluation.json").read_text())["differences"]["accuracy"]
    words = " ".join(" ".join(Page((output / "report.html").read_text()).words).split())
    changed = "{num_better} newly correct, {num_worse} newly wrong".format(**difference)
    assert f"Changed since the champion {changed}" in words
    assert difference["num_better"] > 100


def test_a_decision_is_recorded_with_the_metrics_that_the_gate_judged_by(
    registry, digits_records, trained_digits, tmp_path
):
    model, identities = _with_other_bytes(trained_digits, tmp_path / "b"), load_identities(digits_records, "test")
    np.save(model / "trained_on.npy", np.unique(identities[:100]))
    evaluate_model(_against_the_best(registry), digits_records, model, tmp_path / "evaluation")
    (decision,) = HeldOutSet.find(Location(registry.directory / "tests"), identities, "other").decisions
    scored = json.loads((tmp_path / "evaluation" / "evaluation.json").read_text())
    assert scored["challenger"]["num_examples"] == 259
    assert decision.metrics["accuracy"] == scored["challenger"]["accuracy"]


def test_a_model_whose_decision_cannot_be_recorded_is_not_promoted(registry, digits_records, trained_digits, tmp_path):
    model = _with_other_bytes(trained_digits, tmp_path / "b")
    (registry.directory / "tests").write_text("a file where the folder should be")
    with pytest.raises(InputError, match=r"Cannot record the gate's decision .* so the model is not promoted"):
        evaluate_model(_against_the_best(registry), digits_records, model, tmp_path / "evaluation")
    assert not (tmp_path / "evaluation").exists(), "nothing that deploy_model could read"
    (registry.directory / "tests").unlink()
    result = evaluate_model(_against_the_best(registry), digits_records, model, tmp_path / "evaluation")
    assert said(result)[0].startswith("passed: decision 1 on this test set")


def test_a_decision_that_came_during_the_evaluation_is_counted_first(
    registry, digits_records, trained_digits, tmp_path, monkeypatch
):
    """Another model is judged on the same test set while this one predicts."""
    params = _against_the_best(registry)
    identities = load_identities(digits_records, "test")

    def predict_slowly(*arguments):
        HeldOutSet.find(Location(registry.directory / "tests"), identities, "other").record("other", False, {}, {})
        return predict_split(*arguments)

    monkeypatch.setattr(evaluation, "predict_split", predict_slowly)
    model = _with_other_bytes(trained_digits, tmp_path / "b")
    result = evaluate_model(params, digits_records, model, tmp_path / "evaluation")
    assert said(result)[0].startswith("passed: decision 2 on this test set; 52 decisions share")
    assert json.loads((tmp_path / "evaluation" / "evaluation.json").read_text())["test_set"]["number"] == 2


def test_decisions_that_cannot_be_counted_are_refused(registry, digits_records, trained_digits, tmp_path):
    """Records of an older version have no IDs of examples."""
    records = shutil.copytree(digits_records, tmp_path / "records")
    (records / "examples.npz").unlink()
    params = _against_the_best(registry)
    model = _with_other_bytes(trained_digits, tmp_path / "b")
    with pytest.raises(
        InputError,
        match=r"Cannot use test_decisions=52, .*: .* without the IDs of the examples. Run create_tfrecords again",
    ):
        evaluate_model(params, records, model, tmp_path / "evaluation")
    with pytest.raises(InputError, match="test_decisions=52 is not supported for a language_model"):
        params.check_task("language_model")
