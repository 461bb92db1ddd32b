import asyncio
import threading
import time

import numpy as np
import pytest

from tpu_components.serving.batching import Batcher


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 20))


class Model:
    """Adds up an image's pixels, and remembers the sizes of its batches. It answers while `open` is set."""

    def __init__(self, seconds=0.0):
        self.sizes, self.threads, self.seconds = [], set(), seconds
        self.open = threading.Event()
        self.open.set()

    def __call__(self, images):
        self.sizes.append(len(images))
        self.threads.add(threading.current_thread().name)
        assert self.open.wait(10)
        time.sleep(self.seconds)
        return images.sum(axis=(1, 2, 3), dtype=np.float32)[:, None]


def images(*values):
    return np.array(values, np.uint8)[:, None, None, None]


async def ask(batcher, *values):
    return (await batcher.predict(images(*values)))[:, 0].tolist()


async def _all(model, requests, **options):
    batcher = Batcher(model, **options)
    async with batcher.running():
        return await asyncio.gather(*(ask(batcher, *values) for values in requests))


def test_requests_that_arrive_together_make_one_batch():
    model = Model()
    assert run(_all(model, [[1], [2, 3], [4]], max_batch_size=8)) == [[1], [2, 3], [4]]
    assert model.sizes == [4]


def test_requests_gather_while_the_model_is_busy():
    async def scenario():
        model = Model()
        model.open.clear()
        batcher = Batcher(model, max_batch_size=8)
        async with batcher.running():
            first = asyncio.create_task(ask(batcher, 1))
            while not model.sizes:
                await asyncio.sleep(0.001)
            rest = [asyncio.create_task(ask(batcher, value)) for value in (2, 3, 4)]
            await asyncio.sleep(0.01)
            model.open.set()
            assert await asyncio.gather(first, *rest) == [[1], [2], [3], [4]]
        assert model.sizes == [1, 3]

    run(scenario())


def test_no_batch_is_larger_than_the_limit():
    model = Model()
    requests = [[i, i + 1] for i in range(20)] + [list(range(30))]
    assert run(_all(model, requests, max_batch_size=8)) == requests
    assert max(model.sizes) == 8
    assert sum(model.sizes) == 70


def test_idle_model_waits_for_company_as_long_as_told():
    async def scenario(max_wait_seconds):
        model = Model()
        batcher = Batcher(model, 8, max_wait_seconds)
        async with batcher.running():
            first = asyncio.create_task(ask(batcher, 1))
            await asyncio.sleep(0.05)
            await asyncio.gather(first, ask(batcher, 2))
        return model.sizes

    assert run(scenario(5 / 60)) == [2]
    assert run(scenario(0)) == [1, 1]


def test_full_batch_does_not_wait():
    assert run(_all(Model(), [[1], [2]], max_batch_size=2, max_wait_seconds=3600)) == [[1], [2]]


def test_model_runs_in_one_thread():
    model = Model(0.001)
    run(_all(model, [[i] for i in range(50)], max_batch_size=3))
    assert len(model.threads) == 1
    assert threading.main_thread().name not in model.threads


def test_failure_reaches_those_who_asked_and_no_one_else():
    def model(given):
        if given.max() == 13:
            raise MemoryError("too unlucky")
        return given[:, :, 0, 0]

    async def scenario():
        batcher = Batcher(model, 8)
        async with batcher.running():
            for task in [asyncio.create_task(ask(batcher, value)) for value in (12, 13)]:
                with pytest.raises(MemoryError, match="unlucky"):
                    await task
            assert await ask(batcher, 14) == [14]

    run(scenario())


def test_cancelled_request_leaves_the_others_their_own_answers():
    async def scenario():
        batcher = Batcher(Model(0.05), 8)
        async with batcher.running():
            tasks = [asyncio.create_task(ask(batcher, value)) for value in (1, 2, 3)]
            await asyncio.sleep(0.01)
            tasks[1].cancel()
            assert await tasks[0] == [1]
            assert await tasks[2] == [3]

    run(scenario())


def test_requests_are_answered_in_the_order_of_their_arrival():
    async def scenario():
        batcher = Batcher(Model(0.005), max_batch_size=4)
        order = []

        async def asked(name, *values):
            assert await ask(batcher, *values) == list(values)
            order.append(name)

        async with batcher.running():
            await asyncio.gather(asked("large", *range(52)), asked("small", 1), asked("last", 2))
        assert order == ["large", "small", "last"]

    run(scenario())


def test_examples_of_a_client_that_has_left_do_not_reach_the_model():
    async def scenario():
        model = Model()
        model.open.clear()
        batcher = Batcher(model, max_batch_size=1)
        async with batcher.running():
            first = asyncio.create_task(ask(batcher, 1))
            while not model.sizes:
                await asyncio.sleep(0.001)
            gone = asyncio.create_task(ask(batcher, 2, 3, 4))
            await asyncio.sleep(0.01)
            gone.cancel()
            model.open.set()
            assert await first == [1]
            assert await ask(batcher, 5) == [5]
        assert model.sizes == [1, 1]

    run(scenario())
