"""The simulated kubelets: who holds what, and how the API is told."""

from __future__ import annotations

import pytest

from extender.objects import records
from extender.sim.cluster import SimCluster
from extender.sim.day import build
from extender.sim.kubelet import Kubelets
from extender.sim.machines import GPU, SimPod, gpu_uuid


@pytest.fixture
def world() -> tuple[SimCluster, Kubelets]:
    _, cluster, kubelets = build(seed=3)
    return cluster, kubelets


def run(cluster: SimCluster, kubelets: Kubelets, name: str, node: str, gpus: int) -> str:
    uid = cluster.create(SimPod(name, "a", gpus).object())
    cluster.bind(uid, node, {})
    kubelets.sync()
    return uid


def test_what_is_reported_is_what_is_held(world: tuple[SimCluster, Kubelets]) -> None:
    cluster, kubelets = world
    first = run(cluster, kubelets, "p", "dgx1", 4)
    second = run(cluster, kubelets, "q", "dgx1", 2)
    assert len(kubelets.truth.gpus_of(first)) == 4
    assert len(kubelets.truth.gpus_of(second)) == 2
    assert not kubelets.truth.gpus_of(first) & kubelets.truth.gpus_of(second)
    assert kubelets.truth.free("dgx1") == set(range(8)) - kubelets.truth.gpus_of(first) - kubelets.truth.gpus_of(second)
    item = cluster.pod(first)
    assert item is not None
    record = records.pod(item, frozenset({GPU}))
    assert record.phase == "Running"
    assert set(record.held) == {(GPU, gpu_uuid("dgx1", gpu)) for gpu in kubelets.truth.gpus_of(first)}


def test_no_gpu_is_handed_out_twice(world: tuple[SimCluster, Kubelets]) -> None:
    cluster, kubelets = world
    run(cluster, kubelets, "p", "tray", 3)
    late = run(cluster, kubelets, "q", "tray", 2)
    assert [(event.pod, event.reason) for event in kubelets.truth.refusals()] == [("a/q", "over-promised")]
    assert kubelets.truth.gpus_of(late) == frozenset()
    item = cluster.pod(late)
    assert item is not None
    assert item["status"]["phase"] == "Failed"
    assert "Requested: 2, Available: 1" in item["status"]["message"]
    assert cluster.pods("tray") == [cluster.named("a", "p")]


def test_a_deleted_pod_holds_its_gpus_until_its_grace_has_passed(world: tuple[SimCluster, Kubelets]) -> None:
    cluster, kubelets = world
    uid = run(cluster, kubelets, "p", "tray", 4)
    cluster.delete(uid)
    cluster.clock.advance(29)
    kubelets.sync()
    assert len(kubelets.truth.gpus_of(uid)) == 4
    cluster.clock.advance(1)
    kubelets.sync()
    assert kubelets.truth.free("tray") == {0, 1, 2, 3}
    assert cluster.pod(uid) is None


def test_a_finished_pod_frees_its_gpus(world: tuple[SimCluster, Kubelets]) -> None:
    cluster, kubelets = world
    uid = run(cluster, kubelets, "p", "hgx", 8)
    kubelets.finish(uid)
    assert len(kubelets.truth.free("hgx")) == 8
    kubelets.sync()  # it is not admitted again
    assert len(kubelets.truth.free("hgx")) == 8
