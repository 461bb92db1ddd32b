import copy
import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from google.protobuf import json_format
from kfp import compiler, dsl
from kfp import components as kfp_components

from tests.support.cli import MODELS, assert_user_error, readme_model, set_environment, tpu_pipelines_here
from tests.support.custom_jobs import submitted_job
from tests.support.fakes import jobsets, vertex_rules
from tests.support.fakes.vertex_rules import hosts_of
from tests.support.signing_keys import write_keys
from tpu_components.core.base.container_images import LOCAL_IMAGE, Images
from tpu_components.core.base.errors import InputError
from tpu_components.core.files import storage
from tpu_components.core.machines.machine_spec import MachineSpec, load_catalogue, parse_machine
from tpu_components.core.models import lookup
from tpu_components.core.models.lookup import bundle_of
from tpu_components.evaluate_model.component import evaluate_model
from tpu_components.train_model.component import train_model
from tpu_pipelines import cli
from tpu_pipelines.checks.check_list import model_findings
from tpu_pipelines.cli.main import main
from tpu_pipelines.config.configuration import load_config
from tpu_pipelines.config.settings import Settings
from tpu_pipelines.config.steps import StepResources
from tpu_pipelines.pipeline import cache_keys
from tpu_pipelines.pipeline.compile import check_output, compile_pipeline, require_step_image
from tpu_pipelines.pipeline.training_pipeline import training_pipeline
from tpu_pipelines.platforms.jobs import Placement
from tpu_pipelines.platforms.kubeflow.tpu_pod import as_tpu_pod
from tpu_pipelines.platforms.platform import PLATFORMS
from tpu_pipelines.platforms.vertex.custom_job import as_custom_job

PLACEMENT = Placement("digits", "train_model", "digits/1", StepResources(cpu=3, memory="12Gi", retries=0))
GOLDEN = Path(__file__).parents[2] / "golden"
TARGETS = ("vertex", "kubeflow")
SINGLE_HOSTS = [
    one.name for one in load_catalogue().slices if one.hosts == 1 and "kubeflow" in one.targets and not one.is_gpu
]
SETTINGS = Settings(
    project="my-project",
    region="us-west1",
    bucket="gs://my-bucket/pipelines/",
    service_account="trainer@my-project.iam.gserviceaccount.com",
    network="projects/12345/global/networks/my-network",
    labels={"team": "vision"},
    environment={"XLA_FLAGS": "--xla_dump_to=/tmp/a,b"},
)
ON_KUBEFLOW = dataclasses.replace(
    SETTINGS,
    secrets={"storage-key": "/secrets/storage"},
    volumes={"checkpoints": "/mnt/checkpoints/", "cache": "/mnt/cache"},
)


REGISTERED = (
    "deploy.registry=projects/my-project/locations/us-west1/models",
    "deploy.artifacts_uri=gs://my-bucket/registry",
    "deploy.serving_image=us-docker.pkg.dev/my-project/images/serving:1",
)


def compile_digits(target, *overrides, settings=None):
    config = load_config("digits", ("machine=v5e-4", *overrides))
    return compile_pipeline(config, PLATFORMS[target], settings or Settings())


def spec_of(compiled):
    """The pipeline, without what is said of the platform beside it."""
    return next(yaml.safe_load_all(compiled.package))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Per target, `local` included: the pipeline, and what is said of the platform beside it."""
    path = tmp_path_factory.mktemp("compiled") / "local.yaml"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache_keys, "code_version", lambda step: f"code-of-{step}")  # Else every change were one here.
        patch.setattr(cache_keys, "model_version", lambda config, is_here: "of-the-model")
        config = load_config("digits", ["machine=v5e-4", *REGISTERED])
        fingerprints = cache_keys.platform_fingerprints(config, LOCAL_IMAGE, "v5e-4")
        compiler.Compiler().compile(training_pipeline(config, fingerprints=fingerprints), str(path))
        packages = {
            "local": path.read_text(),
            **{target: compile_digits(target, *REGISTERED).package for target in TARGETS},
        }
    return {target: list(yaml.safe_load_all(package)) for target, package in packages.items()}


def lineage_of(spec):
    """What deploy_model records of the run."""
    tasks = spec["components"]["comp-condition-1"]["dag"]["tasks"]
    return tasks["deploy-model"]["inputs"]["parameters"]["lineage"]["runtimeValue"]["constant"]


def test_compiled_pipeline_matches_the_golden_file(compiled):
    """The tests below say how other platforms differ. `python -m tests.evidence.generated` writes the file."""
    (pipeline,) = copy.deepcopy(compiled["vertex"])
    del pipeline["sdkVersion"]
    del lineage_of(pipeline)["config"]  # Every setting and its default, which have tests of their own.
    golden = GOLDEN / "digits-vertex.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(yaml.safe_dump(pipeline, sort_keys=True, width=120))
    assert pipeline == yaml.safe_load(golden.read_text())


@pytest.mark.parametrize("target", TARGETS)
def test_everything_but_the_training_step_is_identical_on_every_target(compiled, target):
    def without_training(spec):
        rest = copy.deepcopy(spec)
        del rest["components"]["comp-train-model"]
        del rest["deploymentSpec"]["executors"]["exec-train-model"]
        del rest["root"]["dag"]["tasks"]["train-model"]
        # A run is priced by the platform that it is for, and by the time after which that stops it.
        del rest["root"]["dag"]["tasks"]["preflight-training"]["inputs"]["parameters"]["paid"]
        lineage_of(rest).clear()  # Written when a pipeline is compiled for a platform.
        return yaml.safe_dump(rest)

    assert without_training(compiled[target][0]) == without_training(compiled["local"][0])


@pytest.mark.parametrize("target", TARGETS)
def test_of_the_training_tasks_inputs_only_the_accelerator_and_the_time_differ(compiled, target):
    ours, local = (copy.deepcopy(compiled[one][0]["root"]["dag"]["tasks"]["train-model"]) for one in (target, "local"))
    if target == "vertex":
        assert ours["inputs"]["parameters"].pop("job_timeout") == {
            "taskOutputParameter": {"producerTask": "preflight-training", "outputParameterKey": "timeout"}
        }
    assert local["inputs"]["parameters"]["accelerator"] == {"runtimeValue": {"constant": "auto"}}
    local["inputs"]["parameters"]["accelerator"] = {"runtimeValue": {"constant": "tpu"}}
    assert ours == local


def test_on_kubeflow_the_training_step_is_the_component_itself_on_a_node_of_the_machine(compiled):
    (local,) = compiled["local"]
    kubeflow, pod = copy.deepcopy(compiled["kubeflow"])
    container = kubeflow["deploymentSpec"]["executors"]["exec-train-model"]["container"]
    resources = container.pop("resources")
    assert container == local["deploymentSpec"]["executors"]["exec-train-model"]["container"]
    assert kubeflow["components"]["comp-train-model"] == local["components"]["comp-train-model"]
    assert resources == {
        "accelerator": {
            "count": "4",
            "resourceCount": "4",
            "resourceType": "google.com/tpu",
            "type": "google.com/tpu",
        },
        "cpuRequest": 3.0,
        "memoryRequest": 12.884901888,
        "resourceCpuRequest": "3",
        "resourceMemoryRequest": "12Gi",
    }
    assert pod["platforms"]["kubernetes"]["deploymentSpec"]["executors"] == {
        "exec-train-model": {
            "activeDeadlineSeconds": "86400",
            "nodeSelector": {
                "labels": {
                    "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
                    "cloud.google.com/gke-tpu-topology": "2x2",
                }
            },
            "tolerations": [{"effect": "NoSchedule", "key": "google.com/tpu", "operator": "Exists"}],
        }
    }


@pytest.mark.parametrize("target", TARGETS)
def test_a_compiled_pipeline_loads_back(target):
    loaded = kfp_components.load_component_from_text(compile_digits(target).package)
    assert loaded.name == "training-pipeline"


@pytest.mark.parametrize("target", TARGETS)
def test_an_accelerator_that_is_asked_for_is_kept(target):
    spec = spec_of(compile_digits(target, "training.accelerator=cpu", "training.num_replicas=8"))
    parameters = spec["root"]["dag"]["tasks"]["train-model"]["inputs"]["parameters"]
    assert parameters["accelerator"]["runtimeValue"]["constant"] == "cpu"


def test_a_custom_job_is_the_one_that_googles_own_helper_makes():
    """Compared where that helper can say everything: a machine without a topology, and an empty disk."""
    from google_cloud_pipeline_components.v1.custom_job import create_custom_training_job_from_component

    ours = submitted_job(as_custom_job(train_model, parse_machine("v3-8"), SETTINGS, PLACEMENT))
    _, job = ours
    theirs = create_custom_training_job_from_component(
        train_model,
        display_name=job.display_name,
        machine_type="cloud-tpu",
        accelerator_type="TPU_V3",
        accelerator_count=8,
        boot_disk_type="",
        timeout="86400s",
        service_account=SETTINGS.service_account,
        network=SETTINGS.network,
        labels={"team": "vision", "tpu_pipelines_run": "digits", "tpu_pipelines_machine": "v3-8"},
        env=[{"name": "XLA_FLAGS", "value": "--xla_dump_to=/tmp/a,b"}],
        base_output_directory=job.job_spec.base_output_directory.output_uri_prefix,
        persistent_resource_id="",
        reserved_ip_ranges=[],
        psc_interface_config={},
    )
    assert submitted_job(theirs) == ours


def test_every_machine_of_the_catalogue_becomes_a_custom_job_with_exactly_its_fields():
    from google.cloud import aiplatform_v1

    for one in [entry for entry in load_catalogue().slices if "vertex" in entry.targets]:
        _, job = submitted_job(as_custom_job(train_model, parse_machine(one.name), Settings(), PLACEMENT))
        (pool,) = job.job_spec.worker_pool_specs
        fields = {key: value for key, value in one.vertex_fields.items() if value}
        assert pool.machine_spec == aiplatform_v1.MachineSpec(fields), one.name
        assert pool.replica_count == 1
        assert not pool.disk_spec, "v6e has no pd-ssd: what is not asked for is not sent"
        assert pool.container_spec.args[-1] == "train_model"


def test_a_custom_job_has_everything_that_machine_and_settings_say():
    from google.cloud import aiplatform_v1

    reservation = "projects/my-project/zones/us-west4-a/reservations/tpus"
    machine = MachineSpec(
        machine_type="ct5lp-hightpu-4t",
        tpu_topology="2x2",
        region="us-west4",
        boot_disk_type="pd-standard",
        boot_disk_size_gb=250,
        reservation=reservation,
        timeout_seconds=3600,
        disable_retries=True,
    )
    location, job = submitted_job(as_custom_job(train_model, machine, SETTINGS, PLACEMENT))
    assert location == "us-west4"
    assert job.display_name == "{{$.pipeline_job_name}}-train-model"
    assert dict(job.labels) == {
        "team": "vision",
        "tpu_pipelines_run": "digits",
        "tpu_pipelines_machine": "v5e-4",
    }
    container = job.job_spec.worker_pool_specs[0].container_spec
    assert job.job_spec == aiplatform_v1.CustomJobSpec(
        worker_pool_specs=[
            {
                "machine_spec": {
                    "machine_type": "ct5lp-hightpu-4t",
                    "tpu_topology": "2x2",
                    "reservation_affinity": {
                        "reservation_affinity_type": "SPECIFIC_RESERVATION",
                        "key": "compute.googleapis.com/reservation-name",
                        "values": [reservation],
                    },
                },
                "replica_count": 1,
                "disk_spec": {"boot_disk_type": "pd-standard", "boot_disk_size_gb": 250},
                "container_spec": {
                    "image_uri": "tpu-pipelines/python:latest",
                    "command": container.command,
                    "args": ["--executor_input", "{{$.json_escape[1]}}", "--function_to_execute", "train_model"],
                    "env": [{"name": "XLA_FLAGS", "value": "--xla_dump_to=/tmp/a,b"}],
                },
            }
        ],
        scheduling={"timeout": "3600s", "strategy": "STANDARD", "disable_retries": True},
        service_account="trainer@my-project.iam.gserviceaccount.com",
        network="projects/12345/global/networks/my-network",
        base_output_directory=job.job_spec.base_output_directory,  # Its own test is below.
    )


def test_a_custom_job_can_be_spot_and_restart_and_runs_where_the_settings_say():
    from google.cloud import aiplatform_v1

    machine = parse_machine({"name": "v5e-8", "spot": True, "restart_job_on_worker_restart": True})
    location, job = submitted_job(
        as_custom_job(train_model, PLATFORMS["vertex"].in_region(machine, SETTINGS.region), SETTINGS, PLACEMENT)
    )
    assert location == "us-west1"
    assert job.job_spec.scheduling == aiplatform_v1.Scheduling(
        timeout="86400s", strategy="SPOT", restart_job_on_worker_restart=True
    )


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("v6e-8", {"boot_disk_type": "hyperdisk-balanced"}),
        ("v5e-8", {"boot_disk_size_gb": 200}),
        ("v5e-8", {"boot_disk_type": "pd-ssd"}),
    ],
)
def test_of_a_disk_only_what_is_asked_for_is_sent(name, asked):
    from google.cloud import aiplatform_v1

    machine = parse_machine({"name": name, **asked})
    _, job = submitted_job(as_custom_job(train_model, machine, Settings(), PLACEMENT))
    assert job.job_spec.worker_pool_specs[0].disk_spec == aiplatform_v1.DiskSpec(asked)


def test_without_settings_a_custom_job_takes_its_pipelines_region_and_root():
    location, job = submitted_job(as_custom_job(train_model, parse_machine("v3-8"), Settings(), PLACEMENT))
    assert location == "{{$.pipeline_google_cloud_location}}"
    place = job.job_spec.base_output_directory.output_uri_prefix
    assert place == "{{$.pipeline_root}}/digits/1"


def test_checkpoints_of_a_training_lie_together_wherever_it_is_trained_and_apart_from_those_of_another():
    def place(*overrides, machine="v5e-4", environment=None):
        settings = dataclasses.replace(SETTINGS, region="us-central1", environment=environment or {})
        compiled = compile_digits("vertex", f"machine={machine}", *overrides, settings=settings)
        (found,) = re.findall(r'"output_uri_prefix": "([^"]*)"', compiled.package)
        return found

    first = place()
    assert re.fullmatch(r"gs://my-bucket/pipelines/digits/[0-9a-f]{12}", first)
    assert first == place(machine="v6e-4") == place(machine="{name: v5e-4, region: us-east1, spot: true}")
    assert first == place("gate.minimum={}", "training.checkpoint_seconds=1")
    others = [place("training.learning_rate=0.5"), place("data.seed=1"), place("model=mnist_cnn")]
    others.append(place(environment={"XLA_FLAGS": "--xla_dump_to=/tmp"}))
    assert len({first, *others}) == 5


def training_task(machine, *overrides):
    """The inputs, by value, and the container of the training step, whatever stands in a default of a job."""
    spec = spec_of(compile_digits("vertex", f"machine={machine}", *overrides))
    task = spec["root"]["dag"]["tasks"]["train-model"]
    executor = spec["deploymentSpec"]["executors"][spec["components"]["comp-train-model"]["executorLabel"]]
    defaults = spec["components"]["comp-train-model"]["inputDefinitions"]["parameters"]
    return task["inputs"]["parameters"], executor["container"], defaults


def test_the_training_steps_key_has_image_code_and_machine_among_its_inputs(monkeypatch):
    """Whether the service counts what stands in the default of `worker_pool_specs` alone is not documented."""

    def fingerprint(machine="v5e-4", *overrides):
        inputs, _, _ = training_task(machine, *overrides)
        return inputs["fingerprint"]["runtimeValue"]["constant"]

    first = fingerprint()
    assert first.keys() == {"code", "image", "machine", "model"}
    assert (first["image"], first["machine"]) == ("tpu-pipelines/python:latest", "v5e-4")
    assert fingerprint("v5e-8") == {**first, "machine": "v5e-8"}
    same = json.dumps({"name": "v5e-4", "region": "us-west4", "spot": True, "boot_disk_size_gb": 200})
    assert fingerprint(same) == first, "where, and how it is paid for, changes no weight"
    other = load_config("digits", ["model=mnist_cnn"])
    assert cache_keys.platform_fingerprints(other, "image")["train_model"]["model"] != first["model"]
    assert cache_keys.platform_fingerprints(other, "image@sha256:1")["train_model"]["image"] == "image@sha256:1"
    monkeypatch.setattr(cache_keys, "code_version", lambda step: f"another {step}")
    assert fingerprint() == {**first, "code": "another trai"}


def test_no_input_of_the_training_step_holds_the_name_of_a_job():
    """A service that counts inputs with their placeholders filled in would never find a training again."""
    inputs, container, defaults = training_task("v5e-4")
    filled = {name: {**given, "description": ""} for name, given in defaults.items()}
    assert "{{$" not in json.dumps([inputs, filled])
    payload = container["args"][container["args"].index("--payload") + 1]
    assert '"display_name": "{{$.pipeline_job_name}}-train-model"' in payload
    assert "persistent_resource" not in payload, "whether the service fills that in is documented for inputs alone"


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def does_nothing(number: int) -> None:
    """As a custom job, it has the inputs and outputs of the job beside its own."""


def test_inputs_of_the_job_have_names_of_their_own():
    made = as_custom_job(does_nothing, parse_machine("v5e-4"), SETTINGS, PLACEMENT).component_spec
    fields = {*made.inputs} - {"number"}
    assert {"job_labels", "job_timeout", "job_network"} < fields
    assert all(name.startswith("job_") for name in fields)
    assert made.outputs.keys() == {"gcp_resources"}
    for component in (train_model, evaluate_model):
        own = component.component_spec
        assert {*fields, "gcp_resources"}.isdisjoint({*own.inputs, *own.outputs})


@pytest.mark.parametrize(
    ("machine", "settings", "message"),
    [
        ("v6e-8", SETTINGS, r"us-west1 does not offer v6e for training\. Received: v6e-8"),
        ("v5e-8", Settings(bucket="minio://here"), r"expected bucket=gs://…\. Received: 'minio://here'"),
    ],
)
def test_settings_that_do_not_fit_a_custom_job_are_refused(machine, settings, message):
    with pytest.raises(InputError, match=message):
        as_custom_job(
            train_model,
            PLATFORMS["vertex"].in_region(parse_machine(machine), settings.region),
            settings,
            PLACEMENT,
        )


def pod(machine, settings=None):
    """The training step's executor and its platform configuration, on a cluster."""
    step = as_tpu_pod(train_model, parse_machine(machine), settings or Settings(), PLACEMENT)

    @dsl.pipeline(name="one-step")
    def pipeline() -> None:
        records = dsl.importer(artifact_uri="gs://b/r", artifact_class=dsl.Dataset)
        step(records=records.output, model="digits_cnn")

    platforms = json_format.MessageToDict(pipeline.platform_spec)["platforms"]
    executors = json_format.MessageToDict(pipeline.pipeline_spec)["deploymentSpec"]["executors"]
    return (
        executors["exec-train-model"]["container"],
        platforms["kubernetes"]["deploymentSpec"]["executors"]["exec-train-model"],
    )


# Accelerator and topology labels, and chips, as GKE's tables have them.
GKE = {
    "v3-8": ("tpu-v3-device", "2x2", 4),
    "v4-8": ("tpu-v4-podslice", "2x2x1", 4),
    "v5e-1": ("tpu-v5-lite-podslice", "1x1", 1),
    "v5e-4": ("tpu-v5-lite-podslice", "2x2", 4),
    "v5e-8": ("tpu-v5-lite-podslice", "2x4", 8),
    "v5p-8": ("tpu-v5p-slice", "2x2x1", 4),
    "v6e-1": ("tpu-v6e-slice", "1x1", 1),
    "v6e-4": ("tpu-v6e-slice", "2x2", 4),
    "v6e-8": ("tpu-v6e-slice", "2x4", 8),
    "7x-1": ("tpu7x", "1x1x1", 1),
    "7x-4": ("tpu7x", "2x2x1", 4),
}


def test_every_single_host_that_gke_has_asks_for_its_chips_by_accelerator_and_topology():
    assert list(GKE) == SINGLE_HOSTS
    for name, (accelerator, topology, chips) in GKE.items():
        container, config = pod(name)
        assert container["resources"]["accelerator"]["resourceType"] == "google.com/tpu"
        assert container["resources"]["accelerator"]["resourceCount"] == str(chips)
        assert config == {
            "nodeSelector": {
                "labels": {
                    "cloud.google.com/gke-tpu-accelerator": accelerator,
                    "cloud.google.com/gke-tpu-topology": topology,
                }
            },
            "tolerations": [{"key": "google.com/tpu", "operator": "Exists", "effect": "NoSchedule"}],
            "activeDeadlineSeconds": "86400",
        }


def test_a_pod_mounts_secrets_and_volumes_and_keeps_its_checkpoints_on_the_first():
    container, config = pod("v5e-4", ON_KUBEFLOW)
    environment = {one["name"]: one["value"] for one in container["env"]}
    assert environment.pop("XLA_FLAGS") == "--xla_dump_to=/tmp/a,b"
    assert environment.pop("AIP_CHECKPOINT_DIR") == "/mnt/checkpoints/digits/1"
    assert environment == {}
    (secret,) = config["secretAsVolume"]
    assert (secret["secretName"], secret["mountPath"]) == ("storage-key", "/secrets/storage")
    mounted = [(one["constant"], one["mountPath"]) for one in config["pvcMount"]]
    assert mounted == [("checkpoints", "/mnt/checkpoints/"), ("cache", "/mnt/cache")]
    assert config["podMetadata"]["labels"] == {"team": "vision"}
    assert config["securityContext"] == {"runAsUser": "0"}, "a fresh disk is root's"


def test_a_pod_can_be_spot_or_reserved():
    spot = pod({"name": "v5e-4", "spot": True, "timeout_seconds": 60})[1]
    assert spot["nodeSelector"]["labels"]["cloud.google.com/gke-spot"] == "true"
    toleration = {"key": "cloud.google.com/gke-spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"}
    assert toleration in spot["tolerations"]
    assert spot["activeDeadlineSeconds"] == "60"
    name = "projects/my-project/zones/us-west4-a/reservations/tpus"
    labels = pod({"name": "v5e-4", "reservation": name})[1]["nodeSelector"]["labels"]
    assert labels["cloud.google.com/reservation-affinity"] == "specific"
    assert labels["cloud.google.com/reservation-name"] == "tpus"
    assert labels["cloud.google.com/reservation-project"] == "my-project"


def test_a_pod_can_queue_with_kueue_and_take_a_node_of_flex_start():
    settings = Settings(kueue_queue="tpus", provisioning="flex-start", labels={"team": "vision"})
    config = pod("v5e-4", settings)[1]
    assert config["podMetadata"]["labels"] == {"team": "vision", "kueue.x-k8s.io/queue-name": "tpus"}
    assert config["nodeSelector"]["labels"]["cloud.google.com/gke-flex-start"] == "true"
    with pytest.raises(
        InputError, match=r"cannot be spot or reserved\. Received: provisioning='flex-start' with v5e-4"
    ):
        pod({"name": "v5e-4", "spot": True}, settings)


VERTEX_ONLY = {
    "enable_web_access": True,
    "persistent_resource_id": "my-resource",
    "nfs_mounts": ["10.0.0.2:/share/data=data"],
}


def test_shell_persistent_resource_and_shares_of_a_machine_are_the_custom_job_s():
    from google.cloud import aiplatform_v1

    machine = parse_machine({"name": "v5e-4", **VERTEX_ONLY})
    _, job = submitted_job(as_custom_job(train_model, machine, SETTINGS, PLACEMENT))
    assert job.job_spec.enable_web_access
    assert job.job_spec.persistent_resource_id == "my-resource"
    mount = {"server": "10.0.0.2", "path": "/share/data", "mount_point": "data"}
    assert list(job.job_spec.worker_pool_specs[0].nfs_mounts) == [aiplatform_v1.NfsMount(mount)]
    vertex_rules.check_custom_job(job, "us-west4", ["tpu-pipelines/python:latest"])
    without = dataclasses.replace(SETTINGS, network="")
    with pytest.raises(InputError, match=r"nfs_mounts=\('10.0.0.2:/share/data=data',\) without a network"):
        as_custom_job(train_model, machine, without, PLACEMENT)


@pytest.mark.parametrize("field", VERTEX_ONLY)
def test_what_a_machine_has_on_vertex_alone_is_refused_on_a_cluster(field):
    config = load_config(
        {
            "name": "a",
            "data": {"source": "sklearn:digits"},
            "model": "digits_cnn",
            "machine": {"name": "v5e-4", field: VERTEX_ONLY[field]},
        }
    )
    with pytest.raises(InputError, match=rf"Only Vertex AI supports machine\.{field}\. .*on the platform kubeflow"):
        compile_pipeline(config, PLATFORMS["kubeflow"], SETTINGS)


@pytest.mark.parametrize(
    ("field", "value"), [("nfs_mounts", ["10.0.0.2:share=data"]), ("persistent_resource_id", "projects/p/my")]
)
def test_a_share_or_a_resource_of_another_form_is_refused(field, value):
    with pytest.raises(InputError, match=rf"{field}"):
        parse_machine({"name": "v5e-4", field: value})


def test_a_setting_that_a_platform_does_not_have_is_refused_when_compiling():
    with pytest.raises(InputError, match=r"kueue_queue .* is not supported on the platform vertex"):
        compile_digits("vertex", settings=Settings(kueue_queue="tpus"))


def test_what_gke_does_not_have_is_refused():
    for one in load_catalogue().slices:
        if one.generation.name == "v2":
            with pytest.raises(InputError, match=rf"GKE does not offer {one.name} \(.*of GKE: v3-"):
                as_tpu_pod(train_model, parse_machine(one.name), Settings(), PLACEMENT)


@pytest.mark.parametrize("name", ["v5p-8", "v4-8", "7x-1"])
def test_what_gke_alone_has_is_refused_on_vertex(name):
    with pytest.raises(InputError, match=rf"Vertex AI does not offer {name} \(.*Use the platform kubeflow"):
        compile_pipeline(load_config("digits", [f"machine={name}"]), PLATFORMS["vertex"], SETTINGS)


# Accelerator labels, chips of a pod, and pods, as GKE's tables have them: machine types of four chips.
GKE_SLICES = {
    "v3-32": ("tpu-v3-slice", "4x4", 4, 4),
    "v4-16": ("tpu-v4-podslice", "2x2x2", 4, 2),
    "v5e-16": ("tpu-v5-lite-podslice", "4x4", 4, 4),
    "v5p-4096": ("tpu-v5p-slice", "8x16x16", 4, 512),
    "v6e-256": ("tpu-v6e-slice", "16x16", 4, 64),
    "7x-1024": ("tpu7x", "8x8x16", 4, 256),
}


@pytest.mark.parametrize("name", GKE_SLICES)
def test_several_hosts_are_a_jobset_that_a_step_without_a_tpu_starts(name):
    accelerator, topology, chips, hosts = GKE_SLICES[name]
    settings = dataclasses.replace(ON_KUBEFLOW, kueue_queue="tpus", s3_secret="s3-credentials")
    container, config = pod(name, settings)
    assert "accelerator" not in container.get("resources", {})
    assert "nodeSelector" not in config
    assert config["podMetadata"]["labels"] == {"team": "vision"}
    environment = {one["name"]: one["value"] for one in container["env"]}
    ask = json.loads(environment["TPU_PIPELINES_JOBSET"])
    assert ask["shared"] == f"{environment['AIP_CHECKPOINT_DIR']}/hosts"
    assert "TPU_PIPELINES_HOST_COUNT" not in environment, "the step's own pod is no host"
    jobset = ask["manifest"]
    assert jobset["metadata"]["labels"] == {"team": "vision", "kueue.x-k8s.io/queue-name": "tpus"}
    (replicated,) = jobset["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    assert (job["parallelism"], job["completions"], job["backoffLimit"]) == (hosts, hosts, 0)
    pod_spec = job["template"]["spec"]
    assert pod_spec["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": accelerator,
        "cloud.google.com/gke-tpu-topology": topology,
    }
    assert pod_spec["tolerations"] == [{"key": "google.com/tpu", "operator": "Exists", "effect": "NoSchedule"}]
    (trainer,) = pod_spec["containers"]
    assert trainer["image"] == container["image"]
    assert trainer["resources"]["limits"] == {"google.com/tpu": str(chips)}
    variables = {one["name"]: one.get("value", "of a secret") for one in trainer["env"]}
    assert variables["TPU_PIPELINES_HOST_COUNT"] == str(hosts)
    assert variables["AWS_ACCESS_KEY_ID"] == "of a secret"
    assert variables["AIP_CHECKPOINT_DIR"] == environment["AIP_CHECKPOINT_DIR"]
    assert "TPU_PIPELINES_JOBSET" not in variables
    mounts = {one["name"]: one["mountPath"] for one in trainer["volumeMounts"]}
    assert mounts == {"storage-key": "/secrets/storage", "checkpoints": "/mnt/checkpoints/", "cache": "/mnt/cache"}
    jobset["metadata"]["name"] = "digits-0123456789ab"
    jobsets.check(jobset)
    assert pod_spec["automountServiceAccountToken"] is False, "the step's account may create JobSets"
    assert pod_spec["securityContext"]["fsGroup"] == 1000
    assert trainer["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert config["securityContext"] == {"runAsUser": "0"}, "the step copies the records to the volume"


def test_the_jobset_of_several_hosts_matches_the_golden_file():
    """After a change that is meant: python -m tests.evidence.generated."""
    container, _ = pod("v5e-16", Settings(volumes={"shared": "/mnt/shared"}, labels={"team": "vision"}))
    (ask,) = (one["value"] for one in container["env"] if one["name"] == "TPU_PIPELINES_JOBSET")
    golden = GOLDEN / "jobset-v5e-16.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(yaml.safe_dump(json.loads(ask)["manifest"], sort_keys=True, width=120))
    assert json.loads(ask)["manifest"] == yaml.safe_load(golden.read_text())


def test_the_pods_of_several_hosts_mount_every_volume_and_secret():
    settings = Settings(volumes={"shared": "/mnt/shared", "cache": "/mnt/cache"}, secrets={"key": "/secrets/key"})
    container, _ = pod("v5e-16", settings)
    (ask,) = (json.loads(one["value"]) for one in container["env"] if one["name"] == "TPU_PIPELINES_JOBSET")
    (job,) = ask["manifest"]["spec"]["replicatedJobs"]
    host = job["template"]["spec"]["template"]["spec"]
    assert host["volumes"] == [
        {"name": "shared", "persistentVolumeClaim": {"claimName": "shared"}},
        {"name": "cache", "persistentVolumeClaim": {"claimName": "cache"}},
        {"name": "key", "secret": {"secretName": "key"}},
    ]
    assert [(one["name"], one["mountPath"]) for one in host["containers"][0]["volumeMounts"]] == [
        ("shared", "/mnt/shared"),
        ("cache", "/mnt/cache"),
        ("key", "/secrets/key"),
    ]


@pytest.mark.parametrize("mounts", [{"volumes": {"scratch": "/mnt"}}, {"secrets": {"key": "/tmp/"}}])
def test_a_mount_in_the_place_of_a_steps_disk_is_refused(mounts):
    message = (
        r"Cannot mount (scratch=/mnt|key=/tmp/) for train_model: the step's disk already uses the volume name "
        "'scratch' and the path /tmp"
    )
    with pytest.raises(InputError, match=message):
        compile_digits("kubeflow", "resources.train_model.disk=100Gi", settings=Settings(**mounts))
    compile_digits("kubeflow", settings=Settings(**mounts))


@pytest.mark.parametrize(
    "place", [f"projects/p/zones/us-west1-a/reservations/{'r' * 64}", "projects/a:b/zones/us-west1-a/reservations/r"]
)
def test_a_reservation_that_no_label_can_name_is_refused_on_kubeflow(place):
    with pytest.raises(
        InputError, match=r"Cannot use machine\.reservation='projects/.* on Kubeflow, .* at most 63 letter"
    ):
        compile_digits("kubeflow", f"machine={{name: v5e-4, region: us-west1, reservation: '{place}'}}")


def test_a_job_on_vertex_has_a_hundred_environment_variables():
    variables = {f"V{number}": "1" for number in range(100)}
    compile_digits("vertex", settings=Settings(environment=variables))
    with pytest.raises(InputError, match=r"at most 100 environment variables\. Received: 101\. Remove some from the"):
        compile_digits("vertex", settings=Settings(environment={**variables, "X": "1"}))


def test_several_hosts_need_a_volume_of_all():
    with pytest.raises(
        InputError, match=r"v5e-16 has 4 hosts.*\(ReadWriteMany\), received none\. Add one to the setting volumes"
    ):
        pod("v5e-16")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("machine=null", r"expected a machine to train on, received none\. Set, for example, machine=v5e-4"),
        ("data.source=images:/data/photos", r"data\.source must be on Cloud Storage.* Received: '/data/photos'"),
        (
            "deploy.registry=/registry",
            r"containers cannot read a registry in a local folder.* deploy\.registry='/registry'",
        ),
        ("gate.champion=/runs/model", r"gate\.champion must be on Cloud Storage.* Received: '/runs/model'"),
        ("training.num_replicas=2", r"expected training\.num_replicas=4 or 0 with v5e-4\. Received: 2\."),
    ],
)
def test_what_the_cloud_could_not_run_is_refused(target, override, message):
    with pytest.raises(InputError, match=message):
        compile_digits(target, override)


@pytest.mark.parametrize(
    ("target", "overrides", "message"),
    [
        (
            "kubeflow",
            ["machine=v5e-16"],
            r"v5e-16 has 4 hosts.*to the setting volumes \(TPU_PIPELINES_VOLUMES\) as CLAIM=",
        ),
        (
            "vertex",
            ["machine=v5e-16", "training.backend=tensorflow"],
            r"The tensorflow backend trains on one host, but v5e-16 has 4 hosts\. Use v5e-1",
        ),
        ("vertex", ["machine=v5e-16", "training.accelerator=cpu"], "The tensorflow backend trains on one host"),
        (
            "vertex",
            ["machine={name: v5e-4, fallbacks: [v3-32]}", "training.backend=tensorflow"],
            r"The tensorflow backend trains on one host, but v3-32 has 4 hosts\. Use v3-8",
        ),
    ],
)
def test_what_several_hosts_could_not_train_is_refused(target, overrides, message):
    with pytest.raises(InputError, match=message):
        compile_digits(target, *overrides)


@pytest.mark.parametrize(("name", "hosts"), [("v5e-16", 4), ("v3-32", 4), ("7x-1024", 256)])
def test_a_custom_job_for_several_hosts_has_one_replica_and_knows_their_number(name, hosts):
    machine = PLATFORMS["vertex"].in_region(parse_machine(name), "")
    _, job = submitted_job(as_custom_job(train_model, machine, SETTINGS, PLACEMENT))
    (pool,) = job.job_spec.worker_pool_specs
    assert pool.replica_count == 1
    assert {one.name: one.value for one in pool.container_spec.env}["TPU_PIPELINES_HOST_COUNT"] == str(hosts)
    assert job.job_spec.scheduling.restart_job_on_worker_restart
    assert hosts_of(pool.machine_spec) == hosts == parse_machine(name).slice.hosts


def test_a_model_of_the_users_travels_through_the_bucket_by_its_digest(tmp_path):
    file = tmp_path / "my_model.py"
    file.write_text("def build_model(image_shape, num_classes): ...\n")
    with pytest.raises(
        InputError, match=rf"uploading the model '{file}' requires a bucket.* Set TPU_PIPELINES_BUCKET=gs://BU"
    ):
        compile_digits("vertex", f"model={file}")
    compiled = compile_digits("vertex", f"model={file}", settings=SETTINGS)
    bundle = bundle_of(str(file))
    place = f"gs://my-bucket/pipelines/models/{bundle.digest}/my_model.zip"
    assert compiled.run.carried == {place: bundle.content}
    assert compiled.package.count(place) >= 2, "for preflight, and for training"
    assert str(file) not in compiled.package
    file.write_text("def build_model(image_shape, num_classes): return 1\n")
    assert compile_digits("vertex", f"model={file}", settings=SETTINGS).run.carried.keys() != {place}
    module = "tpu_components.core.models.ready.digits_cnn:build_model"
    assert compile_digits("vertex", f"model={module}").run.carried == {}


@pytest.mark.parametrize(("scheme", "command"), [("gs", "gcloud storage cp"), ("s3", "aws s3 cp")])
def test_compiling_names_the_copy_of_a_model_into_its_bucket(tmp_path, monkeypatch, capfd, scheme, command):
    (tmp_path / "my_model.py").write_text("def build_model(image_shape, num_classes): ...\n")
    monkeypatch.setenv("TPU_PIPELINES_BUCKET", f"{scheme}://my-bucket/pipelines")
    output = tmp_path / "pipeline.yaml"
    words = ["compile", "digits", "--target", "kubeflow", "--output", str(output)]
    assert main([*words, "--set", "machine=v5e-4", "--set", f"model={tmp_path / 'my_model.py'}"]) == 0
    (copied,) = tmp_path.glob("my_model-*.zip")
    assert f"{command} {copied} {scheme}://my-bucket/pipelines/models/" in capfd.readouterr().err


def test_a_module_that_does_not_travel_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("my_nets.py").touch()
    models = ("digits_cnn", "json:loads", "my_nets:build_model")
    (told,) = (finding for model in models for finding in model_findings(model, {}) if finding.state == "hint")
    assert told.said.startswith("the code of the model 'my_nets:build_model' is not uploaded, because no bucket is set")


@pytest.mark.parametrize("name", ["my_model.py", "my_model.keras"])
def test_a_models_file_among_this_projects_code_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.setattr(lookup, "ROOTS", (tmp_path,))
    file = tmp_path / "tpu_components" / name
    file.parent.mkdir()
    file.touch()
    with pytest.raises(InputError, match=rf"model '{file}' belongs to tpu-pipelines .* to a folder of your own"):
        compile_digits("vertex", f"model={file}", settings=SETTINGS)


def test_the_files_that_travel_with_a_models_code_are_told(tmp_path):
    (tmp_path / "my_model.py").write_text("NAMES = 'names.txt'\n")
    (tmp_path / "names.txt").write_text("cat\ndog\n")
    bundle = bundle_of(str(tmp_path / "my_model.py"))
    _, told = model_findings("my_model.py", {bundle.reference("gs://bucket"): bundle.content})
    assert (told.state, told.said) == ("hint", "names.txt, 8 bytes, is uploaded with the model's code")


def test_a_model_beside_its_pipeline_replaces_no_file_of_the_users(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TPU_PIPELINES_BUCKET", "gs://my-bucket")
    (tmp_path / "my_model.py").write_text("def build_model(image_shape, num_classes): ...\n")
    (tmp_path / "my_model.zip").write_text("mine")
    output, model = ("--output", str(tmp_path / "pipeline.yaml")), f"model={tmp_path / 'my_model.py'}"
    assert (
        cli.main(["compile", "digits", "--target", "kubeflow", *output, "--set", "machine=v5e-4", "--set", model]) == 0
    )
    assert (tmp_path / "my_model.zip").read_text() == "mine"
    bundle = bundle_of(str(tmp_path / "my_model.py"))
    (written,) = tmp_path.glob("my_model-*.zip")
    assert written.read_bytes() == bundle.content
    assert f"gcloud storage cp {written} gs://my-bucket/models/{bundle.digest}/my_model.zip" in capsys.readouterr().err


@pytest.mark.parametrize("target", TARGETS)
def test_the_readmes_example_with_a_model_of_ones_own_compiles(tmp_path, monkeypatch, target):
    """Only its data lie elsewhere: where the platform can read them."""
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```yaml\n(.*?)```", MODELS.read_text(), re.DOTALL)
    (config,) = [block for block in blocks if "model: my_classifier.py" in block]
    Path("flowers.yaml").write_text(config)
    Path("my_classifier.py").write_text(readme_model("my_classifier.py"))
    overrides = ["machine=v5e-4", "data.source=images:gs://my-bucket/flowers"]
    compiled = compile_pipeline(load_config("flowers.yaml", overrides), PLATFORMS[target], SETTINGS)
    (place,) = compiled.run.carried
    assert place.endswith("/my_classifier.zip")
    assert place in compiled.package


def test_a_file_that_only_a_parameter_names_is_refused(tmp_path):
    (tmp_path / "my_model.py").write_text("def build_model(image_shape, num_classes, weights): ...\n")
    (tmp_path / "weights.h5").write_bytes(b"")
    model = f"model={{name: {tmp_path}/my_model.py, parameters: {{weights: {tmp_path}/weights.h5}}}}"
    with pytest.raises(
        InputError, match=r"contains the file '.*weights\.h5', which containers cannot read\. Put the file"
    ):
        compile_digits("vertex", model, settings=SETTINGS)


def test_data_on_cloud_storage_is_taken():
    assert "images:gs://bucket/photos" in compile_digits("vertex", "data.source=images:gs://bucket/photos").package


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "kfp.kubernetes", None)
    monkeypatch.delattr("kfp.kubernetes", raising=False)
    named = r"The library kfp\.kubernetes is not installed\. Run: pip install 'tpu-pipelines\[kubeflow\]'\."
    with pytest.raises(InputError, match=named), storage.naming_faults():
        compile_digits("kubeflow")


def test_compiling_for_vertex_needs_none_of_googles_packages(monkeypatch):
    for package in ("google_cloud_pipeline_components", "google.cloud.aiplatform", "google.cloud.aiplatform_v1"):
        monkeypatch.setitem(sys.modules, package, None)
    compile_digits("vertex")


def test_only_a_compiled_pipeline_is_overwritten(tmp_path):
    notes, pipeline = tmp_path / "notes.yaml", tmp_path / "new" / "pipeline.yaml"
    notes.write_text("dear: diary\n")
    for path, message in (
        (notes, rf"Cannot overwrite {notes}: the file exists and is not a compiled pipeline"),
        (tmp_path / "notes.txt", r"expected a name that ends in \.yaml"),
        (notes / "pipeline.yaml", rf"{notes} is a file, not a folder"),
    ):
        with pytest.raises(InputError, match=message):
            check_output(path)
    check_output(pipeline)
    storage.write_bytes(pipeline, compile_digits("vertex").package.encode())
    check_output(pipeline)


REGISTRY = "projects/my-project/locations/us-west1/models"
SERVING_IMAGE = f"deploy.serving_image=europe-docker.pkg.dev/my-project/images/serving@sha256:{'0' * 64}"


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("data.engine=fan_out", f"deploy.registry={REGISTRY}", SERVING_IMAGE, "deploy.artifacts_uri=gs://my-bucket/r"),
        ("export=false", "resources.evaluate_model.machine=v5e-1"),
    ],
    ids=["plain", "several steps and a registry", "evaluated on a machine"],
)
def test_every_input_and_output_of_a_compiled_pipeline_has_a_description(target, overrides):
    """Except the channels that KFP adds to a condition, a loop or a group: it keeps no description of those."""
    settings = SETTINGS if target == "vertex" else ON_KUBEFLOW
    notified = dataclasses.replace(settings, notify="gs://my-bucket/hook.txt")
    spec = spec_of(compile_digits(target, *overrides, settings=notified))
    described = 0
    missing = []
    for component, of in {**spec["components"], "pipeline": spec["root"]}.items():
        for kind in ("inputDefinitions", "outputDefinitions"):
            for name, one in {
                **of.get(kind, {}).get("parameters", {}),
                **of.get(kind, {}).get("artifacts", {}),
            }.items():
                described += "description" in one
                if "description" not in one and not name.startswith("pipelinechannel--"):
                    missing.append(f"{component}: {name}")
    assert missing == []
    assert described > 100


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("overrides", "settings"),
    [
        (["deploy.registry=vertex"], SETTINGS),
        ([f"deploy.registry={REGISTRY}", "deploy.artifacts_uri=gs://my-bucket/pipelines/registry"], None),
    ],
)
def test_with_a_registry_on_vertex_ai_the_model_is_deployed_and_the_champion_comes_from_there(
    target, overrides, settings
):
    compiled = compile_digits(target, *overrides, SERVING_IMAGE, "deploy.endpoint=digits", settings=settings)
    spec = spec_of(compiled)
    inputs = spec["root"]["inputDefinitions"]["parameters"]
    assert inputs["champion"]["defaultValue"] == f"{REGISTRY}/digits@champion"
    (promoted,) = (component for component in spec["components"].values() if "dag" in component)
    deploy, evaluate = promoted["dag"]["tasks"]["deploy-model"], spec["root"]["dag"]["tasks"]["evaluate-model"]
    given = {
        name: value["runtimeValue"]["constant"]
        for name, value in deploy["inputs"]["parameters"].items()
        if "runtimeValue" in value
    }
    assert given["registry"] == REGISTRY
    assert given["artifacts_uri"] == "gs://my-bucket/pipelines/registry"
    assert (given["model_name"], given["endpoint"], given["endpoint_traffic"]) == ("digits", "digits", 100)
    assert given["encryption_key"] == ""
    assert given["lineage"]["config"]["name"] == "digits"
    assert set(given["lineage"]["code"]) >= {"train_model", "deploy_model"}
    for task in (deploy, evaluate):
        assert not task["cachingOptions"].get("enableCache"), "an alias is the same text wherever it stands"
    assert spec["root"]["dag"]["tasks"]["train-model"]["cachingOptions"]["enableCache"]


def test_a_registry_on_vertex_ai_needs_to_know_where():
    with pytest.raises(InputError, match="Missing settings: project, region"):
        compile_digits("vertex", SERVING_IMAGE, "deploy.registry=vertex")
    with pytest.raises(InputError, match="Missing settings: bucket"):
        compile_digits("vertex", SERVING_IMAGE, f"deploy.registry={REGISTRY}")
    with pytest.raises(InputError, match=r"cannot pull the serving image 'tpu-pipelines/serving:latest'"):
        compile_digits("vertex", "deploy.registry=vertex", settings=SETTINGS)


def test_of_the_keys_a_compiled_pipeline_holds_the_public_one_and_where_the_private_one_is(tmp_path):
    private, public = write_keys(tmp_path)
    registered = SERVING_IMAGE, "deploy.registry=vertex", f"deploy.verify_key={public}"
    text = compile_digits("vertex", *registered, "deploy.signing_key=gs://keys/signing.pem", settings=SETTINGS).package
    assert "gs://keys/signing.pem" in text
    assert "BEGIN PUBLIC KEY" in text
    assert "PRIVATE KEY" not in text
    with pytest.raises(InputError, match=r"containers cannot read a key on this machine.*signing\.pem"):
        compile_digits("vertex", *registered, f"deploy.signing_key={private}", settings=SETTINGS)


def executors(compiled):
    """What each step asks for, in KFP's words and in Kubernetes', and how often it is tried again."""
    spec, *platforms = yaml.safe_load_all(compiled.package)
    kubernetes = platforms[0]["platforms"]["kubernetes"]["deploymentSpec"]["executors"] if platforms else {}
    tasks = {
        name: task
        for part in (spec["root"], *spec["components"].values())
        for name, task in part.get("dag", {}).get("tasks", {}).items()
    }
    return {
        name.removeprefix("exec-"): (
            one["container"],
            kubernetes.get(name, {}),
            tasks[name.removeprefix("exec-")].get("retryPolicy"),
        )
        for name, one in spec["deploymentSpec"]["executors"].items()
    }


@pytest.mark.parametrize("target", TARGETS)
def test_every_step_asks_for_cpus_and_memory(target):
    """Preflight's own limit on a compilation is killed on the service's default machine of 16 GB."""
    compiled = compile_digits(target, "preflight.compile_memory_mib=32768", "training.in_memory_mib=8192")
    found = {name: one[0].get("resources", {}) for name, one in executors(compiled).items()}
    training = found.pop("train-model")
    if target == "kubeflow":  # Its host is its own: a limit would only stop it.
        assert (training["resourceCpuRequest"], training["resourceMemoryRequest"]) == ("3", "20Gi")
    assert "resourceMemoryLimit" not in training
    asked = {name: one["resourceMemoryLimit"] for name, one in found.items()}
    assert asked == {
        "list-source": "12Gi",  # Of what create_tfrecords reads, it reads the lists.
        "create-tfrecords": "12Gi",
        "preflight-training": "36Gi",
        "evaluate-model": "12Gi",
        "export-model": "12Gi",
    }
    assert {one["resourceCpuLimit"] for one in found.values()} == {"3"}


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_set_of_a_steps_resources_is_asked_for(target):
    disk = "100G" if target == "vertex" else "500Gi"
    asked = f"resources.export_model={{cpu: 8, memory: 64Gi, disk: {disk}, retries: 2, timeout: 3600}}"
    container, pod, retries = executors(compile_digits(target, asked))["export-model"]
    assert (container["resources"]["resourceCpuLimit"], container["resources"]["resourceMemoryLimit"]) == ("8", "64Gi")
    assert retries["maxRetryCount"] == 2
    assert retries["backoffMaxDuration"] == f"{3 * (3600 + 3600)}s", "Argo counts it from the first attempt"
    if target == "vertex":
        assert container["command"][:4] == ["timeout", "--kill-after=60", "3600", "sh"]
    else:
        assert pod["activeDeadlineSeconds"] == "3600"
        (volume,) = pod["genericEphemeralVolume"]
        assert (volume["mountPath"], volume["size"]) == ("/tmp", "500Gi")
        assert pod["securityContext"] == {"runAsUser": "0"}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "resources.train_model.memory=64Gi",
            r"a step with a machine uses the whole host, .*train_model\.memory='64Gi'\. Remove it\.",
        ),
        ("resources.train_model.disk=200Gi", r"Remove it; machine\.boot_disk_size_gb sets the disk\."),
        (
            "resources.train_model.timeout=60",
            r"resources\.train_model\.timeout=60\. Set machine\.timeout_sec",
        ),
        (
            "machine={name: v5e-4, timeout_seconds: 604801}",
            r"expected machine\.timeout_seconds of at most 604800\. Received: 604801\. Use a larger machine",
        ),
        ("resources.export_model.timeout=700000", r"resources\.export_model\.timeout of at most 604800\. Rec.* 700000"),
        (
            "data={source: sklearn:digits, engine: fan_out, engine_tasks: 91}",
            r"from 1 to 90 with data\.engine=fan_out\. Received: 91\. .* a step reads and writes at most 100 artifacts",
        ),
        (
            "resources.evaluate_model={machine: v5e-1, memory: 64Gi}",
            r"a step with a machine uses the whole host, .*evaluate_model\.memory='64Gi'\. Remove it\.",
        ),
        ("resources.export_model.disk=1Ti", r"a disk of 100 GB, .* Received: resources\.export_model\.disk='1Ti'"),
    ],
)
def test_resources_that_vertex_has_no_words_for_are_refused(override, message):
    with pytest.raises(InputError, match=message):
        compile_digits("vertex", override)


@pytest.mark.parametrize("target", TARGETS)
def test_the_evaluation_can_have_a_tpu_of_its_own(target):
    settings = Settings(images=Images("docker.io/me/train:1", "docker.io/me/steps:1"))
    machine = "resources.evaluate_model={machine: v5e-1, timeout: 3600}"
    compiled = compile_digits(target, "machine={name: v5e-4, region: us-west4}", machine, settings=settings)
    spec = spec_of(compiled)
    task = spec["root"]["dag"]["tasks"]["evaluate-model"]
    assert task["inputs"]["parameters"]["accelerator"]["runtimeValue"]["constant"] == "tpu"
    assert spec["components"]["comp-evaluate-model"]["outputDefinitions"]["parameters"]["Output"]
    container, pod, _ = executors(compiled)["evaluate-model"]
    if target == "kubeflow":
        assert container["image"] == "docker.io/me/train:1", "the image of the other steps may have no JAX"
        asked = container["resources"]["accelerator"]
        assert (asked["resourceType"], asked["resourceCount"]) == ("google.com/tpu", "1")
        assert pod["nodeSelector"]["labels"]["cloud.google.com/gke-tpu-topology"] == "1x1"
        assert pod["activeDeadlineSeconds"] == "3600"
        return
    job = container["args"][container["args"].index("--payload") + 1]
    assert '"machine_type": "ct5lp-hightpu-1t"' in job
    assert '"image_uri": "docker.io/me/train:1"' in job
    assert '"display_name": "{{$.pipeline_job_name}}-evaluate-model"' in job
    defaults = spec["components"]["comp-evaluate-model"]["inputDefinitions"]["parameters"]
    assert defaults["job_location"]["defaultValue"] == "us-west4"
    assert defaults["job_timeout"]["defaultValue"] == "3600s"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["resources.export_model.machine=v5e-1"],
            r"resources\.export_model\.machine is not supported.*cpu and",
        ),
        (
            ["resources.train_model.machine=v5e-1"],
            r"resources\.train_model\.machine is not supported.*in the section machine\.",
        ),
        (["resources.evaluate_model.machine=v5e-16"], r"runs on one host, but v5e-16 has 4 hosts"),
        (["resources.evaluate_model.machine=v5e-3"], r"v5e-3.*v5e-4"),
        (
            ["resources.evaluate_model.machine=v5e-1", "gate.backend=tensorflow"],
            r"gate\.backend to be jax or auto.* auto and tensorflow",
        ),
        (
            ["resources.evaluate_model.machine=v5e-1", "gate.accelerator=cpu"],
            r"gate\.accelerator to be tpu or auto.* cpu and auto",
        ),
    ],
)
def test_a_machine_that_a_step_cannot_use_is_refused(overrides, message):
    with pytest.raises(InputError, match=message):
        load_config("digits", ("machine=v5e-4", *overrides))


def test_a_champion_that_a_training_starts_with_comes_from_the_registry():
    """An alias may move without a change of the task's inputs, so the task is never taken from the platform's cache."""
    overrides = ("deploy.registry=vertex", "deploy.artifacts_uri=gs://b/r", "training.initial_model=digits@champion")
    compiled = compile_digits("vertex", *overrides, SERVING_IMAGE, settings=SETTINGS)
    with pytest.raises(InputError, match=r"training\.initial_model must be on Cloud Storage.*'runs/digits/model'"):
        compile_digits("vertex", "training.initial_model=runs/digits/model")
    task = spec_of(compiled)["root"]["dag"]["tasks"]["train-model"]
    named = task["inputs"]["parameters"]["initial_model"]["runtimeValue"]["constant"]
    assert named == "projects/my-project/locations/us-west1/models/digits@champion"
    assert not task["cachingOptions"]


@pytest.mark.parametrize(
    ("overrides", "seconds", "words"),
    [
        ([], 86400, "after 3 times preflight's estimate, at least 4 h; machine.timeout_seconds sets another limit"),
        (["preflight=false"], 86400, "after 24 h, because the training time is not estimated; machine.timeout_seconds"),
        (["machine={name: v5e-4, timeout_seconds: 7200}"], 7200, "after 2 h, because of machine.timeout_seconds"),
    ],
)
def test_the_time_of_a_training_is_said_with_its_reason(overrides, seconds, words):
    compiled = compile_digits("vertex", *overrides)
    assert words in compiled.run.timeout.reason
    spec = spec_of(compiled)
    # The custom job's time where no task gives another.
    inputs = spec["components"]["comp-train-model"]["inputDefinitions"]["parameters"]
    assert inputs["job_timeout"]["defaultValue"] == f"{seconds}s"
    takes_estimate = "job_timeout" in spec["root"]["dag"]["tasks"]["train-model"]["inputs"]["parameters"]
    assert takes_estimate is (not overrides)


@pytest.mark.parametrize(("budget", "hours"), [(1, 4.0), (48, 30.0)])
def test_on_kubeflow_the_budget_says_when_a_training_is_stopped(budget, hours):
    """v5e-4 costs $4.80 an hour: $48 pay for 10."""
    compiled = compile_digits("kubeflow", f"preflight.max_price_usd={budget}")
    assert compiled.run.timeout.seconds == hours * 3600
    assert executors(compiled)["train-model"][1]["activeDeadlineSeconds"] == str(int(hours * 3600))


def test_a_spot_pod_is_started_again():
    compiled = compile_digits("kubeflow", "machine={name: v5e-4, spot: true, timeout_seconds: 7200}")
    retries = executors(compiled)["train-model"][2]
    assert (retries["maxRetryCount"], retries["backoffMaxDuration"]) == (5, f"{6 * (7200 + 3600)}s")
    compiled = compile_digits("kubeflow", "machine={name: v5e-4, spot: true}", "resources.train_model.retries=0")
    assert executors(compiled)["train-model"][2] is None


def test_the_step_that_follows_several_hosts_is_started_again_within_their_time():
    machine, shared = "machine={name: v5e-16, timeout_seconds: 7200}", Settings(volumes={"shared": "/mnt/shared"})
    compiled = compile_digits("kubeflow", machine, "training.backend=jax", settings=shared)
    retries = executors(compiled)["train-model"][2]
    assert (retries["maxRetryCount"], retries["backoffMaxDuration"]) == (5, "7200s")


def command(path, target, *arguments):
    return ("compile", "digits", "--output", str(path), "--target", target, "--set", "machine=v5e-4", *arguments)


def test_the_command_says_what_it_wrote_and_imports_no_framework(tmp_path):
    """In a process of its own, for one platform after the other."""
    commands = [command(tmp_path / f"{target}.yaml", target) for target in TARGETS]
    code = (
        "import sys\n"
        "from tpu_pipelines.cli import main\n"
        f"codes = [main(words) for words in {commands!r}]\n"
        "print(codes, [m for m in ('tensorflow', 'keras', 'jax', 'google.cloud.aiplatform') if m in sys.modules])"
    )
    words, environment = [sys.executable, "-c", code], os.environ | {"TPU_PIPELINES_LABELS": "team=vision"}
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.splitlines() == [
        f"{tmp_path / 'vertex.yaml'}: digits for vertex, to train on v5e-4 (ct5lp-hightpu-4t, 2x2)",
        "training is stopped after 3 times preflight's estimate, at least 4 h; "
        "machine.timeout_seconds sets another limit",
        f"{tmp_path / 'kubeflow.yaml'}: digits for kubeflow, to train on v5e-4 (ct5lp-hightpu-4t, 2x2)",
        "training is stopped after 24 h, because the training time is not estimated; "
        "machine.timeout_seconds sets another limit",
        "[0, 0] []",
    ]
    hint = "cannot pull the step image 'tpu-pipelines/python:latest'"
    assert done.stderr.count(hint) == len(TARGETS)
    for target in TARGETS:
        text = (tmp_path / f"{target}.yaml").read_text()
        assert "team: vision" in text
        images = set(re.findall(r"image(?:_uri)?: (\S+)", text))
        assert images <= {"tpu-pipelines/python:latest", "gcr.io/ml-pipeline/google-cloud-pipeline-components:2.22.0"}


def test_an_image_named_by_a_tag_is_hinted_at(tmp_path, monkeypatch):
    monkeypatch.setenv("TPU_PIPELINES_IMAGE", "docker.io/me/steps:1")
    done = tpu_pipelines_here(*command(tmp_path / "p.yaml", "vertex"))
    assert "hint: image: the image 'docker.io/me/steps:1' is named by a tag." in done.stderr


@pytest.mark.parametrize(
    ("target", "image", "is_taken"),
    [
        ("vertex", "steps:1", False),
        ("vertex", "me/steps:1", False),
        ("vertex", "localhost:5000/steps:1", False),
        ("vertex", "europe-docker.pkg.dev/p/r/steps:1", True),
        ("kubeflow", "me/steps:1", False),
        ("kubeflow", "localhost:5000/steps:1", True),
        ("kubeflow", "docker.io/me/steps:1", True),
    ],
)
def test_one_rule_says_which_images_a_platform_can_fetch(target, image, is_taken):
    if is_taken:
        require_step_image(PLATFORMS[target], Images(image))
        return
    with pytest.raises(InputError, match=rf"cannot pull the step image '{image}'.*and set TPU_PIPELINES_IMAGE\."):
        require_step_image(PLATFORMS[target], Images(image))


def test_an_image_that_was_named_is_checked_when_it_is_compiled(tmp_path, monkeypatch):
    monkeypatch.setenv("TPU_PIPELINES_IMAGE", "steps:1")
    done = tpu_pipelines_here(*command(tmp_path / "p.yaml", "vertex"))
    assert_user_error(done, "Vertex AI cannot pull the step image 'steps:1'")


def test_images_named_by_digest_are_used_without_a_hint_and_another_one_for_steps_without_a_tpu(tmp_path, monkeypatch):
    images = {f"TPU_PIPELINES_{name}IMAGE": f"docker.io/p/{name}i@sha256:{'0' * 64}".lower() for name in ("", "STEPS_")}
    set_environment(monkeypatch, images)
    done = tpu_pipelines_here(*command(tmp_path / "pipeline.yaml", "kubeflow"))
    assert (done.returncode, done.stderr) == (0, "")
    spec = yaml.safe_load((tmp_path / "pipeline.yaml").read_text().partition("\n---\n")[0])
    executors = spec["deploymentSpec"]["executors"]
    training, others = images.values()
    used = {name: executor["container"]["image"] for name, executor in executors.items() if "container" in executor}
    with_tpu = {"exec-preflight-training", "exec-train-model"}
    assert {name for name, image in used.items() if image == training} == with_tpu
    assert {image for name, image in used.items() if name not in with_tpu} == {others}


@pytest.mark.parametrize("target", TARGETS)
def test_each_compilation_in_one_process_has_the_images_of_its_settings(target):
    overrides = ("data.engine=beam", "data.beam_options.runner=FlinkRunner")
    notified = Settings(
        notify="https://example.com/hook", images=Images("r.io/a/train:1", "r.io/a/steps:1", "r.io/a/beam:1")
    )
    plain = dataclasses.replace(notified, images=Images("r.io/b/train:2", beam="r.io/b/beam:2"))
    by_settings = {}
    for settings in (notified, plain, notified):
        package = compile_digits(target, *overrides, settings=settings).package
        used = set(re.findall(r"image(?:_uri)?: (r\.io\S+)", package))
        assert used == set(filter(None, vars(settings.images).values())) - {settings.images.serving}
        assert "tpu-pipelines/" not in package
        assert by_settings.setdefault(settings.images, package) == package
    assert len(by_settings) == 2


def test_an_image_of_the_other_steps_must_be_in_a_registry_too(tmp_path, monkeypatch):
    monkeypatch.setenv("TPU_PIPELINES_IMAGE", "europe-docker.pkg.dev/p/r/i:1")
    monkeypatch.setenv("TPU_PIPELINES_STEPS_IMAGE", "steps:1")
    done = tpu_pipelines_here(*command(tmp_path / "p.yaml", "vertex"))
    assert_user_error(done, "Vertex AI cannot pull the step image 'steps:1'", "set TPU_PIPELINES_STEPS_IMAGE")


def test_the_image_of_beams_workers_must_be_in_a_registry(tmp_path):
    done = tpu_pipelines_here(*command(tmp_path / "p.yaml", "vertex", "--set", "data.engine=beam"))
    assert_user_error(done, "pull the beam image 'tpu-pipelines/beam:latest'", "make image-beam", "PELINES_BEAM_IMAGE")


def test_the_command_reads_settings_from_a_file(tmp_path):
    (tmp_path / "settings.yaml").write_text("labels: {stage: test}\n")
    words = command(tmp_path / "p.yaml", "vertex", "--settings", str(tmp_path / "settings.yaml"))
    assert tpu_pipelines_here(*words).returncode == 0
    assert "stage: test" in (tmp_path / "p.yaml").read_text()


def test_the_commands_mistakes_are_the_users(tmp_path):
    wanted = ("compile", "digits", "--output", str(tmp_path / "p.yaml"))
    assert_user_error(tpu_pipelines_here(*wanted, "--target", "vertex"), "tpu-pipelines machines")
    settings = str(tmp_path / "none.yaml")
    done = tpu_pipelines_here(*wanted, "--target", "vertex", "--set", "machine=v5e-4", "--settings", settings)
    assert_user_error(done, f"Cannot read the settings {settings}")


@pytest.mark.parametrize("spot", [False, True])
def test_on_vertex_a_gpu_trains_and_judges_by_the_same_configuration(spot):
    machine = f"machine={{name: a100-2, spot: {str(spot).lower()}, region: us-central1}}"
    compiled = compile_digits("vertex", machine, "resources.evaluate_model.machine=t4-1", settings=SETTINGS)
    assert not compiled.run.timeout.is_estimated
    assert compiled.run.timeout.seconds == 24 * 3600
    pipeline = spec_of(compiled)
    payloads = [
        args[args.index("--payload") + 1]
        for one in pipeline["deploymentSpec"]["executors"].values()
        if "--payload" in (args := one.get("container", {}).get("args", []))
    ]
    specs = sorted(re.search(r'"machine_spec": (\{.*?\})', payload)[1] for payload in payloads)
    assert list(map(json.loads, specs)) == [
        {"machine_type": "a2-highgpu-2g", "accelerator_type": "NVIDIA_TESLA_A100", "accelerator_count": 2},
        {"machine_type": "n1-standard-8", "accelerator_type": "NVIDIA_TESLA_T4", "accelerator_count": 1},
    ]
    tasks = pipeline["root"]["dag"]["tasks"]
    for step in ("train-model", "evaluate-model"):
        assert tasks[step]["inputs"]["parameters"]["accelerator"]["runtimeValue"]["constant"] == "gpu"
    assert ("SPOT" if spot else "STANDARD") in compiled.package


def test_on_kubeflow_a_pod_asks_for_gpus_and_their_nodes():
    compiled = compile_digits("kubeflow", "machine={name: h100-8, spot: true}")
    pipeline, platform = yaml.safe_load_all(compiled.package)
    resources = pipeline["deploymentSpec"]["executors"]["exec-train-model"]["container"]["resources"]
    assert resources["accelerator"]["type"] == "nvidia.com/gpu"
    assert resources["accelerator"]["count"] == "8"
    pod = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]["exec-train-model"]
    assert pod["nodeSelector"]["labels"] == {
        "cloud.google.com/gke-accelerator": "nvidia-h100-80gb",
        "cloud.google.com/gke-spot": "true",
    }
    assert {one["key"] for one in pod["tolerations"]} == {"nvidia.com/gpu", "cloud.google.com/gke-spot"}


def test_the_budget_is_the_time_limit_of_a_gpu():
    compiled = compile_digits("vertex", "machine=l4-1", "preflight.max_price_usd=1")
    price = compiled.run.machine.slice.price(compiled.run.machine.region)
    assert (
        price.usd_per_hour * compiled.run.timeout.seconds / 3600
        <= 1
        < price.usd_per_hour * (compiled.run.timeout.seconds + 1) / 3600
    )


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["training.accelerator=tpu"], r"l4-2 has no TPU: expected training\.accelerator to be gpu or auto"),
        (["training.num_replicas=3"], r"of its machine: expected training\.num_replicas=2 or 0 with l4-2"),
    ],
)
def test_what_a_machine_with_gpus_has_not_is_refused(overrides, message):
    with pytest.raises(InputError, match=message):
        compile_digits("vertex", "machine=l4-2", *overrides)


def test_what_cannot_be_compiled_is_named_at_once(tmp_path):
    (tmp_path / "a.txt").touch()
    config = load_config("cifar10_cnn", ["data.source=images:photos", f"model.files=[{tmp_path}/a.txt]"])
    with pytest.raises(InputError) as refused:
        compile_pipeline(config, PLATFORMS["vertex"], Settings(kueue_queue="tpus"))
    said = str(refused.value)
    for words in ("expected a machine", "kueue_queue", "data.source must be on Cloud Storage", "model.files contains"):
        assert words in said
