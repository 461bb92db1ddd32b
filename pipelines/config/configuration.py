"""A run's configuration: a YAML file or a ready example, every key checked against what the steps take."""

import dataclasses
import math
import os
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from tpu_components.core.base.errors import InputError, did_you_mean
from tpu_components.core.examples.interface import TASKS
from tpu_components.core.examples.slice_values import SIZE
from tpu_components.core.files import storage
from tpu_components.core.machines.machine_spec import MachineSpec, PaidMachine, parse_machine
from tpu_components.core.models.lookup import check_model
from tpu_components.core.registry.reference import reference
from tpu_components.core.sources.kinds import find_location
from tpu_components.core.sources.params import WriteParams, split_source
from tpu_components.deploy_model.params import DeployParams
from tpu_components.evaluate_model.params import CLASS, LENGTH, EvaluateParams
from tpu_components.export_model.params import ExportParams
from tpu_components.preflight_training.params import PreflightParams
from tpu_components.train_model.params import Stage, TrainParams
from tpu_pipelines.config import step_resources
from tpu_pipelines.config.step_resources import StepResources
from tpu_pipelines.config.steps import STEP_TABLE
from tpu_pipelines.config.yaml_files import read_mapping

PREFLIGHT_KEYS = (
    "find_largest_batch",
    "max_step_ms",
    "max_price_usd",
    "max_host_wait",
    "compile_timeout_seconds",
    "compile_memory_mib",
)
_OF_THE_RUN: dict[str, Any] = {"lineage": {}, "preflight": {}}  # Parameters of deploy_model that nobody sets by hand.
DEPLOY_KEYS = tuple(field.name for field in dataclasses.fields(DeployParams) if field.name not in _OF_THE_RUN)
CONFIGS_DIR = Path(__file__).parents[1] / "configs"
_NAME_LENGTH = 64
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Config:
    """One section per step; `model` is set apart from `training`, because examples differ in it.

    Attributes:
        name: Name of the run's folder: letters, digits, `-`, `_` and `.`.
        data: Parameters of create_tfrecords.
        training: Parameters of train_model, the model and its own included.
        gate: Parameters of evaluate_model.
        export: Parameters of export_model; None ends the run after the gate.
        machine: The TPU slice to train on in the cloud, if one is named.
        preflight: Parameters of preflight_training, most of them from the training and the machine; None leaves it out,
            as does a configuration that says neither machine nor preflight.
        model_files: Files and folders, here or on gs://, that the model's code reads: with other content it is another
            model. Those that its code or a parameter names are known without.
        deploy: Parameters of deploy_model; None leaves it out. Without a registry of its own, a local run has one in
            its workspace.
        resources: Resources that steps ask of a platform, by step, as far as they are set; see
            `resources.resources_of`.
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

    @property
    def steps(self) -> list[str]:
        """The steps of the run, without those that it leaves out."""
        return [name for name, step in STEP_TABLE.items() if getattr(self, step.section) is not None]

    @property
    def required_formats(self) -> tuple[str, ...]:
        """Formats that the export must hold."""
        return self.export.required if self.export else ()

    @property
    def champion(self) -> str:
        """The model to beat, as evaluate_model takes it: the one that the gate names, else the registry's."""
        if self.gate.champion or not self.deploy or not self.deploy.registry:
            return self.gate.champion
        return reference(self.deploy.registry, self.deploy.model_name, self.deploy.alias)

    @property
    def data_location(self) -> str:
        """Place of the data, here or on gs://; empty where they come with a library."""
        return find_location(self.data.source)

    def as_dict(self) -> dict[str, Any]:
        """Return the sections as they stand in a YAML file, defaults filled in."""
        training = dataclasses.asdict(self.training)
        model = {"name": training.pop("model"), "parameters": training.pop("model_parameters")}
        if self.model_files:
            model["files"] = self.model_files
        sections = {name: dataclasses.asdict(getattr(self, name)) for name in ("data", "gate")}
        plain: dict[str, Any] = {"name": self.name, "model": model, "training": training, **sections}
        plain["export"] = dataclasses.asdict(self.export) if self.export else False
        if self.machine:
            plain["machine"] = self.machine.as_dict()
        for section, keys in (("preflight", PREFLIGHT_KEYS), ("deploy", DEPLOY_KEYS)):
            params = getattr(self, section)
            plain[section] = {name: getattr(params, name) for name in keys} if params else False
        if self.resources:
            plain["resources"] = step_resources.as_dict(self.resources)
        return typing.cast(dict[str, Any], without_tuples(plain))


def without_tuples(value: Any) -> Any:
    """Return values, nested or not, with a list for every tuple."""
    if isinstance(value, dict):
        return {key: without_tuples(item) for key, item in value.items()}
    return [without_tuples(item) for item in value] if isinstance(value, list | tuple) else value


def ready_examples() -> tuple[str, ...]:
    """Return the names of the ready examples."""
    return tuple(sorted(path.stem for path in CONFIGS_DIR.glob("*.yaml")))


def load_config(name_or_path: str, overrides: Sequence[str] = ()) -> Config:
    """Read a configuration.

    Args:
        name_or_path: A ready example's name, or a YAML file.
        overrides: `section.key=value` each; the value is YAML.

    Raises:
        InputError: If there is no such file, it is not YAML, or a key or value is wrong; says the nearest right key.
    """
    raw = _read(name_or_path)
    for text in overrides:
        override(raw, text)
    return parse_config(raw, name_or_path)


def read_export(values: Mapping[str, Any] | bool, overrides: Sequence[str] = ()) -> ExportParams:
    """Read section `export` alone, with `export.key=value` over it.

    Raises:
        InputError: If a key or value is wrong, or an override is of another section.
    """
    raw: dict[str, Any] = {"export": {**values} if isinstance(values, Mapping) else {}}
    for text in overrides:
        override(raw, text)
    _check_keys(raw, ("export",), "--set")
    return _build(ExportParams, raw["export"], {}, "export")


def read_data(source: str, overrides: Sequence[str] = ()) -> WriteParams:
    """Read section `data` of a source alone, with those of the overrides that are its own.

    Raises:
        InputError: If a key or value is wrong.
    """
    raw: dict[str, Any] = {"data": {"source": source}}
    for text in overrides:
        if text.startswith("data."):
            override(raw, text)
    return _build(WriteParams, raw["data"], {}, "data")


def _read(name_or_path: str) -> dict[str, Any]:
    path = Path(name_or_path)
    if path.suffix not in (".yaml", ".yml"):
        path = CONFIGS_DIR / f"{name_or_path}.yaml"
        if not path.is_file():
            raise InputError(
                f"Unknown configuration {name_or_path!r}: expected a .yaml file or one of "
                f"{', '.join(ready_examples())}." + did_you_mean(name_or_path, ready_examples())
            )
    return read_mapping(path, "the configuration", "sections")


def override(raw: dict[str, Any], change: str) -> None:
    """Put `section.key=value` into a mapping of sections; the value is YAML.

    Raises:
        InputError: If it is no such text, or what it names as a section is a value.
    """
    path, separator, text = change.partition("=")
    if not separator or not path:
        raise InputError(f"Cannot use --set {change!r}: expected section.key=value, as in training.epochs=3.")
    *sections, key = path.split(".")
    if sections and sections[0] in ("model", "machine") and isinstance(raw.get(sections[0]), str):
        raw[sections[0]] = {"name": raw[sections[0]]}
    target = raw
    for section in sections:
        if target.get(section) in (None, True):  # All defaults, so far.
            target[section] = {}
        target = target[section]
        if not isinstance(target, dict):
            raise InputError(f"Cannot use --set {change!r}: {section!r} is a value, not a section.")
    try:
        target[key] = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"Cannot use --set {change!r}: the value is not YAML.") from error


_SECTIONS: dict[str, type] = {
    "data": WriteParams,
    "training": TrainParams,
    "gate": EvaluateParams,
    "export": ExportParams,
}
SETTINGS: dict[str, tuple[str, ...]] = {
    **{section: tuple(field.name for field in dataclasses.fields(kind)) for section, kind in _SECTIONS.items()},
    "preflight": PREFLIGHT_KEYS,
    "deploy": DEPLOY_KEYS,
}
KEYS = ("name", "data", "model", "training", "machine", "preflight", "gate", "export", "deploy", "resources")


def parse_config(raw: Mapping[str, Any], where: str = "the configuration") -> Config:
    """Check a mapping of sections and turn it into a `Config`.

    Raises:
        InputError: If a key is unknown, a required one is missing, or a value is of the wrong type or out of range.
    """
    _check_sections(raw, where)
    raw = _at_home(raw)
    if missing := [key for key in ("name", "data", "model") if key not in raw]:
        raise InputError(f"Missing in {where}: {', '.join(missing)}. Expected name, data and model at least.")
    name = raw["name"]
    if (
        not isinstance(name, str)
        or not name
        or len(name) > _NAME_LENGTH
        or not all(c.isalnum() or c in "-_." for c in name)
        or name[0] in ".-"
    ):
        raise InputError(
            f"Cannot use the name {name!r}: expected letters, digits, '-', '_' and '.', at most {_NAME_LENGTH}, "
            "and not '-' or '.' first."
        )
    model = {"name": raw["model"]} if isinstance(raw["model"], str) else raw["model"]
    if not isinstance(model, dict) or "name" not in model:
        raise InputError(f"Cannot use model: expected a name, or a mapping with a name, received {raw['model']!r}.")
    parameters = model.get("parameters", {})
    _check_keys(model, ("name", "parameters", "files"), f"{where}, section model")
    files = _convert(model.get("files", []), tuple[str, ...], "model.files")
    for file in files:
        if not storage.is_remote(file) and not Path(file).exists():
            raise InputError(f"Cannot read what model.files names: there is no {file!r}. Check the path, or remove it.")
    if not isinstance(parameters, dict):
        raise InputError(f"Cannot use model.parameters: expected a mapping, received {parameters!r}.")
    _check_plain(parameters, "model.parameters")
    check_model(str(model["name"]), parameters)
    sections: dict[str, Any] = {}
    for section, params in _SECTIONS.items():
        values = {} if raw.get(section) is None else raw[section]
        if section == "export" and (values := _optional_section(values, section)) is None:
            sections[section] = None
            continue
        if not isinstance(values, dict):
            raise InputError(f"Cannot use {section}: expected a mapping, received {values!r}.")
        fixed = {"model": str(model["name"]), "model_parameters": parameters} if section == "training" else {}
        if section == "training":
            values = _with_all_epochs(values)
        if section == "gate":
            values = {"max_regression": {TASKS[sections["data"].asked].judged: 0.0}, **values}
        sections[section] = _build(params, values, fixed, section)
    try:
        sections["gate"].check_task(sections["data"].asked)
        sections["gate"].check_slices([CLASS, LENGTH, SIZE, *sections["data"].slice_columns])
    except InputError as error:
        raise InputError(f"Section gate: {error}") from error
    machine = raw.get("machine")
    if machine is not None:
        machine = parse_machine(machine, sections["training"].backend)
    # Compiling for a TPU takes time: only where one is configured, or preflight itself.
    asked = raw.get("preflight") if "preflight" in raw or machine is not None else False
    preflight = _build_preflight(asked, sections["training"], machine.paid if machine else PaidMachine())
    deploy = _build_deploy(raw.get("deploy"), name, sections["export"] is not None)
    sections["resources"] = step_resources.parse_resources(raw.get("resources"))
    return Config(name=name, machine=machine, preflight=preflight, deploy=deploy, model_files=files, **sections)


def _with_all_epochs(training: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return section training with the epochs of its stages together, where it does not say how many there are."""
    stages = _convert(training.get("stages", []), tuple[Stage, ...], "training.stages")
    return {"epochs": sum(stage.epochs for stage in stages), **training} if stages else training


def _check_sections(raw: Mapping[str, Any], where: str) -> None:
    """Refuse an unknown section; where it is a setting's own name, say the section that it belongs to."""
    for key in raw:
        if homes := [section for section, keys in SETTINGS.items() if key not in KEYS and key in keys]:
            full = " or ".join(f"{section}.{key}" for section in homes)
            raise InputError(
                f"Unknown key {key!r} in {where}: a setting has its section before it. Did you mean {full}?"
            )
    _check_keys(raw, KEYS, where)


def _at_home(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections with the user's home for `~` in those values that are places."""

    def home(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: home(item) for key, item in value.items()}
        if isinstance(value, list):
            return [home(item) for item in value]
        return os.path.expanduser(value) if isinstance(value, str) and value.startswith("~") else value

    expanded = {**raw, "model": home(raw["model"])} if "model" in raw else {**raw}
    for section, key in (("gate", "champion"), *(("deploy", key) for key in ("registry", "signing_key", "verify_key"))):
        if isinstance(values := expanded.get(section), dict) and key in values:
            expanded[section] = {**values, key: home(values[key])}
    if isinstance(data := raw.get("data"), dict) and isinstance(source := data.get("source"), str):
        kind, place = split_source(source)
        expanded["data"] = {**data, "source": f"{kind}:{home(place)}"} if kind else data
    return expanded


def _build_preflight(values: Any, training: TrainParams, paid: PaidMachine) -> PreflightParams | None:
    """Build preflight from the training as it is, the machine that it runs on, and its own section."""
    values = _optional_section(values, "preflight")
    return None if values is None else _preflight_on(paid, values, training)


def _preflight_on(paid: PaidMachine, values: Mapping[str, Any], training: TrainParams) -> PreflightParams:
    return _build(PreflightParams, values, {"training": training, "epochs": 0, "paid": paid}, "preflight")


def _build_deploy(values: Any, name: str, is_exported: bool) -> DeployParams | None:
    asked, values = values, _optional_section(values, "deploy")
    if asked is not None and values is not None and not is_exported:
        raise InputError(
            "Cannot deploy what is not exported: export is false, which ends the run after the gate. Received: "
            f"deploy={asked!r}. Remove deploy, or export: false."
        )
    if values is None or not is_exported:
        return None
    return _build(DeployParams, {"registry": "", "model_name": name, **values}, _OF_THE_RUN, "deploy")


def _optional_section(values: Any, section: str) -> dict[str, Any] | None:
    """Return what a section sets that may be `false`, which leaves its step out; an absent one is all defaults."""
    if values is False:
        return None
    if values not in (None, True) and not isinstance(values, dict):
        raise InputError(f"Cannot use {section}: expected a mapping, or false to leave it out, received {values!r}.")
    return values if isinstance(values, dict) else {}


def preflight_params(config: Config, paid: PaidMachine) -> PreflightParams:
    """Return preflight's parameters for a machine, also where the configuration leaves the step out.

    Raises:
        InputError: If the machine does not run the training's backend.
    """
    values = {name: getattr(config.preflight, name) for name in PREFLIGHT_KEYS} if config.preflight else {}
    return _preflight_on(paid, values, config.training)


def _check_plain(value: Any, where: str) -> None:
    """Check that a value can travel as JSON: what YAML reads as a date cannot, nor can NaN."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise InputError(f"Cannot use {where}: expected names for keys, received {key!r}. Put it in quotes.")
            _check_plain(item, f"{where}.{key}")
    elif isinstance(value, list):
        for item in value:
            _check_plain(item, where)
    elif not isinstance(value, str | int | float | None) or (isinstance(value, float) and not math.isfinite(value)):
        raise InputError(
            f"Cannot use {where}: expected a text, a finite number, true, false, a list or a mapping, received "
            f"{value!r}. Put it in quotes if it is a text."
        )


def _check_keys(raw: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for key in raw:
        if key not in known:
            raise InputError(
                f"Unknown key {key!r} in {where}: expected one of {', '.join(known)}.{did_you_mean(str(key), known)}"
            )


def _build(params: type[T], values: Mapping[str, Any], fixed: Mapping[str, Any], section: str) -> T:
    hints = typing.get_type_hints(params)
    fields = {field.name: field for field in dataclasses.fields(params) if field.name not in fixed}  # type: ignore[arg-type]
    _check_keys(values, tuple(fields), f"section {section}")
    for name, field in fields.items():
        no_default = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if no_default and name not in values:
            raise InputError(f"Missing in section {section}: {name}.")
    typed = {name: _convert(value, hints[name], f"{section}.{name}") for name, value in values.items()}
    try:
        return params(**typed, **fixed)
    except InputError as error:
        raise InputError(f"Section {section}: {error}") from error


def _split(value: str | float, kind: type) -> list[Any]:
    """Return the values of a list that is written as one on a command line: `64,64`, or a single one."""
    if not isinstance(value, str):
        return [value]
    items = [item.strip() for item in value.split(",")] if value.strip() else []
    return items if kind is str else [yaml.safe_load(item) for item in items]


def _convert(value: Any, kind: Any, where: str) -> Any:
    """Convert a value to the type that a field asks for, and refuse what only looks like it."""
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        raise TypeError(f"{where}: fields that are unions are not supported.")
    if kind is float and isinstance(value, int | float | str) and not isinstance(value, bool):
        # YAML reads 1e-4 as a string.
        try:
            return float(value)
        except ValueError:
            pass
    elif origin is tuple and dataclasses.is_dataclass(item_kind := typing.get_args(kind)[0]):
        if isinstance(value, list):
            return tuple(_convert(item, item_kind, f"{where}[{place}]") for place, item in enumerate(value))
    elif origin is tuple and isinstance(value, list | str | int | float) and not isinstance(value, bool):
        items = value if isinstance(value, list) else _split(value, item_kind)
        return tuple(_convert(item, item_kind, where) for item in items)
    elif dataclasses.is_dataclass(kind) and isinstance(value, dict):
        return _build(typing.cast(type, kind), value, {}, where)
    elif origin is not None and issubclass(origin, Mapping) and isinstance(value, dict):
        return {str(key): _convert(item, typing.get_args(kind)[1], f"{where}.{key}") for key, item in value.items()}
    elif kind is str and isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    elif isinstance(kind, type) and type(value) is kind:
        return value
    raise InputError(f"{where} must be {_describe(kind)}. Received: {value!r}.")


def _describe(kind: Any) -> str:
    if dataclasses.is_dataclass(kind):
        return f"a mapping of {', '.join(field.name for field in dataclasses.fields(kind))}"
    origin, items = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        is_simple = not dataclasses.is_dataclass(items[0])
        return "a list, or values with commas between them" if is_simple else f"a list, each {_describe(items[0])}"
    return "a mapping" if origin is Mapping else getattr(kind, "__name__", str(kind))
