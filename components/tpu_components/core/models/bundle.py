"""Bundles, which pack a user's model with its code and data into one file, so that the model can run elsewhere.

If Keras saved the model, the bundle is the `.keras` file itself. Otherwise, it is a zip archive with the model's Python
file, the modules that this file imports, and the data files that the code refers to by name. The archive does not
contain the standard library, installed libraries or this package. A bundle's reference is its path,
`ROOT/SHA256/NAME.zip` or `ROOT/SHA256/NAME.keras`. The digest of a bundle is verified before the bundle is opened.
"""

import atexit
import builtins
import contextlib
import dataclasses
import functools
import hashlib
import importlib
import importlib.util
import io
import json
import re
import shutil
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import FileFinder, SourceFileLoader
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any

from tpu_components.core.base.errors import InputError, describe
from tpu_components.core.base.frameworks import keras
from tpu_components.core.files import storage

_ENTRY_FILE = "bundle.json"  # Names the model, for example `my_model.py` or `nets.cnn:build_model`.
_REFERENCE = re.compile(r".*/([0-9a-f]{64})/[^/]+\.(zip|keras)")
_TIME = (1980, 1, 1, 0, 0, 0)  # Modification time of every file, so that equal content gives an equal archive.
_MOST_BYTES = 256 << 20  # Limit, because every change is uploaded again.
# Types of Google's credentials: https://google.aip.dev/auth/4110
_PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----")  # https://www.rfc-editor.org/rfc/rfc7468
_CREDENTIALS = ("service_account", "authorized_user", "external_account", "impersonated_service_account")
_MOST_CREDENTIAL_BYTES = 1 << 20
USER_MODULE = "user_model"  # Module name of the model's own file.

# The bundles whose `importing_from` blocks are running, with their modules that have been imported.
_IMPORTING: list[tuple["Opened", dict[str, ModuleType]]] = []
_LOCK = threading.RLock()


@dataclasses.dataclass(frozen=True)
class Bundle:
    """A user's model, packed into one file.

    Attributes:
        name: Name of the file, `NAME.zip` or `NAME.keras`.
        content: Bytes of the file.
    """

    name: str
    content: bytes

    @property
    def digest(self) -> str:
        """SHA-256 of the content."""
        return hashlib.sha256(self.content).hexdigest()

    def reference(self, root: str) -> str:
        """Return the bundle's reference, its path `ROOT/SHA256/NAME` in the folder `root`."""
        return f"{root.rstrip('/')}/{self.digest}/{self.name}"


def is_reference(name: str) -> bool:
    """Return whether a model's name is the path of a bundle, in the form that `Bundle.reference` returns."""
    return _REFERENCE.fullmatch(name) is not None


def pack(model: str, files: Mapping[str, Path]) -> Bundle:
    """Pack a model's code into a bundle.

    Args:
        model: A `.py` or `.keras` file, or `module:function`.
        files: Files to pack, as {name relative to the folder of the model's modules: path}.

    Raises:
        InputError: If a file is outside the folder of the modules or contains credentials, or the files are too large.
    """
    outside = [name for name in files if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts]
    if outside:
        raise InputError(
            f"Cannot bundle the model {model!r} for other machines: it uses {outside[0]!r}, which is outside its "
            "folder. Move the file next to the model's file, and open it as Path(__file__).parent / NAME."
        )
    _check_may_travel(model, files)
    if model.endswith(".keras"):
        return Bundle(Path(model).name, Path(model).read_bytes())
    entry = Path(model).name if model.endswith(".py") else model
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as zipped:
        zipped.writestr(zipfile.ZipInfo(_ENTRY_FILE, _TIME), json.dumps({"model": entry}))
        for name, path in sorted(files.items()):
            zipped.writestr(zipfile.ZipInfo(name, _TIME), path.read_bytes(), zipfile.ZIP_DEFLATED)
    name = Path(model).stem if model.endswith(".py") else model.partition(":")[0].rpartition(".")[2]
    return Bundle(f"{name}.zip", archive.getvalue())


def _check_may_travel(model: str, files: Mapping[str, Path]) -> None:
    """Raise InputError if the files are too large together, or one of them contains credentials."""
    sizes = {name: path.stat().st_size for name, path in files.items()}
    largest = max(sizes, key=sizes.__getitem__)
    if (total := sum(sizes.values())) > _MOST_BYTES:
        raise InputError(
            f"Cannot bundle the model {model!r} for other machines: expected at most {_MOST_BYTES:,} bytes of files, "
            f"received {total:,} bytes. The largest file is {largest!r}. Put large files on gs://BUCKET/… and read "
            "them from there."
        )
    for name, path in files.items():
        if sizes[name] <= _MOST_CREDENTIAL_BYTES and _opens_an_account(path.read_bytes()):
            raise InputError(
                f"Cannot bundle the model {model!r} for other machines: its code uses {name!r}, which contains "
                "credentials. Everybody who can read the bundle could use them. Change the code so that it does not "
                "need this file: on a platform, the step authenticates with its service account."
            )


def _opens_an_account(content: bytes) -> bool:
    """Return whether a file contains a PEM private key, JSON with a `private_key`, or Google credentials in JSON."""
    if _PRIVATE_KEY.search(content):
        return True
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and ("private_key" in value or value.get("type") in _CREDENTIALS)


def data_files(bundle: Bundle) -> dict[str, int]:
    """Return the data files of a bundle (all files except Python files), as {name: size in bytes}."""
    if bundle.name.endswith(".keras"):
        return {}
    with zipfile.ZipFile(io.BytesIO(bundle.content)) as zipped:
        infos = zipped.infolist()
    sizes = {member.filename: member.file_size for member in infos if not member.filename.endswith(".py")}
    del sizes[_ENTRY_FILE]
    return sizes


@dataclasses.dataclass(frozen=True)
class Opened:
    """A bundle that has been extracted to a local folder.

    Attributes:
        folder: Folder of the extracted files.
        model: Name of the model, to pass to `build_model` within a `with importing_from(...)` block.
    """

    folder: Path
    model: str

    @property
    def files(self) -> dict[str, Path]:
        """All files of the bundle, as {name relative to `folder`: path}."""
        paths = (path for path in sorted(self.folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts)
        return {path.relative_to(self.folder).as_posix(): path for path in paths}

    @property
    def modules(self) -> tuple[str, ...]:
        """Dotted names of all modules in the bundle except the model's own file."""
        names = [name.removesuffix(".py").removesuffix("/__init__") for name in self.files if name.endswith(".py")]
        own = Path(self.model).stem if self.model.endswith(".py") else ""
        return tuple(name.replace("/", ".") for name in names if name != own)

    @functools.cached_property
    def packages(self) -> frozenset[str]:
        """Names of the top-level modules and packages in the bundle except the model's own file."""
        entry = "" if self.model.endswith(".py") else self.model.partition(":")[0]
        return frozenset(name.partition(".")[0] for name in (*self.modules, entry) if name)


@functools.cache
def fetch(reference: str) -> Opened:
    """Read a bundle from its reference, a local path or a path in a bucket, then verify and extract it.

    Raises:
        InputError: If the reference is invalid, or the bundle is missing, is damaged or has the wrong digest.
    """
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        raise InputError(
            f"Cannot open the bundle {reference!r}: expected a path like …/SHA256/NAME.zip or …/SHA256/NAME.keras. "
            "Check the path."
        )
    return open_bundle(storage.read_bytes(reference), match[1], reference)


def open_bundle(content: bytes, digest: str, where: str) -> Opened:
    """Verify a bundle and extract it to a temporary folder of this process.

    Args:
        content: Bytes of the bundle.
        digest: Expected SHA-256 of the content.
        where: Path of the bundle, for error messages. The suffix of the path determines the format.

    Raises:
        InputError: If the digest is wrong, or the bundle is damaged.
    """
    received = hashlib.sha256(content).hexdigest()
    if received != digest:
        raise InputError(
            f"The code in {where} has been changed: expected SHA-256 {digest[:16]}…, received {received[:16]}…. "
            "Restore the file, or train the model again."
        )
    folder = _scratch() / digest[:16]
    name = Path(where).name
    try:
        if name.endswith(".keras"):
            storage.write_bytes(folder / name, content)
            return Opened(folder, str(folder / name))
        with zipfile.ZipFile(io.BytesIO(content)) as zipped:
            entry = json.loads(zipped.read(_ENTRY_FILE))["model"]
            if not folder.is_dir():
                with storage.staged_directory(folder) as staged:
                    zipped.extractall(staged, [member for member in zipped.namelist() if member != _ENTRY_FILE])
        return Opened(folder, str(folder / entry) if entry.endswith(".py") else entry)
    except (zipfile.BadZipFile, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"Cannot open the code in {where}: it is not a bundle of a model's code, or it is incomplete "
            f"({describe(error)}). Expected the path of a bundle that `tpu-pipelines compile` wrote."
        ) from error


@functools.cache
def _scratch() -> Path:
    """Return a temporary folder that is deleted when this process exits."""
    folder = Path(tempfile.mkdtemp(prefix="tpu-pipelines-code-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@contextlib.contextmanager
def importing_from(opened: Opened) -> Iterator[None]:
    """Import a bundle's modules from its folder in a `with` block, even if other modules have the same names.

    If modules with these names were imported before the block, they are restored after it. Otherwise the bundle's
    modules stay imported. Import statements in a bundle's modules find the modules of the same bundle even after the
    block, for example when a layer is called.
    """
    with _importing(opened, {}):
        yield


@contextlib.contextmanager
def _importing(opened: Opened, own: dict[str, ModuleType]) -> Iterator[None]:
    """See `importing_from`. `own` are the bundle's modules that have been imported, by name; the block adds to them."""

    def imported() -> dict[str, ModuleType]:
        modules = sys.modules.copy()  # Another thread may be importing.
        return {name: module for name, module in modules.items() if name.partition(".")[0] in opened.packages}

    with _LOCK:
        before = imported()
        try:
            for name in before:
                del sys.modules[name]
            sys.modules.update(own)
            for folder in {opened.folder, *(path.parent for path in opened.files.values())}:
                sys.path_importer_cache[str(folder)] = _finder(folder, opened, own)
            sys.path.insert(0, str(opened.folder))
            importlib.invalidate_caches()
            _IMPORTING.append((opened, own))
            try:
                with contextlib.chdir(opened.folder):  # A module may open files next to it.
                    yield
            finally:
                _IMPORTING.pop()
                sys.path.remove(str(opened.folder))
        finally:
            own.update(imported())
            if before:
                for name in imported():
                    del sys.modules[name]
                sys.modules.update(before)


def _finder(folder: Path, opened: Opened, own: dict[str, ModuleType]) -> FileFinder:
    make: Any = functools.partial(_Loader, opened, own)  # Typed as a class, but only called.
    return FileFinder(str(folder), (make, [".py"]))


class _Loader(SourceFileLoader):
    """Loads a module of a bundle. Its import statements, even those in functions, find the bundle's modules."""

    def __init__(self, opened: Opened, own: dict[str, ModuleType], name: str, path: str):
        super().__init__(name, path)
        self._opened = opened
        self._own = own

    def exec_module(self, module: ModuleType) -> None:
        # Functions look up `__import__` in the `__builtins__` that their module had when they were defined.
        vars(module)["__builtins__"] = vars(builtins) | {"__import__": self._import}
        super().exec_module(module)

    def _import(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,  # The names of builtins.__import__, which may be keywords.
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """Import as `builtins.__import__` does."""
        whole = importlib.util.resolve_name("." * level + name, (globals or {}).get("__package__")) if level else name
        top = whole.partition(".")[0]
        is_running = any(own is self._own for _, own in _IMPORTING[-1:])
        if is_running or top not in self._opened.packages:
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        module = self._own.get(whole)
        if module and all(item == "*" or hasattr(module, item) for item in fromlist or ()):
            return module if fromlist else self._own[top]
        with _importing(self._opened, self._own):
            return builtins.__import__(name, globals, locals, fromlist or (), level)


def import_file(path: Path) -> ModuleType:
    """Import a model's `.py` file, and return the module."""
    opened, own = _IMPORTING[-1] if _IMPORTING else (None, {})
    loader = _Loader(opened, own, USER_MODULE, str(path)) if opened and path.is_relative_to(opened.folder) else None
    spec = importlib.util.spec_from_file_location(USER_MODULE, path, loader=loader)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def custom_objects(opened: Opened) -> dict[str, Any]:
    """Import a bundle's modules. Return the objects that they register with Keras, by registered name.

    Raises:
        InputError: If a module cannot be imported.
    """
    try:
        with objects_of_keras_only() as registered, importing_from(opened):
            if opened.model.endswith(".py"):
                import_file(Path(opened.model))
            for module in opened.modules:
                importlib.import_module(module)
            return dict(registered)
    except Exception as error:  # User code may raise anything.
        raise InputError(
            f"Cannot import the code that comes with the model: {describe(error)}. Install the libraries that it "
            "imports."
        ) from error


@contextlib.contextmanager
def objects_of_keras_only() -> Iterator[dict[str, Any]]:
    """Hide this process's registered Keras objects inside a `with` block, and restore them afterwards.

    Yield Keras's registry of custom objects, which contains only what the block registers.
    """
    registered = keras.saving.get_custom_objects()
    before = dict(registered)
    registered.clear()
    try:
        yield registered
    finally:
        registered.clear()
        registered.update(before)
