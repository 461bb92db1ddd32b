"""The language model through the whole pipeline, as a user runs it."""

import json

import pytest

from tests.components.corpora import corpus_params
from tests.support.cli import tpu_pipelines

SMALL = (
    "preflight=true",
    "data.num_tokens=16",
    "data.context_tokens=8",
    "data.test_fraction=0.2",
    "model.parameters={units: 24, embedding: 8}",
    "training.epochs=6",
    "training.batch_size_per_replica=8",
    "training.learning_rate=0.02",
    "gate.maximum={bits_per_character: 5.0}",
    "export.max_int8_accuracy_drop=0.05",
)


def run(workspace, source, *settings):
    arguments = [word for setting in (f"data.source={source}", *settings) for word in ("--set", setting)]
    return tpu_pipelines("run", "shakespeare_lstm", "--workspace", str(workspace), *arguments)


@pytest.mark.slow  # Every step in a process of its own, and a compilation for a TPU: a minute.
def test_a_text_becomes_a_champion_that_the_next_run_has_to_match_by_bits_per_character(tmp_path):
    source = corpus_params(tmp_path).source
    done = run(tmp_path, source, *SMALL)
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "shakespeare_lstm" / "summary.json").read_text())
    bits = summary["metrics"]["bits_per_character"]
    assert summary["status"] == "succeeded"
    assert summary["preflight"]["verdict"] == "fits"
    assert summary["deployment"]["version"] == "0001"
    assert f"test: bits_per_character {bits:.4f}, accuracy" in done.stdout
    for name in ("saved_model", "float"):
        assert summary["export"]["formats"][name]["agreement"] == 1.0
    written = tpu_pipelines("predict", summary["artifacts"]["export"], "the ", "--length", "20")
    assert written.stdout.startswith("the ")
    assert len(written.stdout) == len("the ") + 20 + 1
    worse = run(tmp_path, source, *SMALL, "training.epochs=1")
    assert worse.returncode == 3, worse.stderr
    assert f"is worse than the champion's {bits:.4f}" in worse.stdout
