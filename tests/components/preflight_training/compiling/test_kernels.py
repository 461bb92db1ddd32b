"""The products of TPU kernels are counted."""

import base64
import json

import pytest

from tpu_components.preflight_training.compiling.kernels import Array, kernel_work, read_kernels
from tpu_components.preflight_training.compiling.stablehlo import new_context, parse_module

_KERNELS = """
import functools, json, re
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu import flash_attention
from jax.experimental.pallas.ops.tpu.megablox import gmm
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from tpu_components.preflight_training.compiling.kernels import read_kernels

def kernels(function, *shapes):
    arguments = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
    lowered = jax.jit(function).trace(*arguments).lower(lowering_platforms=("tpu",))
    return list(read_kernels(lowered.compiler_ir()).items())

def tile(x, y, o):
    o[...] = jnp.dot(x[...], y[...], preferred_element_type=jnp.float32).astype(o.dtype)

def product(x, y, kernel=tile):
    rows, columns = pl.BlockSpec((128, 256), lambda i, j: (i, 0)), pl.BlockSpec((256, 128), lambda i, j: (0, j))
    out = pl.BlockSpec((128, 128), lambda i, j: (i, j))
    shape = jax.ShapeDtypeStruct((512, 384), x.dtype)
    return pl.pallas_call(kernel, grid=(4, 3), in_specs=[rows, columns], out_specs=out, out_shape=shape)(x, y)

def precise(x, y, o):
    x, y = x[...].astype(jnp.float32), y[...].astype(jnp.float32)
    o[...] = jnp.dot(x, y, precision="highest").astype(o.dtype)

def looping(x, y, o):
    def add(i, total):
        return total + jnp.dot(x[...], y[...], preferred_element_type=jnp.float32)
    o[...] = jax.lax.fori_loop(0, 5, add, jnp.zeros((128, 128), jnp.float32)).astype(o.dtype)

def first_row(x, y, o):
    pl.when(pl.program_id(0) == 0)(lambda: tile(x, y, o))

def doubled(x, o):
    o[...] = x[...] * 2

def attend(x, mask=masks.CausalMask, **options):
    whole = masks.MultiHeadMask([mask((1024, 1024), **options)] * 2)
    return splash.make_splash_mha(whole, head_shards=1, q_seq_shards=1)(x, x, x)

def in_layers(x):
    def layer(x, _):
        return jax.vmap(attend)(x), None
    return jax.lax.scan(jax.checkpoint(layer), x, length=6)[0]

def flash(x):
    return flash_attention.flash_attention(x[None], x[None], x[None], causal=True)

def with_mask_of_data(x, blocks):
    mask = masks.MultiHeadMask([masks.CausalMask((1024, 1024))] * 2)
    attend = splash.make_splash_mha(mask, head_shards=1, q_seq_shards=1)
    info = attend.fwd_mask_info._replace(block_mask=blocks[:1, :8, :8].astype(jnp.int8))
    return splash.SplashAttentionKernel(info, None, None, **attend.kwargs)(x, x, x)

def grouped(rows, weights, sizes):
    return gmm(rows, weights, sizes[:, 0, 0].astype(jnp.int32), preferred_element_type=jnp.bfloat16)

heads = 2, 1024, 128
print(json.dumps({
    "product": kernels(product, (512, 256), (256, 384)),
    "looping": kernels(functools.partial(product, kernel=looping), (512, 256), (256, 384)),
    "precise": kernels(functools.partial(product, kernel=precise), (512, 256), (256, 384)),
    "first row": kernels(functools.partial(product, kernel=first_row), (512, 256), (256, 384)),
    "doubled": kernels(pl.pallas_call(doubled, out_shape=jax.ShapeDtypeStruct((8, 128), jnp.bfloat16)), (8, 128)),
    "causal": kernels(attend, heads),
    "narrow": kernels(attend, (2, 1024, 64)),
    "full": kernels(functools.partial(attend, mask=masks.FullMask), heads),
    "window": kernels(functools.partial(attend, mask=masks.LocalMask, window_size=(128, 0), offset=0), heads),
    "layers": kernels(in_layers, (3, *heads)),
    "gradient": kernels(jax.grad(lambda x: attend(x).astype(jnp.float32).sum()), heads),
    "flash": kernels(flash, heads),
    "grouped": kernels(grouped, (1024, 256), (4, 256, 384), (4, 1, 1)),
    "data": kernels(with_mask_of_data, heads, (1, 8, 8)),
}))
"""


def _array(shape, values):
    return Array(tuple(shape), values and tuple(map(tuple, values)))


@pytest.mark.heavy  # Starts a process that imports JAX, which takes 9 s.
def test_kernels_count_the_products_that_they_compute(run_with_jax):
    """A product counts once for every tile that no mask or condition skips."""
    works = {
        name: [kernel_work(body, tuple(_array(*each) for each in arrays)) for body, arrays in kernels]
        for name, kernels in json.loads(run_with_jax(_KERNELS)).items()
    }
    found = {name: [work[:2] for work in several] for name, several in works.items()}
    product = 2.0 * 512 * 256 * 384
    pairs = 2 * 2.0 * 1024 * 1024 * 128  # One product over all pairs of queries and keys, in both heads.
    causal = 36 / 64  # Blocks on and below the diagonal.
    assert found == {
        "product": [(product, product)],
        "looping": [(5 * product, 5 * product)],
        "precise": [(product, 6 * product)],
        "first row": [(product / 4, product / 4)],
        "doubled": [(0, 0)],
        "causal": [(2 * causal * pairs, 2 * causal * pairs)],
        "narrow": [(causal * pairs, 2 * causal * pairs)],  # Half of each register is empty.
        "full": [(2 * pairs, 2 * pairs)],
        "window": [(2 * 15 / 64 * pairs, 2 * 15 / 64 * pairs)],
        # Three examples; each run of the scan counts in the program that runs it.
        "layers": [(3 * 2 * causal * pairs, 3 * 2 * causal * pairs)],
        "gradient": [(count * causal * pairs, count * causal * pairs) for count in (2, 4, 3)],
        "flash": [(2 * causal * pairs, 2 * causal * pairs)],
        # The data determine the grid: at least one step for each block of rows.
        "grouped": [(2.0 * 1024 * 256 * 384, 2.0 * 1024 * 256 * 384)],
        "data": [(pairs, pairs)],  # The mask is unknown, so half of the blocks count.
    }
    steps = {name: [work.steps for work in several] for name, several in works.items()}
    blocks = 2 * 8 * 8  # Of both heads.
    assert steps["product"] == steps["looping"] == [4 * 3]
    assert steps["first row"] == [3]
    assert steps["doubled"] == [0], "no grid"
    assert steps["full"] == [blocks]
    assert steps["causal"] == steps["flash"] == [causal * blocks]
    assert steps["layers"] == [3 * causal * blocks]
    assert steps["grouped"] == [8 * 2 * 3], "blocks of 128"
    attends = {name for name, several in works.items() if all(work.has_exponentials for work in several)}
    assert attends == found.keys() - {"product", "looping", "precise", "first row", "doubled", "grouped"}


_MAPS = "affine_map<(i, j, k) -> (i, k)>, affine_map<(i, j, k) -> (j, k)>, affine_map<(i, j, k) -> (i, j)>"
_TEXT = """module {{
  func.func @main(%i: i32, %j: i32, %mask: memref<16xi8>, %x: memref<512x128xbf16>)
      attributes {{iteration_bounds = array<i64: 4, 8>}} {{
    %c0 = arith.constant 0 : index
    %one = arith.constant 1 : i32
    %loaded = memref.load %mask[%c0] : memref<16xi8>
    %zero = arith.constant 0 : i8
    %v = vector.load %x[%c0, %c0] : memref<512x128xbf16>, vector<512x128xbf16>
    %sum = arith.constant dense<0.0> : vector<512x512xf32>
    {header} {{
      %product = vector.contract {{
        indexing_maps = [{maps}], iterator_types = ["parallel", "parallel", "reduction"], kind = #vector.kind<add>
      }} %v, %v, %sum : vector<512x128xbf16>, vector<512x128xbf16> into vector<512x512xf32>
    }}
    return
  }}
}}"""


def _with_product(header):
    """A kernel with a grid of 4 by 8, which the compiler wrote as text, with a product in a branch or a loop."""
    return base64.b64encode(_TEXT.format(header=header, maps=_MAPS).encode()).decode()


_IS_SHOWN = "%b = arith.cmpi ne, %loaded, %zero : i8"
_CHAIN = "".join(f"%d{n + 1} = arith.addi %d{n}, %d{n} : i32\n" for n in range(30))


@pytest.mark.parametrize(
    ("condition", "mask", "tiles"),
    [
        ("%b = arith.constant true", None, 32),
        ("%b = arith.constant false", None, 0),
        ("%b = arith.cmpi eq, %i, %j : i32", None, 4),
        ("%c = arith.cmpi sge, %i, %j : i32\n%t = arith.constant true\n%b = arith.xori %c, %t : i1", None, 22),
        (_IS_SHOWN, None, 16),
        (_IS_SHOWN, ((0, 12), (1, 4)), 8),
        (
            _IS_SHOWN.replace("%b", "%c") + "\n%d = arith.cmpi sge, %i, %j : i32\n%b = arith.andi %c, %d : i1",
            ((0, 12), (1, 4)),
            2.5,
        ),
        (f"%d0 = arith.addi %i, %j : i32\n{_CHAIN}%b = arith.cmpi sgt, %d30, %one : i32", None, 31),
        (f"%d0 = arith.divsi %i, %one : i32\n{_CHAIN}%b = arith.cmpi sgt, %d30, %one : i32", None, 32),
    ],
    ids=["always", "never", "diagonal", "not", "mask unknown", "mask", "mask and place", "chain", "unknown"],
)
def test_a_product_counts_as_often_as_its_condition_holds(condition, mask, tiles):
    body = _with_product(f"{condition}\nscf.if %b")
    work = tiles * 2.0 * 512 * 512 * 128
    steps = tiles or 4 * 8  # Without a product, all steps count.
    assert kernel_work(body, (Array((16,), mask),)) == (work, work, steps, False, 0)


def test_a_loop_whose_length_the_data_determine_is_counted_once_and_told():
    constants = "%n = arith.constant 5 : index\n%s = arith.constant 1 : index"
    loaded = "%m = arith.index_cast %loaded : i8 to index"
    once = 4 * 8 * 2.0 * 512 * 512 * 128
    for last, factor, unknown in (("%n", 5, 0), ("%m", 1, 1)):
        body = _with_product(f"{constants}\n{loaded}\nscf.for %k = %c0 to {last} step %s")
        work = kernel_work(body, (Array((16,)),))
        assert (work.flops, work.steps, work.unknown_loops) == (factor * once, 4 * 8, unknown)


def test_operands_that_are_no_masks_are_read_without_an_error():
    text = """func.func public @main(%a: tensor<4xi32>) -> tensor<4xi32> {
        %bits = stablehlo.constant dense<[true, false, true]> : tensor<3xi1>
        %narrow = stablehlo.constant dense<[1, 2]> : tensor<2xi4>
        %empty = stablehlo.constant dense<> : tensor<0xi32>
        %token = stablehlo.create_token : !stablehlo.token
        %r = stablehlo.custom_call @tpu_custom_call(%a, %bits, %narrow, %empty, %token)
            {backend_config = "{\\"custom_call_config\\": {\\"body\\": \\"kernel\\"}}"}
            : (tensor<4xi32>, tensor<3xi1>, tensor<2xi4>, tensor<0xi32>, !stablehlo.token) -> tensor<4xi32>
        %s = stablehlo.custom_call @tpu_custom_call(%r) {backend_config = "none"} : (tensor<4xi32>) -> tensor<4xi32>
        return %s : tensor<4xi32>
    }"""
    (arrays,) = read_kernels(parse_module(text.encode(), new_context())).values()
    assert [array.shape for array in arrays] == [(4,), (3,), (2,), (0,), (), (4,)]
    assert [array.values for array in arrays] == [None, ((0, 1), (1, 2)), None, None, None, None]


@pytest.mark.parametrize("body", ["", "bm90aGluZw==", "no base64"])
def test_a_kernel_that_cannot_be_read_has_no_known_arithmetic(body):
    assert kernel_work(body) == (0, 0, 0, False, 0)
