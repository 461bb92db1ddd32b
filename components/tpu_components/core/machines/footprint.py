"""Footprint of a training run on a machine: memory, step time and price, computed from the compiled step.

Footprints are used to compare two training runs. The speed of the input pipeline is not included, because it differs
between hosts.
"""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

from tpu_components.core.base import typed_values
from tpu_components.core.base.typed_values import Amount
from tpu_components.core.examples.feeding import steps_per_epoch


@dataclasses.dataclass(frozen=True)
class Footprint:
    """Memory, step time and price of a training run on a machine, estimated from the compiled step.

    Attributes:
        machine: Short name of the machine.
        region: Region whose price this is. Empty means the cheapest region.
        spot: Whether the price is for a spot machine.
        num_examples: Number of examples in the training split.
        num_validation: Number of examples in the validation split.
        epochs: Passes over the training split.
        global_batch: Examples per step, summed over all replicas.
        parameters: Number of trainable parameters.
        step_ms: Time of a step on the device, in milliseconds.
        peak_bytes: Peak memory use of a device, in bytes.
        capacity_bytes: Memory of a device that a program may use, in bytes.
        usd_per_hour: Price of the whole slice per hour in US dollars, or 0 if unknown.
        compiler: Versions of libtpu, JAX and Keras.
        target: Platform whose price this is. Empty in files that earlier releases wrote. The price in these files
            is always Compute Engine's.
        price_factor: Ratio of `usd_per_hour` to Compute Engine's list price.
    """

    machine: str
    region: str
    spot: bool
    num_examples: Annotated[int, typed_values.Range(1)]
    num_validation: int
    epochs: int
    global_batch: Annotated[int, typed_values.Range(1)]
    parameters: int
    step_ms: Amount
    peak_bytes: int
    capacity_bytes: Annotated[int, typed_values.Range(1)]
    usd_per_hour: Amount
    compiler: Mapping[str, str]
    target: str = ""
    price_factor: Annotated[float, typed_values.Range(1)] = 1.0

    @property
    def device_epoch_seconds(self) -> float:
        """Duration of an epoch in seconds, if the device never waits for the host."""
        return steps_per_epoch(self.num_examples, self.global_batch) * self.step_ms / 1e3

    @property
    def device_usd_per_run(self) -> float:
        """Price of all epochs in US dollars if the device never waits for the host, or 0 if no price is known.

        Preflight's expected price of a run, `Cost.usd_per_run`, includes the time in which the device waits for the
        host.
        """
        return self.usd_per_hour * self.epochs * self.device_epoch_seconds / 3600

    def priced_like(self, other: "Footprint") -> "Footprint":
        """Return a copy of this footprint, with the price on the platform (`target`) of another footprint."""
        usd_per_hour = self.usd_per_hour / self.price_factor * other.price_factor
        return dataclasses.replace(
            self, usd_per_hour=usd_per_hour, target=other.target, price_factor=other.price_factor
        )

    @classmethod
    def read(cls, raw: Any) -> "Footprint":
        """Read a footprint from the metadata (lineage) of a registered model version.

        Raises:
            KeyError, TypeError, ValueError: If the value is not a footprint.
        """
        return typed_values.read(raw, cls, "preflight", any_version=True)
