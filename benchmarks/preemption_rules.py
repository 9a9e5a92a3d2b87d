"""A full cluster, and whom each rule would evict there. The rivals are written after their published descriptions.

Machines full of whole-GPU pods with the sizes of the openb trace, placed by the stock device plugin. Ages, checkpoints,
gangs, budgets and priorities are invented, seeded: the trace has none. One node more in twenty has GPUs free, behind a
taint that every other pod tolerates and the preemptor does not: some victims can run there, the others are stranded.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from benchmarks import preemption_links as links
from extender.sim.in_tree import beyond_budgets, preference, taken_back
from extender.sim.machines import GPU, Arbitrary, PluginPanicked, SimMachine, SimNode, machine

NOW = 1_800_000_000.0
# Whole-GPU pods by GPUs asked for, in two variants of the trace.
SIZES = {"default": {1: 3911, 2: 16, 4: 15, 8: 44}, "multigpu50": {1: 3911, 2: 222, 4: 206, 8: 556}}
PRIORITIES = (0, 100, 200)
PREEMPTOR = 1000
KINDS = ("dgx1-v100", "dgx-h100")
RULES = ("in-tree", "vgpu-manager-style", "volcano-style", "kueue-style")
TAINT = {"key": "work/only", "value": "batch", "effect": "NoSchedule"}
PREDICTED_GPUS = 8  # the plugin's rule tries all ways to split the free GPUs: too many ways with 16


class Fleet(NamedTuple):
    """`holes`: share of the nodes on which a one-GPU pod has ended, so that one GPU is free; `close`: one-GPU pods of
    one priority whose costs nearly tie, so that little can be ruled out early."""

    kinds: tuple[str, ...]
    gpus: int
    holes: float = 0.0
    close: bool = False

    def needs(self, need: int) -> bool:
        """Whether a pod of so many GPUs has to evict."""
        return (2 if self.holes else 1) <= need <= self.gpus


FLEETS = {
    "8": Fleet(KINDS, 8),
    "8-holes": Fleet(KINDS, 8, holes=0.5),
    "16": Fleet(("dgx2",), 16),
    "16-close": Fleet(("dgx2",), 16, close=True),
}


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
    tolerates: bool = False

    @property
    def work(self) -> int:
        since = max(self.start, self.checkpoint) if self.checkpoint is not None else self.start
        return self.size * (int(NOW - since) + self.restart)

    @property
    def name(self) -> str:
        return f"pod-{self.index}"


@dataclass(slots=True)
class State:
    """`gangs`: members by gang (all of them are needed); `allowed`: disruptions allowed by budget; `spare`: free GPUs
    of each node behind the taint."""

    machines: list[SimMachine]
    pods: list[Running]
    on: list[list[Running]]
    gangs: dict[int, list[Running]]
    allowed: list[int]
    spare: list[int] = field(default_factory=list)
    free_masks: list[int] = field(init=False)  # the GPUs that nobody holds, by node

    def __post_init__(self) -> None:
        self.free_masks = [
            (1 << what.gpus) - 1 - sum(pod.gpus for pod in pods)
            for what, pods in zip(self.machines, self.on, strict=True)
        ]

    @classmethod
    def make(cls, nodes: int, seed: int, variant: str = "default", fleet: Fleet = FLEETS["8"]) -> State:
        sizes = {1: 1} if fleet.close else SIZES[variant]
        rng, other = random.Random(seed), random.Random(seed + 7_000_003)
        kinds = [fleet.kinds[i % len(fleet.kinds)] for i in range(nodes)]
        machines = [machine(kind) for kind in kinds]
        plugins = {
            kind: machine(kind).plugin() if machine(kind).gpus <= PREDICTED_GPUS else Arbitrary() for kind in kinds
        }
        pods: list[Running] = []
        on: list[list[Running]] = [[] for _ in range(nodes)]
        for i in range(nodes):
            left = list(range(machines[i].gpus))
            while left:
                fitting = [size for size in sizes if size <= len(left)]
                size = rng.choices(fitting, [sizes[size] for size in fitting])[0]
                try:
                    chosen = plugins[kinds[i]].choose(left, size, rng)
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
                    other.random() < 0.5,
                )
                pods.append(pod)
                on[i].append(pod)
        for there in on:
            singles = [pod for pod in there if pod.size == 1]
            if singles and other.random() < fleet.holes:
                there.remove(ended := other.choice(singles))
                pods.remove(ended)
        spare = [other.choice((1, 2)) for _ in range(max(1, nodes // 20))]
        if fleet.close:
            return cls(machines, pods, on, {}, _nearly_equal(pods, rng), spare)
        gangs = _gangs(pods, rng)
        allowed = _budgets(pods, rng)
        return cls(machines, pods, on, gangs, allowed, spare)

    def free(self, node: int) -> int:
        return self.free_masks[node].bit_count()

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
        return sum(beyond_budgets(sorted(victims, key=importance), lambda pod: pod.budgets, self.allowed))

    def stranded(self, pod: Running) -> bool:
        """Whether no other node has room for the pod now, by count."""
        room = max((free for free in self.spare if pod.tolerates), default=0)
        others = (mask.bit_count() for node, mask in enumerate(self.free_masks) if node != pod.node)
        return pod.size > room and all(pod.size > free for free in others)

    def cost(self, choice: Choice, need: int) -> Cost:
        """All terms of the settings, in their default order."""
        node, victims = choice
        return (
            self.violations(victims),
            max(pod.priority for pod in victims),
            len(self.broken(victims)),
            self.work(victims),
            max(pod.grace for pod in victims),
            len(victims),
            sum(pod.size for pod in victims) - self.lacking(node, need),
            links.leftover(self.machines[node], self.freed(choice), need),
            sum(self.stranded(pod) for pod in victims),
        )

    def lacking(self, node: int, need: int) -> int:
        """GPUs that are needed beyond those that are free on the node."""
        return max(0, need - self.free_masks[node].bit_count())

    def freed(self, choice: Choice) -> int:
        """The mask of GPUs that are free on the node when the victims are gone."""
        node, victims = choice
        return self.free_masks[node] + sum(pod.gpus for pod in victims)


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


def _nearly_equal(pods: Sequence[Running], rng: random.Random) -> list[int]:
    """One priority, no gangs, work that differs by seconds, and everybody in one of four budgets; see
    benchmarks/preempt_speed.py."""
    for pod in pods:
        pod.priority, pod.checkpoint = 0, None
        pod.start = NOW - 1_000_000 - rng.randrange(60)
        pod.restart = rng.randrange(50)
        pod.grace = rng.choice((30, 31, 32, 33))
        pod.budgets = (rng.randrange(4),)
    return [0, 1, 2, 3]


# ---- the rules: (node, victims), or None where none suffices

Choice = tuple[int, list[Running]]
Cost = tuple[int, ...]


def in_tree_victims(state: State, node: int, need: int) -> tuple[list[Running], int] | None:
    """kube-scheduler's victims on one node and their violations; None: the pod does not fit without all of them."""
    pods = sorted(state.on[node], key=importance)
    freed = state.free(node) + sum(pod.size for pod in pods)
    if freed < need:
        return None

    def stays(pod: Running) -> bool:
        nonlocal freed
        if freed - pod.size < need:
            return False
        freed -= pod.size
        return True

    return taken_back(pods, beyond_budgets(pods, lambda pod: pod.budgets, state.allowed), stays)


def _in_tree_key(victims: Iterable[Running], violations: int) -> tuple[float, ...]:
    return preference([(pod.priority, pod.start) for pod in sorted(victims, key=importance)], violations)


def in_tree(state: State, nodes: Sequence[int], need: int) -> Choice | None:
    best: tuple[Any, Choice] | None = None
    for node in nodes:
        found = in_tree_victims(state, node, need)
        if not found or not found[0]:
            continue
        key = _in_tree_key(*found)
        if best is None or key < best[0]:
            best = key, (node, found[0])
    return best[1] if best else None


def vgpu_manager(state: State, nodes: Sequence[int], need: int, *, required: bool = False) -> Choice | None:
    """kube-scheduler's victims are all kept. Where the pod does not fit without them, others of the node follow one by
    one until it does: pods of no gang, then lower priority, then newer, none whose budget is spent. Each counts as a
    violation. The node is kube-scheduler's choice among the lists."""
    best: tuple[Any, Choice] | None = None
    for node in nodes:
        found = in_tree_victims(state, node, need)
        if not found or not found[0]:
            continue
        victims, violations = list(found[0]), found[1]
        others = [
            pod for pod in state.on[node] if pod not in victims and all(state.allowed[b] > 0 for b in pod.budgets)
        ]
        others.sort(key=lambda pod: (pod.gang >= 0, pod.priority, -pod.start, pod.index), reverse=True)
        while (fits := _fits(state, (node, victims), need, required=required)) is False and others:
            victims.append(others.pop())
            violations += 1
        key = _in_tree_key(victims, violations)
        if fits and (best is None or key < best[0]):
            best = key, (node, victims)
    return best[1] if best else None


def _fits(state: State, choice: Choice, need: int, *, required: bool) -> bool:
    """It hands out the GPUs itself: one linked set is enough."""
    free = state.freed(choice)
    return links.linked(state.machines[choice[0]], free, need) if required else free.bit_count() >= need


def newest_first(pods: Iterable[Running]) -> list[Running]:
    return sorted(pods, key=lambda pod: (pod.priority, -pod.start, pod.index))


def volcano(state: State, nodes: Sequence[int], need: int) -> Choice | None:
    """The first node on which popping the lowest and newest pods makes room."""
    for node in nodes:
        victims: list[Running] = []
        freed = state.free(node)
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
        freed = state.free(pod.node) + sum(one.size for one in victims)
        if freed >= need:
            for one in reversed(victims[:-1]):
                if freed - one.size >= need:
                    freed -= one.size
                    victims.remove(one)
            return pod.node, victims
    return None


def choose(rule: str, state: State, nodes: Sequence[int], need: int, *, required: bool = False) -> Choice | None:
    """`required`: the pod says `links: required`. Of these only vgpu-manager looks at it."""
    if rule == "vgpu-manager-style":
        return vgpu_manager(state, nodes, need, required=required)
    return {"in-tree": in_tree, "volcano-style": volcano, "kueue-style": kueue}[rule](state, nodes, need)


# ---- the same state as Kubernetes objects


def objects(state: State) -> Iterator[tuple[str, dict[str, Any]]]:
    """(kind, object) of nodes, pods and disruption budgets."""
    for i, what in enumerate(state.machines):
        yield "Node", SimNode(node_name(i), what, cpu="1000", memory="8000Gi").object()
    for i, free in enumerate(state.spare):
        yield from _spare(state.machines[i % len(state.machines)], f"spare-{i:04d}", free)
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


def _spare(what: SimMachine, name: str, free: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """A tainted node, and a pod on it that nobody may evict and that holds all but `free` of its GPUs."""
    yield "Node", SimNode(name, what, cpu="1000", memory="8000Gi", taints=[TAINT]).object()
    held = what.gpus - free
    yield (
        "Pod",
        {
            "metadata": {
                "name": f"on-{name}",
                "namespace": "work",
                "uid": f"on-{name}",
                "annotations": {"gpu-extender.io/held-gpus": ",".join(map(str, range(held)))},
            },
            "spec": {
                "nodeName": name,
                "priority": PREEMPTOR,
                "containers": [{"name": "main", "resources": {"limits": {GPU: str(held)}}}],
            },
            "status": {"phase": "Running", "startTime": _time(NOW - 1)},
        },
    )


def node_name(index: int) -> str:
    return f"node-{index:04d}"


def running_pod(state: State, pod: Running) -> dict[str, Any]:
    notes = {
        "gpu-extender.io/held-gpus": ",".join(str(i) for i in range(16) if pod.gpus >> i & 1),
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
            "tolerations": [{**TAINT, "operator": "Equal"}] if pod.tolerates else [],
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
