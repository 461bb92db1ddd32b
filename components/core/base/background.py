"""Repeats an action in a background thread."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def repeated(action: Callable[[], Any], seconds: float) -> Iterator[None]:
    """Call `action` every `seconds` in a background thread while the block runs, until `action` returns True."""
    is_over = threading.Event()

    def repeat() -> None:
        while not is_over.wait(seconds) and not action():
            pass

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
