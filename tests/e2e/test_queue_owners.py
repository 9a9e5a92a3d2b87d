"""Gangs of Ray, TrainJob, Volcano and Grove through the queue: what-if says from the file what then happens in the
cluster.

Ray's operator, Kubeflow Trainer and JobSet's controller are the released ones. The controllers of Volcano and Grove are
recorded (`gang_owners.py`). Volcano's CRDs are made from its released types; those of Grove state no fields.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from extender.kube.client import NoAnswer
from tests.e2e.api import Api, Object, Watch
from tests.e2e.cluster import ControlPlane
from tests.e2e.conftest import Ask
from tests.e2e.gang_controllers import JOBSET, RAY, TRAINER, VOLCANO, build, defined, read, running
from tests.e2e.gang_owners import (
    GROVE_KINDS,
    RESTART,
    Gang,
    GangOwner,
    Grove,
    Ray,
    Trainer,
    Volcano,
    named,
    pods_of,
    posted,
    untyped,
)
from tests.e2e.scene import H100, Scene, SceneFactory, quiet
from tests.e2e.test_preemption import classes
from tests.e2e.test_queue import GATE
from tests.e2e.test_queue_preemption import evicted
from tests.e2e.test_queue_preemption import settings as evicting
from tests.e2e.watching import Watching
from tests.waiting import wait_for

CONTROLLERS = {Ray: (RAY,), Trainer: (JOBSET, TRAINER)}
OWNERS = (Ray, Trainer, Volcano, Grove)


@pytest.fixture(params=OWNERS, ids=lambda kind: kind.__name__.lower())
def owner(api: Api, control_plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[GangOwner]:
    """With what reads its objects."""
    binaries = build()
    with ExitStack() as stack:
        for controller in CONTROLLERS.get(request.param, ()):
            stack.enter_context(running(control_plane, binaries, controller))
        if request.param is Volcano:
            stack.enter_context(defined(api, read(binaries, VOLCANO, crds=True)))
        if request.param is Grove:
            stack.enter_context(defined(api, [untyped(*kind) for kind in GROVE_KINDS]))
        yield request.param()


class Openings(Watching):
    """For each gang, what its pods were when the first of their gates opened: whether each had a seat. One watch has
    the changes of all pods in their order."""

    def __init__(self, api: Api, namespace: str, label: str) -> None:
        super().__init__(api)
        self.seats: dict[str, list[bool]] = {}
        self._label = label
        self._pods: dict[str, tuple[str, bool]] = {}
        self._beside(self._keep, namespace)

    def _keep(self, namespace: str) -> None:
        with suppress(NoAnswer):  # the watch is closed
            self._follow(self._watch("Pod", namespace, self._api.list_raw("Pod", namespace)[1], ""))

    def _follow(self, watch: Watch) -> None:
        for change, pod in watch:
            meta = pod["metadata"]
            gang = meta.get("labels", {}).get(self._label, "")
            if change == "DELETED":
                self._pods.pop(meta["uid"], None)
                continue
            self._pods[meta["uid"]] = gang, bool(pod["status"].get("nominatedNodeName"))
            if gang not in self.seats and not gated(pod):
                self.seats[gang] = [seat for name, seat in self._pods.values() if name == gang]


def gated(pod: Object) -> bool:
    return any(gate["name"] == GATE for gate in pod["spec"].get("schedulingGates", ()))


def nodes_of(cluster: Scene, owner: GangOwner, gang: Gang) -> list[str]:
    """Wait until all pods of a gang run; their nodes."""
    pods = owner.leaders + gang.workers

    def look() -> list[str] | None:
        found = pods_of(cluster.api, owner, gang)
        nodes = [pod["spec"]["nodeName"] for pod in found if pod["status"].get("phase") == "Running"]
        return sorted(nodes) if len(nodes) == len(found) == pods else None

    return wait_for(look, 60, lambda: str([(p["metadata"], p["status"]) for p in pods_of(cluster.api, owner, gang)]))


def starts_as_what_if_says(cluster: Scene, ask: Ask, owner: GangOwner, gang: Gang, verdict: str) -> Any:
    """Ask about the file, create its objects, and compare the nodes. The answer."""
    code, answer = ask(cluster, owner.manifests(gang))
    assert code == {"fits": 0, "evict": 10}[verdict], answer
    [group] = answer["groups"]
    assert group["verdict"] == verdict, answer
    owner.create(cluster.api, gang)
    assert nodes_of(cluster, owner, gang) == sorted(pod["node"] for pod in group["pods"])
    return answer


def test_a_gang_of_each_owner(scene: SceneFactory, owner: GangOwner, ask: Ask, namespace: str) -> None:
    """Two gangs start on five nodes. A third waits whole, though half of it would fit, and starts whole once the node
    comes that what-if and explain ask for. An urgent one then evicts the gang that loses least, and no pod else."""
    nodes = {f"n{i}": H100 for i in range(5)}
    kubelet = {"termination_seconds": 1}
    cluster = scene(nodes, settings=evicting(namespace, evictions=True), kubelet=kubelet)
    classes(cluster)
    costly, cheap, later = (
        Gang(name, namespace, 2, "low", loses) for name, loses in (("costly", 3000), ("cheap", 30), ("later", 2000))
    )
    with Openings(cluster.api, namespace, owner.label) as openings:
        for gang in (costly, cheap):
            starts_as_what_if_says(cluster, ask, owner, gang, "fits")
        waits_and_starts_with_one_node_more(cluster, ask, owner, later)
        before = {
            gang.name: {pod["metadata"]["name"] for pod in pods_of(cluster.api, owner, gang)}
            for gang in (costly, cheap, later)
        }
        urgent = Gang("urgent", namespace, 2, "high", 0)
        answer = starts_as_what_if_says(cluster, ask, owner, urgent, "evict")
        victims = {victim["name"] for victim in answer["groups"][0]["victims"]}
        assert victims
        assert victims <= before["cheap"]
        everyone = set().union(*before.values())
        assert everyone - cluster.alive(everyone) == victims
        wait_for(lambda: evicted(cluster, "started") == len(victims), 60, "the evictions are counted")
    assert evicted(cluster, "in-vain") == 0
    assert openings.seats == {
        gang.name: [True] * (owner.leaders + gang.workers) for gang in (costly, cheap, later, urgent)
    }
    assert cluster.kubelets.truth.double_allocations == 0


def waits_and_starts_with_one_node_more(cluster: Scene, ask: Ask, owner: GangOwner, gang: Gang) -> None:
    code, answer = ask(cluster, owner.manifests(gang))
    [group] = answer["groups"]
    assert (code, group["verdict"], {pod["node"] for pod in group["pods"]}) == (11, "cannot", {None}), answer
    owner.create(cluster.api, gang)
    pods = owner.leaders + gang.workers
    wait_for(lambda: len(pods_of(cluster.api, owner, gang)) == pods, 60, "its pods exist")
    quiet(2)
    found = pods_of(cluster.api, owner, gang)
    assert all(map(gated, found))
    for waiting in found:
        explained = cluster.explained(waiting["metadata"]["name"])
        assert (explained["verdict"], group["text"] in explained["sentence"]) == ("gated", True), explained
    pod = ("--pod", f"{gang.namespace}/{found[0]['metadata']['name']}")
    code, live = ask(cluster, [], *pod)
    assert (code, live["groups"][0]["text"], len(live["groups"][0]["pods"])) == (11, group["text"], pods)
    for ways in (group["ways_out"], live["groups"][0]["ways_out"], explained["ways_out"]):
        [more] = [way["spec"] for way in ways if way["kind"] == "add-nodes"]
        assert more["count"] == 1
    assert (
        ask(cluster, [], "--pod", f"{gang.namespace}/{found[0]['metadata']['name']}", "--add", "1", more["like"])[0]
        == 0
    )
    cluster.kubelets.add_node("n5", **H100)
    assert {"n5"} < set(nodes_of(cluster, owner, gang))


@pytest.mark.parametrize("owner", [Volcano, Grove, Ray], indirect=True, ids=lambda kind: kind.__name__.lower())
def test_a_gang_starts_at_the_minima_of_its_roles_and_keeps_them(
    scene: SceneFactory, owner: GangOwner, ask: Ask, namespace: str
) -> None:
    """Of three workers one must run, beside the leader. Two find room; the third waits. An urgent pod evicts one of the
    two, which loses hours: the only pod with a GPU that another gang has loses seconds, and is its minimum."""
    nodes = dict.fromkeys(("n0", "n1", "n2"), H100)
    cluster = scene(nodes, settings=evicting(namespace, evictions=True), kubelet={"termination_seconds": 1})
    classes(cluster)
    tight, elastic = Gang("tight", namespace, 1, "low", 10), Gang("elastic", namespace, 3, "low", 9000, least=1)
    with Openings(cluster.api, namespace, owner.label) as openings:
        starts_as_what_if_says(cluster, ask, owner, tight, "fits")
        owner.create(cluster.api, elastic)

        def started() -> set[str]:
            return {
                pod["metadata"]["name"] for pod in pods_of(cluster.api, owner, elastic)
                if pod["status"].get("phase") == "Running"
            }  # fmt: skip

        wait_for(lambda: len(started()) == 3, 60, "the leader and two workers run")
        quiet(2)
        [last] = [pod for pod in pods_of(cluster.api, owner, elastic) if pod["metadata"]["name"] not in started()]
        assert gated(last)
    assert openings.seats["elastic"].count(True) >= owner.leaders + elastic.least
    assert cluster.explained(last["metadata"]["name"])["verdict"] == "gated"
    running = started() | {pod["metadata"]["name"] for pod in pods_of(cluster.api, owner, tight)}
    cluster.pod("urgent", 8, priority_class="high")
    wait_for(lambda: len(cluster.alive(running)) == len(running) - 1, 60, "a pod is evicted")
    [victim] = running - cluster.alive(running)
    assert victim.startswith("elastic")
    cost = {term["term"]: term["value"] for term in cluster.explained(victim)["evicted"]["cost"]}
    assert (cost["victims"], cost["gangs_broken"]) == (1, 0)
    cluster.running("urgent")
    assert cluster.kubelets.truth.double_allocations == 0


LOSES = {"n1-head": 10, "n1-w": 20, "n2-w": 900, "n2-v": 1000, "n3-w": 3000, "n3-other": 3000}
"""Seconds of work that each pod loses beside its age; all but the last are of one PodGang."""


def test_no_role_of_a_gang_is_brought_below_its_minimum(scene: SceneFactory, api: Api, namespace: str) -> None:
    """A PodGang needs its head and two of four workers. Two pods have to go. The head and the worker beside it lose
    least, and would leave three pods, which is the minimum of all. They would break the gang."""
    with defined(api, [untyped(*kind) for kind in GROVE_KINDS]):
        nodes = dict.fromkeys(("n1", "n2", "n3"), H100)
        cluster = scene(nodes, settings=evicting(namespace, evictions=True), kubelet={"termination_seconds": 1})
        classes(cluster)
        groups = [{"name": name, "minReplicas": least, "podReferences": []} for name, least in (("head", 1), ("w", 2))]
        pod_gang = Gang("g", namespace, 4, "low", 0)
        posted(api, "podgangs", named("scheduler.grove.io/v1alpha1", "PodGang", pod_gang, {"podgroups": groups}))
        for name, seconds in LOSES.items():
            node, role = name.split("-")
            labels = {"grove.io/podgang": "g", "grove.io/podclique": "head" if role == "head" else "w"}
            cluster.pod(
                name, 4, priority_class="low", annotations={RESTART: str(seconds)}, grace=1,
                node_selector={"kubernetes.io/hostname": node}, labels={} if role == "other" else labels,
            )  # fmt: skip
        cluster.running(*LOSES)
        cluster.pod("urgent", 8, priority_class="high")
        wait_for(lambda: len(cluster.alive(LOSES)) == 4, 60, "two pods are evicted")
        assert set(LOSES) - cluster.alive(LOSES) == {"n2-w", "n2-v"}
        shown = cluster.explained("n2-w")
        cost = {term["term"]: term["value"] for term in shown["evicted"]["cost"]}
        assert (cost["victims"], cost["gangs_broken"]) == (2, 0)
