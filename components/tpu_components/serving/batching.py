"""Batches the examples of concurrent requests for the model."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tpu_components.serving.lite import Predict


class Batcher:
    """Combines the examples of concurrent requests into batches for the model.

    Examples that arrive while the model is busy form the next batch, first come, first served. The model runs in a
    separate thread, one batch at a time, so the event loop stays free.

    Args:
        predict: Prediction function of the model.
        max_batch_size: Largest number of examples in a batch. A larger request is split.
        max_wait_seconds: Time that an idle model waits for more examples after the first example.
    """

    def __init__(self, predict: Predict, max_batch_size: int, max_wait_seconds: float = 0.0) -> None:
        self._predict = predict
        self._max_batch_size = max_batch_size
        self._max_wait_seconds = max_wait_seconds
        self._waiting: asyncio.Queue[tuple[np.ndarray, asyncio.Future[np.ndarray]]] = asyncio.Queue()

    async def predict(self, inputs: np.ndarray) -> np.ndarray:
        """Return the model's outputs for inputs: dtype[N, …] → float32[N, …], for any N >= 1."""
        size = self._max_batch_size
        answers: list[asyncio.Future[np.ndarray]] = []
        for start in range(0, len(inputs), size):
            answer: asyncio.Future[np.ndarray] = asyncio.get_running_loop().create_future()
            answers.append(answer)
            self._waiting.put_nowait((inputs[start : start + size], answer))
        return await answers[0] if len(answers) == 1 else np.concatenate(await asyncio.gather(*answers))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """During the `async with` block, run the thread that executes the model. `predict` needs this thread."""
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
            batch = [await self._waiting.get()]
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._max_wait_seconds):  # 0 takes only waiting examples.
                    while sum(len(inputs) for inputs, _ in batch) < self._max_batch_size:
                        batch.append(await self._waiting.get())
            batch = [(inputs, answer) for inputs, answer in batch if not answer.done()]  # Done: the client has left.
            if not batch:
                continue
            try:
                outputs = await loop.run_in_executor(thread, self._call, np.concatenate([part for part, _ in batch]))
            except Exception as error:  # Each request reports the error; the next batch may succeed.
                for _, answer in batch:
                    if not answer.done():
                        answer.set_exception(error)
                continue
            start = 0
            for inputs, answer in batch:
                if not answer.done():
                    answer.set_result(outputs[start : start + len(inputs)])
                start += len(inputs)

    def _call(self, inputs: np.ndarray) -> np.ndarray:
        size = self._max_batch_size
        return np.concatenate([self._predict(inputs[i : i + size]) for i in range(0, len(inputs), size)])
