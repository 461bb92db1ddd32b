"""What a dry run says of the price, by preflight."""

import pytest

from pipelines.config import load_config
from pipelines.dry_run import prices
from pipelines.settings import Settings

_SETTINGS = Settings(region="us-central1")


@pytest.mark.slow  # Compiles for two TPUs: half a minute.
def test_prices_are_those_of_preflight_for_every_machine():
    config = load_config("digits", ["machine={name: v5e-4, fallbacks: [v6e-4]}", "training.epochs=1"])
    first, second = prices(config, "vertex", _SETTINGS)
    assert first.startswith("fits v5e-4 (<1% of its memory), ")
    assert second.startswith("fits v6e-4 ")
    assert first.endswith(" a run at list price")


def test_a_price_that_cannot_be_known_says_why():
    assert prices(load_config("mnist_cnn", ["machine=v5e-4"]), "vertex", _SETTINGS) == [
        "not known before the data are there: tpu-pipelines preflight mnist_cnn"
    ]
    config = load_config("digits", ["machine=v5e-4", "data.source=images:/nowhere"])
    assert prices(config, "vertex", _SETTINGS)[0].startswith("not known: ")
