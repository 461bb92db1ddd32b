"""Runs a step like Kubeflow's launcher, with a folder as the object store.

Every step has its own pod: its inputs are copied into it first, and its outputs are copied out of it afterwards.
`python -m … ENVIRONMENT COMMAND…` runs a step of kfp.local in a process whose pod is a folder. This file alone, started
in a container as the launcher is (`python3 launch --executor_input … -- COMMAND…`), makes that container the pod.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

STORE = Path("/object-store")  # Where a container finds the object store, a folder for each bucket.
_LOGS = "executor-logs"


def _artifacts(part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for given in part.get("artifacts", {}).values():
        yield from given.get("artifacts", ())


def copy_objects(source: Path, target: Path) -> None:
    """Copy the parts of a file or folder that an object store can hold: contents of files, by name."""
    # Rule: empty folders, modes and times do not survive the object store (kubeflow/pipelines
    # backend/src/v2/objectstore/object_store.go: UploadBlob, DownloadBlob)
    # Rule: a link to a folder is treated as a file, and fails (kubeflow/pipelines
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
    """Run a step's command in its own pod, with these variables from secrets; returns the exit code."""
    # Rule: a pod has the secrets that its step names, and no credentials of the user who submits (kubeflow/pipelines
    # backend/src/v2/driver/k8s.go: extendPodSpecPatch)
    variables = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")} | environment
    place = command.index("--executor_input") + 1
    task = json.loads(command[place])
    with tempfile.TemporaryDirectory(prefix="pod-") as pod:
        # Rule: a pod starts empty, even if it is a retry (kubeflow/pipelines backend/src/v2/component/launcher_v2.go:
        # prepareOutputFolders)
        stores = {artifact["uri"]: f"{pod}{artifact['uri']}" for part in task.values() for artifact in _artifacts(part)}
        # Rule: a step reads its own copy of its inputs (kubeflow/pipelines backend/src/v2/component/launcher_v2.go:
        # downloadArtifacts)
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
        # Rule: the outputs of a failed step are not stored (kubeflow/pipelines backend/src/v2/component/launcher_v2.go:
        # uploadOutputArtifacts)
        if code == 0:
            for uri in outputs:
                copy_objects(Path(stores[uri]), Path(uri))
            told = Path(task["outputs"]["outputFile"])
            if told.is_file():
                told.write_text(told.read_text().replace(f"{pod}/", "/"))
        return code


def local_path(uri: str) -> Path:
    """Return the path in a pod for a URI of the object store."""
    # Rule: an artifact at gs://, s3:// or minio:// is at /gcs, /s3 or /minio in its pod (kubeflow/pipelines
    # backend/src/v2/component/launcher_v2.go: LocalPathForURI)
    scheme, _, rest = uri.partition("://")
    return Path({"gs": "/gcs", "s3": "/s3", "minio": "/minio"}[scheme], rest)


def result_file(store: Path, execution_id: str) -> Path:
    """Return the file with an execution's outcome and outputs, which replaces the metadata store."""
    return store / ".metadata" / f"{execution_id}.json"


def launch_here(arguments: Sequence[str], store: Path = STORE) -> int:
    """Run a step in this container, with the launcher's arguments; returns the launcher's exit code.

    Args:
        arguments: The launcher's options, `--`, and the step's command.
        store: Folder of the object store.
    """
    options, command = arguments[: arguments.index("--")], arguments[arguments.index("--") + 1 :]
    named = dict(zip(options[::2], options[1::2], strict=True))
    task, component = (json.loads(named[name]) for name in ("--executor_input", "--component_spec"))
    outputs = task["outputs"]
    for artifact in _artifacts(task["inputs"]):
        copy_objects(_stored(artifact, store), local_path(artifact["uri"]))
    written = [local_path(artifact["uri"]) for artifact in _artifacts(outputs)]
    for place in (*written, *(Path(one["outputFile"]) for one in outputs.get("parameters", {}).values())):
        place.parent.mkdir(parents=True, exist_ok=True)
    # Rule: the log of a step is an artifact, even if the step fails (kubeflow/pipelines
    # backend/src/v2/component/launcher_v2.go: getLogWriter, uploadOutputArtifacts)
    printed = {"artifacts": {key: listed for key, listed in outputs.get("artifacts", {}).items() if key == _LOGS}}
    code = _run(_filled(command, task, component), [local_path(artifact["uri"]) for artifact in _artifacts(printed)])
    for artifact in _artifacts(printed if code else outputs):
        # Rule: a missing output is not an error (kubeflow/pipelines backend/src/v2/component/launcher_v2.go:
        # uploadOutputArtifacts)
        copy_objects(local_path(artifact["uri"]), _stored(artifact, store))
    told = {} if code else _told(outputs, component)
    result = result_file(store, named["--execution_id"])
    result.parent.mkdir(parents=True, exist_ok=True)
    result.write_text(json.dumps({"code": code, **told}))
    # Rule: the launcher ends with exit code 1, whatever the step's exit code (kubeflow/pipelines
    # backend/src/v2/cmd/launcher-v2/main.go: main)
    return int(code != 0)


def _stored(artifact: Mapping[str, Any], store: Path) -> Path:
    return store / artifact["uri"].partition("://")[2]


def _filled(command: Sequence[str], task: Mapping[str, Any], component: Mapping[str, Any]) -> list[str]:
    """Return a step's command with its arguments filled in."""
    # Rule: a step is called with the component's defaults for inputs that its task leaves out (kubeflow/pipelines
    # backend/src/v2/component/launcher_v2.go: addDefaultParams)
    declared = component.get("inputDefinitions", {}).get("parameters", {})
    values = {name: given["defaultValue"] for name, given in declared.items() if "defaultValue" in given}
    values |= task["inputs"].get("parameterValues", {})
    # Rule: {{$}} in any word of the command is replaced by the executor's whole input, as JSON (kubeflow/pipelines
    # backend/src/v2/component/launcher_v2.go: compileCmdAndArgs)
    whole = json.dumps({**task, "inputs": {**task["inputs"], "parameterValues": values}})
    return [word.replace("{{$}}", whole) for word in command]


def _told(outputs: Mapping[str, Any], component: Mapping[str, Any]) -> dict[str, Any]:
    """Return the outputs that a successful step reports."""
    path = Path(outputs["outputFile"])
    told = json.loads(path.read_text()) if path.is_file() else {}
    values = dict(told.get("parameterValues", {}))
    # Rule: an output parameter that the step does not report is read from its file; a missing file fails the step
    # (kubeflow/pipelines backend/src/v2/component/launcher_v2.go: collectOutputParameters)
    for name, parameter in outputs.get("parameters", {}).items():
        if name not in values:
            text = Path(parameter["outputFile"]).read_text()
            kind = component["outputDefinitions"]["parameters"][name]["parameterType"]
            values[name] = text if kind == "STRING" else json.loads(text)
    return {"parameters": values, "artifacts": told.get("artifacts", {})}


def _run(words: Sequence[str], logs: Sequence[Path]) -> int:
    """Run a command and log its output; returns the exit code."""
    # Rule: the launcher does not forward signals; SIGTERM ends it, and the container with it (kubeflow/pipelines
    # backend/src/v2/component/launcher_v2.go: execute)
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(path.open("wb")) for path in logs]
        started = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, umask=0o022)
        process = stack.enter_context(started)
        for line in process.stdout or ():
            for target in (sys.stdout.buffer, *files):
                target.write(line)
                target.flush()
    return process.returncode


if __name__ == "__main__":
    if sys.argv[1].startswith("--"):
        os.umask(0)  # A bucket has no owners: steps that write to the same folder have other users.
        sys.exit(launch_here(sys.argv[1:]))
    sys.exit(launch(json.loads(sys.argv[1]), sys.argv[2:]))
