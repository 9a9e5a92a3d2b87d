"""The job mix of `python -m benchmarks.nvlink` end to end: scheduler -> bind -> relay -> kubelet's device manager.

The benchmark's own loop decides when a job starts and ends, by its logical clock: where it asks a policy for GPUs, the
pods of the jobs that have ended by then are deleted, a pod is created, and the GPUs are those that kubelet's device
manager gave it. So the jobs, their order and the moments are those of the benchmark; only the choice is the cluster's.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import Any

import pytest

from benchmarks.nvlink import Board, Choose, Job, Machine, enforced, ids, machines, mask, mix, play
from tests.e2e.cluster import ControlPlane
from tests.e2e.real_node import RealNode
from tests.e2e.scene import Scene, SceneFactory
from tests.waiting import wait_for

NODE = "mapa"
SEED = 0
LONG, SHORT = 300, 60  # jobs; the benchmark's mix has 300
LONG_FORM = "GPU_EXTENDER_ENFORCED" in os.environ
MACHINES = list(machines()) if LONG_FORM else ["dgx1v-2-5", "dgx1v-1-8", "a100pairs-1-4"]
GOAL = 0.95


def entry(machine: Machine) -> dict[str, Any]:
    """The benchmark's machine as the simulated nodes take one: in the form of the catalogue."""
    topology = machine.topology
    numa: dict[str, list[int]] = {}
    for gpu, node in enumerate(topology.numa or ()):
        numa.setdefault(str(node), []).append(gpu)
    return {
        "id": machine.name,
        "gpus": topology.gpus,
        "links": topology.links,
        "pcie": topology.pcie,
        "numa": numa or None,
        "link_kind": topology.kind,
        "gbps_link_dir": topology.gbps,
    }


class OnCluster:
    """A policy of the benchmark that asks the whole cluster."""

    def __init__(self, cluster: Scene) -> None:
        self._cluster, self._running, self._number = cluster, dict[str, int](), 0

    def __call__(self, free: int, size: int, sensitive: bool, dice: random.Random) -> int:
        self._end([name for name, held in self._running.items() if not held & ~free])
        name = f"job-{self._number:04d}"
        self._number += 1
        self._cluster.pod(name, size, links="preferred", cpu="100m", memory="1Mi", grace=0)
        held = wait_for(lambda: mask(sorted(self._cluster.gpus(name))), 60, lambda: self._why(name), every=0.01)
        assert not held & ~free, (ids(held), ids(free))
        self._running[name] = held
        return held

    def _end(self, names: Sequence[str]) -> None:
        """These jobs are over; waits until kubelet and the server know, as the next job comes after that."""
        gone = {self._cluster.uids[name] for name in names}
        for name in names:
            del self._running[name]
            self._cluster.api.delete("Pod", name, self._cluster.namespace, grace=0)
        if gone:
            truth, text = self._cluster.kubelets.truth, f"{names} did not end"
            wait_for(lambda: not any(map(truth.gpus_of, gone)), 60, text, every=0.01)
            wait_for(lambda: not gone & self._cluster.known().keys(), 60, text, every=0.01)

    def _why(self, name: str) -> str:
        return f"{name}: {self._cluster.get(name)['status']}"


def share(board: Board, jobs: Sequence[Job], choose: Choose) -> tuple[float, int]:
    """(mean of ring / best, how many jobs it is of), as `benchmarks.nvlink.measure` counts."""
    played = list(play(board, jobs, choose, random.Random(1_000_000 + SEED)))
    shares = [board.share(gpus) for job, gpus in played if job.size > 1 and board.best[job.size]]
    return sum(shares) / len(shares), len(shares)


@pytest.mark.parametrize("name", MACHINES)
def test_ring_bandwidth_over_the_mapa_mix(
    name: str, scene: SceneFactory, control_plane: ControlPlane, capsys: pytest.CaptureFixture[str]
) -> None:
    """60 jobs on three machines; with GPU_EXTENDER_ENFORCED (any number) the benchmark's 300 on all its machines."""
    machine = machines()[name]
    jobs = mix(LONG, machine.sizes, SEED)[: LONG if LONG_FORM else SHORT]
    planned, counted = share(Board(machine), jobs, enforced(Board(machine)))
    reach = (control_plane.url, control_plane.token("admin"), control_plane.ca)
    cluster = scene({NODE: {"topology": entry(machine), "plugin": "relay"}}, kubelet={"seed": SEED})
    with RealNode(NODE, entry(machine), *reach) as real:
        cluster.kubelets.truth.be_real(NODE, real)
        got, _ = share(Board(machine), jobs, OnCluster(cluster))
    truth = cluster.kubelets.truth
    with capsys.disabled():
        said = f"ring / best: end to end {got:.4f}, ours, enforced {planned:.4f}, ratio {got / planned:.4f}"
        print(f"\n{machine.title:16} {len(jobs)} jobs, {counted} count; {said}; plans {dict(truth.plans())}")
    assert truth.plans() == {"kept": len(jobs)}
    assert (truth.refusals(), cluster.kubelets.errors) == ([], [])
    assert got >= GOAL * planned
