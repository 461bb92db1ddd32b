"""Dynamic batching: requests that wait at the same time share one call of the model."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tpu_components.serving.exported import Predict
from tpu_components.serving.fairness import FairQueue

_Waiting = tuple[np.ndarray, asyncio.Future[np.ndarray]]


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
