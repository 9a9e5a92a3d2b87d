"""What `check` finds of GPUs by DRA."""

from __future__ import annotations

from typing import Any

import pytest

from extender.sim import claims as dra
from extender.sim.machines import machine as catalogued
from tests.ask.asking import findings
from tests.ask.checks.test_check import checked, codes
from tests.world import GPU, JSON, machine, workload

MACHINE = catalogued("dgx1-v100")
POOL = {"name": "n", "generation": 1, "resourceSliceCount": 2}


def node(gpus: int = 0) -> JSON:
    return {"kind": "Node"} | machine("n", gpus)


def allocated(*devices: str) -> JSON:
    results = [{"driver": dra.DRIVER, "pool": "n", "device": device} for device in devices]
    return dra.claim("c", "default", 1) | {"status": {"allocation": {"devices": {"results": results}}}}


def twice() -> list[JSON]:
    """A pool with two slices that publish the same devices."""
    return [
        one | {"metadata": {"name": name}, "spec": one["spec"] | {"pool": POOL}} for name in "ab" for one in slices()
    ]


def selecting(expression: str) -> JSON:
    """A class with this selector."""
    return dra.device_class("c") | {"spec": {"selectors": [{"cel": {"expression": expression}}]}}


def slices(*, unmapped: bool = False, **published: Any) -> list[JSON]:
    made = dra.resource_slices("n", MACHINE, **published)
    for one in made:
        for device in one["spec"].get("devices", ()) if unmapped else ():
            device["attributes"].pop("resource.kubernetes.io/pciBusID", None)
    return made


@pytest.mark.parametrize(
    ("items", "code", "facts"),
    [
        ([node(), *slices(taints={1: "x", 2: "x"})], "devices-tainted", {"gpus": 2, "published_gpus": 8}),
        ([node(), *slices(), allocated("gpu-3")], "devices-allocated-to-no-pod", {"gpus": 1, "published_gpus": 8}),
        (
            [node(), *slices(divisible=True), allocated("gpu-3-mig-1g10gb-19-0")],
            "devices-divided",
            {"gpus": 1, "published_gpus": 8},
        ),
        ([node(), *slices(unmapped=True)], "devices-unmapped", {"devices": 8, "published_gpus": 8}),
        ([node(8), *slices()], "devices-and-plugin", {"plugin_gpus": 8, "published_gpus": 8}),
        ([node(), *twice()], "device-pool-invalid", {}),
        ([node(), *slices(), dra.device_class("m", kind="mig", extended_resource=GPU)], "devices-not-counted", {}),
        ([node(), *slices(), selecting("ip('10.0.0.1').family() == 4")], "selector-not-known", {}),
        ([node(), *slices(), selecting("device.driver ==")], "selector-not-known", {}),
    ],
)
def test_findings(items: list[JSON], code: str, facts: dict[str, int]) -> None:
    answer = checked(*items)
    (found,) = findings(answer, code)
    assert found["facts"] == facts
    assert "gpus-lost" not in codes(answer)


def test_a_node_whose_devices_are_all_usable_has_none() -> None:
    held = workload(
        "p", 0, node="n", phase="Running", spec={"resourceClaims": [{"name": "g", "resourceClaimName": "c"}]}
    )
    claim = allocated("gpu-0")
    claim["status"]["reservedFor"] = [{"resource": "pods", "name": "p", "uid": "uid-p"}]
    by_name = selecting("device.attributes['gpu.nvidia.com'].productName.matches('H100')")
    answer = checked(node(), *slices(), dra.device_class(), by_name, claim, {"kind": "Pod"} | held)
    assert not [code for code in codes(answer) if code.startswith(("devices", "gpus-lost", "selector"))]
