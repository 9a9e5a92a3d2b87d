"""The cluster's state as data, and the cluster that has it again: a record begins with it.

What follows from the objects alone is not in it. What is: the objects, in the order of the rows that nodes have in the
tables; and what depends on the past: since when pods settle, which device plugins are away, failures, learned demand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from functools import partial

import msgspec

from extender.cluster.cluster import Cluster
from extender.cluster.demand import Forecast, Kind
from extender.cluster.node_health import HealthColumns, HealthMemory, NodeHealth
from extender.cluster.pod_failures import Failures
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
    health: msgspec.Raw  # a `HealthMemory`
    demand: SavedDemand


Saved = tuple[SavedCluster, list[Record]]


def save(cluster: Cluster, now: float) -> Callable[[], Saved]:
    """The state at `now`, on the server's clock, and all objects: nodes and pods in the order of their rows, then the
    pods that have none. What may change is copied at once, and the rest is done by the returned function, on any
    thread: of a large cluster it takes longer than a verb may wait."""
    nodes, pods, gpus = cluster._nodes, cluster._pods, cluster._nodes.gpus
    placements, learned = pods.placements, save_demand(cluster.demand)
    remembered = save_health(cluster._node_health, cluster._health_columns, now)
    small: list[Record] = [
        *pods.priority_classes.values(),
        *pods.quotas.values(),
        *pods.save_answers.values(),
        *nodes.dra.classes.values(),
        *nodes.dra.claims.templates.values(),
        *nodes.dra.claims.records.values(),
        *nodes.dra.slices.values(),
        *nodes.dra.taint_rules.records.values(),
        *pods.gangs.objects.values(),
        *pods.budgets.records.values(),
    ]
    names, node_records, node_holes = nodes.rows.names.copy(), nodes.records.copy(), nodes.rows._free.copy()
    uids, pod_records, pod_holes = pods.rows.uids.copy(), pods.records.copy(), pods.rows._free.copy()
    bound, bound_uids = list(placements.bound), list(map(tuple, placements.bound.values()))
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
        order = [(name, list(pods)) for name, pods in zip(bound, bound_uids, strict=True)]
        saved = SavedCluster(
            now, node_holes, pod_holes, len(rowed), order, settling, away, lost, planned, wall_ms, remembered, learned
        )
        return saved, objects

    return finish


def restore(cluster: Cluster, saved: SavedCluster, objects: Sequence[Event], *, learned: bool = True) -> None:
    """Give a cluster that is empty the state. `objects`: those of `save`, in their order; `learned`: whether it takes
    over what was learned of the demand, else it learns from the objects."""
    gpus, placements = cluster._nodes.gpus, cluster._pods.placements
    if learned:  # the nodes get the numbers of models that the saved ones had
        cluster.demand.models._known = {values: number for number, values in enumerate(saved.demand.models)}
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
        restore_demand(cluster.demand, saved.demand)
    cluster._refresh(saved.at)
    restore_health(cluster._node_health, cluster._health_columns, saved.health, saved.at)
    cluster.tables.pods.now = saved.wall_ms


def _with_holes(objects: Sequence[Event], holes: Sequence[int], nothing: Callable[[int], Event]) -> Iterator[Event]:
    """The objects, with `nothing` in each free row, so that each gets the row that it had: ties are decided by it."""
    free, remaining = set(holes), iter(objects)
    for row in range(len(objects) + len(holes)):
        yield nothing(row) if row in free else next(remaining)


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


# -- what was learned of the demand ------------------------------------------------------------------------------------


class SavedDemand(msgspec.Struct, frozen=True, array_like=True):
    """The demand mix and the models of machines. Unlike a dump of the mix it is exact: no number is rounded."""

    mass: list[tuple[Kind, float]]
    used: list[Kind]
    base: float
    latest: float | None
    latest_uids: list[str]
    until: float
    until_uids: list[str]
    models: list[tuple[str | None, ...]]


def save_demand(forecast: Forecast) -> SavedDemand:
    """What the forecast has learned."""
    mix, models = forecast.mix, forecast.models
    return SavedDemand(
        list(mix._mass.items()),
        sorted(mix._used),
        mix._base,
        mix._latest,
        sorted(mix._latest_uids),
        mix._until,
        sorted(mix._until_uids),
        list(models._known),
    )


def restore_demand(forecast: Forecast, saved: SavedDemand) -> None:
    """Have the forecast expect this mix and no other."""
    mix = forecast.mix
    mix._mass, mix._used = dict(saved.mass), set(saved.used)
    mix._base, mix._latest, mix._latest_uids = saved.base, saved.latest, set(saved.latest_uids)
    mix._until, mix._until_uids = saved.until, frozenset(saved.until_uids)
    mix._order = None
    mix._near.clear()
    mix.revision += 1


# -- what is remembered of pods that failed ----------------------------------------------------------------------------


def save_health(health: NodeHealth, columns: HealthColumns, now: float) -> msgspec.Raw:
    """What is remembered. The columns are brought up to date first: a cluster with the same memory writes the same."""
    _rewrite(health, columns, now)
    memory = HealthMemory(**{part.name: getattr(health, part.name) for part in fields(HealthMemory)})
    return msgspec.Raw(msgspec.msgpack.encode(memory))


def restore_health(health: NodeHealth, columns: HealthColumns, saved: msgspec.Raw, now: float) -> None:
    """Have this remembered, and nothing else."""
    memory = msgspec.msgpack.decode(saved, type=HealthMemory)
    _take(health._failures, replace(memory._failures, limits=health.limits))
    _take(health, replace(memory, _failures=health._failures, _faded=now, _fading=[]))  # nothing fades in between
    _rewrite(health, columns, now)
    health._faded, health._fading = memory._faded, memory._fading


def _take(part: object, saved: Failures | HealthMemory) -> None:
    """Give a part of the health the fields of what was saved."""
    for named in fields(saved):
        setattr(part, named.name, getattr(saved, named.name))


def _rewrite(health: NodeHealth, columns: HealthColumns, now: float) -> None:
    """Write what counts against each node as of `now`."""
    health.stale.update(health._failures.nodes())
    health.verdicts.stale_tenants.update(health.verdicts._standings)
    columns.write(now)
