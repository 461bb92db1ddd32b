"""A step's inputs as component.py shows them: signature and `Args:`, from the fields of its Params dataclass.

KFP ships the text of a component's function, and takes its inputs from the signature and their descriptions from the
docstring. So both are written out in component.py; `python -m tests.evidence.generated` keeps them equal to Params.
"""

import dataclasses
import re
import textwrap
import typing
from collections.abc import Mapping
from typing import Annotated, Any

from tpu_components.core.base.typed_values import Field, as_json, fields_of

_WIDTH = 120
_INDENT = " " * 4
_ENTRY = re.compile(r"^ {8}(\w+): .*\n(?: {12}.*\n)*", re.MULTILINE)


def with_interface(source: str, step: str, params: type) -> str:
    """Return the source of component.py with the inputs of a step written anew.

    Args:
        source: The source. The function of the step has `*` in its signature, and `Args:` in its docstring.
        step: Name of the function.
        params: Dataclass whose fields are the inputs after `*`, and the last entries of `Args:`. Entries of the inputs
            before `*` are kept.
    """
    fields = fields_of(params)
    before, signature, between, entries, after = _parts(source, step)
    others = re.findall(rf"^{_INDENT}(\w+): ", before[before.rindex(f"def {step}(") :], re.MULTILINE)
    kept = [entry[0] for entry in _ENTRY.finditer(entries) if entry[1] in others]
    signature = "".join(_input(field) for field in fields.values())
    entries = "".join([*kept, *(_entry(field) for field in fields.values())])
    return f"{before}{signature}{between}{entries}{after}"


def _parts(source: str, step: str) -> tuple[str, ...]:
    """Split a source before and after the inputs that follow `*`, and before and after the entries of `Args:`."""
    pattern = rf"(.*^def {step}\(\n.*?^    \*,\n)(.*?)(^\) -> .*?^    Args:\n)((?: {{8}}[^\n]+\n)+)(.*)"
    found = re.fullmatch(pattern, source, re.MULTILINE | re.DOTALL)
    assert found, f"{step} needs `*,` in its signature and `Args:` in its docstring"
    return found.groups()


def _input(field: Field) -> str:
    """Return the lines of an input in a signature."""
    declared = f"{_INDENT}{field.name}: {_type(field.kind)}"
    if field.is_required:
        return f"{declared},\n"
    default = as_json(field.default)
    line = f"{declared} = {_literal(default)},\n"
    if len(line) <= _WIDTH + 1:
        return line
    items = "".join(f"{_INDENT * 2}{_literal(key)}: {_literal(value)},\n" for key, value in default.items())
    return f"{declared} = {{\n{items}{_INDENT}}},\n"


def _type(kind: Any) -> str:
    """Return the name of the KFP type for a Python type."""
    origin, items = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return _type(items[0])
    if origin is tuple:
        return f"List[{_type(items[0])}]"
    if origin is Mapping or dataclasses.is_dataclass(kind):
        return f"Dict[str, {_type(items[1]) if items else 'Any'}]"
    return "Any" if kind is Any else str(kind.__name__)


def _literal(value: Any) -> str:
    """Return a value of JSON's types as Python source, with double quotes."""
    return repr(value).replace("'", '"')


def _entry(field: Field) -> str:
    """Return the lines of an input in `Args:`."""
    first, hanging = _INDENT * 2, _INDENT * 3
    text = f"{field.name}: {field.meaning}{_keys(field)}"
    return textwrap.fill(text, _WIDTH, initial_indent=first, subsequent_indent=hanging, break_on_hyphens=False) + "\n"


def _keys(field: Field) -> str:
    """Return a sentence with the keys of an input that is a dict, if its meaning does not name them all."""
    names = key_names(field.kind)
    if all(f"`{name}`" in field.meaning for name in names):
        return ""
    return f" Keys: {', '.join(f'`{name}`' for name in names)}."


def key_names(kind: Any) -> list[str]:
    """Return the keys of a dataclass that travels as a dict, or of each dict in a list; none for other types."""
    if typing.get_origin(kind) is tuple:
        return key_names(typing.get_args(kind)[0])
    return list(fields_of(kind)) if dataclasses.is_dataclass(kind) else []
