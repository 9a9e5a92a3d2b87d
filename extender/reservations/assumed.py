"""Assumed pods: answered or bound by us, not yet seen in the watch.

Between our answer and the watch (or the bind call) that shows where the pod went, the node that it most likely takes
counts as taken, for a few seconds at most. kube-scheduler may have thrown the answer away, so it expires by itself.
Once bind has asked for the Binding it is no guess any more: it lasts until the watch shows the pod, a minute at most.

While the API server is silent an assumed pod still counts against pods that require links. It may be bound, on GPUs
that are not known, and the watch could not have shown it. For other pods kube-scheduler's own count is enough.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from extender.policy.contracts import PodRequest
from extender.reservations.freshness import Freshness
from extender.reservations.reservations import SILENT, Journal

BOUND_SECONDS = 60.0  # a watch that is behind for longer makes us not ready (extender.web.health)
UNHEARD_SECONDS = 60.0  # how much longer an assumed pod lasts at most while the API server is silent


class AssumedPod(NamedTuple):
    """`amounts`: R amounts; `gpus`: mask it will probably take; `until`: seconds on the caller's clock; `bound`: bind
    asked for it, so that the pod is nowhere else."""

    uid: str
    priority: int
    node: str
    amounts: tuple[int, ...]
    gpus: int
    until: float
    bound: bool = False


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
        self._pods[uid] = AssumedPod(uid, request.priority, node, amounts, gpus, now + seconds, bound)

    def unconfirmed(self, uid: str, now: float) -> None:
        """The outcome of the Binding is not known: if the pod is bound, the watch shows it soon."""
        pod = self._pods.get(uid)
        if pod is not None:
            self._pods[uid] = pod._replace(until=min(pod.until, now + self._seconds))

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
