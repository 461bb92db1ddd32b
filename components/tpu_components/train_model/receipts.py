"""Writes the receipt of a training run: measured step times, peak memory and duration."""

from pathlib import Path
from typing import Any

from tpu_components.core.base import progress
from tpu_components.core.base.frameworks import jax
from tpu_components.core.machines.device import Device
from tpu_components.core.models.training_step.identity import step_digest
from tpu_components.core.results.receipt import QUANTILES, RECEIPT_FILE, VERSION, Receipt, StepQuantiles
from tpu_components.train_model.profiling import INPUT
from tpu_components.train_model.result import STEP, TrainResult
from tpu_components.train_model.session import Session
from tpu_components.train_model.step_times import quantiles_ms

_CPU = "cpu"


def leave_receipt(session: Session, result: TrainResult, directory: Path) -> None:
    """Write the receipt of a finished training run into the folder of its model.

    Errors are logged and then ignored, because the training run is already finished and must not fail.
    """
    try:
        make_receipt(session, result).save(directory)
    except Exception as error:  # For example a device whose driver does not report its memory.
        progress.say(STEP, f"could not write {RECEIPT_FILE}: {error!r}")


def make_receipt(session: Session, result: TrainResult) -> Receipt:
    """Return the receipt of a finished training run, without the price of the run.

    On a TPU or GPU, the machine's name is also left out. evaluate_model adds both from preflight's prediction.
    train_model does not read the catalogue of machines, because the catalogue would then be part of the code in the
    step's cache key, and every change of a price would cause the model to be trained again.
    """
    device = session.device
    counts = session.step_times.counts
    seconds = sum(result.paid_seconds.values())
    waited = result.time.get(INPUT)
    return Receipt(
        version=VERSION,
        program=_program(session),
        machine=_CPU if device.accelerator == _CPU else "",
        device=device.kind,
        devices=device.num_replicas,
        hosts=session.group.hosts.count,
        steps=sum(counts.values()),
        all_steps=result.steps,
        step_ms=StepQuantiles(*(float(f"{ms:.4g}") for ms in quantiles_ms(counts, QUANTILES))) if counts else None,
        waiting=None if waited is None else waited / (sum(result.time.values()) or 1.0),
        peak_bytes=find_peak_bytes(device),
        start_up_seconds=result.paid_seconds["start_up"],
        seconds=seconds,
        sessions=result.sessions,
    )


def _program(session: Session) -> str:
    device = session.device
    return step_digest(session.model, session.manifest.interface, session.params, device.backend, device.precision)


def find_peak_bytes(device: Device) -> int | None:
    """Return the peak memory use, in bytes, of this host's device that used the most memory.

    Return None if no device reports its memory use, for example on a CPU, or if the backend is not JAX.
    """
    if device.backend != "jax":
        return None
    statistics: list[dict[str, Any]] = [each.memory_stats() or {} for each in jax.local_devices()]
    peaks = [int(each["peak_bytes_in_use"]) for each in statistics if "peak_bytes_in_use" in each]
    return max(peaks, default=None)
