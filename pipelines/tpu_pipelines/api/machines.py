"""The function `on_machine`, which runs a KFP component of any pipeline on a machine with a TPU or GPUs."""

import dataclasses
import difflib
import functools
import inspect
import os
import re
import warnings
from collections.abc import Mapping
from typing import Any, Never

from kfp.dsl.base_component import BaseComponent

from tpu_components.core.base.container_images import LOCAL_BEAM_IMAGE, LOCAL_IMAGE
from tpu_components.core.base.errors import InputError, did_you_mean
from tpu_components.core.base.typed_values import Mistakes, fields_of, read_by_hand
from tpu_components.core.files.location import Location
from tpu_components.core.machines.machine_spec import GPU, TPU, MachineSpec, parse_machine
from tpu_components.kfp.step_component import PipelineWarning, StepComponent
from tpu_components.kfp.wrapped_component import WrappedComponent, called, require_component
from tpu_pipelines.config.settings import Settings, fields_of_one_variable, load_settings
from tpu_pipelines.config.steps import StepResources
from tpu_pipelines.platforms.jobs import PlacedStep, Placement
from tpu_pipelines.platforms.platform import HERE, PLATFORMS, Platform, capitalized, check_settings, default_platform
from tpu_pipelines.platforms.resources import STEP_CPU, STEP_GIB

# Module of the only component that supports several hosts and keeps checkpoints.
_TRAINING = "tpu_components.train_model.component"
_NOT_SUBMITTED = "Only the submission of a pipeline uses this option. Remove it."
# Where an option may be written.
_ARGUMENT = "arguments"
_MACHINE = "machine"
_SETTINGS = "settings"
_OWN_SETTINGS = {field.name for field in fields_of_one_variable()}
_USED_NOWHERE = {
    **dict.fromkeys(
        ("kfp_host", "kfp_namespace", "vertex_endpoint", "google_endpoint", "experiment", "notify"), _NOT_SUBMITTED
    ),
    "images": "The image is part of the component. To change it, use with_image(component, IMAGE).",
    "fallbacks": "Only `tpu-pipelines submit` tries other machines. Remove fallbacks.",
    "max_wait_seconds": "Only `tpu-pipelines submit` waits for a machine. Remove max_wait_seconds.",
}
# Inputs of this package's components that select devices. `auto` would be the CPU of a machine with a TPU.
_ACCELERATOR = "accelerator"
_BACKEND = "backend"
_REPLICAS = "num_replicas"


def on_machine(
    component: Any,
    machine: str | Mapping[str, Any] | MachineSpec,
    *,
    platform: str = "",
    settings: Settings | Mapping[str, Any] | None = None,
    project: str = "",
    region: str = "",
    bucket: str = "",
    service_account: str = "",
    environment: Mapping[str, str] | None = None,
    retries: int | None = None,
    cpu: int = 0,
    memory: str = "",
    **misplaced: Never,
) -> WrappedComponent | BaseComponent:
    """Run any KFP component on a machine with a TPU or GPUs, on Vertex AI or a GKE cluster.

    On Vertex AI, the step becomes a custom job that Google's launcher starts. On Kubeflow, its pod requests the devices
    and selects the nodes. The component keeps its inputs, outputs, code, image and environment variables. Call the
    result in a pipeline as you call the component. On Vertex AI, the result has additional inputs, such as
    `job_timeout`.

    Options that you set on the task of a custom job, such as `set_env_variable` or `set_memory_limit`, apply to the
    launcher, not to the job. Instead, use the argument `environment` and a larger machine.

    Args:
        component: A component that runs one container. It may come from this package, from your code or from a third
            party. The object is not changed. On a machine with several hosts, only `train_model` is supported, because
            each host runs the container, and the program must find the other hosts.
        machine: Name of a machine, for example `v5e-4` or `l4-1`; a mapping with `name` and other fields of the section
            `machine` of a configuration, for example `{"name": "v5e-4", "spot": True, "timeout_seconds": 7200}`; or a
            `MachineSpec`. `tpu-pipelines machines` lists the names. Without `timeout_seconds`, the step is stopped
            after a day.
        platform: `vertex` (default), `kubeflow`, or `local`, which returns the component unchanged, for tests with
            kfp.local.
        settings: Project, region, bucket, service account, network, labels and other settings: a `Settings` object, or
            a mapping whose values override the environment variables `TPU_PIPELINES_…`. The default is the settings in
            the environment variables.
        project: Google Cloud project of the job on Vertex AI. The default is the project in the settings, otherwise the
            pipeline's project.
        region: Region of the machine on Vertex AI. The default is the region in the settings, otherwise the pipeline's
            region.
        bucket: Bucket for the checkpoints of `train_model` on Vertex AI. The default is the bucket in the settings,
            otherwise the pipeline's root.
        service_account: Service account of the job on Vertex AI. The default is the service account in the settings,
            otherwise that of the pipeline's job. On Kubeflow, the step always uses the service account of the run.
        environment: Environment variables of the step, in addition to those of the component and the settings.
        retries: Number of times that a failed step is started again. The default on Kubeflow is 5 for a spot machine or
            several hosts, otherwise 0. The default on Vertex AI is 0, because the service itself replaces lost
            machines.
        cpu: Number of CPUs that the pod requests on Kubeflow; 0 means 3. Not supported on Vertex AI, where the step
            uses the whole machine.
        memory: Memory that the pod requests on Kubeflow, for example `64Gi`; empty means 12Gi. Not supported on Vertex
            AI.
        misplaced: Other arguments are not supported. For an option of the machine or the settings, the error says where
            to write it.

    Returns:
        A `WrappedComponent`. Call it in a pipeline with the component's inputs by name, and it returns the task. If a
        component of this package has the input `accelerator`, the value `auto` becomes the machine's accelerator.

    Raises:
        InputError: If `component` is not a component or already has a machine; if the platform does not offer the
            machine or does not support an option; if the machine has several hosts and the component does not support
            them; or if the platform cannot pull the component's image.

    Warns:
        PipelineWarning: If a step on a spot machine on Kubeflow has no volume for checkpoints, or if a step would use
            only the CPU of its machine. The second warning can also appear when you call the result.

    Example:
        ```python
        from kfp import dsl
        import tpu_pipelines as tp

        @dsl.component(base_image="python:3.12", packages_to_install=["jax[tpu]"])
        def count_devices() -> int:
            import jax
            return jax.device_count()

        on_tpu = tp.on_machine(count_devices, "v5e-4", platform="vertex", region="us-west4")

        @dsl.pipeline
        def my_pipeline() -> int:
            return on_tpu().outputs["Output"]  # Not `output`: the custom job adds another output.
        ```
    """
    require_component(component, "on_machine")
    for name in misplaced:
        raise InputError(f"on_machine has no argument {name!r}.{_place(name, _ARGUMENT) or _meant(name)}")
    _check_places(machine, _MACHINE)
    spec = machine if isinstance(machine, MachineSpec) else parse_machine(machine)
    _check_places(settings, _SETTINGS)
    _check_kind("environment", environment or {}, Mapping, 'a mapping, such as {"NAME": "value"}')
    for name, value in (environment or {}).items():
        _check_kind(f"environment[{name!r}]", value, str, "a text, such as 'true' or '1'")
    if platform == HERE:
        _settings(settings, {}, {})
        return component
    chosen = _platform(platform)
    _check_kind("cpu", cpu, int, "a whole number, such as 8")
    _check_kind("retries", 0 if retries is None else retries, int, "a whole number, such as 3")
    _check_kind("memory", memory, str, "a text, such as '32Gi'")
    fields = {"project": project, "region": region, "bucket": bucket, "service_account": service_account}
    named = {name: value for name, value in fields.items() if value}
    _check_region(region, spec)
    _check_options(chosen, {**_changed(spec), **_explicit(settings), **named, "cpu": cpu, "memory": memory})
    merged = _settings(settings, named, environment or {})
    check_settings(chosen, merged)
    _check_image(component, chosen)
    _check_machine(component, spec, chosen)
    module = getattr(getattr(component, "python_func", None), "__module__", "")
    is_ours = module.startswith("tpu_components.")
    has_accelerator = _ACCELERATOR in (component.component_spec.inputs or {})
    if is_ours and not has_accelerator:
        _warn_of_idle_devices(component, spec, "It has no input `accelerator`: call it without on_machine.", stack=3)
    if not is_ours:
        _warn_of_packages(component, spec)
    if (not is_ours or module == _TRAINING) and (warning := chosen.restart_warning(spec, merged)):
        _warn_of_restart(component, warning, None if is_ours else merged.environment)
    step = called(component)
    placement = Placement(
        run=component.name,
        step=step,
        folder="",
        resources=StepResources(
            cpu=cpu or STEP_CPU,
            memory=memory or f"{STEP_GIB}Gi",
            retries=chosen.training_retries(spec) if retries is None else retries,
        ),
        uses_s3=bool(merged.s3_secret),
    )
    try:
        placed = chosen.on_machine(component, chosen.in_region(spec, merged.region), merged, placement)
    except ModuleNotFoundError as error:
        raise InputError(
            f"The platform {chosen.name} needs {error.name}, which is not installed. Run: pip install "
            "'kfp[kubernetes]'."
        ) from error
    if is_ours and has_accelerator:
        placed = _with_accelerator(placed, component, spec)
    if isinstance(component, StepComponent):
        placed = _with_checks(placed, component)
    return WrappedComponent(component, "on_machine", placed)


def _warn_of_restart(component: Any, warning: str, environment: Mapping[str, str] | None) -> None:
    """Warn that a step starts from scratch after it has lost its machine.

    A component of another package gets no warning if one of its environment variables names a location in an object
    store, because the step may store checkpoints there.

    Args:
        component: Component of the step.
        warning: Warning of the platform, without the final period.
        environment: Environment variables of the step, in addition to those of the component. None for a component of
            this package.
    """
    advice = "."
    if environment is not None:
        variables = {**(component.component_spec.implementation.container.env or {}), **environment}
        if any(Location(value).is_remote for value in variables.values()):
            return
        advice = (
            ', or give the component a folder in a bucket, as in environment={"CHECKPOINTS": "gs://BUCKET/FOLDER"}.'
        )
    warnings.warn(f"{called(component)}: {warning}{advice}", PipelineWarning, stacklevel=3)


def _with_checks(step: PlacedStep, component: StepComponent) -> PlacedStep:
    """Return a step that checks its inputs as the component does. Additional inputs of a custom job are allowed."""
    spec: Any = getattr(step, "component_spec", component.component_spec)
    others = spec.inputs or {}
    return functools.update_wrapper(lambda **inputs: step(**component.checked(inputs, others)), step)


def _with_accelerator(step: PlacedStep, component: Any, machine: MachineSpec) -> PlacedStep:
    """Return a step that uses all devices of its machine, unless its input `accelerator` is `cpu`."""

    def make(**inputs: Any) -> Any:
        requested = inputs.get(_ACCELERATOR, "auto")
        if not isinstance(requested, str):  # An input of the pipeline, whose value is known only when it runs.
            return step(**inputs)
        accelerator = machine.choose_accelerator(requested, _ACCELERATOR)
        if accelerator == "cpu":
            advice = f"Remove {_ACCELERATOR}='cpu', or call the component without on_machine."
            _warn_of_idle_devices(component, machine, advice, stack=5)
        elif isinstance(backend := inputs.get(_BACKEND, "auto"), str):
            machine.slice.require_backend(backend)
        if isinstance(num_replicas := inputs.get(_REPLICAS, 0), int):
            machine.check_replicas(accelerator, num_replicas, _REPLICAS)
        return step(**{**inputs, _ACCELERATOR: accelerator})

    return functools.update_wrapper(make, step)


def _warn_of_idle_devices(component: Any, machine: MachineSpec, advice: str, stack: int) -> None:
    """Warn that a step does not use the devices of its machine. `stack` is the `stacklevel` of the warning."""
    warnings.warn(
        f"{called(component)} uses only the CPU of {machine.name}, but you pay for its devices. {advice}",
        PipelineWarning,
        stacklevel=stack,
    )


def _warn_of_packages(component: Any, machine: MachineSpec) -> None:
    """Warn if a component would use only the CPU, because it installs JAX for devices that its machine lacks."""
    container = component.component_spec.implementation.container
    installed = re.search(r"'(jax(?:\[([\w,]+)\])?)(?![\w-])[^']*'", " ".join(map(str, container.command or [])))
    extra = {TPU: "tpu", GPU: "cuda12"}[machine.slice.generation.accelerator]
    if installed and not (installed[2] or "").startswith(extra[:4]):
        advice = f"It installs {installed[1]}: write packages_to_install=['jax[{extra}]']."
        _warn_of_idle_devices(component, machine, advice, stack=4)


def _changed(machine: MachineSpec) -> dict[str, Any]:
    """Return the fields of a machine that differ from their defaults."""
    values = {name: getattr(machine, name) for name in fields_of(MachineSpec)}
    return {name: value for name, value in values.items() if value != fields_of(MachineSpec)[name].default}


def _explicit(settings: Settings | Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the settings that the caller has chosen, by name.

    Settings that equal those of the environment variables are left out. The variables apply to all platforms, so it is
    no mistake if this platform does not support one of them.
    """
    if not isinstance(settings, Settings):
        return dict(settings or {})
    usual = load_settings(os.environ)
    values = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    return {name: value for name, value in values.items() if value != getattr(usual, name)}


def _check_kind(name: str, value: Any, kind: type, expected: str) -> None:
    if not isinstance(value, kind) or (isinstance(value, int) and value < 0):
        raise InputError(f"Cannot use {name}={value!r}: expected {expected}.")


def _place(name: str, received_in: str) -> str:
    """Return a sentence that says where to write an option: as an argument, or in the machine or the settings.

    Return an empty string if the option is unknown, or belongs to `received_in`, where the caller wrote it.
    """
    arguments = inspect.signature(on_machine).parameters.keys() - {"component", "misplaced"}
    places = {
        _ARGUMENT: (arguments, f"It is an argument: on_machine(…, {name}=…)."),
        _MACHINE: (fields_of(MachineSpec).keys(), f'It belongs to the machine: {{"name": "v5e-4", "{name}": …}}.'),
        _SETTINGS: (_OWN_SETTINGS, f'It belongs to the settings: settings={{"{name}": …}}.'),
    }
    if received_in and name in places[received_in][0]:
        return ""
    return next((f" {sentence}" for names, sentence in places.values() if name in names), "")


def _meant(name: str) -> str:
    """Return " Did you mean …?" and where to write the option with a similar name, or "" if no name is similar."""
    options = {*inspect.signature(on_machine).parameters, *fields_of(MachineSpec), *_OWN_SETTINGS}
    near = difflib.get_close_matches(name, sorted(options), n=1)
    return f" Did you mean {near[0]!r}?{_place(near[0], '')}" if near else ""


def _check_places(options: Any, received_in: str) -> None:
    """Check that a mapping has no option that belongs elsewhere. Other types of values are not checked.

    Raises:
        InputError: If an option belongs elsewhere. The message says where.
    """
    for name in options if isinstance(options, Mapping) else ():
        if place := _place(name, received_in):
            raise InputError(f"{name!r} is not a field of the {received_in}. Received: {options[name]!r}.{place}")


def _check_region(region: str, machine: MachineSpec) -> None:
    """Check that the argument `region` and the machine do not name different regions.

    Raises:
        InputError: If they name different regions.
    """
    if region and machine.region and machine.region != region:
        raise InputError(
            f"Received region={region!r} and a machine with region={machine.region!r}. Remove one of them."
        )


def _check_options(platform: Platform, options: Mapping[str, Any]) -> None:
    """Check that the platform supports all options.

    Raises:
        InputError: If the platform does not support some options. The message names each of them, and says what to do
            instead.
    """
    mistakes = Mistakes()
    for name, advice in {**_USED_NOWHERE, **platform.unused_options}.items():
        if value := options.get(name):
            if name == "fallbacks":
                value = [machine.name for machine in value]
            mistakes.add(f"{name} has no effect on the platform {platform.name}. Received: {name}={value!r}. {advice}")
    mistakes.raise_all()


def _platform(name: str) -> Platform:
    if not name:
        return default_platform()
    if name not in PLATFORMS:
        names = [*PLATFORMS, HERE]
        raise InputError(f"Unknown platform {name!r}: expected one of {', '.join(names)}.{did_you_mean(name, names)}")
    return PLATFORMS[name]


def _settings(
    settings: Settings | Mapping[str, Any] | None, fields: Mapping[str, str], environment: Mapping[str, str]
) -> Settings:
    """Return the settings with additional fields and environment variables, after checking all values again."""
    base = settings if isinstance(settings, Settings) else load_settings(os.environ)
    values = {field.name: getattr(base, field.name) for field in dataclasses.fields(base)}
    values |= settings if isinstance(settings, Mapping) else {}
    values |= fields
    values["environment"] = {**values["environment"], **environment}
    images = values.pop("images")
    merged: Settings = read_by_hand(values, Settings, "settings", fixed={"images": images})
    return merged


def _check_machine(component: Any, machine: MachineSpec, platform: Platform) -> None:
    machine.slice.require_target(platform.catalogue_name)
    function = getattr(component, "python_func", None)
    if machine.slice.hosts > 1 and getattr(function, "__module__", "") != _TRAINING:
        raise InputError(
            f"{machine.name} has {machine.slice.hosts} hosts. Each would run {component.name!r} and write the same "
            "outputs. Only this package's train_model supports several hosts. Use a single-host machine; "
            "`tpu-pipelines machines` lists them."
        )


def _check_image(component: Any, platform: Platform) -> None:
    container = component.component_spec.implementation.container
    if container is None:
        raise InputError(
            f"Only a component that runs one container can be placed on a machine. Received: {component.name!r}. For a "
            "pipeline, call on_machine for each of its steps."
        )
    if not container.image:
        raise InputError(
            f"The component {component.name!r} has no container image. Set one: with_image(component, IMAGE)."
        )
    if container.image in (LOCAL_IMAGE, LOCAL_BEAM_IMAGE):
        name = called(component)
        raise InputError(
            f"{capitalized(platform.title)} cannot pull {container.image!r}, the image of {name}: it exists only where "
            f'`make image` built it. Push it, and use with_image({name}, "REGISTRY/NAME@sha256:…").'
        )
