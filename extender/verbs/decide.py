"""filter, prioritize, preempt and bind: bytes in, bytes and intents out. No await, no I/O.

Time is an argument: `now` is seconds on the server's monotonic clock, `wall` seconds since 1970.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from ext_core import encode, fit, score
from ext_core.rows import Rejections
from extender.cluster.cluster import Cluster
from extender.cluster.gpus.statements import gpus_of
from extender.cluster.listener import Listener
from extender.objects.records import PodRecord
from extender.policy import pod_request as requests
from extender.policy.contracts import Class, PodRequest, Reason
from extender.policy.policy import Policy
from extender.policy.rules import HANDOVER, REASONS, STALE, UNKNOWN_NODE, texts
from extender.policy.rules.count import PROMISED
from extender.policy.rules.links import PENDING
from extender.reservations.assumed import AssumedPod, AssumedPods
from extender.reservations.attempts import Attempt, Attempts
from extender.reservations.reservations import Reservation, Reservations
from extender.settings import Settings
from extender.verbs import wire
from extender.verbs.decisions import Decision, Decisions

STRANGE_SECONDS = 60.0  # a node that stays unknown for longer is not about to appear in our watch
MOST_STRANGERS = 10_000
LONGEST_TRANSIENT = 60.0
PLAN_NOT_CARRIED_OUT = 10.0  # a plan whose victims nobody touched in that time was thrown away
OWN_PLAN_NOT_CARRIED_OUT = 120.0  # of our own evictions: whoever takes over the Lease may take them up
PLAN_CARRIED_OUT = 60.0  # after its last victim is gone the freed GPUs stay reserved so long
CARRY_SECONDS = 5.0  # after the last victim is gone the scheduler needs a moment to come back with the pod
COME_BACK = 12.0  # kube-scheduler retries a pod that met us dead after at most 10 s
SLACK_SECONDS = 5.0  # kube-scheduler may call before our watch has brought the pod
Refused: TypeAlias = "tuple[array[int], array[int]]"  # rows and their codes


def _marks(wanted: Callable[[Reason], bool]) -> bytes:
    """One byte a code: 1 where the reason is wanted."""
    return bytes(code in REASONS and wanted(REASONS[code]) for code in range(256))


LINKS_ONLY = _marks(lambda reason: reason.links_only)
HOPELESS = _marks(lambda reason: reason.cls is Class.HOPELESS)
HOPEFUL = _marks(lambda reason: reason.cls is not Class.HOPELESS)
TRANSIENT = _marks(lambda reason: reason.cls is Class.TRANSIENT and not reason.lasting)
BY_COUNT = _marks(lambda reason: reason.by_count)
ANY = _marks(lambda reason: True)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a verb answers. `result`: metric label; `decision`: None for pods that are none of ours."""

    body: bytes
    result: str
    decision: Decision | None = None


@dataclass(frozen=True, slots=True)
class BindIntent:
    """The write that bind asks for. `annotations` go into the Binding: the API server puts them on the pod."""

    binding: wire.Binding
    annotations: dict[str, str]
    amounts: tuple[int, ...]
    gpus: int
    decision: Decision


class Stages:
    """Microseconds spent, by stage."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self._last = time.perf_counter()

    def mark(self, stage: str) -> None:
        now = time.perf_counter()
        self.spent[stage] = (now - self._last) * 1e6
        self._last = now


@dataclass(slots=True)
class Decider(Listener):
    """Everything a verb needs: the cluster, the policy, what we answered before. One per server."""

    settings: Settings
    cluster: Cluster
    policy: Policy
    assumed: AssumedPods
    reservations: Reservations
    attempts: Attempts
    decisions: Decisions
    texts: list[str] = field(default_factory=lambda: texts(Settings().failing_nodes))  # by code
    sampled: Callable[[int, int], None] = field(default=lambda given, known: None)
    strangers: dict[str, tuple[float, float]] = field(default_factory=dict)  # unknown node -> first, last named
    live: bool = False  # kube-scheduler counts GPUs too: a node that it names and we find too full shows that we lag
    yields_until: float = float("-inf")  # just after a start, who waits with a higher priority goes first
    binds: bool = False  # kube-scheduler asks us to bind
    up_since: float = float("-inf")  # when this process could answer first, and a preemptor could use its place again
    settled_at: float = float("-inf")  # until then pods of before a restart may be in flight
    stale: bool = False  # the API server is silent for longer than watch.stalenessSeconds
    leaves: Callable[[Decision, PodRecord, set[int], float], bool] = field(default=lambda *given: False)
    released: Callable[[Reservation, str], None] = field(default=lambda plan, cause: None)
    swept: tuple[float, int] | None = None  # when, and at which generation, `sweep` looked last
    spared: frozenset[str] = frozenset()  # preemptors whose plans count though their priority is lower (`sparing`)

    @classmethod
    def of(cls, settings: Settings, cluster: Cluster) -> Decider:
        made = cls(
            settings,
            cluster,
            Policy.of(settings),
            AssumedPods(settings.hold.seconds),
            Reservations(),
            Attempts(settings.shortlist.retry_window_seconds),
            Decisions(settings.decisions.max_bytes),
        )
        made.texts = texts(settings.failing_nodes)
        cluster.subscribe(made)
        return made

    # -- filter ---------------------------------------------------------------------------------------------------

    def filter(self, body: bytes, now: float, wall: float) -> Answer:
        """Which candidates fit; the best K of them on a pod's first attempt."""
        stages = Stages()
        cluster = self.cluster
        args = wire.read_args(body, cluster.rows.index, cluster.gpu_names, self.settings.limits.names)
        request = requests.read(args.pod, cluster, self._flying(now))
        if not request.gpus:
            return Answer(wire.untouched(args), "untouched")
        cluster.tick(now)
        cluster.at(wall)
        attempt = self.attempts.of(request.uid, now)
        rows = _known(args)
        unknown = [name for _, name in args.unknown]
        decision = Decision("filter", wall, cluster.generation, request, rows=rows)
        decision.lack(unknown)
        if len(args.rows) < cluster.schedulable_gpu_nodes and not self._fast_path(request, rows):
            self.sampled(len(args.rows), cluster.schedulable_gpu_nodes)
            decision.detail["sampled"] = {
                "named": len(args.rows),
                "schedulable_gpu_nodes": cluster.schedulable_gpu_nodes,
            }
        stages.mark("read")
        self.claim(request, now)
        try:
            decision.codes = self.policy.judge(cluster.tables, request, rows)
            self._wait_if_stale(decision)
            taking = self._taking(request, fit.passed(rows, decision.codes), now)
            left = self._left(decision, args.pod, taking, attempt, now)
            held_back = self._hand_over(decision, taking, now) or self._hold_back(decision, now)
            decision.reasons = fit.counts(decision.codes)
            decision.fits = fit.passed(rows, decision.codes)
            stages.mark("rules")
            decision.total, decision.columns = self.policy.score(cluster.tables, request, decision.fits)
            _last(decision, taking)
            first = attempt is None and not request.wants_all
            best = score.top(cluster.tables.nodes, decision.fits, decision.total, self.settings.shortlist.size * first)
            decision.ranked, _ = score.ranked(decision.fits, decision.total, best)
            stages.mark("score")
            self._tell_best(decision)
        finally:
            cluster.tables.nodes.drop_claims()
        attempt = self.attempts.record(
            request.uid,
            now,
            tuple([cluster.names[row] for row in fit.rejected(rows, decision.codes, LINKS_ONLY)[0]]),
            self._strange(unknown, now)
            or held_back
            or any(TRANSIENT[code] or (self.live and BY_COUNT[code]) for code in decision.reasons),
            len(decision.ranked) < len(decision.fits),
        )
        attempt.left = left
        # What was to pass within seconds and has not is not transient: the pod must not be kept from preempting.
        transient = attempt.since is not None and now - attempt.since <= LONGEST_TRANSIENT
        if self.stale:  # whatever the reason, it may be out of date; and only an Error is tried again without an event
            transient, attempt.since = True, None
        attempt.transient = transient
        if decision.ranked:
            self._hold(request, decision.ranked[0], decision.gpus[decision.ranked[0]], now)
        else:
            self.assumed.forget(request.uid)
        body = self._filter_answer(args, decision, transient, now)
        stages.mark("encode")
        decision.stages_us = stages.spent
        self.decisions.add(decision)
        return Answer(body, decision.result, decision)

    def _filter_answer(self, args: wire.Args, decision: Decision, transient: bool, now: float) -> bytes:
        request = decision.request
        # An Error clears nominatedNodeName: a pod whose plan we do not remember is refused plainly instead.
        forgotten = bool(request.nominated) and self.reservations.of(request.uid, now) is None
        if not decision.ranked and transient and not forgotten:
            decision.result = "try-again"
            said = [code for code in decision.reasons if TRANSIENT[code]]
            if self.stale:
                said = [STALE.code]
            elif not said and not decision.unknown_count:
                said = list(decision.reasons)
            decision.error = self.texts[said[0] if said else UNKNOWN_NODE.code]
            return wire.filter_error(decision.error)
        decision.result = "fits" if decision.ranked else "refused"
        failed, unresolvable = self._refusals(decision)
        nominated = request.nominated
        unknown = [(name, UNKNOWN_NODE.code) for _, name in args.unknown if name != nominated]
        rejections = Rejections(failed, unresolvable, self.texts, unknown)
        if args.nodes is None:
            body = encode.filter_result(self.cluster.rows.heads, decision.ranked, rejections)
        else:
            span_of = dict(zip(args.rows, args.nodes, strict=True))
            spans = [span_of[row] for row in decision.ranked]
            body = encode.filter_result_nodes(self.cluster.rows.heads, args.body, spans, rejections)
        # The pod's own nominated node is never unresolvable: it would preempt elsewhere.
        return wire.also_failed(body, nominated, UNKNOWN_NODE.text) if len(unknown) < len(args.unknown) else body

    def _refusals(self, decision: Decision) -> tuple[Refused, Refused]:
        """(rows, codes) for FailedNodes and for FailedAndUnresolvableNodes.

        Up to 1.37 FailedNodes is for the pod's own nominated node alone: elsewhere it makes the scheduler spin.
        """
        rows, codes = decision.rows, decision.codes
        if self.settings.evictable_as_failed_nodes:
            return fit.rejected(rows, codes, HOPEFUL), fit.rejected(rows, codes, HOPELESS)
        failed: Refused = (array("i"), array("B"))
        unresolvable = fit.rejected(rows, codes, ANY)
        nominated = self.cluster.row(decision.request.nominated) if decision.request.nominated else -1
        if nominated >= 0 and nominated in unresolvable[0]:
            at = unresolvable[0].index(nominated)
            if HOPEFUL[unresolvable[1][at]]:
                failed = (array("i", [unresolvable[0].pop(at)]), array("B", [unresolvable[1].pop(at)]))
        return failed, unresolvable

    # -- prioritize -----------------------------------------------------------------------------------------------

    def prioritize(self, body: bytes, now: float, wall: float) -> Answer:
        """0..10 for each candidate: the best alone has 10."""
        stages = Stages()
        cluster = self.cluster
        args = wire.read_args(body, cluster.rows.index, cluster.gpu_names, self.settings.limits.names)
        request = requests.read(args.pod, cluster, self._flying(now))
        if not request.gpus:
            return Answer(wire.flat_priorities(args), "untouched")
        rows = _known(args)
        decision = Decision("prioritize", wall, cluster.generation, request, rows=rows)
        unknown = [name for _, name in args.unknown]
        decision.lack(unknown)
        decision.codes = array("B", bytes(len(rows)))
        decision.fits = rows
        stages.mark("read")
        self.claim(request, now)
        try:
            decision.total, decision.columns = self.policy.score(cluster.tables, request, rows)
            _last(decision, self._taking(request, rows, now))
            best = score.top(cluster.tables.nodes, rows, decision.total, 0)
            decision.ranked, ordered = score.ranked(rows, decision.total, best)
            decision.points = score.points(ordered)
            stages.mark("score")
            self._tell_best(decision)
        finally:
            cluster.tables.nodes.drop_claims()
        if decision.ranked:
            self._hold(request, decision.ranked[0], decision.gpus[decision.ranked[0]], now)
        decision.result = "scored"
        body = encode.priorities(cluster.rows.heads, decision.ranked, decision.points, unknown)
        stages.mark("encode")
        decision.stages_us = stages.spent
        self.decisions.add(decision)
        return Answer(body, decision.result, decision)

    # -- bind -----------------------------------------------------------------------------------------------------

    def bind(self, binding: wire.Binding, pod: requests.PodRecord, now: float, wall: float) -> Answer | BindIntent:
        """Check again, choose the GPUs, ask for the Binding. `pod`: the record that has the uid of the request."""
        self.binds = True
        cluster = self.cluster
        cluster.plans_come()
        request = requests.read(pod, cluster)
        decision = Decision("bind", wall, cluster.generation, request)
        decision.detail = {"node": binding.node}
        if pod.node:
            same = pod.node == binding.node
            return self._bind_answer(decision, "" if same else f"the pod is bound to {pod.node} already")
        row = cluster.row(binding.node)
        if row < 0:
            return self._bind_answer(decision, UNKNOWN_NODE.text)
        decision.rows = array("i", [row])
        if not request.gpus:
            return BindIntent(binding, {}, request.amounts, 0, decision)
        self.claim(request, now)
        try:
            decision.codes = self.policy.judge(cluster.tables, request, decision.rows)
            gpus = 0 if decision.codes[0] else self.choose(row, request)
        finally:
            cluster.tables.nodes.drop_claims()
        self._wait_if_stale(decision)
        if decision.codes[0]:
            return self._bind_answer(decision, self.texts[decision.codes[0]])
        self.assumed.assume(request.uid, binding.node, request.amounts, gpus, now, bound=True)
        decision.gpus = {row: gpus}
        annotations = (
            {"gpu-extender.io/gpus": _plan_text(pod, cluster.resources[request.resource], gpus)} if gpus else {}
        )
        return BindIntent(binding, annotations, request.amounts, gpus, decision)

    def bound(self, intent: BindIntent, error: str, now: float) -> Answer:
        """The outcome of the write."""
        uid = intent.binding.uid
        if error and not error.startswith("unknown:"):  # of an unknown outcome the pod may be bound
            self.assumed.forget(uid)
        else:
            if error:
                self.assumed.unconfirmed(uid, now)
            intent.decision.detail["gpus"] = list(gpus_of(intent.gpus))
        return self._bind_answer(intent.decision, error)

    def _bind_answer(self, decision: Decision, error: str) -> Answer:
        decision.result = "refused" if error else "bound"
        decision.error = error
        self.decisions.add(decision)
        return Answer(wire.binding(error), decision.result, decision)

    # -- what they share ------------------------------------------------------------------------------------------

    def _tell_best(self, decision: Decision) -> None:
        """The GPUs to take on the best nodes, and what the first two cost the pods to come."""
        tables, request = self.cluster.tables, decision.request
        decision.gpus = self.policy.gpus(tables, request, decision.ranked[:16])
        if self.settings.decisions.max_bytes:
            decision.detail["price"] = self.policy.price(tables, request, self.cluster.names, decision.ranked[:2])

    def _strange(self, unknown: list[str], now: float) -> bool:
        """Whether any of these nodes may be on its way to us: named for the first time a moment ago.

        A name that was not asked for during a minute, or became known, is new when it comes again.
        """
        if not unknown:
            return False
        for name in [name for name, (_, last) in self.strangers.items() if now - last > STRANGE_SECONDS]:
            del self.strangers[name]
        if len(self.strangers) > MOST_STRANGERS:
            self.strangers.clear()
        young = False
        for name in unknown[: MOST_STRANGERS // 2]:  # so many are remembered; no cluster is so far ahead of our watch
            first = self.strangers.get(name, (now, now))[0]
            self.strangers[name] = (first, now)
            young = young or now - first <= STRANGE_SECONDS
        return young

    def _wait_if_stale(self, decision: Decision) -> None:
        """Promise no links by what may be out of date: pods that took GPUs since are not known."""
        request = decision.request
        if self.stale and request.links == "required" and request.wanted > 1:
            for i, code in enumerate(decision.codes):
                decision.codes[i] = code or STALE.code

    def _hold_back(self, decision: Decision, now: float) -> bool:
        """Just after a start, pods that were answered before it may be in flight where we see nothing yet.

        kube-scheduler guards the counts; for pods that require links every node whose links are not uniform is
        refused as pending until such pods must have been seen.
        """
        request = decision.request
        waiting = self.cluster.placements.waiting
        if now < self.yields_until and any(priority > request.priority for priority in waiting.values()):
            # The GPUs that victims left may be its: its nomination is lost when the scheduler met us dead.
            for i, code in enumerate(decision.codes):
                decision.codes[i] = code or PROMISED.code
            return True
        if now >= self.settled_at or request.links != "required" or request.wanted < 2:
            return False
        for i, row in enumerate(decision.rows):
            if not decision.codes[i] and not self._uniform(row, request.wanted):
                decision.codes[i] = PENDING.code
        return PENDING.code in decision.codes

    def _hand_over(self, decision: Decision, taking: set[int], now: float) -> bool:
        """Where we evict for this pod ourselves, only the node where we do is passed: the victims must not go in vain.
        Where kube-scheduler does, it takes no place meanwhile that was freed for somebody else (`taking`).

        Whether the pod has to be tried again soon: its victims are gone, and nothing that happens later wakes it.
        """
        plan = self.reservations.of(decision.request.uid, now)
        if taking and plan is not None and self.coming(plan, now):
            for i, row in enumerate(decision.rows):
                if row in taking and self.cluster.names[row] != plan.node:
                    decision.codes[i] = decision.codes[i] or HANDOVER.code
        row = self.cluster.row(plan.node) if plan is not None and plan.own else -1
        if plan is None or row < 0 or row not in decision.rows:  # kube-scheduler itself refuses that node
            return False
        for i, other in enumerate(decision.rows):
            if other != row:
                decision.codes[i] = decision.codes[i] or HANDOVER.code
        return plan.emptied is not None

    def _taking(self, request: PodRequest, fits: array[int], now: float) -> set[int]:
        """Of the rows on which the pod fits, those where a pod of a lower priority would lose what was freed for it,
        and have others evicted a second time. Claims are made anew."""
        lower = self.lower(request, now)
        rows = {self.cluster.row(plan.node) for plan in lower} if lower else set()
        asked = array("i", [row for row in fits if row in rows])
        if not asked:
            return set()
        with self.sparing(request, lower, now):
            codes = self.policy.judge(self.cluster.tables, request, asked)
        return {row for row, code in zip(asked, codes, strict=True) if code}

    def _left(self, decision: Decision, pod: PodRecord, taking: set[int], attempt: Attempt | None, now: float) -> bool:
        """Whether the pod has left, now or before, the nodes that were freed for lower priorities, where it fits on no
        others. Once only: then it takes one, so that no stream of lower preemptors holds it up."""
        before = attempt is not None and attempt.left
        if before or not taking or self.stale:  # while stale no pod is evicted: the pod would have no other place
            return before
        fits = fit.passed(decision.rows, decision.codes)
        if not fits or not taking.issuperset(fits) or not self.leaves(decision, pod, taking, now):
            return False
        for i, row in enumerate(decision.rows):
            if row in taking:
                decision.codes[i] = decision.codes[i] or HANDOVER.code
        return True

    def lower(self, request: PodRequest, now: float) -> list[Reservation]:
        """The plans of pods of a lower priority that are known to wait."""
        plans = (plan for plan in self.reservations.current(now) if plan.uid in self.cluster.pods)
        return [plan for plan in plans if plan.priority < request.priority and plan.uid != request.uid]

    @contextmanager
    def sparing(self, request: PodRequest, plans: list[Reservation], now: float) -> Iterator[None]:
        """Claims as if these plans were of the pod's own priority; made anew on leaving."""
        nodes = self.cluster.tables.nodes
        self.spared = frozenset(plan.uid for plan in plans)
        nodes.drop_claims()
        self.claim(request, now)
        try:
            yield
        finally:
            self.spared = frozenset()
            nodes.drop_claims()
            self.claim(request, now)

    def coming(self, plan: Reservation, now: float) -> bool:
        """Whether the pod is about to have its own place: the victims go, or have just gone."""
        soon = plan.emptied is None or now - plan.emptied <= CARRY_SECONDS
        return soon and not self.cordoned(plan.node)

    def cordoned(self, node: str) -> bool:
        """Whether the node is cordoned, or gone."""
        return node not in self.cluster.nodes or self.cluster.nodes[node].unschedulable

    def _fast_path(self, request: PodRequest, rows: array[int]) -> bool:
        """Whether kube-scheduler asks for nothing but the nominated node."""
        return len(rows) == 1 and self.cluster.names[rows[0]] == request.nominated

    def claim(self, request: PodRequest, now: float) -> None:
        """Count what other pods in flight, and nominated pods of equal or higher priority, will take.

        One pod is counted once, on one node: what bind has asked for outranks the plan or nomination that reserves a
        place, and these a tentative hold.
        """
        cluster = self.cluster
        counted = {request.uid}
        self.sweep(now)
        held = list(self.assumed.current(now, unheard=request.links == "required"))
        for hold in held:
            if hold.bound:
                self._count_hold(hold, counted)
        for plan in self.reservations.current(now):
            if (plan.priority < request.priority and plan.uid not in self.spared) or plan.uid in counted:
                continue
            counted.add(plan.uid)
            self._reserve(plan.node, plan.amounts, cluster.pods.get(plan.uid))
        for uid, node in cluster.placements.nominated.items():
            pod = cluster.pods[uid]
            if uid in counted or pod.priority < request.priority:
                continue
            counted.add(uid)
            self._reserve(node, cluster.amounts(pod), pod)
        for hold in held:
            self._count_hold(hold, counted)

    def _count_hold(self, hold: AssumedPod, counted: set[str]) -> None:
        pod = self.cluster.pods.get(hold.uid)
        if pod is not None and pod.node:
            self.assumed.forget(hold.uid)
            return
        row = self.cluster.row(hold.node)
        if hold.uid not in counted and row >= 0:
            self.cluster.tables.nodes.add_claim(row, hold.amounts, hold.gpus, True)
        counted.add(hold.uid)

    def sweep(self, now: float) -> None:
        """Release what is reserved no more. One decision asks for it several times: it looks once."""
        if self.swept == (now, self.cluster.generation):
            return
        self.swept = now, self.cluster.generation
        for plan in self.reservations.all():
            cause = self._over(plan, self.cluster.pods.get(plan.uid), now)
            if cause:
                self.reservations.drop(plan.uid)
                self.released(plan, cause)

    def pod_deleted(self, uid: str) -> None:
        """The pod is deleted: nothing is held for it any more."""
        plan = next((plan for plan in self.reservations.all() if plan.uid == uid), None)
        self.assumed.forget(uid)
        self.reservations.drop(uid)
        if plan is not None:
            self.released(plan, "deleted")

    def _over(self, plan: Reservation, pod: requests.PodRecord | None, now: float) -> str:
        """Why a plan reserves nothing any more, one of release.CAUSES; "" while it does.

        That `nominatedNodeName` was cleared is no reason: a call that we fail to answer clears it.
        """
        cluster = self.cluster
        if pod is None:
            return "deleted" if now - plan.at > SLACK_SECONDS else ""
        if pod.node:
            return "bound"
        if pod.terminating:
            return "deleted"
        if self.reservations.old(plan, now):
            return "victims-stay"
        if cluster.row(plan.node) < 0:
            return "node-lost"
        left = [cluster.pods[uid] for uid in plan.victims if uid in cluster.placements.bound.get(plan.node, ())]
        if not left:
            plan.emptied = plan.emptied if plan.emptied is not None else now
            if self._outbid(plan):
                return "outbid"
            used = now - plan.emptied <= PLAN_CARRIED_OUT or now - self.up_since <= COME_BACK
            return "" if used else "not-used"
        untouched = len(left) == len(plan.victims) and not any(victim.terminating for victim in left)
        patience = OWN_PLAN_NOT_CARRIED_OUT if plan.own else PLAN_NOT_CARRIED_OUT
        return "not-carried-out" if untouched and now - plan.at > patience else ""

    def _outbid(self, plan: Reservation) -> bool:
        """Whether pods of a higher priority sit where its victims were, and leave too little."""
        row, cluster = self.cluster.row(plan.node), self.cluster
        nodes = cluster.tables.nodes
        columns = zip(plan.amounts, nodes.alloc_of(row), nodes.used_of(row), strict=True)
        short = any(wanted > has - held for wanted, has, held in columns if wanted)
        return short and any(pod.priority > plan.priority for pod in cluster.pods_on(plan.node))

    def _reserve(self, node: str, amounts: tuple[int, ...], pod: requests.PodRecord | None) -> None:
        """Claim a place for a nominated pod. Where it requires links that a count can not guard, all GPUs are its."""
        row = self.cluster.row(node)
        if row < 0:
            return
        if pod is not None:
            amounts = self._guarded(requests.read(pod, self.cluster), row, amounts)
        self.cluster.tables.nodes.add_claim(row, amounts, 0, False)

    def _guarded(self, request: PodRequest, row: int, amounts: tuple[int, ...]) -> tuple[int, ...]:
        """`amounts`, with all GPUs of the node where the pod requires links that a count can not guard there: another
        pod that is admitted before it could leave it a set that is not linked."""
        if not request.gpus or request.links != "required" or request.wanted < 2:
            return amounts
        if self._uniform(row, request.wanted):
            return amounts
        alloc = self.cluster.tables.nodes.alloc_of(row)
        whole = list(amounts)
        whole[request.resource] = max(amounts[request.resource], alloc[request.resource])
        return tuple(whole)

    def _uniform(self, row: int, wanted: int) -> bool:
        """Whether any `wanted` GPUs of the node are linked, so that a count is guard enough."""
        tables = self.cluster.tables
        shape, healthy, _ = tables.nodes.graph_of(row)
        return fit.uniform(tables.shapes, shape, healthy, wanted)

    def _hold(self, request: PodRequest, row: int, gpus: int, now: float) -> None:
        # kube-scheduler binds side by side: whom it binds first is not whom it asked about first. With the bind verb
        # each pod is judged again as it is bound, without it we would never know.
        amounts = request.amounts if self.binds else self._guarded(request, row, request.amounts)
        self.assumed.assume(request.uid, self.cluster.names[row], amounts, gpus, now)

    def _flying(self, now: float) -> list[tuple[str, str]]:
        """(uid, node) of the pods that are about to be bound, as far as we can tell."""
        return [(hold.uid, hold.node) for hold in self.assumed.current(now)]

    def choose(self, row: int, request: PodRequest) -> int:
        """The mask that we would take on a node now; 0 where positions are not modelled, or where GPUs are held there
        and nobody says which: any that we named could be one of them."""
        if self.cluster.tables.nodes.unknown_of(row):
            return 0
        return self.policy.gpus(self.cluster.tables, request, (row,))[row]


def _last(decision: Decision, taking: set[int]) -> None:
    """Put the rows that were freed for others behind all that were not."""
    if taking and decision.total:
        span = max(decision.total) - min(decision.total) + 1.0
        for i, row in enumerate(decision.fits):
            if row in taking:
                decision.total[i] -= span


def _known(args: wire.Args) -> array[int]:
    """The rows of known nodes, in the order they came."""
    return array("i", [row for row in args.rows if row >= 0]) if args.unknown else args.rows


def _plan_text(pod: requests.PodRecord, resource: str, gpus: int) -> str:
    """ "0,3", or "c1=0,3;c2=5" with several GPU containers (init containers' GPUs are used again, and not named)."""
    ids = list(gpus_of(gpus))
    containers = [(name, count) for name, kind, count in pod.gpu_containers if kind == resource]
    if len(containers) == 1 or sum(count for _, count in containers) != len(ids):
        return ",".join(str(i) for i in ids)
    parts = []
    for name, count in containers:
        parts.append(f"{name}=" + ",".join(str(i) for i in ids[:count]))
        ids = ids[count:]
    return ";".join(parts)
