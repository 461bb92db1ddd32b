"""Which code and files decide what a step makes: a module's imports and data files, found without running it.

A module's code is its own file, every module that it or what it imports names in an import statement, wherever in the
file that statement stands, and the files that a string in one of them names beside it: a template, a style sheet, a
catalogue, weights. A template's strings count in the same way.
"""

import ast
import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path

ROOT = Path(__file__).parents[3]  # Of the clone, or of the installed packages.
_OUR_PACKAGES = ("tpu_components", "tpu_pipelines")
# They carry data, try again and show progress, and compute nothing.
_WITHOUT_EFFECT = frozenset({"kfp", "google", "google_crc32c", "requests", "tenacity", "tqdm"})
_DISTRIBUTIONS = {"PIL": "pillow", "sklearn": "scikit-learn", "yaml": "PyYAML"}  # To list all takes 0.1 s.
_TEMPLATES = (".jinja", ".html")
_FILE_NAME = re.compile(r"[\w./ -]{1,255}\.(?!py$)\w+")
_JOINING = ("join", "joinpath", "Path", "PurePath")
_LEAVES = (ast.Name, ast.Constant, ast.expr_context, ast.operator)  # Most nodes of a tree; they lead to nothing.


References = tuple[tuple[tuple[int, str], ...], frozenset[str]]
# Of every content that this process has read; may be kept for the next one, since a content's are always the same.
references_known: dict[str, References] = {}


@dataclasses.dataclass(frozen=True)
class Code:
    """The code that a module stands for.

    Attributes:
        files: Path of every file, by its name below the folder in which it was looked for.
        libraries: Names of the packages outside these folders that are imported, without Python's own.
    """

    files: dict[str, Path]
    libraries: frozenset[str]

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of the files' names and contents."""
        return digest_files(self.files)

    def versions(self) -> dict[str, str]:
        """Return the installed version of every library; empty for one that is not installed."""
        return {name: _version(name) for name in sorted(self.libraries - _WITHOUT_EFFECT)}


def digest_files(files: dict[str, Path]) -> str:
    """Return the SHA-256 of files' names and contents; a missing file is other content than an empty one."""
    total = hashlib.sha256()
    for name, path in sorted(files.items()):
        try:
            with open(path, "rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            content = "missing"
        total.update(f"{name}\0{content}\n".encode())
    return total.hexdigest()


def code_of(
    modules: Iterable[str | Path],
    roots: Sequence[Path] = (ROOT,),
    data_folders: Sequence[Path] = (),
    looked_up: "LookedUp | None" = None,
) -> Code:
    """Return the code of modules.

    Args:
        modules: Dotted names, as `tpu_components.train_model.component`, or absolute paths of files.
        roots: Folders in which imports are looked for, in this order; what lies in none of them is a library.
        data_folders: Folders in which data files are looked for, beside those of the code.
        looked_up: Places that were looked up for other modules a moment ago, in the same folders; more are added.
    """
    trace = _Trace(roots, data_folders, looked_up or LookedUp())
    for module in modules:
        trace.add_module(module) if isinstance(module, str) else trace.add_file(module)
    return Code(trace.files, frozenset(trace.libraries))


@dataclasses.dataclass(frozen=True)
class LookedUp:
    """Places of modules and references of files, for as long as no file changes.

    Attributes:
        modules: Files that importing a module runs; None for a library.
        files: Modules that a file imports, and data files that it names.
    """

    modules: dict[str, list[Path] | None] = dataclasses.field(default_factory=dict)
    files: dict[Path, tuple[list[str], list[Path]]] = dataclasses.field(default_factory=dict)


class _Trace:
    """The files and libraries that are reached so far, from one import to the next."""

    def __init__(self, roots: Sequence[Path], data_folders: Sequence[Path], looked_up: LookedUp) -> None:
        self.files: dict[str, Path] = {}
        self.libraries: set[str] = set()
        self._roots, self._data_folders, self._looked_up = roots, data_folders, looked_up
        self._followed: set[Path | str] = set()

    def add_module(self, module: str) -> None:
        """Add the files that importing a module runs: its own, those of its packages, and what it imports."""
        library = module.partition(".")[0]
        if module in self._followed or library in sys.stdlib_module_names:
            return
        self._followed.add(module)
        if module not in self._looked_up.modules:
            # Also where a file of that name lies beside the model: Python takes the library.
            files = None if _is_library(library) else _module_files(module, self._roots)
            self._looked_up.modules[module] = files
        if files := self._looked_up.modules[module]:
            # A package on the way to a module only has to be imported: what it offers to others decides nothing here.
            self.files |= {self._name(package): package for package in files[:-1]}
            self.add_file(files[-1])
        else:
            self.libraries.add(library)

    def add_file(self, path: Path) -> None:
        """Add a file, and what it imports and names."""
        self.files[self._name(path)] = path
        if path in self._followed or path.suffix not in (".py", *_TEMPLATES):
            return
        self._followed.add(path)
        if path not in self._looked_up.files:
            self._looked_up.files[path] = self._look_up(path)
        modules, named = self._looked_up.files[path]
        for module in modules:
            self.add_module(module)
        for file in named:
            self.add_file(file)

    def _look_up(self, path: Path) -> tuple[list[str], list[Path]]:
        """Return the modules that a file imports, and the data files that it names."""
        imports, strings = _references(path.read_bytes(), path.suffix == ".py")
        package = self._name(path).split("/")[:-1]
        modules = [
            ".".join([*package[: len(package) - level + 1], name] if level else [name]) for level, name in imports
        ]
        return modules, [file for text in strings for file in self._named(text, path)]

    def _root(self, path: Path) -> Path | None:
        return next((root for root in self._roots if path.is_relative_to(root)), None)

    def _name(self, path: Path) -> str:
        """Return a file's name below the first root that holds it, or as it is named in the code."""
        root = self._root(path)
        return (path.relative_to(root) if root else path).as_posix()

    def _named(self, text: str, path: Path) -> Iterator[Path]:
        """Yield the data files that a string names, beside its own file or in a folder above, below the root."""
        root = self._root(path)
        above = [folder for folder in path.parents if root and folder.is_relative_to(root) and folder != root]
        for folder in (*(above or [path.parent]), *self._data_folders):
            if is_file(folder / text):
                plain = Path(os.path.normpath(folder / text))  # Without `..`, unless it leads out of the root.
                yield plain if root and plain.is_relative_to(root) else folder / text


def _references(source: bytes, is_python: bool) -> References:
    """Return what a file refers to, found once for a content."""
    key = f"{'python' if is_python else 'template'} {hashlib.sha256(source).hexdigest()}"
    if key not in references_known:
        references_known[key] = _find_references(source, is_python)
    return references_known[key]


def _find_references(source: bytes, is_python: bool) -> References:
    """Return the modules that a file imports, as (level, name), and the strings in it that may name a file.

    `from a import b` means `a.b`, whether `b` is a module or not.
    """
    if not is_python:
        # Quotes in a template do not come in pairs: what lies between any two that follow each other may be a name.
        parts = re.split(r"[\"']", source.decode(errors="replace"))
        return (), frozenset(filter(_FILE_NAME.fullmatch, parts))
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # A user's; whoever imports it says so.
        return (), frozenset()
    imports, strings = [], set()
    for node in _run(tree):
        if isinstance(node, ast.Import):
            imports += [(0, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = f"{node.module}." if node.module else ""
            imports += [(node.level, base + alias.name) for alias in node.names]
        elif parts := _path_parts(node):
            strings.add("/".join(parts))
    return tuple(imports), frozenset(filter(_FILE_NAME.fullmatch, strings))


def _path_parts(node: ast.AST) -> list[str]:
    """Return a string's text, or those that end a joined path: `folder / "a" / "b"`, `os.path.join(f, "a")`."""
    parts: list[str] = []
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        if not (right := _path_parts(node.right)):
            return parts
        parts, node = [*right, *parts], node.left
    if isinstance(node, ast.Constant):
        return [node.value, *parts] if isinstance(node.value, str) else parts
    return [*_arguments(node), *parts] if isinstance(node, ast.Call) else parts


def _arguments(call: ast.Call) -> list[str]:
    """Return the texts in which a call that joins a path ends."""
    function, before = call.func, list[ast.expr]()
    name = _name_of(function)
    if name == "joinpath" and isinstance(function, ast.Attribute):
        before = [function.value]
    parts: list[str] = []
    for argument in [*before, *call.args] if name in _JOINING else []:
        texts = _path_parts(argument)
        parts = [*parts, *texts] if texts else []
    return parts


def _run(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield every node of a tree, however deep, but those that are there for a type checker alone."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.If) and _name_of(node.test) == "TYPE_CHECKING":
            waiting += node.orelse
        elif not isinstance(node, _LEAVES):
            waiting += ast.iter_child_nodes(node)


def _name_of(node: ast.expr) -> str:
    """Return the last part of a name, as `c` of `a.b.c`; empty for what is none."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _module_files(module: str, roots: Sequence[Path]) -> list[Path]:
    """Return the files that importing a module runs: its packages' and its own; none for a library's."""
    for root in roots:
        if module.partition(".")[0] not in _OUR_PACKAGES and is_installed(root):
            continue  # Where this project is installed, every library lies beside it.
        files, folder, parts = [], root, module.split(".")
        if parts[0] in _OUR_PACKAGES and not (root / parts[0]).is_dir():
            parts[0] = parts[0].removeprefix("tpu_")  # As the folder is named in a clone.
        for part in parts:
            for path in (folder / part / "__init__.py", folder / f"{part}.py"):
                if path.is_file():
                    files.append(path)
                    break
            folder /= part
        if files:
            return files
    return []


def _is_library(package: str) -> bool:
    """Return whether Python imports a name from where libraries lie; a model's own folder comes after those."""
    spec = PathFinder.find_spec(package) if package not in _OUR_PACKAGES else None
    return spec is not None and spec.origin is not None and is_installed(Path(spec.origin))


def is_file(path: str | Path) -> bool:
    """Return whether a text that may be no path at all is that of a file which can be read here."""
    return os.path.isfile(path) and os.access(path, os.R_OK)  # Path.is_file raises for what is too long.


def is_installed(path: Path) -> bool:
    """Return whether a path is where libraries or Python's own modules lie."""
    if not {"site-packages", "dist-packages"}.isdisjoint(path.parts):
        return True
    python = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")}
    return any(path.resolve().is_relative_to(folder) for folder in python)


@functools.cache
def _version(library: str) -> str:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(_DISTRIBUTIONS.get(library, library))
    if PathFinder.find_spec(library) is None:
        return ""
    names = sorted(set(_distributions().get(library, [])))
    return ", ".join(importlib.metadata.version(name) for name in names)


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    """Return the names of the distributions from which each package is imported."""
    return importlib.metadata.packages_distributions()
