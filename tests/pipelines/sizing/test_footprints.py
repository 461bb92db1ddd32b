"""Claims about a training's step beside another's: which differences are told, and which of them fail."""

import dataclasses
import json
import shutil

import pytest

from tests.support.cli import QUICK, assert_user_error, tpu_pipelines_here
from tpu_components.core.base.errors import InputError
from tpu_components.core.machines.footprint import Footprint
from tpu_pipelines.sizing.footprints import FootprintComparison, NamedFootprint, load_baseline

_OLD = Footprint("v5e-8", "", False, 6400, 100, 10, 64, 1000, 2.0, 2**30, 2**34, 9.6, {"libtpu": "1"})


@pytest.fixture
def version(finished_run, tmp_path):
    """A function that gives the run's version another lineage, and returns its reference."""

    def change(lineage):
        shutil.copytree(finished_run[0] / "registry", tmp_path / "registry")
        path = tmp_path / "registry" / "digits" / "versions" / "0001" / "version.json"
        path.chmod(0o644)
        path.write_text(json.dumps(json.loads(path.read_text()) | {"lineage": lineage}))
        return f"{tmp_path}/registry/digits@0001"

    return change


def test_a_run_leaves_a_version_that_keeps_what_its_preflight_found(finished_run):
    baseline = load_baseline(f"{finished_run[0]}/registry/digits@champion")
    assert (baseline.name, baseline.footprint.machine) == ("digits 0001", "v5e-1")
    assert baseline.footprint.device_usd_per_run > 0


def test_the_version_keeps_every_figure(version):
    kept = json.loads(json.dumps(dataclasses.asdict(_OLD)))
    assert load_baseline(version({"preflight": kept})) == NamedFootprint("digits 0001", _OLD)


@pytest.mark.parametrize(
    ("lineage", "message"),
    [
        ({"run": "digits"}, r"Cannot compare with digits 0001: this version has no preflight result"),
        ({"preflight": {"machine": 3}}, r"Cannot compare with digits 0001: another release wrote its preflight result"),
    ],
)
def test_a_version_that_keeps_nothing_usable_is_refused(version, lineage, message):
    with pytest.raises(InputError, match=message):
        load_baseline(version(lineage))


def test_an_alias_that_stands_nowhere_is_refused(version):
    reference = version({}).replace("0001", "latest")
    with pytest.raises(InputError, match=r"No version of 'digits' .* has the alias 'latest'"):
        load_baseline(reference)


def beside(slower=0.2, dearer=0.2, **changes):
    """A training that differs from the old one in some fields, beside it."""
    comparison = FootprintComparison(dataclasses.replace(_OLD, **changes), _OLD, "digits 0001")
    return dataclasses.replace(comparison, broken=comparison.broken_limits(slower, dearer))


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({"step_ms": 2.4}, ()),  # 20% exactly.
        (
            {"step_ms": 2.6},
            (
                "an epoch takes 260 ms on v5e-8, which is 30% more than the 200 ms of digits 0001 on v5e-8. "
                "At most 20% more is allowed",
                "a run at Compute Engine's list price costs $0.0069 on v5e-8, which is 30% more than the $0.0053 "
                "of digits 0001 on v5e-8. At most 20% more is allowed",
            ),
        ),
        ({"step_ms": 4.0, "global_batch": 128}, ()),  # As fast: half as many steps.
        ({"epochs": 20}, ("a run at Compute Engine's list price costs $0.011 on v5e-8, which is 100% more than",)),
        ({"epochs": 20, "usd_per_hour": 0.0}, ()),  # No price is known.
    ],
)
def test_what_is_slower_or_dearer_than_allowed_is_said(changes, broken):
    received = beside(**changes).broken
    assert len(received) == len(broken)
    assert all(words.startswith(start) for words, start in zip(received, broken, strict=True))


def test_limits_are_the_users():
    assert not beside(slower=0.3, dearer=0.3, step_ms=2.6).broken
    assert beside(slower=0.0, dearer=9.0, step_ms=2.1).broken


def test_a_version_that_was_priced_by_compute_engine_is_compared_at_the_targets_price():
    """Versions from before prices had a target: the same training must not look 15% dearer."""
    new = dataclasses.replace(_OLD, usd_per_hour=1.15 * _OLD.usd_per_hour, target="vertex", price_factor=1.15)
    same = FootprintComparison(new, _OLD.priced_like(new), "digits 0001")
    assert same.summary == "the same as digits 0001, still fits v5e-8"
    assert "price of a run, if the host keeps up, Vertex AI's price" in same.as_text()


def test_the_summary_says_what_a_reviewer_asks_for():
    assert beside().summary == "the same as digits 0001, still fits v5e-8"
    dearer = beside(step_ms=5.0, peak_bytes=2**29)
    assert (
        dearer.summary == "+$0.0080 a run at Compute Engine's list price, +3.00 ms a step (+150%), -512 MiB of memory, "
        "still fits v5e-8"
    )
    larger = beside(step_ms=6.0, global_batch=2048)
    assert ", +4.00 ms a step of 32 × the batch (+200%), " in larger.summary
    moved = beside(machine="v6e-8", compiler={"libtpu": "2"}, num_examples=12800)
    assert moved.summary == "+$0.0053 a run at Compute Engine's list price, fits v6e-8, v5e-8 before"
    assert moved.caveats == (
        "this run was compiled with libtpu 2, digits 0001 with 1",
        "this run has 12,800 training examples, digits 0001 had 6,400",
    )


def test_preflight_fails_where_the_training_is_slower_than_that_of_a_report(finished_run, warm, tmp_path):
    before = tmp_path / "before"
    before.mkdir()
    found = json.loads((finished_run[0] / "digits" / "preflight" / "preflight.json").read_text())
    found["machines"][0]["step"]["compute_ms"] /= 2
    (before / "preflight.json").write_text(json.dumps(found))
    summary = tmp_path / "summary.md"
    with warm.takes_over():
        done = tpu_pipelines_here(
            *("preflight", "digits", *QUICK, "--workspace", str(tmp_path / "runs"), "--json"),
            *("--against", str(before / "preflight.json"), "--markdown", str(summary)),
        )
    assert done.returncode == 3, done.stderr
    against = json.loads(done.stdout)["against"]
    assert "100% more than" in against["broken"][0]
    lines = summary.read_text().splitlines()
    assert lines[0].startswith("### ✗ preflight of digits: +")
    assert lines[2].startswith("- ✗ an epoch takes ")


def test_a_quick_preflight_compares_no_times(tmp_path):
    done = tpu_pipelines_here("preflight", "digits", "--quick", "--against", str(tmp_path / "preflight.json"))
    assert_user_error(done, "--against compares times and prices, but --quick does not estimate them")


def test_what_is_no_training_to_compare_with_is_refused_before_anything_is_compiled(tmp_path):
    done = tpu_pipelines_here("preflight", "digits", "--against", str(tmp_path / "nothing"))
    assert_user_error(done, "Cannot compare with", "in another registry, or a preflight.json or its folder")
