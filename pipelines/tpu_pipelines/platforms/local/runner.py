"""Runs a pipeline on this machine with kfp.local, each step in a process or in a container."""

import builtins
import contextlib
import enum
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.progress import LOUDNESS_VARIABLE
from tpu_components.core.component.step_record import RUN_VARIABLE
from tpu_components.core.files.location import Location
from tpu_components.core.registry.signing import PASSWORD_VARIABLE
from tpu_components.core.sources.kinds import find_source
from tpu_pipelines.config.configuration import Config

# Variables of this process that a step in a container gets, if they are set. RUNNER_VARIABLE is not one of them: the
# process ID in it names another process there.
_INHERITED = ("AIP_CHECKPOINT_DIR", RUN_VARIABLE, LOUDNESS_VARIABLE, PASSWORD_VARIABLE)


class Runner(enum.StrEnum):
    """How a local run executes its steps: as processes, or as containers of the steps' image."""

    SUBPROCESS = "subprocess"
    DOCKER = "docker"


@contextlib.contextmanager
def session(runner: Runner, config: Config, root: Path, cache: Path) -> Iterator[None]:
    """Prepare kfp.local. A pipeline that is called in this context runs on this machine.

    Args:
        runner: Whether the steps run as processes or as containers.
        config: Configuration of the run. Containers may read the files that it names.
        root: Folder for the outputs of steps.
        cache: Folder with the entries of kfp.local's cache.

    Raises:
        InputError: If Docker does not respond, or a path is relative.
    """
    from kfp import local

    with warnings.catch_warnings(), print_as_before():
        warnings.simplefilter("ignore")
        local.init(
            runner=_make_runner(runner, config),
            pipeline_root=str(root),
            enable_caching=True,
            cache_root=str(cache),
            raise_on_error=False,
        )
        yield


@contextlib.contextmanager
def print_as_before() -> Iterator[None]:
    """Restore `print` after the `with` block.

    kfp.local replaces `print` while a step runs (kfp/local/logging_utils.py: indented_print). If steps run at the same
    time, for example in a loop, the last step to end leaves the replacement of another step in place.
    """
    before = builtins.print
    try:
        yield
    finally:
        builtins.print = before


def _make_runner(runner: Runner, config: Config) -> Any:
    from kfp import local

    if runner is Runner.SUBPROCESS:
        return local.SubprocessRunner(use_venv=False)
    import docker.errors
    import docker.types

    import docker

    try:
        docker.from_env().ping()  # type: ignore[attr-defined]  # mypy takes our folder docker/ for it.
    except docker.errors.DockerException as error:
        raise InputError(
            f"Cannot use the docker runner: {error}. Start Docker, or use the runner subprocess."
        ) from error
    location = config.data.source_ref.place
    # A table refers to files beside it.
    data = location.parent if find_source(config.data.source_ref).is_table else location
    reads = [data, config.training.model, config.gate.champion, config.training.initial_model]
    reads += config.model_files
    reads += [config.deploy.signing_key, config.deploy.verify_key] if config.deploy else []
    mounts = []
    for path in (path for path in reads if path and Location(path).is_path and os.path.exists(path)):
        if not os.path.isabs(path):
            raise InputError(f"The docker runner requires absolute paths. Received: {path!r}. Use the full path.")
        mounts.append(docker.types.Mount(path, path, "bind", read_only=True))
    if config.deploy and not config.deploy.is_on_vertex:
        registry = config.deploy.registry
        Path(registry).mkdir(parents=True, exist_ok=True)  # Docker mounts only existing folders.
        mounts.append(docker.types.Mount(registry, registry, "bind"))
    variables = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    return local.DockerRunner(mounts=mounts, environment=variables, user=str(os.getuid()))
