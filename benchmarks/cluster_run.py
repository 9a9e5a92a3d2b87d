"""A cluster of mixed machines under arrivals and departures: what a policy makes of it.

A loss system: jobs arrive as a Poisson process, a job that fits nowhere is dropped, the others run for an exponential
time. kube-scheduler's part is played as it plays it: nodes are walked from where the last walk ended until enough
feasible ones are found (500 - 5,000 of them as it samples by default), ties are broken at random. The node's part too:
the stock device plugin chooses the GPUs by its rule, its ties at random, or the planned set is enforced.

Ours is the server's own `Verbs`: the same bytes in, the same bytes out, pods applied to its `Cluster` as by a watch.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import orjson

from ext_core.links import LinkShapes
from extender.cluster.cluster import Cluster
from extender.cluster.statements import gpus_of
from extender.decide.verbs import Verbs
from extender.objects import decode, records
from extender.objects.records import Event
from extender.settings import Settings
from extender.sim.machines import GPU, PluginPanicked, SimDevicePlugin, SimMachine, SimNode, machine
from extender.topologies.annotation import RELAY

MEAN_SECONDS = 3600.0
CPU_PER_GPU, MEMORY_PER_GPU = 4, 16  # cores, GiB: GPUs are what runs out
WALL = 1_800_000_000.0
# Eighths of the fleet: NVSwitch, cube mesh, bridged pairs, no links at all; all with NVIDIA's stock plugin.
FLEET = (
    ("dgx-h100", 2),
    ("hgx-a100-8", 1),
    ("dgx1-v100", 2),
    ("h100-nvl-8", 1),
    ("a100-pcie-4", 1),
    ("l40s-4", 1),
)
# Whole-GPU pods of openb_pod_list_multigpu50.csv by GPUs asked for.
SIZES = {1: 3911, 2: 222, 4: 206, 8: 556}
Devices = Literal["stock", "enforced", "lowest-id"]


@dataclass(slots=True)
class Host:
    """One node as the simulation knows it. `held`: GPUs in use, a mask."""

    name: str
    kind: str
    machine: SimMachine
    plugin: SimDevicePlugin
    shape: int
    held: int = 0

    @property
    def free(self) -> int:
        return self.machine.gpus - self.held.bit_count()


@dataclass(slots=True)
class Job:
    number: int
    size: int
    host: int = -1
    gpus: int = 0


class Policy(Protocol):
    """Chooses among the feasible hosts, and is told what became of it."""

    def choose(self, job: Job, feasible: Sequence[int], now: float) -> tuple[int, int]:
        """(host, mask of the GPUs planned there; 0 = no plan); (-1, 0) when it wants none of them."""
        ...

    def started(self, job: Job, now: float) -> None: ...

    def ended(self, job: Job, now: float) -> None: ...


class Ranked:
    """A score of the node alone, higher is better, ties at random: kube-scheduler's own scorers, and BestFit."""

    def __init__(self, hosts: Sequence[Host], score: Callable[[Host, int], int], rng: random.Random) -> None:
        self.hosts, self.score, self.rng = hosts, score, rng

    def choose(self, job: Job, feasible: Sequence[int], now: float) -> tuple[int, int]:
        scores = [self.score(self.hosts[i], job.size) for i in feasible]
        best = max(scores)
        return self.rng.choice([i for i, s in zip(feasible, scores, strict=True) if s == best]), 0

    def started(self, job: Job, now: float) -> None:
        return

    def ended(self, job: Job, now: float) -> None:
        return


def least_allocated(host: Host, size: int) -> int:
    """NodeResourcesFit's default over CPU and memory, which follow the GPUs here: 0..100."""
    return 100 * (host.free - size) // host.machine.gpus


def most_allocated(host: Host, size: int) -> int:
    """NodeResourcesFit's MostAllocated over CPU, memory and GPU: 0..100."""
    return 100 * (host.machine.gpus - host.free + size) // host.machine.gpus


def best_fit(host: Host, size: int) -> int:
    """The fewest GPUs left on the node, whatever its size."""
    return -(host.free - size)


class Ours:
    """The server's decisions, bytes to bytes."""

    def __init__(self, hosts: Sequence[Host], shortlist: int, rng: random.Random, *, relay: bool = False) -> None:
        """`relay`: the nodes say that what is planned is what they hand out."""
        self.hosts, self.rng = hosts, rng
        self.index = {host.name: i for i, host in enumerate(hosts)}
        settings = Settings.model_validate({"shortlist": {"size": shortlist}, "decisions": {"maxBytes": 0}})
        self.cluster = Cluster(settings)
        self.verbs = Verbs.of(settings, self.cluster)
        objects = [SimNode(host.name, host.machine, cpu="256", memory="2048Gi").object() for host in hosts]
        for item in objects if relay else ():
            item["metadata"]["annotations"][RELAY] = "1"
        self.cluster.apply([self._event("Node", item) for item in objects], 0.0)

    def _event(self, kind: records.Kind, item: dict[str, Any]) -> Event:
        return Event(kind, "set", decode.record(kind, item, self.cluster.gpu_names))

    def choose(self, job: Job, feasible: Sequence[int], now: float) -> tuple[int, int]:
        pod = _pod(job)
        body = {"Pod": pod, "Nodes": None, "NodeNames": [self.hosts[i].name for i in feasible]}
        wall = WALL + now
        names = orjson.loads(self.verbs.filter.answer(orjson.dumps(body), now, wall).body)["NodeNames"]
        if not names:
            return -1, 0
        answer = self.verbs.prioritize.answer(orjson.dumps({**body, "NodeNames": names}), now, wall)
        points = {entry["Host"]: entry["Score"] for entry in orjson.loads(answer.body)}
        best = max(points.values())
        name = self.rng.choice(sorted(host for host, score in points.items() if score == best))
        assert answer.decision is not None
        scored = answer.decision.scored
        return self.index[name], scored.gpus[scored.best.index(self.cluster.row(name))]

    def started(self, job: Job, now: float) -> None:
        pod = _pod(job, self.hosts[job.host].name, job.gpus)
        self.cluster.apply([self._event("Pod", pod)], now)

    def ended(self, job: Job, now: float) -> None:
        record = self.cluster.pods[_uid(job)]
        self.cluster.apply([Event("Pod", "delete", record)], now)


def _uid(job: Job) -> str:
    return f"00000000-0000-4000-8000-{job.number:012x}"


def _pod(job: Job, node: str = "", gpus: int = 0) -> dict[str, Any]:
    amounts = {"cpu": str(CPU_PER_GPU * job.size), "memory": f"{MEMORY_PER_GPU * job.size}Gi", GPU: str(job.size)}
    pod: dict[str, Any] = {
        "metadata": {"name": f"job-{job.number}", "namespace": "work", "uid": _uid(job), "annotations": {}},
        "spec": {"containers": [{"name": "main", "resources": {"requests": amounts, "limits": {GPU: amounts[GPU]}}}]},
        "status": {"phase": "Pending"},
    }
    if node:
        pod["metadata"]["annotations"]["gpu-extender.io/held-gpus"] = ",".join(map(str, gpus_of(gpus)))
        pod["spec"]["nodeName"] = node
        pod["status"]["phase"] = "Running"
    return pod


@dataclass(slots=True)
class Tally:
    """Of one run, after the warm-up. By size: arrived, placed, linked; `ring`: sum of (ring of the held set / the best
    that this node's machine has for the size, 0 where it has none); `gbps`: sum of the held set's ring in GB/s."""

    arrived: dict[int, int] = field(default_factory=dict)
    placed: dict[int, int] = field(default_factory=dict)
    linked: dict[int, int] = field(default_factory=dict)
    ring: dict[int, float] = field(default_factory=dict)
    gbps: dict[int, float] = field(default_factory=dict)
    panics: int = 0
    moments: int = 0
    idle: float = 0.0  # share of all GPUs, summed over the moments
    whole: float = 0.0  # eight-GPU jobs that would still fit, linked, summed over the moments
    largest: float = 0.0  # the largest of 1, 2, 4, 8 that fits linked, summed over the moments

    def add(self, counts: dict[int, int], size: int) -> None:
        counts[size] = counts.get(size, 0) + 1


def fleet(nodes: int, shapes: LinkShapes) -> list[Host]:
    """`nodes` hosts of the kinds of FLEET, interleaved."""
    kinds = [kind for kind, eighths in FLEET for _ in range(eighths)]
    hosts = []
    plugins = {kind: machine(kind).plugin() for kind, _ in FLEET}
    for i in range(nodes):
        kind = kinds[i * 5 % len(kinds)]
        what = machine(kind)
        hosts.append(Host(f"node-{i:04d}", kind, what, plugins[kind], intern(shapes, what)))
    return hosts


def intern(shapes: LinkShapes, what: SimMachine) -> int:
    """The machine's shape, its GPUs handed out by the stock plugin."""
    return what.topology().intern(shapes, "nvidia")


def sampled(nodes: int) -> int:
    """How many feasible nodes kube-scheduler looks for by default: 50 - n/125 %, at least 5 % and 100."""
    return min(nodes, max(100, nodes * max(5, 50 - nodes // 125) // 100))


def run(
    make: Callable[[Sequence[Host], random.Random], Policy],
    devices: Devices,
    *,
    nodes: int,
    load: float,
    arrivals: int,
    warm: int,
    seed: int,
    sample: bool,
    sizes: dict[int, int] | None = None,
    told: Callable[[int], None] = lambda done: None,
) -> Tally:
    """`arrivals` jobs after `warm` ones that are not counted, at `load` x the fleet's GPUs offered on average."""
    traffic, nature = random.Random(seed), random.Random(seed + 1_000_003)
    shapes = LinkShapes()
    hosts = fleet(nodes, shapes)
    policy = make(hosts, random.Random(seed + 2_000_003))
    sizes = sizes or SIZES
    total = sum(host.machine.gpus for host in hosts)
    mean_size = sum(size * count for size, count in sizes.items()) / sum(sizes.values())
    rate = load * total / (mean_size * MEAN_SECONDS)
    wanted_nodes = sampled(nodes) if sample else nodes
    tally, now, walk = Tally(), 0.0, 0
    heap: list[tuple[float, int, Job]] = []
    for number in range(warm + arrivals):
        now += traffic.expovariate(rate)
        size = traffic.choices(list(sizes), list(sizes.values()))[0]
        lasts = traffic.expovariate(1 / MEAN_SECONDS)
        while heap and heap[0][0] <= now:
            at, _, done = heapq.heappop(heap)
            hosts[done.host].held &= ~done.gpus
            policy.ended(done, at)
        counted = number >= warm
        if counted:
            tally.add(tally.arrived, size)
            if number % 50 == 0:
                _moment(tally, hosts, shapes, total)
        job = Job(number, size)
        feasible: list[int] = []
        for step in range(nodes):
            if hosts[(walk + step) % nodes].free >= size:
                feasible.append((walk + step) % nodes)
                if len(feasible) == wanted_nodes:
                    break
        walk = (walk + step + 1) % nodes
        if feasible:
            job.host, planned = policy.choose(job, feasible, now)
            if job.host >= 0 and _admit(hosts[job.host], job, planned, devices, nature, tally, counted):
                policy.started(job, now)
                heapq.heappush(heap, (now + lasts, number, job))
                if counted:
                    _count(tally, hosts[job.host], job, shapes)
        if number % 500 == 0:
            told(number)
    return tally


def _admit(
    host: Host, job: Job, planned: int, devices: Devices, nature: random.Random, tally: Tally, counted: bool
) -> bool:
    """What kubelet does; False when the device plugin crashed over the request."""
    free = [gpu for gpu in range(host.machine.gpus) if not host.held >> gpu & 1]
    if devices == "enforced" and planned:
        job.gpus = planned
    elif devices == "lowest-id":
        job.gpus = sum(1 << gpu for gpu in free[: job.size])
    else:
        try:
            job.gpus = sum(1 << gpu for gpu in host.plugin.choose(free, job.size, nature))
        except PluginPanicked:
            tally.panics += counted
            return False
    assert not host.held & job.gpus, "one GPU given twice"
    host.held |= job.gpus
    return True


def _count(tally: Tally, host: Host, job: Job, shapes: LinkShapes) -> None:
    tally.add(tally.placed, job.size)
    if shapes.linked(host.shape, job.gpus):
        tally.add(tally.linked, job.size)
    if job.size < 2:
        return
    ring = shapes.ring(host.shape, job.gpus) or 0
    best = shapes.top(host.shape, (1 << host.machine.gpus) - 1, job.size) or 0
    tally.ring[job.size] = tally.ring.get(job.size, 0.0) + (ring / best if best else 0.0)
    tally.gbps[job.size] = tally.gbps.get(job.size, 0.0) + ring / 1000 * (host.machine.gbps or 0.0)


def _moment(tally: Tally, hosts: Sequence[Host], shapes: LinkShapes, total: int) -> None:
    tally.moments += 1
    tally.idle += sum(host.free for host in hosts) / total
    largest = 1.0 if any(host.free for host in hosts) else 0.0
    for host in hosts:
        free = ((1 << host.machine.gpus) - 1) & ~host.held
        if free.bit_count() == 8 and shapes.linked(host.shape, free):
            tally.whole += 1
        for size in (8, 4, 2):
            if size <= largest:
                break
            if free.bit_count() >= size and (shapes.top(host.shape, free, size) or 0) > 0:
                largest = float(size)
                break
    tally.largest += largest
