"""Human-readable metrics, durations, sizes in bytes, percentages, prices and lists of names."""

import math
from collections.abc import Mapping, Sequence

_TIMES = {"h": 3600.0, "min": 60.0, "s": 1.0, "ms": 1e-3, "µs": 1e-6}
_SIZES = {"TiB": 2.0**40, "GiB": 2.0**30, "MiB": 2.0**20, "KiB": 2.0**10, "B": 1.0}
_LEAST_USD = 0.0001
_SHOWN = 5
_DIGITS, _MAX_DIGITS = 4, 17  # Any two different numbers differ in 17 significant digits.


def decimals(value: float) -> int:
    """Return the number of decimal places that a value needs for three significant digits, limited to 0 to 4."""
    return min(max(0, 2 - math.floor(math.log10(value))), 4) if value > 0 else 0


def number(value: float) -> str:
    """Format a number with three significant digits, but with at most four decimal places.

    Digits before the decimal point are never dropped, so a number from 1000 on has more than three.

    Example:
        >>> number(1234.5), number(0.04567)
        ('1,234', '0.0457')
    """
    return f"{value:,.{decimals(value)}f}"


def _in_units(value: float, units: Mapping[str, float]) -> str:
    """Format a quantity in the largest unit in which its value is at least 1."""
    unit = next((unit for unit, size in units.items() if value >= size), list(units)[-1])
    return f"{number(value / units[unit])} {unit}"


def time(seconds: float) -> str:
    """Format a duration in h, min, s, ms or µs.

    Example:
        >>> time(0.0123), time(4000)
        ('12.3 ms', '1.11 h')
    """
    return _in_units(seconds, _TIMES)


def time_within(seconds: float, low: float, high: float) -> str:
    """Format a duration and its interval in the same unit.

    The interval is left out if both of its ends look the same.

    Example:
        >>> time_within(0.41, 0.3, 0.6), time_within(1.1, 0.9, 1.3), time_within(2, 2, 2)
        ('410 ms (300–600)', '1.10 s (0.900–1.30)', '2.00 s')
    """
    size = next((size for size in _TIMES.values() if seconds >= size), 1e-6)
    return _with_interval(time(seconds), number(low / size), number(high / size))


def dollars_within(usd: float, low: float, high: float) -> str:
    """Format a price and its interval.

    The interval is left out if both of its ends look the same.

    Example:
        >>> dollars_within(0.0035, 0.0026, 0.0045), dollars_within(0.00001, 0.00001, 0.00002)
        ('$0.0035 (0.0026–0.0045)', '<$0.0001')
    """
    return _with_interval(dollars(usd), dollars(low, sign=""), dollars(high, sign=""))


def _with_interval(text: str, low: str, high: str) -> str:
    return f"{text} ({low}–{high})" if low != high else text


def byte_size(num_bytes: float) -> str:
    """Format a number of bytes in B, KiB, MiB, GiB or TiB.

    Example:
        >>> byte_size(2_048), byte_size(3 * 2**30)
        ('2.00 KiB', '3.00 GiB')
    """
    return _in_units(num_bytes, _SIZES)


def percent(share: float, digits: int = 0) -> str:
    """Format a fraction as a percentage. Only exactly 0 and 1 become `0%` and `100%`.

    Args:
        share: Fraction, usually in [0, 1].
        digits: Number of decimal places of the percentage.

    Example:
        >>> percent(0.004), percent(0.25), percent(0.99999, 2)
        ('<1%', '25%', '>99.99%')
    """
    least = 10.0 ** -(digits + 2)
    if 0 < share < least / 2:
        return f"<{least:.{digits}%}"
    if 1 - least / 2 <= share < 1:
        return f">{1 - least:.{digits}%}"
    return f"{share:.{digits}%}"


def level(share: float, digits: int = 4) -> str:
    """Format a fraction, such as a confidence level, as a percentage with at most `digits` significant digits.

    Example:
        >>> level(0.95), level(0.9995), level(0.0123, 2)
        ('95%', '99.95%', '1.2%')
    """
    return f"{100 * share:.{digits}g}%"


def dollars(usd: float, sign: str = "$") -> str:
    """Format a price with two decimals.

    Prices below $0.10 have two significant digits, prices from $1,000 have no decimals, and positive prices below
    $0.0001 become `<$0.0001`.

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


def show(value: float, *beside: float) -> str:
    """Format a metric with four decimals, or more if needed to tell it from the values in `beside`.

    Digits are added until the text differs from the text of every different value in `beside`. Values closer to 0 than
    0.001 are formatted with significant digits instead of decimals: an error metric in a large unit can be this small.

    Example:
        >>> show(0.9), show(0.00001234), show(0.90001, 0.9), show(float("nan"))
        ('0.9000', '1.234e-05', '0.90001', 'not a number')
    """
    others = [other for other in beside if other != value]
    distinct = (n for n in range(_DIGITS, _MAX_DIGITS) if all(_show(value, n) != _show(other, n) for other in others))
    return _show(value, next(distinct, _MAX_DIGITS))


def _show(value: float, digits: int) -> str:
    if math.isnan(value):
        return "not a number"
    return f"{value:.{digits}g}" if 0 < abs(value) < 1e-3 else f"{value:.{digits}f}"


def plain_number(value: float) -> str:
    """Format a number with four significant digits, for example `0.04821` or `1.234e+04`."""
    return f"{value:.4g}".replace("-", "\N{MINUS SIGN}")


def signed(value: float, digits: int, sign: str = "+") -> str:
    """Format a number with `digits` decimals. A number above 0 gets a plus sign, unless `sign` is `-`."""
    return f"{value:{sign}.{digits}f}".replace("-", "\N{MINUS SIGN}")


def quoted(items: Sequence[str]) -> str:
    """Return the first five items in quotation marks and the number of the remaining items, as text for messages.

    Example:
        >>> quoted(["cat", "dog"]), quoted("abcdefg")
        ("'cat', 'dog'", "'a', 'b', 'c', 'd', 'e' and 2 more")
    """
    more = f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return ", ".join(map(repr, items[:_SHOWN])) + more
