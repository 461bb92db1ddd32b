"""A lowered step for a machine, which the child process compiles."""

import dataclasses
import functools
import time
from pathlib import Path

from tpu_components.core.base.digest import digest_of
from tpu_components.core.base.errors import chain_of
from tpu_components.core.base.fingerprint import code_of
from tpu_components.core.machines.machine_spec import Slice
from tpu_components.preflight_training.compiling import hlo
from tpu_components.preflight_training.compiling.failures import explain, needed_bytes, verdict_of
from tpu_components.preflight_training.compiling.kernels import read_kernels
from tpu_components.preflight_training.compiling.outcome import FITS, Outcome, versions_and_flags
from tpu_components.preflight_training.compiling.stablehlo import (
    compile_module,
    device_peak_bytes,
    devices_of,
    new_context,
    parse_module,
)
from tpu_components.preflight_training.jax_steps.lowering import LoweredStep


@dataclasses.dataclass(frozen=True)
class StepProgram:
    """A step to compile for a machine; see `sandbox.Program`.

    Attributes:
        step: The lowered step.
        machine: Slice to compile for. The step does not have to use all of its devices.
        slices: Number of slices, which the data-centre network connects.
        levels: Largest number of nested scopes (see `jax.named_scope`) in the name of a layer.
    """

    step: LoweredStep
    machine: Slice
    slices: int = 1
    levels: int = 2
    backend: str = "jax"

    def key(self) -> str:
        """Return a digest of everything on which the outcome depends."""
        step = [self.step.digest, self.step.order, self.step.compiler_options]
        machine = [dataclasses.asdict(self.machine), self.slices, self.levels]
        return digest_of([step, machine, versions_and_flags(), code_of([__name__, hlo.__name__]).digest])

    def compile(self, cache_dir: Path) -> Outcome:
        """Compile the step in this process. `Sandbox` caches the outcome."""
        start = time.monotonic()
        module = parse_module(self.step.content, new_context())
        try:
            devices = devices_of(self.machine, self.slices)
            text, memory = compile_module(
                module, [devices[at] for at in self.step.order], dict(self.step.compiler_options)
            )
        except Exception as error:  # Any error of the compiler is a result.
            chain = chain_of(error)
            said = "\n".join(map(str, chain))
            seconds = time.monotonic() - start
            return Outcome(
                verdict_of(said), explain(chain, said), compile_seconds=seconds, peak_bytes=needed_bytes(said)
            )
        return Outcome(
            FITS,
            compile_seconds=time.monotonic() - start,
            peak_bytes=device_peak_bytes(memory),
            fixed_bytes=memory.alias_size_in_bytes,
            cost=hlo.read_cost(text, functools.partial(hlo.scope_of, levels=self.levels), read_kernels(module)),
        )
