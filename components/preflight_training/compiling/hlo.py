"""Cost of a compiled TPU program by layer: cycles, matrix products and collectives.

It is read from the text of `jax.stages.Compiled.as_text()`: scheduled HLO with the compiler's estimate of the cycles of
each fusion, which no API of XLA gives by operation. Format: https://openxla.org/xla/operation_semantics.
"""

import dataclasses
import functools
import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from tpu_components.core.models.step.program import LOOP_NAME

SUBLANES = 8  # Rows of a vector register; it has 128 columns, like the matrix unit of most chips.
_BYTES = {
    **dict.fromkeys(("pred", "s4", "u4", "s8", "u8"), 1),
    **dict.fromkeys(("s16", "u16", "bf16", "f16"), 2),
    **dict.fromkeys(("s32", "u32", "f32"), 4),
    **dict.fromkeys(("s64", "u64", "f64", "c64"), 8),
    "c128": 16,
}
_COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
)
# Operations without an estimate that take no time: names of values, scalars, and transfers beside the computation.
_FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "partition-id", "replica-id", "after-all"}
_FREE |= {"opt-barrier", "add-dependency", "domain"}
_ROWS_IN_A_WORD = 4  # A word of 32 bits holds bytes of this many rows, which are read together.
_IN_PARENTHESES = r"(?:[^()]|\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))*"
_LINE = re.compile(rf"\s+(?:ROOT )?%([\w.\-]+) = (.*?) ([a-z][\w\-]*)\(({_IN_PARENTHESES})\)(.*)")
OPTIMIZER, OTHER = "optimizer", "loss, metrics and the rest"


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of HLO: `name = shape opcode(arguments), attributes`."""

    name: str
    shape: str
    opcode: str
    arguments: str
    attributes: str

    @property
    def operands(self) -> list[str]:
        """Names of the instructions whose results are the arguments."""
        return re.findall(r"%([\w.\-]+)", self.arguments)

    @functools.cached_property
    def arrays(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Element type and dimensions of each array in the shape; a tuple has several."""
        arrays = re.findall(r"\b([a-z]+\d*)\[([\d,]*)\]", self.shape)
        return tuple((kind, tuple(int(d) for d in dims.split(",") if d)) for kind, dims in arrays if kind in _BYTES)

    @property
    def num_bytes(self) -> int:
        """Bytes of all arrays, without the padding of their layouts."""
        return sum(_BYTES[kind] * math.prod(dims) for kind, dims in self.arrays)

    def attribute(self, pattern: str) -> str:
        """Return the first group of a pattern in the attributes; empty if the pattern does not match."""
        match = re.search(pattern, self.attributes)
        return match[1] if match else ""

    @property
    def op_name(self) -> str:
        """Path of the operation in the model's program, for example `jit(train_step)/jvp(dense)/dot_general`."""
        return self.attribute(r'op_name="([^"]*)"')

    def called(self, *attributes: str) -> list[str]:
        """Return the names of the computations in attributes such as `body`."""
        names: list[str] = []
        for attribute in attributes:
            for single, several in re.findall(rf"\b{attribute}=(?:%([\w.\-]+)|\{{([^}}]*)\}})", self.attributes):
                names += [single] if single else re.findall(r"%([\w.\-]+)", several)
        return names


Scope = Mapping[str, Instruction]  # A computation: its instructions by name.


@dataclasses.dataclass(frozen=True)
class MatrixProduct:
    """A convolution or matrix product in the compiled program.

    Attributes:
        rows: The batch, or the dimension that takes its place in a gradient.
        contraction: The dimension that is summed over, on one side of the matrix unit.
        columns: The output features, on the other side of the matrix unit.
        flops: Operations of one run; a multiplication and an addition count as two.
        is_forward: Whether the product belongs to the forward pass.
        times: Number of times that it runs in a step.
        groups: Number of feature groups; each output feature depends only on the input features of its group.
    """

    rows: int
    contraction: int
    columns: int
    flops: float
    is_forward: bool
    times: int = 1
    groups: int = 1

    def padded_flops(self, mxu_size: int) -> float:
        """Return the operations of the matrix unit, with both sides padded to whole tiles."""

        def filled(size: int, tile: int) -> float:
            return -(-size // tile) * tile / size

        return (
            self.flops
            * filled(self.contraction, mxu_size)
            * filled(self.columns, mxu_size)
            * filled(self.rows, SUBLANES)
        )


@dataclasses.dataclass
class LayerCost:
    """The cost of a layer's operations in one step on one device, forward and backward.

    Attributes:
        cycles: Cycles of all operations.
        matrix_cycles: Cycles of the operations that contain a matrix product.
        products: The matrix products.
    """

    cycles: float = 0.0
    matrix_cycles: float = 0.0
    products: list[MatrixProduct] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class ProgramCost:
    """The cost of one step of a program on one device.

    Attributes:
        cycles: Cycles of the computation, with every iteration of its loops.
        guessed_cycles: Part of `cycles` for which the compiler has no estimate; computed from the bytes moved.
        layers: Costs by layer.
        collectives: For each collective, the bytes that a device sends and the number of runs in a step.
        unknown_loops: Number of loops whose trip count is unknown; their operations count once.
        host_calls: Operations that call the host in every step.
    """

    cycles: float
    guessed_cycles: float
    layers: Mapping[str, LayerCost]
    collectives: tuple[tuple[int, int], ...]
    unknown_loops: int
    host_calls: tuple[str, ...]


def parse_hlo(text: str) -> tuple[dict[str, dict[str, Instruction]], str]:
    """Return the computations of a module by name, as instructions by name; and the name of the entry computation."""
    computations: dict[str, dict[str, Instruction]] = {}
    entry, current = "", ""
    for line in text.splitlines():
        if not line.startswith(" "):
            header = re.match(r"(ENTRY )?%([\w.\-]+) \(", line)
            if header and line.endswith("{"):
                current = header[2]
                computations[current] = {}
                entry = current if header[1] else entry
        elif current and (match := _LINE.fullmatch(line)):
            computations[current][match[1]] = Instruction(*match.groups())
    return computations, entry


def layer_of(op_name: str, layers: Collection[str]) -> str:
    """Return the innermost layer in an operation's path, `OPTIMIZER`, or `OTHER` for an operation of no layer.

    Args:
        op_name: The path.
        layers: Names of all layers. If a name occurs twice, the result begins with the name of the parent layer.

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


def _product(instruction: Instruction, scope: Scope) -> MatrixProduct | None:
    """Return the matrix product of a `convolution`; every matrix product in a TPU program is one. None if unknown."""
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", instruction.attributes)
    parts = [*map(scope.get, instruction.operands[:2]), instruction]
    shapes = [part.arrays[0][1] for part in parts if part is not None and part.arrays]
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
    )


@functools.lru_cache(maxsize=1024)
def _pairs(size: int, kernel: int, out: int, pad: int, stride: int, dilation: int, kernel_dilation: int) -> int:
    """Count, along an axis, the pairs of output and kernel tap that read an input, not padding or dilation zeros."""
    at = np.arange(out) * stride - pad
    count = 0
    for tap in range(kernel):
        read = at + tap * kernel_dilation
        count += int(((read >= 0) & (read % dilation == 0) & (read // dilation < size)).sum())
    return count


class _Program:
    """Computations of a program, and the operations that they run."""

    def __init__(self, text: str, bytes_per_cycle: float) -> None:
        self.computations, self.entry = parse_hlo(text)
        self._bytes_per_cycle = bytes_per_cycle

    def operations(self, computation: str, times: int = 1) -> Iterator[tuple[Instruction, Scope, int]]:
        """Yield each operation with the computation around it and its number of runs.

        Loops and calls are replaced by their operations, a conditional by those of its longest branch. A loop of
        unknown length is yielded too, before its operations, which count once.
        """
        scope = self.computations[computation]
        for instruction in scope.values():
            inner, repetitions = "", 1
            if instruction.opcode == "while":
                inner, trips = instruction.called("body")[0], self._trips(instruction.called("condition")[0])
                repetitions = trips or 1
                if trips is None:
                    yield instruction, scope, times
            elif instruction.opcode == "conditional":
                branches = instruction.called("branch_computations", "true_computation", "false_computation")
                inner = max(branches, key=self._branch_cycles)
            elif instruction.opcode == "call":
                inner = instruction.called("to_apply", "calls")[0]
            if inner:
                yield from self.operations(inner, times * repetitions)
            else:
                yield instruction, scope, times

    def _branch_cycles(self, computation: str) -> float:
        return sum(
            times * self.cycles(instruction, scope)[0]
            for instruction, scope, times in self.operations(computation)
            if _takes_time(instruction)
        )

    def cycles(self, instruction: Instruction, scope: Scope) -> tuple[float, bool]:
        """Return the cycles of an operation, and whether they are guessed from the bytes that it moves."""
        if estimated := instruction.attribute(_CYCLES):
            return float(estimated), False
        read = [scope[name].num_bytes for name in instruction.operands if name in scope]
        inner = (step for name in instruction.called("calls") for step in self.computations.get(name, {}).values())
        if any(step.opcode in ("gather", "dynamic-slice") for step in (instruction, *inner)):
            # The operation reads only some rows of the array.
            read = [min(num_bytes, _ROWS_IN_A_WORD * instruction.num_bytes) for num_bytes in read]
        return (instruction.num_bytes + sum(read)) / self._bytes_per_cycle, True

    def collectives(self, instruction: Instruction, scope: Scope, times: int) -> Iterator[tuple[int, int]]:
        """Yield bytes and number of runs of a collective, or of the collectives in the computations that it calls.

        An all-gather or reduce-scatter takes half the time of an all-reduce of the same array. It counts as an
        all-reduce of half the bytes.
        """
        kind = instruction.opcode.removesuffix("-start")
        if kind in _COLLECTIVES:
            num_bytes = sum(scope[name].num_bytes for name in instruction.operands if name in scope)
            if kind in ("all-gather", "reduce-scatter"):
                num_bytes = max(num_bytes, instruction.num_bytes) // 2
            yield num_bytes, times
        elif kind in ("call", "async", "fusion"):
            for name in instruction.called("to_apply", "calls"):
                for inner in self.computations[name].values():
                    yield from self.collectives(inner, self.computations[name], times)

    def products(self, instruction: Instruction, scope: Scope) -> Iterator[tuple[str, MatrixProduct]]:
        """Yield name and matrix product of a convolution, or of the convolutions in the computations that it calls."""
        if instruction.opcode == "convolution" and (product := _product(instruction, scope)):
            yield instruction.op_name, product
        for name in instruction.called("calls"):
            inner = self.computations.get(name, {})
            for part in inner.values():
                yield from self.products(part, inner)

    def _trips(self, condition: str) -> int | None:
        """Return the constant that a loop's counter, which starts at zero, is compared with; None if unknown."""
        scope = self.computations[condition]
        fused = (self.computations[name] for step in scope.values() for name in step.called("calls"))
        steps = [step for body in (scope, *fused) for step in body.values()]
        if not any(step.opcode == "compare" and "direction=LT" in step.attributes for step in steps):
            return None
        constants = [step.arguments for step in steps if step.opcode == "constant" and step.arguments.isdecimal()]
        return int(constants[0]) if len(constants) == 1 else None


_CYCLES, _TARGET = r'"estimated_cycles":"(\d+)"', r'custom_call_target="([^"]*)"'


def _is_transfer(instruction: Instruction) -> bool:
    # TPU 7x has separate cores for collectives: calls of these cores run in parallel with the computation.
    opcode = instruction.opcode
    return opcode.removesuffix("-start") in (*_COLLECTIVES, "async") or opcode == "call-start"


def _calls_host(instruction: Instruction) -> bool:
    target = instruction.attribute(_TARGET)
    return instruction.opcode in ("send", "recv", "infeed", "outfeed") or bool(re.search("(?i)callback|host", target))


def _takes_time(instruction: Instruction) -> bool:
    """Return whether an operation takes computation time; transfers and calls of the host do not."""
    opcode = instruction.opcode
    is_free = opcode in _FREE or opcode == "while" or opcode.endswith(("-start", "-done", "-update"))
    if is_free or _is_transfer(instruction) or _calls_host(instruction):
        return False
    is_name = re.match(r"\w*(Bitcast|AllocateBuffer)", instruction.attribute(_TARGET))
    return not is_name or bool(instruction.attribute(_CYCLES))


def read_cost(text: str, layers: Sequence[str], bytes_per_cycle: float) -> ProgramCost:
    """Return the cost of one step. For a program that runs blocks of steps, this is the cost of the loop's body.

    Operations outside of the loop are left out: they run once per block, which takes a quarter of a second.

    Args:
        text: Scheduled HLO of one device's program.
        layers: Names of the model's layers.
        bytes_per_cycle: Bytes that the device's memory moves in a cycle, for operations without an estimate.
    """
    program = _Program(text, bytes_per_cycle)
    entry = program.computations[program.entry].values()
    blocks = (step.called("body")[0] for step in entry if step.opcode == "while" and step.op_name == LOOP_NAME)
    costs: defaultdict[str, LayerCost] = defaultdict(LayerCost)
    collectives: list[tuple[int, int]] = []
    host_calls, unknown_loops, guessed_cycles = [], 0, 0.0
    for instruction, scope, times in program.operations(next(blocks, program.entry)):
        if instruction.opcode == "while":
            unknown_loops += 1
        elif _is_transfer(instruction):
            collectives += program.collectives(instruction, scope, times)
        elif _calls_host(instruction):
            host_calls.append(instruction.op_name or instruction.name)
        elif _takes_time(instruction):
            cycles, is_guessed = program.cycles(instruction, scope)
            guessed_cycles += cycles * times * is_guessed
            collectives += program.collectives(instruction, scope, times)
            products = list(program.products(instruction, scope))
            op_name = products[0][0] if products else instruction.op_name
            layer = costs[layer_of(op_name, layers)]
            layer.cycles += cycles * times
            layer.matrix_cycles += cycles * times * bool(products)
            layer.products += [dataclasses.replace(product, times=times) for _, product in products]
    return ProgramCost(
        cycles=sum(layer.cycles for layer in costs.values()),
        guessed_cycles=guessed_cycles,
        layers=dict(costs),
        collectives=tuple(collectives),
        unknown_loops=unknown_loops,
        host_calls=tuple(dict.fromkeys(host_calls)),
    )
