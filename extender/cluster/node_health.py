"""Nodes on which GPU pods fail: how much each is doubted, and which are rejected for now.

A node whose GPU pods fail at kubelet's admission, or die (or their containers do) within a minute of being bound, looks
the emptiest of all and draws the next pod, and the next. So each failure is doubt that halves every five minutes; three
within ten minutes (settings: failingNodes) reject the node: for the pods of one namespace, or for all
(extender.cluster.pod_failures). Whose failure it is, kubelet's report says (extender.objects.pods).

A GPU pod that started after the latest failure and still runs a minute later, or is seen to have run to its end, clears
its own namespace's failures on the node, and those that kubelet reports: a device was handed to it. It does not clear
the container runtime's errors with pods of others, since its own `env` may ask the runtime for no GPU; nor does it
clear what is held against other namespaces, whose pods may fail for a reason of their own: that counts for all no more.
Removing the node, and uncordoning it, clears everything.

Not the node's fault: a pod that was deleted or evicted, and a workload whose pods die on two nodes.

Nothing here reads a clock. `now` is seconds on the server's clock; `wall`, seconds since 1970, is only compared with
the pods' own times, so that what is listed after a restart counts with its age. Without it the past is unknown and
does not count.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, get_args

from extender.cluster import pod_failures
from extender.cluster.listener import Faults, Listener
from extender.cluster.nodes import NodeRows
from extender.cluster.pod_failures import (
    Failure,
    FailureLimits,
    Failures,
    NodeRejections,
    Party,
    RejectionChange,
    Standing,
    What,
)
from extender.cluster.tables import Tables
from extender.log import get_log
from extender.objects.records import PodRecord

SOUND_SECONDS: Final = 60.0  # one that runs for so long has shown that the node works
REMEMBERED_SECONDS: Final = 1800.0
FADE_SECONDS: Final = 5.0  # doubt is written anew so often: it loses 1.2 % meanwhile
FADED_AT_ONCE: Final = 64  # nodes
MOST_JUDGED: Final = 50_000  # pods that have ended, and are remembered so that each counts once
MOST_BLAMED: Final = 5_000


@dataclass(slots=True)
class _Start:
    """A pod that has not shown yet whether it lives. Times on the server's clock."""

    node: str
    namespace: str
    bound: float
    running: float | None = None

    def sound(self, now: float) -> bool:
        """Whether it has run for so long that the node works."""
        return self.running is not None and now - self.running >= SOUND_SECONDS


@dataclass(slots=True, kw_only=True)
class HealthMemory:
    """What was seen so far. It follows from nothing else, so a record has all of it."""

    _failures: Failures = field(default_factory=Failures)
    _starts: dict[str, _Start] = field(default_factory=dict)
    _running: list[tuple[float, str]] = field(default_factory=list)  # (when it has run long enough, uid), a heap
    _expiring: list[tuple[float, str]] = field(default_factory=list)  # (when a failure leaves the window, node), a heap
    # Each in the order of the times:
    _left: dict[str, tuple[float, _Start | None]] = field(default_factory=dict)  # pods that are gone since a moment
    _judged: dict[str, tuple[float, None]] = field(default_factory=dict)  # uids of ended pods -> when we heard of it
    _blamed: dict[tuple[str, str], tuple[float, None]] = field(default_factory=dict)  # workload that dies anywhere
    _faded: float = float("-inf")
    _fading: list[str] = field(default_factory=list)  # nodes whose turn is to come
    _ticked: float = 0.0


@dataclass(slots=True)
class NodeHealth(HealthMemory):
    """Fed with every change of a GPU pod; `stale` has the nodes whose doubt must be written anew; `verdicts`: for which
    pods each node is rejected."""

    limits: FailureLimits = field(default_factory=FailureLimits)
    reject: pod_failures.Reject = "all"
    stale: set[str] = field(default_factory=set)
    verdicts: NodeRejections = field(init=False)
    counts: dict[What, int] = field(default_factory=lambda: dict.fromkeys(get_args(What), 0))  # since the start

    def __post_init__(self) -> None:
        self._failures.limits = self.limits
        self.verdicts = NodeRejections(self._failures, self.reject)

    def __len__(self) -> int:
        """How many failures are remembered."""
        return len(self._failures)

    # -- what is read ---------------------------------------------------------------------------------------------

    def doubt(self, node: str, now: float, namespace: str = "") -> float:
        """The failures that count for all, and for a namespace's pods if one is named, each counted half as much every
        five minutes; 0.0 for none to speak of."""
        return pod_failures.doubt(self._failures.counting(node, now, namespace), now)

    def failing(self, node: str, now: float, namespace: str = "") -> bool:
        """Whether the node is rejected for all pods, or for a namespace's if one is named."""
        if self.reject == "none" or (self.reject == "namespace" and not namespace):
            return False
        return self._failures.enough(self._failures.counting(node, now, namespace), now)

    def failures(self, node: str) -> tuple[Failure, ...]:
        """What is remembered of a node, oldest first."""
        return tuple(self._failures.on(node))

    def failures_for(self, node: str, namespace: str) -> tuple[Failure, ...]:
        """What counts for a namespace's pods on a node as of the latest tick, oldest first; KEPT at most."""
        if node not in self._failures.nodes():  # nearly all: a decision may tell of thousands
            return ()
        return tuple(self._failures.counting(node, self._ticked, namespace)[-pod_failures.KEPT :])

    def refused(self) -> list[str]:
        """The nodes that are rejected for all pods now, by name."""
        return self.verdicts.refused()

    def left_lately(self, uid: str) -> bool:
        """Whether the pod, which had GPUs, is gone since a moment."""
        return uid in self._left

    # -- what is written ------------------------------------------------------------------------------------------

    def pod(self, pod: PodRecord, before: PodRecord | None, now: float, wall: float | None = None) -> None:
        """A pod that has, or had, GPUs is new or has changed; `before`: what was known of it."""
        if not pod.node:
            return
        if pod.finished:
            if pod.uid not in self._judged:
                self._judged[pod.uid] = (now, None)
                self._ended(pod, before, now, wall)
            self._starts.pop(pod.uid, None)
            return
        if pod.fault == "runtime":  # it does not start, however long ago it was bound
            self._starts.pop(pod.uid, None)
            if pod.uid not in self._judged and not pod.terminating:
                self._judged[pod.uid] = (now, None)
                self._add(pod, now, "runtime", now)
            return
        if pod.restarts:  # it runs, and does not live
            start = self._starts.pop(pod.uid, None)
            if start is not None and pod.uid not in self._judged and not pod.terminating:
                self._judged[pod.uid] = (now, None)
                if now - start.bound <= pod_failures.YOUNG_SECONDS:
                    self._add(pod, now, "died", now)
            return
        self._lives(pod, before, now, wall)

    def _lives(self, pod: PodRecord, before: PodRecord | None, now: float, wall: float | None) -> None:
        age = None if wall is None or pod.start is None else max(0.0, wall - pod.start)
        start = self._starts.get(pod.uid)
        if start is None:
            if before is not None and before.node:  # it has shown already that it lives
                return
            running = pod.phase == "Running"
            if before is None and running and age is None:  # since when is unknown
                return
            bound = now if before is not None or age is None else now - age
            start = self._starts[pod.uid] = _Start(pod.node, pod.namespace, bound)
            if running:
                _runs(self._running, pod.uid, start, bound)
        elif pod.phase == "Running" and start.running is None:
            _runs(self._running, pod.uid, start, now)

    def gone(self, pod: PodRecord, now: float) -> None:
        """The pod is deleted, which states nothing about the node; or has ended, and how is reported in a moment."""
        start = self._starts.pop(pod.uid, None)
        if start is not None and start.sound(now):
            self._clear(start)
        self._left.pop(pod.uid, None)
        self._left[pod.uid] = (now, start)

    def forget(self, node: str) -> None:
        """The node is new, or an administrator declares it healthy."""
        if self._failures.forget(node):
            self.stale.add(node)

    def came(self, node: str) -> None:
        """The node is known from now on; its pods may have failed before."""
        if node in self._failures.nodes():
            self.stale.add(node)
            self.verdicts.touch(node)

    def tick(self, now: float) -> list[RejectionChange]:
        """Let time pass: doubt fades, pods that run for a minute clear their node. The changes since the last call."""
        self._ticked = now
        while self._running and self._running[0][0] <= now:
            _, uid = heapq.heappop(self._running)
            start = self._starts.get(uid)
            if start is not None and start.sound(now):
                del self._starts[uid]
                self._clear(start)
        while self._expiring and self._expiring[0][0] <= now:
            self.stale.add(heapq.heappop(self._expiring)[1])
        if self._fading or not 0.0 <= now - self._faded < FADE_SECONDS:
            self._fade(now)
        changes: list[RejectionChange] = []
        for node in sorted(self.stale):
            changes += self.verdicts.weigh(node, now)
        return changes

    def _fade(self, now: float) -> None:
        """Every few seconds all nodes' doubt is brought up to date, some nodes a call: none may take long."""
        if not self._fading:
            self._faded = now
            _trim(self._judged, now - REMEMBERED_SECONDS, MOST_JUDGED)
            _trim(self._blamed, now - REMEMBERED_SECONDS, MOST_BLAMED)
            _trim(self._left, now - pod_failures.YOUNG_SECONDS, MOST_JUDGED)
            self._fading = list(self._failures.nodes())
        for node in self._fading[-FADED_AT_ONCE:]:
            self._failures.fade(node, now)
            self.stale.add(node)
        del self._fading[-FADED_AT_ONCE:]

    def _clear(self, start: _Start) -> None:
        if start.running is not None and self._failures.sound(start.node, start.namespace, start.running):
            self.stale.add(start.node)

    def _ended(self, pod: PodRecord, before: PodRecord | None, now: float, wall: float | None) -> None:
        start = self._starts.get(pod.uid) or self._left.get(pod.uid, (now, None))[1]
        alive = before is not None or self.left_lately(pod.uid)  # we have seen it before it ended
        if pod.phase == "Succeeded":
            if start is not None:
                since = start.running if start.running is not None else now
                self._clear(_Start(start.node, start.namespace, start.bound, since))
            return
        if pod.phase != "Failed" or pod.terminating or pod.disruption_target:
            return
        if pod.fault:
            if alive:
                self._add(pod, now, pod.fault, now)
            elif wall is not None and pod.start is not None:  # listed after it failed: its start is when that was
                self._add(pod, now - max(0.0, wall - pod.start), pod.fault, now)
        elif (bound := _bound(pod, before, start, now, wall)) is not None and now - bound <= pod_failures.YOUNG_SECONDS:
            self._add(pod, now, "died", now)

    def _add(self, pod: PodRecord, at: float, what: What, now: float) -> None:
        if now - at > REMEMBERED_SECONDS:
            return
        party = party_of(pod)
        if what == "died" and self._dies_anywhere(pod.node, party, now):
            return
        self.counts[what] += 1
        self.stale |= self._failures.add(pod.node, Failure(at, pod.uid, pod.name, party, what))
        heapq.heappush(self._expiring, (at + self.limits.window, pod.node))
        while len(self._expiring) > MOST_JUDGED:  # to look at a node too early changes nothing
            self.stale.add(heapq.heappop(self._expiring)[1])

    def _dies_anywhere(self, node: str, party: Party, now: float) -> bool:
        """Whether the workload's pods die wherever they run: then its deaths are no node's fault. It is one of its
        namespace: a pod may name any owner."""
        key = (party.namespace, party.owner)
        if key in self._blamed:
            return True
        failures = self._failures
        others = [
            other
            for other in failures.nodes_of(party.namespace)
            if other != node and any(_is_of(failure, party.owner) for failure in failures.held(other, party.namespace))
        ]
        if not others:
            return False
        self._blamed[key] = (now, None)
        for other in [*others, node]:
            if failures.keep(other, party.namespace, lambda failure: not _is_of(failure, party.owner)):
                self.stale.add(other)
        return True


def _bound(
    pod: PodRecord, before: PodRecord | None, start: _Start | None, now: float, wall: float | None
) -> float | None:
    """When a pod that has ended was bound; None: that is not known. Of one that waited as far as we know, the watch of
    failed pods is ahead of the one that brings its binding: kubelet says when it started, or it is bound just now."""
    if start is not None:
        return start.bound
    if before is None or before.node:
        return None
    return now if wall is None or pod.start is None else now - max(0.0, wall - pod.start)


def _runs(running: list[tuple[float, str]], uid: str, start: _Start, since: float) -> None:
    """Note in the heap `running` that a pod runs since then."""
    start.running = since
    heapq.heappush(running, (since + SOUND_SECONDS, uid))


def party_of(pod: PodRecord) -> Party:
    """Whose pod it is. One without an owner is its own."""
    owner = pod.owner.identity if pod.owner is not None else pod.uid
    return Party(pod.namespace, owner, frozenset(pod.images), pod.service_account)


def _is_of(failure: Failure, owner: str) -> bool:
    return failure.what == "died" and failure.party.owner == owner


def _trim(table: dict[Any, tuple[float, Any]], before: float, most: int) -> None:
    """Drop what is older, and the first of what is too much."""
    extra = len(table) - most
    old: list[Any] = []
    for key, (at, _) in table.items():
        if at >= before and len(old) >= extra:
            break
        old.append(key)
    for key in old:
        del table[key]


# -- columns of the tables ---------------------------------------------------------------------------------------------


log = get_log()


class HealthColumns:
    """Writes the health of the nodes on which pods failed lately, and calls the listeners for each change."""

    def __init__(
        self, health: NodeHealth, tables: Tables, rows: NodeRows, listeners: Sequence[Listener], faults: Faults
    ) -> None:
        self._health, self._tables, self._rows = health, tables, rows
        self._listeners, self._faults = listeners, faults

    def write(self, now: float) -> bool:
        """Write what has changed; whether a node is rejected from now on, or accepted again."""
        health = self._health
        changes = health.tick(now)
        for change in changes:
            self._announce(change, now)
        for name in health.stale:
            row = self._rows.row(name)
            if row >= 0:
                self._tables.places.set_health(row, health.doubt(name, now), health.failing(name, now))
        health.stale.clear()
        for namespace in health.verdicts.stale_tenants:
            self._write_standings(namespace)
        health.verdicts.stale_tenants.clear()
        return bool(changes)

    def _announce(self, change: RejectionChange, now: float) -> None:
        if change.namespace:  # one tenant's own doing: reported to that tenant, and as information here
            log.info(
                "a node is rejected for a namespace" if change.refused else "a node is open to a namespace again",
                node=change.node,
                namespace=change.namespace,
                why=change.text,
            )
        else:
            log.warning(
                "a node is refused" if change.refused else "a node is trusted again", node=change.node, why=change.text
            )
        for listener in self._listeners:
            try:
                _call(listener, change)
            except Exception as error:
                self._faults.note("Node", change.node, error, now)

    def _write_standings(self, namespace: str) -> None:
        """What counts for one namespace's pods alone: a short list, by row."""
        self._set_own(namespace, self._health.verdicts.standings(namespace))

    def _set_own(self, namespace: str, held: Mapping[str, Standing]) -> None:
        rows = {row: standing for name, standing in held.items() if (row := self._rows.row(name)) >= 0}
        known = sorted(rows.items(), key=lambda pair: pair[0])
        self._tables.places.set_own(
            namespace,
            [row for row, _ in known],
            [standing.doubt for _, standing in known],
            [int(standing.rejected) for _, standing in known],
        )


def _call(listener: Listener, change: RejectionChange) -> None:
    if not change.namespace:
        (listener.node_rejected if change.refused else listener.node_accepted)(change.node, change.text)
    elif change.refused:
        listener.node_rejected_for(change)
