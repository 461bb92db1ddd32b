"""Arithmetic of kernels, read from the program that a custom call carries.

The compiler has no estimate of the cycles of a custom call. The program of a custom call is MLIR of the dialects that
Mosaic compiles: https://github.com/jax-ml/jax/blob/main/jaxlib/mosaic/dialect/tpu/tpu_ops.td. JAX writes the program of
a Pallas kernel as bytecode with a version. The compiler writes a kernel of its own, such as the one that computes a
softmax between two products block by block, as text without a version.
"""

import base64
import functools
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

_VERSION = "stable_mosaic.version"
_PRODUCTS = ("tpu.matmul", "vector.contract")
LANES = 128  # Columns of a vector register: a head of 64 features is as slow as one of 128.
# A mask lets a kernel skip blocks, and only the values of the mask say how many: half of them, as for a causal mask.
_SHARE_OF_MASKED = 0.5


class KernelWork(NamedTuple):
    """The number of operations of a kernel's matrix products.

    Attributes:
        flops: Number of multiplications and additions.
        padded: The same number if both dimensions of each weight are rounded up to multiples of `LANES`.
    """

    flops: float = 0.0
    padded: float = 0.0

    def times(self, factor: float) -> "KernelWork":
        """Return the work of `factor` runs."""
        return KernelWork(factor * self.flops, factor * self.padded)


@functools.lru_cache(maxsize=256)
def kernel_work(body: str) -> KernelWork:
    """Return the work of a kernel's matrix products.

    The work is zero if the kernel has no product, or its program cannot be read.

    Args:
        body: The kernel's program: MLIR bytecode or text, encoded in base64.
    """
    from jax._src.lib import tpu  # type: ignore[attr-defined]
    from jax.interpreters import mlir
    from jaxlib.mlir import ir, passmanager

    context = mlir.make_ir_context()  # Knows the dialects of the text.
    context.allow_unregistered_dialects = True
    try:
        with context, ir.Location.unknown():
            tpu.register_dialect(context)
            module = ir.Module.parse(base64.b64decode(body))
            if _VERSION in module.operation.attributes:  # This turns it into that of the installed jaxlib.
                passmanager.PassManager.parse("builtin.module(mosaic-serde{serialize=false})").run(module.operation)
            return _sum(_work(function.operation).times(_grid(function)) for function in module.body.operations)
    except (ir.MLIRError, RuntimeError, ValueError):
        return KernelWork()


def padding(size: int, tile: int) -> float:
    """Return the factor by which a dimension grows when it is rounded up to whole tiles.

    Example:
        >>> padding(64, 128), padding(128, 128)
        (2.0, 1.0)
    """
    return math.ceil(size / tile) * tile / size


def _sum(works: Iterable[KernelWork]) -> KernelWork:
    known = list(works)
    return KernelWork(sum(work.flops for work in known), sum(work.padded for work in known))


def _grid(function: Any) -> int:
    """Return how often a kernel's function runs: the product of its grid's dimensions."""
    if "iteration_bounds" not in function.attributes:
        return 1
    return math.prod(max(int(bound), 1) for bound in function.attributes["iteration_bounds"])


def _work(operation: Any) -> KernelWork:
    """Return the work of the matrix products inside an operation, counting every iteration of its loops."""
    total = _sum(
        _product_work(inner) if inner.operation.name in _PRODUCTS else _work(inner.operation)
        for region in operation.regions
        for block in region.blocks
        for inner in block.operations
    )
    if operation.name == "scf.for":
        return total.times(_trips(operation))
    if operation.name == "scf.if" and _depends_on_memory(operation.operands[0]):
        return total.times(_SHARE_OF_MASKED)
    return total


def _product_work(product: Any) -> KernelWork:
    from jaxlib.mlir import ir

    left, right, result = (ir.ShapedType(operand.type).shape for operand in list(product.operands)[:3])
    batch = result[0] if len(result) > 2 else 1
    contraction = math.isqrt(math.prod(left) * math.prod(right) // (math.prod(result) * batch))
    flops = 2.0 * math.prod(result) * contraction
    return KernelWork(flops, flops * padding(contraction, LANES) * padding(result[-1], LANES))


def _trips(loop: Any) -> int:
    """Return the number of a loop's iterations, or 1 if a bound is not a constant."""
    first, last, step = (_constant(bound) for bound in list(loop.operands)[:3])
    if first is None or last is None or not step:
        return 1
    return max(-(-(last - first) // step), 0)


def _constant(value: Any) -> int | None:
    """Return a value that is known before the kernel runs: a constant, or a sum of constants.

    Return None for any other value.
    """
    owner = value.owner
    name = getattr(owner, "name", "")
    if name == "arith.constant":
        return int(owner.attributes["value"])
    if name != "arith.addi":
        return None
    left, right = (_constant(operand) for operand in owner.operands)
    return None if left is None or right is None else left + right


def _depends_on_memory(value: Any) -> bool:
    """Return whether a value is computed from something that the kernel loads, such as the blocks of a mask."""
    owner = value.owner
    if getattr(owner, "name", "") == "memref.load":
        return True
    return any(_depends_on_memory(operand) for operand in getattr(owner, "operands", ()))
