"""Advance reservations in force: GPUs that are held for a date, or for pods that are moved.

Each holds absent seats. They count as taken for every request that is not known to end before `since`, whatever its
priority; those of a tenant's gang for requests of equal and lower priority. From `since` to `until` its own pods may
use them: they do not count for these, and what these use of them counts no longer for others. Both follow from the
pods that the watch shows: which pod has taken what is stored nowhere. A pod that may use several on its node uses
those GPUs once: the others stay held.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import chain, compress
from math import inf
from operator import add, le
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec

from extender.cluster.cluster import ClusterView
from extender.cluster.tables import FIRST_GPU
from extender.objects.gangs import ends_at
from extender.objects.records import PodRecord
from extender.policy.contracts import PodRequest
from extender.policy.pod_request import owner_key
from extender.reservations.assumed import SILENT, Journal
from extender.reservations.seats import ABSENT, Seat

# -- moves of running pods that make room for an advance reservation, as they are planned and kept


MOVE: Final = "/move-"
"""Between the name of a reservation and the number of a move in the name of a place."""
LONGEST_NUMBER: Final = 9


class MovedPod(msgspec.Struct, frozen=True, array_like=True):
    """A pod that moves."""

    uid: str
    pod: str
    """namespace/name, for people."""
    to: str
    """Its next node."""


class PlannedMove(msgspec.Struct, frozen=True, array_like=True):
    """Pods that leave their nodes together: one, or all of a gang."""

    pods: tuple[MovedPod, ...]

    @property
    def key(self) -> str:
        """What no other move has, of the same pods to other nodes neither."""
        nodes = sha256("/".join(f"{pod.uid} {pod.to}" for pod in self.pods).encode()).hexdigest()[:8]
        return f"{self.pods[0].uid}-{nodes}"


def place_name(reservation: str, number: int, move: PlannedMove, owner: str = "") -> str:
    """The name of what is held for the pods of one owner in a move; without the owner what the names of all places of
    the move begin with. `number`: of the move, from 0 on."""
    return f"{reservation}{MOVE}{number}.{move.key}/{owner}"


def move_of(place: str) -> str:
    """What the names of all places of its move begin with."""
    reservation, _, rest = place.partition(MOVE)
    return f"{reservation}{MOVE}{rest.partition('/')[0]}/"


def owner_of(place: str) -> str:
    """The owner in the name of a place."""
    return place.partition(MOVE)[2].partition("/")[2]


def turn_of(name: str) -> tuple[str, float]:
    """(the reservation, the number of the move) of what is held; a reservation itself comes after all of its moves, and
    one whose name states no number: tenants name gangs."""
    reservation, found, rest = name.partition(MOVE)
    number = rest.partition(".")[0]
    is_number = number.isascii() and number.isdigit() and len(number) < LONGEST_NUMBER
    return reservation, int(number) if found and is_number else inf


# -- what is held


TOP: Final = 2**31 - 1
"""The priority of seats that count for every request."""
MOST_KEPT: Final = 16
"""Sets of reservations for which it is kept what is left of them."""
SEAT_SECONDS: Final = 30.0
"""So much later than its seat is reserved a pod may be bound: the queue counts with it before a date. From then on
filter judges the pod on its seat by its own end."""
CLOCK_SECONDS: Final = 5.0
"""By which the clock of a node may be behind: it states when a pod has started."""


class Held(NamedTuple):
    """One advance reservation, or the next place of pods that are moved. Times are seconds since 1970."""

    name: str
    seats: tuple[Seat, ...]
    since: float  # from when its pods may use the seats
    until: float  # from when it holds nothing
    namespaces: frozenset[str] = frozenset()  # whose pods may use them
    owner: str = ""  # or: the pods that this owner creates anew (`owner_key`); "": of none
    before: frozenset[str] = frozenset()
    """Uids of pods that are there already: they use none of the seats."""

    @property
    def of_gang(self) -> bool:
        """Whether the seats are of the pods of a gang that waits for its date."""
        return bool(self.seats) and self.seats[0].priority < TOP

    def counts(self, wall: float, ends: float) -> bool:
        """Whether it counts as taken at a time, for pods that have ended at `ends` at the latest and may not use it."""
        return wall < self.until and (self.since <= wall or ends > self.since)

    def is_for(self, uid: str, namespace: str, owner: str) -> bool:
        """Whether the pod may use the seats from `since` on."""
        named = namespace in self.namespaces or (bool(self.owner) and owner == self.owner)
        return named and uid not in self.before


def seat(name: str, number: int, node: str, amounts: tuple[int, ...], at: float) -> Seat:
    """A seat that counts for every request. `name`: of its reservation; `amounts`: R; `at`: on the server's clock."""
    return Seat(f"{ABSENT}{name}:{number}", name, name, node, amounts, 0, TOP, at)


class Eligibility(NamedTuple):
    """What decides which seats count for pods that would start now."""

    ends: float = inf  # when they have ended at the latest, seconds since 1970; inf: not known
    usable: frozenset[str] = frozenset()  # names of those whose seats they may use
    beside: Mapping[tuple[str, str], float] = MappingProxyType({})
    """By reservation and the next node of pods that move for it, which move it is: what is held there for later ones,
    and for the reservation itself, does not count. They leave room for it before."""


ANY_POD: Final = Eligibility()
"""It runs for ever, and nothing is held for it."""
Amounts = dict[str, tuple[int, ...]]
"""R amounts by node."""


@dataclass(slots=True)
class AdvanceReservations:
    """All that are in force, by name. `epoch`: seconds since 1970 at 0 of the server's clock."""

    journal: Journal = SILENT
    epoch: float = 0.0
    report: Sequence[Mapping[str, Any]] = ()
    """All that operators and tenants ask for, and how it stands, as the pages state it."""
    _of: dict[str, Held] = field(default_factory=dict)
    _for: dict[str, list[Held]] = field(default_factory=dict)  # by namespace and owner
    _uids: dict[str, frozenset[str]] = field(default_factory=dict)  # of the seats, by name
    _whole: dict[str, Amounts] = field(default_factory=dict)  # all that is held, by name
    _left: dict[tuple[str, ...], _Left] = field(default_factory=dict)  # by the names of several
    _sums: dict[tuple[tuple[str, ...], tuple[str, ...]], NodeSums] = field(default_factory=dict)  # as of `_sum_of`
    _generation: int = -1  # of the cluster, for which `_left` is true

    def __bool__(self) -> bool:
        """Whether there is any, ended ones too."""
        return bool(self._of)

    def __iter__(self) -> Iterator[Held]:
        return iter(self._of.values())

    def of(self, name: str) -> Held | None:
        """The one of this name."""
        return self._of.get(name)

    def take(self, held: Iterable[Held], epoch: float) -> None:
        """These are in force, and no others."""
        by_name = {reservation.name: reservation for reservation in held}
        if by_name == self._of and epoch == self.epoch:
            return
        self.journal.changed("advance", (epoch, tuple(by_name.values())))
        self._of, self.epoch, self._left, self._sums, self._for = by_name, epoch, {}, {}, {}
        self._whole = {name: _amounts(reservation) for name, reservation in by_name.items()}
        self._uids = {held.name: frozenset([seat.uid for seat in held.seats]) for held in by_name.values()}
        for reservation in by_name.values():
            for name in (*reservation.namespaces, reservation.owner):
                self._for.setdefault(name, []).append(reservation)

    def kind(self, pod: PodRecord) -> Hashable:
        """Equal for pods to which the same is held, as far as their namespace and owner decide it."""
        owner = owner_key(pod)
        found = (*self._for.get(pod.namespace, ()), *(self._for.get(owner, ()) if owner else ()))
        return tuple([held.name for held in found if held.is_for(pod.uid, pod.namespace, owner)])

    def current(self, now: float) -> list[Held]:
        """Those that have not ended. `now`: on the server's clock."""
        return [held for held in self._of.values() if now + self.epoch < held.until]

    def usable(self, request: PodRequest, now: float) -> list[Held]:
        """Those whose seats the pod may use now."""
        return [held for held in self._begun(now) if held.is_for(request.uid, request.namespace, request.owner)]

    def _begun(self, now: float) -> list[Held]:
        wall = now + self.epoch
        return [held for held in self._of.values() if held.since <= wall < held.until]

    def eligibility(
        self, requests: Sequence[PodRequest], cluster: ClusterView, now: float, within: float = 0.0
    ) -> Eligibility:
        """That of pods that start together, `within` so many seconds."""
        if not self._of:
            return ANY_POD
        usable: set[str] = set()
        beside: dict[tuple[str, str], float] = {}
        for request in requests:
            own = self.usable(request, now)
            usable.update([held.name for held in own])
            if any(held.owner for held in own):
                left = self._left_of(self._begun(now), cluster).amounts
                for held in own:
                    nodes = {node for node, amounts in left[held.name].items() if _has(amounts, request)}
                    beside |= places_of(held.name, nodes) if held.owner else {}
        return Eligibility(_ends(requests, cluster, now + self.epoch + within), frozenset(usable), beside)

    def limits(
        self, requests: Iterable[PodRequest], cluster: ClusterView, now: float, within: float = 0.0
    ) -> list[float]:
        """The moments, seconds since 1970, in order: pods that start together, `within` so many seconds, after one of
        them are not known to end before a date more."""
        wall = now + self.epoch
        dates = sorted({held.since for held in self._of.values() if wall < held.since})
        stated = [_stated(request, cluster) for request in requests if request.gpus] if dates else []
        return limits(dates, stated, wall, within)

    def rows(self, request: PodRequest, cluster: ClusterView, now: float) -> frozenset[int]:
        """The rows with seats that the pod may use now: those of as many GPUs as it asks for, where there are any."""
        rows: dict[bool, set[int]] = {True: set(), False: set()}
        own = self.usable(request, now) if self._of else []
        left = self._left_of(self._begun(now), cluster).amounts if own else {}
        for held in own:
            for seat in held.seats:
                if _has(left[held.name][seat.node], request):
                    rows[seat.amounts[FIRST_GPU:] == request.amounts[FIRST_GPU:]].add(cluster.row(seat.node))
        return frozenset((rows[True] or rows[False]) - {-1})

    def _counted(self, eligible: Eligibility, now: float) -> Iterator[tuple[Held, bool]]:
        """What counts as taken, and whether it has begun."""
        wall = now + self.epoch
        for held in self._of.values():
            if held.name not in eligible.usable and held.counts(wall, eligible.ends):
                yield held, held.since <= wall

    def users_of_others(self, eligible: Eligibility, cluster: ClusterView, now: float) -> AbstractSet[str]:
        """Uids of the pods that use what counts as taken for others."""
        begun = [held for held, has_begun in self._counted(eligible, now) if has_begun and not held.of_gang]
        return self._left_of(begun, cluster).users

    def sums(
        self, priority: int, eligible: Eligibility, cluster: ClusterView, now: float, without: Collection[str]
    ) -> tuple[list[tuple[str, tuple[int, ...]]], NodeSums | None]:
        """What counts as taken for pods of a priority: (node, R amounts), and what counts for most pods alike.
        `without`: uids whose seats do not count, those of one reservation on one node together."""
        some: list[tuple[str, tuple[int, ...]]] = []
        alone = bool(eligible.beside)
        later: list[str] = []
        begun: list[Held] = []
        for held, has_begun in self._counted(eligible, now):
            if held.of_gang:
                for seat in held.seats:
                    pod = cluster.pods.get(seat.uid)
                    if seat.uid not in without and seat.priority >= priority and (pod is None or not pod.node):
                        some.append((seat.node, seat.amounts))
                continue
            alone = alone or not self._uids[held.name].isdisjoint(without)
            if has_begun:
                begun.append(held)
            else:
                later.append(held.name)
        if not alone:
            return some, self._sum_of(later, begun, cluster)
        for name, left in ({name: self._whole[name] for name in later} | self._left_of(begun, cluster).amounts).items():
            of, number = turn_of(name)
            over = {seat.node for seat in self._of[name].seats if seat.uid in without}
            for node, amounts in left.items():
                if node not in over and number <= eligible.beside.get((of, node), inf):
                    some.append((node, amounts))
        return some, None

    def _sum_of(self, later: Sequence[str], begun: Sequence[Held], cluster: ClusterView) -> NodeSums:
        """What those hold that begin `later`, and what pods have not used of those that have `begun`. Most calls ask
        for the same."""
        self._renew(cluster)
        key = tuple(later), tuple([held.name for held in begun])
        sums = self._sums.get(key)
        if sums is None:
            total: Amounts = {}
            for left in (*(self._whole[name] for name in later), *self._left_of(begun, cluster).amounts.values()):
                for node, amounts in left.items():
                    before = total.get(node)
                    total[node] = amounts if before is None else tuple(map(add, before, amounts))
            sums = self._sums[key] = NodeSums(total)
        return sums

    def _renew(self, cluster: ClusterView) -> None:
        """Read what pods have used or given back since, on the nodes that have changed."""
        if self._generation == cluster.generation:
            return
        touched = cluster.touched(self._generation)
        self._generation = cluster.generation
        if touched is None or len(self._left) > MOST_KEPT:
            self._left, self._sums = {}, {key: sums for key, sums in self._sums.items() if not key[1]}
            return
        for left in self._left.values():
            left.read(touched, cluster)
        for (later, begun), sums in self._sums.items():
            for node in touched.intersection(sums.amounts) if begun else ():
                parts = [*(self._whole[name] for name in later), *self._left[begun].amounts.values()]
                of_node = [amounts for part in parts if (amounts := part.get(node)) is not None]
                sums.write(node, tuple(map(sum, zip(*of_node, strict=True))))

    def _left_of(self, begun: Sequence[Held], cluster: ClusterView) -> _Left:
        """What pods have not used of these, which have begun."""
        self._renew(cluster)
        key = tuple([held.name for held in begun])
        left = self._left.get(key)
        if left is None:
            left = self._left[key] = _Left({held.name: self._whole[held.name] for held in begun}, begun)
            left.read(left.nodes, cluster)
        return left


class NodeSums:
    """R amounts by node, as `NodeTable.add_claims` takes them."""

    def __init__(self, amounts: Amounts) -> None:
        self.amounts = amounts
        self._at = {node: at for at, node in enumerate(amounts)}
        self._column = array("q", chain.from_iterable(amounts.values()))
        self._priorities = array("q", [TOP]) * len(amounts)
        self._rows, self._moves = array("i"), -1
        self._closed: set[int] = set()

    def write(self, node: str, amounts: tuple[int, ...]) -> None:
        """Those of one of the nodes have changed."""
        self.amounts[node] = amounts
        at, row = self._at[node], self._rows[self._at[node]] if self._rows else -1
        self._column[at * len(amounts) : (at + 1) * len(amounts)] = array("q", amounts)
        if any(amounts) and row >= 0:
            self._closed.add(row)
        else:
            self._closed.discard(row)

    def closed(self, cluster: ClusterView) -> set[int]:
        """The rows on which anything is taken."""
        self._locate(cluster)
        return self._closed

    def _locate(self, cluster: ClusterView) -> None:
        if self._moves != cluster.rows.moves:
            self._moves, self._rows = cluster.rows.moves, array("i", map(cluster.row, self.amounts))
            self._closed = set(compress(self._rows, map(any, self.amounts.values()))) - {-1}

    def claim(self, cluster: ClusterView) -> None:
        """Count them as taken in the tables."""
        self._locate(cluster)
        cluster.tables.nodes.add_claims(self._rows, self._priorities, self._column, TOP, array("i"))


class _Left:
    """What pods have not used of several that have begun. A pod uses first what is held for the fewest others; one that
    may use few of them takes its part before one that may use many."""

    def __init__(self, whole: Mapping[str, Amounts], begun: Iterable[Held]) -> None:
        self._whole = whole
        self.nodes: dict[str, list[Held]] = {}  # those of each node
        for held in sorted(begun, key=lambda held: (len(held.namespaces), held.until, held.name)):
            for node in whole[held.name]:
                self.nodes.setdefault(node, []).append(held)
        self.amounts = {name: dict(amounts) for name, amounts in whole.items()}
        self.users = set[str]()  # uids of the pods that use them
        self._users: dict[str, set[str]] = {}  # by node

    def read(self, nodes: Iterable[str], cluster: ClusterView) -> None:
        """Read what pods use on these nodes now."""
        known = [node for node in nodes if node in self.nodes]
        self.users.difference_update(*(self._users.get(node, ()) for node in known))
        self._users |= {node: self._use(node, cluster) for node in known}
        self.users.update(*(self._users[node] for node in known))

    def _use(self, node: str, cluster: ClusterView) -> set[str]:
        """Take what pods use of it; uids of these pods."""
        of_node, left, used_by = self.nodes[node], self.amounts, set[str]()
        for held in of_node:
            left[held.name][node] = self._whole[held.name][node]
        shares = [(pod, [held for held in of_node if _uses(pod, held, cluster)]) for pod in cluster.pods_on(node)]
        if len(of_node) > 1:
            shares.sort(key=lambda share: (len(share[1]), share[0].uid))
        for pod, own in shares:
            amounts = cluster.amounts(pod)
            for held in own:
                before = left[held.name][node]
                if any(before[FIRST_GPU:]):
                    used_by.add(pod.uid)
                left[held.name][node] = _beyond(before, amounts)
                amounts = _beyond(amounts, before)
                if not any(amounts[FIRST_GPU:]):
                    break
        return used_by


def limits(dates: Sequence[float], stated: Sequence[tuple[float, float]], wall: float, within: float) -> list[float]:
    """As of `AdvanceReservations.limits`. `stated`: of each pod as `_stated`."""
    least = (
        min((since - lasts - within for lasts, deadline in stated if deadline > since), default=inf)
        for since in dates if wall < since
    )  # fmt: skip
    return [limit for limit in least if wall < limit < inf]


def places_of(name: str, nodes: Iterable[str]) -> dict[tuple[str, str], float]:
    """As of `Eligibility.beside`, for the pods for which `name` is held on these nodes."""
    of, number = turn_of(name)
    return {(of, node): number for node in nodes}


def _has(left: tuple[int, ...], request: PodRequest) -> bool:
    return all(map(le, request.amounts[FIRST_GPU:], left[FIRST_GPU:]))


def _ends(requests: Sequence[PodRequest], cluster: ClusterView, wall: float) -> float:
    """As of an `Eligibility`."""
    ends = (_stated(request, cluster) for request in requests if request.gpus)
    return max(wall, max((min(wall + lasts, deadline) for lasts, deadline in ends), default=wall))


def _stated(request: PodRequest, cluster: ClusterView) -> tuple[float, float]:
    """(seconds for which a pod runs at most, its deadline in seconds since 1970); inf: nothing states it."""
    pod = cluster.pods.get(request.uid)
    deadline = None if pod is None else ends_at(pod, cluster.gangs.objects)
    return inf if request.lasts is None else request.lasts, inf if deadline is None else deadline


def _amounts(held: Held) -> Amounts:
    amounts: Amounts = {}
    for seat in held.seats:
        before = amounts.get(seat.node)
        amounts[seat.node] = seat.amounts if before is None else tuple(map(add, before, seat.amounts))
    return amounts


def _beyond(amounts: tuple[int, ...], others: tuple[int, ...]) -> tuple[int, ...]:
    return tuple([max(0, amount - other) for amount, other in zip(amounts, others, strict=True)])


def present(held: Held, cluster: ClusterView) -> list[PodRecord]:
    """The pods that use its seats."""
    return list(users(held, sorted({seat.node for seat in held.seats}), cluster))


def users(held: Held, nodes: Iterable[str], cluster: ClusterView) -> Iterator[PodRecord]:
    """The pods with GPUs on these nodes that it is for, and that have not started before it did."""
    return (pod for node in nodes for pod in cluster.pods_on(node) if _uses(pod, held, cluster))


def _uses(pod: PodRecord, held: Held, cluster: ClusterView) -> bool:
    if pod.start is not None and pod.start < held.since - CLOCK_SECONDS:
        return False
    owner = owner_key(pod) if held.owner else ""
    return held.is_for(pod.uid, pod.namespace, owner) and cluster.gpu_amount(pod) > 0
