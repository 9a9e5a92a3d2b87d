"""What a driver publishes of a device, as CEL expressions see it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from extender.objects.cel.values import EvaluationError, Unsupported, quantity, semver
from extender.objects.devices import Attribute, Capacity, DeviceRecord

Place = tuple[bool, str, str]
"""Of a property: whether it is a capacity, its domain and its name."""
EVERYTHING: Final[Place] = (False, "", "")
"""Instead of the place of one property."""


class DeviceProperties:
    """The attributes and capacities of a device, by place. `readable`: False where it has an attribute that only a
    later version of Kubernetes knows, or an invalid version or quantity: kube-scheduler may fail at it."""

    __slots__ = ("driver", "multiple", "readable", "stated")

    def __init__(self, driver: str, device: DeviceRecord) -> None:
        self.driver, self.multiple = driver, device.shared
        stated: dict[Place, Attribute | Capacity] = {}
        for name, attribute in device.attributes:
            stated[_place(False, driver, name)] = attribute
        for name, capacity in device.capacity:
            stated[_place(True, driver, name)] = capacity
        self.stated = stated
        self.readable = all(map(_is_readable, stated.values()))

    def value(self, place: Place) -> Any:
        """A bool, int, str, Semver or Quantity; None where the device does not state it."""
        stated = self.stated.get(place)
        return None if stated is None else _value(stated)


@lru_cache(maxsize=4096)
def _place(capacity: bool, driver: str, name: str) -> Place:
    """The domain of a name without one is the driver's."""
    domain, slash, identifier = name.partition("/")
    return (capacity, domain, identifier) if slash else (capacity, driver, name)


def _value(stated: Attribute | Capacity) -> Any:
    if isinstance(stated, Capacity):
        return quantity(stated.value)
    return semver(str(stated.value)) if stated.kind == "version" else stated.value


def _is_readable(stated: Attribute | Capacity) -> bool:
    if isinstance(stated, Attribute) and stated.kind != "version":
        return bool(stated.kind)
    try:
        _value(stated)
    except (EvaluationError, Unsupported):
        return False
    return True
