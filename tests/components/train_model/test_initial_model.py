import shutil
from dataclasses import replace

import numpy as np
import pytest

from tests.components.train_model.interrupting import train_alone
from tests.components.train_model.weights import weights_of
from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.artifacts import Manifest, ModelInfo
from tpu_components.core.examples.example_ids import ID_TYPE, TRAINED_ON_FILE, load_identities
from tpu_components.core.registry.versions import model_digest
from tpu_components.create_tfrecords import WriteParams, write_records
from tpu_components.train_model import train_model
from tpu_components.train_model.initial_model import find_initial_model


@pytest.fixture
def earlier(trained_digits, tmp_path):
    """A copy of a trained model that was trained on one example more."""
    folder = shutil.copytree(trained_digits, tmp_path / "earlier")
    trained_on = np.load(folder / TRAINED_ON_FILE)
    np.save(folder / TRAINED_ON_FILE, np.append(trained_on, np.array([(1, 2)], ID_TYPE)))
    return folder


_heavy = pytest.mark.heavy  # A process of its own: 8 s.


@pytest.mark.parametrize(
    ("backend", "replicas"),
    [("tensorflow", 1), pytest.param("tensorflow", 2, marks=_heavy), pytest.param("jax", 2, marks=_heavy)],
)
def test_a_training_starts_with_the_weights_of_another_model(
    quick, earlier, digits_records, tmp_path, run_step, run_step_here, backend, replicas
):
    """With a learning rate of nearly nothing they stay as they are, but for what batch normalization measures."""
    params = replace(
        quick, initial_model=str(earlier), epochs=1, learning_rate=1e-12, backend=backend, num_replicas=replicas
    )
    run_anywhere, output = run_step_here if (backend, replicas) == ("tensorflow", 1) else run_step, tmp_path / "out"
    assert run_anywhere("train_model", params, records=digits_records, output=output).returncode == 0
    before, after = weights_of(earlier), weights_of(output)
    assert before.keys() == after.keys()
    moved = {name for name in before if not np.allclose(before[name], after[name], atol=1e-6)}
    assert any(before[name].ndim == 4 for name in before.keys() - moved)
    assert not any(before[name].ndim > 1 for name in moved), moved
    training = ModelInfo.load(output).training
    assert (training["initial_model"], training["initial_model_digest"]) == (str(earlier), model_digest(earlier))
    seen = np.load(output / TRAINED_ON_FILE)
    assert set(np.load(earlier / TRAINED_ON_FILE).tolist()) <= set(seen.tolist()), (
        "what the first was trained on, the second was too"
    )


def test_another_initial_model_is_another_training(tiny, digits_records, tmp_path, capfd):
    for seed in (1, 2):
        train_model(replace(tiny, epochs=1, seed=seed), digits_records, tmp_path / f"of-{seed}")
    for seed, said in (
        (1, "starting with the weights"),
        (1, "continuing at epoch"),
        (2, "belongs to another training"),
    ):
        params = replace(tiny, epochs=1, initial_model=str(tmp_path / f"of-{seed}"))
        train_alone(params, digits_records, tmp_path / "out", tmp_path / "checkpoints")
        assert said in capfd.readouterr().err


def test_an_initial_model_of_other_layers_or_classes_is_refused(tiny, trained_digits, digits_records, tmp_path):
    with pytest.raises(InputError, match=r"this model has kernel \(64, 10\), and .* has kernel \(3, 3, 1, 16\)"):
        train_model(replace(tiny, initial_model=str(trained_digits)), digits_records, tmp_path / "out")
    named = tmp_path / "named"
    write_records(WriteParams("sklearn:digits", class_names=tuple("abcdefghij")), named)
    with pytest.raises(InputError, match=r"expected classification with the classes \['a', .*, received .* \['0'"):
        train_model(replace(tiny, initial_model=str(trained_digits)), named, tmp_path / "out")
    with pytest.raises(InputError, match=r"no-such-folder"):
        train_model(replace(tiny, initial_model=str(tmp_path / "no-such-folder")), digits_records, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_alias_without_a_version_is_no_initial_model_and_a_missing_number_is_a_mistake(tmp_path):
    registry = tmp_path / "registry"
    assert find_initial_model("", tmp_path, None, tmp_path) is None
    assert find_initial_model(f"{registry}/digits@champion", tmp_path, None, tmp_path) is None
    with pytest.raises(InputError, match=r"'digits' has no version '0003' in .*registry"):
        find_initial_model(f"{registry}/digits@0003", tmp_path, None, tmp_path)


def test_validation_examples_that_the_initial_model_has_seen_are_counted(earlier, digits_records, tmp_path, capfd):
    manifest = Manifest.load(digits_records)
    find_initial_model(str(earlier), digits_records, manifest, tmp_path)
    assert "Warning" not in capfd.readouterr().err
    trained_on = np.load(earlier / TRAINED_ON_FILE)
    seen = load_identities(digits_records, "validation")[:100]
    np.save(earlier / TRAINED_ON_FILE, np.unique(np.append(trained_on, seen)))
    find_initial_model(str(earlier), digits_records, manifest, tmp_path)
    assert "was trained on 100 of the 179 validation examples" in capfd.readouterr().err
