import dataclasses
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import types

import numpy as np
import pytest

from tpu_components.core.base import typed_values
from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.artifacts import TRAIN, Manifest
from tpu_components.create_tfrecords import WriteParams, write_records
from tpu_components.preflight_training import data
from tpu_components.preflight_training.data import DataFacts, HostRate, Measurement, measure_rate

# In a process of its own: measures the records of the first argument, and keeps the rate in the second.
_MEASURE = """
import pathlib, sys
from tpu_components.core.examples.artifacts import Manifest
from tpu_components.preflight_training import data
records, cache_dir = map(pathlib.Path, sys.argv[1:])
manifest = Manifest.load(records)
facts = data.DataFacts.from_manifest(manifest, {"train": 1259})
data.Measurement(4096, 1000, cache_dir).of_records(records, manifest, facts)
"""


def _load(records, cache_dir, in_memory_mib=4096):
    manifest = Manifest.load(records, verify=False)
    facts = DataFacts.from_manifest(manifest, {name: split.num_examples for name, split in manifest.splits.items()})
    return Measurement(in_memory_mib, 1000, cache_dir).of_records(records, manifest, facts)


@pytest.mark.heavy  # Another process with TensorFlow: 5 s.
def test_data_are_measured_without_the_log_messages_of_tensorflow(digits_records, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    command = [sys.executable, "-c", _MEASURE, str(digits_records), str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert not re.search("cuInit|rendezvous|buffer_size|rebuild TensorFlow", done.stderr), done.stderr


def test_facts_are_the_data_sets_own(digits_records, tmp_path):
    facts = _load(digits_records, tmp_path)
    assert facts.interface.input.shape == (8, 8, 1)
    assert (facts.interface.num_classes, facts.num_examples, facts.decoded_bytes) == (10, 1259, 1259 * 64)
    assert facts.host.in_memory
    assert facts.host.feed_per_second > 0
    assert facts.host.read_per_second > 0
    assert facts.host.cpus >= 1


@pytest.mark.slow  # Another process with TensorFlow: 6 s.
def test_the_import_of_tensorflow_is_no_part_of_a_rate(digits_records, tmp_path):
    """In a process of its own, as on the command line: importing takes longer than what is measured."""
    code = (
        "import sys, time, types\n"
        "from tpu_components.preflight_training import data\n"
        "clock = lambda: print('tensorflow' in sys.modules) or time.perf_counter()\n"
        "data.time = types.SimpleNamespace(perf_counter=clock)\n"
    ) + _MEASURE
    command = [sys.executable, "-c", code, str(digits_records), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {"True"}


def test_what_does_not_fit_in_memory_is_fed_from_its_files(digits_records, tmp_path):
    facts = _load(digits_records, tmp_path, in_memory_mib=0)
    assert not facts.host.in_memory
    assert facts.host.feed_per_second > 0


def test_a_rate_that_was_measured_beside_other_work_says_so_and_is_measured_again(digits_records, tmp_path, load):
    load(0.6)
    disturbed = _load(digits_records, tmp_path)
    assert disturbed.host.load == pytest.approx(0.6)
    load(0.1)
    undisturbed = _load(digits_records, tmp_path)
    assert undisturbed.host.load == pytest.approx(0.1)
    load(0.6)
    assert _load(digits_records, tmp_path) == undisturbed, "kept"


def test_rates_are_measured_once_per_data_set_and_reader(digits_records, tmp_path, load):
    load(0.0)
    first = _load(digits_records, tmp_path)
    assert _load(digits_records, tmp_path) == first  # To the last digit: read from the file.
    (kept,) = tmp_path.glob("host-*.json")
    assert typed_values.read(json.loads(kept.read_text())["content"], HostRate) == first.host
    _load(digits_records, tmp_path, in_memory_mib=0)
    assert len(list(tmp_path.glob("host-*.json"))) == 2


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    """Noise of 12 MB in many shards."""
    folder = tmp_path_factory.mktemp("sharded")
    images = np.random.default_rng(0).integers(0, 256, (4000, 32, 32, 3), np.uint8)
    np.savez(folder / "data.npz", x_train=images, y_train=np.arange(4000) % 3)
    params = WriteParams(
        f"npz:{folder / 'data.npz'}", validation_fraction=0, test_fraction=0, num_workers=1, target_shard_mib=1
    )
    write_records(params, folder / "records")
    return folder / "records"


def test_of_a_large_data_set_only_the_first_shards_are_read(sharded, tmp_path, monkeypatch):
    shards = Manifest.load(sharded).split(TRAIN).shards
    assert len(shards) > 4
    monkeypatch.setattr(data, "MEASURED_BYTES", 2 << 20)
    for shard in shards[2:]:
        (sharded / shard.name).write_bytes(bytes(shard.num_bytes))
    facts = _load(sharded, tmp_path / "cache", in_memory_mib=1)
    assert facts.num_examples == 4000
    assert facts.decoded_bytes == 4000 * 3072
    assert not facts.host.in_memory


def test_a_folder_without_a_data_set_is_refused(tmp_path):
    with pytest.raises(InputError, match="empty"):
        _load(tmp_path / "empty", tmp_path)


def test_a_data_set_without_a_training_split_is_refused(digits_records, tmp_path):
    manifest = Manifest.load(digits_records)
    without = dataclasses.replace(manifest, splits={k: v for k, v in manifest.splits.items() if k != TRAIN})
    (tmp_path / "records").mkdir()
    without.save(tmp_path / "records")
    for path in digits_records.glob("*.tfrecord"):
        shutil.copy(path, tmp_path / "records")
    with pytest.raises(InputError, match="train"):
        _load(tmp_path / "records", tmp_path / "cache")


@pytest.fixture
def passing(monkeypatch):
    """Makes a pass that takes a while by the clock that `data` reads, and counts passes."""
    clock = types.SimpleNamespace(now=0.0, passes=0)
    monkeypatch.setattr(data, "time", types.SimpleNamespace(perf_counter=lambda: clock.now))

    def make(durations, counts):
        def open_pass():
            clock.now += next(durations)
            clock.passes += 1
            return counts

        return open_pass, clock

    return make


def test_rate_leaves_the_warm_up_out(passing):
    open_pass, clock = passing(itertools.chain([0.05], itertools.repeat(0.02)), [30, 20])
    assert measure_rate(open_pass) == pytest.approx((50 / 0.02,) * 3)
    assert clock.passes > 2


def test_the_slowest_and_the_fastest_pass_are_kept(passing):
    open_pass, clock = passing(iter([1.0, 2.0, 0.5]), [100])
    assert measure_rate(open_pass) == pytest.approx((300 / 3.5, 50, 200))
    assert clock.passes == 3


def test_a_first_pass_that_takes_long_is_measure_enough(passing):
    open_pass, clock = passing(itertools.repeat(25.0), [100])
    assert measure_rate(open_pass) == pytest.approx((4.0,) * 3)
    assert clock.passes == 1
