"""What can be known of a run before it begins: its data, its champion, its folder."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.artifacts import ModelInfo
from tpu_components.core.examples.interface import IMAGE, TEXT
from tpu_components.core.examples.slice_values import SIZE
from tpu_components.core.files import storage
from tpu_components.core.registry.opening import open_registry, parse_reference
from tpu_components.core.registry.reference import MODEL_DIR, is_on_vertex
from tpu_components.core.registry.signing import try_keys
from tpu_components.core.registry.versions import fetch
from tpu_components.core.sources.listing import Listing
from tpu_components.create_tfrecords.planning import DatasetPlan, plan_dataset
from tpu_components.evaluate_model.params import CLASS, LENGTH
from tpu_pipelines.checking.workspace import check_run_dir
from tpu_pipelines.config.configuration import Config

_AMOUNTS = {IMAGE: SIZE, TEXT: LENGTH}  # By which a gate divides examples into quarters.


def check_run(config: Config, workspace: Path, listing: Listing | None = None) -> DatasetPlan:
    """Check all that can be known in advance: the data's shape and splits, the batch, the champion, the workspace.

    Args:
        config: Configuration of the run.
        workspace: Folder of the runs.
        listing: Examples of its data; None to list them.

    Raises:
        InputError: On the first thing that is wrong.
    """
    plan = check_inputs(config, workspace, listing)
    check_deploy(config)
    return plan


def check_inputs(config: Config, workspace: Path, listing: Listing | None = None) -> DatasetPlan:
    """Check what `check_run` does, the arguments as there, but for where the model is to go."""
    run_dir = workspace.absolute() / config.name
    if "python3" in json.dumps([config.as_dict(), str(run_dir)], ensure_ascii=False):
        raise InputError(
            "Cannot run with 'python3' in a name, path or value: kfp.local rewrites the text 'python3' wherever it "
            f"stands. Received workspace {str(workspace)!r}, data.source {config.data.source!r} and others. "
            "Use another name."
        )
    check_run_dir(config, run_dir)
    plan = check_data(config, listing)
    _check_champion(config, plan.listing.class_names)
    return plan


def check_deploy(config: Config) -> None:
    """Check where the model is to go, if anywhere: the registry, and the keys that it is signed and verified with.

    Raises:
        InputError: On the first thing that is wrong.
    """
    if config.deploy is None:
        return
    if is_on_vertex(config.deploy.registry) and not config.deploy.artifacts_uri:
        raise InputError(
            "Cannot register on Vertex AI without a place for the versions' files. Set deploy.artifacts_uri=gs://BUCKET/…"
        )
    try_keys(config.deploy.signing_key, config.deploy.verify_key)
    open_registry(config.deploy.registry, config.deploy.model_name).find(config.deploy.alias)


def check_data(config: Config, listing: Listing | None = None) -> DatasetPlan:
    """Check, by listing the data alone, that they fit the batch, the splits and the slices that are asked for.

    Args:
        config: Configuration of the run.
        listing: Examples of its data; None to list them.

    Raises:
        InputError: On the first thing that is wrong.
    """
    plan = plan_dataset(config.data, listing)
    config.training.check_batch_fits(plan.split_examples["train"])
    splits = {"gate": config.gate.split, **({"export": config.export.split} if config.export else {})}
    for section, split in splits.items():
        if split not in plan.order:
            raise InputError(
                f"{section}.split={split!r} has no examples: expected one of {sorted(plan.order)}. Raise "
                f"data.{split}_fraction or name another split."
            )
    amounts = [_AMOUNTS[plan.listing.kind]] if plan.listing.kind in _AMOUNTS else []
    config.gate.check_slices([CLASS, *amounts, *config.data.slice_columns])
    return plan


def _check_champion(config: Config, class_names: Sequence[str]) -> None:
    champion = config.champion
    if not champion or storage.is_remote(champion):
        return
    if (named := parse_reference(champion)) is None:
        ModelInfo.load(Path(champion))
    elif version := named[0].find(named[1]):
        with tempfile.TemporaryDirectory(prefix="champion-") as scratch:
            info = ModelInfo.load(fetch(version, MODEL_DIR, Path(scratch)))
        if info.task != config.data.asked:
            raise InputError(
                f"Cannot compare with the champion, {champion}: its task is {info.task}, and the data set's is "
                f"{config.data.asked}. Let another task be another model: --set deploy.model_name=…"
            )
        if info.class_names != class_names:
            raise InputError(
                f"Cannot compare with the champion, {champion}: it knows the classes {list(info.class_names)}, and the "
                f"data set has {list(class_names)}. Let other classes be another model: --set deploy.model_name=…"
            )
