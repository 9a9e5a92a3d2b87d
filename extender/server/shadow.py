"""Shadow mode: each call of a verb is decided and recorded, and answered as if we were not there; and each pod is
compared at the moment when the watch shows that kube-scheduler has bound it, or has preempted for it.

What is answered follows from the request alone. So neither what we know nor a defect of ours changes it.

The tables are compared as kube-scheduler saw them: what it decided before is there, and this pod is not. So no choice
of ours is ever assumed. Where filter was asked about the pod, the candidates are those of the latest call; else all
nodes that admit the pod by what we model.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias, TypeVar

from msgspec.structs import replace

from extender.ask.shadow import Comparison, Effects, Eviction, Report, compare
from extender.decide import wire
from extender.decide.decisions import Answer
from extender.decide.verbs import Verbs
from extender.errors import BadRequest
from extender.log import Allowance, get_log
from extender.metrics import Metrics
from extender.objects.records import PodRecord
from extender.policy.contracts import PodRequest
from extender.policy.roles import Unplaceable, admitted
from extender.preemption.search import Loss, loss
from extender.server.calls import Calls, Writes
from extender.times import Clock

MOST_PODS: Final = 2_000
"""Pods whose latest calls are remembered until they are bound."""
MOST_ROWS: Final = 4_000_000
"""Candidates of all of these together."""
MOST_OFFERS: Final = 500
"""Nodes of one preempt call whose victims are counted."""
MOST_PER_SECOND: Final = 100.0
"""Pods that are compared, on average: each costs as much as a filter call over all nodes."""
NOT_JUDGED: Final = "not-judged"
_T = TypeVar("_T")
log = get_log()


@dataclass(slots=True)
class _Asked:
    """What the latest calls about a pod stated."""

    rows: array[int] | None = None
    generation: int = 0
    moves: int = 0
    """Of the node rows, when `rows` were read."""
    offers: dict[str, Loss] = field(default_factory=dict)
    """By node: what the victims that kube-scheduler offered cost."""
    ours: Eviction | None = None
    """Our own eviction."""


class ShadowWatch:
    """Compares over one cluster. An `Observer` of it."""

    def __init__(
        self, verbs: Verbs, metrics: Metrics, wall: Callable[[], float], listed: Callable[[], bool] = lambda: True
    ) -> None:
        """`wall`: seconds since 1970; `listed`: whether all that counts is known."""
        self._verbs, self._cluster, self._wall, self._listed = verbs, verbs.cluster, wall, listed
        self._effects = Effects(verbs.cluster)
        self.report = Report(metrics, wall())
        self._asked: dict[str, _Asked] = {}
        self._rows = 0
        self._allowance = Allowance(MOST_PER_SECOND, MOST_PER_SECOND)

    # -- what the verbs were asked --------------------------------------------------------------------------------

    def filtered(self, uid: str, rows: array[int]) -> None:
        """filter was asked about the pod, over these rows; -1: a node that is not known."""
        self._forget(uid)
        asked = _Asked(
            array("i", [row for row in rows if row >= 0]), self._cluster.generation, self._cluster.rows.moves
        )
        self._remember(uid, asked)

    def preempted(
        self, uid: str, offers: Mapping[str, tuple[str, ...]], ours: tuple[str, list[PodRecord]] | None
    ) -> None:
        """preempt was asked about the pod. `offers`: uids of the victims by node; `ours`: node and victims of our own
        eviction."""
        asked = self._asked.get(uid) or _Asked()
        wall, known = self._wall(), self._cluster.pods
        named = list(offers.items())[:MOST_OFFERS]
        asked.offers = {
            node: loss(self._cluster, [known[uid] for uid in uids if uid in known], wall) for node, uids in named
        }
        asked.ours = (ours[0], loss(self._cluster, ours[1], wall)) if ours is not None else None
        self._forget(uid)
        self._remember(uid, asked)

    # -- what kube-scheduler decided ------------------------------------------------------------------------------

    def wants(self, before: PodRecord, pod: PodRecord) -> bool:
        """Whether the pod has just been bound, or nominated."""
        if before.node or not pod.gpus or pod.daemon or pod.mirror or not self._listed():
            return False
        return bool(pod.node) or (bool(pod.nominated_node) and before.nominated_node != pod.nominated_node)

    def see(self, before: PodRecord, pod: PodRecord, now: float) -> None:
        """Compare. A defect is logged, and changes nothing."""
        try:
            if pod.node:
                self._bound(before, pod, now)
            else:
                self._nominated(pod)
        except Exception:
            self.report.not_judged("defect")
            log.exception("defect", controller="shadow", pod=f"{pod.namespace}/{pod.name}")

    def _bound(self, before: PodRecord, pod: PodRecord, now: float) -> None:
        asked = self._forget(pod.uid)
        outcome: Comparison | str
        if before.unread:
            outcome = "unreadable"
        elif self._allowance.take(now) is None:
            outcome = "busy"
        else:
            outcome = self._compared(before, pod.node, asked, now)
        if isinstance(outcome, str):
            self.report.not_judged(outcome)
        else:
            self.report.placed(f"{pod.namespace}/{pod.name}", outcome, self._wall())

    def _compared(self, pod: PodRecord, node: str, asked: _Asked | None, now: float) -> Comparison | str:
        """The comparison, or why there is none."""
        self._cluster.at(self._wall())
        request = self._verbs.claims.request(pod, now)
        rows = self._candidates(pod, request, asked)
        if isinstance(rows, str):
            return rows
        return compare(self._verbs, self._effects, request, rows, node, now) or "unknown-node"

    def _candidates(self, pod: PodRecord, request: PodRequest, asked: _Asked | None) -> array[int] | str:
        """The rows that kube-scheduler chose from, or why they are not known."""
        cluster = self._cluster
        if asked is not None and asked.rows is not None:
            if asked.moves == cluster.rows.moves:
                return asked.rows
            names = [cluster.rows.name_at(row, asked.generation) for row in asked.rows]
            return array("i", [row for row in map(cluster.row, names) if row >= 0])
        if not request.exchangeable:
            return "not-modelled"
        try:
            return admitted(cluster, pod, cluster.rows.all())
        except Unplaceable:
            return "not-modelled"

    def _nominated(self, pod: PodRecord) -> None:
        asked = self._asked.get(pod.uid)
        theirs = asked.offers.get(pod.nominated_node) if asked is not None else None
        if asked is None or theirs is None:
            return
        self.report.preempted(f"{pod.namespace}/{pod.name}", (pod.nominated_node, theirs), asked.ours, self._wall())
        asked.offers, asked.ours = {}, None

    # -- bounded memory -------------------------------------------------------------------------------------------

    def _remember(self, uid: str, asked: _Asked) -> None:
        self._asked[uid] = asked
        self._rows += len(asked.rows or ())
        while len(self._asked) > MOST_PODS or (self._rows > MOST_ROWS and len(self._asked) > 1):
            self._forget(next(iter(self._asked)))

    def _forget(self, uid: str) -> _Asked | None:
        asked = self._asked.pop(uid, None)
        if asked is not None:
            self._rows -= len(asked.rows or ())
        return asked


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

    def filter(self, body: bytes) -> Answer:
        """Every candidate passes."""
        candidates = wire.read_candidates(body, self._cluster, self._verbs.settings.limits.names)
        answer = self._decided(lambda: self._verbs.filter.answer(body, self._now(), self._wall()))
        if answer is not None and answer.decision is not None:
            self._shadow.watch.filtered(answer.decision.request.uid, candidates.rows)
        return _answered(answer, wire.untouched(candidates))

    def prioritize(self, body: bytes) -> Answer:
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


VerbCalls: TypeAlias = Calls | ShadowCalls


def _answered(answer: Answer | None, body: bytes) -> Answer:
    """What was decided, with what is answered."""
    return Answer(body, NOT_JUDGED) if answer is None else replace(answer, body=body)
