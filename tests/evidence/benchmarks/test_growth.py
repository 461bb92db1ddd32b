"""Claims about what is extrapolated from the growth of writing."""

import dataclasses

from tests.evidence.benchmarks.growth import Grown, extrapolate


def test_hours_and_dollars_follow_from_the_slope_alone():
    small = Grown(1000, 9.0, 5.0, 10**6, 7.0, 3.0, 9.0, 10**7, 10**8, 10**6)
    # Each example more: 10 µs to plan, 5 and 180 µs of CPU time to write, 200 bytes of memory, a record of 500.
    large = dataclasses.replace(
        small,
        examples=1_001_000,
        plan_cpu_seconds=15.0,
        own_cpu_seconds=8.0,
        worker_cpu_seconds=189.0,
        bytes=10**7 + 200 * 10**6,
        record_bytes=10**6 + 500 * 10**6,
    )
    said = "\n".join(extrapolate("folder", small, large, slower=2.0))
    assert (
        "planning 10.0 µs of CPU time and 0 bytes, writing 5.0 µs of CPU time in the first process and 180.0 in" in said
    )
    assert "10.0 hours of a worker, and 0.8 hours and 18.6 GiB of the first process" in said
    assert "50 GB of records" in said
    # Ten hours of 100 workers, and five minutes for each to start: 18.3 hours at 0.056 + 3.75·0.003557 + 25·0.000054.
    assert "100 workers: 0.18 hours and then 0.8 to put together, $1.30 for the workers" in said
