"""Several hosts compared with one process of as many devices.

`python -m tests.evidence.benchmarks.hosts --records RECORDS --hosts 8` runs it.

Both train with the same batch from the same start. Each host sums the gradients of its own examples, then all hosts
theirs, so the sums are rounded in another order; a high learning rate amplifies that, a low one shows that it is all.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np

from tests.support.hosts import HostProcesses


def main() -> None:
    """Print what each has seen and lost, and how far their weights are apart."""
    parser = argparse.ArgumentParser(prog="python -m tests.evidence.benchmarks.hosts", description=__doc__)
    parser.add_argument("--records", type=Path, required=True)
    parser.add_argument("--model", default="cifar10_cnn")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--batch", type=int, default=64, help="Examples of a step, of all hosts together.")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--learning-rate", type=float, default=1e-5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hosts-") as name:
        one, several = Path(name) / "one", Path(name) / "several"
        _train(arguments, 1, one)
        _train(arguments, arguments.hosts, several)
        print(f"weights differ by up to {_apart(one, several):.2g}")


def _train(arguments: argparse.Namespace, hosts: int, output: Path) -> None:
    command = [sys.executable, "-m", "tpu_components.train_model", "--records", str(arguments.records)]
    command += ["--output", str(output), "--model", arguments.model, "--epochs", str(arguments.epochs)]
    command += ["--backend", "jax", "--accelerator", "cpu", "--precision", "float32", "--optimizer", "sgd"]
    command += ["--learning-rate", str(arguments.learning_rate), "--learning-rate-scaling", "none"]
    command += ["--num-replicas", str(arguments.hosts)]
    command += ["--batch-size-per-replica", str(arguments.batch // arguments.hosts)]
    with HostProcesses(hosts, command, output.with_suffix(".logs")) as processes:
        if any(processes.wait(7200)):
            raise SystemExit(processes.said(0)[-2000:])
        result = processes.result()
    print(
        f"{hosts} processes: {result['examples_seen']:,} examples seen in {result['steps']} steps, {result['metrics']}",
        flush=True,
    )


def _apart(one: Path, other: Path) -> float:
    with h5py.File(one / "last.weights.h5") as ours, h5py.File(other / "last.weights.h5") as theirs:
        names: list[str] = []
        ours.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
        return max(float(np.abs(np.asarray(ours[name]) - np.asarray(theirs[name])).max(initial=0.0)) for name in names)


if __name__ == "__main__":
    main()
