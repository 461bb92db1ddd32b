"""Ranges of parts as a pipeline of Apache Beam, on any of its runners: the functions are those of `fan_out`.

TEMP/JOB/tasks/00007.npz   the tasks of a range: this process lists the source, and no worker does
TEMP/JOB/parts/00007       its parts; those that are whole stay when a worker or this step is started again
"""

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from components import storage
from components.beam.options import complete
from components.beam.running import call_for_each
from components.create_tfrecords.engines import fan_out
from components.create_tfrecords.params import WriteParams, WriteResult
from components.create_tfrecords.preparing import Prepared
from components.create_tfrecords.sources.kinds import find_location
from components.create_tfrecords.telling import STEP


def write_with_beam(params: WriteParams, directory: Path) -> WriteResult:
    """Write records as `write_records` does, their parts by the workers of a Beam runner.

    Args:
        params: Source to read, how to divide it, and the runner's options.
        directory: Folder to write; appears whole or not at all.

    Raises:
        InputError: If Apache Beam is not installed, its options are wrong, or `write_records` says so.
        PlatformError: If the runner's job fails.
    """
    options = complete(params.beam_options, {"the source": find_location(params.source)})
    storage.require_writable(directory)
    own = directory.parent / f".{directory.name}.parts"
    with tempfile.TemporaryDirectory() as folder:
        planned, prepared = fan_out.plan_and_prepare(params, f"{folder}/plan")  # Of which no worker reads anything.
        job = f"tpu-pipelines-records-{planned.key[:16]}"
        place = storage.join(options.get("temp_location", "") or str(own), job)
        folders = [f"{place}/parts/{number:05d}" for number in range(planned.num_ranges)]
        if ranges := fan_out.unwritten_ranges(planned, folders):
            assert prepared is not None
            _hand_over(planned, prepared, ranges, place)
            arguments = {"encoder": prepared.encoder, "key": planned.key, "place": place}
            call_for_each(ranges, write_range, arguments, job, options, STEP)
    result = fan_out.merge(params, planned, prepared, folders, directory)
    shutil.rmtree(own, ignore_errors=True)
    return result


def write_range(number: int, encoder: Any, key: str, place: str) -> int:
    """Write a range of parts, on a worker; returns their number.

    Args:
        number: Number of the range.
        encoder: Encoder of the examples; Beam checks what functions are given, and cannot check a Protocol.
        key: Digest of the facts that the parts follow from.
        place: Folder of the job.
    """
    return fan_out.write_handed(encoder, _tasks(place, number), key, f"{place}/parts/{number:05d}")


def _tasks(place: str, number: int) -> str:
    return f"{place}/tasks/{number:05d}.npz"


def _hand_over(planned: fan_out.PartsPlan, prepared: Prepared, ranges: Sequence[int], place: str) -> None:
    """Write the tasks of ranges that are not there: what they follow from is in the name of the job's folder."""
    there = storage.names_in(f"{place}/tasks")
    missing = {number: _tasks(place, number) for number in ranges if f"{number:05d}.npz" not in there}
    fan_out.write_tasks(planned, prepared, missing)
