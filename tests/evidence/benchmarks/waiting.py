"""The host wait that preflight predicts for the ready examples: handed over by the host, and in the device's memory.

`python -m tests.evidence.benchmarks.waiting [EXAMPLE…] [--machines v5e-8,v6e-8]`; each program compiles for 10 s to
minutes.
"""

import argparse
import dataclasses
import tempfile
import time
from pathlib import Path

import numpy as np

from tests.components.ready_data import READY_DATA
from tpu_components.core.base.cpus import available_cpus
from tpu_components.core.examples.records import Examples, input_bytes
from tpu_components.core.machines.machine_spec import PaidMachine
from tpu_components.preflight_training import PreflightParams
from tpu_components.preflight_training.data import FEED_BATCH, DataFacts, HostRate
from tpu_components.preflight_training.examining import Examination
from tpu_components.preflight_training.findings import MachineReport
from tpu_pipelines.config.configuration import load_config, ready_examples

_MACHINES = "v5e-1,v5e-8,v6e-8"
_COLUMNS = "{:<20} {:<7} {:>10} {:>12} {:>10} {:>10} {:>12} {:>10} {:>10} {:>10}"


def measure_feed(examples: Examples) -> float:
    """Examples per second that this machine gathers from memory; the second epoch's."""
    from tpu_components.core.examples.feeding import Cut, InMemoryReader

    num_examples = len(examples.labels)
    reader = InMemoryReader(examples, Cut(num_examples, min(FEED_BATCH, num_examples)), seed=0)
    for epoch in range(2):
        start = time.perf_counter()
        count = sum(len(labels) for _, labels, _ in reader.batches(epoch, 0))
        rate = count / (time.perf_counter() - start)
    return rate


def examine_example(name: str, machines: list[str], cache_dir: Path) -> list[tuple[MachineReport, MachineReport]]:
    """For each machine what preflight says where the host hands the data over, and where the device has them."""
    training = load_config(name).training
    parameters = {key: value for key, value in training.model_parameters.items() if key != "weights"}  # Nowhere here.
    training = dataclasses.replace(training, model_parameters=parameters)
    interface, num_examples = READY_DATA[training.model]
    draw = np.random.default_rng(0)
    highest = zip((50, 2, 2), interface.batch_shapes(num_examples), strict=True)
    noise = Examples(*(draw.integers(0, most, shape).astype(kind) for most, (shape, kind) in highest))
    rate = measure_feed(noise)
    facts = DataFacts(
        interface,
        num_examples,
        num_examples * input_bytes(interface.input, with_margin=True),
        HostRate(rate, rate, True, available_cpus()),
    )
    found = []
    for residency in ("host", "auto"):
        changed = dataclasses.replace(training, backend="jax", precision="auto", residency=residency)
        params = PreflightParams(changed, compile_timeout_seconds=3600)
        found.append(
            Examination(params, [PaidMachine(machine) for machine in machines], cache_dir).report(facts).machines
        )
    return list(zip(*found, strict=True))


def main() -> None:
    """Print a line for each example and machine."""
    parser = argparse.ArgumentParser(prog="python -m tests.evidence.benchmarks.waiting", description=__doc__)
    parser.add_argument("examples", nargs="*", default=ready_examples())
    parser.add_argument("--machines", default=_MACHINES)
    arguments = parser.parse_args()
    heads = ("needed /s", "fed by host", "wait, host", "wait, here", "epoch", "here", "$ a run", "here")
    print(_COLUMNS.format("example", "machine", *heads))
    with tempfile.TemporaryDirectory(prefix="waiting-") as folder:
        for name in arguments.examples:
            for fed, resident in examine_example(name, arguments.machines.split(","), Path(folder) / "kept"):
                print(_line(name, fed, resident), flush=True)


def _line(name: str, fed: MachineReport, resident: MachineReport) -> str:
    if fed.epoch is None or resident.epoch is None:
        return f"{name:<20} {fed.machine:<7} {fed.reason or resident.reason}"
    return _COLUMNS.format(
        name,
        fed.machine,
        f"{fed.epoch.needed_per_second:,.0f}",
        f"{fed.feed_per_second:,.0f}",
        f"{fed.epoch.host_wait:.1%}",
        f"{resident.epoch.host_wait:.1%}",
        f"{fed.epoch.seconds * 1e3:,.1f} ms",
        f"{resident.epoch.seconds * 1e3:,.1f} ms",
        *(f"{one.cost.usd_per_run:.4f}" if one.cost else "?" for one in (fed, resident)),
    )


if __name__ == "__main__":
    main()
