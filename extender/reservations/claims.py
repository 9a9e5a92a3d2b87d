"""Claims: what other pods will take, counted in the tables for one request, and gone when it ends.

A claim is made of every assumed pod, of every seat and nominated pod whose priority is equal or higher, and of every
reservation that precedes (`Reservations.precedes`). One pod is counted once, on one node: a pod that bind has asked for
counts where it is bound; else its seat, its reservation, or its nominated node, counts; else the node where it is
assumed. Only a pod that has lost its seat, and has others evicted elsewhere, counts on both nodes until it is placed
again.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import Final

import msgspec

from ext_core import fit
from ext_core.rows import NodeFacts
from extender.cluster.cluster import Cluster
from extender.cluster.demand import is_particular
from extender.cluster.dra.node_gpus import tolerated
from extender.cluster.statements import PLAN, mask_of, stated_mask
from extender.cluster.tables import FIRST_GPU, OtherAmounts
from extender.objects.queueing import rank_of
from extender.objects.records import PodRecord
from extender.policy.contracts import PodRequest
from extender.policy.pod_request import PodRequests
from extender.policy.rules import allocated_on
from extender.reservations.advance import ANY_POD, SEAT_SECONDS, AdvanceReservations, Eligibility
from extender.reservations.assumed import AssumedPod, AssumedPods
from extender.reservations.reservations import Releases, Reservation, Reservations
from extender.reservations.seats import Seat, Seats

NONE: Final[frozenset[str]] = frozenset()


class Claims:
    """Makes the claims of one request at a time; they end with the `with` block, whatever happens in it."""

    def __init__(
        self,
        cluster: Cluster,
        assumed: AssumedPods,
        reservations: Reservations,
        releases: Releases,
        requests: PodRequests,
    ) -> None:
        self._cluster, self._requests, self._releases = cluster, requests, releases
        self.assumed, self.reservations, self.seats = assumed, reservations, Seats()
        self.advance = AdvanceReservations()
        self._offered: list[tuple[int, NodeFacts, NodeFacts]] = []  # row, and what it offers to all, and to one pod
        self._counted: Counted | None = None
        self.is_bind_called = False
        """Whether kube-scheduler uses our bind verb."""

    def request(self, pod: PodRecord, now: float) -> PodRequest:
        """The request of a pod; assumed pods count as siblings and kin where they are assumed."""
        return self.with_seat(self._requests.of(pod, lambda: self.places(now)), pod)

    def with_seat(self, request: PodRequest, pod: PodRecord) -> PodRequest:
        """The request of a pod, with the absent seat that it takes over, if there is one."""
        seat = taken_over(self.seats, pod, self._cluster)
        return request if seat is None else msgspec.structs.replace(request, seat=seat.uid)

    def eligibility(self, requests: Sequence[PodRequest], now: float, within: float = 0.0) -> Eligibility:
        """For which advance reservations pods that start together, `within` so many seconds, are eligible."""
        return self.advance.eligibility(requests, self._cluster, now, within)

    def limits_of_dates(self, requests: Iterable[PodRequest], now: float) -> list[float]:
        """As `AdvanceReservations.limits`, of pods that get seats, seconds since 1970."""
        return self.advance.limits(requests, self._cluster, now, SEAT_SECONDS) if self.advance else []

    def held_rows(self, request: PodRequest, now: float) -> frozenset[int]:
        """The rows that are held for the pod, and others, by an advance reservation that has begun."""
        return self.advance.rows(request, self._cluster, now)

    def rows_for_dates(self, request: PodRequest, now: float) -> set[int]:
        """The rows with GPUs that an advance reservation keeps from the pod."""
        cluster, eligible = self._cluster, self.eligibility((request,), now)
        some, sums = self.advance.sums(request.priority, eligible, cluster, now, (request.uid, request.seat))
        rows = {cluster.row(node) for node, amounts in some if any(amounts)}
        return rows if sums is None else rows | sums.closed(cluster)

    def alone(self, pod: PodRecord) -> PodRequest:
        """The request of a pod without siblings and kin."""
        return self._requests.alone(pod)

    def of(
        self,
        request: PodRequest,
        now: float,
        *,
        as_equal: Collection[Reservation | Seat] = (),
        without: frozenset[str] = NONE,
        taken: tuple[str, tuple[int, ...]] | None = None,
        rows: Sequence[int] | None = None,
    ) -> Counted:
        """The claims that count for the request, for a `with` block. `as_equal`: reservations and seats of lower
        priorities that count too; `without`: uids of pods that do not, such as the rest of a gang that is placed as a
        whole; `taken`: node and R amounts of one more claim; `rows`: the nodes that are read inside of the block: where
        they are few, no claim is made elsewhere. Inside of another block these claims stand instead of the outer ones,
        which are made again on leaving."""
        uids = frozenset([claim.uid for claim in as_equal]) if as_equal else NONE
        few = frozenset(rows) if rows is not None and len(rows) <= FEW else None
        eligible = self._eligible(request, now) if self.advance else ANY_POD
        return Counted(self, request, now, uids, without, taken, few, eligible)

    def _eligible(self, request: PodRequest, now: float) -> Eligibility:
        seat = self.seats.of(request.seat or request.uid)
        if seat is not None and now - seat.at <= SEAT_SECONDS:  # it was placed beside them
            return Eligibility(usable=frozenset([held.name for held in self.advance]))
        return self.eligibility((request,), now)

    def begin(self, counted: Counted) -> Counted | None:
        """Make these claims. Gives those that they stand instead of; an exception leaves those."""
        outer, self._counted = self._counted, counted
        try:
            if outer is not None:
                self._drop()
            self._make(counted)
        except BaseException:
            self.end(outer)
            raise
        return outer

    def end(self, outer: Counted | None) -> None:
        """Drop the claims that count now, and make those of before."""
        self._counted = outer
        self._drop()
        if outer is not None:
            self._make(outer)

    def _drop(self) -> None:
        """No claim counts."""
        tables = self._cluster.tables
        tables.nodes.drop_claims()
        tables.given.source, tables.given.users = None, NONE
        self._withdraw()
        self._cluster.placements.others.drop_claims()

    def lower(self, request: PodRequest, now: float) -> list[Reservation]:
        """The reservations of pods of a lower priority that are known to wait."""
        if not self.reservations:
            return []
        pods = self._cluster.pods
        return [
            reservation
            for reservation in self.reservations.current(now)
            if reservation.uid in pods and reservation.priority < request.priority and reservation.uid != request.uid
        ]

    def places(self, now: float) -> list[tuple[str, str]]:
        """(uid, node) of the assumed pods."""
        return [(pod.uid, pod.node) for pod in self.assumed.current(now)]

    def bind_is_called(self) -> None:
        """kube-scheduler uses our bind verb: from now on each pod is judged again as it is bound."""
        self.is_bind_called = True

    def assume(self, request: PodRequest, row: int, gpus: int, now: float) -> None:
        """Assume that the pod of an answered request goes to the node. kube-scheduler binds pods in parallel, in
        another order than it asked about them. Without the bind verb a pod that requires links so assumes all GPUs."""
        amounts = self.amounts_on(request, row)
        if not self.is_bind_called:
            amounts = self.guarded(request, row, amounts)
        self.assumed.assume(request, self._cluster.names[row], amounts, gpus, now)

    def amounts_on(self, request: PodRequest, row: int) -> tuple[int, ...]:
        """R amounts that the pod takes on the row."""
        if not request.numbers:
            return request.amounts
        cluster, r, specs = self._cluster, request.resource, request.claim_specs
        given = cluster.given_to_claims(specs, array("i", [row]), array("B", [0])) if specs else None
        number = allocated_on(cluster.tables, request, row, given)
        return (*request.amounts[:r], number, *request.amounts[r + 1 :])

    # -- what counts for one request. A pod that was counted is in `seen`. Where few rows are read, what is counted on
    # other rows is not looked at: `_elsewhere` finds the pods that count there.

    def _make(self, counted: Counted) -> None:
        """Make the claims, where none are there."""
        cluster, request, now = self._cluster, counted.request, counted.now
        reserved = self.reservations
        if reserved:
            self._releases.sweep(now)
        seen = {request.uid, request.seat, *counted.without}
        assumed = self.assumed.current(now, unheard=request.links == "required" or request.by_position)
        for pod in assumed:
            if pod.bound:
                self._count_assumed(pod, counted, seen)
        for reservation in reserved.current(now) if reserved else ():
            precedes = reserved.precedes(reservation, request.uid, request.priority)
            if reservation.uid in seen or not (precedes or reservation.uid in counted.as_equal):
                continue
            seat = self._counted_seat(reservation.uid, counted)
            if seat is None:
                seen.add(reservation.uid)
            if seat is None or seat.node != reservation.node:
                self._reserve(reservation.node, reservation.amounts, cluster.pods.get(reservation.uid), counted)
        if self.seats:
            self._count_seats(counted, seen)
        if self.advance:
            self._count_advance(counted, seen)
            cluster.tables.given.users = self.advance.users_of_others(counted.eligible, cluster, now)
        if cluster.placements.nominated:
            count = self._count_nominated if counted.rows is None else self._count_nominated_there
            count(counted, seen)
        for pod in assumed:
            if not self._elsewhere(pod, counted):
                self._count_assumed(pod, counted, seen)
        if counted.taken is not None:
            name, amounts = counted.taken
            cluster.tables.nodes.add_claim(cluster.row(name), amounts, 0, False)
        if request.tolerances:
            self._tolerate(request, counted)
        if request.claim_specs:
            cluster.tables.given.source = partial(cluster.given_to_claims, request.claim_specs)

    def _tolerate(self, request: PodRequest, counted: Counted) -> None:
        """Offer the GPUs whose taints (DRA) the pod tolerates."""
        cluster = self._cluster
        for name in cluster.tainted_gpus:
            row, devices, known = cluster.row(name), cluster.nodes[name].devices, cluster.gpus.devices(name)
            if devices is None or known is None or not _is_read(row, counted):
                continue
            number, gpus = tolerated(devices, request.tolerances)
            if number:
                mask = mask_of(known.index_of[gpu] for gpu in gpus if gpu in known.index_of) & known.graph
                before = _facts(cluster, row)
                alloc = list(before.alloc)
                alloc[cluster.resources.index(devices.resource)] += number
                facts = before._replace(alloc=tuple(alloc), healthy=before.healthy | mask)
                cluster.tables.nodes.set_node(row, facts)
                self._offered.append((row, before, facts))

    def _withdraw(self) -> None:
        """Offer the GPUs whose taints one pod tolerates to none any more; a node that was written anew stays."""
        for row, before, facts in self._offered:
            if _facts(self._cluster, row) == facts:
                self._cluster.tables.nodes.set_node(row, before)
        self._offered.clear()

    def planned(self, pod: PodRecord, node: str) -> int:
        """The mask of the GPUs that the queue planned for an unbound pod on the node, 0 for none: those of its seat,
        else those that the pod states with its nomination. An instance may see these before it reads the seats."""
        seat = self.seats.of(pod.uid) or taken_over(self.seats, pod, self._cluster)
        if seat is not None and seat.node == node:
            return seat.gpus
        mask = stated_mask(pod, PLAN) if pod.nominated_node == node else 0
        return mask if mask.bit_count() <= sum(count for _, count in pod.gpus) else 0

    def guarded(self, request: PodRequest, row: int, amounts: tuple[int, ...]) -> tuple[int, ...]:
        """`amounts`, with all GPUs of the node where the pod requires links or NICs that a count cannot guard there:
        another pod that is admitted before it could leave it a set without them."""
        if not request.gpus or not request.by_position or uniform(self._cluster, row, request):
            return amounts
        alloc = self._cluster.tables.nodes.alloc_of(row)
        whole = list(amounts)
        whole[request.resource] = max(amounts[request.resource], alloc[request.resource])
        return tuple(whole)

    def _names(self, rows: Collection[int]) -> Iterator[str]:
        names = self._cluster.names
        return (names[row] for row in rows)

    def _count_seats(self, counted: Counted, seen: set[str]) -> None:
        """The seats of pods that are not seen on a node yet."""
        cluster, seats = self._cluster, self.seats
        counted_seats = (
            seats if counted.rows is None else (seat for name in self._names(counted.rows) for seat in seats.on(name))
        )
        for seat in counted_seats:
            pod = cluster.pods.get(seat.uid)
            if seat.uid not in seen and counted.counts(seat, "" if pod is None else pod.node):
                seen.add(seat.uid)
                self._reserve(seat.node, seat.amounts, pod, counted, seat.gpus, seat.others)

    def _count_advance(self, counted: Counted, seen: set[str]) -> None:
        """What is held for a date."""
        some, sums = self.advance.sums(counted.request.priority, counted.eligible, self._cluster, counted.now, seen)
        if sums is not None and counted.rows is None:
            sums.claim(self._cluster)
        elif sums is not None:
            some += [(name, sums.amounts[name]) for name in self._names(counted.rows or ()) if name in sums.amounts]
        for node, amounts in some:
            if _is_read(row := self._cluster.row(node), counted):
                self._cluster.tables.nodes.add_claim(row, amounts, 0, False)

    def _counted_seat(self, uid: str, counted: Counted) -> Seat | None:
        """The seat of the pod, on whatever row; None where it has none that counts."""
        seat = self.seats.of(uid) if self.seats else None
        if seat is None:
            return None
        pod = self._cluster.pods.get(uid)
        return seat if counted.counts(seat, "" if pod is None else pod.node) else None

    def _elsewhere(self, assumed: AssumedPod, counted: Counted) -> bool:
        """Whether the pod counts where it is seated or nominated."""
        least, nominated = counted.request.priority, self._cluster.placements.claims
        if nominated.counts(assumed.uid, least) or self._counted_seat(assumed.uid, counted) is not None:
            return True
        return assumed.uid in nominated.particular and self._cluster.pods[assumed.uid].priority >= least

    def _count_nominated(self, counted: Counted, seen: set[str]) -> None:
        """The nominated pods that were not counted yet."""
        cluster, placements, least = self._cluster, self._cluster.placements, counted.request.priority
        claims = placements.claims
        for uid in claims.planned:
            pod = cluster.pods[uid]
            if uid not in seen and pod.priority >= least:
                seen.add(uid)
                node = placements.nominated[uid]
                self._reserve(node, cluster.amounts(pod), pod, counted, self.planned(pod, node))
        claims.locate(cluster.rows)
        skipped = array("i", sorted(at for at in map(claims.position, seen) if at >= 0))
        cluster.tables.nodes.add_claims(claims.rows, claims.priorities, claims.amounts, least, skipped)
        if counted.request.others:
            for uid, node in placements.nominated.items():
                pod = cluster.pods[uid]
                if pod.other_resources and claims.counts(uid, least) and uid not in seen:
                    placements.others.claim(node, pod.others)
        for uid in claims.particular:
            pod = cluster.pods[uid]
            if uid not in seen and pod.priority >= least:
                seen.add(uid)
                self._reserve(placements.nominated[uid], cluster.amounts(pod), pod, counted)

    def _count_nominated_there(self, counted: Counted, seen: set[str]) -> None:
        """As `_count_nominated`, of few rows."""
        assert counted.rows is not None
        cluster, claims = self._cluster, self._cluster.placements.claims
        for name in self._names(counted.rows):
            for uid in claims.on.get(name, ()):
                pod = cluster.pods[uid]
                if (
                    uid in seen
                    or pod.priority < counted.request.priority
                    or self._counted_seat(uid, counted) is not None
                ):
                    continue
                seen.add(uid)
                mask = self.planned(pod, name) if uid in claims.planned else 0
                self._reserve(name, cluster.amounts(pod), pod, counted, mask)

    def _count_assumed(self, assumed: AssumedPod, counted: Counted, seen: set[str]) -> None:
        pod = self._cluster.pods.get(assumed.uid)
        if pod is not None and pod.node:
            self.assumed.forget(assumed.uid)
            return
        row = self._cluster.row(assumed.node)
        if assumed.uid not in seen and _is_read(row, counted):
            evictable = assumed.priority < counted.request.priority and (pod is None or self._may_be_evicted(pod))
            amounts, gpus = assumed.amounts, assumed.gpus
            if pod is not None and pod.allocated:
                amounts, gpus = _without_gpus(amounts), 0
            self._cluster.tables.nodes.add_claim(row, amounts, gpus, True, evictable)
            if counted.request.others:
                self._claim_others(assumed.node, pod, assumed.others)
        seen.add(assumed.uid)

    def _may_be_evicted(self, pod: PodRecord) -> bool:
        """Whether a pod that has not started is a possible victim of a higher priority once it is on its node."""
        return not (pod.daemon or pod.mirror or self._cluster.limits.protected_ms(pod))

    def _reserve(
        self,
        node: str,
        amounts: tuple[int, ...],
        pod: PodRecord | None,
        counted: Counted,
        gpus: int = 0,
        others: OtherAmounts = (),
    ) -> None:
        """Claim the GPUs of a nominated pod. Where it requires links or NICs that a count cannot guard, all GPUs are
        its. `gpus`: mask of those that are planned for it; `others`: as `_claim_others` takes them."""
        row = self._cluster.row(node)
        if not _is_read(row, counted):
            return
        if pod is not None and pod.allocated:
            amounts, gpus = _without_gpus(amounts), 0
        elif pod is not None and is_particular(pod):  # the others need no request: there may be thousands
            amounts = self.guarded(self._requests.of(pod), row, amounts)
        self._cluster.tables.nodes.add_claim(row, amounts, gpus, False)
        if counted.request.others:
            self._claim_others(node, pod, others)

    def _claim_others(self, node: str, pod: PodRecord | None, others: OtherAmounts) -> None:
        """Claim what the pod asks for of other resources. `others`: what its seat or assumed place states, which counts
        where the watch has not brought the pod."""
        if asked := others if pod is None else pod.others:
            self._cluster.placements.others.claim(node, asked)


def of_others(
    claims: Claims,
    requests: Sequence[PodRequest],
    now: float,
    without: Collection[str],
    rows: Sequence[int] | None = None,
    starts_within: float = 0.0,
) -> Counted:
    """The claims of all others, of seats whatever their priority: none is given twice. `requests`: of the gang that is
    placed; `without`: uids of its pods, and of those that are taken for gone; `rows`: as for `Claims.of`;
    `starts_within`: in so many seconds it starts, so that it may run into later dates."""
    first = requests[0]
    if any(request.claim_specs or request.tolerances for request in requests):
        tolerances = tuple([tolerance for request in requests for tolerance in request.tolerances])
        first = msgspec.structs.replace(first, tolerances=tolerances, claim_specs=())
    if not first.others and (others := next((request.others for request in requests if request.others), ())):
        first = msgspec.structs.replace(first, others=others)  # the claims of any pod of it count
    counted = claims.of(first, now, as_equal=tuple(claims.seats), without=frozenset(without), rows=rows)
    counted.eligible = claims.eligibility(requests, now, starts_within + SEAT_SECONDS)
    return counted


# -- what the claims of one request are made of ------------------------------------------------------------------------


FEW: Final = 16  # rows, a shortlist: their own claims are found by node, and no others are looked at


class Counted(msgspec.Struct):
    """What the claims in the tables are made of, inside of the `with` block of one request."""

    claims: Claims
    request: PodRequest
    now: float
    as_equal: frozenset[str]  # uids of pods of a lower priority whose reservations count all the same
    without: frozenset[str]  # uids of pods whose claims do not count
    taken: tuple[str, tuple[int, ...]] | None  # the node and the amounts of one more claim
    rows: Collection[int] | None  # of the only nodes that are read, at most FEW; None: all
    eligible: Eligibility = ANY_POD  # which advance reservations do not count
    outer: Counted | None = None  # the claims that these stand instead of

    def __enter__(self) -> None:
        self.outer = self.claims.begin(self)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.claims.end(self.outer)

    def counts(self, seat: Seat, node: str) -> bool:
        """Whether the seat counts. `node`: where its pod is seen, "" for nowhere."""
        return not node and (seat.priority >= self.request.priority or seat.uid in self.as_equal)


def _facts(cluster: Cluster, row: int) -> NodeFacts:
    """What the table has of the Node object."""
    node = cluster.tables.nodes.node(row)
    return NodeFacts(node.alloc, node.gpu, node.shape, node.healthy, node.flags, node.units, node.model)


def _without_gpus(amounts: tuple[int, ...]) -> tuple[int, ...]:
    """The amounts of a pod whose claims are allocated already: its node counts these GPUs as taken."""
    return (*amounts[:FIRST_GPU], *(0 for _ in amounts[FIRST_GPU:]))


def _is_read(row: int, counted: Counted) -> bool:
    """Whether a claim on the row makes a difference to the request."""
    return row >= 0 and (counted.rows is None or row in counted.rows)


def taken_over(seats: Seats, pod: PodRecord, cluster: Cluster) -> Seat | None:
    """The absent seat that the pod takes over, if it has none of its own."""
    if not seats.absent or seats.of(pod.uid) is not None:
        return None
    named = cluster.gangs.ref(pod)
    return None if named is None else seats.free(named.text, rank_of(pod), cluster.amounts(pod))


def uniform(cluster: Cluster, row: int, request: PodRequest) -> bool:
    """Whether any GPUs of the node, as many as the pod asks for, are linked, and NICs are not required: then a count is
    guard enough."""
    tables = cluster.tables
    shape, healthy, _ = tables.nodes.graph_of(row)
    return request.nics != "required" and fit.uniform(tables.shapes, shape, healthy, request.wanted)
