"""The state of a cluster that runs, as bytes, and the copy that another process makes of it.

A copy beside the live state would cost the verbs pauses: the garbage of so many objects is collected at once. So the
server only writes its state down, in slices, and `worker.py` makes the copy and the answer in a process of its own.

A device plugin that is away for a moment only counts as gone; failures of pods count as they do at the beginning."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO, Final

from extender.cluster.cluster import Cluster
from extender.cluster.gpus.store import AWAY_SECONDS
from extender.cluster.health.columns import HealthAt
from extender.cluster.pods.placements import SETTLE_SECONDS
from extender.cluster.slices import pauses
from extender.objects.event import Event
from extender.objects.records import Kind, PodRecord, Record
from extender.reservations.assumed import AssumedPod
from extender.reservations.freshness import Freshness
from extender.reservations.reservations import Reservation
from extender.reservations.seats import Seat
from extender.settings import Settings
from extender.verbs.verbs import Verbs
from extender.verdict import judge
from extender.whatif.snapshot import Snapshot

STEP: Final = 64
"""Objects that one slice writes."""
AGE: Final = 2 * max(AWAY_SECONDS, SETTLE_SECONDS)
"""Seconds: what is copied as so old has settled."""


@dataclass(frozen=True, slots=True)
class State:
    """What a copy has besides objects. `now`: on the server's clock; `dark`, `known_at`, `since`: of its Freshness;
    `demand`: the demand mix as text; `settling`: uid of a pod that is being admitted -> since when."""

    settings: Settings
    now: float
    held_counts: bool
    planned: bool
    dark: bool
    known_at: float | None
    since: tuple[bool, float, float, float]
    assumed: tuple[AssumedPod, ...]
    seats: tuple[Seat, ...]
    reservations: tuple[Reservation, ...]
    demand: str
    health: HealthAt
    settling: dict[str, float]


def written(verbs: Verbs, now: float) -> Iterator[bytes]:
    """The cluster of the verbs as it is at the first piece, `now` on its clock; each piece is one slice of work."""
    source = verbs.cluster
    source.tick(now)
    nodes, pods = list(source.nodes.values()), list(source.pods.values())
    state = _state(verbs, now)
    groups = list(source.gangs.objects.values())
    classes, devices = list(source.priority_classes.values()), list(source.device_classes.values())
    dra: list[tuple[Kind, list[Record]]] = [
        ("ResourceClaimTemplate", list(source.dra.templates.values())),
        ("ResourceClaim", list(source.dra.claims.values())),
        ("ResourceSlice", list(source.dra.slices.values())),
        ("DeviceTaintRule", list(source.dra.taint_rules.records.values())),
    ]
    quotas = list(source.quotas.values())
    budgets = list(source.budgets.records.values())
    yield pickle.dumps(state)
    yield from _batches("Group", groups)
    yield from _batches("PriorityClass", classes)
    yield from _batches("DeviceClass", devices)
    yield from _batches("ResourceQuota", quotas)
    for kind, records in dra:
        yield from _batches(kind, records)
    yield from _batches("PodDisruptionBudget", budgets)
    yield from _batches("Node", nodes)
    late: dict[str, PodRecord] = {}
    by_node: dict[str, list[PodRecord]] = {}
    for pod, pause in pauses(pods, 1024):
        if pause:
            yield b""
        if pod.uid in state.settling:
            late[pod.uid] = pod
        else:
            by_node.setdefault(pod.node, []).append(pod)
    # The ledger of a node is read once for all its pods.
    batch: list[PodRecord] = []
    for there in by_node.values():
        batch += there
        if len(batch) >= STEP:
            yield from _batches("Pod", batch)
            batch = []
    yield from _batches("Pod", batch)
    yield from _batches("Pod", [late[uid] for uid in state.settling if uid in late])
    yield pickle.dumps(None)


def read(file: BinaryIO, over: Callable[[], bool]) -> Snapshot:
    """The copy that `written` describes. `over`: as in Snapshot."""
    state: State = pickle.load(file)
    copy = Cluster(state.settings, live=not state.held_counts)
    if state.planned:
        copy.plans_come()
    copy.demand.load(state.demand)
    made = Verbs.of(state.settings, copy, freshness=_freshness(state))
    made.assumed.adopt(state.assumed)
    made.claims.seats.reserve(state.seats)
    for reservation in state.reservations:
        made.reservations.add(reservation)
    late: list[Event] = []
    while (batch := pickle.load(file)) is not None:
        late += [one for one in batch if one.kind == "Pod" and one.record.uid in state.settling]
        copy.apply([one for one in batch if one.kind != "Pod" or one.record.uid not in state.settling], state.now - AGE)
    for one in late:
        copy.apply([one], state.settling[one.record.uid])
    copy.tick(state.now)
    copy.adopt_health(state.health)
    found = judge.over(made, live=False)
    return Snapshot(
        state.settings, copy, made.policy, made.claims, found.search, found, state.now, live=True, over=over
    )


def _state(verbs: Verbs, now: float) -> State:
    source, fresh = verbs.cluster, verbs.freshness
    return State(
        settings=source.settings,
        now=now,
        held_counts=source.gpus.held_counts,
        planned=bool(source.tables.shapes.planned),
        dark=fresh.stale(),
        known_at=fresh.known_at(),
        since=(fresh.counted, fresh.yields_until, fresh.settled_at, fresh.up_since),
        assumed=tuple(verbs.assumed.current(now, unheard=True)),
        seats=tuple(verbs.claims.seats),
        reservations=tuple([replace(one) for one in verbs.reservations.current(now)]),
        demand=source.demand.dump(),
        health=source.health_at(now),
        settling=dict(source.placements.settling),
    )


def _freshness(state: State) -> Freshness:
    """As it was on the server: time stands still."""
    made = Freshness(lambda: float(state.dark), lambda: state.known_at, 1.0)
    made.counted, made.yields_until, made.settled_at, made.up_since = state.since
    return made


def _batches(kind: Kind, records: Sequence[Record]) -> Iterator[bytes]:
    """The records as events, STEP a piece."""
    for at in range(0, len(records), STEP):
        yield pickle.dumps([Event(kind, "set", one) for one in records[at : at + STEP]])
