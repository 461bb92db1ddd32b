"""Which of several steps is recommended."""

import pytest

from tests.components.preflight_training.jax_steps.reports import make_report
from tpu_components.preflight_training.jax_steps.comparison import StepComparison
from tpu_components.preflight_training.jax_steps.step_report import HourlyPrice


def _named(name, milliseconds, **fields):
    return make_report(milliseconds, name=name, **fields)


def test_the_cheapest_for_the_same_work_is_first_and_what_does_not_fit_is_last():
    reports = [
        _named("small batches", 10.0),
        _named("refused", None, verdict="does_not_fit", reason="Ran out of memory"),
        _named("large batches", 15.0),
        _named("unpriced", 1.0, price=None),
    ]
    comparison = StepComparison.make(reports, [64, 512, 128, 64], 1e6, "images")
    assert [report.name for report in comparison.reports] == ["large batches", "small batches", "unpriced", "refused"]
    assert comparison.best.name == "large batches"
    assert comparison.rows()[0]["dollars"] == pytest.approx(1e6 / 128 * 0.015 * 0.001)
    assert comparison.rows()[0]["items_per_second"] == pytest.approx(128 / 0.015)
    assert comparison.verdict.startswith("3 of 4 fit. The cheapest is large batches on v5e-8: $")


def test_intervals_that_overlap_are_said():
    close = StepComparison.make([_named("a", 10.0), _named("b", 12.0)], [1, 1], 1e6, "steps")
    clear = StepComparison.make([_named("a", 10.0), _named("b", 20.0)], [1, 1], 1e6, "steps")
    assert "the second may be cheaper" in str(close)
    assert "the second may be cheaper" not in str(clear)


def test_nothing_is_recommended_if_nothing_fits():
    comparison = StepComparison.make([_named("a", None, verdict="crashed", reason="SIGABRT")], [1], 1e6, "steps")
    assert comparison.best is None
    assert comparison.verdict == "No step fits."
    assert "crashed the compiler on v5e-8: SIGABRT" in str(comparison)


def test_the_page_has_a_section_for_each_step_and_escapes_names(tmp_path):
    spot = HourlyPrice(1.2, "us-west4", True, "vertex", "2026")
    reports = [_named("<script>", 10.0), _named("other", 10.0, price=spot, notes=("It was measured nowhere.",))]
    path = StepComparison.make(reports, [8, 8], 1e9, "tokens").save_page(tmp_path / "pages" / "steps.html")
    page = path.read_text()
    assert "<script>" not in page
    assert page.count("It was measured nowhere.") == 2  # Beside the table, and in its section.
    assert "1,000,000,000 tokens" in page
