from collections import Counter

import pytest

from tests.evidence.benchmarks.soak import Phase, judge, table


def phases(**changes):
    quiet = {"seconds": [0.010] * 100, "rss_mib": 150.0}
    return [
        phase
        for number in range(4)
        for phase in (
            Phase(False, **quiet),
            Phase(True, **{"seconds": [0.025] * 100, "rss_mib": 160.0 + number, **changes}),
        )
    ]


def test_a_server_that_keeps_all_that_is_asked():
    verdicts = judge(phases())
    assert all(one.is_kept for one in verdicts)
    assert "25.0 ms (10.0 ms without)" in table(verdicts)
    assert "1.01× (160 and 162 MiB)" in table(verdicts)
    assert table(verdicts).count(" kept") == 4


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"wrong": 1}, "honest answers that were wrong"),
        ({"refused": Counter({503: 2})}, "honest requests that were refused"),
        ({"seconds": [1.001] * 100}, "p99 under attack"),
    ],
)
def test_a_line_that_is_not_kept_says_so(changes, line):
    verdicts = judge(phases(**changes))
    assert [one.what for one in verdicts if not one.is_kept] == [line]
    assert "NOT KEPT" in table(verdicts)


def test_memory_that_grows_from_phase_to_phase_is_seen():
    growing = phases()
    for number, phase in enumerate(growing):
        phase.rss_mib += 10 * number
    assert [one.what for one in judge(growing) if not one.is_kept] == ["memory, later over earlier"]
