"""The job mix of `python -m benchmarks.nvlink` by planned allocation: gate -> queue -> claim -> driver of the node.

The pods have claims from templates and wait behind our gate. The real kube-scheduler binds them; a simulated DRA driver
prepares on the node what their claims were allocated, and nothing else.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from benchmarks.nvlink import Board, Machine, enforced, machines
from extender.objects.queueing import GATE
from extender.sim import claims
from extender.sim.claims import Driver
from extender.sim.machines import machine as simulated
from tests.e2e.api import Api, Object
from tests.e2e.builders import GPU
from tests.e2e.mapa import MACHINES, NODE, SEED, OnCluster, entry, jobs_of, played
from tests.e2e.scene import CACHED, Scene, SceneFactory

GOAL = 0.99


class ByClaims(OnCluster):
    """Its pods get GPUs by claims that the queue allocates."""

    def create(self, name: str, size: int) -> None:
        """Create the pod of a job."""
        claims = [{"name": "gpus", "resourceClaimTemplateName": template(size)}]
        gates = [{"name": GATE}]
        more: dict[str, Any] = {"schedulingGates": gates, "resourceClaims": claims, "cpu": "100m", "memory": "1Mi"}
        self._cluster.pod(name, 0, links="preferred", grace=0, **more)

    def freed(self, pods: int) -> bool:
        """Whether the server knows no claim but those of the pods that run."""
        return self._cluster.metric(CACHED, 'kind="ResourceClaim"') == pods


class Stored:
    """The claims of the API server, as the simulated driver reads them."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def named(self, namespace: str, name: str, kind: str) -> Object:
        """ApiError when there is none."""
        return self._api.get(kind, name, namespace)


def template(size: int) -> str:
    """The name of the template of claims for so many GPUs."""
    return f"gpus-{size}"


def publish(cluster: Scene, machine: Machine) -> None:
    """The node, whose GPUs a DRA driver publishes and prepares; and the templates."""
    node = cluster.kubelets.node_object(NODE, topology=entry(machine))
    for amounts in ("capacity", "allocatable"):
        del node["status"][amounts][GPU]
    cluster.api.create(node)
    for one in claims.resource_slices(NODE, simulated(entry(machine))):
        cluster.api.create(one)
    cluster.api.create(claims.device_class())
    for size in range(machine.sizes[0], machine.sizes[1] + 1):
        cluster.api.create(claims.claim(template(size), cluster.namespace, size, template=True))
    cluster.kubelets.truth.be_real(NODE, Driver(Stored(cluster.api), NODE))


@pytest.mark.parametrize("name", MACHINES)
def test_planned_allocation_gives_the_planned_ring_bandwidth(
    name: str, scene: SceneFactory, planning: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """24 jobs on two machines; with GPU_EXTENDER_ENFORCED (any number) the benchmark's 300 on all its machines."""
    machine = machines()[name]
    jobs = jobs_of(machine)
    planned = played(Board(machine), jobs, enforced(Board(machine)))
    kubelet = {"seed": SEED, "report_devices": False}  # the claims state what a pod holds
    cluster = scene({}, settings=planning, kubelet=kubelet)
    publish(cluster, machine)
    began = time.monotonic()
    got = played(Board(machine), jobs, ByClaims(cluster))
    truth = cluster.kubelets.truth
    same = sum(a == b for a, b in zip(got.sets, planned.sets, strict=True))
    with capsys.disabled():
        ratio = f"ratio {got.share / planned.share:.4f}"
        said = f"ring / best: end to end {got.share:.4f}, ours, enforced {planned.share:.4f}, {ratio}"
        print(f"\n{machine.title:16} {len(jobs)} jobs, {got.counted} count; {said}", end="; ")
        print(f"{same} sets as planned there; plans {dict(truth.plans())}; {time.monotonic() - began:.0f} s")
    assert truth.plans() == {"kept": len(jobs)}
    assert (truth.refusals(), cluster.kubelets.errors) == ([], [])
    assert got.share >= GOAL * planned.share
    assert got.sets == planned.sets
