"""Nodes on which GPU pods fail: how much each is doubted, and which are refused for now.

A node whose GPU pods fail at kubelet's admission, or die (or their containers do) within a minute of being bound, looks
the emptiest of all and draws the next pod, and the next. So each failure is doubt that halves every five minutes; three
within ten minutes refuse the node. A GPU pod that started after the latest failure and still runs a minute later, or is
seen to have run to its end, clears it; so do removing the node and uncordoning it.

Not the node's fault: a pod that somebody deleted or evicted, and a workload whose pods die on two nodes.

Nothing here reads a clock. `now` is seconds on the server's clock; `wall`, seconds since 1970, is only compared with
the pods' own times, so that what is listed after a restart counts with its age. Without it the past is unknown and
does not count.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from extender.records import PodRecord

ADMISSION = "UnexpectedAdmissionError"
YOUNG_SECONDS = 60.0  # a pod that dies sooner after its binding may have died of the node
SOUND_SECONDS = 60.0  # one that runs for so long has shown that the node works
HALF_LIFE_SECONDS = 300.0
WINDOW_SECONDS = 600.0
MOST_FAILURES = 3  # so many within the window refuse the node
LEAST_DOUBT = 0.1  # less than this is none: after 17 minutes for one failure
KEPT = 20  # failures of a node that are remembered
REMEMBERED_SECONDS = 1800.0

What = Literal["admission", "died"]


@dataclass(frozen=True, slots=True)
class Failure:
    """One pod that failed on a node. `at`: seconds on the server's clock; `workload`: its owner's uid, else its own."""

    at: float
    uid: str
    pod: str
    workload: str
    what: What


@dataclass(frozen=True, slots=True)
class Change:
    """A node is refused from now on, or no longer. `text`: one sentence for people."""

    node: str
    refused: bool
    text: str


@dataclass(slots=True)
class _Start:
    """A pod that has not shown yet whether it lives. Times on the server's clock."""

    node: str
    bound: float
    running: float | None = None


@dataclass(slots=True)
class Health:
    """Fed with every change of a GPU pod; `stale` has the nodes whose doubt must be written anew."""

    stale: set[str] = field(default_factory=set)
    counts: dict[What, int] = field(default_factory=lambda: {"admission": 0, "died": 0})  # since the start
    _failures: dict[str, list[Failure]] = field(default_factory=dict)
    _refused: set[str] = field(default_factory=set)
    _starts: dict[str, _Start] = field(default_factory=dict)
    _left: dict[str, tuple[float, _Start | None]] = field(default_factory=dict)  # pods that are gone since a moment
    _judged: dict[str, float] = field(default_factory=dict)  # uids of pods that have ended -> when we heard of it
    _blamed: dict[str, float] = field(default_factory=dict)  # workload whose pods die anywhere -> since when

    # -- what is read ---------------------------------------------------------------------------------------------

    def doubt(self, node: str, now: float) -> float:
        """The failures on the node, each counted half as much every five minutes; 0.0 for none to speak of."""
        total = sum(0.5 ** (max(0.0, now - one.at) / HALF_LIFE_SECONDS) for one in self._failures.get(node, ()))
        return total if total >= LEAST_DOUBT else 0.0

    def failing(self, node: str, now: float) -> bool:
        """Whether three pods failed there within ten minutes."""
        return sum(now - one.at < WINDOW_SECONDS for one in self._failures.get(node, ())) >= MOST_FAILURES

    def failures(self, node: str) -> tuple[Failure, ...]:
        """What is remembered of a node, oldest first."""
        return tuple(self._failures.get(node, ()))

    def refused(self) -> list[str]:
        """The nodes that are refused now, by name."""
        return sorted(self._refused)

    # -- what is written ------------------------------------------------------------------------------------------

    def pod(self, pod: PodRecord, before: PodRecord | None, now: float, wall: float | None = None) -> None:
        """A pod that asks for GPUs is new or has changed; `before`: what was known of it."""
        if not pod.node:
            return
        if pod.finished:
            if pod.uid not in self._judged:
                self._judged[pod.uid] = now
                self._ended(pod, before, now, wall)
            self._starts.pop(pod.uid, None)
            return
        if pod.restarts:  # it runs, and does not live
            start = self._starts.pop(pod.uid, None)
            if start is not None and pod.uid not in self._judged and not pod.terminating:
                self._judged[pod.uid] = now
                if now - start.bound <= YOUNG_SECONDS:
                    self._add(pod, now, "died", now)
            return
        age = None if wall is None or pod.start is None else max(0.0, wall - pod.start)
        start = self._starts.get(pod.uid)
        if start is None:
            if before is not None and before.node:  # it has shown already that it lives
                return
            running = pod.phase == "Running"
            if before is None and running and age is None:  # nobody knows since when
                return
            start = self._starts[pod.uid] = _Start(pod.node, now if before is not None or age is None else now - age)
            if running:
                start.running = start.bound
        elif pod.phase == "Running" and start.running is None:
            start.running = now

    def gone(self, pod: PodRecord, now: float) -> None:
        """The pod is deleted, which says nothing about the node; or has ended, and how is told in a moment."""
        start = self._starts.pop(pod.uid, None)
        if start is not None and self._sound(start, now):
            self._clear(start)
        self._left[pod.uid] = (now, start)

    def forget(self, node: str) -> None:
        """The node is new, or somebody says that it is well."""
        if self._failures.pop(node, None) is not None:
            self.stale.add(node)

    def tick(self, now: float) -> list[Change]:
        """Let time pass: doubt fades, pods that run for a minute clear their node. The changes since the last call."""
        for uid in [uid for uid, start in self._starts.items() if self._sound(start, now)]:
            self._clear(self._starts.pop(uid))
        for table in (self._blamed, self._judged):
            for key in [key for key, at in table.items() if now - at > REMEMBERED_SECONDS]:
                del table[key]
        for uid in [uid for uid, (at, _) in self._left.items() if now - at > YOUNG_SECONDS]:
            del self._left[uid]
        for node in [node for node in self._failures if not self.doubt(node, now)]:
            self.forget(node)
        self.stale.update(self._failures)
        changes = []
        for node in sorted(self.stale):
            if self.failing(node, now) != (node in self._refused):
                changes.append(self._change(node, now))
        return changes

    def _change(self, node: str, now: float) -> Change:
        if node in self._refused:
            self._refused.discard(node)
            return Change(node, False, "GPU pods may be placed on the node again")
        self._refused.add(node)
        failures = [one for one in self._failures[node] if now - one.at < WINDOW_SECONDS]
        rejected = sum(one.what == "admission" for one in failures)
        return Change(
            node,
            True,
            f"{len(failures)} GPU pods failed on the node within ten minutes ({rejected} at kubelet's admission, "
            f"{len(failures) - rejected} within {YOUNG_SECONDS:.0f} s of being bound; the latest {failures[-1].pod}): "
            "no more are placed on it for now",
        )

    def _sound(self, start: _Start, now: float) -> bool:
        return start.running is not None and now - start.running >= SOUND_SECONDS

    def _clear(self, start: _Start) -> None:
        failures = self._failures.get(start.node)
        if failures and start.running is not None and start.running > failures[-1].at:
            self.forget(start.node)

    def _ended(self, pod: PodRecord, before: PodRecord | None, now: float, wall: float | None) -> None:
        start = self._starts.get(pod.uid) or self._left.get(pod.uid, (now, None))[1]
        alive = before is not None or pod.uid in self._left  # we have seen it before it ended
        if pod.phase == "Succeeded":
            if start is not None:
                self._clear(_Start(start.node, start.bound, start.running if start.running is not None else now))
            return
        if pod.phase != "Failed" or pod.terminating or pod.disruption_target:
            return
        if pod.reason == ADMISSION:
            if alive:
                self._add(pod, now, "admission", now)
            elif wall is not None and pod.start is not None:  # listed after it failed: its start is when that was
                self._add(pod, now - max(0.0, wall - pod.start), "admission", now)
        elif start is not None and now - start.bound <= YOUNG_SECONDS:
            self._add(pod, now, "died", now)

    def _add(self, pod: PodRecord, at: float, what: What, now: float) -> None:
        if now - at > REMEMBERED_SECONDS:
            return
        workload = pod.owner.uid if pod.owner is not None else pod.uid
        if what == "died":
            if workload in self._blamed:
                return
            others = [
                node
                for node, failures in self._failures.items()
                if node != pod.node and any(one.what == "died" and one.workload == workload for one in failures)
            ]
            if others:  # it dies wherever it runs
                self._blamed[workload] = at
                for node in [*others, pod.node]:
                    self._keep(node, [one for one in self._failures.get(node, ()) if not _of(one, workload)])
                return
        self.counts[what] += 1
        failures = self._failures.setdefault(pod.node, [])
        failures.append(Failure(at, pod.uid, f"{pod.namespace}/{pod.name}", workload, what))
        failures.sort(key=lambda one: (one.at, one.uid))
        del failures[:-KEPT]
        self.stale.add(pod.node)

    def _keep(self, node: str, failures: list[Failure]) -> None:
        if failures:
            self._failures[node] = failures
            self.stale.add(node)
        else:
            self.forget(node)


def _of(failure: Failure, workload: str) -> bool:
    return failure.what == "died" and failure.workload == workload
