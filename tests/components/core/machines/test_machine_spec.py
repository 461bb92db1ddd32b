import dataclasses
import importlib.util
import json
import math
import os
import re
import subprocess
import sys

import pytest

from tpu_components.core.base.errors import InputError
from tpu_components.core.machines.machine_spec import (
    CATALOGUE_FILE,
    KUBEFLOW,
    MachineSpec,
    PaidMachine,
    load_catalogue,
    parse_machine,
)

CATALOGUE = load_catalogue()
SLICES = CATALOGUE.slices
NAMES = [one.name for one in SLICES]
TPUS = [one for one in SLICES if not one.is_gpu]
GPUS = [one for one in SLICES if one.is_gpu]
RESERVATION = "projects/mine/zones/us-west1-c/reservations/tpus"

# Prints, for each topology that it reads, how many devices and how many hosts the TPU compiler makes of it.
BUILD_TOPOLOGIES = """
import json, sys
from jax.experimental import topologies
for name, bounds, config in json.load(sys.stdin):
    more = {"chips_per_host_bounds": tuple(bounds)} if bounds else {}
    more |= {"chip_config_name": config} if config else {}
    devices = topologies.get_topology_desc(platform="tpu", topology_name=name, **more).devices
    kinds = {device.device_kind for device in devices}
    print(json.dumps([len(devices), len({device.process_index for device in devices}), *kinds]))
"""


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu: pip install '.[preflight]'")
def test_the_tpu_compiler_builds_every_slice_with_its_devices_and_hosts():
    environment = {
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "JAX_PLATFORMS": "cpu",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", BUILD_TOPOLOGIES],
        input=json.dumps(
            [(one.libtpu_topology, one.chips_per_host_bounds, one.generation.chip_config) for one in TPUS]
        ),
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    built = dict(zip([one.name for one in TPUS], map(json.loads, done.stdout.splitlines()), strict=True))
    assert built == {one.name: [one.devices, one.hosts, one.generation.device_kind] for one in TPUS}


def test_the_catalogue_has_every_slice_once():
    assert len(NAMES) == len(set(NAMES)) == len(SLICES)
    assert len({tuple(one.vertex_fields.values()) for one in SLICES}) == len(SLICES)


@pytest.mark.parametrize("one", GPUS, ids=[one.name for one in GPUS])
def test_a_machine_with_gpus_is_consistent_with_itself(one):
    assert one.name == f"{one.generation.name}-{one.chips}"
    assert one.chips == one.devices == one.accelerator_count
    assert one.hosts == 1
    assert one.accelerator_type.startswith("NVIDIA_")
    assert not one.tpu_topology
    assert not one.libtpu_topology
    of_vertex = one.generation.vertex_quota.lower().removeprefix("nvidia").removesuffix("gpus")
    of_compute = one.generation.compute_quota.lower().removeprefix("nvidia_").removesuffix("_gpus").replace("_", "")
    assert of_vertex == of_compute == one.generation.name.replace("-", "")
    assert {price.region for price in one.prices} <= set(one.regions)
    for price in one.prices:  # A source whose spot price is the higher one is not believed.
        spot = next((other for other in one.prices if other.is_spot and other.region == price.region), None)
        assert price.is_spot or spot is None or spot.usd_per_hour < price.usd_per_hour
    if counted := re.search(r"-(\d+)g$", one.machine_type):
        assert one.chips == int(counted[1])
    assert one.host
    assert one.host.vcpus


def test_a_gpu_goes_with_its_machine_type_and_may_be_a_spot_machine():
    given = {"machine_type": "a2-highgpu-2g", "accelerator_type": "NVIDIA_TESLA_A100", "accelerator_count": 2}
    assert parse_machine(given | {"spot": True}).name == "a100-2"
    assert parse_machine("l4-4", "tensorflow").slice.devices == 4
    with pytest.raises(
        InputError,
        match=r"No machine has .*'a2-highgpu-2g', .*, accelerator_count=1\. Nearest: a100-1 has .*; a100-2 has ",
    ):
        parse_machine(given | {"accelerator_count": 1})
    with pytest.raises(InputError, match=r"us-east5 does not offer a100 for training\."):
        parse_machine(given | {"region": "us-east5"})
    with pytest.raises(InputError, match=r"l4 does not support the boot disk hyperdisk-balanced"):
        parse_machine({"name": "l4-1", "boot_disk_type": "hyperdisk-balanced"})


@pytest.mark.parametrize("one", TPUS, ids=[one.name for one in TPUS])
def test_a_slice_is_consistent_with_itself(one):
    assert one.devices == one.chips * one.generation.devices_per_chip
    assert bool(one.tpu_topology) != bool(one.accelerator_type)
    assert bool(one.accelerator_type) == bool(one.accelerator_count) == (one.generation.name in ("v2", "v3"))
    topology = one.libtpu_topology.partition(":")[2]
    assert math.prod(map(int, topology.split("x"))) == one.chips
    assert one.tpu_topology in ("", topology)
    counted = one.accelerator_count or one.chips * (2 if one.generation.name in ("v4", "v5p") else 1)
    assert one.name in (f"{one.generation.name}-{counted}", f"{one.generation.name}-{counted}-4t")
    if chips_per_host := re.search(r"-(\d)t$", one.machine_type):
        assert one.chips == one.hosts * int(chips_per_host[1])
    if one.chips_per_host_bounds:
        assert one.chips == one.hosts * math.prod(one.chips_per_host_bounds)
    assert {price.region for price in one.prices} <= set(one.regions)
    assert (one.host is None) == (one.machine_type == "cloud-tpu")


def test_every_value_has_a_source_and_a_date():
    raw = json.loads(CATALOGUE_FILE.read_text())
    assert all(source["text"] and re.match(r"20\d\d", source["date"]) for source in raw["sources"].values())
    cells = [cell for row in raw["generations"] for key, cell in row.items() if key != "name"]
    rows = [row for table in ("slices", "hosts", "prices") for row in raw[table]]
    assert {row["source"] for row in [*cells, *rows]} == set(raw["sources"])
    for generation in CATALOGUE.generations:
        assert set(generation.sources) >= {"hbm_usable_bytes", "regions"}
        assert generation.accelerator == "gpu" or set(generation.sources) >= {"peak_bf16_flops", "clock_hz"}


def test_machine_spec_imports_nothing_heavy():
    code = (
        "import sys, tpu_components.core.machines.machine_spec; "
        "print([m for m in ('numpy', 'yaml', 'jax', 'kfp') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("v2-8", ("cloud-tpu", "TPU_V2", 8, "")),
        ("v3-32", ("cloud-tpu", "TPU_V3", 32, "")),
        ("v5e-4", ("ct5lp-hightpu-4t", "", 0, "2x2")),
        ("v5e-8", ("ct5lp-hightpu-8t", "", 0, "2x4")),
        ("v5e-8-4t", ("ct5lp-hightpu-4t", "", 0, "2x4")),
        ("v6e-8", ("ct6e-standard-8t", "", 0, "2x4")),
        ("7x-4", ("tpu7x-standard-4t", "", 0, "2x2x1")),
    ],
)
def test_short_names_and_vertex_fields_say_the_same(name, fields):
    given = dict(zip(("machine_type", "accelerator_type", "accelerator_count", "tpu_topology"), fields, strict=True))
    assert parse_machine(name) == MachineSpec(name) == MachineSpec(**given)
    assert parse_machine({key: value for key, value in given.items() if value}).name == name
    assert parse_machine(given | {"name": name}).name == name


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("v5litepod-8", "v5e-8"),
        ("V6E-4", "v6e-4"),
        ("v5e:4x4", "v5e-16"),
        ("7x:2x2x1", "7x-4"),
        ("tpu7x:4x4x4", "7x-64"),
    ],
)
def test_other_names_are_understood_where_they_mean_one_slice(alias, name):
    assert parse_machine(alias).name == name


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("v5e-12", r"no machine 'v5e-12'\. Expected one of v5e-1, .*, v5e-256; the number counts chips\."),
        ("v3-16", r"no machine 'v3-16'\. Expected one of v3-8, v3-32, .*; the number counts cores\."),
        ("v4-4", r"Expected one of v4-8, v4-16, .*; the number counts cores\."),
        ("v5p-96", r"Expected one of v5p-8, v5p-16, .*; the number counts cores\."),
        ("v5e:2x4", r"'v5e:2x4' is ambiguous: v5e-8 \(ct5lp-hightpu-8t, 2x4\) or v5e-8-4t \(ct5lp-hightpu-4t, 2x4\)"),
        ("v5e:3x3", r"no machine 'v5e:3x3'\. Expected one of v5e-1, v5e-4, v5e-8,"),
        ("tpu7x-8", r"no machine 'tpu7x-8'\. Expected one of 7x-1, 7x-4, 7x-8, .*; the number counts chips\."),
        (
            "ct6e-standard-8t",
            r"is a machine type, not a short name\. Expected one of v6e-8 \(ct6e-standard-8t, 2x4\)\.",
        ),
        ("v5-8", r"no machine 'v5-8'\. .*Did you mean 'v5p-8'\? `tpu-pipelines machines` lists all"),
        ("a100", r"no machine 'a100'\. Expected one of a100-1, a100-2, a100-4, a100-8; the"),
        ("a100-80gb", r"no machine 'a100-80gb'\. Expected one of a100-80gb-1,"),
        ("a100-80gb-3", r"'a100-80gb-3'\. Expected one of a100-80gb-1, .*, a100-80gb-8; the number counts GPUs\."),
        ("l4-1x", r"no machine 'l4-1x'\. Expected one of l4-1,"),
        ("h10-8", r"no machine 'h10-8'.*Did you mean 'h100-8'"),
        ("g2-standard-8", r"a machine type, not a short name\. Expected one of l4-1 \(g2-standard-8, 1 NVIDIA_L4\)"),
        ("", r"needs a name or a machine_type\. Received: neither\. Add, for example, name: v5e-8"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(name, message):
    with pytest.raises(InputError, match=f"Cannot use machine: .*{message}"):
        parse_machine(name)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"machine_type": "ct5lp-hightpu-4t", "accelerator_type": "TPU_V5_LITEPOD", "accelerator_count": 8},
            r"No machine has machine_type='ct5lp-hightpu-4t', accelerator_type='TPU_V5_LITEPOD', accelerator_count=8\. "
            r"Nearest: v5e-8-4t has machine_type='ct5lp-hightpu-4t', tpu_topology='2x4'; ",
        ),
        (
            {"machine_type": "ct5lp-hightpu-1t", "tpu_topology": "2x2"},
            r"tpu_topology='2x2'\. Nearest: v5e-4 has .*'ct5lp-hightpu-4t', tpu_topology='2x2'; v5e-1 has .*'1x1'\.",
        ),
        (
            {"machine_type": "ct6e-standard-8t"},
            r"No machine has machine_type='ct6e-standard-8t'\. Nearest: v6e-8 has .*, tpu_topology='2x4'; ",
        ),
        (
            {"machine_type": "tpu7x-standard-4t", "tpu_topology": "2x2"},
            r"Nearest: 7x-4 has .*, tpu_topology='2x2x1'; ",
        ),
        (
            {"machine_type": "cloud-tpu", "accelerator_type": "TPU_V3", "accelerator_count": 16},
            r"accelerator_count=16\. Nearest: v3-8 .*; v3-32 has .*'TPU_V3', accelerator_count=32\.",
        ),
        (
            {"machine_type": "cloud-tpu", "accelerator_type": "TPU_V2", "accelerator_count": 64},
            r"accelerator_count=64\. Nearest: v3-64 .*; v2-32 ",
        ),
        (
            {"machine_type": "cloud-tpu", "accelerator_type": "TPU_V4", "accelerator_count": 8},
            r"accelerator_type='TPU_V4', .*Nearest: v2-8 .*; v3-8 ",
        ),
        (
            {"machine_type": "cloud-tpu", "accelerator_type": "TPU_V3", "tpu_topology": "4x4"},
            r"tpu_topology='4x4'\. Nearest: v3-32 has .*, accelerator_type='TPU_V3', accelerator_count=32; ",
        ),
        (
            {"machine_type": "ct6e-standard-4", "tpu_topology": "2x2"},
            r"no machine type 'ct6e-standard-4'\. Expected one of cloud-tpu,.* Did you mean 'ct6e-standard-4t'\?",
        ),
        ({"machine_type": "ct5p-hightpu-4t", "tpu_topology": "2x2"}, r"tpu_topology='2x2'.*Nearest: v5p-8"),
        ({"name": "v5e-8", "tpu_topology": "4x4"}, r"'v5e-8' has tpu_topology='2x4'\. Received: tpu_topology='4x4'"),
        ({"spot": True}, r"needs a name or a machine_type\. Received: neither"),
    ],
)
def test_fields_that_do_not_go_together_are_refused_with_the_nearest(fields, message):
    with pytest.raises(InputError, match=f"Cannot use machine: .*{message}"):
        parse_machine(fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"name": "v5e-8", "region": "europe-west4"},
            r"offers v5e for serving, but not for training\. Received: v5e-8, region='europe-west4'\. "
            r"Expected one of us-central1, us-east1, us-west1, us-west4\. Nearest in europe-west4: v2-8, v3-8, v6e-8\.",
        ),
        (
            {"name": "v3-32", "region": "us-central1"},
            r"offers v3 only with one host, but v3-32 has 4 hosts\. .*Expected one of europe-west4\. "
            r"Nearest in us-central1: v2-32, v3-8, v5e-16, v6e-16, 7x-16\.",
        ),
        (
            {"name": "7x-4", "region": "us-west1"},
            r"us-west1 does not offer 7x for training\. .*Nearest in us-west1: v5e-4\.",
        ),
        ({"name": "v5e-8", "region": "us-west1-c"}, r"region='us-west1-c'.* Did you mean 'us-west1'\?"),
        ({"name": "v5e-16", "spot": True}, r"v5e-16 has 4\. Received: spot=True\..*one host: v5e-1, v5e-4, v5e-8\."),
        ({"name": "v2-32", "spot": True}, r"v2-32 has 4\. Received: spot=True\..*one host: v2-8\."),
        ({"name": "v5e-8", "reservation": "tpus"}, r"must be projects/PROJECT/.*Received: 'tpus'"),
        (
            {"name": "v5e-8", "reservation": RESERVATION, "spot": True},
            r"spot machine cannot use a reservation.*spot=True",
        ),
        (
            {"name": "v5e-8", "reservation": RESERVATION, "region": "us-east1"},
            r"must be in the region 'us-east1'\. Received: .* is in 'us-west1'",
        ),
        ({"name": "v5e-8", "boot_disk_type": "pd-sdd"}, r"boot_disk_type='pd-sdd'\. Did you mean 'pd-ssd'\?"),
        (
            {"name": "v5e-8", "boot_disk_type": "hyperdisk-balanced"},
            r"v5e does not .* boot disk .*pd-ssd or pd-standard, or none",
        ),
        (
            {"name": "v6e-8", "boot_disk_type": "pd-ssd"},
            r"v6e does not .* boot disk pd-ssd: .*=hyperdisk-balanced, or",
        ),
        ({"name": "v5e-8", "boot_disk_size_gb": 50}, r"boot_disk_size_gb must be from 100 to 64000\. Received: .*=50"),
        (
            {"name": "v5e-8", "timeout_seconds": -1},
            r"timeout_seconds must be at least 0\. Received: machine.timeout_seconds=-1",
        ),
        (
            {"name": "v5e-8", "max_wait_seconds": -1},
            r"max_wait_seconds must be at least 0.*max_wait_seconds=-1",
        ),
        (
            {"name": "v5e-8", "disable_retries": True, "restart_job_on_worker_restart": True},
            r"disable_retries would override restart_job_on_worker_restart\. Received: both are true",
        ),
    ],
)
def test_what_vertex_would_refuse_is_refused(fields, message):
    with pytest.raises(InputError, match=rf"(Cannot use machine: |machine\.).*{message}"):
        parse_machine(fields)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (8, r"Cannot use machine: expected the short name of a machine, .*, or a mapping of fields\. Received: 8"),
        ({"name": 8}, r"Cannot use machine: There is no machine '8'"),
        ({"name": "v5e-8", "spot": "yes"}, r"machine\.spot is 'yes', expected true or false"),
        ({"name": "v5e-8", "timeout_seconds": 1.5}, r"machine\.timeout_seconds is 1\.5, expected a whole number"),
        ({"name": "v5e-8", "spto": True}, r"Unknown key 'spto' in machine: .*Did you mean 'spot'\?"),
        ({"machineType": "cloud-tpu"}, r"Unknown key 'machineType' in machine: .*Did you mean 'machine_type'\?"),
        ({"name": "v5e-8", "fallbacks": "v6e-8"}, r"machine\.fallbacks: expected a list .*Received: 'v6e-8'"),
        (
            {"name": "v5e-8", "fallbacks": [["v6e-8"]]},
            r"machine\.fallbacks\[0\]: expected the short name .*\['v6e-8'\]",
        ),
        (
            {"name": "v5e-8", "fallbacks": ["v3-8", "v6e-9"]},
            r"machine\.fallbacks\[1\]: There is no machine 'v6e-9'",
        ),
        ({"name": "v5e-8", "fallbacks": [{"name": "v6e-8", "fallbacks": ["v3-8"]}]}, r"cannot have fallbacks"),
        ({"name": "v5e-8", "fallbacks": ["v6e-8", "l4-8"]}, r"same kind as v5e-8, received l4-8\. Remove"),
    ],
)
def test_what_is_no_machine_is_refused_by_its_place(value, message):
    with pytest.raises(InputError, match=message):
        parse_machine(value)


@pytest.mark.parametrize("name", ["v6e-8", "7x-4"])
def test_tensorflow_is_refused_on_v6e_and_later(name):
    with pytest.raises(
        InputError, match=rf"does not run TensorFlow\. Received: {name}, backend='tensorflow'.*v3-8, v5e-"
    ):
        parse_machine(name, backend="tensorflow")
    with pytest.raises(InputError, match=rf"machine\.fallbacks\[0\]: .*{name}, backend='tensorflow'"):
        parse_machine({"name": "v5e-8", "fallbacks": [name]}, backend="tensorflow")
    assert parse_machine(name, backend="auto") == parse_machine(name, backend="jax")
    assert parse_machine("v5e-8", backend="tensorflow").name == "v5e-8"


@pytest.mark.parametrize(
    ("fields", "message"),
    [(("v5e-7",), "v5e-7"), (("v5e-8", "mars-west1"), "mars-west1"), (("v3-32", "", True), r"spot=True")],
)
def test_a_machine_that_cannot_be_paid_for_is_refused(fields, message):
    with pytest.raises(InputError, match=message):
        PaidMachine(*fields)


def test_a_machine_is_paid_for_where_and_how_it_trains():
    spec = parse_machine({"name": "v6e-1", "region": "us-central1", "spot": True, "boot_disk_size_gb": 200})
    assert spec.paid == PaidMachine("v6e-1", "us-central1", spot=True)
    assert spec.paid.price == spec.slice.price("us-central1", spot=True)
    assert dataclasses.replace(PaidMachine(), target=KUBEFLOW).price.usd_per_hour == min(
        price.usd_per_hour for one in TPUS for price in one.prices if not price.is_spot
    ), "the cheapest"


@pytest.mark.parametrize("values", [{"target": "verteks"}, {"timeout_seconds": -1}, {"attempts": 0}])
def test_a_machine_is_paid_for_by_a_known_target_for_a_time(values):
    ((name, value),) = values.items()
    with pytest.raises(InputError, match=f"{name}.*{value}"):
        PaidMachine(**values)


def test_a_spec_made_in_code_is_checked_as_well():
    with pytest.raises(InputError, match=r"No machine has .*, accelerator_count=9\."):
        MachineSpec(machine_type="cloud-tpu", accelerator_type="TPU_V2", accelerator_count=9)
    with pytest.raises(InputError, match=r"timeout_seconds=-1(.|\n)*nfs_mounts='nfs'"):
        MachineSpec(name="v5e-1", timeout_seconds=-1, nfs_mounts=("nfs",))


def test_fallbacks_take_what_they_do_not_set_from_the_machine_but_its_reservation():
    spec = parse_machine(
        {
            "name": "v5e-8",
            "region": "us-west1",
            "boot_disk_size_gb": 200,
            "reservation": RESERVATION,
            "fallbacks": ["v5e-4", {"name": "v6e-8", "region": "us-east5", "spot": True}],
        }
    )
    first, second = spec.fallbacks
    assert (first.name, first.region, first.boot_disk_size_gb, first.reservation) == ("v5e-4", "us-west1", 200, "")
    assert (second.name, second.region, second.boot_disk_size_gb, second.spot) == ("v6e-8", "us-east5", 200, True)


@pytest.mark.parametrize("name", NAMES)
def test_as_dict_is_plain_and_reads_back(name):
    first, second = ("t4-1", "l4-1") if load_catalogue().find(name).is_gpu else ("v2-8", "v6e-1")
    spec = parse_machine({"name": name, "timeout_seconds": 60, "fallbacks": [first, {"name": second, "spot": True}]})
    assert parse_machine(json.loads(json.dumps(dataclasses.asdict(spec)))) == spec


def test_a_clusters_prices_are_the_listed_ones_and_never_made_up():
    def usd(name, *arguments):
        price = CATALOGUE.find(name).price(*arguments, target=KUBEFLOW)
        return price and (price.usd_per_hour, price.region)

    assert usd("v3-8") == (8.0, "us-central1")
    assert usd("v3-32") == (32.0, "europe-west4")
    assert usd("v3-64") == (64.0, "europe-west4")
    assert usd("v4-16") == (25.76, "us-central2")
    assert usd("v5p-8", "us-east5") == (16.8, "us-east5")
    assert usd("v5p-8", "us-east5", True) == (5.1998, "us-east5")
    assert usd("v5e-256", "us-east1") == (307.2, "us-east1")
    assert usd("v6e-8", "europe-west4") == (23.76, "europe-west4")
    assert usd("v5e-8", "", True) == (2.3817, "us-central1")
    # Not listed: 7x, and regions that do not train. GKE has no v2.
    assert usd("7x-4") is usd("7x-1") is usd("v2-8") is usd("v5e-8", "europe-west4") is None
    price = CATALOGUE.find("v5e-8").price(target=KUBEFLOW)
    assert (price.kind, price.date) == ("Compute Engine's list price, on demand", "2026")
    assert "skypilot" in price.source


def test_a_machine_belongs_to_the_platforms_that_offer_it():
    offered = {one.generation.name: one.targets for one in SLICES if one.name != "7x-1"}
    assert offered == {
        "v2": ("vertex",),
        **dict.fromkeys(("v3", "v5e", "v6e", "7x"), ("vertex", "kubeflow")),
        **dict.fromkeys(("v4", "v5p"), ("kubeflow",)),
        **dict.fromkeys(("t4", "l4", "a100", "a100-80gb", "h100"), ("vertex", "kubeflow")),
    }
    assert CATALOGUE.find("7x-1").targets == ("kubeflow",)
    assert CATALOGUE.find("v5p-8").price() is None
    for name, message in {
        "v5p-8": r"Vertex AI does not offer v5p-8 \(ct5p-hightpu-4t; see https.*Use the platform kubeflow, or one of "
        r"the nearest machines of Vertex AI: v2-8, v3-8, v5e-4, v6e-4, 7x-4\.",
        "v4-8": "Vertex AI does not offer v4-8",
        "7x-1": "Vertex AI does not offer 7x-1",
    }.items():
        with pytest.raises(InputError, match=message):
            PaidMachine(name, target="vertex")
        assert PaidMachine(name, target=KUBEFLOW) == MachineSpec(name).paid
    with pytest.raises(
        InputError, match=r"GKE does not offer v2-8 \(cloud-tpu; .*Use the platform vertex.*of GKE: v3-8, v4-8, v5e-4"
    ):
        PaidMachine("v2-8", target=KUBEFLOW)


def test_vertex_prices_are_those_that_vertex_has_published_and_say_where_the_factor_is_assumed():
    """https://github.com/GoogleCloudPlatform/vertex-ai-samples, vit_benchmarking_table.png: $10.12 and $36.80."""
    v3, v3_pod = (CATALOGUE.find(name).price("europe-west4") for name in ("v3-8", "v3-32"))
    assert (v3.usd_per_hour, v3_pod.usd_per_hour) == (10.12, 36.8)
    assert v3.kind == "Vertex AI's price, on demand: 1.15 × Compute Engine's"
    assert "vit_benchmarking_table.png" in v3.source
    v5e = CATALOGUE.find("v5e-8").price()
    assert (v5e.usd_per_hour, v5e.target, v5e.factor) == (11.04, "vertex", 1.15)
    assert v5e.kind.endswith("1.15 × Compute Engine's, an assumed factor")
    assert "no source was found for this generation" in v5e.source
    assert CATALOGUE.find("v3-8").price("", True).kind.endswith("an assumed factor"), "attested on demand alone"
    assert CATALOGUE.find("7x-4").price() is None
