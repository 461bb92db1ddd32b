"""Compares the report of a step with the report of an earlier version of the step, for CI."""

import dataclasses
from collections.abc import Callable
from typing import Any

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.formatting import byte_size, number, percent
from tpu_components.core.pages import blocks
from tpu_components.core.pages.blocks import Block, Cell, Sentences, Table
from tpu_components.preflight_training.jax_steps.step_report import StepReport

_TOP_LAYERS = 12
_NOTHING = "–"


def _check(name: str, value: Any, is_in_range: Callable[[float], bool], expected: str) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not None and not (is_number and is_in_range(value)):
        raise InputError(f"Cannot use {name}={value!r} as a limit: expected {expected}.")


@dataclasses.dataclass(frozen=True)
class StepLimits:
    """Limits on the time and memory of a step.

    Attributes:
        max_step_ms: Longest allowed estimate of the time of a step, in milliseconds. None means no limit.
        max_memory: Largest allowed share of a device's memory, from 0 to 1. None means no limit.
        max_slowdown: Share by which a step may take longer than in the earlier report: 0.1 allows 10% more. None allows
            a time up to the upper end of the interval in the earlier report.
    """

    max_step_ms: float | None = None
    max_memory: float | None = None
    max_slowdown: float | None = None

    def __post_init__(self) -> None:
        """Check the limits.

        Raises:
            InputError: If a limit is not a number in its range.
        """
        _check("max_step_ms", self.max_step_ms, lambda ms: ms > 0, "a positive number of milliseconds")
        _check("max_memory", self.max_memory, lambda share: 0 < share <= 1, "a share from 0 to 1, such as 0.9")
        _check("max_slowdown", self.max_slowdown, lambda share: share >= 0, "a share, such as 0.1 for 10%")


@dataclasses.dataclass(frozen=True)
class StepChange:
    """A comparison of a step's report with an earlier report and with limits.

    Attributes:
        now: Report of the step.
        before: Earlier report, or None if there is none.
        limits: Limits on the time and memory of the step.
    """

    now: StepReport
    before: StepReport | None = None
    limits: StepLimits = StepLimits()

    @property
    def is_comparable(self) -> bool:
        """Whether both reports contain a time and are for the same machine and number of slices."""
        before = self.before
        if before is None or before.step is None or self.now.step is None:
            return False
        return (before.machine, before.slices) == (self.now.machine, self.now.slices)

    @property
    def failures(self) -> list[str]:
        """The reasons why the step fails the comparison, as sentences. Empty if it passes."""
        now = self.now
        limits = self.limits
        if not now.fits:
            return [f"{now.summary.rstrip('.')}."]
        failures = []
        if limits.max_memory is not None and now.memory.share > limits.max_memory:
            failures.append(f"{now.name} needs {now.memory} on {now.label}, but max_memory={limits.max_memory:g}.")
        if limits.max_step_ms is not None and now.step is None:
            failures.append(f"The time of {now.name} on {now.label} is unknown, so max_step_ms cannot be checked.")
        if limits.max_step_ms is not None and now.step and now.step.total_ms > limits.max_step_ms:
            failures.append(f"A step of {now.name} takes {now.step.text}, but max_step_ms={limits.max_step_ms:g}.")
        return [*failures, *self._slowdown()]

    def _slowdown(self) -> list[str]:
        before, now = self.before, self.now
        allowed = self.limits.max_slowdown
        if not self.is_comparable or before is None or before.step is None or now.step is None:
            return []
        # Only the compiler's estimates are compared, because receipts that were added later do not change the step.
        earlier = before.step.compiler_ms
        most = before.step.high_ms / before.step.factor if allowed is None else earlier * (1 + allowed)
        if now.step.compiler_ms <= most:
            return []
        limit = (
            f"above the earlier interval ({before.step.text})" if allowed is None else f"but max_slowdown={allowed:g}"
        )
        ratio = now.step.compiler_ms / earlier
        return [f"A step of {now.name} takes {now.step.text}, {number(ratio)} times as long as before, {limit}."]

    def blocks(self) -> list[Block]:
        """Return the comparison as blocks of a report."""
        now, before = self.now, self.before
        failures = Sentences(self.failures)
        if before is None:
            return [failures, *now.blocks(_TOP_LAYERS)]
        remarks = []
        if not self.is_comparable:
            remarks.append(
                f"Times are not compared, because the earlier report is for {before.label} or a time is unknown."
            )
        if before.compiler != now.compiler:
            remarks.append(
                "The earlier report was made with another version of JAX or libtpu, which may also change the figures."
            )
        return [failures, now.summary, Table(_COLUMNS, self._rows()), Sentences([*remarks, *now.notes])]

    def markdown(self) -> str:
        """Return the comparison as Markdown."""
        return blocks.as_markdown(self.blocks())

    def _rows(self) -> list[tuple[str | Cell, ...]]:
        now, before = self.now, self.before
        assert before is not None
        memory = [report.memory.peak_bytes for report in (before, now)]
        times = [report.step.compiler_ms if report.step else None for report in (before, now)]
        rows = [
            ("memory of a device", *map(byte_size, memory), _relative(memory[0], memory[1])),
            ("step, ms", *map(_number, times), _relative(*times)),
        ]
        earlier, later = ({layer.name: layer.ms for layer in report.layers} for report in (before, now))
        names = sorted(
            earlier.keys() | later.keys(), key=lambda name: -abs(later.get(name, 0.0) - earlier.get(name, 0.0))
        )
        for name in names[:_TOP_LAYERS]:
            each = (earlier.get(name), later.get(name))
            if each[0] != each[1]:
                rows.append((f"layer {name}, ms", *map(_number, each), _relative(*each)))
        return list(rows)


_COLUMNS = {"": "<", "before": ">", "now": ">", "change": ">"}


def _number(value: float | None) -> str:
    return _NOTHING if value is None else number(value)


def _relative(before: float | None, now: float | None) -> str:
    if before is None or now is None:
        return "new" if before is None and now is not None else "gone" if before is not None else _NOTHING
    if not before:
        return _NOTHING
    change = now / before - 1
    return f"{'+' if change >= 0 else '−'}{percent(abs(change))}"
