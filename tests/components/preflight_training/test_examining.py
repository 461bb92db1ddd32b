"""The step on the digits, with the real compiler in its child."""

import dataclasses
import json
import re

import pytest

from tests.components.preflight_training.conftest import DENSE
from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.interface import ImageInput, Interface
from tpu_components.core.machines.machine_spec import PaidMachine, parse_machine
from tpu_components.preflight_training import PreflightParams, preflight_training
from tpu_components.preflight_training.compiling import sandbox
from tpu_components.preflight_training.compiling.hlo import (
    Kind,
    LayerCost,
    MatrixProduct,
    OperationCost,
    ProgramCost,
)
from tpu_components.preflight_training.compiling.outcome import FITS, Outcome
from tpu_components.preflight_training.data import DataFacts, HostRate
from tpu_components.preflight_training.examining import Examination
from tpu_components.preflight_training.params import timeout_seconds
from tpu_components.preflight_training.report import as_text
from tpu_components.train_model import TrainParams

pytestmark = pytest.mark.usefixtures("warm_compiler")

_PARAMS = PreflightParams(TrainParams(DENSE, batch_size_per_replica=32, epochs=3, residency="host"))
# A host whose rate is known, so that waiting can be calculated: with as many CPUs as v5e-1's own.
_DATA = DataFacts(Interface(ImageInput((8, 8, 1), "raw"), 10), 1259, 1259 * 64, HostRate(50_000.0, 100_000.0, True, 24))


@pytest.fixture
def fitting(tmp_path, monkeypatch):
    """A compiler for which every program fits, and takes 150,000 cycles; the folder that it keeps nothing in."""
    product = MatrixProduct(32, 64, 10, 2.0 * 32 * 64 * 10, is_forward=True)
    layers = {"dense": LayerCost([OperationCost(Kind.PRODUCT, 150_000, product.flops)], [product])}
    cost = ProgramCost(layers)
    outcome = Outcome(FITS, peak_bytes=1 << 20, held_bytes=1 << 20, example_bytes=112, cost=cost, parameters=650)
    monkeypatch.setattr(sandbox.Sandbox, "compile_all", lambda _, compilations: [outcome] * len(compilations))
    return tmp_path


def _examine(cache_dir, data=_DATA, **changes):
    of_training = {name: changes.pop(name) for name in tuple(changes) if hasattr(_PARAMS.training, name)}
    paid = PaidMachine(changes.pop("machine", "v5e-1"))
    training = dataclasses.replace(_PARAMS.training, **of_training)
    params = dataclasses.replace(_PARAMS, training=training, paid=paid, **changes)
    (report,) = Examination(params, [paid], cache_dir).report(data).machines
    return report


@pytest.fixture(scope="session")
def preflighted(digits_records, cache_dir, warm, tmp_path_factory):
    """The step's result and its folder. Not to be written to."""
    output = tmp_path_factory.mktemp("preflighted") / "preflight"
    with warm.takes_over():
        return preflight_training(_PARAMS, digits_records, output, cache_dir), output


def test_result_is_what_the_report_says(preflighted):
    result, output = preflighted
    report = json.loads((output / "preflight.json").read_text())
    (one,) = report["machines"]
    assert result.passed
    assert result.reasons == ()
    assert (result.machine, result.verdict) == (one["machine"], one["verdict"]) == ("v5e-1", "fits")
    assert result.step_ms == one["step"]["compute_ms"]  # One chip: nothing to sum.
    assert result.epoch_seconds == one["epoch"]["seconds"]
    assert result.usd_per_run == one["cost"]["usd_per_run"]
    assert one["passed"] is True
    assert (report["backend"], report["precision"]) == ("jax", "mixed_bfloat16")
    assert report["compiler"]["libtpu"]
    assert {path.name for path in output.iterdir()} == {"preflight.json", "preflight.html"}


def test_time_and_price_follow_from_the_step(cache_dir):
    report = _examine(cache_dir)
    assert report.epoch.steps == 40  # 1,259 in 32s.
    assert report.epoch.device_seconds == pytest.approx(40 * report.step.total_ms / 1e3)
    assert report.epoch.seconds == pytest.approx(max(40 * 32 / 100_000, report.epoch.device_seconds))
    assert report.cost.usd_per_hour == 1.38  # Vertex AI's: 1.15 × $1.20.
    assert report.cost.most_usd_per_run == pytest.approx(4 * 1.38), "until it is stopped"
    assert report.cost.usd_per_run == pytest.approx(3 * 1.38 * report.epoch.seconds / 3600)
    assert report.cost.high_usd_per_run == pytest.approx(3 * 1.38 * report.epoch.high_seconds / 3600)
    assert report.step.high_ms / report.step.total_ms == pytest.approx(report.accuracy.high / report.accuracy.factor)
    assert sum(layer.share for layer in report.layers) == pytest.approx(1)
    assert sum(layer.ms for layer in report.layers) == pytest.approx(report.step.compute_ms)
    assert 0 < report.peak_bytes < report.capacity_bytes


def test_the_machines_own_host_feeds_it(fitting):
    """What runs preflight on a platform has 4 CPUs: v5e-1's host has 24."""
    small = dataclasses.replace(_DATA, host=dataclasses.replace(_DATA.host, cpus=4))
    report = _examine(fitting, small)
    assert (report.host_cpus, report.feed_per_second) == (24, 600_000)
    assert report.epoch.seconds == pytest.approx(max(40 * 32 / 600_000, report.epoch.device_seconds))
    assert report.fed_by(small.host) == (
        "600,000 from its host (24 vCPUs), if the rate grows with the CPUs: 100,000 here "
        "(4 CPUs, 25,000 each, from memory)"
    )
    loaded = dataclasses.replace(small.host, load=0.6)
    assert report.fed_by(loaded).endswith(
        "from memory; measure again when this machine is idle, because other processes used 60% of it)"
    )
    several = dataclasses.replace(report, hosts=4, feed_per_second=2_400_000)
    assert several.fed_by(small.host).startswith("2,400,000 from its 4 hosts (24 vCPUs each), if the rate")
    unknown = dataclasses.replace(several, host_cpus=0)
    assert unknown.fed_by(small.host).startswith(
        "2,400,000 from its 4 hosts, if each reads as fast as this machine: 100,0"
    )
    streamed = dataclasses.replace(small.host, in_memory=False)
    files = dataclasses.replace(small, interface=Interface(ImageInput((8, 8, 1), "resized"), 10), host=streamed)
    assert _examine(fitting, files).feed_per_second == 100_000, "Python hands on no more files"
    whole = dataclasses.replace(files, interface=Interface(ImageInput((8, 8, 1), "encoded"), 10))
    assert _examine(fitting, whole).feed_per_second == 17_000, "and copies the pixels of those that it resizes"
    unknown = _examine(fitting, small, machine="v2-8")
    assert (unknown.host_cpus, unknown.feed_per_second) == (0, 100_000), "nobody says what its host has"


def test_data_that_lie_on_the_device_wait_for_no_host(cache_dir):
    slow = dataclasses.replace(_DATA, host=HostRate(1.0, 0.1, True, 4))
    report = _examine(cache_dir, slow, residency="auto")
    assert report.is_resident
    assert report.peak_bytes > 1259 * 128, "rows of 64 bytes fill 128"
    assert report.epoch.host_wait < 0.5 < _examine(cache_dir, slow).epoch.host_wait
    assert "from the devices' memory, in an order that" in report.fed_by(slow.host)
    assert not _examine(cache_dir, slow, residency="auto", in_memory_mib=0).is_resident


def test_data_that_do_not_fit_beside_the_model_are_handed_over(cache_dir):
    """16 GB a device: the digits a hundred million times."""
    large = dataclasses.replace(_DATA, num_examples=200_000_000, decoded_bytes=200_000_000 * 64)
    report = _examine(cache_dir, large, residency="auto", in_memory_mib=1 << 20)
    assert (report.verdict, report.is_resident) == ("fits", False)
    must = _examine(cache_dir, large, residency="device", in_memory_mib=1 << 20)
    assert (must.verdict, must.is_resident) == ("does_not_fit", True)


def test_the_validation_split_lies_on_the_device_too(cache_dir):
    """As in training: 16 GB a device hold the digits, but not 400 million to validate on, if the host holds these."""

    def examined(num_validation, residency="auto", in_memory_mib=1 << 20):
        data = dataclasses.replace(_DATA, num_validation=num_validation)
        return _examine(cache_dir, data, residency=residency, in_memory_mib=in_memory_mib)

    without, some, many = map(examined, (0, 1000, 400_000_000))
    read_again = examined(400_000_000, in_memory_mib=1000)
    assert (read_again.is_resident, read_again.peak_bytes) == (True, without.peak_bytes)
    assert (some.is_resident, some.peak_bytes) == (True, without.peak_bytes + 64_000)
    assert (many.verdict, many.is_resident) == ("fits", False)
    must = examined(400_000_000, "device")
    assert (must.verdict, must.is_resident) == ("does_not_fit", True)
    assert must.reason.startswith("the validation split (25,600,000,000 bytes) does not fit in memory together with")


def test_a_training_gets_the_time_of_the_slower_host(fitting):
    slow = dataclasses.replace(_DATA, host=HostRate(1.0, 0.1, False, 4))
    report = _examine(fitting, slow)
    assert report.timeout_seconds == timeout_seconds(3 * 40 * 32 / 0.1)
    assert _examine(fitting).timeout_seconds == 4 * 3600


def test_a_run_that_nears_the_seven_days_of_a_task_on_vertex_is_warned_of(fitting):
    report = _examine(fitting, dataclasses.replace(_DATA, host=HostRate(1.0, 0.001, False, 4)))
    assert report.timeout_seconds == 7 * 24 * 3600
    (warning,) = [words for words in report.advice if "days" in words]
    assert re.match(r"The run may take [\d.,]+ days, and Vertex AI cancels a pipeline's task after 7\.", warning)
    assert not [words for words in _examine(fitting).advice if "days" in words]


@pytest.mark.parametrize(
    ("budget", "reason"),
    [
        ({"max_step_ms": 1e-6}, "a step takes .*s on v5e-1, but max_step_ms=1e-06"),
        (
            {"max_price_usd": 1e-9},
            r"a run of 3 epochs on v5e-1 is expected to cost <?\$.* at Vertex AI's price, but max_price",
        ),
        ({"max_host_wait": 0.01}, "v5e-1 would wait for data .*% of the time, but max_host_wait=0.01"),
    ],
)
def test_each_budget_gives_its_reason(fitting, budget, reason):
    report = _examine(fitting, **budget)
    assert report.verdict == "fits"
    assert not report.passed
    (given,) = report.reasons
    assert re.search(reason, given)


def test_budgets_that_are_kept_give_none(fitting):
    assert _examine(fitting, max_step_ms=1e3, max_price_usd=10.0, max_host_wait=0.999).passed


def test_a_price_budget_cannot_be_kept_without_a_price(fitting):
    report = _examine(fitting, machine="7x-4", max_price_usd=100.0)
    assert report.cost is None
    (reason,) = report.reasons
    assert reason.startswith("no trustworthy price is known for 7x-4")


def test_a_step_larger_than_the_data_set_is_refused(fitting):
    """As train_model refuses it."""
    report = _examine(fitting, machine="v5e-8", batch_size_per_replica=158)
    (reason,) = report.reasons
    assert reason.startswith("one step takes 1,264 examples, but the training split has only 1,259")


def test_failure_tells_reason_layer_and_line(digits_records, cache_dir, tmp_path):
    model = tmp_path / "branching.py"
    model.write_text(
        "import keras\n"
        "class Special(keras.layers.Layer):\n"
        "    def call(self, x):\n"
        "        return x if x.mean() > 0.5 else 2 * x\n"
        "def build_model(image_shape, num_classes):\n"
        "    return keras.Sequential([keras.Input(image_shape, dtype='uint8'), keras.layers.Rescaling(1 / 255),\n"
        "        Special(name='special'), keras.layers.Flatten(), keras.layers.Dense(num_classes)])\n"
    )
    params = dataclasses.replace(_PARAMS, training=TrainParams(str(model)))
    result = preflight_training(params, digits_records, tmp_path / "out", cache_dir)
    assert not result.passed
    assert (result.step_ms, result.epoch_seconds, result.usd_per_run) == (0.0, 0.0, 0.0)
    (reason,) = result.reasons
    assert reason.startswith("the training step does not compile on v5e-1: a shape or a branch depends on the data")
    assert reason.endswith("(layer 'special', branching.py:4)")
    # It is a result, with a page to read.
    assert (tmp_path / "out" / "preflight.html").stat().st_size > 1000


def test_a_model_that_cannot_be_rebuilt_is_refused_though_it_fits(cache_dir, tmp_path):
    model = tmp_path / "mine.py"
    model.write_text(
        "import keras\n"
        "class Special(keras.layers.Layer):\n"
        "    def call(self, x):\n"
        "        return 2 * x\n"
        "def build_model(image_shape, num_classes):\n"
        "    return keras.Sequential([keras.Input(image_shape, dtype='uint8'), Special(), keras.layers.Flatten(),\n"
        "        keras.layers.Dense(num_classes, activation='softmax')])\n"
    )
    report = _examine(cache_dir, model=str(model), model_parameters={})
    assert (report.verdict, report.passed) == ("fits", False)
    (reason,) = report.reasons
    assert "Evaluation and export cannot rebuild the model" in reason


_ATTENTION = """
import types

import jax
import keras
from keras import layers
from keras.src.backend.jax import nn


class SeenOnATpu(types.ModuleType):
    def __getattr__(self, name):
        return (lambda: [types.SimpleNamespace(platform="tpu")]) if name == "devices" else getattr(jax, name)


nn.jax = SeenOnATpu("jax")


def build_model(image_shape, num_classes):
    image = keras.Input(image_shape, dtype="uint8")
    places = layers.Dense(128)(layers.Reshape((128, 1))(layers.Rescaling(1 / 255)(image)))
    answer = layers.GlobalAveragePooling1D()(layers.MultiHeadAttention(2, 128)(places, places))
    return keras.Model(image, layers.Dense(num_classes, activation="softmax", dtype="float32")(answer))
"""


@pytest.mark.slow  # 4 s: a kernel for each of the eight replicas.
def test_attention_is_the_same_on_a_tpu_as_here(cache_dir, tmp_path):
    """Keras's own kernel for TPUs gives other numbers, and several replicas do not compile with it."""
    (tmp_path / "attention.py").write_text(_ATTENTION)
    data = dataclasses.replace(_DATA, interface=Interface(ImageInput((16, 8, 1), "raw"), 10))
    report = _examine(cache_dir, data, model=str(tmp_path / "attention.py"), model_parameters={}, machine="v5e-8")
    assert (report.verdict, report.reasons) == ("fits", ())


def test_a_second_run_replaces_its_own_output_and_compiles_nothing(
    digits_records, preflighted, cache_dir, tmp_path, load
):
    load(0.0)  # A rate that was measured beside other work is measured again.
    first = preflight_training(_PARAMS, digits_records, tmp_path / "out", cache_dir)
    assert preflight_training(_PARAMS, digits_records, tmp_path / "out", cache_dir) == first
    (one,) = json.loads((tmp_path / "out" / "preflight.json").read_text())["machines"]
    assert one["cached"] is True
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_folder_of_something_else_is_refused(digits_records, cache_dir, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match=r"thesis\.tex"):
        preflight_training(_PARAMS, digits_records, tmp_path, cache_dir)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_mistake_leaves_nothing_behind(digits_records, cache_dir, tmp_path):
    params = dataclasses.replace(_PARAMS, training=TrainParams("digits_cmm"))
    with pytest.raises(InputError, match="digits_cnn"):
        preflight_training(params, digits_records, tmp_path / "out", cache_dir)
    assert list(tmp_path.iterdir()) == []


def test_each_of_several_machines_is_priced_where_and_how_it_is_paid_for(fitting):
    fallbacks = [{"name": "v5e-1", "region": "us-west4"}, {"name": "v6e-1", "region": "us-central1", "spot": True}]
    machine = parse_machine({"name": "v6e-1", "region": "asia-northeast1", "fallbacks": fallbacks})
    report = Examination(_PARAMS, [one.paid for one in machine.candidates], fitting).report(_DATA)
    expected = [one.paid.price for one in machine.candidates]
    assert [(one.cost.region, one.cost.kind, one.cost.usd_per_hour) for one in report.machines] == [
        (price.region, price.kind, price.usd_per_hour) for price in expected
    ]
    assert len({price.usd_per_hour for price in expected}) == 3
    assert [one.label for one in report.machines] == ["v6e-1 asia-northeast1", "v5e-1", "v6e-1 us-central1 spot"]


def test_a_machine_is_priced_for_every_target_that_is_asked_for(fitting):
    """Compiled once; a cluster's run is cheaper by the factor, and stopped when the cluster stops it."""
    paid = PaidMachine("v5e-1")
    cluster = dataclasses.replace(paid, target="kubeflow", timeout_seconds=24 * 3600, attempts=2)
    vertex, kubeflow = Examination(_PARAMS, [paid, cluster], fitting).report(_DATA).machines
    assert [vertex.label, kubeflow.label] == ["v5e-1 vertex", "v5e-1 kubeflow"]
    assert vertex.cost.usd_per_run == pytest.approx(1.15 * kubeflow.cost.usd_per_run)
    assert (vertex.cost.factor, kubeflow.cost.factor) == (1.15, 1.0)
    assert (vertex.timeout_seconds, kubeflow.timeout_seconds) == (4 * 3600, 24 * 3600)
    assert kubeflow.cost.most_usd_per_run == pytest.approx(2 * 24 * 1.2)


def test_the_spread_of_the_hosts_rate_widens_the_interval(fitting):
    """Streamed from files at 100 examples a second, the passes at 80 to 130: the device waits."""
    host = HostRate(50.0, 100.0, False, 24, low_per_second=80.0, high_per_second=130.0)
    report = _examine(fitting, dataclasses.replace(_DATA, host=host))
    assert report.epoch.seconds == pytest.approx(40 * 32 / 100)
    assert report.epoch.low_seconds == pytest.approx(40 * 32 / 130)
    assert report.epoch.high_seconds == pytest.approx(40 * 32 / 80)
    assert "100 (80–130) here (24 CPUs, 4 each, from files)" in report.fed_by(host)


@pytest.mark.parametrize("verdict", ["timed_out", "crashed", "does_not_compile", "does_not_fit"])
def test_a_machine_without_an_estimate_keeps_the_price_of_an_hour(verdict, tmp_path, monkeypatch):
    outcome = Outcome(verdict, "no")
    monkeypatch.setattr(sandbox.Sandbox, "compile_all", lambda _, compilations: [outcome] * len(compilations))
    report = _examine(tmp_path)
    assert (report.cost.usd_per_hour, report.cost.usd_per_run, report.cost.most_usd_per_run) == (1.38, None, None)
    assert not report.passed


def test_a_bound_of_the_largest_batch_costs_no_compilation(tmp_path, monkeypatch):
    compiled = []
    run = sandbox.Sandbox.run_child
    monkeypatch.setattr(sandbox.Sandbox, "run_child", lambda box, one: compiled.append(one) or run(box, one))
    report = _examine(tmp_path)
    assert len(compiled) == 1
    assert report.largest_batch.is_upper_bound
    # An image of 64 bytes, its label, its weight, and ten outputs in float32.
    assert report.largest_batch.size == pytest.approx(report.capacity_bytes // (64 + 4 + 4 + 40), rel=0.001)
    resident = {"residency": "auto", "in_memory_mib": 1 << 20}
    validated = dataclasses.replace(_DATA, num_validation=100_000_000)
    without, beside = (_examine(tmp_path, data, **resident).largest_batch for data in (_DATA, validated))
    assert beside.size < without.size, "the validation split takes of the memory too"


def _examine_unmeasured(cache_dir, is_timed=True, **changes):
    """The report on data whose rate is not known yet, and how often it was measured."""
    measured = []

    def measure(data):
        measured.append(data)
        return dataclasses.replace(data, host=_DATA.host)

    paid = PaidMachine(changes.pop("machine", "v5e-1"))
    training = dataclasses.replace(_PARAMS.training, residency=changes.pop("residency", "host"))
    params = dataclasses.replace(_PARAMS, training=training, paid=paid, **changes)
    unmeasured = dataclasses.replace(_DATA, host=None)
    return Examination(params, [paid], cache_dir, is_timed).report(unmeasured, measure), len(measured)


def test_the_host_is_measured_only_where_a_time_depends_on_it(fitting):
    report, count = _examine_unmeasured(fitting)
    assert (report.data.host, count) == (_DATA.host, 1)
    report, count = _examine_unmeasured(fitting, residency="auto")
    assert (report.data.host, count) == (None, 0)
    (resident,) = report.machines
    assert resident.is_resident
    assert resident.epoch.device_seconds > 0
    assert "read from the files" not in as_text(report)


def test_a_quick_preflight_answers_fits_and_memory_alone(fitting):
    """Nor does it refuse a training for a budget, of which it knows nothing."""
    report, count = _examine_unmeasured(fitting, is_timed=False, max_step_ms=1e-9, max_price_usd=1e-9)
    (one,) = report.machines
    assert count == 0
    assert one.passed
    assert (one.step, one.epoch, one.layers, one.timeout_seconds) == (None, None, (), 0)
    assert (one.cost.usd_per_run, one.cost.most_usd_per_run) == (None, None)
    assert one.summary == (
        "fits v5e-1 (<1% of its memory); time not estimated, like the price of a run. Run preflight without --quick; "
        "$1.38 per hour, at Vertex AI's price"
    )
    text = as_text(report)
    assert re.search(r"^memory +1.00 MiB of 15.8 GiB per device", text, re.MULTILINE)
    assert "At most 150,994,944 examples per replica fit; the data set has 1,259 for each" in text
    assert not re.search("^(step|epoch|timeout)", text, re.MULTILINE)
    assert report.footprint(one) is None


@pytest.mark.parametrize("layers", [{}, {"dense": LayerCost()}])
def test_a_program_of_which_nothing_can_be_priced_fits_and_has_no_time(layers, tmp_path, monkeypatch):
    outcome = Outcome(FITS, peak_bytes=1 << 20, example_bytes=112, cost=ProgramCost(layers))
    monkeypatch.setattr(sandbox.Sandbox, "compile_all", lambda _, compilations: [outcome] * len(compilations))
    report, count = _examine_unmeasured(tmp_path)
    (one,) = report.machines
    assert (one.passed, one.verdict, one.step, one.epoch, one.layers, count) == (True, "fits", None, None, (), 0)
    assert one.summary.startswith("fits v5e-1 (<1% of its memory); time unknown: the compiler has no estimate for any")
    assert one.timeout_seconds == 7 * 24 * 3600, "what takes an unknown time is not stopped early"
    assert re.search(r"^time +unknown: the compiler has no estimate", as_text(report), re.MULTILINE)
    refused, _ = _examine_unmeasured(tmp_path, max_step_ms=1.0)
    assert "max_step_ms cannot be checked" in refused.machines[0].reasons[0]


def test_a_program_of_kernels_alone_has_a_time(tmp_path, monkeypatch):
    """The compiler gives it no cycles, but its products are known."""
    layers = {"attention": LayerCost([OperationCost(Kind.KERNEL, flops=1e9)])}
    outcome = Outcome(FITS, peak_bytes=1 << 20, example_bytes=112, cost=ProgramCost(layers))
    monkeypatch.setattr(sandbox.Sandbox, "compile_all", lambda _, compilations: [outcome] * len(compilations))
    report, _ = _examine_unmeasured(tmp_path)
    assert report.machines[0].step.compute_ms > 1e9 / 197e12 * 1e3


@pytest.mark.slow  # A dozen compilations: one or two minutes.
def test_largest_batch_and_its_successor_are_compiled(tmp_path):
    """Of an oversized batch, the batch that fits; of that one and its successor, the same as the search said."""
    model = tmp_path / "wide.py"
    model.write_text(
        "import keras\n"
        "def build_model(image_shape, num_classes):\n"
        "    return keras.Sequential([keras.Input(image_shape, dtype='uint8'), keras.layers.Flatten(),\n"
        "        keras.layers.Dense(2**20), keras.layers.Dense(num_classes, activation='softmax')])\n"
    )

    def examine_batch(size):
        return _examine(
            tmp_path / "cache", model=str(model), model_parameters={}, machine="v2-8", batch_size_per_replica=size
        )

    huge = examine_batch(20_000)
    assert huge.verdict == "does_not_fit"
    assert huge.reasons[0].startswith("the training step does not fit on v2-8: ")
    largest = huge.largest_batch
    assert largest.is_exact
    assert 0 < largest.size < 20_000
    assert [examine_batch(size).verdict for size in (largest.size, largest.size + 1)] == ["fits", "does_not_fit"]


def test_several_machines_come_in_the_order_asked_for(fitting):
    machines = [PaidMachine(name) for name in ("v6e-1", "v5e-1")]
    report = Examination(_PARAMS, machines, fitting).report(_DATA)
    assert [one.machine for one in report.machines] == ["v6e-1", "v5e-1"]
    assert report.advice[0].startswith("Cheapest: v5e-1")


def test_of_a_gpu_only_a_lower_bound_of_the_memory_and_the_price_are_known(cache_dir):
    """The dense layer's weights, the state of Adam and a batch: float32[65, 10] thrice, 64 bytes a picture and more."""
    paid = PaidMachine("l4-2", timeout_seconds=7200)
    report = Examination(dataclasses.replace(_PARAMS, paid=paid), [paid], cache_dir).report(_DATA)
    (one,) = report.machines
    assert report.precision == "float32"
    assert one.passed
    assert one.verdict == "may_fit"
    assert one.step is None
    assert one.epoch is None
    assert 3 * 650 * 4 + 32 * 64 <= one.peak_bytes < 20_000
    assert (one.cost.usd_per_run, one.cost.most_usd_per_run) == (None, pytest.approx(2 * one.cost.usd_per_hour))
    assert re.search(
        r"^may fit l4-2: weights, .* the time are unknown; \$2\.30 per hour, at most \$4\.60, at Vertex", one.summary
    )
    assert one.timeout_seconds == 7200
    assert report.footprint(one) is None


def test_what_cannot_fit_a_gpu_is_refused_and_so_is_a_budget_of_time(cache_dir):
    large = _examine(cache_dir, machine="t4-1", batch_size_per_replica=1 << 29)
    assert large.verdict == "does_not_fit"
    assert "take at least" in large.reasons[0]
    limited = _examine(cache_dir, machine="l4-1", max_step_ms=5.0, max_host_wait=0.5)
    assert not limited.passed
    assert "the time on l4-1 is unknown, so max_step_ms and max_host_wait cannot be checked" in limited.reasons[0]
    paid = PaidMachine("l4-1", timeout_seconds=36000)
    dear = Examination(dataclasses.replace(_PARAMS, paid=paid, max_price_usd=1.0), [paid], cache_dir).report(_DATA)
    assert "its time limit costs up to $9.82" in dear.machines[0].reasons[0]


def test_a_gpu_beside_a_tpu_has_blanks_for_times(cache_dir):
    machines = [PaidMachine("v5e-1"), PaidMachine("l4-1", timeout_seconds=3600)]
    report = Examination(_PARAMS, machines, cache_dir).report(_DATA)
    row = next(line for line in as_text(report).splitlines() if line.startswith("l4-1"))
    assert row.split()[1:] == ["may", "fit", "≥0.00/24.00", "?", *"–––––", "0.98", "–", "0.98"]
    assert report.advice[0].startswith("Cheapest: v5e-1")
