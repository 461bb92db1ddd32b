"""Runs the tasks of a compiled pipeline like Kubeflow Pipelines: in order, each in a pod.

It replaces KFP's driver, and the part of Argo's workflow that is the same for every step. Pods
are built only from the compiled pipeline; unknown parts of a pipeline are refused, not ignored.
"""

import dataclasses
import functools
import itertools
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.support.fakes.execution import in_order
from tests.support.fakes.execution_cache import Scope
from tests.support.fakes.kfp_launcher import STORE, local_path, result_file
from tests.support.fakes.kubeflow import executor_config
from tpu_components.core.base.typed_values import whole_numbers

BUCKET = "s3://pipelines"
_RUN = "run-1"
LAUNCHER = "/kfp-launcher/launch"
# Rule: Argo's pod gives the step each of these folders, empty (kubeflow/pipelines
# backend/src/v2/compiler/argocompiler/container.go: addContainerExecutorTemplate)
SCRATCH = ("/gcs", "/s3", "/minio", "/.local", "/.cache", "/.config")
_CONDITION = re.compile(r"inputs\.parameter_values\['([^']+)'\] == (true|false)")
_KNOWN_TO_KUBERNETES = {"activeDeadlineSeconds", "nodeSelector", "tolerations"}
Pod = dict[str, Any]


class StepFailedError(Exception):
    """A step's pod has failed in all attempts."""


@dataclasses.dataclass
class Driver:
    """A run of a compiled pipeline.

    Args:
        compiled: The pipeline as `tpu-pipelines compile --target kubeflow` writes it.
        store: Folder of the object store, which every pod sees at `STORE`.
        launcher: File that replaces KFP's launcher.
        start: Runs a pod to its end.
        values: Inputs of tasks to set, by task, because this machine lacks something that the pipeline requests.
    """

    compiled: str
    store: Path
    launcher: Path
    start: Callable[[Pod], None]
    values: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    places: dict[str, str] = dataclasses.field(default_factory=dict)
    skipped: list[str] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self._spec, *platforms = yaml.safe_load_all(self.compiled)
        self._whole = {"pipeline_spec": self._spec, "platform_spec": platforms[0] if platforms else {}}
        self._name, self._ids = self._spec["pipelineInfo"]["name"], itertools.count(1)

    def run(self) -> None:
        """Run every task whose condition holds.

        Raises:
            StepFailedError: If a step fails; no other starts.
        """
        self._run(self._spec["root"]["dag"]["tasks"], Scope.of_root(self._spec, {}))

    def _run(self, tasks: Mapping[str, Any], scope: Scope) -> None:
        for name in in_order(tasks):
            task, inputs = tasks[name], scope.inputs_of(tasks[name])
            inputs.parameters |= self.values.get(name, {})
            component = self._spec["components"][task["componentRef"]["name"]]
            if not _is_triggered(task, inputs):
                self.skipped.append(name)
            elif "dag" in component:
                self._run(component["dag"]["tasks"], inputs)
            else:
                scope.outputs[name] = self._step(name, task, component, inputs)

    def _step(self, name: str, task: Mapping[str, Any], component: Mapping[str, Any], inputs: Scope) -> dict[str, Any]:
        execution = str(next(self._ids))
        executor_input = {
            "inputs": {
                "parameterValues": whole_numbers(inputs.parameters),  # As the driver writes them, without a fraction.
                "artifacts": {key: {"artifacts": [artifact]} for key, artifact in inputs.artifacts.items()},
            },
            "outputs": self._outputs(name, component, execution),
        }
        # Rule: a failed pod is restarted, with its number, as often as the task's retry policy allows
        # (kubeflow/pipelines backend/src/v2/compiler/argocompiler/container.go: addContainerExecutorTemplate)
        attempts = 1 + int(task.get("retryPolicy", {}).get("maxRetryCount", 0))
        for attempt in range(attempts):
            self.start(self._pod(name, component, executor_input, execution, attempt if attempts > 1 else None))
            result = json.loads(told.read_text()) if (told := result_file(self.store, execution)).is_file() else {}
            if result.get("code") == 0:
                break
            told.unlink(missing_ok=True)
        else:
            raise StepFailedError(f"{name} failed {attempts} times: {result or 'its launcher told nothing'}")
        artifacts = executor_input["outputs"]["artifacts"]
        for key, listed in artifacts.items():
            # Rule: later steps get the information about an output, including metadata, that the step reported
            # (kubeflow/pipelines backend/src/v2/component/launcher_v2.go: mergeRuntimeArtifacts)
            listed["artifacts"][0].update(result["artifacts"].get(key, {}).get("artifacts", [{}])[0])
            self.places[f"{name}/{key}"] = listed["artifacts"][0]["uri"]
        return result["parameters"] | {key: listed["artifacts"][0] for key, listed in artifacts.items()}

    def _outputs(self, name: str, component: Mapping[str, Any], execution: str) -> dict[str, Any]:
        """Return the locations of a task's outputs."""
        # Rule: outputs have the path ROOT/PIPELINE/RUN/TASK/RANDOM/NAME; the executor's own output is next to them
        # (kubeflow/pipelines backend/src/v2/driver/driver.go: provisionOutputs; backend/src/v2/metadata/client.go:
        # GetPipeline)
        root = f"{BUCKET}/{self._name}/{_RUN}/{name}/{execution}"
        declared = component.get("outputDefinitions", {})
        # Rule: every step has an output with its log (kubeflow/pipelines backend/src/v2/driver/driver.go:
        # provisionOutputs)
        logs = {"executor-logs": {"artifactType": {"schemaTitle": "system.Artifact"}}}
        artifacts = {
            key: {"artifacts": [{"name": key, "uri": f"{root}/{key}", "type": one["artifactType"]}]}
            for key, one in {**declared.get("artifacts", {}), **logs}.items()
        }
        parameters = {key: {"outputFile": f"/tmp/kfp/outputs/{key}"} for key in declared.get("parameters", {})}
        told = local_path(root) / "output_metadata.json"
        return {"artifacts": artifacts, "parameters": parameters, "outputFile": str(told)}

    def _pod(
        self, name: str, component: Mapping[str, Any], executor_input: Any, execution: str, attempt: int | None
    ) -> Pod:
        """Return a task's pod, as it is sent to the API server."""
        container = self._spec["deploymentSpec"]["executors"][component["executorLabel"]]["container"]
        asked = executor_config(self._whole, name)
        if unknown := asked.keys() - _KNOWN_TO_KUBERNETES:
            raise NotImplementedError(
                f"{name} asks Kubernetes for {sorted(unknown)}, and this driver does not know that."
            )
        volumes = {path: {"emptyDir": {}} for path in SCRATCH}
        volumes |= {LAUNCHER: {"hostPath": {"path": str(self.launcher), "type": "File"}}}
        volumes |= {str(STORE): {"hostPath": {"path": str(self.store), "type": "Directory"}}}
        main = {
            "name": "main",
            "image": container["image"],
            "imagePullPolicy": "IfNotPresent",
            "command": self._launcher_call(component, executor_input, execution),
            "args": [*container.get("command", ()), *container.get("args", ())],
            "env": [*container.get("env", ()), *_environment(attempt)],
            "resources": _resources(container.get("resources", {})),
            "volumeMounts": [{"name": _as_name(path), "mountPath": path} for path in volumes],
            # Rule: a step cannot gain privileges, and has no capabilities (kubeflow/pipelines
            # backend/src/v2/compiler/argocompiler/security_context.go: defaultUserContainerSecurityContext)
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "seccompProfile": {"type": "RuntimeDefault"},
            },
        }
        spec = {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "containers": [main],
            "volumes": [{"name": _as_name(path), **source} for path, source in volumes.items()],
            **_placement(asked),
        }
        number = "" if attempt is None else f"-{attempt}"
        metadata = {"name": f"{self._name}-{name}-{execution}{number}", "labels": {"pipeline/runid": _RUN}}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}

    def _launcher_call(self, component: Mapping[str, Any], executor_input: Any, execution: str) -> list[str]:
        # Rule: the launcher is called with these options and, after `--`, the step's command and arguments
        # (kubeflow/pipelines backend/src/v2/driver/driver.go: initPodSpecPatch)
        options = {
            "executor_type": "container",
            "pipeline_name": self._name,
            "run_id": _RUN,
            "execution_id": execution,
            "executor_input": json.dumps(executor_input),
            "component_spec": json.dumps(component),
            "pod_name": "$(KFP_POD_NAME)",
            "pod_uid": "$(KFP_POD_UID)",
            "publish_logs": "true",
        }
        return ["python3", LAUNCHER, *itertools.chain(*((f"--{key}", value) for key, value in options.items())), "--"]


def _environment(attempt: int | None) -> list[dict[str, Any]]:
    # Rule: a pod gets its name and id, and, if it can be retried, the number of the attempt (kubeflow/pipelines
    # backend/src/v2/compiler/argocompiler/common.go: commonEnvs, retryIndexEnv)
    fields = {"KFP_POD_NAME": "metadata.name", "KFP_POD_UID": "metadata.uid"}
    told = [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()]
    return [*told, *([] if attempt is None else [{"name": "KFP_RETRY_INDEX", "value": str(attempt)}])]


def _placement(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the Kubernetes options of a task, as fields of its pod."""
    # Rule: the Kubernetes options of a pipeline's task are set on its pod (kubeflow/pipelines
    # backend/src/v2/driver/k8s.go: extendPodSpecPatch)
    placed: dict[str, Any] = {}
    if "activeDeadlineSeconds" in asked:
        placed["activeDeadlineSeconds"] = int(asked["activeDeadlineSeconds"])
    if "nodeSelector" in asked:
        placed["nodeSelector"] = asked["nodeSelector"]["labels"]
    if "tolerations" in asked:
        placed["tolerations"] = asked["tolerations"]
    return placed


def _is_triggered(task: Mapping[str, Any], inputs: Scope) -> bool:
    if not (condition := task.get("triggerPolicy", {}).get("condition")):
        return True
    if not (match := _CONDITION.fullmatch(condition)):
        raise NotImplementedError(f"This driver does not know the condition {condition!r}.")
    return inputs.parameters[match[1]] is (match[2] == "true")


def _resources(asked: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return a container's requests and limits."""
    # Rule: CPUs and memory have these fields, and an accelerator is a limit with the name of its type
    # (kubeflow/pipelines backend/src/v2/driver/driver.go: initPodSpecPatch)
    named = {"cpu": "Cpu", "memory": "Memory"}
    limits = {key: asked[field] for key, part in named.items() if (field := f"resource{part}Limit") in asked}
    requests = {key: asked[field] for key, part in named.items() if (field := f"resource{part}Request") in asked}
    if accelerator := asked.get("accelerator"):
        limits[accelerator["resourceType"]] = accelerator["resourceCount"]
    return {"limits": limits, "requests": requests}


@functools.cache
def _as_name(path: str) -> str:
    return re.sub("[^a-z0-9]+", "-", path).strip("-")
