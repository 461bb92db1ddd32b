"""`receipt.json`: measured time, memory and price of a training run, and preflight's prediction of them.

A receipt contains no weights, data, shapes, paths or names, so it can be shared with other projects. It identifies the
program only by a digest.
"""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

from tpu_components.core.base.digest import digest_of
from tpu_components.core.base.typed_values import (
    Amount,
    NotNegative,
    Pattern,
    Positive,
    Range,
    Share,
    check_fields,
    read_by_hand,
)
from tpu_components.core.files.typed_json import JsonFile

RECEIPT_FILE = "receipt.json"
VERSION = 1
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
# A run that waited longer for its input says little about the program. Its receipt is not used for calibration.
_MOST_WAITING = 0.1
_HEX = Annotated[str, Pattern(r"([0-9a-f]{64})?", "a SHA-256 in hexadecimal, or empty")]
_MACHINE = Annotated[str, Pattern(r"[a-z0-9-]{0,40}", "the name of a machine, such as v5e-8")]
_DEVICE = Annotated[str, Pattern(r"[^\x00-\x1f]{0,80}", "a line of at most 80 characters")]
_SOURCE = Annotated[str, Pattern(r"[^\x00-\x1f]{0,400}", "a line of at most 400 characters")]
_Time = Annotated[float, Range(above=0, below=1e12)]


@dataclasses.dataclass(frozen=True)
class StepQuantiles:
    """Quantiles of the time of a step, in milliseconds."""

    p5: _Time
    p25: _Time
    p50: _Time
    p75: _Time
    p95: _Time

    def __post_init__(self) -> None:
        check_fields(self)


@dataclasses.dataclass(frozen=True)
class Price:
    """Price of a run, in US dollars.

    Attributes:
        usd_per_hour: Price of an hour of the machine.
        source: Price list, with its date.
        usd: Price of all sessions of the run.
    """

    usd_per_hour: Amount
    source: _SOURCE
    usd: Amount

    def __post_init__(self) -> None:
        check_fields(self)


@dataclasses.dataclass(frozen=True)
class Prediction:
    """Preflight's prediction for a training run. The step preflight_training outputs it.

    Attributes:
        program: Digest of the program; see `step_digest`. Empty if unknown.
        machine: Short name of the machine.
        device: JAX's name of the machine's devices, such as `TPU v5 lite`.
        devices: Number of JAX devices of the machine.
        hosts: Number of hosts of the machine.
        step_ms: Time of a step, in milliseconds.
        low_ms: Lower end of the 90% interval of `step_ms`.
        high_ms: Upper end of the 90% interval of `step_ms`.
        compiler_ms: The compiler's estimate of the time of a step, in milliseconds. `step_ms` differs from
            this estimate if the receipts of earlier runs were used to correct the prediction.
        mxu_utilization: Estimated share of the matrix units' peak that the step reaches while it computes.
        peak_bytes: Peak memory use of a device.
        seconds: Time of all epochs, including waiting for data.
        low_seconds: Lower end of the 90% interval of `seconds`.
        high_seconds: Upper end of the 90% interval of `seconds`.
        usd_per_hour: Price of an hour of the machine, or 0 if unknown.
        price_source: Price list, with its date. Empty if no price is known.
        basis: Description of the receipts from which the interval was computed. Empty without receipts.
    """

    program: _HEX
    machine: _MACHINE
    device: _DEVICE
    devices: Positive
    hosts: Positive
    step_ms: _Time
    low_ms: _Time
    high_ms: _Time
    compiler_ms: _Time
    mxu_utilization: Amount
    peak_bytes: NotNegative
    seconds: Amount
    low_seconds: Amount
    high_seconds: Amount
    usd_per_hour: Amount = 0.0
    price_source: _SOURCE = ""
    basis: _SOURCE = ""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def usd(self) -> tuple[float, float, float]:
        """Price of all epochs, and its 90% interval, in US dollars."""
        usd, low, high = (
            self.usd_per_hour * each / 3600 for each in (self.seconds, self.low_seconds, self.high_seconds)
        )
        return usd, low, high


@dataclasses.dataclass(frozen=True)
class Receipt(JsonFile, name=RECEIPT_FILE, what="a receipt of a training run", step="train_model"):
    """Content of `receipt.json`. train_model writes what was measured, and evaluate_model adds the prediction.

    Attributes:
        version: Version of the file format.
        program: Digest of the program; see `step_digest`. Preflight computes the same digest for the same step.
        machine: Short name of the machine, such as `v5e-8`, if the run took place on the predicted machine; `cpu` for
            a run on CPUs; empty if unknown.
        device: JAX's name of the devices, such as `TPU v5 lite`, or empty if unknown.
        devices: Number of JAX devices that shared a batch (replicas).
        hosts: Number of hosts.
        steps: Number of measured steps. Steps that compile are left out, and so are steps that were lost because
            the process was killed.
        all_steps: Number of steps of the run.
        step_ms: Quantiles of the time of a step, or None if no step was measured. If several steps were timed together,
            their mean stands for each of them.
        waiting: Share of the epochs' time that the host spent waiting for input, or None if it was not measured.
        peak_bytes: Peak memory use of a device, or None if the device does not report it.
        start_up_seconds: Seconds from the start of a session to the end of its first step, summed over all sessions.
        seconds: Seconds from the start to the end of a session, summed over all sessions.
        sessions: Number of sessions. A run that is interrupted and continued has several.
        price: Price of the run, or None without a prediction for its machine, or if the price is unknown.
        prediction: Preflight's prediction, or None without preflight.

    Raises:
        InputError: If a value is not allowed, or the version is newer than this release.
    """

    version: Annotated[int, Range(1, VERSION)]
    program: _HEX
    machine: _MACHINE
    device: _DEVICE
    devices: Positive
    hosts: Positive
    steps: NotNegative
    all_steps: NotNegative
    step_ms: StepQuantiles | None
    waiting: Share | None
    peak_bytes: NotNegative | None
    start_up_seconds: Amount
    seconds: Amount
    sessions: Positive
    price: Price | None = None
    prediction: Prediction | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def id(self) -> str:
        """Name of the run in a store of receipts: a digest of the measurements, independent of the prediction."""
        added = ("machine", "price", "prediction")
        measured = {name: value for name, value in self.as_dict().items() if name not in added}
        return digest_of(measured)[:16]

    @property
    def is_comparable(self) -> bool:
        """Whether the run took place on the machine that the prediction was made for."""
        return self.prediction is not None and self.prediction.machine == self.machine

    @property
    def unused_because(self) -> str:
        """Reason why the receipt cannot be compared with the compiler's estimate, or an empty string if it can."""
        if self.prediction is None:
            return "no prediction"
        if not self.is_comparable:
            return f"predicted for {self.prediction.machine}"
        if self.step_ms is None:
            return "no step was measured"
        return f"{self.waiting:.0%} waiting for input" if (self.waiting or 0.0) > _MOST_WAITING else ""

    @property
    def ratio(self) -> float | None:
        """Median measured time of a step, divided by the compiler's estimate; None if the two cannot be compared."""
        if self.prediction is None or self.step_ms is None or self.unused_because:
            return None
        return self.step_ms.p50 / self.prediction.compiler_ms

    def with_prediction(self, raw: Mapping[str, Any]) -> "Receipt":
        """Return a copy with preflight's prediction.

        If the run took place on the machine that the prediction was made for, the copy also has the machine's name and,
        if known, a price.

        Args:
            raw: The output `prediction` of preflight_training, or an empty mapping without preflight.

        Raises:
            InputError: If the mapping is not a prediction.
        """
        if not raw:
            return self
        prediction: Prediction = read_by_hand(raw, Prediction, "prediction")
        predicted = (prediction.device, prediction.devices, prediction.hosts)
        is_same = bool(self.device) and predicted == (self.device, self.devices, self.hosts)
        machine = prediction.machine if is_same else self.machine
        receipt = dataclasses.replace(self, prediction=prediction, machine=machine)
        if not receipt.is_comparable or not prediction.usd_per_hour:
            return receipt
        usd = prediction.usd_per_hour * self.seconds / 3600
        return dataclasses.replace(receipt, price=Price(prediction.usd_per_hour, prediction.price_source, usd))
