"""Compares preflight's upper bound on the batch size with the largest batch that compiles and fits.

`python -m tests.evidence.benchmarks.batches` compiles the training steps of small networks, each for about ten batch
sizes. This takes about an hour on one core. To run only some networks, pass their names, such as `lstm`.
"""

import argparse
import tempfile
from pathlib import Path

from tpu_components.core.examples.interface import ImageInput, Interface, TextInput
from tpu_components.core.machines.machine_spec import PaidMachine
from tpu_components.preflight_training import PreflightParams
from tpu_components.preflight_training.data import DataFacts
from tpu_components.preflight_training.examining import Examination
from tpu_components.preflight_training.findings import MachineReport
from tpu_components.train_model import TrainParams

_NETWORKS = str(Path(__file__).parent / "small_networks.py")
# Image side in pixels, or number of tokens, of each network. The sizes are large to keep the batches small.
SIZES = {
    "strided": 512,
    "pooled": 256,
    "separable": 384,
    "residual": 256,
    "dense block": 256,
    "u-net": 256,
    "convolution": 2048,
    "lstm": 256,
    "encoder": 512,
}
_TEXTS = ("encoder", "lstm", "convolution")


def examine(name: str, machine: str, batch: int, find: bool, folder: Path) -> MachineReport:
    """Run preflight for a network and a batch size, without estimating times."""
    size = SIZES[name]
    images = ImageInput((size, size, 3), "encoded")
    texts = TextInput(size, 20_000, "0" * 64, "words", "end")
    interface = Interface(texts if name in _TEXTS else images, 10)
    training = TrainParams(
        model=_NETWORKS,
        model_parameters={"name": name},
        backend="jax",
        optimizer="adam",
        batch_size_per_replica=batch,
        residency="host",
    )
    params = PreflightParams(training, compile_timeout_seconds=3600.0, find_largest_batch=find)
    examination = Examination(params, [PaidMachine(machine)], folder, is_timed=False)
    return examination.report(DataFacts(interface, 1 << 24, 1 << 34, None)).machines[0]


def main() -> None:
    """Print a line for each network: its bound, its largest batch, and the largest batch as a share of the bound."""
    parser = argparse.ArgumentParser(prog="python -m tests.evidence.benchmarks.batches", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NETWORK", default=list(SIZES), help="names of networks")
    parser.add_argument("--machine", default="v5e-1", help="machine to compile for")
    parser.add_argument("--batch", type=int, default=32, help="batch size to compile for the bound")
    arguments = parser.parse_args()
    print(f"{'network':<20}{'size':>6}{'bound':>10}{'largest':>10}{'of bound':>10}")
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.names:
            bound, largest = (
                examine(name, arguments.machine, arguments.batch, find, Path(folder)).largest_batch
                for find in (False, True)
            )
            share = largest.size / bound.size
            print(f"{name:<20}{SIZES[name]:>6}{bound.text:>10}{largest.text:>10}{share:>10.0%}", flush=True)


if __name__ == "__main__":
    main()
