"""Kernels that Pallas lowers for a TPU, whose arithmetic is known."""

import base64
import json

import pytest

from tpu_components.preflight_training.compiling.kernels import kernel_work

_KERNELS = """
import functools, json, re
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

def bodies(function, *shapes):
    arguments = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
    text = jax.jit(function).trace(*arguments).lower(lowering_platforms=("tpu",)).as_text()
    return re.findall(r'body\\\\22: \\\\22([^\\\\]*)\\\\22', text)

def tile(x, y, o):
    o[...] = jnp.dot(x[...], y[...], preferred_element_type=jnp.float32).astype(o.dtype)

def product(x, y, kernel=tile):
    rows, columns = pl.BlockSpec((128, 256), lambda i, j: (i, 0)), pl.BlockSpec((256, 128), lambda i, j: (0, j))
    out = pl.BlockSpec((128, 128), lambda i, j: (i, j))
    shape = jax.ShapeDtypeStruct((512, 384), x.dtype)
    return pl.pallas_call(kernel, grid=(4, 3), in_specs=[rows, columns], out_specs=out, out_shape=shape)(x, y)

def looping(x, y, o):
    def add(i, total):
        return total + jnp.dot(x[...], y[...], preferred_element_type=jnp.float32)
    o[...] = jax.lax.fori_loop(0, 5, add, jnp.zeros((128, 128), jnp.float32)).astype(o.dtype)

def doubled(x, o):
    o[...] = x[...] * 2

def attend(x):
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernel
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
    mask = masks.MultiHeadMask([masks.CausalMask((256, 256))] * 2)
    return kernel.make_splash_mha(mask, head_shards=1, q_seq_shards=1)(x, x, x)

print(json.dumps({
    "product": bodies(product, (512, 256), (256, 384)),
    "looping": bodies(functools.partial(product, kernel=looping), (512, 256), (256, 384)),
    "doubled": bodies(pl.pallas_call(doubled, out_shape=jax.ShapeDtypeStruct((8, 128), jnp.bfloat16)), (8, 128)),
    "attend": bodies(attend, (2, 256, 128)),
    "narrow": bodies(attend, (2, 256, 64)),
}))
"""


@pytest.mark.heavy  # A process that imports JAX: 5 s.
def test_kernels_count_their_products_in_every_tile_of_the_grid(run_with_jax):
    bodies = json.loads(run_with_jax(_KERNELS))
    found = {name: [kernel_work(body) for body in several] for name, several in bodies.items()}
    product = 2.0 * 512 * 256 * 384
    attention = 0.5 * 2 * 2.0 * 2 * 256 * 256 * 128  # Queries by keys, and by values; half is masked.
    assert found == {
        "product": [(product, product)],
        "looping": [(5 * product, 5 * product)],
        "doubled": [(0, 0)],
        "attend": [(attention, attention)],
        "narrow": [(attention / 2, attention)],  # Half of each register is empty.
    }


def test_a_kernel_that_the_compiler_wrote_as_text_counts_its_products():
    text = b"""module {
      func.func @main(%arg0: i32, %arg1: memref<512x128xbf16>) attributes {iteration_bounds = array<i64: 8, 4>} {
        %c0 = arith.constant 0 : index
        %x = vector.load %arg1[%c0, %c0] : memref<512x128xbf16>, vector<512x128xbf16>
        %zero = arith.constant dense<0.0> : vector<512x512xf32>
        %product = vector.contract {
          indexing_maps = [
            affine_map<(i, j, k) -> (i, k)>, affine_map<(i, j, k) -> (j, k)>, affine_map<(i, j, k) -> (i, j)>
          ],
          iterator_types = ["parallel", "parallel", "reduction"], kind = #vector.kind<add>
        } %x, %x, %zero : vector<512x128xbf16>, vector<512x128xbf16> into vector<512x512xf32>
        return
      }
    }"""
    product = 8 * 4 * 2.0 * 512 * 512 * 128
    assert kernel_work(base64.b64encode(text).decode()) == (product, product)


@pytest.mark.parametrize("body", ["", "bm90aGluZw==", "no base64"])
def test_a_kernel_that_cannot_be_read_has_no_known_arithmetic(body):
    assert kernel_work(body) == (0, 0)
