"""Small clusters and gangs, drawn at random or made by hand, and the best placement by trying everything."""

from __future__ import annotations

import json
import random
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import Any, NamedTuple

from extender.cluster.cluster import Cluster
from extender.objects import decode
from extender.objects.queueing import Domain
from extender.objects.records import Event, PodRecord
from extender.objects.selectors import untolerated
from extender.policy.contracts import PodRequest
from extender.policy.pod_request import read
from extender.policy.policy import Policy
from extender.policy.roles import roles_of
from extender.queue.placement import JointPlacement, NoPlace, Placed
from extender.settings import Settings
from tests.world import DGX1V, JSON, machine, pairs, workload

RACK, BLOCK = "cloud.provider.com/topology-rack", "cloud.provider.com/topology-block"


@dataclass
class Case:
    """A cluster and a gang that is to be placed on it."""

    nodes: list[JSON]
    running: list[JSON]
    gang: list[JSON]
    domain: Domain | None = None
    members: tuple[str, ...] = ()
    settings: Settings = field(default_factory=Settings)

    def __post_init__(self) -> None:
        self.cluster = Cluster(self.settings)
        names = self.cluster.gpu_names
        events = [Event("Node", "set", decode.record("Node", json.dumps(one).encode(), names)) for one in self.nodes]
        events += [Event("Pod", "set", decode.record("Pod", json.dumps(one).encode(), names)) for one in self.running]
        self.cluster.apply(events, 0.0)
        self.policy = Policy.of(self.settings)
        self.placement = JointPlacement(self.cluster, self.policy)
        self.pods: list[PodRecord] = [
            decode.record("Pod", json.dumps(one).encode(), names)  # type: ignore[misc]
            for one in self.gang
        ]
        self.requests: list[PodRequest] = [read(pod, self.cluster) for pod in self.pods]

    def place(self) -> Placed | NoPlace:
        members = [self.cluster.row(name) for name in self.members]
        return self.placement.place(self.pods, self.requests, self.domain, members)

    def placed(self) -> Placed:
        found = self.place()
        assert isinstance(found, Placed), found
        assert self.placement.still_fits(found, self.pods, self.requests)
        return found


def rack(name: str, block: str = "") -> Mapping[str, str]:
    return {RACK: name} | ({BLOCK: block} if block else {})


def gang(size: int, gpus: int = 1, **facts: Any) -> list[JSON]:
    return [workload(f"member-{i}", gpus, **facts) for i in range(size)]


def apart(kind: str) -> JSON:
    """A pod spec that keeps off the nodes with pods of a kind."""
    term = {"labelSelector": {"matchLabels": {"kind": kind}}, "topologyKey": "kubernetes.io/hostname"}
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


def random_case(rng: random.Random) -> Case:
    """Up to six nodes in racks and blocks, part-filled, and up to six pods of one or two kinds."""
    nodes, running = [], []
    for i in range(rng.randint(2, 6)):
        labels = {}
        if rng.random() < 0.85:
            labels = dict(rack(f"r{rng.randint(0, 2)}", f"b{rng.randint(0, 1)}" if rng.random() < 0.8 else ""))
        size = rng.choice([2, 4, 4, 8])
        graph = rng.choice([None, pairs(size), [[0 if a == b else 12 for b in range(size)] for a in range(size)]])
        if size == 8 and rng.random() < 0.5:
            graph = DGX1V
        name = f"n{i}"
        labels["speed"] = rng.choice(["fast", "slow"])
        nodes.append(
            machine(
                name,
                size,
                links=graph,
                cpu=str(rng.choice([4, 8, 64])),
                pods=str(rng.choice([2, 3, 110])),
                labels=labels,
                unschedulable=rng.random() < 0.05,
            )
        )
        free = list(range(size))
        rng.shuffle(free)
        for j in range(rng.choice([0, 0, 1, 2])):
            gpus = min(rng.randint(0, 2), len(free))
            held = [free.pop() for _ in range(gpus)] if rng.random() < 0.7 else ()
            running.append(
                workload(
                    f"p{i}-{j}",
                    gpus,
                    node=name,
                    phase="Running",
                    held=held,
                    cpu="1",
                    labels={"kind": rng.choice(["0", "other", "other", "other", "other"])},
                    spec=apart("1") if rng.random() < 0.1 else {},
                )
            )
    pods: list[JSON] = []
    for kind in range(rng.randint(1, 2)):
        spec: JSON = {}
        if rng.random() < 0.2:
            spec["nodeSelector"] = {"speed": "fast"}
        if rng.random() < 0.2:
            spec |= apart(str(kind))
        gpus, cpu = rng.choice([0, 1, 1, 1, 2, 2, 4]), str(rng.choice([0, 1, 1, 3]))
        links = rng.choice(["", "", "required"])
        labels = {"kind": str(kind)}
        pods += [
            workload(f"m{kind}-{i}", gpus, cpu=cpu, links=links, labels=labels, spec=spec)
            for i in range(rng.randint(1, 4 if kind == 0 else 2))
        ]
    domain = rng.choice([None, None, None, Domain("rack", True), Domain("block", True), Domain("rack", False)])
    members = (rng.choice(nodes)["metadata"]["name"],) if rng.random() < 0.15 else ()
    return Case(nodes, running, pods, domain, members)


# ---- by trying everything: filter's own rules are asked about each pod, with the others on the node as claims


class Best(NamedTuple):
    """`level`: how many levels are closer; of its domains the lowest price, and the nodes of that placement."""

    level: int
    price: int
    nodes: int


class Oracle:
    """The best placement of a case."""

    def __init__(self, case: Case) -> None:
        self.case, self.cluster = case, case.cluster
        self.names = sorted(case.cluster.nodes)
        self.roles = roles_of(case.cluster, case.pods, case.requests)
        self.count = [len(role.at) for role in self.roles]
        rows = array("i", [case.cluster.row(name) for name in self.names])
        self.joint = case.placement._joint(self.roles)  # prices only: the tests of the kernel prove them
        case.placement._read(self.joint, self.roles, case.placement._apart(self.roles, rows), rows)
        self.ways = [self._ways(name) for name in self.names]

    def best(self) -> Best | None:
        for level, domains in enumerate(self.levels()):
            found = [min(costs) for nodes in domains if (costs := list(self._costs(nodes, len(self.case.pods))))]
            if found:
                price, nodes = min((price, nodes) for nodes, price in found)
                return Best(level, price, nodes)
        return None

    def most(self) -> int:
        """The most pods that fit, of all domains of the last level."""
        domains = self.levels()[-1]
        return max((n for n in range(len(self.case.pods) + 1) for d in domains if any(self._costs(d, n))), default=0)

    def levels(self) -> list[list[list[int]]]:
        """The domains by level, those that running members leave to choose from."""
        asked = self.case.domain
        keys = [key for key in (RACK, BLOCK) if any(self._label(i, key) for i in range(len(self.names)))]
        everything = list(range(len(self.names)))
        levels = [{name: [i] for i, name in enumerate(self.names)}]
        for key in keys:
            levels.append({})
            for i in everything:
                if self._label(i, key):
                    levels[-1].setdefault(self._label(i, key), []).append(i)
        if asked is not None and asked.required:
            key = {"rack": RACK, "block": BLOCK}[asked.level]
            last = keys.index(key) + 1 if key in keys else 0
            outer = list(levels[last].values()) if last else []
            inner = levels[:last] if last else [levels[0]]
            made = [[[i for i in d if i in o] for d in level.values() for o in outer] for level in inner] + [outer]
        else:
            made = [list(level.values()) for level in levels]
            return [self._anchored(level) for level in made] + [[everything]]
        return [self._anchored([d for d in level if d]) for level in made]

    def _anchored(self, domains: list[list[int]]) -> list[list[int]]:
        there = [self.names.index(name) for name in self.case.members]
        return [domain for domain in domains if all(i in domain for i in there)]

    def _label(self, i: int, key: str) -> str:
        return self.cluster.nodes[self.names[i]].labels.get(key, "")

    def _costs(self, nodes: Sequence[int], pods: int) -> Iterator[tuple[int, int]]:
        """(nodes, price) of each way to put so many pods on these nodes."""
        yield from self._placements(list(nodes), self.count, pods)

    def _placements(self, nodes: list[int], left: list[int], pods: int) -> Iterator[tuple[int, int]]:
        if not nodes:
            if pods == 0:
                yield 0, 0
            return
        for counts, price in self.ways[nodes[0]].items():
            if sum(counts) <= pods and all(n <= most for n, most in zip(counts, left, strict=True)):
                rest = [most - n for n, most in zip(counts, left, strict=True)]
                for used, cost in self._placements(nodes[1:], rest, pods - sum(counts)):
                    yield used + any(counts), cost + price

    def _ways(self, name: str) -> dict[tuple[int, ...], int]:
        """Pods of each role that the node takes -> their price."""
        at = self.names.index(name)
        ways = {counts for counts in product(*(range(n + 1) for n in self.count)) if self.fits(name, counts)}
        return {counts: (self.joint.price(at, counts) or 0) if any(counts) else 0 for counts in ways}

    def fits(self, name: str, counts: Sequence[int]) -> bool:
        """Whether the node takes so many pods of each role."""
        cluster, row, node = self.cluster, self.cluster.row(name), self.cluster.nodes[name]
        nodes = cluster.tables.nodes
        pods = [role for role, n in zip(self.roles, counts, strict=True) for _ in range(n)]
        for r, free in enumerate(nodes.free_of(row)):
            wanted = sum(role.request.amounts[r] for role in pods)
            if wanted and wanted > free:
                return False
        for i, role in enumerate(pods):
            others = [other for j, other in enumerate(pods) if j != i]
            if not role.pod.accepts(node) or node.unschedulable or untolerated(node.taints, role.pod.tolerations):
                return False
            near = [*(other.pod for other in others), *cluster.pods_on(name)]
            if any(_repels(role.pod, one) or _repels(one, role.pod) for one in near):
                return False
            for claims in ([], others):
                for other in claims:
                    nodes.add_claim(row, other.request.amounts, 0, False)
                codes = self.case.policy.judge(cluster.tables, role.request, array("i", [row]))
                nodes.drop_claims()
                if codes[0]:
                    return False
        return True


def _repels(pod: PodRecord, other: PodRecord) -> bool:
    return any(term.may_match(other.namespace, other.labels) for term in pod.anti_affinity_terms)


def check(case: Case) -> str:
    """The case's placement is the best one. What was found, in a word."""
    oracle, found = Oracle(case), case.place()
    best = oracle.best()
    if isinstance(found, NoPlace):
        assert best is None, (best, found)
        assert found.proved
        assert found.most == oracle.most()
        return "no place"
    assert best is not None, found
    assert found.proved
    assert case.placement.still_fits(found, case.pods, case.requests)
    used: dict[int, list[int]] = {}
    for c, role in enumerate(oracle.roles):
        for at in role.at:
            there = used.setdefault(oracle.names.index(found.nodes[at]), [0] * len(oracle.roles))
            there[c] += 1
    assert all(oracle.fits(oracle.names[i], counts) for i, counts in used.items())
    level = next(d for d, domains in enumerate(oracle.levels()) if any(set(used) <= set(one) for one in domains))
    price = sum(oracle.joint.price(i, counts) or 0 for i, counts in used.items())
    assert Best(level, price, len(used)) == best
    _check_gpus(case, found)
    _check_order(found, oracle)
    return "one node" if len(used) == 1 else "one domain" if found.domain else "anywhere"


def _check_gpus(case: Case, found: Placed) -> None:
    """The planned GPUs are free, each pod's own, as many as it asks for, and linked where that is required."""
    taken: dict[int, int] = {}
    for row, gpus, request in zip(found.rows, found.gpus, case.requests, strict=True):
        node = case.cluster.tables.nodes.node(row)
        if gpus:
            assert gpus.bit_count() == request.wanted
            assert gpus & ~(node.healthy & ~(node.sure | node.likely)) & 0xFFFF == 0
            assert gpus & taken.get(row, 0) == 0
            if request.links == "required":
                assert case.cluster.tables.shapes.linked(node.shape, gpus)
        elif request.wanted:
            assert node.unknown or not node.healthy, "a set could be planned"
        taken[row] = taken.get(row, 0) | gpus


def _check_order(found: Placed, oracle: Oracle) -> None:
    """Equal pods fill one node after the other, in the order given."""
    for role in oracle.roles:
        nodes = [found.nodes[at] for at in role.at]
        assert sum(a != b for a, b in pairwise(nodes)) == len(set(nodes)) - 1
