"""kube-scheduler's own victims, as benchmarks/preemption_rules.py has them, beside the real kube-scheduler's."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from functools import partial
from typing import Any

import orjson
import pytest

from benchmarks.preemption_rules import PRIORITIES, State, in_tree, in_tree_victims, node_name
from tests.e2e import builders
from tests.e2e.api import Api
from tests.e2e.cluster import Scheduler
from tests.e2e.extender_process import extender_entry
from tests.e2e.kubelet import SimulatedKubelets
from tests.e2e.recorder import Object, RecordingExtender, agree
from tests.waiting import wait_for

NODES = 6


def fill(api: Api, nodes: SimulatedKubelets, namespace: str, state: State) -> None:
    """The state's pods, running since when it says, and its budgets, counted."""
    nodes.add_nodes([node_name(i) for i in range(NODES)], topology="dgx-h100", plugin="none")
    for priority in PRIORITIES:
        api.create(builders.priority_class(f"class-{priority}", priority))
    api.create(builders.priority_class("urgent", 1000))
    for pod in state.pods:
        labels = {"budget": str(pod.budgets[0])} if pod.budgets else {}
        options: dict[str, Any] = {"priority_class": f"class-{pod.priority}", "grace": 1, "labels": labels}
        api.create(builders.pod(pod.name, namespace, pod.size, node_name=node_name(pod.node), **options))
    wait_for(
        lambda: all(pod["status"].get("phase") == "Running" for pod in api.list("Pod", namespace)), 60, "running pods"
    )
    for pod in state.pods:
        start = datetime.datetime.fromtimestamp(pod.start, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        api.patch("Pod", pod.name, {"status": {"startTime": start}}, namespace, subresource="status")
    for number, allowed in enumerate(state.allowed):
        members = sum(1 for pod in state.pods if number in pod.budgets)
        state.allowed[number] = min(allowed, members)
        least = members - state.allowed[number]
        api.create(builders.pdb(f"budget-{number}", namespace, {"budget": str(number)}, min_available=least))
    wait_for(
        lambda: (
            [
                api.get("PodDisruptionBudget", f"budget-{number}", namespace)["status"].get("disruptionsAllowed")
                for number in range(len(state.allowed))
            ]
            == state.allowed
        ),
        60,
        "counted budgets",
    )


@pytest.mark.parametrize("seed", [1, 5])
def test_its_victims_on_every_node_and_its_node(
    api: Api,
    namespace: str,
    kubelets: Callable[..., SimulatedKubelets],
    scheduler: Callable[..., Scheduler],
    seed: int,
) -> None:
    state = State.make(NODES, seed, "multigpu50")
    fill(api, kubelets(), namespace, state)
    uid_of = {pod["metadata"]["uid"]: pod["metadata"]["name"] for pod in api.list("Pod", namespace)}
    agreeing = False

    def preempt(arguments: Object) -> Object:
        return agree(arguments) if agreeing else {}

    def asked(name: str) -> Object | None:
        bodies = (orjson.loads(body) for verb, _, body in recorder.requests if verb == "preempt")
        return next((body["NodeNameToMetaVictims"] for body in bodies if body["Pod"]["metadata"]["name"] == name), None)

    with RecordingExtender({"preempt": preempt}) as recorder:
        entry = extender_entry(recorder.url)
        del entry["bindVerb"]
        scheduler({"extenders": [entry]})
        for need in (1, 2, 4, 8):
            api.create(builders.pod(f"asks-{need}", namespace, need, priority_class="urgent"))
            sent = wait_for(partial(asked, f"asks-{need}"), 60, "a preempt request")
            offered = {
                node: (sorted(uid_of[pod["UID"]] for pod in offer["Pods"]), offer.get("NumPDBViolations") or 0)
                for node, offer in sent.items()
            }
            expected = {}
            for i in range(NODES):
                found = in_tree_victims(state, i, need)
                assert found is not None
                expected[node_name(i)] = (sorted(pod.name for pod in found[0]), found[1])
            assert offered == expected
            api.delete("Pod", f"asks-{need}", namespace, grace=0)
        agreeing = True
        api.create(builders.pod("lands", namespace, 4, priority_class="urgent"))
        wait_for(lambda: api.get("Pod", "lands", namespace)["status"].get("phase") == "Running", 60, "the preemptor")
        gone = {pod.name for pod in state.pods} - {pod["metadata"]["name"] for pod in api.list("Pod", namespace)}
        best = in_tree(state, range(NODES), 4)
        assert best is not None
        assert gone == {pod.name for pod in best[1]}
