"""Claims about preflight of a configuration: where its prices come from, and which examples it measures."""

import json

import pytest

from tests.support.cli import tpu_pipelines_here
from tpu_components.core.base.cpus import CpuTimes
from tpu_components.core.base.errors import InputError
from tpu_components.core.machines.machine_spec import load_catalogue, parse_machine
from tpu_components.core.sources.kinds import list_examples
from tpu_components.create_tfrecords.planning import plan_dataset
from tpu_components.preflight_training.data import Measurement
from tpu_pipelines.config.configuration import load_config
from tpu_pipelines.sizing import preflight
from tpu_pipelines.sizing.preflight import PlannedData, describe_data, measure_sample, with_settings_of


@pytest.mark.parametrize(
    ("name", "configured", "expected"),
    [
        ("v6e-1", {"name": "v6e-1", "region": "asia-northeast1"}, ("asia-northeast1", False)),
        ("v6e-8", {"name": "v6e-1", "region": "asia-northeast1", "spot": True}, ("asia-northeast1", True)),
        ("v2-8", {"name": "v6e-1", "region": "asia-northeast1"}, ("", False)),  # It does not train there.
        ("v6e-1", None, ("", False)),
    ],
)
def test_another_machine_is_priced_where_the_configuration_trains(name, configured, expected):
    machine = with_settings_of(parse_machine(name), configured and parse_machine(configured))
    assert (machine.name, machine.region, machine.spot) == (name, *expected)


def test_a_machine_that_is_no_spot_machine_has_the_other_price():
    pod = parse_machine(next(one.name for one in load_catalogue().slices if one.hosts > 1))
    assert not with_settings_of(pod, parse_machine({"name": "v5e-1", "spot": True})).spot


def test_data_that_were_described_before_are_not_even_divided(image_folder, tmp_path, monkeypatch):
    folder = image_folder()
    config = load_config("digits", [f"data.source=images:{folder}"])
    divided = []

    def divide(*arguments):
        divided.append(plan_dataset(*arguments))
        return divided[-1]

    monkeypatch.setattr(preflight, "plan_dataset", divide)
    first, second = (describe_data(config, list_examples(config.data), tmp_path) for _ in range(2))
    assert first == second
    assert first.host is None
    assert len(divided) == 1
    (folder / "cat" / "new.png").write_bytes((folder / "cat" / "0000.png").read_bytes())
    assert describe_data(config, list_examples(config.data), tmp_path).interface == first.interface
    assert len(divided) == 2


def test_data_to_come_are_streamed_and_say_what_is_assumed(image_folder, tmp_path, monkeypatch):
    """A handful of pictures stands for two million of 300,000 bytes: no memory holds these."""
    # Beside other work, the rate would be measured again.
    monkeypatch.setattr("tpu_components.preflight_training.data.cpu_times", lambda: CpuTimes(0.0, 0.0, 0.0))
    folder = image_folder()
    config = load_config("digits", [f"data.source=images:{folder}", "data.image_size=64", "data.encoding=encoded"])
    listing = list_examples(config.data)

    def load(planned=None):
        facts = describe_data(config, listing, tmp_path, planned)
        measured = measure_sample(config, listing, facts, Measurement(4096, 20_000, tmp_path))
        return planned.assumed_of(measured, listing) if planned else measured

    assert load().host.in_memory
    planned = PlannedData(2_000_000)
    facts = load(planned)
    assert not facts.host.in_memory
    assert 1_000_000 < facts.num_examples < 2_000_000
    assert facts.num_validation > 100_000
    assert 0 < facts.host.low_per_second <= facts.host.feed_per_second <= facts.host.high_per_second
    assert facts.assumed.startswith(
        "2,000,000 examples are assumed, streamed from files; the host's rate was measured on the "
    )
    each = listing.num_bytes / len(listing.keys)
    larger = load(PlannedData(2_000_000, round(10 * each)))
    assert larger.host.feed_per_second == pytest.approx(facts.host.feed_per_second / 10, rel=0.05)
    assert "divided by" in larger.assumed
    assert describe_data(config, listing, tmp_path, planned).assumed == "2,000,000 examples are assumed"


def test_a_quick_preflight_of_host_fed_data_measures_nothing(warm, tmp_path, monkeypatch):
    """A whole command: fits and memory, the price of an hour, and neither step nor rate."""
    monkeypatch.setattr(Measurement, "measure", lambda *_: pytest.fail("measured"))
    residency = ("--set", "training.residency=host", "--set", "preflight.max_step_ms=0.000001")
    with warm.takes_over():
        done = tpu_pipelines_here("preflight", "digits", "--quick", *residency, "--workspace", str(tmp_path), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    (machine,) = found["machines"]
    assert (machine["verdict"], machine["step"], machine["epoch"], found["data"]["host"]) == ("fits", None, None, None)
    assert 0 < machine["peak_bytes"] < machine["capacity_bytes"]
    assert (machine["cost"]["usd_per_hour"], machine["cost"]["usd_per_run"]) == (1.38, None)
    assert machine["largest_batch"]["is_upper_bound"]


@pytest.mark.parametrize("numbers", [(0,), (-5,), (10, -1)])
def test_data_to_come_are_some(numbers):
    with pytest.raises(InputError, match=rf"Received: {numbers[0]} examples, "):
        PlannedData(*numbers)
