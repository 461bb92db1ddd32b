"""Reads the cost of a compiled TPU program, layer by layer.

The cost consists of the cycles, arithmetic and memory traffic of each operation, and of the collectives. It is read
from the result of `jax.stages.Compiled.as_text()`: scheduled HLO with the compiler's estimate of the cycles of each
fusion. No API of XLA returns these estimates by operation. Format: https://openxla.org/xla/operation_semantics.
"""

import dataclasses
import enum
import functools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from types import MappingProxyType

import numpy as np

from tpu_components.core.models.training_step.program import LOOP_NAME
from tpu_components.preflight_training.compiling.instructions import (
    ELEMENT_BYTES,
    HOST,
    VMEM,
    Instruction,
    Scope,
    parse_hlo,
)
from tpu_components.preflight_training.compiling.kernels import Array as KernelArray
from tpu_components.preflight_training.compiling.kernels import Kernels, KernelWork, kernel_work, padding
from tpu_components.preflight_training.compiling.loops import Loops

SUBLANES = 8  # Rows of a vector register; it has 128 columns, like the matrix unit of most chips.
# The matrix units of some generations multiply these faster than bfloat16.
_NARROW = {kind for kind, size in ELEMENT_BYTES.items() if size == 1} - {"pred"}
_COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)
# Operations without an estimate that take no time: names of values, scalars, and transfers beside the computation.
_FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "partition-id", "replica-id", "after-all"}
_FREE |= {"opt-barrier", "add-dependency", "domain"}
_SPARSE_CORE = "sparsecore"
_FEW_VALUES = 1 << 15  # In a few microseconds, the vector unit does many operations on each.
_HINTS = ("AssumeGatherIndicesInBound", "GatherScatterIndicesBitpacked")  # Custom calls that compute nothing.
_WORD_BYTES = 4  # A word of 32 bits holds values of several rows if they are smaller; they are read together.
OPTIMIZER, OTHER = "optimizer", "loss, metrics and the rest"
UNNAMED = "operations without a name"


class Kind(enum.StrEnum):
    """Kind of an operation. It determines how the operation's time is computed."""

    PRODUCT = "products"
    CONVOLUTION = "convolutions"
    KERNEL = "kernels"  # The compiler gives no cycles for them.
    PRODUCT_KERNEL = "kernels of products"  # Without exponentials between the products.
    INDEXING = "indexing"
    OTHER = "other"


_INDEXING = {"gather", "scatter", "sort"}
# Operations that a fusion performs only for the values of the result that are used.
_SAME_VALUES = {"bitcast", "copy", "reshape", "transpose"}
# Copies in parallel with the computation. Their shape begins with two arrays, the source and the destination.
_COPIES = ("copy-start", "slice-start", "dynamic-slice-start")


@dataclasses.dataclass(frozen=True)
class MatrixProduct:
    """A convolution or matrix product in the compiled program.

    Attributes:
        rows: Size of the batch dimension, or of the dimension that takes its place in a gradient.
        contraction: Size of the dimension that is summed over, which lies along one side of the matrix unit.
        columns: Number of output features, which lie along the other side of the matrix unit.
        flops: Floating-point operations of one execution. A multiplication and an addition count as two.
        is_forward: Whether the product belongs to the forward pass.
        times: Number of executions in a step.
        groups: Number of feature groups. Each output feature depends only on the input features of its group.
        is_narrow: Whether the product multiplies values of at most 8 bits.
    """

    rows: int
    contraction: int
    columns: int
    flops: float
    is_forward: bool
    times: int = 1
    groups: int = 1
    is_narrow: bool = False

    def padded_flops(self, mxu_size: int) -> float:
        """Return the floating-point operations of one execution, with all dimensions padded to whole tiles.

        This is the work that a matrix unit with `mxu_size` rows and columns does.
        """
        return (
            self.flops
            * padding(self.contraction, mxu_size)
            * padding(self.columns, mxu_size)
            * padding(self.rows, SUBLANES)
        )


@dataclasses.dataclass(frozen=True)
class OperationCost:
    """The cost of similar operations in one step on one device.

    Attributes:
        kind: Kind of the operations.
        cycles: The compiler's estimate of the cycles of one execution, or 0 if it has no estimate, as for a kernel.
        flops: Floating-point operations of the matrix products in one execution.
        num_bytes: Bytes that one execution moves to and from the device's main memory.
        times: Number of executions in a step.
        filled: For a kernel with matrix products, the share of the matrix units' tiles that is filled with data and not
            with padding. 1 for all other operations.
        rows: Rows that one execution adds, one by one, to an array in main memory, as in an embedding's gradient.
        steps: Steps of a kernel's grid in one execution.
    """

    kind: Kind
    cycles: float = 0.0
    flops: float = 0.0
    num_bytes: float = 0.0
    times: int = 1
    filled: float = 1.0
    rows: float = 0
    steps: float = 0

    @property
    def is_guessed(self) -> bool:
        """Whether the time is only guessed from memory traffic, because neither cycles nor FLOPs are known."""
        return not self.cycles and not self.flops


@dataclasses.dataclass
class LayerCost:
    """The cost of a layer's operations in one step on one device, forward and backward.

    Attributes:
        operations: Cost of the operations. Equal operations are counted together.
        products: The matrix products, except those of Pallas kernels.
    """

    operations: list[OperationCost] = dataclasses.field(default_factory=list)
    products: list[MatrixProduct] = dataclasses.field(default_factory=list)

    @property
    def cycles(self) -> float:
        """The compiler's estimate of the cycles of all operations that have an estimate."""
        return sum(operation.cycles * operation.times for operation in self.operations)


@dataclasses.dataclass(frozen=True)
class Collective:
    """Communication between devices in one step.

    Attributes:
        opcode: HLO's operation, such as `all-reduce`.
        num_bytes: Bytes of the whole array on a device: the result of an all-gather, or the argument of a
            reduce-scatter.
        group: Number of devices that take part together, or 0 for all devices of the program.
        times: Number of executions in a step.
        slices: Number of slices that exchange the array over the data-centre network. One device of each slice takes
            part. It is 1 for communication within a slice.
    """

    opcode: str
    num_bytes: int
    group: int = 0
    times: int = 1
    slices: int = 1


@dataclasses.dataclass(frozen=True)
class ProgramCost:
    """The cost of one step of a program on one device.

    Attributes:
        layers: Cost of each layer, by name.
        collectives: Communication between devices.
        unknown_loops: Number of loops whose trip count is unknown. Their operations count once.
        early_loops: Number of loops that may end early. Their operations count as if the loop reached its largest trip
            count.
        copied_bytes: Bytes moved to and from the device's main memory by copies that run in parallel with the
            computation.
        host_bytes: Bytes moved between the device and its host by copies that run in parallel with the computation.
        host_calls: Operations that call the host in every step.
        unestimated: Kinds of operations, such as `sort`, for which the compiler reports neither cycles nor FLOPs, and
            whose time cannot be predicted from memory traffic.
    """

    layers: Mapping[str, LayerCost]
    collectives: tuple[Collective, ...] = ()
    unknown_loops: int = 0
    host_calls: tuple[str, ...] = ()
    early_loops: int = 0
    copied_bytes: int = 0
    host_bytes: int = 0
    unestimated: tuple[str, ...] = ()

    @property
    def operations(self) -> list[OperationCost]:
        """Costs of the operations of all layers."""
        return [operation for layer in self.layers.values() for operation in layer.operations]

    @property
    def has_narrow_products(self) -> bool:
        """Whether a matrix product multiplies values of at most 8 bits."""
        return any(product.is_narrow for layer in self.layers.values() for product in layer.products)

    @property
    def has_estimate(self) -> bool:
        """Whether the cycles or the arithmetic of at least one operation are known."""
        return any(not operation.is_guessed for operation in self.operations)

    @property
    def cycles(self) -> float:
        """The compiler's estimate of the cycles of all operations that have an estimate."""
        return sum(layer.cycles for layer in self.layers.values())


def layer_of(op_name: str, layers: Collection[str]) -> str:
    """Return the innermost layer in an operation's path.

    Return `OPTIMIZER` for the optimizer, or `OTHER` for an operation that belongs to no layer.

    Args:
        op_name: Path of the operation.
        layers: Names of all layers. If the layer's name occurs twice, the result begins with the name of its parent.

    Example:
        >>> layer_of("jit(train_step)/transpose(jvp(dense))/dot_general", {"dense"})
        'dense'
        >>> layer_of("jit(train_step)/jvp(block_1)/query/dot_general", ["block", "block_1", "query", "query"])
        'block_1/query'
        >>> layer_of("gradient_tape/my_model_1/dense_1/MatMul", {"dense"})
        'dense'
    """
    # TensorFlow numbers every use of a name: dense_1 is dense, dense_1_2 is dense_1. JAX does not.
    is_exact = op_name.startswith("jit(")
    innermost = OTHER
    parts = op_name.removeprefix(f"{LOOP_NAME}/body/").split("/")
    for part in parts[:-1] if is_exact else parts:  # In JAX, the last part is the operation: "add" is not a layer.
        name = re.sub(r"^(?:\w+\()*|\)*$", "", part)
        plain = re.sub(r"_\d+$", "", name)
        known = plain if not is_exact and plain in layers else name
        if known in layers:
            # Two blocks may each have a layer of that name.
            is_repeated = innermost != OTHER and sum(layer == known for layer in layers) > 1
            innermost = f"{innermost}/{known}" if is_repeated else known
        elif plain.lower() in ("adam", "adamw", "sgd"):
            return OPTIMIZER
    return innermost


# Parts of a path that JAX adds for its own constructs, not for a scope of the program.
_CONSTRUCTS = re.compile(
    r"(?:p?jit\(.*\)|while|body|cond|scan|checkpoint|remat\d?|rematted_computation|closed_call|core_call|shard_map|"
    r"eval_jaxpr|branch_\d+_fun|custom_(?:jvp|vjp)_call(?:_jaxpr)?|jvp\(\)|transpose\(\)|vmap\(\))?"
)
_TRANSFORMATIONS = re.compile(r"^(?:jvp|vjp|transpose|vmap|pmap|linearize)\((.*)\)$")


def scope_of(op_name: str, levels: int) -> str:
    """Return the outermost scopes in an operation's path, or the operation's name if it is in no scope.

    `jax.named_scope` opens a scope. Flax, Haiku and others open one for each module.

    Args:
        op_name: Path of the operation.
        levels: Largest number of scopes to return.

    Example:
        >>> scope_of("jit(train_step)/transpose(jvp(CNN))/Dense_0/dot_general", 2)
        'CNN/Dense_0'
        >>> scope_of("jit(step)/jvp(jit(relu))/max", 2)
        'max'
    """
    *path, operation = op_name.split("/")
    scopes = []
    for part in path:
        while match := _TRANSFORMATIONS.match(part):
            part = match[1]
        if not _CONSTRUCTS.fullmatch(part):
            scopes.append(part)
    return "/".join(scopes[:levels]) or operation or UNNAMED


def _product(instruction: Instruction, scope: Scope) -> MatrixProduct | None:
    """Return the matrix product of a `convolution`, or None if it is unknown.

    Every matrix product in a TPU program is a convolution.
    """
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", instruction.attributes)
    parts = [*map(scope.get, instruction.operands[:2]), instruction]
    shapes = [part.arrays[0].dims for part in parts if part is not None and part.arrays]
    if labels is None or len(shapes) != 3:
        return None
    in_dims, kernel_dims, out_dims = (
        dict(zip(names, shape, strict=False)) for names, shape in zip(labels.groups(), shapes, strict=True)
    )
    window = instruction.attribute(r"window=\{([^}]*)\}")
    spatial = sorted(name for name in out_dims if name.isdecimal())

    def fields(name: str, default: str) -> list[str]:
        match = re.search(rf"\b{name}=([\dx_-]+)", window)
        return match[1].split("x") if match else [default] * len(spatial)

    steps = (fields(name, "1") for name in ("stride", "lhs_dilate", "rhs_dilate"))
    pairs = math.prod(
        _pairs(in_dims[at], kernel_dims[at], out_dims[at], int(pad.split("_")[0]), *map(int, each))
        for at, pad, *each in zip(spatial, fields("pad", "0_0"), *steps, strict=True)
    )
    contraction, rows, columns = kernel_dims.get("i", 1), out_dims.get("b", 1), out_dims.get("f", 1)
    groups = re.findall(r"(?:feature|batch)_group_count=(\d+)", instruction.attributes)
    op_name = instruction.op_name
    return MatrixProduct(
        rows,
        contraction,
        columns,
        2.0 * pairs * rows * columns * contraction,
        is_forward="transpose(" not in op_name and "gradient_tape" not in op_name,
        groups=math.prod(map(int, groups)),
        is_narrow=all(part is not None and part.arrays[0].kind in _NARROW for part in parts[:2]),
    )


@functools.lru_cache(maxsize=1024)
def _pairs(size: int, kernel: int, out: int, pad: int, stride: int, dilation: int, kernel_dilation: int) -> int:
    """Count the pairs of output position and kernel tap along an axis that read an input value.

    Pairs that read a zero of padding or dilation do not count.
    """
    at = np.arange(out) * stride - pad
    count = 0
    for tap in range(kernel):
        read = at + tap * kernel_dilation
        count += int(((read >= 0) & (read % dilation == 0) & (read // dilation < size)).sum())
    return count


class _Program:
    """A parsed program: its computations, and the operations that they run."""

    def __init__(self, text: str, kernels: Kernels) -> None:
        self.computations, self.entry = parse_hlo(text)
        self._kernels = kernels
        self._offloaded = self._called_on_sparse_cores()
        self.loops = Loops(self.computations)

    def operations(self, computation: str, times: int = 1) -> Iterator[tuple[Instruction, Scope, int]]:
        """Yield each operation, the computation that contains it, and the number of its executions.

        Loops and calls are replaced by their operations. A conditional is replaced by the operations of its longest
        branch. The operations of a loop of unknown length count once. Those of a loop that may end early count as often
        as the limit allows. Both kinds of loop are also yielded themselves, before their operations.
        """
        scope = self.computations[computation]
        for instruction in scope.values():
            inner, repetitions = "", 1
            if instruction.opcode == "while":
                inner = instruction.called("body")[0]
                trips = self.loops.trips(instruction, scope)
                repetitions = 1 if trips is None else trips.count
                if trips is None or trips.is_most:
                    yield instruction, scope, times
            elif instruction.opcode == "conditional":
                branches = instruction.called("branch_computations", "true_computation", "false_computation")
                inner = max(branches, key=self._branch_weight)
            elif instruction.opcode == "call" or self._runs_beside(instruction, scope):
                inner = instruction.called("to_apply", "calls")[0]
            if inner:
                yield from self.operations(inner, times * repetitions)
            else:
                yield instruction, scope, times

    def _runs_beside(self, instruction: Instruction, scope: Scope) -> bool:
        """Return whether an operation starts computation on other cores of the chip, such as a sparse core's gather."""
        return instruction.opcode == "call-start" and not any(self.collectives(instruction, scope))

    def _branch_weight(self, computation: str) -> tuple[float, float]:
        """Return the cycles of a branch, and the bytes that it moves, to find the longest branch."""
        costs = [
            (times, self.cost(instruction, scope)[0])
            for instruction, scope, times in self.operations(computation)
            if _takes_time(instruction)
        ]
        return sum(times * cost.cycles for times, cost in costs), sum(times * cost.num_bytes for times, cost in costs)

    def cost(self, instruction: Instruction, scope: Scope) -> tuple[OperationCost, list[tuple[str, MatrixProduct]]]:
        """Return the cost of one execution of an operation, and its matrix products with their paths in the program."""
        named = list(self.products(instruction, scope))
        flops = sum(product.flops for _, product in named)
        inside = {step.opcode for step in self._inside(instruction)}
        cycles = int(instruction.attribute(_CYCLES) or 0)
        known = float(cycles) if cycles < _UNKNOWN_CYCLES else 0.0
        filled = 1.0
        steps = 0.0
        if kernel := self.kernel(instruction):
            flops = kernel.flops
            steps = kernel.steps
            kind = Kind.PRODUCT_KERNEL if flops and not kernel.has_exponentials else Kind.KERNEL
            filled = flops / kernel.padded if flops else 1.0
        elif named and not known:
            kind = Kind.KERNEL  # One of the compiler's own.
        elif named:
            kind = Kind.CONVOLUTION if re.search("(?i)conv", named[0][0].rpartition("/")[2]) else Kind.PRODUCT
        else:
            kind = Kind.INDEXING if inside & _INDEXING else Kind.OTHER
        rows = 0 if known else self._added_rows(instruction, scope)
        traffic = self._traffic(instruction, scope)
        return OperationCost(kind, known, flops, traffic, filled=filled, rows=rows, steps=steps), named

    def kernel(self, instruction: Instruction) -> KernelWork | None:
        """Return the work of an operation if it is a kernel, otherwise None.

        The shapes of a kernel's operands come from the StableHLO module. The compiler's own kernels are not in this
        module, so the shapes of their operands come from the call.
        """
        body = instruction.attribute(r'"body":"([^"]*)"')
        return kernel_work(body, self._kernels.get(body) or _called_with(instruction)) if body else None

    def without_estimate(self, instruction: Instruction, scope: Scope, cost: OperationCost) -> str:
        """Return the kind of an operation whose time is unknown, or an empty string if the time can be estimated.

        Memory traffic alone does not predict the time of a sort, of a routine of the compiler such as a Cholesky
        decomposition, of a kernel without products, or of rows that are read and written in on-chip memory.
        Operations on few values count as estimated.
        """
        operands = (scope[name] for name in instruction.operands if name in scope)
        arrays = (array for step in (instruction, *operands) for array in step.arrays)
        if not cost.is_guessed or cost.rows or sum(math.prod(array.dims) for array in arrays) < _FEW_VALUES:
            return ""
        inside = {step.opcode for step in self._inside(instruction)}
        target = instruction.attribute(_TARGET)
        if instruction.opcode == "custom-call":
            return "kernels without products" if cost.kind is Kind.KERNEL else "" if target in _HINTS else target
        if "sort" in inside:
            return "sort"
        return " and ".join(sorted(inside & _INDEXING)) if not cost.num_bytes else ""

    def _called_on_sparse_cores(self) -> set[int]:
        """Return the identities of the computations that run on SparseCores, beside the vector and matrix units."""
        instructions = [step for scope in self.computations.values() for step in scope.values()]
        names = {
            name
            for step in instructions
            if f'async_execution_thread="{_SPARSE_CORE}"' in step.attributes
            for name in step.called("to_apply", "calls")
        }
        reached: set[str] = set()
        while names:
            reached |= names
            inside = [step for name in names for step in self.computations.get(name, {}).values()]
            names = {name for step in inside for name in step.called("to_apply", "calls")} - reached
        return {id(self.computations[name]) for name in reached if name in self.computations}

    def _added_rows(self, instruction: Instruction, scope: Scope) -> int:
        """Return how many rows the scatters of an operation add one by one.

        Rows of arrays in the vector unit's own memory do not count, nor do scatters on SparseCores.
        """
        if id(scope) in self._offloaded:
            return 0
        if instruction.opcode == "scatter":
            if all(array.space == VMEM for array in instruction.arrays):
                return 0
            indices = scope.get(instruction.operands[len(instruction.operands) // 2])
            dims = indices.arrays[0].dims if indices is not None else ()
            vector = int(instruction.attribute(r"index_vector_dim=(\d+)") or len(dims))
            return math.prod(dims[:vector] + dims[vector + 1 :])
        inner = (self.computations.get(name, {}) for name in instruction.called("calls"))
        return sum(self._added_rows(step, body) for body in inner for step in body.values())

    def _inside(self, instruction: Instruction) -> Iterator[Instruction]:
        """Yield an operation and, for a fusion, the operations in it."""
        yield instruction
        for name in instruction.called("calls"):
            for step in self.computations.get(name, {}).values():
                yield from self._inside(step)

    def _traffic(self, instruction: Instruction, scope: Scope) -> int:
        """Return how many bytes an operation reads from main memory and writes to main memory.

        If the operation reads or writes a slice of an array, only the slice counts.
        """
        operands = [scope.get(name) for name in instruction.operands]
        read = sum(
            self._read(instruction, position, array.num_bytes)
            for position, operand in enumerate(operands)
            if operand is not None
            for array in operand.arrays[:1]
            if array.is_in_hbm
        )
        return read + self._written(instruction, scope)

    def _read(self, user: Instruction, position: int, whole: int) -> int:
        """Return how many bytes an operation reads from the operand at `position`, which has `whole` bytes."""
        if user.opcode in ("dynamic-slice", "slice", "gather") and position == 0:
            together = max(_WORD_BYTES // ELEMENT_BYTES[user.arrays[0].kind], 1) if user.opcode == "gather" else 1
            return min(whole, together * user.num_bytes)
        if user.opcode in ("dynamic-update-slice", "scatter") and position == 0:
            return 0  # The slice is written in place.
        if user.opcode != "fusion":
            return whole
        num_bytes, is_unchanged = self._read_inside(user, position, whole)
        return whole if is_unchanged else num_bytes

    def _read_inside(self, fusion: Instruction, position: int, whole: int) -> tuple[int, bool]:
        """Return how many bytes a fusion reads from one operand, and whether it returns the operand unchanged.

        A copied, reshaped or transposed operand counts as unchanged.

        Args:
            fusion: The fusion.
            position: Index of the operand.
            whole: Size of the operand, in bytes.
        """
        inner = self.computations.get(fusion.called("calls")[0], {})
        names = {step.name for step in inner.values() if step.opcode == "parameter" and step.arguments == str(position)}
        total = 0
        for step in inner.values():  # Operands come before their users.
            for at, name in enumerate(step.operands):
                if name not in names:
                    continue
                if step.opcode in _SAME_VALUES:
                    names.add(step.name)
                elif step.opcode == "fusion":
                    num_bytes, is_unchanged = self._read_inside(step, at, whole)
                    total += num_bytes
                    if is_unchanged:
                        names.add(step.name)
                else:
                    total += self._read(step, at, whole)
        is_unchanged = next(reversed(inner), "") in names
        return min(total, whole), is_unchanged

    def _written(self, instruction: Instruction, scope: Scope) -> int:
        """Return the bytes that an operation writes to main memory."""
        results = [(instruction, scope)]
        if instruction.opcode == "fusion":
            root, inner = self._source(instruction, scope)
            names = root.operands if root.opcode == "tuple" else []
            results = [self._source(inner[name], inner) for name in names if name in inner] or [(root, inner)]
        total = 0
        for position, array in enumerate(instruction.arrays):
            result, around = results[min(position, len(results) - 1)]
            at = {"dynamic-update-slice": 1, "scatter": 2}.get(result.opcode)
            update = None if at is None else around.get(result.operands[at])
            if array.is_in_hbm:
                total += array.num_bytes if update is None else min(array.num_bytes, update.num_bytes)
        return total

    def _source(self, instruction: Instruction, scope: Scope) -> tuple[Instruction, Scope]:
        """Return the operation that computes an instruction's result, and the computation that contains this operation.

        Bitcasts are skipped. The last operation inside a fusion computes the fusion's result.
        """
        while True:
            if instruction.opcode == "bitcast" and instruction.operands and instruction.operands[0] in scope:
                instruction = scope[instruction.operands[0]]
            elif instruction.opcode == "fusion" and (inner := self.computations.get(instruction.called("calls")[0])):
                instruction = next(reversed(inner.values()))
                scope = inner
            else:
                return instruction, scope

    def collectives(
        self, instruction: Instruction, scope: Scope, is_fused: bool = False
    ) -> Iterator[tuple[str, Collective]]:
        """Yield (channel, collective) for an operation that is a collective, and for each collective that it calls."""
        kind = instruction.opcode.removesuffix("-start")
        if _is_between_slices(instruction):
            if kind == "send":
                num_bytes = sum(scope[name].num_bytes for name in instruction.operands if name in scope)
                yield "", _between_slices(instruction, num_bytes)  # Its channels are numbered apart.
        elif kind in _COLLECTIVES:
            kind = _fused_kind(instruction, scope) if is_fused else kind
            sent = instruction.operands[:1] if kind == "ragged-all-to-all" else instruction.operands
            num_bytes = sum(scope[name].num_bytes for name in sent if name in scope)
            group = _group_size(instruction.attributes)
            if kind == "all-gather":  # Of one or several arrays.
                num_bytes = max(num_bytes * group, *(array.num_bytes for array in instruction.arrays))
            yield instruction.attribute(r"channel_id=(\d+)"), Collective(kind, num_bytes, group)
        elif kind in ("call", "async", "fusion"):
            for name in instruction.called("to_apply", "calls"):
                for inner in self.computations.get(name, {}).values():
                    yield from self.collectives(inner, self.computations[name], kind == "fusion")

    def products(self, instruction: Instruction, scope: Scope) -> Iterator[tuple[str, MatrixProduct]]:
        """Yield (path, matrix product) for an operation that is a convolution, and for each convolution that it calls.

        HLO expresses matrix products on a TPU as convolutions.
        """
        if instruction.opcode == "convolution" and (product := _product(instruction, scope)):
            yield instruction.op_name, product
        for name in instruction.called("calls"):
            inner = self.computations.get(name, {})
            for part in inner.values():
                yield from self.products(part, inner)


_UNKNOWN_CYCLES = 2**63 - 1  # Instead of an estimate, for example of an operation of a sparse core.
_CYCLES, _TARGET = r'"estimated_cycles":"(\d+)"', r'custom_call_target="([^"]*)"'
_OPERANDS = r"operand_layout_constraints=\{((?:[^{}]|\{[^{}]*\})*)\}"


def _called_with(kernel: Instruction) -> tuple[KernelArray, ...]:
    """Return the operands and results of a kernel, from the shapes in its call. Their values are unknown."""
    shapes = re.findall(r"\[([\d,]*)\]", kernel.attribute(_OPERANDS))
    operands = [tuple(int(size) for size in shape.split(",") if size) for shape in shapes]
    return tuple(map(KernelArray, [*operands, *(array.dims for array in kernel.arrays)]))


def _fused_kind(collective: Instruction, scope: Scope) -> str:
    """Return the opcode of the collective that a fusion performs in effect, such as `reduce-scatter`.

    The compiler writes a reduce-scatter as an all-reduce and a slice of its result, and an all-gather as an all-reduce
    of arrays that are zero outside of a slice. The chips only send slices.
    """

    def source(name: str) -> Instruction | None:
        step = scope.get(name)
        return source(step.operands[0]) if step is not None and step.opcode in _SAME_VALUES else step

    if collective.opcode != "all-reduce":
        return collective.opcode.removesuffix("-start")
    argument = source(collective.operands[0])
    if argument is not None and argument.opcode == "dynamic-update-slice":
        return "all-gather"
    slices = (step for step in scope.values() if step.opcode == "dynamic-slice")
    return "reduce-scatter" if any(source(step.operands[0]) is collective for step in slices) else "all-reduce"


def _group_size(attributes: str) -> int:
    """Return the number of devices in each group of a collective.

    Return 0, for all devices, if the number is not specified.

    Example:
        >>> _group_size("replica_groups={{0,1},{2,3}}"), _group_size("replica_groups=[2,4]<=[8]")
        (2, 4)
        >>> _group_size("replica_groups=mesh['data'=8,'model'=2] {'model'}")
        2
    """
    if match := re.search(r"replica_groups=\{\{([\d,]+)\}", attributes):
        return len(match[1].split(","))
    if match := re.search(r"replica_groups=\[[\d,]*?(\d+)\]<=", attributes):
        return int(match[1])
    if match := re.search(r"replica_groups=\w*mesh\w*\[([^\]]*)\][^{]*\{([^}]*)\}", attributes):
        sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", match[1])}
        # A part of an axis is written with its own size: 'data':(1)2.
        parts = re.findall(r"'([^']+)'(?::\(\d+\)(\d+))?", match[2])
        return math.prod(int(part) if part else sizes.get(name, 1) for name, part in parts)
    return 0


def _is_between_slices(instruction: Instruction) -> bool:
    """Return whether an operation sends or receives data over the data-centre network, which the hosts do."""
    return instruction.opcode in ("send", "recv") and "_xla_megascale_transfer_type" in instruction.attributes


def _between_slices(send: Instruction, num_bytes: int) -> Collective:
    """Return the collective over several slices that a `send` begins.

    The compiler divides a collective over all devices into one in each slice and one between the slices.

    Args:
        send: The operation.
        num_bytes: Size of the data that a device sends.
    """
    kind = send.attribute(r'_xla_megascale_transfer_type="(\w+)"').lower().replace("_", "-")
    # The devices of a group, such as {1,2}x{0:7} for those of slices 1 and 2, or {100000,200000} for their first ones.
    members = re.findall(r"\d+", send.attribute(r'_xla_megascale_target="?\{+([^}]*)\}'))
    slices = len({int(member[:-5] or member) for member in members})
    whole = num_bytes * slices if kind == "all-gather" else num_bytes
    return Collective("collective-permute" if kind == "one-to-one" else kind, whole, slices=slices)


def _is_transfer(instruction: Instruction) -> bool:
    # TPU 7x has separate cores for collectives: calls of these cores run in parallel with the computation.
    opcode = instruction.opcode
    is_collective = opcode.removesuffix("-start") in (*_COLLECTIVES, "async") or opcode == "call-start"
    return is_collective or _is_between_slices(instruction)


def _calls_host(instruction: Instruction) -> bool:
    if _is_between_slices(instruction):
        return False
    target = instruction.attribute(_TARGET)
    return instruction.opcode in ("send", "recv", "infeed", "outfeed") or bool(re.search("(?i)callback|host", target))


def _takes_time(instruction: Instruction) -> bool:
    """Return whether an operation takes computation time.

    Transfers and calls of the host do not.
    """
    opcode = instruction.opcode
    is_free = opcode in _FREE or opcode == "while" or opcode.endswith(("-start", "-done", "-update"))
    if is_free or _is_transfer(instruction) or _calls_host(instruction):
        return False
    is_name = re.match(r"\w*(Bitcast|AllocateBuffer)", instruction.attribute(_TARGET))
    return not is_name or bool(instruction.attribute(_CYCLES))


def read_cost(text: str, name_layer: Callable[[str], str], kernels: Kernels = MappingProxyType({})) -> ProgramCost:
    """Return the cost of one step of a compiled program.

    If the program runs blocks of steps in a loop, this is the cost of the loop's body. Operations outside of this loop
    are left out, because they run only once per block, and a block takes a quarter of a second.

    Args:
        text: Scheduled HLO of one device's program.
        name_layer: Function that returns the name of an operation's layer from the operation's path.
        kernels: Operands and results of kernels, from `read_kernels`.
    """
    program = _Program(text, kernels)
    entry = program.computations[program.entry].values()
    blocks = (step.called("body")[0] for step in entry if step.opcode == "while" and step.op_name == LOOP_NAME)
    operations: defaultdict[str, Counter[OperationCost]] = defaultdict(Counter)
    products: defaultdict[str, list[MatrixProduct]] = defaultdict(list)
    collectives: Counter[Collective] = Counter()
    channels: set[tuple[str, int]] = set()
    host_calls = []
    unestimated = set()
    unknown_loops = early_loops = copied_bytes = host_bytes = 0
    for instruction, scope, times in program.operations(next(blocks, program.entry)):
        if instruction.opcode == "while":
            is_unknown = program.loops.trips(instruction, scope) is None
            unknown_loops += is_unknown
            early_loops += not is_unknown
        elif _calls_host(instruction):
            host_calls.append(instruction.op_name or instruction.name)
        elif _is_transfer(instruction) or _takes_time(instruction):
            sent = list(program.collectives(instruction, scope))
            for channel, collective in sent:
                # A collective that runs beside computation is repeated in each fusion that does a part of it.
                if not channel or (channel, id(scope)) not in channels:
                    collectives[collective] += times
                channels.add((channel, id(scope)))
            if _is_transfer(instruction):
                continue
            cost, named = program.cost(instruction, scope)
            kernel = program.kernel(instruction)
            unknown_loops += kernel.unknown_loops if kernel else 0
            unestimated.add(program.without_estimate(instruction, scope, cost))
            if sent and not cost.cycles:
                continue
            layer = name_layer(named[0][0] if named else instruction.op_name)
            operations[layer][cost] += times
            products[layer] += [dataclasses.replace(product, times=times) for _, product in named]
        elif instruction.opcode in _COPIES:
            ends = instruction.arrays[:2]
            num_bytes = times * min(end.num_bytes for end in ends)
            copied_bytes += num_bytes * sum(end.is_in_hbm for end in ends)
            host_bytes += num_bytes * any(end.space == HOST for end in ends)
    return ProgramCost(
        layers={
            layer: LayerCost([dataclasses.replace(cost, times=times) for cost, times in costs.items()], products[layer])
            for layer, costs in operations.items()
        },
        collectives=tuple(dataclasses.replace(sent, times=times) for sent, times in collectives.items()),
        unknown_loops=unknown_loops,
        host_calls=tuple(dict.fromkeys(host_calls)),
        early_loops=early_loops,
        copied_bytes=copied_bytes,
        host_bytes=host_bytes,
        unestimated=tuple(sorted(unestimated - {""})),
    )
