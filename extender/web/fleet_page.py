"""The fleet: six numbers, a map of its nodes or racks, the last hours, what is left of each model, and what waits.

Filters and the search are in the address. A filter of nodes (model, rack) narrows all that is about nodes. The
namespace narrows the pods that wait, and the map and the first number then show which GPUs its pods hold. Headings of
what a filter does not narrow state that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from extender.ask.fleet import Trend, stock
from extender.ask.judge import over
from extender.ask.pending import WaitingPods
from extender.cluster.cluster import ClusterView
from extender.cluster.dump import offering
from extender.cluster.gpus import MOST_GPUS
from extender.cluster.nodes import model_of
from extender.web.node_pages import (
    HOLDERS,
    LEVELS,
    Groups,
    Holders,
    gpu_namespaces,
    maps_of,
    one_of,
    page_of,
)
from extender.web.pages import JSON, Content, Query
from extender.web.queue_page import pods_view

GROUPS_PER_PAGE: Final = 50
"""Racks that are listed at once."""
FEW_NODES: Final = 32
"""A fleet of so many is drawn at once."""
FEW_WAITING: Final = 5
"""Pods that wait, on the view of the fleet."""
MOST_CELLS: Final = 500
"""Cells of a map. A fleet of more nodes has one cell a rack."""
MOST_FOUND: Final = 20
"""Nodes, and pods, that a search names."""
MOST_CHOICES: Final = 200
"""Names that a filter offers; others may be typed."""
SUMMED: Final = ("gpus", "held_gpus", "reserved_gpus", "free_gpus", "closed_gpus", "unhealthy_gpus")
"""What the cell of a rack has of those of its nodes."""


class NodeFilter(NamedTuple):
    """Which nodes a view is about; "": any."""

    model: str
    rack: str

    def names(self, cluster: ClusterView) -> list[str] | None:
        """The nodes; None: all."""
        if not any(self):
            return None
        levels = [(Groups(cluster, level), value) for level, value in zip(self._fields, self, strict=True) if value]
        nodes = (cluster.nodes.get(name) for name in cluster.gpus.topologies)
        return [
            node.name
            for node in nodes
            if node is not None and all(groups.of(node) == value for groups, value in levels)
        ]


def fleet_view(content: Content, query: Query) -> JSON:
    """`?by=`: what nodes are grouped by; `?holder=`: what a letter stands for where nodes are drawn; `?page=`: of
    the groups, from 1; `?model=`, `?rack=`, `?namespace=`: filters; `?find=`: a part of the name of a node or pod."""
    level, kind = one_of(query, "by", LEVELS), one_of(query, "holder", HOLDERS)
    page, cluster = page_of(query), content.verbs.cluster
    namespace, wanted = query.get("namespace", ""), NodeFilter(query.get("model", ""), query.get("rack", ""))
    names = wanted.names(cluster)
    pods_waiting = [row for row in content.explainer.waiting() if namespace in ("", row[0].namespace)]
    fleet = content.explainer.fleet(pods_waiting, names, namespace)
    groups = racks(content, level, names)
    shown = groups[(page - 1) * GROUPS_PER_PAGE : page * GROUPS_PER_PAGE]
    holders, drawn = Holders(cluster, kind), []
    if sum(len(rack.nodes) for rack in groups) <= FEW_NODES:
        drawn = [maps_of(content, [node.name for node in rack.nodes], holders) for rack in shown]
    held = _held(cluster, namespace, groups)
    matches = _matches(cluster, query.get("find", "").strip(), names, namespace)
    return {
        "warnings": fleet["warnings"],
        "by": level,
        "levels": LEVELS,
        "holder_kind": kind,
        "holder_kinds": HOLDERS,
        "filter": {"namespace": namespace, **wanted._asdict()},
        "choices": _choices(cluster),
        "matches": matches,
        "summary": _summary(fleet["models"], pods_waiting, content.times.wall()) | _of_namespace(groups, held),
        "heat": _heat(cluster, groups, held, _marked(matches)),
        "trend": _trend(content.trend),
        "models": fleet["models"],
        "waiting": fleet["waiting"],
        "partial_gangs": fleet["partial_gangs"],
        "waiting_pods": pods_view(pods_waiting, "", content.report())["pods"][:FEW_WAITING],
        "racks": [rack.as_json() for rack in shown],
        "page_number": page,
        "pages": max(1, -(-len(groups) // GROUPS_PER_PAGE)),
        "maps": drawn,
        **holders.as_json(),
    }


def _summary(models: Sequence[Mapping[str, Any]], waiting: WaitingPods, wall: float) -> JSON:
    """The fleet in six numbers, over the nodes that take pods: GPUs are allocated, reserved or free. The GPUs of the
    other nodes are a number beside."""
    fields = ("gpus", "held_gpus", "reserved_gpus", "free_gpus")
    gpus, allocated, kept, free = (sum(model[field] for model in models) for field in fields)
    created = [pod.created for pod, _ in waiting if pod.created is not None]
    return {
        "gpus": gpus,
        "free_gpus": free,
        "reserved_gpus": kept,
        "allocated_gpus": allocated,
        "allocated_percent": round(100 * allocated / gpus) if gpus else 0,
        **{
            f"{key}_of_closed_nodes": sum(apart[key] for model in models for apart in model["closed"])
            for key in ("gpus", "free_gpus")
        },
        "whole_nodes": sum(model["whole_nodes"] for model in models),
        "largest_linked_set": max((part["gpus"] for model in models for part in model["linked_sets"]), default=0),
        "waiting_pods": len(waiting),
        "waiting_gpus": sum(pod.gpu_count for pod, _ in waiting),
        "oldest_wait_seconds": max(0.0, wall - min(created)) if created else None,
    }


def _choices(cluster: ClusterView) -> JSON:
    """What the filters offer, by name."""
    labels, in_rack = cluster.settings.mix.model_labels, Groups(cluster, "rack")
    nodes = [node for name in cluster.gpus.topologies if (node := cluster.nodes.get(name)) is not None]
    names = {
        "namespaces": gpu_namespaces(cluster),
        "models": {model_of(node, labels) for node in nodes},
        "racks": {in_rack.of(node) for node in nodes} - {""},
    }
    return {key: sorted(values)[:MOST_CHOICES] for key, values in names.items()}


def _matches(cluster: ClusterView, text: str, names: Sequence[str] | None, namespace: str) -> JSON | None:
    """The nodes and GPU pods whose name has a part, in any case; None where nothing is searched for. `names`: of the
    nodes that are looked at; `namespace`: of the pods."""
    if not text:
        return None
    part = text.lower()
    nodes = sorted(name for name in (cluster.gpus.topologies if names is None else names) if part in name.lower())
    pods = sorted(
        (f"{pod.namespace}/{pod.name}", pod.node)
        for pod in cluster.pods.values()
        if pod.gpus and not pod.finished and namespace in ("", pod.namespace)
        and part in f"{pod.namespace}/{pod.name}".lower()
    )  # fmt: skip
    return {
        "text": text,
        "nodes": nodes[:MOST_FOUND],
        "nodes_left_out": max(0, len(nodes) - MOST_FOUND),
        "pods": [{"pod": pod, "node": node or None} for pod, node in pods[:MOST_FOUND]],
        "pods_left_out": max(0, len(pods) - MOST_FOUND),
    }


def _marked(matches: JSON | None) -> frozenset[str]:
    """The nodes that a search names, and those of the pods that it names."""
    if matches is None:
        return frozenset()
    return frozenset([*matches["nodes"], *(pod["node"] for pod in matches["pods"] if pod["node"])])


def _held(cluster: ClusterView, namespace: str, groups: Sequence[Rack]) -> Counter[str] | None:
    """How many GPUs the pods of a namespace hold, by node, of those that it offers; None: no namespace is asked for."""
    if not namespace:
        return None
    held: Counter[str] = Counter()
    for pod in cluster.budgets.pods_in(namespace):
        if pod.gpus and not pod.finished:
            held[pod.node] += cluster.gpu_amount(pod)
    return Counter({node.name: min(held[node.name], node.held) for rack in groups for node in rack.nodes})


def _of_namespace(groups: Sequence[Rack], held: Counter[str] | None) -> JSON:
    """Of the GPUs of nodes that take pods those that the namespace holds (`held`, by node), and of the others; None:
    none is asked for."""
    if held is None:
        return {"namespace_gpus": None, "namespace_percent": None, "namespace_gpus_of_closed_nodes": None}
    nodes = [node for rack in groups for node in rack.nodes]
    gpus = sum(node.gpus for node in nodes if not node.closed)
    closed, own = (sum(held[node.name] for node in nodes if node.closed is state) for state in (True, False))
    percent = round(100 * own / gpus) if gpus else 0
    return {"namespace_gpus": own, "namespace_percent": percent, "namespace_gpus_of_closed_nodes": closed}


def _heat(cluster: ClusterView, groups: Sequence[Rack], held: Counter[str] | None, marked: frozenset[str]) -> JSON:
    """One cell a node, in its group; one cell a group where there are more than MOST_CELLS nodes. `value` of `gpus` is
    what its colour shows: held GPUs, or those that the namespace holds (`held`, by node). `marked`: nodes."""
    if sum(len(rack.nodes) for rack in groups) <= MOST_CELLS:
        rows: list[JSON] = [
            {"name": rack.name, "cells": [_cell(node.as_json(), [node.name], held, marked) for node in rack.nodes]}
            for rack in groups
        ]
        return {"cell": "node", "groups": rows, "groups_left_out": 0}
    cells = [_cell(rack.cell(), [node.name for node in rack.nodes], held, marked) for rack in groups[:MOST_CELLS]]
    return {
        "cell": "group",
        "groups": [{"name": "", "cells": cells}],
        "groups_left_out": max(0, len(groups) - MOST_CELLS),
    }


def _cell(cell: JSON, nodes: Sequence[str], held: Counter[str] | None, marked: frozenset[str]) -> JSON:
    """The cell with what its colour shows, and whether the search is about one of its nodes."""
    value = cell["held_gpus"] if held is None else sum(held[name] for name in nodes)
    return {**cell, "value": value, "marked": bool(marked) and not marked.isdisjoint(nodes)}


def _trend(trend: Trend) -> JSON:
    """The last hours, the oldest point first. `since`: None before the first look."""
    points = trend.points
    return {"since": points[0].at if points else None, "points": [point._asdict() for point in points]}


# -- nodes by rack or another group: how many GPUs are held, reserved, free or lost


class NodeUse(NamedTuple):
    """What there is on one node, in units of its resource. `free`: neither held nor reserved."""

    name: str
    gpus: int
    held: int
    reserved: int
    free: int
    unhealthy: int
    closed: bool
    """Whether it takes no pods."""

    def as_json(self) -> JSON:
        """The cell of the node in a map; as that of a rack."""
        return {
            "name": self.name,
            "gpus": self.gpus,
            "held_gpus": self.held,
            "reserved_gpus": self.reserved,
            "free_gpus": 0 if self.closed else self.free,
            "closed_gpus": self.free if self.closed else 0,
            "unhealthy_gpus": self.unhealthy,
            "takes_pods": not self.closed,
        }


class Rack(NamedTuple):
    """What there is in one group of nodes. GPUs are counted in units of their resource."""

    name: str
    nodes: list[NodeUse]

    @property
    def open(self) -> list[NodeUse]:
        """The nodes that take pods."""
        return [node for node in self.nodes if not node.closed]

    def cell(self) -> JSON:
        """The cell of all its nodes in a map: also of those that take no pods."""
        cells = [node.as_json() for node in self.nodes]
        sums = {field: sum(cell[field] for cell in cells) for field in SUMMED}
        return {"name": self.name, **sums, "takes_pods": bool(self.open), "nodes": len(cells)}

    def as_json(self) -> JSON:
        """The JSON form, as that of a model: over the nodes that take pods, with `closed`: what the others have, but
        for unhealthy GPUs, which are those of all. `free_gpus`: neither held nor reserved."""
        nodes, closed = self.open, [node for node in self.nodes if node.closed]
        by_free = Counter(node.free for node in nodes)
        return {
            "name": self.name,
            "nodes": len(nodes),
            "gpus": sum(node.gpus for node in nodes),
            "held_gpus": sum(node.held for node in nodes),
            "reserved_gpus": sum(node.reserved for node in nodes),
            "free_gpus": sum(node.free for node in nodes),
            "closed": {
                "nodes": len(closed),
                "gpus": sum(node.gpus for node in closed),
                "free_gpus": sum(node.free for node in closed),
            },
            "unhealthy_gpus": sum(node.unhealthy for node in self.nodes),
            "whole_nodes": sum(node.free == node.gpus > 0 for node in nodes),
            "nodes_by_free_gpus": [{"free_gpus": free, "nodes": by_free[free]} for free in sorted(by_free)],
        }


def racks(content: Content, level: str, names: Iterable[str] | None = None) -> list[Rack]:
    """Each group of nodes that offer GPUs, by name. `names`: of nodes, None: all."""
    cluster = content.verbs.cluster
    groups, by_group = Groups(cluster, level), dict[str, Rack]()
    named = sorted(cluster.gpus.topologies if names is None else names)
    nodes = [node for name in named if (node := offering(cluster, name)) is not None and cluster.row(name) >= 0]
    rows = cluster.rows.index.rows([node.name for node in nodes])
    gpus, held, reserved, free, _, _ = stock(over(content.verbs), content.times.monotonic(), rows)
    topologies, healthy_of, restricted = cluster.gpus.topologies, cluster.tables.nodes.healthy_of, cluster.restricted
    for at, (node, row) in enumerate(zip(nodes, rows, strict=True)):
        name, group = node.name, groups.of(node)
        count = topologies[name].gpus  # more than MOST_GPUS have no positions, and are all taken to work
        broken = max(0, count - healthy_of(row).bit_count()) if count <= MOST_GPUS else 0
        closed = name in restricted and bool(node.closed)
        use = NodeUse(name, gpus[at], held[at], reserved[at], free[at], broken, closed)
        by_group.setdefault(group, Rack(group, [])).nodes.append(use)
    return [by_group[name] for name in sorted(by_group)]
