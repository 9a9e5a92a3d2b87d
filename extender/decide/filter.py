"""filter: which candidate nodes fit; the best K of them on a pod's first attempt. Bytes in, bytes out."""

from __future__ import annotations

from array import array
from time import perf_counter
from typing import Final, TypeAlias

from ext_core import encode, fit, score
from ext_core.rows import Rejections
from extender.cluster.cluster import Cluster
from extender.decide import wire
from extender.decide.answer import (
    ANY,
    BY_COUNT,
    HOPEFUL,
    HOPELESS,
    LINKS_ONLY,
    TRANSIENT,
    Answer,
    FilterCall,
    History,
    known,
)
from extender.decide.decisions import FEW, Decision, Judged, Ranking
from extender.decide.hold_back import HeldBack, HoldBack, put_last
from extender.decide.named_nodes import Sampling, UnknownNodes
from extender.objects.records import PodRecord
from extender.policy.policy import Policy
from extender.policy.rules import SEATED, STALE, UNKNOWN_NODE, texts
from extender.preemption.candidates import Preemptor
from extender.reservations.attempts import Attempt
from extender.reservations.claims import Claims
from extender.settings import Settings

LONGEST_TRANSIENT = 60.0
STAGES: Final = ("read", "rules", "score", "encode")
Rejected: TypeAlias = "tuple[array[int], array[int]]"  # rows and their codes
NOTHING: Final[Rejected] = (array("i"), array("B"))


class Filter:
    """Answers filter. Time is an argument: `now` is seconds on the server's monotonic clock, `wall` since 1970."""

    def __init__(
        self,
        settings: Settings,
        cluster: Cluster,
        policy: Policy,
        claims: Claims,
        hold_back: HoldBack,
        history: History,
    ) -> None:
        self._settings, self._cluster, self._policy, self._claims = settings, cluster, policy, claims
        self._hold_back, self._freshness, self._history = hold_back, hold_back.freshness, history
        self._texts = texts(settings.failing_nodes)  # by code
        self.unknown_nodes = UnknownNodes()
        self._sampling = Sampling(cluster, policy, claims)

    def answer(self, body: bytes, now: float, wall: float, *, again: bool = False) -> Answer:
        """The answer to ExtenderArgs. `again`: a second look of the same attempt, before it is answered. Raises
        BadRequest."""
        began = perf_counter()
        call = FilterCall(wire.read_args(body, self._cluster, self._settings.limits.names), again)
        journal = self._history.journal
        if journal is None:
            return self.decide(call, now, wall, began)
        return journal.answer(call, now, wall, lambda call: self.decide(call, now, wall, began))

    def decide(self, call: FilterCall, now: float, wall: float, began: float) -> Answer:
        """The answer to a call that is read. `began`: `time.perf_counter` when the body was whole."""
        args, again = call
        cluster, claims, attempts = self._cluster, self._claims, self._history.attempts
        request = claims.request(args.pod, now)
        if not request.gpus:
            return Answer(wire.untouched(args), "untouched")
        cluster.tick(now)
        cluster.at(wall)
        before = attempts.before(request.uid, now, again=again)
        unknown = [name for _, name in args.unknown] if args.unknown else []
        decision = Decision("filter", wall, cluster.generation, request, Judged(known(args)), stages=STAGES)
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
        judged.fits = fit.passed(judged.rows, judged.codes)
        decision.times.append(perf_counter())
        alone = before is None and self._settings.only_the_best_class_wins
        first = before is None and (alone or not request.wants_all)
        size = self._settings.shortlist.size * first or len(judged.fits)
        ranking = self._rank(decision, judged.fits, held.reserved, max(size, FEW))
        if alone and request.placement == "spread" and not request.wants_all and size < len(judged.fits):
            # A node's score depends on the siblings on the other candidate nodes: score as prioritize would.
            ranking = self._rank(decision, ranking.rows[:size], held.reserved, 0)
        scored.ranked = ranking.rows[:size]
        if alone:
            _best_class_alone(decision, ranking)
        decision.times.append(perf_counter())
        decision.choose(ranking, cluster.tables, policy, priced=self._settings.decisions.max_bytes > 0)
        return held

    def _rank(self, decision: Decision, rows: array[int], reserved: frozenset[int], most: int) -> Ranking:
        """The best `most` of `rows` (0: all), with their scores."""
        tables = self._cluster.tables
        # What is put last depends on the scores of all.
        rows, total, columns = self._policy.best(tables, decision.request, rows, 0 if reserved else most)
        put_last(total, rows, reserved)
        order = score.top(tables.nodes, rows, total, most)
        return Ranking(*score.ranked(rows, total, order), order, total, columns)

    def _attempt(self, decision: Decision, held: HeldBack, now: float, may_appear: bool, again: bool) -> Attempt:
        """Record the attempt. `transient`: the pod is to be tried again within seconds, by an Error."""
        cluster, judged, counted = self._cluster, decision.judged, self._freshness.counted
        links_only: tuple[str, ...] = ()
        transient = may_appear or held.soon
        if judged.reasons:
            rejected = fit.rejected(judged.rows, judged.codes, LINKS_ONLY)[0]
            links_only = tuple([cluster.names[row] for row in rejected])
            passing = any(TRANSIENT[code] or (counted and BY_COUNT[code]) for code in judged.reasons)
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
        rejections = Rejections(failed, unresolvable, self._texts, unknown)
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
        transient = [code for code in judged.reasons if TRANSIENT[code]]
        if not transient and not judged.unknown_count:
            transient = list(judged.reasons)
        return transient[0] if transient else UNKNOWN_NODE.code

    def _rejections(self, decision: Decision) -> tuple[Rejected, Rejected]:
        """(rows, codes) for FailedNodes and for FailedAndUnresolvableNodes.

        Up to 1.37 FailedNodes is for the pod's own nominated node alone: elsewhere it makes the scheduler spin.
        """
        rows, codes = decision.judged.rows, decision.judged.codes
        if self._settings.evictable_as_failed_nodes:
            return fit.rejected(rows, codes, HOPEFUL), fit.rejected(rows, codes, HOPELESS)
        failed: Rejected = (array("i"), array("B"))
        unresolvable = fit.rejected(rows, codes, ANY)
        nominated = self._cluster.row(decision.request.nominated) if decision.request.nominated else -1
        if nominated >= 0 and nominated in unresolvable[0]:
            at = unresolvable[0].index(nominated)
            if HOPEFUL[unresolvable[1][at]]:
                failed = (array("i", [unresolvable[0].pop(at)]), array("B", [unresolvable[1].pop(at)]))
        return failed, unresolvable


def _best_class_alone(decision: Decision, ranking: Ranking) -> None:
    """Answer only the nodes to which prioritize would give most points: kube-scheduler would choose one of them. Where
    it is one node, prioritize is not called."""
    scored, fits = decision.scored, len(decision.judged.fits)
    scored.ranked = scored.ranked[: score.points(ranking.scores[: len(scored.ranked)]).count(10)]
    if len(scored.ranked) < fits:
        decision.detail["best_class"] = {"answered": len(scored.ranked), "fit": fits}
