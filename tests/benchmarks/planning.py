"""Time and memory that planning a data set takes, by its size: `python -m tests.benchmarks.planning`.

Planning reads no picture, so the files of the folder are empty; a table's texts are a word. Memory is what a process
has at its peak beyond what it has after its imports; the names alone are 21 bytes each.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from components.table import lay_out

_CLASSES, _PER_FOLDER = 10, 10_000
_COLUMNS = {"source": "<", "examples": ">", "seconds": ">", "MiB": ">", "bytes/example": ">", "µs/example": ">"}
_PLAN = """
import json, resource, sys, time
from components.create_tfrecords import WriteParams, plan_dataset
from components.create_tfrecords.sources import kinds

with open("/proc/self/statm") as file:
    before = int(file.read().split()[1]) * resource.getpagesize()
begun = time.perf_counter()
plan = plan_dataset(WriteParams(sys.argv[1]))
seconds = time.perf_counter() - begun
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"seconds": seconds, "bytes": peak - before, "examples": sum(plan.split_examples.values())}))
"""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.planning", description=__doc__)
    parser.add_argument("--most", type=int, default=1_000_000)
    parser.add_argument("--sources", nargs="+", default=sorted(_MAKERS), choices=sorted(_MAKERS))
    arguments = parser.parse_args()
    rows = []
    for kind in arguments.sources:
        size = 1_000
        while size <= arguments.most:
            with tempfile.TemporaryDirectory(prefix="planning-") as name:
                done = _plan(_MAKERS[kind](Path(name), size))
            assert done["examples"] == size
            each, took = done["bytes"] / size, done["seconds"] / size * 1e6
            row = f"{done['seconds']:.2f}", f"{done['bytes'] / 2**20:,.1f}", f"{each:,.0f}", f"{took:.1f}"
            rows.append((kind, f"{size:,}", *row))
            size *= 10
    print("\n".join(lay_out(_COLUMNS, rows)))


def _plan(source: str) -> dict[str, float]:
    done = subprocess.run([sys.executable, "-c", _PLAN, source], stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout))


def _make_folder(folder: Path, size: int) -> str:
    for number, label in itertools.product(range(-(-size // _PER_FOLDER)), range(_CLASSES)):
        place = folder / f"c{label}" / f"{number:05d}"
        place.mkdir(parents=True)
        for index in range(number * _PER_FOLDER + label, min((number + 1) * _PER_FOLDER, size), _CLASSES):
            os.close(os.open(place / f"{index:08d}.jpg", os.O_CREAT))
    return f"images:{folder}"


def _make_table(folder: Path, size: int) -> str:
    with open(folder / "table.csv", "w") as file:
        file.write("text,label\n")
        file.writelines(f"w{index:08d},c{index % _CLASSES}\n" for index in range(size))
    return f"csv:{folder / 'table.csv'}"


_MAKERS = {"folder": _make_folder, "table": _make_table}


if __name__ == "__main__":
    main()
