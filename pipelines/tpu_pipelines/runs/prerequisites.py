"""Checks of a run before it begins: data, champion, folder and model."""

import dataclasses
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.artifacts import TRAIN, ModelInfo
from tpu_components.core.examples.class_names import advise_on_order, are_same
from tpu_components.core.examples.interface import IMAGE, TEXT, Interface
from tpu_components.core.examples.slice_values import SIZE
from tpu_components.core.files.location import Location
from tpu_components.core.machines import device
from tpu_components.core.models.ready import REGISTRY
from tpu_components.core.models.training_step.hyperparameters import TrainParams
from tpu_components.core.registry.opening import open_registry, parse_reference
from tpu_components.core.registry.reference import MODEL_DIR, is_on_vertex
from tpu_components.core.registry.signing import try_keys
from tpu_components.core.registry.versions import fetch
from tpu_components.core.sources.listing import Listing
from tpu_components.core.work.workers import in_fresh_process
from tpu_components.create_tfrecords.planning import DatasetPlan, plan_dataset
from tpu_components.create_tfrecords.sample import sample_of, written
from tpu_components.evaluate_model.params import CLASS, LENGTH
from tpu_components.export_model.exporting import Trial, try_out
from tpu_pipelines.config.configuration import Config
from tpu_pipelines.runs.workspace import check_run_dir

_SAMPLE_EXAMPLES = 64
_LITE = ("float", "int8")
_AMOUNTS = {IMAGE: SIZE, TEXT: LENGTH}  # Quantity whose quartiles define slices for the gate, by kind of example.


def check_run(config: Config, workspace: Path, listing: Listing | None = None) -> DatasetPlan:
    """Check data, batch size, champion, registry and workspace before a run. Return the examples and their splits.

    Args:
        config: Configuration of the run.
        workspace: Folder for runs.
        listing: Examples of the data set. If None, this function lists them.

    Raises:
        InputError: On the first mistake.
    """
    plan = check_inputs(config, workspace, listing)
    check_deploy(config)
    return plan


def check_inputs(config: Config, workspace: Path, listing: Listing | None = None) -> DatasetPlan:
    """Check everything that `check_run` checks, except the deployment. The arguments are the same."""
    run_dir = workspace.absolute() / config.name
    if "python3" in json.dumps([config.as_dict(), str(run_dir)], ensure_ascii=False):
        raise InputError(
            "Cannot run with 'python3' in a name, path or value, because kfp.local replaces the text 'python3' "
            "everywhere. Use another name in the workspace's path or in the configuration. Received, for example: "
            f"workspace {str(workspace)!r}, data.source {config.data.source!r}."
        )
    check_run_dir(config, run_dir)
    plan = check_data(config, listing)
    for role, place in (("champion", config.champion), ("initial model", config.training.initial_model)):
        _check_earlier_model(config, role, place, plan.listing.class_names)
    return plan


def check_deploy(config: Config) -> None:
    """Check the deployment, if there is one: the registry, and the keys for signing and verifying.

    Raises:
        InputError: On the first mistake.
    """
    if config.deploy is None:
        return
    if is_on_vertex(config.deploy.registry) and not config.deploy.artifacts_uri:
        raise InputError(
            "Registration on Vertex AI requires a folder for the versions' files. Set "
            "deploy.artifacts_uri=gs://BUCKET/…"
        )
    try_keys(config.deploy.signing_key, config.deploy.verify_key)
    open_registry(config.deploy.registry, config.deploy.model_name).find(config.deploy.alias)


def check_data(config: Config, listing: Listing | None = None) -> DatasetPlan:
    """Check that the data have enough examples for the batch size and splits, and the properties for the slices.

    Return the examples and their splits.

    Args:
        config: Configuration of the run.
        listing: Examples of the data set. If None, this function lists them.

    Raises:
        InputError: On the first mistake.
    """
    plan = plan_dataset(config.data, listing)
    config.training.check_batch_fits(plan.split_examples["train"])
    splits = {"gate": config.gate.split, **({"export": config.export.split} if config.export else {})}
    for section, split in splits.items():
        if split not in plan.order:
            raise InputError(
                f"{section}.split={split!r} has no examples: expected one of {sorted(plan.order)}. Raise "
                f"data.{split}_fraction or choose another split."
            )
    kind = plan.listing.example_kind
    amounts = [_AMOUNTS[kind]] if kind in _AMOUNTS else []
    config.gate.check_slices([CLASS, *amounts, *config.data.slice_columns])
    return plan


def _check_earlier_model(config: Config, role: str, place: str, class_names: Sequence[str]) -> None:
    """Check that an earlier model that the run uses has the task and classes of the data.

    Models in a bucket are not checked.

    Args:
        config: Configuration of the run.
        role: `champion` or `initial model`.
        place: Folder of the model, or `REGISTRY/MODEL@VERSION_OR_ALIAS`. Empty if there is none.
        class_names: Classes of the data.
    """
    if not place or Location(place).is_remote:
        return
    if (named := parse_reference(place)) is None:
        info = ModelInfo.load(Path(place))
    elif version := named.find():
        with tempfile.TemporaryDirectory(prefix="earlier-") as scratch:
            info = ModelInfo.load(fetch(version, MODEL_DIR, Path(scratch)))
    else:
        return
    advice = (
        "Register models for these data under another name: set deploy.model_name."
        if role == "champion"
        else "Remove training.initial_model to start with new weights."
    )
    if info.task != config.data.asked or not are_same(info.task, info.class_names, class_names):
        raise InputError(
            f"Cannot use the {role}, {place}: its task is {info.task} with the classes {list(info.class_names)}, but "
            f"the task of the data set is {config.data.asked} with the classes "
            f"{list(class_names)}{advise_on_order(info.task, info.class_names, class_names)}. {advice}"
        )


def names_accelerator(training: TrainParams) -> bool:
    """Return whether `training.accelerator` is `gpu` or `tpu`.

    Training then fails on a machine without this accelerator. The values `auto` and `cpu` work on every machine.
    """
    return training.accelerator in ("gpu", "tpu")


def check_accelerator(training: TrainParams) -> None:
    """Check, in a separate process, that this machine has the accelerator that training requires.

    Raises:
        InputError: If the backend does not find the accelerator.
    """
    if not names_accelerator(training):
        return
    try:
        in_fresh_process(_prepare, training.backend, training.accelerator, training.num_replicas)
    except (InputError, RuntimeError) as error:  # A driver may end the process.
        raise InputError(
            f"This machine cannot train with training.accelerator={training.accelerator}. {error} Use "
            "training.accelerator=auto on this machine. On a platform, auto selects the machine's accelerator."
        ) from error


def _prepare(backend: str, accelerator: str, num_replicas: int) -> None:
    device.prepare(backend, accelerator, num_replicas)


def needs_check(config: Config) -> bool:
    """Return whether the model must be built and exported before the run, because the run could otherwise fail late.

    The result is True for a user's model in a run with preflight. It is also True for any model if the export must
    contain a LiteRT file, or if the section training has names or parameters that only Keras can check. In all other
    cases, training finds a mistake within seconds.
    """
    is_own = config.training.model not in REGISTRY and config.preflight is not None
    return is_own or config.training.names_more_of_keras or bool(set(_LITE) & set(config.required_formats))


def check_model_works(config: Config, plan: DatasetPlan) -> None:
    """Check that a configuration's model can be built for its data, and exported in the required formats.

    Raises:
        InputError: If the model cannot be built, rebuilt or exported in these formats.
    """
    check_model(config, sample_interface(plan))


def check_model(config: Config, interface: Interface, is_timed: bool = False) -> Trial:
    """Build and export a configuration's model, in its required formats, in a separate process.

    Return warnings about the model and, if `is_timed` is set, the time per example of a training step.

    Args:
        config: Configuration of the run.
        interface: Input and output of the model.
        is_timed: Whether to also measure a training step.

    Raises:
        InputError: If the model cannot be built, rebuilt or exported in these formats.
    """
    model = config.training.model
    try:
        trial: Trial = in_fresh_process(try_out, config.training, interface, config.required_formats, is_timed)
    except RuntimeError as error:  # The model's code may end the process.
        raise InputError(
            f"The model {model!r} ended the process in which it was tested: {error}. Correct the model."
        ) from error
    return trial


def sample_interface(plan: DatasetPlan) -> Interface:
    """Return the model's interface (its input and output), from a few examples that are written as records.

    Raises:
        InputError: If the examples cannot be read, or do not match each other, for example in size.
    """
    # The share of bad examples cannot be estimated from so few examples.
    lenient = dataclasses.replace(plan.params, max_bad_fraction=0.99)
    examples = sample_of(plan, _SAMPLE_EXAMPLES)
    with written(dataclasses.replace(plan, params=lenient, order={TRAIN: examples})) as (_, manifest):
        return manifest.interface
