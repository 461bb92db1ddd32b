"""A model registry in a folder: versions that never change, aliases that move, and the history of every move.

    REGISTRY/MODEL/versions/0001/{model/, export/, version.json}   appears whole or not at all
    REGISTRY/MODEL/aliases.json                                    {"champion": [MOVE, …]}, replaced by a rename

An alias stands where its last move put it. One file holds both, so nothing can part an alias from its history. Who
writes holds a lock, which the system lets go of when the process dies, however it dies; reading needs none.
"""

import contextlib
import dataclasses
import datetime
import hashlib
import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, Self

from components import storage
from components.artifacts import (
    ARCHITECTURE_FILE,
    BEST_WEIGHTS_FILE,
    EXPORT_FILE,
    FLOAT_TFLITE_FILE,
    INT8_TFLITE_FILE,
    SAVED_MODEL_DIR,
    ModelInfo,
    file_crc32c,
)
from components.errors import InputError, did_you_mean
from components.interface import TextInput

CHAMPION = "champion"
VERSION_FILE, ALIASES_FILE = "version.json", "aliases.json"
MODEL_DIR, EXPORT_DIR = "model", "export"
# How an alias came to move: a run's gate said so, somebody said so, or somebody took the last promotion back.
GATE, HAND, ROLLBACK = "gate", "hand", "rollback"
_MODEL_NAME = r"[\w-][\w.-]{0,63}"
_CHECKSUM, _OLD_CHECKSUM = "sha256", "crc32c"
_ALIAS = r"[a-z]([a-zA-Z0-9-]{0,126}[a-z0-9])?"  # What Vertex AI takes.
_VERSION = r"\d{4,}"
_VERTEX_ROOT = r"projects/[^/@]+/locations/[a-z0-9-]+/models"
_VERTEX_MODEL_NAME = r"[a-z_][a-z0-9_-]{0,62}"


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
        lineage: Where it comes from: data fingerprint, run, configuration, code.
        files: Size in bytes and SHA-256 of every file, by its path; CRC32C in older versions.
    """

    directory: Path
    digest: str
    model_digest: str
    created: str
    parent: str
    metrics: Mapping[str, float]
    reasons: Sequence[str]
    lineage: Mapping[str, Any]
    files: Mapping[str, Mapping[str, Any]]
    content_digest: str = ""

    @property
    def number(self) -> str:
        """Its name: `0001` is the first."""
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
        """What export_model made of it."""
        return self.directory / EXPORT_DIR

    @property
    def num_bytes(self) -> int:
        """The size of its files."""
        return sum(file["num_bytes"] for file in self.files.values())

    def as_dict(self) -> dict[str, Any]:
        """What `version.json` holds."""
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
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(
                f"Cannot read {path}: expected the description of a registered version, received something else "
                f"({error!r}). Restore it from a backup, or promote another version."
            ) from error

    @classmethod
    def _parse(cls, directory: Path, described: bytes) -> Self:
        raw = json.loads(described)
        version = cls(directory=directory, **{"content_digest": raw["digest"], **raw})
        for name, file in version.files.items():
            storage.join("", name)
            if not isinstance(file["num_bytes"], int) or not (file.get(_CHECKSUM) or file[_OLD_CHECKSUM]):
                raise ValueError("a file without size or checksum")
        return version

    def damage(self, part: str = "", directory: Path | None = None) -> tuple[str, ...]:
        """What is wrong with its files, in words; empty where all are there, whole and unchanged, and no others.

        Args:
            part: `model` or `export`, to look at this folder alone.
            directory: Where that folder is, if not in the version's own.
        """
        start = f"{part}/" if part else ""
        expected = {name: file for name, file in self.files.items() if name.startswith(start)}
        top = directory or self.directory / part

        def compare(name: str) -> str:
            checksum = _CHECKSUM if _CHECKSUM in expected[name] else _OLD_CHECKSUM
            try:
                received: Any = _describe_file(top / name.removeprefix(start), checksum)
            except OSError as error:
                received = (error.strerror or str(error)).lower()
            return "" if received == expected[name] else f"{name} should be {expected[name]}, and is {received}"

        with ThreadPoolExecutor() as pool:
            found = [words for words in pool.map(compare, expected) if words]
        there = {f"{start}{path.relative_to(top).as_posix()}" for path in top.rglob("*") if path.is_file()}
        others = sorted(there - {*expected, VERSION_FILE})
        found += [f"{name} is not of this version" for name in others if _is_seen(name)]
        if not found and not part and self.digest != self._digest_of_files():
            found.append(f"{VERSION_FILE} lists files of another digest than {self.digest[:16]}…")
        return tuple(found)

    def _digest_of_files(self) -> str:
        if all(_CHECKSUM in file for file in self.files.values()):
            return _digest_listing(self.files)
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
        version: Where it went.
        previous: Where it had been; empty the first time.
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
        """What the registry knows its trained model by."""

    @property
    def uri(self) -> str:
        """The folder, here or on gs://, that holds its `model/` and `export/`."""


class Registry(Protocol):
    """The versions and aliases of one model: in a folder, `ModelRegistry`, or on Vertex AI, `VertexRegistry`."""

    @property
    def root(self) -> Path | str:
        """Where it is."""

    @property
    def model_name(self) -> str:
        """Whose versions these are."""

    def find(self, version: str) -> RegisteredVersion | None:
        """The version of a number, which must be there, or where an alias stands, if anywhere."""

    def number_of(self, model_digest: str) -> str:
        """The latest version of a trained model; empty if there is none."""

    def opponent(self, alias: str, digest: str) -> RegisteredVersion | None:
        """The version that a model has to beat for an alias, if there is one."""

    def promote(self, number: str, alias: str, reason: str, against: str | None = None) -> Move:
        """Move an alias to a version that the gate has let through; nothing happens where it stands there already."""


class ModelRegistry:
    """The versions and aliases of one model, in a folder.

    Args:
        root: Folder of the registry, on this machine. Nothing is written before the first version.
        model_name: Letters, digits, `-`, `_` and `.`.

    Raises:
        InputError: If the registry is not on this machine, or the name cannot be one.
    """

    def __init__(self, root: Path | str, model_name: str) -> None:
        if not str(root) or storage.is_remote(str(root)):
            raise InputError(f"A registry is a folder on this machine. Received: {str(root)!r}.")
        self.root, self.model_name = Path(root), check_model_name(model_name)
        self.directory = self.root / model_name

    def require(self) -> None:
        """Check that the model has been registered.

        Raises:
            InputError: If it has not.
        """
        if not self.directory.is_dir():
            known = [model.model_name for model in list_models(self.root)]
            raise InputError(
                f"There is no model {self.model_name!r} in {self.root}: expected one of "
                f"{', '.join(known) or 'none, since nothing is registered'}.{did_you_mean(self.model_name, known)}"
            )

    def versions(self) -> tuple[Version, ...]:
        """All versions, the first one first."""
        return tuple(Version.load(path) for path in self._version_dirs())

    def numbers(self) -> tuple[str, ...]:
        """The numbers of all versions, also of those that cannot be read; the first one first."""
        return tuple(path.name for path in self._version_dirs())

    def version(self, number: str) -> Version:
        """One version.

        Raises:
            InputError: If there is none of that number, or it cannot be read.
        """
        known = self.numbers()
        if number not in known:
            raise InputError(
                f"{self.model_name!r} has no version {number!r} in {self.root}: expected one of "
                f"{', '.join(known) or 'none, since nothing is registered'}.{did_you_mean(number, known)}"
            )
        return Version.load(self._versions_dir / number)

    def moves(self, alias: str = CHAMPION) -> tuple[Move, ...]:
        """The history of an alias, the first move first.

        Raises:
            InputError: If it cannot be read.
        """
        return self._read_aliases().get(check_alias(alias), ())

    def aliases(self) -> dict[str, str]:
        """Where every alias stands: its version's number."""
        return {alias: moves[-1].version for alias, moves in self._read_aliases().items()}

    def find(self, version: str) -> Version | None:
        """The version of a number, which must be there, or where an alias stands, if anywhere."""
        if re.fullmatch(_VERSION, version):
            return self.version(version)
        moves = self.moves(version)
        return self.version(moves[-1].version) if moves else None

    def number_of(self, model_digest: str) -> str:
        """The latest version of a trained model; empty if there is none."""
        found = [version.number for version in self.versions() if version.model_digest == model_digest]
        return found[-1] if found else ""

    def opponent(self, alias: str, digest: str) -> Version | None:
        """The version that a model has to beat for an alias.

        The one where the alias stands; or, if that is this very model, the one which it beat: a model is never its own
        opponent, so that judging it again gives the same answer.

        Args:
            alias: As `champion`; or the number of a version, which is then the opponent whatever the model.
            digest: The model's; see `model_digest`.

        Returns:
            None if there is nothing to beat.
        """
        current = self.find(alias)
        if current is None or current.number == alias or current.model_digest != digest:
            return current
        digests = {version.number: version.model_digest for version in self.versions()}
        for move in reversed(self.moves(alias)):
            if move.by == GATE and digests.get(move.version) == digest != digests.get(move.previous):
                return self.version(move.previous) if move.previous in digests else None
        return None

    def register(
        self,
        model_dir: Path,
        export_dir: Path,
        *,
        metrics: Mapping[str, float],
        reasons: Sequence[str],
        lineage: Mapping[str, Any],
        parent: str = "",
    ) -> Version:
        """Add a version, or find the one that has this content already; no alias moves.

        Args:
            model_dir: What train_model wrote.
            export_dir: What export_model made of it.
            metrics: Scalar metrics by name.
            reasons: The gate's.
            lineage: Where it comes from.
            parent: The version that it was compared with.
        """
        digest = version_digest(model_dir, export_dir)
        storage.require_writable(self.directory)
        self._versions_dir.mkdir(parents=True, exist_ok=True)
        with self._lock():
            for half in self._versions_dir.glob(".*.tmp"):  # Of a process that was killed: we hold the lock.
                shutil.rmtree(half)
            for version in self.versions():
                if version.content_digest == digest:
                    return version
            number = f"{max([0, *map(int, self._used_numbers())]) + 1:04d}"
            with storage.staged_directory(self._versions_dir / number) as staged:
                fill_version(
                    staged, model_dir, export_dir, metrics=metrics, reasons=reasons, lineage=lineage, parent=parent
                )
            return self.version(number)

    def promote(self, number: str, alias: str, reason: str, against: str | None = None) -> Move:
        """Move an alias to a version that the gate has let through; nothing happens where it stands there already.

        Args:
            number: The version.
            alias: As `champion`.
            reason: Why, in words.
            against: Digest of the model that it was compared with, empty for none; None if that was not the alias's.

        Returns:
            The move that put the alias there.

        Raises:
            InputError: If the alias has moved since the comparison, the version was rolled back, or it is damaged.
        """
        with self._lock():
            version, current, moves = self.version(number), self.find(alias), self.moves(alias)
            if current and current.number == number:
                return moves[-1]
            standing = current.model_digest if current else ""
            if against is not None and standing not in (against, version.model_digest):
                raise InputError(
                    f"Cannot promote version {number} of {self.model_name!r}: it was compared with "
                    f"{self.number_of(against) or 'none'}, and meanwhile the {alias} is "
                    f"{current.number if current else 'none'}. Run again, to compare it with that."
                )
            last = next((move for move in reversed(moves) if number in (move.version, move.previous)), None)
            if last and last.by == ROLLBACK and last.previous == number:
                raise InputError(
                    f"Cannot promote version {number} of {self.model_name!r}: it was rolled back on {last.time} "
                    f"({last.reason}), and the model is unchanged. Train a better one, or insist: tpu-pipelines "
                    f"registry promote {self.model_name} {number}."
                )
            return self._move(alias, version, GATE, reason)

    def override(self, number: str, alias: str, reason: str) -> Move:
        """Move an alias to any version, whatever the gate says.

        Raises:
            InputError: If it stands there already, or the version is damaged.
        """
        with self._lock():
            if (moves := self.moves(alias)) and moves[-1].version == number:
                raise InputError(f"Version {number} of {self.model_name!r} is the {alias} already.")
            return self._move(alias, self.version(number), HAND, reason)

    def roll_back(self, alias: str, reason: str) -> Move:
        """Take the last promotion back: the alias returns to where it stood before. Again: one further back.

        Raises:
            InputError: If there is nothing to return to, or that version is damaged.
        """
        with self._lock():
            stack: list[str] = []
            for move in self.moves(alias):
                if move.by == ROLLBACK:
                    stack.pop()
                else:
                    stack.append(move.version)
            if len(stack) < 2:
                raise InputError(
                    f"Cannot roll {alias} of {self.model_name!r} back: expected an earlier one, received "
                    f"{'only version ' + stack[0] if stack else 'none at all'} in {self.root}."
                )
            return self._move(alias, self.version(stack[-2]), ROLLBACK, reason)

    def _move(self, alias: str, version: Version, by: str, reason: str) -> Move:
        version.check_files()
        aliases = self._read_aliases()
        moves = aliases.get(alias, ())
        move = Move(version.number, moves[-1].version if moves else "", by, reason, _now())
        aliases[alias] = (*moves, move)
        storage.write_json(
            self.directory / ALIASES_FILE,
            {name: [dataclasses.asdict(one) for one in of_one] for name, of_one in aliases.items()},
        )
        return move

    @property
    def _versions_dir(self) -> Path:
        return self.directory / "versions"

    def _version_dirs(self) -> list[Path]:
        found = [path for path in self._versions_dir.glob("*") if re.fullmatch(_VERSION, path.name)]
        return sorted(found, key=lambda path: int(path.name))

    def _used_numbers(self) -> set[str]:
        """Those of all versions, also of deleted ones that the history still names."""
        moved = {move.version for moves in self._read_aliases().values() for move in moves}
        return moved | {*self.numbers()}

    def _read_aliases(self) -> dict[str, tuple[Move, ...]]:
        path = self.directory / ALIASES_FILE
        try:
            raw = json.loads(path.read_bytes())
            moves = {alias: tuple(Move(**move) for move in moves) for alias, moves in raw.items()}
            if not all(re.fullmatch(_VERSION, move.version) for of_one in moves.values() for move in of_one):
                raise ValueError("a move to what is no version")
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise InputError(
                f"Cannot read {path}: expected aliases and their moves, received something else ({error!r}). The "
                "versions beside it are unharmed. Restore it from a backup; or remove it and name the champion again: "
                f"tpu-pipelines registry promote {self.model_name} VERSION."
            ) from error
        return {alias: of_one for alias, of_one in moves.items() if of_one}

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        self.require()
        with storage.locked(self.directory / ".lock"):
            yield


def fill_version(
    directory: Path,
    model_dir: Path,
    export_dir: Path,
    *,
    metrics: Mapping[str, float],
    reasons: Sequence[str],
    lineage: Mapping[str, Any],
    parent: str,
) -> None:
    """Write what a version is: its files, and version.json beside them; the arguments are those of `register`."""
    storage.copy_tree(model_dir, directory / MODEL_DIR)
    storage.copy_tree(export_dir, directory / EXPORT_DIR)
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    files = {path.relative_to(directory).as_posix(): _describe_file(path) for path in paths}
    version = Version(
        directory=directory,
        digest=_digest_listing(files),
        content_digest=version_digest(model_dir, export_dir),
        model_digest=model_digest(model_dir),
        created=_now(),
        parent=parent,
        metrics=metrics,
        reasons=reasons,
        lineage=lineage,
        files=files,
    )
    storage.write_json(directory / VERSION_FILE, version.as_dict())


def fetch(version: RegisteredVersion, part: str, scratch: Path) -> Path:
    """A version's folder `model` or `export` on this machine, every file checked.

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
    """A folder, here or on gs://, on this machine; where a version holds it, every file is checked.

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
    version_dir = folder.resolve().parent
    if (version_dir / VERSION_FILE).is_file():
        Version.load(version_dir).check_files()


def list_models(root: Path) -> tuple[ModelRegistry, ...]:
    """The models of a registry, by name."""
    return tuple(ModelRegistry(root, path.parent.name) for path in sorted(root.glob("*/versions")))


def reference(root: Path | str, model_name: str, version: str) -> str:
    """`REGISTRY/MODEL@VERSION_OR_ALIAS`: a version as text, where a folder may be named too; see `parse_reference`."""
    return f"{root}/{model_name}@{version}"


def parse_reference(text: str) -> tuple[Registry, str] | None:
    """The registry of a model, and a version's number or an alias; None if the text is not such a reference.

    Example:
        >>> registry, version = parse_reference("runs/registry/digits@champion")
        >>> str(registry.root), registry.model_name, version
        ('runs/registry', 'digits', 'champion')
        >>> parse_reference("projects/my-project/locations/us-west1/models/digits@3")[1]
        '3'
        >>> parse_reference("runs/digits/model")
    """
    if found := re.fullmatch(rf"({_VERTEX_ROOT})/({_VERTEX_MODEL_NAME})@(\d+|{_ALIAS})", text):
        return open_registry(found[1], found[2]), found[3]
    found = re.fullmatch(f"(.+)/({_MODEL_NAME})@({_VERSION}|{_ALIAS})", text)
    if not found or storage.is_remote(text) or Path(text).exists():
        return None
    return ModelRegistry(found[1], found[2]), found[3]


def open_registry(root: Path | str, model_name: str) -> Registry:
    """The registry of a model: a folder on this machine, or `projects/PROJECT/locations/REGION/models`.

    Raises:
        InputError: If it can be neither, or not with this name.
    """
    check_registry(str(root), model_name)
    if not is_on_vertex(str(root)):
        return ModelRegistry(root, model_name)
    from components.vertex_registry import VertexRegistry  # It builds on this module.

    return VertexRegistry(str(root), model_name)


def is_on_vertex(root: str) -> bool:
    """Whether a registry is Vertex AI's.

    Example:
        >>> is_on_vertex("projects/my-project/locations/us-west1/models"), is_on_vertex("runs/registry")
        (True, False)
    """
    return re.fullmatch(_VERTEX_ROOT, root) is not None


def check_registry(root: str, model_name: str) -> None:
    """Check that a registry can be one, and have a model of this name.

    Raises:
        InputError: If it cannot.
    """
    if root.startswith("projects/") and "/locations/" in root and not is_on_vertex(root):
        raise InputError(
            f"Cannot use the registry {root!r}: expected a folder, or projects/PROJECT/locations/REGION/models for "
            "Vertex AI's. The model's name and version do not belong there: deploy.model_name, deploy.alias."
        )
    if is_on_vertex(root) and not re.fullmatch(_VERTEX_MODEL_NAME, model_name):
        raise InputError(
            f"Cannot use the model name {model_name!r} on Vertex AI: expected lower-case letters, digits, '-' and '_', "
            "not a digit or '-' first, at most 63. Set deploy.model_name."
        )


def model_digest(model_dir: Path) -> str:
    """SHA-256 of what a trained model is: architecture, best weights, classes and words, not how long it took.

    Raises:
        InputError: If a file is missing.
    """
    info = ModelInfo.load(model_dir)
    words = (info.input.vocabulary_sha256,) if isinstance(info.input, TextInput) else ()
    return _digest_files(model_dir, (ARCHITECTURE_FILE, BEST_WEIGHTS_FILE), *info.class_names, *words)


def left_out_formats(export_dir: Path) -> Mapping[str, str]:
    """By format, why an export does not hold it; empty where it does not say."""
    path = export_dir / EXPORT_FILE
    return json.loads(path.read_bytes()).get("left_out", {}) if path.is_file() else {}


def version_digest(model_dir: Path, export_dir: Path) -> str:
    """SHA-256 of what a version is: the trained model and the files that serve it.

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


def check_model_name(name: str) -> str:
    """A model's name, if it can be one.

    Raises:
        InputError: If it cannot.
    """
    if not re.fullmatch(_MODEL_NAME, name):
        raise InputError(f"Cannot use the model name {name!r}: expected letters, digits, '-', '_' and '.', at most 64.")
    return name


def check_alias(alias: str) -> str:
    """An alias, if it can be one.

    Raises:
        InputError: If it cannot.
    """
    if not re.fullmatch(_ALIAS, alias):
        raise InputError(f"Cannot use the alias {alias!r}: expected lower-case letters, digits and '-', as 'champion'.")
    return alias


def _describe_file(path: Path, checksum: str = _CHECKSUM) -> dict[str, Any]:
    if checksum == _OLD_CHECKSUM:
        return {"num_bytes": path.stat().st_size, checksum: file_crc32c(path)}
    with open(path, "rb") as file:
        return {"num_bytes": path.stat().st_size, checksum: hashlib.file_digest(file, "sha256").hexdigest()}


def _is_seen(name: str) -> bool:
    return not any(map(storage.is_hidden, name.split("/")))


def _digest_listing(files: Mapping[str, Mapping[str, Any]]) -> str:
    listing = [[name, files[name]["num_bytes"], files[name][_CHECKSUM]] for name in sorted(files)]
    return hashlib.sha256(json.dumps(listing).encode()).hexdigest()


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
