"""Why a gang ran too few pods, or waited with room: what the test did, and for which of the seconds that is an excuse.

These are the excuses, each for its own time:

- the API server is away: until it is back. The seconds that a gang is allowed begin anew then;
- kube-scheduler is not back: after an outage of the API server, until it tries a pod that does not concern us. It binds
  no pod meanwhile, so this excuses a gang that runs too few pods; it excuses no closed gate;
- a user deleted a member: from the deletion until the pod that replaces it is bound, for that gang alone. A gang that
  no controller completes again cannot exist any more;
- no place exists after a node or a seat was lost: while the pods that the gang lacks do not exist, or have no room.

A gate has no excuse but the API server, and an instance that acts: after the holder of the Lease was killed, or its
Lease was stolen, another one may take TAKEOVER_SECONDS. What it takes longer is no excuse.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from extender.act.queue.controller import LEASE_SECONDS
from extender.kube.own_objects import RETRY
from tests.e2e.queue_accounts import Below, Closed, Span
from tests.e2e.queue_record import Change, Holder, Pod

AWAY, DELETED, DOOMED = "API server away", "member deleted", "gang doomed"
UNSCHEDULED = "kube-scheduler not back"
KILLED = "server killed"
LOST = ("node lost", "node cordoned", "foreign pod")
NO_API, NO_MEMBER, NO_PLACE = "the API server was away", "a member was deleted", "no place after a lost node or seat"
NO_SCHEDULER = "kube-scheduler was not back after that"
HOLDER_KILLED, LEASE_STOLEN = "the holder of the Lease was killed", "the Lease was stolen or given back"


def takeover_seconds(lease_seconds: float) -> float:
    """The Lease runs out as the next holder has seen it; then it takes the Lease, and reads what is stored."""
    return lease_seconds * (1 + RETRY) + 0.6


TAKEOVER_SECONDS = takeover_seconds(LEASE_SECONDS)
UNEXPLAINED = "unexplained"


class Done(NamedTuple):
    """What the test did. `what`: a gang, a node, the process id of a server, or ""."""

    kind: str
    what: str
    since: float
    until: float


@dataclass
class Disturbances:
    """All that the test did."""

    done: list[Done] = field(default_factory=list)

    def add(self, kind: str, what: str = "", seconds: float = 0.0) -> None:
        """It was done just now, and lasted so long."""
        now = time.time()
        self.done.append(Done(kind, what, now - seconds, now))

    def counts(self) -> Counter[str]:
        """How often each was done."""
        return Counter(one.kind for one in self.done)

    def spans(self, kind: str) -> list[Span]:
        """When this was done."""
        return [Span(one.since, one.until) for one in self.done if one.kind == kind]


class Explained(NamedTuple):
    """`cause`: what excuses most of the time, UNEXPLAINED where something is left; `left`: the most seconds between two
    outages of the API server that nothing excuses; `seconds`: by excuse, how long it held."""

    cause: str
    left: float
    seconds: Mapping[str, float]


class Causes:
    """Explains with what the test did, and with what became of the pods."""

    def __init__(self, disturbances: Disturbances, changes: Iterable[Change]) -> None:
        self._done = disturbances
        self._bound: dict[str, list[tuple[float, float]]] = {}  # gang -> (first seen, bound) of its pods
        self.unheld: list[tuple[str, Span]] = []
        """When no live instance held the Lease, and why."""
        self._read(sorted(changes, key=lambda change: change.at))

    def of(self, one: Below, allowed: float) -> Explained:
        """Why the gang ran too few pods. `allowed`: seconds without an excuse."""
        outages = {NO_API: self._done.spans(AWAY), NO_SCHEDULER: self._done.spans(UNSCHEDULED)}
        excuses = {NO_MEMBER: self._replacing(one.gang), NO_PLACE: self._no_place(one)}
        return _explained(Span(one.since, one.until), outages, excuses, allowed)

    def closed(self, one: Closed, allowed: float) -> Explained:
        """Why the gates of a gang stayed closed that was first and had room. `allowed`: seconds without an excuse."""
        excuses = self.takeovers(TAKEOVER_SECONDS)
        return _explained(Span(one.since, one.until), {NO_API: self._done.spans(AWAY)}, excuses, allowed)

    def takeovers(self, most_seconds: float) -> dict[str, list[Span]]:
        """By cause, when another instance was about to take the Lease: so many seconds at most each time."""
        found: dict[str, list[Span]] = {HOLDER_KILLED: [], LEASE_STOLEN: []}
        for cause, span in self.unheld:
            found[cause].append(Span(span.since, min(span.until, span.since + most_seconds)))
        return found

    def _replacing(self, gang: str) -> list[Span]:
        """While a member that a user deleted was not replaced."""
        found: list[Span] = []
        for one in self._done.done:
            if one.what != gang or one.kind not in (DELETED, DOOMED):
                continue
            replaced = (
                [] if one.kind == DOOMED else [bound for seen, bound in self._bound.get(gang, ()) if seen > one.since]
            )
            found.append(Span(one.since, min(replaced, default=inf)))
        return found

    def _no_place(self, one: Below) -> list[Span]:
        """While the gang was stuck, from the first loss on."""
        lost = [done.since for done in self._done.done if done.kind in LOST and done.until > one.since]
        first = min(lost, default=inf)
        return [Span(max(span.since, first), span.until) for span in one.stuck if span.until > first]

    def _read(self, changes: Sequence[Change]) -> None:
        seen: dict[str, tuple[str, float, float]] = {}
        killed = {one.what: one.until for one in self._done.done if one.kind == KILLED}
        holder, since = "", changes[0].at if changes else inf
        for change in changes:
            what = change.what
            if isinstance(what, Pod) and not change.gone:
                _, first, bound = seen.get(what.uid, ("", change.at, inf))
                seen[what.uid] = what.gang, first, min(bound, change.at) if what.node else bound
            elif isinstance(what, Holder) and what.name != holder:
                self._not_held(holder, Span(since, change.at), killed)
                holder, since = what.name, change.at
        self._not_held(holder, Span(since, inf), killed)
        for gang, first, bound in seen.values():
            self._bound.setdefault(gang, []).append((first, bound))

    def _not_held(self, holder: str, span: Span, killed: dict[str, float]) -> None:
        """Note when the holder of this time did not live. Identities are HOST_PID_RANDOM."""
        parts = holder.split("_")
        if len(parts) != 3:
            self.unheld.append((LEASE_STOLEN, span))
        elif killed.get(parts[1], inf) < span.until:
            self.unheld.append((HOLDER_KILLED, Span(max(span.since, killed[parts[1]]), span.until)))


def _explained(
    whole: Span, outages: Mapping[str, Sequence[Span]], excuses: Mapping[str, Sequence[Span]], allowed: float
) -> Explained:
    """`outages`: after each of them the allowed seconds begin anew."""
    every = {**outages, **excuses}
    cuts = [span for spans in outages.values() for span in spans]
    others = [span for spans in excuses.values() for span in spans]
    left = max(_uncovered(part, others) for part in _between(whole, cuts))
    seconds = {cause: covered(whole, spans) for cause, spans in every.items()}
    cause = UNEXPLAINED if left > allowed else max(every, key=lambda one: seconds[one])
    return Explained(cause, left, seconds)


def _between(whole: Span, cuts: Iterable[Span]) -> list[Span]:
    """What is left of a span without the cuts; one of no length where nothing is."""
    parts = [whole]
    for cut in cuts:
        parts = [
            Span(*piece)
            for part in parts
            for piece in ((part.since, min(part.until, cut.since)), (max(part.since, cut.until), part.until))
            if piece[0] < piece[1]
        ]
    return parts or [Span(whole.since, whole.since)]


def _uncovered(whole: Span, excuses: Iterable[Span]) -> float:
    return sum(part.until - part.since for part in _between(whole, excuses))


def covered(whole: Span, excuses: Iterable[Span]) -> float:
    """How many seconds of a span are within these, which may overlap."""
    return whole.until - whole.since - _uncovered(whole, excuses)
