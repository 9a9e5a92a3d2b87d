"""Claims: what other pods will take, counted in the tables for one request, and gone when it ends.

A claim is made of every assumed pod, and of every seat, reservation and nominated pod whose priority is equal or
higher. One pod is counted once, on one node: a pod that bind has asked for counts where it is bound; else its seat, its
reservation, or its nominated node, counts; else the node where it is assumed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Final

from extender.cluster.cluster import Cluster
from extender.objects.records import PodRecord
from extender.policy.contracts import PodRequest
from extender.policy.pod_request import Requests
from extender.reservations.assumed import AssumedPods
from extender.reservations.counting import FEW, Counted, Counting, taken_over
from extender.reservations.release import Releases
from extender.reservations.reservations import Reservation, Reservations
from extender.reservations.seats import Seat, Seats

NONE: Final[frozenset[str]] = frozenset()


class _Block:
    """The `with` block of one request's claims."""

    __slots__ = ("_claims", "_counted", "_outer")

    def __init__(self, claims: Claims, counted: Counted) -> None:
        self._claims, self._counted = claims, counted
        self._outer: Counted | None = None

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
        self._cluster, self._requests = cluster, requests
        self.assumed, self.reservations, self.seats = assumed, reservations, Seats()
        self.counting = Counting(cluster, assumed, reservations, self.seats, releases, requests)
        self._counted: Counted | None = None
        self.is_bind_called = False
        """Whether kube-scheduler uses our bind verb."""

    def request(self, pod: PodRecord, now: float) -> PodRequest:
        """The request of a pod; assumed pods count as siblings and kin where they are assumed."""
        return self.with_seat(self._requests.of(pod, lambda: self.places(now)), pod)

    def with_seat(self, request: PodRequest, pod: PodRecord) -> PodRequest:
        """The request of a pod, with the absent seat that it takes over, if there is one."""
        seat = taken_over(self.seats, pod, self._cluster)
        return request if seat is None else replace(request, seat=seat.uid)

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
    ) -> _Block:
        """The claims that count for the request. `as_equal`: reservations and seats of lower priorities that count too;
        `without`: uids of pods that do not, such as the rest of a gang that is placed as a whole; `taken`: node and R
        amounts of one more claim; `rows`: the nodes that are read inside of the block: where they are few, no claim is
        made elsewhere. Inside of another block these claims stand instead of the outer ones, which are made again on
        leaving."""
        uids = frozenset([one.uid for one in as_equal]) if as_equal else NONE
        few = frozenset(rows) if rows is not None and len(rows) <= FEW else None
        return _Block(self, Counted(request, now, uids, without, taken, few))

    def begin(self, counted: Counted) -> Counted | None:
        """Make these claims. Gives those that they stand instead of; an exception leaves those."""
        outer, self._counted = self._counted, counted
        try:
            self.counting.make(counted)
        except BaseException:
            self.end(outer)
            raise
        return outer

    def end(self, outer: Counted | None) -> None:
        """Drop the claims that count now, and make those of before."""
        self._counted = outer
        self._cluster.tables.nodes.drop_claims()
        if outer is not None:
            self.counting.make(outer)

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
        self.is_bind_called = True

    def assume(self, request: PodRequest, row: int, gpus: int, now: float) -> None:
        """Assume that the pod of an answered request goes to the node. kube-scheduler binds pods in parallel, in
        another order than it asked about them. Without the bind verb a pod that requires links so assumes all GPUs."""
        amounts = request.amounts if self.is_bind_called else self.counting.guarded(request, row, request.amounts)
        self.assumed.assume(request, self._cluster.names[row], amounts, gpus, now)


def of_others(
    claims: Claims, request: PodRequest, now: float, without: Collection[str], rows: Sequence[int] | None = None
) -> _Block:
    """The claims of all others, of seats whatever their priority: none is given twice. `without`: uids of the pods of
    the gang that is placed, and of those that are taken for gone; `rows`: as for `Claims.of`."""
    return claims.of(request, now, as_equal=tuple(claims.seats), without=frozenset(without), rows=rows)
