"""Compares the footprint (time, price, memory) of a training run with the one in a registry or a preflight report."""

import dataclasses
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.formatting import byte_size, dollars, time
from tpu_components.core.examples.artifacts import PREFLIGHT_FILE
from tpu_components.core.machines.footprint import Footprint
from tpu_components.core.machines.machine_spec import billed_by
from tpu_components.core.pages.blocks import Table
from tpu_components.core.registry.opening import Origin, origin_of
from tpu_components.deploy_model.params import PREFLIGHT
from tpu_components.preflight_training.findings import PreflightReport

_ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True)
class NamedFootprint:
    """The footprint of a training run to compare with, and the name of that run."""

    name: str
    footprint: Footprint


def load_baseline(text: str) -> NamedFootprint:
    """Load the footprint to compare with, from a registered version or from the first machine of a preflight report.

    Args:
        text: `REGISTRY/MODEL@VERSION_OR_ALIAS`, a folder that preflight wrote, or its `preflight.json`.

    Raises:
        InputError: If the version, folder or file does not exist, or has no footprint.
    """
    origin = origin_of(text)
    return _of_report(text) if origin is None else _of_version(origin)


def _of_version(origin: Origin) -> NamedFootprint:
    name = origin.name
    kept = origin.lineage.get(PREFLIGHT)
    if not kept:
        raise InputError(
            f"Cannot compare with {name}: this version has no preflight result, because its run had no preflight or "
            "used an earlier release. Compare with a preflight.json file instead, for example from the previous commit."
        )
    try:
        return NamedFootprint(name, Footprint.read(kept))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"Cannot compare with {name}: another release wrote its preflight result ({error!r}). Compare with a "
            "preflight.json file instead."
        ) from error


def _of_report(text: str) -> NamedFootprint:
    path = Path(os.path.expanduser(text))
    report = PreflightReport.load(path.parent if path.name == PREFLIGHT_FILE else path)
    footprint = report.footprint(report.machines[0])
    if footprint is None:
        raise InputError(
            f"Cannot compare with {text}: expected the preflight report of a training step that fits its machine, with "
            f"an estimated time. Received: {report.machines[0].summary}. Use another preflight report."
        )
    return NamedFootprint(report.run or report.model, footprint)


@dataclasses.dataclass(frozen=True)
class FootprintComparison:
    """Comparison of the footprints of two training runs.

    Attributes:
        new: Footprint of the new training run.
        old: Footprint of the old training run.
        name: Name of the old training run.
        broken: Messages about limits that the new training run exceeds.
    """

    new: Footprint
    old: Footprint
    name: str
    broken: tuple[str, ...] = ()

    @classmethod
    def make(
        cls, report: PreflightReport, baseline: NamedFootprint, slower: float = math.inf, dearer: float = math.inf
    ) -> Self | None:
        """Compare the training run on the first machine of a preflight report with another training run.

        Return None if the training step does not fit the machine.

        Args:
            report: Findings of preflight.
            baseline: Training run to compare with.
            slower: Largest allowed increase of the time of an epoch. 0.1 means 10%.
            dearer: Largest allowed increase of the price of a run. 0.1 means 10%.
        """
        new = report.footprint(report.machines[0])
        if new is None:
            return None
        comparison = cls(new, baseline.footprint.priced_like(new), baseline.name)
        return dataclasses.replace(comparison, broken=comparison.broken_limits(slower, dearer))

    def broken_limits(self, slower: float, dearer: float) -> tuple[str, ...]:
        """Return a message for each limit that the new training run exceeds.

        Args:
            slower: Largest allowed increase of the time of an epoch. 0.1 means 10%.
            dearer: Largest allowed increase of the price of a run. 0.1 means 10%.
        """
        new, old = self.new, self.old
        limited = (
            ("an epoch takes", new.device_epoch_seconds, old.device_epoch_seconds, slower, time),
            (
                f"a run at {billed_by(new.target)} costs",
                new.device_usd_per_run,
                old.device_usd_per_run,
                dearer,
                dollars,
            ),
        )
        return tuple(
            (
                f"{what} {words(now)} on {new.machine}, which is {now / before - 1:.0%} more than the {words(before)} "
                f"of {self.name} on {old.machine}. At most {limit:.0%} more is allowed"
            )
            for what, now, before, limit, words in limited
            if now and before and now / before - 1 > limit + _ROUNDING
        )

    @property
    def summary(self) -> str:
        """The differences in price, time and memory, as a sentence."""
        new, old = self.new, self.old
        price = new.device_usd_per_run - old.device_usd_per_run if self._is_priced else 0.0
        share = f" ({new.step_ms / old.step_ms - 1:+.0%})" if old.step_ms else ""
        larger = (
            f" of {new.global_batch / old.global_batch:.3g} × the batch" if new.global_batch != old.global_batch else ""
        )
        changes = [
            _signed(price, dollars, f" a run at {billed_by(new.target)}"),
            _signed((new.step_ms - old.step_ms) / 1e3, time, f" a step{larger}{share}"),
            _signed(new.peak_bytes - old.peak_bytes, byte_size, " of memory"),
        ]
        words_of_changes = ", ".join(filter(None, changes)) or f"the same as {self.name}"
        before = "" if new.machine == old.machine else f", {old.machine} before"
        return f"{words_of_changes}, {'fits' if before else 'still fits'} {new.machine}{before}"

    @property
    def rows(self) -> list[tuple[str, str, str, str]]:
        """A row of texts for each quantity: name, new value, old value, and difference in percent."""
        new, old = self.new, self.old

        def row(name: str, now: float, before: float, words: Callable[[float], str]) -> tuple[str, str, str, str]:
            return name, words(now), words(before), f"{now / before - 1:+.0%}" if before and now != before else ""

        rows = [
            ("machine", new.machine, old.machine, ""),
            row("parameters", new.parameters, old.parameters, "{:,.0f}".format),
            row("batch of all replicas", new.global_batch, old.global_batch, "{:,.0f}".format),
            row("step", new.step_ms / 1e3, old.step_ms / 1e3, time),
            row("epoch, if the host keeps up", new.device_epoch_seconds, old.device_epoch_seconds, time),
            row("epochs", new.epochs, old.epochs, str),
            row("memory of a device", new.peak_bytes, old.peak_bytes, byte_size),
        ]
        if self._is_priced:
            name = f"price of a run, if the host keeps up, {billed_by(new.target)}"
            rows.append(row(name, new.device_usd_per_run, old.device_usd_per_run, dollars))
        return rows

    @property
    def caveats(self) -> tuple[str, ...]:
        """Messages about differences that limit the comparison: compiler versions and numbers of training examples."""
        compilers = {name: self.old.compiler.get(name, "another version") for name in sorted(self.new.compiler)}
        caveats = [
            f"this run was compiled with {name} {self.new.compiler[name]}, {self.name} with {before}"
            for name, before in compilers.items()
            if before != self.new.compiler[name]
        ]
        if self.new.num_examples != self.old.num_examples:
            caveats.append(
                f"this run has {self.new.num_examples:,} training examples, {self.name} had {self.old.num_examples:,}"
            )
        return tuple(caveats)

    @property
    def _is_priced(self) -> bool:
        return bool(self.new.device_usd_per_run and self.old.device_usd_per_run)

    def as_dict(self) -> dict[str, Any]:
        """Return values for JSON."""
        return dataclasses.asdict(self) | {"summary": self.summary, "caveats": self.caveats}

    def as_text(self) -> str:
        """Return the comparison for a terminal."""
        columns = {"": "<", "now": ">", self.name: ">", "difference": ">"}
        lines = [f"compared with {self.name}: {self.summary}", "", *Table(columns, self.rows).lines()]
        return "\n".join([*lines, *(f"({words})" for words in self.caveats), *self.broken])


def _signed(difference: float, words: Callable[[float], str], unit: str) -> str:
    """Return a difference as text, with its sign and unit. For a difference of 0, return an empty string.

    Args:
        difference: The difference.
        words: Function that formats the absolute value.
        unit: Text after the number.
    """
    return f"{'-' if difference < 0 else '+'}{words(abs(difference))}{unit}" if difference else ""
