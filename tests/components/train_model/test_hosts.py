"""Several hosts learn what one learns, end together, and continue after any of them is lost: each is a process."""

import json
import random
import shutil
import signal
import textwrap
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from tests.components.conftest import EVERYTHING, command_of
from tests.components.train_model.weights import history_of, weights_of
from tests.support.hosts import HostProcesses

pytestmark = pytest.mark.slow  # A host takes 10 s to start.


@pytest.fixture
def plain(quick):
    """Quick parameters for JAX; a batch of 64 whatever the number of hosts is set by `_of`."""
    return replace(quick, backend="jax", optimizer="sgd", learning_rate=0.02, num_replicas=0)


def _of(params, num_hosts):
    return replace(params, num_replicas=num_hosts, batch_size_per_replica=64 // num_hosts, learning_rate_scaling="none")


def _command(params, records, output):
    return command_of("train_model", asdict(params), records=records, output=output)


def _train(params, num_hosts, records, output):
    command = _command(params, records, output)
    with HostProcesses(num_hosts, command, output.parent / f"{output.name}-logs") as hosts:
        assert hosts.wait() == [0] * num_hosts, hosts.said(0)
        return hosts.result()


def _assert_same(one_dir, other_dir, is_exact):
    one, other = weights_of(one_dir), weights_of(other_dir)
    assert one.keys() == other.keys()
    for name, expected in one.items():
        if is_exact:
            assert np.array_equal(other[name], expected), name
        elif expected.dtype.kind == "f":
            np.testing.assert_allclose(other[name], expected, rtol=1e-3, atol=1e-4, err_msg=name)


@pytest.mark.parametrize(
    ("num_hosts", "records", "num_examples"),
    [
        (2, "digits_records", 1259),
        (2, "weighted_digits", 363),
        (4, "digits_records", 1259),
        (8, "digits_records", 1259),
    ],
)
def test_hosts_learn_what_one_process_with_as_many_devices_learns(
    plain, request, tmp_path, num_hosts, records, num_examples
):
    """Two sums are the same in either order; of more, float32 depends on the order in which devices add up."""
    params, records = _of(plain, num_hosts), request.getfixturevalue(records)
    one = _train(params, 1, records, tmp_path / "one")
    several = _train(params, num_hosts, records, tmp_path / "several")
    assert several["examples_seen"] == one["examples_seen"] == 3 * num_examples
    assert several["metrics"]["loss"] == pytest.approx(one["metrics"]["loss"], rel=1e-5)
    _assert_same(tmp_path / "one", tmp_path / "several", is_exact=num_hosts == 2)
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == sorted(
        path.name for path in (tmp_path / "several").iterdir()
    )


# One process that reads as several hosts do, and puts their parts of every batch in a row.
_AS_HOSTS = """
    import sys
    import numpy as np
    from tpu_components.core.examples import feeding
    from tpu_components.core.base.partition import Share
    from tpu_components.train_model import __main__, loop

    count = int(sys.argv.pop(1))

    class Batches:
        def __init__(self, parts):
            self.parts = parts

        def as_numpy_iterator(self):
            for batches in zip(*(part.as_numpy_iterator() for part in self.parts), strict=True):
                yield tuple(map(np.concatenate, zip(*batches, strict=True)))

    class Reader:
        def __init__(self, *arguments):
            shares = [Share(host, count) for host in range(count)]
            self.readers = [feeding.open_training_split(*arguments[:-1], share) for share in shares]

        def batches(self, epoch, start_step):
            return Batches([reader.batches(epoch, start_step) for reader in self.readers])

    loop.open_training_split = Reader
    sys.exit(__main__.main())
"""


@pytest.mark.parametrize("in_memory_mib", [0, 100], ids=["streamed", "in memory"])
@pytest.mark.parametrize("steps_per_execution", [0, 7])
@pytest.mark.parametrize("records", ["digits_records", "weighted_digits"])
def test_hosts_that_hand_batches_over_learn_what_one_learns_from_the_same(
    plain, records, request, tmp_path, in_memory_mib, steps_per_execution
):
    records = request.getfixturevalue(records)
    params = replace(
        _of(plain, 2),
        residency="host",
        in_memory_mib=in_memory_mib,
        steps_per_execution=steps_per_execution,
        shuffle_buffer=300,
        **EVERYTHING,
    )
    (tmp_path / "as_hosts.py").write_text(textwrap.dedent(_AS_HOSTS))
    command = _command(params, records, tmp_path / "one")
    command[1:3] = [str(tmp_path / "as_hosts.py"), "2"]
    with HostProcesses(1, command, tmp_path / "logs") as alone:
        assert alone.wait() == [0], alone.said(0)
    _train(params, 2, records, tmp_path / "two")
    _assert_same(tmp_path / "one", tmp_path / "two", is_exact=True)


_IN_PARTS = {"sharding": "fully_sharded", "num_replicas": 8, "batch_size_per_replica": 8}


@pytest.mark.parametrize("residency", ["auto", "host"])
def test_two_hosts_with_weights_in_parts_learn_what_whole_weights_learn(plain, digits_records, tmp_path, residency):
    """Each with four simulated devices. Parts of gradients are summed in another order."""
    params = replace(_of(plain, 2), **{**_IN_PARTS, "residency": residency}, **EVERYTHING)
    _train(replace(params, sharding="replicated"), 2, digits_records, tmp_path / "whole")
    _train(params, 2, digits_records, tmp_path / "parts")
    curves = [
        [(entry["loss"], entry["validation_loss"]) for entry in history_of(tmp_path / name)]
        for name in ("whole", "parts")
    ]
    np.testing.assert_allclose(curves[1], curves[0], rtol=1e-3)
    _assert_same(tmp_path / "whole", tmp_path / "parts", is_exact=False)
    files = list((tmp_path / "parts-checkpoints" / "parts").iterdir())
    assert {path.name.split(".")[1] for path in files} == {"0", "1"}
    assert len(files) in (2, 4), "one checkpoint's, and the best epoch's"


def _checkpoint_step(checkpoints: Path) -> tuple[int, int]:
    path = checkpoints / "checkpoint.npz"
    if not path.is_file():
        return 0, 0
    with np.load(path) as file:  # Not the parts that it names, which may just be replaced.
        progress = json.loads(str(file["progress"]))
    return progress["epoch"], progress["step"]


@pytest.mark.parametrize(("index", "number"), [(0, "SIGKILL"), (1, "SIGKILL"), (0, "SIGTERM"), (1, "SIGTERM")])
def test_a_host_that_ends_takes_all_with_it_and_another_start_goes_on_to_the_same_weights(
    plain, digits_records, tmp_path, index, number
):
    params = replace(_of(plain, 2), epochs=40, **EVERYTHING)
    undisturbed = replace(params, checkpoint_seconds=1000.0)
    _train(undisturbed, 2, digits_records, tmp_path / "whole")
    command = _command(replace(params, checkpoint_seconds=0.0), digits_records, tmp_path / "ended")
    checkpoints = tmp_path / "ended-checkpoints"
    with HostProcesses(2, command, tmp_path / "logs") as hosts:
        hosts.wait_until(lambda: _checkpoint_step(checkpoints) > (1, 3))
        hosts.send(index, signal.Signals[number])
        codes = hosts.wait(60)
    ended = 128 + signal.Signals[number]
    assert codes[index] == ended
    assert codes[1 - index] == (134 if number == "SIGKILL" else 143)
    assert not (tmp_path / "ended").exists()
    _train(params, 2, digits_records, tmp_path / "ended")
    _assert_same(tmp_path / "whole", tmp_path / "ended", is_exact=True)


@pytest.mark.parametrize("number", ["SIGKILL", "SIGTERM"])
def test_weights_in_parts_go_on_where_hosts_ended_on_as_many_or_on_one(plain, digits_records, tmp_path, number):
    params = replace(_of(plain, 2), **_IN_PARTS, epochs=8, ema_decay=0.9, optimizer="adam")
    _train(replace(params, checkpoint_seconds=1000.0), 2, digits_records, tmp_path / "whole")
    command = _command(replace(params, checkpoint_seconds=0.2), digits_records, tmp_path / "ended")
    checkpoints = tmp_path / "ended-checkpoints"
    with HostProcesses(2, command, tmp_path / "logs") as hosts:
        hosts.wait_until(lambda: _checkpoint_step(checkpoints) > (1, 3))
        hosts.send(1, signal.Signals[number])
        codes = hosts.wait(60)
    assert codes == ([134, 137] if number == "SIGKILL" else [143, 143]), hosts.said(0)
    assert (1, 0) < _checkpoint_step(checkpoints) < (8, 0)
    shutil.copytree(checkpoints, tmp_path / "alone-checkpoints")
    together = _train(params, 2, digits_records, tmp_path / "ended")
    _assert_same(tmp_path / "whole", tmp_path / "ended", is_exact=True)
    alone = _train(params, 1, digits_records, tmp_path / "alone")
    assert alone["sessions"] == together["sessions"] == 2
    assert alone["metrics"]["loss"] == pytest.approx(together["metrics"]["loss"], rel=1e-2)  # Summed in another order.


def test_a_training_that_diverges_ends_on_all_hosts_as_a_users_mistake(plain, digits_records, tmp_path):
    command = _command(replace(_of(plain, 2), learning_rate=1e30), digits_records, tmp_path / "diverged")
    with HostProcesses(2, command, tmp_path / "logs") as hosts:
        assert hosts.wait(120) == [2, 2]
        assert "Training diverged" in hosts.said(0)
        assert "Traceback" not in hosts.said(0) + hosts.said(1)
    assert not (tmp_path / "diverged").exists()


def test_hosts_killed_at_random_leave_the_weights_of_an_undisturbed_training(plain, digits_records, tmp_path):
    params = replace(_of(plain, 4), epochs=20, checkpoint_seconds=0.2, **EVERYTHING)
    _train(params, 4, digits_records, tmp_path / "whole")
    command = _command(params, digits_records, tmp_path / "killed")
    chance = random.Random(0)
    for _ in range(3):
        with HostProcesses(4, command, tmp_path / "logs") as hosts:
            before = _checkpoint_step(tmp_path / "killed-checkpoints")
            hosts.wait_until(lambda before=before: _checkpoint_step(tmp_path / "killed-checkpoints") > before)
            hosts.wait_until(lambda: False, chance.uniform(0, 2))
            hosts.send(chance.randrange(4), signal.SIGKILL)
            assert set(hosts.wait(60)) <= {137, 134}
    _train(params, 4, digits_records, tmp_path / "killed")
    _assert_same(tmp_path / "whole", tmp_path / "killed", is_exact=True)
    assert [entry["epoch"] for entry in history_of(tmp_path / "killed")] == list(range(1, 21))


def test_a_training_goes_on_with_fewer_hosts_where_it_stood(plain, digits_records, tmp_path):
    """Four hosts, one of them lost, and two go on: twice the steps, from the same share of the epoch."""
    params = replace(plain, batch_size_per_replica=16, epochs=8, optimizer="adam", learning_rate=0.002)
    command = _command(replace(params, checkpoint_seconds=0.0), digits_records, tmp_path / "model")
    checkpoints = tmp_path / "model-checkpoints"
    with HostProcesses(4, command, tmp_path / "logs") as hosts:
        hosts.wait_until(lambda: _checkpoint_step(checkpoints) > (2, 3))
        hosts.send(3, signal.SIGKILL)
        hosts.wait(60)
    epoch, step = _checkpoint_step(checkpoints)
    assert 2 <= epoch < 8
    with HostProcesses(2, command, tmp_path / "logs") as hosts:
        assert hosts.wait() == [0, 0], hosts.said(0)
        assert "another number of replicas; the batch size is now 32" in hosts.said(0)
        assert f"continuing at epoch {epoch + 1}, step {2 * step} of 40" in hosts.said(0)
        result = hosts.result()
    assert (result["epochs"], result["sessions"], result["num_replicas"]) == (8, 2, 2)
    assert 0 < result["goodput"] < 1
    history = history_of(tmp_path / "model")
    assert [entry["epoch"] for entry in history] == list(range(1, 9))
    assert history[-1]["validation_accuracy"] > 0.9
