import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import ModelCard

from tests.support.signing_keys import write_keys
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.retries import PlatformError
from tpu_components.core.drift.sketches import DataSketch
from tpu_components.core.examples.artifacts import Manifest
from tpu_components.core.registry.folder import ModelRegistry
from tpu_components.core.registry.signing import verify_version
from tpu_components.deploy_model import DeployParams, deploy_model, health_check
from tpu_components.evaluate_model import EvaluateParams, evaluate_model

_CPU = EvaluateParams(backend="tensorflow", accelerator="cpu", num_replicas=1)


@pytest.fixture(scope="module")
def evaluated_digits(digits_records, trained_digits, tmp_path_factory):
    """The small model's evaluation, against the champion of a registry that is still empty."""
    root = tmp_path_factory.mktemp("evaluated")
    params = dataclasses.replace(_CPU, champion=f"{root}/registry/digits@champion")
    evaluate_model(params, digits_records, trained_digits, root / "evaluation")
    return root / "evaluation"


@pytest.fixture
def in_fresh_process():
    """Marks a test whose health check starts a process; others are answered in this one, which has imported all."""


@pytest.fixture(autouse=True)
def _answered_here(request, monkeypatch):
    if "in_fresh_process" not in request.fixturenames:
        monkeypatch.setattr(health_check, "in_fresh_process", lambda function, *arguments, **_: function(*arguments))


@pytest.fixture
def folders(digits_records, trained_digits, exported_digits, evaluated_digits, tmp_path):
    """Every folder that the step reads, the last two copied to be changed."""
    shutil.copytree(exported_digits.path, tmp_path / "export")
    shutil.copytree(evaluated_digits, tmp_path / "evaluation")
    return {
        "records_dir": digits_records,
        "model_dir": trained_digits,
        "export_dir": tmp_path / "export",
        "evaluation_dir": tmp_path / "evaluation",
        "output": tmp_path / "deployment",
    }


@pytest.fixture
def params(tmp_path):
    return DeployParams(str(tmp_path / "registry"), "digits", lineage={"run": "digits"})


@pytest.fixture
def registry(params):
    return ModelRegistry(params.registry, params.model_name)


def change(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def compared_with(folders, registry, version):
    """An evaluation that met this version of this registry."""
    champion = {"version": version, "digest": registry.version(version).model_digest if version else ""}
    change(folders["evaluation_dir"] / "evaluation.json", registered_champion=champion)


@pytest.fixture
def another_champion(registry, trained_digits, exported_digits, tmp_path):
    """The number of a champion with other weights."""
    shutil.copytree(trained_digits, tmp_path / "other")
    (tmp_path / "other" / "best.weights.h5").write_bytes(b"other")
    facts = {"metrics": {}, "reasons": [], "lineage": {}}
    version = registry.register(tmp_path / "other", Path(exported_digits.path), **facts)
    registry.promote(version.number, "champion", "it was there before")
    return version.number


def test_the_first_model_is_registered_checked_and_made_champion(in_fresh_process, params, folders, registry):
    result = deploy_model(params, **folders)
    assert (result.version, result.alias, result.previous) == ("0001", "champion", "")
    assert result.health_check.num_examples == 32
    assert 0 <= result.health_check.max_difference < 1e-4
    champion = registry.find("champion")
    assert str(champion.directory) == result.version_dir
    assert champion.metrics["accuracy"] > 0.85
    assert champion.reasons[0] == "passed: there is no other champion to beat"
    manifest = Manifest.load(folders["records_dir"])
    dataset = {"source": "sklearn:digits", "fingerprint": manifest.fingerprint}
    sketch = json.loads(json.dumps(dataclasses.asdict(DataSketch.make(manifest))))
    assert champion.lineage == {"dataset": dataset, "sketch": sketch, "split": "test", "run": "digits"}
    assert "README.md" in champion.files
    assert ModelCard.load(champion.directory / "README.md").data.model_name == "digits"
    assert json.loads((folders["output"] / "deployment.json").read_text()) == dataclasses.asdict(result)


def test_run_again_it_gives_the_same_and_moves_nothing(params, folders, registry):
    first = deploy_model(params, **folders)
    assert deploy_model(params, **folders) == first
    assert len(registry.versions()) == len(registry.moves()) == 1


def test_a_new_champion_names_the_one_that_it_beat(params, folders, registry, another_champion):
    compared_with(folders, registry, another_champion)
    result = deploy_model(params, **folders)
    assert (result.version, result.previous) == ("0002", "0001")
    assert registry.find("champion").parent == "0001"


def test_a_champion_that_came_since_the_comparison_stays(params, folders, registry, another_champion):
    compared_with(folders, registry, "")
    with pytest.raises(InputError, match=r"compared with no version, but the champion is now 0001\. Run again"):
        deploy_model(params, **folders)
    assert registry.aliases() == {"champion": "0001"}
    assert not folders["output"].exists()


def test_a_model_that_was_compared_with_another_of_the_users_choice_is_promoted(params, folders, another_champion):
    change(folders["evaluation_dir"] / "evaluation.json", registered_champion=None)
    assert deploy_model(params, **folders).previous == another_champion


def test_a_model_that_the_gate_refused_is_not_even_registered(params, folders, registry):
    gate = {"promote": False, "reasons": ["passed: loss 0.1", "failed: 3 predictions are not finite numbers"]}
    change(folders["evaluation_dir"] / "evaluation.json", gate=gate)
    with pytest.raises(InputError, match=r"the gate did not pass it \(3 predictions are not finite numbers\)"):
        deploy_model(params, **folders)
    assert registry.versions() == ()


def test_an_evaluation_of_another_model_is_refused(params, folders, registry):
    evaluation = folders["evaluation_dir"] / "evaluation.json"
    model = json.loads(evaluation.read_text())["model"]
    change(evaluation, model=model | {"digest": "0" * 64})
    with pytest.raises(InputError, match="belongs to another model: expected 0000000000000000…"):
        deploy_model(params, **folders)
    change(evaluation, model=model, dataset_fingerprint="1" * 64)
    with pytest.raises(InputError, match="belongs to another data set: expected 1111111111111111…"):
        deploy_model(params, **folders)
    assert registry.versions() == ()


def test_an_export_of_another_model_is_refused_before_it_is_registered(params, folders, registry):
    export = folders["export_dir"] / "export.json"
    digest = json.loads(export.read_text())["model_digest"]
    assert digest == json.loads((folders["evaluation_dir"] / "evaluation.json").read_text())["model"]["digest"]
    change(export, model_digest="0" * 64)
    words = rf"an export of another model: expected the digest {digest[:16]}… of .*, received 0000000000000000…\. Run"
    with pytest.raises(InputError, match=words):
        deploy_model(params, **folders)
    assert registry.versions() == ()


def test_an_export_of_an_earlier_version_without_the_models_digest_is_deployed(params, folders):
    export = folders["export_dir"] / "export.json"
    raw = json.loads(export.read_text())
    del raw["model_digest"]
    export.write_text(json.dumps(raw))
    assert deploy_model(params, **folders).version == "0001"


def test_an_export_without_its_description_is_not_even_registered(params, folders, registry):
    (folders["export_dir"] / "export.json").unlink()
    with pytest.raises(InputError, match=r"export\.json': there is no such file.* that export_model wrote"):
        deploy_model(params, **folders)
    assert registry.versions() == ()


def broken_file(folders):
    (folders["export_dir"] / "model.tflite").write_bytes(b"not a model")
    return r"a new process could not predict: .*it is damaged"


def other_model(folders):
    path = folders["evaluation_dir"] / "predictions.npz"
    with np.load(path) as predictions:
        np.savez(path, labels=predictions["labels"], probabilities=np.roll(predictions["probabilities"], 1, axis=1))
    return r"of 32 images, a probability differs by .* expected at most 1\.00e-02"


def not_a_number(folders):
    path = folders["evaluation_dir"] / "predictions.npz"
    with np.load(path) as predictions:
        np.savez(path, labels=predictions["labels"], probabilities=predictions["probabilities"] * np.nan)
    return "a probability differs by nan"


@pytest.mark.parametrize("spoil", [broken_file, other_model, not_a_number])
def test_a_failed_health_check_leaves_the_alias(in_fresh_process, params, folders, registry, another_champion, spoil):
    compared_with(folders, registry, another_champion)
    words = spoil(folders)
    with pytest.raises(PlatformError, match=f"(?s)version 0002 of 'digits' failed, so no alias was moved: .*{words}"):
        deploy_model(params, **folders)
    assert registry.aliases() == {"champion": "0001"}
    assert len(registry.moves()) == 1
    assert not folders["output"].exists()


@pytest.mark.parametrize("name", ["evaluation.json", "predictions.npz"])
def test_a_damaged_evaluation_is_named(params, folders, name):
    (folders["evaluation_dir"] / name).write_text("{}")
    with pytest.raises(InputError, match=f"Cannot (read|use) .*{name}.*evaluate_model again"):
        deploy_model(params, **folders)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"model_name": "a/b"}, "model name 'a/b'"),
        ({"alias": "0001"}, "alias '0001'"),
        ({"health_check_examples": 0}, "Received: health_check_examples=0"),
        ({"health_check_tolerance": 0.0}, r"Received: health_check_tolerance=0\.0"),
        ({"health_check_tolerance": float("nan")}, "Received: health_check_tolerance=nan"),
        (
            {"signing_key": "-----BEGIN PRIVATE KEY-----\nM"},
            r"signing_key must be the path of .*: the content of a key\.$",
        ),
        (
            {"verify_key": "-----BEGIN PRIVATE KEY-----\nM"},
            r"verify_key must be a public key, .*: a private key\.\n.* Set signing_key",
        ),
        ({"verify_key": "signing.pub"}, "Set signing_key"),
    ],
)
def test_params_check_themselves(values, words):
    with pytest.raises(InputError, match=words):
        DeployParams(**{"registry": "registry", "model_name": "digits", **values})


@pytest.fixture
def signing(params, tmp_path):
    """The parameters, with a pair of keys."""
    private, public = write_keys(tmp_path / "keys")
    return dataclasses.replace(params, signing_key=private, verify_key=public)


def test_a_version_is_signed_and_verified_before_it_is_the_champion(signing, folders, registry):
    deploy_model(signing, **folders)
    champion = registry.find("champion")
    verify_version(champion.directory, signing.verify_key)
    champion.check_files()


class _Meddling(ModelRegistry):
    """Somebody else changes what was registered."""

    def register(self, *folders, **facts):
        version = super().register(*folders, **facts)
        (version.export_dir / "added.bin").write_bytes(b"")
        return version


def test_a_version_that_was_changed_after_it_was_signed_is_not_promoted(signing, folders, registry):
    with pytest.raises(InputError, match=r"Rejected .*0001: .*added: export/added\.bin"):
        deploy_model(signing, **folders, registry=_Meddling(signing.registry, "digits"))
    assert registry.aliases() == {}
    assert not folders["output"].exists()


def test_a_version_from_before_stays_unsigned_and_is_said_to(params, signing, folders, registry, capsys):
    deploy_model(params, **folders)
    deploy_model(dataclasses.replace(signing, verify_key=""), **folders)
    assert "version 0001 was registered earlier without a signature and stays unsigned" in capsys.readouterr().err
    with pytest.raises(InputError, match=r"received no model\.sig"):
        deploy_model(signing, **folders)


def test_keys_that_are_no_pair_are_named_before_anything_is_registered(signing, folders, registry, tmp_path):
    _, other = write_keys(tmp_path / "others")
    with pytest.raises(InputError, match="signing_key and verify_key do not match"):
        deploy_model(dataclasses.replace(signing, verify_key=other), **folders)
    assert registry.numbers() == ()


def test_the_command_line_deploys(in_fresh_process, params, folders, registry, run_step_here):
    paths = {name.removesuffix("_dir"): path for name, path in folders.items()}
    done = run_step_here("deploy_model", params, **paths)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["version"] == registry.aliases()["champion"] == "0001"
    assert "[deploy_model] digits version 0001 predicted 32 images correctly and is the champion" in done.stderr
