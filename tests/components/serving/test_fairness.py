import asyncio
import os
import random
import threading
import time

import pytest

from tpu_components.serving.fairness import FairQueue, FairThreads, HeldBytes, NoRoomError


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
