"""The TPU compiler on the smallest programs: what to compile, and a cache that tests share."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.components.preflight_training.warm import WarmCompiler
from tests.support.sharing import made_once
from tpu_components.core.base.cpus import CpuTimes
from tpu_components.core.examples.interface import ImageInput, Interface
from tpu_components.core.machines.machine_spec import load_catalogue
from tpu_components.preflight_training import data, examining
from tpu_components.preflight_training.compiling import sandbox
from tpu_components.preflight_training.compiling.compiler import Compilation
from tpu_components.preflight_training.compiling.outcome import Outcome
from tpu_components.train_model import TrainParams

DIGITS = Interface(ImageInput((8, 8, 1), "raw"), 10)
SMALL: Mapping[str, Any] = {"filters": 4, "units": 8}  # Of digits_cnn; compiles in half a second.
DENSE = "tests.components.preflight_training.dense:build_model"  # In half of that.
TRAINING = TrainParams("digits_cnn", SMALL, epochs=3, backend="jax", precision="mixed_bfloat16")


def make_compilation(
    model: str = "digits_cnn",
    parameters: Mapping[str, Any] | None = None,
    machine: str = "v5e-1",
    batch_size: int = 8,
    **of_training: Any,
) -> Compilation:
    """A model of 8×8 grey images and 10 classes to train, with a batch per replica, on a machine of the catalogue."""
    if parameters is None:
        parameters = SMALL if model == "digits_cnn" else {}
    values = {"model": model, "model_parameters": parameters, "batch_size_per_replica": batch_size, **of_training}
    return Compilation(dataclasses.replace(TRAINING, **values), DIGITS, 1259, load_catalogue().find(machine))


def compile_all(compilations: Sequence[Compilation], cache_dir: Path, **limits: Any) -> list[Outcome]:
    """What comes of several compilations."""
    usual = {"timeout_seconds": 120, "memory_mib": 8192}
    return sandbox.Sandbox(**usual | limits, cache_dir=cache_dir).compile_all(compilations)


def compile_one(compilation: Compilation, cache_dir: Path, **limits: Any) -> Outcome:
    """What comes of one compilation."""
    (outcome,) = compile_all([compilation], cache_dir, **limits)
    return outcome


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared by tests that do not ask where an outcome comes from."""
    return made_once(tmp_path_factory, "compilations", lambda folder: None)


@pytest.fixture
def warm_compiler(warm: WarmCompiler) -> Iterator[None]:
    """Compile JAX's steps in copies of a process that has imported everything."""
    with warm.takes_over():
        yield


@pytest.fixture(autouse=True)
def one_compilation(request: pytest.FixtureRequest) -> Iterator[None]:
    """Spare the compilations that look for the largest batch, where a test does not ask for it."""
    with pytest.MonkeyPatch.context() as patch:
        if "largest" not in request.node.name:
            patch.setattr(examining, "find_largest_batch", lambda *_: None)
        yield


@pytest.fixture
def load(monkeypatch):
    """Set the share of this machine that other processes are said to use."""

    def use(share):
        moments = itertools.count()
        monkeypatch.setattr(data, "cpu_times", lambda: CpuTimes(float(now := next(moments)), share * now, 0.0))

    return use
