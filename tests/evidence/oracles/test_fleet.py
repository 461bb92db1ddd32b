import pytest

from tests.evidence.oracles.fleet import STAGES, Fleet, Tally, covered_from, simulate
from tpu_components.preflight_training.estimate import WELL_USED, accuracy_at


def test_intervals_of_a_fleet_hold_and_become_narrower():
    tallies = simulate(Fleet(accuracy_at(WELL_USED)), times=12)
    late = [number for number, (first, _) in enumerate(STAGES) if first >= 12]
    for own in tallies.values():
        whole = sum(own[number].count for number in late)
        assert sum(own[number].inside for number in late) / whole > 0.85
    assert tallies[True][-1].width < 1.2 < 1.5 < tallies[False][0].width
    published = accuracy_at(WELL_USED)
    assert tallies[False][0].width == pytest.approx(published.high / published.low)
    assert tallies[True][0].count == 0, "no program is known before the first run"


def test_intervals_of_programs_that_use_little_of_the_peak_hold_from_the_first_run_on():
    assert covered_from(simulate(Fleet(accuracy_at(0.0)), times=12)[False]) == 0


def test_coverage_must_hold_to_the_end():
    tallies = [Tally(count=20, inside=18) for _ in STAGES]
    assert covered_from(tallies) == 0
    tallies[3].inside = 0
    assert covered_from(tallies) == STAGES[4][0]
    tallies[-1].inside = 0
    assert covered_from(tallies) is None
