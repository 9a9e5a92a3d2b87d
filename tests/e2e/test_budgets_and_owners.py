"""Whom eviction spares, who comes back after it, and how many go when several pods need room."""

from __future__ import annotations

from contextlib import ExitStack

import orjson

from tests.e2e import builders
from tests.e2e.recorder import RecordingExtender, agree
from tests.e2e.scene import H100, SceneFactory, quiet
from tests.waiting import wait_for

RESTART = "gpu-extender.io/restart-seconds"


def test_protected_pods_are_chosen_last(scene: SceneFactory) -> None:
    """The budget protects cheap pods: the dear ones go first, and kube-scheduler reads our count of violations."""
    with ExitStack() as stack:
        before, after = (stack.enter_context(RecordingExtender({"preempt": agree})) for _ in range(2))

        def entry(url: str) -> dict[str, object]:
            return {"urlPrefix": url, "preemptVerb": "preempt", "nodeCacheCapable": True, "httpTimeout": "5s"}

        cluster = scene(
            {f"n{i}": H100 for i in range(2)},
            earlier_extenders=[entry(before.url)],
            more_extenders=[entry(after.url)],
        )
        cluster.priorities(high=1000, low=10)
        for i in range(2):
            for j in range(2):
                cluster.pod(
                    f"w{i}{j}", 4, node_name=f"n{i}", priority_class="low", grace=1,
                    labels={"guarded": "yes"} if i == 0 else {}, annotations={RESTART: "60" if i == 0 else "9000"},
                )  # fmt: skip
        names = ["w00", "w01", "w10", "w11"]
        cluster.running(*names)
        cluster.api.create(builders.pdb("guard", cluster.namespace, {"guarded": "yes"}, min_available=1))
        wait_for(
            lambda: (
                cluster.api.get("PodDisruptionBudget", "guard", cluster.namespace)["status"]["disruptionsAllowed"] == 1
            ),
            60,
            "the budget is counted",
        )
        cluster.server_sees_budgets(1)
        quiet(1)  # until kube-scheduler has it too, which shows its budgets nowhere
        cluster.pod("first", 8, priority_class="high")
        assert cluster.running("first") == ["n1"]  # n0 would break the budget once, though it costs less
        cluster.pod("second", 8, priority_class="high")
        assert cluster.running("second") == ["n0"]
        told = cluster.evictions(4)
        evictions = {name: set(told[cluster.uids[name]]) for name in ("first", "second")}
        assert evictions == {"first": {"w10", "w11"}, "second": {"w00", "w01"}}

        def violations(recorder: RecordingExtender, name: str) -> list[dict[str, int]]:
            asked = [orjson.loads(body) for body in recorder.bodies("preempt")]
            return [
                {node: offer["NumPDBViolations"] for node, offer in one["NodeNameToMetaVictims"].items()}
                for one in asked
                if one["Pod"]["metadata"]["name"] == name
            ]

        print("PDB violations, kube-scheduler's own and ours:",
              {n: (violations(before, n), violations(after, n)) for n in ("first", "second")})  # fmt: skip
        assert violations(before, "first")[0] == {"n0": 1, "n1": 0}
        assert violations(after, "first")[0] == {"n1": 0}
        assert violations(before, "second")[0] == {"n0": 1}
        assert violations(after, "second")[0] == {"n0": 1}


def test_evicted_pods_of_owners_come_back_elsewhere(scene: SceneFactory) -> None:
    """The real controllers make new pods for a ReplicaSet and for a Job; they land on what is left."""
    cluster = scene({"n0": H100})
    cluster.priorities(high=1000, low=10)
    template = builders.pod("-", cluster.namespace, 4, priority_class="low", grace=1)
    cluster.api.create(builders.replica_set("set", 1, template))
    cluster.api.create(builders.job("job", 1, template))

    def homes() -> dict[str, str] | None:
        """Owner -> node, when a pod of each runs."""
        pods = cluster.api.list("Pod", cluster.namespace, labels="app in (set, job)")
        found = {
            pod["metadata"]["labels"]["app"]: pod["spec"]["nodeName"]
            for pod in pods
            if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
        }
        return found if set(found) == {"set", "job"} else None

    assert wait_for(homes, 60, "both run") == {"set": "n0", "job": "n0"}
    before = {pod["metadata"]["uid"] for pod in cluster.api.list("Pod", cluster.namespace)}
    for i in (1, 2):  # four GPUs stay free on each of two more nodes
        cluster.kubelets.add_node(f"n{i}", **H100)
        cluster.pod(f"keep{i}", 4, node_name=f"n{i}", priority_class="high")
    cluster.running("keep1", "keep2")
    cluster.pod("urgent", 8, priority_class="high")
    assert cluster.running("urgent") == ["n0"]
    after = wait_for(homes, 60, lambda: str(cluster.api.list("Pod", cluster.namespace, labels="app in (set, job)")))
    now = {pod["metadata"]["uid"] for pod in cluster.api.list("Pod", cluster.namespace, labels="app in (set, job)")}
    print(f"owners' pods after the eviction: {after}, new pods: {len(now - before)}")
    assert set(after.values()) == {"n1", "n2"}
    assert len(cluster.evictions(2)[cluster.uids["urgent"]]) == 2
    assert cluster.kubelets.truth.double_allocations == 0


def test_two_preemptors_at_once(scene: SceneFactory) -> None:
    """Each needs a whole node of three: four of six pods go, none in vain, and no one for both."""
    cluster = scene({f"n{i}": H100 for i in range(3)}, kubelet={"termination_seconds": 2})
    names = cluster.full_of_low_pods(6, grace=30)
    cluster.create_all([builders.pod(f"urgent{i}", cluster.namespace, 8, priority_class="high") for i in range(2)])
    landed = cluster.running("urgent0", "urgent1")
    cluster.evictions(4)
    quiet(1)  # and no more
    evictions = cluster.evictions()
    print("two at once:", landed, {uid[:8]: sorted(gone) for uid, gone in evictions.items()})
    assert len(set(landed)) == 2
    assert set(evictions) == {cluster.uids["urgent0"], cluster.uids["urgent1"]}
    assert [len(gone) for gone in evictions.values()] == [2, 2]
    assert len(cluster.alive(names)) == 2
    assert cluster.kubelets.truth.double_allocations == 0


def test_a_preemptor_that_is_deleted_leaves_nothing_behind(scene: SceneFactory) -> None:
    """Its victims go, its plan goes with it: a pod that may evict nobody takes the GPUs."""
    cluster = scene({f"n{i}": H100 for i in range(2)}, kubelet={"termination_seconds": 4})
    names = cluster.full_of_low_pods(grace=30)
    cluster.pod("urgent", 8, priority_class="high")
    wait_for(lambda: len(cluster.alive(names)) == 2, 60, "the evictions")
    cluster.api.delete("Pod", "urgent", cluster.namespace, grace=0)
    for i in range(2):
        cluster.pod(f"heir{i}", 4, priority_class="low")
    landed = cluster.running("heir0", "heir1", timeout=60)
    print("heirs on", landed, "still alive", sorted(cluster.alive(names)))
    assert len(set(landed)) == 1
    assert len(cluster.alive(names)) == 2
    assert set(cluster.evictions(2)) == {cluster.uids["urgent"]}
    assert cluster.kubelets.truth.double_allocations == 0
