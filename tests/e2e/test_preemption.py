"""Preemption on the real kube-scheduler: exactly the cheapest victims, once, and never in vain."""

from __future__ import annotations

import datetime
import itertools
import random

from tests.e2e import builders
from tests.e2e.scene import H100, Scene, SceneFactory, quiet
from tests.waiting import wait_for


def classes(cluster: Scene) -> None:
    for name, value, preempts in (("high", 1000, True), ("low", 10, True), ("lower", 5, True), ("polite", 1000, False)):
        cluster.api.create(builders.priority_class(name, value, preempts=preempts))


def ago(seconds: float) -> str:
    moment = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=seconds)
    return moment.isoformat(timespec="seconds")


def test_the_cheapest_victims_go_and_the_preemptor_lands(scene: SceneFactory) -> None:
    """Twelve pods on three full nodes; brute force over all subsets says which have to go."""
    cluster = scene({f"n{i}": H100 for i in range(3)})
    classes(cluster)
    # No two pairs have one sum (a Golomb ruler), and all are within the bound of the settings.
    costs = [100 + 40 * mark for mark in (0, 2, 6, 24, 29, 40, 43, 55, 68, 75, 76, 85)]
    random.Random(7).shuffle(costs)
    saved: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for i in range(12):
        name = f"w{i:02d}"
        saved[name] = costs[i]
        sizes[name] = 2
        cluster.pod(
            name,
            2,
            priority_class="low",
            annotations={
                "gpu-extender.io/restart-seconds": str(saved[name]),  # dominates the seconds since the start
                "gpu-extender.io/last-checkpoint": ago(0),
            },
            grace=1,
        )
    nodes = dict(zip(sizes, cluster.running(*sizes), strict=True))
    cluster.pod("urgent", 4, priority_class="high")
    cluster.running("urgent")
    gone = set(sizes) - cluster.alive(sizes)
    best = min(
        (
            (sum(2 * saved[name] for name in victims), 1, len(victims), node, victims)
            for node in set(nodes.values())
            for size in (1, 2, 3)
            for victims in itertools.combinations(sorted(n for n in nodes if nodes[n] == node), size)
            if sum(sizes[name] for name in victims) >= 4
        ),
    )
    assert gone == set(best[-1]), (gone, best)
    assert cluster.running("urgent") == [best[-2]]
    for name in gone:
        shown = cluster.explained(name)
        assert shown["verdict"] == "evicted"
        evicted = shown["evicted"]
        assert (evicted["by"], evicted["evictor"]) == (f"{cluster.namespace}/urgent", "kube-scheduler")
        assert evicted["victims"] == len(gone)
        assert any(one["result"] == "evict" for one in shown["decisions"])
    stays = min(set(sizes) - gone)
    above = cluster.explained(stays)["evictable_by"]
    assert "high" in [one["priority_class"] for one in above]
    assert cluster.kubelets.truth.double_allocations == 0


def test_never_evicts_nobody(scene: SceneFactory) -> None:
    cluster = scene({"n1": H100})
    classes(cluster)
    cluster.pod("w", 8, priority_class="low", grace=1)
    cluster.running("w")
    cluster.pod("patient", 4, priority_class="polite")
    cluster.unschedulable("patient", "preemption")
    quiet(3)
    assert cluster.alive(["w"]) == {"w"}


def test_a_restart_forgets_for_which_pod_a_victim_was_evicted_and_says_so(scene: SceneFactory) -> None:
    """kube-scheduler's condition on the pod that terminates is all that the new process sees."""
    cluster = scene({"n1": H100}, kubelet={"termination_seconds": 20})
    classes(cluster)
    cluster.pod("w", 8, priority_class="low", grace=60)
    cluster.running("w")
    cluster.pod("urgent", 8, priority_class="high")
    wait_for(lambda: cluster.get("w")["metadata"].get("deletionTimestamp"), 60, "the eviction")
    assert cluster.explained("w")["evicted"]["by"] == f"{cluster.namespace}/urgent"
    cluster.extender.kill()
    cluster.extender.start()
    shown = cluster.explained("w")
    assert (shown["verdict"], shown["evicted"]["evictor"]) == ("evicted", "kube-scheduler")
    assert (shown["evicted"]["by"], shown["evicted"]["cost"]) == (None, None)
    cluster.running("urgent", timeout=60)
    assert cluster.explained("w")["verdict"] == "evicted"
    assert "kubectl get events" in cluster.explained("nobody")["error"]["message"]


def test_slow_termination_makes_no_second_eviction(scene: SceneFactory) -> None:
    """The victims take 6 s to go; the preemptor waits for them, and nobody else is evicted meanwhile."""
    cluster = scene({f"n{i}": H100 for i in range(2)}, kubelet={"termination_seconds": 6})
    names = cluster.full_of_low_pods(grace=30)
    cluster.pod("urgent", 4, priority_class="high")
    wait_for(lambda: len(cluster.alive(names)) < 4, 60, "an eviction")
    # Something else happens in the cluster: every waiting pod is tried again.
    stays = min(cluster.alive(names))  # a victim may be gone before the last patch
    for i in range(4):
        quiet(1)
        cluster.api.patch("Pod", stays, {"metadata": {"annotations": {"x": str(i)}}}, cluster.namespace)
    cluster.running("urgent", timeout=60)
    assert len(cluster.alive(names)) == 3


def test_a_restart_in_the_middle_of_a_preemption_evicts_nobody_else(scene: SceneFactory) -> None:
    cluster = scene({f"n{i}": H100 for i in range(2)}, kubelet={"termination_seconds": 5})
    names = cluster.full_of_low_pods(grace=30)
    cluster.pod("urgent", 4, priority_class="high")
    wait_for(lambda: len(cluster.alive(names)) < 4, 60, "an eviction")
    cluster.extender.kill()
    cluster.api.create(builders.pod("noise", cluster.namespace, 1))  # meets the dead server, and wakes the queue
    quiet(2)
    cluster.extender.start()
    cluster.running("urgent")
    assert len(cluster.alive(names)) == 3
    assert cluster.kubelets.truth.double_allocations == 0


def test_links_alone_neither_spin_nor_evict_in_vain(scene: SceneFactory) -> None:
    """40 nodes with enough GPUs in number and none linked: the pod waits quietly, an innocent pod lives."""
    nodes = {f"n{i:02d}": {"topology": "l4-8"} for i in range(40)}
    cluster = scene(nodes)
    classes(cluster)
    cluster.pod("innocent", 8, priority_class="low", grace=1)
    cluster.running("innocent")
    cluster.pod("urgent", 4, links="required", priority_class="high")
    cluster.unschedulable("urgent", "gpu-extender: ")
    quiet(2)
    before = cluster.filter_calls()
    quiet(30)
    assert cluster.filter_calls() - before <= 5  # 10 a minute
    assert cluster.alive(["innocent"]) == {"innocent"}
