"""The job mix of `python -m benchmarks.nvlink` on a whole cluster.

The benchmark's own loop decides when a job starts and ends, by its logical clock: where it asks a policy for GPUs, the
pods of the jobs that have ended by then are deleted, a pod is created, and the GPUs are those that its node gave it. So
the jobs, their order and the moments are those of the benchmark; only the choice is the cluster's.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.nvlink import Board, Choose, Job, Machine, ids, machines, mask, mix, play
from tests.e2e.scene import Scene
from tests.waiting import wait_for

NODE = "mapa"
SEED = 0
LONG, SHORT = 300, 24  # jobs; the benchmark's mix has 300
LONG_FORM = "GPU_EXTENDER_ENFORCED" in os.environ
MACHINES = list(machines()) if LONG_FORM else ["dgx1v-1-8", "a100pairs-1-4"]


def jobs_of(machine: Machine) -> list[Job]:
    """24 jobs; with GPU_EXTENDER_ENFORCED (any number) the benchmark's 300."""
    return mix(LONG, machine.sizes, SEED)[: LONG if LONG_FORM else SHORT]


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
    """A policy of the benchmark that asks the whole cluster. Its pods ask for GPUs of a device plugin."""

    def __init__(self, cluster: Scene) -> None:
        self._cluster, self._running, self._number = cluster, dict[str, int](), 0

    def __call__(self, free: int, size: int, sensitive: bool, dice: random.Random) -> int:
        self._end([name for name, held in self._running.items() if not held & ~free])
        name = f"job-{self._number:04d}"
        self._number += 1
        self.create(name, size)
        held = wait_for(lambda: mask(sorted(self._cluster.gpus(name))), 60, lambda: self._why(name), every=0.03)
        assert not held & ~free, (ids(held), ids(free))
        self._running[name] = held
        return held

    def create(self, name: str, size: int) -> None:
        """Create the pod of a job."""
        self._cluster.pod(name, size, links="preferred", cpu="100m", memory="1Mi", grace=0)

    def freed(self, pods: int) -> bool:
        """Whether the server knows that what ended pods held is free; `pods`: how many run."""
        return True

    def _end(self, names: Sequence[str]) -> None:
        """These jobs are over; waits until kubelet and the server know, as the next job comes after that."""
        gone = {self._cluster.uids[name] for name in names}
        for name in names:
            del self._running[name]
            self._cluster.api.delete("Pod", name, self._cluster.namespace, grace=0)
        if gone:
            truth, text = self._cluster.kubelets.truth, f"{names} did not end"
            wait_for(lambda: not any(map(truth.gpus_of, gone)), 60, text, every=0.03)
            self._cluster.server_sees_pods()
            wait_for(lambda: self.freed(len(self._running)), 60, text, every=0.03)

    def _why(self, name: str) -> str:
        return f"{name}: {self._cluster.get(name)['status']}"


@dataclass(frozen=True)
class Played:
    """The mix under one policy. `sets`: of each job; `share`: the mean of ring / best over the `counted` jobs, as
    `benchmarks.nvlink.measure` counts."""

    sets: tuple[int, ...]
    share: float
    counted: int


def played(board: Board, jobs: Sequence[Job], choose: Choose) -> Played:
    """Play the mix."""
    found = list(play(board, jobs, choose, random.Random(1_000_000 + SEED)))
    shares = [board.share(gpus) for job, gpus in found if job.size > 1 and board.best[job.size]]
    return Played(tuple(gpus for _, gpus in found), sum(shares) / len(shares), len(shares))
