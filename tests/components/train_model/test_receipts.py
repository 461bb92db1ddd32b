import json
import types

import pytest

from tpu_components.core.machines import device
from tpu_components.core.machines.device import Device
from tpu_components.core.results.receipt import Receipt
from tpu_components.train_model import receipts
from tpu_components.train_model.receipts import leave_receipt


def test_training_says_what_it_took(trained_digits):
    receipt = Receipt.load(trained_digits)
    training = json.loads((trained_digits / "model.json").read_text())["training"]
    assert (receipt.machine, receipt.devices, receipt.peak_bytes, receipt.price) == ("cpu", 1, None, None)
    assert receipt.all_steps == training["steps"]
    assert receipt.steps == receipt.all_steps - training["epochs"], "the first step of each epoch includes set-up"
    assert receipt.seconds == pytest.approx(sum(training["paid_seconds"].values()))
    assert receipt.start_up_seconds < receipt.seconds
    # All steps together took less time than all epochs, and most of the time after the first step.
    steps_ms = receipt.steps * receipt.step_ms.p5
    assert steps_ms / 1e3 < training["seconds"]
    quantiles = [getattr(receipt.step_ms, name) for name in ("p5", "p25", "p50", "p75", "p95")]
    assert sorted(quantiles) == quantiles


def test_the_kind_of_the_devices_is_jaxs(monkeypatch):
    devices = [types.SimpleNamespace(device_kind="TPU v5 lite")]
    monkeypatch.setattr(device, "jax", types.SimpleNamespace(devices=lambda: devices))
    assert Device("jax", "tpu", 8, "mixed_bfloat16").kind == "TPU v5 lite"
    assert Device("jax", "cpu", 8, "float32").kind == ""
    assert Device("tensorflow", "tpu", 8, "float32").kind == ""


def test_peak_is_the_largest_of_this_hosts_devices(monkeypatch):
    held = [{"peak_bytes_in_use": 5, "bytes_limit": 9}, {"peak_bytes_in_use": 7}, None]
    devices = [types.SimpleNamespace(memory_stats=lambda each=each: each) for each in held]
    monkeypatch.setattr(receipts, "jax", types.SimpleNamespace(local_devices=lambda: devices))
    assert receipts.find_peak_bytes(Device("jax", "tpu", 3, "float32")) == 7


def test_training_does_not_fail_because_of_its_receipt(tmp_path, capsys):
    leave_receipt(types.SimpleNamespace(), types.SimpleNamespace(), tmp_path)
    assert not list(tmp_path.iterdir())
    assert "could not write receipt.json" in capsys.readouterr().err
