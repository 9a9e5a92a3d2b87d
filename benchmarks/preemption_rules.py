"""A full cluster, and whom each rule would evict there. The rivals are written after their published descriptions.

Two kinds of machine (DGX-1 V100, HGX H100), full of whole-GPU pods with the sizes of the openb trace, placed by the
stock device plugin. Ages, checkpoints, gangs, budgets and priorities are invented, seeded: the trace has none.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import combinations
from typing import Any

from extender.sim.device_plugin import PluginPanicked
from extender.sim.machines import GPU, Machine, machine
from extender.sim.machines import node as node_object

NOW = 1_800_000_000.0
# Whole-GPU pods by GPUs asked for, in two variants of the trace.
SIZES = {"default": {1: 3911, 2: 16, 4: 15, 8: 44}, "multigpu50": {1: 3911, 2: 222, 4: 206, 8: 556}}
PRIORITIES = (0, 100, 200)
PREEMPTOR = 1000
KINDS = ("dgx1-v100", "dgx-h100")
RULES = ("in-tree", "vgpu-manager-style", "volcano-style", "kueue-style", "exact lexicographic", "exact cost-only")


@dataclass(slots=True)
class Running:
    """`work`: GPU-seconds lost when it is evicted alone."""

    index: int
    node: int
    size: int
    gpus: int
    priority: int
    start: float
    checkpoint: float | None
    restart: int
    gang: int
    budgets: tuple[int, ...]
    grace: int

    @property
    def work(self) -> int:
        since = max(self.start, self.checkpoint) if self.checkpoint is not None else self.start
        return self.size * (int(NOW - since) + self.restart)

    @property
    def name(self) -> str:
        return f"pod-{self.index}"


@dataclass(slots=True)
class State:
    """`gangs`: members by gang (all of them are needed); `allowed`: disruptions allowed by budget."""

    machines: list[Machine]
    pods: list[Running]
    on: list[list[Running]]
    gangs: dict[int, list[Running]]
    allowed: list[int]
    free: list[int] = field(default_factory=list)  # GPUs free by node

    @classmethod
    def make(cls, nodes: int, seed: int, variant: str = "default") -> State:
        sizes = SIZES[variant]
        rng = random.Random(seed)
        machines = [machine(KINDS[i % 2]) for i in range(nodes)]
        plugins = {kind: machine(kind).plugin() for kind in KINDS}
        pods: list[Running] = []
        on: list[list[Running]] = [[] for _ in range(nodes)]
        for i in range(nodes):
            left = list(range(8))
            while left:
                fitting = [size for size in sizes if size <= len(left)]
                size = rng.choices(fitting, [sizes[size] for size in fitting])[0]
                try:
                    chosen = plugins[KINDS[i % 2]].choose(left, size, rng)
                except PluginPanicked:
                    continue
                left = [gpu for gpu in left if gpu not in chosen]
                age = min(30 * 86_400.0, rng.lognormvariate(math.log(3600), 2.0))
                interval = rng.choice((600, 1800, 3600, 0))
                saved = NOW - rng.uniform(0, min(age, interval)) if interval and age > interval else None
                pod = Running(
                    len(pods),
                    i,
                    size,
                    sum(1 << gpu for gpu in chosen),
                    rng.choice(PRIORITIES),
                    float(int(NOW - age)),
                    None if saved is None else float(int(saved)),
                    rng.choice((0, 60, 300)),
                    -1,
                    (),
                    rng.choice((30, 30, 60, 300)),
                )
                pods.append(pod)
                on[i].append(pod)
        gangs = _gangs(pods, rng)
        allowed = _budgets(pods, rng)
        return cls(machines, pods, on, gangs, allowed, [0] * nodes)

    # -- what a set of victims costs ------------------------------------------------------------------------------

    def broken(self, victims: Iterable[Running]) -> list[int]:
        return sorted({pod.gang for pod in victims if pod.gang >= 0})

    def work(self, victims: Iterable[Running]) -> int:
        """GPU-seconds lost: the victims', and those of all members of the gangs that break, each pod once."""
        lost = {pod.index: pod.work for pod in victims}
        for gang in self.broken(victims):
            lost |= {pod.index: pod.work for pod in self.gangs[gang]}
        return sum(lost.values())

    def violations(self, victims: Iterable[Running]) -> int:
        """As kube-scheduler counts: in order of importance, a pod beyond any of its budgets is one."""
        left = list(self.allowed)
        found = 0
        for pod in sorted(victims, key=importance):
            for budget in pod.budgets:
                left[budget] -= 1
            found += any(left[budget] < 0 for budget in pod.budgets)
        return found

    def cost(self, victims: Sequence[Running]) -> tuple[int, ...]:
        """The default order of the settings."""
        return (
            self.violations(victims),
            max(pod.priority for pod in victims),
            len(self.broken(victims)),
            self.work(victims),
            max(pod.grace for pod in victims),
            len(victims),
        )


def importance(pod: Running) -> tuple[int, float, int]:
    """The most important first, as kube-scheduler ranks: higher priority, then older."""
    return (-pod.priority, pod.start, pod.index)


def _gangs(pods: Sequence[Running], rng: random.Random) -> dict[int, list[Running]]:
    """30 % of the pods, in gangs of 2 to 8 of one priority, anywhere in the cluster."""
    gangs: dict[int, list[Running]] = {}
    for priority in PRIORITIES:
        some = [pod for pod in pods if pod.priority == priority and rng.random() < 0.3]
        rng.shuffle(some)
        while len(some) >= 2:
            members, some = some[: (size := rng.randint(2, 8))], some[size:]
            number = len(gangs)
            gangs[number] = members
            for pod in members:
                pod.gang = number
    return gangs


def _budgets(pods: Sequence[Running], rng: random.Random) -> list[int]:
    """10 % of the pods, in budgets of 3 to 10 pods that allow 0 to 2 disruptions."""
    some = [pod for pod in pods if rng.random() < 0.1]
    rng.shuffle(some)
    allowed: list[int] = []
    while some:
        members, some = some[: (size := rng.randint(3, 10))], some[size:]
        for pod in members:
            pod.budgets = (len(allowed),)
        allowed.append(rng.choice((0, 1, 2)))
    return allowed


# ---- the rules: (node, victims), or None where none suffices

Choice = tuple[int, list[Running]]


def in_tree_victims(state: State, node: int, need: int) -> tuple[list[Running], int] | None:
    """kube-scheduler's victims on one node and their violations: all of lower priority away, then those who would
    violate a budget, then the others, are taken back, the most important first, while the pod still fits."""
    pods = sorted(state.on[node], key=importance)
    freed = state.free[node] + sum(pod.size for pod in pods)
    if freed < need:
        return None
    left = list(state.allowed)
    violating: list[Running] = []
    others: list[Running] = []
    for pod in pods:
        for budget in pod.budgets:
            left[budget] -= 1
        (violating if any(left[budget] < 0 for budget in pod.budgets) else others).append(pod)
    victims: list[Running] = []
    violations = 0
    for group, counts in ((violating, 1), (others, 0)):
        for pod in group:
            if freed - pod.size >= need:
                freed -= pod.size
            else:
                victims.append(pod)
                violations += counts
    return sorted(victims, key=importance), violations


def in_tree(state: State, nodes: Sequence[int], need: int) -> Choice | None:
    """The node by kube-scheduler's order: violations, highest priority, sum of priorities, count, latest start."""
    best: tuple[Any, Choice] | None = None
    for node in nodes:
        found = in_tree_victims(state, node, need)
        if not found or not found[0]:
            continue
        victims, violations = found
        top = victims[0].priority
        earliest = min(pod.start for pod in victims if pod.priority == top)
        key = (violations, top, sum(pod.priority + 2**31 for pod in victims), len(victims), -earliest)
        if best is None or key < best[0]:
            best = key, (node, victims)
    return best[1] if best else None


def newest_first(pods: Iterable[Running]) -> list[Running]:
    return sorted(pods, key=lambda pod: (pod.priority, -pod.start, pod.index))


def volcano(state: State, nodes: Sequence[int], need: int) -> Choice | None:
    """The first node on which popping the lowest and newest pods makes room."""
    for node in nodes:
        victims: list[Running] = []
        freed = state.free[node]
        for pod in newest_first(state.on[node]):
            if freed >= need:
                break
            victims.append(pod)
            freed += pod.size
        if freed >= need and victims:
            return node, victims
    return None


def kueue(state: State, nodes: Sequence[int], need: int) -> Choice | None:
    """Candidates of all nodes, lowest priority and most recent first, until a node has room; then those that are not
    needed are filled back, the last one taken first."""
    taken: dict[int, list[Running]] = {node: [] for node in nodes}
    for pod in newest_first(pod for node in nodes for pod in state.on[node]):
        victims = taken[pod.node]
        victims.append(pod)
        freed = state.free[pod.node] + sum(one.size for one in victims)
        if freed >= need:
            for one in reversed(victims[:-1]):
                if freed - one.size >= need:
                    freed -= one.size
                    victims.remove(one)
            return pod.node, victims
    return None


def minimal_sets(state: State, node: int, need: int) -> Iterator[list[Running]]:
    """All sufficient sets of a node from which nobody can be spared."""
    pods = state.on[node]
    for count in range(1, len(pods) + 1):
        for some in combinations(pods, count):
            freed = state.free[node] + sum(pod.size for pod in some)
            if freed >= need and all(freed - pod.size < need for pod in some):
                yield list(some)


def exact(
    state: State, nodes: Sequence[int], need: int, key: Callable[[Sequence[Running]], tuple[int, ...]]
) -> Choice | None:
    """Brute force: the cheapest of all minimal sets of all nodes. Each cost here only grows with the set, so no other
    set is cheaper."""
    best: tuple[Any, Choice] | None = None
    for node in nodes:
        for victims in minimal_sets(state, node, need):
            cost = (*key(victims), node)
            if best is None or cost < best[0]:
                best = cost, (node, victims)
    return best[1] if best else None


def choose(rule: str, state: State, nodes: Sequence[int], need: int) -> Choice | None:
    """vgpu-manager keeps kube-scheduler's victims and appends to them where links need it; for counts they suffice."""
    if rule in ("in-tree", "vgpu-manager-style"):
        return in_tree(state, nodes, need)
    if rule == "volcano-style":
        return volcano(state, nodes, need)
    if rule == "kueue-style":
        return kueue(state, nodes, need)
    if rule == "exact lexicographic":
        return exact(state, nodes, need, state.cost)
    return exact(state, nodes, need, lambda victims: (state.work(victims), len(victims)))


# ---- the same state as Kubernetes objects


def objects(state: State) -> Iterator[tuple[str, dict[str, Any]]]:
    """(kind, object) of nodes, pods and disruption budgets."""
    for i, what in enumerate(state.machines):
        yield "Node", node_object(node_name(i), what, cpu="1000", memory="8000Gi")
    for pod in state.pods:
        yield "Pod", running_pod(state, pod)
    for number, allowed in enumerate(state.allowed):
        yield (
            "PodDisruptionBudget",
            {
                "metadata": {"name": f"budget-{number}", "namespace": "work"},
                "spec": {"selector": {"matchLabels": {"budget": str(number)}}},
                "status": {"disruptionsAllowed": allowed},
            },
        )


def node_name(index: int) -> str:
    return f"node-{index:04d}"


def running_pod(state: State, pod: Running) -> dict[str, Any]:
    notes = {
        "gpu-extender.io/held-gpus": ",".join(str(i) for i in range(8) if pod.gpus >> i & 1),
        "gpu-extender.io/restart-seconds": str(pod.restart),
    }
    if pod.checkpoint is not None:
        notes["gpu-extender.io/last-checkpoint"] = _time(pod.checkpoint)
    if pod.gang >= 0:
        least = str(len(state.gangs[pod.gang]))
        notes |= {"gpu-extender.io/gang": f"gang-{pod.gang}", "gpu-extender.io/gang-min": least}
    return {
        "metadata": {
            "name": pod.name,
            "namespace": "work",
            "uid": pod.name,
            "labels": {"budget": str(pod.budgets[0])} if pod.budgets else {},
            "annotations": notes,
        },
        "spec": {
            "nodeName": node_name(pod.node),
            "priority": pod.priority,
            "terminationGracePeriodSeconds": pod.grace,
            "containers": [{"name": "main", "resources": {"limits": {GPU: str(pod.size)}}}],
        },
        "status": {"phase": "Running", "startTime": _time(pod.start)},
    }


def preemptor(number: int, need: int, links: str) -> dict[str, Any]:
    return {
        "metadata": {
            "name": f"preemptor-{number}",
            "namespace": "work",
            "uid": f"preemptor-{number}",
            "annotations": {"gpu-extender.io/links": links},
        },
        "spec": {
            "priority": PREEMPTOR,
            "containers": [{"name": "main", "resources": {"limits": {GPU: str(need)}}}],
        },
        "status": {"phase": "Pending"},
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
