"""Compares the estimated times of single operations with a device's peak FLOPS, memory bandwidth and links.

`python -m tests.evidence.benchmarks.limits` compiles each operation for one device of each machine, and an all-reduce
for the eight chips of v5e-8. `of peak` and `of bandwidth` are the fractions of the peak and of the bandwidth that the
estimate implies, so no operation may exceed 100%. A dash means that an operation is not compared with the peak.
"""

import argparse
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel, splash_attention_mask
from jax.sharding import NamedSharding, PartitionSpec

import tpu_pipelines as tp
from tpu_components.preflight_training.jax_steps.lowering import tpu_slice

MACHINES = ("v2-8", "v3-8", "v4-8", "v5e-1", "v5p-8", "v6e-1", "7x-1")
_KIND = jnp.bfloat16


class Operation(NamedTuple):
    """An operation with its minimum arithmetic and memory traffic.

    Attributes:
        name: Name of the operation.
        function: A JAX function.
        arguments: Shapes of its arguments.
        flops: Floating-point operations of its products, or 0 if it is not compared with the peak.
        num_bytes: Least number of bytes that the operation must read and write.
        donated: Indices of the donated arguments.
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    flops: float
    num_bytes: float
    donated: tuple[int, ...] = ()


def _array(*shape: int, kind: Any = _KIND) -> Any:
    return jax.ShapeDtypeStruct(shape, kind)


def operations() -> Iterator[Operation]:
    """Yield matrix products, normalisations, attention, an embedding, and a decoding step with a cache."""
    for side in (256, 512, 1024, 2048, 4096, 8192):
        square = _array(side, side)
        yield Operation(f"product {side}³", _multiply, (square, square), 2 * side**3, 3 * 2 * side**2)
    wide = _array(8192, 4096)
    yield Operation("softmax", jax.nn.softmax, (wide,), 0, 2 * 2 * wide.size)
    yield Operation("layer normalisation", _normalise, (wide,), 0, 2 * 2 * wide.size)
    heads, tokens, size = 8, 2048, 128
    q = _array(heads, tokens, size)
    yield Operation("attention, naive", _attend, (q, q, q), 4 * heads * tokens**2 * size, 4 * 2 * q.size)
    mask = splash_attention_mask.MultiHeadMask([splash_attention_mask.FullMask((tokens, tokens))] * heads)
    splash = splash_attention_kernel.make_splash_mha(mask=mask, head_shards=1, q_seq_shards=1)
    yield Operation("attention, splash", splash, (q, q, q), 4 * heads * tokens**2 * size, 4 * 2 * q.size)
    table = _array(32_000, 1024)
    ids = _array(65_536, kind=jnp.int32)
    num_bytes = 2 * table.size + 2 * ids.size * 1024  # The table counts once: it may stay in on-chip memory.
    yield Operation("embedding", lambda table, ids: table[ids], (table, ids), 0, num_bytes)
    cache = _array(32, 8, 4096, 128)
    one = _array(32, 8, 1, 128)
    num_bytes = 2 * 2 * cache.size
    yield Operation("decoding with a cache", _decode, (cache, cache, one, one, one), 0, num_bytes, (0, 1))


def _multiply(x: jax.Array, y: jax.Array) -> jax.Array:
    return x @ y


def _normalise(x: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    centred = wide - wide.mean(-1, keepdims=True)
    return (centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-6)).astype(x.dtype)


def _attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    scores = jnp.einsum("hqd,hkd->hqk", q, k, preferred_element_type=jnp.float32)
    return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(scores).astype(q.dtype), v)


def _decode(keys: jax.Array, values: jax.Array, key: jax.Array, value: jax.Array, query: jax.Array) -> Any:
    keys = jax.lax.dynamic_update_slice(keys, key, (0, 0, 7, 0))
    values = jax.lax.dynamic_update_slice(values, value, (0, 0, 7, 0))
    scores = jnp.einsum("bhqd,bhkd->bhqk", query, keys, preferred_element_type=jnp.float32)
    return keys, values, jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores).astype(query.dtype), values)


def print_operations(machine: str) -> None:
    """Print the estimated times of the operations on one device of a machine."""
    whole = tpu_slice(machine)
    generation = whole.generation
    for one in operations():
        report = tp.preflight_step(
            one.function, *one.arguments, machine=machine, platform=whole.targets[0], donate_argnums=one.donated
        )
        if report.step is None:
            print(f"{machine:<8}{one.name:<24}  {report.verdict.replace('_', ' ')}", flush=True)
            continue
        seconds = report.step.compute_ms / 1e3
        peak = one.flops / generation.device_peak_flops / seconds
        bandwidth = one.num_bytes / generation.device_bytes_per_second / seconds
        product = f"{peak:.0%}" if one.flops else "–"
        print(f"{machine:<8}{one.name:<24}{seconds * 1e6:>10.1f}{product:>10}{bandwidth:>14.0%}", flush=True)


def print_sums(machine: str, num_bytes: int = 1 << 26) -> None:
    """Print the time of an all-reduce over groups of devices.

    The all-reduce completes a matrix product whose contracted dimension is sharded.
    """
    side = int((num_bytes / 2) ** 0.5)
    link = tpu_slice(machine).generation.ici_bytes_per_second
    for group in (2, 4, 8):
        mesh = tp.mesh(machine, other=8 // group, summed=group)
        columns, rows, whole = (
            NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((None, "summed"), ("summed", None), ())
        )
        report = tp.preflight_step(
            _multiply,
            _array(side, 8 * side),
            _array(8 * side, side),
            machine=machine,
            in_shardings=(columns, rows),
            out_shardings=whole,
        )
        received = 2 * (group - 1) / group * num_bytes
        told = report.step.communication_ms / 1e3
        links = received / link / told
        print(f"{machine:<8}sum over {group:<15}{told * 1e6:>10.1f}{links:>24.1f} links", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.evidence.benchmarks.limits", description=__doc__)
    parser.add_argument(
        "machines", nargs="*", metavar="MACHINE", default=list(MACHINES), help="machines, such as v5e-1"
    )
    arguments = parser.parse_args()
    print(f"{'machine':<8}{'operation':<24}{'µs':>10}{'of peak':>10}{'of bandwidth':>14}")
    for machine in arguments.machines:
        print_operations(machine)
    print_sums("v5e-8")


if __name__ == "__main__":
    main()
