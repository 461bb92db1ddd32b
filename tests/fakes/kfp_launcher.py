"""What Kubeflow's launcher does around a step, with a folder as the object store: `python -m … ENVIRONMENT COMMAND…`.

Every step has a pod of its own, and what it is to read is copied there first; what it has written is copied away.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def _artifacts(part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for given in part.get("artifacts", {}).values():
        yield from given.get("artifacts", ())


def copy_objects(source: Path, target: Path) -> None:
    """Copy what an object store can hold of a file or folder: the content of files, by their names."""
    # Rule: empty folders, modes and times do not survive the object store (kubeflow/pipelines
    # backend/src/v2/objectstore/object_store.go: UploadBlob, DownloadBlob)
    # Rule: a link to a folder is taken for a file, and fails (kubeflow/pipelines
    # backend/src/v2/objectstore/object_store.go: UploadBlob)
    if source.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    elif source.is_dir():
        for path in source.iterdir():
            if path.is_symlink() and path.is_dir():
                raise IsADirectoryError(f"failed to upload {path}: it is a link to a folder")
            copy_objects(path, target / path.name)


def launch(environment: dict[str, str], command: list[str]) -> int:
    """Run a step's command in a pod of its own, which has these variables of secrets; its exit code."""
    # Rule: a pod has the secrets that its step names, and nothing of what whoever submits has to sign in with
    # (kubeflow/pipelines backend/src/v2/driver/k8s.go: extendPodSpecPatch)
    variables = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")} | environment
    place = command.index("--executor_input") + 1
    task = json.loads(command[place])
    with tempfile.TemporaryDirectory(prefix="pod-") as pod:
        # Rule: a pod starts empty, also one that tries again (kubeflow/pipelines
        # backend/src/v2/component/launcher_v2.go: prepareOutputFolders)
        stores = {artifact["uri"]: f"{pod}{artifact['uri']}" for part in task.values() for artifact in _artifacts(part)}
        # Rule: a step reads its inputs from a copy of its own (kubeflow/pipelines
        # backend/src/v2/component/launcher_v2.go: downloadArtifacts)
        for artifact in _artifacts(task.get("inputs", {})):
            copy_objects(Path(artifact["uri"]), Path(stores[artifact["uri"]]))
        outputs = [artifact["uri"] for artifact in _artifacts(task.get("outputs", {}))]
        for uri in outputs:
            Path(stores[uri]).parent.mkdir(parents=True, exist_ok=True)
        for part in task.values():
            for artifact in _artifacts(part) if isinstance(part, dict) else ():
                artifact["uri"] = stores[artifact["uri"]]
        command = [*command[:place], json.dumps(task), *command[place + 1 :]]
        code = subprocess.run(command, env=variables, check=False).returncode
        # Rule: of a step that fails, nothing is kept (kubeflow/pipelines backend/src/v2/component/launcher_v2.go:
        # uploadOutputArtifacts)
        if code == 0:
            for uri in outputs:
                copy_objects(Path(stores[uri]), Path(uri))
            told = Path(task["outputs"]["outputFile"])
            if told.is_file():
                told.write_text(told.read_text().replace(f"{pod}/", "/"))
        return code


if __name__ == "__main__":
    sys.exit(launch(json.loads(sys.argv[1]), sys.argv[2:]))
