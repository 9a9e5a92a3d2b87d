"""`plan`: the cheapest moves after which a shape fits, or a node has no pod with GPUs left. Nothing is moved.

The search (`preemption.moves`) counts; what it finds is carried out on the supposed cluster. There our own filter
judges each next place at its turn, and the place of the shape at the end. A place that the filter rejects is closed for
the search, which is then made again; the bound of the first one stays true.

A move begins when the pods of the one before run again: so each needs only the budgets of its own pods. Work is counted
as preemption counts it (`search.loss`), GPUs that move come second, then pods.

Where the room is for a time, pods that are declared to end before (`queue.gang_runs`) leave their GPUs to the shape.
Pods that move do not count on these: they move before.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from operator import add
from typing import Any, Final, NamedTuple

import msgspec

from extender.ask import machines
from extender.ask.capacity import divided
from extender.ask.machines import Fleet
from extender.ask.suppose import SupposedCluster
from extender.ask.text import count, no_such_node
from extender.ask.warn import warning
from extender.ask.whatif.drains import created_again, eviction_cost
from extender.cluster.cluster import ClusterView
from extender.cluster.statements import gpus_of as indices_of
from extender.cluster.tables import FIRST_GPU
from extender.errors import BadInput, NotFound
from extender.objects.advance import WantedRoom
from extender.objects.queueing import opened
from extender.objects.records import Event, PodRecord
from extender.objects.save_request import time_text
from extender.policy.pod_request import owner_key
from extender.policy.roles import NODE, LabelClasses, Unplaceable, admitted, repelled
from extender.preemption.cost_inputs import CostCeiling, ceiling_of
from extender.preemption.draining import stays
from extender.preemption.moves import MOST_STEPS, NEVER, Movable, MovablePod, Move, MoveSearch, MoveSearchResult, Shape
from extender.preemption.search import Preemptor, loss
from extender.queue.gang import formed
from extender.queue.gang_runs import stated
from extender.queue.levels import domain_of_node, keys_of
from extender.queue.placement import not_modelled
from extender.queue.report import first_names
from extender.reservations.advance import MovedPod, PlannedMove

MOST_TRIES: Final = 16
"""Searches of one answer: after each our filter has rejected a place."""
STEPS_AGAIN: Final = 8
"""A search after the first has this part of its steps: a server has 60 s of CPU for an answer."""
WORK: Final = 1 << 48
GPU: Final = 1 << 24
"""What a GPU-second of lost work, and a GPU that moves, count as in the cost of a search; a pod counts as 1."""


@dataclass(slots=True)
class Movers:
    """The cluster as the search reads it. Nodes that hand out whole GPUs, by name; `units` and their `pods`."""

    names: list[str]
    free: list[tuple[int, ...]]
    units: list[Movable] = field(default_factory=list)
    pods: list[tuple[PodRecord, ...]] = field(default_factory=list)
    gangs: list[str] = field(default_factory=list)
    """By unit the name of its gang, "" for a pod alone."""
    staying: dict[str, list[PodRecord]] = field(default_factory=lambda: defaultdict(list))
    """Pods with GPUs that do not move, by the reason."""
    closed: int = 0
    """Nodes where nothing goes."""
    repelled: int = 0
    """Pods that may move, and that others keep off some nodes by anti-affinity."""
    ended: list[PodRecord] = field(default_factory=list)
    """Pods that end before the room is needed."""
    ending: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """What these hold, by node."""

    def end(self, pod: PodRecord, node: int, amounts: tuple[int, ...]) -> None:
        """The pod ends before the room is needed. `amounts`: R amounts."""
        self.ended.append(pod)
        before = self.ending.get(node)
        self.ending[node] = amounts if before is None else tuple(map(add, before, amounts))

    def close(self, pod: MovablePod, node: int) -> None:
        """Pods that ask for the same, and may go to the same nodes, may not go to this one."""

        def closed(other: MovablePod) -> MovablePod:
            alike = other.amounts == pod.amounts and other.allowed == pod.allowed
            return other._replace(allowed=other.allowed & ~(1 << node)) if alike else other

        self.units = [unit._replace(pods=tuple(map(closed, unit.pods))) for unit in self.units]

    def keep_off(self, of: tuple[int, int], node: int, there: Set[int]) -> None:
        """Pods that others repel as they do this one may not go to this node, as it may not itself. `of`: its unit and
        its place in it; `there`: the units that have moved before it, and are not concerned."""
        at, place = of
        kind = repelled_by(self.pods[at][place])
        for number, (unit, pods) in enumerate(zip(self.units, self.pods, strict=True)):
            first = place if number == at else 0
            if number not in there and any(repelled_by(pod) == kind for pod in pods[first:]):
                kept = [
                    read._replace(allowed=read.allowed & ~(1 << node)) if repelled_by(pod) == kind else read
                    for read, pod in zip(unit.pods[first:], pods[first:], strict=True)
                ]
                self.units[number] = unit._replace(pods=(*unit.pods[:first], *kept))


def repelled_by(pod: PodRecord) -> object:
    """What decides which pods keep it off their nodes by anti-affinity."""
    return pod.namespace, pod.labels, pod.anti_affinity_terms


class _Reader:
    """Reads which pods may move, where to, and at what cost."""

    def __init__(self, supposed: SupposedCluster, fleet: Fleet, rule: MoveRule) -> None:
        self._cluster, self._wall, self._rule = supposed.cluster, rule.wall, rule
        names = sorted(fleet.gpus)
        _, lowest = machines.probe(supposed.judge, min(self._cluster.gpu_names), 1)
        with supposed.claims.of(lowest, supposed.now):
            tables = self._cluster.tables.nodes
            free = [tuple([max(0, left) for left in tables.free_of(self._cluster.row(name))]) for name in names]
        self.read = Movers(names, free)
        self._number = {name: number for number, name in enumerate(names)}
        self.read.closed = self._rejecting(supposed, fleet)
        self._classes = LabelClasses(self._cluster)
        self._allowed: dict[object, int | None] = {}
        self._repelled: set[object] = set()
        self._levels: dict[str, tuple[int, ...]] = {}
        self._ended = rule.ended()

    def _rejecting(self, supposed: SupposedCluster, fleet: Fleet) -> int:
        """The nodes that take no pods, and those with a free GPU where our filter rejects any pod, as where a device
        plugin has a fault."""
        closed = sum(1 << self._number[name] for name in self.read.names if self._cluster.nodes[name].closed)
        for resource in sorted(set(fleet.resource.values())):
            index = self._cluster.resources.index(resource)
            pod, request = machines.probe(supposed.judge, resource, 1)
            names = [name for name, free in zip(self.read.names, self.read.free, strict=True) if free[index]]
            passed = set(supposed.judge.passed(Preemptor(request, pod, supposed.now, self._wall), names))
            closed |= sum(1 << self._number[name] for name in names if name not in passed)
        return closed

    def movers(self) -> Movers:
        """All units."""
        seen: set[str] = set()
        for name in self.read.names:
            for pod in sorted(self._cluster.pods_on(name), key=lambda pod: (pod.namespace, pod.name, pod.uid)):
                if pod.terminating and pod.uid in self._ended:
                    self.read.end(pod, self._number[name], self._cluster.amounts(pod))
                if pod.uid not in seen and not pod.terminating and self._cluster.gpu_amount(pod):
                    gang = self._cluster.gangs.of(pod)
                    members = [pod] if gang is None else self._cluster.gangs.running(pod)
                    pods = [member for member in members if self._cluster.gpu_amount(member)]
                    pods.sort(key=lambda pod: (pod.node, pod.namespace, pod.name, pod.uid))
                    seen.update(member.uid for member in pods)
                    if all(member.uid in self._ended and member.node in self._number for member in pods):
                        for member in pods:
                            self.read.end(member, self._number[member.node], self._cluster.amounts(member))
                        continue
                    unit = self._unit(pods, members)
                    if isinstance(unit, str):
                        self.read.staying[unit] += pods
                        continue
                    self.read.units.append(unit)
                    self.read.pods.append(tuple(pods))
                    self.read.gangs.append("" if gang is None else str(gang.ref))
        return self.read

    def _unit(self, pods: Sequence[PodRecord], members: Sequence[PodRecord]) -> Movable | str:
        """The unit of these pods, or why they stay. `members`: with those of the gang that have no GPUs."""
        cluster, gang = self._cluster, None
        if cluster.gangs.of(pods[0]) is not None and (ref := cluster.gangs.ref(pods[0])) is not None:
            gang = formed(cluster, ref, members)
        why = self._rule.why(pods) or self._parts(pods) or self._budget(members) or self._rule.fails(members)
        if not why and gang is not None and len(gang.pods) > len(members):
            why = "its gang has pods that wait"
        elif not why and gang is not None and (gang.apart or gang.part_domains or gang.unchecked):
            why = "its gang states domains of its parts"
        if why:
            return why
        read: list[MovablePod] = []
        for pod in pods:
            nodes = self._nodes_of(pod)
            if nodes is None:
                return "its node selector has too many parts"
            read.append(MovablePod(self._number[pod.node], cluster.amounts(pod), nodes))
        lost = loss(cluster, members, self._wall).work
        cost = lost * WORK + sum(sum(pod.amounts[FIRST_GPU:]) for pod in read) * GPU + len(read)
        domain = None if gang is None else gang.domain
        return Movable(tuple(read), cost, self._domains(domain.level) if domain is not None and domain.required else ())

    def _parts(self, pods: Iterable[PodRecord]) -> str:
        if all(pod.node in self._number for pod in pods):
            return ""
        return "its gang has pods on nodes that hand out parts of GPUs"

    def _budget(self, pods: Iterable[PodRecord]) -> str:
        cluster = self._cluster
        taken = Counter(key for pod in pods for key in cluster.budgets.of(pod))
        full = any(number > cluster.budgets.records[key].disruptions_allowed for key, number in taken.items())
        return "a PodDisruptionBudget does not allow it" if full else ""

    def _domains(self, level: str) -> tuple[int, ...]:
        if level not in self._levels:
            self._levels[level] = tuple(domains(self._cluster, level, self.read.names).values()) or (0,)
        return self._levels[level]

    def _nodes_of(self, pod: PodRecord) -> int | None:
        """The nodes that the pod's own rules admit, as they are now; None: they cannot be looked at."""
        key = (pod.node_selector, pod.node_terms, pod.tolerations, pod.anti_affinity_terms, self._classes.of(pod))
        if key not in self._allowed and repelled(self._cluster, pod) - {self._cluster.row(pod.node)}:
            self._repelled.add(key)
        self.read.repelled += key in self._repelled
        if key not in self._allowed:
            try:
                rows = set(admitted(self._cluster, pod, self._cluster.rows.index.rows(self.read.names)))
            except Unplaceable:
                self._allowed[key] = None
            else:
                of = (number for name, number in self._number.items() if self._cluster.row(name) in rows)
                self._allowed[key] = sum(1 << number for number in of) & ~self.read.closed
        return self._allowed[key]


def domains(cluster: ClusterView, level: str, names: Sequence[str]) -> dict[str, int]:
    """The domains of a level as sets of these nodes, by the value of their label."""
    keys = keys_of(level, cluster.settings.topology_levels)
    found: dict[str, int] = {}
    for number, name in enumerate(names):
        domain = (NODE, name) if NODE in keys else domain_of_node(cluster, keys, cluster.row(name))
        if domain is not None:
            found[domain[1]] = found.get(domain[1], 0) | 1 << number
    return dict(sorted(found.items()))


class Room(NamedTuple):
    """The room, and how it is made."""

    found: bool
    """Whether it is there, or moves make it."""
    places: tuple[tuple[str, int], ...]
    """(node, pods of the shape there)."""
    amounts: tuple[int, ...]
    """R amounts of a pod of the shape; () where a node is emptied, or no room was found."""
    moves: tuple[PlannedMove, ...]
    """In order."""
    shown: dict[str, Any]
    """`kind: Moves`."""


def room(supposed: SupposedCluster, asked: WantedRoom, wall: float) -> Room:
    """The room, and the moves that make it. The cluster is changed by it, and serves no second question. `wall`: the
    time at which it is asked, seconds since 1970. BadInput, NotFound."""
    cluster = supposed.cluster
    cluster.at(wall)
    fleet = machines.read(supposed.judge)
    if asked.node and asked.node not in cluster.nodes:
        raise NotFound(no_such_node(cluster.nodes, asked.node), path=f"node {asked.node}")
    if asked.node and asked.node not in fleet.gpus:
        raise BadInput("it offers no whole GPUs", path=f"node {asked.node}")
    if asked.at and asked.at <= wall:
        raise BadInput("this time has passed", path="at")
    rule = MoveRule.of(cluster, asked, wall)
    movers = _Reader(supposed, fleet, rule).movers()
    fixed = [
        (pod, why) for why, pods in movers.staying.items() for pod in pods if pod.node == asked.node and not pod.daemon
    ]
    search = _Searching(supposed, asked, fleet, movers, wall, _ceiling(supposed, asked))
    result = MoveSearchResult(None, 0, NEVER, (), 0) if fixed else search.found()
    shown = search.as_json(result, fixed)
    places = tuple((place["node"], place["pods"]) for place in shown["places"])
    planned = (
        PlannedMove(tuple(MovedPod(pod["uid"], f"{pod['namespace']}/{pod['name']}", pod["to"]) for pod in move["pods"]))
        for move in shown["moves"]
    )
    return Room(result.moves is not None, places, search.amounts, tuple(planned), shown)


def _ceiling(supposed: SupposedCluster, asked: WantedRoom) -> CostCeiling | None:
    """That of the priority class."""
    if not asked.priority_class:
        return None
    pod, _ = machines.probe(supposed.judge, min(supposed.cluster.gpu_names), 1)
    pod = msgspec.structs.replace(pod, priority_class=asked.priority_class)
    return ceiling_of(supposed.settings.preemption, (pod,), asked.pods * asked.gpus)


@dataclass(slots=True)
class _Searching:
    """One question."""

    supposed: SupposedCluster
    asked: WantedRoom
    fleet: Fleet
    movers: Movers
    wall: float
    ceiling: CostCeiling | None
    closed: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    """Nodes where our filter rejects a pod of the shape, by resource."""
    gpus: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """By uid of a pod that moves: its next GPUs, () where these are not known."""
    cost: list[dict[str, Any]] = field(default_factory=list)
    """Of the moves."""
    amounts: tuple[int, ...] = ()
    """R amounts of a pod of the shape that was found."""

    def found(self) -> MoveSearchResult:
        """The cheapest moves that our filter passes."""
        bound, steps = 0, 0
        for tried in range(MOST_TRIES):
            result, resource = self._search(MOST_STEPS if not tried else MOST_STEPS // STEPS_AGAIN)
            steps += result.steps
            bound = bound if tried else result.bound
            if result.moves is None:
                break
            moving = [pod for move in result.moves for pod in self.movers.pods[move.unit]]
            self.cost = eviction_cost(loss(self.supposed.cluster, moving, self.wall), 0, moving)
            if self._carried_out(result, resource):
                return replace(result, bound=min(bound, result.cost), steps=steps)
        self.cost, self.amounts = [], ()
        return MoveSearchResult(None, 0, bound, (), steps)

    def _search(self, most_steps: int) -> tuple[MoveSearchResult, str]:
        """(the cheapest moves, the resource of the shape)."""
        movers, most = self.movers, NEVER - 1
        if self.ceiling is not None:
            most = (self.ceiling.most + 1) * WORK - 1
        if self.asked.node:
            search = MoveSearch(movers.free, movers.units, most)
            return search.empties(movers.names.index(self.asked.node), most_steps), ""
        best, of, bound, steps = MoveSearchResult(None, 0, NEVER, (), 0), "", NEVER, 0
        for resource, sets in sorted(self._sets().items()):
            index = self.supposed.cluster.resources.index(resource)
            amounts = [0] * len(self.supposed.cluster.resources)
            amounts[FIRST_GPU - 1], amounts[index] = 1, self.asked.gpus
            shape = Shape(tuple(amounts), self.asked.pods, tuple(sets))
            result = MoveSearch(movers.free, movers.units, most, movers.ending).fits(shape, most_steps)
            bound, steps = min(bound, result.bound), steps + result.steps
            if result.moves is not None:
                best, of, most, self.amounts = result, resource, result.cost - 1, shape.amounts
        return MoveSearchResult(best.moves, best.cost, bound, best.places, steps), of

    def _sets(self) -> dict[str, list[int]]:
        """By GPU resource the sets of nodes of which one has to hold the shape: domains, each by model. BadInput."""
        asked, names = self.asked, self.movers.names
        if asked.model and asked.model not in self.fleet.models:
            known = ", ".join(sorted(self.fleet.models)[:8])
            raise BadInput(f"no node has GPUs of this model; models: {known}", path=f"model {asked.model}")
        within = {"": (1 << len(names)) - 1}
        if asked.level:
            within = domains(self.supposed.cluster, asked.level, names)
            if not any(within.values()):
                raise BadInput("no node with GPUs is in such a domain", path=f"domain {asked.level}")
            if asked.value:
                if not within.get(asked.value):
                    known = first_names(sorted(within), 8)
                    raise BadInput(
                        f"no node with GPUs is in it; there are: {known}", path=f"domain {asked.level}={asked.value}"
                    )
                within = {asked.value: within[asked.value]}
        number = {name: at for at, name in enumerate(names)}
        by_resource: dict[str, list[int]] = {}
        for model in [asked.model] if asked.model else sorted(self.fleet.models):
            resource = self.fleet.resource[model]
            nodes = {number[name] for name in self.fleet.open(model)} - self.closed[resource]
            bits = sum(1 << node for node in nodes) & ~self.movers.closed
            by_resource.setdefault(resource, []).extend(bits & domain for domain in within.values() if bits & domain)
        return by_resource

    # -- on the supposed cluster

    def _carried_out(self, result: MoveSearchResult, resource: str) -> bool:
        """Whether our filter passes each place in turn. If not, the place is closed, and the cluster is as before."""
        placed: list[PodRecord] = []
        gone: list[PodRecord] = []
        moves = result.moves or ()
        order = [move.unit for move in moves]
        passed = all(self._moved(move, {*order[:at]}, placed, gone) for at, move in enumerate(moves))
        if passed and self.movers.ended:
            gone += self.movers.ended
            self.supposed.apply([Event("Pod", "delete", pod) for pod in self.movers.ended])
        passed = passed and all(self._shape_fits(node, pods, resource, placed) for node, pods in result.places)
        if not passed:
            back = [Event("Pod", "set", pod) for pod in gone]
            copies = [self.supposed.cluster.pods[pod.uid] for pod in placed]
            self.supposed.apply([*(Event("Pod", "delete", pod) for pod in copies), *back])
        return passed

    def _moved(self, move: Move, before: Set[int], placed: list[PodRecord], gone: list[PodRecord]) -> bool:
        """Move a unit. `before`: the units that have moved."""
        pods = self.movers.pods[move.unit]
        for at, (pod, node) in enumerate(zip(pods, move.nodes, strict=True)):
            (copy,) = created_again(self.supposed, [msgspec.structs.replace(pod, uid=f"{pod.uid}/moved")])
            if self.supposed.cluster.row(self.movers.names[node]) in repelled(self.supposed.cluster, copy):
                self.movers.keep_off((move.unit, at), node, before)  # by one that has moved there
                return False
            mask = self._judged(copy, self.movers.names[node], placed)
            if mask is None:
                self.movers.close(self.movers.units[move.unit].pods[at], node)
                return False
            self.gpus[pod.uid] = tuple(indices_of(mask))
        gone += pods
        self.supposed.apply([Event("Pod", "delete", pod) for pod in pods])
        return True

    def _shape_fits(self, node: int, pods: int, resource: str, placed: list[PodRecord]) -> bool:
        for at in range(pods if self.asked.pods else 0):
            pod, _ = machines.probe(self.supposed.judge, resource, self.asked.gpus)
            pod = msgspec.structs.replace(pod, uid=f"shape-{node}-{at}", name=f"shape-{node}-{at}")
            if self._judged(pod, self.movers.names[node], placed) is None:
                self.closed[resource].add(node)
                return False
        return True

    def _judged(self, pod: PodRecord, name: str, placed: list[PodRecord]) -> int | None:
        """Place the pod on the node: the mask of its GPUs; None: our filter rejects it there."""
        supposed, released = self.supposed, opened(pod)
        asked = Preemptor(supposed.claims.request(released, supposed.now), released, supposed.now, self.wall)
        if not supposed.judge.fits(asked, name):
            return None
        mask = supposed.judge.planned(asked, name)
        supposed.place(pod, name, mask)
        placed.append(pod)
        return mask

    # -- as JSON

    def as_json(self, result: MoveSearchResult, fixed: Sequence[tuple[PodRecord, str]]) -> dict[str, Any]:
        """The answer. `fixed`: pods that stay on the node that is to be emptied, and why."""
        asked, names = self.asked, self.movers.names
        shape = {"pods": asked.pods, "gpus": asked.gpus, "model": asked.model or None} if asked.pods else None
        staying = {why: len(pods) for why, pods in sorted(self.movers.staying.items())}
        bound = None if result.bound >= NEVER else result.bound // WORK
        return {
            "apiVersion": "gpu-extender.io/v1",
            "kind": "Moves",
            "warnings": list(self._warnings(result)),
            "policy_hash": self.supposed.settings.policy_hash,
            "shape": shape,
            "domain": {"level": asked.level, "value": asked.value or None} if asked.level else None,
            "node": asked.node or None,
            "at": time_text(asked.at) if asked.at else None,
            "ended": {"pods": len(self.movers.ended), "gpus": self._gpus_ended()},
            "verdict": "cannot" if result.moves is None else "moves" if result.moves else "fits",
            "places": [{"node": names[node], "pods": pods} for node, pods in result.places] if shape else [],
            "moves": [self._move(move) for move in result.moves or ()],
            "cost": self.cost,
            "certificate": {"proved": result.proved, "bound_gpu_seconds": bound, "steps": result.steps},
            "stays": [{"namespace": pod.namespace, "name": pod.name, "reason": why} for pod, why in fixed],
            "not_moved": [{"reason": why, "pods": number} for why, number in staying.items()],
        }

    def _gpus_ended(self) -> int:
        return sum(sum(amounts[FIRST_GPU:]) for amounts in self.movers.ending.values())

    def _move(self, move: Move) -> dict[str, Any]:
        unit, pods = self.movers.units[move.unit], self.movers.pods[move.unit]
        owner = pods[0].owner
        assert owner is not None
        return {
            "gang": self.movers.gangs[move.unit] or None,
            "owner": {"kind": owner.kind, "name": owner.name},
            "work_lost_gpu_seconds": unit.cost // WORK,
            "pods": [
                {
                    "namespace": pod.namespace,
                    "name": pod.name,
                    "uid": pod.uid,
                    "priority": pod.priority,
                    "gpu_count": sum(read.amounts[FIRST_GPU:]),
                    "from": pod.node,
                    "to": self.movers.names[node],
                    "gpus": list(self.gpus[pod.uid]) or None,
                }
                for pod, read, node in zip(pods, unit.pods, move.nodes, strict=True)
            ],
        }

    def _warnings(self, result: MoveSearchResult) -> Iterator[dict[str, str]]:
        """What the answer leaves out."""
        yield from divided(self.fleet.divided)
        if self.ceiling is not None and result.moves is None:
            text = f"{self.ceiling.setting} allows {self.ceiling.allows} GPU-hours of lost work"
            yield warning("cost-ceiling", f"{text}: moves that lose more are left out")
        if self.asked.node:
            without = sum(not self.supposed.cluster.gpu_amount(pod) and not stays(pod)
                          for pod in self.supposed.cluster.pods_on(self.asked.node))  # fmt: skip
            if without:
                text = f"{count(without, 'pod')} without GPUs on the node: where these go is not judged"
                yield warning("pods-without-gpus", text)
        if self.movers.repelled and result.moves != ():
            text = "that others keep off some nodes by anti-affinity: that those could move first is not searched"
            yield warning("anti-affinity", f"{count(self.movers.repelled, 'pod')} {text}")
        if jobs := sum(pods[0].owner is not None and pods[0].owner.kind == "Job"
                       for pods in (self.movers.pods[move.unit] for move in result.moves or ())):  # fmt: skip
            text = "a Job counts an evicted pod as failed, unless its podFailurePolicy ignores DisruptionTarget"
            yield warning("job-failures", f"{count(jobs, 'move')} of pods of Jobs: {text}")


# -- which running pods may move to make room, as `plan` decides it, and as it is decided again before each eviction


LONGEST_OWNER: Final = 512
"""Characters of the key of an owner: it is part of the name of a next place. Kubernetes bounds no kind."""


@dataclass(slots=True, frozen=True)
class MoveRule:
    """Which pods of one cluster may move for one question. Times are seconds since 1970."""

    cluster: ClusterView
    wall: float
    at: float = 0.0
    """Pods that are declared to end until then are gone; 0.0: none is."""
    most_priority: int | None = None
    """Pods of this priority and above stay; None: of no priority."""

    @classmethod
    def of(cls, cluster: ClusterView, asked: WantedRoom, wall: float) -> MoveRule:
        """That of a question. BadInput."""
        if not asked.priority_class:
            return cls(cluster, wall, asked.at)
        known = cluster.priority_classes.get(asked.priority_class)
        if known is None:
            raise BadInput("the cluster has no such PriorityClass", path=f"priority-class {asked.priority_class}")
        return cls(cluster, wall, asked.at, known.value)

    def ended(self, nodes: Iterable[str] | None = None) -> set[str]:
        """Uids of the pods that end before `at`. `nodes`: None: all."""
        ends = stated(self.cluster, self.wall, nodes) if self.at else ()
        return {pod.uid for pod, end in ends if end is not None and end <= self.at}

    def why(self, pods: Iterable[PodRecord]) -> str:
        """Why pods that move together do not move, "" where nothing of them hinders it."""
        return next(filter(None, map(self._stays, pods)), "")

    def why_not_now(self, move: PlannedMove) -> str:
        """Why pods of a move that is planned would not be planned to move any more. What budgets allow for the moment
        is not asked: the eviction waits for them."""
        known = [self.cluster.pods.get(moved.uid) for moved in move.pods]
        pods = [pod for pod in known if pod is not None and pod.node and not (pod.finished or pod.terminating)]
        if pods and self.ended({pod.node for pod in pods}).issuperset(pod.uid for pod in pods):
            return "declared to end before"
        return self.why(pods) or self.fails(pods)

    def fails(self, pods: Iterable[PodRecord]) -> str:
        """That a Job would fail by these evictions, "" where none does."""
        objects = self.cluster.gangs.objects
        owners = Counter((pod.namespace, pod.owner.kind, pod.owner.name) for pod in pods if pod.owner is not None)
        for (namespace, kind, name), number in owners.items():
            job = objects.get(("batch", "Job", namespace, name)) if kind == "Job" else None
            if job is not None and job.failures_left is not None and number > job.failures_left:
                return "its Job fails by evictions, and creates no more pods (backoffLimit, podFailurePolicy)"
        return ""

    def _stays(self, pod: PodRecord) -> str:
        cluster = self.cluster
        if why := stays(pod):
            return why
        if pod.owner is None:
            return "no owner that creates a new pod"
        if len(owner_key(pod)) > LONGEST_OWNER:
            return "its owner's kind is too long to be kept"
        if self.most_priority is not None and pod.priority >= self.most_priority:
            return "of equal or higher priority"
        if cluster.limits.protected_ms(pod) > int(self.wall * 1000):
            return "protected (protect-for, preemption.minimumRunSeconds)"
        if pod.claims or pod.claim_refs or pod.class_requests:
            return "its devices are allocated to claims, which are not modelled here"
        unknown = not_modelled(pod, cluster.device_classes.values(), claims=False)
        return f"its next place cannot be checked in full: {', '.join(unknown)}" if unknown else ""
