"""The tables and figures that are stated follow from the data beside them; nothing is compiled or trained here."""

import dataclasses
import json
import math
import re
from pathlib import Path

import pytest

from tests.benchmarks import precision, truth
from tests.benchmarks.precision import BFLOAT16, FLOAT32, Trained
from tpu_components.preflight_training.estimate import HELD_OUT, WHOLE_STEPS, accuracy_of

_README = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def rows():
    return truth.load_rows()


def test_preflight_corrects_by_what_was_published(rows):
    generations = truth.load_generations()
    for name, expected in truth.accuracies(rows).items():
        assert accuracy_of(generations[name]) == expected, name


def test_the_interval_is_stated_with_the_share_of_steps_that_it_held_without_having_seen_their_program(rows):
    """76 of 81 are 94%; of v6e it held three of four."""
    tried = truth.cross_validate(rows)
    assert (sum(is_held for _, _, is_held in tried), len(tried)) == HELD_OUT == (76, 81)
    v6e = truth.load_generations()["v6e"]
    assert accuracy_of(v6e).words("v6e").endswith("; held out, the interval held 14 of these 18")


def test_what_the_interval_rests_on_is_stated(rows):
    """81 rows: 8 whole steps of 4 programs, and 73 rows of one block with 11 distinct estimates."""
    tried = [(row, ratio) for row, ratio, _ in truth.cross_validate(rows)]
    assert truth.basis(rows) == (4 + 11, WHOLE_STEPS)
    assert {row.generation for row, _ in tried if row.way == "step"} == {"v2", "v3"}
    assert {row.program for row, _ in tried if row.way == "block"} == {"decoder"}
    median, largest = truth.errors([ratio for row, ratio in tried if row.way == "step"])
    assert (f"{median:.0%}", f"{largest:.0%}") == ("2%", "11%")
    median, _ = truth.errors([ratio for _, ratio in tried])
    assert (f"{median:.0%}", f"{max(abs(1 / ratio - 1) for _, ratio in tried):.0%}") == ("10%", "38%")
    generations = truth.load_generations()
    assert "7 of them of whole training steps; 3 distinct estimates" in accuracy_of(generations["v3"]).words("v3")
    assert "1 of them of a whole training step; 1 " in accuracy_of(generations["v2"]).words("v2")
    assert "none of them of a whole training step; 2 " in accuracy_of(generations["v5e"]).words("v5e")


@pytest.mark.parametrize("path", ["README.md", "components/tpu_components/preflight_training/README.md"])
def test_no_page_promises_the_share_of_the_cross_validation_alone(path):
    text = (Path(__file__).parents[2] / path).read_text(encoding="utf-8")
    assert "10" in re.findall(r"13 published step times[^\n]*", text)[0]


@pytest.mark.parametrize("table", [truth.table, precision.table], ids=["truth", "precision"])
def test_the_readme_holds_the_table(table):
    assert "\n".join(table()) in _README


def test_every_step_time_has_a_source_and_a_program():
    published = json.loads(truth.PUBLISHED.read_text(encoding="utf-8"))
    assert {row["source"] for row in published["rows"]} == set(published["sources"])
    assert {row["program"] for row in published["rows"]} == set(published["programs"])
    for row in published["rows"]:
        assert ("step_ms" in row) != ("tflops_per_chip" in row), row


def _ratios(**generations):
    """Two equal rows of each program."""
    return {
        name: {str(i): [math.log(value)] * 2 for i, value in enumerate(values)} for name, values in generations.items()
    }


def test_a_generation_with_many_programs_is_believed_and_one_with_few_is_drawn_to_the_others():
    model = truth.fit(_ratios(many=[2.0] * 99, others=[1.0] * 99, few=[2.0]))
    (many, of_many), (few, of_few), (unknown, of_unknown) = map(model.expect, ("many", "few", "unknown"))
    assert math.exp(many) == pytest.approx(2.0, rel=0.01)
    assert few == pytest.approx((math.log(2) + unknown) / 2)
    assert of_many < of_few < of_unknown


def test_equal_programs_leave_only_what_rows_differ_by():
    model = truth.fit({name: {"one": [0.0, 0.1, -0.1]} for name in "abc"})
    assert model.between == 0
    assert model.rows == pytest.approx(0.01)
    assert model.expect("a") == model.expect("unknown") == pytest.approx((0, 2.92 * 0.1), abs=1e-4)


def test_a_program_is_judged_by_what_follows_without_it(rows):
    """Other times for its rows change by how much they are off, and nothing of what was expected of them."""
    first = rows[0]
    doubled = [
        dataclasses.replace(row, ratio=2 * row.ratio) if truth.place(row) == truth.place(first) else row for row in rows
    ]
    before, after = (truth.cross_validate(one)[0][1] for one in (rows, doubled))
    assert after == pytest.approx(2 * before)


def test_errors_are_shares_of_what_was_measured():
    assert truth.errors([0.5, 1.0, 2.0]) == (0.5, 1.0)


def test_precisions_are_compared_seed_by_seed():
    def trained(seed, precision, value):
        return Trained("digits", "30 epochs", seed, precision, "accuracy", value, 100)

    values = {0: (0.90, 0.91), 1: (0.94, 0.95)}
    both = [trained(seed, *one) for seed, pair in values.items() for one in zip((FLOAT32, BFLOAT16), pair, strict=True)]
    alone = trained(2, FLOAT32, 0.1)
    ((_, _, _, seeds, wide, narrow, apart, _),) = precision.summarize([*both, alone])
    assert (seeds, wide, narrow) == ("2", "0.9200 ± 0.0283", "0.9300 ± 0.0283")
    assert apart == "+0.0100 ± 0.0000"
