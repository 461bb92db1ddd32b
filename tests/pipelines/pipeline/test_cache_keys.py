import dataclasses
import functools
import inspect
import json
import os

import numpy as np
import pytest

from tpu_components.core.base import fingerprint
from tpu_components.core.base.errors import InputError
from tpu_components.core.machines.machine_spec import PaidMachine
from tpu_components.create_tfrecords import WriteParams, plan_dataset
from tpu_pipelines.config.configuration import load_config
from tpu_pipelines.config.steps import STEPS
from tpu_pipelines.pipeline import cache_keys

DOWNSTREAM = {
    "data": STEPS,
    "preflight": ("preflight_training",),
    "training": ("train_model", "evaluate_model", "export_model", "deploy_model"),
    "gate": ("evaluate_model", "deploy_model"),
    "export": ("export_model", "deploy_model"),
    "deploy": ("deploy_model",),
}


@pytest.mark.parametrize(
    ("section", "change"),
    [
        ("data", {"seed": 1}),
        ("preflight", {"max_step_ms": 5.0}),
        ("preflight", {"paid": PaidMachine("v5e-4")}),
        ("training", {"epochs": 99}),
        ("gate", {"top_k": 2}),
        ("export", {"calibration_examples": 7}),
        ("deploy", {"alias": "best"}),
    ],
)
def test_a_parameter_changes_the_keys_of_its_step_and_those_that_read_it(section, change):
    config = load_config("digits")
    changed = dataclasses.replace(config, **{section: dataclasses.replace(getattr(config, section), **change)})
    before, after = cache_keys.step_keys(config, "v"), cache_keys.step_keys(changed, "v")
    assert tuple(step for step in STEPS if before[step] != after[step]) == DOWNSTREAM[section]


def test_speed_parameters_change_no_key():
    config = load_config("digits")
    changed = dataclasses.replace(
        config,
        data=dataclasses.replace(
            config.data, num_workers=7, engine="fan_out", engine_tasks=3, beam_options={"region": "us-east1"}
        ),
        training=dataclasses.replace(config.training, checkpoint_seconds=1.0),
    )
    assert cache_keys.step_keys(config, "v") == cache_keys.step_keys(changed, "v")


def test_other_data_changes_every_key():
    config = load_config("digits")
    before, after = cache_keys.step_keys(config, "v"), cache_keys.step_keys(config, "w")
    assert all(before[step] != after[step] for step in STEPS)


def test_another_champion_changes_the_keys_of_the_gate_and_what_follows():
    config = load_config("digits")
    before, after = cache_keys.step_keys(config, "v"), cache_keys.step_keys(config, "v", "digest of another model")
    assert tuple(step for step in STEPS if before[step] != after[step]) == DOWNSTREAM["gate"]


def test_a_model_files_content_counts(tmp_path):
    path = tmp_path / "model.py"
    path.write_text("a = 1")
    config = load_config("digits", [f"model={path}"])
    before = cache_keys.step_keys(config, "v")
    path.write_text("a = 2")
    after = cache_keys.step_keys(config, "v")
    assert before["create_tfrecords"] == after["create_tfrecords"]
    assert before["train_model"] != after["train_model"]


def test_data_version_follows_content_and_remembers_it(tmp_path):
    images = np.zeros((8, 4, 4), np.uint8)
    source = tmp_path / "images"
    for name in ("a", "b"):
        (source / name).mkdir(parents=True)
        for i in range(2):
            np.save(source / name / f"{i}.bin", images)
    params = WriteParams(f"images:{source}", validation_fraction=0, test_fraction=0.5)
    memo = tmp_path / "memo"

    def version():
        return cache_keys.data_version(plan_dataset(params).listing, memo)

    first = version()
    assert version() == first
    touched = source / "a" / "0.bin.npy"
    os.utime(touched, ns=(1, 1))
    assert version() == first, "the same content at another time is the same data"
    touched.write_bytes(touched.read_bytes()[:-1] + b"\1")
    assert version() != first


def test_a_csvs_split_column_counts(tmp_path):
    for name in "abcd":
        (tmp_path / f"{name}.png").write_bytes(name.encode())
    lines = ["a.png,x,train", "b.png,y,train", "c.png,x,test", "d.png,y,test"]
    params = WriteParams(f"csv:{tmp_path}/list.csv", validation_fraction=0)

    def version():
        (tmp_path / "list.csv").write_text("\n".join(["path,label,split", *lines]))
        return cache_keys.data_version(plan_dataset(params).listing, tmp_path / "memo")

    first = version()
    lines[0], lines[2] = "a.png,x,test", "c.png,x,train"
    assert version() != first


def test_a_models_module_counts(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "a_users_model.py"
    path.write_text("a = 1")
    config = load_config("digits", ["model=a_users_model:build_model"])
    before = cache_keys.step_keys(config, "v")["train_model"]
    path.write_text("a = 2")
    assert cache_keys.step_keys(config, "v")["train_model"] != before


_MODEL = """
from pathlib import Path

import layers

def build_model(image_shape, num_classes, start=""):
    model = layers.make(image_shape, num_classes)
    model.load_weights(Path(__file__).parent / "mine.weights.h5")
    return model
"""


@pytest.fixture
def own_model(tmp_path):
    """A model of a user's own: two modules, weights that its code names, more that a parameter and the section name."""
    for name, text in {"model.py": _MODEL, "layers.py": "", "other.py": "", "model_2.py": _MODEL}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "folder").mkdir()
    for name in ("mine.weights.h5", "start.npz", "declared.npz", "folder/part.npz", "unrelated.npz"):
        (tmp_path / name).write_text(name)
    files = [f"{tmp_path}/declared.npz", f"{tmp_path}/folder"]
    model = {"name": f"{tmp_path}/model.py", "parameters": {"start": f"{tmp_path}/start.npz"}, "files": files}
    return tmp_path, load_config("digits", [f"model={json.dumps(model)}"])


@pytest.mark.parametrize(
    ("file", "counts"),
    [
        ("model.py", True),
        ("layers.py", True),
        ("mine.weights.h5", True),
        ("start.npz", True),
        ("declared.npz", True),
        ("folder/part.npz", True),
        ("other.py", False),
        ("model_2.py", False),
        ("unrelated.npz", False),
    ],
)
def test_a_models_key_follows_what_it_imports_and_reads_and_nothing_beside_it(own_model, file, counts):
    folder, config = own_model
    before = cache_keys.step_keys(config, "v"), cache_keys.fingerprints(config, "v", "image")["code"]
    platform = cache_keys.platform_fingerprints(config, "image")["train_model"]
    (folder / file).write_text((folder / file).read_text() + "\n")
    after = cache_keys.step_keys(config, "v"), cache_keys.fingerprints(config, "v", "image")["code"]
    assert (before[0]["train_model"] != after[0]["train_model"]) == counts
    assert (before[1] != after[1]) == counts
    assert (platform != cache_keys.platform_fingerprints(config, "image")["train_model"]) == counts
    assert before[0]["create_tfrecords"] == after[0]["create_tfrecords"]


def test_declared_files_in_a_bucket_count_by_their_content(bucket):
    def version():
        config = load_config("digits", ["model={name: digits_cnn, files: ['gs://bucket/w/a.npz', 'gs://bucket/w/b']}"])
        assert config.as_dict()["model"]["files"] == ["gs://bucket/w/a.npz", "gs://bucket/w/b"]
        return cache_keys.step_keys(config, "v")["train_model"]

    for name in ("a.npz", "b/part", "a.npz.old", "bb"):
        bucket.blob(f"w/{name}").upload_from_string("1")
    first = version()
    for name, counts in (("a.npz", True), ("b/part", True), ("a.npz.old", False), ("bb", False)):
        bucket.blob(f"w/{name}").upload_from_string("2")
        assert (version() != first) == counts, name
        bucket.blob(f"w/{name}").upload_from_string("1")


def test_a_declared_file_that_is_not_there_is_refused():
    with pytest.raises(InputError, match=r"'/none.npz' in model.files does not exist"):
        load_config("digits", ["model={name: digits_cnn, files: [/none.npz]}"])


@pytest.mark.parametrize("place", ["gs://bucket/w/", "gs://bucket/w", "gs://bucket", "gs://bucket/"])
def test_a_declared_folder_in_a_bucket_counts_however_it_is_written(bucket, place):
    config = load_config("digits", [f"model={{name: digits_cnn, files: ['{place}']}}"])
    versions = set()
    for content in ("1", "2"):
        bucket.blob("w/a.npz").upload_from_string(content)
        versions.add(cache_keys.step_keys(config, "v")["train_model"])
    assert len(versions) == 2


def test_a_declared_file_that_the_bucket_lacks_is_refused(bucket):
    bucket.blob("w/a.npz").upload_from_string("1")
    for place in ("gs://bucket/w/b.npz", "gs://bucket/v/"):
        config = load_config("digits", [f"model={{name: digits_cnn, files: ['{place}']}}"])
        with pytest.raises(InputError, match=rf"'{place}' in model.files does not exist"):
            cache_keys.step_keys(config, "v")


def test_a_linked_folder_in_a_declared_one_counts_by_its_content(tmp_path):
    (tmp_path / "declared").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "declared" / "weights").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "declared" / "itself").symlink_to(tmp_path / "declared")
    config = load_config("digits", [f"model={{name: digits_cnn, files: ['{tmp_path}/declared']}}"])
    versions = set()
    for content in ("1", "2"):
        (tmp_path / "elsewhere" / "a.npz").write_text(content)
        versions.add(cache_keys.step_keys(config, "v")["train_model"])
    assert len(versions) == 2


@pytest.fixture
def anew(tmp_path, monkeypatch):
    """A function that forgets what this process knows of the steps' code, as a new one would."""
    monkeypatch.setenv("TPU_PIPELINES_CACHE_DIR", str(tmp_path))

    def forget():
        monkeypatch.setattr(cache_keys, "STEPS", ("deploy_model",))
        monkeypatch.setattr(fingerprint, "references_known", {})
        monkeypatch.setattr(cache_keys, "step_codes", functools.cache(inspect.unwrap(cache_keys.step_codes)))
        return {step: code.digest for step, code in cache_keys.step_codes().items()}

    return forget


def test_what_files_refer_to_is_found_once_for_a_content(anew, monkeypatch, tmp_path):
    first = anew()
    with monkeypatch.context() as patch:
        patch.setattr("ast.parse", lambda *_: pytest.fail("a file was read again"))
        assert anew() == first
    (memo,) = tmp_path.glob("preflight/references-*.json")
    kept = json.loads(memo.read_text())
    kept["content"] = {key: [[], []] for key in kept["content"]}
    memo.write_text(json.dumps(kept))
    assert anew() == first, "a damaged memo is none"


def test_receipts_repeat_the_preflight_and_not_the_training():
    config = load_config("digits", ["machine=v5e-1"])
    before, after = cache_keys.step_keys(config, "v"), cache_keys.step_keys(config, "v", receipts_digest="d")
    assert [step for step in STEPS if before[step] != after[step]] == ["preflight_training"]
