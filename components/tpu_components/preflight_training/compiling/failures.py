"""Explains the errors of tracing, lowering and compiling a program in one or two sentences."""

import re
from collections.abc import Callable, Sequence

from tpu_components.core.base.errors import message_of
from tpu_components.preflight_training.compiling.outcome import DOES_NOT_COMPILE, DOES_NOT_FIT

_MAX_REASON = 600
_OF_NUMPY = "TracerArrayConversionError"
_DATA_DEPENDENT = (
    "ConcretizationTypeError",
    "NonConcreteBooleanIndexError",
    "TracerBoolConversionError",
    "TracerIntegerConversionError",
    _OF_NUMPY,
)
_UNSUPPORTED = (
    r"MLIR translation rule for primitive '([^']+)' not found for platform tpu",
    r"(\w+) (?:decomposition )?is only implemented on",
    r"(?s)^(?=.*unsupported operations).*No registered '(\w+)' OpKernel",
)

_VMEM = re.compile(r"Scoped allocation with size ([\d.]+)([KMG]) and limit ([\d.]+)([KMG])")


def is_data_dependent(error: BaseException) -> bool:
    """Return whether JAX raised the error because a shape or a branch depends on the values of an array."""
    return bool({kind.__name__ for kind in type(error).__mro__} & set(_DATA_DEPENDENT))


def verdict_of(text: str) -> str:
    """Return the verdict for the message of a failed compilation: `does_not_fit` or `does_not_compile`."""
    return DOES_NOT_FIT if "RESOURCE_EXHAUSTED" in text else DOES_NOT_COMPILE


def needed_bytes(text: str) -> int:
    """Return the bytes of device memory that a program needs, from the error message that says it does not fit.

    Return 0 if the number is unknown.
    """
    needed = re.search(r"required[^(]*\(([\d.]+)([KMG])\)|Used ([\d.]+)([KMG]) of", text)
    if verdict_of(text) != DOES_NOT_FIT or needed is None:
        return 0
    number, unit = filter(None, needed.groups())
    return int(float(number) * {"K": 2**10, "M": 2**20, "G": 2**30}[unit])


def explain(chain: Sequence[BaseException], text: str, operation: Callable[[], str] = str) -> str:
    """Return the reason why a compilation failed, in one or two sentences.

    If the cause is not one of the known causes, the reason is the first line of the error's message.

    Args:
        chain: The error and its causes.
        text: The messages of these errors.
        operation: Function that returns the name of the `keras.ops` operation that failed, or an empty string if it is
            unknown.
    """
    for error in filter(is_data_dependent, chain):
        if type(error).__name__ == _OF_NUMPY:
            return "the step passes an array to NumPy, which needs its values; while a step is traced, arrays have none"
        name = operation()
        return (
            "a shape or a branch depends on the data, but a TPU program is fixed when it is compiled: "
            + (f"ops.{name} needs the values of an array. " if name else "")
            + first_sentence(error)
        )
    if match := _VMEM.search(text):
        return (
            f"a kernel needs {float(match[1]):g} {match[2]}iB of vector memory (VMEM), more than the limit of "
            f"{float(match[3]):g} {match[4]}iB. Use smaller blocks"
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
