"""Explains the errors of tracing, lowering and compiling a program in one or two sentences."""

import re
from collections.abc import Callable, Sequence

from tpu_components.core.base.errors import message_of
from tpu_components.preflight_training.compiling.outcome import DOES_NOT_COMPILE, DOES_NOT_FIT

_MAX_REASON = 600
_DATA_DEPENDENT = (
    "ConcretizationTypeError",
    "NonConcreteBooleanIndexError",
    "TracerBoolConversionError",
    "TracerIntegerConversionError",
    "TracerArrayConversionError",
)
_UNSUPPORTED = (
    r"MLIR translation rule for primitive '([^']+)' not found for platform tpu",
    r"(\w+) (?:decomposition )?is only implemented on",
    r"(?s)^(?=.*unsupported operations).*No registered '(\w+)' OpKernel",
)


def is_data_dependent(error: BaseException) -> bool:
    """Return whether JAX raised the error because a shape or a branch depends on the values of an array."""
    return bool({kind.__name__ for kind in type(error).__mro__} & set(_DATA_DEPENDENT))


def verdict_of(text: str) -> str:
    """Return the verdict on a program whose compilation failed with this text."""
    return DOES_NOT_FIT if "RESOURCE_EXHAUSTED" in text else DOES_NOT_COMPILE


def needed_bytes(text: str) -> int:
    """Return how many bytes of a device's memory a program needs that does not fit, from the error; 0 if unknown."""
    needed = re.search(r"required[^(]*\(([\d.]+)([KMG])\)|Used ([\d.]+)([KMG]) of", text)
    if verdict_of(text) != DOES_NOT_FIT or needed is None:
        return 0
    number, unit = filter(None, needed.groups())
    return int(float(number) * {"K": 2**10, "M": 2**20, "G": 2**30}[unit])


def explain(chain: Sequence[BaseException], text: str, operation: Callable[[], str] = str) -> str:
    """Return why a compilation failed, in one or two sentences.

    The compiler's words are used if they are readable.

    Args:
        chain: The error and its causes.
        text: Their messages.
        operation: Returns the name of the operation of `keras.ops` that failed. Empty if there is none.
    """
    for error in filter(is_data_dependent, chain):
        name = operation()
        return (
            "a shape or a branch depends on the data, but a TPU program is fixed when it is compiled: "
            + (f"ops.{name} needs the values of an array. " if name else "")
            + first_sentence(error)
        )
    for pattern in _UNSUPPORTED:
        if match := re.search(pattern, text):
            return f"the operation {match[1]!r} is not implemented on TPU"
    return first_sentence(chain[0])


def first_sentence(error: BaseException) -> str:
    """Return the first line of an error's message, without a status code such as RESOURCE_EXHAUSTED."""
    lines = message_of(error).strip().splitlines()
    first = " ".join(lines[0].split()) if lines else repr(error)
    return re.sub(r"^[A-Z_]+: ", "", first)[:_MAX_REASON]
