"""From a compiled program to time, money and waiting: arithmetic only.

Time on the device is the compiler's own estimate of cycles over the chip's clock; it assumes that every operation runs
alone and at its best. Communication is a ring all-reduce over the slowest links of the slice, not hidden behind
computation: an upper bound. Both are then multiplied by what `accuracy` has found of the generation.
"""

import dataclasses
import math
from collections.abc import Sequence

from tpu_components.core.examples.feeding import steps_per_epoch
from tpu_components.core.machines.machine_spec import Generation, Host, Slice
from tpu_components.preflight_training.accuracy import accuracy_of
from tpu_components.preflight_training.hlo import SUBLANES, LayerCost, ProgramCost

# A hop from chip to chip takes about a microsecond (https://jax-ml.github.io/scaling-book/tpus/).
_HOP_SECONDS = 1e-6


@dataclasses.dataclass(frozen=True)
class StepTime:
    """One step on the device, as long as published steps of its generation let expect.

    Attributes:
        compute_ms: Every operation of the step.
        communication_ms: Sums over replicas; None where the links' speed is not known.
        guessed_share: The part of `compute_ms` that the compiler gave no estimate for.
        mxu_utilization: Multiplications done, as a share of what the matrix units could do in the time of the step.
        flops: Operations of all matrix products, on one device.
        low_ms: Least of the interval that is meant to hold nine of ten steps.
        high_ms: Most of it.
    """

    compute_ms: float
    communication_ms: float | None
    guessed_share: float
    mxu_utilization: float
    flops: float
    low_ms: float
    high_ms: float

    @property
    def total_ms(self) -> float:
        """Computation and communication, one after the other."""
        return self.compute_ms + (self.communication_ms or 0.0)


@dataclasses.dataclass(frozen=True)
class LayerTime:
    """The time that a layer takes in a step, forward and backward.

    Attributes:
        name: Name of the layer; the optimizer, and loss and metrics, count as one each.
        ms: Milliseconds of the step.
        share: Share of the step's computation.
        mxu_utilization: Within its matrix products; None where it has none.
        padding_ms: Time that the matrix unit works on the padding of tiles that are not full.
        notes: Dimensions that do not fill a tile.
    """

    name: str
    ms: float
    share: float
    mxu_utilization: float | None
    padding_ms: float
    notes: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class EpochTime:
    """An epoch, with a host that reads at a given rate.

    Attributes:
        steps: In an epoch.
        device_seconds: Seconds that the device needs.
        seconds: Seconds of the epoch: the device's, or the host's where those are more.
        needed_per_second: Examples per second that keep the device busy.
        host_wait: Share of the epoch in which the device waits for data.
        low_seconds: Seconds that it takes if steps take the least that is expected of them.
        high_seconds: Seconds that it takes if they take the most.
    """

    steps: int
    device_seconds: float
    seconds: float
    needed_per_second: float
    host_wait: float
    low_seconds: float
    high_seconds: float


def _device_peak(generation: Generation) -> float:
    """Return the bfloat16 operations per second of one JAX device."""
    return generation.peak_bf16_flops / generation.devices_per_chip


def bytes_per_cycle(generation: Generation) -> float:
    """Return the bytes that the memory of one JAX device moves in a cycle."""
    return generation.hbm_bytes_per_second / generation.devices_per_chip / generation.clock_hz


def gradient_bytes(num_parameters: int) -> int:
    """Return the bytes that a replica gives to the sum of gradients: float32 values."""
    return 4 * num_parameters


def time_step(cost: ProgramCost, machine: Slice, extra_bytes: int = 0) -> StepTime:
    """Return the time of one step.

    Args:
        cost: Cost of the program of one device.
        machine: Machine that it runs on.
        extra_bytes: That are summed over the replicas beside what the program says: the gradients, where the program is
            that of one replica.
    """
    generation = machine.generation
    accuracy = accuracy_of(generation)
    compute = accuracy.factor * cost.cycles / generation.clock_hz
    flops = sum(product.flops * product.times for layer in cost.layers.values() for product in layer.products)
    transfers = [(collective.num_bytes, collective.times) for collective in cost.collectives] + (
        [(extra_bytes, 1)] if extra_bytes else []
    )
    summing = ring_milliseconds(transfers, machine.chips, generation.ici_bytes_per_second)
    communication = None if summing is None else accuracy.factor * summing
    total_ms = compute * 1e3 + (communication or 0.0)
    return StepTime(
        compute_ms=compute * 1e3,
        communication_ms=communication,
        guessed_share=cost.guessed_cycles / cost.cycles if cost.cycles else 0.0,
        mxu_utilization=flops / (compute * _device_peak(generation)) if compute else 0.0,
        flops=flops,
        low_ms=total_ms * accuracy.low / accuracy.factor,
        high_ms=total_ms * accuracy.high / accuracy.factor,
    )


def ring_milliseconds(transfers: Sequence[tuple[int, int]], chips: int, speed: float | None) -> float | None:
    """Estimate ring all-reduces over the chips: twice the bytes through both directions of a ring, and its hops.

    Args:
        transfers: Bytes that each device gives, and how often.
        chips: In the ring.
        speed: Speed of a link, one way, in bytes per second; None where it is not known, and so is the result.
    """
    if chips == 1:
        return 0.0
    if speed is None:
        return None
    share = 2 * (chips - 1) / chips
    seconds = sum(
        times * (share * num_bytes / (2 * speed) + chips / 2 * _HOP_SECONDS) for num_bytes, times in transfers
    )
    return seconds * 1e3


def time_layers(cost: ProgramCost, machine: Slice) -> tuple[LayerTime, ...]:
    """Return the time of each layer, the longest first."""
    layers = [_time_layer(name, layer, cost.cycles, machine.generation) for name, layer in cost.layers.items()]
    return tuple(sorted(layers, key=lambda layer: -layer.ms))


def _time_layer(name: str, layer: LayerCost, all_cycles: float, generation: Generation) -> LayerTime:
    to_ms = accuracy_of(generation).factor * 1e3 / generation.clock_hz
    peak_per_ms = _device_peak(generation) / 1e3
    matrix_ms = layer.matrix_cycles * to_ms
    flops = sum(product.flops * product.times for product in layer.products)
    padded = sum(product.padded_flops(generation.mxu_size) * product.times for product in layer.products)
    # The compiler may lay a dimension out better than tile by tile; never claim more than the time it takes.
    padding_ms = max(min(matrix_ms, padded / peak_per_ms) - flops / peak_per_ms, 0.0)
    return LayerTime(
        name=name,
        ms=layer.cycles * to_ms,
        share=layer.cycles / all_cycles,
        mxu_utilization=flops / (matrix_ms * peak_per_ms) if matrix_ms else None,
        padding_ms=padding_ms,
        notes=_unfilled(layer, generation.mxu_size),
    )


def _unfilled(layer: LayerCost, tile: int) -> tuple[str, ...]:
    """Return the forward products' dimensions that do not fill a tile, in words."""
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
                    notes.append(f"{size} {what} fill {size / (-(-size // whole) * whole):.0%} of {whole}-wide tiles")
    return tuple(dict.fromkeys(notes))


def host_feed(measured_per_second: float, cpus: int, host: Host | None, most: float = math.inf) -> float:
    """Estimate the examples per second that a machine's own host feeds, from one of `cpus` CPUs that was measured.

    Assumes that the rate grows with the CPUs, up to `most`. Where the host's are not published, it is what was
    measured.

    Example:
        >>> host_feed(1000.0, 4, Host(112, 192 * 10**9, "", "")), host_feed(1000.0, 4, None)
        (28000.0, 1000.0)
    """
    return min(measured_per_second * host.vcpus / cpus, most) if host else measured_per_second


def time_epoch(step: StepTime, num_examples: int, global_batch: int, host_rate: float | None) -> EpochTime:
    """Time an epoch, fed by a host that reads `host_rate` examples per second; None is a host fast enough."""
    steps = steps_per_epoch(num_examples, global_batch)
    device = steps * step.total_ms / 1e3
    hosts = steps * global_batch / host_rate if host_rate else 0.0
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
