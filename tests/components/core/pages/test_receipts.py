import dataclasses

import pytest

from tests.components.preflight_training.receipts.runs import predict, receive
from tests.support.html_page import Page
from tpu_components.core.pages import page
from tpu_components.core.pages.receipts import compare_prediction, describe_step


def _words(receipt):
    return " ".join(" ".join(Page(page.render("t", compare_prediction(receipt))).words).split())


def test_page_shows_predicted_beside_measured_for_step_memory_time_and_price():
    receipt = receive().with_prediction(dataclasses.asdict(predict(basis="3 runs of this program, 12 of others")))
    words = _words(receipt)
    for row in (
        "Step 10.0 ms (8.70–15.4) 13.0 ms (11.7–15.6) 1.30",
        "Memory of a device 2.00 GiB 3.00 GiB 1.50",
        "Time of the run 1.67 min (1.45–2.57) 3.33 min 2.00",
        "Price of the run $0.31 (0.27–0.47) $0.61 2.00",
        "90% interval, from 3 runs of this program, 12 of others",
        "median of 9,990 of 10,000 steps",
        "Run The prediction covers only the epochs.",
        "Start-up took 1.00 min in 1 session",
    ):
        assert row in words, row
    assert describe_step(receipt) == "10.0 ms (8.70–15.4) predicted, 13.0 ms measured"


def test_a_prediction_without_receipts_names_none():
    receipt = receive().with_prediction(dataclasses.asdict(predict(basis="")))
    assert "predicted: 90% interval; measured: 5th to 95th percentile" in _words(receipt)


def test_without_a_prediction_there_is_no_section():
    assert compare_prediction(None) == compare_prediction(receive()) == []
    assert describe_step(receive()) == ""


def test_run_on_another_machine_is_not_compared():
    receipt = receive(machine="cpu", peak_bytes=None, price=None, prediction=predict())
    words = _words(receipt)
    assert "The prediction is for v5e-8, but the run took place on cpu." in words
    assert "Step 10.0 ms (8.70–15.4) 13.0 ms (11.7–15.6) Memory of a device 2.00 GiB not measured Time" in words
    assert describe_step(receipt) == ""


@pytest.mark.parametrize(("median_ms", "look"), [(9.0, "good"), (15.3, "good"), (15.5, "bad"), (8.0, "bad")])
def test_step_outside_of_its_interval_stands_out(median_ms, look):
    (section,) = compare_prediction(receive(median_ms, predict()))
    (table,) = [block for block in section.blocks if hasattr(block, "cells")]
    assert table.cells[0][-1].look == look
