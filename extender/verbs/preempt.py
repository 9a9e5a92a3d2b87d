"""preempt: which pods have to go so that this one fits, as cheaply as can be, and never twice for one need.

Legal nodes: those that kube-scheduler offers, and those which the pod's latest filter call refused for links alone.
Where nothing but CPU, memory, pod slots and GPUs decides whether the pod fits, the offered victims may be exchanged for
cheaper ones; elsewhere they are the floor that we only add to. A plan is answered only if our own filter would pass the
pod on that node once the victims are gone.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import compress

from ext_core import columns, gather
from extender.cluster.nodes.eligibility import MOST_PARTS, TooLong
from extender.cluster.view import ClusterView
from extender.objects.records import NodeRecord, PodRecord
from extender.policy import pod_request as requests
from extender.policy.contracts import CostTerm, PodRequest
from extender.policy.costs.grace import Grace
from extender.policy.costs.highest_priority import HighestPriority
from extender.policy.rules.count import RELEASING
from extender.preemption import candidates, certificate, search
from extender.preemption.candidates import OVERDUE_SECONDS
from extender.reservations.reservations import Reservation
from extender.verbs import wire
from extender.verbs.decide import CARRY_SECONDS, Answer, Decider, Stages
from extender.verbs.decisions import Decision

FRESH_SECONDS = 2.0  # preempt follows its filter call within milliseconds; an older call is of another cycle
MOST_LOSERS = 4  # plans that one preemption weighs against its own: each is a search
RELEASE_SECONDS = 60.0  # how long a preemptor waits for pods that end by themselves, rather than evict


def preempt(decider: Decider, body: bytes, now: float, wall: float) -> Answer:
    stages = Stages()
    cluster = decider.cluster
    asked = wire.read_preemption(body, cluster.gpu_names, cluster.rows.index, cluster.names)
    request = requests.read(asked.pod, cluster)
    if not request.gpus:
        return Answer(wire.echo(asked), "untouched")
    decision = Decision("preempt", wall, cluster.generation, request, offered=len(asked.offered))
    stages.mark("read")
    reason = _why_not(decider, request, asked.pod, now)
    decider.sweep(now)  # what is over reserves nothing, and is not to be answered again
    standing = decider.reservations.of(request.uid, now)
    if reason:
        return _none(decider, decision, stages, reason)
    if standing is not None and standing.own:
        return _none(decider, decision, stages, "pods are being evicted for it already, by ourselves")
    if standing is not None:
        left = [cluster.pods[uid] for uid in standing.victims if _sits(cluster, uid, standing.node)]
        row = cluster.row(standing.node)
        if left and row >= 0 and not cluster.nodes[standing.node].unschedulable:
            uids = [pod.uid for pod in left]
            fits = search.fits_without(
                decider, request, row, {*uids, *_leaving(decider, request, standing, now, wall)}, now
            )
            cluster.tables.nodes.drop_claims()
            if fits:
                decision.detail = {"node": standing.node, "victims": uids, "why": "the plan that was answered before"}
                body = wire.preemption(
                    standing.node, uids, certificate.violations(cluster, certificate.important(left))
                )
                return _answer(decider, decision, stages, body, "standing-plan")
        if not left:
            standing.emptied = standing.emptied if standing.emptied is not None else now
            if now - standing.emptied <= CARRY_SECONDS:
                return _none(decider, decision, stages, "an earlier plan has just been carried out")
        # What it frees stays the pod's all the same, unless another plan takes its place.
    decider.claim(request, now)
    try:
        found, waits, left_to = _sparing(decider, request, asked, now, wall)
    finally:
        cluster.tables.nodes.drop_claims()
    stages.mark("search")
    decision.offered = max(decision.offered, found.nodes)  # with those that were refused for links alone
    if waits:
        return _none(decider, decision, stages, waits)
    decision.proved = found.proved
    if found.best is None:
        searched = "" if found.proved else "before the search budget ended no eviction was found that "
        why = f"{searched or 'no eviction '}makes the pod fit on a node that was offered"
        return _none(decider, decision, stages, why)
    if standing is not None:
        decider.released(standing, "replaced")
    return _evict(decider, decision, stages, found, left_to, now)


def _why_not(decider: Decider, request: PodRequest, pod: PodRecord, now: float) -> str:
    if request.never:
        return "the pod's preemptionPolicy is Never"
    attempt = decider.attempts.of(request.uid, now)
    if attempt is not None and now - attempt.at <= FRESH_SECONDS:
        if attempt.transient:
            return "a node was refused only because our view may be behind"
        if attempt.left_out:
            return "the pod fits on nodes that were left out of the shortlist: it is tried again with all of them"
    away = list(decider.cluster.away(now))
    accepted = _accepting(decider.cluster, pod, [node.name for node in away]) if away else None
    for node in away:
        if (accepted is None or node.name in accepted) and _would_fit(decider.cluster, request, node):
            return f"the pod may fit on {node.name} when its device plugin is back"
    return ""


def _accepting(cluster: ClusterView, pod: PodRecord, names: Sequence[str]) -> list[str] | None:
    """Those of the nodes that its node selector and required node affinity let it onto; None where it asks for more
    than can be looked at while it waits."""
    try:
        program = cluster.eligibility.program(pod.node_selector, pod.node_terms, None, MOST_PARTS)
    except TooLong:
        return None
    rows = array("i", map(cluster.row, names))
    return [cluster.names[row] for row in columns.kept(rows, cluster.eligibility.rows(program))]


def _would_fit(cluster: ClusterView, request: PodRequest, node: NodeRecord) -> bool:
    """Whether the capacity of a node whose plugin is away, less what is held there, is enough."""
    held = [cluster.amounts(pod) for pod in cluster.pods_on(node.name)]
    return all(
        wanted <= node.gpu_capacity.get(cluster.resources[r], 0) - sum(amounts[r] for amounts in held)
        for r, wanted in request.gpus
    )


def _leaving(decider: Decider, request: PodRequest, standing: Reservation, now: float, wall: float) -> set[str]:
    """The pods that go from the plan's node besides its own victims: those that are ending, and the victims of plans
    whose preemptors count as being there already."""
    cluster = decider.cluster
    ending = {pod.uid for pod in cluster.pods_on(standing.node) if candidates.ends(pod, wall)}
    others = [plan for plan in decider.reservations.current(now) if plan.node == standing.node and plan is not standing]
    return ending.union(*(plan.victims for plan in others if plan.priority >= request.priority))


def _sits(cluster: ClusterView, uid: str, node: str) -> bool:
    return uid in cluster.placements.bound.get(node, ())


def _sparing(
    decider: Decider, request: PodRequest, asked: wire.Preemption, now: float, wall: float
) -> tuple[search.Found, str, list[str]]:
    """As `_search`; but a place that was freed for a pod of a lower priority is left to it where the pod finds another
    that costs no more than both together: what is evicted here, and what would be evicted for that pod again. Third:
    namespace/name of the pods that a place was left to. Nothing is where more than MOST_LOSERS would have to be weighed
    against it."""
    found, waits = _search(decider, request, asked, now, wall)
    lower = decider.lower(request, now)
    if found.best is not None:
        losing = [plan for plan in lower if plan.node == found.best.node]
    else:  # it would wait for a node, or take it, and which is not told
        losing = lower if waits else []
    if not 0 < len(losing) <= MOST_LOSERS:
        return found, waits, []
    with decider.sparing(request, lower, now):
        other, other_waits = _search(decider, request, asked, now, wall)
    if other_waits:
        return other, other_waits, []
    if other.best is None or not spares(decider, request, asked.rows, found, other, losing, now, wall):
        return found, waits, []
    return other, "", sorted(plan.pod for plan in losing if plan.node != other.best.node)


def spares(
    decider: Decider,
    request: PodRequest,
    rows: array[int],
    found: search.Found,
    other: search.Found,
    losing: Sequence[Reservation],
    now: float,
    wall: float,
) -> bool:
    """Whether `other`, which leaves the `losing` plans alone, costs no more in all than `found`, which takes what was
    freed for them: all of them where it evicts, one where it evicts no pod. `rows`: the candidate nodes. A preemptor
    that has no other place keeps its own as long as only pods of lower priority are evicted for that. No budget is
    violated for it: the preemptor that lost its place may never ask again."""
    assert other.best is not None
    terms, cluster = decider.policy.costs, decider.cluster
    if certificate.violations(cluster, other.best.pods) > certificate.violations(
        cluster, found.best.pods if found.best else ()
    ):
        return False
    again = [_again(decider, request, plan, rows, now, wall) for plan in losing]
    known = [cost for cost in again if cost is not None]
    if len(known) < len(again) and (found.best is not None or not known):
        stranded = min(plan.priority for plan, cost in zip(losing, again, strict=True) if cost is None)
        return all(pod.priority < stranded for pod in other.best.pods)
    if found.best is None:
        return other.best.cost <= min(known)
    whole = found.best.cost
    for cost in known:
        whole = _sum(terms, whole, cost)
    return other.best.cost <= whole


def _again(
    decider: Decider, request: PodRequest, plan: Reservation, offered: array[int], now: float, wall: float
) -> tuple[int, ...] | None:
    """What evicting for the plan's pod on another of these nodes would cost; None where that is impossible. The pod in
    turn leaves alone what was freed for lower priorities: else one eviction outbids the next, down to the lowest.
    """
    cluster = decider.cluster
    pod = cluster.pods.get(plan.uid)
    if pod is None:
        return None
    names = [cluster.names[row] for row in gather.by_name(cluster.tables.nodes, array("i"), offered)]
    rows = array("i", map(cluster.row, (name for name in _accepting(cluster, pod, names) or () if name != plan.node)))
    other = requests.read(pod, cluster)
    spared = decider.spared
    decider.spared = frozenset(one.uid for one in decider.lower(other, now))
    cluster.tables.nodes.drop_claims()
    decider.claim(other, now)
    # The winner's: who is evicted for the loser can not go there either (victims_stranded).
    cluster.tables.nodes.add_claim(cluster.row(plan.node), request.amounts, 0, False)
    try:
        codes = decider.policy.judge(cluster.tables, other, rows)
        if any(
            not code and not search.amounts_short(cluster, other, row) for row, code in zip(rows, codes, strict=True)
        ):
            return tuple(_nothing(term) for term in decider.policy.costs)
        found = search.find(decider, other, pod, rows, None, now, wall)
    finally:
        decider.spared = spared
        cluster.tables.nodes.drop_claims()
        decider.claim(request, now)
    return found.best.cost if found.best is not None else None


def _nothing(term: CostTerm) -> int:
    """What a term says of no victims."""
    return search.LOWEST if term.name == HighestPriority.name else 0


def _sum(terms: Sequence[CostTerm], a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    """The cost of two evictions together, which may go at once."""
    highest = (HighestPriority.name, Grace.name)
    return tuple(max(x, y) if term.name in highest else x + y for term, x, y in zip(terms, a, b, strict=True))


def _search(
    decider: Decider, request: PodRequest, asked: wire.Preemption, now: float, wall: float
) -> tuple[search.Found, str]:
    """(evictions, cheapest first; why nobody has to go, or "")."""
    cluster = decider.cluster
    attempt = decider.attempts.of(request.uid, now)
    get, nodes = cluster.rows.index.get, cluster.tables.nodes
    more = array("i")
    if request.exchangeable and attempt is not None and now - attempt.at <= FRESH_SECONDS:
        more = array("i", [get(name) for name in attempt.links_only])
    rows = gather.by_name(nodes, asked.rows, more)
    repelled: set[str] = set()
    if cluster.placements.repelling:
        repelled = repelled_from(cluster, asked.pod, [cluster.names[row] for row in rows])
        offered = asked.offered.keys()
        kept = [name not in repelled or name in offered for name in map(cluster.names.__getitem__, rows)]
        rows = array("i", compress(rows, kept))
    if not rows:
        return search.Found(), ""
    codes = decider.policy.judge(cluster.tables, request, rows)
    for row, code in zip(rows, codes, strict=True) if 0 in codes else ():
        name = cluster.names[row]
        if (
            not code
            and (request.exchangeable or name not in asked.offered or not asked.offered[name].uids)
            and name not in repelled
            and not search.amounts_short(cluster, request, row)
        ):
            return search.Found(nodes=len(rows)), f"the pod fits on {name} now, without an eviction"
    fixed = repelled if request.exchangeable else asked.offered

    def floor(name: str) -> Sequence[str] | None:
        """Where more decides than we model, what kube-scheduler offers is the floor that is only added to."""
        return asked.offered[name].uids if name in fixed and name in asked.offered else None

    found = search.find(decider, request, asked.pod, rows, floor if fixed else None, now, wall)
    free = found.best is not None and all(pod.terminating for pod in found.best.pods)
    if RELEASING.code in codes and not free:
        ending = (cluster.names[row] for row, code in zip(rows, codes, strict=True) if code == RELEASING.code)
        soon = next((name for name in ending if _releases(cluster, name, wall)), None)
        if soon is not None:
            return search.Found(nodes=len(rows)), f"the pod will fit on {soon} when the pods that are ending are gone"
    return found, ""


def repelled_from(cluster: ClusterView, pod: PodRecord, names: Sequence[str]) -> set[str]:
    """The nodes where a running pod's required anti-affinity may speak of this one."""
    return {
        name
        for name in (names if cluster.placements.repelling else ())
        if any(other.uid in cluster.placements.repelling and other.may_repel(pod) for other in cluster.pods_on(name))
    }


def _releases(cluster: ClusterView, name: str, wall: float) -> bool:
    """Whether waiting for what terminates on the node within a minute is enough, so that an eviction is in vain."""
    ends = [pod.deletion_at for pod in cluster.pods_on(name) if pod.terminating]
    return all(end is not None and -OVERDUE_SECONDS <= end - wall <= RELEASE_SECONDS for end in ends)


def _evict(
    decider: Decider, decision: Decision, stages: Stages, found: search.Found, left_to: list[str], now: float
) -> Answer:
    best = found.best
    assert best is not None
    pods = certificate.important(best.pods)
    uids = tuple(pod.uid for pod in pods)
    request = decision.request
    decider.reservations.add(Reservation(request.uid, best.node, uids, request.amounts, request.priority, now))
    decision.detail = {
        "node": best.node,
        "victims": [certificate.victim(decider.cluster, pod) for pod in pods],
        "cost": certificate.cost_of(decider, best),
        "certificate": certificate.certificate(decider, found),
        "warnings": certificate.warnings(decider.cluster, pods),
    }
    if left_to:
        decision.detail["left_to"] = left_to  # what was freed for them would have been cheaper, for this pod alone
    violations = certificate.violations(decider.cluster, pods)
    return _answer(decider, decision, stages, wire.preemption(best.node, uids, violations), "evict")


def _none(decider: Decider, decision: Decision, stages: Stages, why: str) -> Answer:
    decision.detail = {"why": why}
    return _answer(decider, decision, stages, wire.preemption(None), "none")


def _answer(decider: Decider, decision: Decision, stages: Stages, body: bytes, result: str) -> Answer:
    decision.result = result
    stages.mark("answer")
    decision.stages_us = stages.spent
    decider.decisions.add(decision)
    return Answer(body, result, decision)
