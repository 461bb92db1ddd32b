"""Arithmetic of kernels, read from the program that a custom call carries.

The compiler has no estimate of the cycles of a custom call. The program of a custom call is MLIR of the dialects that
Mosaic compiles: https://github.com/jax-ml/jax/blob/main/jaxlib/mosaic/dialect/tpu/tpu_ops.td. JAX serializes a Pallas
kernel as versioned MLIR bytecode. Kernels that the compiler generates itself, such as its fused attention, are MLIR
text without a version.
"""

import base64
import dataclasses
import functools
import json
import math
import operator
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from tpu_components.preflight_training.compiling.stablehlo import new_context

_VERSION = "stable_mosaic.version"
_PRODUCTS = ("tpu.matmul", "vector.contract")
_EXPONENTIALS = ("math.exp", "math.exp2")
_LOOPS = ("scf.for", "scf.while")
# Number of bfloat16 passes in which XLA computes a product of float32 values with `precision="highest"`:
# https://docs.jax.dev/en/latest/jax.lax.html#jax.lax.Precision
_FLOAT32_PASSES = 6
LANES = 128  # Columns of a vector register: a head of 64 features is as slow as one of 128.
Compute = Callable[[Any, Any], Any]  # Of integers, or of arrays of integers.
# Kernels skip blocks that a mask hides. If the mask's values are unknown, half of the blocks are assumed to be
# computed, as with a causal mask.
_SHARE_OF_MASKED = 0.5
_MOST_DIFFERENT = 256  # An operand with more distinct values than this is treated as unknown.
_MOST_CASES = 1 << 22  # A condition with more combinations of inputs than this is not evaluated.
# The predicates of arith.cmpi in order: eq, ne, four signed comparisons, and four unsigned ones, treated as signed.
_COMPARISONS: Mapping[int, Compute] = dict(
    enumerate((operator.eq, operator.ne, *(2 * (operator.lt, operator.le, operator.gt, operator.ge))))
)
_ARITHMETIC: Mapping[str, Compute] = {
    "arith.addi": operator.add,
    "arith.subi": operator.sub,
    "arith.muli": operator.mul,
    "arith.andi": operator.and_,
    "arith.ori": operator.or_,
    "arith.xori": operator.xor,
    "arith.maxsi": np.maximum,
    "arith.minsi": np.minimum,
}
_SAME_VALUES = ("arith.extsi", "arith.extui", "arith.trunci", "arith.index_cast")
_SAME_MASK = ("broadcast_in_dim", "reshape", "transpose", "convert")

# How often each value occurs in an array of integers.
Occurrences = tuple[tuple[int, int], ...]


class Array(NamedTuple):
    """An operand or a result of a kernel.

    Attributes:
        shape: Shape of the whole array.
        values: Pairs of each distinct value in the array and the number of its occurrences, or None if the values are
            unknown.
    """

    shape: tuple[int, ...]
    values: Occurrences | None = None


# Maps a kernel's program to its operands, followed by its results.
Kernels = Mapping[str, tuple[Array, ...]]


class KernelWork(NamedTuple):
    """Work of a kernel: its matrix products, and the steps of its grid.

    Attributes:
        flops: Number of multiplications and additions of the matrix products.
        padded: Like `flops`, but the contracted dimension and the last dimension of each result count as rounded up to
            multiples of `LANES`, and a product of float32 values counts once for each of its passes.
        steps: Number of grid steps in which the kernel computes products. For a kernel without products, the number of
            all grid steps.
        has_exponentials: Whether the kernel computes exponentials, as attention does between its products.
        unknown_loops: Number of loops with products whose number of iterations is unknown. Each counts as one
            iteration.
    """

    flops: float = 0.0
    padded: float = 0.0
    steps: float = 0.0
    has_exponentials: bool = False
    unknown_loops: int = 0

    def times(self, factor: float) -> "KernelWork":
        """Return the work multiplied by `factor`."""
        return self._replace(flops=factor * self.flops, padded=factor * self.padded, steps=factor * self.steps)


@functools.lru_cache(maxsize=256)
def kernel_work(body: str, arrays: tuple[Array, ...] = ()) -> KernelWork:
    """Return the work of a kernel. If the kernel's program cannot be read, all numbers are 0.

    Args:
        body: The kernel's program: MLIR bytecode or text, encoded in base64.
        arrays: The kernel's operands and results, as in the result of `read_kernels`.
    """
    from jax._src.lib import tpu  # type: ignore[attr-defined]
    from jaxlib.mlir import ir, passmanager

    context = new_context()
    try:
        with context, ir.Location.unknown():
            tpu.register_dialect(context)
            module = ir.Module.parse(base64.b64decode(body))
            if _VERSION in module.operation.attributes:  # Upgrade the program to the version of the installed jaxlib.
                passmanager.PassManager.parse("builtin.module(mosaic-serde{serialize=false})").run(module.operation)
            return _sum(_Kernel(function, module, arrays).work for function in module.body.operations)
    except (ir.MLIRError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        return KernelWork()


def read_kernels(module: Any) -> dict[str, tuple[Array, ...]]:
    """Return the operands and results of every kernel in a StableHLO module, keyed by the kernel's program.

    An operand has known values if it is a constant of integers with few different values, such as the mask of blocks
    of splash attention. If a kernel is called several times, the result counts how often each value occurs in all calls
    together, and has the shapes of the first call.
    """
    kernels: defaultdict[str, list[Any]] = defaultdict(list)
    calls: defaultdict[str, list[Any]] = defaultdict(list)
    for operation in _operations(module.operation):
        if operation.name == "func.call":
            calls[operation.attributes["callee"].value].append(operation)
        elif operation.name == "stablehlo.custom_call" and (body := _body(operation)):
            kernels[body].append(operation)
    constants = _Constants(calls)
    return {
        body: (
            *(
                Array(_shape(operands[0]), _occurrences(map(constants.values_of, operands)))
                for operands in zip(*(call.operands for call in several), strict=False)
            ),
            *(Array(_shape(result)) for result in several[0].results),
        )
        for body, several in kernels.items()
    }


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(getattr(value.type, "shape", ()))  # A token has no shape.


def _body(call: Any) -> str:
    """Return the program of a kernel, or an empty string for any other custom call."""
    if call.attributes["call_target_name"].value != "tpu_custom_call":
        return ""
    try:
        return str(json.loads(call.attributes["backend_config"].value)["custom_call_config"]["body"])
    except (AttributeError, KeyError, TypeError, ValueError):  # Another call with this name.
        return ""


def _occurrences(arrays: Iterable[np.ndarray | None]) -> Occurrences | None:
    counted: Counter[int] = Counter()
    for array in arrays:
        if array is None:
            return None
        values, counts = np.unique(array, return_counts=True)
        counted.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
    return tuple(sorted(counted.items())) if len(counted) <= _MOST_DIFFERENT else None


def _operations(operation: Any) -> Iterator[Any]:
    """Yield every operation inside an operation, at any depth."""
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield inner.operation
                yield from _operations(inner.operation)


@dataclasses.dataclass(frozen=True)
class _Constants:
    """Finds the integer constants that values in a StableHLO module are equal to.

    Attributes:
        calls: The calls of each function of the module.
    """

    calls: Mapping[str, list[Any]]

    def values_of(self, value: Any) -> np.ndarray | None:
        """Return the elements of a value that is constant, or None for any other value."""
        from jaxlib.mlir import ir

        if isinstance(value, ir.BlockArgument):
            return self._of_argument(value.owner, value.arg_number)
        owner = value.owner
        if owner.name == "stablehlo.constant":
            return _array(owner.attributes["value"])
        name = owner.name.removeprefix("stablehlo.")
        if name in _SAME_MASK or name == "sdy.sharding_constraint":
            return self.values_of(owner.operands[0])
        if name == "optimization_barrier":
            return self.values_of(owner.operands[value.result_number])
        return None

    def _of_argument(self, block: Any, number: int) -> np.ndarray | None:
        owner = block.owner.operation
        if owner.name == "func.func":
            calls = self.calls.get(owner.attributes["sym_name"].value, [])
            arrays = [self.values_of(call.operands[number]) for call in calls]
            known = [array.ravel() for array in arrays if array is not None]
            return np.concatenate(known) if known and len(known) == len(arrays) else None
        if owner.name == "stablehlo.while":
            body = owner.regions[1].blocks[0]
            is_kept = body.operations[len(body.operations) - 1].operands[number] == body.arguments[number]
            return self.values_of(owner.operands[number]) if is_kept else None
        return self.values_of(owner.operands[number]) if owner.name == "sdy.manual_computation" else None


def _array(attribute: Any) -> np.ndarray | None:
    from jaxlib.mlir import ir

    if not isinstance(attribute, ir.DenseIntElementsAttr) or not len(attribute):
        return None
    try:
        return np.array([int(attribute[0])]) if attribute.is_splat else np.array(attribute)
    except (TypeError, ValueError):  # An element that is narrower than a byte.
        return None


def padding(size: int, tile: int) -> float:
    """Return the factor by which a dimension grows when it is rounded up to whole tiles.

    Example:
        >>> padding(64, 128), padding(128, 128)
        (2.0, 1.0)
    """
    return math.ceil(size / tile) * tile / size


def _sum(works: Iterable[KernelWork], is_one_step: bool = False) -> KernelWork:
    """Add up the work of several parts of a kernel.

    Args:
        works: The work of each part.
        is_one_step: Whether the parts run in the same steps of the grid. Otherwise, each part has its own steps.
    """
    known = list(works)
    steps = [work.steps for work in known]
    return KernelWork(
        sum(work.flops for work in known),
        sum(work.padded for work in known),
        max(steps, default=0.0) if is_one_step else sum(steps),
        any(work.has_exponentials for work in known),
        sum(work.unknown_loops for work in known),
    )


@dataclasses.dataclass(frozen=True)
class _Kernel:
    """A function of a kernel's program, which runs at every point of a grid.

    Attributes:
        function: The function. Its first arguments are the position in the grid; operands and results follow.
        module: The kernel's program, with the functions that choose the blocks of each array.
        arrays: The kernel's operands and results.
    """

    function: Any
    module: Any
    arrays: tuple[Array, ...]

    @property
    def work(self) -> KernelWork:
        """The work of all steps of the grid.

        A function without a grid only selects blocks of an array, so its number of steps is 0.
        """
        work = self._work(self.function.operation)
        if not self._bounds:
            return work._replace(steps=0.0)
        share = min(work.steps, 1.0) if work.flops else 1.0  # Share of the steps that compute a product.
        return work._replace(steps=share).times(math.prod(self._grid))

    @functools.cached_property
    def _bounds(self) -> tuple[int, ...]:
        """Sizes of the grid's dimensions; negative if the data determine the size."""
        attributes = self.function.attributes
        return tuple(map(int, attributes["iteration_bounds"])) if "iteration_bounds" in attributes else ()

    @functools.cached_property
    def _grid(self) -> tuple[int, ...]:
        """Sizes of the grid's dimensions. If the data determine a size, the number of blocks takes its place."""
        return tuple(
            self._blocks(dimension) if bound < 0 else max(bound, 1) for dimension, bound in enumerate(self._bounds)
        )

    @functools.cached_property
    def _arrays(self) -> tuple[Array, ...]:
        """Operands and results of the function, without the leading operands that are sizes of the grid."""
        return self.arrays[sum(bound < 0 for bound in self._bounds) :]

    def _blocks(self, dimension: int) -> int:
        """Return how many blocks a dimension of the grid steps through.

        The dimension selects blocks along axes of the arrays. The axis with the most blocks counts.
        """
        attributes = self.function.attributes
        functions = {
            function.attributes["sym_name"].value: function
            for function in self.module.body.operations
            if "sym_name" in function.attributes
        }
        prefetched = int(attributes["scalar_prefetch"]) if "scalar_prefetch" in attributes else 0
        largest = 1
        for array, window in zip(self._arrays[prefetched:], attributes["window_params"], strict=False):
            chosen = functions.get(window["transform_indices"].value) if "transform_indices" in window else None
            if chosen is None or "window_bounds" not in window:
                continue
            (block,) = chosen.regions[0].blocks
            indices = block.operations[len(block.operations) - 1].operands
            for index, size, step in zip(indices, array.shape, window["window_bounds"], strict=False):
                if block.arguments[dimension] in _sources(index, with_places=True):
                    largest = max(largest, -(-size // int(step)))
        return largest

    def _work(self, operation: Any) -> KernelWork:
        """Return the work of everything in the body of an operation. A loop counts once for each iteration."""
        if operation.name in _EXPONENTIALS:
            return KernelWork(has_exponentials=True)
        share = self._share(operation.operands[0]) if operation.name == "scf.if" else None
        shares = [1.0, 1.0] if share is None else [share, 1.0 - share]
        total = _sum(
            _sum(
                (
                    _product_work(inner) if inner.operation.name in _PRODUCTS else self._work(inner.operation)
                    for block in region.blocks
                    for inner in block.operations
                ),
                is_one_step=True,
            ).times(share)
            for share, region in zip(shares, operation.regions, strict=False)
        )
        if operation.name not in _LOOPS or not total.flops:
            return total
        trips = _trips(operation) if operation.name == "scf.for" else None
        if trips is None:
            return total._replace(unknown_loops=total.unknown_loops + 1)
        return total.times(trips)._replace(steps=total.steps)

    def _share(self, condition: Any) -> float | None:
        """Return the fraction of cases in which a condition holds.

        If this is unknown, return `_SHARE_OF_MASKED` for a condition that depends on loaded data, and None otherwise.
        """
        sources = list(_sources(condition))
        known = [self._values_of(source) for source in sources]
        if all(known) and math.prod(map(len, known)) <= _MOST_CASES:
            # Arrays with an axis for each source.
            values = np.ix_(*([value for value, _ in each] for each in known))
            counts = np.asarray(math.prod(np.ix_(*([count for _, count in each] for each in known))))
            holds = _evaluate(condition, dict(zip(sources, values, strict=True)))
            if holds is not None:
                return float((counts * (np.asarray(holds) != 0)).sum() / counts.sum())
        is_masked = any("memref" in str(source.type) for source in sources)
        return _SHARE_OF_MASKED if is_masked else None

    def _values_of(self, source: Any) -> Occurrences:
        """Return the values that an argument of the function can have, or () if they are unknown.

        These are the positions along a dimension of the grid, or the values of an operand.
        """
        if source.owner != self.function.regions[0].blocks[0]:
            return ()
        number = source.arg_number - len(self._grid)
        if number < 0:
            return tuple((position, 1) for position in range(self._grid[source.arg_number]))
        return (self._arrays[number].values if number < len(self._arrays) else None) or ()


def _product_work(product: Any) -> KernelWork:
    from jaxlib.mlir import ir

    left, right, result = (ir.ShapedType(operand.type).shape for operand in list(product.operands)[:3])
    batch = result[0] if len(result) > 2 else 1
    contraction = math.isqrt(math.prod(left) * math.prod(right) // (math.prod(result) * batch))
    flops = 2.0 * math.prod(result) * contraction
    attributes = product.attributes
    passes = _FLOAT32_PASSES if "precision" in attributes and "fp32" in str(attributes["precision"]) else 1
    padded = passes * flops * padding(contraction, LANES) * padding(result[-1], LANES)
    return KernelWork(flops, padded, steps=1.0)


def _trips(loop: Any) -> int | None:
    """Return how many times a loop runs, or None if its bounds are not constants."""
    first, last, step = (_evaluate(bound, {}) for bound in list(loop.operands)[:3])
    if first is None or last is None or not step:
        return None
    return max(-(-(last - first) // step), 0)


def _sources(value: Any, with_places: bool = False) -> dict[Any, None]:
    """Return the arguments of functions and loops, and the arrays in memory, that a value is computed from.

    Args:
        value: A value of the kernel's program.
        with_places: Whether to include the sources from which the positions of loads are computed.
    """
    sources: dict[Any, None] = {}
    seen = set()
    rest = [value]
    while rest:
        value = rest.pop()
        if value in seen:
            continue
        seen.add(value)
        owner = value.owner
        if not hasattr(owner, "operands"):
            sources[value] = None
        elif owner.name == "memref.load" and not with_places:
            rest.append(owner.operands[0])
        else:
            rest.extend(owner.operands)
    return sources


def _evaluate(value: Any, known: dict[Any, Any]) -> Any:
    """Evaluate an integer of a kernel's program, or an array of the integer's possible values.

    Return None if it depends on anything but constants and known values.

    Args:
        value: The integer.
        known: Values of arguments. The value of an array stands for every element that is loaded from the array.
            Every evaluated value is added to this mapping.
    """
    if value not in known:
        known[value] = _compute(value, known)
    return known[value]


def _compute(value: Any, known: dict[Any, Any]) -> Any:
    from jaxlib.mlir import ir

    owner = value.owner
    name = getattr(owner, "name", "")
    if name == "memref.load":
        return known.get(owner.operands[0])
    if name == "arith.constant":
        attribute = owner.attributes["value"]
        return int(attribute.value) if isinstance(attribute, ir.IntegerAttr | ir.BoolAttr) else None
    if name in _SAME_VALUES:
        return _evaluate(owner.operands[0], known)
    if name != "arith.cmpi" and name not in _ARITHMETIC:
        return None
    left, right = (_evaluate(operand, known) for operand in owner.operands)
    if left is None or right is None:
        return None
    compute = _ARITHMETIC.get(name) or _COMPARISONS[int(owner.attributes["predicate"])]
    return compute(left, right) + 0  # Also converts the result of a comparison to an integer.
