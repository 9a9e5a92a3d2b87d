"""The job mix of `python -m benchmarks.nvlink` end to end: scheduler -> bind -> relay -> kubelet's device manager."""

from __future__ import annotations

import pytest

from benchmarks.nvlink import Board, enforced, machines
from tests.e2e.cluster import ControlPlane
from tests.e2e.mapa import MACHINES, NODE, SEED, OnCluster, entry, jobs_of, played
from tests.e2e.real_node import RealNode
from tests.e2e.scene import SceneFactory

GOAL = 0.95


@pytest.mark.parametrize("name", MACHINES)
def test_ring_bandwidth_over_the_mapa_mix(
    name: str, scene: SceneFactory, control_plane: ControlPlane, capsys: pytest.CaptureFixture[str]
) -> None:
    """24 jobs on two machines; with GPU_EXTENDER_ENFORCED (any number) the benchmark's 300 on all its machines."""
    machine = machines()[name]
    jobs = jobs_of(machine)
    planned = played(Board(machine), jobs, enforced(Board(machine)))
    reach = (control_plane.url, control_plane.token("admin"), control_plane.ca)
    cluster = scene({NODE: {"topology": entry(machine), "plugin": "relay"}}, kubelet={"seed": SEED})
    with RealNode(NODE, entry(machine), *reach) as real:
        cluster.kubelets.truth.be_real(NODE, real)
        got = played(Board(machine), jobs, OnCluster(cluster))
    truth = cluster.kubelets.truth
    with capsys.disabled():
        ratio = f"ratio {got.share / planned.share:.4f}"
        said = f"ring / best: end to end {got.share:.4f}, ours, enforced {planned.share:.4f}, {ratio}"
        print(f"\n{machine.title:16} {len(jobs)} jobs, {got.counted} count; {said}; plans {dict(truth.plans())}")
    assert truth.plans() == {"kept": len(jobs)}
    assert (truth.refusals(), cluster.kubelets.errors) == ([], [])
    assert got.share >= GOAL * planned.share
