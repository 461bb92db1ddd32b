"""Work shared out among processes of this machine, or among threads that wait for a bucket."""

import collections
import contextlib
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tpu_components.core.base.import_path import safe_children
from tpu_components.core.files import storage

_REMOTE_THREADS = 16


@contextlib.contextmanager
def in_processes(function: Callable[..., Any], calls: Iterable[tuple[Any, ...]], num_workers: int) -> Iterator[Any]:
    """Give the results of a function in a row, computed by worker processes; by one alone, in this process.

    Args:
        function: Function to call.
        calls: Arguments of each call; they are drawn as workers become free.
        num_workers: Number of processes.
    """
    from joblib import Parallel, delayed

    # Memory-mapping is off, since arguments are small and copied once.
    runner = Parallel(
        n_jobs=num_workers,
        backend="sequential" if num_workers == 1 else "loky",
        return_as="generator",
        batch_size=1,
        max_nbytes=None,
    )
    # Closed first when something fails, so that no worker still writes while its folder is removed. joblib warns of the
    # work that this throws away; the error that caused it says enough.
    with (
        safe_children(),
        warnings.catch_warnings(action="ignore", category=UserWarning),
        contextlib.closing(runner(delayed(function)(*arguments) for arguments in calls)) as results,
    ):
        yield results


def in_threads(function: Callable[..., Any], place: str, *arguments: Iterable[Any]) -> Iterator[Any]:
    """Yield what `map` does, in threads if what is read lies in a bucket.

    Threads hide its latency; on a local disk they would only take turns.
    """
    with ThreadPoolExecutor(_REMOTE_THREADS) as pool:
        yield from (pool.map if storage.is_remote(place) else map)(function, *arguments)


def ahead(function: Callable[..., Any], place: str, *arguments: Iterable[Any]) -> Iterator[Any]:
    """Yield what `map` does, some results ahead of who takes them if what is read lies in a bucket; never all."""
    if not storage.is_remote(place):
        yield from map(function, *arguments)
        return
    calls = zip(*arguments, strict=True)
    with ThreadPoolExecutor(_REMOTE_THREADS) as pool:
        waiting = collections.deque(pool.submit(function, *call) for call in itertools.islice(calls, _REMOTE_THREADS))
        while waiting:
            yield waiting.popleft().result()
            waiting.extend(pool.submit(function, *call) for call in itertools.islice(calls, 1))
