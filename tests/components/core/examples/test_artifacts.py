"""Claims about manifests: what was saved comes back, and what does not match is refused."""

import dataclasses
import json
from pathlib import Path

import google_crc32c
import pytest

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.typed_values import fields_of
from tpu_components.core.examples.artifacts import Manifest, ModelInfo, Quarantined, Shard, Split, file_crc32c
from tpu_components.core.examples.interface import ImageInput, TextInput

CONTENT = b"records"
SHARD = Shard("train-00000-of-00001.tfrecord", 3, len(CONTENT), f"{google_crc32c.value(CONTENT):08x}")
MANIFEST = Manifest(
    fingerprint="f" * 64,
    source="images:data",
    split_rule="all examples are used for training",
    input=ImageInput((8, 8, 3), "raw"),
    task="classification",
    features={"image": "bytes"},
    class_names=("cat", "dög"),
    splits={"train": Split(3, (1, 2), (SHARD,))},
    quarantined=(Quarantined("cat/x.png", "not an image"),),
)
INFO = ModelInfo(
    name="cnn",
    parameters={"width": 8},
    class_names=("cat", "dög"),
    input=ImageInput((8, 8, 3), "encoded"),
    task="classification",
    dataset_fingerprint="f" * 64,
    training={"epochs": 2},
)
TEXT = TextInput(250, 15_000, "a" * 64, "words", "start")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    (tmp_path / SHARD.name).write_bytes(CONTENT)
    MANIFEST.save(tmp_path)
    return tmp_path


def _change(directory: Path, **values: object) -> None:
    path = directory / "dataset.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_manifest_comes_back_as_it_was_saved(saved):
    assert Manifest.load(saved) == MANIFEST


def test_manifest_of_texts_comes_back_as_it_was_saved(saved):
    manifest = dataclasses.replace(MANIFEST, input=TEXT)
    manifest.save(saved)
    assert Manifest.load(saved) == manifest
    manifest = dataclasses.replace(manifest, splits={})
    manifest.save(saved)
    with pytest.raises(InputError, match="splits must have at least one split"):
        Manifest.load(saved)


def test_a_manifest_of_an_older_version_is_read(saved):
    """What was added to a manifest since its first version has a value where it is missing."""
    raw = json.loads((saved / "dataset.json").read_text())
    for name in ("split_rule_version", "common_words", "num_left_out"):
        del raw[name]
    for split in raw["splits"].values():
        del split["distributions"], split["independence"]
    (saved / "dataset.json").write_text(json.dumps(raw))
    manifest = Manifest.load(saved)
    assert (manifest.split_rule_version, manifest.common_words, manifest.num_left_out) == (1, {}, 0)
    assert not any(split.independence for split in manifest.splits.values())


def test_the_files_fields_are_flat_and_name_the_kind_of_input_and_the_task(saved):
    raw = json.loads((saved / "dataset.json").read_text())
    fields = {name: raw[name] for name in ("input", "task", "image_shape", "encoding")}
    assert fields == {"input": "image", "task": "classification", "image_shape": [8, 8, 3], "encoding": "raw"}


@pytest.mark.parametrize("change", [{"input": "sound"}, {"task": "divination"}, {"input": "text"}])
def test_a_manifest_of_an_unknown_input_or_task_is_refused(saved, change):
    _change(saved, **change)
    with pytest.raises(InputError, match=r"dataset.json: it is not a data set manifest in the current format \("):
        Manifest.load(saved)


@pytest.mark.parametrize(
    ("change", "fits"),
    [
        ({}, True),  # Stored raw or encoded, images are the same to a model.
        ({"class_names": ("dög", "cat")}, False),
        ({"input": ImageInput((8, 8, 1), "raw")}, False),
        ({"input": TEXT}, False),
        ({"task": "regression"}, False),
    ],
)
def test_a_model_fits_data_of_its_input_classes_and_task(change, fits):
    assert INFO.fits(dataclasses.replace(MANIFEST, **change)) is fits


@pytest.mark.parametrize("change", [{"vocabulary_sha256": "b" * 64}, {"truncate": "end"}, {"num_tokens": 100}])
def test_a_model_does_not_fit_texts_that_are_read_otherwise(change):
    info = dataclasses.replace(INFO, input=TEXT)
    manifest = dataclasses.replace(MANIFEST, input=TEXT)
    assert info.fits(manifest)
    assert not info.fits(dataclasses.replace(manifest, input=dataclasses.replace(TEXT, **change)))


def test_saving_twice_gives_the_same_bytes(saved):
    before = (saved / "dataset.json").read_bytes()
    Manifest.load(saved).save(saved)
    assert (saved / "dataset.json").read_bytes() == before


@pytest.mark.parametrize("folder", [".", "file"])
def test_a_missing_manifest_is_refused(tmp_path, folder):
    (tmp_path / "file").write_text("x")
    message = "there is no such file. Check the path. Expected a file that create_tfrecords wrote"
    with pytest.raises(InputError, match=f"Cannot read '{tmp_path / folder}/dataset.json': {message}"):
        Manifest.load(tmp_path / folder)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[1,"])
def test_malformed_json_is_refused(saved, content):
    (saved / "dataset.json").write_bytes(content)
    with pytest.raises(InputError, match=r"dataset.json: it is not valid JSON \(.*\). Run create_tfrecords again"):
        Manifest.load(saved)


@pytest.mark.parametrize("content", ["[]", "null", "3", '"x"', '{"splits": 3}', '{"splits": {"train": {}}}'])
def test_json_of_another_shape_is_refused(saved, content):
    (saved / "dataset.json").write_text(content)
    with pytest.raises(InputError, match=r"not a data set manifest in the current format .*Run create_tfrecords again"):
        Manifest.load(saved)


_REQUIRED = [name for name, field in fields_of(Manifest).items() if field.is_required]


@pytest.mark.parametrize("field", _REQUIRED)
def test_a_missing_field_is_refused_by_name(saved, field):
    values = json.loads((saved / "dataset.json").read_text())
    del values[field]
    (saved / "dataset.json").write_text(json.dumps(values))
    with pytest.raises(InputError, match=rf"not a data set manifest in the current format \(.*'{field}'"):
        Manifest.load(saved)


def test_a_field_of_a_later_version_is_ignored(saved):
    _change(saved, colour="blue")
    assert Manifest.load(saved) == MANIFEST


@pytest.mark.parametrize("verify", [False, True])
def test_a_missing_shard_is_refused_by_name(saved, verify):
    (saved / SHARD.name).unlink()
    with pytest.raises(InputError, match=f"Shard {saved}/{SHARD.name} is missing, .*write them again with create_tfr"):
        Manifest.load(saved, verify=verify)


@pytest.mark.parametrize("verify", [False, True])
def test_a_shard_of_the_wrong_size_is_refused(saved, verify):
    (saved / SHARD.name).write_bytes(CONTENT[:-1])
    with pytest.raises(
        InputError, match=r"does not match its manifest: expected 7 bytes, received 6. The records have"
    ):
        Manifest.load(saved, verify=verify)


def test_a_shard_with_another_checksum_is_refused_when_verified(saved):
    (saved / SHARD.name).write_bytes(b"rec0rds")
    received = f"{google_crc32c.value(b'rec0rds'):08x}"
    with pytest.raises(InputError, match=f"expected checksum {SHARD.crc32c}, received {received}. The records have"):
        Manifest.load(saved)
    assert Manifest.load(saved, verify=False) == MANIFEST


def test_a_split_that_is_not_there_is_refused_with_the_way_out():
    assert MANIFEST.split("train").num_examples == 3
    with pytest.raises(
        InputError, match=r"no 'test' split: .*received the splits \['train'\] from 'images:data'. Set data.te"
    ):
        MANIFEST.split("test")
    only_test = dataclasses.replace(MANIFEST, splits={"test": MANIFEST.splits["train"]})
    with pytest.raises(InputError, match=r"no 'train' split: .*Lower data.test_fraction, add a train/ folder"):
        only_test.split("train")


def test_file_crc32c_is_that_of_the_whole_file(tmp_path):
    content = bytes(range(256)) * 40_000  # More than is read at a time.
    (tmp_path / "x").write_bytes(content)
    assert file_crc32c(tmp_path / "x") == f"{google_crc32c.value(content):08x}"
    (tmp_path / "empty").write_bytes(b"")
    assert file_crc32c(tmp_path / "empty") == "00000000"


def test_model_info_comes_back_as_it_was_saved(tmp_path):
    INFO.save(tmp_path)
    assert ModelInfo.load(tmp_path) == INFO


def test_a_missing_model_is_refused(tmp_path):
    with pytest.raises(
        InputError, match=r"model.json': there is no such file. Check the path. Expected a file that train_model wrote"
    ):
        ModelInfo.load(tmp_path)


@pytest.mark.parametrize("content", ["{}", "[]", '{"class_names": [], "image_shape": []}'])
def test_a_model_file_of_another_shape_is_refused(tmp_path, content):
    (tmp_path / "model.json").write_text(content)
    with pytest.raises(
        InputError, match=r"not the description of a model in the current format .*Run train_model again"
    ):
        ModelInfo.load(tmp_path)


def test_a_model_with_names_in_another_form_fits_the_same_classes():
    """Earlier versions kept names as the source had them: in NFD, and whole numbers as 1.0."""
    info = dataclasses.replace(INFO, input=MANIFEST.input, class_names=("cat", "do\u0308g", "1.0"))
    manifest = dataclasses.replace(MANIFEST, class_names=("cat", "d\u00f6g", "1"))
    assert info.fits(manifest)
    assert info.understands(manifest)
    assert not info.fits(dataclasses.replace(manifest, class_names=("cat", "1", "d\u00f6g")))


def test_a_model_with_the_classes_in_another_order_is_refused_with_its_order():
    """In NFD, `A\u0308pfel` comes before `Birne`; in NFC, it comes after it."""
    info = dataclasses.replace(INFO, input=MANIFEST.input, class_names=("A\u0308pfel", "Birne"))
    manifest = dataclasses.replace(MANIFEST, class_names=("Birne", "\u00c4pfel"))
    assert not info.fits(manifest)
    message = info.compare_with(manifest)
    assert "the classes are the same in another order: set data.class_names=['\u00c4pfel', 'Birne'])" in message
