import json
from dataclasses import replace

import pytest

from components.models.compiling import scale_learning_rate, warmup_steps
from components.train_model import train_model


@pytest.mark.parametrize(
    ("scaling", "optimizer", "expected"),
    [
        ("auto", "sgd", 0.8),
        ("auto", "adam", 0.1 * 8**0.5),
        ("auto", "adamw", 0.1 * 8**0.5),
        ("linear", "adam", 0.8),
        ("sqrt", "sgd", 0.1 * 8**0.5),
        ("none", "sgd", 0.1),
    ],
)
def test_learning_rate_grows_with_the_replicas_as_the_optimizer_wants(scaling, optimizer, expected):
    assert scale_learning_rate(0.1, 8, scaling, optimizer) == pytest.approx(expected, rel=1e-12)
    assert scale_learning_rate(0.1, 1, scaling, optimizer) == 0.1


def test_warmup_never_takes_all_the_steps():
    assert warmup_steps(0.0, 10, 30) == 0
    assert warmup_steps(1.5, 10, 30) == 15
    assert warmup_steps(99.0, 10, 30) == 29
    assert warmup_steps(1.0, 1, 1) == 0


def _rates(params, digits_records, output):
    train_model(params, digits_records, output)
    return [json.loads(line)["learning_rate"] for line in (output / "history.jsonl").read_text().splitlines()]


def test_cosine_rises_to_the_peak_and_falls_to_zero(quick, digits_records, tmp_path):
    params = replace(
        quick, epochs=4, warmup_epochs=2, learning_rate_schedule="cosine", batch_size_per_replica=512, optimizer="sgd"
    )
    half_way, peak, falling, end = _rates(params, digits_records, tmp_path / "model")
    assert half_way == pytest.approx(params.learning_rate / 2, rel=1e-5)
    assert peak == pytest.approx(params.learning_rate, rel=1e-6)
    assert falling == pytest.approx(params.learning_rate / 2, rel=1e-5)
    assert end == pytest.approx(0, abs=1e-9)


def test_constant_stays_at_the_peak_after_warmup(quick, digits_records, tmp_path):
    params = replace(quick, epochs=3, warmup_epochs=1, batch_size_per_replica=512)
    assert _rates(params, digits_records, tmp_path / "model") == pytest.approx([params.learning_rate] * 3, rel=1e-6)
