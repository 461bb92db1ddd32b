"""Exceptions for failed calls to services, and retries with exponential backoff."""

import contextlib
import dataclasses
import json
import random
import time
from collections.abc import Callable
from typing import Any, TypeVar

from tpu_components.core.base.errors import InputError

T = TypeVar("T")
_FIRST_SECONDS, _MOST_SECONDS = 1, 60  # Upper limits of the first wait and of every wait.


class PlatformError(RuntimeError):
    """A failure of a platform: not a defect of this project, and not a user's mistake."""


class OutageError(PlatformError):
    """A transient failure, such as too many requests, a server error or a lost connection. The call may be retried."""


class MissingError(InputError):
    """The requested object does not exist in the service."""


class ExistsError(InputError):
    """The object exists already, or another client has just changed it."""


def message_of(error: Any) -> str:
    """Return the message in the body of an ApiException of kubernetes or kfp.

    Return the HTTP reason if the body has no message.
    """
    with contextlib.suppress(ValueError, AttributeError, TypeError):
        body = json.loads(error.body)
        return str(body.get("message") or body.get("error") or error.reason)
    return str(error.reason)


@dataclasses.dataclass(frozen=True)
class Backoff:
    """Retry policy: exponential backoff with jitter.

    With jitter, many clients do not retry at the same time.

    Attributes:
        patience_seconds: Time since the first attempt after which failures are no longer retried.
        sleep: Function that waits for a number of seconds.
        clock: Monotonic clock, in seconds.
        report: Function that is called with a message about each failure and the time until the next attempt.
    """

    patience_seconds: float = 900.0
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    report: Callable[[str], None] = lambda _: None

    def __call__(self, call: Callable[[], T]) -> T:
        """Call a function, retry it after each `OutageError`, and return its result.

        Raises:
            PlatformError: If the function still raises `OutageError` after `patience_seconds`.
        """
        import tenacity

        start = self.clock()
        longer = tenacity.wait_exponential(_FIRST_SECONDS, _MOST_SECONDS)
        attempts = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(OutageError),
            wait=lambda state: longer(state) * (0.5 + 0.5 * random.random()),
            stop=lambda _: self.clock() - start >= self.patience_seconds,
            sleep=self.sleep,
            before_sleep=self._tell,
            reraise=True,
        )
        try:
            return attempts(call)
        except OutageError as error:
            raise PlatformError(
                f"Gave up after {self.clock() - start:,.0f} s. Last error: {error} Requests that already "
                "succeeded remain in effect. To continue, wait a few minutes and run the same command again."
            ) from error

    def _tell(self, state: Any) -> None:
        self.report(f"{state.outcome.exception()} Trying again in {state.upcoming_sleep:.0f} s.")

    def until(self, is_done: Callable[[], bool], poll_seconds: float, limit_seconds: float) -> bool:
        """Call `is_done` until it returns true or the time limit is reached. Return whether it returned true.

        Calls that raise `OutageError` are retried.

        Args:
            is_done: Function to poll.
            poll_seconds: Time between two calls of `is_done`.
            limit_seconds: Time limit.

        Raises:
            PlatformError: If transient errors last longer than `patience_seconds`.
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
