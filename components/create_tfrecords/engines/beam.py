"""Ranges of parts as a pipeline of Apache Beam, on any of its runners: the functions are those of `fan_out`.

TEMP/JOB   tasks and finished parts, as `resume_state` says: this process lists the source, and no worker does
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.retries import PlatformError
from tpu_components.core.files import storage
from tpu_components.core.sources.kinds import find_location
from tpu_components.core.sources.params import WriteParams, WriteResult
from tpu_components.core.sources.tasks import pack_tasks
from tpu_components.core.step import command_line
from tpu_components.core.work.beam.options import complete
from tpu_components.core.work.beam.running import call_for_each
from tpu_components.core.work.resume_state import ResumeState
from tpu_components.create_tfrecords.engines import fan_out
from tpu_components.create_tfrecords.log_messages import STEP

_PYTHON_VARIABLE = "TPU_PIPELINES_BEAM_PYTHON"


def write_with_beam(params: WriteParams, directory: Path) -> WriteResult:
    """Write records as `write_records` does, their parts by the workers of a Beam runner.

    Where Beam is not installed, the Python that TPU_PIPELINES_BEAM_PYTHON names does it, or the one that `make
    beam-env` has put beside this environment.

    Args:
        params: Source to read, how to divide it, and the runner's options.
        directory: Folder to write; appears whole or not at all.

    Raises:
        InputError: If Apache Beam is not installed, its options are wrong, or `write_records` says so.
        PlatformError: If the runner's job fails.
    """
    if importlib.util.find_spec("apache_beam") is None and (python := _python_with_beam()):
        return _write_by(python, params, directory)
    options = complete(params.beam_options, {"the source": find_location(params.source)})
    storage.require_writable(directory)
    own = directory.parent / f".{directory.name}.parts"
    with tempfile.TemporaryDirectory() as folder:
        planned, prepared = fan_out.plan_and_prepare(params, f"{folder}/plan")  # Of which no worker reads anything.
    job = f"tpu-pipelines-records-{planned.key[:16]}"
    parts = ResumeState(storage.join(options.get("temp_location", "") or str(own), job))
    if prepared is not None:
        parts.begin(planned.key)
        tasks, finished = prepared.cut(planned.num_ranges), parts.finished()

        def pack(number: int) -> bytes:
            return pack_tasks(planned.key, prepared.plan.listing, {i: tasks[i][2] for i in planned.parts_of(number)})

        names = {number: map(fan_out.part_name, planned.parts_of(number)) for number in range(planned.num_ranges)}
        if ranges := [number for number, some in names.items() if not finished.issuperset(some)]:
            parts.hand_over(ranges, pack)
            arguments = {"encoder": prepared.encoder, "key": planned.key, "place": parts.root}
            call_for_each(ranges, write_range, arguments, job, options, STEP)
    result = fan_out.merge(params, planned, prepared, [parts.root], directory)
    shutil.rmtree(own, ignore_errors=True)
    return result


def _python_with_beam() -> str:
    """Return the Python of the environment with Beam; empty where there is none."""
    usual = Path(sys.prefix).parent / ".beam" / "bin" / "python"
    return os.environ.get(_PYTHON_VARIABLE, "") or (str(usual) if usual.is_file() else "")


def _write_by(python: str, params: WriteParams, directory: Path) -> WriteResult:
    """Have the command of another Python do what `write_with_beam` does; SIGTERM ends it too.

    Raises:
        InputError: If it met a user's mistake, or cannot be started.
        PlatformError: If it fails.
    """
    words = [
        python,
        "-P",
        "-m",
        "tpu_components.create_tfrecords.engines",
        "beam",
        "--output",
        str(directory.absolute()),
    ]
    try:
        process = subprocess.Popen(
            [*words, *command_line.flags_of(params)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    except OSError as error:
        raise InputError(
            f"Cannot run {python}, which {_PYTHON_VARIABLE} names: {error.strerror}. Run: make beam-env, and name its "
            ".beam/bin/python."
        ) from error
    reason = ""
    with process:
        assert process.stderr is not None
        assert process.stdout is not None
        try:
            for line in process.stderr:
                if reason or line.startswith("error: "):  # The last that it says, perhaps in several lines.
                    reason += line
                else:
                    sys.stderr.write(line)
            result, code = process.stdout.read(), process.wait()
        except BaseException:
            process.terminate()
            raise
    reason = reason.removeprefix("error: ").strip()
    if code == command_line.BAD_INPUT:
        raise InputError(reason)
    if code:
        raise PlatformError(reason or f"{python} has ended with exit code {code}. What it printed says why.")
    return WriteResult(**json.loads(result))


def write_range(number: int, encoder: Any, key: str, place: str) -> int:
    """Write a range of parts, on a worker; returns their number.

    Args:
        number: Number of the range.
        encoder: Encoder of the examples; Beam checks what functions are given, and cannot check a Protocol.
        key: Digest of the facts that the parts follow from.
        place: Folder of the job.
    """
    parts = ResumeState(place)
    return fan_out.write_handed(encoder, parts.task(number), key, parts)
