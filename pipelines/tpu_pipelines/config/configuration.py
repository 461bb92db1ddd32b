"""Reads a run's configuration from a YAML file or a ready example, and checks every key and value."""

import contextlib
import dataclasses
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

import yaml

from tpu_components.core.base.errors import InputError, did_you_mean
from tpu_components.core.base.typed_values import (
    Mistakes,
    Pattern,
    as_json,
    changed_values,
    fields_of,
    read_by_hand,
    unknown_key,
)
from tpu_components.core.examples.interface import TASKS
from tpu_components.core.examples.slice_values import SIZE
from tpu_components.core.files.location import Location
from tpu_components.core.machines.machine_spec import MachineSpec, PaidMachine, parse_machine
from tpu_components.core.models.lookup import check_model
from tpu_components.core.models.training_step.hyperparameters import Stage, TrainParams
from tpu_components.core.registry.reference import ALIAS, MODEL_NAME, reference
from tpu_components.core.sources.kinds import find_location
from tpu_components.core.sources.params import WriteParams
from tpu_components.core.sources.source_ref import SourceRef
from tpu_components.deploy_model.params import DeployParams
from tpu_components.evaluate_model.params import CLASS, LENGTH, EvaluateParams
from tpu_components.export_model.params import ExportParams
from tpu_components.preflight_training.params import PreflightParams
from tpu_pipelines.config.steps import STEP_TABLE, STEPS, StepResources
from tpu_pipelines.config.yaml_files import read_mapping, read_value

_OF_THE_RUN: dict[str, Any] = {
    "lineage": {},
    "preflight": {},
}  # Parameters of deploy_model that a configuration cannot set.
CONFIGS_DIR = Path(__file__).parents[1] / "configs"
# In a workspace, `NAME.runs` is the folder of earlier runs of NAME; the others are its registry, receipts and pages.
RUN_NAME = Pattern(
    r"(?![.-])(?!(registry|receipts|index\.html|comparison\.html)$)(?!.*\.runs$)[\w.-]{1,64}",
    "at most 64 letters, digits, '-', '_' and '.', without '-' or '.' at the start, and not 'registry', "
    "'receipts', 'index.html', 'comparison.html' or a name that ends in '.runs', which a workspace reserves",
)
_NAME = Annotated[str, RUN_NAME]


@dataclasses.dataclass(frozen=True)
class Config:
    """Configuration of a run, with a section for each step. The model has a separate section.

    Attributes:
        name: Name of the run's folder: letters, digits, `-`, `_` and `.`.
        data: Parameters of create_tfrecords.
        training: Parameters of train_model, with the model and its parameters.
        gate: Parameters of evaluate_model.
        export: Parameters of export_model. If None, the run ends after the gate.
        machine: Machine with a TPU or GPUs that trains in the cloud, or None if the configuration names none.
        preflight: Parameters of preflight_training. They include the parameters of training and the machine. None
            leaves the step out, which is the default without `machine`.
        is_preflight_off: Whether the configuration contains `preflight: false`, which switches preflight off for every
            machine.
        model_files: Additional files and folders, local or on gs://, that the model's code reads. Cached steps run
            again when one of them changes. Files that the code or a parameter names are detected automatically.
        deploy: Parameters of deploy_model. None leaves the step out. If `deploy.registry` is empty, a local run uses
            the registry of its workspace.
        resources: Resources that the configuration sets, by step. `resources.resources_of` adds the defaults.
    """

    name: str
    data: WriteParams
    training: TrainParams
    gate: EvaluateParams
    export: ExportParams | None
    machine: MachineSpec | None = None
    preflight: PreflightParams | None = None
    deploy: DeployParams | None = None
    model_files: tuple[str, ...] = ()
    resources: Mapping[str, StepResources] = dataclasses.field(default_factory=dict)
    is_preflight_off: bool = dataclasses.field(default=False, compare=False)

    @property
    def steps(self) -> list[str]:
        """Names of the run's steps, without the steps that the configuration leaves out."""
        return [name for name, step in STEP_TABLE.items() if getattr(self, step.section) is not None]

    @property
    def required_formats(self) -> tuple[str, ...]:
        """Formats that the export must contain. Empty if nothing is exported."""
        return self.export.required if self.export else ()

    @property
    def champion(self) -> str:
        """Path or reference of the model to beat: `gate.champion` if it is set, otherwise the registry's champion.

        Empty if neither `gate.champion` nor `deploy.registry` is set.
        """
        if self.gate.champion or not self.deploy or not self.deploy.registry:
            return self.gate.champion
        return reference(self.deploy.registry, self.deploy.model_name, self.deploy.alias)

    def on_registry(self, root: str) -> Self:
        """Return the configuration with a registry added to `training.initial_model`.

        The value changes only if it has the form `MODEL@VERSION_OR_ALIAS`. It becomes `ROOT/MODEL@VERSION_OR_ALIAS`.

        Args:
            root: Registry to add.
        """
        named = self.training.initial_model
        if not re.fullmatch(rf"{MODEL_NAME}@(\d+|{ALIAS})", named):
            return self
        return self.changed("training", initial_model=f"{root}/{named}")

    def changed(self, section: str, **values: Any) -> Self:
        """Return a copy of the configuration with some values of a section replaced."""
        return dataclasses.replace(self, **{section: dataclasses.replace(getattr(self, section), **values)})

    def with_machine(self, machine: MachineSpec) -> Self:
        """Return the configuration with another training machine.

        The result includes preflight, unless the configuration switches preflight off.

        Raises:
            InputError: If the machine does not support the backend of the configuration.
        """
        preflight = self.preflight
        if preflight is None and not self.is_preflight_off:
            preflight = PreflightParams(self.training, paid=machine.paid)
        return dataclasses.replace(self, machine=machine, preflight=preflight)

    @property
    def evaluation_machine(self) -> MachineSpec | None:
        """Machine with a TPU or GPU on which evaluate_model runs, or None if the step runs on CPUs.

        Raises:
            InputError: If the machine is not in the catalogue, or not available in the region of the training step.
        """
        requested = self.resources.get("evaluate_model", StepResources())
        if not requested.machine:
            return None
        region = self.machine.region if self.machine else ""
        return MachineSpec(requested.machine, region=region, timeout_seconds=requested.timeout)

    @property
    def machines(self) -> tuple[MachineSpec, ...]:
        """All machines that a run may use: the training machine, its fallbacks, and the evaluation machine."""
        training = self.machine.candidates if self.machine else ()
        return (*training, *([self.evaluation_machine] if self.evaluation_machine else []))

    @property
    def data_location(self) -> Location:
        """Path or URI of the data, or an empty location if a library provides the data."""
        return find_location(self.data.source_ref)

    def as_dict(self) -> dict[str, Any]:
        """Return the sections as plain values for a YAML file, with all defaults."""
        model = {"name": self.training.model, "parameters": self.training.model_parameters}
        if self.model_files:
            model["files"] = self.model_files
        plain: dict[str, Any] = {"name": self.name, "model": model}
        for section in ("training", "data", "gate", "export", "machine", "preflight", "deploy"):
            if params := getattr(self, section):
                values = as_json(params)
                plain[section] = {name: values[name] for name in SETTINGS[section]}
            elif section != "machine":
                plain[section] = False
        if self.resources:
            plain["resources"] = {step: changed_values(requested) for step, requested in self.resources.items()}
        return as_json(plain)


def ready_examples() -> tuple[str, ...]:
    """Return the names of the ready examples."""
    return tuple(sorted(path.stem for path in CONFIGS_DIR.glob("*.yaml")))


def load_config(config: str | Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> Config:
    """Read and check a configuration.

    Args:
        config: Name of a ready example, a YAML file, or a mapping of sections.
        overrides: Changes to the configuration, each as `section.key=value`. The values are YAML.

    Raises:
        InputError: If the file does not exist or is not YAML, or a key or value is wrong. The message suggests a
            similar key.
    """
    if isinstance(config, Mapping):
        return parse_config(overridden(as_json(config), overrides))
    path = Path(config)
    if path.suffix not in (".yaml", ".yml"):
        path = CONFIGS_DIR / f"{config}.yaml"
        if not path.is_file():
            raise InputError(
                f"Unknown configuration {str(config)!r}: expected a .yaml file or one of "
                f"{', '.join(ready_examples())}." + did_you_mean(str(config), ready_examples())
            )
    return parse_config(overridden(read_mapping(path, "the configuration", "sections"), overrides), str(config))


def read_export(values: Mapping[str, Any] | bool, overrides: Sequence[str] = ()) -> ExportParams:
    """Read and check a section `export` without the rest of a configuration.

    Args:
        values: Values of the section. True and False mean the defaults.
        overrides: Changes, each as `export.key=value`. The values are YAML.

    Raises:
        InputError: If a key or value is wrong, or an override changes another section.
    """
    raw = overridden({"export": {**values} if isinstance(values, Mapping) else {}}, overrides)
    if strange := [key for key in raw if key != "export"]:
        raise InputError(unknown_key(strange[0], ("export",), "the overrides"))
    return read_by_hand(raw["export"], ExportParams, "export")


def read_data(source: str, overrides: Sequence[str] = ()) -> WriteParams:
    """Return the section `data` for a source, with defaults for every setting that `overrides` does not change.

    Args:
        source: Source of the data.
        overrides: Changes, each as `section.key=value`. Changes to sections other than `data` are ignored.

    Raises:
        InputError: If a key or value is wrong.
    """
    own = [text for text in overrides if text.startswith("data.")]
    return read_by_hand(overridden({"data": {"source": source}}, own)["data"], WriteParams, "data")


def overridden(raw: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Apply overrides to a mapping of sections, in place. Return the mapping.

    Args:
        raw: Sections of a configuration.
        overrides: Changes, each as `section.key=value`. The values are YAML.

    Raises:
        InputError: If an override does not have this form, or its section is not a mapping.
    """
    for change in overrides:
        _override(raw, change)
    return raw


def _override(raw: dict[str, Any], change: str) -> None:
    path, separator, text = change.partition("=")
    if not separator or not path:
        raise InputError(f"Cannot use the override {change!r}: expected section.key=value, as in training.epochs=3.")
    *sections, key = path.split(".")
    if sections and sections[0] in ("model", "machine") and isinstance(raw.get(sections[0]), str):
        raw[sections[0]] = {"name": raw[sections[0]]}
    target = raw
    for section in sections:
        if target.get(section) in (None, True):  # A section without settings.
            target[section] = {}
        target = target[section]
        if not isinstance(target, dict):
            raise InputError(
                f"Cannot use the override {change!r}: {section!r} is a value, not a section. Expected "
                "section.key=value."
            )
    try:
        target[key] = read_value(text)
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(
            f"Cannot use the override {change!r}: the value is not valid YAML. Correct the value."
        ) from error


@dataclasses.dataclass(frozen=True)
class ModelSection:
    """Section `model` of a configuration: the model to train.

    Attributes:
        name: A ready-made model, a .py or .keras file, or `module:function`. The section may also be just this name.
        parameters: Arguments of `build_model`, in addition to the arguments that the data determine.
        files: Additional files and folders, local or on gs://, that the model's code reads. Cached steps run again when
            one of them changes. Local files that the code or a parameter names are detected automatically. Files in a
            bucket are not.
    """

    name: str
    parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    files: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for file in self.files:
            if not Location(file).is_remote and not Path(file).exists():
                raise InputError(
                    f"The file {file!r} in model.files does not exist. Correct the path, or remove it from model.files."
                )
        check_model(self.name, self.parameters)


_PARAMS: dict[str, Any] = {
    "data": WriteParams,
    "model": ModelSection,
    "training": TrainParams,
    "machine": MachineSpec,
    "preflight": PreflightParams,
    "gate": EvaluateParams,
    "export": ExportParams,
    "deploy": DeployParams,
    "resources.STEP": StepResources,
}
_SET_ELSEWHERE = {
    "training": ("model", "model_parameters"),
    "preflight": ("training", "epochs", "paid"),
    "gate": ("prediction",),
    "deploy": tuple(_OF_THE_RUN),
}
# Field of every setting, by section and name.
SETTINGS = {
    section: {name: field for name, field in fields_of(params).items() if name not in _SET_ELSEWHERE.get(section, ())}
    for section, params in _PARAMS.items()
}
KEYS = ("name", "data", "model", "training", "machine", "preflight", "gate", "export", "deploy", "resources")


def parse_config(raw: Mapping[str, Any], where: str = "the configuration") -> Config:
    """Check a mapping of sections and convert it to a `Config`.

    Args:
        raw: Sections of the configuration.
        where: Name of the configuration in error messages.

    Raises:
        InputError: If a key is unknown, a required key is missing, or a value has the wrong type or is out of range.
    """
    mistakes = Mistakes()
    with mistakes.kept():
        _check_sections(raw, where)
    raw = _expand_home(raw)
    if missing := [key for key in ("name", "data", "model") if key not in raw]:
        mistakes.add(f"Missing in {where}: {', '.join(missing)}. Expected at least name, data and model.")
        mistakes.raise_all()
    sections: dict[str, Any] = {}

    def read(section: str, make: Callable[..., Any], *values: Any) -> None:
        with mistakes.kept():
            sections[section] = make(raw.get(section), *values)

    read("name", read_by_hand, _NAME, "name")
    read("model", _read_model)
    read("data", _read_section, WriteParams, "data")
    read("training", _read_training, sections.get("model"))
    read("gate", _read_gate, sections.get("data"), sections.get("training"))
    read("export", _read_optional, ExportParams, "export")
    # If section training is wrong, defaults replace it, so that mistakes in the sections below are shown as well.
    training = sections.get("training", TrainParams(model=""))
    read("machine", lambda value: None if value is None else parse_machine(value, training.backend))
    # Compiling for a TPU takes time: preflight runs only if a machine or section preflight is configured.
    machine = sections.get("machine")
    is_preflight_off = raw.get("preflight") is False
    if "preflight" not in raw and raw.get("machine") is None:
        raw["preflight"] = False
    fixed = {"training": training, "epochs": 0, "paid": machine.paid if machine else PaidMachine()}
    read("preflight", _read_optional, PreflightParams, "preflight", fixed)
    read("deploy", _read_deploy, sections.get("name", "name"), raw.get("export") is not False)
    read("resources", _read_section, Mapping[Annotated[str, STEPS], StepResources], "resources")
    mistakes.raise_all()
    config = Config(model_files=sections.pop("model").files, is_preflight_off=is_preflight_off, **sections)
    _check_machines(config)
    return config


def _check_machines(config: Config) -> None:
    """Check that `resources` sets a machine only for evaluate_model, and that this step can use the machine."""
    for step, requested in config.resources.items():
        if requested.machine and step != "evaluate_model":
            advice = (
                "Set the machine of training in the section machine."
                if step == "train_model"
                else "This step runs on CPUs. Set cpu and memory instead."
            )
            raise InputError(
                f"resources.{step}.machine is not supported: only resources.evaluate_model.machine is. Received: "
                f"{requested.machine!r}. {advice}"
            )
    if (machine := config.evaluation_machine) is None:
        return
    machine.require_one_host("evaluate_model runs on one host")
    own = machine.slice.generation.accelerator
    if config.gate.accelerator not in ("auto", own) or config.gate.backend == "tensorflow":
        raise InputError(
            f"resources.evaluate_model.machine={machine.name} requires gate.accelerator to be {own} or auto, and "
            f"gate.backend to be jax or auto. Received: {config.gate.accelerator} and {config.gate.backend}. Remove "
            "both settings."
        )


def _read_model(value: Any) -> ModelSection:
    """Read the section `model`. Instead of a mapping, its value may be the name of the model."""
    values = {"name": value} if isinstance(value, str) else value
    if isinstance(values, dict):
        _check_plain(values.get("parameters"))
    return read_by_hand(values, ModelSection, "model")


def _read_section(values: Any, kind: Any, section: str, fixed: Mapping[str, Any] = {}) -> Any:
    return read_by_hand({} if values is None else values, kind, section, fixed)


def _read_training(values: Any, model: ModelSection | None) -> TrainParams:
    """Return the training parameters from the sections `training` and `model`.

    If the section `training` has stages, the default of `epochs` is the sum of their epochs.
    """
    if isinstance(values, dict) and "stages" in values and "epochs" not in values:
        with contextlib.suppress(InputError):  # The error is reported with the section's other mistakes.
            stages = read_by_hand(values["stages"], tuple[Stage, ...], "training.stages")
            values = {**values, "epochs": sum(stage.epochs for stage in stages)} if stages else values
    fixed = {"model": model.name if model else "", "model_parameters": model.parameters if model else {}}
    return _read_section(values, TrainParams, "training", fixed)


def _read_gate(values: Any, data: WriteParams | None, training: TrainParams | None) -> EvaluateParams:
    if data and (values is None or isinstance(values, dict)):
        values = {"max_regression": {TASKS[data.asked].judged: 0.0}, **(values or {})}
    gate: EvaluateParams = _read_section(values, EvaluateParams, "gate", {"prediction": {}})
    try:
        if data:
            gate.check_task(data.asked, dict.fromkeys(training.metrics if training else ()))
            gate.check_slices([CLASS, LENGTH, SIZE, *data.slice_columns])
    except InputError as error:
        raise InputError(f"Cannot use gate: {error}") from error
    return gate


def _check_sections(raw: Mapping[str, Any], where: str) -> None:
    """Check that each key is the name of a section.

    If a key is the name of a setting, the error suggests the section of this setting.
    """
    for key in raw:
        if homes := [section for section, keys in SETTINGS.items() if key not in KEYS and key in keys]:
            full = " or ".join(f"{section}.{key}" for section in homes)
            raise InputError(f"Unknown key {key!r} in {where}: a setting must be in its section. Did you mean {full}?")
    if strange := [unknown_key(key, KEYS, where) for key in raw if key not in KEYS]:
        raise InputError("\n".join(strange))


def _expand_home(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections with `~` at the start of values replaced by the home directory.

    In the section data, `~` is replaced only in the path of the source.
    """

    def home(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: home(item) for key, item in value.items()}
        if isinstance(value, list):
            return [home(item) for item in value]
        return os.path.expanduser(value) if isinstance(value, str) and value.startswith("~") else value

    expanded = {section: values if section == "data" else home(values) for section, values in raw.items()}
    if isinstance(data := raw.get("data"), dict) and isinstance(source := data.get("source"), str):
        ref = SourceRef.parse(source)
        at_home = dataclasses.replace(ref, place=Location(home(str(ref.place))))
        expanded["data"] = {**data, "source": str(at_home)} if ref.kind else data
    return expanded


def _read_optional(values: Any, kind: type, section: str, fixed: Mapping[str, Any] = {}) -> Any:
    """Read the section of an optional step. Return None if the section is `false`, which leaves the step out.

    If the section is missing or `true`, all settings have their defaults.
    """
    if values is False:
        return None
    if values not in (None, True) and not isinstance(values, dict):
        raise InputError(f"Cannot use {section}: expected a mapping, or false to skip the step. Received: {values!r}.")
    return _read_section(values if isinstance(values, dict) else {}, kind, section, fixed)


def _read_deploy(values: Any, name: str, is_exported: bool) -> DeployParams | None:
    if values not in (None, False) and not is_exported:
        raise InputError(
            "Cannot deploy a model that is not exported: with export: false, the run ends after the gate. Received: "
            f"deploy={values!r}. Remove deploy, or remove export: false."
        )
    if values in (None, True) or isinstance(values, dict):
        values = {"registry": "", "model_name": name, **(values if isinstance(values, dict) else {})}
    return _read_optional(values if is_exported else False, DeployParams, "deploy", _OF_THE_RUN)


def preflight_params(config: Config, paid: PaidMachine) -> PreflightParams:
    """Return preflight's parameters for a machine, even if the configuration leaves preflight out.

    Raises:
        InputError: If the machine does not support the backend of the configuration.
    """
    values = {name: getattr(config.preflight, name) for name in SETTINGS["preflight"]} if config.preflight else {}
    return dataclasses.replace(PreflightParams(config.training, paid=paid), **values)


def _check_plain(value: Any) -> None:
    """Check that JSON can represent model.parameters.

    YAML can contain NaN and dates, which JSON cannot represent.
    """
    try:
        is_plain = json.loads(json.dumps(value, allow_nan=False)) == value
    except (TypeError, ValueError):
        is_plain = False
    if not is_plain:
        raise InputError(
            "Cannot use model.parameters: expected strings, finite numbers, true, false, lists, and mappings with "
            f"string keys. Received: {value!r}. Put dates and keys in quotes."
        )
