"""The start of a gang: its seats are judged by the tables as they are now, and reserved.

A gang may have thousands of pods, so this is done a part of its nodes after the other, each in one slice: its seats are
judged and reserved at once. From then on they count for all others, so the first ones still stand when the last ones
are judged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Final

from extender.cluster.cluster import Cluster
from extender.cluster.slices import Sliced
from extender.cluster.tables import plain
from extender.objects.gangs import Ref
from extender.objects.queueing import rank_of
from extender.objects.records import PodRecord
from extender.queue.gang import StandIns, WaitingGang, present
from extender.queue.placement import JointPlacement, Placed
from extender.reservations.claims import Claims, of_others
from extender.reservations.seats import Seat, is_absent

PART: Final = 64  # pods that are judged in one slice
NO_PODS: Final[Mapping[str, Sequence[str]]] = {}


@dataclass(frozen=True, slots=True)
class GangStart:
    """A gang that starts now."""

    name: str  # as in its seats
    gang: WaitingGang
    seats: tuple[Seat, ...]
    placed: Placed


class Starts:
    """Judges and reserves the seats of gangs. `clock`: seconds on the server's clock."""

    def __init__(self, cluster: Cluster, claims: Claims, placement: JointPlacement, clock: Callable[[], float]) -> None:
        self._cluster, self._claims, self._placement, self._clock = cluster, claims, placement, clock

    def begin(self, gang: WaitingGang, pods: Sequence[PodRecord], placed: Placed) -> Sliced[GangStart | None]:
        """Reserve the seats of these pods of a gang; None: they do not all stand, and the seats are as before."""
        name, own, seats = gang.ref.text, self.own(gang), self._claims.seats
        new_seats: dict[int, Seat] = {}  # by the place of the pod
        before: list[Seat] = []  # what the gang gave up for it
        done = False
        try:
            for part in _parts(placed):
                if len(part) < len(pods):
                    yield
                waiting, where = self._waiting([pods[at] for at in part]), _part(placed, part)
                if len(waiting) < len(part) or not self._fit(waiting, where, own):
                    return None
                new = seats_of(self._cluster, name, waiting, where, self._clock())
                before += [seat for seat_of_pod in new if (seat := seats.of(seat_of_pod.uid)) is not None]
                seats.reserve(new)
                new_seats |= zip(part, new, strict=True)
            seats.end_absent(name, new_seats.values())
            done = True
        finally:
            if not done:
                self._restore(new_seats.values(), before)
        return GangStart(name, gang, tuple([new_seats[at] for at in range(len(pods))]), placed)

    def stand(self, start: GangStart) -> Sliced[bool]:
        """Whether all pods of a gang that is not released yet still have their seats, by the tables as they are now."""
        seated = {seat.uid for seat in start.seats}
        pods = self._waiting([pod for pod in start.gang.pods if pod.uid in seated])
        return len(pods) == len(seated) and (yield from self.fit(pods, start.placed, self.own(start.gang)))

    def hold(self, seats: Sequence[Seat], stand_ins: StandIns, staying: Collection[str] = ()) -> Sliced[bool]:
        """Whether the pods of a gang still wait, and have these seats once the pods that they wait for are gone, by the
        tables as they are now. `staying`: uids of those that are not gone even then."""
        cluster, late = self._cluster, dict[str, PodRecord]()
        if any(seat.absent for seat in seats):
            named = Ref.of(seats[0].gang)
            late = {pod.uid: pod for pod in (yield from stand_ins.steps(named, present(cluster, named)))}
        pods = [pod for seat in seats if (pod := late.get(seat.uid) or cluster.pods.get(seat.uid)) is not None]
        rows = tuple([cluster.row(seat.node) for seat in seats])
        if len(pods) < len(seats) or not all(pod.waits for pod in pods) or min(rows) < 0:
            return False
        masks, nodes = tuple([seat.gpus for seat in seats]), tuple([seat.node for seat in seats])
        gone = {uid for seat in seats for uid in seat.awaits}.difference(staying)
        # What claims for one of several numbers take of a node is chosen with the node.
        amounts = tuple([seat.amounts for seat in seats]) if any(pod.claim_numbers for pod in pods) else ()
        placed = Placed(rows, masks, None, proved=False, nodes=nodes, amounts=amounts)
        return (yield from self.fit(pods, placed, {seat.uid for seat in seats}, gone))

    def fit(
        self, pods: Sequence[PodRecord], placed: Placed, own: Collection[str], gone: Collection[str] = ()
    ) -> Sliced[bool]:
        """Whether these pods have their places, by the tables as they are now. `own`: uids that do not count; `gone`:
        those of running pods that do not."""
        for part in _parts(placed):
            if len(part) < len(pods):
                yield
            if not self._fit([pods[at] for at in part], _part(placed, part), own, gone):
                return False
        return True

    def seats(self, name: str, pods: Sequence[PodRecord], placed: Placed, at: float) -> Sliced[tuple[Seat, ...]]:
        """As `seats_of`, in slices. `at`: when the gang was released."""
        new_seats: dict[int, Seat] = {}
        for part in _parts(placed):
            if new_seats:
                yield
            part_pods = [pods[at_pod] for at_pod in part]
            new_seats |= zip(part, seats_of(self._cluster, name, part_pods, _part(placed, part), at), strict=True)
        return tuple([new_seats[at_pod] for at_pod in range(len(pods))])

    def own(self, gang: WaitingGang) -> set[str]:
        """The uids under which the gang's own seats count: those of its pods, and its absent ones."""
        return {pod.uid for pod in gang.pods}.union(self._claims.seats.absent.get(gang.ref.text, ()))

    def _waiting(self, pods: Sequence[PodRecord]) -> list[PodRecord]:
        """Those of these pods that still wait for their seats, as they are now, and those that do not exist yet."""
        known_pods = self._cluster.pods
        known = [pod if is_absent(pod.uid) else known_pods.get(pod.uid) for pod in pods]
        return [pod for pod in known if pod is not None and pod.waits]

    def _fit(self, pods: Sequence[PodRecord], placed: Placed, own: Collection[str], gone: Collection[str] = ()) -> bool:
        requests = [self._claims.alone(pod) for pod in pods]
        ended = self._cluster.ended(gone) if gone else nullcontext()
        with ended, of_others(self._claims, requests, self._clock(), own, placed.rows):
            return self._placement.still_fits(placed, pods, requests)

    def _restore(self, reserved: Collection[Seat], before: Sequence[Seat]) -> None:
        """Take back what was made, and what stood there before. A pod whose seat was written since, by another reading
        of the maps, keeps that."""
        seats = self._claims.seats
        ours = {seat.uid for seat in reserved if seats.of(seat.uid) is seat}
        for uid in ours:
            seats.drop(uid)
        seats.reserve(seat for seat in before if seat.uid in ours)


def seats_of(
    cluster: Cluster,
    name: str,
    pods: Sequence[PodRecord],
    placed: Placed,
    now: float,
    awaits: Mapping[str, Sequence[str]] = NO_PODS,
) -> tuple[Seat, ...]:
    """The seats of the placed pods of a gang, in their order. `name`: as in the seats; `now`: on the server's clock;
    `awaits`: by node, the uids of the pods that are evicted there."""
    classes = cluster.device_classes.values()
    return tuple([
        Seat(
            pod.uid, f"{pod.namespace}/{pod.name}", name, node,
            placed.amounts[at] if placed.amounts else cluster.amounts(pod), gpus, pod.priority, now,
            *rank_of(pod), tuple(sorted(awaits.get(node, ()))), plain(pod.others, classes),
        )
        for at, (pod, node, gpus) in enumerate(zip(pods, placed.nodes, placed.gpus, strict=True))
    ])  # fmt: skip


def _parts(placed: Placed) -> Iterator[list[int]]:
    """The places of the pods, those of one node together, in parts of PART pods or a few more: all of a gang that has
    no more, in their order."""
    if len(placed.rows) <= PART:
        yield list(range(len(placed.rows)))
        return
    on: dict[int, list[int]] = {}
    for at, row in enumerate(placed.rows):
        on.setdefault(row, []).append(at)
    part: list[int] = []
    for on_node in on.values():
        part += on_node
        if len(part) >= PART:
            yield part
            part = []
    if part:
        yield part


def _part(placed: Placed, part: Sequence[int]) -> Placed:
    """The placement of some of the pods."""
    if len(part) == len(placed.rows):
        return placed
    return Placed(
        tuple([placed.rows[at] for at in part]),
        tuple([placed.gpus[at] for at in part]),
        placed.domain,
        proved=False,
        nodes=tuple([placed.nodes[at] for at in part]),
        amounts=tuple([placed.amounts[at] for at in part if placed.amounts]),
    )
