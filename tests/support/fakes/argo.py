"""Ends the process of a step as Argo or a node does: a pod's container whose first process is KFP's launcher."""

import contextlib
import os
import signal
import subprocess


def end(process: "subprocess.Popen[str]", seconds: float = 1.0) -> None:
    """End a step that is the leader of its own session; all its processes have ended when this returns.

    Args:
        process: The step.
        seconds: Time after SIGTERM until SIGKILL; 0 stands for the loss of its node.
    """
    # Rule: Argo sends SIGTERM to all processes of a step's container; KFP's launcher does not handle it and ends at
    # once; within a second Argo's first process notices and ends the container (argoproj/argo-workflows at f016ad8:
    # workflow/controller/exec_control.go: applyExecutionControl; cmd/argoexec/commands/signal.go: forwardSignals;
    # workflow/executor/osspecific/signal_darwin.go, which signal_linux.go links to: Kill, Wait; kubeflow/pipelines
    # backend/src/v2/component/launcher_v2.go at 7b70c7b: execute)
    # Rule: a node that evicts a pod because of memory pressure gives it no grace period
    # (https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/#hard-eviction-thresholds)
    with contextlib.suppress(ProcessLookupError):
        if seconds:
            os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
