"""An overview of receipts: each run's predicted and measured step time, and the step-time intervals of future runs."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from tpu_components.core.base.formatting import byte_size, dollars, number, time, time_within
from tpu_components.core.pages import blocks
from tpu_components.core.pages.blocks import Block, Fields, Table
from tpu_components.core.results.receipt import Receipt
from tpu_components.preflight_training.estimate import WELL_USED, accuracy_at
from tpu_components.preflight_training.receipts.calibration import Calibration, Interval, Prior, name_of, runs_of

_WIDTH = 110
_SHOWN_DIGITS = 8  # Of a program's digest.
_NOTHING = "–"
_RUNS = {
    "program": "<",
    "machine": "<",
    "steps": ">",
    "predicted": ">",
    "measured": ">",
    "ratio": ">",
    "memory": ">",
    "run": ">",
    "price": ">",
    "not used": "<",
}
_NOTES = [
    ("predicted", "time of a step, as preflight showed it; measured: median"),
    ("ratio", "measured time divided by the compiler's estimate; the intervals are derived from these numbers"),
    ("not used", "reason why the intervals are derived without this run"),
]
_INTERVALS = {"next run of": "<", "on": "<", "time / estimate": ">", "from": "<"}
_NEW = {
    "new, at least half of the peak": WELL_USED,
    "new, less than half": 0.0,
}


@dataclasses.dataclass(frozen=True)
class Overview:
    """An overview of the receipts of training runs, and of the step-time intervals that are derived from them.

    Attributes:
        receipts: Receipts from a store.
    """

    receipts: Sequence[Receipt]

    def intervals(self) -> list[tuple[str, str, Interval]]:
        """Return (program, machine, interval) for each measured program and for two kinds of new programs.

        A measured program is named by its digest. The two kinds of new programs are those that are estimated to use at
        least half of the matrix units' peak, and those that use less. They are named by a description, and their
        machine is empty. Return an empty list if no run can be used.
        """
        runs = runs_of(self.receipts)
        if not runs:
            return []
        calibration = Calibration(runs)
        used = [receipt for receipt in self.receipts if receipt.ratio is not None]
        known = {(receipt.program, receipt.machine): receipt.prediction for receipt in used}
        rows = [
            (program, machine, calibration.interval(name_of(program, machine), _prior(prediction.mxu_utilization)))
            for (program, machine), prediction in known.items()
            if prediction is not None
        ]
        return rows + [(name, "", calibration.interval("", _prior(share))) for name, share in _NEW.items()]

    def as_dict(self) -> dict[str, Any]:
        """Return the receipts and intervals as values for JSON."""
        intervals = [
            {"program": program, "machine": machine, **dataclasses.asdict(interval)}
            for program, machine, interval in self.intervals()
        ]
        return {"receipts": [receipt.as_dict() for receipt in self.receipts], "intervals": intervals}

    def __str__(self) -> str:
        if not self.receipts:
            return "no receipts; preflight uses the intervals of published step times"
        return blocks.as_text(self._blocks(), _WIDTH)

    def _blocks(self) -> list[Block]:
        rows = [_row(receipt) for receipt in self.receipts]
        intervals = [
            (
                program if machine == "" else program[:_SHOWN_DIGITS],
                machine,
                f"{number(interval.factor)} ({number(interval.low)}–{number(interval.high)})",
                interval.basis,
            )
            for program, machine, interval in self.intervals()
        ]
        unchanged = "no run can be used; preflight uses the intervals of published step times"
        return [Table(_RUNS, rows), Fields(_NOTES), Table(_INTERVALS, intervals) if intervals else unchanged]


def _prior(mxu_utilization: float) -> Prior:
    return Prior.from_accuracy(accuracy_at(mxu_utilization))


def _row(receipt: Receipt) -> tuple[str, ...]:
    predicted, measured = receipt.prediction, receipt.step_ms
    return (
        receipt.program[:_SHOWN_DIGITS] or _NOTHING,
        receipt.machine or _NOTHING,
        f"{receipt.steps:,}",
        time_within(predicted.step_ms / 1e3, predicted.low_ms / 1e3, predicted.high_ms / 1e3)
        if predicted
        else _NOTHING,
        time(measured.p50 / 1e3) if measured else _NOTHING,
        _NOTHING if receipt.ratio is None else number(receipt.ratio),
        _NOTHING if receipt.peak_bytes is None else byte_size(receipt.peak_bytes),
        time(receipt.seconds),
        dollars(receipt.price.usd) if receipt.price else _NOTHING,
        receipt.unused_because,
    )
