"""Claims about data held against those of a registered version."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
from sklearn.datasets import load_digits

from tests.support.cli import QUICK
from tests.support.registered import write_model
from tpu_components.core.base.errors import InputError
from tpu_components.core.drift.sketches import DataSketch
from tpu_components.core.drift.version_sketches import sketch_at
from tpu_components.core.examples.artifacts import Manifest
from tpu_components.core.registry.opening import open_registry
from tpu_components.core.sources.kinds import list_examples
from tpu_components.create_tfrecords import WriteParams
from tpu_components.deploy_model.params import DeployParams
from tpu_components.deploy_model.vertex import VertexTarget
from tpu_pipelines.cli.main import main
from tpu_pipelines.config.configuration import load_config
from tpu_pipelines.retraining.retrain import Occasion, decide_here
from tpu_pipelines.runs.data_drift import sketch_sample


def test_a_version_keeps_what_its_data_are_compared_by(finished_run, tmp_path, capsys):
    records, version = finished_run[0] / "digits" / "records", f"{finished_run[0]}/registry/digits@champion"
    sketch = sketch_at(version)
    assert sketch == sketch_at(str(records)) == DataSketch.make(Manifest.load(records))
    assert len(json.dumps(dataclasses.asdict(sketch))) < 10_000
    assert main(["drift", str(records), "--against", version]) == 0
    capsys.readouterr()
    shutil.copytree(finished_run[0] / "registry", tmp_path / "registry")
    described = tmp_path / "registry" / "digits" / "versions" / "0001" / "version.json"
    described.chmod(0o644)
    for kept, message in (
        (None, "registered by another tool, or by an older or newer release"),
        ({"kind": 3}, "no readable sketch"),
    ):
        raw = json.loads(described.read_text())
        described.write_text(json.dumps(raw | {"lineage": {"sketch": kept}}))
        assert main(["drift", str(records), "--against", f"{tmp_path}/registry/digits@0001"]) == 2
        assert message in capsys.readouterr().err
    with pytest.raises(InputError, match=r"No version of 'digits' .* has the alias 'latest'"):
        sketch_at(f"{tmp_path}/registry/digits@latest")


@pytest.fixture
def decide(finished_run, tmp_path):
    """Decides on data, as the share of the digits' ink that is left, in a workspace that has run; gives its reason."""
    (tmp_path / "digits").mkdir()
    shutil.copy(finished_run[0] / "digits" / "summary.json", tmp_path / "digits")
    (tmp_path / "registry").symlink_to(finished_run[0] / "registry")
    digits = load_digits()

    def decide(ink, when="drifted", *overrides):
        images = np.round(digits.images[:1200] * (255 / 16) * ink).astype(np.uint8)
        np.savez(tmp_path / "data.npz", x=images, y=digits.target[:1200])
        config = load_config("digits", [*QUICK[1::2], f"data.source=npz:{tmp_path}/data.npz", *overrides])
        return decide_here(config, tmp_path, list_examples(config.data), Occasion.parse(when))

    return decide


def test_other_data_that_look_alike_are_no_occasion_where_drift_is(decide):
    decision = decide(1.0)
    assert not decision.needed
    assert "data" in decision.changed
    assert decision.reason.endswith(
        "no statistic of the data has drifted, comparing 1,200 examples with the 1,797 examples of digits 0001"
    )
    assert decide(1.0, "drifted,changed").needed


def test_data_that_have_drifted_are_one_and_their_figures_are_named(decide):
    decision = decide(0.7)
    assert decision.needed
    assert "the data have drifted, comparing 1,200 examples with the 1,797 examples of digits 0001: " in decision.reason
    assert "brightness " in decision.reason


def test_without_a_champion_that_keeps_a_sketch_changed_data_are_one(decide, tmp_path):
    decision = decide(1.0, "drifted", "deploy.alias=latest")
    assert decision.needed
    assert decision.reason.endswith("there is no registered champion to compare the data with")
    registry = (tmp_path / "registry").resolve()
    (tmp_path / "registry").unlink()
    shutil.copytree(registry, tmp_path / "registry")
    described = tmp_path / "registry" / "digits" / "versions" / "0001" / "version.json"
    described.chmod(0o644)
    described.write_text(json.dumps(json.loads(described.read_text()) | {"lineage": {}}))
    decision = decide(1.0)
    assert decision.needed
    assert decision.reason.endswith("digits 0001 has no statistics of its data, so drift is unknown")


def test_drift_of_what_has_no_figures_is_refused(tmp_path):
    (tmp_path / "corpus.txt").write_text("to be or not to be\n" * 200)
    with pytest.raises(InputError, match="expected images or texts, received a corpus"):
        sketch_sample(WriteParams(f"corpus:{tmp_path}/corpus.txt", num_tokens=20))


def test_a_folder_of_pictures_is_refused_with_the_command_that_writes_records_of_them(tmp_path, capsys):
    folder = tmp_path / "photos" / "cats"
    folder.mkdir(parents=True)
    (folder / "1.png").write_bytes(b"")
    photos = str(tmp_path / "photos")
    assert main(["drift", photos, "--against", photos]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"`python -m tpu_components.create_tfrecords --source images:{photos} --output FOLDER`" in said
    assert main(["drift", str(tmp_path / "nowhere"), "--against", photos]) == 2
    assert "there is no such file" in capsys.readouterr().err


def test_a_sample_is_the_same_share_of_every_split(tmp_path, monkeypatch):
    monkeypatch.setattr("tpu_pipelines.runs.data_drift.MOST_MEASURED", 200)
    sketch = sketch_sample(WriteParams("sklearn:digits"))
    assert 200 <= sketch.num_examples <= 203
    assert min(sketch.class_counts.values()) > 8


def test_a_version_on_vertex_keeps_the_sketch_in_its_bucket(fake, federated, bucket, tmp_path):
    sketch = DataSketch("images:made", "f" * 64, "image", "classification", 9, 0, {"a": 4, "b": 5})
    facts = {"metrics": {}, "reasons": [], "lineage": {"sketch": dataclasses.asdict(sketch)}}
    registry = open_registry("projects/my-project/locations/us-west1/models", "digits")
    image = f"europe-docker.pkg.dev/my-project/images/serving@sha256:{'0' * 64}"
    params = DeployParams(str(registry.root), "digits", artifacts_uri="gs://bucket/registry", serving_image=image)
    version = VertexTarget(params, registry).register(*write_model(tmp_path / "made", "one"), **facts)
    assert sketch_at(f"{registry.root}/digits@{version.number}") == sketch
    bucket.blob(f"{version.uri.removeprefix('gs://bucket/')}/version.json").delete()
    with pytest.raises(InputError, match=r"digits 1: this version has no readable sketch of its data"):
        sketch_at(f"{registry.root}/digits@{version.number}")
