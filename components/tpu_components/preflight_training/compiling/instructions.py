"""Parses the text of a compiled program, which is scheduled HLO, into instructions."""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Mapping

ELEMENT_BYTES = {
    **dict.fromkeys(("pred", "s4", "u4", "s8", "u8"), 1),
    **dict.fromkeys(("s16", "u16", "bf16", "f16"), 2),
    **dict.fromkeys(("s32", "u32", "f32"), 4),
    **dict.fromkeys(("s64", "u64", "f64", "c64"), 8),
    "c128": 16,
    **dict.fromkeys(("f8e3m4", "f8e4m3", "f8e4m3fn", "f8e4m3b11fnuz", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz"), 1),
    **dict.fromkeys(("f8e8m0fnu", "f4e2m1fn", "s2", "u2"), 1),
}
_IN_PARENTHESES = r"(?:[^()]|\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))*"
_LINE = re.compile(rf"\s+(?:ROOT )?%([\w.\-]+) = (.*?) ([a-z][\w\-]*)\(({_IN_PARENTHESES})\)(.*)")
# Memories by their number in a layout, as in `S(1)`: main memory, and the memory of the vector unit.
HBM = 0
VMEM = 1
HOST = 5


def _bits(layout: str) -> int | None:
    """Return the bits per element in a layout such as `1,0:T(64,128)E(4)`, or None if the layout has no such number."""
    named = re.search(r"E\((\d+)\)", layout)
    return int(named[1]) if named else None


def _space(layout: str) -> int:
    """Return the number of the memory in a layout such as `1,0:T(8,128)S(1)`. Without a number, return HBM."""
    named = re.search(r"S\((\d+)\)", layout)
    return int(named[1]) if named else HBM


@dataclasses.dataclass(frozen=True)
class Array:
    """An array in the result of an instruction.

    Attributes:
        kind: Type of the elements, such as `bf16`.
        dims: Dimensions.
        space: Number of the memory space that holds the array: `HBM` (0), `VMEM` (1), or the number of another memory,
            such as 3 for CMEM on TPU v4.
        bits: Bits per element if the layout specifies them, as for packed int4. None means the bits of `kind`.
    """

    kind: str
    dims: tuple[int, ...]
    space: int = 0
    bits: int | None = None

    @property
    def is_in_hbm(self) -> bool:
        """Whether the array is in the device's main memory, not in memory on the chip."""
        return self.space == HBM

    @property
    def num_bytes(self) -> int:
        """Size in bytes, without the padding of the layout."""
        return math.ceil((self.bits or 8 * ELEMENT_BYTES[self.kind]) * math.prod(self.dims) / 8)


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
    def arrays(self) -> tuple[Array, ...]:
        """Arrays of the result. A tuple has several arrays."""
        arrays = re.findall(r"\b([a-z][a-z0-9]*)\[([\d,]*)\](?:\{([^}]*)\})?", self.shape)
        return tuple(
            Array(kind, tuple(int(d) for d in dims.split(",") if d), _space(layout), _bits(layout))
            for kind, dims, layout in arrays
            if kind in ELEMENT_BYTES
        )

    @property
    def num_bytes(self) -> int:
        """Bytes of the arrays that the instruction returns, without the padding of their layouts."""
        return sum(array.num_bytes for array in self.arrays)

    def attribute(self, pattern: str) -> str:
        """Return the first group of a match of `pattern` in the attributes, or an empty string if there is no match."""
        match = re.search(pattern, self.attributes)
        return match[1] if match else ""

    @property
    def op_name(self) -> str:
        """Path of the operation in the model's program, for example `jit(train_step)/jvp(dense)/dot_general`."""
        return self.attribute(r'op_name="([^"]*)"').replace("\\'", "'")

    def called(self, *attributes: str) -> list[str]:
        """Return the names of the computations that attributes such as `body` refer to."""
        names: list[str] = []
        for attribute in attributes:
            for single, several in re.findall(rf"\b{attribute}=(?:%([\w.\-]+)|\{{([^}}]*)\}})", self.attributes):
                names += [single] if single else re.findall(r"%([\w.\-]+)", several)
        return names


Scope = Mapping[str, Instruction]  # A computation: its instructions by name.


def parse_hlo(text: str) -> tuple[dict[str, dict[str, Instruction]], str]:
    """Parse the text of an HLO module.

    Return its computations, as `{computation: {name: instruction}}`, and the name of its entry computation.
    """
    computations: dict[str, dict[str, Instruction]] = {}
    entry = ""
    current = ""
    for line in _lines(text):
        if not line.startswith(" "):
            header = re.match(r"(ENTRY )?%([\w.\-]+) \(", line)
            if header and line.endswith("{"):
                current = header[2]
                computations[current] = {}
                entry = current if header[1] else entry
        elif current and (match := _LINE.fullmatch(line)):
            computations[current][match[1]] = Instruction(*match.groups())
    return computations, entry


def _lines(text: str) -> Iterator[str]:
    """Yield each instruction and each other line of a module.

    An instruction may contain line breaks, because the attributes of a kernel do.
    """
    for line in re.split(r"\n(?=  |%|ENTRY|\}\s*$|\s*$)", text, flags=re.MULTILINE):
        yield line.replace("\n", " ")
