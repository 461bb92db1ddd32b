"""Fair scheduling of requests by their cost: order of work, threads, batches of the model, and a limit of memory."""

import asyncio
import contextlib
import heapq
import itertools
import os
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, Self, TypeVar

import numpy as np

from tpu_components.serving.lite import Predict

T = TypeVar("T")
_Waiting = tuple[np.ndarray, asyncio.Future[np.ndarray]]


class FairQueue(Generic[T]):
    """Weighted fair queue with equal weights (https://en.wikipedia.org/wiki/Weighted_fair_queueing).

    Items come out in the order in which they would finish if all were processed at the same time. Small items overtake
    large ones, and large ones are not delayed for ever.

    Example:
        >>> queue = FairQueue()
        >>> for name, cost in (("large", 9), ("second", 9), ("small", 1)):
        ...     queue.put(name, cost)
        >>> [queue.pop() for _ in range(3)]
        ['small', 'large', 'second']
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[float, int, T]] = []
        self._numbers = itertools.count()  # Breaks ties by order of arrival.
        self._share = 0.0  # Virtual time: work per request since the start.
        self._ends: list[float] = []  # Virtual times at which the open requests end.

    def __len__(self) -> int:
        """Return the number of waiting items."""
        return len(self._waiting)

    def put(self, item: T, cost: float, is_last: bool = True) -> None:
        """Add an item.

        Args:
            item: Item to add.
            cost: Cost in any unit. For a request in several parts, the sum of the costs up to this part.
            is_last: Whether the item is the last part of its request.
        """
        heapq.heappush(self._waiting, (self._share + cost, next(self._numbers), item))
        if is_last:
            heapq.heappush(self._ends, self._share + cost)

    def pop(self) -> T:
        """Remove and return the next item."""
        return heapq.heappop(self._waiting)[2]

    def note(self, cost: float) -> None:
        """Record that work of this cost was done: advances the virtual time."""
        while self._ends and cost > 0:
            until_next = (self._ends[0] - self._share) * len(self._ends)
            self._share += min(cost, until_next) / len(self._ends)
            cost -= until_next
            if cost >= 0:
                self._share = heapq.heappop(self._ends)


class FairThreads:
    """Thread pool with a `FairQueue`.

    Args:
        num_threads: Number of threads.
        name: Name of the threads.
        niceness: Niceness of the threads; a higher number is a lower priority.
    """

    def __init__(self, num_threads: int, name: str, niceness: int = 0) -> None:
        self._lock = threading.Lock()
        self._waiting: FairQueue[Callable[[], float]] = FairQueue()
        self._tokens: queue.SimpleQueue[bool] = queue.SimpleQueue()  # One per item; False ends a thread.
        self._threads = [
            threading.Thread(target=self._work, args=(niceness,), name=f"{name}-{i}") for i in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for _ in self._threads:
            self._tokens.put(False)
        for thread in self._threads:
            thread.join()

    async def run(self, cost: float, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function in one of the threads, in the order of the queue, and return its result."""
        answer: Future[T] = Future()

        def work() -> float:
            if answer.set_running_or_notify_cancel():
                try:
                    answer.set_result(function(*arguments))
                except BaseException as error:  # `run` raises it in the caller.
                    answer.set_exception(error)
            return cost

        with self._lock:
            self._waiting.put(work, cost)
        self._tokens.put(True)
        return await asyncio.wrap_future(answer)

    def _work(self, niceness: int) -> None:
        if niceness:
            with contextlib.suppress(OSError):  # Only Linux has a priority per thread.
                thread = threading.get_native_id()
                os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + niceness)
        while self._tokens.get():
            with self._lock:
                work = self._waiting.pop()
            cost = work()
            del work  # Frees its memory before the wait for the next item.
            with self._lock:
                self._waiting.note(cost)


class Batcher:
    """Collects examples while the model is busy, and passes them to the model as one batch.

    The model runs in a thread of its own, one batch at a time, so the event loop stays free. A large request is split
    into parts, so that small requests need not wait for all of it.
    """

    def __init__(self, predict: Predict, max_batch_size: int, max_wait_seconds: float = 0.0) -> None:
        self._predict = predict
        self._max_batch_size = max_batch_size
        self._max_wait_seconds = max_wait_seconds
        self._waiting: FairQueue[_Waiting] = FairQueue()
        self._has_come = asyncio.Event()

    async def predict(self, inputs: np.ndarray) -> np.ndarray:
        """Return the model's outputs for inputs, dtype[N, …] → float32[N, …], any N from 1."""
        size = self._max_batch_size
        if len(inputs) <= size:
            return await self._put(inputs, 0, len(inputs))
        parts = (self._put(inputs, start, start + size) for start in range(0, len(inputs), size))
        return np.concatenate(await asyncio.gather(*parts))

    def _put(self, inputs: np.ndarray, start: int, end: int) -> asyncio.Future[np.ndarray]:
        answer: asyncio.Future[np.ndarray] = asyncio.get_running_loop().create_future()
        self._waiting.put((inputs[start:end], answer), end, is_last=end >= len(inputs))
        self._has_come.set()
        return answer

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the model's thread, which `predict` needs, while the block runs."""
        with ThreadPoolExecutor(1, "model") as thread:
            task = asyncio.create_task(self._run(thread))
            try:
                yield
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _run(self, thread: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        while True:
            batch = await self._gather()
            inputs = np.concatenate([inputs for inputs, _ in batch])
            self._waiting.note(len(inputs))
            try:
                answers = await loop.run_in_executor(thread, self._predict_in_parts, inputs)
            except Exception as error:  # Each request reports the error; the next batch may succeed.
                for _, answer in batch:
                    if not answer.done():
                        answer.set_exception(error)
                continue
            start = 0
            for inputs, answer in batch:
                if not answer.done():  # It is done if the request was cancelled.
                    answer.set_result(answers[start : start + len(inputs)])
                start += len(inputs)

    async def _gather(self) -> list[_Waiting]:
        """Return the next batch: waits for the first request, then until the batch is full or `max_wait_ms` is over."""
        batch = [await self._next()]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._max_wait_seconds):  # 0 takes only waiting examples.
                while sum(len(inputs) for inputs, _ in batch) < self._max_batch_size:
                    batch.append(await self._next())
        return batch

    async def _next(self) -> _Waiting:
        while not self._waiting:
            self._has_come.clear()
            await self._has_come.wait()
        return self._waiting.pop()

    def _predict_in_parts(self, inputs: np.ndarray) -> np.ndarray:
        size = self._max_batch_size
        return np.concatenate([self._predict(inputs[i : i + size]) for i in range(0, len(inputs), size)])


class NoRoomError(Exception):
    """The bytes of all requests have reached the limit; the message is for the client."""


class HeldBytes:
    """Limits the memory of all requests together.

    Above the limit, the request whose body has been arriving for the longest time is rejected. Otherwise clients could
    hold memory for ever by never sending the end of a body.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total = 0
        self._arriving: dict[Hold, Callable[[], None]] = {}  # Requests whose body is arriving, oldest first.

    @contextlib.contextmanager
    def hold(self) -> Iterator["Hold"]:
        """Yield the `Hold` of a request; its memory is released when the block ends."""
        hold = Hold(self)
        try:
            yield hold
        finally:
            hold.resize(0)

    def no_room(self) -> NoRoomError:
        """Return the error for a request that would exceed the limit."""
        return NoRoomError(f"The server is busy: it holds {self.total:,} bytes. Try again later.")

    def make_room(self, hold: "Hold", num_bytes: int) -> None:
        """Make room for `num_bytes` more of a request; see `Hold.resize`."""
        while self.total + num_bytes > self.limit:
            oldest = next((other for other in self._arriving if other is hold or other.num_bytes), hold)
            if oldest is hold:
                raise self.no_room()
            give_way = self._arriving.pop(oldest)
            oldest.resize(0)
            oldest.gave_way = True
            give_way()


class Hold:
    """Memory that is reserved for one request: `num_bytes`. Call `resize` before allocating more."""

    def __init__(self, held: HeldBytes) -> None:
        self._held = held
        self.num_bytes = 0
        self.gave_way = False

    def resize(self, num_bytes: int) -> None:
        """Change the memory of this request. Above the limit, the request that has been arriving longest is rejected.

        Raises:
            NoRoomError: If the limit would be exceeded and no other request can be rejected.
        """
        more = num_bytes - self.num_bytes
        self._held.make_room(self, more)
        self._held.total += more
        self.num_bytes = num_bytes

    @contextlib.contextmanager
    def arriving(self, give_way: Callable[[], None]) -> Iterator[None]:
        """Mark the request's body as arriving while the block runs; its memory may then be given to other requests.

        Args:
            give_way: Called if the memory is given to another request; must reject this request.
        """
        self._held._arriving[self] = give_way
        try:
            yield
        finally:
            self._held._arriving.pop(self, None)
