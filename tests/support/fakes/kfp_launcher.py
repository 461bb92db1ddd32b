"""What Kubeflow's launcher does around a step, with a folder as the object store.

Every step has a pod of its own, and what it is to read is copied there first; what it has written is copied away.
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


def local_path(uri: str) -> Path:
    """Where a pod has what lies at an address of the object store."""
    # Rule: an artifact at gs://, s3:// or minio:// is at /gcs, /s3 or /minio in its pod (kubeflow/pipelines
    # backend/src/v2/component/launcher_v2.go: LocalPathForURI)
    scheme, _, rest = uri.partition("://")
    return Path({"gs": "/gcs", "s3": "/s3", "minio": "/minio"}[scheme], rest)


def result_file(store: Path, execution_id: str) -> Path:
    """Where an execution's end and outputs are told, in place of the metadata store."""
    return store / ".metadata" / f"{execution_id}.json"


def launch_here(arguments: Sequence[str], store: Path = STORE) -> int:
    """Run a step in this container, with the launcher's own arguments; its exit code is the launcher's.

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
    # Rule: what a step prints is an artifact of its own, also of one that fails (kubeflow/pipelines
    # backend/src/v2/component/launcher_v2.go: getLogWriter, uploadOutputArtifacts)
    printed = {"artifacts": {key: listed for key, listed in outputs.get("artifacts", {}).items() if key == _LOGS}}
    code = _run(_filled(command, task, component), [local_path(artifact["uri"]) for artifact in _artifacts(printed)])
    for artifact in _artifacts(printed if code else outputs):
        # Rule: an output that was not written is no failure (kubeflow/pipelines
        # backend/src/v2/component/launcher_v2.go: uploadOutputArtifacts)
        copy_objects(local_path(artifact["uri"]), _stored(artifact, store))
    told = {} if code else _told(outputs, component)
    result = result_file(store, named["--execution_id"])
    result.parent.mkdir(parents=True, exist_ok=True)
    result.write_text(json.dumps({"code": code, **told}))
    # Rule: the launcher ends with 1, whatever the step ended with (kubeflow/pipelines
    # backend/src/v2/cmd/launcher-v2/main.go: main)
    return int(code != 0)


def _stored(artifact: Mapping[str, Any], store: Path) -> Path:
    return store / artifact["uri"].partition("://")[2]


def _filled(command: Sequence[str], task: Mapping[str, Any], component: Mapping[str, Any]) -> list[str]:
    """Return a step's command with what it is called with."""
    # Rule: inputs that a task leaves out have the component's defaults in what the step is called with
    # (kubeflow/pipelines backend/src/v2/component/launcher_v2.go: addDefaultParams)
    declared = component.get("inputDefinitions", {}).get("parameters", {})
    values = {name: given["defaultValue"] for name, given in declared.items() if "defaultValue" in given}
    values |= task["inputs"].get("parameterValues", {})
    # Rule: {{$}} in any word of the command is all of the executor's input, as JSON (kubeflow/pipelines
    # backend/src/v2/component/launcher_v2.go: compileCmdAndArgs)
    whole = json.dumps({**task, "inputs": {**task["inputs"], "parameterValues": values}})
    return [word.replace("{{$}}", whole) for word in command]


def _told(outputs: Mapping[str, Any], component: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a step that has ended well tells of its outputs."""
    path = Path(outputs["outputFile"])
    told = json.loads(path.read_text()) if path.is_file() else {}
    values = dict(told.get("parameterValues", {}))
    # Rule: an output parameter that the step does not tell is read from its file, and fails the step where there is
    # none (kubeflow/pipelines backend/src/v2/component/launcher_v2.go: collectOutputParameters)
    for name, parameter in outputs.get("parameters", {}).items():
        if name not in values:
            text = Path(parameter["outputFile"]).read_text()
            kind = component["outputDefinitions"]["parameters"][name]["parameterType"]
            values[name] = text if kind == "STRING" else json.loads(text)
    return {"parameters": values, "artifacts": told.get("artifacts", {})}


def _run(words: Sequence[str], logs: Sequence[Path]) -> int:
    """Run a command, and keep what it prints; its exit code."""
    # Rule: the launcher passes no signal on, and SIGTERM ends it, and with it the container (kubeflow/pipelines
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
        os.umask(0)  # A bucket knows no owners: the steps that write beside this one have other users.
        sys.exit(launch_here(sys.argv[1:]))
    sys.exit(launch(json.loads(sys.argv[1]), sys.argv[2:]))
