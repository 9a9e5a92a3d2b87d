from __future__ import annotations

import time

import pytest

from extender.cluster.dra.resource_slices import LONGEST, driver_of, is_every, terms_of
from extender.objects.records import DeviceClassRecord, device_class
from extender.sim import claims as dra

DRIVER = "device.driver == 'gpu.nvidia.com'"
TYPE = "device.attributes['gpu.nvidia.com'].type == 'gpu'"


def of(*selectors: str) -> DeviceClassRecord:
    return DeviceClassRecord(uid="", name="c", resource_version="", extended_resource_name="", selectors=selectors)


@pytest.mark.parametrize(
    "selectors",
    [
        (f"{DRIVER} && {TYPE}",),
        (DRIVER, TYPE),
        (f'device.driver=="gpu.nvidia.com"&&{TYPE}',),
        (f"{DRIVER} && {TYPE} && device.attributes['gpu.nvidia.com'].productName.matches('H100|H200')",),
        (f"{DRIVER} && {TYPE} && (a || b)",),
        (f"{TYPE}\n  && {DRIVER} && '||' == '||'",),
    ],
)
def test_whole_gpus(selectors: tuple[str, ...]) -> None:
    assert driver_of(of(*selectors)) == "gpu.nvidia.com"


@pytest.mark.parametrize(
    "selectors",
    [
        (),
        (DRIVER,),
        (TYPE,),
        (f"{DRIVER} && device.attributes['gpu.nvidia.com'].type == 'mig'",),
        (f"{DRIVER} && {TYPE} || true",),
        (f"({DRIVER} && {TYPE}) || true",),
        (f"true ? true : {DRIVER} && {TYPE}",),
        (f"!({DRIVER} && {TYPE})",),
        (f"{DRIVER} && !({TYPE})",),
        (f"'{DRIVER} && {TYPE}' != ''".replace("'gpu.nvidia.com'", "x"),),
        (f"{DRIVER} && {TYPE} && device.driver == 'x'",),
        (f"{DRIVER.replace('nvidia', 'amd')} && {TYPE}",),
        ("(" * 5000,),
        ("a" * LONGEST + f" && {DRIVER} && {TYPE}",),
    ],
)
def test_what_need_not_be_whole_gpus(selectors: tuple[str, ...]) -> None:
    assert driver_of(of(*selectors)) == ""


@pytest.mark.parametrize(
    "narrowing",
    [
        "device.attributes['gpu.nvidia.com'].index == 0 || device.attributes['gpu.nvidia.com'].index == 1",
        "has(device.attributes['x'].a) ? true : false",
        "a" * (LONGEST + 1),
        "device.attributes['example.com'].type == 'gpu'",
    ],
)
def test_a_class_with_another_selector_does_not_select_every_gpu(narrowing: str) -> None:
    """A disjunction has no terms, and still leaves devices out."""
    assert driver_of(of(f"{DRIVER} && {TYPE}", narrowing)) == "gpu.nvidia.com"
    assert is_every(of(f"{DRIVER} && {TYPE}"))
    assert is_every(of(DRIVER, TYPE))
    assert not is_every(of(f"{DRIVER} && {TYPE}", narrowing))


def test_the_class_of_the_drivers_chart() -> None:
    assert driver_of(device_class(dra.device_class())) == "gpu.nvidia.com"
    assert driver_of(device_class(dra.device_class(kind="mig"))) == ""


def test_long_texts_take_no_time() -> None:
    began = time.process_time()
    for text in ("'" * LONGEST, "&&" * (LONGEST // 2), "([{" * (LONGEST // 3), "\\" * LONGEST):
        terms_of(text)
    assert time.process_time() - began < 1.0
