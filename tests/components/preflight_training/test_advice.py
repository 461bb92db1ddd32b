import dataclasses

import pytest

from tpu_components.core.examples.interface import ImageInput, Interface
from tpu_components.core.machines.machine_spec import PaidMachine
from tpu_components.preflight_training.advice import Adviser, compare
from tpu_components.preflight_training.compiling.outcome import DOES_NOT_COMPILE, DOES_NOT_FIT, FITS
from tpu_components.preflight_training.data import DataFacts, HostRate
from tpu_components.preflight_training.estimate import Accuracy, EpochTime, LayerTime, StepTime
from tpu_components.preflight_training.findings import Cost, MachineReport
from tpu_components.preflight_training.largest_batch import LargestBatch

_DATA = DataFacts(
    Interface(ImageInput((32, 32, 3), "raw"), 10), 50_000, 50_000 * 3072, HostRate(9_000.0, 20_000.0, True, 256)
)
_STEP = StepTime(10.0, 0.5, 0.01, 0.45, 1e12, 8.4, 12.6)
_EPOCH = EpochTime(49, 0.5, 0.5, 100_000.0, 0.0, 0.4, 0.6)
_COST = Cost(9.6, 0.10, 1.0, 0.8, 1.2, "us-west1", "Vertex AI's price, on demand", "here", "2026-01-01")
_CONVOLUTION = LayerTime("conv2d", 8.0, 0.8, 0.5, 0.0, ())
# All is well with it: nothing to advise.
_GOOD = MachineReport(
    machine="v5e-8",
    region="",
    spot=False,
    machine_type="ct5lp-hightpu-8t",
    chips=8,
    devices=8,
    hosts=1,
    verdict=FITS,
    reason="",
    layer="",
    source="",
    compile_seconds=1.0,
    cached=False,
    batch_size_per_replica=128,
    global_batch=1024,
    parameters=1000,
    peak_bytes=2**30,
    capacity_bytes=2**34,
    largest_batch=None,
    step=_STEP,
    epoch=_EPOCH,
    epochs=10,
    cost=_COST,
    layers=(_CONVOLUTION,),
    host_calls=(),
    unknown_loops=0,
    broken=(),
    accuracy=Accuracy(1.1, 0.88, 1.32, 24, 4),
)


def _advise(data=_DATA, **changes):
    report = dataclasses.replace(_GOOD, **changes)
    words, worth_it = Adviser(report, PaidMachine(report.machine), data).advise()
    return "\n".join(words), worth_it


def _waiting(share):
    return dataclasses.replace(_EPOCH, seconds=0.5 / (1 - share), host_wait=share)


def test_a_good_fit_needs_no_advice():
    assert _advise() == ("", True)


def test_few_matrix_products_are_not_worth_a_tpu():
    words, worth_it = _advise(layers=(LayerTime("gather", 9.5, 0.95, None, 0.0, ()), _CONVOLUTION_OF_A_TWENTIETH))
    assert not worth_it
    assert words.startswith("A TPU is hardly worth its price here: matrix products take 5% of a step")
    assert f"Train on a GPU or on CPU: t4-1 costs $0.84 per hour, {_GOOD.label} $" in words


_CONVOLUTION_OF_A_TWENTIETH = LayerTime("conv2d", 0.5, 0.05, 0.5, 0.0, ())


def test_small_products_are_not_worth_a_tpu():
    words, worth_it = _advise(step=dataclasses.replace(_STEP, mxu_utilization=0.004))
    assert not worth_it
    assert "matrix units are 0.4% busy" in words


def test_operations_on_the_host_are_not_worth_a_tpu():
    words, worth_it = _advise(host_calls=("jit(train_step)/jvp(host)/pure_callback", "other"))
    assert not worth_it
    assert "2 operations call the host in every step (jit(train_step)/jvp(host)/pure_callback)" in words


def test_one_chip_that_waits_is_one_too_many():
    words, worth_it = _advise(machine="v5e-1", devices=1, chips=1, epoch=_waiting(0.8))
    assert not worth_it
    assert "waits for data 80% of the time" in words


def test_the_least_slice_of_a_generation_has_no_half():
    words, worth_it = _advise(machine="v3-8", devices=8, chips=4, epoch=_waiting(0.8))
    assert not worth_it
    assert "v3-8, the smallest machine, waits for data 80% of the time" in words
    assert "half the size" not in words


def test_waiting_for_the_host_names_both_rates():
    words, worth_it = _advise(epoch=_waiting(0.8))
    assert worth_it
    assert "waits for data 80% of the time" in words
    assert "needs 100,000 examples/s, and is fed 20,000 here (256 CPUs, 78 each, from memory)." in words
    assert "(146 MiB) fits in the devices' memory" in words


def test_what_the_machines_own_host_feeds_is_said_with_what_is_assumed():
    data = dataclasses.replace(_DATA, host=dataclasses.replace(_DATA.host, cpus=2))
    own = {"host_cpus": 4, "feed_per_second": 40_000.0}
    words, worth_it = _advise(data=data, machine="v5e-1", devices=1, chips=1, epoch=_waiting(0.6), **own)
    assert not worth_it
    assert (
        "is fed 40,000 from its host (4 vCPUs), if the rate grows with the CPUs: "
        "20,000 here (2 CPUs, 10,000 each, from memory)"
    ) in words


def test_a_data_set_too_large_for_the_devices_is_not_said_to_fit():
    words, _ = _advise(data=dataclasses.replace(_DATA, decoded_bytes=2**36), epoch=_waiting(0.8))
    assert "examples/s" in words
    assert "fits in the devices' memory" not in words


@pytest.mark.parametrize(("share", "is_said"), [(0.2, False), (0.49, False), (0.51, True)])
def test_half_the_slice_is_advised_only_where_it_is_as_fast(share, is_said):
    """It takes twice the device time, which is no longer than the epoch only if half of that is waiting."""
    words, _ = _advise(epoch=_waiting(share))
    assert ("half the size would be as fast" in words) is is_said


def test_little_waiting_is_not_worth_a_word():
    assert _advise(epoch=_waiting(0.04)) == ("", True)


def test_layers_that_pad_are_named_the_worst_first():
    notes = ("3 input features fill 2% of 128-wide tiles", "100 batch fill 96% of 8-wide tiles")
    some = LayerTime("conv2d", 4.0, 0.4, 0.3, 1.0, notes)
    more = LayerTime("dense", 3.0, 0.3, 0.1, 2.5, notes[1:])
    little = LayerTime("head", 3.0, 0.3, 0.3, 0.4, notes)
    words, _ = _advise(layers=(some, more, little))
    first, second = words.splitlines()
    assert first.startswith("dense spends 2.5 of its 3 ms on padding: 100 batch")
    assert second.startswith("conv2d spends 1 of its 4 ms on padding: 3 input features fill 2% of 128-wide tiles. ")


def test_an_uneven_batch_is_told():
    words, _ = _advise(batch_size_per_replica=100)
    assert "A batch of 100 per replica" in words
    assert "multiple of 8" in words


def test_much_communication_wants_a_larger_batch():
    words, _ = _advise(step=dataclasses.replace(_STEP, communication_ms=10.0))
    assert "up to 10 of the step's 20 ms" in words
    assert _advise(step=dataclasses.replace(_STEP, communication_ms=None)) == ("", True)


@pytest.mark.parametrize(
    ("is_upper_bound", "text"), [(False, "Up to 1,024 examples"), (True, "At most 1,024 examples")]
)
def test_room_for_more_is_told(is_upper_bound, text):
    assert text in _advise(largest_batch=LargestBatch(1024, not is_upper_bound, is_upper_bound))[0]
    assert _advise(largest_batch=LargestBatch(255, not is_upper_bound, is_upper_bound))[0] == ""


def test_what_the_figures_leave_out_is_told():
    words, _ = _advise(unknown_loops=2, cost=None)
    assert "2 loops have an unknown length" in words
    assert "No trustworthy price is known for v5e-8" in words


@pytest.mark.parametrize(
    ("largest", "text"),
    [
        (LargestBatch(640, True), "batch_size_per_replica to 640 or less (the most that fit)"),
        (LargestBatch(640, False), "batch_size_per_replica to 640 or less (these fit, and more may fit)"),
        (LargestBatch(0, True), "Not even one example fits"),
        (None, "Not even one example fits"),
    ],
)
def test_a_batch_that_does_not_fit_gets_one_that_does(largest, text):
    words, worth_it = _advise(verdict=DOES_NOT_FIT, step=None, epoch=None, largest_batch=largest)
    assert worth_it
    assert text in words


def test_no_batch_is_advised_that_is_larger_than_the_data_set():
    huge = LargestBatch(31_223, is_exact=True)
    assert "31,223 examples per replica fit; the data set has 6,250 for each" in _advise(largest_batch=huge)[0]
    words, _ = _advise(verdict=DOES_NOT_FIT, step=None, epoch=None, largest_batch=huge)
    assert "to 6,250 or less (the whole data set; 31,223 would fit)" in words


def test_a_machine_where_it_would_fit_is_named():
    words, _ = _advise(verdict=DOES_NOT_FIT, step=None, epoch=None, peak_bytes=20 * 2**30, largest_batch=None)
    assert "more memory per device, such as v6e-8 with 31.2 GiB" in words
    words, _ = _advise(verdict=DOES_NOT_FIT, step=None, epoch=None, peak_bytes=2**50, largest_batch=None)
    assert "such as" not in words


def test_all_that_stands_in_the_way_is_told_at_once():
    report = dataclasses.replace(_GOOD, verdict=DOES_NOT_FIT, reason="20 GiB of 16", broken=("a step is too long",))
    assert report.reasons == ("the training step does not fit on v5e-8: 20 GiB of 16", "a step is too long")


def test_a_model_that_does_not_compile_is_not_for_a_tpu():
    words, worth_it = _advise(verdict=DOES_NOT_COMPILE, step=None, epoch=None)
    assert not worth_it
    assert "static shape" in words


@pytest.mark.parametrize("verdict", ["crashed", "timed_out", "out_of_memory"])
def test_nothing_is_said_of_what_is_not_known(verdict):
    words, _ = _advise(verdict=verdict, step=None, epoch=None)
    assert words == "Nothing is known about this program on this machine. See the reason."


def _report(machine, seconds, usd_per_run, **changes):
    ends = {f"{end}_usd_per_run": times * (usd_per_run or 0.0) for end, times in (("low", 0.8), ("high", 1.2))}
    cost = dataclasses.replace(_COST, usd_per_run=usd_per_run, **ends) if usd_per_run is not None else None
    epoch = dataclasses.replace(_EPOCH, seconds=seconds, low_seconds=0.8 * seconds, high_seconds=1.2 * seconds)
    return dataclasses.replace(_GOOD, machine=machine, epoch=epoch, cost=cost, **changes)


def test_comparison_names_the_cheapest_and_the_fastest():
    cheapest, fastest = compare([_report("v5e-1", 4.0, 0.5), _report("v5e-8", 0.5, 0.9), _report("7x-4", 0.3, None)])
    assert cheapest.startswith(
        "Cheapest: v5e-1, 4.00 s (3.20–4.80) per epoch, $0.50 (0.40–0.60) expected for a run of 10 epochs"
    )
    assert fastest.startswith("Fastest: 7x-4, 300 ms (240–360) per epoch")


def test_comparison_leaves_out_what_does_not_pass():
    failed = _report("v2-8", 0.1, 0.1, broken=("a step takes too long",))
    words = "\n".join(compare([failed, _report("v5e-1", 4.0, 0.5), _report("v5e-8", 0.5, 0.9)]))
    assert "Cheapest: v5e-1" in words
    assert "Fastest: v5e-8" in words
    assert "v2-8" not in words
    assert compare([failed, failed]) == ()
    assert compare([_report("v5e-8", 0.5, 0.9)]) == ()


@pytest.mark.parametrize("verdict", ["timed_out", "out_of_memory", "crashed"])
def test_a_comparison_without_a_machine_that_was_not_compiled_is_incomplete(verdict):
    missing = dataclasses.replace(_report("v6e-1", 0.1, 0.1), verdict=verdict, step=None, epoch=None)
    first, *others = compare([_report("v5e-1", 4.0, 0.5), missing])
    assert first.startswith("The comparison is incomplete: nothing is known about v6e-1")
    assert others[0].startswith("Cheapest: v5e-1")
    assert len(compare([missing, missing])) == 1, "also if none passes"
    assert compare([missing]) == ()


def test_a_machine_hardly_faster_than_the_cheapest_is_not_advised():
    words = compare([_report("v5e-4", 6.0, 1.0), _report("v5e-8", 5.9, 2.0)])
    assert words[0].startswith("Cheapest: v5e-4")
    assert words[1] == "No other machine is more than 10% faster."


def test_a_time_without_communication_says_so():
    silent = dataclasses.replace(_STEP, communication_ms=None)
    words = compare([_report("v2-8", 4.0, 0.5, step=silent), _report("v5e-8", 0.5, 0.9)])
    assert "without communication" in words[0]
    assert "without communication" not in words[1]


def test_machines_that_all_wait_are_all_alike():
    waiting = dataclasses.replace(_EPOCH, host_wait=0.9)
    words = compare([dataclasses.replace(_report(name, 6.0, 1.0), epoch=waiting) for name in ("v5e-4", "v5e-8")])
    assert words[-1].startswith("All machines wait for data")
