"""Preemption: which pods are evicted so that one fits, at the lowest cost, and never twice for one need.

Legal nodes: those that kube-scheduler offers, and those that the pod's latest filter call rejected for links alone.
Where nothing but CPU, memory, pod slots and GPUs decides whether the pod fits, the offered victims may be exchanged for
cheaper ones; elsewhere they are the floor that is only added to. An eviction is chosen only if our own filter would
pass the pod on that node once the victims are gone.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import compress
from typing import Any, Literal

from msgspec.structs import replace

from ext_core import gather
from extender.cluster.cluster import Cluster
from extender.objects.pods import MOVING_TEXT
from extender.objects.records import PodRecord
from extender.policy import pod_request
from extender.policy.contracts import CostTerm
from extender.policy.costs import grace_seconds, highest_victim_priority
from extender.policy.policy import Policy
from extender.policy.roles import takes
from extender.preemption import certificate
from extender.preemption.cost_inputs import to_ask
from extender.preemption.search import (
    LOWEST,
    Eviction,
    Preemptor,
    SearchResult,
    VictimSearch,
    accepting,
    amounts_short,
    ends,
    may_come_back,
    waits_on,
)
from extender.reservations.assumed import Attempt
from extender.reservations.claims import Claims
from extender.reservations.reservations import CARRY_SECONDS, Releases, Reservation

FRESH_SECONDS = 2.0  # preempt follows its filter call within milliseconds; an older call is of another cycle


@dataclass(frozen=True, slots=True)
class Offered:
    """One candidate node of kube-scheduler."""

    uids: tuple[str, ...]  # of the victims that it found, if any
    violations: int  # its count of violated budgets


@dataclass(frozen=True, slots=True)
class Offers:
    """The nodes that kube-scheduler offers."""

    rows: array[int] = field(default_factory=lambda: array("i"))  # -1 where a name is not known
    victims: Mapping[str, Offered] = field(default_factory=dict)  # by node name

    def on(self, row: int) -> Offers:
        """Those on one node."""
        return Offers(array("i", [row] if row >= 0 and row in self.rows else []), self.victims)


@dataclass(frozen=True, slots=True)
class PreemptionOutcome:
    """What a preemption comes to."""

    result: Literal["evict", "standing", "none"]
    """evict: `victims` are to be evicted on `node`, which is reserved from now on; standing: it was reserved before;
    none: no pod is evicted, `why`."""
    why: str = ""
    node: str = ""
    victims: tuple[PodRecord, ...] = ()
    """Most important first."""
    violations: int = 0
    """NumPDBViolations of the victims."""
    nodes: int = 0
    """How many nodes were examined."""
    search_result: SearchResult | None = None
    """None: no search was needed."""
    left_to: tuple[str, ...] = ()
    """namespace/name of the pods whose reserved GPUs are not taken, though they would have cost less."""
    reservation: Reservation | None = None


@dataclass(frozen=True, slots=True)
class _Choice:
    search_result: SearchResult
    waits: str = ""
    """Why no pod is evicted though one could be; "": it is evicted."""
    left_to: tuple[str, ...] = ()
    """As in PreemptionOutcome."""
    waits_on: str = ""
    """The node that `waits` is about."""

    @property
    def node(self) -> str:
        """The node that was chosen, to evict pods or to wait for; "": none."""
        best = self.search_result.best
        return self.waits_on if best is None else best.node


class Preemption:
    """Chooses the victims for one pod after the other, and reserves what they free."""

    def __init__(
        self,
        cluster: Cluster,
        policy: Policy,
        claims: Claims,
        releases: Releases,
        search: VictimSearch,
        outbid: Outbid,
    ) -> None:
        self._cluster, self._policy, self._claims, self._releases = cluster, policy, claims, releases
        self._search, self._outbid = search, outbid

    def preempt(
        self, preemptor: Preemptor, offers: Offers, attempt: Attempt | None, *, own: bool = False
    ) -> PreemptionOutcome:
        """The outcome for one pod. `attempt`: its latest filter call; `own`: the evictions are our own."""
        request, now = preemptor.request, preemptor.now
        recent = attempt if attempt is not None and now - attempt.at <= FRESH_SECONDS else None
        why = self._why_not(preemptor, recent)
        self._releases.sweep(now)  # what is over reserves nothing, and is not to be answered again
        standing = self._claims.reservations.of(request.uid, now)
        if why:
            return PreemptionOutcome("none", why)
        if standing is not None:
            outcome = self._standing(preemptor, standing)
            if outcome is not None:
                return outcome
        links_only = recent.links_only if recent is not None else ()
        if recent is not None and recent.evicts_on is not None:
            seat = recent.evicts_on
            offers, links_only = offers.on(self._cluster.row(seat)), tuple(name for name in links_only if name == seat)
            if not offers.rows and not links_only:
                fits = "the pod's gang is placed again: the pod fits on a node without an eviction"
                return PreemptionOutcome("none", fits if seat else MOVING_TEXT)
        choice = self._choose(preemptor, offers, links_only)
        if unseen := self._unseen(offers, choice.node):
            with self._seen(unseen, now):
                return self.preempt(preemptor, offers, attempt, own=own)
        result = choice.search_result
        if choice.waits:
            return PreemptionOutcome("none", choice.waits, nodes=result.nodes)
        if result.best is None:
            searched = "" if result.proved else "before the search budget ended no eviction was found that "
            why = f"{searched or 'no eviction '}makes the pod fit on a node that was offered"
            if result.above is not None and result.ceiling is not None:
                why = result.ceiling.above(self._policy, result.above.cost)
            return PreemptionOutcome("none", why, nodes=result.nodes, search_result=result)
        asks = self._asks(preemptor, result.best)
        if asks and not own and certificate.violations(self._cluster, result.best.pods):
            # The Eviction API would reject it: kube-scheduler evicts, and asks no pod.
            never = replace(preemptor, request=replace(request, most_wait=0))
            return self.preempt(never, offers, attempt)
        if standing is not None:
            self._releases.replaced(standing)
        return self._reserve(preemptor, choice, asks, own=own)

    def _unseen(self, offers: Offers, chosen: str) -> list[PodRecord]:
        """The pods that kube-scheduler offers as victims, and that have no node by our record, each with its node. It
        knows that before the watch shows it. None where the node that was `chosen` has none: what is not seen elsewhere
        only costs more."""
        if chosen and not any(self._without_node(offers.victims.get(chosen))):
            return []
        names = (name for name in offers.victims if name in self._cluster.nodes)
        return [replace(pod, node=name) for name in names for pod in self._without_node(offers.victims.get(name))]

    def _without_node(self, offered: Offered | None) -> Iterator[PodRecord]:
        pods = self._cluster.pods
        return (pods[uid] for uid in offered.uids if uid in pods and not pods[uid].node) if offered else iter(())

    @contextmanager
    def _seen(self, pods: Sequence[PodRecord], now: float) -> Iterator[None]:
        """Inside these pods are where kube-scheduler has placed them: they hold what they ask for, and may be victims.
        Afterwards what is assumed of them counts as before."""
        assumed = self._claims.assumed.kept
        try:
            with self._cluster.with_bound(pods, now):
                yield
        finally:
            self._claims.assumed.restore(assumed)

    def needed(self, preemptor: Preemptor, reservation: Reservation, pods: Sequence[PodRecord]) -> list[PodRecord]:
        """Those of these victims of its reservation without whose end the pod does not fit there by now: others may
        have ended since they were chosen. Of what is reserved for other pods it takes nothing. All of them where the
        pod does not fit without them either, or where more decides than we model."""
        cluster, request, row = self._cluster, preemptor.request, self._cluster.row(reservation.node)
        if row < 0 or not request.exchangeable:
            return list(pods)
        ending = {pod.uid for pod in cluster.pods_on(reservation.node) if ends(pod, preemptor.wall)}
        needed = list(pods)
        others = [other for other in self._claims.reservations.current(preemptor.now) if other.uid != request.uid]
        with self._claims.of(request, preemptor.now, as_equal=others):
            for pod in pods:
                gone = ending.union(other.uid for other in needed if other is not pod)
                with cluster.without(gone, reservation.node):
                    short = amounts_short(cluster, request, row)
                if not short and self._search.fits_without(request, row, gone):
                    needed.remove(pod)
        return needed

    def possible(self, preemptor: Preemptor, reservation: Reservation) -> bool:
        """Whether the pod fits on its node once the victims of its reservation have terminated, as far as we model what
        decides."""
        row = self._cluster.row(reservation.node)
        return row < 0 or not preemptor.request.exchangeable or self._fits_after(preemptor, reservation, row)

    def _fits_after(self, preemptor: Preemptor, reservation: Reservation, row: int) -> bool:
        """Whether our own filter passes the pod on the node of its reservation once its victims are gone."""
        with self._claims.of(preemptor.request, preemptor.now):
            leaving = self._leaving(preemptor, reservation).union(reservation.victims)
            return self._search.fits_without(preemptor.request, row, leaving)

    def detail(self, outcome: PreemptionOutcome) -> dict[str, Any]:
        """The outcome as decision records show it."""
        if outcome.result == "none":
            return {"why": outcome.why}
        if outcome.search_result is None or outcome.search_result.best is None or outcome.reservation is None:
            uids = [pod.uid for pod in outcome.victims]
            return {"node": outcome.node, "victims": uids, "why": "the victims that were answered before"}
        cluster, policy = self._cluster, self._policy
        shown = {
            "node": outcome.node,
            "victims": [certificate.victim(cluster, pod) for pod in outcome.victims],
            "cost": certificate.cost_of(policy, outcome.search_result.best),
            "certificate": certificate.certificate(cluster, policy, outcome.search_result),
            "warnings": certificate.warnings(cluster, outcome.victims),
        }
        if outcome.left_to:
            shown["left_to"] = list(outcome.left_to)  # their GPUs would have cost less, for this pod alone
        waits = {"waits_seconds": outcome.reservation.wait} if outcome.reservation.wait else {}
        return shown | waits | {"plan": outcome.reservation.id}

    def _asks(self, preemptor: Preemptor, eviction: Eviction) -> dict[str, int]:
        """As `to_ask`, of this eviction."""
        return to_ask(self._cluster, eviction.pods, int(preemptor.wall * 1000), preemptor.request.most_wait)

    def _reserve(
        self, preemptor: Preemptor, choice: _Choice, asks: Mapping[str, int], *, own: bool
    ) -> PreemptionOutcome:
        """The outcome of a search that found an eviction: it is reserved. Where pods are asked to save their work, we
        evict: what kube-scheduler is answered it evicts at once."""
        best, request = choice.search_result.best, preemptor.request
        assert best is not None
        victims = tuple(certificate.important(best.pods))
        reservation = Reservation(
            request.uid,
            best.node,
            tuple([pod.uid for pod in victims]),
            request.amounts,
            request.priority,
            preemptor.now,
            pod=f"{request.namespace}/{request.name}",
            grace=max(pod.grace_seconds for pod in victims),
            own=own or bool(asks),
            wait=max(1, *asks.values()) if asks else 0.0,
        )
        self._claims.reservations.add(reservation)
        return PreemptionOutcome(
            "evict",
            node=best.node,
            victims=victims,
            violations=certificate.violations(self._cluster, victims),
            nodes=choice.search_result.nodes,
            search_result=choice.search_result,
            left_to=choice.left_to,
            reservation=reservation,
        )

    def _why_not(self, preemptor: Preemptor, recent: Attempt | None) -> str:
        """Why no pod may be evicted now, or ""."""
        if preemptor.request.never:
            return "the pod's preemptionPolicy is Never"
        if recent is not None and recent.transient:
            return "a node was rejected only because our view may be behind"
        if recent is not None and recent.left_out:
            return "the pod fits on nodes that were left out of the shortlist: it is tried again with all of them"
        node = may_come_back(self._cluster, preemptor.request, preemptor.pod, preemptor.now)
        return f"the pod may fit on {node} when its device plugin is back" if node else ""

    def _standing(self, preemptor: Preemptor, standing: Reservation) -> PreemptionOutcome | None:
        """The outcome where the pod has a reservation; None: another eviction is sought. What was freed stays the pod's
        all the same, unless another reservation takes its place."""
        cluster, request, now = self._cluster, preemptor.request, preemptor.now
        bound = cluster.placements.bound.get(standing.node, ())
        remaining = [cluster.pods[uid] for uid in standing.victims if uid in bound]
        if standing.own and remaining:
            return PreemptionOutcome("none", "pods are being evicted for it already, by ourselves")
        row = cluster.row(standing.node)
        violations = certificate.violations(cluster, certificate.important(remaining))
        if standing.wait and violations and self._releases.untouched(standing):
            return None  # the Eviction API has rejected it: by a budget that is new, others may cost less
        lower = all(
            pod.priority < request.priority for pod in remaining
        )  # a caller may state another priority than before
        usable = row >= 0 and takes(cluster.nodes[standing.node], preemptor.pod)
        if remaining and lower and usable and self._fits_after(preemptor, standing, row):
            return PreemptionOutcome("standing", node=standing.node, victims=tuple(remaining), violations=violations)
        if not remaining:
            standing.emptied = standing.emptied if standing.emptied is not None else now
            if now - standing.emptied <= CARRY_SECONDS:
                return PreemptionOutcome("none", "its victims have just been evicted")
        return None

    def _leaving(self, preemptor: Preemptor, standing: Reservation) -> set[str]:
        """The pods that leave the reserved node besides its own victims: those that are terminating, and the victims of
        reservations whose preemptors count as being there already."""
        pods_on_node = self._cluster.pods_on(standing.node)
        ending = {pod.uid for pod in pods_on_node if ends(pod, preemptor.wall)}
        current = self._claims.reservations.current(preemptor.now)
        others = [
            reservation for reservation in current if reservation.node == standing.node and reservation is not standing
        ]
        return ending.union(
            *(reservation.victims for reservation in others if reservation.priority >= preemptor.request.priority)
        )

    def _choose(self, preemptor: Preemptor, offers: Offers, links_only: Sequence[str]) -> _Choice:
        """The eviction; but GPUs that were freed for a pod of a lower priority are left to it where the pod finds
        others that cost no more than both together (`Outbid`). They are not where more than MOST_OUTBID reservations
        would have to be weighed against it."""
        request, now = preemptor.request, preemptor.now
        # What is chosen here is later than any other reservation of its priority, also where it replaces an older one.
        equal = [
            other
            for other in self._claims.reservations.current(now)
            if other.priority == request.priority and other.uid != request.uid
        ]
        with self._claims.of(request, now, as_equal=equal):
            choice = self._cheapest(preemptor, offers, links_only)
            best = choice.search_result.best
            lower = self._claims.lower(request, now)
            if best is not None:
                outbid = [reservation for reservation in lower if reservation.node == best.node]
            else:  # it would wait for a node, or take it: which one is not known
                outbid = lower if choice.waits else []
            if not 0 < len(outbid) <= MOST_OUTBID:
                return choice
            with self._claims.of(request, now, as_equal=[*equal, *lower]):
                other = self._cheapest(preemptor, offers, links_only)
            if other.waits:
                return other
            if other.search_result.best is None:
                return choice
            if not self._outbid.spares(preemptor, offers.rows, choice.search_result, other.search_result, outbid):
                return choice
        node = other.search_result.best.node
        return _Choice(
            other.search_result,
            left_to=tuple(sorted(reservation.pod for reservation in outbid if reservation.node != node)),
        )

    def _cheapest(self, preemptor: Preemptor, offers: Offers, links_only: Sequence[str]) -> _Choice:
        """The evictions, cheapest first, or why the pod waits instead; by the claims that stand."""
        cluster, request, victims = self._cluster, preemptor.request, offers.victims
        more = array("i")
        if request.exchangeable:
            more = array("i", [cluster.rows.index.get(name) for name in links_only])
        rows = gather.by_name(cluster.tables.nodes, offers.rows, more)
        repelled: set[str] = set()
        if cluster.placements.repelling:
            repelled = cluster.placements.repelling.nodes(preemptor.pod, [cluster.names[row] for row in rows])
        if repelled:
            allowed = [name not in repelled or name in victims for name in map(cluster.names.__getitem__, rows)]
            rows = array("i", compress(rows, allowed))
        if not rows:
            return _Choice(SearchResult())
        codes = self._policy.judge(cluster.tables, request, rows).tobytes()
        for row, code in zip(rows, codes, strict=True) if 0 in codes else ():
            name = cluster.names[row]
            if (
                not code
                and (request.exchangeable or name not in victims or not victims[name].uids)
                and name not in repelled
                and not amounts_short(cluster, request, row)
            ):
                waits = f"the pod fits on {name} now, without an eviction"
                return _Choice(SearchResult(nodes=len(rows)), waits, waits_on=name)
        fixed = repelled if request.exchangeable else victims

        def floor(name: str) -> Sequence[str] | None:
            """Where more decides than we model, the offered victims are the floor that is only added to."""
            return victims[name].uids if name in fixed and name in victims else None

        result = self._search.find(preemptor, rows, floor if fixed else None)
        if soon := waits_on(cluster, preemptor, rows, codes, result.best):
            waits = f"the pod will fit on {soon} when the pods that are terminating there are gone"
            return _Choice(SearchResult(nodes=len(rows)), waits, waits_on=soon)
        return _Choice(result)


# -- whether a preemption leaves alone what was freed for preemptors of lower priorities.
#
# A preemptor whose freed GPUs are taken evicts a second time. So a pod of a higher priority leaves them where its own
# eviction elsewhere costs no more than both together: what it evicts, and what would be evicted for that preemptor
# again.


MOST_OUTBID = 4  # reservations that one preemption weighs against its own: each is a search


class Outbid:
    """Compares two evictions of one preemptor: one that takes reserved GPUs, and one that does not."""

    def __init__(self, cluster: Cluster, policy: Policy, claims: Claims, search: VictimSearch) -> None:
        self._cluster, self._policy, self._claims, self._search = cluster, policy, claims, search

    def spares(
        self,
        preemptor: Preemptor,
        rows: array[int],
        found: SearchResult,
        other: SearchResult,
        outbid: Sequence[Reservation],
    ) -> bool:
        """Whether `other`, which leaves the `outbid` reservations alone, costs no more in all than `found`, which takes
        what was freed for them: all of them where it evicts, one where it evicts no pod. `rows`: the candidate nodes.

        A preemptor that has no other node keeps its own as long as only pods of lower priority are evicted for that. No
        budget is violated for it: the preemptor that loses its GPUs may never ask again."""
        assert other.best is not None
        cluster = self._cluster
        if certificate.violations(cluster, other.best.pods) > certificate.violations(
            cluster, found.best.pods if found.best else ()
        ):
            return False
        again = [self._again(preemptor, reservation, rows) for reservation in outbid]
        known = [cost for cost in again if cost is not None]
        if len(known) < len(again) and (found.best is not None or not known):
            stranded = min(
                reservation.priority for reservation, cost in zip(outbid, again, strict=True) if cost is None
            )
            return all(pod.priority < stranded for pod in other.best.pods)
        if found.best is None:
            return other.best.cost <= min(known)
        whole = found.best.cost
        for cost in known:
            whole = _sum(self._policy.costs, whole, cost)
        return other.best.cost <= whole

    def _again(self, preemptor: Preemptor, reservation: Reservation, offered: array[int]) -> tuple[int, ...] | None:
        """What evicting for the reservation's pod on another of these nodes would cost; None where that is impossible.
        That pod in turn leaves alone what was freed for lower priorities: else one eviction outbids the next, down to
        the lowest."""
        cluster, claims, now = self._cluster, self._claims, preemptor.now
        pod = cluster.pods.get(reservation.uid)
        if pod is None:
            return None
        names = [cluster.names[row] for row in gather.by_name(cluster.tables.nodes, array("i"), offered)]
        admitted = (name for name in accepting(cluster, pod, names) or () if name != reservation.node)
        rows = array("i", map(cluster.row, admitted))
        request = pod_request.read(pod, cluster)
        # The preemptor takes the reserved node: its victims' victims cannot go there either (victims_stranded).
        taken = (reservation.node, preemptor.request.amounts)
        with claims.of(request, now, as_equal=claims.lower(request, now), taken=taken):
            codes = self._policy.judge(cluster.tables, request, rows)
            if any(
                not code and not amounts_short(cluster, request, row) for row, code in zip(rows, codes, strict=True)
            ):
                return tuple(_nothing(term) for term in self._policy.costs)
            result = self._search.find(Preemptor(request, pod, now, preemptor.wall), rows)
        return result.best.cost if result.best is not None else None


def _nothing(term: CostTerm) -> int:
    """The value of a term for no victims."""
    return LOWEST if term is highest_victim_priority else 0


def _sum(terms: Sequence[CostTerm], a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    """The cost of two evictions together, which may happen at once."""
    highest = (highest_victim_priority, grace_seconds)
    return tuple(max(x, y) if term in highest else x + y for term, x, y in zip(terms, a, b, strict=True))


# -- the pod leaves what was freed -------------------------------------------------------------------------------------
#
# When a pod leaves GPUs that were freed for a preemptor of a lower priority, although it fits there now.
#
# filter passes a pod on a node that is reserved for a lower priority. Where it fits on no other node, the lower
# preemptor loses its reservation and evicts a second time. The pod leaves that node if its own preemption elsewhere
# costs no more than the second one: no more pods are evicted in total, and the pod waits as long as it would without
# the lower one. It does so once, and only for victims whose grace period is at most `preemption.leaveFreedSeconds`.


class Leave:
    """Decides it for one filter call. `most_grace`: seconds; 0: no pod leaves reserved GPUs."""

    def __init__(
        self,
        cluster: Cluster,
        claims: Claims,
        releases: Releases,
        search: VictimSearch,
        outbid: Outbid,
        most_grace: float,
    ) -> None:
        self._cluster, self._claims, self._releases = cluster, claims, releases
        self._search, self._outbid, self._most_grace = search, outbid, most_grace

    def leaves(self, preemptor: Preemptor, named: array[int], freed: Set[int]) -> bool:
        """Whether the pod, which fits on the rows `freed` alone, leaves them to those that they were freed for.

        `named`: the rows that the filter call names. None of them is another place: kube-scheduler does not preempt
        there. The claims are those of the pod, before and after."""
        request, now = preemptor.request, preemptor.now
        if request.never or not request.exchangeable or not self._most_grace:
            return False
        lower = self._claims.lower(request, now)
        outbid = [
            reservation
            for reservation in lower
            if self._cluster.row(reservation.node) in freed and self._releases.coming(reservation, now)
        ]
        if not 0 < len(outbid) <= MOST_OUTBID:
            return False
        with self._claims.of(request, now):  # on all nodes: those of the call may be on the named ones alone
            rows = self._candidates(preemptor, named)
        if not rows:
            return False
        with self._claims.of(request, now, as_equal=lower):
            other = self._search.find(preemptor, rows)
        if other.best is None or not other.best.pods:
            return False
        if max(victim.grace_seconds for victim in other.best.pods) > self._most_grace:
            return False
        if certificate.violations(self._cluster, other.best.pods):
            return False
        return self._outbid.spares(preemptor, rows, SearchResult(), other, outbid)

    def _candidates(self, preemptor: Preemptor, named: array[int]) -> array[int]:
        """A few nodes that may hold the cheapest victims and admit the pod; in the order of their names."""
        cluster, pod = self._cluster, preemptor.pod
        few = self._search.nearest(preemptor, array("i", range(len(cluster.names))))
        known = set(named)
        names = [name for row in few if row not in known and (name := cluster.names[row])]
        repelled = cluster.placements.repelling.nodes(pod, names)
        rows = [cluster.row(name) for name in names if name not in repelled and takes(cluster.nodes[name], pod)]
        return gather.by_name(cluster.tables.nodes, array("i"), array("i", rows))
