"""Arithmetic, calculated again by hand for chips of the catalogue."""

import dataclasses
import math

import pytest

from tpu_components.core.machines.machine_spec import load_catalogue
from tpu_components.preflight_training import estimate
from tpu_components.preflight_training.compiling.hlo import (
    Collective,
    Kind,
    LayerCost,
    MatrixProduct,
    OperationCost,
    ProgramCost,
)
from tpu_components.preflight_training.estimate import (
    WELL_USED,
    Accuracy,
    StepTime,
    accuracy_of,
    collective_seconds,
    gradient_bytes,
    kernel_share,
    time_epoch,
    time_layers,
    time_step,
)


@pytest.fixture(autouse=True)
def a_simple_interval(monkeypatch):
    """With an interval that is easy to calculate with."""
    monkeypatch.setattr(estimate, "accuracy_of", lambda generation, utilization: Accuracy(1.0, 0.5, 2.0, 0, 0))


def _machine(name):
    return load_catalogue().find(name)


def _layer(cycles, *products, kind=Kind.PRODUCT):
    flops = sum(product.flops * product.times for product in products)
    return LayerCost([OperationCost(kind, cycles, flops)], list(products))


def _cost(cycles=1_500_000.0, layers=None, summed=(), operations=()):
    layers = {"dense": _layer(cycles)} if layers is None else layers
    layers |= {"more": LayerCost(list(operations))} if operations else {}
    collectives = (Collective("all-reduce", num_bytes, times=times) for num_bytes, times in summed)
    return ProgramCost(layers, tuple(collectives))


def _product(rows, contraction, columns, times=1, is_forward=True):
    return MatrixProduct(rows, contraction, columns, 2.0 * rows * contraction * columns, is_forward, times)


def _step(ms):
    return StepTime(ms, 0.0, 0.0, 0.5, 1e9, 0.5 * ms, 2 * ms)


def test_cycles_become_time_at_the_clock():
    """v5e runs at 1.5 GHz, v2 at 0.7."""
    assert time_step(_cost(1_500_000), _machine("v5e-8")).compute_ms == pytest.approx(1.0)
    assert time_step(_cost(1_400_000), _machine("v2-8")).compute_ms == pytest.approx(2.0)


def test_utilization_is_the_share_of_a_devices_peak():
    """A millisecond of v5e is worth 197 TFLOP/s × 1 ms; a device of v3 is half a chip of 123."""
    product = MatrixProduct(8, 128, 128, 19.7e9, True, times=5)
    step = time_step(_cost(1_500_000, layers={"dense": _layer(1_500_000, product)}), _machine("v5e-8"))
    assert step.flops == pytest.approx(98.5e9)
    assert step.mxu_utilization == pytest.approx(0.5)
    halved = _cost(layers={"dense": _layer(940_000, dataclasses.replace(product, flops=6.15e9))})
    assert time_step(halved, _machine("v3-8")).mxu_utilization == pytest.approx(0.5)


def test_every_kind_of_operation_takes_its_cycles_and_links_are_apart():
    kinds = (Kind.PRODUCT, Kind.CONVOLUTION, Kind.INDEXING, Kind.OTHER)
    layers = {kind: _layer(1_500_000, kind=kind) for kind in kinds}
    cost, machine = _cost(layers=layers, summed=[(90_000_000, 3)]), _machine("v5e-8")
    step = time_step(cost, machine)
    assert {layer.name: layer.ms for layer in time_layers(cost, machine)} == pytest.approx(dict.fromkeys(kinds, 1.0))
    assert step.compute_ms == pytest.approx(4.0)
    assert step.communication_ms > 0
    assert (step.low_ms, step.high_ms) == pytest.approx((0.5 * step.total_ms, 2.0 * step.total_ms))


def test_the_interval_is_wide_where_the_matrix_units_are_used_little():
    """`accuracy_of` itself, which the other tests replace."""
    tpu, gpu = _machine("v5e-1").generation, _machine("l4-1").generation
    well, little, unknown = accuracy_of(tpu, WELL_USED), accuracy_of(tpu, WELL_USED - 0.01), accuracy_of(gpu, 1.0)
    assert little.low < 1 < well.high < little.high
    assert (unknown.low, unknown.high, unknown.steps) == (1.0, 1.0, 0)


def _milliseconds(*operations, machine="v5e-1"):
    return time_step(_cost(layers={"layer": LayerCost(list(operations))}), _machine(machine)).compute_ms


def test_nothing_is_faster_than_the_chip():
    """197 TFLOP/s and 819 GB/s of v5e, whatever the compiler says."""
    assert _milliseconds(OperationCost(Kind.PRODUCT, 10, 197e9)) == pytest.approx(1.0)
    assert _milliseconds(OperationCost(Kind.OTHER, 10, num_bytes=819e6, times=3)) == pytest.approx(3.0)
    assert _milliseconds(OperationCost(Kind.PRODUCT, 10, 197e9, 2 * 819e6)) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("kind", "num_bytes", "milliseconds"),
    [(Kind.OTHER, 0, 0.5), (Kind.OTHER, 0.4 * 1.2e9, 0.7), (Kind.OTHER, 2 * 1.2e9, 2.0), (Kind.PRODUCT, 0, 1.0)],
)
def test_on_v4_the_schedule_of_an_elementwise_operation_is_an_upper_bound(kind, num_bytes, milliseconds):
    """The mean of 1 ms of cycles at 1.05 GHz, and of the bytes' time at 1.2 TB/s, but never less than the latter."""
    operation = OperationCost(kind, 1_050_000, num_bytes=num_bytes)
    assert _milliseconds(operation, machine="v4-8") == pytest.approx(milliseconds)


def test_the_share_of_kernels_is_that_of_their_time():
    kernel = OperationCost(Kind.KERNEL, 0, 0.45 * 197e9, times=3)
    for others, share in (((OperationCost(Kind.PRODUCT, 10, 197e9),), 0.75), ((), 1.0)):
        cost = _cost(layers={"layer": LayerCost([kernel, *others])})
        assert kernel_share(cost, _machine("v5e-1").generation) == pytest.approx(share)
    assert kernel_share(_cost(), _machine("v5e-1").generation) == 0.0


def test_a_kernel_reaches_its_share_of_the_peak_or_the_bandwidth():
    assert _milliseconds(OperationCost(Kind.KERNEL, 0, 0.45 * 197e9)) == pytest.approx(1.0)
    assert _milliseconds(OperationCost(Kind.KERNEL, 0, 1, 819e6)) == pytest.approx(1.0)
    half = OperationCost(Kind.KERNEL, 0, 0.45 * 197e9, filled=0.5)
    assert _milliseconds(half) == pytest.approx(2.0)
    assert _milliseconds(OperationCost(Kind.PRODUCT_KERNEL, 0, 0.9 * 197e9)) == pytest.approx(1.0)
    step = time_step(_cost(layers={"kernel": LayerCost([half])}), _machine("v5e-1"))
    assert step.guessed_share == 0, "its arithmetic is known"
    assert step.flops == 0.45 * 197e9, "padding is no work"


@pytest.mark.parametrize(
    ("size", "block", "measured_ms"),
    [(4096, (128, 128, 128), 11.77), (8192, (128, 128, 128), 91.84), (8192, (512, 1024, 1024), 6.10)],
)
def test_a_grid_of_small_blocks_is_slow(size, block, measured_ms):
    """On v5e, as https://docs.jax.dev/en/latest/pallas/tpu/matmul.html measured."""
    steps = math.prod(size // side for side in block)
    kernel = OperationCost(Kind.PRODUCT_KERNEL, flops=2.0 * size**3, num_bytes=6.0 * size**2, steps=steps)
    assert _milliseconds(kernel) == pytest.approx(measured_ms, rel=0.03)


def test_rows_are_added_one_after_the_other():
    added = OperationCost(Kind.INDEXING, num_bytes=819e3, rows=500, times=3)
    assert _milliseconds(added) == pytest.approx(1.5)
    step = time_step(_cost(layers={"embedding": LayerCost([added])}), _machine("v5e-1"))
    assert step.guessed_share == 1


def test_an_epochs_interval_ends_where_the_host_is_slower():
    """100 steps of 10 ms, expected between 5 and 20; a host that needs 12 ms for each."""
    alone = time_epoch(_step(10.0), 12_800, 128, math.inf)
    assert (alone.low_seconds, alone.seconds, alone.high_seconds) == pytest.approx((0.5, 1.0, 2.0))
    fed = time_epoch(_step(10.0), 12_800, 128, 128 / 0.012)
    assert (fed.low_seconds, fed.seconds, fed.high_seconds) == pytest.approx((1.2, 1.2, 2.0))


def test_guessed_share_is_of_all_time():
    guessed = OperationCost(Kind.OTHER, num_bytes=819e6)  # A millisecond.
    step = time_step(_cost(1_500_000 * 19, operations=[guessed]), _machine("v5e-1"))
    assert step.guessed_share == pytest.approx(0.05)


def test_a_ring_sums_gradients_through_both_its_directions():
    """8 chips: 7/8 of the bytes twice, through two links of 45 GB/s, and half the ring's hops of 1 µs."""
    step = time_step(_cost(summed=[(90_000_000, 3)]), _machine("v5e-8"))
    assert step.communication_ms == pytest.approx(3 * (2 * 7 / 8 * 90e6 / 90e9 + 4e-6) * 1e3)
    assert step.total_ms == step.compute_ms + step.communication_ms


@pytest.mark.parametrize(
    ("opcode", "group", "milliseconds"),
    [
        ("all-reduce", 2, 2.0),  # There is one link between two chips.
        ("all-reduce", 4, 1.5),
        ("all-reduce", 8, 1.75),
        ("all-reduce", 1, 0.0),
        ("all-gather", 4, 0.75),
        ("reduce-scatter", 4, 0.75),
        ("all-to-all", 8, 2.0),
        ("collective-permute", 8, 2.0),
    ],
)
def test_a_collective_takes_the_time_of_its_group(opcode, group, milliseconds):
    """Not of all 8 chips: 90 MB through two links of 45 GB/s take a millisecond, and half a ring's hops 1 µs each."""
    one = Collective(opcode, 90_000_000, group, times=2)
    hops = group / 2 * 1e-3 if group > 1 else 0.0
    assert collective_seconds(one, _machine("v5e-8")) == pytest.approx(2e-3 * (milliseconds + hops))


@pytest.mark.parametrize(
    ("opcode", "slices", "milliseconds"),
    [
        ("all-reduce", 2, 1.0),
        ("all-reduce", 4, 1.5),
        ("all-gather", 4, 0.75),
        ("reduce-scatter", 4, 0.75),
        ("all-to-all", 4, 0.75),
        ("collective-permute", 4, 1.0),
    ],
)
def test_a_collective_between_slices_uses_the_chips_share_of_the_network(opcode, slices, milliseconds):
    """6.4 Tbit/s for 256 chips of v5e are 3.125 GB/s each, which move 3.125 MB in a millisecond."""
    one = Collective(opcode, 3_125_000, slices=slices, times=2)
    assert collective_seconds(one, _machine("v5e-8")) == pytest.approx(2e-3 * milliseconds)


def test_the_devices_of_a_chip_share_the_network():
    """A 7x chip has 100 Gbit/s and two devices."""
    machine = next(one for one in load_catalogue().slices if one.generation.name == "7x")
    one = Collective("collective-permute", 6_250_000, slices=2)
    assert collective_seconds(one, machine) == pytest.approx(1e-3)


def test_the_speed_between_slices_of_v4_is_unknown():
    assert collective_seconds(Collective("all-reduce", 1000, slices=2), _machine("v4-8")) is None


def test_the_cores_of_a_chip_talk_through_its_memory():
    """A 7x has two devices and 7.38 TB/s; four devices are a ring of two chips."""
    machine = next(one for one in load_catalogue().slices if one.generation.name == "7x" and one.chips > 1)
    assert collective_seconds(Collective("all-reduce", 369 * 10**7, 2), machine) == pytest.approx(2e-3, rel=0.01)
    speed = machine.generation.ici_bytes_per_second
    assert collective_seconds(Collective("all-reduce", 10**9, 4), machine) == pytest.approx(1e9 / speed + 1e-6)


@pytest.mark.parametrize(
    ("name", "links"),
    [
        ("v5e-4", 2),
        ("v5e-8", 2),
        ("v5e-64", 2),
        ("v5e-128", 3),
        ("v5e-256", 4),
        ("v4-8", 2),
        ("v4-32", 4),
        ("v4-128", 6),
    ],
)
def test_a_whole_slice_uses_the_links_of_all_its_axes(name, links):
    """An axis of v4 is a ring from 4 chips on, one of v5e from 16 on."""
    machine = _machine(name)
    speed = machine.generation.ici_bytes_per_second
    chips = machine.chips
    expected = 2 * (chips - 1) / chips * 1e9 / (links * speed) + chips / 2 * 1e-6
    assert collective_seconds(Collective("all-reduce", 10**9), machine) == pytest.approx(expected)


def test_one_chip_has_nobody_to_talk_to():
    assert time_step(_cost(summed=[(10**9, 1)]), _machine("v5e-1")).communication_ms == 0


def test_communication_is_unknown_where_no_source_gives_the_links_speed():
    step = time_step(_cost(summed=[(10**9, 1)]), _machine("v2-8"))
    assert step.communication_ms is None
    assert step.total_ms == step.compute_ms


def test_gradients_that_the_program_does_not_sum_are_added():
    """The TensorFlow backend's program is that of one replica."""
    assert gradient_bytes(1000) == 4000
    inside = time_step(_cost(summed=[(4_000_000, 1)]), _machine("v3-8"))
    beside = time_step(_cost(), _machine("v3-8"), extra_bytes=4_000_000)
    assert beside.communication_ms == inside.communication_ms > 0


def test_layers_come_with_the_longest_first_and_their_shares():
    layers = {name: _layer(cycles, kind=Kind.OTHER) for name, cycles in {"a": 100, "b": 700, "c": 200}.items()}
    times = time_layers(_cost(layers=layers), _machine("v5e-1"))
    assert [one.name for one in times] == ["b", "c", "a"]
    assert [one.share for one in times] == pytest.approx([0.7, 0.2, 0.1])
    assert times[0].ms == pytest.approx(700 / 1.5e6)
    assert times[0].mxu_utilization is None
    assert (times[0].padding_ms, times[0].notes) == (0, ())


def _time_layer(product, cycles, machine="v5e-1"):
    (layer,) = time_layers(_cost(layers={"dense": _layer(cycles, product)}), _machine(machine))
    return layer


def test_padding_is_the_time_the_matrix_unit_works_on_padding():
    """64 of 128 features in: half of what it does is padding, as long as there is time for all of it."""
    product = _product(1024, 64, 128, times=1000)
    useful_ms = product.flops * 1000 / 197e9
    layer = _time_layer(product, cycles=10 * 1.5e6 * useful_ms)
    assert layer.padding_ms == pytest.approx(useful_ms)
    assert layer.mxu_utilization == pytest.approx(0.1)
    assert layer.notes == ("64 input features fill 50% of 128-wide tiles",)


@pytest.mark.parametrize("contraction", [1, 3, 100, 127, 128, 129])
@pytest.mark.parametrize("columns", [1, 10, 128, 200])
@pytest.mark.parametrize("slowness", [0.5, 1.0, 1.2, 50.0])
def test_padding_never_takes_longer_than_the_products(contraction, columns, slowness):
    product = _product(12, contraction, columns, times=10_000)
    cycles = slowness * product.flops * 10_000 / 197e12 * 1.5e9
    layer = _time_layer(product, cycles)
    assert 0 <= layer.padding_ms <= layer.ms


def test_the_use_of_the_matrix_units_leaves_out_products_of_kernels():
    """Their time is not that of the layer's products; a layer would be above the peak."""
    product = _product(1024, 256, 512, times=1000)
    layer = _layer(3e6, product)
    kernel = dataclasses.replace(layer.operations[0], kind=Kind.KERNEL, cycles=0.0)
    alone, beside = (
        time_layers(_cost(layers={"dense": each}), _machine("v5e-1"))[0]
        for each in (layer, LayerCost([*layer.operations, kernel], [product, product]))
    )
    assert 0 < beside.mxu_utilization == alone.mxu_utilization <= 1


def test_full_tiles_leave_nothing_to_fill():
    layer = _time_layer(_product(1024, 256, 512), cycles=1e6)
    assert (layer.padding_ms, layer.notes) == (0, ())


def test_tiles_are_as_wide_as_the_chips_matrix_unit():
    """128 wide up to v5e, 256 since v6e."""
    product = _product(100, 128, 10)
    assert _time_layer(product, 1e6, "v5e-1").notes == (
        "10 output features fill 8% of 128-wide tiles",
        "100 batch fill 96% of 8-wide tiles",
    )
    assert _time_layer(product, 1e6, "v6e-1").notes[:2] == (
        "128 input features fill 50% of 256-wide tiles",
        "10 output features fill 4% of 256-wide tiles",
    )


def test_notes_speak_of_the_forward_pass_alone():
    """In a gradient, the batch takes the place of the features."""
    assert _time_layer(_product(100, 3, 10, is_forward=False), 1e6).notes == ()


def test_an_epoch_counts_its_last_partial_batch_as_a_whole_one():
    epoch = time_epoch(_step(2.0), num_examples=1025, global_batch=256, host_rate=math.inf)
    assert epoch.steps == 5
    assert epoch.device_seconds == epoch.seconds == pytest.approx(0.010)
    assert epoch.needed_per_second == pytest.approx(5 * 256 / 0.010)
    assert epoch.host_wait == 0
    assert time_epoch(_step(2.0), 1024, 256, math.inf).steps == 4


def test_a_slow_host_makes_the_device_wait():
    """50,000 examples at 10,000 a second are 5 s, of which the device works 196 steps of 5 ms."""
    epoch = time_epoch(_step(5.0), num_examples=50_000, global_batch=256, host_rate=10_000)
    assert epoch.seconds == pytest.approx(196 * 256 / 10_000)
    assert epoch.host_wait == pytest.approx(1 - 0.98 / 5.0176)


def test_a_fast_host_keeps_the_device_busy():
    epoch = time_epoch(_step(5.0), num_examples=50_000, global_batch=256, host_rate=51_200)
    assert epoch.seconds == epoch.device_seconds
    assert epoch.host_wait == pytest.approx(0)
    assert time_epoch(_step(5.0), 50_000, 256, epoch.needed_per_second * 1.0001).host_wait == 0


def test_the_tutorials_epoch_was_nearly_all_waiting():
    """The README's case: CIFAR-10 on a v2-8, 5.4 ms a step of 1,024, fed 8,300 images/s: 6 s an epoch."""
    epoch = time_epoch(_step(5.4), num_examples=50_000, global_batch=1024, host_rate=8_300)
    assert epoch.seconds == pytest.approx(6.05, abs=0.01)
    assert epoch.host_wait > 0.95


def test_groups_of_a_convolution_are_no_features_that_more_of_would_fill():
    product = MatrixProduct(128, 1, 128, 1e9, True, groups=128)
    cost = _cost(layers={"depthwise": _layer(1e6, product)})
    (layer,) = time_layers(cost, _machine("v5e-1"))
    assert layer.notes == ("128 groups of 1 input features, one after the other",)
