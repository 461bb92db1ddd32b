"""What a version is, anywhere: its files, their checks and digests, and what can be done with it."""

import dataclasses
import hashlib
import json
import re
import typing
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, Self

from tpu_components.core.base import typed_values
from tpu_components.core.base.digest import digest_of
from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.artifacts import (
    ARCHITECTURE_FILE,
    BEST_WEIGHTS_FILE,
    EXPORT_FILE,
    FLOAT_TFLITE_FILE,
    INT8_TFLITE_FILE,
    SAVED_MODEL_DIR,
    ModelInfo,
    file_crc32c,
    file_sha256,
)
from tpu_components.core.examples.interface import TextInput
from tpu_components.core.files import storage, typed_json
from tpu_components.core.registry.reference import EXPORT_DIR, MODEL_DIR, SIGNATURE_FILE, VERSION_NUMBER, VERSIONS_DIR
from tpu_components.core.results.export_info import ExportInfo

VERSION_FILE, ALIASES_FILE, CARD_FILE = "version.json", "aliases.json", "README.md"
# What a version holds beside the files that it lists: a signature is over these, and version.json.
UNLISTED = {VERSION_FILE, SIGNATURE_FILE, f"{EXPORT_DIR}/{SIGNATURE_FILE}"}


_CHECKSUM, _OLD_CHECKSUM = "sha256", "crc32c"


@dataclasses.dataclass(frozen=True)
class Version:
    """One version of a model, as `version.json` beside it says.

    Attributes:
        directory: Its folder.
        digest: SHA-256 of all its files, by their names and contents.
        content_digest: SHA-256 by which the same model is known again, however long it took to make; see
            `version_digest`. Of versions from before there were two, `digest` is this one.
        model_digest: SHA-256 of the trained model alone; see `model_digest`.
        created: When it was registered, UTC, ISO 8601.
        parent: The version that it was compared with before; empty if there was none.
        metrics: Scalar metrics by name.
        reasons: The gate's.
        lineage: Origin of the version: data fingerprint, run, configuration, code.
        files: Size in bytes and SHA-256 of every file but the signatures, by its path; CRC32C in older versions.
        name: Name that it registered itself under, and is signed with: `digits@0001`, or on Vertex AI, which numbers
            versions itself, the model's alone. Empty in older versions.
    """

    directory: Path
    digest: str
    model_digest: str
    created: str
    parent: str
    metrics: Mapping[str, int | float | None]
    reasons: list[str]
    lineage: Mapping[str, Any]
    files: Mapping[str, Mapping[str, Any]]
    content_digest: str = ""
    name: str = ""

    @property
    def number(self) -> str:
        """The name of its folder: `0001` is the first."""
        return self.directory.name

    @property
    def uri(self) -> str:
        """Its folder, as text."""
        return str(self.directory)

    @property
    def model_dir(self) -> Path:
        """The trained model, as train_model wrote it."""
        return self.directory / MODEL_DIR

    @property
    def export_dir(self) -> Path:
        """Folder that export_model wrote."""
        return self.directory / EXPORT_DIR

    @property
    def num_bytes(self) -> int:
        """The size of its files."""
        return sum(file["num_bytes"] for file in self.files.values())

    def as_dict(self) -> dict[str, Any]:
        """Return what `version.json` holds."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "directory"}

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read `version.json`.

        Raises:
            InputError: If it is missing or malformed.
        """
        path = directory / VERSION_FILE
        try:
            return cls._parse(directory, path.read_bytes())
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise InputError(
                f"Cannot read {path}: expected the description of a registered version, received something else "
                f"({error!r}). Restore it from a backup, or promote another version."
            ) from error

    @classmethod
    def _parse(cls, directory: Path, described: bytes) -> Self:
        kinds = typing.get_type_hints(cls)
        raw = typed_values.read(typed_json.decode(described), Mapping[str, Any])
        facts = {name: typed_values.read(value, kinds[name], name) for name, value in raw.items()}
        version = cls(directory=directory, **{"content_digest": facts["digest"], **facts})
        for name, file in version.files.items():
            storage.join("", name)
            if not isinstance(file["num_bytes"], int) or not (file.get(_CHECKSUM) or file[_OLD_CHECKSUM]):
                raise ValueError("a file without size or checksum")
        return version

    def damage(self, part: str = "", directory: Path | None = None) -> tuple[str, ...]:
        """Say what is wrong with its files; empty where all are there, whole and unchanged, and no others.

        Args:
            part: `model` or `export`, to look at this folder alone.
            directory: Place of that folder, if not in the version's own.
        """
        start = f"{part}/" if part else ""
        expected = {name: file for name, file in self.files.items() if name.startswith(start)}
        top = directory or self.directory / part

        def compare(name: str) -> str:
            checksum = _CHECKSUM if _CHECKSUM in expected[name] else _OLD_CHECKSUM
            try:
                received: Any = describe_file(top / name.removeprefix(start), checksum)
            except OSError as error:
                received = (error.strerror or str(error)).lower()
            return "" if received == expected[name] else f"{name} should be {expected[name]}, and is {received}"

        with ThreadPoolExecutor() as pool:
            faults = [words for words in pool.map(compare, expected) if words]
        there = {f"{start}{path.relative_to(top).as_posix()}" for path in top.rglob("*") if path.is_file()}
        others = sorted(there - {*expected, *UNLISTED})
        faults += [f"{name} is not of this version" for name in others if _is_seen(name)]
        if not faults and not part and self.digest != self._digest_of_files():
            faults.append(f"{VERSION_FILE} lists files of another digest than {self.digest[:16]}…")
        return tuple(faults)

    def _digest_of_files(self) -> str:
        if all(_CHECKSUM in file for file in self.files.values()):
            return digest_listing(self.files)
        return version_digest(self.model_dir, self.export_dir)

    def check_files(self) -> None:
        """Check that every file is there, whole and unchanged, and no other.

        Raises:
            InputError: If one is not.
        """
        _refuse_damaged(self.number, self.directory.parent.parent, self.damage())


def _refuse_damaged(number: str, place: Path | str, damage: Sequence[str]) -> None:
    if damage:
        raise InputError(
            f"Version {number} in {place} is damaged: {'; '.join(damage)}. Restore it from a backup, or promote "
            "another version."
        )


@dataclasses.dataclass(frozen=True)
class Move:
    """One move of an alias.

    Attributes:
        version: Number of the version that it went to.
        previous: Number of the version that it left; empty the first time.
        by: `gate`, `hand` or `rollback`.
        reason: Why, in words.
        time: When, UTC, ISO 8601.
    """

    version: str
    previous: str
    by: str
    reason: str
    time: str


class RegisteredVersion(Protocol):
    """A version of a model, wherever its registry is."""

    @property
    def number(self) -> str:
        """Its name in the registry."""

    @property
    def model_digest(self) -> str:
        """Digest by which the registry knows the trained model."""

    @property
    def uri(self) -> str:
        """The folder, here or on gs://, that holds its `model/` and `export/`."""


class Registry(Protocol):
    """The versions and aliases of one model: in a folder, `ModelRegistry`, or on Vertex AI, `VertexRegistry`."""

    @property
    def root(self) -> Path | str:
        """Folder of the version."""

    @property
    def model_name(self) -> str:
        """Whose versions these are."""

    def find(self, version: str) -> RegisteredVersion | None:
        """Return the version of a number, which must be there, or where an alias stands, if anywhere."""

    def number_of(self, model_digest: str) -> str:
        """Return the latest version of a trained model; empty if there is none."""

    def champion(self, alias: str, digest: str) -> RegisteredVersion | None:
        """Return the version that a model has to beat for an alias, if there is one."""

    def promote(self, number: str, alias: str, reason: str, champion: str | None = None) -> Move:
        """Move an alias to a version that the gate has let through; nothing happens where it stands there already."""


def fetch(version: RegisteredVersion, part: str, scratch: Path) -> Path:
    """Return a version's folder `model` or `export` on this machine, every file checked.

    Args:
        version: The version.
        part: `MODEL_DIR` or `EXPORT_DIR`.
        scratch: Gets the files of a version on gs://.

    Raises:
        InputError: If a file is missing or not as it was registered.
    """
    if isinstance(version, Version):
        version.check_files()
        return version.directory / part
    folder = fetch_folder(f"{version.uri}/{part}", scratch)
    if part == MODEL_DIR and version.model_digest and not model_digest(folder).startswith(version.model_digest):
        _refuse_damaged(
            version.number, version.uri, [f"its model is not the one of digest {version.model_digest[:16]}…"]
        )
    return folder


def fetch_folder(uri: str, scratch: Path) -> Path:
    """Return a folder, here or on gs://, on this machine; where a version holds it, every file is checked.

    Args:
        uri: The folder.
        scratch: Gets the files of one on gs://.

    Raises:
        InputError: If there is no such folder, or a file of the version is missing or not as it was registered.
    """
    folder = storage.localize(uri, scratch)
    if not storage.is_remote(uri):
        check_folder(folder)
        return folder
    place, _, part = uri.rstrip("/").rpartition("/")
    if part in (MODEL_DIR, EXPORT_DIR) and storage.exists(f"{place}/{VERSION_FILE}"):
        described = storage.localize(f"{place}/{VERSION_FILE}", scratch)
        models, _, name = place.rpartition("/")
        _refuse_damaged(name, models, Version.load(described.parent).damage(part, folder))
    return folder


def check_folder(folder: Path) -> None:
    """Check every file of the version that holds a folder, if one does.

    Raises:
        InputError: If a file is missing or not as it was registered.
    """
    folder = folder.resolve()
    version_dir = folder.parent
    is_of_registry = version_dir.parent.name == VERSIONS_DIR and re.fullmatch(VERSION_NUMBER, version_dir.name)
    if folder.name in (MODEL_DIR, EXPORT_DIR) and is_of_registry and (version_dir / VERSION_FILE).is_file():
        Version.load(version_dir).check_files()


def model_digest(model_dir: Path) -> str:
    """Return the SHA-256 of what a trained model is: architecture, best weights, classes, words; not how long it took.

    Raises:
        InputError: If a file is missing.
    """
    info = ModelInfo.load(model_dir)
    words = (info.input.vocabulary_sha256,) if isinstance(info.input, TextInput) else ()
    return _digest_files(model_dir, (ARCHITECTURE_FILE, BEST_WEIGHTS_FILE), *info.class_names, *words)


def left_out_formats(export_dir: Path) -> Mapping[str, str]:
    """Return the formats that an export does not hold, with the reason; empty where it does not say."""
    return ExportInfo.load(export_dir).left_out if (export_dir / EXPORT_FILE).is_file() else {}


def version_digest(model_dir: Path, export_dir: Path) -> str:
    """Return the SHA-256 of what a version is: the trained model and the files that serve it.

    Raises:
        InputError: If a file is missing.
    """
    left_out = left_out_formats(export_dir)
    names = [name for form, name in (("float", FLOAT_TFLITE_FILE), ("int8", INT8_TFLITE_FILE)) if form not in left_out]
    if not names:
        saved_model = sorted(path for path in (export_dir / SAVED_MODEL_DIR).rglob("*") if path.is_file())
        names = [str(path.relative_to(export_dir)) for path in saved_model]
    return _digest_files(export_dir, names, model_digest(model_dir))


def _digest_files(directory: Path, names: Sequence[str], *further: str) -> str:
    digest = hashlib.sha256(json.dumps(further).encode())
    for name in names:
        try:
            with open(directory / name, "rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        except OSError as error:
            raise InputError(
                f"Cannot load the model in {directory}: expected the file {name}, received an error "
                f"({error.strerror}). Check the path."
            ) from error
    return digest.hexdigest()


def describe_file(path: Path, checksum: str = _CHECKSUM) -> dict[str, Any]:
    """Return a file's entry in a version: its size and checksum."""
    if checksum == _OLD_CHECKSUM:
        return {"num_bytes": path.stat().st_size, checksum: file_crc32c(path)}
    return {"num_bytes": path.stat().st_size, checksum: file_sha256(path)}


def short_digest(value: Any) -> str:
    """Return sixteen letters that are equal for equal values that JSON can hold; empty for nothing."""
    return digest_of(value)[:16] if value else ""


def _is_seen(name: str) -> bool:
    return not any(map(storage.is_hidden, name.split("/")))


def digest_listing(files: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the digest of a version's files."""
    return digest_of([[name, files[name]["num_bytes"], files[name][_CHECKSUM]] for name in sorted(files)])
