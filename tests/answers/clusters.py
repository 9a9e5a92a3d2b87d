"""Draws the clusters that questions are asked about: those of the other tests, as a file states them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from extender.ask.offline import frozen
from extender.objects.queueing import GATE
from tests.answers.questions import Scenario
from tests.ask.whatif.test_as_the_queue import gated_pods, job_set
from tests.ask.whatif.test_quotas import DOCUMENT, WORK, job, quota, read
from tests.metamorphic import clusters
from tests.metamorphic.clusters import Stated
from tests.queue.late_owners import OWNERS, RACK
from tests.queue.test_plan import HEAD
from tests.replay import player
from tests.world import AMD, GPU, JSON, WALL, machine, pairs, rfc3339, workload

OURS: Final = "gpu-extender.io/"
EXAMPLES: Final = Path(__file__).parents[2] / "docs" / "examples"
API: Final = {"PriorityClass": "scheduling.k8s.io/v1"}
DRAWN, CLAIMS = (0, 1, 2, 5, 8, 11), (1, 2, 5)
"""Seeds of the clusters of the metamorphic tests; of those with GPUs by claims."""
REPLAYED: Final = (
    "amd-1", "bounded-claims-3", "cliques-2", "costs-1", "mixed-2", "nvswitch-3", "shares-1",
)  # fmt: skip
SEARCH: Final = {"budgetMilliseconds": 60_000, "searchBudget": 2_000}
"""The budget in sets alone ends a search: time must not change an answer."""


def drawn() -> dict[str, Scenario]:
    """All clusters, by name."""
    found = {f"drawn-{seed}": _stated(clusters.drawn(seed)) for seed in DRAWN}
    found |= {f"claims-{seed}": _stated(clusters.with_claims(clusters.drawn(seed))) for seed in CLAIMS}
    found |= {name: _replayed(name) for name in REPLAYED}
    found |= {"torn": _torn(), "owners": _owners(), "resource-quotas": _resource_quotas()}
    # In the order of keys that their files have: an answer may show it.
    return {name: Scenario(*json.loads(json.dumps(scenario, sort_keys=True))) for name, scenario in found.items()}


def _stated(stated: Stated) -> Scenario:
    settings = stated.settings.model_dump(by_alias=True, exclude_unset=True, mode="json")
    claims = [one for one in stated.asked if one["kind"] == "ResourceClaim"]
    asked = {
        f"{one['metadata']['name']}.json": [{"apiVersion": "v1"} | one, *claims]
        for one in stated.asked
        if one["kind"] != "ResourceClaim"
    }
    return Scenario(list(stated.items), _searching(settings), rfc3339(stated.wall), asked)


def _searching(settings: JSON) -> JSON:
    return HEAD | settings | {"preemption": settings.get("preemption", {}) | SEARCH}


def _replayed(name: str) -> Scenario:
    """The cluster at the end of a recording, with gangs in the queue."""
    settings, steps = player.read(name)
    objects: dict[tuple[str, str], JSON] = {}
    for step in steps:
        kind = step.get("set") or step.get("delete")
        if kind:
            wire = step["object"]
            kind = wire.get("kind", kind)
            key = kind, wire["metadata"]["name"]
            objects.pop(key, None)
            if "set" in step and wire.get("status", {}).get("phase") != "Failed":
                objects[key] = {"apiVersion": API.get(kind, clusters.API.get(kind, "v1")), "kind": kind} | wire
    resource = AMD if name.startswith("amd") else GPU
    items = [*objects.values(), *_queued(resource), *_waiting(resource)]
    asked = {
        "urgent.json": [_pod("urgent", 4, resource, priority=5_000)],
        "linked.json": [_pod("linked", 2, resource, links="required")],
        "gang.json": list(_gang("asked", 2, 4, resource, priority=2_000)),
    }
    now = WALL + float(steps[-1]["at"])
    return Scenario(items, _searching(settings | {"queue": {"enabled": True}}), rfc3339(now), asked)


def _queued(resource: str) -> Iterator[JSON]:
    """Gangs and a pod behind the gate of the queue."""
    gate: JSON = {"spec": {"schedulingGates": [{"name": GATE}]}}
    yield from _gang("large", 3, 8, resource, priority=10, **gate)
    yield from _gang("small", 2, 1, resource, notes={OURS + "duration": "1h"}, **gate)
    yield from _gang("near", 2, 2, resource, notes={OURS + "domain": "required:clique"}, links="required", **gate)
    yield from _gang("part", 4, 2, resource, notes={OURS + "gang-min": "2"}, priority=1_000, **gate)
    yield _pod("alone", 1, resource, priority=100, **gate)


def _waiting(resource: str) -> Iterator[JSON]:
    """Pods that wait without the queue: for links, for a whole node, and without the right to evict."""
    yield _pod("tight", 2, resource, links="required")
    yield _pod("whole", 8, resource, priority=50)
    yield _pod("meek", 4, resource, priority=500, never=True, links="required")


def _gang(name: str, pods: int, gpus: int, resource: str, notes: JSON | None = None, **facts: Any) -> Iterator[JSON]:
    stated = {OURS + "gang": name, OURS + "gang-size": str(pods)} | (notes or {})
    for number in range(pods):
        yield _pod(f"{name}-{number}", gpus, resource, annotations=stated, **facts)


def _pod(name: str, gpus: int, resource: str, **facts: Any) -> JSON:
    made = workload(name, gpus, resource=resource, **facts)
    made["metadata"]["creationTimestamp"] = rfc3339(WALL - 1_000 - len(name))
    return {"apiVersion": "v1", "kind": "Pod"} | made


def _torn() -> Scenario:
    """The worked example of docs/preemption.md, and the manifests of the documentation."""
    items = frozen.objects((EXAMPLES / "torn.yaml").read_bytes(), "torn.yaml")
    asked = {
        f"{path.stem}.json": frozen.objects(path.read_bytes(), path.name)
        for path in sorted(EXAMPLES.glob("*.yaml"))
        if path.stem != "torn"
    }
    asked = json.loads(json.dumps(asked, default=str))
    items += _waiting(GPU)
    return Scenario(json.loads(json.dumps(items, default=str)), _searching({}), "2026-03-02T12:00:00Z", asked)


def _owners() -> Scenario:
    """Owners of each kind whose early pods wait behind the gate, each in a namespace of its own, over two racks."""
    items: list[JSON] = []
    for number in range(4):
        links, labels = pairs(8), {RACK: f"r{number // 2}", "nvidia.com/gpu.product": "H100"}
        items.append({"apiVersion": "v1", "kind": "Node"} | machine(f"n{number}", 8, links=links, labels=labels))
    items.append({"apiVersion": "v1", "kind": "Pod"} | _running("notebook", 2, "n0"))
    asked: dict[str, list[JSON]] = {}
    for number, (title, owner) in enumerate(OWNERS.items()):
        pods: list[JSON] = [{"apiVersion": "v1", "kind": "Pod"} | owner.make(name, gated=True) for name in owner.early]
        for pod in pods:
            pod["metadata"]["creationTimestamp"] = rfc3339(WALL - 100 * (number + 1))
        text = json.dumps([*owner.objects, *pods]).replace('"uid": "', f'"uid": "{number}-')
        objects = json.loads(text.replace('"namespace": "default"', f'"namespace": "space-{number}"'))
        items += objects
        asked[re.sub(r"\W+", "-", title.lower()) + ".json"] = json.loads(json.dumps([*owner.objects]))
    both = job_set()
    both["metadata"]["namespace"] = "team"
    items += [both, *gated_pods()]
    settings = {"queue": {"enabled": True}, "topologyLevels": [RACK]}
    return Scenario(json.loads(json.dumps(items)), _searching(settings), rfc3339(WALL), asked)


def _running(name: str, gpus: int, node: str, **facts: Any) -> JSON:
    return workload(name, gpus, node=node, phase="Running", start=WALL - 7_200, held=range(gpus), **facts)


def _resource_quotas() -> Scenario:
    """ResourceQuotas by priority class, pods that they refuse, and an older pod of low priority."""
    items = [{"apiVersion": "v1", "kind": "Node"} | machine(name, 8, links=pairs(8)) for name in ("n0", "n1")]
    items += [{"apiVersion": "v1", "kind": "Pod"} | _running("low", 8, "n1", priority=-5), *read(DOCUMENT)]
    pods = [_pod("quick", 4, GPU, namespace="a", priority=10), *_gang("wide", 2, 8, GPU, namespace="a")]
    limited = quota({"requests.nvidia.com/gpu": "6"}, status={"used": {"requests.nvidia.com/gpu": "3"}})
    asked = {f"{one['metadata']['name']}.json": [one] for one in (*read(WORK), job("batch", 2, 4))}
    return Scenario([*items, limited, *pods], _searching({}), rfc3339(WALL), asked)
