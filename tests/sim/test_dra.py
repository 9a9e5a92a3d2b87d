"""The simulated DynamicResources plugin and driver: first fit, and what a claim was allocated."""

from __future__ import annotations

import pytest

from extender.sim import claims
from extender.sim.claims import Driver, DynamicResources, allocated
from extender.sim.cluster import SimCluster, WriteConflict
from extender.sim.day import build
from extender.sim.kubelet import AdmissionRejected
from extender.sim.machines import SimNode, SimPod, machine

NODE, MACHINE = "dra", machine("a100-pcie-4")


@pytest.fixture
def cluster() -> SimCluster:
    _, made, _ = build(seed=3)
    made.add_node(SimNode(NODE, MACHINE, device_plugin=False).object())
    for one in claims.resource_slices(NODE, MACHINE):
        made.add("ResourceSlice", one)
    return made


def claimant(cluster: SimCluster, name: str, gpus: int) -> str:
    cluster.add("ResourceClaim", claims.claim(name, "a", gpus))
    return cluster.create(SimPod(name, "a", 0, claim=name).object())


def devices(cluster: SimCluster, name: str) -> list[str]:
    return [one["device"] for one in allocated(cluster.named("a", name, "ResourceClaim"))]


def test_the_first_free_devices_are_taken_until_none_is_left(cluster: SimCluster) -> None:
    plugin = DynamicResources(cluster)
    for name, gpus in (("p", 1), ("q", 2)):
        pod = cluster.pod(claimant(cluster, name, gpus))
        assert pod is not None
        assert plugin.refusal(pod, NODE) is None
        plugin.reserve(pod, NODE)
    assert (devices(cluster, "p"), devices(cluster, "q")) == (["gpu-0"], ["gpu-1", "gpu-2"])
    pod = cluster.pod(claimant(cluster, "r", 2))
    assert pod is not None
    refusal = plugin.refusal(pod, NODE)
    assert refusal is not None
    assert (refusal.reason, refusal.resolvable) == ("cannot allocate all claims", False)


def test_a_claim_that_is_allocated_keeps_its_devices_and_its_node(cluster: SimCluster) -> None:
    plugin, pod = DynamicResources(cluster), cluster.pod(claimant(cluster, "p", 2))
    assert pod is not None
    results = [{"request": "gpus", "driver": claims.DRIVER, "pool": NODE, "device": f"gpu-{gpu}"} for gpu in (1, 3)]
    version = cluster.named("a", "p", "ResourceClaim")["metadata"]["resourceVersion"]
    cluster.patch(
        "a",
        "p",
        version,
        lambda it: it.update(status={"allocation": {"devices": {"results": results}}}),
        "ResourceClaim",
    )
    assert plugin.refusal(pod, "dgx1") is not None
    assert plugin.refusal(pod, NODE) is None
    plugin.reserve(pod, NODE)
    assert devices(cluster, "p") == ["gpu-1", "gpu-3"]
    assert Driver(cluster, NODE).admit(pod) == {"main": frozenset({1, 3})}


def test_the_driver_prepares_no_device_twice_and_none_of_another_pod(cluster: SimCluster) -> None:
    plugin, driver = DynamicResources(cluster), Driver(cluster, NODE)
    pods = [cluster.pod(claimant(cluster, name, 2)) for name in ("p", "q")]
    first, second = (pod for pod in pods if pod is not None)
    with pytest.raises(AdmissionRejected, match="not reserved"):
        driver.admit(first)
    plugin.reserve(first, NODE)
    plugin.reserve(second, NODE)
    driver.admit(first)
    meta = cluster.named("a", "q", "ResourceClaim")["metadata"]
    same = cluster.named("a", "p", "ResourceClaim")["status"]["allocation"]
    cluster.patch("a", "q", meta["resourceVersion"], lambda it: it["status"].update(allocation=same), "ResourceClaim")
    with pytest.raises(AdmissionRejected, match="another pod"):
        driver.admit(second)
    driver.remove(str(first["metadata"]["uid"]))
    assert driver.admit(second) == {"main": frozenset({0, 1})}


def test_the_driver_prepares_what_the_claim_of_a_template_was_allocated(cluster: SimCluster) -> None:
    plugin, uid = DynamicResources(cluster), claimant(cluster, "p", 2)
    pod = cluster.pod(uid)
    assert pod is not None
    plugin.reserve(pod, NODE)
    pod["spec"]["resourceClaims"] = [{"name": "gpus", "resourceClaimTemplateName": "pairs"}]
    pod["status"]["resourceClaimStatuses"] = [{"name": "gpus", "resourceClaimName": "p"}]
    assert Driver(cluster, NODE).admit(pod) == {"main": frozenset({0, 1})}


def test_a_name_is_taken_once(cluster: SimCluster) -> None:
    cluster.add("ResourceClaim", claims.claim("p", "a", 1))
    with pytest.raises(WriteConflict, match="exists already"):
        cluster.add("ResourceClaim", claims.claim("p", "a", 2))
