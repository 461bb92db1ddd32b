import pytest

from tpu_components.core.base.errors import InputError
from tpu_components.preflight_training.params import timeout_seconds
from tpu_pipelines.config.configuration import load_config
from tpu_pipelines.config.steps import gib
from tpu_pipelines.platforms.machines import place_training
from tpu_pipelines.platforms.platform import PLATFORMS


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("resources=4", r"resources is 4, expected a mapping"),
        ("resources.train=4", r"Unknown key 'train' in resources: .*Did you mean 'train_model'\?"),
        ("resources.export_model=4", r"resources\.export_model is 4, expected a mapping of cpu, "),
        ("resources.export_model.cpus=4", r"Unknown key 'cpus' in resources\.export_model.*Did you mean 'cpu'"),
        ("resources.export_model.cpu=4.5", r"resources\.export_model\.cpu is 4\.5, expected a whole number"),
        ("resources.export_model.cpu=-1", r"export_model\.cpu must be at least 0\. Received: .*\.cpu=-1"),
        (
            "resources.export_model.memory=16",
            r"export_model\.memory must be a whole number with a unit.*memory='16'",
        ),
        (
            "resources.export_model.memory=16 GB",
            r"memory must be a whole number with a unit, for example 16Gi.*'16 GB'",
        ),
    ],
)
def test_resources_are_checked_when_the_configuration_is_read(override, message):
    with pytest.raises(InputError, match=message):
        load_config("digits", [override])


def test_what_is_set_stands_in_the_configuration_again():
    config = load_config("digits", ["resources.export_model={memory: 16Gi, retries: 0}"])
    assert config.as_dict()["resources"] == {"export_model": {"memory": "16Gi", "retries": 0}}
    assert "resources" not in load_config("digits").as_dict()


def test_quantities_are_those_of_kubernetes():
    assert [gib(text) for text in ("1Gi", "512Mi", "1Ti")] == [1, 0.5, 1024]
    assert gib("1G") == pytest.approx(0.931, abs=1e-3)


@pytest.mark.parametrize(("hours", "expected"), [(0, 4), (4 / 3, 4), (1.34, 8), (10, 32), (100, 168)])
def test_a_training_has_three_times_its_estimate_in_doublings_of_four_hours_up_to_seven_days(hours, expected):
    assert timeout_seconds(hours * 3600) == expected * 3600


@pytest.mark.parametrize(
    ("target", "overrides", "expected"),
    [
        ("vertex", ["machine=v5e-4"], (0, 1)),  # Preflight's estimate decides.
        ("vertex", ["machine={name: v5e-4, timeout_seconds: 600}"], (600, 1)),
        ("kubeflow", ["machine=v5e-4"], (24 * 3600, 1)),  # Which takes no estimate.
        ("kubeflow", ["machine=v5e-4", "preflight.max_price_usd=48"], (30 * 3600, 1)),  # $4.80 an hour: 10 hours.
        ("vertex", ["machine=v5e-4", "resources.train_model.retries=2"], (0, 3)),
    ],
)
def test_a_machine_is_paid_for_until_its_training_is_stopped_as_often_as_it_may_start(target, overrides, expected):
    config = load_config("digits", overrides)
    paid = place_training(config, config.machine, PLATFORMS[target]).paid
    assert (paid.target, paid.timeout_seconds, paid.attempts) == (target, *expected)


@pytest.mark.parametrize("target", ["vertex", "kubeflow"])
@pytest.mark.parametrize("machine", ["v5e-4", "v5e-16", "l4-1", "{name: v5e-4, spot: true}"])
@pytest.mark.parametrize("preflight", [[], ["preflight=true"], ["preflight=false"], ["preflight.max_price_usd=40"]])
def test_a_machine_costs_the_same_whether_it_is_compared_or_configured(preflight, machine, target):
    """`preflight --compare v5e-4`, `--set machine=v5e-4` and compile of a configuration that names no machine."""
    without = load_config("mnist_cnn", preflight)
    configured = load_config("mnist_cnn", [*preflight, f"machine={machine}"])
    moved = place_training(without, configured.machine, PLATFORMS[target])
    assert without.machine is None
    assert moved == place_training(configured, configured.machine, PLATFORMS[target])
    assert (moved.config.preflight is None) == (preflight == ["preflight=false"])
    assert moved.paid.timeout_seconds == (0 if moved.timeout.is_estimated else moved.timeout.seconds)
    assert moved.timeout.is_estimated == (
        target == "vertex" and machine != "l4-1" and moved.config.preflight is not None
    )


@pytest.mark.parametrize(
    ("target", "machine", "expected"),
    [
        ("vertex", "machine=v6e-4", "europe-west4"),
        ("vertex", "machine={name: v6e-4, region: us-east5}", "us-east5"),
        ("vertex", "machine=v5e-4", ""),  # europe-west4 does not train on it.
        ("kubeflow", "machine=v6e-4", ""),  # A cluster's machines are where the cluster is.
    ],
)
def test_a_machine_without_a_region_is_paid_for_in_the_region_of_the_settings(target, machine, expected):
    config = load_config("digits", [machine])
    assert place_training(config, config.machine, PLATFORMS[target], "europe-west4").paid.region == expected
