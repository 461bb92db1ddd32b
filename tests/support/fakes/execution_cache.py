"""Execution caches of the services, with the documented keys; for `Simulate`.

Keys do not contain: contents of objects, the code behind an image's tag, locations of outputs, names of tasks.
"""

import dataclasses
import functools
import itertools
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

ABSENT, AS_WRITTEN, FILLED_IN = "absent", "as_written", "filled_in"


@dataclasses.dataclass
class Scope:
    """The tasks of one DAG of a run: its inputs, and the outputs of its finished tasks, by task and output."""

    parameters: dict[str, Any]
    artifacts: dict[str, str] = dataclasses.field(default_factory=dict)
    outputs: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)

    @classmethod
    def of_root(cls, spec: Mapping[str, Any], values: Mapping[str, Any]) -> "Scope":
        """Return the scope of a run's outermost DAG."""
        declared = spec["root"].get("inputDefinitions", {}).get("parameters", {})
        return cls({name: given.get("defaultValue") for name, given in declared.items()} | dict(values))

    def inputs_of(self, task: Mapping[str, Any]) -> "Scope":
        """Return the inputs of a task."""
        inputs = task.get("inputs", {})
        return Scope(
            {name: self._find(given) for name, given in inputs.get("parameters", {}).items()},
            {name: self._find(given) for name, given in inputs.get("artifacts", {}).items()},
        )

    def _find(self, given: Mapping[str, Any]) -> Any:
        if "runtimeValue" in given:
            return given["runtimeValue"]["constant"]
        if name := given.get("componentInputParameter"):
            return self.parameters[name]
        if name := given.get("componentInputArtifact"):
            return self.artifacts[name]
        if "taskFinalStatus" in given:
            return {}
        source = given.get("taskOutputParameter") or given["taskOutputArtifact"]
        return self.outputs[source["producerTask"]][source.get("outputParameterKey") or source["outputArtifactKey"]]


@dataclasses.dataclass
class ExecutionCache:
    """Outputs of successful tasks, by key. Entries never expire.

    Args:
        run: Functions that return a task's output parameters from its inputs, by task; other tasks return "".
        defaults: Whether inputs that a task does not name count by their default, and with placeholders filled in.
            KFP: as written (backend/src/v2/driver/resolve.go). Vertex AI: undocumented; a pipeline must work with both.
    """

    run: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = dataclasses.field(default_factory=dict)
    defaults: str = AS_WRITTEN
    entries: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    ran: list[str] = dataclasses.field(default_factory=list)
    _ids: Any = dataclasses.field(default_factory=functools.partial(itertools.count, 1))

    def key(self, spec: Mapping[str, Any], task: Mapping[str, Any], inputs: Scope, job: Mapping[str, str]) -> str:
        """Return the key of a task, with a line for each part; "" if the task is not cached."""
        # Rule: Vertex AI's key consists of a task's inputs, outputs, image, command and environment
        # (https://cloud.google.com/vertex-ai/docs/pipelines/configure-caching)
        # Rule: Kubeflow's key is the same, without the environment (kubeflow/pipelines
        # backend/src/v2/cacheutils/cache.go: GenerateCacheKey; backend/src/v2/driver/cache.go: getFingerPrint)
        if not task.get("cachingOptions", {}).get("enableCache"):  # Vertex: off by task; KFP: driver/cache.go.
            return ""
        component = spec["components"][task["componentRef"]["name"]]
        container = spec["deploymentSpec"]["executors"][component["executorLabel"]]["container"]
        declared = component.get("inputDefinitions", {}).get("parameters", {})
        defaults = {name: given["defaultValue"] for name, given in declared.items() if "defaultValue" in given}
        if self.defaults == ABSENT:
            defaults = {}
        if self.defaults == FILLED_IN:
            defaults = json.loads(_fill(json.dumps(defaults), job))
        outputs = component.get("outputDefinitions", {})
        facts = [
            spec["pipelineInfo"]["name"],  # Both: pipelines of another name share nothing.
            {**defaults, **inputs.parameters},  # Both: the parameters' values.
            inputs.artifacts,  # Vertex: the artifacts' ids; KFP: their names, which are the ids in its metadata store.
            {kind: sorted(outputs.get(kind, {})) for kind in ("parameters", "artifacts")},  # Both: not their locations.
            container["image"],  # Both: as text.
            container.get("command", []),  # Both: as written, in order.
            container.get("args", []),  # Both: as written; each holds {{$}}, whose paths differ from job to job.
            container.get("env", []),  # Vertex: environment variables. KFP leaves them out.
        ]
        return json.dumps(facts, sort_keys=True)

    def find(self, key: str) -> dict[str, Any] | None:
        """Return the outputs of a successful task with this key; None if there is none."""
        return self.entries.get(key) if key else None

    # Rule: only successful executions are cached (kubeflow/pipelines backend/src/v2/component/launcher_v2.go: Execute)
    def succeed(self, name: str, key: str, spec: Mapping[str, Any], task: Mapping[str, Any], inputs: Scope) -> Any:
        """Complete a task with its outputs, and add them to the cache."""
        definitions = spec["components"][task["componentRef"]["name"]].get("outputDefinitions", {})
        given: dict[str, Any] = dict.fromkeys(definitions.get("parameters", {}), "")
        given |= {output: f"artifact {next(self._ids)}" for output in definitions.get("artifacts", {})}
        given |= self.run.get(name, lambda _: {})(inputs.parameters)
        self.ran.append(name)
        if key:
            self.entries[key] = given
        return given


def _fill(text: str, job: Mapping[str, str]) -> str:
    return re.sub(r"\{\{\$\.(\w+)\}\}", lambda found: job.get(found[1], found[0]), text)
