"""Ranks several steps by the price of the same work, for example one step with different layouts or machines."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tpu_components.core.base.formatting import number, percent
from tpu_components.core.base.terminal import printable
from tpu_components.core.files import storage
from tpu_components.core.pages import blocks, page
from tpu_components.core.pages.blocks import Block, Cell, Fields, Section, Sentences, Table
from tpu_components.core.pages.display import Displayed
from tpu_components.preflight_training.estimate import INTERVALS
from tpu_components.preflight_training.findings import VERDICTS
from tpu_components.preflight_training.jax_steps.step_report import StepReport, dollars_text

_WIDTH = 110
_NOTHING = "–"


@dataclasses.dataclass(frozen=True)
class Ranked:
    """A step in a comparison.

    Attributes:
        report: Report of the step.
        items: Number of items that a step processes.
        price: Price of processing all items of the comparison, in US dollars: estimate, lower and upper end of the 90%
            interval. None if unknown.
    """

    report: StepReport
    items: float
    price: tuple[float, float, float] | None


@dataclasses.dataclass(frozen=True, repr=False)
class StepComparison(Displayed):
    """A comparison of several steps. `to_pandas` returns a row for each step.

    Attributes:
        ranked: The steps, the cheapest first. Steps that do not fit are last.
        total: Number of items to process, for example the examples of an epoch or a billion tokens.
        unit: Name of an item, in the plural.
    """

    ranked: tuple[Ranked, ...]
    total: float
    unit: str

    @classmethod
    def make(cls, reports: Sequence[StepReport], items: Sequence[float], total: float, unit: str) -> "StepComparison":
        """Rank steps by the price of processing `total` items.

        Steps of unknown price come after steps with a price, and are ranked by time. Steps that do not fit come last.

        Args:
            reports: Report of each step.
            items: Number of items that each step processes.
            total: Number of items to process.
            unit: Name of an item, in the plural.
        """

        def rank(entry: Ranked) -> tuple[bool, float, float]:
            seconds = entry.report.step_seconds
            time = seconds * total / entry.items if seconds else math.inf
            return not entry.report.fits, entry.price[0] if entry.price else math.inf, time

        rows = zip(reports, items, strict=True)
        entries = [Ranked(report, count, report.dollars_for(total, count)) for report, count in rows]
        return cls(tuple(sorted(entries, key=rank)), total, unit)

    @property
    def reports(self) -> tuple[StepReport, ...]:
        """Report of each step, in the order of the ranking."""
        return tuple(entry.report for entry in self.ranked)

    @property
    def best(self) -> StepReport | None:
        """The cheapest step that fits, or None if no step fits."""
        return self.reports[0] if self.reports and self.reports[0].fits else None

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
        best = self.best
        if best is None:
            return "No step fits."
        fitting = sum(report.fits for report in self.reports)
        price = self.ranked[0].price
        cost = f": {dollars_text(price)} for {self._work}" if price else ""
        return f"{fitting} of {len(self.reports)} fit. The cheapest is {best.name} on {best.label}{cost}."

    @property
    def work_text(self) -> str:
        """Throughput of the first step in the ranking, and the price at which it processes all items, in words."""
        first = self.ranked[0]
        rate = first.report.per_second(first.items)
        price = dollars_text(first.price)
        return f"{number(rate) if rate else 'unknown'} {self.unit}/s, {price} for {self._work}"

    @property
    def _work(self) -> str:
        return f"{self.total:,.0f} {self.unit}"

    @property
    def is_close(self) -> bool:
        """Whether the price intervals of the two cheapest steps overlap."""
        prices = [entry.price for entry in self.ranked[:2] if entry.report.fits]
        known = [price for price in prices if price]
        return len(known) > 1 and known[1][1] < known[0][2]

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per step, in the order of the ranking. Each row maps column names to values."""
        rows = []
        for entry in self.ranked:
            report = entry.report
            price = entry.price
            rows.append(
                {
                    "name": report.name,
                    "machine": report.label,
                    "verdict": report.verdict,
                    "peak_bytes": report.memory.peak_bytes,
                    "memory_share": report.memory.share,
                    "step_seconds": report.step_seconds,
                    "interval": report.interval,
                    "items_per_second": report.per_second(entry.items),
                    "dollars": price[0] if price else None,
                    "dollars_interval": price[1:] if price else None,
                }
            )
        return rows

    def __str__(self) -> str:
        return blocks.as_text(self._head(), _WIDTH)

    def show(self) -> None:
        """Print the comparison."""
        print(printable(str(self)))

    def markdown(self) -> str:
        """Return the comparison as Markdown."""
        return blocks.as_markdown(self._head())

    def save_page(self, path: str | Path) -> Path:
        """Write the comparison, with a section for each step, as an HTML page, and return its path."""
        sections: list[Block] = [
            Section(f"{entry.report.name} on {entry.report.label}", entry.report.blocks(), is_folded=i > 0)
            for i, entry in enumerate(self.ranked)
        ]
        _, *rest = self._head()
        title = f"Preflight of {len(self.ranked)} steps"
        passed = self.best is not None
        content = page.render(
            title, [*rest, *sections], head=[Sentences([], self.verdict, passed)], subtitle=page.now()
        )
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        storage.write_bytes(path, content.encode())
        return path

    def _head(self) -> list[Block]:
        columns = {
            "step": "<",
            "machine": "<",
            "verdict": "<",
            "memory": ">",
            "step time": ">",
            "MXU": ">",
            f"{self.unit}/s": ">",
            "price": ">",
        }
        most = max((entry.price[0] for entry in self.ranked if entry.price), default=0.0)
        close = "The intervals of the two cheapest steps overlap, so the second may be cheaper. Measure both."
        remarks = [*([close] if self.is_close else []), *self._reasons()]
        fields = [("price", f"price of {self._work}, with its 90% interval"), ("step time", INTERVALS)]
        rows = [self._row(entry, most) for entry in self.ranked]
        return [self.verdict, Table(columns, rows), Sentences(remarks), Fields(fields)]

    def _row(self, entry: Ranked, most: float) -> tuple[str | Cell, ...]:
        report = entry.report
        price = entry.price
        rate = report.per_second(entry.items)
        verdict = VERDICTS[report.verdict]
        return (
            report.name,
            report.label,
            Cell(verdict, "good" if report.fits else "bad"),
            Cell(percent(report.memory.share), share=min(report.memory.share, 1.0)),
            report.step.text if report.step else _NOTHING,
            percent(report.step.mxu_utilization) if report.step else _NOTHING,
            number(rate) if rate else _NOTHING,
            Cell(dollars_text(price), "best" if report is self.best else "", share=price[0] / most if most else None)
            if price
            else _NOTHING,
        )

    def _reasons(self) -> list[str]:
        refused = [report.summary for report in self.reports if not report.fits]
        notes = [f"{report.name} on {report.label}: {note}" for report in self.reports for note in report.notes]
        return [*refused, *dict.fromkeys(notes)]
