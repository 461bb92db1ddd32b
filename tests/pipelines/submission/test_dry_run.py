"""What a dry run says of the price, by preflight, and how often it asks for what it needs to know."""

import dataclasses

import pytest

from tpu_components.core.files import storage
from tpu_pipelines.config.configuration import load_config
from tpu_pipelines.config.settings import Settings
from tpu_pipelines.doctor.findings import CannotAskError
from tpu_pipelines.pipeline import compile as compiling
from tpu_pipelines.submission.dry_run import describe, prices
from tpu_pipelines.submission.submit import plan_submission

_SETTINGS = Settings(project="my-project", region="us-central1", bucket="gs://my-bucket")


def _plan(config):
    return plan_submission(config, "vertex", _SETTINGS)


@pytest.mark.slow  # Compiles for two TPUs: half a minute.
def test_prices_are_those_of_preflight_for_every_machine():
    config = load_config("digits", ["machine={name: v5e-4, fallbacks: [v6e-4]}", "training.epochs=1"])
    first, second, *_ = (finding.said for finding in prices(config, _plan(config), "vertex"))
    assert first.startswith("fits v5e-4 (<1% of its memory), ")
    assert second.startswith("fits v6e-4 ")
    # Four hours, after which the training is stopped, of 4 × $1.20 × 1.15.
    assert first.endswith(" a run expected, plus start-up, at most $22.08, at Vertex AI's price")
    machine = next(prices(config, _plan(config), "kubeflow")).said
    # A cluster takes no estimate: a day of 4 × $1.20.
    assert machine.endswith(" a run expected, plus start-up, at most $115.20, at Compute Engine's list price")


def test_a_price_that_cannot_be_known_says_why():
    config = load_config("digits", ["machine=v5e-4"])
    plan = dataclasses.replace(_plan(config), data=None)
    with pytest.raises(CannotAskError, match="not known before the data are there: tpu-pipelines preflight digits"):
        next(prices(config, plan, "vertex"))
    config = load_config("digits", ["machine=v5e-4", "preflight=false"])
    plan = _plan(config)
    assert "price: preflight is switched off" in map(str, describe(config, plan, "vertex"))


def test_a_bucket_is_listed_once_and_before_any_machine_is_compiled_for(bucket, monkeypatch):
    for name in (f"{kind}/{number}.png" for kind in ("cats", "dogs") for number in range(10)):
        bucket.blob(f"photos/{name}").upload_from_string(b"picture")
    done = []

    def record(module, name, word):
        real = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *arguments: (done.append(word), real(*arguments))[1])

    record(storage, "each_file", "list")
    record(compiling, "compile_pipeline", "compile")
    machine, batch = "machine={name: v5e-4, fallbacks: [v6e-4]}", "training.batch_size_per_replica=1"
    source = "images:gs://bucket/photos"
    config = load_config("digits", [machine, batch, f"data.source={source}", "preflight=false"])
    said = "\n".join(map(str, describe(config, _plan(config), "vertex")))
    assert f"{source}, " in said
    assert "v5e-4 in us-central1, then v6e-4 in us-central1" in said
    assert done == ["list", "compile", "compile"]
