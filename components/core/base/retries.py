"""What a service may answer instead of doing what it is asked, and how to wait an outage out."""

import dataclasses
import random
import time
from collections.abc import Callable
from typing import Any, TypeVar

from tpu_components.core.base.errors import InputError

T = TypeVar("T")


class PlatformError(RuntimeError):
    """A platform that does not do what it is asked: for whoever runs the command, no defect and no mistake."""


class OutageError(PlatformError):
    """The platform cannot answer now: too many requests, a fault of its own, no connection. To be tried again."""


class MissingError(InputError):
    """An answer that there is no such thing."""


class ExistsError(InputError):
    """An answer that there is one already."""


@dataclasses.dataclass(frozen=True)
class Backoff:
    """A way to try again: after a random part of a time that doubles, so that those who wait do not return together.

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
        """Return what the call gives, once it does not raise an `OutageError`.

        Raises:
            PlatformError: If it still does after `patience_seconds`.
        """
        import tenacity

        start, longer = self.clock(), tenacity.wait_exponential(self.first_seconds, self.max_seconds)
        attempts = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(OutageError),
            wait=lambda state: longer(state) * (0.5 + 0.5 * self.jitter()),
            stop=lambda _: self.clock() - start >= self.patience_seconds,
            sleep=self.sleep,
            before_sleep=self._tell,
            reraise=True,
        )
        try:
            return attempts(call)
        except OutageError as error:
            raise PlatformError(
                f"Gave up after {self.clock() - start:,.0f} s: {error} What was sent stays as it is; run the same "
                "command again to go on."
            ) from error

    def _tell(self, state: Any) -> None:
        self.report(f"{state.outcome.exception()} Trying again in {state.upcoming_sleep:.0f} s.")

    def until(self, is_done: Callable[[], bool], poll_seconds: float, limit_seconds: float) -> bool:
        """Ask whether something is done until it is, through outages; returns whether it was in time.

        Args:
            is_done: The question.
            poll_seconds: Time between two questions.
            limit_seconds: Time after which nobody asks any more.

        Raises:
            PlatformError: If an outage lasts longer than `patience_seconds`.
        """
        import tenacity

        start = self.clock()
        return tenacity.Retrying(
            retry=tenacity.retry_if_result(lambda done: not done),
            wait=tenacity.wait_fixed(poll_seconds),
            stop=lambda _: self.clock() - start >= limit_seconds,
            sleep=self.sleep,
            retry_error_callback=lambda _: False,
        )(lambda: self(is_done))
