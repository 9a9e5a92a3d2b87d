"""What a driver publishes of a device, as CEL expressions see it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from extender.objects.cel.values import EvaluationError, NotKnown, Unsupported, quantity, semver
from extender.objects.devices import Attribute, Capacity, DeviceRecord

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
