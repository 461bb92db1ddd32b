"""Preflight of ResNet-50 on ImageNet for slices of any size.

`python -m tests.evidence.benchmarks.slices v5e-256 v6e-256` runs it.

Compiling for 256 chips takes minutes of a core and gigabytes; give it hours with `--seconds`.
"""

import argparse
import tempfile
import time
from pathlib import Path

from tpu_components.core.examples.interface import ImageInput, Interface
from tpu_components.core.machines.machine_spec import PaidMachine
from tpu_components.preflight_training import PreflightParams
from tpu_components.preflight_training.data import DataFacts, HostRate
from tpu_components.preflight_training.examining import Examination
from tpu_components.preflight_training.report import as_text
from tpu_components.train_model import TrainParams

_EXAMPLES, _SHAPE = 1_281_167, (224, 224, 3)  # ImageNet's.


def main() -> None:
    """Print what preflight says of each slice, and how long that took."""
    parser = argparse.ArgumentParser(prog="python -m tests.evidence.benchmarks.slices", description=__doc__)
    parser.add_argument("machines", nargs="+", metavar="MACHINE")
    parser.add_argument("--batch", type=int, default=128, help="Examples of a step on each device.")
    parser.add_argument("--rate", type=float, default=2500.0, help="Images a second that two cores of a host feed.")
    parser.add_argument("--seconds", type=float, default=7200.0, help="Give up a compilation after this time.")
    arguments = parser.parse_args()
    network = str(Path(__file__).parent / "resnet50.py")
    training = TrainParams(model=network, optimizer="sgd", backend="jax", batch_size_per_replica=arguments.batch)
    params = PreflightParams(training, compile_timeout_seconds=arguments.seconds, find_largest_batch=False)
    host = HostRate(arguments.rate, arguments.rate, in_memory=False, cpus=2)
    facts = DataFacts(Interface(ImageInput(_SHAPE, "encoded"), 1000), _EXAMPLES, _EXAMPLES * 224 * 224 * 3, host)
    for name in arguments.machines:
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            found = Examination(params, [PaidMachine(name)], Path(folder)).report(facts)
        print(f"{as_text(found)}\nafter {time.monotonic() - begun:,.0f} s", flush=True)


if __name__ == "__main__":
    main()
