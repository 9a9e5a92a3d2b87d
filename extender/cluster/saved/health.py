"""What is remembered of pods that failed, as data."""

from __future__ import annotations

import msgspec

from extender.cluster.health.columns import HealthColumns
from extender.cluster.health.node_health import NodeHealth, _Start
from extender.cluster.health.pod_failures import Failure


class SavedHealth(msgspec.Struct, frozen=True, array_like=True):
    """The failures of each node by the tenant that they count for, and the pods that have not shown whether they live.
    The fields are those of `NodeHealth` and its `Failures`."""

    failures: list[tuple[str, list[tuple[str, list[Failure]]]]]
    nodes_of: list[tuple[str, list[str]]]
    sound: dict[str, float]
    starts: dict[str, _Start]
    running: list[tuple[float, str]]
    expiring: list[tuple[float, str]]
    left: list[tuple[str, float, _Start | None]]
    judged: list[tuple[str, float]]
    blamed: list[tuple[str, str, float]]
    faded: float
    fading: list[str]
    ticked: float


def save(health: NodeHealth, columns: HealthColumns, now: float) -> SavedHealth:
    """What is remembered. The columns are brought up to date first: a cluster with the same memory writes the same."""
    refresh(health, columns, now)
    kept = health._failures
    return SavedHealth(
        [(node, [(key, list(held)) for key, held in of.items()]) for node, of in kept._on.items()],
        [(key, list(nodes)) for key, nodes in kept._of.items()],
        dict(kept._sound),
        dict(health._starts),
        list(health._running),
        list(health._expiring),
        [(uid, at, start) for uid, (at, start) in health._left.items()],
        [(uid, at) for uid, (at, _) in health._judged.items()],
        [(*key, at) for key, (at, _) in health._blamed.items()],
        health._faded,
        list(health._fading),
        health._ticked,
    )


def restore(health: NodeHealth, columns: HealthColumns, saved: SavedHealth, now: float) -> None:
    """Have this remembered, and nothing else."""
    kept = health._failures
    kept._on = {node: {key: list(held) for key, held in of} for node, of in saved.failures}
    kept._of = {key: dict.fromkeys(nodes) for key, nodes in saved.nodes_of}
    kept._sound = dict(saved.sound)
    kept._counts = {}
    kept._sum = 0
    for of in kept._on.values():
        for key, held in of.items():
            kept._count(key, len(held))
    health._starts = dict(saved.starts)
    health._running, health._expiring = list(saved.running), list(saved.expiring)
    health._left = {uid: (at, start) for uid, at, start in saved.left}
    health._judged = {uid: (at, None) for uid, at in saved.judged}
    health._blamed = {(namespace, owner): (at, None) for namespace, owner, at in saved.blamed}
    refresh(health, columns, now)
    health._faded, health._fading, health._ticked = saved.faded, list(saved.fading), saved.ticked


def refresh(health: NodeHealth, columns: HealthColumns, now: float) -> None:
    """Write what counts against each node as of `now`."""
    health.stale.update(health._failures.nodes())
    health.verdicts.stale_tenants.update(health.verdicts._standings)
    columns.write(now)
