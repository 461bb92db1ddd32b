"""A test set that has taken too many decisions is retired: its examples are in no split any more."""

import numpy as np
import pytest

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.artifacts import Manifest
from tpu_components.core.examples.example_ids import load_identities
from tpu_components.create_tfrecords import WriteParams, write_records


def _write(tmp_path, count, **changes):
    rows = [f"film {i} {i * i},{'pos' if i % 2 else 'neg'}" for i in range(count)]
    (tmp_path / "films.csv").write_text("\n".join(["text,label", *rows]))
    params = WriteParams(f"csv:{tmp_path}/films.csv", num_workers=1, num_tokens=4, stratify=False, **changes)
    write_records(params, tmp_path / "records")
    manifest = Manifest.load(tmp_path / "records")
    return {split: set(load_identities(tmp_path / "records", split).tolist()) for split in manifest.splits}


def test_a_fresh_test_set_has_examples_that_arrived_since_and_the_retired_are_in_no_split(tmp_path):
    before = _write(tmp_path, 200)
    np.save(tmp_path / "examples.npy", np.array(sorted(before["test"]), np.uint64))
    with pytest.raises(InputError, match=r"'test' split has no examples left: all \d+ drawn .* data.retired_tests"):
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
    with pytest.raises(InputError, match=r"examples\.npy: expected examples\.npy, as the gate names it"):
        _write(tmp_path, 40, retired_tests=(str(tmp_path / "examples.npy"),))
