"""Report section that compares preflight's prediction with the measurements of a training run."""

from collections.abc import Sequence

from tpu_components.core.base.formatting import byte_size, dollars, dollars_within, number, percent, time, time_within
from tpu_components.core.pages.blocks import Block, Cell, Fields, Section, Table
from tpu_components.core.results.receipt import Prediction, Receipt

_UNKNOWN = Cell("not measured", "note")
_Row = Sequence[str | Cell]
_COLUMNS = {"": "<", "Predicted": ">", "Measured": ">", "Measured / predicted": ">"}
_WITHOUT = (
    "The prediction covers only the epochs. The measurement also includes start-up, validation and checkpoints of all "
    "sessions."
)


def compare_prediction(receipt: Receipt | None) -> list[Block]:
    """Return a section with the predicted and the measured time, memory and price of a training run.

    Args:
        receipt: Measurements of the run and the prediction, or None if there are no measurements.

    Returns:
        A list with the section. Empty without measurements or a prediction.
    """
    if receipt is None or receipt.prediction is None:
        return []
    rows = [
        _compare_step(receipt, receipt.prediction),
        _compare_memory(receipt, receipt.prediction),
        *_compare_run(receipt, receipt.prediction),
    ]
    return [Section("Predicted and measured", [*_warnings(receipt), Table(_COLUMNS, rows), _notes(receipt)])]


def describe_step(receipt: Receipt) -> str:
    """Return the predicted and the measured time of a training step in one line.

    Args:
        receipt: Measurements of a training run, and the prediction.

    Returns:
        The line. Empty if there is no prediction for the machine of the run, or no step was measured.
    """
    predicted, measured = receipt.prediction, receipt.step_ms
    if predicted is None or measured is None or not receipt.is_comparable:
        return ""
    return f"{_predicted_step(predicted)} predicted, {time(measured.p50 / 1e3)} measured"


def _predicted_step(prediction: Prediction) -> str:
    return time_within(prediction.step_ms / 1e3, prediction.low_ms / 1e3, prediction.high_ms / 1e3)


def _compare_step(receipt: Receipt, prediction: Prediction) -> _Row:
    measured = receipt.step_ms
    predicted = _predicted_step(prediction)
    if measured is None:
        return ("Step", predicted, _UNKNOWN, "")
    spread = time_within(measured.p50 / 1e3, measured.p5 / 1e3, measured.p95 / 1e3)
    is_inside = prediction.low_ms <= measured.p50 <= prediction.high_ms
    return (
        "Step",
        predicted,
        spread,
        _ratio(receipt, measured.p50, prediction.step_ms, "good" if is_inside else "bad"),
    )


def _compare_memory(receipt: Receipt, prediction: Prediction) -> _Row:
    predicted = byte_size(prediction.peak_bytes)
    if receipt.peak_bytes is None:
        return ("Memory of a device", predicted, _UNKNOWN, "")
    ratio = _ratio(receipt, receipt.peak_bytes, prediction.peak_bytes)
    return ("Memory of a device", predicted, byte_size(receipt.peak_bytes), ratio)


def _compare_run(receipt: Receipt, prediction: Prediction) -> list[_Row]:
    predicted = time_within(prediction.seconds, prediction.low_seconds, prediction.high_seconds)
    rows: list[_Row] = [
        ("Time of the run", predicted, time(receipt.seconds), _ratio(receipt, receipt.seconds, prediction.seconds))
    ]
    if prediction.usd_per_hour:
        paid = dollars(receipt.price.usd) if receipt.price else Cell("unknown", "note")
        ratio = _ratio(receipt, receipt.price.usd, prediction.usd[0]) if receipt.price else ""
        rows.append(("Price of the run", dollars_within(*prediction.usd), paid, ratio))
    return rows


def _ratio(receipt: Receipt, measured: float, predicted: float, look: str = "") -> Cell:
    """Return a cell with the ratio of a measured to a predicted value, or an empty cell if they are not comparable."""
    return Cell(number(measured / predicted), look) if receipt.is_comparable and predicted else Cell("")


def _warnings(receipt: Receipt) -> list[Block]:
    if receipt.is_comparable or receipt.prediction is None:
        return []
    where = receipt.machine or f"{receipt.devices} × {receipt.device or 'unknown devices'}"
    return [
        f"The prediction is for {receipt.prediction.machine}, but the run took place on {where}. The figures are not "
        "comparable."
    ]


def _notes(receipt: Receipt) -> Fields:
    """Return notes that explain the table of predicted and measured values."""
    steps = f"median of {receipt.steps:,} of {receipt.all_steps:,} steps"
    waiting = "" if receipt.waiting is None else f"{percent(receipt.waiting)} of the time of the epochs, for input"
    sessions = "1 session" if receipt.sessions == 1 else f"{receipt.sessions:,} sessions"
    basis = receipt.prediction.basis if receipt.prediction else ""
    return Fields(
        [
            (
                "Brackets",
                f"predicted: 90% interval{f', from {basis}' if basis else ''}; measured: 5th to 95th percentile",
            ),
            ("Step", f"{steps}; steps that compile are left out"),
            ("Waiting", waiting),
            ("Run", f"{_WITHOUT} Start-up took {time(receipt.start_up_seconds)} in {sessions}."),
            ("Price", receipt.price.source if receipt.price else ""),
        ]
    )
