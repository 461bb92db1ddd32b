"""Arrays in parts are read back whole or in other parts, and a checkpoint of them is whole at any moment."""

import numpy as np
import pytest

from tpu_components.core.base.errors import InputError
from tpu_components.core.machines.hosts import Hosts
from tpu_components.train_model.checkpoints.checkpoint import TrainingProgress, load_arrays, manifest_of, save_arrays
from tpu_components.train_model.checkpoints.parts import PARTS_DIR, ArrayInParts, PartsWriter


class Together:
    """A host of several that are called one after the other: host 0 last."""

    def __init__(self, index, count, told):
        self.hosts, self.told = Hosts(index, count), told

    def tell(self, name, content):
        self.told[name] = content

    def hear(self, name):
        return self.told[name]

    def wait_for_all(self, what):
        self.told[what] = ""


_ARRAY = np.arange(48, dtype=np.float32).reshape(4, 12)


def _of_host(host, count):
    """Return what a host has, in two parts as of two devices."""
    width = 12 // count // 2
    bounds = [((0, 4), (width * part, width * (part + 1))) for part in (2 * host, 2 * host + 1)]
    pieces = {at: _ARRAY[:, at[1][0] : at[1][1]] for at in bounds}
    return {"weight/0": ArrayInParts((4, 12), np.float32, pieces), "weight/1": np.float32([7.0])}


def _save(folder, session=1, count=2, number=1):
    """Save as so many hosts do, so many times; returns the writers."""
    told = {}
    writers = [PartsWriter(folder, session, Together(host, count, told)) for host in range(count)]
    for step in range(1, number + 1):
        manifests = [writers[host].write(_of_host(host, count)) for host in reversed(range(count))]
        save_arrays(folder / "checkpoint.npz", _of_host(0, count), TrainingProgress("a", step=step), manifests[-1])
        writers[0].clean([manifest_of(folder / "checkpoint.npz")])
    return writers


@pytest.mark.parametrize("count", [2, 3])
def test_what_hosts_have_saved_in_parts_is_read_whole_and_in_other_parts(tmp_path, count):
    _save(tmp_path, count=count)
    arrays, progress = load_arrays(tmp_path / "checkpoint.npz")
    assert progress.step == 1
    assert np.array_equal(np.asarray(arrays["weight/0"]), _ARRAY)
    assert np.array_equal(arrays["weight/0"][1:3, 3:9], _ARRAY[1:3, 3:9])
    assert np.array_equal(arrays["weight/0"][slice(None), slice(0, 12)], _ARRAY)
    assert (arrays["weight/0"].shape, arrays["weight/0"].dtype) == ((4, 12), np.float32)
    assert np.array_equal(arrays["weight/1"], [7.0])


def test_a_host_has_its_own_parts_alone():
    array = _of_host(1, 2)["weight/0"]
    assert np.array_equal(array[:, 6:12], _ARRAY[:, 6:])
    with pytest.raises(
        ValueError, match=r"Cannot read the slice \(\(0, 4\), \(5, 7\)\) .*: expected 8 values, received 4, because"
    ):
        array[:, 5:7]


def test_a_checkpoint_stays_whole_until_the_next_one_is_published(tmp_path):
    """Hosts are killed when they have written, before host 0 names their files; the next session clears them away."""
    first = _save(tmp_path)
    for host in (1, 0):
        first[host].write(_of_host(host, 2))
    assert len(list((tmp_path / PARTS_DIR).iterdir())) == 4
    assert np.array_equal(np.asarray(load_arrays(tmp_path / "checkpoint.npz")[0]["weight/0"]), _ARRAY)
    _save(tmp_path, session=2, number=2)
    assert {path.name for path in (tmp_path / PARTS_DIR).iterdir()} == {"2-000002.0.npz", "2-000002.1.npz"}


def test_what_a_host_is_just_writing_stays(tmp_path):
    writers = _save(tmp_path)
    writers[1].write(_of_host(1, 2))
    (tmp_path / PARTS_DIR / ".1-000002.1.npz.half.tmp").write_bytes(b"")
    (tmp_path / PARTS_DIR / ".0-000009.1.npz.half.tmp").write_bytes(b"")
    writers[0].clean([manifest_of(tmp_path / "checkpoint.npz")])
    names = {path.name for path in (tmp_path / PARTS_DIR).iterdir()}
    assert names == {"1-000001.0.npz", "1-000001.1.npz", "1-000002.1.npz", ".1-000002.1.npz.half.tmp"}


@pytest.mark.parametrize("harm", ["missing", "short", "changed"])
def test_a_damaged_part_is_told(tmp_path, harm):
    _save(tmp_path)
    path = tmp_path / PARTS_DIR / "1-000001.1.npz"
    content = bytearray(path.read_bytes())
    path.unlink()
    if harm == "short":
        path.write_bytes(content[:-1])
    if harm == "changed":
        content[content.index(np.float32(9).tobytes())] ^= 1
        path.write_bytes(content)
    with pytest.raises(InputError, match=r"a part of the checkpoint, .*1-000001\.1\.npz, is missing or damaged"):
        np.asarray(load_arrays(tmp_path / "checkpoint.npz")[0]["weight/0"])


def test_hosts_that_have_folders_of_their_own_are_told_so(tmp_path, monkeypatch):
    monkeypatch.setattr("tpu_components.train_model.checkpoints.parts.SEEN_SECONDS", 0.0)
    first, second = Together(0, 2, {}), Together(1, 2, {})
    PartsWriter(tmp_path / "0", 5, first).check_folder()
    PartsWriter(tmp_path / "0", 5, second).check_folder()
    with pytest.raises(InputError, match="host 1 cannot read a file of host 0"):
        PartsWriter(tmp_path / "1", 5, second).check_folder()
