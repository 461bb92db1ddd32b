"""Compile published training steps with the TPU compiler, and keep what it schedules.

`python -m tests.evidence.benchmarks.whole_steps --compile PATTERN` compiles one device's program of each published row
whose key (program/generation/examples per device) holds the pattern, unless it is kept already. A folder outside the
repository keeps the scheduled HLO text of each, gzipped, and a JSON file with what the compilation took. Every
compilation is a process of its own, one at a time: an internal error of the compiler ends the process, and some take
gigabytes.
"""

import argparse
import gzip
import importlib
import importlib.metadata
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from tpu_components.preflight_training.compiling.kernels import read_kernels

PUBLISHED = Path(__file__).parent / "published_steps.json"
CACHE = Path.home() / ".cache/tpu-pipelines/published-steps"
CORE = "-core"  # Follows the generation where a device is one core of its chips, not both.
# A topology of each generation, and the configuration of its chips: in megacore, both cores are one device.
TOPOLOGIES = {
    "v2": {"topology_name": "v2:2x2"},
    "v3": {"topology_name": "v3:2x2"},
    "v4": {"topology_name": "v4:2x2x1", "chip_config_name": "megacore"},
    f"v4{CORE}": {"topology_name": "v4:2x2x1"},
    "v5e": {"topology_name": "v5e:2x2"},
    "v5p": {"topology_name": "v5p:2x2x1", "chip_config_name": "megacore"},
    "v6e": {"topology_name": "v6e:2x2"},
    "7x": {"topology_name": "tpu7x:2x2x1"},
}
_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


def key_of(row: Mapping[str, Any]) -> str:
    """What names a row's compilation: program, generation and examples per device."""
    return "/".join((row["program"], device_of(row), f"{row['batch_per_device']:g}"))


def device_of(row: Mapping[str, Any]) -> str:
    """What a row's program runs on: the generation, or one core of its chips."""
    return row["generation"] + (CORE if row.get("per_core") else "")


def paths_of(key: str, folder: Path = CACHE) -> tuple[Path, Path]:
    """Where a compilation's text and figures are kept."""
    name = key.replace("/", "__")
    return folder / f"{name}.hlo.gz", folder / f"{name}.json"


def is_kept(key: str, program: Mapping[str, Any], folder: Path = CACHE) -> bool:
    """Whether this very program has been compiled, or has failed to."""
    beside = paths_of(key, folder)[1]
    return beside.exists() and json.loads(beside.read_text(encoding="utf-8"))["program"] == program


def build_step(program: Mapping[str, Any], batch: float) -> Any:
    """The step of a program for a number of examples per device."""
    module, _, function = program["build"].partition(":")
    return getattr(importlib.import_module(f"tests.evidence.benchmarks.{module}"), function)(
        batch=batch, **program["arguments"]
    )


def wanted_keys(patterns: Sequence[str]) -> Iterator[str]:
    """Keys of the rows that are compared and hold one of the patterns, in the order of the file.

    A pattern that is a whole key of a program need not be a row's: products are compiled for every generation.
    """
    published = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    keys = dict.fromkeys(key_of(row) for row in published["rows"] if not row["excluded"])
    for pattern in patterns:
        yield from (key for key in keys if pattern in key)
        if pattern not in keys and pattern.count("/") == 2 and pattern.partition("/")[0] in published["programs"]:
            yield pattern


def compile_all(patterns: Sequence[str], folder: Path, timeout_seconds: float, memory_gib: float) -> None:
    """Compile what is not kept yet, one after the other; a failure is kept and told, and the rest goes on."""
    folder.mkdir(parents=True, exist_ok=True)
    programs = json.loads(PUBLISHED.read_text(encoding="utf-8"))["programs"]
    for key in wanted_keys(patterns):
        if is_kept(key, programs[key.rsplit("/", 2)[0]], folder):
            continue
        command = ["nice", "-n", "10", sys.executable, "-m", __spec__.name if __spec__ else __name__, key, str(folder)]
        started = time.monotonic()
        reason = ""
        with (
            tempfile.TemporaryFile("w+") as errors,  # A pipe would fill up, and the child would wait.
            subprocess.Popen(command, env=os.environ | _ENVIRONMENT, stderr=errors) as child,
        ):
            while child.poll() is None:
                time.sleep(0.5)
                if time.monotonic() - started > timeout_seconds:
                    reason = f"not compiled after {timeout_seconds:.0f} s"
                elif _memory_bytes(child.pid) > memory_gib * 2**30:
                    reason = f"the compiler took more than {memory_gib:g} GiB"
                if reason:
                    child.kill()
                    break
            child.wait()
            errors.seek(0)
            last = "\n".join(errors.read().strip().splitlines()[-3:])[-600:]
        if child.returncode:
            reason = reason or last
            figures = {"key": key, "seconds": round(time.monotonic() - started, 1), "failure": reason}
            figures["program"] = programs[key.rsplit("/", 2)[0]]
            paths_of(key, folder)[1].write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
        print(paths_of(key, folder)[1].read_text(encoding="utf-8"), flush=True)


def _memory_bytes(pid: int) -> int:
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


def compile_one(key: str, folder: Path) -> None:
    """Compile one program in this process, and keep its text and figures."""
    import jax
    from jax.experimental import topologies
    from jax.sharding import SingleDeviceSharding

    name, generation, batch = key.rsplit("/", 2)
    program = json.loads(PUBLISHED.read_text(encoding="utf-8"))["programs"][name]
    step = build_step(program, float(batch) if "." in batch else int(batch))
    topology = topologies.get_topology_desc(platform="tpu", **TOPOLOGIES[generation])
    started = time.monotonic()
    placed = SingleDeviceSharding(topology.devices[0])
    jitted = jax.jit(step.function, donate_argnums=step.donated, in_shardings=placed, out_shardings=placed)
    lowered = jitted.trace(*step.arguments).lower(lowering_platforms=("tpu",))
    lowered_after = time.monotonic()
    compiled = lowered.compile(compiler_options=program.get("options"))
    stats = compiled.memory_analysis()
    figures = {
        "key": key,
        "seconds": round(time.monotonic() - lowered_after, 1),
        "lowering_seconds": round(lowered_after - started, 1),
        "peak_bytes": stats.peak_memory_in_bytes,
        "argument_bytes": stats.argument_size_in_bytes,
        "temporary_bytes": stats.temp_size_in_bytes,
        "compiler_peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "depth": step.depth,
        "real_depth": step.real_depth,
        "program": program,
        "kernels": read_kernels(lowered.compiler_ir()),
        "versions": {name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "libtpu")},
    }
    text, beside = paths_of(key, folder)
    partial = text.with_suffix(".partial")
    partial.write_bytes(gzip.compress(compiled.as_text().encode()))
    partial.rename(text)
    beside.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of a compilation."""
    parser.add_argument(
        "--compile",
        nargs="*",
        default=[],
        metavar="PATTERN",
        help="such as resnet50-mlperf/v3, or /v5e/",
    )
    parser.add_argument("--cache", type=Path, default=CACHE, help="folder that keeps what is compiled")
    parser.add_argument("--timeout", type=float, default=900, help="seconds that one compilation may take")
    parser.add_argument("--memory", type=float, default=12, help="GiB that one compilation may take")


if __name__ == "__main__":
    compile_one(sys.argv[1], Path(sys.argv[2]))
    os._exit(0)  # The compiler's exit handlers can hang.
