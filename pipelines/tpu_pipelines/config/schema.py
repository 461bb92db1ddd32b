"""All settings of a configuration, with type, default and meaning, as JSON Schema and as a Markdown table."""

import dataclasses
import json
import math
import typing
from collections.abc import Container, Iterator, Mapping
from typing import Annotated, Any

from tpu_components.core.base.container_images import IMAGE_VARIABLES, Images
from tpu_components.core.base.typed_values import Field, Pattern, Range, fields_of
from tpu_components.core.machines.machine_spec import MachineSpec, load_catalogue
from tpu_components.core.models.ready import REGISTRY
from tpu_pipelines.config.configuration import SETTINGS, Config
from tpu_pipelines.config.settings import Settings, fields_of_one_variable, variable
from tpu_pipelines.config.steps import STEPS

SCHEMA_FILE = "tpu-pipelines.schema.json"
_OPTIONAL = ("preflight", "export", "deploy")  # Sections that may be `false`, which leaves the step out.
_NAMES = {str: "string", int: "integer", float: "number", bool: "boolean"}


def settings() -> Iterator[Field]:
    """Yield every setting, in the order of the sections. Names begin with the section, as in `training.epochs`."""
    yield fields_of(Config)["name"]
    for section, fields in SETTINGS.items():
        yield from (dataclasses.replace(field, name=f"{section}.{name}") for name, field in fields.items())


def _setting(field: Field) -> dict[str, Any]:
    schema = {"description": field.meaning, **_type_of(field.kind)}
    return schema if field.is_required else {**schema, "default": field.default}


def _type_of(kind: Any, allowed: Any = None) -> dict[str, Any]:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return _type_of(*inner)
    if kind is MachineSpec:  # A fallback may also be a name.
        return {}
    if dataclasses.is_dataclass(kind):
        return _object(fields_of(typing.cast(Any, kind)))
    if origin is tuple:
        item = _type_of(inner[0])
        if dataclasses.is_dataclass(inner[0]):
            return {"type": "array", "items": item}
        # The values may also be one text, separated by commas.
        choice = f"({'|'.join(item.get('enum', ()))})"
        joined = {"type": "string", **({"pattern": f"^{choice}(, *{choice})*$"} if "enum" in item else {})}
        return {"anyOf": [{"type": "array", "items": item}, *([item] if item else []), joined]}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": _type_of(inner[1]) or True}
    if isinstance(allowed, tuple):
        return {"enum": list(allowed)}
    return {"type": _NAMES[kind]} | _bounds(allowed) if kind in _NAMES else {}


def _bounds(allowed: Range | Pattern | None) -> dict[str, Any]:
    if isinstance(allowed, Pattern):
        return {"pattern": f"^{allowed.regex}$"}
    if allowed is None:
        return {}
    bounds: dict[str, float | None] = {"minimum": allowed.least, "maximum": allowed.most}
    bounds |= {"exclusiveMinimum": allowed.above, "exclusiveMaximum": allowed.below}
    return {name: bound for name, bound in bounds.items() if bound is not None and math.isfinite(bound)}


def _object(fields: Mapping[str, Field]) -> dict[str, Any]:
    """Return the JSON Schema of a mapping of settings. Settings without a default are required."""
    needed = [name for name, field in fields.items() if field.is_required]
    return {
        "type": "object",
        "properties": {name: _setting(field) for name, field in fields.items()},
        "additionalProperties": False,
        **({"required": needed} if needed else {}),
    }


def as_json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a configuration (https://json-schema.org/draft-07)."""
    sections = {section: _object(fields) for section, fields in SETTINGS.items()}
    del sections["deploy"]["required"]  # All of them have defaults in a configuration.
    step = sections.pop("resources.STEP")
    sections["model"] = {"anyOf": [{"type": "string", "examples": list(REGISTRY)}, sections["model"]]}
    sections["machine"] = {"anyOf": [{"enum": [entry.name for entry in load_catalogue().slices]}, sections["machine"]]}
    for key in _OPTIONAL:
        sections[key] = {"anyOf": [sections[key], {"type": "boolean"}]}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "A configuration of tpu-pipelines",
        "type": "object",
        "properties": {
            "name": _setting(fields_of(Config)["name"]),
            # A section may be empty.
            **{key: {"anyOf": [section, {"type": "null"}]} for key, section in sections.items()},
            "resources": {"type": "object", "properties": dict.fromkeys(STEPS, step), "additionalProperties": False},
        },
        "required": ["name", "data", "model"],
        "additionalProperties": False,
    }


def as_text() -> str:
    """Return the JSON Schema of a configuration as text, to write to a file."""
    return json.dumps(as_json_schema(), indent=1, ensure_ascii=False) + "\n"


def as_markdown(left_out: Container[str] = ()) -> str:
    """Return two Markdown tables: settings of a configuration, and the environment variables of `Settings`.

    Args:
        left_out: Sections whose settings are left out of the first table.
    """
    shown = [setting for setting in settings() if setting.name.partition(".")[0] not in left_out]
    rows = [(setting.name, _shown(setting), setting.meaning) for setting in shown]
    meanings = {name: field.meaning for name, field in fields_of(Settings).items()}
    variables = [(variable(field.name), "", meanings[field.name]) for field in fields_of_one_variable()]
    variables += [(IMAGE_VARIABLES[name], _shown(field), field.meaning) for name, field in fields_of(Images).items()]
    return "\n\n".join((_table("setting", rows), _table("variable", variables))) + "\n"


def _shown(setting: Field) -> str:
    return "" if setting.is_required else f"`{json.dumps(setting.default, ensure_ascii=False)}`"


def _table(first: str, rows: list[tuple[str, str, str]]) -> str:
    lines = [f"| {first} | default | meaning |", "|---|---|---|"]
    return "\n".join(
        [*lines, *(f"| `{name}` | {default} | {text.replace('|', chr(92) + '|')} |" for name, default, text in rows)]
    )
