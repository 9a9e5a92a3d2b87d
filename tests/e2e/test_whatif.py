"""What the live what-if says is what then happens on the real kube-scheduler, and it changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from extender.sim.machines import machine
from tests.e2e import builders
from tests.e2e.conftest import Ask
from tests.e2e.scene import H100, LINKS, PAIRS, Scene, SceneFactory, quiet
from tests.e2e.test_preemption import classes
from tests.e2e.test_queue import end, gated, job, nodes_of, waits
from tests.waiting import wait_for

RELAYED = {"topology": "dgx1-v100", "plugin": "relay"}


def _shown(answer: Any) -> list[Any]:
    """What does not change from second to second."""
    return [(one["node"], one["gpus"], [pod["name"] for pod in one["victims"]]) for one in answer["results"]]


def observed(cluster: Scene, *names: str) -> bool:
    """Whether the server knows from kubelet which GPUs these pods hold."""
    known = cluster.known()
    return all(known.get(cluster.uids[name], {}).get("how") == "observed" for name in names)


def test_pods_one_after_the_other(scene: SceneFactory, ask: Ask) -> None:
    """Each pod has what those before it leave; an eviction is of the pods that are named, and no others."""
    cluster = scene({f"p{i}": PAIRS for i in range(2)})
    classes(cluster)
    for name, seconds in (("low0", "900"), ("low1", "100")):  # what low1 loses is less
        notes = {"gpu-extender.io/restart-seconds": seconds}
        cluster.pod(name, 2, priority_class="low", annotations=notes, grace=1)
    cluster.running("low0", "low1")
    wait_for(lambda: observed(cluster, "low0", "low1"), 60, "the server knows which GPUs they hold")
    made = [
        builders.pod(name, cluster.namespace, gpus, priority_class="high", grace=1)
        for name, gpus in (("a", 1), ("b", 2), ("c", 1), ("d", 2))
    ]
    code, answer = ask(cluster, made)
    assert code == 10, answer
    assert _shown(ask(cluster, made)[1]) == _shown(answer)  # nothing was changed by the first
    for pod, result in zip(made, answer["results"], strict=True):
        name = pod["metadata"]["name"]
        cluster.uids[name] = cluster.api.create(pod)["metadata"]["uid"]
        assert cluster.running(name) == [result["node"]], name
        assert cluster.gpus(name) == frozenset(result["gpus"]), name
    named = {one["name"] for result in answer["results"] for one in result["victims"]}
    everyone = ("low0", "low1", "a", "b", "c", "d")
    assert named == set(everyone) - cluster.alive(everyone)
    assert [one["verdict"] for one in answer["results"]] == ["fits", "fits", "fits", "evict"]


@pytest.mark.parametrize(("count", "whole"), [(3, 5), (8, 4)])
def test_a_burst_of_linked_pods_breaks_no_more_nodes_than_it_says(
    scene: SceneFactory, ask: Ask, count: int, whole: int
) -> None:
    """Pods of two GPUs that require links, created at once on six empty DGX-1V: no pod has been bound before."""
    nodes = {f"v{i}": RELAYED for i in range(6)}
    cluster = scene(nodes, kubelet={"start_seconds": 1.0})
    quiet(6)  # just after a start pods that require links are held back
    names = [f"x{i}" for i in range(count)]
    made = [builders.pod(name, cluster.namespace, 2, annotations={LINKS: "required"}) for name in names]
    code, answer = ask(cluster, made)
    promised = {one["node"] for one in answer["results"]}
    assert (code, len(nodes.keys() - promised)) == (0, whole), answer
    cluster.create_all(made)
    assert len(nodes.keys() - set(cluster.running(*names))) == whole
    dgx1v = machine(RELAYED["topology"])
    assert [name for name in names if not dgx1v.linked(cluster.gpus(name))] == []
    assert cluster.kubelets.truth.double_allocations == 0
    more = [builders.pod(f"y{i}", cluster.namespace, 2, annotations={LINKS: "required"}) for i in range(2)]
    assert "links-at-once" not in {one["code"] for one in ask(cluster, more)[1]["warnings"]}


def test_gangs_whole_or_not_at_all(scene: SceneFactory, ask: Ask, settings: Any) -> None:
    """Of two Jobs only the first fits; the way out of the second is carried out."""
    cluster = scene({f"n{i}": H100 for i in range(5)}, settings=settings)
    jobs = [builders.job(name, 3, gated(cluster, name, 8)) for name in ("first", "second")]
    code, answer = ask(cluster, jobs)
    assert code == 11, answer
    first, second = answer["groups"]
    assert (code, first["verdict"], second["verdict"]) == (11, "fits", "cannot"), answer
    assert {pod["node"] for pod in second["pods"]} == {None}
    more = next(way["spec"] for way in second["ways_out"] if way["kind"] == "add-nodes")
    assert ask(cluster, jobs, "--add", str(more["count"]), more["like"])[0] == 0
    job(cluster, "first", 3, 8)
    assert nodes_of(cluster, "first", 3) == sorted(pod["node"] for pod in first["pods"])
    job(cluster, "second", 3, 8)
    wait_for(lambda: len(cluster.api.list("Pod", cluster.namespace, labels="app=second")) == 3, 60, lambda: "pods")
    quiet(2)
    assert waits(cluster, "second")
    names = [one["metadata"]["name"] for one in cluster.api.list("Pod", cluster.namespace, labels="app=second")]
    code, live = ask(cluster, [], "--pod", f"{cluster.namespace}/{names[0]}")  # its gang comes with it
    assert (code, sorted(one["name"] for one in live["groups"][0]["pods"])) == (11, sorted(names))
    end(cluster, "first")
    assert len(set(nodes_of(cluster, "second", 3))) == 3


def test_the_api_server_is_asked_where_no_server_runs(scene: SceneFactory, ask: Ask, control_plane: Any) -> None:
    cluster = scene({"n1": H100, "n2": H100})
    cluster.pod("runs", 4)
    node = cluster.running("runs")[0]
    made = [builders.pod(name, cluster.namespace, 8) for name in ("a", "b")]
    source = ("--kubeconfig", str(control_plane.kubeconfig()))
    wait_for(lambda: ask(cluster, made)[0] == 11, 60, lambda: "the watch has brought the pod")
    answers = [ask(cluster, made, source=one)[1] for one in ((), source)]
    shown = [[(one["pod"]["name"], one["verdict"], one["node"]) for one in answer["results"]] for answer in answers]
    other = "n2" if node == "n1" else "n1"
    assert shown[0] == shown[1] == [("a", "fits", other), ("b", "cannot", None)]
    code, answer = ask(cluster, made, "--drain", node, source=source)
    assert (code, [one["verdict"] for one in answer["results"]]) == (11, ["fits", "cannot"])
    code, error = ask(cluster, made, "--cordon", "none")
    assert (code, error["error"]["code"]) == (1, "not-found")
