"""Calls a function on Beam's workers, once for each task.

If a step is restarted while its job on Dataflow is running, the step follows the running job.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.retries import PlatformError
from tpu_components.core.base.termination import Terminated
from tpu_components.core.work.beam.dataflow import DataflowJob, mistake_in
from tpu_components.core.work.beam.options import DATAFLOW, as_beams_own

_TERMINATED = f"{Terminated.__module__}.{Terminated.__name__}"


def call_for_each(
    numbers: Sequence[int],
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    job: str,
    options: Mapping[str, str],
    step: str,
) -> None:
    """Call a function for each number, on the workers of an Apache Beam runner.

    Args:
        numbers: Task numbers, which are divided among the workers.
        function: Module-level function that takes a number, and `arguments` as keyword arguments.
        arguments: Further arguments, the same for all calls. They are part of the pipeline and must be small.
        job: Name of the job. If a job with this name is running on Dataflow, this function waits for that job and does
            not start a second one.
        options: Options that `options.complete` has completed.
        step: Name of the step in log messages.

    Raises:
        InputError: If a worker reports a user's mistake, or the runner rejects its options.
        PlatformError: If the job fails.
    """
    import apache_beam

    options = {**options, "job_name": job}
    try:
        pipeline = apache_beam.Pipeline(options=as_beams_own(options))
    except ValueError as error:  # The runner is unknown, or refuses an option.
        raise InputError(f"Beam rejected beam_options: {error}") from error
    created = pipeline | "Numbers" >> apache_beam.Create(numbers, reshuffle=True)
    created | "Call" >> apache_beam.Map(function, **arguments)  # Adds it to the pipeline.
    if options["runner"] == DATAFLOW:
        DataflowJob(pipeline, options, step).run()
        return
    try:
        state = pipeline.run().wait_until_finish()
    except Exception as error:  # Each runner has its own class; a worker's error is part of the message.
        words = f"{type(error).__module__}.{type(error).__name__}: {error}"
        if mistake := mistake_in(words):
            raise mistake from error
        if _TERMINATED in words:  # SIGTERM while the worker was this process.
            raise Terminated from error
        raise
    if state != "DONE":
        raise PlatformError(
            f"The Beam job {job} ended in the state {state}. See the logs of its runner for the reason."
        )
