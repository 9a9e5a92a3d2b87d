from __future__ import annotations

import pytest

from extender.cluster.dra.resource_slices import PublishedKind, Selected, kind_of, selected
from extender.objects.devices import Attribute, DeviceClassRecord, DeviceRecord, device_class
from extender.sim import claims as dra
from tests.cluster.dra.world import MACHINE, DraWorld

DRIVER = "device.driver == 'gpu.nvidia.com'"
TYPE = "device.attributes['gpu.nvidia.com'].type == 'gpu'"
NAME = "device.attributes['gpu.nvidia.com'].productName"
GPU = PublishedKind("gpu.nvidia.com", whole=True, name="type", value=Attribute("string", "gpu"))
MIG = GPU._replace(whole=False, value=Attribute("string", "mig"))
OTHERS = (PublishedKind("dra.net"), PublishedKind("gpu.amd.com"))
NOTHING, SOME, EVERY = Selected(), Selected("gpu.nvidia.com"), Selected("gpu.nvidia.com", True)


def of(*selectors: str) -> DeviceClassRecord:
    return DeviceClassRecord(uid="", name="c", resource_version="", extended_resource_name="", selectors=selectors)


@pytest.mark.parametrize("kinds", [(), (GPU, MIG, *OTHERS)], ids=["none published", "published"])
@pytest.mark.parametrize(
    ("selectors", "expected"),
    [
        ((f"{DRIVER} && {TYPE}",), EVERY),
        ((DRIVER, TYPE), EVERY),
        ((f'device.driver=="gpu.nvidia.com"&&{TYPE}',), EVERY),
        ((f"{TYPE}\n  && {DRIVER} && '||' == '||'",), EVERY),
        ((f"{DRIVER} && cel.bind(gpu, device.attributes['gpu.nvidia.com'], gpu.type == 'gpu')",), EVERY),
        ((f"{DRIVER} && {TYPE} && {NAME}.matches('H100|H200')",), SOME),
        ((f"{DRIVER} && {TYPE} && ({NAME} == 'a' || {NAME} == 'b')",), SOME),
        ((f"{DRIVER} && {TYPE}", f"{NAME} == 'a' || {NAME} == 'b'"), SOME),
        ((f"{DRIVER} && {TYPE} && has({NAME})",), SOME),
        ((f"{DRIVER} && {TYPE} && device.attributes['x.org'].?a.orValue(true)",), SOME),
        ((f"{DRIVER} && {TYPE} && device.attributes['gpu.nvidia.com'].exists(name, name == 'uuid')",), SOME),
        ((f"{DRIVER} && {TYPE} && device.attributes['example.com'].type == 'gpu'",), SOME),
        ((f"{DRIVER} && {TYPE}", "not CEL at all"), SOME),
        ((), NOTHING),
        ((DRIVER,), NOTHING),
        ((f"{DRIVER} && device.attributes['gpu.nvidia.com'].type == 'mig'",), NOTHING),
        ((f"{DRIVER} && {TYPE} || true",), NOTHING),
        ((f"true ? true : {DRIVER} && {TYPE}",), NOTHING),
        ((f"!({DRIVER} && {TYPE})",), NOTHING),
        ((f"{DRIVER} && !({TYPE})",), NOTHING),
        ((f"{DRIVER} && device.attributes['gpu.nvidia.com'].type in ['gpu', 'mig']",), NOTHING),
        ((f"{DRIVER} && {TYPE} && device.driver == 'x'",), NOTHING),
        ((f"{DRIVER.replace('nvidia', 'amd')} && {TYPE}",), NOTHING),
        (("(" * 5000,), NOTHING),
    ],
)
def test_what_a_class_selects(selectors: tuple[str, ...], expected: Selected, kinds: tuple[PublishedKind, ...]) -> None:
    assert selected(of(*selectors), kinds) == expected


def test_what_it_selects_of_the_devices_that_are_published() -> None:
    assert selected(of(DRIVER), (GPU, *OTHERS)) == EVERY
    assert selected(of(DRIVER), (GPU, MIG)) == NOTHING
    assert selected(of(DRIVER), (GPU._replace(whole=False, shared=True),)) == NOTHING
    assert selected(of(TYPE), (GPU,)) == EVERY
    assert selected(of(TYPE), (GPU, *OTHERS)) == NOTHING  # a device of another driver may have that attribute too


def test_classes_of_other_drivers() -> None:
    """AMD's driver marks its whole GPUs, each device of Intel's is one."""
    amd = of("device.driver == 'gpu.amd.com'")
    assert selected(amd, ()) == NOTHING
    whole = PublishedKind("gpu.amd.com", whole=True, name="type", value=Attribute("string", "amdgpu"))
    assert selected(amd, (GPU, whole)) == Selected("gpu.amd.com", True)
    assert selected(of("device.driver == 'gpu.intel.com'"), (GPU,)) == Selected("gpu.intel.com", True)
    marks = {"gpu.example.com": ("healthy", "true")}
    device = DeviceRecord(name="d", attributes=(("healthy", Attribute("bool", True)),))
    kind = kind_of(device, "gpu.example.com", marks["gpu.example.com"])
    healthy = of("device.driver == 'gpu.example.com' && device.attributes['gpu.example.com'].healthy")
    assert selected(healthy, (kind,), marks) == selected(healthy, (), marks) == Selected("gpu.example.com", True)
    assert selected(healthy, (kind._replace(whole=False, value=None),), marks) == NOTHING


def test_the_class_of_the_drivers_chart() -> None:
    assert selected(device_class(dra.device_class()), ()) == EVERY
    assert selected(device_class(dra.device_class(kind="mig")), ()) == NOTHING


def test_a_class_is_read_again_when_devices_of_another_kind_are_published() -> None:
    world = DraWorld()
    world.set("DeviceClass", {"metadata": {"name": "any"}, "spec": {"selectors": [{"cel": {"expression": DRIVER}}]}})
    template = dra.claim("one", "default", 1, device_class="any", template=True)
    world.set("ResourceClaimTemplate", template)
    world.dra_node("n1")
    pod = world.claimant("p")
    pod["spec"]["resourceClaims"] = [{"name": "gpus", "resourceClaimTemplateName": "one"}]
    world.set("Pod", pod)
    assert dict(world.cluster.pods["uid-p"].gpus) == {"nvidia.com/gpu": 1}
    world.dra_node("n2", divisible=True)
    assert not world.cluster.pods["uid-p"].gpus
    for piece in dra.resource_slices("n2", MACHINE, divisible=True):
        world.drop("ResourceSlice", piece)
    assert dict(world.cluster.pods["uid-p"].gpus) == {"nvidia.com/gpu": 1}
