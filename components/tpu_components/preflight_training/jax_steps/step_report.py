"""Reports the memory, time and price of a compiled JAX step on a machine, as text, Markdown and a JSON file."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.formatting import byte_size, dollars, dollars_within, number, percent, time
from tpu_components.core.base.terminal import printable
from tpu_components.core.files.typed_json import JsonFile
from tpu_components.core.machines.machine_spec import billed_by
from tpu_components.core.pages import blocks
from tpu_components.core.pages.blocks import Block, Cell, Fields, Sentences, Table
from tpu_components.core.pages.display import Displayed
from tpu_components.preflight_training.compiling.outcome import FITS
from tpu_components.preflight_training.estimate import Accuracy, LayerTime, StepTime
from tpu_components.preflight_training.findings import VERDICTS
from tpu_components.preflight_training.largest_batch import LargestBatch

STEP_FILE = "step.json"
_WIDTH = 110
_TOP_LAYERS = 12
_UNKNOWN = "unknown"


@dataclasses.dataclass(frozen=True)
class Memory:
    """Memory that a step needs on each device, and memory that is available.

    Attributes:
        peak_bytes: Peak memory use of a device, in bytes. It can be more than `capacity_bytes`; then the step does not
            fit. 0 if unknown.
        capacity_bytes: Memory of a device that a program may use, in bytes.
    """

    peak_bytes: int
    capacity_bytes: int

    @property
    def share(self) -> float:
        """Peak memory use divided by the memory that a program may use."""
        return self.peak_bytes / self.capacity_bytes

    def __str__(self) -> str:
        if not self.peak_bytes:
            return f"{_UNKNOWN}, of {byte_size(self.capacity_bytes)} a device"
        return f"{byte_size(self.peak_bytes)} of {byte_size(self.capacity_bytes)} a device ({percent(self.share)})"


@dataclasses.dataclass(frozen=True)
class HourlyPrice:
    """Published price of a machine; see `machine_spec.Price`.

    Attributes:
        usd_per_hour: Price of all slices together, in US dollars per hour.
        region: Region in which the price applies.
        is_spot: Whether the price is for spot machines.
        target: Platform on which the price applies: `vertex` or `kubeflow`.
        date: Date on which the price was published; only a year if the day is unknown.
    """

    usd_per_hour: float
    region: str
    is_spot: bool
    target: str
    date: str


@dataclasses.dataclass(frozen=True, repr=False)
class StepReport(Displayed, JsonFile, name=STEP_FILE, what="a report of a step", step="tpu-pipelines preflight"):
    """A report on whether a step fits a machine, and how long it takes there. `to_pandas` returns a row per layer.

    Attributes:
        name: Name of the step.
        machine: Name of the machine, which is a TPU slice, such as `v5e-8`.
        slices: Number of slices. The data-centre network connects them.
        devices: Number of devices of all slices together.
        used_devices: Number of devices that the step uses.
        verdict: `fits`, `does_not_fit`, `does_not_compile`, `timed_out`, `crashed`, or `out_of_memory` if the compiler
            exceeded its memory limit on this machine.
        reason: Reason why the step does not fit or compile. Empty if it fits.
        memory: Memory that the step needs on each device.
        step: Estimated time of one execution of the step. None if the step does not fit, or if the compiler gives no
            estimate at all.
        accuracy: How closely the estimates for similar programs match published step times. None if `step` is None.
        layers: Estimated time of each layer, the longest first. A layer is a scope of `jax.named_scope`, which Flax's
            linen and Haiku open for each module. An operation outside of all scopes is a layer with the operation's
            name.
        price: Price per hour, or None if no price is published.
        largest: Largest size of the inputs, such as the batch size per device, with which the step fits. None if
            preflight did not search for it, or if the search failed.
        notes: Assumptions and limitations of the estimates, one sentence each.
        compile_seconds: Time of the compilation, in seconds.
        compiler: Versions of libtpu and JAX, by name.
        is_cached: Whether the outcome of the compilation was taken from the cache.
    """

    name: str
    machine: str
    slices: int
    devices: int
    used_devices: int
    verdict: str
    reason: str
    memory: Memory
    step: StepTime | None
    accuracy: Accuracy | None
    layers: tuple[LayerTime, ...]
    price: HourlyPrice | None
    largest: LargestBatch | None = None
    notes: tuple[str, ...] = ()
    compile_seconds: float = 0.0
    compiler: Mapping[str, str] = dataclasses.field(default_factory=dict)
    is_cached: bool = False

    @property
    def fits(self) -> bool:
        """Whether the step compiles and fits the memory of each device."""
        return self.verdict == FITS

    @property
    def step_seconds(self) -> float | None:
        """Estimated time of a step, in seconds; None if unknown."""
        return self.step.total_ms / 1e3 if self.step else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Lower and upper end of the 90% interval of the step time, in seconds, or None if the time is unknown."""
        return (self.step.low_ms / 1e3, self.step.high_ms / 1e3) if self.step else None

    @property
    def dollars_per_hour(self) -> float | None:
        """Price of all slices together, in US dollars per hour, or None if no price is published."""
        return self.price.usd_per_hour if self.price else None

    def per_second(self, items: float) -> float | None:
        """Return the throughput in items per second, or None if the time of a step is unknown.

        Args:
            items: Number of items that a step processes.
        """
        return items / self.step_seconds if self.step_seconds else None

    def dollars_for(self, total: float, items: float) -> tuple[float, float, float] | None:
        """Return the price of processing a number of items, with its 90% interval, in US dollars.

        Args:
            total: Number of items, for example a million requests or a billion tokens.
            items: Number of items that a step processes.

        Returns:
            The estimate, and the lower and upper end of its interval. None if the time or the price is unknown.

        Raises:
            InputError: If a number is not positive.

        Example:
            >>> report.dollars_for(1e9, items=8 * 2048)  # doctest: +SKIP
            (7.4, 6.4, 11.4)
        """
        if total <= 0 or items <= 0:
            raise InputError(f"Cannot price total={total} and items={items}: expected positive numbers.")
        if self.step is None or self.price is None:
            return None
        usd_per_ms = self.price.usd_per_hour / 3.6e6
        low, high = self.step.low_ms, self.step.high_ms
        estimate, least, most = (usd_per_ms * ms * total / items for ms in (self.step.total_ms, low, high))
        return estimate, least, most

    @property
    def label(self) -> str:
        """Name of the machine, with the number of slices if there are several."""
        return self.machine if self.slices == 1 else f"{self.slices} × {self.machine}"

    @property
    def summary(self) -> str:
        """The result in one sentence."""
        verdict = f"{self.name} {VERDICTS[self.verdict]} {'' if self.fits else 'on '}{self.label}"
        if not self.fits:
            return f"{verdict}: {self.reason}"
        return f"{verdict}: {self.memory}, {self.step.text if self.step else 'unknown time'} a step"

    def rows(self) -> list[dict[str, Any]]:
        """Return one dict per layer: the fields of its `LayerTime` by name."""
        return [dataclasses.asdict(layer) for layer in self.layers]

    def __str__(self) -> str:
        return blocks.as_text(self.blocks(_TOP_LAYERS), _WIDTH)

    def show(self) -> None:
        """Print the report."""
        print(printable(str(self)))

    def markdown(self) -> str:
        """Return the report as Markdown."""
        return blocks.as_markdown(self.blocks(_TOP_LAYERS))

    def blocks(self, most_layers: int = 0) -> list[Block]:
        """Return the report as paragraphs, fields and tables, which can be rendered as text or Markdown.

        Args:
            most_layers: Largest number of layers to list. 0 means all layers.
        """
        step = self.step
        unused = f", of which the step uses {self.used_devices}" if self.used_devices < self.devices else ""
        count = f"{self.devices} device{'' if self.devices == 1 else 's'}"
        fields = [
            ("machine", f"{self.label}: {count}{unused}"),
            ("memory", str(self.memory)),
            ("largest", f"{self.largest.text} fits" if self.largest else ""),
            ("step", _parts(step) if step else (_UNKNOWN if self.fits else "")),
            ("matrix units", f"{percent(step.mxu_utilization)} used while the device computes" if step else ""),
            ("price", self._price_text()),
            ("interval", (step.basis_text or self.accuracy.text) if self.accuracy and step else ""),
            ("compilation", f"{self.compile_seconds:,.1f} s{', cached' if self.is_cached else ''}"),
            ("compiler", ", ".join(f"{name} {version}" for name, version in self.compiler.items())),
        ]
        return [self.summary, Fields(fields), *_layer_table(self.layers, most_layers), Sentences(self.notes)]

    def _price_text(self) -> str:
        if self.price is None:
            return "no price is published"
        spot = " as a spot machine" if self.price.is_spot else ""
        where = f"{billed_by(self.price.target)} in {self.price.region}{spot} ({self.price.date})"
        return f"{dollars(self.price.usd_per_hour)} an hour, {where}"

    def save(self, directory: Path) -> None:
        """Write `step.json` into a folder, which is created if it is missing."""
        directory.mkdir(parents=True, exist_ok=True)
        super().save(directory)


def dollars_text(price: tuple[float, float, float] | None) -> str:
    """Format a price and its interval as text, such as `$7.40 (6.40–11.40)`, or `unknown` for None.

    Args:
        price: The estimate, and the lower and upper end of its 90% interval, in US dollars.
    """
    return dollars_within(*price) if price else _UNKNOWN


def _parts(step: StepTime) -> str:
    if step.communication_ms is None:
        return f"{step.text}, without communication, because its speed is unknown"
    if not step.communication_ms:
        return step.text
    return f"{step.text}: computation {time(step.compute_ms / 1e3)}, communication {time(step.communication_ms / 1e3)}"


def _layer_table(layers: tuple[LayerTime, ...], most: int) -> list[Block]:
    if not layers:
        return []
    shown = layers[:most] if most else layers
    rows: list[tuple[str | Cell, ...]] = [
        (
            layer.name,
            number(layer.ms),
            Cell(percent(layer.share), share=layer.share),
            "" if layer.mxu_utilization is None else percent(layer.mxu_utilization),
            "; ".join(layer.notes[:2]),
        )
        for layer in shown
    ]
    table = Table({"layer": "<", "ms": ">", "share": ">", "matrix units": ">", "tiles that are not full": "<"}, rows)
    left = layers[len(shown) :]
    rest = f"{len(left)} more layers take {number(sum(layer.ms for layer in left))} ms." if left else ""
    return [table, *([rest] if rest else [])]
