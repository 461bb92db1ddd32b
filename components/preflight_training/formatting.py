"""Figures and verdicts as people read them."""

import math
from collections.abc import Mapping

UNKNOWN = "?"
VERDICTS = {
    "fits": "fits",
    "does_not_fit": "does not fit",
    "does_not_compile": "does not compile",
    "timed_out": "was not compiled in time",
    "out_of_memory": "was not compiled in this machine's memory",
    "crashed": "crashed the compiler",
}
_TIMES = {"h": 3600.0, "min": 60.0, "s": 1.0, "ms": 1e-3, "µs": 1e-6}
_SIZES = {"GiB": 2.0**30, "MiB": 2.0**20, "KiB": 2.0**10, "B": 1.0}
_LEAST_USD = 0.0001


def decimals(value: float) -> int:
    """Return how many decimals show three digits that matter; at most four."""
    return min(max(0, 2 - math.floor(math.log10(value))), 4) if value > 0 else 0


def number(value: float) -> str:
    """Format a number with three digits that matter.

    Example:
        >>> number(1234.5), number(0.04567)
        ('1,234', '0.0457')
    """
    return f"{value:,.{decimals(value)}f}"


def _in_units(value: float, units: Mapping[str, float]) -> str:
    """Format a quantity in the largest unit of which there is at least one."""
    unit = next((unit for unit, size in units.items() if value >= size), list(units)[-1])
    return f"{number(value / units[unit])} {unit}"


def time(seconds: float) -> str:
    """Return a time in its unit.

    Example:
        >>> time(0.0123), time(4000)
        ('12.3 ms', '1.11 h')
    """
    return _in_units(seconds, _TIMES)


def time_interval(low: float, high: float, seconds: float) -> str:
    """Return the interval in which a time is expected, in the unit of that time; empty where both ends read alike.

    Example:
        >>> time_interval(0.3, 0.6, seconds=0.41), time_interval(0.9, 1.3, seconds=1.1), time_interval(2, 2, seconds=2)
        ('300–600', '0.900–1.30', '')
    """
    size = next((size for size in _TIMES.values() if seconds >= size), 1e-6)
    return _interval(number(low / size), number(high / size))


def dollars_interval(low: float, high: float) -> str:
    """Return the interval in which a price is expected; empty where both ends read alike.

    Example:
        >>> dollars_interval(0.0026, 0.0045), dollars_interval(0.00001, 0.00002)
        ('0.0026–0.0045', '')
    """
    return _interval(dollars(low, sign=""), dollars(high, sign=""))


def _interval(low: str, high: str) -> str:
    return f"{low}–{high}" if low != high else ""


def memory(num_bytes: float) -> str:
    """Return a size in its unit.

    Example:
        >>> memory(3 * 2**30)
        '3.00 GiB'
    """
    return _in_units(num_bytes, _SIZES)


def percent(share: float) -> str:
    """Return a share; only what is exactly nothing or all reads 0% or 100%.

    Example:
        >>> percent(0.004), percent(0.25)
        ('<1%', '25%')
    """
    if 0 < share < 0.01:
        return "<1%"
    if 0.99 < share < 1:
        return ">99%"
    return f"{share:.0%}"


def dollars(usd: float, sign: str = "$") -> str:
    """Format an amount in cents; below ten with two digits that matter, so that the smallest runs can be compared.

    Example:
        >>> dollars(12.3), dollars(0.00345)
        ('$12.30', '$0.0034')
    """
    if 0 < usd < _LEAST_USD:
        return f"<{sign}{_LEAST_USD}"
    places = 2 if usd < 1000 else 0
    if 0 < usd < 0.1:
        places = 1 - math.floor(math.log10(usd))
    return f"{sign}{usd:,.{places}f}"
