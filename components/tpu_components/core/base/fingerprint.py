"""Source files, libraries and data files that a module depends on, found without running the module.

The code of a module has three parts: its own file; all modules that it imports, directly or indirectly; and data files
whose names are strings in these files, such as templates, style sheets, catalogues and weights. If a string in a
template is the name of a data file, that file is included, too.

The digest of these files shows whether a cached result comes from the same code.
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
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

OUR_PACKAGES = ("tpu_components", "tpu_pipelines")
# Folders that contain this project: `components/` and `pipelines/` of a clone, or the folder of installed libraries.
ROOTS = tuple({Path(spec.origin).parents[1]: None for spec in map(find_spec, OUR_PACKAGES) if spec and spec.origin})
# These libraries transfer data, retry calls and show progress; they compute nothing.
_WITHOUT_EFFECT = frozenset({"kfp", "google", "google_crc32c", "requests", "tenacity", "tqdm"})
_DISTRIBUTIONS = {"PIL": "pillow", "yaml": "PyYAML"}  # Listing all distributions takes 0.1 s.
_TEMPLATES = (".jinja", ".html")
_FILE_NAME = re.compile(r"[\w./ -]{1,255}\.(?!py$)\w+")
_JOINING = ("join", "joinpath", "Path", "PurePath")
_LEAVES = (ast.Name, ast.Constant, ast.expr_context, ast.operator)  # Most nodes of a tree; they have no children.


References = tuple[tuple[tuple[int, str], ...], frozenset[str]]
# References by the digest of a file's content. They depend on nothing else, so later processes may reuse them.
references_known: dict[str, References] = {}


@dataclasses.dataclass(frozen=True)
class Code:
    """Files and libraries that modules depend on.

    Attributes:
        files: Absolute path of each file, by its path relative to a root folder.
        libraries: Imported top-level packages, except those in the root folders and in Python's standard library.
    """

    files: dict[str, Path]
    libraries: frozenset[str]

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of the files' names and contents."""
        return digest_files(self.files)

    def versions(self) -> dict[str, str]:
        """Return the installed version of each library in `libraries` that can affect computed results, by name.

        Libraries that only transfer data, retry calls or show progress are left out. The version is an empty string if
        the library is not installed.
        """
        return {name: _version(name) for name in sorted(self.libraries - _WITHOUT_EFFECT)}


def digest_files(files: dict[str, Path]) -> str:
    """Return the SHA-256 of the names and contents of files.

    A missing file and an empty file have different digests.
    """
    total = hashlib.sha256()
    for name, path in sorted(files.items()):
        try:
            with open(path, "rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            content = "missing"
        total.update(f"{name}\0{content}\n".encode())
    return total.hexdigest()


def code_of(modules: Iterable[str | Path], roots: Sequence[Path] = ROOTS, data_folders: Sequence[Path] = ()) -> Code:
    """Return the files and libraries that modules depend on; see `Tracer`."""
    return Tracer(roots, data_folders).code_of(modules)


class Tracer:
    """Finds the files and libraries that modules depend on.

    It caches what it finds, so an instance is valid only while no file changes.

    Args:
        roots: Folders that contain the code, in search order. Modules in other folders are libraries.
        data_folders: Folders with data files, searched in addition to the folders of the code.
    """

    def __init__(self, roots: Sequence[Path] = ROOTS, data_folders: Sequence[Path] = ()) -> None:
        self._roots = roots
        self._data_folders = data_folders
        self._module_files = functools.cache(self._find_module)
        self._references = functools.cache(self._look_up)
        self._root = functools.cache(self._find_root)
        self._name = functools.cache(self._find_name)

    def code_of(self, modules: Iterable[str | Path]) -> Code:
        """Return the files and libraries that modules depend on.

        Args:
            modules: Dotted names, for example `tpu_components.train_model.component`, or absolute paths of files.
        """
        files = dict[str, Path]()
        libraries = set[str]()
        followed = set[str | Path]()
        waiting = [*modules]
        while waiting:
            item = waiting.pop()
            if item in followed:
                continue
            followed.add(item)
            if isinstance(item, Path):
                files[self._name(item)] = item
                waiting += self._references(item) if item.suffix in (".py", *_TEMPLATES) else []
            elif paths := self._module_files(item):
                # The imports of a parent package do not matter for the module.
                files |= {self._name(package): package for package in paths[:-1]}
                waiting.append(paths[-1])
            elif (library := item.partition(".")[0]) not in sys.stdlib_module_names:
                libraries.add(library)
        return Code(files, frozenset(libraries))

    def _find_module(self, module: str) -> list[Path]:
        """Return the files that Python runs when it imports a module. The module's own file is last.

        Return an empty list for a library.
        """
        library = module.partition(".")[0]
        # A library has precedence over a file with the same name next to the model, as in Python.
        is_library = library in sys.stdlib_module_names or _is_library(library)
        return [] if is_library else _module_files(module, self._roots)

    def _look_up(self, path: Path) -> list[str | Path]:
        """Return a file's dependencies: imported modules, as str, and data files that its strings name, as Path."""
        imports, strings = _references(path.read_bytes(), path.suffix == ".py")
        package = self._name(path).split("/")[:-1]
        modules = [
            ".".join([*package[: len(package) - level + 1], name] if level else [name]) for level, name in imports
        ]
        return [*modules, *(file for text in strings for file in self._named(text, path))]

    def _find_root(self, path: Path) -> Path | None:
        """Return the first root that contains a file.

        For this project's files, return the folder that contains the package, so that their relative paths are the same
        in a clone and in a wheel, and from every working directory.
        """
        containing = [root for root in self._roots if path.is_relative_to(root)]
        ours = [root for root in containing if path.relative_to(root).parts[0] in OUR_PACKAGES]
        return next(iter(ours or containing), None)

    def _find_name(self, path: Path) -> str:
        """Return a file's path relative to its root. If no root contains the file, return the path unchanged."""
        root = self._root(path)
        return (path.relative_to(root) if root else path).as_posix()

    def _named(self, text: str, path: Path) -> Iterator[Path]:
        """Yield the data files whose name is `text`, a string in the file `path`.

        The name is looked up in the file's folder, in the parent folders below the root, and in `data_folders`.
        """
        root = self._root(path)
        above = [folder for folder in path.parents if root and folder.is_relative_to(root) and folder != root]
        for folder in (*(above or [path.parent]), *self._data_folders):
            if is_file(folder / text):
                plain = Path(os.path.normpath(folder / text))  # Without `..`, unless it leads out of the root.
                yield plain if root and plain.is_relative_to(root) else folder / text


def _references(source: bytes, is_python: bool) -> References:
    """Return the imports and file names in a source; see `_find_references`. The result is cached by content."""
    key = f"{'python' if is_python else 'template'} {hashlib.sha256(source).hexdigest()}"
    if key not in references_known:
        references_known[key] = _find_references(source, is_python)
    return references_known[key]


def _find_references(source: bytes, is_python: bool) -> References:
    """Return the modules that a Python file imports, as (level, name), and the strings in it that may name a file.

    The level is the number of dots of a relative import, otherwise 0. `from a import b` means `a.b`, whether `b` is a
    module or not.
    """
    if not is_python:
        # Quotes in a template do not come in pairs, so the text between any two successive quotes may be a name.
        parts = re.split(r"[\"']", source.decode(errors="replace"))
        return (), frozenset(filter(_FILE_NAME.fullmatch, parts))
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # Importing the file reports this error.
        return (), frozenset()
    imports = []
    strings = set()
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
    """Return the string literals at the end of an expression for a path, such as `["a", "b"]` for `folder / "a" / "b"`.

    The expression is a string, a division or a call such as `os.path.join(f, "a")`. For any other expression, return an
    empty list.
    """
    parts: list[str] = []
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        if not (right := _path_parts(node.right)):
            return parts
        parts = [*right, *parts]
        node = node.left
    if isinstance(node, ast.Constant):
        return [node.value, *parts] if isinstance(node.value, str) else parts
    return [*_arguments(node), *parts] if isinstance(node, ast.Call) else parts


def _arguments(call: ast.Call) -> list[str]:
    """Return the string literals at the end of a call that joins a path. Return an empty list for any other call."""
    function = call.func
    before = list[ast.expr]()
    name = _name_of(function)
    if name == "joinpath" and isinstance(function, ast.Attribute):
        before = [function.value]
    parts: list[str] = []
    for argument in [*before, *call.args] if name in _JOINING else []:
        texts = _path_parts(argument)
        parts = [*parts, *texts] if texts else []
    return parts


def _run(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield every node of a syntax tree, except those under `if TYPE_CHECKING`."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.If) and _name_of(node.test) == "TYPE_CHECKING":
            waiting += node.orelse
        elif not isinstance(node, _LEAVES):
            waiting += ast.iter_child_nodes(node)


def _name_of(node: ast.expr) -> str:
    """Return the last part of a dotted name, such as `c` of `a.b.c`. Return an empty string for other nodes."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _module_files(module: str, roots: Sequence[Path]) -> list[Path]:
    """Return the files that Python runs for an import: the `__init__.py` of each package, then the module's file.

    Return an empty list for a library.
    """
    for root in roots:
        if module.partition(".")[0] not in OUR_PACKAGES and is_installed(root):
            continue  # The folder of an installed project also contains all libraries.
        files = []
        folder = root
        for part in module.split("."):
            for path in (folder / part / "__init__.py", folder / f"{part}.py"):
                if path.is_file():
                    files.append(path)
                    break
            folder /= part
        if files:
            return files
    return []


def _is_library(package: str) -> bool:
    """Return whether Python imports a package from its installed libraries, not from the folder of the user's model.

    The libraries come before this folder on `sys.path`.
    """
    spec = PathFinder.find_spec(package) if package not in OUR_PACKAGES else None
    return spec is not None and spec.origin is not None and is_installed(Path(spec.origin))


def is_file(path: str | Path) -> bool:
    """Return whether a text is the path of a readable file. The text need not be a valid path."""
    return os.path.isfile(path) and os.access(path, os.R_OK)  # Path.is_file raises if the text is too long.


def is_installed(path: Path) -> bool:
    """Return whether a path is in a folder of installed libraries or of Python's standard library."""
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


# Names of the distributions from which each package is imported.
_distributions = functools.cache(importlib.metadata.packages_distributions)
