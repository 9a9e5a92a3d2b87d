"""Reservations: the GPUs that are kept for one pod until it is bound or the reservation ends.

A preemption that was answered (or an eviction of our own) reserves what its victims hold for the preemptor. Until the
preemptor is bound, deleted or outbid, or its last victim has been gone for a minute, the same need is never answered
with other victims. `Releases` states when a reservation ends, and why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from operator import le, sub

from extender.cluster.cluster import Cluster
from extender.cluster.listener import Listener
from extender.objects.records import PodRecord
from extender.reservations.assumed import SILENT, AssumedPods, Freshness, Journal


@dataclass(slots=True)
class Reservation:
    """One pod's. Times are on the caller's clock."""

    uid: str
    node: str
    victims: tuple[str, ...]  # uids
    amounts: tuple[int, ...]  # R amounts of the preemptor
    priority: int
    at: float  # when it was made
    emptied: float | None = None  # when its last victim was first seen to be gone
    pod: str = ""  # namespace/name, for people
    grace: float = 0.0  # the victims' longest, in seconds
    own: bool = False  # the evictions are our own
    # Seconds for which victims are waited for that are asked to save their work; 0: none is. With `own` false: we were
    # not allowed to evict, and kube-scheduler does.
    wait: float = 0.0
    begun: bool = False  # a victim was evicted, as far as the watch shows; others may have ended by themselves
    unknown: str = ""  # a JSON object of what another version states of it

    @property
    def id(self) -> str:
        """The name that people see: the same after a restart, another one for other victims."""
        text = " ".join((self.uid, self.node, *sorted(self.victims)))
        return sha256(text.encode()).hexdigest()[:8]


@dataclass(slots=True)
class Reservations:
    """All reservations, one a preemptor, in the order they were made. Time comes in as an argument.

    `seconds`: how long one lasts beyond the victims' grace: a victim that hangs must not bind its preemptor for ever.
    """

    seconds: float = 600.0
    journal: Journal = SILENT
    _of: dict[str, Reservation] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether there is any, old ones too."""
        return bool(self._of)

    def add(self, reservation: Reservation) -> None:
        """Reserve; a reservation of the same pod before is replaced."""
        self.journal.changed("reserve", reservation)
        self._of[reservation.uid] = reservation

    def drop(self, uid: str) -> None:
        """The pod has no reservation any more."""
        if uid in self._of:
            self.journal.changed("release", uid)
            del self._of[uid]

    def get(self, uid: str) -> Reservation | None:
        """The pod's reservation, an old one too, which has not been dropped yet."""
        return self._of.get(uid)

    def of(self, uid: str, now: float) -> Reservation | None:
        """The pod's reservation, if it is not too old."""
        reservation = self._of.get(uid)
        return reservation if reservation is not None and not self.old(reservation, now) else None

    def current(self, now: float) -> list[Reservation]:
        """Those that are not too old."""
        least = self.seconds  # nearly all are younger than this
        return [plan for plan in self._of.values() if now - plan.at <= least or not self.old(plan, now)]

    def all(self) -> list[Reservation]:
        """The old ones too, which have not been dropped yet."""
        return list(self._of.values())

    def precedes(self, other: Reservation, uid: str, priority: int) -> bool:
        """Whether what is reserved for another pod is taken for the pod with this uid. Of two pods of the same priority
        that have reservations on one node the older reservation comes first: they do not wait for each other."""
        own = self._of.get(uid)
        if other is own or other.priority != priority or own is None or own.node != other.node:
            return other is not own and other.priority >= priority
        return (other.at, other.uid) < (own.at, uid)

    def old(self, reservation: Reservation, now: float) -> bool:
        """Whether it is older than any reservation may be."""
        return now - reservation.at > self.seconds + reservation.grace + reservation.wait


# -- when a reservation ends, and why


CAUSES = {
    "bound": "the preemptor has a node",
    "deleted": "the preemptor is deleted",
    "outbid": "other pods have the GPUs, or come first",
    "replaced": "the GPUs were lost, or a budget forbids the evictions: another reservation was made for the preemptor",
    "not-used": "the last victim has been gone for a minute",
    "not-carried-out": "kube-scheduler threw the answer away: no pod was evicted",
    "victims-stay": "victims are there long after their grace period has ended",
    "node-lost": "the node is deleted, or does not take the preemptor any more",
}
"""Why a reservation ends: metric label and sentence."""

NOT_CARRIED_OUT_SECONDS = 10.0  # an answer whose victims were not touched in that time was thrown away
OWN_NOT_CARRIED_OUT_SECONDS = 120.0  # of our own evictions: another instance that gets the Lease may take them up
CARRIED_OUT_SECONDS = 60.0  # after its last victim is gone the freed GPUs stay reserved so long
CARRY_SECONDS = 5.0  # after the last victim is gone the scheduler needs a moment to come back with the pod
COME_BACK_SECONDS = 12.0  # kube-scheduler retries a pod whose call failed after at most 10 s
UNSEEN_SECONDS = 60.0  # after which a pod that no watch has brought does not exist: another instance may see it earlier


class Releases(Listener):
    """Ends reservations whose time is over, and reports why."""

    def __init__(
        self,
        cluster: Cluster,
        assumed: AssumedPods,
        reservations: Reservations,
        freshness: Freshness,
        report: Callable[[Reservation, str], None] = lambda reservation, cause: None,
    ) -> None:
        """`report`: called with each reservation that ends, and one of CAUSES."""
        self._cluster, self._assumed, self._reservations = cluster, assumed, reservations
        self._freshness, self._report = freshness, report
        self._swept: tuple[float, int] | None = None  # when, and at which generation, `sweep` looked last

    def sweep(self, now: float) -> None:
        """End what is reserved no more. One decision asks for it several times: it looks once."""
        if self._swept == (now, self._cluster.generation):
            return
        self._swept = now, self._cluster.generation
        if self._reservations:
            self._reservations.journal.sweeps(now)
        pods = self._cluster.pods
        for reservation in self._reservations.all():
            if cause := self._over(reservation, pods.get(reservation.uid), now):
                self.end(reservation, cause)

    def sweep_plans(self, now: float) -> None:
        """End our own plans of which no victim is evicted, and that leave their pod too little by now: until another
        instance reads a plan it may pass other pods. After an eviction a plan is kept: those that come first may go
        elsewhere. This looks at all pairs on a node."""
        on: dict[str, list[Reservation]] = {}
        for reservation in self._reservations.current(now):
            on.setdefault(reservation.node, []).append(reservation)
        for there in on.values():
            for plan in [plan for plan in there if plan.own and self.untouched(plan)]:
                precedes = partial(self._reservations.precedes, uid=plan.uid, priority=plan.priority)
                if self.outbid(plan, filter(precedes, there)):
                    self.end(plan, "outbid")
                    there.remove(plan)

    def end(self, reservation: Reservation, cause: str) -> None:
        """`cause`: one of CAUSES; "": it stands."""
        if cause:
            self._reservations.drop(reservation.uid)
            self._report(reservation, cause)

    def pod_deleted(self, uid: str) -> None:
        """The pod is deleted: nothing is assumed of it, or reserved for it, any more."""
        reservation = next((reservation for reservation in self._reservations.all() if reservation.uid == uid), None)
        self._assumed.forget(uid)
        self._reservations.drop(uid)
        if reservation is not None:
            self._report(reservation, "deleted")

    def pod_leaves(self, pod: PodRecord, wall: float | None) -> None:
        """The plans that have the pod as a victim have begun, unless it has ended by itself: the watch leaves out pods
        that have finished, and reports them as deleted, in their former state. So does one without a grace period that
        is evicted: it counts as evicted."""
        if pod.terminating or not pod.grace_seconds:
            for reservation in self._reservations.all():
                reservation.begun |= pod.uid in reservation.victims

    def replaced(self, reservation: Reservation) -> None:
        """Another reservation takes its place."""
        self._report(reservation, "replaced")

    def coming(self, reservation: Reservation, now: float) -> bool:
        """Whether the pod is about to have its GPUs: the victims are being evicted, or have just gone."""
        soon = reservation.emptied is None or now - reservation.emptied <= CARRY_SECONDS
        node = self._cluster.nodes.get(reservation.node)
        return soon and node is not None and not node.unschedulable

    def untouched(self, reservation: Reservation) -> bool:
        """Whether victims are there, and none was evicted. Others may have ended by themselves."""
        remaining = self._remaining(reservation)
        return not reservation.begun and bool(remaining) and not any(pod.terminating for pod in remaining)

    def _remaining(self, reservation: Reservation) -> list[PodRecord]:
        bound = self._cluster.placements.bound.get(reservation.node, ())
        return [self._cluster.pods[uid] for uid in reservation.victims if uid in bound]

    def _over(self, reservation: Reservation, pod: PodRecord | None, now: float) -> str:
        """Why a reservation ends, one of CAUSES; "" while it does not.

        That `nominatedNodeName` was cleared is no reason: a call that we fail to answer clears it.
        """
        cluster = self._cluster
        if pod is None:
            return "deleted" if now - reservation.at > UNSEEN_SECONDS else ""
        if pod.node:
            return "bound"
        if pod.terminating:
            return "deleted"
        if self._reservations.old(reservation, now):
            return "victims-stay"
        if cluster.row(reservation.node) < 0:
            return "node-lost"
        remaining = self._remaining(reservation)
        if not remaining:
            reservation.emptied = reservation.emptied if reservation.emptied is not None else now
            if self.outbid(reservation, ()):
                return "outbid"
            just_up = now - self._freshness.up_since <= COME_BACK_SECONDS
            return "" if just_up or now - reservation.emptied <= CARRIED_OUT_SECONDS else "not-used"
        patience = OWN_NOT_CARRIED_OUT_SECONDS + reservation.wait if reservation.own else NOT_CARRIED_OUT_SECONDS
        if reservation.wait and not reservation.own:  # it was handed to kube-scheduler, which has to come back first
            patience += COME_BACK_SECONDS
        return "not-carried-out" if now - reservation.at > patience and self.untouched(reservation) else ""

    def outbid(self, plan: Reservation, first: Iterable[Reservation]) -> bool:
        """Whether the pod would not fit on its node once all victims there are gone, because of other pods, or of what
        is reserved there for those that come `first`. GPUs that are away for a moment outbid none."""
        cluster, row = self._cluster, self._cluster.row(plan.node)
        if row < 0:
            return False
        # A reservation whose pod the watch has not brought may be new.
        known, waiting = cluster.pods, cluster.placements.waiting
        waits = (other for other in first if other.uid in waiting or other.uid not in known)
        none, nodes, capacity = (0,) * len(plan.amounts), cluster.tables.nodes, cluster.nodes[plan.node].gpu_capacity
        alloc, used = nodes.alloc_of(row), nodes.used_of(row)
        whole = [max(has, capacity.get(name, 0)) for name, has in zip(cluster.resources, alloc, strict=True)]
        stays = _sum(used, (other.amounts for other in waits))
        if not _short(plan.amounts, whole, stays):
            return False
        gone = set(plan.victims).union(
            *(other.victims for other in self._reservations.all() if other.node == plan.node)
        )
        leaving = (pod for pod in cluster.pods_on(plan.node) if pod.terminating or pod.uid in gone)
        left = _sum(none, map(cluster.amounts, leaving))
        return all(map(le, used, whole)) and _short(plan.amounts, whole, [*map(sub, stays, left)])


def _short(wanted: Sequence[int], whole: Sequence[int], stays: Sequence[int]) -> bool:
    """Whether R amounts do not fit because of what stays."""
    return any(
        amount and rest > 0 and amount > has - rest for amount, has, rest in zip(wanted, whole, stays, strict=True)
    )


def _sum(first: tuple[int, ...], amounts: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """The sum of R amounts each, by resource."""
    return tuple(map(sum, zip(first, *amounts, strict=True)))
