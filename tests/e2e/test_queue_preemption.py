"""Evictions for a gang in the queue, on the real control plane: exactly the plan that was shown, and none in vain."""

from __future__ import annotations

import time
from typing import Any

from extender.ask.text import terms
from tests import plain
from tests.e2e import builders
from tests.e2e.scene import H100, Scene, SceneFactory, quiet
from tests.e2e.test_evictions import events
from tests.e2e.test_preemption import classes
from tests.e2e.test_queue import gated, job, nodes_of, pods_of, waits
from tests.waiting import wait_for

LOST = {"n1-a": 10, "n1-b": 21, "n2-a": 43, "n2-b": 87, "n3-a": 1750, "n3-b": 3500}
"""Seconds that each of the running pods loses beside its age; no two pairs have one sum."""


TERMINATION_SECONDS = 1.0
START_SECONDS = 5.0
"""The most that an urgent gang takes to start, once its victims have terminated."""


def settings(namespace: str, *, evictions: bool) -> dict[str, Any]:
    return {
        "queue": {"enabled": True, "lease": f"queue-{namespace}", "reservations": f"seats-{namespace}"},
        "evictions": {"enabled": evictions, "lease": f"evictions-{namespace}"},
    }


def full(scene: SceneFactory, namespace: str, *, evictions: bool) -> Scene:
    """Three nodes with two pods of 4 GPUs each."""
    nodes = dict.fromkeys(("n1", "n2", "n3"), H100)
    cluster = scene(nodes, settings=settings(namespace, evictions=evictions), kubelet={"termination_seconds": 3})
    classes(cluster)
    for name, seconds in LOST.items():
        notes = {"gpu-extender.io/restart-seconds": str(seconds)}
        host = {"kubernetes.io/hostname": name[:2]}
        labels = {"app": "low", "pair": name[:2]}
        cluster.pod(name, 4, priority_class="low", annotations=notes, node_selector=host, labels=labels)
    cluster.running(*LOST)
    return cluster


def queue(cluster: Scene) -> Any:
    with plain.client() as http:
        return http.get(f"{cluster.extender.url}/debug/queue").json()


def plan(cluster: Scene) -> Any:
    """Wait until the page shows what would start the first gang."""

    def shown() -> Any:
        waiting = queue(cluster)["waiting"]
        return waiting[0]["ways_out"][0] if waiting and waiting[0]["ways_out"] else None

    return wait_for(shown, 60, lambda: str(queue(cluster)))


def evicted(cluster: Scene, outcome: str) -> int:
    """Pods that were evicted for gangs that started, or in vain."""
    return int(cluster.metric("gpu_extender_queue_evictions_total", f'outcome="{outcome}"'))


def test_a_gang_evicts_the_plan_that_was_shown_and_starts_whole(scene: SceneFactory, namespace: str) -> None:
    """With evictions off no pod is evicted, and the plan is shown. Then they are switched on. A pod of low priority
    comes while the victims terminate, and gets none of their GPUs."""
    cluster = full(scene, namespace, evictions=False)
    job(cluster, "gang", 4, 4, priority_class="high")
    shown = plan(cluster)
    victims = sorted(one["name"] for one in shown["spec"]["victims"])
    assert victims == ["n1-a", "n1-b", "n2-a", "n2-b"]
    assert (shown["spec"]["certificate"]["proved"], shown["verified"]) == (True, True)
    quiet(3)
    assert cluster.alive(LOST) == set(LOST)
    assert waits(cluster, "gang")

    cluster.extender.kill()
    cluster.extender.configure(settings(namespace, evictions=True))
    cluster.extender.start()
    wait_for(lambda: len(cluster.alive(LOST)) < len(LOST), 60, lambda: str(queue(cluster)))
    cluster.pod("rival", 4, priority_class="lower")
    assert waits(cluster, "gang"), "the victims still hold their GPUs"
    assert sorted(set(nodes_of(cluster, "gang", 4, timeout=60))) == ["n1", "n2"]
    assert sorted(set(LOST) - cluster.alive(LOST)) == victims
    assert not cluster.get("rival")["spec"].get("nodeName")
    wait_for(lambda: evicted(cluster, "started") == 4, 60, "the evictions are counted")
    assert evicted(cluster, "in-vain") == 0
    assert cluster.evictions() == {}, "kube-scheduler itself evicts no pod"
    assert cluster.kubelets.truth.double_allocations == 0
    recorded(cluster, victims)


def recorded(cluster: Scene, victims: list[str]) -> None:
    """The page, an Event of each victim and the metrics state what the evictions cost."""
    with plain.client() as http:
        [record] = http.get(f"{cluster.extender.url}/preemptions.json").json()["preemptions"]
    assert record["result"] == "evicting"
    assert sorted(one["name"] for one in record["victims"]) == victims
    cost = {one["term"]: one["value"] for one in record["cost"]}
    assert cost["victims"] == 4
    assert cost["work_lost_gpu_seconds"] >= 4 * sum(LOST[name] for name in victims)
    text = terms([one for one in record["cost"] if one["term"] == "work_lost_gpu_seconds"])
    wait_for(lambda: len(events(cluster, "ChosenAsVictim")) == 4, 60, "an Event of each victim")
    told = events(cluster, "ChosenAsVictim")
    assert all(text in event["message"] for event in told)
    assert text in wait_for(lambda: events(cluster, "Evicting"), 60, "the gang's Event")[0]["message"]
    assert (
        cluster.metric("gpu_extender_preemption_work_lost_gpu_seconds_sum", 'by="queue"')
        == cost["work_lost_gpu_seconds"]
    )


def test_a_budget_is_respected(scene: SceneFactory, namespace: str) -> None:
    """First it allows two evictions of the four that are needed: none is made. Then it spares the cheapest pods."""
    cluster = full(scene, namespace, evictions=True)

    def allowed(name: str, pods: int) -> None:
        def counted() -> bool:
            status = cluster.api.get("PodDisruptionBudget", name, namespace).get("status", {})
            return bool(status.get("disruptionsAllowed") == pods and status.get("expectedPods"))

        wait_for(counted, 60, "the budget counts")

    cluster.api.create(builders.pdb("all", namespace, {"app": "low"}, min_available=4))
    allowed("all", 2)
    kept = 'gpu_extender_cache_objects{kind="PodDisruptionBudget"}'
    wait_for(lambda: cluster.metric(kept) == 1, 60, "the server knows the budget")
    job(cluster, "gang", 4, 4, priority_class="high")
    wait_for(lambda: plan(cluster)["cost"][0]["value"] == 2, 60, lambda: str(queue(cluster)))
    why = "a PodDisruptionBudget does not allow the eviction of 2 pods"
    wait_for(lambda: queue(cluster)["waiting"][0]["not_evicted"] == why, 60, lambda: str(queue(cluster)))
    assert why in wait_for(lambda: events(cluster, "EvictionNotAllowed"), 60, "the Event")[0]["message"]
    quiet(3)
    assert cluster.alive(LOST) == set(LOST)
    assert waits(cluster, "gang")
    cluster.api.create(builders.pdb("pair", namespace, {"pair": "n1"}, min_available=2))
    allowed("pair", 0)
    cluster.api.delete("PodDisruptionBudget", "all", namespace)
    assert sorted(set(nodes_of(cluster, "gang", 4, timeout=60))) == ["n2", "n3"]
    assert cluster.alive(LOST) == {"n1-a", "n1-b"}
    wait_for(lambda: evicted(cluster, "started") == 4, 60, "the evictions are counted")
    assert evicted(cluster, "in-vain") == 0


def remade_job(cluster: Scene, name: str, pods: int, gpus: int, priority_class: str) -> None:
    """A Job that makes each evicted pod anew. The Job controller waits 10 s for that, twice as long for each further
    failure of the same index; without a limit per index, of the same Job."""
    made = builders.job(name, pods, gated(cluster, name, gpus, cpu="100m", priority_class=priority_class))
    made["spec"] |= {"completionMode": "Indexed", "backoffLimitPerIndex": 10}
    cluster.api.create(made)


def starts_by_evictions(cluster: Scene, name: str, pods: int, of: str) -> float:
    """Create an urgent gang; seconds from the last deletion of a pod of the Job `of` until all its pods are bound."""
    before = {pod["metadata"]["uid"] for pod in pods_of(cluster, of) if pod["spec"].get("nodeName")}
    remade_job(cluster, name, pods, 8, "urgent")
    terminated: list[float] = []

    def bound() -> bool:
        # The gang first: victims that terminate between the two lists are then seen to have terminated.
        whole = [bool(pod["spec"].get("nodeName")) for pod in pods_of(cluster, name)] == [True] * pods
        running = {pod["metadata"]["uid"] for pod in pods_of(cluster, of) if pod["metadata"]["uid"] in before}
        if len(before - running) >= pods and not terminated:
            terminated.append(time.monotonic())
        return whole

    wait_for(bound, 60, lambda: str(queue(cluster)))
    assert terminated, "its victims terminate before it starts"
    return time.monotonic() - terminated[0]


def test_urgent_gangs_start_one_after_the_other_while_the_job_remakes_their_victims(
    scene: SceneFactory, namespace: str
) -> None:
    """The Job that lacks the pods that were evicted waits behind the second urgent gang, and does not hold it up."""
    nodes = {f"n{i:02d}": H100 for i in range(30)}
    kubelet = {"termination_seconds": TERMINATION_SECONDS}
    cluster = scene(nodes, settings=settings(namespace, evictions=True), kubelet=kubelet)
    cluster.priorities(low=1000, urgent=100_000)
    remade_job(cluster, "low", 30, 8, "low")
    nodes_of(cluster, "low", 30)
    for name in ("ug1", "ug2"):
        took = starts_by_evictions(cluster, name, 4, "low")
        print(f"{name} starts {took:.1f} s after its victims have terminated")
        assert took <= START_SECONDS
        wait_for(lambda: len(pods_of(cluster, "low")) >= 30, 60, "the Job makes the evicted pods anew")
    for name in ("ug1", "ug2"):
        assert len(set(nodes_of(cluster, name, 4))) == 4
    assert evicted(cluster, "in-vain") == 0
    assert cluster.kubelets.truth.double_allocations == 0
