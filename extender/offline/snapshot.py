"""A cluster in which nothing moves, and what answers questions about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from extender.cluster.cluster import Cluster
from extender.cluster.gpus.store import AWAY_SECONDS
from extender.objects.event import Event
from extender.policy.pod_request import Requests
from extender.policy.policy import Policy
from extender.preemption.search import VictimSearch
from extender.reservations.assumed import AssumedPods
from extender.reservations.claims import Claims
from extender.reservations.freshness import Freshness
from extender.reservations.release import Releases
from extender.reservations.reservations import Reservations
from extender.settings import Settings

NOW = 20 * AWAY_SECONDS  # no device plugin is away for a moment only


@dataclass(frozen=True, slots=True)
class Snapshot:
    """No pod is assumed and nothing is reserved in it: `claims` are those of nominated pods."""

    settings: Settings
    cluster: Cluster
    policy: Policy
    claims: Claims
    search: VictimSearch

    @classmethod
    def of(cls, settings: Settings, events: Iterable[Event]) -> Snapshot:
        """The cluster of these events, judged by the settings' policy."""
        cluster, policy, freshness = Cluster(settings), Policy.of(settings), Freshness()
        cluster.apply(events, 0.0)
        cluster.tick(10 * AWAY_SECONDS)
        assumed, reservations = AssumedPods(0.0), Reservations()
        releases = Releases(cluster, assumed, reservations, freshness)
        claims = Claims(cluster, assumed, reservations, releases, Requests(cluster))
        return cls(settings, cluster, policy, claims, VictimSearch(cluster, policy, settings.preemption))
