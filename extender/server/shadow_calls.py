"""The calls of verbs in shadow mode: each is decided and recorded, and answered as if we were not there.

What is answered follows from the request alone. So neither what we know nor a defect of ours changes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from extender.ask.shadow.watch import ShadowWatch
from extender.decide import wire
from extender.decide.answer import Answer
from extender.decide.verbs import Verbs
from extender.errors import BadRequest
from extender.log import get_log
from extender.metrics import Metrics
from extender.server.writes import Writes
from extender.times import Clock

NOT_JUDGED = "not-judged"
_T = TypeVar("_T")
log = get_log()


class Shadow(NamedTuple):
    """What shadow mode adds to the calls."""

    watch: ShadowWatch  # hears what was asked
    missing: Callable[[], list[str]]  # what has to be known before anything is decided
    metrics: Metrics


class ShadowCalls:
    """The verbs of one server. All raise BadRequest."""

    def __init__(self, verbs: Verbs, clock: Clock, writes: Writes, shadow: Shadow) -> None:
        self._verbs, self._cluster, self._writes, self._shadow = verbs, verbs.cluster, writes, shadow
        self._now, self._wall = clock.monotonic, clock.wall

    def filter_at_once(self, body: bytes) -> Answer:
        """Every candidate passes."""
        candidates = wire.read_candidates(body, self._cluster, self._verbs.settings.limits.names)
        answer = self._decided(lambda: self._verbs.filter.answer(body, self._now(), self._wall()))
        if answer is not None and answer.decision is not None:
            self._shadow.watch.filtered(answer.decision.request.uid, candidates.rows)
        return _answered(answer, wire.untouched(candidates))

    def prioritize_at_once(self, body: bytes) -> Answer:
        """Every candidate gets 0 points."""
        candidates = wire.read_candidates(body, self._cluster, self._verbs.settings.limits.names)
        answer = self._decided(lambda: self._verbs.prioritize.answer(body, self._now(), self._wall()))
        return _answered(answer, wire.flat_priorities(candidates))

    async def preempt(self, body: bytes) -> Answer:
        """The offered victims. Nothing is reserved for the pod."""
        offered = wire.echo(wire.read_offers(body))
        if self._verbs.freshness.stale():
            return Answer(offered, "dark")
        return _answered(self._decided(lambda: self._preempted(body)), offered)

    async def bind(self, body: bytes) -> Answer:
        """The pod is bound, without planned GPUs."""
        binding = wire.read_binding(body)
        intent, pod = None, await self._writes.pod_to_bind(binding)
        if not isinstance(pod, Answer) and not pod.node:
            known = pod
            intent = self._decided(lambda: self._verbs.bind.follow(binding, known, self._now(), self._wall()))
        return await (self._writes.passed_on(binding) if intent is None else self._writes.bound(intent))

    def _preempted(self, body: bytes) -> Answer:
        asked = wire.read_preemption(body, self._cluster)
        try:
            answer = self._verbs.preempt.answer(body, self._now(), self._wall())
        finally:
            self._verbs.reservations.drop(asked.pod.uid)
        if answer.decision is not None:
            self._decided(lambda: self._compare(asked, answer))
        return answer

    def _compare(self, asked: wire.PreemptionArgs, answer: Answer) -> None:
        """Report our own eviction beside those that are offered."""
        decision = answer.decision
        assert decision is not None
        self._shadow.metrics.searched(decision.proved, answer.result, decision.stages_us)
        ours = None
        if answer.result == "evict":
            known, uids = self._cluster.pods, [victim["uid"] for victim in decision.detail["victims"]]
            ours = decision.detail["node"], [known[uid] for uid in uids]
        offers = {node: offer.uids for node, offer in asked.whole().items()}
        self._shadow.watch.preempted(decision.request.uid, offers, ours)

    def _decided(self, decide: Callable[[], _T]) -> _T | None:
        """What is decided; None before all is known, for a pod that cannot be read, and after a defect: both are
        logged."""
        if self._shadow.missing():
            return None
        try:
            return decide()
        except BadRequest as error:
            log.warning("bad request", controller="shadow", path=error.path, err=error.message[:300])
            return None
        except Exception:
            log.exception("defect", controller="shadow")
            return None


def _answered(answer: Answer | None, body: bytes) -> Answer:
    """What was decided, with what is answered."""
    return Answer(body, NOT_JUDGED) if answer is None else answer._replace(body=body)
