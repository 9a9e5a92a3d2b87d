"""prioritize: 0 to 10 points for each candidate node; the best alone has 10. Bytes in, bytes out."""

from __future__ import annotations

from array import array
from time import perf_counter
from typing import Final

from ext_core import encode, score
from extender.cluster.cluster import Cluster
from extender.decide import wire
from extender.decide.answer import Answer, History, PrioritizeCall, known
from extender.decide.decisions import Decision, Judged, Ranking
from extender.decide.hold_back import HoldBack, put_last
from extender.policy.policy import Policy
from extender.reservations.claims import Claims
from extender.settings import Settings

STAGES: Final = ("read", "score", "encode")


class Prioritize:
    """Answers prioritize. Time is an argument: `now` is seconds on the server's monotonic clock, `wall` since 1970."""

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
        self._hold_back, self._history = hold_back, history

    def answer(self, body: bytes, now: float, wall: float) -> Answer:
        """The answer to ExtenderArgs. Raises BadRequest."""
        began = perf_counter()
        call = PrioritizeCall(wire.read_args(body, self._cluster, self._settings.limits.names))
        journal = self._history.journal
        if journal is None:
            return self.decide(call, now, wall, began)
        return journal.answer(call, now, wall, lambda call: self.decide(call, now, wall, began))

    def decide(self, call: PrioritizeCall, now: float, wall: float, began: float) -> Answer:
        """The answer to a call that is read. `began`: `time.perf_counter` when the body was whole."""
        cluster, policy, claims, args = self._cluster, self._policy, self._claims, call.args
        request = claims.request(args.pod, now)
        if not request.gpus:
            return Answer(wire.flat_priorities(args), "untouched")
        rows = known(args)
        judged = Judged(rows, array("B", bytes(len(rows))), rows)
        decision = Decision("prioritize", wall, cluster.generation, request, judged, stages=STAGES)
        scored = decision.scored
        unknown = [name for _, name in args.unknown] if args.unknown else []
        judged.lack(unknown)
        decision.times = [began, perf_counter()]
        with claims.of(request, now, rows=rows):
            total, columns = policy.score(cluster.tables, request, rows)
            put_last(total, rows, self._hold_back.reserved(request, rows, now))
            order = score.top(cluster.tables.nodes, rows, total, 0)
            ranking = Ranking(*score.ranked(rows, total, order), order, total, columns)
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
