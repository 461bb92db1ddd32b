"""Log of sampled predictions for `tpu-pipelines monitor`, one JSON line each."""

import contextlib
import datetime
import functools
import json
import os
import queue
import random
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tpu_components.core.base.errors import InputError
from tpu_components.core.files import storage
from tpu_components.serving.exported import ExportedModel

_MOST_WAITING = 1000  # Requests; with `log_content` each may hold a body in memory.
_MOST_WAITING_BODIES = 32
END_SECONDS = 2.0

Content = Callable[[], Sequence[Any]]  # Returns a request's instances; called in the log's thread.
_reported = set[str]()


def report_once(what: str, reason: str) -> None:
    """Print an error on stderr as a JSON line, once: the same error is not printed again, even for another reason."""
    if what not in _reported:
        _reported.add(what)
        message = f"{what}: {reason}; told once."
        print(json.dumps({"severity": "ERROR", "message": message}), file=sys.stderr, flush=True)


class PredictionLog:
    """Logs a share of all predictions to a file, in a thread of its own.

    Responses do not wait for the log: lines that cannot be written in time are dropped. The process reports its
    first error on stderr.

    Args:
        path: File to append to.
        share: Share of the predictions to log, above 0.
        with_content: Whether to log inputs too.
        registered: Name and version of the model in its registry. Empty for a model that is not registered: the log
            then has the export's own name.

    Raises:
        InputError: If the file cannot be written.
    """

    def __init__(
        self, path: str, share: float, with_content: bool = False, registered: tuple[str, str] = ("", "")
    ) -> None:
        try:
            # Inputs may be personal: only the owner may read a new file. An existing file keeps its permissions.
            mode = 0o600 if with_content else 0o666
            opened = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | storage.BINARY, mode)
            self._file = os.fdopen(opened, "ab", buffering=0)
        except OSError as error:
            raise InputError(
                f"Cannot log predictions to {path}: {error.strerror}. Expected a file that can be written, in a folder "
                "that is there. Choose another --log."
            ) from error
        self._share = share
        self._with_content = with_content
        self._model_name, self._version = registered
        self._waiting: queue.Queue[Callable[[], Iterator[str]] | None] = queue.Queue(
            _MOST_WAITING_BODIES if with_content else _MOST_WAITING
        )
        self._random = random.Random()
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def add(self, model: ExportedModel, outputs: np.ndarray, seconds: float, content: Content | None = None) -> None:
        """Sample the predictions of a request for the log; returns at once.

        Args:
            model: Model of the predictions.
            outputs: Outputs of the model, float32[N, …].
            seconds: Response time of the request.
            content: Returns the instances of the request; needed with `with_content`.
        """
        places = [place for place in range(len(outputs)) if self._random.random() < self._share]
        if places:
            time = datetime.datetime.now(datetime.UTC)
            content = content if self._with_content else None
            with contextlib.suppress(queue.Full):
                self._waiting.put_nowait(functools.partial(self._lines, model, outputs, places, time, seconds, content))

    def close(self) -> None:
        """Write waiting lines, for a few seconds at most, and close the file."""
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=END_SECONDS)
            self._thread.join(END_SECONDS)
        if not self._thread.is_alive():
            self._file.close()

    def _run(self) -> None:
        while (lines := self._waiting.get()) is not None:
            try:
                self._file.write("".join(lines()).encode())
            except Exception as error:  # The log must not stop the server.
                report_once("Predictions are missing from the log", repr(error))

    def _lines(
        self,
        model: ExportedModel,
        outputs: np.ndarray,
        places: Sequence[int],
        time: datetime.datetime,
        seconds: float,
        content: Content | None,
    ) -> Iterator[str]:
        contents = content() if content else None
        for place in places:
            line = {
                "time": time.isoformat(timespec="milliseconds"),
                "model": self._model_name or model.name,
                "version": self._version,
                "format": model.format,
                **model.describe(outputs[place]),
                "ms": round(seconds * 1e3, 2),
                "instance": place,
                "share": self._share,
            }
            if contents is not None:
                line["content"] = contents[place]
            yield json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n"
