import json
import re

import pytest

from tests.support.cli import assert_user_error, tpu_pipelines_here
from tpu_components.core.base.errors import InputError
from tpu_components.core.machines.machine_spec import load_catalogue
from tpu_pipelines.cli.machines import as_table, select_slices


def names(*arguments):
    return [one.name for one in select_slices(*arguments)]


def test_machines_are_chosen_by_generation_and_region():
    assert names() == [one.name for one in load_catalogue().slices]
    assert names("v3") == ["v3-8", "v3-32", "v3-64", "v3-128", "v3-256", "v3-512", "v3-1024", "v3-2048"]
    assert names("v3", "us-central1") == ["v3-8"]
    assert {name.partition("-")[0] for name in names("", "us-west1")} == {"v5e", "t4", "l4", "a100", "h100"}


@pytest.mark.parametrize(
    ("generation", "region", "message"),
    [
        (
            "v5",
            "",
            r"Unknown generation 'v5': expected one of v2, .*, 7x, t4, .*\. Did you mean 'v5p'\?",
        ),
        ("", "us-west11", r"Unknown region 'us-west11': .* Did you mean 'us-west1'\?"),
        ("7x", "us-west1", r"7x is not available in us-west1\. Expected one of us-central1\."),
    ],
)
def test_unknown_generations_and_regions_are_refused(generation, region, message):
    with pytest.raises(InputError, match=message):
        select_slices(generation, region)


def test_the_table_has_a_line_per_slice_and_fits_a_terminal():
    lines = as_table(select_slices()).splitlines()
    assert [line.split()[0] for line in lines[1 : len(names()) + 1]] == names()
    assert max(map(len, lines)) <= 120
    header, row = (" ".join(line.split()) for line in (lines[0], lines[7]))
    assert header == "name machine type accelerator chips devices hosts GiB TFLOP/s Vertex $ GKE $ region"
    assert row == "v3-32 cloud-tpu 32 TPU_V3 16 32 4 15.48 1,968 36.80 32.00 europe-west4"
    assert "v3        europe-west4, us-central1; several hosts: europe-west4" in lines
    (v5p,) = (" ".join(line.split()) for line in lines if line.startswith("v5p-8 "))
    assert v5p == "v5p-8 ct5p-hightpu-4t 2x2x1 4 4 1 95.73 1,836 - 16.80 us-central1"


def test_the_table_says_what_its_prices_are_and_which_are_unknown():
    table = as_table(select_slices("v6e", "europe-west4"))
    assert re.search(r"27\.32 +23\.76  europe-west4", table)
    assert "Vertex    Vertex AI's price, on demand: 1.15 × Compute Engine's, an assumed factor (2026)" in table
    assert "GKE       Compute Engine's list price, on demand (2026)" in table
    assert "skypilot-catalog" in table
    assert "quota     0 by default" in table
    assert "no trustworthy price is known" not in table
    assert "?         no trustworthy price is known" in as_table(select_slices("7x"))


def test_machines_prints_json_with_every_field_and_source():
    done = tpu_pipelines_here("machines", "--json", "--generation", "v5e", "--region", "us-east1")
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    one = load_catalogue().find("v5e-8")
    row = rows["v5e-8"]
    assert len(rows) == 9
    assert (row["tpu_topology"], row["devices"], row["hosts"], row["source"]) == ("2x4", 8, 1, one.source)
    assert (row["price"]["usd_per_hour"], row["price"]["region"]) == (11.04, "us-east1")
    assert (row["kubeflow_price"]["usd_per_hour"], row["kubeflow_price"]["target"]) == (9.6, "kubeflow")
    assert row["generation"]["sources"]["clock_hz"]["date"] == "2026-11-20"
    assert row["regions"] == list(one.regions)


def test_machines_prints_a_table_and_refuses_what_it_does_not_know():
    done = tpu_pipelines_here("machines", "--region", "us-west1")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1].startswith("v5e-1 ")
    assert_user_error(
        tpu_pipelines_here("machines", "--generation", "v5"), "Unknown generation 'v5'", "Did you mean 'v5p'?"
    )
