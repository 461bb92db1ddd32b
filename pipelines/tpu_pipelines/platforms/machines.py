"""Checks the machine of the training step on a platform, and determines the step's time limit and price."""

import dataclasses
import math

from tpu_components.core.base.errors import InputError
from tpu_components.core.machines.machine_spec import MachineSpec, PaidMachine
from tpu_components.preflight_training.params import TIMEOUT_FACTOR, TIMEOUT_FLOOR_SECONDS
from tpu_pipelines.config.configuration import Config, preflight_params
from tpu_pipelines.config.steps import StepResources
from tpu_pipelines.platforms.platform import Platform
from tpu_pipelines.platforms.resources import TIMEOUT_WITHOUT_ESTIMATE_SECONDS, resources_of


def require_machine(config: Config, platform: Platform) -> MachineSpec:
    """Return the machine of a configuration, after checking that the platform and the backend support it.

    Raises:
        InputError: If the configuration has no machine, the platform does not offer it, or the machine has several
            hosts but the backend supports only a single host.
    """
    if config.machine is None:
        raise InputError(
            f"Cannot compile {config.name!r} for {platform.name}: expected a machine to train on, received none. Set, "
            "for example, machine=v5e-4. `tpu-pipelines machines` lists all machines."
        )
    for machine in config.machines:
        machine.slice.require_target(platform.catalogue_name)
    training = config.training
    if training.backend == "tensorflow" or (training.backend == "auto" and training.accelerator == "cpu"):
        config.machine.require_one_host("The tensorflow backend trains on one host")
    return config.machine


def check_resources(config: Config, platform: Platform) -> None:
    """Check that a platform supports all resources that a configuration requests.

    Raises:
        InputError: If the platform would ignore or reject a resource.
    """
    if timeout := config.resources.get("train_model", StepResources()).timeout:
        raise InputError(
            "The time limit of training belongs to the section machine. Received: "
            f"resources.train_model.timeout={timeout}. Set machine.timeout_seconds instead."
        )
    platform.check_config(config)


@dataclasses.dataclass(frozen=True)
class TrainingTimeout:
    """Time limit of the training step, with its reason.

    Attributes:
        seconds: Time limit, in seconds. It applies if there is no estimate.
        is_estimated: Whether preflight's estimate replaces `seconds` while the pipeline runs.
        reason: Reason for the time limit, as text.
    """

    seconds: int
    is_estimated: bool
    reason: str


def training_timeout(config: Config, platform: Platform) -> TrainingTimeout:
    """Return the time limit of the training step. The configuration must have a machine.

    The time limit is the first of these that is known:

    1. `machine.timeout_seconds`.
    2. For a TPU, if the platform accepts a time limit while the pipeline runs: preflight's estimate, from
       `preflight_training.params.timeout_seconds`.
    3. For a GPU, the time that `preflight.max_price_usd` pays for. For a TPU, three times this time, but at least 4
       hours.
    4. A day.
    """
    machine = config.machine
    assert machine is not None
    hours = "{:g} h".format
    floor = TIMEOUT_FLOOR_SECONDS / 3600
    if machine.timeout_seconds:
        reason = (
            f"training is stopped after {hours(machine.timeout_seconds / 3600)}, because of machine.timeout_seconds"
        )
        return TrainingTimeout(machine.timeout_seconds, False, reason)
    seconds = TIMEOUT_WITHOUT_ESTIMATE_SECONDS
    why = "the training time is not estimated"
    price = machine.slice.price(machine.region, machine.spot, platform.catalogue_name)
    if config.preflight and config.preflight.max_price_usd and price:
        paid = config.preflight.max_price_usd / price.usd_per_hour * 3600
        seconds = max(math.ceil(TIMEOUT_FACTOR * paid), TIMEOUT_FLOOR_SECONDS)
        why = (
            f"the limit is {TIMEOUT_FACTOR} times the time that preflight.max_price_usd pays for, but at least "
            f"{hours(floor)}"
        )
        if machine.slice.is_gpu:  # Without an estimate, the time limit alone keeps the budget.
            seconds = max(int(paid), 1)
            why = "the limit for a GPU is the time that preflight.max_price_usd pays for"
        seconds = int(min(seconds, platform.longest_task_seconds))
    if config.preflight and platform.accepts_estimated_timeout and not machine.slice.is_gpu:
        why = f"{TIMEOUT_FACTOR} times preflight's estimate, at least {hours(floor)}"
        return TrainingTimeout(
            seconds, True, f"training is stopped after {why}; machine.timeout_seconds sets another limit"
        )
    reason = (
        f"training is stopped after {hours(seconds / 3600)}, because {why}; machine.timeout_seconds sets another limit"
    )
    return TrainingTimeout(seconds, False, reason)


@dataclasses.dataclass(frozen=True)
class PlacedTraining:
    """A training run on one of a platform's machines.

    Attributes:
        config: The configuration with this machine for the training step. If preflight is part of the run, it examines
            this machine too.
        timeout: Time limit of the training step.
        paid: The machine with the platform's price, the time limit and the number of attempts.
    """

    config: Config
    timeout: TrainingTimeout
    paid: PaidMachine


def place_training(config: Config, machine: MachineSpec, platform: Platform, region: str = "") -> PlacedTraining:
    """Assign a machine to the training step of a configuration.

    All commands get time limits and prices from this function, so that they show the same values for the same run,
    whether the machine comes from the configuration, from `--set machine=…` or from `--compare`.

    Args:
        config: Configuration of the training run. Its machine is ignored.
        machine: The machine.
        platform: The platform.
        region: Region in the settings. A platform with regions uses it for a machine that has no region. It is ignored
            if the machine is not available there.

    Raises:
        InputError: If the platform does not offer the machine, or the machine does not support the backend.
    """
    if region in machine.slice.regions:
        machine = platform.in_region(machine, region)
    config = config.with_machine(machine)
    timeout = training_timeout(config, platform)
    paid = PaidMachine(
        machine.name,
        machine.region,
        machine.spot,
        platform.catalogue_name,
        timeout_seconds=0 if timeout.is_estimated else timeout.seconds,
        attempts=resources_of(config, "train_model", platform.training_retries(machine)).retries + 1,
    )
    if config.preflight:
        config = dataclasses.replace(config, preflight=preflight_params(config, paid))
    return PlacedTraining(config, timeout, paid)
