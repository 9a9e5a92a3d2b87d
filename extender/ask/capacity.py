"""`kind: Capacity`, and parts of it: what fits now, what would start the first that wait, and advice."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, NamedTuple

from ext_core import fit, survey
from ext_core.joint import Joint
from ext_core.link_sets import LinkSets
from extender.ask import machines, warn
from extender.ask.explanation import Explanation
from extender.ask.judge import Judge
from extender.ask.machines import Fleet, Look, Machine, copy, probe, takes, usual
from extender.ask.node_reasons import UNREADABLE
from extender.ask.nodes import kept_off
from extender.ask.pending import EVICTING, FITS, SAVING, WaitingPods, alike
from extender.ask.text import count, joined, short
from extender.cluster.cluster import ClusterView
from extender.cluster.gpus import MOST_GPUS
from extender.cluster.nodes import model_of
from extender.cluster.tables import FIRST_GPU
from extender.objects.queueing import GATE, queue_of
from extender.objects.records import NodeRecord, PodRecord
from extender.policy.contracts import PodRequest
from extender.policy.pod_request import wants_of
from extender.policy.roles import PodRole, judged, kernel_roles
from extender.policy.scorers import FULLNESS
from extender.preemption.certificate import MINIMUM_UNKNOWN
from extender.preemption.search import Preemptor
from extender.queue.levels import Layout, PlacementLevel, inside
from extender.queue.levels import nodes as each_node
from extender.queue.report import QueueReport
from extender.queue.usage import Quota, add_gpus

NOT_COUNTED: Final = "parts-not-counted"
FIRST: Final = 3
"""Gangs, and kinds of single pods, that are explained."""
Explain = Callable[[PodRecord], Explanation]


def capacity(
    judge: Judge, now: float, report: QueueReport | None, waiting: WaitingPods, explain: Explain
) -> dict[str, Any]:
    """What fits `now`, by the server's clock, what would start the first that wait, and advice. `report`: the latest
    look at the queue, None where it is not known."""
    look = Look(judge, machines.read(judge), now)
    in_domains, in_all = gangs(look)
    positions = {pod.uid: position for position, (pod, _) in enumerate(waiting)}
    explained = [*_gangs(judge, report, explain), *_pods(waiting, explain)]
    explained.sort(key=lambda entry: positions.get(entry.shown.pod.uid, len(positions)))
    unblock = [entry.as_json() for entry in explained]
    missing = warn.not_all_checked((entry["pod"], entry["not_checked"]) for entry in unblock)
    unknown = (warning for entry in explained for warning in entry.shown.warnings if warning["code"] == MINIMUM_UNKNOWN)
    unknown_minima = {warning["message"]: warning for warning in unknown}
    return {
        "apiVersion": "gpu-extender.io/v1",
        "kind": "Capacity",
        "warnings": [*divided(look.fleet.divided), *missing, *unknown_minima.values()],
        "largest": largest(look),
        "gangs": in_domains,
        "pods": in_all,
        "whole_nodes": whole_nodes(look),
        "unblock": unblock,
        "advice": advice(judge, report, waiting),
    }


def advice(judge: Judge, report: QueueReport | None, waiting: WaitingPods) -> dict[str, Any]:
    """What is never carried out: machines that would start waiting pods."""
    return {"nodes": growth(judge, waiting_units(report, waiting), report)}


def nodes_wanted(judge: Judge, report: QueueReport | None, waiting: WaitingPods) -> dict[str, int]:
    """How many more machines of each model would start the pods that wait for room, as the advice counts them; without
    those that have a nominated node, whose victims leave."""
    nominated = judge.cluster.placements.nominated
    units = [unit for unit in waiting_units(report, waiting) if not any(pod.uid in nominated for pod in unit)]
    return {entry["model"]: entry["nodes"] for entry in growth(judge, units, report)}


def divided(nodes: int) -> list[dict[str, str]]:
    """The warning of so many nodes that do not count."""
    if not nodes:
        return []
    text = f"{count(nodes, 'node')} hand{'s' if nodes == 1 else ''} out parts of GPUs: not counted here"
    return [warn.warning(NOT_COUNTED, text)]


# -- what would start the first gangs of the queue, and the first pods outside of it, in the order in which they wait:
# -- the verdict on each, with its ways out; equal pods once


class _Explained(NamedTuple):
    """The verdict on a pod that waits, and for which others it stands."""

    shown: Explanation
    gang: str | None
    pods: int
    gpus: int
    """Of all these pods together."""

    def as_json(self) -> dict[str, Any]:
        """The JSON form."""
        shown = self.shown
        explained = shown.as_json()
        return {
            "gang": self.gang,
            "pod": f"{shown.pod.namespace}/{shown.pod.name}",
            "priority": shown.pod.priority,
            "pods": self.pods,
            "gpus": self.gpus,
            "verdict": shown.verdict,
            "sentence": shown.sentence,
            "nearest": explained["nearest"],
            "ways_out": explained["ways_out"],
            "not_checked": explained["not_checked"],
        }


def _gangs(judge: Judge, report: QueueReport | None, explain: Explain) -> list[_Explained]:
    entries: list[_Explained] = []
    for entry in () if report is None else report.waiting:
        if len(entries) == FIRST:
            break
        cluster = judge.cluster
        known = (cluster.pods.get(pod.uid) for pod in entry.gang.pods)
        # A gang may begin with a pod without GPUs, as a launcher is: no verdict is made of it.
        waiting = (pod for pod in known if pod is not None and not pod.node)
        first = next((pod for pod in waiting if cluster.gpu_amount(pod)), None)
        if first is not None:
            entries.append(_Explained(explain(first), str(entry.gang.ref), len(entry.gang.pods), entry.gang.gpus))
    return entries


def _pods(waiting: WaitingPods, explain: Explain) -> list[_Explained]:
    kinds: dict[Hashable, list[PodRecord]] = {}
    for pod, why in waiting:
        if not pod.gated and why.reason != FITS:
            kinds.setdefault(alike(pod), []).append(pod)
    return [
        _Explained(explain(pods[0]), None, len(pods), len(pods) * pods[0].gpu_count)
        for pods in islice(kinds.values(), FIRST)
    ]


# -- what fits now, by our own filter: the largest single pod of each GPU model, whole nodes, and how many pods of each
# size fit in one domain of each level


LINKS: Final = (("any", "preferred"), ("required", "required"))
POD_SLOTS: Final = 2
SIZES: Final = (1, 2, 4, 8, 16)
"""GPUs of a pod; beside these the GPUs of the largest machine."""
MOST_ON_A_NODE: Final = 5_000
"""Pods of one size that are counted on one node: more than kubelet runs."""
MOST_LARGE: Final = 64
"""Larger sizes that are tried."""


def largest(look: Look) -> list[dict[str, Any]]:
    """Of each model, with and without linked GPUs: the most GPUs that one pod gets now, and on how many nodes."""
    entries = []
    for model in sorted(look.fleet.models):
        for links, stated in LINKS:
            gpus, nodes = _largest(look, model, stated)
            entries.append({"model": model, "links": links, "gpus": gpus, "nodes": nodes})
    return entries


def example(look: Look, model: str, links: str, gpus: int) -> tuple[str, int]:
    """(the first node by name where a pod of this size fits now, the mask of the GPUs that it would get, 0 where they
    are not known); "" where it fits on none. `model`, `links`, `gpus`: as `largest` states them."""
    stated, resource = dict(LINKS)[links], look.fleet.resource[model]
    pod, request = probe(look.judge, resource, gpus, stated)
    name = next(iter(_passed(look, resource, gpus, stated, look.fleet.open(model))), "")
    return name, look.judge.planned(Preemptor(request, pod, look.now, 0.0), name) if name else 0


def whole_nodes(look: Look) -> dict[str, int]:
    """Of each model how many nodes have all GPUs free, claims taken, and take a pod for all of them."""
    fleet, by_model = look.fleet, dict[str, int]()
    for model in sorted(fleet.models):
        by_size: dict[int, list[str]] = {}
        for name in fleet.open(model):
            if (size := fleet.gpus[name]) > 0:
                by_size.setdefault(size, []).append(name)
        resource = fleet.resource[model]
        by_model[model] = sum(len(_passed(look, resource, size, "preferred", names)) for size, names in by_size.items())
    return by_model


def _largest(look: Look, model: str, links: str) -> tuple[int, int]:
    names, resource = look.fleet.open(model), look.fleet.resource[model]
    for size in sorted(_sizes(look, resource, names), reverse=True):
        if links == "required" and size > MOST_GPUS:
            continue
        passed = _passed(look, resource, size, links, names)
        if passed:
            return size, len(passed)
    return 0, 0


def _sizes(look: Look, resource: str, names: list[str]) -> set[int]:
    """The sizes that may be the largest. Beyond those of which links are known only a count decides, so it is what is
    free on one of the nodes."""
    cluster, index = look.judge.cluster, look.judge.cluster.resources.index(resource)
    _, request = probe(look.judge, resource, 1)
    with look.judge.claims.of(request, look.now):
        free = set(survey.free(cluster.tables.nodes, index, look.judge.rows(names)))
    most = max(free, default=0)
    large = sorted((gpus for gpus in free if gpus > MOST_GPUS), reverse=True)[:MOST_LARGE]
    return {*range(1, min(most, MOST_GPUS) + 1), *large}


def _passed(look: Look, resource: str, size: int, links: str, names: list[str]) -> list[str]:
    """Those of the nodes where a pod of this size fits now."""
    judge, cluster, rows = look.judge, look.judge.cluster, look.judge.rows(names)
    _, request = probe(judge, resource, size, links)
    with judge.claims.of(request, look.now):
        passed = fit.passed(rows, judge.policy.judge(cluster.tables, request, rows))
        slots = survey.free(cluster.tables.nodes, POD_SLOTS, passed)
    return [cluster.names[row] for row, free_slots in zip(passed, slots, strict=True) if free_slots > 0]


class DomainRoom(NamedTuple):
    """How many pods of one size fit in the domain of a level that takes most."""

    level: str  # the label, "" for all the cluster
    value: str  # of the label, "" where no domain takes any
    pods: int
    by_model: dict[str, int]
    """As `pods`, on one GPU model; models of which none fits are left out."""


def gangs(look: Look) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(how many pods of a size fit in the domain of each level that takes most; how many fit in all the cluster), each
    in all and on one GPU model: a gang mixes models only where none has room for it. Links are preferred, not required;
    of several resources the one of which more pods fit counts."""
    judge, fleet = look.judge, look.fleet
    best: dict[tuple[int, str], DomainRoom] = {}
    for resource in sorted(set(fleet.resource.values())):
        sizes = _pod_sizes(fleet, resource)
        pods = [probe(judge, resource, size) for size in sorted(sizes, reverse=True)]
        if not pods:
            continue
        for size, by_level in zip(sorted(sizes, reverse=True), _rooms(look, pods), strict=True):
            for room in by_level:
                key = size, room.level
                by_model = room.by_model | (best[key].by_model if key in best else {})  # a model has one resource
                larger = room if key not in best or room.pods > best[key].pods else best[key]
                best[key] = larger._replace(by_model=by_model)
    ordered = sorted(best, key=lambda key: key[0])  # levels stay in their order, the closest first
    in_domains = [
        {"pod_gpus": size, "level": level} | _stated(best[size, level]) | {"domain": best[size, level].value or None}
        for size, level in ordered
        if level
    ]
    return in_domains, [{"pod_gpus": size} | _stated(best[size, level]) for size, level in ordered if not level]


def _stated(room: DomainRoom) -> dict[str, Any]:
    return {"pods": room.pods, "by_model": dict(sorted(room.by_model.items()))}


def _pod_sizes(fleet: Fleet, resource: str) -> set[int]:
    names = (name for model in fleet.models if fleet.resource[model] == resource for name in fleet.models[model])
    most = max(map(fleet.gpus.__getitem__, names), default=0)
    return {size for size in SIZES if size <= most} | ({most} if most else set())


def _rooms(look: Look, pods: Sequence[tuple[PodRecord, PodRequest]]) -> list[list[DomainRoom]]:
    """For each of the pods the rooms by level, the closest first, the whole cluster last."""
    judge, cluster = look.judge, look.judge.cluster
    layout = Layout(cluster)
    rows, levels = layout.read()
    models = layout.models()
    like = dict(zip(models.domain, rows, strict=True))  # by the number of a model, a node of it
    labels = cluster.settings.mix.model_labels
    names = {number: model_of(cluster.nodes[cluster.names[row]], labels) for number, row in like.items()}
    roles = [PodRole(tuple(range(MOST_ON_A_NODE)), pod, request) for pod, request in pods]
    nodes, demand = cluster.tables.nodes, cluster.tables.demand
    joint = Joint(nodes, demand.slots, LinkSets(cluster.tables.shapes), kernel_roles(roles), FULLNESS)
    joint.set_prices(judge.policy.fragmentation.prices(cluster.tables))
    off = {row for row in rows if cluster.names[row] in look.fleet.closed}
    with judge.claims.of(pods[0][1], look.now):
        marks = [judged(cluster, judge.policy, role, rows, off) for role in roles]
        joint.read(nodes, cluster.tables.hazards, rows, marks)
    by_role: list[list[DomainRoom]] = [[] for _ in roles]
    everywhere = PlacementLevel("", (), array("i", bytes(4 * len(rows))), 1)
    for level in (each_node(len(rows)), *levels, everywhere):
        sums = joint.sums(level.domain, level.domains)
        one_model = inside(level, models)
        model_sums = joint.sums(one_model.domain, one_model.domains)
        number_of = dict(zip(one_model.domain, models.domain, strict=True))
        key = level.keys[0] if level.keys else ""
        for at, rooms_of_one in enumerate(by_role):
            column = sums[at :: len(roles)]
            most = max(column, default=0)
            first = level.domain.index(column.index(most)) if most and key else -1
            value = "" if first < 0 else _value(cluster, level, cluster.names[rows[first]])
            by_model: dict[str, int] = {}
            for domain, fitting in enumerate(model_sums[at :: len(roles)]):
                if fitting:
                    model = names[number_of[domain]]
                    by_model[model] = max(fitting, by_model.get(model, 0))
            rooms_of_one.append(DomainRoom(key, value, most, by_model))
    return by_role


def _value(cluster: ClusterView, level: PlacementLevel, name: str) -> str:
    """The value of the level's label on a node."""
    return name if level.name == "node" else cluster.nodes[name].labels.get(level.keys[0], "")


# -- advice: how many more machines of which model would start how many waiting pods
#
# Pods that fit now, for which pods are evicted, that a quota holds back, that cannot be read in full, or whose gang has
# to be in one domain, are left out. So is, in the order of the queue, each gang that would exceed the rules of its
# queue. What is left is packed into new, empty machines alone, the largest pods first; a gang whole or not at all. A
# pod that requires linked GPUs shares its machine only where any GPUs of it are linked. So the machines are enough;
# fewer may do.

HELD_BY_QUEUE: Final = ("quota", "incomplete", "date")
SERVED: Final = (FITS, EVICTING, SAVING, UNREADABLE)
"""Why pods wait that start without more machines, or that no machine helps."""
MOST_PODS: Final = 4_000
"""Pods that are packed."""
MOST_OF_GANG: Final = 1_000
"""Pods of a gang that is packed."""
MOST_STATES: Final = 64
"""Different states of new machines that are filled on: beyond them the fullest are left as they are."""
Left = tuple[int, ...]
"""What is left of a machine: CPU, memory, pod slots, GPUs."""
WaitingUnit = Sequence[PodRecord]
"""A pod, or the pods of a gang, which start together."""


@dataclass(slots=True)
class _Packed:
    """The new machines of one model, and what starts there."""

    nodes: int = 0
    open: Counter[Left] = field(default_factory=Counter)
    """How many machines have these amounts left."""
    pods: int = 0
    gpus: int = 0
    gangs: int = 0
    alone: int = 0
    """How many machines one pod has to itself, which leaves GPUs of it unused."""

    def put(self, asked: Left, empty: Left, *, alone: bool) -> None:
        """Into the machine with the fewest GPUs left that has room, else into a new one. `alone`: with no others."""
        room = [state for state in self.open if all(a <= b for a, b in zip(asked, state, strict=True))]
        was = empty if alone or not room else min(room, key=lambda state: (state[-1], state))
        if was in room and not alone:
            self._take(was)
        else:
            self.nodes += 1
        remaining = tuple([b - a for a, b in zip(asked, was, strict=True)])
        if alone:
            self.alone += remaining[-1] > 0
        elif remaining[-1]:
            self.open[remaining] += 1
            if len(self.open) > MOST_STATES:
                del self.open[min(self.open, key=lambda state: (state[-1], state))]

    def _take(self, state: Left) -> None:
        self.open[state] -= 1
        if not self.open[state]:
            del self.open[state]


def waiting_units(report: QueueReport | None, waiting: WaitingPods) -> list[WaitingUnit]:
    """The gangs and pods that wait for room. `report`: the latest look at the queue."""
    units = [
        entry.gang.pods
        for entry in (() if report is None else report.waiting)
        if entry.code not in HELD_BY_QUEUE and not (entry.gang.domain is not None and entry.gang.domain.required)
    ]
    return [*units, *((pod,) for pod, why in waiting if not pod.gated and why.reason not in SERVED)]


def growth(judge: Judge, units: Sequence[WaitingUnit], report: QueueReport | None) -> list[dict[str, Any]]:
    """For each model whose usual machine would start some of them: how many machines start how many pods; by model.
    `report`: states what the queues hold."""
    entries = []
    held = {row["name"]: dict(row["used_gpus"]) for row in (() if report is None else report.queues)}
    for machine in usual(judge, machines.read(judge)) if units else ():
        packed = _pack(judge, machine, units, held)
        if packed.pods:
            entries.append(
                {
                    "model": machine.model,
                    "like": machine.like,
                    "nodes": packed.nodes,
                    "node_gpus": machine.gpus,
                    "pods": packed.pods,
                    "gpus": packed.gpus,
                    "gangs": packed.gangs,
                    "alone": packed.alone,
                }
            )
    return entries


@dataclass(frozen=True, slots=True)
class _Ask:
    """What one pod takes of an empty machine."""

    asked: Left
    fits: bool
    """Whether it fits there."""
    alone: bool
    """Whether it needs the machine without other pods."""


def _pack(judge: Judge, machine: Machine, units: Sequence[WaitingUnit], held: dict[str, dict[str, int]]) -> _Packed:
    """The units that machines of this kind start. `held`: GPUs by queue and model; what the units take is added."""
    # What is kept for other queues that wait is of the nodes that exist: none waits here.
    quota = Quota(judge.cluster.settings.queue.queues, {}, held, {})
    node, known, pods = copy(judge.cluster.nodes[machine.like]), dict[Hashable, _Ask](), 0
    possible: list[tuple[WaitingUnit, list[_Ask]]] = []
    for unit in units:
        if len(unit) > MOST_OF_GANG or pods + len(unit) > MOST_PODS:
            continue
        asks: list[_Ask] = []
        for pod in unit:
            pods += 1
            key = wants_of(pod), pod.node_selector, pod.node_terms, pod.tolerations
            if key not in known:
                known[key] = _takes_of(judge, machine, pod, node)
            asks.append(known[key])
        if all(ask.fits for ask in asks) and _within_quota(quota, held, unit, machine.model):
            possible.append((unit, sorted(asks, key=lambda ask: -ask.asked[-1])))
    possible.sort(key=lambda unit_asks: -unit_asks[1][0].asked[-1])
    packed, empty = _Packed(), (*machine.left, machine.gpus)
    for unit, asks in possible:
        for ask in asks:
            packed.put(ask.asked, empty, alone=ask.alone)
        packed.pods += len(unit)
        packed.gpus += sum(pod.gpu_count for pod in unit)
        packed.gangs += len(unit) > 1
    return packed


def _within_quota(quota: Quota, held: dict[str, dict[str, int]], unit: WaitingUnit, model: str) -> bool:
    """Whether the queue of the unit may hold its GPUs, of this model; they are added to `held`, which the quota is of.
    Pods without the gate of the queue are in none."""
    queue = next((queue_of(pod) for pod in unit if GATE in pod.gates), None)
    if queue is None:
        return True
    gpus = sum(pod.gpu_count for pod in unit)
    if quota.refused(queue, {model: gpus}) is not None:
        return False
    add_gpus(held, queue, {model: gpus})
    return True


def _takes_of(judge: Judge, machine: Machine, pod: PodRecord, node: NodeRecord) -> _Ask:
    """`node`: the new machine."""
    request = judge.claims.alone(pod)
    fits = not kept_off(pod, node) and takes(judge, machine, request)
    return _Ask((*request.amounts[:FIRST_GPU], request.wanted), fits, _needs_alone(judge, machine, request))


def _needs_alone(judge: Judge, machine: Machine, request: PodRequest) -> bool:
    """Whether the pod requires links or NICs that other pods of the machine could take from it."""
    if not request.by_position:
        return False
    shapes = judge.cluster.tables.shapes
    if request.nics == "required":
        return True
    return not (machine.shape and fit.uniform(shapes, machine.shape, machine.healthy, request.wanted))


def growth_sentence(more: Mapping[str, Any]) -> str:
    """One of `growth`, for people."""
    gangs = f" ({count(more['gangs'], 'gang')} among them)" if more["gangs"] else ""
    gpus, offered = more["gpus"], more["nodes"] * more.get("node_gpus", 0)  # a server of an older version states none
    used = f"{gpus:,} of their {count(offered, 'GPU')}" if gpus < offered else count(gpus, "GPU")
    alone = more.get("alone", 0)
    each = "requires links or NICs and is" if alone == 1 else "require links or NICs and are"
    causes = [f"{alone:,} of these pods {each} counted with a node each"] if alone else []
    if gangs:
        causes.append("GPUs that are free now do not count for gangs")
    why = f"; {joined(causes)}: fewer nodes may do" if causes else ""
    return (
        f"{count(more['nodes'], 'more node')} like {more['like']} (model {short(more['model'])}) would start "
        f"{count(more['pods'], 'waiting pod')} with {used}{gangs}{why}"
    )
