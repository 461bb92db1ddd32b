"""Finds the number of iterations of the loops in a compiled program.

HLO has no counted loop. A loop has a state, which is a tuple, and a condition. The number of iterations is known if the
condition compares an integer in the state with a constant, and each iteration adds a constant to this integer.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tpu_components.preflight_training.compiling.instructions import Instruction, Scope

_SAME_VALUE = {"copy", "bitcast", "copy-start", "copy-done"}
_MIRRORED = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE", "NE": "NE"}


@dataclasses.dataclass(frozen=True)
class Trips:
    """Number of iterations of a loop.

    Attributes:
        count: Number of iterations, or the largest number if `is_most`.
        is_most: Whether the loop may end earlier, because its condition joins several conditions with `and`.
    """

    count: int
    is_most: bool = False


class _Place(NamedTuple):
    """A computation and, if it is inside a fusion, the fusion and the `_Place` that contains the fusion."""

    scope: Scope
    fusion: Instruction | None = None
    around: "_Place | None" = None


class _Number(NamedTuple):
    """An integer in a loop: `constant` plus, if `element` is not None, the loop's state at this index."""

    constant: int
    element: int | None = None


class Loops:
    """Counts the iterations of the loops of a program.

    Args:
        computations: The program's computations by name.
    """

    def __init__(self, computations: Mapping[str, Scope]) -> None:
        self._computations = computations
        self._around: dict[int, tuple[Instruction, Scope]] = {}  # By ID of a body or a condition.
        for scope in computations.values():
            for step in scope.values():
                for name in step.called("body", "condition") if step.opcode == "while" else ():
                    self._around[id(computations[name])] = step, scope

    def trips(self, loop: Instruction, scope: Scope) -> Trips | None:
        """Return the number of iterations of a loop, or None if it is unknown.

        Args:
            loop: The loop.
            scope: The computation that contains the loop.
        """
        condition = _Place(self._computations[loop.called("condition")[0]])
        parts = list(self._parts(_root(condition.scope).name, condition))
        counts = [self._count(test, place, loop, scope) for test, place in parts]
        known = [count for count in counts if count is not None]
        return Trips(min(known), is_most=len(parts) > 1) if known else None

    def _parts(self, name: str, place: _Place) -> Iterator[tuple[Instruction, _Place]]:
        """Yield the operands of the condition `name` (a and b and …), each with the computation that contains it."""
        source = self._source(name, place)
        if source is not None and source[0].opcode == "and":
            for part in source[0].operands:
                yield from self._parts(part, source[1])
        elif source is not None:
            yield source

    def _count(self, test: Instruction, place: _Place, loop: Instruction, scope: Scope) -> int | None:
        """Return the number of iterations until a comparison no longer holds, or None if it is unknown."""
        direction = test.attribute(r"direction=(\w+)")
        if test.opcode != "compare" or direction not in _MIRRORED:
            return None
        counter, limit = (self._number(name, place) for name in test.operands)
        condition = self._computations[loop.called("condition")[0]]
        if counter is not None and self._constant(counter, condition) is not None:  # As in `10 > counter`.
            counter, limit = limit, counter
            direction = _MIRRORED[direction]
        end = self._constant(limit, condition)
        if counter is None or counter.element is None or end is None:
            return None
        start = self._constant(self._initial(loop, scope, counter.element), scope)
        change = self._next(loop, counter.element)
        if start is None or change is None or change.element != counter.element:
            return None
        return _iterations(end - start - counter.constant, change.constant, direction)

    def _initial(self, loop: Instruction, scope: Scope, element: int) -> _Number | None:
        """Return the value of an element of a loop's state before the loop, or None if it is unknown."""
        source = self._source(loop.operands[0], _Place(scope))
        return self._number(source[0].operands[element], source[1]) if source and source[0].opcode == "tuple" else None

    def _next(self, loop: Instruction, element: int) -> _Number | None:
        """Return the value of an element of a loop's state after an iteration, or None if it is unknown."""
        body = _Place(self._computations[loop.called("body")[0]])
        source = self._source(_root(body.scope).name, body)
        return self._number(source[0].operands[element], source[1]) if source and source[0].opcode == "tuple" else None

    def _constant(self, number: _Number | None, scope: Scope) -> int | None:
        """Return the value of a number if it is constant, otherwise None.

        An element of a loop's state is constant if no iteration changes it.
        """
        if number is None or number.element is None:
            return None if number is None else number.constant
        if id(scope) not in self._around:
            return None
        loop, around = self._around[id(scope)]
        if self._next(loop, number.element) != _Number(0, number.element):
            return None
        initial = self._constant(self._initial(loop, around, number.element), around)
        return None if initial is None else initial + number.constant

    def _number(self, name: str, place: _Place) -> _Number | None:
        """Return the number that an operation computes, or None if it is unknown."""
        source = self._source(name, place)
        if source is None:
            return None
        step, around = source
        if step.opcode == "constant" and re.fullmatch(r"-?\d+", step.arguments):
            return _Number(int(step.arguments))
        if step.opcode == "get-tuple-element":
            return _Number(0, int(step.attribute(r"index=(\d+)")))
        if step.opcode not in ("add", "subtract"):
            return None
        left, right = (self._number(operand, around) for operand in step.operands)
        if left is None or right is None:
            return None
        if step.opcode == "subtract":
            return _Number(left.constant - right.constant, left.element) if right.element is None else None
        if left.element is not None and right.element is not None:
            return None
        element = right.element if left.element is None else left.element
        return _Number(left.constant + right.constant, element)

    def _source(self, name: str, place: _Place) -> tuple[Instruction, _Place] | None:
        """Return the operation that computes a value, and the computation that contains the operation.

        Copies, tuples and fusions are skipped.

        For an element of a loop's state, return the operation that reads the element. Return None for an element of a
        tuple of unknown origin.
        """
        step = place.scope.get(name)
        if step is None:
            return None
        if step.opcode in _SAME_VALUE:
            return self._source(step.operands[0], place)
        if step.opcode == "fusion":
            inner = _Place(self._computations[step.called("calls")[0]], step, place)
            return self._source(_root(inner.scope).name, inner)
        if step.opcode == "parameter" and place.fusion is not None and place.around is not None:
            return self._source(place.fusion.operands[int(step.arguments)], place.around)
        if step.opcode == "get-tuple-element":
            whole = self._source(step.operands[0], place)
            if whole is not None and whole[0].opcode == "tuple":
                return self._source(whole[0].operands[int(step.attribute(r"index=(\d+)"))], whole[1])
            return (step, whole[1]) if whole is not None and whole[0].opcode == "parameter" else None
        return step, place


def _root(scope: Scope) -> Instruction:
    return list(scope.values())[-1]


def _iterations(distance: int, step: int, direction: str) -> int | None:
    """Return how many steps a counter takes until its comparison with a limit fails.

    Args:
        distance: The limit minus the first value of the counter.
        step: Number that each iteration adds to the counter.
        direction: The comparison of the counter with the limit, such as `LT`.

    Returns:
        The number, or None if the counter moves away from the limit, or may step over it.

    Example:
        >>> _iterations(10, 3, "LT"), _iterations(-10, -1, "GE"), _iterations(10, 3, "NE")
        (4, 11, None)
    """
    if direction == "NE":
        return distance // step if step and distance % step == 0 and distance // step >= 0 else None
    is_rising = direction in ("LT", "LE")
    if not step or is_rising != (step > 0):
        return None
    last = {"LE": 1, "GE": -1}.get(direction, 0)
    return max(-(-(distance + last) // step), 0)
