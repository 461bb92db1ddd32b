"""Receipts of runs that nobody made."""

from typing import Any

from tpu_components.core.results.receipt import VERSION, Prediction, Price, Receipt, StepQuantiles

PROGRAM = "a" * 64
OTHER = "b" * 64


def predict(machine: str = "v5e-8", **changes: Any) -> Prediction:
    """A step of 10 ms, of which 100 s are 10,000."""
    values = {
        "program": PROGRAM,
        "machine": machine,
        "device": "TPU v5 lite",
        "devices": 8,
        "hosts": 1,
        "step_ms": 10.0,
        "low_ms": 8.7,
        "high_ms": 15.4,
    }
    values |= {"compiler_ms": 10.0, "mxu_utilization": 0.6, "peak_bytes": 2 << 30}
    values |= {"seconds": 100.0, "low_seconds": 87.0, "high_seconds": 154.0}
    values |= {"usd_per_hour": 11.04, "price_source": "Vertex AI's list price, in us-west1 (2026-01-01)"}
    return Prediction(**values | changes)


def receive(median_ms: float = 13.0, prediction: Prediction | None = None, **changes: Any) -> Receipt:
    """A run whose steps took this long."""
    spread = (0.9, 0.95, 1.0, 1.05, 1.2)
    values: dict[str, Any] = {
        "version": VERSION,
        "program": PROGRAM,
        "machine": "v5e-8",
        "device": "TPU v5 lite",
        "devices": 8,
    }
    values |= {"hosts": 1}
    values |= {"steps": 9_990, "all_steps": 10_000, "step_ms": StepQuantiles(*(median_ms * each for each in spread))}
    values |= {"waiting": 0.01, "peak_bytes": 3 << 30, "start_up_seconds": 60.0, "seconds": 200.0, "sessions": 1}
    values |= {"price": Price(10.0, "a list price", 0.6), "prediction": prediction}
    return Receipt(**values | changes)
