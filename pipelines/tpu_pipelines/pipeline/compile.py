"""Compiles the pipeline for a platform.

Local runs and platforms use the same pipeline, from `training_pipeline`. On a platform, `Platform.on_machine` builds
the steps that run on a machine with a TPU or GPU: training and, if the configuration has a machine for it, evaluation.
"""

import dataclasses
import functools
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tpu_components.core.base.container_images import LOCAL_IMAGE, Images, is_in_registry, with_image
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.typed_values import Mistakes
from tpu_components.core.files import storage
from tpu_components.core.files.location import Location
from tpu_components.core.machines.machine_spec import MachineSpec, PaidMachine
from tpu_components.core.models.lookup import bundle_of, named_files
from tpu_components.core.models.training_step.hyperparameters import TrainParams
from tpu_components.core.registry.opening import parse_reference
from tpu_components.core.registry.reference import is_on_vertex
from tpu_components.core.registry.signing import public_key_text
from tpu_components.core.sources.params import BEAM
from tpu_components.deploy_model.params import VERTEX
from tpu_pipelines.config.configuration import Config
from tpu_pipelines.config.settings import Settings
from tpu_pipelines.pipeline.cache_keys import checkpoint_folder, lineage, platform_fingerprints
from tpu_pipelines.platforms import beam_job
from tpu_pipelines.platforms.jobs import Placement
from tpu_pipelines.platforms.machines import (
    TrainingTimeout,
    check_resources,
    place_training,
    require_machine,
)
from tpu_pipelines.platforms.platform import Platform, capitalized, check_settings
from tpu_pipelines.platforms.resources import resources_of, steps_on_s3

_ANY_REGISTRY = "projects/project/locations/region/models"
_HEADER = "# PIPELINE DEFINITION"  # First line of a file that KFP compiles.


@dataclasses.dataclass(frozen=True)
class ResolvedRun:
    """A run on a platform, with all decisions that are made before its pipeline is built.

    Attributes:
        config: Parameters of every step, with the registry's location, the models' URIs and the machines filled in.
        platform: The platform.
        settings: Settings of the platform, and the images. Some settings may be missing.
        machine: Machine of the training step, with its region if the platform chooses machines by region.
        judge: Machine of the evaluation step, with its region if the platform chooses machines by region. None if the
            step runs on CPUs.
        timeout: Time limit of the training step, and the reason for it.
        paid: Machine of the training step with its price, time limit and number of attempts.
        fingerprints: For each step, digests of what can change its result without changing its inputs, such as its
            code.
        checkpoints: Folder of the checkpoints, relative to the bucket or volume.
        carried: Content of the files that must be uploaded for the pipeline, by their URI in the bucket.
    """

    config: Config
    platform: Platform
    settings: Settings
    machine: MachineSpec
    judge: MachineSpec | None
    timeout: TrainingTimeout
    paid: PaidMachine
    fingerprints: Mapping[str, Mapping[str, str]]
    checkpoints: str
    carried: Mapping[str, bytes]


@dataclasses.dataclass(frozen=True)
class CompiledPipeline:
    """A compiled pipeline.

    Attributes:
        package: The pipeline as YAML.
        run: Run from which the pipeline was built.
    """

    package: str
    run: ResolvedRun


def compile_pipeline(config: Config, platform: Platform, settings: Settings) -> CompiledPipeline:
    """Compile the pipeline for a platform. For the arguments and errors, see `resolve`."""
    run = resolve(config, platform, settings)
    return CompiledPipeline(build(run), run)


def resolve(config: Config, platform: Platform, settings: Settings) -> ResolvedRun:
    """Check a run, and determine its machines, time limit, price and files, without contacting the platform.

    Args:
        config: Parameters of every step, and the machine.
        platform: The platform.
        settings: Settings of the platform. Some may be missing.

    Raises:
        InputError: If the machine is not available on the platform or in the region, a setting is not supported, or
            the steps cannot read the data or the model.
    """
    mistakes = Mistakes()
    with mistakes.kept():
        machine = require_machine(config, platform)
    with mistakes.kept():
        check_settings(platform, settings)
    with mistakes.kept():
        check_readable(config, platform)
    mistakes.raise_all()
    machine = platform.in_region(machine, settings.region)
    images = settings.images
    if images.training != LOCAL_IMAGE:  # Compiling needs no image: without one, only a submission is refused.
        require_step_image(platform, images)

    # Each step's fingerprint covers the registry and Beam's settings, but neither the machine nor the model's URI.
    registered = with_registry(config, platform, settings)
    registered = registered.on_registry(registered.deploy.registry) if registered.deploy else registered
    if registered.data.engine == BEAM:
        _require_image(images.beam, platform, "beam", "TPU_PIPELINES_BEAM_IMAGE")
        registered = beam_job.with_settings(registered, platform, settings)
    check_resources(registered, platform)
    made_with = platform_fingerprints(registered, images.training, machine.slice.name, settings.environment)

    # The checkpoints' folder and the time limit follow from the machine and the model that the steps will get.
    portable, carried = with_carried_model(registered, platform, settings)
    placed = place_training(portable, machine, platform)
    final = dataclasses.replace(placed.config, training=_train_on(machine, placed.config.training))
    judge = None
    if final.evaluation_machine:
        judge = platform.in_region(final.evaluation_machine, settings.region)
        final = final.changed("gate", accelerator=judge.slice.generation.accelerator)
    return ResolvedRun(
        config=final,
        platform=platform,
        settings=settings,
        machine=machine,
        judge=judge,
        timeout=placed.timeout,
        paid=placed.paid,
        fingerprints=made_with,
        checkpoints=checkpoint_folder(placed.config, made_with["train_model"]),
        carried=carried,
    )


def build(run: ResolvedRun) -> str:
    """Build the pipeline of a run, and return it as YAML."""
    from kfp import compiler

    from tpu_components.evaluate_model.component import evaluate_model
    from tpu_components.train_model.component import train_model
    from tpu_pipelines.pipeline.exit_task import exit_task
    from tpu_pipelines.pipeline.training_pipeline import training_pipeline

    config = run.config
    platform = run.platform
    settings = run.settings
    limited = dataclasses.replace(run.machine, timeout_seconds=run.timeout.seconds)
    training = with_image(train_model, settings.images.training)
    on_s3 = steps_on_s3(config, settings.bucket_location)

    def placement(step: str, folder: str, retries: int = 0) -> Placement:
        return Placement(config.name, step, folder, resources_of(config, step, retries), uses_s3=step in on_s3)

    of_training = placement("train_model", run.checkpoints, platform.training_retries(limited))
    steps = {"train_model": platform.on_machine(training, limited, settings, of_training)}
    if run.judge:  # Needs JAX, which the image of the other steps may not contain.
        component = with_image(evaluate_model, settings.images.training)
        of_evaluation = placement("evaluate_model", f"{config.name}/evaluate_model")
        steps["evaluate_model"] = platform.on_machine(component, run.judge, settings, of_evaluation)
    # The limits of a step on a machine are for its task there, not for the small one (mark_promoted) next to it.
    others = {step: requested for step, requested in config.resources.items() if step not in steps}
    unlimited = dataclasses.replace(config, resources=others)
    pipeline = training_pipeline(
        config,
        on_machines=steps,
        lineage=lineage(config),
        fingerprints=run.fingerprints,
        place=lambda step, task: platform.place(task, step, unlimited, settings),
        estimated_timeout=run.timeout.is_estimated,
        exit_task=functools.partial(exit_task, config.name, platform, settings) if settings.notify else None,
        images=settings.images,
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pipeline.yaml"
        compiler.Compiler().compile(pipeline, str(path))
        return path.read_text(encoding="utf-8")


def require_step_image(platform: Platform, images: Images) -> None:
    """Check that a platform can pull the image of the training step and the image of the other steps.

    Raises:
        InputError: If the name of an image contains no registry.
    """
    _require_image(images.training, platform, "step", "TPU_PIPELINES_IMAGE")
    if images.other_steps:
        _require_image(images.other_steps, platform, "step", "TPU_PIPELINES_STEPS_IMAGE")


def _require_image(image: str, platform: Platform, what: str, variable: str) -> None:
    if not platform.can_pull(image):
        raise InputError(_cannot_pull(capitalized(platform.title), image, what, variable))


def _cannot_pull(title: str, image: str, what: str, variable: str) -> str:
    made = "make image-beam" if what == "beam" else "make image"
    return (
        f"{title} cannot pull the {what} image {image!r}: expected an image in a registry, for example "
        f"europe-docker.pkg.dev/PROJECT/REPOSITORY/{what}@sha256:…. Build the image with `{made}`, push it, and set "
        f"{variable}."
    )


def _train_on(machine: MachineSpec, training: TrainParams) -> TrainParams:
    """Return the training parameters with the machine's accelerator.

    Raises:
        InputError: If the machine does not have the accelerator or the number of replicas in `training`.
    """
    accelerator = machine.choose_accelerator(training.accelerator, "training.accelerator")
    machine.check_replicas(accelerator, training.num_replicas, "training.num_replicas")
    return dataclasses.replace(training, accelerator=accelerator)


def unreadable_places(config: Config, platform: Platform) -> dict[str, Location]:
    """Return {setting: location} for the data and models that the steps' containers cannot read.

    The settings that are checked are `data.source`, `gate.champion` and `training.initial_model`.
    """
    if config.deploy and config.deploy.is_on_vertex:  # Any project: the settings, which name it, may be missing.
        root = _ANY_REGISTRY if config.deploy.registry == VERTEX else config.deploy.registry
        config = config.on_registry(root)
    places = {
        "data.source": config.data_location,
        "gate.champion": Location(config.gate.champion),
        "training.initial_model": Location(config.training.initial_model),
    }
    return {
        name: place
        for name, place in places.items()
        if place and not platform.can_read(place) and not (is_on_vertex(place.parent) and parse_reference(place))
    }


def check_readable(config: Config, platform: Platform) -> None:
    """Check that the steps' containers can read all files that the configuration names, except the model's file.

    Raises:
        InputError: If the containers cannot read a file. The message names every setting with an unreadable file.
    """
    refused = f"Cannot compile {config.name!r} for {platform.name}:"
    mistakes = Mistakes()
    for name, place in unreadable_places(config, platform).items():
        mistakes.add(
            f"{refused} {name} must be on {platform.readable_places}, where the steps can read it. Received: "
            f"{place!r}. Copy the files to gs://BUCKET/… and use that path."
        )
    if config.deploy and config.deploy.registry and not config.deploy.is_on_vertex:
        mistakes.add(
            f"{refused} containers cannot read a registry in a local folder. Received: deploy.registry="
            f"{config.deploy.registry!r}. Remove the setting, or use deploy.registry=vertex."
        )
    if local := [file for file in config.model_files if not Location(file).is_remote]:
        mistakes.add(
            f"{refused} model.files contains {local[0]!r}, which containers cannot read. Copy it to gs://BUCKET/… and "
            "read it from there. Files next to the model's file that its code names are uploaded automatically."
        )
    if named := named_files(config.training.model_parameters):
        mistakes.add(
            f"{refused} a parameter of the model contains the file {next(iter(named))!r}, which containers cannot "
            "read. Put the file next to the model's file and open it as Path(__file__).parent / NAME. Then it is "
            "uploaded with the model."
        )
    mistakes.raise_all()


def with_carried_model(config: Config, platform: Platform, settings: Settings) -> tuple[Config, dict[str, bytes]]:
    """Replace the path of a user's model in the configuration with a URI in the bucket.

    Return the changed configuration, and the content of the files to upload, by URI. The URI contains the digest of the
    model's code, so that the steps run exactly this code, and the platform's cache detects changes.

    Raises:
        InputError: If the model cannot be uploaded: it belongs to tpu-pipelines or to an installed library, or the
            settings have no bucket.
    """
    model = config.training.model
    bundle = bundle_of(model)
    if bundle is None and model.endswith((".py", ".keras")):
        raise InputError(
            f"Cannot compile {config.name!r} for {platform.name}: the model {model!r} belongs to "
            "tpu-pipelines or to an installed library, whose code is not uploaded. Copy the model to a folder of your "
            "own."
        )
    has_bucket = settings.bucket_location.is_remote
    if bundle is None or Location(model).is_remote or (":" in model and not has_bucket):
        return config, {}  # The image or the bucket already holds it.
    if not has_bucket:
        raise InputError(
            f"Cannot compile {config.name!r} for {platform.name}: uploading the model {model!r} requires a bucket. "
            f"Received: bucket={settings.bucket!r}. Set TPU_PIPELINES_BUCKET=gs://BUCKET to a bucket that the steps "
            "can read. Alternatively, install the model in the image and set model=MODULE:build_model."
        )
    place = bundle.reference(settings.bucket_location.child("models"))
    return config.changed("training", model=place), {place: bundle.content}


def with_registry(config: Config, platform: Platform, settings: Settings) -> Config:
    """Return the configuration with the location and the options of its registry on Vertex AI.

    If the registry is not on Vertex AI, or there is none, the configuration is returned unchanged.

    Raises:
        InputError: If a setting for the registry is missing, the registry's service cannot pull the serving image, or
            the steps cannot read the signing key.
    """
    deploy = config.deploy
    if deploy is None or not deploy.is_on_vertex:
        return config
    if deploy.signing_key and not Location(deploy.signing_key).is_remote:
        raise InputError(
            f"Cannot compile {config.name!r} for {platform.name}: containers cannot read a key on this machine. "
            f"Received: deploy.signing_key={deploy.signing_key!r}. Copy the key to gs://BUCKET/…, in a bucket that "
            "only the steps' service account can read."
        )
    image = deploy.serving_image or settings.images.serving
    if not is_in_registry(image):  # The registry's service pulls it, whatever platform the steps run on.
        raise InputError(_cannot_pull("Vertex AI", image, "serving", "TPU_PIPELINES_SERVING_IMAGE"))
    registry = settings.vertex_registry() if deploy.registry == VERTEX else deploy.registry
    artifacts_uri = deploy.artifacts_uri
    if not artifacts_uri:
        settings.require("bucket")
        artifacts_uri = str(settings.bucket_location.child("registry"))
    return config.changed(
        "deploy",
        registry=registry,
        artifacts_uri=artifacts_uri,
        serving_image=image,
        encryption_key=deploy.encryption_key or settings.encryption_key,
        verify_key=deploy.verify_key if Location(deploy.verify_key).is_remote else public_key_text(deploy.verify_key),
    )


def check_output(output: Path) -> None:
    """Check that a compiled pipeline may be written to a file.

    Raises:
        InputError: If the file cannot be written, or exists and is not a compiled pipeline.
    """
    if output.suffix not in (".yaml", ".yml"):
        raise InputError(f"Cannot write {output}: expected a name that ends in .yaml. Choose another name.")
    storage.require_file(output)
    if output.exists() and not output.read_bytes().startswith(_HEADER.encode()):
        raise InputError(
            f"Cannot overwrite {output}: the file exists and is not a compiled pipeline. Choose another name."
        )
