"""`tpu-pipelines` whose containers are allowed as little as a careful cluster allows a pod.

Usage: python -m tests.evidence.images.restricted run digits --runner docker. Nothing but /tmp, a tmpfs, and what is
mounted can be written, by a user without a name or a home; there is no network, and 64 MB of shared memory. As in
Kubernetes' restricted standard: https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted
"""

import os
import sys
from typing import Any

from kfp import local

from tpu_pipelines.cli.main import main

USER, GROUP = 12345, 23456
RESTRICTED: dict[str, Any] = {
    "user": f"{USER}:{GROUP}",
    "read_only": True,
    "tmpfs": {"/tmp": "mode=1777"},
    "network_mode": "none",
    "shm_size": "64m",
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges"],
}


class RestrictedRunner(local.DockerRunner):
    """KFP's runner, which allows no more than that."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, **RESTRICTED})


if __name__ == "__main__":
    os.umask(0)  # That user writes into folders that this process makes.
    local.DockerRunner = RestrictedRunner
    sys.exit(main())
