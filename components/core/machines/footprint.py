"""What a training takes of its machine by the compiled step alone, so that any two can be compared.

How fast a host feeds the device is left out: a laptop and a runner of CI differ in that, and not in the program.
"""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

from tpu_components.core.base import typed_values
from tpu_components.core.base.typed_values import Amount
from tpu_components.core.examples.feeding import steps_per_epoch


@dataclasses.dataclass(frozen=True)
class Footprint:
    """A training on a machine, as far as its compiled step decides it.

    Attributes:
        machine: Short name of the machine.
        region: Region in which it is paid for; empty is the cheapest.
        spot: Whether as a spot machine.
        num_examples: Number of examples in the training split.
        num_validation: Number of examples in the validation split.
        epochs: Passes over the training split.
        global_batch: Batch of all replicas together.
        parameters: Trainable values.
        step_ms: Time of a step on the device, in milliseconds.
        peak_bytes: The most memory in use on a device.
        capacity_bytes: Bytes that a program may use.
        usd_per_hour: Price of the whole slice; 0 where no trustworthy one is known.
        compiler: Versions of libtpu, JAX and Keras.
        target: Platform whose price it is; empty in older versions, which have Compute Engine's.
        price_factor: The price, as a multiple of Compute Engine's.
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
    def epoch_seconds(self) -> float:
        """Seconds of an epoch, if the host keeps up."""
        return steps_per_epoch(self.num_examples, self.global_batch) * self.step_ms / 1e3

    @property
    def usd_per_run(self) -> float:
        """Price of all epochs if the device never waits for the host, in US dollars; 0 if no price is known."""
        return self.usd_per_hour * self.epochs * self.epoch_seconds / 3600

    def priced_like(self, other: "Footprint") -> "Footprint":
        """Return the same at the price of another's target."""
        usd_per_hour = self.usd_per_hour / self.price_factor * other.price_factor
        return dataclasses.replace(
            self, usd_per_hour=usd_per_hour, target=other.target, price_factor=other.price_factor
        )

    @classmethod
    def read(cls, raw: Any) -> "Footprint":
        """Turn what a version keeps into a footprint.

        Raises:
            KeyError, TypeError, ValueError: If it is none.
        """
        footprint: Footprint = typed_values.read(raw, cls, "preflight", any_version=True)
        return footprint
