"""The number of CPUs that this process may use, and the CPU time that other processes use."""

import contextlib
import dataclasses
import os
import time
from pathlib import Path

QUOTA_PATH = Path("/sys/fs/cgroup/cpu.max")
STAT_PATH = Path("/proc/stat")


def available_cpus() -> int:
    """Return the number of CPUs that this process may use.

    In a container, the container's CPU limit (cgroup v2) applies too, rounded to a whole number and at least 1.

    Source: https://docs.kernel.org/admin-guide/cgroup-v2.html#cpu-interface-files
    """
    affinity = getattr(os, "sched_getaffinity", None)  # macOS and Windows lack it.
    num_cpus = len(affinity(0)) if affinity else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):  # Outside a container, the file is missing; `max` means no limit.
        quota, period = map(int, QUOTA_PATH.read_text().split())
        num_cpus = min(num_cpus, max(1, round(quota / period)))
    return num_cpus


@dataclasses.dataclass(frozen=True)
class CpuTimes:
    """CPU times since the machine started, in seconds.

    Attributes:
        whole: Total time of all the machine's CPUs, busy and idle.
        busy: Part of `whole` in which the CPUs were not idle.
        own: CPU time that this process has used.
    """

    whole: float
    busy: float
    own: float

    def others_since(self, earlier: "CpuTimes") -> float:
        """Return the share of the machine's CPU time that other processes have used since `earlier`, in [0, 1].

        Return 0 if no time has passed.

        Example:
            >>> CpuTimes(whole=110.0, busy=60.0, own=6.0).others_since(CpuTimes(whole=100.0, busy=52.0, own=2.0))
            0.4
        """
        whole = self.whole - earlier.whole
        others = (self.busy - earlier.busy) - (self.own - earlier.own)
        return min(max(others / whole, 0.0), 1.0) if whole > 0 else 0.0


def cpu_times() -> CpuTimes:
    """Return the CPU times so far: those of the machine, from /proc/stat, and those of this process.

    `whole` and `busy` are 0 if /proc/stat does not exist.

    The first line of /proc/stat contains user, nice, system, idle, iowait, irq, softirq and steal (time for other
    virtual machines): https://man7.org/linux/man-pages/man5/proc_stat.5.html
    """
    whole = busy = 0.0
    with contextlib.suppress(OSError, ValueError):
        with STAT_PATH.open() as file:
            fields = [int(field) / os.sysconf("SC_CLK_TCK") for field in file.readline().split()[1:9]]
        whole = sum(fields)
        busy = whole - sum(fields[3:5])
    return CpuTimes(whole, busy, time.process_time())
