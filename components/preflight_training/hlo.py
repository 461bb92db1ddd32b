"""What a compiled TPU program costs, read from its text: cycles by layer, matrix products, collectives.

The text is what `jax.stages.Compiled.as_text()` gives: scheduled HLO in which the compiler has written the cycles that
it expects each fusion to take. Format: https://openxla.org/xla/operation_semantics.
"""

import copy
import dataclasses
import functools
import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from tpu_components.core.models.step.program import LOOP_NAME

SUBLANES = 8  # Rows of a vector register; a column has 128, as the matrix unit does on most chips.
_BYTES = {"pred": 1, "s4": 1, "u4": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "bf16": 2, "f16": 2}
_BYTES |= {"s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8, "c64": 8, "c128": 16}
_COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
)
# Without an estimate of their own, these take no time that counts: names for values, scalars, and transfers that run
# beside the computation.
_FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "partition-id", "replica-id", "after-all"}
_FREE |= {"opt-barrier", "add-dependency", "domain"}
_FREE_CALLS = r'custom_call_target="\w*(?:Bitcast|AllocateBuffer)'
_ROWS_IN_A_WORD = 4  # Rows of bytes lie so many to a word of 32 bits, and are read together.
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
        """The instructions whose results go in."""
        return re.findall(r"%([\w.\-]+)", self.arguments)

    @functools.cached_property
    def arrays(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """The element type and dimensions of each array in the shape; a tuple has several."""
        arrays = re.findall(r"\b([a-z]+\d*)\[([\d,]*)\]", self.shape)
        return tuple((kind, tuple(int(d) for d in dims.split(",") if d)) for kind, dims in arrays if kind in _BYTES)

    @property
    def num_bytes(self) -> int:
        """Bytes of all its arrays, without the padding of their layouts."""
        return sum(_BYTES[kind] * math.prod(dims) for kind, dims in self.arrays)

    @property
    def estimated_cycles(self) -> int | None:
        """The compiler's own estimate, if it wrote one."""
        match = re.search(r'"estimated_cycles":"(\d+)"', self.attributes)
        return int(match[1]) if match else None

    @property
    def op_name(self) -> str:
        """The path of the operation in the model's program, as in `jit(train_step)/jvp(dense)/dot_general`."""
        match = re.search(r'op_name="([^"]*)"', self.attributes)
        return match[1] if match else ""

    def called(self, *attributes: str) -> list[str]:
        """Return the computations that an attribute such as `body` names."""
        names: list[str] = []
        for attribute in attributes:
            for single, several in re.findall(rf"\b{attribute}=(?:%([\w.\-]+)|\{{([^}}]*)\}})", self.attributes):
                names += [single] if single else re.findall(r"%([\w.\-]+)", several)
        return names


@dataclasses.dataclass(frozen=True)
class MatrixProduct:
    """A convolution or matrix product, as the compiler runs it.

    Attributes:
        rows: The batch, or the dimension that takes its place in a gradient.
        contraction: The dimension summed over, which one side of the matrix unit holds.
        columns: The output features, which the other side holds.
        flops: Two for each multiplication and addition, once.
        is_forward: Whether it belongs to the forward pass.
        times: Number of times that it runs in a step.
        groups: Into how many its features are divided; each output feature sums over its group's alone.
    """

    rows: int
    contraction: int
    columns: int
    flops: float
    is_forward: bool
    times: int = 1
    groups: int = 1

    def padded_flops(self, mxu_size: int) -> float:
        """Return what the matrix unit computes for it with both sides filled up to whole tiles."""

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
        cycles: Cycles of everything.
        matrix_cycles: Cycles of the operations that hold a matrix product.
        products: The matrix products.
    """

    cycles: float = 0.0
    matrix_cycles: float = 0.0
    products: list[MatrixProduct] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Collective:
    """A transfer between devices: its kind, the bytes each device gives, and how often it runs in a step.

    What gathers parts, or leaves each device its part of a sum, takes half the time of an all-reduce of the whole, and
    counts as one of half the bytes.
    """

    kind: str
    num_bytes: int
    times: int


@dataclasses.dataclass(frozen=True)
class ProgramCost:
    """The cost of one step of a program on one device.

    Attributes:
        cycles: Cycles of the computation, loops counted by trip.
        guessed_cycles: The part of them without an estimate of the compiler's, taken from the bytes moved.
        layers: Costs by layer.
        collectives: Transfers between devices.
        unknown_loops: Loops whose number of trips could not be read; counted once.
        host_calls: Operations that call the host in every step.
    """

    cycles: float
    guessed_cycles: float
    layers: Mapping[str, LayerCost]
    collectives: tuple[Collective, ...]
    unknown_loops: int
    host_calls: tuple[str, ...]


def parse_hlo(text: str) -> tuple[dict[str, dict[str, Instruction]], str]:
    """Return the computations of a module by name, their instructions by name and in order, and the entry's name."""
    computations: dict[str, dict[str, Instruction]] = {}
    entry, current = "", ""
    for line in text.splitlines():
        if not line.startswith(" "):
            header = re.match(r"(ENTRY )?%([\w.\-]+) \(", line)
            if header and line.endswith("{"):
                current = header[2]
                computations[current] = {}
                entry = current if header[1] else entry
        elif current and (instruction := _parse_line(line)):
            computations[current][instruction.name] = instruction
    return computations, entry


def _parse_line(line: str) -> Instruction | None:
    head = re.match(r"\s+(?:ROOT )?%([\w.\-]+) = ", line)
    if head is None:
        return None
    rest = line[head.end() :]
    end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.index(" ")
    shape, rest = rest[:end], rest[end:].lstrip()
    opening = rest.index("(")
    closing = _closing(rest, opening)
    return Instruction(head[1], shape, rest[:opening], rest[opening + 1 : closing], rest[closing + 1 :])


def _closing(text: str, opening: int) -> int:
    depth = 0
    for match in re.compile(r"[()]").finditer(text, opening):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return match.start()
    raise ValueError(f"Cannot read an HLO line: unbalanced parentheses in {text[:80]!r}.")


def layer_of(op_name: str, layers: Collection[str]) -> str:
    """Return the innermost layer in an operation's path; the optimizer's and other operations have names of their own.

    Args:
        op_name: The path.
        layers: The names of all layers; one that stands there twice is told from its namesake by what it is part of.

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
    for part in parts[:-1] if is_exact else parts:  # JAX's last one is the operation: "add" is no layer called so.
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


def _is_backward(op_name: str) -> bool:
    return "transpose(" in op_name or "gradient_tape" in op_name


def _product(instruction: Instruction, scope: Mapping[str, Instruction]) -> MatrixProduct | None:
    """Return the matrix product that a `convolution` is; TPU programs hold every product in that form."""
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", instruction.attributes)
    kernel = scope.get(instruction.operands[1]) if len(instruction.operands) > 1 else None
    if labels is None or kernel is None or not kernel.arrays or not instruction.arrays:
        return None
    source = scope.get(instruction.operands[0])
    if source is None or not source.arrays:
        return None
    dims = [
        dict(zip(names, operand.arrays[0][1], strict=False))
        for names, operand in zip(labels.groups(), (source, kernel, instruction), strict=True)
    ]
    in_dims, kernel_dims, out_dims = dims
    window = re.search(r"window=\{([^}]*)\}", instruction.attributes)
    spatial = sorted(name for name in out_dims if name.isdecimal())

    def fields(name: str, default: str) -> list[str]:
        match = re.search(rf"\b{name}=([\dx_-]+)", window[1]) if window else None
        return match[1].split("x") if match else [default] * len(spatial)

    steps = (fields(name, "1") for name in ("stride", "lhs_dilate", "rhs_dilate"))
    pairs = math.prod(
        _pairs(in_dims[at], kernel_dims[at], out_dims[at], int(pad.split("_")[0]), *map(int, each))
        for at, pad, *each in zip(spatial, fields("pad", "0_0"), *steps, strict=True)
    )
    contraction, rows, columns = kernel_dims.get("i", 1), out_dims.get("b", 1), out_dims.get("f", 1)
    groups = re.findall(r"(?:feature|batch)_group_count=(\d+)", instruction.attributes)
    return MatrixProduct(
        rows,
        contraction,
        columns,
        2.0 * pairs * rows * columns * contraction,
        not _is_backward(instruction.op_name),
        groups=math.prod(map(int, groups)),
    )


@functools.lru_cache(maxsize=1024)
def _pairs(size: int, kernel: int, out: int, pad: int, stride: int, dilation: int, kernel_dilation: int) -> int:
    """Count outputs × taps along an axis that meet a value of the input: no padding, no zero between values."""
    at = np.arange(out) * stride - pad
    count = 0
    for tap in range(kernel):
        read = at + tap * kernel_dilation
        count += int(((read >= 0) & (read % dilation == 0) & (read // dilation < size)).sum())
    return count


class _Reader:
    def __init__(self, text: str, layers: Collection[str], bytes_per_cycle: float) -> None:
        self.computations, self.entry = parse_hlo(text)
        self._layer_names, self._bytes_per_cycle = layers, bytes_per_cycle
        self.layers: defaultdict[str, LayerCost] = defaultdict(LayerCost)
        self.collectives: list[Collective] = []
        self.guessed = 0.0
        self.unknown_loops = 0
        self.host_calls: list[str] = []

    def add(self, computation: str, times: int) -> None:
        scope = self.computations[computation]
        for instruction in scope.values():
            self._add_instruction(instruction, scope, times)

    def _add_instruction(self, instruction: Instruction, scope: Mapping[str, Instruction], times: int) -> None:
        opcode = instruction.opcode
        if opcode == "while":
            trips = self._trips(instruction.called("condition")[0])
            self.unknown_loops += trips is None
            self.add(instruction.called("body")[0], times * (trips or 1))
        elif opcode == "conditional":
            branches = instruction.called("branch_computations", "true_computation", "false_computation")
            self.add(max(branches, key=self._cycles), times)
        elif opcode == "call":
            self.add(instruction.called("to_apply", "calls")[0], times)
        elif opcode.removesuffix("-start") in (*_COLLECTIVES, "async") or opcode == "call-start":
            # 7x has cores of their own for sums: a call that runs beside the computation.
            self._add_transfers(instruction, scope, times)
        elif opcode in ("send", "recv", "infeed", "outfeed") or _calls_host(instruction):
            self.host_calls.append(instruction.op_name or instruction.name)
        elif opcode not in _FREE and not opcode.endswith(("-start", "-done", "-update")):
            self._add_work(instruction, scope, times)

    def _add_transfers(self, instruction: Instruction, scope: Mapping[str, Instruction], times: int) -> None:
        """Add the collective that an instruction is, or those in what it calls."""
        kind = instruction.opcode.removesuffix("-start")
        if kind in _COLLECTIVES:
            num_bytes = sum(scope[name].num_bytes for name in instruction.operands if name in scope)
            if kind in ("all-gather", "reduce-scatter"):
                num_bytes = max(num_bytes, instruction.num_bytes) // 2
            self.collectives.append(Collective(kind, num_bytes, times))
        elif kind in ("call", "async", "fusion"):
            for name in instruction.called("to_apply", "calls"):
                for inner in self.computations[name].values():
                    self._add_transfers(inner, self.computations[name], times)

    def _add_work(self, instruction: Instruction, scope: Mapping[str, Instruction], times: int) -> None:
        cycles: float | None = instruction.estimated_cycles
        if cycles is None:
            if re.search(_FREE_CALLS, instruction.attributes):
                return
            read = [scope[name].num_bytes for name in instruction.operands if name in scope]
            if self._gathers(instruction):
                read = [min(num_bytes, _ROWS_IN_A_WORD * instruction.num_bytes) for num_bytes in read]
            cycles = (instruction.num_bytes + sum(read)) / self._bytes_per_cycle
            self.guessed += cycles * times
        self._add_transfers(instruction, scope, times)
        products = list(self._products(instruction, scope))
        op_name = products[0][0] if products else instruction.op_name
        layer = self.layers[layer_of(op_name, self._layer_names)]
        layer.cycles += cycles * times
        if products:
            layer.matrix_cycles += cycles * times
            layer.products += [dataclasses.replace(product, times=times) for _, product in products]

    def _gathers(self, instruction: Instruction) -> bool:
        """Return whether it takes some rows of an array, and so does not read all of it."""
        inner = (step for name in instruction.called("calls") for step in self.computations.get(name, {}).values())
        return any(step.opcode in ("gather", "dynamic-slice") for step in (instruction, *inner))

    def _products(
        self, instruction: Instruction, scope: Mapping[str, Instruction]
    ) -> Iterator[tuple[str, MatrixProduct]]:
        if instruction.opcode == "convolution" and (product := _product(instruction, scope)):
            yield instruction.op_name, product
        for name in instruction.called("calls"):
            inner = self.computations.get(name, {})
            for part in inner.values():
                yield from self._products(part, inner)

    def _cycles(self, computation: str) -> float:
        """Return the cycles of a computation, its loops counted by trip."""
        alone = copy.copy(self)
        alone.layers, alone.collectives, alone.host_calls = defaultdict(LayerCost), [], []
        alone.add(computation, 1)
        return sum(layer.cycles for layer in alone.layers.values())

    def _trips(self, condition: str) -> int | None:
        """Return the constant that a loop's counter, which starts at zero, is compared with, perhaps in a fusion."""
        scope = self.computations[condition]
        bodies = [scope] + [self.computations[name] for step in scope.values() for name in step.called("calls")]
        if not any(
            step.opcode == "compare" and "direction=LT" in step.attributes for b in bodies for step in b.values()
        ):
            return None
        constants = [
            int(step.arguments)
            for body in bodies
            for step in body.values()
            if step.opcode == "constant" and step.arguments.isdecimal()
        ]
        return constants[0] if len(constants) == 1 else None


def _calls_host(instruction: Instruction) -> bool:
    target = re.search(r'custom_call_target="([^"]*)"', instruction.attributes)
    return bool(target and ("callback" in target[1].lower() or "host" in target[1].lower()))


def read_cost(text: str, layers: Sequence[str], bytes_per_cycle: float) -> ProgramCost:
    """Add up what one step costs: of a program that runs blocks of them, the body of its loop.

    What is done once for a block of steps, a quarter of a second long, is left out.

    Args:
        text: Scheduled HLO of one device's program.
        layers: Names of the model's layers.
        bytes_per_cycle: Bytes that the device's memory moves in a cycle, for operations without an estimate.
    """
    reader = _Reader(text, layers, bytes_per_cycle)
    entry = reader.computations[reader.entry].values()
    blocks = (step for step in entry if step.opcode == "while" and step.op_name == LOOP_NAME)
    reader.add(next((block.called("body")[0] for block in blocks), reader.entry), 1)
    return ProgramCost(
        cycles=sum(layer.cycles for layer in reader.layers.values()),
        guessed_cycles=reader.guessed,
        layers=dict(reader.layers),
        collectives=tuple(reader.collectives),
        unknown_loops=reader.unknown_loops,
        host_calls=tuple(dict.fromkeys(reader.host_calls)),
    )
