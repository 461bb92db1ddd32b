"""The step cache of a run: entries of kfp.local, and outputs of the steps.

Files outside of the cache folder are not changed.

    CACHE/steps/KEY.json                      kfp.local's entry for a step that is done
    CACHE/training-pipeline-TIME/TASK/OUTPUT  an output of the step

Only the last three parts of a path in an entry are used, so that a workspace that was moved or copied reads its own
files. kfp.local needs absolute paths, which are written into the entries before it runs.
"""

import contextlib
import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from tpu_components.core.base.errors import InputError
from tpu_components.core.files import storage, typed_json

_ENTRIES = "steps"
_PIPELINE = "training-pipeline-"


def entry_key(step: str, cache_key: str) -> str:
    """Return the key under which kfp.local stores a step's cache entry, for the cache key of the step.

    This function does the same as LocalCache.compute_key in kfp/local/cache.py. Importing kfp takes a second, which
    would delay runs whose steps are all cached.
    """
    return hashlib.sha256(f"comp-{step.replace('_', '-')}\0{cache_key}".encode()).hexdigest()


class StepCache:
    """Step cache of the runs with one name.

    Args:
        directory: Folder of the cache. It is created if it is missing.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory.absolute()
        if self.entries_dir.is_symlink():  # Its target does not belong to the cache.
            self.entries_dir.unlink()
        self.entries_dir.mkdir(exist_ok=True)

    @property
    def entries_dir(self) -> Path:
        """Folder in which kfp.local keeps its entries."""
        return self.directory / _ENTRIES

    def output(self, key: str, name: str) -> Path | None:
        """Return the path of an output of a finished step, or None if the cache does not contain it.

        Args:
            key: Key of the entry; see `entry_key`.
            name: Name of the output.
        """
        outputs = self._read(self.entries_dir / f"{key}.json") or {}
        return Path(outputs[name]["uri"]) if _is_artifact(outputs.get(name)) else None

    def remove(self, output: Path) -> None:
        """Delete an output, if it is in this cache."""
        if self._locate(str(output)) is not None:
            shutil.rmtree(output)

    def drop_leftovers(self) -> None:
        """Delete entries whose outputs are not in this cache, and leftovers of interrupted runs."""
        kept: set[Path] = set()
        storage.drop_half_written(self.entries_dir)
        for path in self.entries_dir.glob("*.json"):
            outputs = self._read(path)
            if outputs is None:
                path.unlink()
            else:
                kept.update(folder.parent for folder in _artifacts(outputs))
        for pipeline_dir in self.directory.glob(f"{_PIPELINE}*"):
            if pipeline_dir.is_symlink():
                pipeline_dir.unlink()
                continue
            for task_dir in pipeline_dir.iterdir():
                if task_dir not in kept:
                    shutil.rmtree(task_dir, ignore_errors=True)
            with contextlib.suppress(OSError):  # The folder is not empty.
                pipeline_dir.rmdir()

    def adopt(self, key: str, name: str, other: Path) -> Path | None:
        """Link a step's output from another cache, if that cache contains it. Return the linked path, or None.

        Args:
            key: Key of the entry; see `output`.
            name: Name of the output.
            other: Folder of the other cache.
        """
        if other.resolve() == self.directory.resolve() or not (other / _ENTRIES / f"{key}.json").is_file():
            return None
        with contextlib.suppress(OSError):  # The other cache's run may be deleting the output.
            theirs = StepCache(other)
            if (value := theirs.output(key, name)) is not None:
                outputs = theirs._read(theirs.entries_dir / f"{key}.json") or {}
                uri = f"{_PIPELINE}shared-{key[:16]}/{value.parent.name}/{name}"
                storage.link_tree(value, self.directory / uri)
                entry = {**outputs, name: {**outputs[name], "uri": uri}}
                storage.write_bytes(self.entries_dir / f"{key}.json", json.dumps(entry).encode())
        return self.output(key, name)

    def keep_only(self, runs: Iterable[Path]) -> None:
        """Delete the cached steps, except steps with a file that has a hard link in one of the folders `runs`."""
        files = (path for run in runs for path in run.rglob("*") if path.is_file())
        held = {(status.st_dev, status.st_ino) for status in map(Path.lstat, files)}
        for path in self.entries_dir.glob("*.json"):
            own = (file for folder in _artifacts(self._read(path) or {}) for file in folder.rglob("*"))
            if not any((status.st_dev, status.st_ino) in held for status in map(Path.lstat, own)):
                path.unlink()
        self.drop_leftovers()

    def for_kfp(self) -> Path:
        """Write absolute paths into all entries. Return their folder, for kfp.local."""
        for path in self.entries_dir.glob("*.json"):
            if outputs := self._read(path):
                storage.write_bytes(path, json.dumps(outputs).encode())
        return self.entries_dir

    def _read(self, path: Path) -> dict[str, Any] | None:
        """Return an entry with absolute paths, or None if it is damaged, or its outputs are not in this cache."""
        try:
            outputs = typed_json.decode(storage.read_bytes(str(path)))
            located = {key: self._locate(value["uri"]) for key, value in outputs.items() if _is_artifact(value)}
        except (InputError, ValueError, AttributeError, TypeError, OSError):
            return None
        if None in located.values():
            return None
        return outputs | {key: {**outputs[key], "uri": str(output)} for key, output in located.items()}

    def _locate(self, uri: str) -> Path | None:
        """Return the path in this cache of an output that a cache entry names, or None if this cache lacks it."""
        parts = PurePosixPath(uri).parts[-3:]
        if len(parts) < 3 or not parts[0].startswith(_PIPELINE):
            return None
        output = self.directory.joinpath(*parts)
        own = self.directory.resolve().joinpath(*parts)
        return output if output.exists() and output.resolve() == own else None


def _is_artifact(output: Any) -> bool:
    return isinstance(output, dict) and "uri" in output


def _artifacts(outputs: Mapping[str, Any]) -> list[Path]:
    return [Path(output["uri"]) for output in outputs.values() if _is_artifact(output)]
