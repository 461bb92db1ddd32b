import dataclasses
import inspect
import json
import re
import sys
import warnings

import pytest
from google.protobuf import json_format
from kfp import dsl
from kfp.kubernetes import kubernetes_executor_config_pb2

import tpu_pipelines as tp
from tests.support.cli import PIPELINES, set_environment
from tests.support.custom_jobs import submitted_job
from tests.support.fakes.execution import launcher_arguments
from tpu_components.core.base.container_images import Images
from tpu_components.core.base.errors import InputError
from tpu_components.core.machines.machine_spec import MachineSpec, parse_machine
from tpu_components.kfp import (
    PipelineWarning,
    create_tfrecords,
    evaluate_model,
    export_model,
    on_current_data,
    predict_batch,
    train_model,
    with_image,
    with_images,
)
from tpu_pipelines.config.settings import Settings, load_settings

PINNED = "docker.io/me/python@sha256:" + 64 * "0"
SETTINGS = {
    "project": "my-project",
    "region": "us-west4",
    "bucket": "gs://my-bucket/pipelines",
    "service_account": "trainer@my-project.iam.gserviceaccount.com",
    "network": "projects/12345/global/networks/my-network",
    "labels": {"team": "vision"},
}
RESERVATION = "projects/my-project/zones/us-west4-a/reservations/tpus"


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    set_environment(monkeypatch, {})


@dsl.component(base_image="python:3.12", packages_to_install=["torch_xla[tpu]"])
def train_elsewhere(records: dsl.Input[dsl.Dataset], labels: str, timeout: int = 3, location: str = "x") -> float:
    """A training of somebody else, whose inputs have the names of a job's fields."""
    return 0.5


@dsl.container_component
def run_command(text: str, answer: dsl.OutputPath(str)):
    """A container of somebody else."""
    return dsl.ContainerSpec(image="docker.io/me/tool:1", command=["tool"], args=["--text", text, "--answer", answer])


def pipeline_of(step, inputs):
    """A pipeline of this step alone; an input that is a function is called with the pipeline's own input."""

    @dsl.pipeline(name="one-step")
    def pipeline(wanted: str = "cpu"):
        step(**{name: value(wanted) if callable(value) else value for name, value in inputs.items()})

    return pipeline


def executor_of(step, **inputs):
    """The executor and the platform's configuration of a step, in a pipeline of nothing else."""
    pipeline = pipeline_of(step, inputs)
    spec = json_format.MessageToDict(pipeline.pipeline_spec)
    platform = json_format.MessageToDict(pipeline.platform_spec).get("platforms", {})
    (label,) = (name for name in spec["deploymentSpec"]["executors"] if "importer" not in name)
    of_platform = platform.get("kubernetes", {}).get("deploymentSpec", {}).get("executors", {}).get(label, {})
    json_format.ParseDict(of_platform, kubernetes_executor_config_pb2.KubernetesExecutorConfig())
    return spec["deploymentSpec"]["executors"][label]["container"], of_platform


def records(_=None):
    return dsl.importer(artifact_uri="gs://b/r", artifact_class=dsl.Dataset).output


def test_a_foreign_component_gets_a_custom_job_on_exactly_this_machine():
    machine = {"name": "v5e-4", "reservation": RESERVATION, "boot_disk_size_gb": 250, "timeout_seconds": 7200}
    step = tp.on_machine(train_elsewhere, machine, settings=SETTINGS, environment={"PJRT_DEVICE": "TPU"})
    location, job = submitted_job(step)
    assert location == "us-west4"
    assert job.display_name == "{{$.pipeline_job_name}}-train-elsewhere"
    assert dict(job.labels) == {
        "team": "vision",
        "tpu_pipelines_run": "train-elsewhere",
        "tpu_pipelines_machine": "v5e-4",
    }
    assert job.job_spec.service_account == SETTINGS["service_account"]
    assert job.job_spec.network == SETTINGS["network"]
    assert job.job_spec.scheduling.timeout.seconds == 7200
    (pool,) = job.job_spec.worker_pool_specs
    assert (pool.machine_spec.machine_type, pool.machine_spec.tpu_topology) == ("ct5lp-hightpu-4t", "2x2")
    assert list(pool.machine_spec.reservation_affinity.values) == [RESERVATION]
    assert pool.disk_spec.boot_disk_size_gb == 250
    assert pool.container_spec.image_uri == "python:3.12"
    assert [(one.name, one.value) for one in pool.container_spec.env] == [("PJRT_DEVICE", "TPU")]
    folder = "gs://my-bucket/pipelines/{{$.pipeline_job_name}}/{{$.pipeline_task_name}}"
    assert job.job_spec.base_output_directory.output_uri_prefix == folder


@pytest.mark.parametrize(
    ("machine", "type_", "accelerator"),
    [("v5e-4", "ct5lp-hightpu-4t", ""), ("v6e-8", "ct6e-standard-8t", ""), ("l4-1", "g2-standard-8", "NVIDIA_L4")],
)
def test_machines_of_one_host_run_any_component(machine, type_, accelerator):
    _, job = submitted_job(tp.on_machine(train_elsewhere, {"name": machine, "spot": True}))
    spec = job.job_spec.worker_pool_specs[0].machine_spec
    assert (spec.machine_type, spec.accelerator_type.name.replace("ACCELERATOR_TYPE_UNSPECIFIED", "")) == (
        type_,
        accelerator,
    )
    assert job.job_spec.scheduling.strategy.name == "SPOT"


def test_inputs_of_a_component_may_have_the_names_of_a_jobs_fields():
    step = tp.on_machine(train_elsewhere, "v5e-4")
    assert {
        "records",
        "labels",
        "timeout",
        "location",
        "job_labels",
        "job_timeout",
    } <= step.component_spec.inputs.keys()
    assert step.component_spec.inputs["job_timeout"].description == "Time limit of the job: seconds followed by `s`."
    assert step.component_spec.outputs.keys() == {"Output", "gcp_resources"}
    with pytest.raises(InputError, match=r"'conflicting' has inputs or outputs .* uses: job_timeout"):
        tp.on_machine(conflicting, "v5e-4")


@dsl.component(base_image="python:3.12")
def conflicting(job_timeout: int) -> None:
    """An input with the name of a job's input."""


def test_a_component_keeps_its_environment_variables():
    with_variable = train_elsewhere
    with_variable.component_spec.implementation.container.env = {"OWN": "1"}
    try:
        _, job = submitted_job(tp.on_machine(with_variable, "v5e-4", environment={"MORE": "2"}))
    finally:
        with_variable.component_spec.implementation.container.env = None
    env = {one.name: one.value for one in job.job_spec.worker_pool_specs[0].container_spec.env}
    assert env == {"OWN": "1", "MORE": "2"}


@pytest.mark.parametrize("text", ["plain", 'a "quoted" word', "a\\backslash", "two\nlines", '{"a": [1]}'])
def test_any_text_reaches_the_command_of_a_container(text):
    step = tp.on_machine(run_command, "l4-1", region="us-west4", bucket="gs://b")
    spec = json_format.MessageToDict(step.make_task.pipeline_spec)
    (component,) = spec["components"]
    executor_input = {
        "inputs": {"parameterValues": {"text": text}},
        "outputs": {
            "parameters": {
                "answer": {"outputFile": "/gcs/b/answer"},
                "gcp_resources": {"outputFile": "/gcs/b/resources"},
            }
        },
    }
    arguments = launcher_arguments(spec, component, executor_input, {"pipeline_job_name": "job"})
    container = json.loads(arguments["payload"])["job_spec"]["worker_pool_specs"][0]["container_spec"]
    assert container["command"] == ["tool"]
    assert container["args"] == ["--text", text, "--answer", "/gcs/b/answer"]


def test_arguments_that_a_job_cannot_have_are_refused():
    @dsl.container_component
    def optional(text: str = ""):
        argument = dsl.IfPresentPlaceholder(input_name="text", then=["--text", text])
        return dsl.ContainerSpec(image="docker.io/me/tool:1", command=["tool"], args=[argument])

    with pytest.raises(InputError, match=r"does not support dsl\.IfPresentPlaceholder.*from 'optional'"):
        tp.on_machine(optional, "v5e-4")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cpu": "8"}, "Cannot use cpu='8': expected a whole number, such as 8"),
        ({"retries": "3"}, "Cannot use retries='3': expected a whole number, such as 3"),
        ({"memory": 32}, "Cannot use memory=32: expected a text, such as '32Gi'"),
    ],
)
def test_an_option_of_another_type_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        tp.on_machine(train_elsewhere, "v5e-4", platform="kubeflow", **options)


def test_a_pipeline_is_no_component_of_one_container():
    @dsl.pipeline
    def inner():
        train_elsewhere(records=records(), labels="x")
        train_elsewhere(records=records(), labels="y")

    with pytest.raises(InputError, match=r"Only a component that runs one container .* Received: 'inner'"):
        tp.on_machine(inner, "v5e-4")


def test_on_kubeflow_the_pod_asks_for_the_devices():
    step = tp.on_machine(
        train_elsewhere,
        {"name": "v5e-4", "spot": True, "timeout_seconds": 7200},
        platform="kubeflow",
        settings={"labels": {"team": "vision"}, "kueue_queue": "tpus", "volumes": {"weights": "/mnt/weights"}},
        environment={"PJRT_DEVICE": "TPU"},
        memory="64Gi",
    )
    container, pod = executor_of(step, records=records, labels="x")
    assert container["image"] == "python:3.12"
    assert container["resources"]["accelerator"]["resourceType"] == "google.com/tpu"
    assert container["resources"]["accelerator"]["resourceCount"] == "4"
    assert container["resources"]["resourceMemoryRequest"] == "64Gi"
    assert {"name": "PJRT_DEVICE", "value": "TPU"} in container["env"]
    assert pod["nodeSelector"]["labels"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "2x2",
        "cloud.google.com/gke-spot": "true",
    }
    assert pod["podMetadata"]["labels"] == {"team": "vision", "kueue.x-k8s.io/queue-name": "tpus"}
    assert pod["activeDeadlineSeconds"] == "7200"


@pytest.mark.parametrize("platform", ["vertex", "kubeflow"])
def test_several_hosts_are_for_a_component_that_is_made_for_them(platform):
    message = r"v5e-16 has 4 hosts.*'train-elsewhere'.*Only this package's train_model"
    with pytest.raises(InputError, match=message):
        tp.on_machine(train_elsewhere, "v5e-16", platform=platform)
    with pytest.raises(InputError, match=r"v5e-16 has 4 hosts"):
        tp.on_machine(with_image(create_tfrecords, PINNED), "v5e-16", platform=platform)
    settings = {"volumes": {"shared": "/mnt/shared"}} if platform == "kubeflow" else {}
    ours = tp.on_machine(with_image(train_model, PINNED), "v5e-16", platform=platform, settings=settings)
    container, _ = executor_of(ours, records=records, model="digits_cnn")
    assert "TPU_PIPELINES_" in json.dumps(container)


@pytest.mark.parametrize("platform", ["vertex", "kubeflow"])
def test_the_image_that_only_this_machine_has_is_refused(platform):
    with pytest.raises(InputError, match=r"cannot pull 'tpu-pipelines/python:latest'.*with_image\(train_model"):
        tp.on_machine(train_model, "v5e-4", platform=platform)


def model_of(_):
    return dsl.importer(artifact_uri="gs://b/m", artifact_class=dsl.Model).output


@pytest.mark.parametrize("platform", ["vertex", "kubeflow"])
@pytest.mark.parametrize(("machine", "accelerator"), [("v5e-4", "tpu"), ("l4-1", "gpu")])
def test_a_component_of_ours_uses_the_accelerator_of_its_machine(platform, machine, accelerator):
    """`auto` would be the CPU of a TPU's host, as nobody has a TPU by accident."""
    for component, model in ((train_model, "digits_cnn"), (evaluate_model, model_of)):
        inputs = {"records": records, "model": model}
        step = tp.on_machine(with_image(component, PINNED), machine, platform=platform)
        for chosen in ({}, {"accelerator": "auto"}, {"accelerator": accelerator, "num_replicas": 0}):
            assert tasks_inputs(step, inputs | chosen)["accelerator"] == accelerator
        with pytest.warns(PipelineWarning, match=rf"uses only the CPU of {machine}, but you pay") as warned:
            assert tasks_inputs(step, inputs | {"accelerator": "cpu"})["accelerator"] == "cpu"
        assert warned[0].filename == __file__
        with pytest.raises(InputError, match=r"expected num_replicas=\d or 0 with .* Received: 3\. Remove"):
            tasks_inputs(step, inputs | {"num_replicas": 3})
        assert tasks_inputs(step, inputs | {"accelerator": lambda wanted: wanted})["accelerator"] is None


def tasks_inputs(step, inputs):
    """The constant inputs of a step's task, by name; None for those that the pipeline determines."""
    tasks = json_format.MessageToDict(pipeline_of(step, inputs).pipeline_spec)["root"]["dag"]["tasks"]
    (task,) = (task for name, task in tasks.items() if "importer" not in name)
    parameters = task.get("inputs", {}).get("parameters", {})
    return {name: one.get("runtimeValue", {}).get("constant") for name, one in parameters.items()}


@pytest.mark.parametrize(
    ("machine", "inputs", "message"),
    [
        ("l4-1", {"accelerator": "tpu"}, r"l4-1 has no TPU: expected accelerator to be gpu or auto"),
        ("v6e-4", {"backend": "tensorflow"}, r"v6e does not run TensorFlow"),
    ],
)
def test_an_input_that_contradicts_the_machine_is_refused_when_the_pipeline_is_written(machine, inputs, message):
    step = tp.on_machine(with_image(train_model, PINNED), machine)
    with pytest.raises(InputError, match=message):
        tasks_inputs(step, {"records": records, "model": "digits_cnn"} | inputs)


def test_a_component_of_somebody_else_keeps_its_input_accelerator():
    assert "accelerator" not in tasks_inputs(tp.on_machine(select, "v5e-4"), {})


@dsl.component(base_image="python:3.12")
def select(accelerator: str = "mine") -> None:
    """A component of somebody else with an input named as ours."""


def test_a_mapping_of_settings_replaces_those_of_the_environment_one_by_one(monkeypatch):
    account = "trainer@my-project.iam.gserviceaccount.com"
    set_environment(monkeypatch, {"TPU_PIPELINES_SERVICE_ACCOUNT": account})
    _, job = submitted_job(tp.on_machine(train_elsewhere, "v5e-4", settings={"region": "us-west4"}))
    assert job.job_spec.service_account == account
    other = account.replace("trainer", "other")
    _, job = submitted_job(tp.on_machine(train_elsewhere, "v5e-4", service_account=other))
    assert job.job_spec.service_account == other


# Every option of on_machine, with another value than its default. The first fields of a machine are its type.
TYPE = {"name", "machine_type", "accelerator_type", "accelerator_count", "tpu_topology"}
MACHINE = {
    "region": "us-east5",
    "boot_disk_type": "hyperdisk-balanced",
    "boot_disk_size_gb": 321,
    "spot": True,
    "reservation": RESERVATION,
    "timeout_seconds": 4321,
    "restart_job_on_worker_restart": True,
    "disable_retries": True,
    "enable_web_access": True,
    "persistent_resource_id": "my-resource",
    "nfs_mounts": ["10.0.0.2:/share=data"],
    "max_wait_seconds": 4321,
    "fallbacks": ["v5e-1"],
}
OF_SETTINGS = {
    "project": "other-project",
    "region": "us-east5",
    "bucket": "gs://other-bucket",
    "service_account": "other@my-project.iam.gserviceaccount.com",
    "network": "projects/12345/global/networks/my-network",
    "network_attachment": "projects/my-project/regions/us-east5/networkAttachments/my-attachment",
    "encryption_key": "projects/my-project/locations/us-east5/keyRings/my-ring/cryptoKeys/my-key",
    "tensorboard": "projects/12345/locations/us-east5/tensorboards/678",
    "experiment": "digits-models",
    "vertex_endpoint": "https://us-east5-mine.p.googleapis.com",
    "google_endpoint": "https://gateway.example.com/{host}",
    "labels": {"team": "vision"},
    "environment": {"FLAVOUR": "vanilla"},
    "kfp_host": "https://kubeflow.example.com",
    "kfp_namespace": "team-vision",
    "s3_secret": "s3-credentials",
    "kueue_queue": "tpu-queue",
    "provisioning": "flex-start",
    "secrets": {"storage-key": "/secrets/storage"},
    "volumes": {"checkpoints": "/mnt/checkpoints"},
    "notify": "https://hooks.example.com/1",
    "images": Images(training=PINNED),
}
ARGUMENTS = {
    **{name: OF_SETTINGS[name] for name in ("project", "region", "bucket", "service_account", "environment")},
    "retries": 3,
    "cpu": 13,
    "memory": "37Gi",
}
ALSO = {  # What an option needs on Vertex AI.
    "nfs_mounts": {"network": OF_SETTINGS["network"]},
    "tensorboard": {"service_account": OF_SETTINGS["service_account"]},
}


@pytest.mark.filterwarnings("ignore:.*After a preemption of")
@pytest.mark.parametrize("platform", ["vertex", "kubeflow"])
@pytest.mark.parametrize("kind", ["machine", "settings", "arguments"])
def test_each_option_changes_what_is_compiled_or_is_refused_with_advice(platform, kind):
    values = {"machine": MACHINE, "settings": OF_SETTINGS, "arguments": ARGUMENTS}[kind]
    used = {name for name, value in values.items() if is_used(platform, kind, name, value)}
    assert values.keys() - used == REFUSED[platform][kind]


def is_used(platform, kind, name, value):
    """Whether an option changes the compiled pipeline; else it has to be refused."""
    settings = ALSO.get(name, {}) if platform == "vertex" else {}
    option = {name: value}
    if kind == "machine":
        changed = {"machine": {"name": "v6e-1", **option}, "settings": settings}
    elif kind == "arguments":
        changed = {"machine": "v6e-1", "settings": settings, **option}
    else:  # Only a `Settings` has images.
        changed = {"machine": "v6e-1", "settings": Settings(**option) if name == "images" else settings | option}
    message = ""
    try:
        after = compiled(platform, **changed)
    except InputError as error:
        message = str(error)
    if message:
        advice = r"Received: [^\n]+\. [^\n]*(Remove|[Uu]se) [^\n]+\."
        assert re.fullmatch(rf".*\b{name}\b.* on the platform {platform}\. {advice}", message)
        return False
    assert after != compiled(platform, "v6e-1", settings=settings), f"{platform} ignores {name}"
    return True


def compiled(platform, machine, **options):
    step = tp.on_machine(train_elsewhere, machine, platform=platform, **options)
    pipeline = pipeline_of(step, {"records": records, "labels": "x"})
    return json_format.MessageToDict(pipeline.pipeline_spec), json_format.MessageToDict(pipeline.platform_spec)


NOWHERE = {"experiment", "vertex_endpoint", "google_endpoint", "kfp_host", "kfp_namespace", "notify", "images"}
REFUSED = {
    "vertex": {
        "machine": {"max_wait_seconds", "fallbacks"},
        "settings": NOWHERE | {"s3_secret", "kueue_queue", "provisioning", "secrets", "volumes"},
        "arguments": {"cpu", "memory"},
    },
    "kubeflow": {
        "machine": MACHINE.keys() - {"spot", "reservation", "timeout_seconds"},
        "settings": NOWHERE
        | {"project", "region", "bucket", "service_account", "network"}
        | {"network_attachment", "encryption_key", "tensorboard"},
        "arguments": {"project", "region", "bucket", "service_account"},
    },
}


def test_every_option_is_in_the_test_above():
    fields = {field.name for field in dataclasses.fields(MachineSpec)}
    settings = {field.name for field in dataclasses.fields(Settings)}
    arguments = set(inspect.signature(tp.on_machine).parameters)
    assert MACHINE.keys() == fields - TYPE
    assert OF_SETTINGS.keys() == settings
    assert ARGUMENTS.keys() == arguments - {"component", "machine", "platform", "settings", "misplaced"}


def test_the_readme_says_where_each_option_goes_and_which_platform_uses_it():
    text = (PIPELINES / "api" / "README.md").read_text()
    (table,) = re.findall(
        r"^\| option \| where it goes \| Vertex AI \| Kubeflow \|\n[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE
    )
    arguments = inspect.signature(tp.on_machine).parameters.keys()
    settings = {field.name for field in dataclasses.fields(Settings)}
    listed = set()
    for row in table.splitlines():
        options, where, *answers = row.strip("| ").split(" | ")
        of_machine = where == "machine"
        for name in re.findall(r"`(\w+)`", options):
            listed.add(("machine" if of_machine else "others", name))
            assert of_machine or (name in arguments) == ("arguments" in where), name
            assert of_machine or name == "environment" or (name in settings) == ("settings" in where), name
            for platform, answer in zip(("vertex", "kubeflow"), answers, strict=True):
                refused = REFUSED[platform]
                names = refused["machine"] if of_machine else refused["settings"] | refused["arguments"]
                assert (name in names) == (answer == "no"), (name, platform)
    unlisted = {*TYPE, "max_wait_seconds", "fallbacks"}  # The machine's name, and what no platform uses here.
    assert listed == {
        *(("machine", name) for name in MACHINE.keys() - unlisted),
        *(("others", name) for name in (OF_SETTINGS | ARGUMENTS).keys() - NOWHERE),
    }


def test_a_mapping_with_options_that_the_platform_does_not_use_names_all_of_them():
    with pytest.raises(InputError) as raised:
        tp.on_machine(train_elsewhere, "v5e-4", platform="kubeflow", settings=SETTINGS)
    for name in ("project", "region", "bucket", "service_account", "network"):
        assert f"{name} has no effect on the platform kubeflow" in str(raised.value)
    assert "Workload Identity" in str(raised.value)


def test_without_kfps_part_for_kubernetes_the_error_says_what_to_install(monkeypatch):
    """KFP and this package can be installed without it."""
    monkeypatch.setitem(sys.modules, "kfp.kubernetes", None)
    with pytest.raises(InputError, match=r"kubeflow needs kfp\.kubernetes, .* Run: pip install 'kfp\[kubernetes\]'\.$"):
        tp.on_machine(train_elsewhere, "v5e-4", platform="kubeflow")


def test_environment_variables_are_for_all_platforms(monkeypatch):
    """Who works with both platforms has the variables of both; `settings` and arguments are of one call."""
    account = SETTINGS["service_account"]
    variables = {"TPU_PIPELINES_SERVICE_ACCOUNT": account, "TPU_PIPELINES_REGION": "us-west4"}
    set_environment(monkeypatch, variables)
    without = tp.on_machine(train_elsewhere, "v5e-4", platform="kubeflow")
    with_object = tp.on_machine(train_elsewhere, "v5e-4", platform="kubeflow", settings=load_settings(variables))
    executors = [executor_of(step, records=records, labels="x") for step in (without, with_object)]
    assert executors[0] == executors[1]
    changed = dataclasses.replace(load_settings(variables), service_account=f"other-{account}")
    with pytest.raises(InputError, match=r"service_account has no effect on the platform kubeflow"):
        tp.on_machine(train_elsewhere, "v5e-4", platform="kubeflow", settings=changed)


def test_a_job_runs_in_the_project_of_the_settings_else_in_that_of_the_pipeline():
    def project_of(step):
        container, _ = executor_of(step, records=records, labels="x")
        asked = container["args"][container["args"].index("--project") + 1]
        defaults = step.component_spec.inputs
        return defaults["job_project"].default if "job_project" in defaults else asked

    assert project_of(tp.on_machine(train_elsewhere, "v5e-4")) == "{{$.pipeline_google_cloud_project_id}}"
    assert project_of(tp.on_machine(train_elsewhere, "v5e-4", project="my-project")) == "my-project"


def test_a_preempted_step_without_a_place_for_checkpoints_is_warned_of():
    spot = {"name": "v5e-4", "spot": True}
    ours = with_image(train_model, PINNED)
    bucket = {"CHECKPOINTS": "gs://my-bucket/weights"}
    volume = {"volumes": {"checkpoints": "/mnt/checkpoints"}}
    message = r"After a preemption of v5e-4, .* from scratch.*\"volumes\""
    with pytest.warns(PipelineWarning, match=rf"train_elsewhere: {message}.*environment="):
        tp.on_machine(train_elsewhere, spot, platform="kubeflow")
    # No bucket is mounted there, and train_model writes its checkpoints to files.
    with pytest.warns(PipelineWarning, match=rf"train_model: {message}[^,]*\.$"):
        tp.on_machine(ours, spot, platform="kubeflow", environment=bucket)
    tp.on_machine(train_elsewhere, spot, platform="kubeflow", environment=bucket)
    for component in (train_elsewhere, ours):
        tp.on_machine(component, spot, platform="kubeflow", settings=volume)
        tp.on_machine(component, spot)
    tp.on_machine(with_image(evaluate_model, PINNED), spot, platform="kubeflow")  # It keeps no checkpoints.


@pytest.mark.parametrize("platform", ["vertex", "kubeflow"])
@pytest.mark.parametrize("retries", [None, 2])
def test_constant_inputs_of_a_component_of_ours_are_checked_on_a_machine_too(platform, retries):
    step = tp.on_machine(with_image(train_model, PINNED), "v5e-4", platform=platform, retries=retries)
    for inputs, message in (
        ({"model": "mobilenet_v3"}, r"train_model: Unknown model 'mobilenet_v3'"),
        (
            {"model": "digits_cnn", "batch_size": 8},
            r"Unknown key 'batch_size' in the inputs.*Did you mean 'batch_size_per_replica'",
        ),
    ):
        with pytest.raises(InputError, match=message):
            tasks_inputs(step, {"records": records} | inputs)
    assert tasks_inputs(step, {"records": records, "model": "digits_cnn", "learning_rate": 1})["learning_rate"] == 1
    if platform == "vertex":
        inputs = {"records": records, "model": "digits_cnn", "job_timeout": "60s"}
        assert tasks_inputs(step, inputs)["job_timeout"] == "60s"


@pytest.mark.parametrize("platform", ["vertex", "kubeflow"])
def test_a_step_without_a_machine_gets_its_cpus_and_memory_from_kfps_own_methods(platform):
    """As with every component: on Vertex AI they choose the machine, on a cluster they are the pod's."""
    train = tp.on_machine(train_elsewhere, "v5e-4", platform=platform)

    @dsl.pipeline(name="two-steps")
    def pipeline():
        written = with_image(create_tfrecords, PINNED)(source="sklearn:digits")
        written.set_cpu_limit("7").set_memory_limit("20Gi").set_cpu_request("5").set_retry(2)
        train(records=written.outputs["records"], labels="x")

    spec = json_format.MessageToDict(pipeline.pipeline_spec)
    resources = spec["deploymentSpec"]["executors"]["exec-create-tfrecords"]["container"]["resources"]
    assert (resources["resourceCpuLimit"], resources["resourceMemoryLimit"]) == ("7", "20Gi")
    assert spec["root"]["dag"]["tasks"]["create-tfrecords"]["retryPolicy"]["maxRetryCount"] == 2


def test_for_a_local_run_a_component_stays_as_it_is():
    assert tp.on_machine(train_model, "v5e-4", platform="local") is train_model


def test_a_machine_is_named_or_described_or_parsed():
    jobs = [
        submitted_job(tp.on_machine(train_elsewhere, machine, region="us-west4"))
        for machine in ("v5e-4", {"name": "v5e-4"}, parse_machine("v5e-4"))
    ]
    assert jobs[0] == jobs[1] == jobs[2]


def test_settings_come_from_arguments_then_from_settings_then_from_the_environment(monkeypatch):
    set_environment(monkeypatch, {"TPU_PIPELINES_REGION": "us-east1"})
    assert submitted_job(tp.on_machine(train_elsewhere, "v5e-4"))[0] == "us-east1"
    assert submitted_job(tp.on_machine(train_elsewhere, "v5e-4", settings=Settings(region="us-west4")))[0] == "us-west4"
    changed = tp.on_machine(train_elsewhere, "v5e-4", settings={"region": "us-west4"}, region="us-central1")
    assert submitted_job(changed)[0] == "us-central1"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"machine": "v5e-5"}, r"There is no machine 'v5e-5'"),
        ({"machine": "v5e-4", "platform": "vertx"}, r"Unknown platform 'vertx'.*Did you mean 'vertex'"),
        (
            {"machine": {"name": "v5e-4", "fallbacks": ["v6e-4"]}},
            r"fallbacks=\['v6e-4'\]\. .* Remove fallbacks",
        ),
        ({"machine": "v5e-4", "settings": {"projct": "x"}}, r"Unknown key 'projct' in settings"),
        ({"machine": "v5e-4", "settings": {"kueue_queue": "q"}}, r"kueue_queue .* is not supported"),
        ({"machine": "v5e-4", "memory": "64"}, r"memory"),
        ({"machine": "v5e-4", "region": "europe-west4", "settings": {"region": "x"}}, r"region"),
        ({"machine": "v2-8", "platform": "kubeflow"}, r"v2-8"),
    ],
)
def test_what_the_platform_does_not_have_is_refused_when_the_pipeline_is_written(arguments, message):
    with pytest.raises(InputError, match=message):
        tp.on_machine(train_elsewhere, **arguments)


@pytest.mark.parametrize("platform", ["vertex", "kubeflow"])
@pytest.mark.parametrize("component", [train_elsewhere, with_image(train_model, PINNED)], ids=["foreign", "ours"])
def test_a_component_is_put_on_one_machine_after_it_has_its_image(platform, component):
    placed = tp.on_machine(component, "v5e-4", platform=platform)
    received = (
        f"takes a KFP component. Received: the result of on_machine for {component.name.replace('-', '_')}. Call "
    )
    with pytest.raises(InputError, match=re.escape(f"on_machine {received}on_machine only once")):
        tp.on_machine(placed, "v6e-1", platform=platform)
    before = component.component_spec.implementation.container.image
    with pytest.raises(InputError, match=re.escape(f"with_image {received}with_image before on_machine.")):
        with_image(placed, "docker.io/me/other@sha256:" + 64 * "1")
    assert component.component_spec.implementation.container.image == before


@pytest.mark.parametrize(
    ("strange", "message"),
    [
        (lambda: None, r"Received: a value of the type function\. Decorate your function with @dsl.component"),
        ("train_model", r"Received: 'train_model'\. Decorate"),
        (with_images(PINNED), r"the type Components\. Choose one .*, as in on_machine\(steps.train_model, …\)"),
        (
            on_current_data(with_image(create_tfrecords, PINNED)),
            r"the result of on_current_data for create_tfrecords. Call on_machine before",
        ),
    ],
)
def test_what_is_not_a_component_is_refused(strange, message):
    with pytest.raises(InputError, match=message):
        tp.on_machine(strange, "v5e-4")


@pytest.mark.filterwarnings("ignore:predict_batch uses only the CPU:tpu_components.kfp.PipelineWarning")
@pytest.mark.parametrize("platform", ["vertex", "kubeflow"])
def test_a_step_on_a_machine_may_read_current_data_and_lists_them_with_its_own_image(platform):
    placed = tp.on_machine(with_image(predict_batch, PINNED), "l4-1", platform=platform)

    @dsl.pipeline
    def pipeline(export: str = "gs://b/e"):
        exported = dsl.importer(artifact_uri=export, artifact_class=dsl.Model)
        on_current_data(placed)(source="images:gs://b/photos", export=exported.output)

    spec = json_format.MessageToDict(pipeline.pipeline_spec)
    assert spec["deploymentSpec"]["executors"]["exec-list-inputs"]["container"]["image"] == PINNED
    step = spec["root"]["dag"]["tasks"]["predict-batch"]["inputs"]["parameters"]
    assert step["data_version"]["taskOutputParameter"]["producerTask"] == "list-inputs"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"spot": True}, 'no argument \'spot\'. It belongs to the machine: {"name": "v5e-4", "spot": …}.'),
        ({"volumes": {"a": "/b"}}, "no argument 'volumes'. It belongs to the settings: settings={\"volumes\": …}."),
        (
            {"settings": {"retries": 3}},
            "'retries' is not a field of the settings. Received: 3. It is an argument: on",
        ),
        ({"settings": {"spot": True}}, 'Received: True. It belongs to the machine: {"name": "v5e-4", "spot": …}.'),
        (
            {"machine": {"name": "v5e-4", "labels": {"a": "b"}}},
            "'labels' is not a field of the machine.",
        ),
        ({"spto": True}, "no argument 'spto'. Did you mean 'spot'? It belongs to the machine: {\"name\""),
        ({"timeout": "4h"}, "no argument 'timeout'. Did you mean 'timeout_seconds'? It belongs to the machine"),
        ({"retry": 2}, "no argument 'retry'. Did you mean 'retries'? It is an argument: on_machine(…, retries=…)."),
        ({"environment": {"B": True}}, "Cannot use environment['B']=True: expected a text, such as 'true' or '1'."),
        ({"platform": "local", "settings": {"lables": {}}}, "Unknown key 'lables' in settings"),
        ({"retries": -1}, "Cannot use retries=-1: expected a whole number, such as 3."),
        ({"environment": ["A=1"]}, 'Cannot use environment=[\'A=1\']: expected a mapping, such as {"NAME": "value"}.'),
        (
            {"machine": {"name": "v5e-4", "region": "us-west4"}, "region": "us-west1"},
            "Received region='us-west1' and a machine with region='us-west4'. Remove one of them.",
        ),
        ({"settings": {"volumes": {"a": "/b"}}}, "Remove it, or choose the platform kubeflow."),
        ({"region": "europe-west4-a"}, "Set a region, not a zone: us-west1-a is a zone in the region us-west1."),
    ],
)
def test_an_option_in_the_wrong_place_is_refused_with_the_right_one(options, message):
    with pytest.raises(InputError, match=re.escape(message)):
        tp.on_machine(train_elsewhere, **{"machine": "v5e-4", **options})


@pytest.mark.parametrize("requested", [{"cpu": 24}, {"memory": "45Gi"}])
def test_a_pod_that_no_host_of_a_tpu_can_hold_is_refused(requested):
    with pytest.raises(InputError, match=r"A host of v5e-1 has 24 CPUs and 45 GiB .* so it would never start"):
        tp.on_machine(train_elsewhere, "v5e-1", platform="kubeflow", **requested)
    tp.on_machine(train_elsewhere, "l4-1", platform="kubeflow", **requested)


@pytest.mark.parametrize(
    ("package", "machine", "is_warned_of"),
    [
        ("jax", "v5e-4", True),
        ("jax==0.10.2", "l4-1", True),
        ("jax[tpu]", "l4-1", True),
        ("jax[cuda12]", "v5e-4", True),
        ("jax[cuda12]>=0.7", "l4-1", False),
        ("jax[tpu]", "v5e-4", False),
        ("jaxtyping", "v5e-4", False),
    ],
)
def test_jax_for_other_devices_is_warned_of(package, machine, is_warned_of):
    @dsl.component(base_image="python:3.12", packages_to_install=[package])
    def count_devices() -> int:
        return 0

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        tp.on_machine(count_devices, machine)
    messages = [str(one.message) for one in told if one.category is PipelineWarning]
    assert bool(messages) is is_warned_of
    assert all(f"uses only the CPU of {machine}" in message for message in messages)
    assert all(one.filename == __file__ for one in told if one.category is PipelineWarning)


def test_a_step_that_cannot_use_the_devices_is_warned_of():
    with pytest.warns(PipelineWarning, match=r"export_model uses only the CPU of v6e-1, .*call it without") as told:
        tp.on_machine(with_image(export_model, PINNED), "v6e-1")
    assert told[0].filename == __file__
