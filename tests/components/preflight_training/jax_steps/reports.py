"""Reports of steps that need no compiler."""

import dataclasses
from typing import Any

from tpu_components.preflight_training.estimate import LayerTime, StepTime
from tpu_components.preflight_training.jax_steps.step_report import HourlyPrice, Memory, StepReport


def make_report(milliseconds: float | None = 10.0, gib: float = 4.0, **fields: Any) -> StepReport:
    """A step of two layers on v5e-8 whose interval is 0.9 to 1.5 times its time."""
    ms = milliseconds
    step = None if ms is None else StepTime(ms, 0.0, 0.0, 0.6, 1e12, 0.9 * ms, 1.5 * ms)
    layers = (
        (LayerTime("up", 0.7 * ms, 0.7, 0.8, 0.0, ()), LayerTime("down", 0.3 * ms, 0.3, 0.4, 0.0, ())) if ms else ()
    )
    report = StepReport(
        name="train_step",
        machine="v5e-8",
        slices=1,
        devices=8,
        used_devices=8,
        verdict="fits",
        reason="",
        memory=Memory(int(gib * 2**30), 16 * 2**30),
        step=step,
        accuracy=None,
        layers=layers,
        price=HourlyPrice(3.6, "us-west4", False, "vertex", "2026"),
        compiler={"jax": "0.10.2"},
    )
    return dataclasses.replace(report, **fields)
