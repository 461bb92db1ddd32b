"""Ranges of parts as a pipeline of Apache Beam, on any of its runners: the functions are those of `fan_out`.

TEMP/JOB/tasks/00007.npz   the tasks of a range: this process lists the source, and no worker does
TEMP/JOB/parts/00007       its parts; those that are whole stay when a worker or this step is started again
"""

import contextlib
import functools
import io
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from components import dataflow, storage
from components.create_tfrecords.encoders import Encoder
from components.create_tfrecords.engines import fan_out
from components.create_tfrecords.params import DATAFLOW, WriteParams, WriteResult
from components.create_tfrecords.preparing import Prepared
from components.create_tfrecords.sources.kinds import find_location
from components.create_tfrecords.telling import STEP
from components.errors import InputError, did_you_mean
from components.outages import PlatformError
from components.termination import Terminated

_IN_THIS_PROCESS = "FnApiRunner"  # DirectRunner may fetch the binary of another one from the net.
_TERMINATED = f"{Terminated.__module__}.{Terminated.__name__}"
_NEEDED_BY_DATAFLOW = ("project", "region", "temp_location", "sdk_container_image")


def write_with_beam(params: WriteParams, directory: Path) -> WriteResult:
    """Write records as `write_records` does, their parts by the workers of a Beam runner.

    Args:
        params: Source to read, how to divide it, and the runner's options.
        directory: Folder to write; appears whole or not at all.

    Raises:
        InputError: If Apache Beam is not installed, its options are wrong, or `write_records` says so.
        PlatformError: If the runner's job fails.
    """
    options = _checked(params.beam_options, params.source)
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
            _write_ranges(prepared.encoder, planned.key, {**options, "job_name": job}, ranges, place)
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


def _write_ranges(encoder: Encoder, key: str, options: Mapping[str, str], ranges: Sequence[int], place: str) -> None:
    """Have ranges written by the runner that the options name."""
    import apache_beam

    try:
        pipeline = apache_beam.Pipeline(options=_pipeline_options(options))
    except ValueError as error:  # A runner that it does not know, or an option that this one refuses.
        raise InputError(f"Beam refuses data.beam_options: {error}") from error
    numbers = pipeline | "Ranges" >> apache_beam.Create(ranges, reshuffle=True)
    numbers | "Write" >> apache_beam.Map(write_range, encoder=encoder, key=key, place=place)  # Adds it to the pipeline.
    if options["runner"] == DATAFLOW:
        service = _service(options)
        service.run(options["job_name"], functools.partial(_submit, pipeline, options), STEP)
        return
    try:
        state = pipeline.run().wait_until_finish()
    except Exception as error:  # Of a kind that each runner has for itself; a worker's own error is words in it.
        words = f"{type(error).__module__}.{type(error).__name__}: {error}"
        if mistake := dataflow.mistake_in(words):
            raise mistake from error
        if _TERMINATED in words:  # SIGTERM while this process was the worker.
            raise Terminated from error
        raise
    if state != "DONE":
        raise PlatformError(f"The Beam job {options['job_name']} has ended as {state}. Its runner says why.")


def _service(options: Mapping[str, str]) -> dataflow.Dataflow:
    credentials = None
    if "no_auth" in options:
        from google.auth.credentials import AnonymousCredentials

        credentials = AnonymousCredentials()
    return dataflow.Dataflow(
        options["project"], options["region"], options.get("dataflow_endpoint", ""), credentials=credentials
    )


def _submit(pipeline: Any, options: Mapping[str, str]) -> str:
    """Send a pipeline to Dataflow by Beam's own client; returns the job's id, or "" where there is one of its name."""
    from apache_beam.runners.dataflow.internal.apiclient import DataflowJobAlreadyExistsError
    from google.api_core.exceptions import GoogleAPICallError

    try:
        return str(pipeline.run().job_id())
    except DataflowJobAlreadyExistsError:
        return ""
    except GoogleAPICallError as error:
        where = f"{options['project']}, {options['region']}"
        words = re.sub(r"^[A-Z]+ \S+: ", "", str(error.message))  # It begins with what was asked, and at which address.
        raise dataflow.refusal(int(error.code or 500), words, where) from error


def _checked(asked: Mapping[str, str], source: str) -> dict[str, str]:
    """Return the options with the runner among them.

    Raises:
        InputError: If Beam is not installed, does not know one of them, or a runner on other machines lacks one.
    """
    try:
        import apache_beam  # noqa: F401
    except ImportError as error:
        raise InputError(
            "Cannot write records with Apache Beam: it is not installed here. Run: pip install 'apache-beam[gcp]', in "
            "an environment of its own, since it excludes libraries that others need; or use the image of `make "
            "image-beam`, or data.engine=local or fan_out."
        ) from error
    options = {"runner": _IN_THIS_PROCESS, **asked}
    known = _pipeline_options({}).get_all_options()
    for name in _pipeline_options(options).get_all_options(retain_unknown_options=True):
        if name not in known:
            raise InputError(f"Beam has no option {name!r}. Check data.beam_options.{did_you_mean(name, known)}")
    if options["runner"] != DATAFLOW:
        return options
    # The image has this project's code, and the runner takes nothing else from an index of packages.
    options = {"sdk_location": "container", **options}
    if missing := [name for name in _NEEDED_BY_DATAFLOW if not options.get(name)]:
        raise InputError(f"Dataflow needs data.beam_options of these names too: {', '.join(missing)}.")
    place = find_location(source)
    for name, uri in (("data.beam_options.temp_location", options["temp_location"]), ("data.source", place)):
        if uri and not storage.is_on_google(uri):
            raise InputError(
                f"Dataflow's workers see Cloud Storage alone: expected {name} on gs://. Received: {uri!r}."
            )
    return options


def _pipeline_options(options: Mapping[str, str]) -> Any:
    """Return Beam's own form of options.

    Raises:
        InputError: If a value is none that the option takes.
    """
    from apache_beam.options.pipeline_options import PipelineOptions

    flags = [f"--{name}={value}" if value else f"--{name}" for name, value in options.items()]
    told = io.StringIO()
    try:
        with contextlib.redirect_stderr(told):  # Where a command line that cannot be parsed is told to be one.
            beam_options = PipelineOptions(flags)
            beam_options.get_all_options(retain_unknown_options=True)
    except SystemExit as error:
        why = told.getvalue().strip().rpartition("error: ")[2]
        raise InputError(f"Beam refuses data.beam_options: {why}. Correct the value.") from error
    return beam_options
