"""The fleet: six numbers, a map of its nodes or racks, the last hours, what is left of each model, and what waits.

Filters and the search are in the address. A filter of nodes (model, rack) narrows all that is about nodes. The
namespace narrows the pods that wait, and the map and the first number then show which GPUs its pods hold. Headings of
what a filter does not narrow state that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice
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
GPUS: Final = ("gpus", "held_gpus", "reserved_gpus", "free_gpus")
"""The first are the others together, on nodes that take pods."""
SUMMED: Final = (*GPUS, "closed_gpus", "unhealthy_gpus")
"""What the cell of a rack has of those of its nodes."""
Racks = Mapping[str, Sequence[JSON]]
"""The cells of nodes, by rack or another group."""


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
    shown = list(groups.items())[(page - 1) * GROUPS_PER_PAGE : page * GROUPS_PER_PAGE]
    holders, drawn = Holders(cluster, kind), []
    if sum(map(len, groups.values())) <= FEW_NODES:
        drawn = [maps_of(content, [cell["name"] for cell in cells], holders) for _, cells in shown]
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
        "summary": _summary(fleet["models"], pods_waiting, content.clock.wall()) | _of_namespace(groups, held),
        "heat": _heat(groups, held, _marked(matches)),
        "trend": _trend(content.trend),
        "models": fleet["models"],
        "waiting": fleet["waiting"],
        "partial_gangs": fleet["partial_gangs"],
        "waiting_pods": pods_view(pods_waiting, "", content.report())["pods"][:FEW_WAITING],
        "racks": [_listed(name, cells) for name, cells in shown],
        "page_number": page,
        "pages": max(1, -(-len(groups) // GROUPS_PER_PAGE)),
        "maps": drawn,
        **holders.as_json(),
    }


def _summary(models: Sequence[Mapping[str, Any]], waiting: WaitingPods, wall: float) -> JSON:
    """The fleet in six numbers, over the nodes that take pods: GPUs are allocated, reserved or free. The GPUs of the
    other nodes are a number beside."""
    gpus, allocated, kept, free = (sum(model[field] for model in models) for field in GPUS)
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


def _held(cluster: ClusterView, namespace: str, groups: Racks) -> Counter[str] | None:
    """How many GPUs the pods of a namespace hold, by node, of those that it offers; None: no namespace is asked for."""
    if not namespace:
        return None
    held: Counter[str] = Counter()
    for pod in cluster.budgets.pods_in(namespace):
        if pod.gpus and not pod.finished:
            held[pod.node] += cluster.gpu_amount(pod)
    return Counter({cell["name"]: min(held[cell["name"]], cell["held_gpus"]) for cell in chain(*groups.values())})


def _of_namespace(groups: Racks, held: Counter[str] | None) -> JSON:
    """Of the GPUs of nodes that take pods those that the namespace holds (`held`, by node), and of the others; None:
    none is asked for."""
    if held is None:
        return {"namespace_gpus": None, "namespace_percent": None, "namespace_gpus_of_closed_nodes": None}
    nodes = list(chain(*groups.values()))
    gpus = sum(node["gpus"] for node in nodes if node["takes_pods"])
    closed, own = (sum(held[node["name"]] for node in nodes if node["takes_pods"] is state) for state in (False, True))
    percent = round(100 * own / gpus) if gpus else 0
    return {"namespace_gpus": own, "namespace_percent": percent, "namespace_gpus_of_closed_nodes": closed}


def _heat(groups: Racks, held: Counter[str] | None, marked: frozenset[str]) -> JSON:
    """One cell a node, in its group; one cell a group where there are more than MOST_CELLS nodes. `value` of `gpus` is
    what its colour shows: held GPUs, or those that the namespace holds (`held`, by node). `marked`: nodes."""
    if sum(map(len, groups.values())) <= MOST_CELLS:
        rows: list[JSON] = [
            {"name": name, "cells": [_cell(node, [node], held, marked) for node in nodes]}
            for name, nodes in groups.items()
        ]
        return {"cell": "node", "groups": rows, "groups_left_out": 0}
    cells = [_cell(_in_one(*rack), rack[1], held, marked) for rack in islice(groups.items(), MOST_CELLS)]
    return {
        "cell": "group",
        "groups": [{"name": "", "cells": cells}],
        "groups_left_out": max(0, len(groups) - MOST_CELLS),
    }


def _cell(cell: JSON, nodes: Sequence[JSON], held: Counter[str] | None, marked: frozenset[str]) -> JSON:
    """The cell with what its colour shows, and whether the search is about one of its nodes."""
    names = [node["name"] for node in nodes]
    value = cell["held_gpus"] if held is None else sum(held[name] for name in names)
    return {**cell, "value": value, "marked": not marked.isdisjoint(names)}


def _trend(trend: Trend) -> JSON:
    """The last hours, the oldest point first. `since`: None before the first look."""
    points = trend.points
    return {"since": points[0].at if points else None, "points": [point._asdict() for point in points]}


# -- nodes by rack or another group: how many GPUs are held, reserved, free or lost, in units of their resource. What
# -- there is on one node, or on all nodes of a group, is a cell of the map


def _sums(cells: Sequence[JSON], fields: Iterable[str]) -> JSON:
    return {field: sum(cell[field] for cell in cells) for field in fields}


def _in_one(name: str, cells: Sequence[JSON]) -> JSON:
    """The cell of a group: of all its nodes, also of those that take no pods."""
    takes_pods = any(cell["takes_pods"] for cell in cells)
    return {"name": name, **_sums(cells, SUMMED), "takes_pods": takes_pods, "nodes": len(cells)}


def _listed(name: str, cells: Sequence[JSON]) -> JSON:
    """A group as a model is stated: over the nodes that take pods, with `closed`: what the others have, but for
    unhealthy GPUs, which are those of all."""
    nodes, closed = ([cell for cell in cells if cell["takes_pods"] is state] for state in (True, False))
    by_free = Counter(cell["free_gpus"] for cell in nodes)
    return {
        "name": name,
        "nodes": len(nodes),
        **_sums(nodes, GPUS),
        "closed": {
            "nodes": len(closed),
            "gpus": sum(cell["gpus"] for cell in closed),
            "free_gpus": sum(cell["closed_gpus"] for cell in closed),
        },
        **_sums(cells, ["unhealthy_gpus"]),
        "whole_nodes": sum(cell["free_gpus"] == cell["gpus"] > 0 for cell in nodes),
        "nodes_by_free_gpus": [{"free_gpus": free, "nodes": by_free[free]} for free in sorted(by_free)],
    }


def racks(content: Content, level: str, names: Iterable[str] | None = None) -> dict[str, list[JSON]]:
    """The cells of the nodes that offer GPUs, by group, both by name. `free_gpus`: neither held nor reserved, on a
    node that takes pods, `closed_gpus`: on one that takes none. `names`: of nodes, None: all."""
    cluster = content.verbs.cluster
    in_group, by_group = Groups(cluster, level), dict[str, list[JSON]]()
    named = sorted(cluster.gpus.topologies if names is None else names)
    nodes = [node for name in named if (node := offering(cluster, name)) is not None and cluster.row(name) >= 0]
    rows = cluster.rows.index.rows([node.name for node in nodes])
    gpus, held, reserved, free, _, _ = stock(over(content.verbs), content.clock.monotonic(), rows)
    topologies, healthy_of, restricted = cluster.gpus.topologies, cluster.tables.nodes.healthy_of, cluster.restricted
    for at, (node, row) in enumerate(zip(nodes, rows, strict=True)):
        name = node.name
        count = topologies[name].gpus  # more than MOST_GPUS have no positions, and are all taken to work
        closed = name in restricted and bool(node.closed)
        cell = {
            "name": name,
            "gpus": gpus[at],
            "held_gpus": held[at],
            "reserved_gpus": reserved[at],
            "free_gpus": 0 if closed else free[at],
            "closed_gpus": free[at] if closed else 0,
            "unhealthy_gpus": max(0, count - healthy_of(row).bit_count()) if count <= MOST_GPUS else 0,
            "takes_pods": not closed,
        }
        by_group.setdefault(in_group.of(node), []).append(cell)
    return {name: by_group[name] for name in sorted(by_group)}
