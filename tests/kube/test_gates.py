"""Our gate is removed from the pods that are wanted, and from no other; failures that pass are tried again."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from extender.kube import pod_writes
from extender.kube.client import ApiError, ApiServer, NoAnswer
from extender.kube.pod_writes import Tally
from extender.objects.queueing import GATE, WANTS_NODES
from extender.objects.records import PodRecord
from tests.kube import hostile
from tests.kube.api_server import client_of, failed, hung_up, whole
from tests.kube.gated import GatedCluster, gated
from tests.waiting import run_bounded

T = TypeVar("T")
OTHER = "example.com/quota"


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extender.times.Backoff.delay", lambda *_: 0.001)


def asked(cluster: GatedCluster, ask: Callable[[ApiServer], Awaitable[T]]) -> T:

    async def run() -> T:
        async with client_of(cluster.script(), timeout=5) as server:
            return await ask(server)

    return run_bounded(run())


def removed(
    cluster: GatedCluster, wanted: Callable[[PodRecord], bool] = lambda pod: True, namespace: str = ""
) -> Tally:
    return asked(cluster, lambda server: pod_writes.remove_gates(server, wanted, lambda tally: None, namespace))


def test_our_gate_is_removed_and_those_of_others_stay() -> None:
    cluster = GatedCluster([gated("p"), gated("q", OTHER, GATE, "a/b"), gated("r", OTHER), gated("s", namespace="b")])
    tally = removed(cluster)
    assert cluster.gates() == {"p": [], "q": [OTHER, "a/b"], "r": [OTHER], "s": []}
    assert (tally.removed, tally.pods, tally.gone, tally.refused) == ({"a": 2, "b": 1}, 3, 0, [])
    patches = [one for one in cluster.asked if one.method == "PATCH"]
    assert sorted(one.path.rpartition("/")[2] for one in patches) == ["p", "q", "s"]
    assert json.loads(patches[0].body)["metadata"] == {"uid": "uid-p"}


def test_pods_that_are_shown_to_an_autoscaler_leave_the_queue() -> None:
    shown = {**gated("p", OTHER), "metadata": {**gated("p")["metadata"], "annotations": {WANTS_NODES: "x", "a": "b"}}}
    cluster = GatedCluster([shown])
    assert removed(cluster).pods == 1
    [patch] = [json.loads(one.body) for one in cluster.asked if one.method == "PATCH"]
    assert patch["metadata"] == {"uid": "uid-p", "annotations": {WANTS_NODES: None}}


def test_only_the_pods_that_are_wanted_in_one_namespace() -> None:
    old = gated("old", created="2026-01-01T00:00:00Z")
    cluster = GatedCluster([old, gated("new", created="2026-01-01T01:00:00Z"), gated("far", namespace="b")])
    tally = removed(cluster, lambda pod: (pod.created or 0) < 1767225600.5, "a")  # 2026-01-01T00:00:00Z is 1767225600
    assert cluster.gates() == {"old": [], "new": [GATE], "far": [GATE]}
    assert tally.removed == {"a": 1}


def test_many_pods_in_pages_at_most_eight_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_writes, "_PAGE", 50)
    cluster = GatedCluster([gated(f"p{number}") for number in range(120)])
    now, most, shown = 0, 0, []
    remove = pod_writes._remove

    async def counted(server: ApiServer, pod: PodRecord, tally: Tally) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await remove(server, pod, tally)
        now -= 1

    monkeypatch.setattr(pod_writes, "_remove", counted)
    tally = asked(
        cluster,
        lambda server: pod_writes.remove_gates(server, lambda pod: True, lambda tally: shown.append(tally.pods)),
    )
    assert tally.pods == 120
    assert shown == [50, 100, 120]
    assert most == pod_writes.PARALLEL == 8
    assert set(map(tuple, cluster.gates().values())) == {()}


def test_failures_that_pass_are_tried_again() -> None:
    cluster = GatedCluster([gated("p"), gated("q"), gated("r")])
    cluster.faults = {
        "p": [failed(409, "the object has been modified"), failed(429, "too many", {"Retry-After": "0"})],
        "q": [failed(500, "etcd"), failed(503, "away"), hung_up()],
    }
    assert removed(cluster).pods == 3
    assert set(map(tuple, cluster.gates().values())) == {()}


def test_a_server_that_keeps_failing_is_an_error_after_some_tries() -> None:
    cluster = GatedCluster([gated("p")])
    cluster.faults = {"p": [failed(503, "away") for _ in range(50)]}
    with pytest.raises(ApiError, match="503"):
        removed(cluster)
    assert len(cluster.asked) == 1 + pod_writes.TRIES
    cluster.faults = {"p": [hung_up() for _ in range(50)]}
    with pytest.raises(NoAnswer):
        removed(cluster)


def test_a_deleted_pod_and_a_new_one_of_its_name_are_no_errors() -> None:
    cluster = GatedCluster([gated("gone"), gated("again"), gated("p")])
    cluster.faults = {
        "gone": [failed(404, "not found")],
        "again": [failed(422, 'Pod "again" is invalid: metadata.uid: Invalid value: "u": field is immutable')],
    }
    tally = removed(cluster)
    assert (tally.pods, tally.gone, tally.refused) == (1, 2, [])


def test_what_is_refused_is_named_and_the_others_lose_their_gate() -> None:
    cluster = GatedCluster([gated("p"), gated("q")])
    cluster.faults = {"p": [failed(403, "forbidden")]}
    tally = removed(cluster)
    assert [(pod.name, why) for pod, why in tally.refused] == [("p", "403: forbidden")]
    assert cluster.gates() == {"p": [GATE], "q": []}


def test_a_list_that_is_continued_too_late_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_writes, "_PAGE", 1)
    cluster = GatedCluster([gated("p"), gated("q"), gated("r")], lists=[failed(410, "expired")])
    assert removed(cluster).pods == 3
    assert set(map(tuple, cluster.gates().values())) == {()}


def test_a_pod_that_is_nested_too_deep_is_read_and_hides_no_other() -> None:
    pods = [gated("p"), gated("deep"), gated("q")]
    raw = [json.dumps(pods[0]).encode(), hostile.deep(pods[1]), json.dumps(pods[2]).encode()]
    cluster, body = GatedCluster(pods), hostile.page(*raw)
    cluster._page = lambda *_: whole(200, body)  # type: ignore[method-assign]
    assert removed(cluster).pods == 3


def test_names_cannot_leave_their_place_in_the_path() -> None:
    cluster = GatedCluster([])
    asked(cluster, lambda server: pod_writes.remove_gates(server, lambda pod: True, lambda tally: None, "a/../b?c"))
    assert cluster.asked[0].path == "/api/v1/namespaces/a%2F..%2Fb%3Fc/pods"


def test_the_bindings_of_our_policies_are_deleted_whatever_their_name() -> None:
    def binding(name: str, policy: str) -> dict[str, object]:
        return {"metadata": {"name": name}, "spec": {"policyName": policy}}

    queue, claims = pod_writes.POLICIES
    cluster = GatedCluster(bindings=[binding("gpu-extender-queue", queue), binding("x", "other"), binding("y", claims)])
    assert asked(cluster, pod_writes.delete_bindings) == ["gpu-extender-queue", "y"]
    assert cluster.deleted == ["gpu-extender-queue", "y"]
    cluster.bindings = []
    assert asked(cluster, pod_writes.delete_bindings) == []


def test_a_cluster_without_the_policies_api_has_no_binding() -> None:
    cluster = GatedCluster()
    cluster._other = lambda request: failed(404)  # type: ignore[method-assign]
    assert asked(cluster, pod_writes.delete_bindings) == []
    cluster._other = lambda request: failed(403, "forbidden")  # type: ignore[method-assign]
    with pytest.raises(ApiError, match="403"):
        asked(cluster, pod_writes.delete_bindings)
    cluster._other = lambda request: whole(200, {"items": [{"kind": "Status"}]})  # type: ignore[method-assign]
    with pytest.raises(NoAnswer, match="cannot be read"):
        asked(cluster, pod_writes.delete_bindings)


def test_the_age_limits_of_namespaces() -> None:
    cluster = GatedCluster(
        namespaces=[
            {"metadata": {"name": "a", "annotations": {pod_writes.AGE_LIMIT: "30m", "x": "y"}}},
            {"metadata": {"name": "b"}},
            {"metadata": {"name": "c", "annotations": None}},
        ]
    )
    assert asked(cluster, pod_writes.age_limits) == {"a": "30m"}
