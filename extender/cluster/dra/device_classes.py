"""Which devices a DeviceClass selects, by kinds: it is evaluated once for all devices of a kind.

A kind is the driver, the attribute that marks its whole GPUs, and whether several claims may share the device. Where
the selectors need more than that of a device, it is not known which devices of the kind they select.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from extender.objects.cel import DeviceKind, selects
from extender.objects.records import Attribute, DeviceClassRecord, DeviceRecord

NVIDIA: Final = "gpu.nvidia.com"
AMD: Final = "gpu.amd.com"
INTEL: Final = "gpu.intel.com"
Mark = tuple[str, str]
"""Name and value of the attribute of a device that is a whole GPU; ("", ""): every device is one."""
EVERY: Final[Mark] = ("", "")
WHOLE: Final[Mapping[str, Mark]] = {NVIDIA: ("type", "gpu"), AMD: ("type", "amdgpu"), INTEL: EVERY}
"""By driver. What is known without the settings."""
_OTHER_VALUES: Final = ("mig", "vfio", "(another)")  # of the mark, of devices that are no whole GPUs


class PublishedKind(NamedTuple):
    """Of devices. `whole`: they are whole GPUs, which one claim gets alone."""

    driver: str
    whole: bool = False
    shared: bool = False
    name: str = ""  # of the attribute that is known of them, "" for none
    value: Attribute | None = None  # of that attribute, None where they do not state it


class Selected(NamedTuple):
    """What a class selects. `driver`: of which it selects whole GPUs and nothing else, "" where that is not certain;
    `every`: whether it selects every whole GPU of it, as the class of the driver does."""

    driver: str = ""
    every: bool = False


def kind_of(device: DeviceRecord, driver: str, mark: Mark | None) -> PublishedKind:
    """`mark`: None where no device of the driver counts as a GPU."""
    if mark is None:
        return PublishedKind(driver)
    name, value = mark
    if not name:
        return PublishedKind(driver, not device.shared, device.shared)
    own = f"{driver}/{name}"
    stated = next((attribute for its, attribute in device.attributes if its in (name, own)), None)
    marked = stated is not None and value in (stated.value, str(stated.value).lower())
    return PublishedKind(driver, marked and not device.shared, device.shared, name, stated)


def selected(
    record: DeviceClassRecord, kinds: Collection[PublishedKind], marks: Mapping[str, Mark] = WHOLE
) -> Selected:
    """Of devices of these kinds, which are published. Of a class that selects none of them, of what drivers that have
    not published any may publish: whole GPUs and others."""
    drivers = {kind.driver for kind in kinds}
    expected = [kind for driver, mark in marks.items() if driver not in drivers for kind in _expected(driver, mark)]
    answers: dict[PublishedKind, bool | None] = {}
    perhaps: list[PublishedKind] = []
    for asked in (kinds, expected):
        if not perhaps:
            answers = {kind: selects(record.selectors, _device(kind)) for kind in asked}
            perhaps = [kind for kind, answer in answers.items() if answer is not False]
    if not perhaps or not all(kind.whole for kind in perhaps) or len({kind.driver for kind in perhaps}) > 1:
        return Selected()
    return Selected(perhaps[0].driver, all(answers[kind] is True for kind in perhaps))


def drivers_of(
    record: DeviceClassRecord, kinds: Collection[PublishedKind], marks: Mapping[str, Mark] = WHOLE
) -> set[str]:
    """The drivers of which the class may select devices of these kinds, or of those that drivers with whole GPUs may
    publish."""
    expected = (kind for driver, mark in marks.items() for kind in _expected(driver, mark))
    return {kind.driver for kind in (*kinds, *expected) if selects(record.selectors, _device(kind)) is not False}


def _expected(driver: str, mark: Mark) -> list[PublishedKind]:
    name, value = mark
    if not name:
        return [PublishedKind(driver, whole=True)]
    whole, others = Attribute("string", value), [Attribute("string", other) for other in _OTHER_VALUES]
    if value in ("true", "false"):
        whole, others = Attribute("bool", value == "true"), [Attribute("bool", value != "true")]
    return [PublishedKind(driver, attribute is whole, name=name, value=attribute) for attribute in (whole, *others)]


@lru_cache(maxsize=1024)
def _device(kind: PublishedKind) -> DeviceKind:
    return DeviceKind(kind.driver, {kind.name: kind.value} if kind.name else {}, multiple=kind.shared)
