"""The allocation of a claim, as kube-scheduler's allocator writes it (an e2e test compares the two)."""

from __future__ import annotations

from typing import Any

import pytest

from extender.act.queue.allocator import Unknown, allocation_of, class_names
from extender.objects.devices import AllocatedDevice
from extender.sim import claims as dra

DEVICES = [AllocatedDevice(dra.DRIVER, "n1", f"gpu-{number}") for number in (0, 3, 4)]


def opaque(name: str) -> dict[str, Any]:
    return {"opaque": {"driver": dra.DRIVER, "parameters": {"kind": name}}}


def request(name: str, count: int = 1, device_class: str = dra.DRIVER) -> dict[str, Any]:
    return {"name": name, "exactly": {"deviceClassName": device_class, "count": count}}


def claim(*requests: Any, **devices: Any) -> dict[str, Any]:
    return {"spec": {"devices": {"requests": list(requests), **devices}}}


CLASSES: dict[str, Any] = {dra.DRIVER: {"spec": {"config": [opaque("class")]}}, "other": {"spec": {}}}


def made(stated: dict[str, Any], devices: list[AllocatedDevice] = DEVICES) -> Any:
    return allocation_of(stated, CLASSES, devices, "n1", 1_800_000_000.0)


def test_each_request_gets_its_devices_in_order() -> None:
    found = made(claim(request("a", 2), request("b")))
    assert [(one["request"], one["device"]) for one in found["devices"]["results"]] == [
        ("a", "gpu-0"),
        ("a", "gpu-3"),
        ("b", "gpu-4"),
    ]
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    assert found["nodeSelector"] == {"nodeSelectorTerms": [term]}
    assert found["allocationTimestamp"] == "2027-01-15T08:00:00Z"


def test_configuration_for_all_requests_names_none() -> None:
    stated = claim(request("a", 3), config=[opaque("all"), {"requests": ["a"], **opaque("one")}])
    assert made(stated)["devices"]["config"] == [
        {"source": "FromClass", **opaque("class")},
        {"source": "FromClaim", **opaque("all")},
        {"source": "FromClaim", **opaque("one")},
    ]


def test_configuration_for_some_requests_names_them() -> None:
    config = [{"requests": ["b"], **opaque("b")}, {"requests": ["unknown"], **opaque("none")}]
    stated = claim(request("a", 2), request("b", 1, "other"), config=config)
    assert class_names(stated) == {dra.DRIVER, "other"}
    assert made(stated)["devices"]["config"] == [
        {"source": "FromClass", "requests": ["a"], **opaque("class")},
        {"source": "FromClaim", "requests": ["b"], **opaque("b")},
    ]


@pytest.mark.parametrize(
    "stated",
    [
        claim(request("a", 2)),
        claim(request("a", 4)),
        claim(request("a", 3), constraints=[{}]),
        claim({**request("a", 3), "firstAvailable": []}),
        claim({"name": "a", "exactly": {**request("a", 3)["exactly"], "selectors": []}}),
        claim({"name": "a", "exactly": {**request("a", 3)["exactly"], "adminAccess": True}}),
        claim({"name": "a", "exactly": {**request("a", 3)["exactly"], "allocationMode": "All"}}),
    ],
)
def test_what_is_not_known_is_not_allocated(stated: Any) -> None:
    with pytest.raises(Unknown):
        made(stated)
