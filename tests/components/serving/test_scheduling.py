import asyncio
import os
import random
import threading
import time

import numpy as np
import pytest

from tpu_components.serving.scheduling import Batcher, FairQueue, FairThreads, HeldBytes, NoRoomError


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 20))


def serve(queue, arrivals):
    """What is served, in order, with the total cost before each; `arrivals` says when (in cost) what comes."""
    arrivals, now, waits = sorted(arrivals), 0, {}
    while arrivals or queue:
        while arrivals and (arrivals[0][0] <= now or not queue):
            at, name, cost = arrivals.pop(0)
            now = max(now, at)
            queue.put((name, at, cost), cost)
        name, at, cost = queue.pop()
        waits[name] = now - at
        now += cost
        queue.note(cost)
    return waits


def test_small_work_waits_for_no_more_than_what_is_being_done():
    large = [(0, f"large {i}", 100) for i in range(50)]
    small = [(i * 100 + 50, f"small {i}", 1) for i in range(40)]
    waits = serve(FairQueue(), large + small)
    assert max(waits[name] for _, name, _ in small) <= 100


def test_large_work_is_not_put_off_for_ever():
    """Small work takes four fifths of the time, and more is always there soon."""
    small = [(i * 1.25, f"small {i}", 1) for i in range(10_000)]
    assert serve(FairQueue(), [(5, "large", 100), *small])["large"] < 1000


def test_equals_are_served_in_the_order_of_their_arrival():
    queue = FairQueue()
    for name in "abc":
        queue.put(name, 7)
    assert [queue.pop() for _ in range(3)] == ["a", "b", "c"]


def test_threads_do_what_is_small_first_and_answer_everybody():
    order, is_open = [], threading.Event()

    def work(name):
        assert is_open.wait(10)
        order.append(name)
        return name.upper()

    async def scenario():
        with FairThreads(1, "test") as threads:
            costs = {"first": 9, "large": 9, "cancelled": 1, "small": 2}
            tasks = {}
            for name, cost in costs.items():
                tasks[name] = asyncio.create_task(threads.run(cost, work, name))
                await asyncio.sleep(0.01)
            tasks["cancelled"].cancel()
            await asyncio.sleep(0.01)
            is_open.set()
            answers = await asyncio.gather(*tasks.values(), return_exceptions=True)
            assert [answer for answer in answers if isinstance(answer, str)] == ["FIRST", "LARGE", "SMALL"]
            assert await threads.run(1, work, "later") == "LATER"
        assert order == ["first", "small", "large", "later"]

    run(scenario())


def test_a_failure_leaves_its_thread_to_others():
    async def scenario():
        with FairThreads(2, "test") as threads:
            for _ in range(5):
                with pytest.raises(ZeroDivisionError):
                    await threads.run(1, divmod, 1, 0)
            both = threading.Barrier(2)
            await asyncio.wait_for(asyncio.gather(*(threads.run(1, both.wait) for _ in range(2))), 10)

    run(scenario())


def test_whatever_is_cancelled_no_thread_is_lost():
    async def scenario():
        draw = random.Random(0)
        with FairThreads(3, "test") as threads:
            tasks = [asyncio.create_task(threads.run(draw.random(), time.sleep, 0.001)) for _ in range(200)]
            for task in draw.sample(tasks, 100):
                await asyncio.sleep(0.0005)
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            all_three = threading.Barrier(3)
            await asyncio.wait_for(asyncio.gather(*(threads.run(1, all_three.wait) for _ in range(3))), 10)

    run(scenario())


def test_nice_threads_let_others_go_first():
    async def niceness(threads):
        return await threads.run(1, lambda: os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    async def scenario():
        with FairThreads(1, "plain") as plain, FairThreads(1, "nice", 5) as nice:
            assert await niceness(nice) == min(await niceness(plain) + 5, 19)

    run(scenario())


def test_held_bytes_come_back():
    held = HeldBytes(100)
    with held.hold() as hold:
        hold.resize(60)
        with pytest.raises(NoRoomError), held.hold() as other:
            other.resize(41)
        assert held.total == 60
        hold.resize(10)
        assert held.total == 10
    assert held.total == 0


def test_who_has_been_arriving_for_longest_gives_way():
    held, gave_way = HeldBytes(100), []
    with held.hold() as arrived, held.hold() as first, held.hold() as second, held.hold() as newcomer:
        arrived.resize(40)
        with first.arriving(lambda: gave_way.append("first")), second.arriving(lambda: gave_way.append("second")):
            first.resize(30)
            second.resize(30)
            newcomer.resize(20)
            assert gave_way == ["first"]
            assert (first.num_bytes, first.gave_way, held.total) == (0, True, 90)
            second.resize(40)
            with pytest.raises(NoRoomError):  # It is the oldest itself now.
                second.resize(41)
            newcomer.resize(21)
            assert gave_way == ["first", "second"]
        with pytest.raises(NoRoomError):
            newcomer.resize(61)
    assert held.total == 0


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


def test_a_large_request_lets_small_ones_in_between():
    async def scenario():
        model = Model(0.005)
        batcher = Batcher(model, max_batch_size=4)
        order = []

        async def asked(name, *values):
            assert await ask(batcher, *values) == list(values)
            order.append(name)

        async with batcher.running():
            large = [asyncio.create_task(asked("large", *range(100))) for _ in range(3)]
            await asyncio.sleep(0.01)
            small = [asyncio.create_task(asked("small", value)) for value in range(5)]
            await asyncio.gather(*large, *small)
        assert order == ["small"] * 5 + ["large"] * 3
        assert max(model.sizes) == 4

    run(scenario())
