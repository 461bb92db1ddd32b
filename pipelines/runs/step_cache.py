"""The step cache of a run: entries of kfp.local, and outputs of the steps. Nothing outside its folder is touched.

    CACHE/steps/KEY.json                      kfp.local's entry for a step that is done
    CACHE/training-pipeline-TIME/TASK/OUTPUT  what the step left

Of a path in an entry only the last three parts count, so that a workspace that was moved or copied reads its own.
kfp.local wants absolute paths: entries get them before it runs.
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
    """Return the key of a step's entry as kfp.local computes it from the cache key of the step's own.

    Source: kfp/local/cache.py, LocalCache.compute_key; importing it takes a second, which a run that has nothing left
    to do would wait for.
    """
    return hashlib.sha256(f"comp-{step.replace('_', '-')}\0{cache_key}".encode()).hexdigest()


class StepCache:
    """The cache of one run's name.

    Args:
        directory: Its folder; created if missing.
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
        """Return the output of a step that is done, if it is there.

        Args:
            key: The entry's, as kfp.local computes it.
            name: The output's.
        """
        outputs = self._read(self.entries_dir / f"{key}.json") or {}
        return Path(outputs[name]["uri"]) if _is_artifact(outputs.get(name)) else None

    def remove(self, output: Path) -> None:
        """Delete an output, if it lies in this cache."""
        if self._locate(str(output)) is not None:
            shutil.rmtree(output)

    def forget(self) -> None:
        """Delete every entry; its outputs go with the leftovers."""
        for path in self.entries_dir.glob("*.json"):
            path.unlink()

    def drop_leftovers(self) -> None:
        """Delete entries without outputs of this cache, and what interrupted runs left."""
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
            with contextlib.suppress(OSError):  # Something is kept in it.
                pipeline_dir.rmdir()

    def adopt(self, key: str, name: str, other: Path) -> Path | None:
        """Link a step's output from another cache of the workspace, if it has one.

        Args:
            key: Key as in `output`.
            name: Name as in `output`.
            other: The other cache's folder.
        """
        if other.resolve() == self.directory.resolve() or not (other / _ENTRIES / f"{key}.json").is_file():
            return None
        with contextlib.suppress(OSError):  # Its own run may be deleting it.
            theirs = StepCache(other)
            if (value := theirs.output(key, name)) is not None:
                outputs = theirs._read(theirs.entries_dir / f"{key}.json") or {}
                uri = f"{_PIPELINE}shared-{key[:16]}/{value.parent.name}/{name}"
                storage.link_tree(value, self.directory / uri)
                entry = {**outputs, name: {**outputs[name], "uri": uri}}
                storage.write_bytes(self.entries_dir / f"{key}.json", json.dumps(entry).encode())
        return self.output(key, name)

    def keep_only(self, runs: Iterable[Path]) -> None:
        """Delete the steps whose files no run shares."""
        files = (path for run in runs for path in run.rglob("*") if path.is_file())
        held = {(status.st_dev, status.st_ino) for status in map(Path.lstat, files)}
        for path in self.entries_dir.glob("*.json"):
            own = (file for folder in _artifacts(self._read(path) or {}) for file in folder.rglob("*"))
            if not any((status.st_dev, status.st_ino) in held for status in map(Path.lstat, own)):
                path.unlink()
        self.drop_leftovers()

    def for_kfp(self) -> Path:
        """Return the folder of the entries, all with absolute paths, as kfp.local reads it."""
        for path in self.entries_dir.glob("*.json"):
            if outputs := self._read(path):
                storage.write_bytes(path, json.dumps(outputs).encode())
        return self.entries_dir

    def _read(self, path: Path) -> dict[str, Any] | None:
        """Return an entry with absolute paths; None if it is damaged, or its outputs are not in this cache."""
        try:
            outputs = typed_json.decode(storage.read_bytes(str(path)))
            located = {key: self._locate(value["uri"]) for key, value in outputs.items() if _is_artifact(value)}
        except (InputError, ValueError, AttributeError, TypeError):
            return None
        if None in located.values():
            return None
        return outputs | {key: {**outputs[key], "uri": str(output)} for key, output in located.items()}

    def _locate(self, uri: str) -> Path | None:
        """Return the output in this cache for a path of an entry; None if there is none."""
        parts = PurePosixPath(uri).parts[-3:]
        if len(parts) < 3 or not parts[0].startswith(_PIPELINE):
            return None
        output, own = self.directory.joinpath(*parts), self.directory.resolve().joinpath(*parts)
        return output if output.exists() and output.resolve() == own else None


def _is_artifact(output: Any) -> bool:
    return isinstance(output, dict) and "uri" in output


def _artifacts(outputs: Mapping[str, Any]) -> list[Path]:
    """Return the places of an entry's artifacts."""
    return [Path(output["uri"]) for output in outputs.values() if _is_artifact(output)]
