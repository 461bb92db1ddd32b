"""Claims about preflight of a configuration: where its prices come from."""

import pytest

from components.machine_spec import load_catalogue, parse_machine
from pipelines.preflight import _where_configured


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
    spec = _where_configured(load_catalogue().find(name), configured and parse_machine(configured))
    assert (spec.slice.name, spec.region, spec.spot) == (name, *expected)


def test_a_machine_that_is_no_spot_machine_has_the_other_price():
    pod = next(one for one in load_catalogue().slices if one.hosts > 1)
    assert not _where_configured(pod, parse_machine({"name": "v5e-1", "spot": True})).spot
