"""Time and memory that planning and writing a data set take, by its size: `python -m tests.evidence.benchmarks.growth`.

Pictures are noise of 8×8, in files of some 400 bytes; a table's texts are two words and a number. Memory is what a
process has at its peak: of the one that plans and puts together, whose books grow with the data, beyond what it has
after its imports; and of the largest worker in all. What 100 million examples take on Dataflow is extrapolated from the
two largest sizes of each source.
"""

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import simplejpeg

from tpu_components.core.pages.blocks import Table

_CLASSES, _PER_FOLDER, _SMALLEST = 10, 10_000, 1_000
_COLUMNS = {
    name: "<" if name == "source" else ">"
    for name in (
        "source",
        "examples",
        "plan s",
        "plan MiB",
        "write s",
        "its CPU s",
        "workers' CPU s",
        "MiB",
        "a worker's",
    )
}
_MEASURE = """
import json, os, resource, sys, time
from pathlib import Path
from joblib.externals.loky import get_reusable_executor
from tpu_components.core.pages import page
from tpu_components.create_tfrecords import WriteParams, plan_dataset, write_records
from tpu_components.core.sources import kinds
from tests.evidence.benchmarks.processes import below, peak_bytes

def seconds(who):
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime

def peak():
    return peak_bytes(os.getpid())

before = peak()
params = WriteParams(sys.argv[1], num_workers=int(sys.argv[3]))
begun, begun_cpu = time.perf_counter(), seconds(resource.RUSAGE_SELF)
plan = plan_dataset(params)
planned, planned_bytes, planned_cpu = time.perf_counter(), peak() - before, seconds(resource.RUSAGE_SELF)
result = write_records(params, Path(sys.argv[2]), plan)
written = time.perf_counter()
largest = max((peak_bytes(pid) for pid in below(os.getpid())[1:]), default=0)
get_reusable_executor().shutdown(wait=True)
print(json.dumps({
    "examples": result.num_examples,
    "plan_seconds": planned - begun,
    "plan_cpu_seconds": planned_cpu - begun_cpu,
    "plan_bytes": planned_bytes,
    "write_seconds": written - planned,
    "own_cpu_seconds": seconds(resource.RUSAGE_SELF) - planned_cpu,
    "worker_cpu_seconds": seconds(resource.RUSAGE_CHILDREN),
    "bytes": peak() - before,
    "worker_bytes": largest,
    "record_bytes": sum(path.stat().st_size for path in Path(sys.argv[2]).glob("*.tfrecord")),
}))
"""

# List prices of a batch worker in us-central1, in dollars, as https://cloud.google.com/dataflow/pricing has them and
# https://github.com/GoogleCloudPlatform/dataflow-metrics-exporter repeats (README.md of 2023; read on 2026-11-23).
_VCPU_HOUR, _GB_HOUR, _DISK_GB_HOUR, _SHUFFLED_GB = 0.056, 0.003557, 0.000054, 0.011
# n1-standard-1, the default of batch jobs, and its disk where the service shuffles:
# https://cloud.google.com/dataflow/docs/guides/configure-worker-vm, https://cloud.google.com/dataflow/docs/shuffle-for-batch
_WORKER_GB, _WORKER_DISK_GB = 3.75, 25
_AIM = 100_000_000
_WORKERS = (10, 100, 1000)
_START_MINUTES = 5  # Until workers have started and imported; an assumption.


@dataclasses.dataclass(frozen=True)
class Grown:
    """What one size of a source took: seconds, CPU seconds and bytes."""

    examples: int
    plan_seconds: float
    plan_cpu_seconds: float
    plan_bytes: int
    write_seconds: float
    own_cpu_seconds: float
    worker_cpu_seconds: float
    bytes: int
    worker_bytes: int
    record_bytes: int

    def slope(self, before: "Grown", name: str) -> float:
        """Return by how much a figure grew for each example more."""
        return float(getattr(self, name) - getattr(before, name)) / (self.examples - before.examples)


def main() -> None:
    """Print the table, the slopes and what follows of them."""
    parser = argparse.ArgumentParser(prog="python -m tests.evidence.benchmarks.growth", description=__doc__)
    parser.add_argument("--most", type=int, default=1_000_000, help="the largest size")
    parser.add_argument("--sources", nargs="+", default=sorted(_MAKERS), choices=sorted(_MAKERS))
    parser.add_argument("--workers", type=int, default=2, help="processes that write, beside the one that plans")
    parser.add_argument("--slower", type=float, default=2.0, help="time of a vCPU for what a core here does in 1")
    arguments = parser.parse_args()
    rows, grown = [], dict[str, list[Grown]]()
    for kind in arguments.sources:
        size = _SMALLEST
        while size <= arguments.most:
            grown.setdefault(kind, []).append(done := measure(kind, size, arguments.workers))
            rows.append((kind, *_row(done)))
            print("  ".join(rows[-1]), file=sys.stderr, flush=True)
            size *= 10
    print("\n".join(Table(_COLUMNS, rows).lines()))
    for kind, sizes in grown.items():
        if len(sizes) > 1:
            print("\n" + "\n".join(extrapolate(kind, *sizes[-2:], arguments.slower)))


def measure(kind: str, size: int, workers: int) -> Grown:
    """Make a source, and plan and write it in processes of their own."""
    with tempfile.TemporaryDirectory(prefix="growth-") as name:
        source = _MAKERS[kind](Path(name) / "data", size)
        command = [sys.executable, "-c", _MEASURE, source, f"{name}/records", str(workers)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    grown = Grown(**json.loads(done.stdout))
    assert grown.examples == size
    return grown


def _row(done: Grown) -> Iterator[str]:
    yield f"{done.examples:,}"
    yield f"{done.plan_seconds:.2f}"
    yield f"{done.plan_bytes / 2**20:,.1f}"
    yield f"{done.write_seconds:.2f}"
    yield f"{done.own_cpu_seconds:.2f}"
    yield f"{done.worker_cpu_seconds:.2f}"
    yield f"{done.bytes / 2**20:,.1f}"
    yield f"{done.worker_bytes / 2**20:,.1f}"


def extrapolate(kind: str, before: Grown, last: Grown, slower: float) -> Sequence[str]:
    """Return in words what the next examples took, and what 100 million take on Dataflow."""
    plan, own, workers = (
        1e6 * last.slope(before, name) for name in ("plan_cpu_seconds", "own_cpu_seconds", "worker_cpu_seconds")
    )
    own_hours, worker_hours = (us * slower * _AIM / 1e6 / 3600 for us in (plan + own, workers))
    record_gb = last.slope(before, "record_bytes") * _AIM / 1e9
    lines = [
        f"{kind}, each of the last {last.examples - before.examples:,} examples: planning {plan:.1f} µs of CPU time "
        f"and {last.slope(before, 'plan_bytes'):.0f} bytes, writing {own:.1f} µs of CPU time in the first process and "
        f"{workers:.1f} in the workers, {last.slope(before, 'bytes'):.0f} bytes in all",
        f"{_AIM:,} of them on n1-standard-1 workers, a vCPU taking {slower:g} times as long: {worker_hours:,.1f} hours "
        f"of a worker, and {own_hours:,.1f} hours and {last.slope(before, 'bytes') * _AIM / 2**30:,.1f} GiB of the "
        f"first process, which no other shares; {record_gb:,.0f} GB of records",
    ]
    for count in _WORKERS:
        hours = _START_MINUTES / 60 + worker_hours / count
        each = _VCPU_HOUR + _WORKER_GB * _GB_HOUR + _WORKER_DISK_GB * _DISK_GB_HOUR
        lines.append(
            f"  {count:>5,} workers: {hours:,.2f} hours and then {own_hours:,.1f} to put together, "
            f"${count * hours * each:,.2f} for the workers"
        )
    lines.append(
        f"  Assumed: {_START_MINUTES} minutes to start; files as near as on this disk, and no request paid; "
        "a first process as large as this, which gets the parts as it does here; parts that go to the bucket and not "
        "through the shuffle, which would take "
        f"${_SHUFFLED_GB * record_gb:,.2f} more."
    )
    return lines


def _make_folder(folder: Path, size: int) -> str:
    noise = np.random.default_rng(0)
    for start in range(0, size, _PER_FOLDER):
        pictures = noise.integers(0, 256, (min(_PER_FOLDER, size - start), 8, 8, 3), np.uint8)
        for label in range(_CLASSES):
            (folder / f"c{label}" / f"{start:08d}").mkdir(parents=True)
        for number, picture in enumerate(pictures, start):
            path = folder / f"c{number % _CLASSES}" / f"{start:08d}" / f"{number:08d}.jpg"
            path.write_bytes(simplejpeg.encode_jpeg(picture, 90, "RGB", "444"))
    return f"images:{folder}"


def _make_table(folder: Path, size: int) -> str:
    folder.mkdir()
    with open(folder / "table.csv", "w") as file:
        file.write("text,label\n")
        file.writelines(f"w{number:08d} good,c{number % _CLASSES}\n" for number in range(size))
    return f"csv:{folder / 'table.csv'}"


_MAKERS = {"folder": _make_folder, "table": _make_table}


if __name__ == "__main__":
    main()
