"""The tables and figures that are stated follow from the data beside them; nothing is compiled or trained here."""

from pathlib import Path

import pytest

from tests.evidence.benchmarks import precision, whole_steps
from tests.evidence.benchmarks.precision import BFLOAT16, FLOAT32, Trained
from tpu_components.preflight_training.estimate import INTERVALS, WELL_USED, accuracy_of

_README = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")


def test_preflight_says_what_published_steps_say():
    busy, others = (whole_steps.accuracies(whole_steps.load_rows())[is_busy] for is_busy in (True, False))
    generation = whole_steps.load_generations()["v5e"]
    assert accuracy_of(generation, WELL_USED) == accuracy_of(generation, 1.0) == busy
    assert accuracy_of(generation, WELL_USED - 0.01) == accuracy_of(generation, 0.0) == others
    held = busy.held_out + others.held_out
    estimates = busy.estimates + others.estimates
    assert f"It contained {held} of {estimates} published step times" in INTERVALS


@pytest.mark.parametrize("path", ["README.md", "components/tpu_components/preflight_training/README.md"])
def test_a_page_says_of_how_many_steps_the_interval_held_how_many(path):
    text = (Path(__file__).parents[3] / path).read_text(encoding="utf-8")
    both = whole_steps.accuracies(whole_steps.load_rows()).values()
    held, estimates = (sum(getattr(one, name) for one in both) for name in ("held_out", "estimates"))
    assert f"{held} of {estimates}" in text


def test_every_published_step_fits_as_it_did():
    shares = whole_steps.memory_shares()
    assert max(shares.values()) <= 1
    assert f"all {len(shares)} published steps that were compiled with all their layers fit" in _README
    assert f"The largest needs {max(shares.values()):.0%} of the memory" in _README


def test_the_readme_holds_the_table_of_precisions():
    assert "\n".join(precision.table()) in _README


def test_precisions_are_compared_seed_by_seed():
    def trained(seed, precision, value):
        return Trained("digits", "30 epochs", seed, precision, "accuracy", value, 100)

    values = {0: (0.90, 0.91), 1: (0.94, 0.95)}
    both = [trained(seed, *one) for seed, pair in values.items() for one in zip((FLOAT32, BFLOAT16), pair, strict=True)]
    alone = trained(2, FLOAT32, 0.1)
    ((_, _, _, seeds, wide, narrow, apart, _),) = precision.summarize([*both, alone])
    assert (seeds, wide, narrow) == ("2", "0.9200 ± 0.0283", "0.9300 ± 0.0283")
    assert apart == "+0.0100 ± 0.0000"
