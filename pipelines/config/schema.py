"""Every setting of a configuration, its type, default and meaning: JSON Schema for editors, a table for people."""

import dataclasses
import functools
import json
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tpu_components.core.examples.artifacts import SPLITS
from tpu_components.core.examples.text import END, START
from tpu_components.core.machines.device import ACCELERATORS, BACKENDS
from tpu_components.core.machines.machine_spec import MachineSpec, load_catalogue
from tpu_components.core.models.ready import REGISTRY
from tpu_components.core.models.step import hyperparameters
from tpu_components.core.sources.params import ENCODINGS, ENGINES, SETTABLE_TASKS
from tpu_components.core.step.command_line import attribute_docs
from tpu_components.export_model.formats.table import FORMATS
from tpu_pipelines.config.configuration import KEYS, SETTINGS, Config
from tpu_pipelines.config.settings import Settings, variable
from tpu_pipelines.config.step_resources import StepResources
from tpu_pipelines.config.steps import STEPS

SCHEMA_FILE = "tpu-pipelines.schema.json"
_HINTS = {section: typing.get_type_hints(Config)[section] for section in SETTINGS}
# Of which `false` leaves the step out.
_OPTIONAL = tuple(section for section, hint in _HINTS.items() if type(None) in typing.get_args(hint))
_PARAMS: Mapping[str, Any] = {section: (*typing.get_args(hint), hint)[0] for section, hint in _HINTS.items()}
CHOICES: Mapping[str, tuple[Any, ...]] = {
    **{f"training.{name}": known for name, known in hyperparameters.CHOICES.items()},
    "data.task": SETTABLE_TASKS,
    "data.channels": (0, 1, 3),
    "data.encoding": ENCODINGS,
    "data.engine": ENGINES,
    "data.truncate": (START, END),
    "gate.split": SPLITS,
    "gate.backend": BACKENDS,
    "gate.accelerator": ACCELERATORS,
    "export.split": SPLITS,
    "export.required": tuple(FORMATS),
}
_NAMES = {str: "string", int: "integer", float: "number", bool: "boolean"}
_MODEL_DOCS = {
    "name": "A ready model, a .py or .keras file, or `module:function`; may stand for the whole section.",
    "parameters": "What `build_model` is given beside what follows from the data.",
}
_NAME_DOC = "Short name, as `tpu-pipelines machines` lists them; may stand for the whole section."


@dataclasses.dataclass(frozen=True)
class Setting:
    """One setting.

    Attributes:
        name: With its section, as `training.epochs`.
        kind: Its type, as Python writes it.
        default: Value where nothing is said; None where something must be.
        meaning: Description of the setting.
    """

    name: str
    kind: Any
    default: Any
    meaning: str

    def as_schema(self) -> dict[str, Any]:
        """Return the setting as JSON Schema."""
        schema = {"description": self.meaning, **_type_of(self.kind, CHOICES.get(self.name, ()))}
        return schema if self.default is None else {**schema, "default": _plain(self.default)}


def settings() -> Iterator[Setting]:
    """Yield every setting, in the order of the sections."""
    yield Setting("name", str, None, _docs(Config)["name"])
    for section in KEYS[1:]:
        yield from _SPECIAL[section]() if section in _SPECIAL else _of(section, _PARAMS[section], SETTINGS[section])


def _of(section: str, params: Any, names: tuple[str, ...]) -> Iterator[Setting]:
    hints, docs = typing.get_type_hints(params), _docs(params)
    fields = {field.name: field for field in dataclasses.fields(params)}
    for name in names:
        if name not in ("model", "model_parameters"):  # Which are a section of their own.
            yield Setting(f"{section}.{name}", hints[name], _default(fields[name]), docs[name])


@functools.cache
def _docs(params: type) -> dict[str, str]:
    return {name: text.replace("%%", "%") for name, text in attribute_docs(params).items()}


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default is dataclasses.MISSING else field.default


def _model() -> Iterator[Setting]:
    yield Setting("model.name", str, None, _MODEL_DOCS["name"])
    yield Setting("model.parameters", Mapping[str, Any], {}, _MODEL_DOCS["parameters"])
    yield Setting("model.files", tuple[str, ...], (), _docs(Config)["model_files"])


def _machine() -> Iterator[Setting]:
    yield Setting("machine.name", str, None, _NAME_DOC)
    names = tuple(field.name for field in dataclasses.fields(MachineSpec))
    for setting in _of("machine", MachineSpec, names):
        yield dataclasses.replace(setting, kind=tuple[Any, ...]) if setting.name == "machine.fallbacks" else setting


def _resources() -> Iterator[Setting]:
    names = tuple(field.name for field in dataclasses.fields(StepResources))
    yield from _of("resources.STEP", StepResources, names)


_SPECIAL = {"model": _model, "machine": _machine, "resources": _resources}


def _type_of(kind: Any, choices: tuple[Any, ...] = ()) -> dict[str, Any]:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        return _object(_of("", kind, tuple(field.name for field in dataclasses.fields(kind))))
    if origin is tuple:
        item = _type_of(inner[0], choices)
        if dataclasses.is_dataclass(inner[0]):
            return {"type": "array", "items": item}
        # Or values with commas between them.
        choice = f"({'|'.join(choices)})"
        joined = {"type": "string", **({"pattern": f"^{choice}(, *{choice})*$"} if choices else {})}
        return {"anyOf": [{"type": "array", "items": item}, *([item] if item else []), joined]}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": _type_of(inner[1]) or True}
    if choices:
        return {"enum": list(choices)}
    return {"type": _NAMES[kind]} if kind in _NAMES else {}


def _object(settings: Iterable[Setting], has_required: bool = True) -> dict[str, Any]:
    """Return settings as one mapping; those without a default are required, unless none is."""
    inside = {setting.name.rpartition(".")[2]: setting for setting in settings}
    needed = [name for name, setting in inside.items() if setting.default is None and has_required]
    return {
        "type": "object",
        "properties": {name: setting.as_schema() for name, setting in inside.items()},
        "additionalProperties": False,
        **({"required": needed} if needed else {}),
    }


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else dict(value) if isinstance(value, Mapping) else value


def as_json_schema() -> dict[str, Any]:
    """Return the configuration as JSON Schema (https://json-schema.org/draft-07)."""
    known = {entry.name: entry for entry in settings()}
    sections = {name: _section(name, known) for name in (*_PARAMS, "model", "machine")}
    sections["model"] = {"anyOf": [{"type": "string", "examples": list(REGISTRY)}, sections["model"]]}
    sections["machine"] = {"anyOf": [{"enum": [entry.name for entry in load_catalogue().slices]}, sections["machine"]]}
    for name in _OPTIONAL:
        sections[name] = {"anyOf": [sections[name], {"type": "boolean"}]}
    step = _section("resources.STEP", known)
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "A configuration of tpu-pipelines",
        "type": "object",
        "properties": {
            "name": known["name"].as_schema(),
            **{name: _or_nothing(section) for name, section in sections.items()},
            "resources": {"type": "object", "properties": dict.fromkeys(STEPS, step), "additionalProperties": False},
        },
        "required": ["name", "data", "model"],
        "additionalProperties": False,
    }


def _or_nothing(section: dict[str, Any]) -> dict[str, Any]:
    """Return a section, which may be a heading with nothing below it."""
    return {"anyOf": [section, {"type": "null"}]}


def _section(section: str, known: Mapping[str, Setting]) -> dict[str, Any]:
    inside = [setting for name, setting in known.items() if name.startswith(f"{section}.")]
    return _object(inside, has_required=section in ("data", "model"))


def as_text() -> str:
    """Return the schema as it is written into a file."""
    return json.dumps(as_json_schema(), indent=1, ensure_ascii=False) + "\n"


def as_markdown() -> str:
    """Return a table of all settings, and one of the variables that say where pipelines run."""
    rows = [(setting.name, _shown(setting), setting.meaning) for setting in settings()]
    docs = _docs(Settings)
    variables = [(variable(field.name), "", docs[field.name]) for field in dataclasses.fields(Settings)]
    return "\n\n".join((_table("setting", rows), _table("variable", variables))) + "\n"


def _shown(setting: Setting) -> str:
    return "" if setting.default is None else f"`{json.dumps(_plain(setting.default), ensure_ascii=False)}`"


def _table(first: str, rows: list[tuple[str, str, str]]) -> str:
    lines = [f"| {first} | default | what it is |", "|---|---|---|"]
    return "\n".join(
        [*lines, *(f"| `{name}` | {default} | {text.replace('|', chr(92) + '|')} |" for name, default, text in rows)]
    )
