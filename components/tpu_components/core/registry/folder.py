"""Model registry in a folder: immutable versions and movable aliases."""

import contextlib
import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Unpack

from tpu_components.core.base import progress, typed_values
from tpu_components.core.base.errors import InputError, did_you_mean
from tpu_components.core.files import storage, typed_json
from tpu_components.core.files.location import Location
from tpu_components.core.registry.reference import (
    CHAMPION,
    EXPORT_DIR,
    GATE,
    HAND,
    MODEL_DIR,
    MODEL_NAME,
    ROLLBACK,
    VERSION_NUMBER,
    VERSIONS_DIR,
    as_label,
    check_alias,
    check_registry,
    version_name,
)
from tpu_components.core.registry.signing import sign_version, verify_version
from tpu_components.core.registry.versions import (
    ALIASES_FILE,
    CARD_FILE,
    UNLISTED,
    VERSION_FILE,
    Move,
    Version,
    VersionFacts,
    check_promotable,
    describe_file,
    digest_listing,
    model_digest,
    now,
    version_digest,
)


class ModelRegistry:
    """Versions and aliases of one model, in a folder.

    Args:
        root: Local folder of the registry. It is created with the first version.
        model_name: Name of the model: letters, digits, `-`, `_` and `.`.

    Raises:
        InputError: If the folder is not local, or the name is invalid.
    """

    def __init__(self, root: Path | str, model_name: str) -> None:
        if not str(root) or not Location(root).is_path:
            raise InputError(f"The registry must be a folder on this machine. Received: {str(root)!r}.")
        check_registry(str(root), model_name)
        self.root = Path(root)
        self.model_name = model_name
        self.directory = self.root / model_name

    def require(self) -> None:
        """Check that the model is registered.

        Raises:
            InputError: If the registry does not have the model.
        """
        if not self.directory.is_dir():
            known = [model.model_name for model in list_models(self.root)]
            expected = f": expected one of {', '.join(known)}" if known else ", because nothing is registered"
            raise InputError(
                f"There is no model {self.model_name!r} in {self.root}{expected}.{did_you_mean(self.model_name, known)}"
            )

    def versions(self) -> tuple[Version, ...]:
        """Return all readable versions, the oldest first. A warning is logged for each version that cannot be read.

        If files of one version are missing, for example after an incomplete copy, the other versions remain usable.
        """
        versions = []
        for path in self._version_dirs():
            try:
                versions.append(Version.load(path))
            except InputError as error:
                _warn_once(f"Warning: version {path.name} of {self.model_name!r} is skipped. {error}")
        return tuple(versions)

    def numbers(self) -> tuple[str, ...]:
        """Return the numbers of all versions, including unreadable ones, in ascending order."""
        return tuple(path.name for path in self._version_dirs())

    def version(self, number: str) -> Version:
        """Return a version by number. `7` means `0007`.

        Raises:
            InputError: If the version does not exist, or cannot be read.
        """
        known = self.numbers()
        number = number.zfill(4) if number.isdecimal() else number
        if number not in known:
            expected = f": expected one of {', '.join(known)}" if known else ", because nothing is registered"
            raise InputError(
                f"{self.model_name!r} has no version {number!r} in {self.root}{expected}.{did_you_mean(number, known)}"
            )
        return Version.load(self._versions_dir / number)

    def moves(self, alias: str = CHAMPION) -> tuple[Move, ...]:
        """Return the history of an alias: its moves from one version to another, the oldest first.

        Raises:
            InputError: If `aliases.json` cannot be read.
        """
        return self._read_aliases().get(check_alias(alias), ())

    def aliases(self) -> dict[str, str]:
        """Return the current version number of each alias."""
        return {alias: moves[-1].version for alias, moves in self._read_aliases().items()}

    def find(self, version: str) -> Version | None:
        """Return a version by number or alias, or None for an unset alias. An unknown number raises InputError."""
        if version.isdecimal():
            return self.version(version)
        moves = self.moves(version)
        return self.version(moves[-1].version) if moves else None

    def number_of(self, model_digest: str) -> str:
        """Return the number of the latest version whose trained model has the digest `model_digest`.

        Return an empty string if there is no such version.
        """
        label = as_label(model_digest)
        numbers = [version.number for version in self.versions() if as_label(version.model_digest) == label]
        return numbers[-1] if numbers else ""

    def alias_of(self, version: str) -> str:
        """Return an alias of a version, or an empty string if the version has no alias.

        Args:
            version: Number of the version, or an alias, which is returned unchanged.
        """
        if not version.isdecimal():
            return version
        number = self.version(version).number
        return next((alias for alias, current in self.aliases().items() if current == number), "")

    def champion(self, alias: str, digest: str) -> Version | None:
        """Return the version that a model must beat to get an alias.

        Usually, this is the version that has the alias. If that version contains the model itself, because an earlier
        evaluation has promoted the model, the result is the version that the model has replaced. So a model is never
        compared with itself, and repeating an evaluation gives the same result.

        Args:
            alias: Alias, for example `champion`, or the number of a version. A run passes the number of the version
                that had the alias when the run started.
            digest: Digest of the model that would get the alias; see `model_digest`.

        Returns:
            The version, or None if there is no version to beat.
        """
        current = self.find(alias)
        if current is None or current.model_digest != digest:
            return current
        if not (alias := self.alias_of(alias)):
            return current
        moves = self.moves(alias)
        digests = {move.version: move.model_digest for move in moves if move.model_digest}
        digests |= {version.number: version.model_digest for version in self.versions()}
        for move in reversed(moves):
            if move.by == GATE and digests.get(move.version) == digest != digests.get(move.previous):
                # An unreadable version is an error here, because without it there would be nothing to beat.
                return self.version(move.previous) if move.previous in self.numbers() else None
        return None

    def register(
        self, model_dir: Path, export_dir: Path, *, signing_key: str = "", **facts: Unpack[VersionFacts]
    ) -> Version:
        """Add a version without an alias. If an existing version has the same content, return the existing version.

        An existing version is not changed, even if it is unsigned: only files that this call has written are signed.

        Args:
            model_dir: Folder that train_model wrote.
            export_dir: Folder that export_model wrote.
            signing_key: File of the private key to sign the version with. If empty, the version is not signed.
            facts: Metadata of the version; see `VersionFacts`.
        """
        digest = version_digest(model_dir, export_dir)
        storage.require_writable(self.directory)
        self._versions_dir.mkdir(parents=True, exist_ok=True)
        with self._lock():
            for version in self.versions():
                if version.content_digest == digest:
                    return version
            moved = {move.version for moves in self._read_aliases().values() for move in moves}
            number = f"{max([0, *map(int, {*moved, *self.numbers()})]) + 1:04d}"  # Deleted numbers are not reused.
            with storage.staged_directory(self._versions_dir / number) as staged:
                name = version_name(self.model_name, number)
                fill_version(staged, model_dir, export_dir, name, signing_key, **facts)
            return self.version(number)

    def promote(self, number: str, alias: str, reason: str, champion: str | None = None) -> Move:
        """Move an alias to a version that has passed the gate, unless the version has the alias already.

        Args:
            number: Number of the version.
            alias: Alias to move, for example `champion`.
            reason: Reason for the move, which the registry records.
            champion: Digest of the model that had the alias when the version's model was compared with it; see
                `check_promotable`.

        Returns:
            The move that gave the version this alias.

        Raises:
            InputError: If the alias has moved since the comparison, the version's model was rolled back, or the version
                is damaged.
        """
        with self._lock():
            check_promotable(self, number, alias, champion)
            version = self.version(number)
            moves = self.moves(alias)
            if moves and moves[-1].version == version.number:
                return moves[-1]
            return self._move(alias, version, GATE, reason)

    def find_rollback(self, number: str, alias: str) -> str:
        """Describe the rollback that keeps a version from getting an alias, and say what to do.

        The rollback took the alias away from this version, or from another version with the same trained model. Return
        an empty string if there was no rollback, or if it was cancelled.

        Several versions can contain the same trained model, for example exports with two releases of LiteRT. If the
        alias was rolled back from one of these versions to another of them, only the version that lost the alias is
        excluded. If the alias was rolled back to a version with a different model, all versions of the model are
        excluded. A manual move to an earlier version is also a rollback. A move to a later version cancels a rollback.
        """
        version = self.version(number)
        moves = self.moves(alias)
        same_model = {each.number for each in self.versions() if each.model_digest == version.model_digest}
        same_model |= {move.version for move in moves if move.model_digest == version.model_digest}  # Deleted since.
        back = _moves_back(moves)
        for numbers in ({version.number}, same_model):
            # A move between two versions of the model does not change whether the model has the alias.
            of_these = [i for i, move in enumerate(moves) if (move.version in numbers) != (move.previous in numbers)]
            if of_these and of_these[-1] in back and moves[of_these[-1]].previous in numbers:
                rollback = moves[of_these[-1]]
                is_this = rollback.previous == version.number
                what = "it" if is_this else f"version {rollback.previous}, which has the same model,"
                return (
                    f"{what} was rolled back on {rollback.time} ({rollback.reason}), and the model has not changed. "
                    "Train a better model, or promote this version by hand: tpu-pipelines registry promote "
                    f"{self.model_name} {number}."
                )
        return ""

    def override(self, number: str, alias: str, reason: str) -> Move:
        """Move an alias to any version, even if the version has not passed the gate.

        Raises:
            InputError: If the version has the alias already, or is damaged.
        """
        with self._lock():
            version = self.version(number)
            moves = self.moves(alias)
            if moves and moves[-1].version == version.number:
                raise InputError(
                    f"Version {version.number} of {self.model_name!r} already has the alias {alias}. Choose another "
                    "version."
                )
            return self._move(alias, version, HAND, reason)

    def roll_back(self, alias: str, reason: str, verify_key: str = "") -> Move:
        """Move an alias back to its previous version. A repeated call moves it one version further back.

        Args:
            alias: Alias to move.
            reason: Reason for the move, which the registry records.
            verify_key: Public key that must verify the previous version. If empty, the signature is not checked.

        Raises:
            InputError: If there is no previous version, or it is damaged or lacks a valid signature.
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
                    f"Cannot roll back {alias} of {self.model_name!r} in {self.root}: "
                    f"no version had this alias{' before version ' + stack[0] if stack else ''}. To choose a version "
                    f"yourself, run: tpu-pipelines registry promote {self.model_name} VERSION."
                )
            version = self.version(stack[-2])
            if verify_key:
                verify_version(version.directory, verify_key)
            return self._move(alias, version, ROLLBACK, reason)

    def _move(self, alias: str, version: Version, by: str, reason: str) -> Move:
        version.check_files()
        aliases = self._read_aliases()
        moves = aliases.get(alias, ())
        previous = moves[-1].version if moves else ""
        move = Move(version.number, previous, by, reason, model_digest=version.model_digest)
        aliases[alias] = (*moves, move)
        storage.write_json(
            self.directory / ALIASES_FILE,
            {name: [dataclasses.asdict(entry) for entry in of_one] for name, of_one in aliases.items()},
        )
        return move

    @property
    def _versions_dir(self) -> Path:
        return self.directory / VERSIONS_DIR

    def _version_dirs(self) -> list[Path]:
        folders = [path for path in self._versions_dir.glob("*") if re.fullmatch(VERSION_NUMBER, path.name)]
        return sorted(folders, key=lambda path: int(path.name))

    def _read_aliases(self) -> dict[str, tuple[Move, ...]]:
        path = self.directory / ALIASES_FILE
        try:
            moves = typed_values.read(
                typed_json.decode(path.read_bytes()), Mapping[str, tuple[Move, ...]], any_version=True
            )
            if not all(re.fullmatch(VERSION_NUMBER, move.version) for of_one in moves.values() for move in of_one):
                raise ValueError("a move to an invalid version")
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError) as error:
            raise InputError(
                f"Cannot read {path}: expected aliases and their moves, received something else ({error!r}). The "
                "versions are not affected. Restore the file from a backup, or remove it and set the champion again: "
                f"tpu-pipelines registry promote {self.model_name} VERSION."
            ) from error
        return {alias: of_one for alias, of_one in moves.items() if of_one}

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        self.require()
        with storage.locked(self.directory / ".lock"):
            # Delete files of killed processes; a live writer would hold the lock.
            for folder in (self._versions_dir, self.directory):
                storage.drop_half_written(folder)
            yield


def _moves_back(moves: Sequence[Move]) -> set[int]:
    """Return the indices of the moves that moved an alias back to an earlier version.

    The sequence `moves` starts with the oldest move.
    """
    back: set[int] = set()
    stack: list[str] = []
    for index, move in enumerate(moves):
        is_earlier = move.version in stack
        if move.by == ROLLBACK or (move.by == HAND and is_earlier):
            back.add(index)
        if index in back and is_earlier:
            del stack[stack.index(move.version) + 1 :]
        else:
            stack.append(move.version)
    return back


def fill_version(
    directory: Path, model_dir: Path, export_dir: Path, name: str, signing_key: str, **facts: Unpack[VersionFacts]
) -> None:
    """Write the files of a version, with its version.json and its signatures, to a folder.

    `directory` is the folder, and `name` is the value of `Version.name`. The other arguments are those of
    `ModelRegistry.register`.
    """
    storage.copy_tree(model_dir, directory / MODEL_DIR)
    storage.copy_tree(export_dir, directory / EXPORT_DIR)
    if facts.get("card"):
        storage.write_bytes(directory / CARD_FILE, facts["card"].encode())
    files = {path.relative_to(directory).as_posix(): path for path in sorted(directory.rglob("*")) if path.is_file()}
    listed = {file: describe_file(path) for file, path in files.items() if file not in UNLISTED}
    version = Version(
        directory=directory,
        digest=digest_listing(listed),
        content_digest=version_digest(model_dir, export_dir),
        model_digest=model_digest(model_dir),
        created=now(),
        parent=facts.get("parent", ""),
        metrics=facts["metrics"],
        reasons=list(facts["reasons"]),
        lineage=facts["lineage"],
        files=listed,
        name=name,
    )
    storage.write_json(directory / VERSION_FILE, version.as_dict())
    for path in filter(Path.is_file, directory.iterdir()):
        path.chmod(0o444)  # Read-only, like the copied files.
    if signing_key:
        sign_version(directory, signing_key)


def list_models(root: Path) -> tuple[ModelRegistry, ...]:
    """Return the `ModelRegistry` of each model in a folder, sorted by name. Other folders are skipped."""
    names = [path.parent.name for path in sorted(root.glob(f"*/{VERSIONS_DIR}"))]
    return tuple(ModelRegistry(root, name) for name in names if re.fullmatch(MODEL_NAME, name))


@functools.cache
def _warn_once(text: str) -> None:
    progress.say("registry", text)
