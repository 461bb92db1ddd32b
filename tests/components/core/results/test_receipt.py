import dataclasses
import json

import pytest

from tests.components.preflight_training.receipts.runs import predict, receive
from tpu_components.core.base.errors import InputError
from tpu_components.core.results.receipt import Receipt


def test_receipt_comes_back_as_it_was_saved(tmp_path):
    receipt = receive(prediction=predict())
    receipt.save(tmp_path)
    assert Receipt.load(tmp_path) == receipt


def test_prediction_does_not_change_the_id_and_measurements_do():
    measured = receive()
    assert measured.with_prediction(dataclasses.asdict(predict())).id == measured.id
    assert receive(13.1).id != measured.id


@pytest.mark.parametrize(
    ("changes", "machine"),
    [({}, "v5e-8"), ({"devices": 4}, ""), ({"hosts": 2}, ""), ({"device": "TPU v6 lite"}, ""), ({"device": ""}, "")],
)
def test_a_run_on_the_predicted_machine_gets_its_name_and_price(changes, machine):
    measured = receive(**{"machine": "", "price": None, **changes})
    receipt = measured.with_prediction(dataclasses.asdict(predict()))
    assert (receipt.machine, receipt.is_comparable, receipt.price is not None) == (
        machine,
        bool(machine),
        bool(machine),
    )
    assert receipt.id == measured.id


def test_prediction_brings_its_price_for_all_sessions():
    """KFP makes floats of whole numbers."""
    raw = dataclasses.asdict(predict(peak_bytes=1024)) | {"peak_bytes": 1024.0}
    receipt = receive(seconds=1800.0).with_prediction(raw)
    assert receipt.prediction.peak_bytes == 1024
    assert receipt.price.usd == pytest.approx(11.04 / 2)
    assert receipt.prediction.usd == pytest.approx((11.04 / 36, 11.04 * 0.87 / 36, 11.04 * 1.54 / 36))


@pytest.mark.parametrize(
    ("receipt", "reason"),
    [
        (receive(), "no prediction"),
        (receive(prediction=predict("v5e-4")), "predicted for v5e-4"),
        (receive(prediction=predict(), machine="cpu"), "predicted for v5e-8"),
        (receive(prediction=predict(), step_ms=None, steps=0), "no step was measured"),
        (receive(prediction=predict(), waiting=0.25), "25% waiting for input"),
    ],
)
def test_run_that_says_nothing_about_the_estimate_has_no_ratio(receipt, reason):
    assert (receipt.ratio, receipt.unused_because) == (None, reason)


def test_ratio_is_relative_to_the_compiler_and_not_to_a_corrected_prediction():
    assert receive(13.0, predict(step_ms=12.5, compiler_ms=10.0)).ratio == pytest.approx(1.3)


@pytest.mark.parametrize(
    "change",
    [{"version": 2}, {"program": "../weights"}, {"machine": "my machine\n"}, {"seconds": -1.0}, {"waiting": 1.5}],
)
def test_values_that_no_run_has_are_rejected(change):
    raw = json.loads(json.dumps(receive().as_dict())) | change
    with pytest.raises(InputError, match=next(iter(change))):
        Receipt.parse(raw)
