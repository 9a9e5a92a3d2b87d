"""Nodes that a pod fits on and filter rejects all the same, because of other pods or of what is not known.

- The view is stale: it promises no links.
- Just after a start the watch may not show pods that were answered before; waiting pods of a higher priority are first.
- Pods are evicted for the pod on another node: it waits for that node, and takes none that was freed for other pods.
- The node was freed for a preemptor of a lower priority, and the pod leaves it (`preemption.Leave`).
- The devices that are left do not meet the claims of the pod, as far as these are not counted as GPUs.
- The pod has a seat on another node: its gang was placed as a whole.
- GPUs are held for the pod on other nodes, by an advance reservation.
- The pod gets another seat, and does not state it yet.
- The pod waits in the queue without our gate, so that an autoscaler sees it: it has no seat yet.
- The first pods of a burst after a start: that bind is ours is not known yet, and they would break a whole node each.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import compress
from typing import Final

import msgspec

from ext_core import fit
from extender.cluster.cluster import Cluster
from extender.cluster.dra.claim_fits import unmet
from extender.cluster.statements import PLAN, stated_mask
from extender.decide.decisions import Decision
from extender.objects.queueing import is_queued
from extender.objects.records import PodRecord
from extender.policy import reasons
from extender.policy.contracts import PodRequest
from extender.policy.policy import Policy
from extender.preemption.preemption import Leave
from extender.preemption.search import CERTAIN, Preemptor
from extender.reservations.assumed import Attempt, Freshness
from extender.reservations.claims import Claims, uniform
from extender.reservations.reservations import Releases, Reservation
from extender.reservations.seats import Seat

RESERVED: Final = reasons.GPUS_RESERVED.code
IS_RESERVED: Final = bytes([code == RESERVED for code in range(256)])


class HeldBack(msgspec.Struct, frozen=True, gc=False):
    """Which rows are held back from a pod, and when it is tried again."""

    reserved: frozenset[int]  # rows on which the pod fits and that are reserved for pods of lower priorities
    left: bool  # it leaves such rows to those pods, or left them before
    soon: bool  # no later event wakes the pod: it is tried again soon
    evicts_on: str | None = None  # as of an `Attempt`


class HoldBack:
    """Rejects those nodes."""

    def __init__(
        self,
        cluster: Cluster,
        policy: Policy,
        claims: Claims,
        releases: Releases,
        freshness: Freshness,
        leave: Leave,
    ) -> None:
        self._cluster, self._policy, self._claims, self._releases = cluster, policy, claims, releases
        self._leave = leave
        self.freshness = freshness

    def reject(self, decision: Decision, preemptor: Preemptor, attempt: Attempt | None) -> HeldBack:
        """Write reason codes where the rules passed a node; inside of the pod's claims. `attempt`: its filter call
        before."""
        now = preemptor.now
        stale = self.freshness.stale()
        if stale:
            promise_no_links(decision)
        if preemptor.pod.claims:
            self._reject_unmet(decision, preemptor.pod)
        request = decision.request
        if self._claims.seats and (seat := self._claims.seats.of(request.seat or request.uid)) is not None:
            return self._only_its_seat(decision, preemptor.pod, seat)
        if self._cluster.settings.queue.enabled and is_queued(preemptor.pod):
            # Whatever the rules state: no pod is evicted for a part of a gang.
            decision.judged.codes[:] = array("B", [reasons.QUEUED.code]) * len(decision.judged.codes)
            return HeldBack(frozenset(), left=False, soon=False)
        if self._claims.advance:
            self._for_dates(decision, now)
        reserved: frozenset[int] = frozenset()
        if self._claims.reservations:
            reserved = self.reserved(preemptor.request, fit.passed(decision.judged.rows, decision.judged.codes), now)
        leaves = attempt is not None and attempt.left
        if reserved and not leaves and not stale:  # while stale no pod is evicted: the pod would have no other node
            leaves = self._leaves(decision, preemptor, reserved)
        if self._claims.seats:
            reserved |= self._seated(decision, now)
        soon = self._hand_over(decision, reserved, now) or self._after_start(decision, now)
        if not self._claims.is_bind_called and not stale and decision.request.links == "required":
            self._keep_whole(decision, attempt, now)
        return HeldBack(reserved, leaves, soon)

    def _reject_unmet(self, decision: Decision, pod: PodRecord) -> None:
        """Reject the nodes whose devices do not meet the claims of the pod, and note which request."""
        cluster, judged = self._cluster, decision.judged
        fits = cluster.dra.fits
        claims = fits.of(pod)
        if claims is None:
            return
        given = cluster.given_to_claims(claims.specs, judged.rows, judged.codes)
        first = fit.unmet(judged.rows, judged.codes, given, reasons.CLAIM_UNMET.code)
        if first >= 0:
            node = cluster.nodes[cluster.names[judged.rows[first]]]
            decision.detail["claim"] = unmet(claims, fits.on(node, claims))

    def reserved(self, request: PodRequest, fits: array[int], now: float) -> frozenset[int]:
        """Of the rows on which the pod fits, those where a pod of a lower priority would lose what was freed for it,
        and have others evicted a second time; inside of the pod's claims."""
        return self._of_lower(request, fits, self._claims.lower(request, now), now)

    def _for_dates(self, decision: Decision, now: float) -> None:
        """Name the nodes whose GPUs are held for a date, and pass the pod on those that are held for it by now."""
        request, judged = decision.request, decision.judged
        codes = bytes(judged.codes)
        if RESERVED in codes:
            closed = self._claims.rows_for_dates(request, now)
            for i in compress(range(len(codes)), codes.translate(IS_RESERVED)):
                if judged.rows[i] in closed:
                    judged.codes[i] = reasons.GPUS_FOR_A_DATE.code
        held = self._claims.held_rows(request, now)
        if held and not held.isdisjoint(fit.passed(judged.rows, judged.codes)):
            for i, row in enumerate(judged.rows):
                if row not in held:
                    judged.codes[i] = judged.codes[i] or reasons.SEATED.code

    def _only_its_seat(self, decision: Decision, pod: PodRecord, seat: Seat) -> HeldBack:
        """Pass the pod on the node of its seat alone, where it states that. Where that node is rejected the queue
        places its gang again: while it fits elsewhere, no pod is evicted for it there.

        A pod that does not state its seat is not passed: it states a new one when every instance knows that, and the
        pod of the same gang that had these GPUs before states them no more."""
        row, judged = self._cluster.row(seat.node), decision.judged
        stated = not seat.gpus or (stated_mask(pod, PLAN) == seat.gpus and pod.nominated_node in ("", seat.node))
        if not stated:
            judged.codes[:] = array("B", [reasons.MOVING.code]) * len(judged.codes)
            return HeldBack(frozenset(), left=False, soon=False, evicts_on="")
        elsewhere = fit.withhold(judged.rows, judged.codes, reasons.SEATED.code, row)
        return HeldBack(frozenset(), left=False, soon=True, evicts_on=seat.node if elsewhere else None)

    def _seated(self, decision: Decision, now: float) -> frozenset[int]:
        """Of the rows on which the pod fits, those where a pod of a lower priority would lose its seat."""
        request, judged = decision.request, decision.judged
        fits = fit.passed(judged.rows, judged.codes)
        return self._of_lower(request, fits, self._claims.seats.below(request.priority), now)

    def _of_lower(
        self, request: PodRequest, fits: array[int], lower: Sequence[Reservation | Seat], now: float
    ) -> frozenset[int]:
        """Of the rows on which the pod fits, those where it takes what is reserved for these of a lower priority."""
        rows = {self._cluster.row(seat.node) for seat in lower}
        asked = array("i", [row for row in fits if row in rows]) if rows else None
        if not asked:
            return frozenset()
        with self._claims.of(request, now, as_equal=lower):
            codes = self._policy.judge(self._cluster.tables, request, asked)
        return frozenset(row for row, code in zip(asked, codes, strict=True) if code)

    def _leaves(self, decision: Decision, preemptor: Preemptor, reserved: frozenset[int]) -> bool:
        """Whether the pod leaves the reserved rows, where it fits on no others. Once only: then it takes one, so that
        no stream of lower preemptors holds it up."""
        judged = decision.judged
        fits = fit.passed(judged.rows, judged.codes)
        if not fits or not reserved.issuperset(fits) or not self._leave.leaves(preemptor, judged.rows, reserved):
            return False
        for i, row in enumerate(judged.rows):
            if row in reserved:
                judged.codes[i] = judged.codes[i] or reasons.HANDOVER.code
        return True

    def _hand_over(self, decision: Decision, reserved: frozenset[int], now: float) -> bool:
        """Where we evict for this pod ourselves, only that node is passed: no victim must be evicted in vain.
        Where kube-scheduler does, the pod takes no node meanwhile that was freed for other pods (`reserved`).

        Whether the pod has to be tried again soon: its victims are gone, and nothing that happens later wakes it.
        """
        reservations = self._claims.reservations
        own = reservations.of(decision.request.uid, now) if reservations else None
        if own is None:
            return False
        judged = decision.judged
        if reserved and self._releases.coming(own, now):
            for i, row in enumerate(judged.rows):
                if row in reserved and self._cluster.names[row] != own.node:
                    judged.codes[i] = judged.codes[i] or reasons.HANDOVER.code
        if own.wait and self._releases.untouched(own):  # while victims save, the pod may fit elsewhere
            return False
        row = self._cluster.row(own.node) if own.own else -1
        if row < 0 or row not in judged.rows:  # kube-scheduler itself rejects that node
            return False
        fit.withhold(judged.rows, judged.codes, reasons.HANDOVER.code, row)
        return own.emptied is not None

    def _after_start(self, decision: Decision, now: float) -> bool:
        """Just after a start, pods that were answered before it may come to nodes where none is seen yet.

        kube-scheduler guards the counts; for pods that require links or NICs every node where some sets of GPUs have
        them, and others do not, is rejected until such pods must have been seen.
        """
        if now >= self.freshness.yields_until and now >= self.freshness.settled_at:  # nearly always
            return False
        request, judged = decision.request, decision.judged
        waiting = self._cluster.placements.waiting.values()
        if now < self.freshness.yields_until and any(priority > request.priority for priority in waiting):
            # The GPUs that victims left may be its: its nomination is lost when a call of the scheduler failed.
            fit.withhold(judged.rows, judged.codes, reasons.GPUS_PROMISED.code)
            return True
        if now >= self.freshness.settled_at or not request.by_position:
            return False
        for i, row in enumerate(judged.rows):
            if not judged.codes[i] and not uniform(self._cluster, row, request):
                judged.codes[i] = reasons.STARTED.code
        return reasons.STARTED.code in judged.codes

    def _keep_whole(self, decision: Decision, attempt: Attempt | None, now: float) -> None:
        """Reject whole nodes where the pod fits beside an assumed pod on a node with a relay, once that pod is bound.

        Until bind is called for the first time an assumed pod counts with all GPUs of its node: kube-scheduler may bind
        without plans. Where it does, the assumed pod is seen or expires; and no pod is held back for longer than that
        from its first call on.
        """
        request, judged, tables = decision.request, decision.judged, self._cluster.tables
        if attempt is not None and now - attempt.first >= self._cluster.settings.hold.seconds:
            return
        masks: dict[int, int] = {}
        for pod in self._claims.assumed.current(now):
            if pod.gpus and pod.uid != request.uid:
                row = self._cluster.row(pod.node)
                masks[row] = masks.get(row, 0) | pod.gpus
        if not masks or reasons.GPUS_PROMISED.code not in judged.codes:
            return
        promised = any(
            code == reasons.GPUS_PROMISED.code and row in masks and self._fits_beside(request, row, masks[row])
            for row, code in zip(judged.rows, judged.codes, strict=True)
        )
        if not promised:
            return
        for i, row in enumerate(judged.rows):
            if not judged.codes[i] and not tables.nodes.used_of(row)[request.resource]:
                judged.codes[i] = reasons.WHOLE.code

    def _fits_beside(self, request: PodRequest, row: int, planned: int) -> bool:
        """Whether a node with a relay has linked GPUs for the pod beside those that are planned for assumed pods."""
        shapes, node = self._cluster.tables.shapes, self._cluster.tables.nodes.node(row)
        if not shapes.relay(node.shape) or node.unknown or node.likely & ~node.sure:
            return False
        free = node.healthy & ~(node.sure | planned)
        return shapes.certain(node.shape, free, request.wanted, 0, request.containers) == CERTAIN


def promise_no_links(decision: Decision) -> None:
    """Reject all nodes for a pod that requires links or NICs: which GPUs were taken meanwhile is not known."""
    if decision.request.by_position:
        fit.withhold(decision.judged.rows, decision.judged.codes, reasons.STALE.code)


def put_last(total: array[float], rows: array[int], reserved: frozenset[int]) -> None:
    """Put the rows that are kept for other pods behind all that were not. `total`: the score of each of `rows`."""
    if reserved and total:
        span = max(total) - min(total) + 1.0
        for i, row in enumerate(rows):
            if row in reserved:
                total[i] -= span
