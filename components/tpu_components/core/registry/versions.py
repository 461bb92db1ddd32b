"""Registered versions with their files, checksums and digests, and the interface that all registries share."""

import dataclasses
import datetime
import hashlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NotRequired, Protocol, Self, TypedDict

from tpu_components.core.base import typed_values
from tpu_components.core.base.digest import digest_of
from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.artifacts import (
    ARCHITECTURE_FILE,
    BEST_WEIGHTS_FILE,
    FLOAT_TFLITE_FILE,
    INT8_TFLITE_FILE,
    SAVED_MODEL_DIR,
    ModelInfo,
    file_crc32c,
    file_sha256,
)
from tpu_components.core.examples.interface import TextInput
from tpu_components.core.files import storage, typed_json
from tpu_components.core.files.location import Location
from tpu_components.core.registry.reference import (
    EXPORT_DIR,
    MODEL_DIR,
    SIGNATURE_FILE,
    as_label,
    check_alias,
    version_at,
)
from tpu_components.core.results.export_info import ExportInfo

VERSION_FILE, ALIASES_FILE, CARD_FILE = "version.json", "aliases.json", "README.md"
# Files of a version that version.json does not list: version.json, and the signatures, which are written after it.
UNLISTED = {VERSION_FILE, SIGNATURE_FILE, f"{EXPORT_DIR}/{SIGNATURE_FILE}"}


_CHECKSUM, _OLD_CHECKSUM = "sha256", "crc32c"


def now() -> str:
    """Return the current time in UTC, in ISO 8601 format with whole seconds."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


@dataclasses.dataclass(frozen=True)
class Version:
    """One version of a model. This is the content of its `version.json`.

    Attributes:
        directory: Folder of the version.
        digest: SHA-256 of the names, sizes and checksums in `files`.
        content_digest: SHA-256 of the trained model and the exported files; see `version_digest`. It does not depend on
            when the model was trained or how long that took. Old versions lack this field, and store this SHA-256 in
            `digest`.
        model_digest: SHA-256 of the trained model; see `model_digest`.
        created: Time of registration, UTC, ISO 8601.
        parent: Version that the model was compared with. Empty if there was none.
        metrics: Scalar metrics by name.
        reasons: Reasons for the gate's decision.
        lineage: Origin of the version: data fingerprint, run, configuration, code.
        files: Size in bytes and SHA-256 (CRC32C in old versions) of every file, by path. `version.json` and the
            signatures are left out.
        name: Signed name, such as `digits@0001`. On Vertex AI, which assigns the numbers, only the model's name. Empty
            in old versions.
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
        """Number of the version, which is the name of its folder: `0001` for the first."""
        return self.directory.name

    @property
    def uri(self) -> Location:
        """Folder of the version."""
        return Location(self.directory)

    @property
    def model_dir(self) -> Path:
        """Folder `model` of the version: the trained model, as train_model wrote it."""
        return self.directory / MODEL_DIR

    @property
    def export_dir(self) -> Path:
        """Folder `export` of the version: the exported model, as export_model wrote it."""
        return self.directory / EXPORT_DIR

    @property
    def num_bytes(self) -> int:
        """Total size of the files in bytes."""
        return sum(file["num_bytes"] for file in self.files.values())

    def as_dict(self) -> dict[str, Any]:
        """Return the content of `version.json`."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "directory"}

    @classmethod
    def load(cls, directory: Path | str) -> Self:
        """Read `version.json` of a folder, local or in a bucket.

        Raises:
            InputError: If the file is missing or malformed.
        """
        path = f"{directory}/{VERSION_FILE}"
        try:
            raw = typed_json.decode(storage.read_bytes(path))
            raw = {"content_digest": raw["digest"], **raw}
            version: Self = typed_values.read(raw, cls, any_version=True, fixed={"directory": Path(directory)})
            for name, file in version.files.items():
                Location(directory).child(name)  # Checks the name.
                if not isinstance(file["num_bytes"], int) or not (file.get(_CHECKSUM) or file[_OLD_CHECKSUM]):
                    raise ValueError("a file has no size or no checksum")
            return version
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise InputError(
                f"Cannot read {path}: expected the description of a registered version, received something else "
                f"({error!r}). Restore it from a backup, or promote another version."
            ) from error

    def damage(self, part: str = "", directory: Path | None = None) -> tuple[str, ...]:
        """Return messages about missing, changed and additional files, or an empty tuple if the version is intact.

        Args:
            part: `model` or `export` to check only this folder. If empty, all files are checked.
            directory: A copy of `part`, which is checked instead of the folder itself.
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
            return "" if received == expected[name] else f"{name} should be {expected[name]}, but is {received}"

        with ThreadPoolExecutor() as pool:
            faults = [words for words in pool.map(compare, expected) if words]
        there = {f"{start}{path.relative_to(top).as_posix()}" for path in top.rglob("*") if path.is_file()}
        for name in sorted(there - {*expected, *UNLISTED}):
            if not any(map(storage.is_hidden, name.split("/"))):
                faults.append(f"{name} does not belong to this version")
        if not faults and not part:
            is_old = any(_CHECKSUM not in file for file in self.files.values())
            digest = version_digest(self.model_dir, self.export_dir) if is_old else digest_listing(self.files)
            if digest != self.digest:
                faults.append(f"{VERSION_FILE} lists files whose digest is not {self.digest[:16]}…")
        return tuple(faults)

    def check_files(self) -> None:
        """Check that the version has exactly its registered files, unchanged.

        Raises:
            InputError: If a file is missing, changed or additional.
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
        version: Number of the version that got the alias.
        previous: Number of the version that had the alias before. Empty for the first move.
        by: Cause: `gate`, `hand` or `rollback`.
        reason: Reason, as text.
        time: Time of the move, UTC, ISO 8601.
        model_digest: Digest of the model in `version`. Empty in moves from earlier releases.
    """

    version: str
    previous: str
    by: str
    reason: str
    time: str = dataclasses.field(default_factory=now)
    model_digest: str = ""


class VersionFacts(TypedDict):
    """Metadata of a new version.

    Attributes:
        metrics: Scalar metrics by name.
        reasons: Reasons for the gate's decision.
        lineage: Origin of the model.
        parent: Version that the model was compared with, if there was one.
        card: Text of the model card, if there is one.
    """

    metrics: Mapping[str, float]
    reasons: Sequence[str]
    lineage: Mapping[str, Any]
    parent: NotRequired[str]
    card: NotRequired[str]


class RegisteredVersion(Protocol):
    """A version of a model in any registry."""

    @property
    def number(self) -> str:
        """Number of the version in the registry."""

    @property
    def model_digest(self) -> str:
        """Digest of the trained model, in the form in which the registry stores it."""

    @property
    def uri(self) -> Location:
        """Folder with `model/` and `export/`, local or on gs://."""


class Registry(Protocol):
    """Versions and aliases of one model, in a folder (`ModelRegistry`) or on Vertex AI (`VertexRegistry`)."""

    @property
    def root(self) -> Path | str:
        """Folder of the registry, or its resource name on Vertex AI."""

    @property
    def model_name(self) -> str:
        """Name of the model."""

    def find(self, version: str) -> RegisteredVersion | None:
        """Return a version by number or alias, or None for an unset alias. An unknown number raises InputError."""

    def version(self, number: str) -> RegisteredVersion:
        """Return a version by number."""

    def number_of(self, model_digest: str) -> str:
        """Return the number of the latest version with this trained model, or an empty string if there is none."""

    def champion(self, alias: str, digest: str) -> RegisteredVersion | None:
        """Return the version that a model must beat to get an alias, or None if there is no version to beat.

        `digest` is the digest of the model that would get the alias; see `versions.model_digest`.
        """

    def alias_of(self, version: str) -> str:
        """Return an alias of a version, or an empty string if the version has no alias.

        The argument is a number or an alias. An alias is returned unchanged.
        """

    def find_rollback(self, number: str, alias: str) -> str:
        """Describe the rollback that keeps a version from getting an alias, and say what to do.

        The rollback took the alias away from this version, or from another version with the same trained model. Return
        an empty string if there was no rollback of this kind, or if it was cancelled.
        """

    def promote(self, number: str, alias: str, reason: str, champion: str | None = None) -> Move:
        """Move an alias to a version that has passed the gate. If the version has the alias already, do nothing.

        Args:
            number: Number of the version.
            alias: Alias to move, for example `champion`.
            reason: Reason of the move, as text.
            champion: Digest of the champion that the model was compared with; see `check_promotable`.

        Returns:
            The move that gave the version this alias.
        """


def check_promotable(registry: Registry, number: str, alias: str, champion: str | None) -> Any:
    """Check that an alias may be moved to a version. Return the version that has the alias now, or None if it is unset.

    Args:
        registry: Registry of the model.
        number: Number of the version.
        alias: Alias to move.
        champion: Digest of the champion that the model was compared with. Empty if there was no champion. None if the
            model was compared with a version that did not have the alias.

    Raises:
        InputError: If the alias has moved since the comparison, or the version's model was rolled back.
    """
    current = registry.find(check_alias(alias))
    version = registry.version(number)
    received = current.model_digest if current else ""
    if champion is not None and as_label(received) not in map(as_label, (champion, version.model_digest)):
        raise InputError(
            f"Cannot promote version {number} of {registry.model_name!r}: it was compared with "
            f"{registry.number_of(champion) or 'no version'}, but the {alias} is now "
            f"{current.number if current else 'not set'}. Run again to compare the model with the current {alias}."
        )
    if rollback := registry.find_rollback(number, alias):
        raise InputError(f"Cannot promote version {number} of {registry.model_name!r}: {rollback}")
    return current


def fetch(version: RegisteredVersion, part: str, scratch: Path) -> Path:
    """Return a version's folder `model` or `export` as a local folder, after checking every file.

    Args:
        version: The version.
        part: `MODEL_DIR` or `EXPORT_DIR`.
        scratch: Folder for downloads from gs://.

    Raises:
        InputError: If a file is missing or changed.
    """
    if isinstance(version, Version):
        version.check_files()
        return version.directory / part
    folder = fetch_folder(f"{version.uri}/{part}", scratch)
    if part == MODEL_DIR and version.model_digest and not model_digest(folder).startswith(version.model_digest):
        _refuse_damaged(
            version.number, version.uri, [f"its model does not have the digest {version.model_digest[:16]}…"]
        )
    return folder


def fetch_folder(uri: str, scratch: Path) -> Path:
    """Return a local copy of a folder, or the folder itself if it is local.

    If the folder is part of a registered version, every file is checked.

    Args:
        uri: The folder, local or on gs://.
        scratch: Folder for downloads from gs://.

    Raises:
        InputError: If the folder does not exist, or a file of the version is missing or changed.
    """
    folder = storage.localize(uri, scratch)
    place = Location(uri)
    if not place.is_remote:
        resolved = folder.resolve()
        is_of_version = resolved.name in (MODEL_DIR, EXPORT_DIR) and version_at(str(resolved.parent))[1]
        if is_of_version and (resolved.parent / VERSION_FILE).is_file():
            Version.load(resolved.parent).check_files()
        return folder
    version = place.parent
    if place.name in (MODEL_DIR, EXPORT_DIR) and storage.exists(f"{version}/{VERSION_FILE}"):
        _refuse_damaged(version.name, version.parent, Version.load(version).damage(place.name, folder))
    return folder


def model_digest(model_dir: Path) -> str:
    """Return the SHA-256 of a trained model: architecture, best weights, classes and vocabulary.

    The digest does not depend on when the model was trained or how long that took.

    Raises:
        InputError: If a file is missing.
    """
    info = ModelInfo.load(model_dir)
    words = (info.input.vocabulary_sha256,) if isinstance(info.input, TextInput) else ()
    return _digest_files(model_dir, (ARCHITECTURE_FILE, BEST_WEIGHTS_FILE), *info.class_names, *words)


def version_digest(model_dir: Path, export_dir: Path) -> str:
    """Return the SHA-256 that identifies a version, computed from the trained model and the exported files.

    Raises:
        InputError: If a file is missing.
    """
    left_out = ExportInfo.load(export_dir).left_out
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
                f"Cannot load the model in {directory}: cannot read the file {name} ({error.strerror}). Check the path."
            ) from error
    return digest.hexdigest()


def describe_file(path: Path, checksum: str = _CHECKSUM) -> dict[str, Any]:
    """Return the size and checksum of a file, for version.json.

    `checksum` is the name of the algorithm, `sha256` or `crc32c`. It is also the key of the checksum in the result.
    """
    digest_file = file_crc32c if checksum == _OLD_CHECKSUM else file_sha256
    return {"num_bytes": path.stat().st_size, checksum: digest_file(path)}


def short_digest(value: Any) -> str:
    """Return the first 16 characters of a JSON value's digest, or an empty string for an empty value."""
    return digest_of(value)[:16] if value else ""


def digest_listing(files: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the digest of the names, sizes and checksums of a version's files."""
    return digest_of([[name, files[name]["num_bytes"], files[name][_CHECKSUM]] for name in sorted(files)])
