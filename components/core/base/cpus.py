"""Counts the CPUs that this process may use."""

import contextlib
import os
from pathlib import Path

QUOTA_PATH = Path("/sys/fs/cgroup/cpu.max")


def available_cpus() -> int:
    """Return the number of CPUs that this process may use: in a container the container's limit, not the machine's.

    The limit is that of cgroup v2, rounded to a whole number. https://docs.kernel.org/admin-guide/cgroup-v2.html#cpu-interface-files
    """
    affinity = getattr(os, "sched_getaffinity", None)  # macOS and Windows have none.
    num_cpus = len(affinity(0)) if affinity else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):  # Outside a container there is no file; `max` is no limit.
        quota, period = map(int, QUOTA_PATH.read_text().split())
        num_cpus = min(num_cpus, max(1, round(quota / period)))
    return num_cpus
