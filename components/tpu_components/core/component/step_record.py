"""The file `step.json`, which records whether a step succeeded. The runner of the pipeline reads it.

The step writes the file next to its artifacts, because kfp.local reports most failed containers as successful.
"""

import contextlib
import dataclasses
import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from tpu_components.core.base import progress, termination
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.retries import PlatformError
from tpu_components.core.base.states import State
from tpu_components.core.base.terminal import hide_credentials
from tpu_components.core.component.step_inputs import params_from
from tpu_components.core.files import storage
from tpu_components.core.files.typed_json import JsonFile
from tpu_components.core.machines.hosts import is_writer
from tpu_components.core.sources.kinds import location_of
from tpu_components.core.sources.source_ref import SourceRef

STEP_RECORD_FILE = "step.json"
RUN_VARIABLE = "TPU_PIPELINES_RUN"  # Name of the run, for the pages that a step writes.
# Process ID of the local runner. A step whose runner has died must not run at the same time as the next run's step.
RUNNER_VARIABLE = "TPU_PIPELINES_RUNNER"


@dataclasses.dataclass(frozen=True)
class StepRecord(JsonFile, name=STEP_RECORD_FILE, what="the record of a step", step="the pipeline"):
    """Content of `step.json`.

    Attributes:
        step: Name of the step.
        state: `succeeded` or `failed`.
        seconds: Duration of the step. Can be negative in files of old versions, if the clock was set back.
        error: Message or stack trace of the failure.
        is_input_error: Whether the failure was a user's mistake.
    """

    step: str
    state: Annotated[str, (State.SUCCEEDED, State.FAILED)]
    seconds: float = 0.0
    error: str = ""
    is_input_error: bool = False


@contextlib.contextmanager
def step_record(step: str, artifact_path: str) -> Iterator[None]:
    """Write `step.json` next to `artifact_path` when the `with` block ends. Exceptions are recorded and raised again.

    If several hosts train together, only host 0 writes the file. SIGTERM raises `Terminated` in the block.
    """
    if runner := os.environ.get(RUNNER_VARIABLE):
        termination.end_with(int(runner))
    start = time.monotonic()
    state = State.SUCCEEDED
    message = ""
    mistake = False
    try:
        with termination.heard(), storage.naming_faults(), progress.never_silent(step):
            yield
    except BaseException as error:
        state = State.FAILED
        mistake = isinstance(error, InputError)
        in_words = isinstance(error, InputError | PlatformError | termination.Terminated)
        message = hide_credentials(str(error) if in_words else traceback.format_exc())
        raise
    finally:
        if is_writer():
            StepRecord(step, state, time.monotonic() - start, message, mistake).save(Path(artifact_path).parent)


def _say_what_the_cache_misses(step: str, inputs: Mapping[str, Any]) -> None:
    """Print a warning if a platform's cache would still return this step's results after the data source changes."""
    if inputs.get("data_version", "unknown") or not location_of(SourceRef.parse(inputs["source"])).is_remote:
        return
    progress.say(
        step,
        f"the input data_version is empty: if {inputs['source']} changes, the platform's cache still returns the "
        f"results of this run. Use on_current_data({step}) in the pipeline, or set_caching_options(False)",
    )


def run_component(
    step: str,
    work: Callable[..., Any],
    params: type,
    inputs: Mapping[str, Any],
    *folders: str,
    then: Callable[[Any], Any] | None = None,
) -> Any:
    """Run a step inside its KFP component, record the outcome in `step.json`, and return the step's result.

    Args:
        step: Name of the step.
        work: Function of the step, which takes the parameters and the paths of the artifacts.
        params: Dataclass of the parameters.
        inputs: Arguments of the component.
        folders: Names of the artifacts that the step reads, followed by the name of the artifact that it writes.
        then: Function that converts the result to the return value. Without it, the result is stored as metadata of the
            artifact that the step writes.
    """
    artifacts = [inputs[name] for name in folders]
    with step_record(step, artifacts[-1].path):
        paths = [
            [Path(each.path) for each in item] if isinstance(item, list) else Path(item.path) for item in artifacts
        ]
        checked: Any = params_from(inputs, params)
        _say_what_the_cache_misses(step, inputs)
        result = work(checked, *paths)
        if then is not None:
            return then(result)
        artifacts[-1].metadata.update(dataclasses.asdict(result))
        return result
