"""The list of all checks of a run, from the content of files to requests to the platform."""

import contextlib
import functools
import io
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from tpu_components.core.base.container_images import Images, is_pinned
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.formatting import time
from tpu_components.core.base.states import Status
from tpu_components.core.base.typed_values import Mistakes
from tpu_components.core.examples.artifacts import TRAIN, VALIDATION
from tpu_components.core.examples.interface import CLASSIFICATION, Interface
from tpu_components.core.machines.machine_spec import billed_by
from tpu_components.core.models.bundle import Bundle, data_files, is_reference
from tpu_components.core.models.lookup import bundle_of
from tpu_components.core.models.training_step.augmentation import check_augmentation
from tpu_components.core.registry.opening import parse_reference
from tpu_components.core.sources.kinds import find_source
from tpu_components.preflight_training.compiling import sandbox
from tpu_pipelines.checks.group_hints import find_group_hints
from tpu_pipelines.config.configuration import Config
from tpu_pipelines.config.settings import Settings
from tpu_pipelines.pipeline import compile as compiling
from tpu_pipelines.platforms.findings import (
    CannotAskError,
    Check,
    CheckCost,
    Finding,
    LackError,
    ShellCommand,
    ask_all,
    errors_in,
)
from tpu_pipelines.platforms.machines import place_training, require_machine
from tpu_pipelines.platforms.platform import Platform, check_settings, platform_priced_as
from tpu_pipelines.runs.prerequisites import (
    check_accelerator,
    check_data,
    check_deploy,
    check_inputs,
    check_model,
    names_accelerator,
    sample_interface,
)
from tpu_pipelines.runs.workspace import with_registry
from tpu_pipelines.starting.data_copy import plan_copy
from tpu_pipelines.starting.data_overview import DataOverview, overview_of

UNASKED = (CheckCost.FILE, CheckCost.SECONDS)  # Checks without a request to a platform.
ASKED = (CheckCost.REQUEST, CheckCost.NETWORK)


def examine(
    config: Config,
    costs: Collection[CheckCost],
    platform: Platform | None = None,
    settings: Settings | None = None,
    *,
    workspace: Path = Path("runs"),
    context: str = "",
) -> list[Finding]:
    """Run those checks of a configuration that have one of the requested costs. Return their findings.

    Args:
        config: Configuration to check.
        costs: Costs of the checks to run: reading small files, seconds of work, or requests to the platform.
        platform: The platform, or None for a run on this machine.
        settings: Project, region, bucket and images. If there is no platform, only the region is used, for prices.
        workspace: Folder for runs on this machine.
        context: kubectl context of a cluster. If empty, the cluster is not checked.

    Raises:
        InputError: If the settings are not valid.
    """
    settings = settings or Settings()
    checks = ConfigChecks(config, None if platform else workspace, platform, settings.region).checks()
    if platform:
        checks += platform_checks(config, platform, settings)
    if platform and set(ASKED) & set(costs):
        return _ask_platform(config, costs, platform, settings, context)
    return ask_all([check for check in checks if check.cost in costs])


def _ask_platform(
    config: Config, costs: Collection[CheckCost], platform: Platform, settings: Settings, context: str
) -> list[Finding]:
    """Return the errors of `first_checks`, and the findings of the platform's checks.

    The platform's checks are left out if the machine is wrong, or settings are missing or not supported.
    """
    missing = errors_in(ask_all(first_checks(config, platform, settings)))
    if {"machine", "variables"} & {finding.about for finding in missing}:
        said = "not checked; correct the errors first"
        return [*missing, Finding("platform", Status.UNKNOWN, said)]
    asked = platform.checks(config, settings, context)
    checks = [check for check in asked if check.cost in costs]
    looked_at = {check.about for check in checks if check.when}  # The platform's checks say more about these.
    return [*(finding for finding in missing if finding.about not in looked_at), *ask_all(checks)]


def require_ready(config: Config, platform: Platform, settings: Settings) -> list[Finding]:
    """Run a platform's quick checks: sign-in, bucket, image and service account.

    The arguments are those of `examine`.

    Returns:
        Findings that do not stop the run: hints, and checks whose result is unknown.

    Raises:
        InputError: If a run would fail. The message lists everything that is missing, with remedies.
    """
    findings = examine(config, (CheckCost.REQUEST,), platform, settings)
    if errors := errors_in(findings):
        advice = "`tpu-pipelines doctor` checks everything, and --no-doctor sends the run without checks."
        raise InputError(f"{_refusal(errors)} {advice}")
    return [finding for finding in findings if finding.state is not Status.OK]


def require_first(config: Config, platform: Platform, settings: Settings, *, needs_image: bool = True) -> None:
    """Run the checks in `first_checks` before a run is planned.

    Args:
        config: Configuration to check.
        platform: The platform.
        settings: Settings of the platform.
        needs_image: Whether to raise if the image is the only error. False for a dry run, which needs no image.

    Raises:
        InputError: If something is missing. The message lists everything that is missing, in the order in which to fix
            it, with remedies.
    """
    errors = errors_in(ask_all(first_checks(config, platform, settings)))
    if any(needs_image or error.about != "image" for error in errors):
        raise InputError(_refusal(errors))


def _refusal(errors: Iterable[Finding]) -> str:
    told = "; ".join(str(error).rstrip(".").replace("\n", " ") for error in errors)
    return f"The run was not sent, because it would fail. Missing: {told}."


class ConfigChecks:
    """Checks of a configuration and its data.

    The checks find errors that would stop a run, and settings that would bias its result. They are independent, so that
    one call finds all mistakes.

    Args:
        config: Configuration to check.
        workspace: Folder for runs, which may contain the champion, or None for a run on a platform.
        platform: The platform, or None for a run on this machine. For None, prices are those of the first platform that
            offers a machine.
        region: Region from the settings, for prices.
    """

    def __init__(self, config: Config, workspace: Path | None, platform: Platform | None, region: str) -> None:
        self._config = config
        self._workspace = workspace
        self._platform = platform
        self._region = region
        # `_data`, the check of the data, sets these two attributes.
        self._interface: Interface | None = None
        self._num_trained = 0

    def checks(self) -> list[Check]:
        """Return the checks, in the order in which their findings are shown."""
        return [
            Check("settings", self._settings, CheckCost.FILE),
            Check("machine", self._machine, CheckCost.FILE),
            Check("machine", self._device, CheckCost.SECONDS, when=self._needs_device),
            Check("deploy", self._deploy, CheckCost.FILE, when=self._workspace),
            Check("data", self._data, CheckCost.SECONDS),
            Check("model", self._model, CheckCost.SECONDS),
        ]

    def _settings(self) -> Iterator[Finding]:
        config = self._config
        yield Finding("settings", Status.OK, f"{config.name}: {config.data.asked}, {config.training.epochs} epochs")
        yield from (Finding("settings", Status.HINT, said) for said in contradictions(config))

    def _machine(self) -> Iterator[Finding]:
        for machine in self._config.machine.candidates if self._config.machine else ():
            platform = self._platform or platform_priced_as(machine.slice.targets[0])
            price = place_training(self._config, machine, platform, self._region).paid.price
            cost = (
                f"${price.usd_per_hour:.2f} per hour in {price.region} at {billed_by(price.target)}"
                if price
                else "its price is not known"
            )
            yield Finding("machine", Status.OK, f"{machine.name}: {machine.slice.devices} devices, {cost}")
            if (hosts := machine.slice.hosts) > 1:
                said = f"{machine.name} has {hosts} hosts. Use `submit`, because `run` trains on one host"
                yield Finding("machine", Status.HINT, said)
        if self._config.preflight:
            try:
                sandbox.require_compiler([self._config.preflight.paid.slice])
            except InputError as error:
                yield Finding("machine", Status.HINT, f"preflight would be skipped. {error}")

    @property
    def _needs_device(self) -> bool:
        return self._workspace is not None and names_accelerator(self._config.training)

    def _device(self) -> str:
        check_accelerator(self._config.training)
        return f"this machine has a {self._config.training.accelerator.upper()} to train on"

    def _deploy(self) -> Iterator[Finding]:
        check_deploy(self._config_here)
        named = parse_reference(place := self._config_here.training.initial_model)
        if named and named.find() is None:
            said = f"training.initial_model={place} has no version yet, so training starts with new weights"
            yield Finding("deploy", Status.HINT, said)

    @functools.cached_property
    def _config_here(self) -> Config:
        return with_registry(self._config, self._workspace.absolute()) if self._workspace else self._config

    def _data(self) -> Iterator[Finding]:
        config = self._config
        if find_source(config.data.source_ref).is_downloaded:
            said = f"{config.data.source} must be downloaded first, so it was not checked"
            yield Finding("data", Status.HINT, said)
            return
        plan = check_inputs(self._config_here, self._workspace) if self._workspace else check_data(config)
        overview = overview_of(plan)
        self._num_trained = plan.split_examples.get(TRAIN, 0)
        yield from (Finding("data", Status.OK, line) for line in overview.facts())
        yield from (Finding("data", Status.HINT, line) for line in overview.remarks())
        yield from self._damage(overview)
        yield from (Finding("settings", Status.HINT, said) for said in contradicted_by(overview, config))
        yield from (Finding("data", Status.HINT, said) for said in find_group_hints(plan.listing, config.data))
        with contextlib.redirect_stderr(io.StringIO()):  # Hides messages about temporary records.
            self._interface = sample_interface(plan)

    def _damage(self, overview: DataOverview) -> Iterator[Finding]:
        most = self._config.data.max_bad_fraction
        unusable = overview.unusable
        damaged = overview.damaged
        said = [
            (unusable, overview.num_inputs, f"{len(unusable):,} of {overview.num_inputs:,} examples cannot be used"),
            (damaged, overview.num_looked_at, "{:.1%} of the examples that were read are damaged"),
        ]
        for bad, count, what in said:
            if len(bad) > most * count:
                expected = f"expected at most data.max_bad_fraction={most:g}"
                told = f"{what.format(len(bad) / count)}: {expected}"
                advice = "repair or remove them" + (", or raise this limit" if len(bad) < count else "")
                yield Finding("data", Status.ERROR, told, advice)

    def _model(self) -> Iterator[Finding]:
        config = self._config
        model = config.training.model
        if (interface := self._interface) is None:
            raise CannotAskError("not built, because the data are missing")
        check_augmentation(config.training, (None, *interface.input.shape), interface.task_name)
        trial = check_model(config, interface, is_timed=self._workspace is not None)
        formats = f", and can be exported as {', '.join(config.required_formats)}" if config.required_formats else ""
        built = f"was built for {interface.input}, and rebuilt from its configuration"
        yield Finding("model", Status.OK, f"{model}: {built}{formats}")
        yield from (Finding("model", Status.HINT, warning) for warning in trial.warnings)
        if trial.example_seconds and self._num_trained:
            seconds = trial.example_seconds * self._num_trained * config.training.epochs
            work = f"{config.training.epochs} epochs of {self._num_trained:,} examples"
            told = f"training on this machine takes about {time(seconds)}, plus start-up and validation: {work}"
            yield Finding("training", Status.OK, told)


def contradictions(config: Config) -> Iterator[str]:
    """Yield messages about settings that contradict each other."""
    training = config.training
    shortest = min((stage.epochs for stage in training.stages), default=training.epochs)
    if training.warmup_epochs >= shortest:
        which = f"a stage, epochs={shortest}" if training.stages else f"training.epochs={shortest}"
        yield (
            f"training.warmup_epochs={training.warmup_epochs:g} lasts all of {which}, so the learning rate never "
            "reaches its peak"
        )
    if config.machine and training.accelerator == "cpu":
        yield f"training.accelerator={training.accelerator} leaves the machine {config.machine.name} unused"


def contradicted_by(overview: DataOverview, config: Config) -> Iterator[str]:
    """Yield messages about settings that do not suit the data."""
    if config.training.early_stopping_epochs and VALIDATION not in overview.split_examples:
        yield (
            "training.early_stopping_epochs uses the training loss, because there is no validation split. Set "
            "data.validation_fraction"
        )
    counts = overview.class_examples
    if config.data.asked == CLASSIFICATION and counts:
        name, most = max(counts.items(), key=lambda item: item[1])
        share = most / sum(counts.values())
        asked = config.gate.minimum.get("accuracy", 1.0)
        if asked <= share:
            yield (
                f"gate.minimum.accuracy={asked:g} is reached by always predicting {name!r}, which is {share:.2f} "
                "of the examples"
            )
        if overview.is_imbalanced and not config.training.weighs_classes:
            trained = sorted(overview.trained_classes.items(), key=lambda item: item[1])
            (rare, least), (name, most) = trained[0], trained[-1]
            yield (
                f"training has {most:,} examples of {name!r} and {least:,} of {rare!r}. training.balance_classes=true "
                "gives all classes the same weight, and gate.max_regression={macro_f1: 0} gives all classes the same "
                "weight in the gate"
            )


def first_checks(config: Config, platform: Platform, settings: Settings) -> list[Check]:
    """Return the checks that a submission makes first: image, settings, data, machine, model and registry.

    They are in the order in which to fix errors, and need no sign-in. They are independent of each other, so that
    `check`, `doctor` and a submission name everything that is missing.

    Args:
        config: Configuration to check.
        platform: The platform.
        settings: Settings of the platform.
    """
    names = platform.required_settings
    copy = functools.partial(plan_copy, config.data.source, settings.bucket)

    def place() -> str:
        mistakes = Mistakes()
        with mistakes.kept():
            settings.require(*names)
        with mistakes.kept():
            check_settings(platform, settings)
        mistakes.raise_all()
        return ", ".join(f"{name} {getattr(settings, name)}" for name in names) or "none is required"

    def data() -> str:
        local = compiling.unreadable_places(config, platform)
        if "data.source" in local:
            raise LackError(
                f"the steps cannot read {local['data.source']!r}, because it is on this machine",
                f"{copy().command}, and set data.source={copy().source}",
            )
        compiling.check_readable(config, platform)
        return f"the steps can read {config.data.source}"

    def machine() -> str:
        require_machine(config, platform)
        return ", then ".join(entry.name for entry in config.machines)

    def needing(*needed: str) -> None:
        if missing := [name for name in needed if name in names and not getattr(settings, name)]:
            raise CannotAskError(f"not checked, because these settings are missing: {', '.join(missing)}")

    def model() -> str:
        if bundle_of(config.training.model):
            needing("bucket")
        compiling.with_carried_model(config, platform, settings)
        return f"the steps can use {config.training.model}"

    def registry() -> str:
        needing("project", "region", "bucket")
        compiling.with_registry(config, platform, settings)
        return f"deploy.registry={config.deploy.registry if config.deploy else ''}"

    return [
        image_check(platform, settings.images),
        Check("variables", place, CheckCost.FILE),
        Check("data", data, CheckCost.FILE, commands=lambda: (ShellCommand(copy().words),)),
        Check("machine", machine, CheckCost.FILE),
        Check("model", model, CheckCost.FILE),
        Check("registry", registry, CheckCost.FILE, when=config.deploy and config.deploy.is_on_vertex),
    ]


def platform_checks(config: Config, platform: Platform, settings: Settings) -> list[Check]:
    """Return the checks of a submission that need no request to the platform: `first_checks` and the compilation.

    Args:
        config: Configuration to check.
        platform: The platform.
        settings: Settings of the platform.
    """
    first = first_checks(config, platform, settings)

    def compiled() -> Iterator[Finding]:
        missing = dict.fromkeys(finding.about for finding in errors_in(ask_all(first)) if finding.about != "image")
        if missing:
            raise CannotAskError(f"not compiled, because the {', '.join(missing)} is missing")
        made = compiling.compile_pipeline(config, platform, settings)
        said = f"the pipeline compiles, to train on {made.run.machine.slice}. {made.run.timeout.reason}"
        yield Finding("pipeline", Status.OK, said)
        yield from model_findings(config.training.model, made.run.carried)

    return [*first, Check("pipeline", compiled, CheckCost.SECONDS)]


def image_check(platform: Platform, images: Images) -> Check:
    """Return the check that a platform can pull the steps' image, and that the image's name contains a digest."""

    def ask() -> str | list[Finding]:
        compiling.require_step_image(platform, images)
        if is_pinned(images.training):
            return images.training
        said = (
            f"the image {images.training!r} is named by a tag. When the tag moves to another image, cached steps "
            "give outdated results"
        )
        return [Finding("image", Status.HINT, said, "set TPU_PIPELINES_IMAGE=…@sha256:…")]

    return Check("image", ask, CheckCost.FILE)


def model_findings(model: str, carried: Mapping[str, bytes]) -> Iterator[Finding]:
    """Yield findings about how a model's code reaches the platform, and about the files that are uploaded with it.

    Args:
        model: Name of the model in the configuration.
        carried: Content of the files to upload, by URI.
    """
    for place, content in carried.items():
        yield Finding("model", Status.OK, f"{model} is uploaded as {place}, {len(content):,} bytes")
        for name, size in data_files(Bundle(Path(place).name, content)).items():
            yield Finding("model", Status.HINT, f"{name}, {size:,} bytes, is uploaded with the model's code")
    if carried:
        return
    if is_reference(model) or not bundle_of(model):
        yield Finding("model", Status.OK, f"{model} is in the image")
    else:
        said = (
            f"the code of the model {model!r} is not uploaded, because no bucket is set, so the image must contain it"
        )
        yield Finding("model", Status.HINT, said, "or set TPU_PIPELINES_BUCKET=gs://BUCKET")
