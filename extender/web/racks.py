"""Nodes by rack or another group: how many GPUs are held, reserved, free or lost, and how many nodes have how many
free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from extender.ask.fleet import stock
from extender.ask.judge import over
from extender.cluster.cluster import ClusterView
from extender.cluster.nodes import model_of
from extender.cluster.statements import gpus_of
from extender.cluster.tables import FIRST_GPU
from extender.objects.records import NodeRecord
from extender.queue.levels import keys_of
from extender.web.pages import JSON, Content

RESERVED_BY: Final = {
    "seat": "a seat of the queue",
    "reservation": "an eviction makes room for it",
    "nomination": "kube-scheduler nominated the node",
    "assumed": "placed here, not bound yet",
}
"""What the words mean by which GPUs are reserved."""
LEVELS: Final = ("rack", "clique", "block", "zone", "model")
"""What nodes are grouped by."""
Reserved = Mapping[str, list[JSON]]
"""GPUs that are kept for pods that are not on their nodes yet: seats of the queue, reservations, assumed pods."""
SUMMED: Final = ("gpus", "held_gpus", "reserved_gpus", "free_gpus", "closed_gpus", "unhealthy_gpus")
"""What the cell of a rack has of those of its nodes."""
NONE: Final = ""
"""The group of the nodes that state none."""


class Groups:
    """Which group each node is in. `level`: one of LEVELS."""

    def __init__(self, cluster: ClusterView, level: str) -> None:
        settings = cluster.settings
        self.level = level
        self._keys = settings.mix.model_labels if level == "model" else keys_of(level, settings.topology_levels)

    def of(self, node: NodeRecord) -> str:
        """The node's group, NONE where it states none."""
        if self.level == "model":
            return model_of(node, self._keys)
        labels = node.labels
        for key in self._keys:
            if label := labels.get(key):
                return label
        return NONE


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


class Rack:
    """What there is in one group of nodes. GPUs are counted in units of their resource."""

    def __init__(self, name: str) -> None:
        self.name, self.gpus, self.whole = name, 0, 0
        self.held = self.reserved = self.free = self.unhealthy = 0
        self.closed = Counter(nodes=0, gpus=0, free_gpus=0)
        """What the nodes that take no pods have; but for unhealthy GPUs, nothing else counts these."""
        self.by_free: Counter[int] = Counter()
        self.nodes: list[NodeUse] = []

    def add(self, node: NodeUse) -> None:
        """One of its nodes."""
        self.nodes.append(node)
        self.unhealthy += node.unhealthy
        if node.closed:
            self.closed.update(nodes=1, gpus=node.gpus, free_gpus=node.free)
            return
        self.gpus += node.gpus
        self.held += node.held
        self.reserved += node.reserved
        self.free += node.free
        self.by_free[node.free] += 1
        self.whole += node.free == node.gpus > 0

    def cell(self) -> JSON:
        """The cell of all its nodes in a map: also of those that take no pods."""
        cells = [node.as_json() for node in self.nodes]
        sums = {field: sum(cell[field] for cell in cells) for field in SUMMED}
        takes_pods = self.closed["nodes"] < len(cells)
        return {"name": self.name, **sums, "takes_pods": takes_pods, "nodes": len(cells)}

    def as_json(self) -> JSON:
        """The JSON form, as that of a model: over the nodes that take pods, with `closed`: what the others have.
        `free_gpus`: neither held nor reserved."""
        return {
            "name": self.name,
            "nodes": len(self.nodes) - self.closed["nodes"],
            "gpus": self.gpus,
            "held_gpus": self.held,
            "reserved_gpus": self.reserved,
            "free_gpus": self.free,
            "closed": dict(self.closed),
            "unhealthy_gpus": self.unhealthy,
            "whole_nodes": self.whole,
            "nodes_by_free_gpus": [{"free_gpus": free, "nodes": self.by_free[free]} for free in sorted(self.by_free)],
        }


def racks(content: Content, level: str, names: Iterable[str] | None = None) -> list[Rack]:
    """Each group of nodes that offer GPUs, by name. `names`: of nodes, None: all."""
    cluster = content.verbs.cluster
    groups, by_group = Groups(cluster, level), dict[str, Rack]()
    offering = [
        node
        for name in sorted(cluster.gpus.topologies if names is None else names)
        if (node := cluster.nodes.get(name)) is not None and any(node.gpus.values()) and cluster.row(name) >= 0
    ]
    rows = cluster.rows.index.rows([node.name for node in offering])
    gpus, held, reserved, free, _, _ = stock(over(content.verbs), content.times.monotonic(), rows)
    topologies, healthy_of, restricted = cluster.gpus.topologies, cluster.tables.nodes.healthy_of, cluster.restricted
    for at, (node, row) in enumerate(zip(offering, rows, strict=True)):
        name, group = node.name, groups.of(node)
        broken = max(0, topologies[name].gpus - healthy_of(row).bit_count())
        closed = name in restricted and bool(node.closed)
        rack = by_group.get(group)
        if rack is None:
            rack = by_group[group] = Rack(group)
        rack.add(NodeUse(name, gpus[at], held[at], reserved[at], free[at], broken, closed))
    return [by_group[name] for name in sorted(by_group)]


def reserved(content: Content, without: Collection[str] = ()) -> Reserved:
    """By node: for which pod, how many GPUs, which (None: not known), and by what. A pod counts once. `without`: uids
    of pods that are left out."""
    claims, cluster = content.verbs.claims, content.verbs.cluster
    now = content.times.monotonic()
    reserved_by_node: dict[str, list[JSON]] = {}
    seen = set(without)

    def add(uid: str, node: str, amounts: tuple[int, ...], gpus: int, by: str) -> None:
        pod = cluster.pods.get(uid)
        count = sum(amounts[FIRST_GPU:])
        if uid in seen or not count or (pod is not None and pod.node):
            return
        seen.add(uid)
        name = None if pod is None else f"{pod.namespace}/{pod.name}"
        indices = list(gpus_of(gpus)) if gpus else None
        reserved_by_node.setdefault(node, []).append({"pod": name, "by": by, "count": count, "gpus": indices})

    for seat in list(claims.seats):
        add(seat.uid, seat.node, seat.amounts, seat.gpus, "seat")
    for reservation in claims.reservations.current(now):
        add(reservation.uid, reservation.node, reservation.amounts, 0, "reservation")
    for uid, node in cluster.placements.nominated.items():
        pod = cluster.pods[uid]
        add(uid, node, cluster.amounts(pod), claims.planned(pod, node), "nomination")
    for held in claims.assumed.current(now):
        add(held.uid, held.node, held.amounts, held.gpus, "assumed")
    return reserved_by_node
