"""Which pods to evict so that the head of the queue starts now, and the seats that it has without them.

The victims are the cheapest sufficient ones of lower priority in the domain of the gang (`preemption.gang_plan`), on
nodes of the GPU models of which its queue may hold more. The joint placement has to accept the nodes without the
victims, within the quota. A queue within its guarantee reclaims: pods of queues above theirs are evicted first, the
latest of what these borrow.

The search is made in slices. `holds` judges seats by the tables as they are: before they are reserved, before the first
eviction, and before the gates open.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from extender.cluster.cluster import Cluster
from extender.cluster.slices import Pace, Sliced, finish, in_order, pauses
from extender.objects.queueing import queue_of
from extender.objects.records import PodRecord
from extender.preemption import certificate
from extender.preemption.gang_plan import (
    DomainCandidates,
    GangEviction,
    GangSearch,
    GangSearchResult,
    PendingGang,
    Reclaim,
    SearchContext,
    cost_of,
    gang_certificate,
)
from extender.queue.gang import StandIns, WaitingGang
from extender.queue.levels import Layout
from extender.queue.placement import (
    GpuAllowance,
    JointPlacement,
    NodeChoice,
    Placed,
    Steps,
    look_at_devices,
    without_devices,
)
from extender.queue.places import Starts, kept_together, seats_of
from extender.queue.plan import QueueHead, gang_name, pod_names
from extender.queue.usage import PLAIN, Quota
from extender.reservations.claims import Claims, of_others
from extender.reservations.seats import Seat

SLICE_MILLISECONDS: Final = 4.0
LIMIT_MILLISECONDS: Final = 3_000.0  # of CPU: then the best plan that is known counts, as not proved


@dataclass(frozen=True, slots=True)
class EvictionPlan:
    """One way to start a gang now."""

    name: str
    gang: WaitingGang
    seats: tuple[Seat, ...]  # of its pods, each with the victims on its node (`Seat.awaits`)
    victims: tuple[PodRecord, ...]  # the most important first, some may be terminating already
    violations: int  # how many of them a PodDisruptionBudget does not allow to evict
    cost: Sequence[Mapping[str, Any]]  # as in the JSON forms
    shown: Mapping[str, Any]  # as in the JSON forms


@dataclass(frozen=True, slots=True)
class EvictionFound:
    """What a search found."""

    search: GangSearchResult
    placed: Placed | None = None  # where the gang goes without the victims; None: no eviction makes room for it
    victims: tuple[PodRecord, ...] = ()


class EvictionPlanner:
    """Searches over one cluster. It changes nothing."""

    def __init__(
        self,
        cluster: Cluster,
        claims: Claims,
        placement: JointPlacement,
        search: GangSearch,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        """`clock`: seconds on the server's clock, `wall`: since 1970."""
        self._cluster, self._claims, self._placement, self._search = cluster, claims, placement, search
        self._clock, self._wall = clock, wall
        self._stand_ins = StandIns(cluster)
        self._starts = Starts(cluster, claims, placement, clock)

    def steps(self, head: QueueHead, spared: Collection[str] = ()) -> Sliced[EvictionPlan | str]:
        """The plan for the pods that the gang needs to start, or why there is none. `spared`: uids of pods that are not
        evicted."""
        gang = head.gang
        pods = gang.pods[: gang.needed]
        if not pods or len(pods) < gang.needed:
            return "it runs: no pod is evicted for further pods"
        if why := unsearched(gang):
            return why
        claims = self._cluster.dra.claims
        for pod in pods:
            if claims.on and pod.claimed and (why := claims.why_not(pod)):
                return f"kube-scheduler allocates the devices of {pod.namespace}/{pod.name}: {why}"
        evicted = yield from self.cheapest(head, pods, spared, Pace(SLICE_MILLISECONDS, LIMIT_MILLISECONDS))
        best = evicted.search.best
        if best is None or evicted.placed is None:
            return evicted.search.why
        return self._plan(gang, pods, evicted, best, evicted.placed)

    def cheapest(
        self, head: QueueHead, pods: tuple[PodRecord, ...], spared: Collection[str], pace: Pace
    ) -> Sliced[EvictionFound]:
        """The cheapest eviction after which these pods of the gang have a place. `spared`: as for `steps`."""
        cluster, gang, requests = self._cluster, head.gang, [self._claims.alone(pod) for pod in pods]
        rows, reclaim, allowances = yield from self._room(head)
        own = {pod.uid for pod in (*gang.pods, *gang.members)}
        asked = PendingGang(pods, tuple(requests), self._clock(), self._wall(), frozenset(own.union(spared)))
        places = KeptPlaces(cluster, self._placement, gang, asked, allowances)
        way = SearchContext(reclaim, places.joint, lambda: of_others(self._claims, requests, self._clock(), own), pace)
        domains = candidates(cluster, self._placement.layout, gang, rows)
        search = in_a_domain((yield from self._search.steps(asked, list(domains), way)))
        if search.best is None:
            return EvictionFound(search)
        placed = places.places[search.best.rows]
        # The placement may leave a node alone that the search has chosen: no pod is evicted there.
        return EvictionFound(search, placed, tuple([pod for pod in search.best.pods if pod.node in placed.nodes]))

    def hindrance(self, plan: EvictionPlan) -> str:
        """Why a plan may not be carried out, by the tables as they are now; "" where it may."""
        nodes = {seat.node for seat in plan.seats}
        if plan.violations:
            return f"a PodDisruptionBudget does not allow the eviction of {certificate.how_many(plan.violations)}"
        if (other := next((seat for seat in self._claims.seats if seat.node in nodes), None)) is not None:
            return f"{other.gang} has a seat on node {other.node}"
        return "" if finish(self._starts.hold(plan.seats, self._stand_ins)) else "its seats do not hold any more"

    # -- where ----------------------------------------------------------------------------------------------------

    def _room(self, head: QueueHead) -> Sliced[tuple[frozenset[int], Reclaim | None, Sequence[GpuAllowance]]]:
        """(rows of the nodes that the gang may use, its reclaim where its guarantee covers it, what it may take of the
        nodes of each model). A model of which its queue may not hold the GPUs of
        its smallest pod is none. Nor are nodes with seats: a
        pod that is nominated before its victims are gone would keep the pods of those seats off, which are released
        before. What other queues wait for does not count: the victims make room beside it."""
        cluster, queues, gang = self._cluster, head.queues, head.gang
        models, quota = queues.models, Quota(queues.rules, queues.models.capacity, queues.held, {})
        pods = [pod for pod in gang.pods[: gang.needed] if pod.gpus]
        asked, most = sum(pod.gpu_count for pod in pods), quota.more(gang.queue)
        smallest = min((pod.gpu_count for pod in pods), default=0)
        allowed = [model for model in models.allowed(gang) if most.get(model, asked) >= smallest]
        # The search itself does not know which nodes have GPUs for claims alone, or none for them.
        alike = len({bool(pod.claimed) for pod in gang.pods}) == 1
        yield from look_at_devices(cluster, gang.pods[: gang.needed])
        unfit = without_devices(cluster, gang.pods[0], cluster.rows.all()) if alike else set()
        seated = {seat.node for seat in self._claims.seats}
        entitled = [model for model in allowed if quota.within_guarantee(gang.queue, {model: asked})]
        reclaim = (yield from self._reclaim(head)) if entitled else None
        other = models.capacity.keys() - set(entitled or allowed)
        rows = [
            cluster.row(name)
            for name in cluster.nodes
            if name not in seated and (not other or models.by_node.get(name) not in other)
        ]
        return frozenset(rows) - unfit, reclaim, queues.allowances(most)

    def _reclaim(self, head: QueueHead) -> Sliced[Reclaim]:
        """The pods that are what other queues hold above their guarantees: of each the latest."""
        cluster, models = self._cluster, head.queues.models
        surplus: dict[tuple[str, str], int] = {}
        for queue, counts in head.queues.held.items():
            guaranteed = head.queues.rules.get(queue, PLAIN).guaranteed_gpus
            for model, count in counts.items():
                if queue != head.gang.queue and count > guaranteed.get(model, 0):
                    surplus[queue, model] = count - guaranteed.get(model, 0)
        running: list[tuple[int, float, str, tuple[str, str], int]] = []
        for (node, model), pause in pauses(list(models.by_node.items())):
            if pause:
                yield
            for pod in cluster.pods_on(node) if cluster.row(node) >= 0 else ():
                key = queue_of(pod), model
                if pod.gpus and key in surplus:
                    start = self._wall() if pod.start is None else pod.start
                    running.append((pod.priority, -start, pod.uid, key, pod.gpu_count))
        lent: set[str] = set()
        for _, _, uid, key, gpus in (yield from in_order(running)):
            if gpus <= surplus[key]:
                surplus[key] -= gpus
                lent.add(uid)
        regardless = cluster.settings.queue.reclaim_regardless_of_priority
        return Reclaim(lambda pod: pod.uid in lent, regardless)

    # -- the plan -------------------------------------------------------------------------------------------------

    def _plan(
        self, gang: WaitingGang, pods: Sequence[PodRecord], evicted: EvictionFound, best: GangEviction, placed: Placed
    ) -> EvictionPlan | str:
        cluster, name, victims = self._cluster, gang_name(gang), evicted.victims
        if all(pod.terminating for pod in victims):
            return "the pods that are terminating make room for it"
        waits: dict[str, list[str]] = {}
        for pod in victims:
            waits.setdefault(pod.node, []).append(pod.uid)
        seats = seats_of(cluster, name, pods, placed, self._clock(), waits)
        cost = cost_of(evicted.search, best)
        existing = _present(cluster, victims)
        spec = {
            "domain": None if best.domain is None else {"level": best.domain[0], "value": best.domain[1]},
            "nodes": sorted(set(placed.nodes)),
            "victims": shown_victims(cluster, victims),
            "certificate": gang_certificate(cluster, evicted.search),
        }
        change = _change(victims) + certificate.breaks(cluster, existing)
        shown = {"kind": "evict", "change": change, "spec": spec, "cost": cost, "verified": True}
        return EvictionPlan(name, gang, seats, victims, certificate.violations(cluster, existing), cost, shown)


def shown_victims(cluster: Cluster, victims: Sequence[PodRecord]) -> list[dict[str, Any]]:
    """Victims in the JSON form, those that are on a node by now."""
    return [certificate.victim(cluster, pod) for pod in _present(cluster, victims)]


def _present(cluster: Cluster, victims: Sequence[PodRecord]) -> list[PodRecord]:
    return [pod for pod in victims if (now := cluster.pods.get(pod.uid)) is not None and now.node in cluster.nodes]


def _change(victims: Sequence[PodRecord]) -> str:
    """What is done, for people."""
    running = [pod for pod in victims if not pod.terminating]
    nodes = len({pod.node for pod in running})
    pods = "1 pod" if len(running) == 1 else f"{len(running)} pods"
    return f"evict {pods} on {'1 node' if nodes == 1 else f'{nodes} nodes'}: {pod_names(running)}"


# -- the domains in which an eviction may make room for a gang, and where the joint placement puts the gang there


def unsearched(gang: WaitingGang) -> str:
    """Why no eviction is searched for the gang, for people; "" where one is."""
    return "its Jobs are kept apart: no pod is evicted for such a gang" if gang.apart else ""


@dataclass(frozen=True, slots=True)
class KeptPlaces:
    """Places the pods of `asked` for an eviction search, and keeps each place that it finds: `places`, by the rows."""

    cluster: Cluster
    placement: JointPlacement
    gang: WaitingGang
    asked: PendingGang
    allowances: Sequence[GpuAllowance] = ()  # as of a `NodeChoice`
    places: dict[tuple[int, ...], Placed] = field(default_factory=dict)

    def joint(self, rows: array[int]) -> Sliced[Sequence[int] | None]:
        """The row of each pod, of these rows alone; None: there is no place."""
        running = [(pod, self.cluster.row(pod.node)) for pod in self.gang.members if pod.node]
        members = [row for _, row in running]
        holders = frozenset(row for pod, row in running if pod.gpu_count)
        pods, requests = self.asked.pods, self.asked.requests
        choice = NodeChoice(frozenset(rows), self.allowances, mixes=self.gang.mixes, holders=holders)
        return self._kept(self.placement.steps(pods, requests, self.gang.domain, members, choice=choice), running)

    def _kept(self, steps: Steps, running: Sequence[tuple[PodRecord, int]]) -> Sliced[Sequence[int] | None]:
        placed = yield from steps
        if not isinstance(placed, Placed):
            return None
        seated = [*zip(self.asked.pods, placed.rows, strict=True), *running]
        if not kept_together(self.cluster, self.gang.part_domains, seated):
            return None
        self.places[placed.rows] = placed
        return placed.rows


def candidates(
    cluster: Cluster, layout: Layout, gang: WaitingGang, rows: Collection[int]
) -> Iterable[DomainCandidates]:
    """The domains that the gang may choose from, with those of `rows` that are in them; where it only prefers one, the
    whole cluster too."""
    domain = gang.domain
    order, _ = layout.read()
    if domain is None or not domain.required:
        yield DomainCandidates(None, array("i", [row for row in order if row in rows]))
    if domain is None:
        return
    level = layout.asked(domain.level)
    members = {cluster.row(pod.node) for pod in gang.members if pod.node}
    of_domain: dict[int, list[int]] = {}
    anchors: set[int] = set()
    for row, number in zip(order, level.domain, strict=True):
        if number >= 0:
            of_domain.setdefault(number, []).append(row)
            if row in members:
                anchors.add(number)
    for number, domain_rows in of_domain.items():
        candidate_rows = [row for row in domain_rows if row in rows]
        if candidate_rows and (not anchors or number in anchors):
            yield DomainCandidates(level.of_node(cluster, domain_rows[0]), array("i", candidate_rows))


def in_a_domain(search: GangSearchResult) -> GangSearchResult:
    """Of plans that cost the same the one inside a domain is first: the gang prefers one."""
    best, other = search.best, search.runner_up
    if best is None or other is None or best.domain is not None or other.domain is None or other.cost > best.cost:
        return search
    return replace(search, evictions=(other, best))
