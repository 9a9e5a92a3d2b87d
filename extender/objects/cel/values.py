"""The values of CEL beside those that Python has: quantities, versions, optional values; and how an evaluation ends
without a value."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from extender.objects.devices import Attribute, Capacity, DeviceRecord

_QUANTITY: Final = re.compile(
    r"([+-]?)([0-9]*)(?:\.([0-9]*))?(?:([KMGTPE]i)|[eE]([+-]?[0-9]{1,3})|([numkMGTPE]))?", re.ASCII
)
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_LONGEST: Final = 256  # characters of a quantity or a version: longer texts are not worth their arithmetic
_INT64: Final = 2**63
_UINT64: Final = 2**64
_NANO: Final = 10**9
_IDENTIFIER: Final = r"(?:0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
_SEMVER: Final = re.compile(
    rf"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(?:-({_IDENTIFIER}(?:\.{_IDENTIFIER})*))?"
    r"(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?",
    re.ASCII,
)


class EvaluationError(Exception):
    """The evaluation ends with an error in Kubernetes too. `||`, `&&`, `all` and `exists` may absorb it."""


class NotKnown(EvaluationError):
    """It asks for a property of devices of which only others are known. What absorbs an error absorbs it too: its value
    does not matter then."""


class Unsupported(Exception):
    """It is not known what Kubernetes evaluates to. Nothing absorbs it. The message is the reason."""


class Quantity(NamedTuple):
    """A resource.Quantity. `nano`: its value times 10^9."""

    nano: int
    small: tuple[int, int] | None  # Go's int64Amount (value, scale); None where it is an inf.Dec
    result: bool = False  # of add or sub, with which Kubernetes' `==` has no overload on the right side


class Semver(NamedTuple):
    """A semantic version, by what it is compared by: build metadata does not count."""

    major: int
    minor: int
    patch: int
    prerelease: tuple[Any, ...]  # (1,) for none; (0, identifiers)


class Optional(NamedTuple):
    """An optional value."""

    some: bool
    value: Any = None


NONE: Final = Optional(some=False)


def is_int64(number: int) -> bool:
    """Whether it is in the range of CEL's int."""
    return -_INT64 <= number < _INT64


@lru_cache(maxsize=4096)
def quantity(text: str) -> Quantity:
    """Read it as resource.ParseQuantity does. EvaluationError where that fails."""
    if len(text) > _LONGEST:
        raise Unsupported("a quantity of too many characters")
    match = _QUANTITY.fullmatch(text)
    if match is None or not text:
        raise EvaluationError("not a quantity")
    sign, whole, fraction, binary, exponent, decimal = match.groups(default="")
    power = int(exponent) if exponent else _DECIMAL.get(decimal, 0)
    shift = _BINARY.get(binary, 0)
    mantissa = int((whole + fraction) or "0") << shift
    if abs(power) > _LONGEST:
        raise Unsupported("a quantity beyond any amount")
    scale = power - len(fraction)
    digits = len(whole.lstrip("0") or "0") + len(fraction)
    # ParseQuantity: digits that surely fit into an int64 stay one, at a scale of nano or above
    fits = 15 - digits - int(shift * 3 / 10) - 1 >= 0 and not fraction if binary else 18 - digits >= 0
    negative = -1 if sign == "-" else 1
    if fits and scale >= -9 and mantissa < _INT64:
        return Quantity(negative * mantissa * 10 ** (9 + scale), (negative * mantissa, scale))
    if not whole and not fraction:
        raise Unsupported("a quantity without digits")
    nano = mantissa * 10 ** (9 + scale) if scale >= -9 else -(-mantissa // 10 ** (-9 - scale))
    if binary:
        nano = min(nano, (_INT64 - 1) * _NANO)
    return Quantity(negative * nano, None)


def as_integer(of: Quantity) -> int | None:
    """Quantity.AsInt64; None where it fails."""
    if of.small is None or of.small[1] < 0:
        return None
    number = of.small[0] * 10 ** of.small[1]
    return number if is_int64(number) else None


def added(first: Quantity, second: Quantity, sign: int) -> Quantity:
    """The sum, or with sign -1 the difference."""
    small = None
    if first.small is not None and second.small is not None:
        small = _added(first.small, (sign * second.small[0], second.small[1]))
    return Quantity(first.nano + sign * second.nano, small, result=True)


def _added(first: tuple[int, int], second: tuple[int, int]) -> tuple[int, int] | None:
    """int64Amount.Add; None where it fails."""
    if not second[0]:
        return first
    if not first[0]:
        return second
    scale = min(first[1], second[1])
    terms = [value * 10 ** (its - scale) for value, its in (first, second)]
    total = sum(terms)
    return (total, scale) if all(map(is_int64, (*terms, total))) else None


@lru_cache(maxsize=4096)
def semver(text: str, *, normalize: bool = False) -> Semver:
    """Read it as Kubernetes' semver() does. EvaluationError where that fails."""
    if len(text) > _LONGEST:
        raise Unsupported("a version of too many characters")
    match = _SEMVER.fullmatch(_normalized(text) if normalize else text)
    if match is None:
        raise EvaluationError("not a semantic version")
    identifiers = match[4].split(".") if match[4] else ()
    prerelease = tuple([(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in identifiers])
    major, minor, patch = int(match[1]), int(match[2]), int(match[3])
    if max(major, minor, patch, *[part[1] for part in prerelease]) >= _UINT64:
        raise EvaluationError("not a semantic version")
    return Semver(major, minor, patch, (0, prerelease) if prerelease else (1,))


def _normalized(text: str) -> str:
    """Without "v" and leading zeros, with the numbers that are not stated."""
    parts = text.removeprefix("v").split(".", 2)
    for at, part in enumerate(parts):
        if len(part) > 1:
            bare = part.lstrip("0")
            parts[at] = bare if bare and bare[0] in "0123456789" else "0" + bare
    if len(parts) < 3:
        if any(char in parts[-1] for char in "+-"):
            raise EvaluationError("a short version has no prerelease")
        parts += ["0"] * (3 - len(parts))
    return ".".join(parts)


# -- what a driver publishes of a device, as CEL expressions see it


Place = tuple[bool, str, str]
"""Of a property: whether it is a capacity, its domain and its name."""
EVERYTHING: Final[Place] = (False, "", "")
"""Instead of the place of one property."""


class DeviceProperties:
    """The attributes and capacities of a device, by place. `readable`: False where it has an attribute that only a
    later version of Kubernetes knows, or an invalid version or quantity: kube-scheduler may fail at it."""

    __slots__ = ("driver", "multiple", "readable", "stated")
    partial = False
    stated: Mapping[Place, Attribute | Capacity | None]

    def __init__(self, driver: str, device: DeviceRecord) -> None:
        self.driver, self.multiple = driver, device.shared
        stated: dict[Place, Attribute | Capacity] = {}
        self.stated, self.readable = stated, True
        for name, attribute in device.attributes:
            stated[place(False, driver, name)] = attribute
            kind = attribute.kind
            if not kind or (kind == "version" and not _is_readable(attribute)):
                self.readable = False
        for name, capacity in device.capacity:
            stated[place(True, driver, name)] = capacity
            if not _is_readable(capacity):
                self.readable = False

    def value(self, place: Place) -> Any:
        """A bool, int, str, Semver or Quantity; None where the device does not state it."""
        stated = self.stated.get(place)
        return None if stated is None else _value(stated)

    def names(self, capacity: bool, domain: str) -> list[str]:
        """Of the attributes or the capacities of a domain."""
        return [name for of, its, name in self.stated if (of, its) == (capacity, domain)]


class DeviceKind(DeviceProperties):
    """Devices of which some attributes are known: an expression that needs others is not known of them. `stated`: by
    name, None for one that they do not have."""

    __slots__ = ()
    partial = True

    def __init__(self, driver: str, stated: Mapping[str, Attribute | None], *, multiple: bool) -> None:
        self.driver, self.multiple, self.readable = driver, multiple, True
        self.stated = {place(False, driver, name): attribute for name, attribute in stated.items()}

    def value(self, place: Place) -> Any:
        """NotKnown where it is not known."""
        if place not in self.stated:
            raise NotKnown(f"{place[2]} is not known")
        return super().value(place)

    def names(self, capacity: bool, domain: str) -> list[str]:
        """NotKnown."""
        raise NotKnown("the names of its attributes are not known")


@lru_cache(maxsize=4096)
def place(capacity: bool, driver: str, name: str) -> Place:
    """Of a property as it is stated. The domain of a name without one is the driver's."""
    domain, slash, identifier = name.partition("/")
    return (capacity, domain, identifier) if slash else (capacity, driver, name)


def _value(stated: Attribute | Capacity) -> Any:
    if isinstance(stated, Capacity):
        return quantity(stated.value)
    return semver(str(stated.value)) if stated.kind == "version" else stated.value


@lru_cache(maxsize=1024)
def _is_readable(stated: Attribute | Capacity) -> bool:
    """Of a version or a quantity."""
    try:
        _value(stated)
    except (EvaluationError, Unsupported):
        return False
    return True
