"""Interface of a platform, and the table of platforms.

Each platform has a folder next to this file with one object, an instance of a class in its `platform.py`. Everything
that differs between platforms is in this object. No code outside of these folders compares the name of a platform. To
add a platform, add a folder and a line in `PLATFORMS`.

The command line imports this module for its help. Therefore, a platform imports KFP, Google's clients and other slow
modules only in the methods that use them.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tpu_components.core.base.typed_values import Mistakes
from tpu_components.core.files.location import Location
from tpu_pipelines.config.settings import Settings, setting
from tpu_pipelines.platforms.kubeflow.platform import Kubeflow
from tpu_pipelines.platforms.vertex.platform import Vertex

if TYPE_CHECKING:
    from tpu_components.core.machines.machine_spec import MachineSpec
    from tpu_pipelines.config.configuration import Config
    from tpu_pipelines.platforms.findings import Check
    from tpu_pipelines.platforms.jobs import PlacedStep, Placement, PlatformClient


class Platform(Protocol):
    """A platform that runs compiled pipelines.

    All methods work offline, but the client from `connect` may need a connection.
    """

    @property
    def name(self) -> str:
        """Name of the platform, as a value of `--target`."""

    @property
    def title(self) -> str:
        """Name of the platform in the middle of a sentence, for example `Vertex AI` or `a cluster`."""

    @property
    def catalogue_name(self) -> str:
        """Name in the machine catalogue under which the platform's machines and prices are listed."""

    # Settings and configuration

    @property
    def required_settings(self) -> tuple[str, ...]:
        """Names of the settings without which the platform cannot be reached."""

    @property
    def own_settings(self) -> tuple[str, ...]:
        """Names of the settings that this platform supports, but some other platforms do not.

        A platform rejects a setting that only other platforms list here.
        """

    @property
    def unused_options(self) -> Mapping[str, str]:
        """Advice for each argument, setting or machine field that has no effect with `on_machine` on this platform."""

    def check_settings(self, settings: Settings) -> None:
        """Check the platform's settings. Raise InputError if a setting is not allowed, for example too many labels."""

    def check_config(self, config: "Config") -> None:
        """Check the requested resources. Raise InputError if the platform would ignore or reject one of them."""

    # What the steps' containers can reach

    @property
    def readable_places(self) -> str:
        """Places that `can_read` accepts, in words, for example `Cloud Storage`."""

    def can_read(self, place: Location) -> bool:
        """Return whether steps can read a location, for example `gs://bucket/data` or a path."""

    def can_pull(self, image: str) -> bool:
        """Return whether the name of an image contains a registry that the platform can reach."""

    # Machines and resources

    @property
    def longest_task_seconds(self) -> float:
        """Seconds after which the platform stops a task, or infinity if there is no limit."""

    @property
    def accepts_estimated_timeout(self) -> bool:
        """Whether an earlier step can set the time limit of the training step while the pipeline runs."""

    @property
    def beam_runner(self) -> str:
        """Beam runner that is part of the platform, or an empty string if there is none."""

    def in_region(self, machine: "MachineSpec", region: str) -> "MachineSpec":
        """Return the machine, with its region set to `region` if it has none and the platform has regions.

        Raises:
            InputError: If the region does not have the machine.
        """

    def training_retries(self, machine: "MachineSpec") -> int:
        """Return the default number of retries of training on a machine. The configuration may set another number."""

    def memory_request(self, config: "Config", step: str, gib: float) -> float | None:
        """Return the memory to request, in GiB, so that a step can use `gib` GiB.

        Return None if the step has a whole host, and therefore needs no request.
        """

    def disk_request(self, num_bytes: int) -> str:
        """Return the disk size to request so that a step can store `num_bytes` bytes, for example `200Gi`.

        Return an empty string if no request is needed or possible.
        """

    def disk_warning(self, num_bytes: int) -> str:
        """Return a warning if records of this size may not fit on the disk of a step, otherwise an empty string."""

    # The pipeline

    def on_machine(
        self, component: Any, machine: "MachineSpec", settings: Settings, placement: "Placement"
    ) -> "PlacedStep":
        """Return a step that runs a component on a machine with a TPU or GPUs.

        Args:
            component: KFP component. It is not changed.
            machine: The machine. Its fallbacks are ignored, because the submission handles them.
            settings: Settings of the platform.
            placement: Name, resources and checkpoint folder of the step.

        Raises:
            InputError: If the platform cannot run the step on the machine with these settings.
        """

    def restart_warning(self, machine: "MachineSpec", settings: Settings) -> str:
        """Return a warning if a step that may lose its machine has no place for checkpoints, else an empty string."""

    def place(self, task: Any, step: str, config: "Config", settings: Settings) -> Any:
        """Set the time limit, disk and credentials of a step's task. Return the task.

        This is for steps that run without a TPU or GPU.
        """

    def exit_task(self, settings: Settings) -> Any:
        """Add the task with which the platform itself sends notifications to `settings.notify`. Return the task.

        Return None if the platform cannot send them.
        """

    # Runs

    def connect(self, settings: Settings) -> "PlatformClient":
        """Return a client for runs and schedules. Raise InputError if a required setting is missing."""

    def checks(self, config: "Config", settings: Settings, context: str) -> "Sequence[Check]":
        """Return the checks that `doctor` makes on the platform.

        Args:
            config: Configuration of the run, with a machine.
            settings: Settings of the platform, with all required settings.
            context: kubectl context of a cluster. Empty if there is none.
        """


HERE = "local"  # Target of a run on this machine, which no platform submits; see `platforms.local`.
# Platforms by name. The first is the default of `--target`.
PLATFORMS: dict[str, Platform] = {platform.name: platform for platform in (Vertex(), Kubeflow())}


def default_platform() -> Platform:
    """Return the platform that commands use without `--target`."""
    return next(iter(PLATFORMS.values()))


def platform_priced_as(catalogue_name: str) -> Platform:
    """Return the platform to which a price from the machine catalogue applies: the first with this catalogue name."""
    return next(platform for platform in PLATFORMS.values() if platform.catalogue_name == catalogue_name)


def capitalized(title: str) -> str:
    """Return a platform's title for the beginning of a sentence.

    Example:
        >>> capitalized("a cluster"), capitalized("Vertex AI")
        ('A cluster', 'Vertex AI')
    """
    return title[:1].upper() + title[1:]


def check_settings(platform: Platform, settings: Settings) -> None:
    """Check that a platform supports all settings.

    Raises:
        InputError: If the platform does not support some of them, or two settings exclude each other. The message names
            all of them.
    """
    mistakes = Mistakes()
    foreign = [name for other in PLATFORMS.values() for name in other.own_settings]
    for name in foreign:
        if (value := getattr(settings, name)) and name not in platform.own_settings:
            others = [other.name for other in PLATFORMS.values() if name in other.own_settings]
            mistakes.add(
                f"The {setting(name)} is not supported on the platform {platform.name}. Received: {value!r}. Remove "
                f"it, or choose the platform {' or '.join(others)}."
            )
    with mistakes.kept():
        platform.check_settings(settings)
    mistakes.raise_all()
