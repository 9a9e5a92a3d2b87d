"""Gangs of in-tree PodGroups behind our gate, on a control plane with `GenericWorkload`.

kube-scheduler tries the pods of a PodGroup as one entity of its queue: one gated pod holds back all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.build import release
from tests.e2e.cluster import ControlPlane
from tests.e2e.conftest import CONTROL_PLANE
from tests.e2e.scene import H100, Scene, SceneFactory, quiet
from tests.e2e.test_queue import RACK, gated
from tests.waiting import wait_for

pytestmark = pytest.mark.skipif(release() < "1.37", reason="before 1.37 PodGroups are alpha, with another API")


@pytest.fixture(scope="module")
def control_plane(binaries: Path, request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """With PodGroups, which 1.37 has as beta and switches off."""
    before = request.config.stash.get(CONTROL_PLANE, None)
    with ControlPlane(binaries, features=["GenericWorkload"], apis=["scheduling.k8s.io/v1beta1"]) as running:
        request.config.stash[CONTROL_PLANE] = running
        yield running
    if before is not None:
        request.config.stash[CONTROL_PLANE] = before


def group(cluster: Scene, name: str, policy: dict[str, Any]) -> None:
    meta = {"name": name, "namespace": cluster.namespace}
    spec = {"schedulingPolicy": policy}
    cluster.api.create({"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "metadata": meta, "spec": spec})


def member(cluster: Scene, name: str, of: str, gpus: int = 8) -> None:
    made = cluster.api.create(gated(cluster, name, gpus, schedulingGroup={"podGroupName": of}))
    assert made["spec"]["schedulingGroup"] == {"podGroupName": of}  # the feature is on: the field stays
    cluster.uids[name] = made["metadata"]["uid"]


def closed(cluster: Scene, *names: str) -> set[str]:
    return {name for name in names if cluster.get(name)["spec"].get("schedulingGates")}


def test_a_pod_group_starts_whole(scene: SceneFactory, settings: Any) -> None:
    nodes = {f"n{i}": {**H100, "labels": {RACK: f"r{i // 2}"}} for i in range(4)}
    cluster = scene(nodes, settings=settings)
    group(cluster, "g", {"gang": {"minCount": 3}})
    names = [f"g-{i}" for i in range(3)]
    for name in names[:2]:
        member(cluster, name, "g")
    quiet(2)
    assert closed(cluster, *names[:2]) == set(names[:2])  # two of three exist
    member(cluster, names[2], "g")
    seats = wait_for(
        lambda: (
            None if closed(cluster, *names) else {n: cluster.get(n)["status"].get("nominatedNodeName") for n in names}
        ),
        60,
        "the gates are open",
    )
    assert len(set(cluster.running(*names))) == 3
    for name in names:
        found = cluster.get(name)
        assert found["metadata"]["annotations"]["gpu-extender.io/gpus"]
        assert seats[name] in (None, found["spec"]["nodeName"])  # binding clears the nomination


def test_all_gates_of_a_pod_group_open_or_none(scene: SceneFactory, settings: Any) -> None:
    """Two must run, and there is room for two; with the third gated kube-scheduler would try none."""
    cluster = scene({f"n{i}": H100 for i in range(2)}, settings=settings)
    group(cluster, "g", {"gang": {"minCount": 2}})
    for name in ("before", "until-all-exist"):
        cluster.pod(name, 8)
    cluster.running("before", "until-all-exist")
    names = [f"g-{i}" for i in range(3)]
    for name in names:
        member(cluster, name, "g", 4)
    quiet(1)  # two that the queue sees before the third exists are a gang that may start
    cluster.api.delete("Pod", "until-all-exist", cluster.namespace, grace=0)
    quiet(3)
    assert closed(cluster, *names) == set(names)
    cluster.api.delete("Pod", "before", cluster.namespace, grace=0)
    assert len(cluster.running(*names)) == 3
    member(cluster, "g-3", "g", 4)  # it grows
    cluster.running("g-3")


def test_the_pods_of_a_basic_group_open_together(scene: SceneFactory, settings: Any) -> None:
    """Its pods do not depend on each other, and still one that is gated holds back all."""
    cluster = scene({"n1": H100}, settings=settings)
    group(cluster, "b", {"basic": {}})
    member(cluster, "b-0", "b", 4)
    member(cluster, "b-1", "b", 4)
    cluster.running("b-0", "b-1")
