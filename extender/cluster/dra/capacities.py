"""What a request takes of the capacity of a device.

Source: k8s.io/dynamic-resource-allocation v0.37.0, structured/internal/incubating/consumable_capacity.go. Amounts are
integers, in billionths.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from extender.objects.records import Capacity
from extender.objects.resources import LARGEST, nano

_UNIT: Final = 10**9
_MILLI: Final = 10**6


class CapacityError(ValueError):
    """kube-scheduler's allocator ends with an error, be there other devices or not."""


def consumed(
    capacity: tuple[tuple[str, Capacity], ...], asked: tuple[tuple[str, str], ...], used: Mapping[str, int]
) -> Mapping[str, int] | None:
    """What a request for these amounts takes of a device of which so much is used; None where the device does not have
    it. CapacityError, QuantityError."""
    taken = _taken(capacity, asked)
    if taken is None:
        return None
    for name, amount in taken.items():
        if name in used and amount + used[name] > _value(capacity, name):
            return None
    return taken


def _value(capacity: tuple[tuple[str, Capacity], ...], name: str) -> int:
    return next(nano(stated.value) for of, stated in capacity if of == name)


@lru_cache(maxsize=4096)
def _taken(capacity: tuple[tuple[str, Capacity], ...], asked: tuple[tuple[str, str], ...]) -> Mapping[str, int] | None:
    """As `consumed` of a device that is not used."""
    wanted = dict(asked)
    if not wanted.keys() <= dict(capacity).keys():
        return None
    taken = {name: _rounded(nano(wanted[name]), of) if name in wanted else _default(of) for name, of in capacity}
    if any(_violates(taken[name], of) or taken[name] > nano(of.value) for name, of in capacity):
        return None
    return taken


def _default(of: Capacity) -> int:
    return nano(of.value if of.default is None else of.default)


def _rounded(amount: int, of: Capacity) -> int:
    """The amount that is asked for, rounded up to one that the device gives."""
    if of.least is not None:
        return _stepped(amount, of)
    if of.values is not None:
        return next((value for text in of.values if amount <= (value := nano(text))), amount)
    return amount


def _stepped(amount: int, of: Capacity) -> int:
    least = nano(of.least or "0")
    if amount < least:
        return least
    if of.step is None:
        return amount
    unit, first, step = _steps(of)
    if unit == _MILLI and (amount % _MILLI or amount // _MILLI > LARGEST):
        raise CapacityError("the amount that it asks for has no milli value")
    if amount > LARGEST * _UNIT:
        raise CapacityError("the amount that it asks for is too large")
    rounded = first + step * -(-(-(-amount // unit) - first) // step)
    if rounded > LARGEST:
        raise CapacityError("the amount that it asks for is too large")
    return rounded * unit


def _steps(of: Capacity) -> tuple[int, int, int]:
    """The unit that is counted in, the least amount and the step in it."""
    least, step = nano(of.least or "0"), nano(of.step or "0")
    stated = [least, step] + ([] if of.most is None else [nano(of.most)])
    exact = all(amount % _MILLI == 0 and amount // _MILLI <= LARGEST for amount in stated)
    unit = _MILLI if exact and step >= _MILLI else _UNIT
    if not step:
        raise CapacityError("a step of the device's capacity is 0")
    return unit, -(-least // unit), -(-step // unit)


def _violates(amount: int, of: Capacity) -> bool:
    if of.default is not None and amount == nano(of.default):
        return False
    if of.least is None and of.most is None and of.step is None:
        return bool(of.values) and amount not in [nano(text) for text in of.values or ()]
    if of.most is not None and amount > nano(of.most):
        return True
    if of.step is None:
        return False
    unit, first, step = _steps(of)
    if unit == _MILLI and (amount % _MILLI or amount // _MILLI > LARGEST):
        return True
    return (-(-amount // unit) - first) % step != 0
