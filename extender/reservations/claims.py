"""Claims: what other pods will take, counted in the tables for one request, and gone when it ends.

A claim is made of every assumed pod, and of every reservation and nominated pod whose priority is equal or higher. One
pod is counted once, on one node: a pod that bind has asked for counts where it is bound; else its reservation, or its
nominated node, counts; else the node where it is assumed.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection
from types import TracebackType
from typing import Final, NamedTuple

from ext_core import fit
from extender.cluster.cluster import Cluster
from extender.cluster.demand.kinds import links_of
from extender.objects.records import PodRecord
from extender.policy.contracts import PodRequest
from extender.policy.pod_request import Requests
from extender.reservations.assumed import AssumedPod, AssumedPods
from extender.reservations.release import Releases
from extender.reservations.reservations import Reservation, Reservations

NONE: Final[frozenset[str]] = frozenset()


class _Counted(NamedTuple):
    """What the claims in the tables are made of. `as_equal`: uids of pods of a lower priority whose reservations count
    all the same; `taken`: the node and the amounts of one more claim."""

    request: PodRequest
    now: float
    as_equal: frozenset[str]
    taken: tuple[str, tuple[int, ...]] | None


class _Block:
    """The `with` block of one request's claims."""

    __slots__ = ("_claims", "_counted", "_outer")

    def __init__(self, claims: Claims, counted: _Counted) -> None:
        self._claims, self._counted = claims, counted
        self._outer: _Counted | None = None

    def __enter__(self) -> None:
        self._outer = self._claims.begin(self._counted)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._claims.end(self._outer)


class Claims:
    """Makes the claims of one request at a time; they end with the `with` block, whatever happens in it."""

    def __init__(
        self,
        cluster: Cluster,
        assumed: AssumedPods,
        reservations: Reservations,
        releases: Releases,
        requests: Requests,
    ) -> None:
        self._cluster, self._releases, self._requests = cluster, releases, requests
        self.assumed, self.reservations = assumed, reservations
        self._counted: _Counted | None = None
        self._bind_is_called = False

    def request(self, pod: PodRecord, now: float) -> PodRequest:
        """The request of a pod; assumed pods count as siblings and kin where they are assumed."""
        return self._requests.of(pod, lambda: self.places(now))

    def of(
        self,
        request: PodRequest,
        now: float,
        *,
        as_equal: Collection[Reservation] = (),
        taken: tuple[str, tuple[int, ...]] | None = None,
    ) -> _Block:
        """The claims that count for the request. `as_equal`: reservations of lower priorities that count too; `taken`:
        node and R amounts of one more claim. Inside of another block these claims stand instead of the outer ones,
        which are made again on leaving."""
        uids = frozenset([reservation.uid for reservation in as_equal]) if as_equal else NONE
        return _Block(self, _Counted(request, now, uids, taken))

    def begin(self, counted: _Counted) -> _Counted | None:
        """Make these claims. Gives those that they stand instead of; an exception leaves those."""
        outer, self._counted = self._counted, counted
        try:
            self._make(counted)
        except BaseException:
            self.end(outer)
            raise
        return outer

    def end(self, outer: _Counted | None) -> None:
        """Drop the claims that count now, and make those of before."""
        self._counted = outer
        self._cluster.tables.nodes.drop_claims()
        if outer is not None:
            self._make(outer)

    def lower(self, request: PodRequest, now: float) -> list[Reservation]:
        """The reservations of pods of a lower priority that are known to wait."""
        if not self.reservations:
            return []
        pods = self._cluster.pods
        return [
            one
            for one in self.reservations.current(now)
            if one.uid in pods and one.priority < request.priority and one.uid != request.uid
        ]

    def places(self, now: float) -> list[tuple[str, str]]:
        """(uid, node) of the assumed pods."""
        return [(pod.uid, pod.node) for pod in self.assumed.current(now)]

    def bind_is_called(self) -> None:
        """kube-scheduler uses our bind verb: from now on each pod is judged again as it is bound."""
        self._bind_is_called = True

    def assume(self, request: PodRequest, row: int, gpus: int, now: float) -> None:
        """Assume that the pod of an answered request goes to the node. kube-scheduler binds pods in parallel, in
        another order than it asked about them. Without the bind verb a pod that requires links so assumes all GPUs."""
        amounts = request.amounts if self._bind_is_called else self._guarded(request, row, request.amounts)
        self.assumed.assume(request, self._cluster.names[row], amounts, gpus, now)

    def _make(self, counted: _Counted) -> None:
        cluster, request, now = self._cluster, counted.request, counted.now
        nodes = cluster.tables.nodes
        nodes.drop_claims()
        reserved = self.reservations
        if reserved:
            self._releases.sweep(now)
        seen = {request.uid}
        assumed = self.assumed.current(now, unheard=request.links == "required")
        for pod in assumed:
            if pod.bound:
                self._count_assumed(pod, request, seen)
        for reservation in reserved.current(now) if reserved else ():
            counts = reservation.priority >= request.priority or reservation.uid in counted.as_equal
            if counts and reservation.uid not in seen:
                seen.add(reservation.uid)
                self._reserve(reservation.node, reservation.amounts, cluster.pods.get(reservation.uid))
        self._count_nominated(request, seen)
        nominated = cluster.placements.claims
        for pod in assumed:
            if not nominated.counts(pod.uid, request.priority):
                self._count_assumed(pod, request, seen)
        if counted.taken is not None:
            name, amounts = counted.taken
            nodes.add_claim(cluster.row(name), amounts, 0, False)

    def _count_nominated(self, request: PodRequest, seen: set[str]) -> None:
        """The nominated pods that were not counted yet."""
        cluster, placements = self._cluster, self._cluster.placements
        claims = placements.claims
        if not placements.nominated:
            return
        claims.locate(cluster.rows)
        counted = array("i", sorted(at for at in map(claims.position, seen) if at >= 0))
        cluster.tables.nodes.add_claims(claims.rows, claims.priorities, claims.amounts, request.priority, counted)
        for uid in claims.linked:
            pod = cluster.pods[uid]
            if uid not in seen and pod.priority >= request.priority:
                seen.add(uid)
                self._reserve(placements.nominated[uid], cluster.amounts(pod), pod)

    def _count_assumed(self, assumed: AssumedPod, request: PodRequest, seen: set[str]) -> None:
        pod = self._cluster.pods.get(assumed.uid)
        if pod is not None and pod.node:
            self.assumed.forget(assumed.uid)
            return
        row = self._cluster.row(assumed.node)
        if assumed.uid not in seen and row >= 0:
            evictable = assumed.priority < request.priority and (pod is None or self._may_be_evicted(pod))
            self._cluster.tables.nodes.add_claim(row, assumed.amounts, assumed.gpus, True, evictable)
        seen.add(assumed.uid)

    def _may_be_evicted(self, pod: PodRecord) -> bool:
        """Whether a pod that has not started is a possible victim of a higher priority once it is on its node."""
        return not (pod.daemon or pod.mirror or self._cluster.limits.protected_ms(pod))

    def _reserve(self, node: str, amounts: tuple[int, ...], pod: PodRecord | None) -> None:
        """Claim the GPUs of a nominated pod. Where it requires links that a count cannot guard, all GPUs are its."""
        row = self._cluster.row(node)
        if row < 0:
            return
        if pod is not None and links_of(pod) == "required":  # the others need no request: there may be thousands
            amounts = self._guarded(self._requests.of(pod), row, amounts)
        self._cluster.tables.nodes.add_claim(row, amounts, 0, False)

    def _guarded(self, request: PodRequest, row: int, amounts: tuple[int, ...]) -> tuple[int, ...]:
        """`amounts`, with all GPUs of the node where the pod requires links that a count cannot guard there: another
        pod that is admitted before it could leave it a set that is not linked."""
        if not request.gpus or request.links != "required" or request.wanted < 2:
            return amounts
        if uniform(self._cluster, row, request.wanted):
            return amounts
        alloc = self._cluster.tables.nodes.alloc_of(row)
        whole = list(amounts)
        whole[request.resource] = max(amounts[request.resource], alloc[request.resource])
        return tuple(whole)


def uniform(cluster: Cluster, row: int, wanted: int) -> bool:
    """Whether any `wanted` GPUs of the node are linked, so that a count is guard enough."""
    tables = cluster.tables
    shape, healthy, _ = tables.nodes.graph_of(row)
    return fit.uniform(tables.shapes, shape, healthy, wanted)
