"""Small steps as other people write them, and what becomes of them in one process that has JAX and the TPU compiler."""

import functools
import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from tests.components.preflight_training.receipts.runs import predict, receive
from tpu_components.core.base.errors import InputError
from tpu_components.preflight_training.compiling import sandbox
from tpu_components.preflight_training.jax_steps.lowering import mesh
from tpu_components.preflight_training.jax_steps.preflight import StepCase, examine, load_runs
from tpu_components.preflight_training.receipts.store import ReceiptStore

WIDTH, HIDDEN, BATCH = 256, 512, 512
SHAPES = ({"up": (WIDTH, HIDDEN), "down": (HIDDEN, WIDTH)}, (BATCH, WIDTH))


def shaped(shape: tuple[int, ...], kind: Any = jnp.bfloat16, sharding: Any = None) -> jax.ShapeDtypeStruct:
    """An array without values."""
    return jax.ShapeDtypeStruct(shape, kind, sharding=sharding)


def inputs(batch: int = BATCH, width: int = WIDTH) -> tuple[Any, ...]:
    """Parameters and a batch of `train_step`."""
    return {"up": shaped((WIDTH, HIDDEN)), "down": shaped((HIDDEN, WIDTH))}, shaped((batch, width))


def train_step(params: Any, batch: Any) -> Any:
    """Two layers in scopes, with their gradients."""

    def loss(params: Any) -> Any:
        with jax.named_scope("net"):
            with jax.named_scope("up"):
                hidden = jax.nn.relu(batch @ params["up"])
            with jax.named_scope("down"):
                return ((hidden @ params["down"]) ** 2).mean()

    return jax.tree.map(lambda value, slope: value - 0.1 * slope, params, jax.grad(loss)(params))


def branching(batch: Any) -> Any:
    """A Python branch on values."""
    return batch if batch.sum() > 0 else -batch


def asking(batch: Any) -> Any:
    """A branch for one kind of device."""
    return batch * 2 if jax.default_backend() == "tpu" else jnp.sort(batch)


def calling(batch: Any) -> Any:
    """A call of the host whose result the step needs."""
    return jax.pure_callback(lambda array: array, batch, batch)


def printing(batch: Any) -> Any:
    """A step that prints values."""
    jax.debug.print("{}", batch.sum())
    return batch * 2


_print = jax.debug.print


def printing_by_another_name(batch: Any) -> Any:
    """A step that prints values with a function that has another name."""
    _print("{}", batch.sum())
    return batch * 2


def yielding(batch: Any) -> Any:
    """A generator."""
    yield batch


def of_mode(batch: Any, mode: Any) -> Any:
    """A step with an argument that is no array."""
    return batch * 2 if mode == "double" else batch


def returning(batch: Any) -> Any:
    """A step that returns a text."""
    return batch, "done"


def failing(batch: Any) -> Any:
    """A mistake that has nothing to do with JAX."""
    return batch * {}["factor"]


def leaving(batch: Any) -> Any:
    """An end of the process."""
    raise SystemExit("bye")


class Wrapped:
    """A jitted function that gives JAX's lowered step in an object of its own, as `flax.nnx.jit` does."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.lower = self.jitted = jax.jit(function)
        self.__name__ = function.__name__

    def __call__(self, *args: Any) -> Any:
        """Run the step."""

    def trace(self, *args: Any) -> Any:
        """Trace the step."""
        traced = self.jitted.trace(*args)
        return types.SimpleNamespace(lower=lambda **how: types.SimpleNamespace(lowered=traced.lower(**how)))


class _Gspmd:
    """A jitted function that JAX lowers for the partitioner that it had before Shardy."""

    def __init__(self, jitted: Any) -> None:
        self.lower = jitted.lower
        self._jitted = jitted
        self.__name__ = "train_step"

    def __call__(self, *args: Any) -> Any:
        """Run the step."""

    def trace(self, *args: Any) -> Any:
        """Trace the step; `lower` lowers it."""
        traced = self._jitted.trace(*args)

        def lower(**how: Any) -> Any:
            jax.config.update("jax_use_shardy_partitioner", False)
            try:
                return traced.lower(**how)
            finally:
                jax.config.update("jax_use_shardy_partitioner", True)

        return types.SimpleNamespace(lower=lower)


def attention(query, key, value):
    """The compiler writes a kernel of its own for this."""
    scores = jnp.einsum("hqd,hkd->hqk", query, key, preferred_element_type=jnp.float32)
    return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(scores).astype(value.dtype), value)


def splash_attention(values):
    """A kernel of which nothing is masked."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel, splash_attention_mask

    mask = splash_attention_mask.MultiHeadMask([splash_attention_mask.FullMask((1024, 1024))] * 2)
    return splash_attention_kernel.make_splash_mha(mask, head_shards=1, q_seq_shards=1)(values, values, values)


def pipelined(batch: Any, weights: Any) -> Any:
    """A product whose kernel copies blocks itself, in a way that depends on the TPU."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def multiply(rows: Any, columns: Any, result: Any) -> None:
        result[...] = jnp.dot(rows[...], columns[...], preferred_element_type=jnp.float32)

    side = 128
    shape = shaped((batch.shape[0], weights.shape[1]), jnp.float32)
    specs = {
        "in_specs": [
            pl.BlockSpec((side, batch.shape[1]), lambda i, _: (i, 0)),
            pl.BlockSpec((weights.shape[0], side), lambda _, j: (0, j)),
        ],
        "out_specs": [pl.BlockSpec((side, side), lambda i, j: (i, j))],
    }
    grid = tuple(size // side for size in shape.shape)
    kernel = pltpu.emit_pipeline(multiply, grid=grid, **specs)
    in_main_memory = pl.BlockSpec(memory_space=pl.ANY)
    return pl.pallas_call(kernel, in_specs=[in_main_memory] * 2, out_specs=in_main_memory, out_shape=shape)(
        batch, weights
    )


def experts(rows: Any, weights: Any, sizes: Any) -> Any:
    """Products over groups of rows, whose sizes the data determine. The compiler writes the kernel."""
    return jax.lax.ragged_dot(rows, weights, sizes)


def best(batch: Any) -> Any:
    """An operation of which the compiler says nothing."""
    return jax.lax.top_k(batch, 64)


def with_large_blocks(batch: Any) -> Any:
    """A kernel that copies the whole batch to the vector memory at once."""
    from jax.experimental import pallas as pl

    def double(batch: Any, result: Any) -> None:
        result[...] = 2 * batch[...]

    whole = pl.BlockSpec(batch.shape, lambda i: (0, 0))
    return pl.pallas_call(double, grid=(1,), in_specs=[whole], out_specs=whole, out_shape=batch)(batch)


def scanned_scopes(batch: Any, weights: Any) -> Any:
    """Blocks with two scopes each, in a loop."""

    def block(carry: Any, weight: Any) -> tuple[Any, None]:
        with jax.named_scope("block"):
            with jax.named_scope("up"):
                carry = jnp.tanh(carry @ weight)
            with jax.named_scope("down"):
                return carry @ weight.T, None

    return jax.lax.scan(block, batch, weights)[0]


def making_a_mesh(batch: Any) -> Any:
    """A mesh of devices that this machine lacks."""
    return jax.lax.with_sharding_constraint(batch, NamedSharding(jax.make_mesh((8,), ("data",)), PartitionSpec("data")))


def repeated(batch: Any, times: int) -> Any:
    """As many products as a static argument says."""
    for _ in range(times):
        batch = batch @ jnp.ones((WIDTH, WIDTH), batch.dtype)
    return batch


def scanned(batch: Any) -> Any:
    """A loop of four products."""
    weights = jnp.ones((4, WIDTH, WIDTH), batch.dtype)
    return jax.lax.scan(lambda carry, weight: (carry @ weight, ()), batch, weights)[0]


def sharded(machine: str, **axes: int) -> dict[str, Any]:
    """`jax.jit`'s options for a layout of `train_step` over a mesh with the axes `data` and `model`."""
    devices = mesh(machine, **axes)
    up, down = PartitionSpec(None, "model"), PartitionSpec("model", None)
    params = {"up": NamedSharding(devices, up), "down": NamedSharding(devices, down)}
    return {"in_shardings": (params, NamedSharding(devices, PartitionSpec("data"))), "donate_argnums": 0}


def jitted(machine: str, **axes: int) -> Callable[..., Any]:
    """The step, jitted already with a layout."""
    return jax.jit(train_step, **sharded(machine, **axes))


def cases() -> dict[str, Callable[[], StepCase]]:
    """The steps, by what each is to show."""
    return {
        "plain": lambda: StepCase(train_step, inputs(), "v5e-1"),
        "mesh": lambda: StepCase(train_step, inputs(), "v5e-8", jit_options=sharded("v5e-8", data=2, model=4)),
        "jitted": lambda: StepCase(jitted("v5e-8", data=2, model=4), inputs(), "v5e-8"),
        "abstract mesh": lambda: StepCase(train_step, inputs(), "v5e-8", jit_options=_abstract()),
        "GSPMD": lambda: StepCase(_Gspmd(jitted("v5e-8", data=2, model=4)), inputs(), "v5e-8"),
        "half of the slice": lambda: StepCase(jitted("v5e-4", data=1, model=4), inputs(), "v5e-8"),
        "two slices": lambda: _summed_over_slices("v5e-8", 16),
        "two slices of v4": lambda: _summed_over_slices("v4-8", 8, "kubeflow"),
        "too large": lambda: StepCase(train_step, inputs(4 << 20 << 4), "v5e-1"),
        "asking": lambda: StepCase(asking, (shaped((64, 64)),), "v5e-1"),
        "asking as cpu": lambda: StepCase(asking, (shaped((64, 64)),), "v5e-1", default_backend="cpu"),
        "calling": lambda: StepCase(calling, (shaped((64, 64)),), "v5e-1"),
        "static": lambda: StepCase(repeated, (inputs()[1], 3), "v5e-1", jit_options={"static_argnums": 1}),
        "scanned": lambda: StepCase(scanned, (inputs()[1],), "v5e-1"),
        "unknown option of the compiler": lambda: StepCase(
            train_step, inputs(), "v5e-1", jit_options={"compiler_options": {"xla_no_such_option": True}}
        ),
        "few rows": lambda: StepCase(jnp.dot, (shaped((8, 4096)), shaped((4096, 4096))), "v5e-1"),
        "attention": lambda: StepCase(attention, 3 * (shaped((2, 2048, 128)),), "v5e-1"),
        "splash attention": lambda: StepCase(splash_attention, (shaped((2, 1024, 128)),), "v5e-1"),
        "pipelined": lambda: StepCase(pipelined, (inputs()[1], inputs()[0]["up"]), "v5p-8", platform="kubeflow"),
        "experts": lambda: StepCase(
            experts, (shaped((8192, 1024)), shaped((8, 1024, 512)), shaped((8,), jnp.int32)), "v5e-1"
        ),
        "best": lambda: StepCase(best, (shaped((256, 8192), jnp.float32),), "v5e-1"),
        "large blocks": lambda: StepCase(with_large_blocks, (shaped((4096, 4096)),), "v5e-1"),
        "scanned scopes": lambda: StepCase(scanned_scopes, (shaped((1024, 1024)), shaped((4, 1024, 1024))), "v5e-1"),
        "pmap": lambda: StepCase(jax.pmap(jnp.sin), (shaped((8, 64)),), "v5e-8"),
        "own mesh": lambda: StepCase(making_a_mesh, (shaped((8, 64)),), "v5e-8"),
        "weights on the host": lambda: StepCase(_with_host, (_on_host(), shaped((512, 512))), "v5e-1"),
        "levels": lambda: StepCase(train_step, inputs(), "v5e-1", levels=1),
        "partial": lambda: StepCase(functools.partial(repeated, times=2), (inputs()[1],), "v5e-1"),
        "printing": lambda: StepCase(printing, (shaped((64, 64)),), "v5e-1"),
        "wrapped": lambda: StepCase(Wrapped(train_step), inputs(), "v5e-1"),
        "meshes of one machine": lambda: StepCase(jnp.dot, _over_two_meshes(), "v5e-8"),
        "narrow": lambda: StepCase(jnp.dot, (shaped((256, 256), jnp.int8), shaped((256, 256), jnp.int8)), "v5e-1"),
        "text": lambda: StepCase(of_mode, (shaped((8,)), "double"), "v5e-1"),
        "result": lambda: StepCase(returning, (shaped((8,)),), "v5e-1"),
        "own mistake": lambda: StepCase(failing, (shaped((8,)),), "v5e-1"),
        "leaving": lambda: StepCase(functools.partial(leaving), (shaped((8,)),), "v5e-1"),
        "slices without a mesh": lambda: StepCase(train_step, inputs(), "v5e-8", slices=2),
        "mesh larger than the slice": lambda: StepCase(jitted("v5e-8", data=2, model=4), inputs(), "v5e-4"),
        "shapes": lambda: StepCase(train_step, inputs(width=WIDTH + 1), "v5e-1"),
        "number of inputs": lambda: StepCase(train_step, inputs()[:1], "v5e-1"),
        "branching": lambda: StepCase(branching, (shaped((8,)),), "v5e-1"),
        "operation": lambda: StepCase(jnp.linalg.eigvals, (shaped((8, 8), jnp.float32),), "v5e-1"),
        "gpu": lambda: StepCase(train_step, inputs(), "l4-1"),
        "no step": lambda: StepCase(3, inputs(), "v5e-1"),
        "options of a jitted step": lambda: StepCase(
            jitted("v5e-8", data=2, model=4), inputs(), "v5e-8", jit_options={"donate_argnums": 0}
        ),
        "inputs and largest": lambda: StepCase(train_step, inputs(), "v5e-1", largest=inputs),
        "static argument that is missing": lambda: StepCase(
            scanned, (inputs()[1],), "v5e-1", jit_options={"static_argnums": 5}
        ),
        "generator": lambda: StepCase(yielding, (shaped((8,)),), "v5e-1"),
        "numpy": lambda: StepCase(lambda batch: np.sin(batch), (shaped((8,)),), "v5e-1"),
        "printing by another name": lambda: StepCase(printing_by_another_name, (shaped((8,)),), "v5e-1"),
        "number as machine": lambda: StepCase(train_step, inputs(), 8),  # type: ignore[arg-type]
        "largest of all sizes": lambda: StepCase(asking, machine="v5e-1", largest=lambda _: (shaped((8,)),)),
        "largest that fails": lambda: StepCase(asking, machine="v5e-1", largest=lambda size: size / 0),
        "largest of no tuple": lambda: StepCase(asking, machine="v5e-1", largest=lambda size: shaped((size,))),
        "largest that is not divisible": lambda: StepCase(
            asking, machine="v5e-8", largest=lambda size: (shaped((size + 1, 8), sharding=_over_eight()),)
        ),
        "no slices": lambda: StepCase(train_step, inputs(), "v5e-1", slices=0),
        "too large a mesh": lambda: StepCase(
            train_step, inputs(), "v5e-4", jit_options=sharded("v5e-4", data=2, model=4)
        ),
    }


def costly_cases() -> dict[str, Callable[[], StepCase]]:
    """Steps that take many seconds to compile."""
    return {"largest": lambda: StepCase(train_step, machine="v5e-1", largest=lambda size: inputs(size << 16))}


def _sum_of_tanh(arrays: Any) -> Any:
    return jnp.tanh(arrays).sum(0)


def _summed_over_slices(machine: str, devices: int, platform: str = "vertex") -> StepCase:
    """A sum of 4 MiB over the devices of two slices."""
    over = mesh(machine, slices=2, data=devices)
    arrays = shaped((devices, 1024, 1024), jnp.float32, NamedSharding(over, PartitionSpec("data")))
    everywhere = {"out_shardings": NamedSharding(over, PartitionSpec())}
    return StepCase(_sum_of_tanh, (arrays,), machine, slices=2, jit_options=everywhere, platform=platform)


def _over_eight() -> NamedSharding:
    return NamedSharding(jax.sharding.AbstractMesh((8,), ("data",)), PartitionSpec("data"))


def _on_host() -> jax.ShapeDtypeStruct:
    memory = NamedSharding(mesh("v5e-1", data=1), PartitionSpec(), memory_kind="pinned_host")
    return shaped((512, 512), sharding=memory)


def _with_host(weights: Any, batch: Any) -> Any:
    return batch @ jax.device_put(weights, jax.memory.Space.Device)


def _over_two_meshes() -> tuple[Any, Any]:
    rows = NamedSharding(mesh("v5e-8", data=2, model=4), PartitionSpec("data"))
    columns = NamedSharding(mesh("v5e-8", data=2, model=4), PartitionSpec(None, "model"))
    return shaped((64, 64), sharding=rows), shaped((64, 64), sharding=columns)


def _abstract() -> dict[str, Any]:
    devices = jax.sharding.AbstractMesh((2, 4), ("data", "model"))
    params = {
        "up": NamedSharding(devices, PartitionSpec(None, "model")),
        "down": NamedSharding(devices, PartitionSpec("model", None)),
    }
    return {"in_shardings": (params, NamedSharding(devices, PartitionSpec("data"))), "donate_argnums": 0}


def in_files(folder: Path) -> dict[str, StepCase]:
    """`train_step` as other programs write it into files."""
    lowered = jax.jit(train_step).trace(*inputs()).lower(lowering_platforms=("tpu",))
    exported = jax.export.export(jax.jit(train_step), platforms=["tpu"])(*inputs())
    contents = {
        "text.mlir": lowered.as_text().encode(),
        "named.mlir": lowered.as_text(debug_info=True).encode(),
        "portable.mlirbc": exported.mlir_module_serialized,
        "exported.bc": bytes(exported.serialize()),
        "empty.mlir": b"",
        "other.mlir": b"a file of something else",
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return {name: StepCase(str(folder / name), machine="v5e-1", name=name) for name in (*contents, "missing.mlir")}


def with_receipts(folder: Path) -> StepCase:
    """`train_step` in a project whose two trainings took 1.4 times as long as estimated."""
    store = ReceiptStore(str(folder / "receipts"))
    store.add(receive(14.0 + seconds, predict(), seconds=100.0 + seconds) for seconds in (0.0, 0.1))
    return StepCase(train_step, inputs(), "v5e-1", receipts=store.uri)


def outcome_of(make: Callable[[], StepCase], box: sandbox.Sandbox) -> dict[str, Any]:
    """The report of a step, or the error."""
    try:
        case = make()
        report = examine(case, box, load_runs(case.receipts))
    except InputError as error:
        return {"error": str(error)}
    return {"report": report.as_dict(), "text": str(report), "summary": report.summary}


def main(folder: str, kind: str) -> None:
    """Print the outcome of the steps of a kind as JSON."""
    box = sandbox.Sandbox(120, 8192, Path(folder))
    every = costly_cases()
    if kind == "quick":
        every = {**cases(), "receipts": functools.partial(with_receipts, Path(folder))}
        every |= {name: functools.partial(_itself, case) for name, case in in_files(Path(folder)).items()}
    print(json.dumps({name: outcome_of(make, box) for name, make in every.items()}))


def _itself(case: StepCase) -> StepCase:
    return case


if __name__ == "__main__":
    # What the child process would do, without the import of JAX.
    sandbox.Sandbox.run_child = lambda box, program: program.compile(box.cache_dir)  # type: ignore[method-assign]
    main(*sys.argv[1:])
