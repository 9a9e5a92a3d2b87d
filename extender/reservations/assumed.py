"""Assumed pods: answered or bound by us, not yet seen in the watch.

Between our answer and the watch (or the bind call) that shows where the pod went, the node that it most likely takes
counts as taken, for a few seconds at most. kube-scheduler may have thrown the answer away, so it expires by itself.
Once bind has asked for the Binding it is no guess any more: it lasts until the watch shows the pod, a minute at most.

While the API server is silent an assumed pod still counts against pods that require links. It may be bound, on GPUs
that are not known, and the watch could not have shown it. For other pods kube-scheduler's own count is enough.

Attempts, what a pod's latest filter call answered, matter while kube-scheduler may ask about the same pod again. Beyond
MOST_ATTEMPTS, or MOST_NAMES, the oldest are forgotten: the next filter call of such a pod counts as its first.

The `Journal` hears of each change of this store and of the others of the package.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

import msgspec

from extender.cluster.tables import OtherAmounts
from extender.policy.contracts import PodRequest

BOUND_SECONDS = 60.0  # a watch that is behind for longer makes us not ready (extender.web.health)
UNHEARD_SECONDS = 60.0  # how much longer an assumed pod lasts at most while the API server is silent

StoreChange = Literal["reserve", "release", "forget", "seat", "unseat", "advance"]


class Journal:
    """Hears of each change. This one keeps nothing."""

    def changed(self, change: StoreChange, *values: Any) -> None:
        """A store is about to change. `values`: the arguments of the store's method."""

    def sweeps(self, now: float) -> None:
        """What is reserved is about to be looked through for what is over: it may end, and its victims are seen to be
        gone."""


SILENT: Final = Journal()


class AssumedPod(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What is assumed of one pod."""

    uid: str
    priority: int
    node: str
    amounts: tuple[int, ...]  # R
    gpus: int  # the mask that it will probably take
    until: float  # seconds on the caller's clock
    bound: bool = False  # bind asked for it, so that the pod is nowhere else
    others: OtherAmounts = ()  # of other resources, as its request states them


class AssumedPods:
    """The pods that are assumed, by uid, oldest first. Time comes in as an argument."""

    def __init__(self, seconds: float, freshness: Freshness | None = None) -> None:
        """`seconds`: how long a pod is assumed that bind has not been asked for; 0: not at all."""
        self._seconds = seconds
        self._freshness = freshness or Freshness()
        self._pods: dict[str, AssumedPod] = {}
        self.journal: Journal = SILENT

    def assume(
        self, request: PodRequest, node: str, amounts: tuple[int, ...], gpus: int, now: float, *, bound: bool = False
    ) -> None:
        """Assume that the pod goes to the node; what was assumed of it before is forgotten. `amounts`: R amounts
        that it counts with, its own or more."""
        uid = request.uid
        self._pods.pop(uid, None)  # the youngest stands last
        seconds = BOUND_SECONDS if bound else self._seconds
        if not seconds:  # the settings turn it off: silence of the API server does not turn it on
            return
        self._pods[uid] = AssumedPod(uid, request.priority, node, amounts, gpus, now + seconds, bound, request.others)

    def unconfirmed(self, uid: str, now: float) -> None:
        """The outcome of the Binding is not known: if the pod is bound, the watch shows it soon."""
        pod = self._pods.get(uid)
        if pod is not None:
            self._pods[uid] = msgspec.structs.replace(pod, until=min(pod.until, now + self._seconds))

    def forget(self, uid: str) -> None:
        """The pod is seen, or will not come."""
        if uid in self._pods:
            self.journal.changed("forget", uid)
            del self._pods[uid]

    @property
    def kept(self) -> list[AssumedPod]:
        """All that are remembered, oldest first: also those that only silence of the API server keeps."""
        return list(self._pods.values())

    def restore(self, pods: Iterable[AssumedPod]) -> None:
        """Remember these and no others."""
        self._pods = {pod.uid: pod for pod in pods}

    def current(self, now: float, *, unheard: bool = False) -> list[AssumedPod]:
        """Those that still count, oldest first; `unheard`: with those that only silence of the API server keeps."""
        if not self._pods:
            return []
        known = self._freshness.known_at()
        oldest = now if known is None else min(now, max(known, now - UNHEARD_SECONDS))
        for uid in [uid for uid, pod in self._pods.items() if pod.until <= oldest]:
            del self._pods[uid]
        return [pod for pod in self._pods.values() if unheard or pod.until > now]

    def get(self, uid: str, now: float) -> AssumedPod | None:
        """The pod, while it counts."""
        pod = self._pods.get(uid)
        return pod if pod is not None and pod.until > now else None

    def count(self, now: float) -> int:
        """How many count."""
        return sum(pod.until > now for pod in self._pods.values())


# -- attempts: what a pod's latest filter call answered --------------------------------------------------------------

MOST_ATTEMPTS: Final = 50_000
MOST_NAMES: Final = 2_000_000  # names of nodes in all attempts together


class Attempt(msgspec.Struct, gc=False):
    """A pod's latest filter call."""

    first: float  # when its first call came
    at: float
    links_only: tuple[str, ...] = ()  # nodes rejected for links alone
    transient: bool = False  # whether a node was rejected with a transient reason
    since: float | None = None  # when that has been so without a pause
    left_out: bool = False  # whether feasible nodes were left out of the shortlist
    left: bool = False  # whether this call, or one before, left nodes to preemptors of lower priorities
    evicts_on: str | None = None  # the only node on which pods may be evicted for it, "" = none; None = on any
    previous: Attempt | None = None  # the attempt before, without its own


@dataclass(slots=True)
class Attempts:
    """The latest attempt of each pod, for `seconds`. Time comes in as an argument."""

    seconds: float = 300.0
    _of: OrderedDict[str, Attempt] = field(default_factory=OrderedDict)  # a dict finds its first entry ever later
    _names: int = 0

    def of(self, uid: str, now: float) -> Attempt | None:
        """The pod's latest filter call, when it was at most `seconds` ago."""
        attempt = self._of.get(uid)
        return attempt if attempt is not None and now - attempt.at <= self.seconds else None

    def before(self, uid: str, now: float, *, again: bool = False) -> Attempt | None:
        """The attempt before a filter call at `now`. `again`: the call is a second look of the latest attempt, and the
        same attempt as that."""
        attempt = self.of(uid, now)
        return attempt.previous if again and attempt is not None else attempt

    def record(
        self, uid: str, now: float, links_only: tuple[str, ...] = (), transient: bool = False, *, again: bool = False
    ) -> Attempt:
        """Remember a filter call; those that are too old are forgotten. `again`: as `before`."""
        before = self.before(uid, now, again=again)
        self._forget(uid)  # the youngest stay at the end
        attempt = Attempt(before.first if before else now, now, links_only, transient, previous=before)
        if before is not None:
            before.previous = None
        if transient:
            attempt.since = before.since if before is not None and before.since is not None else now
        self._of[uid] = attempt
        self._names += len(links_only)
        while len(self._of) > 1:
            eldest = next(iter(self._of))
            many = len(self._of) > MOST_ATTEMPTS or self._names > MOST_NAMES
            if not many and now - self._of[eldest].at <= self.seconds:
                break
            self._forget(eldest)
        return attempt

    @property
    def kept(self) -> list[tuple[str, Attempt]]:
        """The latest attempt of each pod by its uid, oldest first."""
        return list(self._of.items())

    def restore(self, attempts: Iterable[tuple[str, Attempt]]) -> None:
        """Remember these and no others."""
        self._of = OrderedDict(attempts)
        self._names = sum(len(attempt.links_only) for attempt in self._of.values())

    def _forget(self, uid: str) -> None:
        attempt = self._of.pop(uid, None)
        if attempt is not None:
            self._names -= len(attempt.links_only)


# -- how far the view of the cluster may be behind -------------------------------------------------------------------


class Staleness(NamedTuple):
    """How far the view of the cluster may be behind."""

    stale: bool
    """The API server is silent for too long."""
    known_at: float | None
    """Until when all that happened to pods is known; None: it always is."""


class Freshness:
    """Owned by the server, which reports what changes; claims and verbs read it. Without a server (a file, a test) the
    view is always fresh and the process has always been up. All times are on the server's monotonic clock."""

    def __init__(
        self,
        dark: Callable[[], float] = lambda: 0.0,
        known_at: Callable[[], float | None] = lambda: None,
        staleness_seconds: float = math.inf,
    ) -> None:
        """`dark`: seconds since pods or nodes were watched for the last time; `known_at`: until when all that happened
        to pods is known, None: it always is; `staleness_seconds`: from when on the view is stale."""
        self._dark, self._known_at, self._staleness = dark, known_at, staleness_seconds
        self.fixed: Staleness | None = None
        """What holds until it is None again: a call that is recorded sees one view from its begin to its end."""
        self.counted = False
        """kube-scheduler counts GPUs too: a node that it names and we find too full shows that we are behind."""
        self.yields_until = -math.inf
        """Just after a start, waiting pods of a higher priority come first."""
        self.settled_at = -math.inf
        """Until then the watch may not show all pods that were answered before a restart."""
        self.up_since = -math.inf
        """When this process could answer first, and a preemptor could use its reserved GPUs again."""

    @property
    def view(self) -> Staleness:
        """How far the view is behind now."""
        return Staleness(self._dark() >= self._staleness, self._known_at())

    def stale(self) -> bool:
        """Whether the API server is silent for longer than `staleness_seconds`."""
        return self._dark() >= self._staleness if self.fixed is None else self.fixed.stale

    def known_at(self) -> float | None:
        """Until when all that happened to pods is known, None: it always is."""
        return self._known_at() if self.fixed is None else self.fixed.known_at

    def started(self, at: float, *, yield_seconds: float, settle_seconds: float) -> None:
        """All lists were in at `at`, for the first time, beside a kube-scheduler. For `yield_seconds` waiting pods of a
        higher priority come first; for `settle_seconds` the watch may not show all that were answered before."""
        self.counted = True
        self.yields_until = at + yield_seconds
        self.settled_at = at + settle_seconds

    def reservations_read(self, at: float) -> None:
        """The reservations of before the start have been read and judged."""
        self.up_since = at
