"""The pipeline as a file for a cloud platform, its training step on the TPU that the configuration names.

Only that step differs from the pipeline that runs on a laptop: on Vertex AI it is wrapped as a custom job, on Kubeflow
its pod asks the cluster for a TPU.
"""

import dataclasses
import hashlib
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from components import storage
from components.container import IMAGE, LOCAL_IMAGE, SERVING_IMAGE, is_in_registry
from components.deploy_model.params import VERTEX
from components.errors import InputError, did_you_mean
from components.machine_spec import MIN_BOOT_DISK_GB, MachineSpec, load_catalogue
from components.models import bundle_of, named_files
from components.registry import is_on_vertex, parse_reference
from components.step_inputs import whole_numbers
from components.train_model.params import TrainParams
from pipelines.caching import lineage, platform_fingerprints
from pipelines.config import Config, on_machine
from pipelines.resources import (
    TIMEOUT_WITHOUT_ESTIMATE_SECONDS,
    StepResources,
    TrainingTimeout,
    apply_retries,
    check_target,
    place_on,
    resources_of,
    training_timeout,
)
from pipelines.settings import Settings

_HEADER = "# PIPELINE DEFINITION"  # How KFP begins what it compiles.
# The label of a single host's nodes: https://cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus
_GKE_ACCELERATORS = {"v3": "tpu-v3-device", "v5e": "tpu-v5-lite-podslice", "v6e": "tpu-v6e-slice", "7x": "tpu7x"}
Step = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class CompiledPipeline:
    """What was written.

    Attributes:
        path: The file.
        machine: What the training step asks for.
        image: What every step runs in.
        timeout: When the training is stopped, and why then.
        carried: Content of the files that the pipeline reads from the bucket, by their place there.
    """

    path: Path
    machine: MachineSpec
    image: str
    timeout: TrainingTimeout
    carried: Mapping[str, bytes] = dataclasses.field(default_factory=dict)


def compile_pipeline(config: Config, target: str, output: Path, settings: Settings | None = None) -> CompiledPipeline:
    """Write the pipeline as a YAML file that a platform takes.

    Args:
        config: What every step takes, and the machine.
        target: `vertex` or `kubeflow`.
        output: The file; only a compiled pipeline is overwritten.
        settings: Those that are known by now go into the training step.

    Raises:
        InputError: If the machine cannot be had there, the cloud could not read the data or the model, or the file may
            not be written.
    """
    settings = settings or Settings()
    if target not in _WRAPPERS:
        raise InputError(
            f"Unknown target {target!r}: expected {' or '.join(_WRAPPERS)}.{did_you_mean(target, _WRAPPERS)}"
        )
    machine = require_machine(config, target)
    if IMAGE != LOCAL_IMAGE:  # Compiling needs no settings: one that nobody has named yet is asked for when it is sent.
        require_step_image(IMAGE, target)
    if target == "vertex":  # Preflight is to know the prices of where it trains.
        config = on_machine(config, in_region(machine, settings))
    config = _with_registry(config, settings)
    _check_readable(config, target)
    check_target(config, target)
    made_with = platform_fingerprints(config, IMAGE, machine.slice.name, settings.environment)
    config, carried = _with_carried_model(config, target, settings)
    _check_output(output)
    training = _train_on(machine, config.training)
    from kfp import compiler

    from components.train_model.component import train_model
    from pipelines.training_pipeline import training_pipeline

    timeout = training_timeout(config, machine, target)
    machine = dataclasses.replace(machine, timeout_seconds=timeout.seconds)
    asked = resources_of(config, "train_model", target)
    step = _WRAPPERS[target](train_model, machine, settings, config.name, asked, made_with["train_model"])
    config = dataclasses.replace(config, training=training)
    pipeline = training_pipeline(
        config,
        train_step=step,
        lineage=lineage(config),
        fingerprints=made_with,
        place=lambda name, task: place_on(target, task, resources_of(config, name)),
        estimated_timeout=timeout.is_estimated,
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pipeline.yaml"
        compiler.Compiler().compile(pipeline, str(path))
        storage.write_bytes(output, path.read_bytes())
    return CompiledPipeline(output, machine, IMAGE, timeout, carried)


def require_step_image(image: str, target: str) -> None:
    """Check that a platform can pull the image that every step runs in.

    Raises:
        InputError: If its name has no registry.
    """
    _require_image(image, target, "step", "TPU_PIPELINES_IMAGE")


def _require_image(image: str, target: str, what: str, variable: str) -> None:
    if not is_in_registry(image, is_clusters_own=target == "kubeflow"):
        platform = "Vertex AI" if target == "vertex" else "A cluster"
        raise InputError(
            f"{platform} cannot fetch the {what} image {image!r}: expected one in a registry, as "
            f"europe-docker.pkg.dev/PROJECT/REPOSITORY/{what}@sha256:…. Build it with `make image`, push it, and set "
            f"{variable}."
        )


def require_machine(config: Config, target: str) -> MachineSpec:
    """The machine of a configuration.

    Raises:
        InputError: If it names none, or one of several hosts.
    """
    if config.machine is None:
        raise InputError(
            f"Cannot compile {config.name!r} for {target}: expected a machine to train on, received none. Use "
            "--set machine=v5e-4 or another; `tpu-pipelines machines` lists them."
        )
    config.machine.require_one_host()
    return config.machine


def in_region(machine: MachineSpec, settings: Settings) -> MachineSpec:
    """The machine, in the settings' region where it names none.

    Raises:
        InputError: If that region does not have it.
    """
    return dataclasses.replace(machine, region=machine.region or settings.region)


def custom_job_name(job_id: str) -> str:
    """What the custom job of a pipeline job is called: whoever knows the one finds the other."""
    return f"{job_id}-train-model"


def _train_on(machine: MachineSpec, training: TrainParams) -> TrainParams:
    """The same training, told to use the TPU: it must be asked for, and only this step has one."""
    if training.accelerator == "auto":
        training = dataclasses.replace(training, accelerator="tpu")
    devices = machine.slice.devices
    if training.accelerator == "tpu" and training.num_replicas not in (0, devices):
        raise InputError(
            f"A TPU slice is used whole: expected training.num_replicas={devices} or 0 with {machine.name}. "
            f"Received: {training.num_replicas}."
        )
    return training


def _check_readable(config: Config, target: str) -> None:
    """Refuse what lies on this machine: a container elsewhere does not see it."""
    refused = f"Cannot compile {config.name!r} for {target}:"
    for name, place in (("data.source", config.data_location), ("gate.champion", config.gate.champion)):
        if place and not storage.is_remote(place) and not _is_vertex_reference(place):
            raise InputError(
                f"{refused} {name} must be on Cloud Storage, where the steps can read it. Received: {place!r}. Copy it "
                "to gs://BUCKET/… and name that."
            )
    if config.deploy and config.deploy.registry and not is_on_vertex(config.deploy.registry):
        raise InputError(
            f"{refused} a folder on this machine is a registry that no container sees. Received: deploy.registry="
            f"{config.deploy.registry!r}. Leave it out, or use deploy.registry=vertex."
        )
    if local := [file for file in config.model_files if not storage.is_remote(file)]:
        raise InputError(
            f"{refused} model.files names {local[0]!r}, which no container sees. Put it on gs://BUCKET/… and read it "
            "from there; what the model's code names beside its file travels with it."
        )
    if named := named_files(config.training.model_parameters):
        raise InputError(
            f"{refused} a parameter of the model names the file {next(iter(named))!r}, which no container sees. Put it "
            "beside the model's file and open it there as Path(__file__).parent / NAME: it travels with the model."
        )


def _with_carried_model(config: Config, target: str, settings: Settings) -> tuple[Config, dict[str, bytes]]:
    """The configuration with a model of the user's own called by its place in the bucket, and what is to lie there.

    Its digest is part of the place, so that no step runs other code than this, and the platform's cache knows it by it.
    """
    model = config.training.model
    bundle = bundle_of(model)
    if bundle is None or storage.is_remote(model) or (":" in model and not settings.bucket):
        return config, {}  # The image holds it, or the bucket does.
    if not settings.bucket:
        raise InputError(
            f"Cannot compile {config.name!r} for {target}: the model {model!r} travels through a bucket, and none is "
            f"set. Set TPU_PIPELINES_BUCKET=gs://BUCKET, which the steps can read; or install the model in the image, "
            "and --set model=MODULE:build_model."
        )
    place = bundle.reference(f"{settings.bucket.rstrip('/')}/models")
    config = dataclasses.replace(config, training=dataclasses.replace(config.training, model=place))
    return on_machine(config, require_machine(config, target)), {place: bundle.content}


def _with_registry(config: Config, settings: Settings) -> Config:
    """The configuration with its registry on Vertex AI, if it has one, where the settings say."""
    deploy = config.deploy
    if deploy is None or not (deploy.registry == VERTEX or is_on_vertex(deploy.registry)):
        return config
    image = deploy.serving_image or SERVING_IMAGE
    _require_image(image, "vertex", "serving", "TPU_PIPELINES_SERVING_IMAGE")
    registry, artifacts_uri = deploy.registry, deploy.artifacts_uri
    if registry == VERTEX:
        settings.require("project", "region")
        registry = f"projects/{settings.project}/locations/{settings.region}/models"
    if not artifacts_uri:
        settings.require("bucket")
        artifacts_uri = f"{settings.bucket.rstrip('/')}/registry"
    deploy = dataclasses.replace(deploy, registry=registry, artifacts_uri=artifacts_uri, serving_image=image)
    return dataclasses.replace(config, deploy=deploy)


def _is_vertex_reference(text: str) -> bool:
    return is_on_vertex(text.rpartition("/")[0]) and parse_reference(text) is not None


def _check_output(output: Path) -> None:
    if output.suffix not in (".yaml", ".yml"):
        raise InputError(f"Cannot write {output}: expected a name that ends in .yaml. Choose another --output.")
    storage.require_writable(output.absolute().parent)
    if output.is_dir() or (output.exists() and not output.read_bytes().startswith(_HEADER.encode())):
        raise InputError(
            f"Refused to overwrite {output}: expected a compiled pipeline, received something else. Choose another "
            "--output."
        )


def as_custom_job(
    component: Any,
    machine: MachineSpec,
    settings: Settings,
    name: str,
    asked: StepResources | None = None,
    fingerprint: Mapping[str, str] | None = None,
) -> Step:
    """Wrap a component as a Vertex custom job: one pool of one replica, on exactly this machine.

    Args:
        component: Keeps its inputs, outputs, code and image; the job's own fields become inputs with defaults.
        machine: Its fallbacks and how long to wait for it are for whoever submits.
        settings: Service account, network, labels, environment, bucket, and region where the machine names none.
        name: Of the run: of the job, and of its folder in the bucket.
        asked: Its retries; the rest is the machine's.
        fingerprint: Not needed here, where the folder is the job's own.

    Raises:
        InputError: If the component has an input or output named like a field of the job, the region does not have the
            machine, or the bucket is not on Cloud Storage.
    """
    try:
        from google_cloud_pipeline_components.v1.custom_job import (
            CustomTrainingJobOp,
            create_custom_training_job_from_component,
        )
    except ImportError as error:
        raise InputError(
            "Cannot compile for vertex: its components are not installed. Run: pip install 'tpu-pipelines[vertex]'."
        ) from error
    from kfp import components, dsl

    _check_names(component, CustomTrainingJobOp)
    if settings.bucket and not storage.is_remote(settings.bucket):
        raise InputError(f"Vertex writes to Cloud Storage: expected bucket=gs://…. Received: {settings.bucket!r}.")
    machine = in_region(machine, settings)
    root = settings.bucket.rstrip("/") or dsl.PIPELINE_ROOT_PLACEHOLDER
    reservation: dict[str, Any] = {}
    if machine.reservation:
        reservation = {
            "reservation_affinity_type": "SPECIFIC_RESERVATION",
            "reservation_affinity_key": "compute.googleapis.com/reservation-name",
            "reservation_affinity_values": [machine.reservation],
        }
    job = create_custom_training_job_from_component(
        component,
        display_name=custom_job_name(dsl.PIPELINE_JOB_NAME_PLACEHOLDER),
        machine_type=machine.machine_type,
        accelerator_type=machine.accelerator_type,
        accelerator_count=machine.accelerator_count,
        strategy="SPOT" if machine.spot else "STANDARD",
        timeout=f"{machine.timeout_seconds or TIMEOUT_WITHOUT_ESTIMATE_SECONDS}s",
        restart_job_on_worker_restart=machine.restart_job_on_worker_restart,
        service_account=settings.service_account,
        network=settings.network,
        labels=dict(settings.labels),
        env=[{"name": key, "value": value} for key, value in settings.environment.items()],
        # A folder per run: a job that Vertex restarts continues from its checkpoint, never from another run's.
        base_output_directory=f"{root}/{name}/{dsl.PIPELINE_JOB_NAME_PLACEHOLDER}",
        # Without a default these two would be placeholders that nothing replaces.
        reserved_ip_ranges=[],
        psc_interface_config={},
        **reservation,
    )
    step = components.load_component_from_text(json.dumps(_with_fixed_names(_complete(job, machine), component)))
    step.component_spec.name = component.component_spec.name  # Else the task is called custom-training-job.
    if asked is None or not asked.retries:
        return step
    return lambda **inputs: apply_retries(step(**inputs), asked, machine.timeout_seconds)


def _complete(job: Any, machine: MachineSpec) -> dict[str, Any]:
    """The job's pipeline spec, with what Google's wrapper has no argument for."""
    from google.protobuf import json_format

    spec = json_format.MessageToDict(job.pipeline_spec)
    for part in (spec["root"], *spec["components"].values()):
        parameters = part["inputDefinitions"]["parameters"]
        (pool,) = parameters["worker_pool_specs"]["defaultValue"]
        del pool["disk_spec"]  # The wrapper names a type always, also where the machine has none of it.
        if disk := _disk(machine):
            pool["disk_spec"] = disk
        if machine.tpu_topology:
            pool["machine_spec"]["tpu_topology"] = machine.tpu_topology
        if machine.region:
            parameters["location"]["defaultValue"] = machine.region
    if machine.disable_retries:
        (executor,) = spec["deploymentSpec"]["executors"].values()
        arguments = executor["container"]["args"]
        payload = arguments.index("--payload") + 1
        # Text, not JSON: its placeholders carry no quotes.
        arguments[payload] = arguments[payload].replace('"scheduling": {', '"scheduling": {"disable_retries": true, ')
    return spec


def _disk(machine: MachineSpec) -> dict[str, Any]:
    """What is asked of the boot disk, in Vertex's words; nothing where its own choice is good enough."""
    disk: dict[str, Any] = {"boot_disk_type": machine.boot_disk_type} if machine.boot_disk_type else {}
    if machine.boot_disk_size_gb > MIN_BOOT_DISK_GB:
        disk["boot_disk_size_gb"] = machine.boot_disk_size_gb
    return disk


def _with_fixed_names(spec: dict[str, Any], component: Any) -> dict[str, Any]:
    """The job's pipeline spec, every field that holds a placeholder written into the launcher's arguments.

    Whether a service's cache counts the defaults of inputs, and with the pipeline job's own name filled in or not, is
    not documented. Arguments it counts as they are written: those of every KFP component hold placeholders for paths
    of their own job, and are answered from the cache all the same. Google's AutoML components do as is done here
    (google_cloud_pipeline_components/v1/automl/tabular/ensemble.py).
    """
    own = component.component_spec.inputs or {}
    parameters = spec["root"]["inputDefinitions"]["parameters"]
    fixed = {
        name: given["defaultValue"]
        for name, given in parameters.items()
        if name not in own and "{{$" in json.dumps(given.get("defaultValue"))
    }
    for part in (spec["root"], *spec["components"].values()):
        for name in fixed:
            del part["inputDefinitions"]["parameters"][name]
    for task in spec["root"]["dag"]["tasks"].values():
        for name in fixed:
            task["inputs"]["parameters"].pop(name, None)
    (executor,) = spec["deploymentSpec"]["executors"].values()
    arguments = executor["container"]["args"]
    for name, value in fixed.items():
        text = value if isinstance(value, str) else json.dumps(whole_numbers({name: value})[name], sort_keys=True)
        placeholder = f"{{{{$.inputs.parameters['{name}']}}}}"
        arguments[:] = [argument.replace(placeholder, text) for argument in arguments]
    return spec


def _check_names(component: Any, job: Any) -> None:
    """Refuse names that the job has too: one of the two would silently overwrite the other."""

    def names(of: Any) -> set[str]:
        return {*(of.component_spec.inputs or ()), *(of.component_spec.outputs or ())}

    if taken := sorted(names(component) & names(job)):
        raise InputError(
            f"Cannot run {component.component_spec.name!r} as a custom job, whose fields have these names too: "
            f"{', '.join(taken)}. Rename the component's inputs and outputs."
        )


def as_tpu_pod(
    component: Any,
    machine: MachineSpec,
    settings: Settings,
    name: str,
    asked: StepResources | None = None,
    fingerprint: Mapping[str, str] | None = None,
) -> Step:
    """A step whose pod asks a GKE cluster for a TPU.

    Args:
        component: Stays as it is.
        machine: A single host. Its region, boot disk and restarts are the cluster's affair.
        settings: Labels, environment, secrets and volumes.
        name: Of the run, and of its folder on the first volume.
        asked: What it asks for beside the TPU; None is no more.
        fingerprint: What decides the training's result beside its inputs; a part of the folder's name.

    Raises:
        InputError: If GKE does not have the machine, or it has several hosts.
    """
    machine.require_one_host()
    try:
        from kfp import kubernetes
    except ImportError as error:
        raise InputError(
            "Cannot compile for kubeflow: kfp-kubernetes is not installed. Run: pip install 'tpu-pipelines[kubeflow]'."
        ) from error
    selectors = _node_selectors(machine)
    environment = dict(settings.environment)
    for path in list(settings.volumes.values())[:1]:
        # Weights that other code, or another model of that name, trained to the end are not taken for this one's.
        version = hashlib.sha256(json.dumps(fingerprint, sort_keys=True).encode()).hexdigest()[:12]
        folder = f"{path.rstrip('/')}/{name}/{version}"
        environment.setdefault("AIP_CHECKPOINT_DIR", folder)

    def step(**inputs: Any) -> Any:
        task = component(**inputs)
        task.set_accelerator_type("google.com/tpu").set_accelerator_limit(machine.slice.chips)
        for key, value in environment.items():
            task.set_env_variable(key, value)
        for key, value in selectors.items():
            kubernetes.add_node_selector(task, key, value)
        kubernetes.add_toleration(task, key="google.com/tpu", operator="Exists", effect="NoSchedule")
        if machine.spot:
            kubernetes.add_toleration(
                task, key="cloud.google.com/gke-spot", operator="Equal", value="true", effect="NoSchedule"
            )
        for key, value in settings.labels.items():
            kubernetes.add_pod_label(task, key, value)
        for secret, path in settings.secrets.items():
            kubernetes.use_secret_as_volume(task, secret, path)
        for claim, path in settings.volumes.items():
            kubernetes.mount_pvc(task, claim, path)
        timeout_seconds = machine.timeout_seconds or TIMEOUT_WITHOUT_ESTIMATE_SECONDS
        if asked:
            task = place_on("kubeflow", apply_retries(task, asked, timeout_seconds), asked)
            # No limits: who has all chips has the host to itself.
            task.set_cpu_request(str(asked.cpu)).set_memory_request(asked.memory)
        return kubernetes.set_timeout(task, timeout_seconds)

    return step


def _node_selectors(machine: MachineSpec) -> dict[str, str]:
    one = machine.slice
    generation = one.generation.name
    singles = [other for other in load_catalogue().slices if other.hosts == 1]
    if generation not in _GKE_ACCELERATORS:
        able = ", ".join(other.name for other in singles if other.generation.name in _GKE_ACCELERATORS)
        raise InputError(
            f"GKE has no TPU {generation}. Received: {one.name}. Expected one of {able}, or --target vertex."
        )
    selectors = {
        "cloud.google.com/gke-tpu-accelerator": _GKE_ACCELERATORS[generation],
        "cloud.google.com/gke-tpu-topology": one.libtpu_topology.partition(":")[2],
    }
    if machine.spot:
        selectors["cloud.google.com/gke-spot"] = "true"
    if machine.reservation:
        # https://cloud.google.com/kubernetes-engine/docs/how-to/consuming-reservations
        _, project, _, _, _, reservation = machine.reservation.split("/")
        selectors["cloud.google.com/reservation-affinity"] = "specific"
        selectors["cloud.google.com/reservation-name"] = reservation
        selectors["cloud.google.com/reservation-project"] = project
    return selectors


_WRAPPERS: dict[str, Callable[..., Step]] = {
    "vertex": as_custom_job,
    "kubeflow": as_tpu_pod,
}
