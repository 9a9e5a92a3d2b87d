"""How many equal pods fit in one domain of each level, whatever else waits."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import Final, NamedTuple

from ext_core.joint import Joint
from ext_core.link_sets import LinkSets
from extender.cluster.cluster import ClusterView
from extender.cluster.slices import Sliced
from extender.objects.records import PodRecord
from extender.policy.contracts import PodRequest
from extender.policy.fragmentation import FULLNESS
from extender.policy.policy import Policy
from extender.policy.roles import PodRole, judged, kernel_roles
from extender.queue.levels import Layout, PlacementLevel, nodes
from extender.queue.placement import PORTION

MOST_ON_A_NODE: Final = 128
"""Pods of one size that are counted on one node."""


class DomainRoom(NamedTuple):
    """How many pods of one size fit in the domain of a level that takes most."""

    level: str  # the label, "" for all the cluster
    value: str  # of the label, "" where no domain takes any
    pods: int


def rooms(
    cluster: ClusterView,
    policy: Policy,
    pods: Sequence[tuple[PodRecord, PodRequest]],
    closed: Collection[str],
    within: Callable[[], AbstractContextManager[None]],
) -> Sliced[list[list[DomainRoom]]]:
    """For each of the pods the rooms by level, the closest first, the whole cluster last. `closed`: names of nodes that
    do not count; `within`: the tables with the claims that count."""
    rows, levels = Layout(cluster).read()
    rows, names = rows[:], list(cluster.names)
    yield
    roles = [PodRole(tuple(range(MOST_ON_A_NODE)), pod, request) for pod, request in pods]
    everywhere = PlacementLevel("", (), array("i", bytes(4 * len(rows))), 1)
    joint = Joint(
        cluster.tables.nodes,
        cluster.tables.demand.slots,
        LinkSets(cluster.tables.shapes),
        kernel_roles(roles),
        FULLNESS,
    )
    joint.set_prices(policy.fragmentation.prices(cluster.tables))
    for start in range(0, len(rows), PORTION):
        portion = rows[start : start + PORTION]
        off = {row for row in portion if names[row] in closed}
        with within():
            marks = [judged(cluster, policy, role, portion, off) for role in roles]
            joint.read(cluster.tables.nodes, cluster.tables.hazards, portion, marks)
        yield
    by_role: list[list[DomainRoom]] = [[] for _ in roles]
    for level in (nodes(len(rows)), *levels, everywhere):
        sums = joint.sums(level.domain, level.domains)
        for at, rooms_of_one in enumerate(by_role):
            column = sums[at :: len(roles)]
            most = max(column, default=0)
            first = level.domain.index(column.index(most)) if most else -1
            rooms_of_one.append(DomainRoom(_key(level), _value(cluster, level, names, rows, first), most))
        yield
    return by_role


def _key(level: PlacementLevel) -> str:
    return level.keys[0] if level.keys else ""


def _value(cluster: ClusterView, level: PlacementLevel, names: Sequence[str], rows: Sequence[int], at: int) -> str:
    """The value of the level's label on a node, by its place in the order of the topology."""
    if at < 0 or not level.keys:
        return ""
    name = names[rows[at]]
    node = cluster.nodes.get(name)
    return name if level.name == "node" or node is None else node.labels.get(level.keys[0], "")
