import dataclasses
import os

import numpy as np
import pytest

from components.create_tfrecords import WriteParams, plan_dataset
from pipelines import caching
from pipelines.config import load_config

DOWNSTREAM = {
    "data": caching.STEPS,
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
        ("preflight", {"machine": "v5e-4"}),
        ("training", {"epochs": 99}),
        ("gate", {"top_k": 2}),
        ("export", {"calibration_examples": 7}),
        ("deploy", {"alias": "best"}),
    ],
)
def test_a_parameter_changes_the_keys_of_its_step_and_those_that_read_it(section, change):
    config = load_config("digits")
    changed = dataclasses.replace(config, **{section: dataclasses.replace(getattr(config, section), **change)})
    before, after = caching.step_keys(config, "v"), caching.step_keys(changed, "v")
    assert tuple(step for step in caching.STEPS if before[step] != after[step]) == DOWNSTREAM[section]


def test_speed_parameters_change_no_key():
    config = load_config("digits")
    changed = dataclasses.replace(
        config,
        data=dataclasses.replace(config.data, num_workers=7),
        training=dataclasses.replace(config.training, checkpoint_seconds=1.0),
    )
    assert caching.step_keys(config, "v") == caching.step_keys(changed, "v")


def test_other_data_changes_every_key():
    config = load_config("digits")
    before, after = caching.step_keys(config, "v"), caching.step_keys(config, "w")
    assert all(before[step] != after[step] for step in caching.STEPS)


def test_another_opponent_changes_the_keys_of_the_gate_and_what_follows():
    config = load_config("digits")
    before, after = caching.step_keys(config, "v"), caching.step_keys(config, "v", "digest of another model")
    assert tuple(step for step in caching.STEPS if before[step] != after[step]) == DOWNSTREAM["gate"]


def test_a_model_files_content_counts(tmp_path):
    path = tmp_path / "model.py"
    path.write_text("a = 1")
    config = load_config("digits", [f"model={path}"])
    before = caching.step_keys(config, "v")
    path.write_text("a = 2")
    after = caching.step_keys(config, "v")
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
        return caching.data_version(plan_dataset(params).listing, memo)

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
        return caching.data_version(plan_dataset(params).listing, tmp_path / "memo")

    first = version()
    lines[0], lines[2] = "a.png,x,test", "c.png,x,train"
    assert version() != first


def test_a_models_module_counts(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "a_users_model.py"
    path.write_text("a = 1")
    config = load_config("digits", ["model=a_users_model:build_model"])
    before = caching.step_keys(config, "v")["train_model"]
    path.write_text("a = 2")
    assert caching.step_keys(config, "v")["train_model"] != before
