"""Estimates the time of a step and of an epoch from the cost of a compiled program.

The time of an operation is the compiler's estimate of its cycles, but never less than the chip needs for its arithmetic
and its memory traffic. For some operations on v4, the compiler's estimate is too long: see `seconds_of`. Copies to
on-chip memory overlap with the operations, but a step never takes less time than the memory traffic of its operations
and copies. The constants below say where they come from; none was found by regression. Communication is assumed to go
around a ring of the slice's links, and between slices to use the whole bandwidth of the data-centre network. No overlap
with computation is assumed, so the time of communication within a slice is an upper bound.

`python -m tests.evidence.benchmarks.whole_steps` compares the estimates with published step times, each with its
source, and derives intervals. A test compares the intervals in this module with the derived intervals.
"""

import dataclasses
import re
from collections.abc import Sequence

from tpu_components.core.base.formatting import number, time_within
from tpu_components.core.examples.feeding import steps_per_epoch
from tpu_components.core.machines.machine_spec import TPU, Generation, Slice
from tpu_components.preflight_training.compiling.hlo import (
    SUBLANES,
    Collective,
    Kind,
    LayerCost,
    OperationCost,
    ProgramCost,
)
from tpu_components.preflight_training.compiling.kernels import padding

_ALL_REDUCE = "all-reduce"
COPIES = "waiting for copies from main memory"  # A layer of its own.
# A hop from chip to chip takes about a microsecond (https://jax-ml.github.io/scaling-book/tpus/).
_HOP_SECONDS = 1e-6

# The compiler gives no time for kernels. Their matrix products are assumed to use this share of the matrix units' peak.
# Kernels that compute exponentials between the products are attention: with 45%, two decoders were estimated at 299 and
# 880 ms; 302 (v6e) and 881 ms (v5e) are published. A kernel of products alone reached 92% on v5e
# (https://docs.jax.dev/en/latest/pallas/tpu/matmul.html, 8192³).
KERNEL_SHARES = {Kind.KERNEL: 0.45, Kind.PRODUCT_KERNEL: 0.9}
# A step of a kernel's grid takes at least this time: on v5e, 32,768 steps took 11.8 ms and 262,144 steps 91.8 ms (the
# same page, blocks of 128³). This is assumed for all generations. The cores of a device are assumed to share the
# steps.
GRID_STEP_SECONDS = 0.35e-6
# The compiler gives no time for rows that a scatter adds outside of VMEM, one after the other. On v6e, 32,500 took
# 0.02 s and 65,000 took 0.06 s (https://github.com/pytorch/xla/issues/8720). Marin's mixture of experts on v4, whose
# gradients are added in CMEM, took 1.86 s a step: 2.21 s is estimated with these rows, and 0.23 s without them.
_ROW_SECONDS = 1e-6
MUCH_GUESSED = 0.1  # Reports say so if a larger share of a step's computation is guessed.
# A program that reaches at least this share of the peak uses its matrix units well. Its time differs less from the
# estimate.
WELL_USED = 0.5


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """Accuracy of estimated step times, from a comparison with published step times.

    On TPUs, each instance describes one of two groups of programs: those that reach at least the share `WELL_USED` of
    the matrix units' peak, and those that stay below it.

    Attributes:
        factor: Number by which `low` and `high` must be divided. It is 1, except in reports of earlier versions.
        low: Lower end of the 90% interval of the published time, relative to the estimate.
        high: Upper end of the 90% interval.
        steps: Number of published step times.
        programs: Number of compiled programs whose estimates were compared with the published times.
        held_out: Result of a cross-validation: for how many of the `estimates` the published time was inside an
            interval that was derived only from other programs and publishers. None if this was not tested.
        estimates: Number of distinct estimates. Several published times can have the same estimate. None in older
            files.
        whole_steps: Number of published times of whole training steps. In current files, it is equal to `steps`. None
            in older files.
        median_error: Median error of the distinct estimates, as a share of the measured time. None in older files.
        most_error: 95th percentile of the errors of the distinct estimates. None in older files.
    """

    factor: float
    low: float
    high: float
    steps: int
    programs: int
    held_out: int | None = None
    estimates: int | None = None
    whole_steps: int | None = None
    median_error: float | None = None
    most_error: float | None = None

    @property
    def text(self) -> str:
        """The interval of step times, and the published times from which it is derived."""
        low, high = self.low / self.factor, self.high / self.factor
        tested = (
            ""
            if self.held_out is None
            else f"; {self.held_out} of {self.estimates} held-out times were inside this range"
        )
        return (
            f"nine of ten steps should take {low:.2f} to {high:.2f} times the estimate, judging by {self.steps} "
            f"published times of {self.programs} programs with similar use of the matrix units{tested}"
        )


_UNKNOWN = Accuracy(1.0, 1.0, 1.0, 0, 0)  # For GPUs, whose time is not estimated.
_WELL = Accuracy(1.0, 0.87, 1.31, 121, 56, 87, 91, 121, 0.07, 0.22)
_LITTLE = Accuracy(1.0, 0.58, 1.64, 80, 39, 56, 60, 80, 0.18, 0.48)
_GROUPS = (_WELL, _LITTLE)
INTERVALS = (
    "The range in brackets should contain nine of ten step times. It contained "
    f"{sum(group.held_out or 0 for group in _GROUPS)} of {sum(group.estimates or 0 for group in _GROUPS)} published "
    "step times, each tested with ranges from other programs and publishers. The median error was "
    f"{_WELL.median_error:.0%} if at least {WELL_USED:.0%} of the matrix units' peak was in use. It was "
    f"{_LITTLE.median_error:.0%} if less was in use"
)


def accuracy_of(generation: Generation, mxu_utilization: float) -> Accuracy:
    """Return the accuracy of estimates for a program with this utilization of the matrix units.

    For a GPU, whose time is not estimated, return an accuracy without comparisons (`steps` is 0).
    """
    return accuracy_at(mxu_utilization) if generation.accelerator == TPU else _UNKNOWN


def accuracy_at(mxu_utilization: float) -> Accuracy:
    """Return the accuracy of estimates on TPUs for a program with this utilization of the matrix units."""
    return _WELL if mxu_utilization >= WELL_USED else _LITTLE


def seconds_of(operation: OperationCost, generation: Generation) -> float:
    """Return the time of all executions of an operation in a step, in seconds.

    The time of one execution is the longest of these:

    - the time in the compiler's schedule
    - the time of the matrix products at the peak, or at the share of the peak that a kernel is assumed to reach
    - the time to move the bytes at the memory's bandwidth
    - the time of the rows that a scatter adds one after the other
    - the shortest possible time of the steps of a kernel's grid

    On v4, the compiler overestimates operations that neither multiply matrices nor index: it counts more cycles for a
    result that stays in the chip's common memory (CMEM) than for one that is written to main memory (28 instead of 19
    for 1,024 float32 values on a TensorCore, libtpu 0.0.50.1). For these operations, the mean of the time in the
    schedule and the time to move the bytes is used in place of the time in the schedule.
    """
    share = KERNEL_SHARES.get(operation.kind, 1.0) * operation.filled
    scheduled = operation.cycles / generation.clock_hz
    traffic = operation.num_bytes / generation.device_bytes_per_second
    if generation.cmem_bytes and operation.kind is Kind.OTHER:
        scheduled = (scheduled + traffic) / 2  # If less than `traffic`, it does not count.
    return operation.times * max(
        scheduled,
        operation.flops / (share * generation.device_peak_flops),
        traffic,
        operation.rows * _ROW_SECONDS,
        operation.steps * GRID_STEP_SECONDS / generation.cores_per_device,
    )


@dataclasses.dataclass(frozen=True)
class StepTime:
    """Estimated time of one step on a device.

    Attributes:
        compute_ms: Time of the computation.
        communication_ms: Time of communication between replicas, or None if the speed of the links is not known.
        guessed_share: Share of `compute_ms` that is computed only from memory traffic and scatter updates, because the
            compiler has no estimate for it.
        mxu_utilization: Share of the matrix units' peak that the step reaches while it computes.
        flops: Floating-point operations of all matrix products of a step on one device.
        low_ms: Lower end of the 90% interval of `total_ms`.
        high_ms: Upper end of the 90% interval of `total_ms`.
        factor: Ratio of `total_ms` to the compiler's estimate. It is 1 without receipts (records of measured runs).
        basis: Receipts from which `factor` and the interval are derived, in words. Empty without receipts.
    """

    compute_ms: float
    communication_ms: float | None
    guessed_share: float
    mxu_utilization: float
    flops: float
    low_ms: float
    high_ms: float
    factor: float = 1.0
    basis: str = ""

    @property
    def compiler_ms(self) -> float:
        """The compiler's estimate: the time of the computation plus that of the communication."""
        return self.compute_ms + (self.communication_ms or 0.0)

    @property
    def total_ms(self) -> float:
        """Time of the step: the compiler's estimate times `factor`."""
        return self.factor * self.compiler_ms

    @property
    def basis_text(self) -> str:
        """`factor` and the receipts from which it is derived, in words, or an empty string without receipts."""
        return f"{number(self.factor)} times the compiler's estimate, from {self.basis}" if self.basis else ""

    @property
    def text(self) -> str:
        """Time of the step, and the interval that should contain it in 90% of cases."""
        return time_within(self.total_ms / 1e3, self.low_ms / 1e3, self.high_ms / 1e3)


@dataclasses.dataclass(frozen=True)
class LayerTime:
    """Estimated time of a layer in a step, forward and backward.

    Attributes:
        name: Name of the layer. The optimizer counts as one layer; loss and metrics count as another.
        ms: Time in milliseconds.
        share: Share of the step's computation time.
        mxu_utilization: Share of the matrix units' peak that the layer's matrix products reach. None if the layer has
            no matrix products.
        padding_ms: Time that the matrix unit spends on the padding of tiles.
        notes: Dimensions that do not fill a tile, in words.
    """

    name: str
    ms: float
    share: float
    mxu_utilization: float | None
    padding_ms: float
    notes: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class EpochTime:
    """Estimated time of an epoch.

    Attributes:
        steps: Number of steps.
        device_seconds: Time that the device needs for all steps.
        seconds: Time of the epoch: the device's or the host's, whichever is longer.
        needed_per_second: Examples per second that keep the device busy.
        host_wait: Share of the epoch in which the device waits for data.
        low_seconds: Lower end of the 90% interval of `seconds`.
        high_seconds: Upper end of the 90% interval of `seconds`.
    """

    steps: int
    device_seconds: float
    seconds: float
    needed_per_second: float
    host_wait: float
    low_seconds: float
    high_seconds: float

    @property
    def text(self) -> str:
        """Time of the epoch, and the interval that should contain it in 90% of cases.

        Example:
            >>> EpochTime(49, 0.4, 0.41, 1000.0, 0.0, 0.3, 0.6).text
            '410 ms (300–600)'
        """
        return time_within(self.seconds, self.low_seconds, self.high_seconds)


def gradient_bytes(num_parameters: int) -> int:
    """Return the bytes of a replica's gradients, which are float32."""
    return 4 * num_parameters


def time_step(cost: ProgramCost, machine: Slice, extra_bytes: int = 0) -> StepTime:
    """Estimate the time of one step of a program on a slice.

    Args:
        cost: Cost of one device's program.
        machine: Slice that the program runs on.
        extra_bytes: Size of the data that the replicas sum outside of the program. These are the gradients if the
            program is the step of a single replica.
    """
    generation = machine.generation
    seconds = [(operation, seconds_of(operation, generation)) for operation in cost.operations]
    busy = sum(time for _, time in seconds)
    compute = busy + _waiting_seconds(cost, generation, busy)
    flops = sum(operation.flops * operation.times for operation in cost.operations)
    apart = [Collective(_ALL_REDUCE, extra_bytes)] if extra_bytes else []
    times = [collective_seconds(sent, machine) for sent in (*cost.collectives, *apart)]
    communication = None if None in times else sum(time for time in times if time is not None)
    total_ms = 1e3 * (compute + (communication or 0.0))
    utilization = flops / (compute * generation.device_peak_flops) if compute else 0.0
    accuracy = accuracy_of(generation, utilization)
    return StepTime(
        compute_ms=compute * 1e3,
        communication_ms=None if communication is None else communication * 1e3,
        guessed_share=sum(time for operation, time in seconds if operation.is_guessed) / compute if compute else 0.0,
        mxu_utilization=utilization,
        flops=flops,
        low_ms=total_ms * accuracy.low,
        high_ms=total_ms * accuracy.high,
    )


def _waiting_seconds(cost: ProgramCost, generation: Generation, busy_seconds: float) -> float:
    """Return the seconds by which the memory traffic of a step takes longer than its operations, or 0.

    Args:
        cost: Cost of the step.
        generation: Generation of the chip.
        busy_seconds: Time of all operations, one after the other.
    """
    traffic = cost.copied_bytes + sum(operation.num_bytes * operation.times for operation in cost.operations)
    return max(traffic / generation.device_bytes_per_second - busy_seconds, 0.0)


def kernel_share(cost: ProgramCost, generation: Generation) -> float:
    """Return the share of a step's time that kernels with matrix products take, from 0 to 1.

    The time of such a kernel is computed from its matrix products.
    """
    times = [(operation, seconds_of(operation, generation)) for operation in cost.operations]
    whole = sum(time for _, time in times)
    kernels = sum(time for operation, time in times if operation.kind in KERNEL_SHARES and operation.flops)
    return kernels / whole if whole else 0.0


def collective_seconds(collective: Collective, machine: Slice) -> float | None:
    """Estimate the time of a collective, assuming that each group of devices is a ring with links in both directions.

    A collective over all chips of a slice uses the links along every axis of the slice. Devices of one chip exchange
    their data through the chip's memory. Devices of several slices use their share of the data-centre network.

    Returns:
        Seconds, or None if several chips take part and the speed of the links or of the network is unknown.
    """
    generation = machine.generation
    if collective.slices > 1:
        return _between_slices_seconds(collective, generation)
    devices = collective.group or machine.devices
    chips = -(-devices // generation.devices_per_chip)
    if devices <= 1:
        return 0.0
    if chips == 1:
        return collective.times * 2 * collective.num_bytes / generation.device_bytes_per_second
    if generation.ici_bytes_per_second is None:
        return None
    others = (chips - 1) / chips
    links = _links(machine) if chips == machine.chips else min(chips - 1, 2)
    # Of the array's bytes, those that a chip sends. An all-to-all goes a quarter of the ring on average; a permutation
    # goes to one neighbour, through one link.
    sending = {_ALL_REDUCE: 2 * others, "all-to-all": chips / 4, "collective-permute": links}
    share = sending.get(collective.opcode.removeprefix("ragged-"), others)
    sent = share * collective.num_bytes / (links * generation.ici_bytes_per_second)
    return collective.times * (sent + chips / 2 * _HOP_SECONDS)


def _between_slices_seconds(collective: Collective, generation: Generation) -> float | None:
    """Return the time of a collective between slices if each device has its share of the network for itself.

    The time is a lower bound of the transfer's: the hosts' work, latencies and contention in the network are left out.
    """
    if generation.dcn_bytes_per_second is None:
        return None
    others = (collective.slices - 1) / collective.slices
    share = {_ALL_REDUCE: 2 * others, "collective-permute": 1.0}.get(collective.opcode, others)
    speed = generation.dcn_bytes_per_second / generation.devices_per_chip
    return collective.times * share * collective.num_bytes / speed


def _links(machine: Slice) -> int:
    """Return the number of links that each chip of a slice uses: two along an axis that is a ring, otherwise one.

    An axis is a ring if its number of chips is a multiple of 4 for v4, v5p and 7x, or of 16 for other generations
    (https://docs.cloud.google.com/tpu/docs/system-architecture-tpu-vm). Every slice of more than two chips has a ring.
    """
    axes = [int(size) for size in re.findall(r"\d+", machine.libtpu_topology.partition(":")[2])]
    ring = 4 if len(axes) == 3 else 16
    return max(sum(1 if size % ring else 2 for size in axes if size > 1), min(machine.chips - 1, 2))


def time_layers(cost: ProgramCost, machine: Slice) -> tuple[LayerTime, ...]:
    """Estimate the time of each layer, the longest first."""
    generation = machine.generation
    times = {
        name: [(operation, 1e3 * seconds_of(operation, generation)) for operation in layer.operations]
        for name, layer in cost.layers.items()
    }
    busy_ms = sum(ms for of_layer in times.values() for _, ms in of_layer)
    waiting_ms = 1e3 * _waiting_seconds(cost, generation, busy_ms / 1e3)
    whole_ms = waiting_ms + busy_ms
    layers = [_time_layer(name, layer, generation, times[name], whole_ms) for name, layer in cost.layers.items()]
    if waiting_ms:
        layers.append(LayerTime(COPIES, waiting_ms, waiting_ms / whole_ms, None, 0.0, ()))
    return tuple(sorted(layers, key=lambda layer: -layer.ms))


def _time_layer(
    name: str, layer: LayerCost, generation: Generation, times: Sequence[tuple[OperationCost, float]], whole_ms: float
) -> LayerTime:
    peak_per_ms = generation.device_peak_flops / 1e3
    ms = sum(time for _, time in times)
    matrix = [(operation, time) for operation, time in times if operation.kind in (Kind.PRODUCT, Kind.CONVOLUTION)]
    matrix_ms = sum(time for _, time in matrix)
    matrix_flops = sum(operation.flops * operation.times for operation, _ in matrix)
    flops = sum(product.flops * product.times for product in layer.products)
    padded = sum(product.padded_flops(generation.mxu_size) * product.times for product in layer.products)
    # The compiler may lay a dimension out better than tile by tile; never claim more than the time it takes.
    padding_ms = max(min(matrix_ms, padded / peak_per_ms) - flops / peak_per_ms, 0.0)
    return LayerTime(
        name=name,
        ms=ms,
        share=ms / whole_ms if whole_ms else 0.0,
        mxu_utilization=matrix_flops / (matrix_ms * peak_per_ms) if matrix_ms else None,
        padding_ms=padding_ms,
        notes=_unfilled(layer, generation.mxu_size),
    )


def _unfilled(layer: LayerCost, tile: int) -> tuple[str, ...]:
    """Describe the dimensions of the forward products that do not fill a tile."""
    notes = []
    for product in layer.products:
        if product.is_forward and product.groups > 1:
            notes.append(f"{product.groups} groups of {product.contraction} input features, one after the other")
        elif product.is_forward:
            for what, size, whole in (
                ("input features", product.contraction, tile),
                ("output features", product.columns, tile),
                ("batch", product.rows, SUBLANES),
            ):
                if size % whole:
                    notes.append(f"{size} {what} fill {1 / padding(size, whole):.0%} of {whole}-wide tiles")
    return tuple(dict.fromkeys(notes))


def time_epoch(step: StepTime, num_examples: int, global_batch: int, host_rate: float) -> EpochTime:
    """Estimate the time of an epoch.

    Args:
        step: Time of a step.
        num_examples: Number of examples in an epoch.
        global_batch: Number of examples in a step, summed over all replicas.
        host_rate: Examples per second that all hosts together feed. Infinity means that the hosts are no limit.
    """
    steps = steps_per_epoch(num_examples, global_batch)
    device = steps * step.total_ms / 1e3
    hosts = steps * global_batch / host_rate
    seconds = max(device, hosts)
    return EpochTime(
        steps=steps,
        device_seconds=device,
        seconds=seconds,
        needed_per_second=steps * global_batch / device if device else 0.0,
        host_wait=1 - device / seconds if seconds else 0.0,
        low_seconds=max(steps * step.low_ms / 1e3, hosts),
        high_seconds=max(steps * step.high_ms / 1e3, hosts),
    )
