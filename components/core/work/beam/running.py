"""A function that Beam's workers call once for each of some numbers; on Dataflow in a job that is found again."""

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
    """Have the workers of a runner call a function for each number.

    Args:
        numbers: Numbers, of which a worker takes some.
        function: Function of a module; takes a number, and `arguments` by name.
        arguments: Further arguments, the same for all; they travel with the pipeline, and are small.
        job: Name of the job: one that runs already is followed, and no second one made.
        options: Options that `options.complete` has completed.
        step: Name of the step that says how the job goes.

    Raises:
        InputError: If a worker met a user's mistake, or the runner refuses its options.
        PlatformError: If the job fails.
    """
    import apache_beam

    options = {**options, "job_name": job}
    try:
        pipeline = apache_beam.Pipeline(options=as_beams_own(options))
    except ValueError as error:  # A runner that it does not know, or an option that this one refuses.
        raise InputError(f"Beam refuses beam_options: {error}") from error
    created = pipeline | "Numbers" >> apache_beam.Create(numbers, reshuffle=True)
    created | "Call" >> apache_beam.Map(function, **arguments)  # Adds it to the pipeline.
    if options["runner"] == DATAFLOW:
        DataflowJob(pipeline, options, step).run()
        return
    try:
        state = pipeline.run().wait_until_finish()
    except Exception as error:  # Of a kind that each runner has for itself; a worker's own error is words in it.
        words = f"{type(error).__module__}.{type(error).__name__}: {error}"
        if mistake := mistake_in(words):
            raise mistake from error
        if _TERMINATED in words:  # SIGTERM while this process was the worker.
            raise Terminated from error
        raise
    if state != "DONE":
        raise PlatformError(f"The Beam job {job} has ended as {state}. Its runner says why.")
