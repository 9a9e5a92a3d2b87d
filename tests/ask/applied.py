"""Ways out, carried out on a copy of a cluster's objects, as a person would."""

from __future__ import annotations

import copy
from typing import Any

from tests.world import GPU, JSON

UNITS = {"cpu": "m", "memory": ""}


def applied(way: JSON, items: list[JSON], pod: JSON) -> tuple[list[JSON], JSON]:
    """(the objects, the pod) with the change."""
    items, pod = copy.deepcopy(items), copy.deepcopy(pod)
    spec: dict[str, Any] = way["spec"]
    match way["kind"]:
        case "evict":
            items = without(items, {one["uid"] for one in spec["victims"]})
        case "wait":
            items = without(items, {one["uid"] for one in spec["for"]})
        case "relax-links":
            pod["metadata"]["annotations"][spec["annotation"]] = spec["value"]
        case "smaller":
            asked = pod["spec"]["containers"][0]["resources"]
            asked["requests"][spec["resource"]] = f"{spec['is']}{UNITS.get(spec['resource'], '')}"
            if spec["resource"] == GPU:
                asked["limits"][GPU] = str(spec["is"])
        case "uncordon":
            del named(items, spec["node"])["spec"]["unschedulable"]
        case "add-nodes":
            for number in range(spec["count"]):
                more = copy.deepcopy(named(items, spec["like"]))
                more["metadata"] |= {"name": f"new-{number}", "uid": f"uid-new-{number}"}
                more["spec"].pop("unschedulable", None)
                items.append(more)
        case other:
            raise AssertionError(f"no such kind: {other}")
    return items, pod


def without(items: list[JSON], uids: set[str]) -> list[JSON]:
    """The objects without these pods."""
    return [item for item in items if item["metadata"].get("uid") not in uids]


def named(items: list[JSON], node: str) -> JSON:
    """The node of that name."""
    return next(item for item in items if item["kind"] == "Node" and item["metadata"]["name"] == node)
