"""Kubernetes quantities (``500m``, ``16Gi``, ``2e3``) as exact integers.

The grammar is the one of apimachinery's ``resource.Quantity``: a decimal number and one suffix, which is binary
(Ki to Ei), decimal (n u m k M G T P E) or a decimal exponent (e3, E-3). Rounding is always up, as ``Value()`` and
``MilliValue()`` round. What is beyond int64 counts as 2^63 - 1, as Kubernetes itself clamps it: the API server accepts
``1e30`` bytes of memory, so a pod may have them.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

_GRAMMAR: Final = re.compile(
    r"([+-]?)([0-9]+\.?[0-9]*|\.[0-9]+)(?:([KMGTPE]i)|([eE][+-]?[0-9]+)|([numkMGTPE]))?", re.ASCII
)
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_LONGEST: Final = 64  # characters: longer texts are not worth their arithmetic
_LARGEST_EXPONENT: Final = 200  # beyond it, with 64 digits, every result is 0, 1 or the largest anyway
LARGEST: Final = 2**63 - 1


class QuantityError(ValueError):
    """The text is no quantity that Kubernetes would accept for a resource, or it is negative."""


def total(first: int, second: int) -> int:
    """The sum of two amounts, LARGEST at most: JSON for programs has no larger integers."""
    return min(first + second, LARGEST)


@lru_cache(maxsize=2048)
def value(text: str | int | float) -> int:
    """The quantity in whole units (bytes, GPUs, pods), rounded up, LARGEST at most. A number is read as its text."""
    return _scaled(text, 0)


@lru_cache(maxsize=2048)
def milli(text: str | int | float) -> int:
    """The quantity in thousandths (CPU), rounded up, LARGEST at most."""
    return _scaled(text, 3)


def _scaled(text: str | int | float, scale: int) -> int:
    written = text if isinstance(text, str) else repr(text)
    match = _GRAMMAR.fullmatch(written) if len(written) <= _LONGEST else None
    if match is None:
        raise QuantityError(f"not a quantity: {written[:_LONGEST]!r}")
    sign, number, binary, exponent, decimal = match.groups()
    whole, _, fraction = number.partition(".")
    mantissa = int(whole + fraction)
    power = scale - len(fraction)
    if exponent:
        power += max(-_LARGEST_EXPONENT, min(int(exponent[1:]), _LARGEST_EXPONENT))
    elif decimal:
        power += _DECIMAL[decimal]
    elif binary:
        mantissa <<= _BINARY[binary]
    if sign == "-" and mantissa:
        raise QuantityError(f"negative quantity: {written!r}")
    result: int = mantissa * 10**power if power >= 0 else -(-mantissa // 10**-power)
    return min(result, LARGEST)
