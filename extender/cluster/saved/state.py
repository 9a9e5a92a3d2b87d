"""The whole state of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec

from extender.cluster.cluster import Cluster
from extender.cluster.saved import demand, health
from extender.cluster.saved.demand import SavedDemand
from extender.cluster.saved.health import SavedHealth
from extender.objects import records, schema
from extender.objects.records import Event, NodeRecord, Record


class SavedCluster(msgspec.Struct, frozen=True, array_like=True):
    """What the objects do not state. `at`: the server's clock; `node_holes`, `pod_holes`: the free rows of the tables,
    the next one to be used last; `rowed`: how many pods have a row; `bound`: uids of the pods of each node, in their
    order; `settling`: uid and since when; `away`: node and since when; `wall_ms`: as of when pods are judged."""

    at: float
    node_holes: list[int]
    pod_holes: list[int]
    rowed: int
    bound: list[tuple[str, list[str]]]
    settling: list[tuple[str, float]]
    away: list[tuple[str, float]]
    lost: list[str]
    plans_come: bool
    wall_ms: int
    health: SavedHealth
    demand: SavedDemand


Saved = tuple[SavedCluster, list[Record]]


def save(cluster: Cluster, now: float) -> Callable[[], Saved]:
    """The state at `now`, on the server's clock, and all objects: nodes and pods in the order of their rows, then the
    pods that have none. What may change is copied at once, and the rest is done by the returned function, on any
    thread: of a large cluster it takes longer than a verb may wait."""
    nodes, pods, gpus = cluster._nodes, cluster._pods, cluster._nodes.gpus
    placements, learned = pods.placements, demand.save(cluster.demand)
    remembered = health.save(cluster._node_health, cluster._health_columns, now)
    small: list[Record] = [
        *pods.priority_classes.values(),
        *pods.quotas.values(),
        *nodes.dra.classes.values(),
        *nodes.dra.templates.values(),
        *nodes.dra.claims.values(),
        *nodes.dra.slices.values(),
        *nodes.dra.taint_rules.records.values(),
        *pods.gangs.objects.values(),
        *pods.budgets.records.values(),
    ]
    names, node_records, node_holes = nodes.rows.names.copy(), nodes.records.copy(), nodes.rows._free.copy()
    uids, pod_records, pod_holes = pods.rows.uids.copy(), pods.records.copy(), pods.rows._free.copy()
    bound, there = list(placements.bound), list(map(tuple, placements.bound.values()))
    settling, away, lost = list(placements.settling.items()), list(gpus._away.items()), list(gpus._lost)
    planned, wall_ms = cluster.tables.shapes.planned, cluster.tables.pods.now

    def finish() -> Saved:
        rowed = [uid for uid in uids if uid]
        others = pod_records.keys() - set(rowed)
        objects: list[Record] = [
            *small,
            *(node_records[name] for name in names if name),
            *(pod_records[uid] for uid in rowed),
            *(pod for uid, pod in pod_records.items() if uid in others),
        ]
        order = [(name, list(pods)) for name, pods in zip(bound, there, strict=True)]
        saved = SavedCluster(
            now, node_holes, pod_holes, len(rowed), order, settling, away, lost, planned, wall_ms, remembered, learned
        )
        return saved, objects

    return finish


def restore(cluster: Cluster, saved: SavedCluster, objects: Sequence[Event], *, learned: bool = True) -> None:
    """Give a cluster that is empty the state. `objects`: those of `save`, in their order; `learned`: whether it takes
    over what was learned of the demand, else it learns from the objects."""
    gpus, placements = cluster._nodes.gpus, cluster._pods.placements
    gpus._away, gpus._lost = dict(saved.away), set(saved.lost)
    cluster.tables.shapes.planned = saved.plans_come
    nodes = [event for event in objects if event.kind == "Node"]
    pods = [event for event in objects if event.kind == "Pod"]
    cluster.apply([event for event in objects if event.kind not in ("Node", "Pod")], saved.at)
    cluster.apply(_with_holes(nodes, saved.node_holes, _no_node), saved.at)
    where = next(iter(cluster.nodes), "")
    cluster.apply(_with_holes(pods[: saved.rowed], saved.pod_holes, partial(_no_pod, where)), saved.at)
    cluster.apply(pods[saved.rowed :], saved.at)
    cluster.apply([Event("Pod", "delete", _no_pod(where, row).record) for row in saved.pod_holes], saved.at)
    cluster.apply([Event("Node", "delete", _no_node(row).record) for row in saved.node_holes], saved.at)
    placements.bound.clear()
    placements.bound.update({node: dict.fromkeys(uids) for node, uids in saved.bound})
    settled = placements.settling.keys() - dict(saved.settling).keys()
    placements.settling.clear()
    placements.settling.update(saved.settling)
    cluster._pods.stale.ledgers.update(cluster.pods[uid].node for uid in settled)
    if learned:
        demand.restore(cluster.demand, saved.demand)
    cluster._refresh(saved.at)
    health.restore(cluster._node_health, cluster._health_columns, saved.health, saved.at)
    cluster.tables.pods.now = saved.wall_ms


def _with_holes(objects: Sequence[Event], holes: Sequence[int], nothing: Callable[[int], Event]) -> Iterator[Event]:
    """The objects, with `nothing` in each free row, so that each gets the row that it had: ties are decided by it."""
    free, there = set(holes), iter(objects)
    for row in range(len(objects) + len(holes)):
        yield nothing(row) if row in free else next(there)


def _no_node(row: int) -> Event:
    """A node that no pod fits on. No API server has one of this name."""
    record = NodeRecord(
        uid="", name=f"free row {row}", resource_version="", labels={}, annotations={}, unschedulable=True, taints=(),
        cpu_milli=0, memory=0, pods=0, gpus={}, gpu_capacity={},
    )  # fmt: skip
    return Event("Node", "set", record)


def _no_pod(node: str, row: int) -> Event:
    """A pod that asks for nothing, on the node."""
    named: schema.Source = {
        "metadata": {"name": f"free row {row}", "namespace": "free row", "uid": f"free row {row}"},
        "spec": {"nodeName": node, "containers": []},
    }
    return Event("Pod", "set", records.pod(named, frozenset()))
