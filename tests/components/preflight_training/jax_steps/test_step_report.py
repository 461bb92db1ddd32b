"""What a report of a step says, and its file."""

import json

import pytest

from tests.components.preflight_training.jax_steps.reports import make_report
from tpu_components.core.base.errors import InputError
from tpu_components.preflight_training.jax_steps.step_report import STEP_FILE, StepReport


def test_time_interval_and_price_follow_from_the_step():
    report = make_report(10.0)
    assert report.step_seconds == 0.01
    assert report.interval == pytest.approx((0.009, 0.015))
    assert report.per_second(64) == 6400
    # 3.60 dollars an hour are 0.001 a second: a million items in steps of 64 take 156.25 s.
    assert report.dollars_for(1e6, 64) == pytest.approx((0.15625, 0.140625, 0.234375))


def test_what_is_unknown_is_none_and_said():
    report = make_report(None, price=None)
    assert (report.step_seconds, report.interval, report.dollars_per_hour) == (None, None, None)
    assert (report.per_second(8), report.dollars_for(1e6, 8)) == (None, None)
    assert "unknown time a step" in report.summary
    assert "no price is published" in str(report)


def test_a_report_is_read_as_it_was_written(tmp_path):
    report = make_report()
    report.save(tmp_path / "new" / "folder")
    assert StepReport.load(tmp_path / "new" / "folder") == report


def test_a_damaged_report_is_refused_with_the_command_that_writes_it(tmp_path):
    make_report().save(tmp_path)
    content = json.loads((tmp_path / STEP_FILE).read_text())
    (tmp_path / STEP_FILE).write_text(json.dumps(content | {"devices": "eight"}))
    with pytest.raises(InputError, match=r"Run tpu-pipelines preflight again"):
        StepReport.load(tmp_path)


def test_text_and_markdown_have_every_layer_and_escape_names():
    layer = make_report().layers[0]
    report = make_report(layers=(layer, type(layer)("<b>|x", 1.0, 0.1, None, 0.0, ("3 of 128",))))
    assert "<b>|x" in str(report)
    assert r"&lt;b&gt;\|x" in report.markdown()
    assert "3 of 128" in report.markdown()


def test_layers_beyond_the_longest_are_summed_up():
    layer = make_report().layers[0]
    many = tuple(type(layer)(f"layer{i}", 1.0, 0.05, None, 0.0, ()) for i in range(20))
    assert "8 more layers take 8.00 ms." in str(make_report(layers=many))
    assert [row["name"] for row in make_report(layers=many).rows()] == [f"layer{i}" for i in range(20)]


def test_a_step_that_does_not_fit_gives_the_reason():
    report = make_report(None, 20.0, verdict="does_not_fit", reason="Ran out of memory")
    assert not report.fits
    assert report.summary == "train_step does not fit on v5e-8: Ran out of memory"
