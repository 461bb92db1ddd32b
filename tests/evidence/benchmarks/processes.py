"""What a process and all that it has started take of memory."""

import contextlib
from pathlib import Path

_PROC = Path("/proc")


def proportional_bytes(pid: int) -> int:
    """Return the memory of a process and those below it; a page that several share is divided among them.

    https://www.kernel.org/doc/html/latest/filesystems/proc.html, smaps_rollup; what has ended meanwhile counts nothing.
    """
    return sum(_of_one(process) for process in below(pid))


def below(pid: int) -> list[int]:
    """Return a process and all that it, and these, have started."""
    parents = {}
    for folder in _PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):  # Behind the name, which may hold anything: the state, then the parent.
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for process in found:
        found += [child for child, parent in parents.items() if parent == process]
    return found


def peak_bytes(pid: int) -> int:
    """Return the most memory that a process has had since its program was started."""
    lines = (_PROC / str(pid) / "status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def _of_one(pid: int) -> int:
    try:
        lines = (_PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)
