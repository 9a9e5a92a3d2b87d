"""The four verbs over one cluster, and what they share: constructed and connected once (`Verbs`).

filter: which candidate nodes fit; the best K of them on a pod's first attempt. prioritize: 0 to 10 points for each
candidate; the best alone has 10. preempt: the victims on one node, or none; `preemption/` chooses. bind: judge the node
once more, choose the GPUs, and ask for the Binding; then its outcome. Bytes in, bytes and intents out: no await, no
I/O.

kube-scheduler names no node that is full, tainted or not selected. So fewer names than nodes mean nothing by
themselves: a node that is not named counts only where the pod fits on it by all that kube-scheduler looks at and we
know. Such a node shows that kube-scheduler samples (`Sampling`).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Final, NamedTuple, TypeAlias

from ext_core import encode, fit, score, survey
from ext_core.rows import Rejections
from extender.cluster.cluster import Cluster, ClusterView
from extender.cluster.statements import PLAN, gpus_of, planned_text
from extender.decide import decisions, wire
from extender.decide.decisions import Answer, BindIntent, Decision, Decisions, History, Judged, Written, known
from extender.decide.evicted import EvictedPods
from extender.decide.hold_back import HeldBack, HoldBack, promise_no_links, put_last
from extender.objects.records import PodRecord
from extender.policy import pod_request
from extender.policy.contracts import PodRequest
from extender.policy.pod_request import PodRequests
from extender.policy.policy import Policy
from extender.policy.reasons import CLAIM_UNMET, SEATED, STALE, UNKNOWN_NODE, texts
from extender.policy.roles import Unplaceable, admitted
from extender.preemption.cost_inputs import SearchTime
from extender.preemption.preemption import Leave, Outbid, Preemption, PreemptionOutcome
from extender.preemption.search import Preemptor, VictimSearch
from extender.reservations.assumed import AssumedPods, Attempt, Attempts, Freshness
from extender.reservations.claims import Claims
from extender.reservations.reservations import Releases, Reservation, Reservations
from extender.settings import Settings

LONGEST_TRANSIENT = 60.0
FILTER_STAGES: Final = ("read", "rules", "score", "encode")
Rejected: TypeAlias = "tuple[array[int], array[int]]"  # rows and their codes
NOTHING: Final[Rejected] = (array("i"), array("B"))


class VerbParts(NamedTuple):
    """What filter, prioritize and bind decide by."""

    settings: Settings
    cluster: Cluster
    policy: Policy
    claims: Claims
    hold_back: HoldBack
    history: History


class Filter:
    """Answers filter. Time is an argument: `now` is seconds on the server's monotonic clock, `wall` since 1970."""

    def __init__(self, parts: VerbParts) -> None:
        self._settings, self._cluster, self._policy, self._claims, self._hold_back, self._history = parts
        self._freshness = parts.hold_back.freshness
        self._texts = texts(parts.settings.failing_nodes)  # by code
        self.unknown_nodes = UnknownNodes()
        self._sampling = Sampling(parts.cluster, parts.policy, parts.claims)

    def answer(self, body: bytes, now: float, wall: float, *, again: bool = False) -> Answer:
        """The answer to ExtenderArgs. `again`: a second look of the same attempt, before it is answered. Raises
        BadRequest."""
        began = perf_counter()
        call = decisions.FilterCall(wire.read_args(body, self._cluster, self._settings.limits.names), again)
        return self._history.answer(call, now, wall, lambda call: self.decide(call, now, wall, began))

    def decide(self, call: decisions.FilterCall, now: float, wall: float, began: float) -> Answer:
        """The answer to a call that is read. `began`: `time.perf_counter` when the body was whole."""
        args, again = call.args, call.again
        cluster, claims, attempts = self._cluster, self._claims, self._history.attempts
        request = claims.request(args.pod, now)
        if not request.gpus:
            return Answer(wire.untouched(args), "untouched")
        cluster.tick(now)
        cluster.at(wall)
        before = attempts.before(request.uid, now, again=again)
        unknown = [name for _, name in args.unknown] if args.unknown else []
        decision = Decision("filter", wall, cluster.generation, request, Judged(known(args)), stages=FILTER_STAGES)
        if unknown:
            decision.judged.lack(unknown)
        self._note_sampling(decision, args.pod, now)
        decision.times = [began, perf_counter()]
        with claims.of(request, now, rows=decision.judged.rows):
            held = self._evaluate(decision, Preemptor(request, args.pod, now, wall), before)
        may_appear = bool(unknown) and self.unknown_nodes.may_appear(unknown, now)
        attempt = self._attempt(decision, held, now, may_appear, again)
        if ranked := decision.scored.ranked:
            claims.assume(request, ranked[0], decision.scored.gpus[0], now)
        else:
            claims.assumed.forget(request.uid)
        body = self._encode(args, decision, attempt.transient, now)
        decision.times.append(perf_counter())
        self._history.decisions.add(decision)
        return Answer(body, decision.result, decision)

    def _note_sampling(self, decision: Decision, pod: PodRecord, now: float) -> None:
        """Note where kube-scheduler samples: a node that fits may be among those that it leaves out."""
        rows = decision.judged.rows
        if left_out := self._sampling.left_out(pod, decision.request, rows, now):
            known = self._cluster.schedulable_gpu_nodes
            decision.detail["sampled"] = {"named": len(rows), "schedulable_gpu_nodes": known, "left_out": left_out}

    def _evaluate(self, decision: Decision, preemptor: Preemptor, before: Attempt | None) -> HeldBack:
        """Judge the candidates, score those that fit, and choose the best; inside of the pod's claims."""
        cluster, policy, request = self._cluster, self._policy, decision.request
        judged, scored = decision.judged, decision.scored
        judged.codes = policy.judge(cluster.tables, request, judged.rows)
        held = self._hold_back.reject(decision, preemptor, before)
        judged.reasons = fit.counts(judged.codes)
        judged.fits = fit.passed(judged.rows, judged.codes) if judged.reasons else judged.rows
        decision.times.append(perf_counter())
        alone = before is None and self._settings.only_the_best_class_wins
        first = before is None and (alone or not request.wants_all)
        size = self._settings.shortlist.size * first or len(judged.fits)
        ranking = self._rank(decision, judged.fits, held.reserved, max(size, decisions.FEW))
        if alone and request.placement == "spread" and not request.wants_all and size < len(judged.fits):
            # A node's score depends on the siblings on the other candidate nodes: score as prioritize would.
            ranking = self._rank(decision, ranking.rows[:size], held.reserved, 0)
        scored.ranked = decisions.first(ranking.rows, size)
        if alone:
            _best_alone(decision)
        decision.times.append(perf_counter())
        decision.choose(ranking, cluster.tables, policy, priced=self._settings.decisions.max_bytes > 0)
        return held

    def _rank(self, decision: Decision, rows: array[int], reserved: frozenset[int], most: int) -> decisions.Ranking:
        """The best `most` of `rows` (0: all), with their scores."""
        tables = self._cluster.tables
        # What is put last depends on the scores of all.
        rows, total, columns = self._policy.best(tables, decision.request, rows, 0 if reserved else most)
        put_last(total, rows, reserved)
        order = score.top(tables.nodes, rows, total, most)
        return decisions.Ranking(*score.ranked(rows, total, order), order, total, columns)

    def _attempt(self, decision: Decision, held: HeldBack, now: float, may_appear: bool, again: bool) -> Attempt:
        """Record the attempt. `transient`: the pod is to be tried again within seconds, by an Error."""
        cluster, judged, counted = self._cluster, decision.judged, self._freshness.counted
        links_only: tuple[str, ...] = ()
        transient = may_appear or held.soon
        if judged.reasons:
            rejected = fit.rejected(judged.rows, judged.codes, decisions.LINKS_ONLY)[0]
            links_only = tuple([cluster.names[row] for row in rejected])
            # It names nodes that have devices for the claims: where we see none, we are behind.
            behind = decisions.BY_CLAIMS if decision.request.claim_specs else decisions.BY_COUNT
            passing = any(decisions.TRANSIENT[code] or (counted and behind[code]) for code in judged.reasons)
            transient = transient or passing
        attempt = self._history.attempts.record(decision.request.uid, now, links_only, transient, again=again)
        attempt.left_out = len(decision.scored.ranked) < len(judged.fits)
        attempt.left, attempt.evicts_on = held.left, held.evicts_on
        # What was to pass within seconds and has not is not transient: the pod must not be kept from preempting.
        attempt.transient = attempt.since is not None and now - attempt.since <= LONGEST_TRANSIENT
        if self._freshness.stale():  # any reason may be out of date; only an Error is retried without an event
            attempt.transient, attempt.since = True, None
        return attempt

    def _encode(self, args: wire.Args, decision: Decision, transient: bool, now: float) -> bytes:
        request, ranked = decision.request, decision.scored.ranked
        if not ranked and transient:
            # An Error clears nominatedNodeName: a pod whose reservation we do not remember is rejected plainly instead.
            forgotten = bool(request.nominated) and self._claims.reservations.of(request.uid, now) is None
            if not forgotten:
                decision.result = "try-again"
                decision.error = self._texts[self._retry_code(decision)]
                return wire.filter_error(decision.error)
        decision.result = "fits" if ranked else "refused"
        failed, unresolvable = self._rejections(decision) if decision.judged.reasons else (NOTHING, NOTHING)
        nominated = request.nominated
        unknown = [(name, UNKNOWN_NODE.code) for _, name in args.unknown if name != nominated] if args.unknown else []
        texts = self._texts
        if claim := decision.detail.get("claim"):
            texts = [*texts]
            texts[CLAIM_UNMET.code] = f"{CLAIM_UNMET.text}: {claim}"
        rejections = Rejections(failed, unresolvable, texts, unknown)
        if args.nodes is None:
            body = encode.filter_result(self._cluster.rows.heads, ranked, rejections)
        else:
            span_of = dict(zip(args.rows, args.nodes, strict=True))
            spans = [span_of[row] for row in ranked]
            body = encode.filter_result_nodes(self._cluster.rows.heads, args.body, spans, rejections)
        # The pod's own nominated node is never unresolvable: it would preempt elsewhere.
        return wire.also_failed(body, nominated, UNKNOWN_NODE.text) if len(unknown) < len(args.unknown) else body

    def _retry_code(self, decision: Decision) -> int:
        """The reason that an Error states: of a pod with a seat that it is rejected there; else the first that is
        transient, else the first."""
        if self._freshness.stale():
            return STALE.code
        judged = decision.judged
        if self._claims.seats and self._claims.seats.of(decision.request.uid) is not None:
            return SEATED.code
        transient = [code for code in judged.reasons if decisions.TRANSIENT[code]]
        if not transient and not judged.unknown_count:
            transient = list(judged.reasons)
        return transient[0] if transient else UNKNOWN_NODE.code

    def _rejections(self, decision: Decision) -> tuple[Rejected, Rejected]:
        """(rows, codes) for FailedNodes and for FailedAndUnresolvableNodes.

        Up to 1.37 FailedNodes is for the pod's own nominated node alone: elsewhere it makes the scheduler spin.
        """
        rows, codes = decision.judged.rows, decision.judged.codes
        if self._settings.evictable_as_failed_nodes:
            return fit.rejected(rows, codes, decisions.HOPEFUL), fit.rejected(rows, codes, decisions.HOPELESS)
        failed: Rejected = (array("i"), array("B"))
        unresolvable = fit.rejected(rows, codes, decisions.ANY)
        nominated = self._cluster.row(decision.request.nominated) if decision.request.nominated else -1
        if nominated >= 0 and nominated in unresolvable[0]:
            at = unresolvable[0].index(nominated)
            if decisions.HOPEFUL[unresolvable[1][at]]:
                failed = (array("i", [unresolvable[0].pop(at)]), array("B", [unresolvable[1].pop(at)]))
        return failed, unresolvable


def _best_alone(decision: Decision) -> None:
    """Answer only the best node: it alone would have 10 points, so no other could win. prioritize is not called."""
    scored, fits = decision.scored, len(decision.judged.fits)
    scored.ranked = scored.ranked[:1]
    if len(scored.ranked) < fits:
        decision.detail["best_class"] = {"answered": len(scored.ranked), "fit": fits}


# -- nodes that are left out ------------------------------------------------------------------------------------------

LEAST_NAMED: Final = 100
"""kube-scheduler stops its search at no fewer feasible nodes (minFeasibleNodesToFind)."""
LEAST_LEFT_OUT: Final = 5
"""Of fewer nodes it may know pods that we do not know yet."""
SAMPLED_SECONDS: Final = 10.0
"""From one look to the next: a look reads all nodes."""


class Sampling:
    """Looks at the nodes that a request leaves out, now and then."""

    def __init__(self, cluster: ClusterView, policy: Policy, claims: Claims) -> None:
        self._cluster, self._policy, self._claims = cluster, policy, claims
        self._next = 0.0

    def left_out(self, pod: PodRecord, request: PodRequest, named: array[int], now: float) -> int:
        """How many nodes are not named though the pod fits there; 0 where that is no sample, or is not looked at."""
        if not LEAST_NAMED <= len(named) < self._cluster.schedulable_gpu_nodes or now < self._next:
            return 0
        if not request.exchangeable or pod.group is not None:
            return 0  # filters that we do not know may have dropped the others
        self._next = now + SAMPLED_SECONDS
        others = array("i", sorted(set(self._cluster.rows.all()).difference(named)))
        try:
            others = admitted(self._cluster, pod, others)
        except Unplaceable:
            return 0
        tables = self._cluster.tables
        with self._claims.of(request, now, rows=others):
            others = fit.passed(others, self._policy.judge(tables, request, others))
            left_out = survey.short(tables.nodes, request.ask, others).count(0)
        return left_out if left_out >= LEAST_LEFT_OUT else 0


# -- nodes that the watch has not shown -------------------------------------------------------------------------------

APPEAR_SECONDS = 60.0  # a node that stays unknown for longer is not about to appear in our watch
MOST_UNKNOWN_NODES = 10_000


class UnknownNodes:
    """When each was named first and last."""

    def __init__(self) -> None:
        self._named: dict[str, tuple[float, float]] = {}

    def __len__(self) -> int:
        return len(self._named)

    @property
    def kept(self) -> list[tuple[str, float, float]]:
        """Each name, with when it was named first and last."""
        return [(name, first, last) for name, (first, last) in self._named.items()]

    def restore(self, entries: Iterable[tuple[str, float, float]]) -> None:
        """Remember these and no others."""
        self._named = {name: (first, last) for name, first, last in entries}

    def may_appear(self, names: Sequence[str], now: float) -> bool:
        """Whether any of these nodes may be about to appear: it was named for the first time a moment ago.

        A name that was not asked for during a minute, or became known, is new when it comes again.
        """
        if not names:
            return False
        for name in [name for name, (_, last) in self._named.items() if now - last > APPEAR_SECONDS]:
            del self._named[name]
        if len(self._named) > MOST_UNKNOWN_NODES:
            self._named.clear()
        young = False
        for name in names[: MOST_UNKNOWN_NODES // 2]:  # so many are remembered; no cluster is so far ahead of our watch
            if len(name) > wire.LONGEST_NAME:
                continue
            first = self._named.get(name, (now, now))[0]
            self._named[name] = (first, now)
            young = young or now - first <= APPEAR_SECONDS
        return young


# -- prioritize ------------------------------------------------------------------------------------------------------

PRIORITIZE_STAGES: Final = ("read", "score", "encode")


class Prioritize:
    """Answers prioritize. Time is an argument: `now` is seconds on the server's monotonic clock, `wall` since 1970."""

    def __init__(self, parts: VerbParts) -> None:
        self._settings, self._cluster, self._policy, self._claims, self._hold_back, self._history = parts

    def answer(self, body: bytes, now: float, wall: float) -> Answer:
        """The answer to ExtenderArgs. Raises BadRequest."""
        began = perf_counter()
        call = decisions.PrioritizeCall(wire.read_args(body, self._cluster, self._settings.limits.names))
        return self._history.answer(call, now, wall, lambda call: self.decide(call, now, wall, began))

    def decide(self, call: decisions.PrioritizeCall, now: float, wall: float, began: float) -> Answer:
        """The answer to a call that is read. `began`: `time.perf_counter` when the body was whole."""
        cluster, policy, claims, args = self._cluster, self._policy, self._claims, call.args
        request = claims.request(args.pod, now)
        if not request.gpus:
            return Answer(wire.flat_priorities(args), "untouched")
        rows = known(args)
        judged = Judged(rows, array("B", bytes(len(rows))), rows)
        decision = Decision("prioritize", wall, cluster.generation, request, judged, stages=PRIORITIZE_STAGES)
        scored = decision.scored
        unknown = [name for _, name in args.unknown] if args.unknown else []
        judged.lack(unknown)
        decision.times = [began, perf_counter()]
        with claims.of(request, now, rows=rows):
            total, columns = policy.score(cluster.tables, request, rows)
            put_last(total, rows, self._hold_back.reserved(request, rows, now))
            order = score.top(cluster.tables.nodes, rows, total, 0)
            ranking = decisions.Ranking(*score.ranked(rows, total, order), order, total, columns)
            scored.ranked, scored.points = ranking.rows, score.points(ranking.scores)
            decision.times.append(perf_counter())
            decision.choose(ranking, cluster.tables, policy, priced=self._settings.decisions.max_bytes > 0)
        if scored.ranked:
            claims.assume(request, scored.ranked[0], scored.gpus[0], now)
        decision.result = "scored"
        body = encode.priorities(cluster.rows.heads, scored.ranked, scored.points, unknown)
        decision.times.append(perf_counter())
        self._history.decisions.add(decision)
        return Answer(body, decision.result, decision)


# -- preempt


PREEMPT_RESULTS = {"evict": "evict", "standing": "standing-plan", "none": "none"}  # metric labels
ASKING = "asking"
"""The result where victims are asked to save their work first: kube-scheduler is answered none, and we evict."""


class Preempt:
    """Answers preempt. Time is an argument: `now` is seconds on the server's monotonic clock, `wall` since 1970."""

    def __init__(self, cluster: Cluster, preemption: Preemption, history: History) -> None:
        self._cluster, self._preemption, self._history = cluster, preemption, history

    def answer(self, body: bytes, now: float, wall: float) -> Answer:
        """The answer to ExtenderPreemptionArgs. "evict": the reservation has to be kept before the answer is sent.
        Raises BadRequest."""
        began = perf_counter()
        call = decisions.PreemptCall(wire.read_preemption(body, self._cluster))
        return self._history.answer(call, now, wall, lambda call: self.decide(call, now, wall, began))

    def decide(self, call: decisions.PreemptCall, now: float, wall: float, began: float) -> Answer:
        """The answer to a call that is read. `began`: `time.perf_counter` when the body was whole."""
        cluster, asked = self._cluster, call.asked
        request = pod_request.read(asked.pod, cluster)
        if not request.gpus:
            return Answer(wire.echo(asked.whole()), "untouched")
        decision = Decision("preempt", wall, cluster.generation, request, candidates=len(asked.offers.victims))
        decision.times = [began, perf_counter()]
        attempt = self._history.attempts.of(request.uid, now)
        outcome = self._preemption.preempt(Preemptor(request, asked.pod, now, wall), asked.offers, attempt)
        self._record(decision, outcome)
        if outcome.reservation is not None and outcome.reservation.own:
            decision.result = ASKING
            return Answer(wire.preemption(None), ASKING, decision)
        uids = [pod.uid for pod in outcome.victims]
        body = wire.preemption(outcome.node or None, uids, outcome.violations)
        return Answer(body, decision.result, decision)

    def own(self, body: bytes, attempt: Attempt, now: float, wall: float) -> tuple[Decision, PreemptionOutcome]:
        """The same for evictions of our own: kube-scheduler did not ask. `body`: a preempt request without candidates;
        `attempt`: the pod's filter call, whose `links_only` are the candidates. Raises BadRequest."""
        began = perf_counter()
        cluster = self._cluster
        asked = wire.read_preemption(body, cluster)
        request = pod_request.read(asked.pod, cluster)
        decision = Decision("evict", wall, cluster.generation, request)
        decision.times = [began, perf_counter()]
        preemptor = Preemptor(request, asked.pod, now, wall)
        outcome = self._preemption.preempt(preemptor, asked.offers, attempt, own=True)
        self._record(decision, outcome)
        return decision, outcome

    def needed(self, reservation: Reservation, pods: Sequence[PodRecord], now: float, wall: float) -> list[PodRecord]:
        """Those of these victims of a reservation that have to be evicted by now."""
        preemptor = self._preemptor(reservation, now, wall)
        return list(pods) if preemptor is None else self._preemption.needed(preemptor, reservation, pods)

    def possible(self, reservation: Reservation, now: float, wall: float) -> bool:
        """Whether the evictions of a reservation still make room for its pod."""
        preemptor = self._preemptor(reservation, now, wall)
        return preemptor is None or self._preemption.possible(preemptor, reservation)

    def _preemptor(self, reservation: Reservation, now: float, wall: float) -> Preemptor | None:
        pod = self._cluster.pods.get(reservation.uid)
        return None if pod is None else Preemptor(pod_request.read(pod, self._cluster), pod, now, wall)

    def _record(self, decision: Decision, outcome: PreemptionOutcome) -> None:
        """Write what a preemption came to into its decision record, and keep that."""
        decision.stages = ("read", "answer")
        if outcome.nodes or outcome.search_result is not None:
            decision.stages = ("read", "search", "answer")
            decision.times.append(perf_counter())
        decision.candidates = max(decision.candidates, outcome.nodes)  # with those that were rejected for links alone
        decision.proved = outcome.search_result.proved if outcome.search_result is not None else None
        decision.result = PREEMPT_RESULTS[outcome.result]
        decision.detail = self._preemption.detail(outcome)
        decision.times.append(perf_counter())
        self._history.decisions.add(decision)


# -- bind


class Bind:
    """Answers bind. Time is an argument: `now` is seconds on the server's monotonic clock, `wall` since 1970."""

    def __init__(self, parts: VerbParts) -> None:
        settings, self._cluster, self._policy, self._claims, hold_back, self._history = parts
        self._freshness = hold_back.freshness
        self._texts = texts(settings.failing_nodes)  # by code

    def answer(self, binding: wire.Binding, pod: PodRecord, now: float, wall: float) -> Answer | BindIntent:
        """The write to perform, or the answer where there is none. `pod`: the one that has the uid of the request."""
        call = decisions.BindCall(binding, pod)
        return self._history.answer(call, now, wall, lambda call: self.decide(call, now, wall))

    def decide(self, call: decisions.BindCall, now: float, wall: float) -> Answer | BindIntent:
        """As `answer`."""
        binding, pod = call.binding, call.pod
        cluster, policy = self._cluster, self._policy
        self._claims.bind_is_called()
        cluster.plans_come()
        request = self._claims.with_seat(pod_request.read(pod, cluster), pod)
        decision = Decision("bind", wall, cluster.generation, request)
        decision.detail = {"node": binding.node}
        if pod.node:
            same = pod.node == binding.node
            return self._answer(decision, "" if same else f"the pod is bound to {pod.node} already")
        row = cluster.row(binding.node)
        if row < 0:
            return self._answer(decision, UNKNOWN_NODE.text)
        decision.judged.rows = array("i", [row])
        if not request.gpus:
            return BindIntent(binding, {}, request.amounts, 0, decision)
        with self._claims.of(request, now):
            decision.judged.codes = policy.judge(cluster.tables, request, decision.judged.rows)
            gpus = 0 if decision.judged.codes[0] else self._planned(pod, request, row)
        if self._freshness.stale():
            promise_no_links(decision)
        if decision.judged.codes[0]:
            return self._answer(decision, self._texts[decision.judged.codes[0]])
        amounts = self._claims.amounts_on(request, row)
        self._claims.assumed.assume(request, binding.node, amounts, gpus, now, bound=True)
        decision.scored.best, decision.scored.gpus = decision.judged.rows, array("I", [gpus])
        annotations = {PLAN: planned_text(pod, cluster.resources[request.resource], gpus)} if gpus else {}
        # The plugin chooses as the pod's turn comes: a pod that counted as behind it could leave it no linked set.
        first = self._claims.guarded(request, row, request.amounts) != request.amounts
        return BindIntent(binding, annotations, request.amounts, gpus, decision, first)

    def follow(self, binding: wire.Binding, pod: PodRecord, now: float, wall: float) -> BindIntent:
        """The write as kube-scheduler asks for it, without planned GPUs, whatever our rules say of the node; for shadow
        mode. The record states what they say."""
        call = decisions.BindCall(binding, pod)
        return self._history.answer(call, now, wall, lambda call: self.accept(call, now, wall))

    def accept(self, call: decisions.BindCall, now: float, wall: float) -> BindIntent:
        """As `follow`."""
        binding, pod = call.binding, call.pod
        cluster = self._cluster
        request = pod_request.read(pod, cluster)
        decision = Decision("bind", wall, cluster.generation, request)
        decision.detail = {"node": binding.node}
        row = cluster.row(binding.node)
        if row >= 0:
            decision.judged.rows = array("i", [row])
            with self._claims.of(request, now):
                decision.judged.codes = self._policy.judge(cluster.tables, request, decision.judged.rows)
            if code := decision.judged.codes[0]:
                decision.judged.reasons = {code: 1}
        self._claims.assumed.assume(request, binding.node, request.amounts, 0, now, bound=True)
        return BindIntent(binding, {}, request.amounts, 0, decision)

    def written(self, intent: BindIntent, outcome: Written, now: float) -> Answer:
        """The answer once the write has an outcome."""
        call = decisions.WrittenCall(intent, outcome)
        return self._history.answer(call, now, 0.0, lambda call: self.settle(call, now))

    def settle(self, call: decisions.WrittenCall, now: float) -> Answer:
        """As `written`."""
        intent, outcome = call.intent, call.outcome
        uid = intent.binding.uid
        if outcome.state == "failed":
            self._claims.assumed.forget(uid)
        else:
            if outcome.state == "unknown":
                self._claims.assumed.unconfirmed(uid, now)
            intent.decision.detail["gpus"] = list(gpus_of(intent.gpus))
        return self._answer(intent.decision, outcome.message)

    def _planned(self, pod: PodRecord, request: PodRequest, row: int) -> int:
        """The mask of GPUs for the pod: those that the queue planned there, else the best now; inside of the pod's
        claims."""
        planned = self._claims.planned(pod, self._cluster.names[row])
        if planned:
            if self._claims.seats.of(request.seat or request.uid) is not None:
                return planned
            node = self._cluster.tables.nodes.node(row)
            if not planned & ~node.healthy and not planned & (node.sure | node.likely | node.wanted):
                return planned
        return self._policy.planned(self._cluster.tables, request, row)

    def _answer(self, decision: Decision, error: str) -> Answer:
        decision.result = "refused" if error else "bound"
        decision.error = error
        self._history.decisions.add(decision)
        return Answer(wire.binding(error), decision.result, decision)


# -- all of them


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
        journal: decisions.CallJournal | None = None,
    ) -> Verbs:
        """`freshness`: None: the cluster never falls behind; `released`: called
        with each reservation that ends, and the cause, one of CAUSES; `journal`: hears of each call."""
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
        history = History(attempts, Decisions(settings.decisions.max_bytes, decisions.Stamp.of(settings)), journal)
        cluster.subscribe(releases)
        cluster.subscribe(requests)
        evicted = EvictedPods(cluster)
        cluster.subscribe(evicted)
        parts = VerbParts(settings, cluster, policy, claims, hold_back, history)
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
            Filter(parts),
            Prioritize(parts),
            Preempt(cluster, preemption, history),
            Bind(parts),
        )

    def take(self, settings: Settings) -> None:
        """Decide by the weights, cost terms and quotas of these settings from now on. Between two decisions."""
        self.cluster.take(settings)
        self.policy.take(settings)
        self.history.decisions.stamp = decisions.Stamp.of(settings)

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
