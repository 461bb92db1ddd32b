"""The footprint of a training, from a report of preflight."""

from tpu_components.core.machines.footprint import Footprint
from tpu_components.preflight_training.compiler import FITS
from tpu_components.preflight_training.findings import MachineReport, PreflightReport


def footprint_of(report: PreflightReport, machine: MachineReport) -> Footprint | None:
    """Return the footprint on a machine of a report; None where the training does not fit it."""
    if machine.verdict != FITS or machine.step is None:
        return None
    return Footprint(
        machine=machine.machine,
        region=machine.region,
        spot=machine.spot,
        num_examples=report.data.num_examples,
        num_validation=report.data.num_validation,
        epochs=machine.epochs,
        global_batch=machine.global_batch,
        parameters=machine.parameters,
        step_ms=machine.step.total_ms,
        peak_bytes=machine.peak_bytes,
        capacity_bytes=machine.capacity_bytes,
        usd_per_hour=machine.cost.usd_per_hour if machine.cost else 0.0,
        compiler=report.compiler,
        target=machine.cost.target if machine.cost else "",
        price_factor=machine.cost.factor if machine.cost else 1.0,
    )
