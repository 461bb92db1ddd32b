"""Decisions about a run on this machine before its first step. See also `pipeline.compile.resolve`."""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path

from tpu_components.core.base.container_images import Images, load_images
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.progress import say
from tpu_components.core.files import storage
from tpu_components.core.machines.machine_spec import CHEAPEST_MACHINE, MachineSpec
from tpu_components.core.sources.kinds import source_version
from tpu_components.core.sources.listing import Listing
from tpu_components.create_tfrecords.planning import DatasetPlan
from tpu_components.preflight_training.compiling import sandbox
from tpu_components.preflight_training.params import PreflightParams
from tpu_components.preflight_training.receipts.store import ReceiptStore
from tpu_pipelines.config.configuration import Config
from tpu_pipelines.config.settings import variable
from tpu_pipelines.pipeline.cache_keys import data_version, fingerprints
from tpu_pipelines.platforms.machines import place_training
from tpu_pipelines.platforms.platform import platform_priced_as
from tpu_pipelines.runs.prerequisites import check_run
from tpu_pipelines.runs.workspace import with_registry


@dataclasses.dataclass(frozen=True)
class LocalRun:
    """A run on this machine, with all decisions that are made before its first step starts.

    Which steps are taken from the cache is decided later.

    Attributes:
        config: Parameters of every step, with the registry's path and the price of preflight's machine.
        data: Examples of the data set and their splits.
        data_version: Fingerprint of the content of the data.
        source_version: Version of the source. create_tfrecords checks it to find out whether the data are still the
            same.
        images: Images of the steps, for containers.
        fingerprints: Digests of the run's `data`, `configuration` and `code`, as in summary.json.
        run_dir: Folder of the results.
        cache_dir: Folder of cached results of steps.
        receipts: Measurements of earlier training runs, from which preflight derives its intervals.
    """

    config: Config
    data: DatasetPlan
    data_version: str
    source_version: str
    images: Images
    fingerprints: Mapping[str, str]
    run_dir: Path
    cache_dir: Path
    receipts: ReceiptStore


def resolve(config: Config, workspace: Path, listing: Listing | None = None) -> LocalRun:
    """Check that a run can take place on this machine, and determine its data, images, fingerprints and folders.

    Args:
        config: Configuration to run.
        workspace: Folder for runs.
        listing: Examples of the data set. If None, this function lists them.

    Raises:
        InputError: If the data or the configuration cannot be used.
    """
    workspace = workspace.absolute()
    storage.require_utf8(workspace)
    if config.machine:
        config.machine.require_one_host(
            "A run on this machine trains on one host (`tpu-pipelines submit` supports several hosts)"
        )
    registered = with_registry(config, workspace)
    data = check_run(registered, workspace, listing)
    version = _version_of(data.listing, workspace)
    return LocalRun(
        config=dataclasses.replace(registered, preflight=_local_preflight(registered)),
        data=data,
        data_version=version,
        source_version=source_version(config.data, data.listing),
        images=load_images(os.environ),
        fingerprints=fingerprints(config, version),  # Now, since a model's file may be edited during the run.
        run_dir=workspace / config.name,
        cache_dir=workspace / ".cache" / config.name,
        receipts=ReceiptStore.of_workspace(workspace),
    )


def fingerprints_here(
    config: Config, workspace: Path, listing: Listing, known: Mapping[str, str] = {}
) -> dict[str, str]:
    """Return the fingerprints of a run in a workspace, without the other decisions of `resolve`.

    Args:
        config: The run's configuration.
        workspace: Folder of the runs.
        listing: Examples of the data set.
        known: Fingerprints of the last run. If the new fingerprints are equal, the run is not checked again.

    Raises:
        InputError: If the data or the configuration cannot be used.
    """
    workspace = workspace.absolute()
    made_of = fingerprints(config, _version_of(listing, workspace))
    if made_of != known:
        check_run(with_registry(config, workspace), workspace, listing)
    return made_of


def _version_of(listing: Listing, workspace: Path) -> str:
    return data_version(listing, workspace / ".cache" / "sources")


def _local_preflight(config: Config) -> PreflightParams | None:
    """Return the parameters of preflight, with the price that `submit` shows in the region of the settings.

    Return None if the configuration has no preflight, or if the TPU compiler is not installed.
    """
    if config.preflight is None:
        return None
    try:
        sandbox.require_compiler([config.preflight.paid.slice])
    except InputError as error:
        say("preflight_training", f"skipped: {error}")
        return None
    region = os.environ.get(variable("region"), "")  # A local run needs no other setting, so do not check the others.
    machine = config.machine or MachineSpec(CHEAPEST_MACHINE)
    return place_training(config, machine, platform_priced_as(config.preflight.paid.target), region).config.preflight
