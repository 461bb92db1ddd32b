"""Distribution of work to local processes, or to threads for reads from a bucket."""

import contextlib
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor
from typing import Any

from tpu_components.core.base.errors import InputError, describe
from tpu_components.core.base.import_path import safe_children
from tpu_components.core.base.retries import PlatformError
from tpu_components.core.files import object_stores, storage
from tpu_components.core.files.location import Location


@contextlib.contextmanager
def in_processes(function: Callable[..., Any], calls: Iterable[tuple[Any, ...]], num_workers: int) -> Iterator[Any]:
    """Call a function in worker processes, for the duration of a `with` block.

    In `with in_processes(…) as results`, `results` is an iterator over the results in the order of the calls.

    Args:
        function: Function to call.
        calls: Arguments of each call. The iterator is advanced when a worker is free.
        num_workers: Number of processes. With 1, the function is called in this process.
    """
    from joblib import Parallel, delayed

    # Workers outlive a call: in another folder, as after `%cd` in a notebook, they are started again. Memory-mapping is
    # off, because arguments are small and copied once.
    here = {} if num_workers == 1 else {"initializer": os.chdir, "initargs": (os.getcwd(),)}
    runner = Parallel(
        n_jobs=num_workers,
        backend="sequential" if num_workers == 1 else "loky",
        return_as="generator",
        batch_size=1,
        max_nbytes=None,
        **here,
    )
    # On an error, the generator is closed first, so that no worker writes to a folder that is being removed. joblib's
    # warning about the discarded work is suppressed, because the error itself is reported.
    with (
        safe_children(),
        warnings.catch_warnings(action="ignore", category=UserWarning),
        contextlib.closing(runner(delayed(function)(*arguments) for arguments in calls)) as results,
    ):
        yield results


def in_fresh_process(function: Callable[..., Any], *arguments: Any, seconds: float | None = None) -> Any:
    """Call a function in a new process and return its result.

    The process prints nothing and ends after the call.

    Args:
        function: A module-level function.
        arguments: Arguments of the function.
        seconds: Time limit for the call, in seconds, or None for no limit.

    Raises:
        InputError, PlatformError: If the function raises one of them.
        RuntimeError: If the function raises another error, the process ends before the function returns, or the time
            limit passes.
    """
    from joblib.externals.loky import ProcessPoolExecutor

    with safe_children():
        pool = ProcessPoolExecutor(1, initializer=_print_nothing, env={"TF_CPP_MIN_LOG_LEVEL": "3"})
        try:
            return pool.submit(_call, function, arguments).result(seconds)
        except TimeoutError as error:
            raise RuntimeError(f"the call did not finish within {seconds:g} s") from error
        except BrokenExecutor as error:
            code = str(error).partition("exit codes of the workers are ")[2].partition("\n")[0]
            raise RuntimeError(f"the worker process ended without a result, with {code or error}") from error
        finally:
            pool.shutdown(kill_workers=True)


def _print_nothing() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)


def _call(function: Callable[..., Any], arguments: Iterable[Any]) -> Any:
    try:
        with storage.naming_faults():
            return function(*arguments)
    except (InputError, PlatformError):
        raise
    except (Exception, SystemExit) as error:  # As text: the class may exist only in this process.
        raise RuntimeError(describe(error)) from None


def in_threads(function: Callable[..., Any], place: str, *arguments: Iterable[Any]) -> Iterator[Any]:
    """Yield results like `map`. If `place` is a path in a bucket, threads prefetch a limited number of results.

    Threads hide the latency of a bucket. On a local disk, they would not be faster.
    """
    yield from (object_stores.in_threads if Location(place).is_remote else map)(function, *arguments)
