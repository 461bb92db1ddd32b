"""What runs the pods of a compiled Kubeflow pipeline: a Kubernetes cluster, or an engine that does what a pod says."""

import json
import re
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.evidence.images.engine import Engine
from tests.support.fakes.kfp_driver import Pod

_SUFFIXES = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
_WAIT_SECONDS = 1200


def as_container(pod: Pod) -> list[str]:
    """Return the words by which docker and podman run a pod's container as its specification says.

    What only a cluster has is left out: which node it runs on, accelerators, and which service account it is.
    """
    spec, (main,) = pod["spec"], pod["spec"]["containers"]
    options = ["--rm", "--name", pod["metadata"]["name"], "--network", "none"]
    sources = {volume["name"]: volume for volume in spec["volumes"]}
    for mount in main["volumeMounts"]:
        source = sources[mount["name"]]
        if "emptyDir" in source:
            options += ["--tmpfs", f"{mount['mountPath']}:mode=1777"]
        else:
            options += ["--volume", f"{source['hostPath']['path']}:{mount['mountPath']}"]
    security = main["securityContext"]
    options += [f"--cap-drop={name}" for name in security["capabilities"]["drop"]]
    options += [] if security["allowPrivilegeEscalation"] else ["--security-opt", "no-new-privileges"]
    if memory := main["resources"]["limits"].get("memory"):
        options += ["--memory", str(int(memory[:-2]) * _SUFFIXES[memory[-2:]])]
    fields = {"metadata.name": pod["metadata"]["name"], "metadata.uid": str(uuid.uuid4())}
    environment = {
        variable["name"]: variable.get("value") or fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
        for variable in main["env"]
    }
    for name, value in environment.items():
        options += ["--env", f"{name}={value}"]
    command, *words = (_expanded(word, environment) for word in (*main["command"], *main["args"]))
    return [*options, "--entrypoint", command, main["image"], *words]


def _expanded(word: str, environment: Mapping[str, str]) -> str:
    """Replace references to variables, as a cluster does.

    Example:
        >>> _expanded("$(NAME) $(mktemp -d) $$(NAME)", {"NAME": "pod"})
        'pod $(mktemp -d) $(NAME)'
    """
    # https://kubernetes.io/docs/tasks/inject-data-application/define-command-argument-container/
    known = {"$$": "$", **{f"$({name})": value for name, value in environment.items()}}
    return re.sub(r"\$\$|\$\([^)]*\)", lambda found: known.get(found[0], found[0]), word)


class WithEngine:
    """Runs pods with docker or podman, each for itself.

    Attributes:
        logs: What each pod printed, by its name.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine, self.logs = engine, dict[str, str]()

    def __str__(self) -> str:
        return f"by {self._engine.name}"

    def start(self, pod: Pod) -> None:
        """Run a pod to its end."""
        done = self._engine.call("run", *as_container(pod), check=False)
        self.logs[pod["metadata"]["name"]] = done.stdout + done.stderr


class InCluster:
    """Runs pods in a Kubernetes cluster, whose nodes have the images and this machine's folders.

    Args:
        kubeconfig: kubectl's configuration; pods are made in its namespace.

    Attributes:
        logs: What each pod printed, by its name.
    """

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig, self.logs = kubeconfig, dict[str, str]()

    def __str__(self) -> str:
        version = json.loads(self.call("version", "--output", "json"))["serverVersion"]["gitVersion"]
        return f"of a cluster, Kubernetes {version}"

    def start(self, pod: Pod) -> None:
        """Run a pod to its end."""
        name = pod["metadata"]["name"]
        self.call("create", "--filename", "-", given=json.dumps(pod))
        for _ in range(_WAIT_SECONDS):
            if self._phase(name) in ("Succeeded", "Failed"):
                break
            time.sleep(1)
        self.logs[name] = self.call("logs", name, check=False)
        self.call("delete", "pod", name)

    def _phase(self, name: str) -> str:
        return self.call("get", "pod", name, "--output", "jsonpath={.status.phase}")

    def call(self, *words: str, given: str = "", check: bool = True) -> str:
        """Call kubectl; `CalledProcessError` holds what it said."""
        command: Sequence[Any] = ["kubectl", "--kubeconfig", self._kubeconfig, *words]
        return subprocess.run(command, check=check, text=True, capture_output=True, input=given).stdout
