"""What a service may answer instead of doing what it is asked, and how to wait an outage out."""

import dataclasses
import random
import time
from collections.abc import Callable
from typing import TypeVar

from components.errors import InputError

T = TypeVar("T")


class PlatformError(RuntimeError):
    """A platform that does not do what it is asked: for whoever runs the command, no defect and no mistake."""


class OutageError(PlatformError):
    """The platform cannot answer now: too many requests, a fault of its own, no connection. To be tried again."""


class MissingError(InputError):
    """There is no such thing."""


class ExistsError(InputError):
    """There is one already."""


@dataclasses.dataclass(frozen=True)
class Backoff:
    """How to try again: after a random part of a time that doubles, so that many who wait do not come back together.

    Attributes:
        first_seconds: The longest first wait.
        max_seconds: The longest wait.
        patience_seconds: After this time of failures, the last one stands.
        sleep: Waits.
        clock: Seconds that only grow.
        jitter: A part, from 0 to 1.
        report: Told of every failure, and of how long it will be until the next try.
    """

    first_seconds: float = 1.0
    max_seconds: float = 60.0
    patience_seconds: float = 900.0
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    jitter: Callable[[], float] = random.random
    report: Callable[[str], None] = lambda _: None

    def __call__(self, call: Callable[[], T]) -> T:
        """What the call gives, once it does not raise an `OutageError`.

        Raises:
            PlatformError: If it still does after `patience_seconds`.
        """
        start, longest = self.clock(), self.first_seconds
        while True:
            try:
                return call()
            except OutageError as error:
                if self.clock() - start >= self.patience_seconds:
                    raise PlatformError(
                        f"Gave up after {self.clock() - start:,.0f} s: {error} What was sent stays as it is; run the "
                        "same command again to go on."
                    ) from error
                seconds = longest * (0.5 + 0.5 * self.jitter())
                self.report(f"{error} Trying again in {seconds:.0f} s.")
            self.sleep(seconds)
            longest = min(2 * longest, self.max_seconds)
