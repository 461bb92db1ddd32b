"""A test set that has taken too many decisions is retired: its examples are in no split any more."""

import dataclasses
import json
import re

import numpy as np
import pytest
from PIL import Image

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.artifacts import Manifest
from tpu_components.core.examples.example_ids import ID_TYPE, load_identities
from tpu_components.create_tfrecords import WriteParams, write_records
from tpu_components.create_tfrecords.convert_ids import convert_ids, main


def _write(tmp_path, count, **changes):
    rows = [f"film {i} {i * i},{'pos' if i % 2 else 'neg'}" for i in range(count)]
    (tmp_path / "films.csv").write_text("\n".join(["text,label", *rows]))
    params = WriteParams(f"csv:{tmp_path}/films.csv", num_workers=1, num_tokens=4, stratify=False, **changes)
    write_records(params, tmp_path / "records")
    manifest = Manifest.load(tmp_path / "records")
    return {split: set(load_identities(tmp_path / "records", split).tolist()) for split in manifest.splits}


def _ids(pairs) -> np.ndarray:
    return np.array(sorted(pairs), ID_TYPE)


def test_a_fresh_test_set_has_examples_that_arrived_since_and_the_retired_are_in_no_split(tmp_path):
    before = _write(tmp_path, 200)
    np.save(tmp_path / "examples.npy", _ids(before["test"]))
    with pytest.raises(
        InputError, match=r"'test' split has no examples left: all \d+ examples drawn .* data.retired_tests"
    ):
        _write(tmp_path, 200, retired_tests=(str(tmp_path / "examples.npy"),))
    after = _write(tmp_path, 400, retired_tests=(str(tmp_path / "examples.npy"),))
    assert len(after["test"]) > 20
    assert not after["test"] & (before["test"] | before["train"] | before["validation"]), (
        "none was tested or trained on"
    )
    assert not before["test"] & set().union(*after.values())
    assert before["train"] <= after["train"]


def test_what_is_no_retired_test_set_is_refused(tmp_path):
    (tmp_path / "examples.npy").write_bytes(b"text")
    with pytest.raises(InputError, match=r"examples\.npy: expected the example IDs of a retired test set"):
        _write(tmp_path, 40, retired_tests=(str(tmp_path / "examples.npy"),))


def test_a_retired_set_of_an_earlier_version_is_matched_by_its_scheme(tmp_path):
    before = _write(tmp_path, 200)
    np.save(tmp_path / "examples.npy", np.array([scheme1 for scheme1, _ in sorted(before["test"])], np.uint64))
    after = _write(tmp_path, 400, retired_tests=(str(tmp_path / "examples.npy"),))
    assert not before["test"] & set().union(*after.values())


def test_a_retired_set_that_matches_nothing_is_warned_about(tmp_path, capsys):
    np.save(tmp_path / "examples.npy", _ids([(1, 2), (3, 4)]))
    _write(tmp_path, 200, retired_tests=(str(tmp_path / "examples.npy"),))
    assert f"Warning: no example of this data set is in the retired test set {tmp_path}/examples.npy" in (
        capsys.readouterr().err
    )


def test_a_retired_set_of_an_earlier_version_that_matches_nothing_is_refused_and_can_be_converted(tmp_path):
    """Pictures were written at 12×12, so that their IDs of scheme 1 are those of the smaller pictures."""
    pictures = np.random.default_rng(0).integers(0, 256, (200, 16, 16), np.uint8)
    np.savez(tmp_path / "pictures.npz", images=pictures, labels=np.arange(200) % 2)
    small = WriteParams(f"npz:{tmp_path}/pictures.npz", image_size=(12, 12), num_workers=1)
    write_records(small, tmp_path / "small")
    write_records(WriteParams("sklearn:digits", num_workers=1), tmp_path / "other")
    test = load_identities(tmp_path / "small", "test")
    retired = tmp_path / "examples.npy"
    np.save(retired, test["scheme1"])
    large = dataclasses.replace(small, image_size=(16, 16), retired_tests=(str(retired),))
    with pytest.raises(InputError, match=r"none of its \d+ examples is in this data set.*convert_ids RECORDS "):
        write_records(large, tmp_path / "large")
    with pytest.raises(InputError, match=r"none of its \d+ IDs is in .*/other"):
        convert_ids(tmp_path / "other", [str(retired)])
    converted = convert_ids(tmp_path / "small", [str(retired)])
    assert (converted.num_files, converted.num_ids, converted.num_converted) == (1, len(test), len(test))
    with pytest.raises(InputError, match=r"'test' split has no examples left"):
        write_records(large, tmp_path / "large")
    np.save(retired, np.load(retired)[:10])
    write_records(large, tmp_path / "large")
    assert len(load_identities(tmp_path / "large", "test")) == len(test) - 10


def test_a_retired_set_of_an_earlier_version_that_matches_in_part_is_warned_about_until_converted(tmp_path, capsys):
    """Rotated photos have another ID of scheme 1 with and without `apply_rotation`; the others have the same."""
    noise = np.random.default_rng(0).integers(0, 256, (200, 12, 12), np.uint8)
    exif = Image.Exif()
    for i, pixels in enumerate(noise):
        exif[0x0112] = 6 if i % 3 == 0 else 1
        (tmp_path / f"photos/{i % 2}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / f"photos/{i % 2}/{i}.jpg", exif=exif)
    turned = WriteParams(f"images:{tmp_path}/photos", encoding="encoded", num_workers=1)
    write_records(turned, tmp_path / "turned")
    retired = load_identities(tmp_path / "turned", "test")[:12]
    np.save(tmp_path / "examples.npy", retired["scheme1"])
    as_stored = dataclasses.replace(turned, apply_rotation=False, retired_tests=(f"{tmp_path}/examples.npy",))
    capsys.readouterr()
    write_records(as_stored, tmp_path / "before")
    log = capsys.readouterr().err
    assert re.search(r"Warning: [1-9] of the 12 examples .*examples\.npy .*convert_ids RECORDS", log)
    convert_ids(tmp_path / "turned", [f"{tmp_path}/examples.npy"])
    write_records(as_stored, tmp_path / "after")
    assert "warning" not in capsys.readouterr().err
    assert len(load_identities(tmp_path / "after", "test")) == len(load_identities(tmp_path / "turned", "test")) - 12


def test_the_command_converts_files_and_says_how_many(tmp_path, capsys, monkeypatch):
    before = _write(tmp_path, 200)
    np.save(tmp_path / "trained_on.npy", np.array([scheme1 for scheme1, _ in before["train"]] + [7], np.uint64))
    monkeypatch.setattr("sys.argv", ["convert_ids", str(tmp_path / "records"), str(tmp_path / "trained_on.npy")])
    assert main() == 0
    count = len(before["train"])
    assert json.loads(capsys.readouterr().out) == {"num_files": 1, "num_ids": count + 1, "num_converted": count}
    assert set(np.load(tmp_path / "trained_on.npy").tolist()) == before["train"] | {(7, 0)}
    (tmp_path / "trained_on.npy").write_text("no array")
    assert main() == 2
    assert "Cannot read" in capsys.readouterr().err
    (tmp_path / "records" / "examples.npz").unlink()
    assert main() == 2
    assert f"Found no example IDs in {tmp_path}/records" in capsys.readouterr().err


def test_records_of_an_earlier_version_convert_nothing_and_converted_files_stay(tmp_path):
    before = _write(tmp_path, 200)
    file = tmp_path / "examples.npy"
    ids = _ids(before["test"])
    other = ids.copy()
    other["scheme1"] += 1  # Converted by records with other settings.
    np.save(file, other)
    assert convert_ids(tmp_path / "records", [str(file)]).num_converted == len(other)
    assert np.array_equal(np.load(file), other)
    np.save(file, ids["scheme1"])
    saved = dict(np.load(tmp_path / "records" / "examples.npz"))
    earlier = {name: each["scheme1"] if each.dtype == ID_TYPE else each for name, each in saved.items()}
    np.savez(tmp_path / "records" / "examples.npz", **earlier)
    with pytest.raises(
        InputError, match=r"an earlier version wrote these records.* with this version and the same settings"
    ):
        convert_ids(tmp_path / "records", [str(file)])
