"""The four verbs over one cluster, and what they share: constructed and connected once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from extender.cluster.cluster import Cluster
from extender.decide.bind import Bind
from extender.decide.decisions import CallJournal, Decisions, History, Stamp
from extender.decide.evicted import EvictedPods
from extender.decide.filter import Filter, Prioritize
from extender.decide.hold_back import HoldBack
from extender.decide.preempt import Preempt
from extender.policy.pod_request import PodRequests
from extender.policy.policy import Policy
from extender.preemption.cost_inputs import SearchTime
from extender.preemption.preemption import Leave, Outbid, Preemption
from extender.preemption.search import VictimSearch
from extender.reservations.assumed import AssumedPods, Attempts, Freshness
from extender.reservations.claims import Claims
from extender.reservations.release import Releases
from extender.reservations.reservations import Reservation, Reservations
from extender.settings import Settings


@dataclass(frozen=True, slots=True)
class Verbs:
    """Each verb, and the stores that controllers and pages read."""

    settings: Settings
    cluster: Cluster
    policy: Policy
    freshness: Freshness
    claims: Claims
    releases: Releases
    history: History
    evicted: EvictedPods
    preemption: Preemption
    search_time: SearchTime
    filter: Filter
    prioritize: Prioritize
    preempt: Preempt
    bind: Bind

    @classmethod
    def of(
        cls,
        settings: Settings,
        cluster: Cluster,
        *,
        freshness: Freshness | None = None,
        released: Callable[[Reservation, str], None] = lambda reservation, cause: None,
        journal: CallJournal | None = None,
    ) -> Verbs:
        """`freshness`: None: the cluster never falls behind; `released`: called
        with each reservation that ends, and the cause (reservations.release.CAUSES); `journal`: hears of each call."""
        policy, freshness = Policy.of(settings), freshness or Freshness()
        # In shadow mode only what kube-scheduler has chosen is assumed: a pod that it binds by our verb.
        seconds = 0.0 if settings.shadow else settings.hold.seconds
        assumed, reservations = AssumedPods(seconds, freshness), Reservations()
        releases = Releases(cluster, assumed, reservations, freshness, released)
        requests = PodRequests(cluster)
        claims = Claims(cluster, assumed, reservations, releases, requests)
        search = VictimSearch(cluster, policy, settings.preemption)
        outbid = Outbid(cluster, policy, claims, search)
        leave = Leave(cluster, claims, releases, search, outbid, settings.preemption.leave_freed_seconds)
        hold_back = HoldBack(cluster, policy, claims, releases, freshness, leave)
        preemption = Preemption(cluster, policy, claims, releases, search, outbid)
        attempts = Attempts(settings.shortlist.retry_window_seconds)
        history = History(attempts, Decisions(settings.decisions.max_bytes, Stamp.of(settings)), journal)
        cluster.subscribe(releases)
        cluster.subscribe(requests)
        evicted = EvictedPods(cluster)
        cluster.subscribe(evicted)
        return cls(
            settings,
            cluster,
            policy,
            freshness,
            claims,
            releases,
            history,
            evicted,
            preemption,
            search.time,
            Filter(settings, cluster, policy, claims, hold_back, history),
            Prioritize(settings, cluster, policy, claims, hold_back, history),
            Preempt(cluster, preemption, history),
            Bind(settings, cluster, policy, claims, hold_back, history),
        )

    def take(self, settings: Settings) -> None:
        """Decide by the weights, cost terms and quotas of these settings from now on. Between two decisions."""
        self.cluster.take(settings)
        self.policy.take(settings)
        self.history.decisions.stamp = Stamp.of(settings)

    @property
    def assumed(self) -> AssumedPods:
        """The pods that are assumed."""
        return self.claims.assumed

    @property
    def reservations(self) -> Reservations:
        """All reservations."""
        return self.claims.reservations

    @property
    def attempts(self) -> Attempts:
        """The latest filter call of each pod."""
        return self.history.attempts

    @property
    def decisions(self) -> Decisions:
        """The decision records."""
        return self.history.decisions
