"""`kind: Capacity`, and parts of it: what fits now, what would start the first that wait, and advice."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from ext_core import fit, survey
from ext_core.joint import Joint
from ext_core.link_sets import LinkSets
from extender.ask import machines, unchecked
from extender.ask.explanation import Explanation
from extender.ask.growth import growth, waiting_units
from extender.ask.judge import Judge
from extender.ask.machines import Fleet, Look, probe
from extender.ask.pending import FITS, alike
from extender.ask.text import count
from extender.cluster.cluster import ClusterView
from extender.cluster.gpus import MOST_GPUS
from extender.cluster.nodes import model_of
from extender.objects.records import PodRecord
from extender.policy.contracts import PodRequest
from extender.policy.roles import PodRole, judged, kernel_roles
from extender.policy.scorers import FULLNESS
from extender.preemption.certificate import MINIMUM_UNKNOWN
from extender.preemption.search import Preemptor
from extender.queue.levels import Layout, PlacementLevel, inside
from extender.queue.levels import nodes as each_node
from extender.queue.report import QueueReport, Why

NOT_COUNTED: Final = "parts-not-counted"
FIRST: Final = 3
"""Gangs, and kinds of single pods, that are explained."""
Explain = Callable[[PodRecord], Explanation]
WaitingPods = Sequence[tuple[PodRecord, Why]]
"""Each pod that waits, and why (`pending.reasons`)."""


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
    missing = unchecked.summary((entry["pod"], entry["not_checked"]) for entry in unblock)
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
    return [{"code": NOT_COUNTED, "message": text}]


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
MOST_ON_A_NODE: Final = 128
"""Pods of one size that are counted on one node."""
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
    inside = [
        {"pod_gpus": size, "level": level} | _stated(best[size, level]) | {"domain": best[size, level].value or None}
        for size, level in ordered
        if level
    ]
    return inside, [{"pod_gpus": size} | _stated(best[size, level]) for size, level in ordered if not level]


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
