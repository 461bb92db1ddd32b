"""Writes records with an Apache Beam pipeline on any runner. Each worker encodes ranges of the examples as parts.

A part is a file of encoded examples. The workers only write parts. The step's own process lists the source and merges
the parts into records. This process and the workers share a folder:

TEMP/JOB   tasks and finished parts (see `resume_state`); TEMP is the option `temp_location`
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

import numpy as np

from tpu_components.core.base.errors import BAD_INPUT, InputError
from tpu_components.core.base.retries import PlatformError
from tpu_components.core.component import command_line
from tpu_components.core.files import storage
from tpu_components.core.files.location import Location
from tpu_components.core.sources.kinds import find_location
from tpu_components.core.sources.params import WriteParams, WriteResult
from tpu_components.core.sources.tasks import load_tasks, pack_tasks
from tpu_components.core.work.beam.options import complete
from tpu_components.core.work.beam.running import call_for_each
from tpu_components.core.work.resume_state import ResumeState, giving_up
from tpu_components.create_tfrecords.engines import fan_out
from tpu_components.create_tfrecords.log_messages import STEP
from tpu_components.create_tfrecords.parts import part_bytes, read_records, write_part

_PYTHON_VARIABLE = "TPU_PIPELINES_BEAM_PYTHON"


def write_with_beam(params: WriteParams, directory: Path, data_version: str = "") -> WriteResult:
    """Write the same records as `write_records`, but with the workers of a Beam runner.

    If Beam is not installed, another Python interpreter runs this function: the one that TPU_PIPELINES_BEAM_PYTHON
    names, or the one in the environment that `make beam-env` created next to this environment.

    Args:
        params: Source to read, how to divide it, and the runner's options.
        directory: Folder to write. It is written completely or not at all.
        data_version: See `write_records`.

    Raises:
        InputError: If Apache Beam is not installed, if its options are wrong, and in all cases that `write_records`
            lists.
        PlatformError: If the runner's job fails.
    """
    if importlib.util.find_spec("apache_beam") is None and (python := _python_with_beam()):
        return _write_by(python, params, directory, data_version)
    options = complete(params.beam_options, {"the source": find_location(params.source_ref)})
    storage.require_writable(directory)
    own = directory.parent / f".{directory.name}.parts"
    planned, prepared = fan_out.prepare_parts(params, data_version)
    tasks = prepared.cut(planned.num_ranges)
    job = f"tpu-pipelines-records-{planned.key[:16]}"
    parts = ResumeState(Location(options.get("temp_location", "") or own).child(job)).begin(planned.key)
    finished = parts.finished()
    listing = prepared.plan.listing

    def pack(number: int) -> bytes:
        counts = {i: len(tasks[i].examples) for i in planned.parts_of(number)}
        indices = np.concatenate([tasks[i].examples for i in counts])
        return pack_tasks(planned.key, listing.select(indices), counts)

    names = {number: map(fan_out.part_name, planned.parts_of(number)) for number in range(planned.num_ranges)}
    if ranges := [number for number, some in names.items() if not finished.issuperset(some)]:
        parts.hand_over(ranges, pack)
        arguments = {"encoder": prepared.encoder, "key": planned.key, "place": parts.root}
        call_for_each(ranges, write_range, arguments, job, options, STEP)
        with giving_up(parts):
            listing.require_unchanged()
    result = fan_out.merge(planned, prepared, [parts.root], directory)
    shutil.rmtree(own, ignore_errors=True)
    return result


def _python_with_beam() -> str:
    """Return the path of the Python interpreter of an environment with Beam, or an empty string if there is none."""
    usual = Path(sys.prefix).parent / ".beam" / "bin" / "python"
    return os.environ.get(_PYTHON_VARIABLE, "") or (str(usual) if usual.is_file() else "")


def _write_by(python: str, params: WriteParams, directory: Path, data_version: str) -> WriteResult:
    """Run `write_with_beam` in another Python process, which gets SIGTERM if this process is interrupted.

    Raises:
        InputError: If the command reports a user's mistake, or cannot be started.
        PlatformError: If the command fails.
    """
    words = [
        python,
        "-P",
        "-m",
        "tpu_components.create_tfrecords.engines",
        "beam",
        "--output",
        str(directory.absolute()),
        *([f"--data-version={data_version}"] if data_version else []),
    ]
    try:
        process = subprocess.Popen(
            [*words, *command_line.flags_of(params)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    except OSError as error:
        raise InputError(
            f"Cannot run {python}, the value of {_PYTHON_VARIABLE}: {error.strerror}. Run `make beam-env`, and set "
            "the variable to .beam/bin/python."
        ) from error
    reason = ""
    with process:
        assert process.stderr is not None
        assert process.stdout is not None
        try:
            for line in process.stderr:
                if reason or line.startswith("error: "):  # The last message may have several lines.
                    reason += line
                else:
                    sys.stderr.write(line)
            result = process.stdout.read()
            code = process.wait()
        except BaseException:
            process.terminate()
            raise
    reason = reason.removeprefix("error: ").strip()
    if code == BAD_INPUT:
        raise InputError(reason)
    if code:
        raise PlatformError(reason or f"{python} ended with exit code {code}. See its output above for the reason.")
    return WriteResult(**json.loads(result))


def write_range(number: int, encoder: Any, key: str, place: str) -> int:
    """Write the missing parts of a range on a worker. Return the number of parts in the range.

    Args:
        number: Number of the range.
        encoder: Encoder of the examples. Its type is `Any`, because Beam checks the types of arguments.
        key: Digest of everything that the content of the parts depends on.
        place: Folder of the job, TEMP/JOB.

    Raises:
        InputError: If images differ in shape.
    """
    parts = ResumeState(place)
    tasks = dict(load_tasks(parts.task(number), key))
    there = parts.whole(map(fan_out.part_name, tasks))
    with tempfile.TemporaryDirectory() as folder:
        for name, examples in ((fan_out.part_name(i), examples) for i, examples in tasks.items()):
            if name not in there:
                parts.finish(name, part_bytes(read_records(write_part(encoder, f"{folder}/part", examples))), {})
    return len(tasks)
