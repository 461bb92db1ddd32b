"""How Argo, and a node, end the process of a step: the container of a pod that KFP's launcher leads."""

import contextlib
import os
import signal
import subprocess


def end(process: "subprocess.Popen[str]", seconds: float = 1.0) -> None:
    """End a step that leads a session of its own; nothing of it is left when this returns.

    Args:
        process: The step.
        seconds: Time that it has after SIGTERM; 0 is the loss of its node.
    """
    # Rule: SIGTERM to a container of Argo's reaches all processes of the step, of which KFP's launcher, that does not
    # ask for it, ends at once; within a second Argo's first process sees that, ends too, and the container is over
    # (argoproj/argo-workflows at f016ad8: workflow/controller/exec_control.go: applyExecutionControl;
    # cmd/argoexec/commands/signal.go: forwardSignals; workflow/executor/osspecific/signal_darwin.go, which
    # signal_linux.go links to: Kill, Wait; kubeflow/pipelines backend/src/v2/component/launcher_v2.go at 7b70c7b:
    # execute)
    # Rule: a node gives a pod that it evicts for want of memory no time at all (https://kubernetes.io/docs/concepts/
    # scheduling-eviction/node-pressure-eviction/#hard-eviction-thresholds)
    with contextlib.suppress(ProcessLookupError):
        if seconds:
            os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
