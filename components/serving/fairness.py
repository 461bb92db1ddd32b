"""Who is next, and whose bytes are kept: requests share the server by what they cost, not by who came first."""

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
    """Hands out work in the order in which it would be done if all that waits were worked on at the same time.

    So small work does not wait for large work that waits itself, and large work is not put off for ever: weighted fair
    queueing (https://en.wikipedia.org/wiki/Weighted_fair_queueing), all weights equal.

    Example:
        >>> queue = FairQueue()
        >>> for name, cost in (("large", 9), ("second", 9), ("small", 1)):
        ...     queue.put(name, cost)
        >>> [queue.pop() for _ in range(3)]
        ['small', 'large', 'second']
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[float, int, T]] = []
        self._numbers = itertools.count()  # Equals are served in the order of their arrival.
        self._share = 0.0  # What somebody would have got by now who has been here from the beginning.
        self._ends: list[float] = []  # At which share each request would be done; those that would be are left out.

    def __len__(self) -> int:
        """Return how much waits."""
        return len(self._waiting)

    def put(self, item: T, cost: float, is_last: bool = True) -> None:
        """Add work.

        Args:
            item: It.
            cost: In any unit; of a request in several parts, with that of the parts before it.
            is_last: Whether it is the last part.
        """
        heapq.heappush(self._waiting, (self._share + cost, next(self._numbers), item))
        if is_last:
            heapq.heappush(self._ends, self._share + cost)

    def pop(self) -> T:
        """Take what is next."""
        return heapq.heappop(self._waiting)[2]

    def note(self, cost: float) -> None:
        """Remember that work of this cost was done, of which all would have got equal shares."""
        while self._ends and cost > 0:
            until_next = (self._ends[0] - self._share) * len(self._ends)
            self._share += min(cost, until_next) / len(self._ends)
            cost -= until_next
            if cost >= 0:
                self._share = heapq.heappop(self._ends)


class FairThreads:
    """Threads that requests share fairly.

    Args:
        num_threads: Number of threads.
        name: Theirs.
        niceness: Niceness of the threads: the higher, the more others come first where the processor is busy.
    """

    def __init__(self, num_threads: int, name: str, niceness: int = 0) -> None:
        self._lock = threading.Lock()
        self._waiting: FairQueue[Callable[[], float]] = FairQueue()
        self._tokens: queue.SimpleQueue[bool] = queue.SimpleQueue()  # One for each piece of work; false ends a thread.
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
        """Call a function in one of the threads, when it is its turn."""
        answer: Future[T] = Future()

        def work() -> float:
            if answer.set_running_or_notify_cancel():
                try:
                    answer.set_result(function(*arguments))
                except BaseException as error:  # It is for whoever waits for the answer.
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
            del work  # With all that it holds, before the next is waited for.
            with self._lock:
                self._waiting.note(cost)


def _be_nice(niceness: int) -> None:
    if niceness:
        with contextlib.suppress(OSError):  # Only Linux knows the priority of a thread; elsewhere it stays as it is.
            thread = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + niceness)


class NoRoomError(Exception):
    """The server holds as many bytes as it may."""


class HeldBytes:
    """The bytes that all requests hold together, up to a limit.

    Where there is no room, the request whose body has been arriving for the longest time gives way, since whoever
    withholds the end of a body would otherwise hold its beginning for as long as they like.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total = 0
        self._arriving: dict[Hold, Callable[[], None]] = {}  # The longest first.

    @contextlib.contextmanager
    def hold(self) -> Iterator["Hold"]:
        """Hold room for a request's bytes, which is given back when the block ends."""
        hold = Hold(self)
        try:
            yield hold
        finally:
            hold.resize(0)

    def _make_room(self, hold: "Hold") -> None:
        while self.total > self.limit:
            oldest = next((other for other in self._arriving if other.num_bytes), hold)
            if oldest is hold:
                raise NoRoomError
            give_way = self._arriving.pop(oldest)
            oldest.resize(0)
            give_way()


class Hold:
    """The memory that a request holds, `num_bytes`; tell `resize` before it grows."""

    def __init__(self, held: HeldBytes) -> None:
        self._held = held
        self.num_bytes = 0
        self.gave_way = False

    def resize(self, num_bytes: int) -> None:
        """Hold more, or less.

        Raises:
            NoRoomError: If there is no room for so much.
        """
        before = self.num_bytes
        self._held.total += num_bytes - before
        self.num_bytes = num_bytes
        try:
            self._held._make_room(self)
        except NoRoomError:
            self._held.total -= num_bytes - before
            self.num_bytes = before
            raise

    @contextlib.contextmanager
    def arriving(self, give_way: Callable[[], None]) -> Iterator[None]:
        """Let more arrive in the block; `give_way` is called where others need the room: nothing is held then."""

        def remember() -> None:
            self.gave_way = True
            give_way()

        self._held._arriving[self] = remember
        try:
            yield
        finally:
            self._held._arriving.pop(self, None)
