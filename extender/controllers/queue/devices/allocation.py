"""The allocation of a ResourceClaim, as kube-scheduler's allocator writes it.

Source: k8s.io/dynamic-resource-allocation v0.37.0, structured/internal/incubating/allocator_incubating.go. Drivers read
the configuration of a device from the allocation alone, so that of the class and of the claim are copied.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any, Final

from extender.objects.records import AllocatedDevice

Object = Mapping[str, Any]
REQUEST: Final = frozenset({"name", "exactly"})
EXACTLY: Final = frozenset({"deviceClassName", "allocationMode", "count", "adminAccess"})
DEVICES: Final = frozenset({"requests", "config"})


class Unknown(ValueError):
    """The claim has something that we do not know, so kube-scheduler has to allocate it."""


def allocation_of(
    claim: Object, classes: Mapping[str, Object], devices: Sequence[AllocatedDevice], node: str, now: float
) -> dict[str, object]:
    """`status.allocation` for these devices of the node, in the order of the requests. `classes`: the DeviceClasses
    that the claim names; `now`: seconds since 1970. Unknown: a field is none that we know, or the number does not
    fit."""
    spec = claim["spec"]["devices"]
    if strange := sorted(spec.keys() - DEVICES):
        raise Unknown(f"its claim states {', '.join(strange)}")
    requests: list[Object] = spec["requests"]
    left, results = list(devices), []
    for request in requests:
        count = _count(request)
        results += [{"request": request["name"], **one._asdict()} for one in left[:count]]
        del left[:count]
    if left or len(results) != sum(map(_count, requests)):
        raise Unknown("its claim asks for another number of devices")
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    stated: dict[str, object] = {"results": results}
    if config := _config(spec, classes):
        stated["config"] = config
    return {
        "devices": stated,
        "nodeSelector": {"nodeSelectorTerms": [term]},
        "allocationTimestamp": datetime.datetime.fromtimestamp(now, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def class_names(claim: Object) -> set[str]:
    """The DeviceClasses that the requests of the claim name."""
    return {str(one.get("exactly", {}).get("deviceClassName", "")) for one in claim["spec"]["devices"]["requests"]}


def _count(request: Object) -> int:
    exactly = request.get("exactly") or {}
    if strange := sorted((request.keys() - REQUEST) | (exactly.keys() - EXACTLY)):
        raise Unknown(f"a request of its claim states {', '.join(strange)}")
    if exactly.get("adminAccess") or exactly.get("allocationMode", "ExactCount") != "ExactCount":
        raise Unknown("a request of its claim asks for all devices, or for admin access")
    return int(exactly.get("count", 1))


def _config(spec: Object, classes: Mapping[str, Object]) -> list[dict[str, object]]:
    """First what the classes state, each once with the requests that name it, then what the claim states. What is for
    all requests names none."""
    names = [request["name"] for request in spec["requests"]]
    by_class: dict[str, list[str]] = {}
    for request in spec["requests"]:
        by_class.setdefault(request["exactly"]["deviceClassName"], []).append(request["name"])
    stated = [
        ("FromClass", users, config)
        for name, users in by_class.items()
        for config in classes[name].get("spec", {}).get("config") or ()
    ]
    stated += [
        ("FromClaim", config.get("requests") or [], config)
        for config in spec.get("config") or ()
        if not config.get("requests") or not set(names).isdisjoint(config["requests"])
    ]
    found: list[dict[str, object]] = []
    for source, users, config in stated:
        only = {"requests": list(users)} if not set(users) >= set(names) and users else {}
        parameters = {key: value for key, value in config.items() if key != "requests"}
        found.append({"source": source, **only, **parameters})
    return found
