"""What became of gangs behind our gate, by the watch of the API server alone: which ran too few pods, and for how long.

`judge` replays the changes that a `Record` kept. The nodes and the pods of a gang are plain (one size of node, one size
of pod, no selectors), so whether a gang fits is a matter of counting. `queue_causes` then states what excuses a gang.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.e2e.queue_record import Change, Holder, Node, Owner, Pod

BELOW_SECONDS = 10.0
CLOSED_SECONDS = 5.0


class Span(NamedTuple):
    """From when until when, seconds since 1970."""

    since: float
    until: float


class Gang(NamedTuple):
    """`pods` of `gpus` each."""

    name: str
    pods: int
    gpus: int


@dataclass
class Cluster:
    """The state at one moment of the replay."""

    gangs: Mapping[str, Gang]
    pods: dict[str, Pod] = field(default_factory=dict)
    nodes: dict[str, int] = field(default_factory=dict)
    of: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    done: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # pods that succeeded, by gang
    first: dict[str, int] = field(default_factory=dict)  # gang -> the number of its first pod's event
    stated: dict[str, int] = field(default_factory=dict)  # gang -> pods that succeeded, as its Job states

    def take(self, change: Change) -> None:
        what = change.what
        if isinstance(what, Holder):
            return
        if isinstance(what, Owner):
            self.stated[what.gang] = what.succeeded
            return
        if isinstance(what, Node):
            self.nodes.pop(what.name, None)
            if not change.gone:
                self.nodes[what.name] = what.gpus
            return
        before = self.pods.pop(what.uid, None)
        self.of[what.gang].discard(what.uid)
        if what.succeeded and (before is not None):
            self.done[what.gang] += 1
        if not change.gone and not what.over:
            self.first.setdefault(what.gang, len(self.first))
            self.pods[what.uid] = what
            self.of[what.gang].add(what.uid)

    def members(self, gang: str) -> list[Pod]:
        """Its pods that hold something or wait."""
        return [self.pods[uid] for uid in self.of[gang]]

    def missing(self, gang: Gang) -> int:
        """How many pods it is below its minimum; 0 while none of its pods is released."""
        there = self.members(gang.name)
        if not any(pod.node or not pod.gated for pod in there if not pod.leaving):
            return 0
        bound = sum(bool(pod.node) and not pod.leaving for pod in there)
        return max(0, gang.pods - self.done[gang.name] - bound)

    def fits(self, gang: Gang) -> bool:
        """Whether the pods that it lacks exist, and have room."""
        missing = self.missing(gang)
        there = sum(not pod.node and not pod.leaving for pod in self.members(gang.name))
        return there >= missing and self.room(gang) >= missing

    def room(self, gang: Gang) -> int:
        """How many more pods of the gang have room, by what bound pods hold and released ones are nominated for."""
        free = dict(self.nodes)
        for pod in self.pods.values():
            where = pod.node or ("" if pod.gated or pod.gang == gang.name else pod.nominated)
            if where in free:
                free[where] = 0 if not pod.gang else free[where] - pod.gpus
        return sum(max(0, count) // gang.gpus for count in free.values())

    def over(self, gang: str) -> int:
        """How many of its pods have succeeded, as far as its Job states it: the queue learns it from there."""
        return min(self.done[gang], self.stated.get(gang, self.done[gang]))

    def head(self) -> Gang | None:
        """The gang that is first in order, of those whose pods all exist: one that runs and lacks pods before the
        oldest."""
        found: list[tuple[bool, int, Gang]] = []
        for gang in self.gangs.values():
            there = [pod for pod in self.members(gang.name) if not pod.leaving]
            if any(pod.gated for pod in there) and len(there) + self.over(gang.name) >= gang.pods:
                started = any(pod.node or not pod.gated for pod in there) or self.done[gang.name] > 0
                found.append((not started, self.first[gang.name], gang))
        return min(found)[2] if found else None

    def planned_twice(self) -> Iterator[tuple[str, int, str, str]]:
        """(node, GPU, uid, uid) of the pods that are planned for one GPU."""
        seen: dict[tuple[str, int], str] = {}
        for pod in self.pods.values():
            where = pod.node or pod.nominated
            if where in self.nodes:
                for gpu in pod.planned:
                    other = seen.setdefault((where, gpu), pod.uid)
                    if other != pod.uid:
                        yield where, gpu, min(other, pod.uid), max(other, pod.uid)


class Below(NamedTuple):
    """A gang that ran too few pods, from when until when. `stuck`: while the pods that it lacked did not exist, or had
    no room."""

    gang: str
    since: float
    until: float
    stuck: tuple[Span, ...]


class Closed(NamedTuple):
    """All of a gang waited, was first in order, and there was room."""

    gang: str
    since: float
    until: float


@dataclass
class Account:
    """What `judge` finds. `twice`: (node, GPU, uid, uid) that two pods held, or stated, at one moment; `held`:
    GPU-seconds of pods in gangs that were below their minimum for longer than BELOW_SECONDS, from then on."""

    below: list[Below] = field(default_factory=list)
    closed: list[Closed] = field(default_factory=list)
    twice: set[tuple[str, int, str, str]] = field(default_factory=set)
    held: float = 0.0


class _Judge:
    """The replay."""

    def __init__(self, gangs: Iterable[Gang]) -> None:
        self.cluster = Cluster({gang.name: gang for gang in gangs})
        self.account = Account()
        self._before = 0.0
        self._below: dict[str, tuple[float, list[Span]]] = {}  # gang -> since when, and when it was stuck
        self._first: tuple[str, float] | None = None  # the gang that is first and has room, and since when

    def pass_time(self, now: float) -> None:
        """The state lasted until now."""
        for name, (since, stuck) in self._below.items():
            if not self.cluster.fits(self.cluster.gangs[name]):
                stuck.append(Span(self._before, now))
            if now - since > BELOW_SECONDS:
                held = sum(pod.gpus for pod in self.cluster.members(name) if pod.node)
                self.account.held += held * (now - max(self._before, since + BELOW_SECONDS))
        self._before = now

    def take(self, change: Change) -> None:
        """The state changes."""
        self.cluster.take(change)
        gang = self.cluster.gangs.get(change.what.gang) if isinstance(change.what, Pod) else None
        if gang is not None and self.cluster.missing(gang):
            self._below.setdefault(gang.name, (change.at, []))
        elif gang is not None:
            self._not_below(gang.name, change.at)
        head = self.cluster.head()
        waits = head is not None and self.cluster.room(head) >= sum(
            pod.gated for pod in self.cluster.members(head.name)
        )
        if self._first is not None and (head is None or not waits or head.name != self._first[0]):
            self._not_first(change.at)
        if waits and head is not None and self._first is None:
            self._first = head.name, change.at
        self.account.twice.update(self.cluster.planned_twice())

    def end(self, now: float) -> Account:
        """The record ends."""
        self.pass_time(now)
        for name in list(self._below):
            self._not_below(name, now)
        self._not_first(now)
        return self.account

    def _not_below(self, name: str, now: float) -> None:
        if name in self._below:
            since, stuck = self._below.pop(name)
            self.account.below.append(Below(name, since, now, tuple(stuck)))

    def _not_first(self, now: float) -> None:
        if self._first is not None:
            self.account.closed.append(Closed(*self._first, now))
            self._first = None


def judge(changes: Iterable[Change], gangs: Iterable[Gang], end: float) -> Account:
    """Replay the changes. `end`: of the record, seconds since 1970."""
    replay = _Judge(gangs)
    for change in sorted(changes, key=lambda change: change.at):
        replay.pass_time(change.at)
        replay.take(change)
    return replay.end(end)


def late_seconds(samples: Iterable[float]) -> float:
    """The sum of a counter that starts at 0 with each new process."""
    total = before = 0.0
    for value in samples:
        total += value - before if value >= before else value
        before = value
    return total
