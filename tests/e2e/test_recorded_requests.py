"""What kube-scheduler sends to an extender, kept in tests/golden/recorded for the unit tests to replay.

The files are written when they are missing or ``GPU_EXTENDER_RECORD`` is set; otherwise the keys of today's
requests are compared with them, so a release that changes the wire is noticed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.e2e import builders
from tests.e2e.api import Api, Object
from tests.e2e.cluster import Scheduler
from tests.e2e.extender_process import extender_entry
from tests.e2e.kubelet import SimulatedKubelets
from tests.e2e.recorder import RecordingExtender
from tests.waiting import wait_for

RECORDED = Path(__file__).parents[1] / "golden" / "recorded"
NODES = ["gpu-0", "gpu-1", "gpu-2"]


def keys(value: Any, depth: int = 2) -> Any:
    """The keys of an object down to a depth; a map by node name counts as one key."""
    if not isinstance(value, dict) or depth == 0:
        return type(value).__name__
    if set(value) <= set(NODES):
        return ["<node>", *(keys(item, depth) for item in value.values())][:2]
    return {key: keys(item, depth - 1) for key, item in sorted(value.items())}


def keep_or_compare(verb: str, form: str, body: bytes) -> None:
    file = RECORDED / f"{verb}-{form}.json"
    if os.environ.get("GPU_EXTENDER_RECORD") or not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(body)
    assert keys(orjson.loads(body)) == keys(orjson.loads(file.read_bytes()))


@pytest.mark.parametrize("by_name", [True, False], ids=["names", "objects"])
def test_requests_have_the_documented_form(
    api: Api,
    kubelets: Callable[..., SimulatedKubelets],
    scheduler: Callable[..., Scheduler],
    by_name: bool,
) -> None:
    nodes = kubelets()
    nodes.add_nodes(NODES, topology="dgx1-v100")
    api.create(builders.priority_class("low", 10))
    api.create(builders.priority_class("high", 1000))
    team = {"team": "a"}
    for name in NODES:
        for size in (4, 2):
            pod = builders.pod(f"low-{size}-{name}", gpus=size, priority_class="low", labels=team, node_name=name)
            api.create(pod)
    nodes.settle()
    api.create(builders.pdb("budget", "default", team, min_available=5))

    def counted() -> bool:
        found = api.get("PodDisruptionBudget", "budget", "default")
        return bool(found.get("status", {}).get("currentHealthy") == 6)

    wait_for(counted, 60, "the budget counts all pods")

    with RecordingExtender() as recorder:
        entry = extender_entry(recorder.url, nodeCacheCapable=by_name)
        del entry["bindVerb"]
        scheduler({"extenders": [entry], "percentageOfNodesToScore": 100})
        api.create(builders.pod("small", gpus=1, priority_class="high"))
        wait_for(lambda: recorder.bodies("prioritize"), 60, "prioritize is called")
        wait_for(lambda: api.get("Pod", "small", "default")["spec"].get("nodeName"), 60, "it is bound")
        nodes.settle()
        api.create(builders.pod("large", gpus=8, priority_class="high"))
        wait_for(lambda: recorder.bodies("preempt"), 60, "preempt is called")
        wait_for(lambda: api.get("Pod", "large", "default")["spec"].get("nodeName"), 60, "it is bound")
        requests = list(recorder.requests)

    for _, headers, _ in requests:
        assert headers["Content-Type"] == "application/json"
        assert "Authorization" not in headers
    form = "names" if by_name else "objects"
    for verb in ("filter", "prioritize", "preempt"):
        keep_or_compare(verb, form, next(body for name, _, body in requests if name == verb))

    for verb in ("filter", "prioritize"):
        arguments = orjson.loads(recorder.bodies(verb)[0])
        assert list(arguments) == ["Pod", "Nodes", "NodeNames"]
        assert arguments["Pod"]["metadata"]["name"] == "small"
        assert "kind" not in arguments["Pod"]
        assert "managedFields" not in arguments["Pod"]["metadata"]
        if by_name:
            assert arguments["Nodes"] is None
            assert sorted(arguments["NodeNames"]) == NODES
        else:
            assert arguments["NodeNames"] is None
            assert sorted(n["metadata"]["name"] for n in arguments["Nodes"]["items"]) == NODES
    check_preempt(orjson.loads(recorder.bodies("preempt")[0]), by_name)


def check_preempt(arguments: Object, by_name: bool) -> None:
    assert list(arguments) == ["Pod", "NodeNameToVictims", "NodeNameToMetaVictims"]
    assert arguments["Pod"]["metadata"]["name"] == "large"
    meta, full = arguments["NodeNameToMetaVictims"], arguments["NodeNameToVictims"]
    offered = meta if by_name else full
    assert (full if by_name else meta) is None
    # "small" has the preemptor's own priority, so its node is no candidate.
    assert len(offered) == 2
    for offer in offered.values():
        # Of the two pods of the budget on a node one may go: the other is a violation.
        assert offer["NumPDBViolations"] == 1
        assert len(offer["Pods"]) == 2
        if by_name:
            assert all(list(victim) == ["UID"] for victim in offer["Pods"])
