"""Fair scheduling of requests by their cost: order of work, threads, and a limit of memory."""

import asyncio
import contextlib
import heapq
import itertools
import os
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, Generic, Self, TypeVar

T = TypeVar("T")


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
            cost: Cost in any unit. For a request in several parts, the sum up to this part.
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
        _be_nice(niceness)
        while self._tokens.get():
            with self._lock:
                work = self._waiting.pop()
            cost = work()
            del work  # Frees its memory before the wait for the next item.
            with self._lock:
                self._waiting.note(cost)


def _be_nice(niceness: int) -> None:
    if niceness:
        with contextlib.suppress(OSError):  # Only Linux has a priority per thread.
            thread = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + niceness)


class NoRoomError(Exception):
    """The bytes of all requests have reached the limit; the message is for the client."""


class HeldBytes:
    """Limits the bytes of all requests together.

    Above the limit, the request whose body has been arriving for the longest time is rejected. Otherwise clients could
    hold memory for ever by never sending the end of a body.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total = 0
        self._arriving: dict[Hold, Callable[[], None]] = {}  # Requests whose body is arriving, oldest first.

    @contextlib.contextmanager
    def hold(self) -> Iterator["Hold"]:
        """Yield the account of a request; its bytes are released when the block ends."""
        hold = Hold(self)
        try:
            yield hold
        finally:
            hold.resize(0)

    def no_room(self) -> NoRoomError:
        """Return the error of a request for which there is no room."""
        return NoRoomError(f"The server is busy: it holds {self.total:,} bytes. Try again later.")

    def _make_room(self, hold: "Hold") -> bool:
        while self.total > self.limit:
            oldest = next((other for other in self._arriving if other.num_bytes), hold)
            if oldest is hold:
                return False
            give_way = self._arriving.pop(oldest)
            oldest.resize(0)
            give_way()
        return True


class Hold:
    """Memory of one request, `num_bytes`. Call `resize` before allocating more."""

    def __init__(self, held: HeldBytes) -> None:
        self._held = held
        self.num_bytes = 0
        self.gave_way = False

    def resize(self, num_bytes: int) -> None:
        """Set `num_bytes`.

        Raises:
            NoRoomError: If the limit would be exceeded and no other request can be rejected.
        """
        before, self.num_bytes = self.num_bytes, num_bytes
        self._held.total += num_bytes - before
        if not self._held._make_room(self):
            self._held.total -= num_bytes - before
            self.num_bytes = before
            raise self._held.no_room()

    @contextlib.contextmanager
    def arriving(self, give_way: Callable[[], None]) -> Iterator[None]:
        """Mark the request's body as arriving while the block runs; its memory may then be given to other requests.

        Args:
            give_way: Called if that happens; must reject the request.
        """

        def remember() -> None:
            self.gave_way = True
            give_way()

        self._held._arriving[self] = remember
        try:
            yield
        finally:
            self._held._arriving.pop(self, None)
