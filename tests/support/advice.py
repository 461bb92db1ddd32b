"""Finds what texts advise: settings, commands, names and variables, in messages, pages, READMEs and generated files."""

import ast
import dataclasses
import json
import re
from collections.abc import Iterator

from tests.support.cli import PIPELINES, READMES, REPOSITORY
from tpu_pipelines.config.schema import as_text

SCHEMA = json.loads(as_text())
SECTIONS = tuple(SCHEMA["properties"])
_VALUE = r"\{[^{}]*\}|\[[^\[\]]*\]|[^\s,;)(`\"']+"
_SETTING = re.compile(rf"(?<![\w./'-])((?:{'|'.join(SECTIONS)})(?:\.[a-z_0-9]+)+)(?:=({_VALUE}))?")
_OPTION = re.compile(rf"--set '?([a-z_0-9.]+)=({_VALUE})")
_PLACEHOLDER = re.compile(r"…|\0|\b[A-Z]{3,}\b|<|\$")
_COMMAND = re.compile(r"`(tpu-pipelines [^`]+)`|(?:next|Check|Run): +(tpu-pipelines [^\n]+)")
_VARIABLE = re.compile(r"\bTPU_PIPELINES_[A-Z0-9_]+[A-Z0-9]\b")
_MEANT = re.compile(r"Did you mean '([^']+)'\?")
# Files of ours and attributes of Keras that are written like settings.
_FILES = (".json", ".html", ".py", ".proto", ".sig", ".tflite", ".yaml", ".keras", ".zip", ".md", ".sh", ".npz")


@dataclasses.dataclass(frozen=True)
class Text:
    """A text that somebody reads, and where it is from."""

    place: str
    content: str


def texts() -> Iterator[Text]:
    """Yield all texts: strings of the code, where `\\0` is what is filled in, READMEs, and files that `init` writes."""
    for folder in ("components", "pipelines"):
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            for line, content in _strings(ast.parse(path.read_text())):
                yield Text(f"{path.relative_to(REPOSITORY)}:{line}", content)
    generated = [*(PIPELINES / "starters").iterdir(), *(REPOSITORY / ".ci" / "examples").iterdir()]
    for path in (*READMES, *generated):
        yield Text(str(path.relative_to(REPOSITORY)), path.read_text())


def _strings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            yield node.lineno, node.value


def settings_in(content: str) -> Iterator[tuple[str, str]]:
    """Yield (key, value) of every setting in a text; the value is empty if there is none, or a placeholder in it."""
    for match in (*_SETTING.finditer(content), *_OPTION.finditer(content)):
        key, value = match[1], (match[2] or "").rstrip(".:?")
        is_call = content[match.end() : match.end() + 1] == "("
        if not key.endswith(_FILES) and not is_call and content[match.end() : match.end() + 1] != "\0":
            yield key, "" if _PLACEHOLDER.search(value) else value


def commands_in(content: str) -> Iterator[str]:
    """Yield every command of this project in a text."""
    for match in _COMMAND.finditer(content):
        yield (match[1] or match[2]).partition("  #")[0].strip()


def variables_in(content: str) -> Iterator[str]:
    """Yield the name of every environment variable of this project in a text."""
    yield from _VARIABLE.findall(content)


@dataclasses.dataclass(frozen=True)
class Advice:
    """What a message advises.

    Attributes:
        settings: `section.key=value` each.
        names: Names that it thinks were meant.
        commands: Commands of this project.
    """

    settings: tuple[str, ...]
    names: tuple[str, ...]
    commands: tuple[str, ...]


def advice_in(message: str) -> Advice:
    """Return what a message advises; what it says was received is no advice."""
    advised = re.sub(r"[Rr]eceived:? .*?(?:\. |\.$|$)", "", message, flags=re.MULTILINE)
    settings = (f"{key}={value}" for key, value in settings_in(advised) if value)
    return Advice(
        tuple(dict.fromkeys(settings)), tuple(_MEANT.findall(message)), tuple(dict.fromkeys(commands_in(message)))
    )


def is_known(key: str) -> bool:
    """Return whether the configurations' schema has a key, such as `training.epochs`."""
    return any(_has(option, key.split(".")) for option in [SCHEMA])


def _has(schema: dict, parts: list[str]) -> bool:
    if "$ref" in schema:
        schema = SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]]
    options = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    if not parts or any(_has(option, parts) for option in options):
        return True
    if (more := schema.get("properties", {}).get(parts[0])) is not None:
        return _has(more, parts[1:])
    free = schema.get("additionalProperties", False)
    return free is not False and schema.get("type") == "object" and (free is True or _has(free, parts[1:]))


def own_constants() -> set[str]:
    """Return all strings of the code: a variable that is read is one of them."""
    return {text.content for text in texts() if re.fullmatch(_VARIABLE, text.content)}


def offered_in(message: str) -> tuple[str, ...]:
    """Return the values of a message's list of valid ones; empty if it has none, or shortens it."""
    _, found, rest = message.partition("one of ")
    listed = re.split(r", (?:or|a) |\.(?: |$)|[;:] ", rest)[0].split(", ") if found else []
    return tuple(name for name in listed if re.fullmatch(r"[\w./-]+", name))
