"""What placing a gang costs: CPU in all, the longest slice on the event loop, and what was found.

    python -m benchmarks.joint [--nodes 5000] [--rounds 5]

A fleet of eight-GPU machines in racks of 32 and blocks of 8 racks. Half of the nodes hold one-GPU pods with different
CPU, so that hardly two of them are alike. 60 kinds of pods were asked for before: slots of as many types are priced.
Each line is one gang; the numbers are medians of the CPU time of this thread. `read`: the first slice,
in which the tables are read and every node is judged; `longest`: of the slices after it.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from extender.cluster.cluster import Cluster
from extender.objects import decode
from extender.objects.queueing import Domain
from extender.objects.records import Event, PodRecord
from extender.policy.contracts import PodRequest
from extender.policy.pod_request import PodRequests
from extender.policy.policy import Policy
from extender.queue.placement import JointPlacement, NoPlace, Placed
from extender.server import garbage
from extender.settings import Settings
from tests.queue.drawn import BLOCK, RACK
from tests.world import machine, workload

PRODUCTS = ("NVIDIA-H100-80GB-HBM3", "NVIDIA-H100-80GB-HBM3", "Tesla-V100-SXM2-16GB")
RACK_NODES, BLOCK_NODES = 32, 256


@dataclass(frozen=True)
class Gang:
    """`kinds`: (pods, GPUs of each, links)."""

    name: str
    kinds: Sequence[tuple[int, int, str]]
    domain: Domain | None = None


GANGS = (
    Gang("1 pod of 1", [(1, 1, "")]),
    Gang("64 pods of 8", [(64, 8, "")]),
    Gang("64 pods of 8, one block", [(64, 8, "")], Domain("block", True)),
    Gang("64 pods of 1, linked", [(64, 1, "required")], Domain("rack", True)),
    Gang("64 pods of 2, linked, one rack", [(64, 2, "required")], Domain("rack", True)),
    Gang("1 launcher, 63 workers of 4", [(1, 0, ""), (63, 4, "required")]),
    Gang("64 pods of 8, 4, 2 and 1", [(4, 8, ""), (8, 4, ""), (20, 2, ""), (32, 1, "")]),
    Gang("64 pods of 8 in a rack of 32", [(64, 8, "")], Domain("rack", True)),
    Gang("1,000 pods of 8", [(1000, 8, "")]),
    Gang("1,000 pods of 4, linked", [(1000, 4, "required")]),
    Gang("1,000 pods of 1", [(1000, 1, "")]),
    Gang("1,000 pods of 1, one block", [(1000, 1, "")], Domain("block", True)),
    Gang("1 launcher, 999 workers of 4", [(1, 0, ""), (999, 4, "required")]),
    Gang("1,000 pods of 8, 4, 2 and 1", [(100, 8, ""), (200, 4, ""), (300, 2, ""), (400, 1, "")]),
    Gang("3,500 pods of 8: no place", [(3500, 8, "")]),
)


def fleet(count: int, seed: int = 1) -> Cluster:
    """The cluster, as its watch would have brought it."""
    rng = random.Random(seed)
    cluster = Cluster(Settings())
    events = []
    for i in range(count):
        labels = {RACK: f"r{i // RACK_NODES:04d}", BLOCK: f"b{i // BLOCK_NODES:03d}"}
        labels["nvidia.com/gpu.product"] = PRODUCTS[i % len(PRODUCTS)]
        events.append(_event(cluster, "Node", machine(f"node-{i:05d}", 8, labels=labels)))
        for j in range(rng.randint(1, 8) if rng.random() < 0.5 else 0):
            cpu, name = str(rng.randint(1, 6)), f"running-{i}-{j}"
            events.append(_event(cluster, "Pod", workload(name, 1, node=f"node-{i:05d}", phase="Running", cpu=cpu)))
    for i in range(60):
        gpus, cpu = rng.choice([1, 1, 2, 4, 8]), str(1 + i)
        events.append(_event(cluster, "Pod", workload(f"asked-{i}", gpus, cpu=cpu)))
    cluster.apply(events, 0.0)
    return cluster


def _event(cluster: Cluster, kind: Any, wire: dict[str, Any]) -> Event:
    return Event(kind, "set", decode.record(kind, json.dumps(wire).encode(), cluster.gpu_names))


def gang_of(cluster: Cluster, gang: Gang) -> tuple[list[PodRecord], list[PodRequest]]:
    """Its pods, which are in the cluster, with their requests."""
    events = [
        _event(cluster, "Pod", workload(f"gang-{kind}-{i}", gpus, cpu="4", links=links, namespace=f"n{len(gang.name)}"))
        for kind, (size, gpus, links) in enumerate(gang.kinds)
        for i in range(size)
    ]
    pods: list[PodRecord] = [event.record for event in events]  # type: ignore[misc]
    requests = PodRequests(cluster)
    return pods, [requests.of(pod) for pod in pods]


def timed(
    placement: JointPlacement, pods: list[PodRecord], requests: list[PodRequest], domain: Domain | None
) -> tuple[list[float], Placed | NoPlace]:
    """(seconds of CPU of each slice, the result)."""
    slices = []
    began = time.thread_time()
    steps = placement.steps(pods, requests, domain)
    while True:
        slices.append(time.thread_time() - began)
        began = time.thread_time()
        try:
            next(steps)
        except StopIteration as end:
            slices.append(time.thread_time() - began)
            return slices, end.value


def line(placement: JointPlacement, cluster: Cluster, gang: Gang, rounds: int) -> str:
    """One line of the table."""
    pods, requests = gang_of(cluster, gang)
    taken = [timed(placement, pods, requests, gang.domain) for _ in range(rounds)]
    found = taken[0][1]
    if isinstance(found, Placed):
        result = f"{len(set(found.rows))} nodes, at least {found.least}"
        result += ", proved" if found.proved else ""
        result += f", {'='.join(found.domain)}" if found.domain else ""
    else:
        result = f"{found.most} fit" + (", proved" if found.proved else "")
    whole = 1e3 * median(sum(slices) for slices, _ in taken)
    read = 1e3 * median(slices[0] for slices, _ in taken)
    longest = 1e3 * median(max(slices[1:]) for slices, _ in taken)
    return f"{gang.name:34} {whole:8.1f} {read:8.2f} {longest:8.2f} {len(taken[0][0]):7}  {result}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.joint", description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args(arguments)
    cluster = fleet(chosen.nodes)
    policy = Policy.of(cluster.settings)
    policy.fragmentation.prices(cluster.tables)  # a server has counted all slots long before
    garbage.begin()  # and collects between slices
    placement = JointPlacement(cluster, policy)
    print(f"{chosen.nodes} nodes, {len(cluster.pods)} pods, {len(cluster.tables.demand.types)} types of slots")
    print(f"{'gang':34} {'CPU ms':>8} {'read':>8} {'longest':>8} {'slices':>7}  result")
    for gang in GANGS:
        print(line(placement, cluster, gang, chosen.rounds), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
