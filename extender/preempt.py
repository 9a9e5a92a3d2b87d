"""preempt: which pods have to go so that this one fits, as cheaply as can be, and never twice for one need.

Legal nodes: those that kube-scheduler offers, and those which the pod's latest filter call refused for links alone.
Where nothing but CPU, memory, pod slots and GPUs decides whether the pod fits, the offered victims may be exchanged for
cheaper ones; elsewhere they are the floor that we only add to. A plan is answered only if our own filter would pass the
pod on that node once the victims are gone.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ext_core import fit, gather, victims
from extender import request as requests
from extender import wire
from extender.cluster import Cluster
from extender.contracts import Groups, PodRequest, Victims
from extender.decide import Answer, Decider, Stages
from extender.decisions import Decision
from extender.holds import Plan
from extender.progress import lost, restart_seconds, saved_ms, start_ms
from extender.records import NodeRecord, PodRecord
from extender.rules.count import RELEASING

CARRY_SECONDS = 5.0  # after the last victim is gone the scheduler needs a moment to come back with the pod
LOWEST = -(2**63)  # what the search answers for the maximum over no victims
FRESH_SECONDS = 2.0  # preempt follows its filter call within milliseconds; an older call is of another cycle
OVERDUE_SECONDS = 30.0  # a pod that should have ended longer ago (a finalizer, a hung unmount) may stay for ever
RELEASE_SECONDS = 60.0  # how long a preemptor waits for pods that end by themselves, rather than evict
LEAST_BUDGET = 2_000  # search nodes per candidate, however many there are
FOUND = (1, 2)  # a sufficient set: proved cheapest, or the best found within the budget


@dataclass(frozen=True, slots=True)
class Eviction:
    """The cheapest sufficient victims on one node. `cost`: one number per term, in order."""

    node: str
    row: int
    pods: tuple[PodRecord, ...]
    cost: tuple[int, ...]
    proved: bool


def preempt(decider: Decider, body: bytes, now: float, wall: float) -> Answer:
    stages = Stages()
    cluster = decider.cluster
    asked = wire.read_preemption(body, cluster.gpu_names)
    request = requests.read(asked.pod, cluster)
    if not request.gpus:
        return Answer(wire.echo(asked), "untouched")
    decision = Decision("preempt", wall, cluster.generation, request)
    stages.mark("read")
    reason = _why_not(decider, request, asked.pod, now)
    standing = decider.holds.planned(request.uid, now)
    if reason:
        return _none(decider, decision, stages, reason)
    if standing is not None and standing.own:
        return _none(decider, decision, stages, "pods are being evicted for it already, by ourselves")
    if standing is not None:
        left = [cluster.pods[uid] for uid in standing.victims if _sits(cluster, uid, standing.node)]
        row = cluster.row(standing.node)
        if left and row >= 0 and not cluster.nodes[standing.node].unschedulable:
            again = Eviction(standing.node, row, tuple(left), (), False)
            if _fits_without(decider, request, again, now):
                uids = [pod.uid for pod in left]
                decision.detail = {"node": standing.node, "victims": uids, "why": "the plan that was answered before"}
                body = wire.preemption(standing.node, uids, _violations(decider, left))
                return _answer(decider, decision, stages, body, "standing-plan")
        if not left:
            standing.emptied = standing.emptied if standing.emptied is not None else now
            if now - standing.emptied <= CARRY_SECONDS:
                return _none(decider, decision, stages, "an earlier plan has just been carried out")
        decider.holds.drop_plan(request.uid)
    decider.claim(request, now)
    try:
        found, examined, waits = _search(decider, request, asked, now, wall)
    finally:
        cluster.tables.nodes.drop_claims()
    stages.mark("search")
    if waits:
        return _none(decider, decision, stages, waits)
    for place, eviction in enumerate(found):
        if _fits_without(decider, request, eviction, now):
            runner_up = next((other for other in found[place + 1 :]), None)
            return _evict(decider, decision, stages, eviction, runner_up, examined, now)
    return _none(decider, decision, stages, "no eviction makes the pod fit on a node that was offered")


def _why_not(decider: Decider, request: PodRequest, pod: PodRecord, now: float) -> str:
    if request.never:
        return "the pod's preemptionPolicy is Never"
    attempt = decider.holds.attempt(request.uid, now)
    if attempt is not None and now - attempt.at <= FRESH_SECONDS:
        if attempt.transient:
            return "a node was refused only because our view may be behind"
        if attempt.left_out:
            return "the pod fits on nodes that were left out of the shortlist: it is tried again with all of them"
    for node in decider.cluster.away(now):
        if pod.accepts(node) and _would_fit(decider.cluster, request, node):
            return f"the pod may fit on {node.name} when its device plugin is back"
    return ""


def _would_fit(cluster: Cluster, request: PodRequest, node: NodeRecord) -> bool:
    """Whether the capacity of a node whose plugin is away, less what is held there, is enough."""
    held = [cluster.amounts(pod) for pod in cluster.pods_on(node.name)]
    return all(
        wanted <= node.gpu_capacity.get(cluster.resources[r], 0) - sum(amounts[r] for amounts in held)
        for r, wanted in request.gpus
    )


def _sits(cluster: Cluster, uid: str, node: str) -> bool:
    return uid in cluster.bound.get(node, ())


def _search(
    decider: Decider, request: PodRequest, asked: wire.Preemption, now: float, wall: float
) -> tuple[list[Eviction], dict[str, int], str]:
    """(evictions, cheapest first; what was examined; why nobody has to go, or "")."""
    cluster = decider.cluster
    attempt = decider.holds.attempt(request.uid, now)
    names = sorted(name for name in asked.offered if cluster.row(name) >= 0)
    if request.exchangeable and attempt is not None and now - attempt.at <= FRESH_SECONDS:
        names += sorted(
            name
            for name in attempt.links_only
            if name not in asked.offered and cluster.row(name) >= 0 and not cluster.nodes[name].unschedulable
        )
    repelled = {
        name
        for name in (names if cluster.repelling else ())
        if any(pod.uid in cluster.repelling and pod.may_repel(asked.pod) for pod in cluster.pods_on(name))
    }
    names = [name for name in names if name in asked.offered or name not in repelled]
    rows = array("i", [cluster.row(name) for name in names])
    if not rows:
        return [], {"nodes": 0, "sets": 0}, ""
    codes = decider.policy.judge(cluster.tables, request, rows)
    for name, code in zip(names, codes, strict=True):
        if not code and not (asked.offered.get(name) and not request.exchangeable):
            fits_counts = _fits_amounts(decider, request, cluster.row(name))
            if fits_counts and name not in repelled:
                return [], {"nodes": len(rows), "sets": 0}, f"the pod fits on {name} now, without an eviction"
    gathered = gather.victims(
        cluster.tables.nodes,
        cluster.tables.pods,
        rows,
        array("q", request.amounts),
        request.resource,
        request.priority,
    )
    if not gathered.pods:
        return [], {"nodes": len(rows), "sets": 0}, ""
    _keep_overdue(cluster, gathered, wall)
    forced, impossible = _floor(cluster, request, asked, names, gathered, repelled)
    tables, ok = _link_tables(decider, request, rows, impossible)
    columns = _columns(cluster, gathered, wall)
    terms = [cost.term(columns) for cost in decider.policy.costs]
    result = victims.cheapest(
        gathered.start,
        gathered.short,
        gathered.amounts,
        gathered.masks,
        gathered.free,
        gathered.unknown,
        gathered.unsure,
        tables,
        ok,
        forced,
        terms,
        max(LEAST_BUDGET, decider.settings.preemption.search_budget // len(rows)),
    )
    found: list[Eviction] = []
    for i, name in enumerate(names):
        if i in impossible or result.status[i] not in FOUND:
            continue
        chosen = [k for k in range(gathered.start[i], gathered.start[i + 1]) if result.chosen[k]]
        if not chosen:
            continue
        pods = tuple(cluster.pods[cluster.uid_of_row[gathered.pods[k]]] for k in chosen)
        cost = tuple(result.cost[t * len(rows) + i] for t in range(len(terms)))
        found.append(Eviction(name, rows[i], pods, cost, result.status[i] == 1))
    found.sort(key=lambda eviction: (eviction.cost, eviction.node))
    free = bool(found) and all(pod.terminating for pod in found[0].pods)
    soon = next((name for name, code in zip(names, codes, strict=True) if _releases(cluster, name, code, wall)), None)
    if soon is not None and not free:
        return [], {"nodes": len(rows), "sets": 0}, f"the pod will fit on {soon} when the pods that are ending are gone"
    return found, {"nodes": len(rows), "sets": int(sum(result.examined))}, ""


def _releases(cluster: Cluster, name: str, code: int, wall: float) -> bool:
    """Whether waiting for what terminates on the node within a minute is enough, so that an eviction is in vain."""
    if code != RELEASING.code:
        return False
    ends = [pod.deletion_at for pod in cluster.pods_on(name) if pod.terminating]
    return all(end is not None and -OVERDUE_SECONDS <= end - wall <= RELEASE_SECONDS for end in ends)


def _fits_amounts(decider: Decider, request: PodRequest, row: int) -> bool:
    node = decider.cluster.tables.nodes.node(row)
    alloc, used, claim = node["alloc"], node["used"], node["claim"]
    assert isinstance(alloc, tuple)
    assert isinstance(used, tuple)
    assert isinstance(claim, tuple)
    pairs = zip(request.amounts, alloc, used, claim, strict=True)
    return all(wanted == 0 or wanted <= has - held - taken for wanted, has, held, taken in pairs)


def _keep_overdue(cluster: Cluster, gathered: gather.Gathered, wall: float) -> None:
    """A pod that should have ended long ago frees nothing: a plan must not rest on it."""
    for k, row in enumerate(gathered.pods):
        if gathered.going[k]:
            end = cluster.pods[cluster.uid_of_row[row]].deletion_at
            if end is not None and wall - end > OVERDUE_SECONDS:
                gathered.masks[k] = 0
                gathered.unsure[k] = 0
                for r in range(len(cluster.resources)):
                    gathered.amounts[r, k] = 0


def _floor(
    cluster: Cluster,
    request: PodRequest,
    asked: wire.Preemption,
    names: Sequence[str],
    gathered: gather.Gathered,
    repelled: set[str],
) -> tuple[array[int], set[int]]:
    """(1 for each gathered pod that must be among the victims, candidates where the floor can not be met)."""
    forced = array("B", bytes(len(gathered.pods)))
    impossible: set[int] = set()
    for i, name in enumerate(names):
        offer = asked.offered.get(name)
        if offer is None or (request.exchangeable and name not in repelled):
            continue
        at = {cluster.uid_of_row[gathered.pods[k]]: k for k in range(gathered.start[i], gathered.start[i + 1])}
        for uid in offer.uids:
            if uid in at:
                forced[at[uid]] = 1
            else:
                impossible.add(i)  # a pod that we do not see there: its room can not be judged
    return forced, impossible


def _link_tables(
    decider: Decider, request: PodRequest, rows: array[int], impossible: set[int]
) -> tuple[array[int], list[bytes]]:
    """(table index per candidate, tables): which masks of free GPUs satisfy the pod. -1: counting is enough."""
    tables = array("i", [-1] * len(rows))
    if request.links != "required" or request.wanted < 2:
        return tables, []
    nodes, shapes = decider.cluster.tables.nodes, decider.cluster.tables.shapes
    made: list[bytes] = []
    known: dict[tuple[int, int], int] = {}
    for i, row in enumerate(rows):
        node = nodes.node(row)
        shape, healthy = int(node["shape"]), int(node["healthy"])  # type: ignore[arg-type]
        if not shape or node["gpu"] != request.resource:
            impossible.add(i)
            continue
        if fit.uniform(shapes, shape, healthy, request.wanted):
            continue
        key = (shape, healthy.bit_length())
        if key not in known:
            known[key] = len(made)
            made.append(fit.link_table(shapes, shape, key[1], request.wanted, request.containers))
        tables[i] = known[key]
    return tables, made


def _columns(cluster: Cluster, gathered: gather.Gathered, wall: float) -> Victims:
    pods = [cluster.pods[cluster.uid_of_row[row]] for row in gathered.pods]
    return Victims(
        gathered.pods,
        gathered.priority,
        gathered.start_ms,
        gathered.saved_ms,
        gathered.restart_s,
        gathered.grace_s,
        gathered.gpus,
        gathered.going,
        int(wall * 1000),
        _budgets(cluster, pods),
        *_gangs(cluster, pods, int(wall * 1000)),
    )


def _budgets(cluster: Cluster, pods: Sequence[PodRecord]) -> Groups:
    """PodDisruptionBudgets as groups. A pod that goes already, or that a budget has counted already, costs nothing."""
    starts, members = array("i", [0]), array("i")
    keys = sorted(cluster.budgets)
    budgets = [cluster.budgets[key] for key in keys]
    inside: dict[str, list[int]] = {}
    for g, budget in enumerate(budgets):
        if not budget.selector.empty:  # kube-scheduler: an empty selector matches nothing
            inside.setdefault(budget.namespace, []).append(g)
    for pod in pods:
        for g in () if pod.terminating else inside.get(pod.namespace, ()):
            if pod.name not in budgets[g].disrupted_pods and budgets[g].selector.matches(pod.labels):
                members.append(g)
        starts.append(len(members))
    allowance = array("q", [max(0, budget.disruptions_allowed) for budget in budgets])
    return Groups(starts, members, allowance, tuple(f"{namespace}/{name}" for namespace, name in keys))


def _gangs(cluster: Cluster, pods: Sequence[PodRecord], now_ms: int) -> tuple[Groups, array[int]]:
    """(gangs as groups, the work in GPU-seconds that all running members of each lose when it breaks)."""
    if not cluster.ganged:
        return Groups(array("i", bytes(4 * (len(pods) + 1))), array("i"), array("q"), ()), array("q")
    starts, members = array("i", [0]), array("i")
    of = [None if pod.terminating else cluster.gang_of(pod) for pod in pods]
    found = cluster.gangs() if any(of) else {}
    names = sorted(name for name in found if name in of)
    index = {name: g for g, name in enumerate(names)}
    for name in of:
        if name is not None:
            members.append(index[name])
        starts.append(len(members))
    allowance = array("q", [len(found[name].members) - found[name].minimum for name in names])
    work = array("q", [sum(_lost(cluster, pod, now_ms) for pod in found[name].members) for name in names])
    return Groups(starts, members, allowance, tuple(names)), work


def _lost(cluster: Cluster, pod: PodRecord, now_ms: int) -> int:
    gpus = sum(cluster.amounts(pod)[3:])
    return lost(gpus, start_ms(pod), saved_ms(pod), restart_seconds(pod), now_ms)


def _fits_without(decider: Decider, request: PodRequest, eviction: Eviction, now: float) -> bool:
    """Whether our own filter would pass the pod on the node, were the victims gone."""
    cluster = decider.cluster
    with cluster.without({pod.uid for pod in eviction.pods}, eviction.node):
        decider.claim(request, now)
        try:
            return not decider.policy.judge(cluster.tables, request, array("i", [eviction.row]))[0]
        finally:
            cluster.tables.nodes.drop_claims()


def _evict(
    decider: Decider,
    decision: Decision,
    stages: Stages,
    eviction: Eviction,
    runner_up: Eviction | None,
    examined: dict[str, int],
    now: float,
) -> Answer:
    pods = sorted(eviction.pods, key=lambda pod: (-pod.priority, pod.start or 0.0, pod.uid))
    uids = tuple(pod.uid for pod in pods)
    request = decision.request
    decider.holds.plan(Plan(request.uid, eviction.node, uids, request.amounts, request.priority, now))
    names = [cost.name for cost in decider.policy.costs]
    violations = (
        eviction.cost[names.index("pdb_violations")] if "pdb_violations" in names else _violations(decider, pods)
    )
    decision.detail = {
        "node": eviction.node,
        "victims": [_victim(decider.cluster, pod) for pod in pods],
        "cost": _cost(decider, eviction),
        "certificate": {
            "proved": eviction.proved,
            "nodes_examined": examined["nodes"],
            "sets_examined": examined["sets"],
            "runner_up": None
            if runner_up is None
            else {
                "node": runner_up.node,
                "victims": [_victim(decider.cluster, pod) for pod in runner_up.pods],
                "cost": _cost(decider, runner_up),
            },
            "lost_on": None
            if runner_up is None
            else next(
                (name for name, a, b in zip(names, eviction.cost, runner_up.cost, strict=True) if a != b), "node name"
            ),
        },
    }
    return _answer(decider, decision, stages, wire.preemption(eviction.node, uids, violations), "evict")


def _violations(decider: Decider, pods: Sequence[PodRecord]) -> int:
    groups = _budgets(decider.cluster, pods)
    memberships = [list(groups.members[groups.starts[i] : groups.starts[i + 1]]) for i in range(len(pods))]
    return victims.kube_pdb_violations(range(len(pods)), memberships, list(groups.allowance))


def _victim(cluster: Cluster, pod: PodRecord) -> dict[str, Any]:
    holding = next((h for h in cluster.ledgers[pod.node].holdings if h.uid == pod.uid), None)
    return {
        "namespace": pod.namespace,
        "name": pod.name,
        "uid": pod.uid,
        "priority": pod.priority,
        "gpu_count": holding.count if holding else 0,
        "gpus": list(holding.gpus) if holding and holding.gpus is not None else None,
        "terminating": pod.terminating,
    }


def _cost(decider: Decider, eviction: Eviction) -> list[dict[str, Any]]:
    return [
        {"term": cost.name, "value": None if value == LOWEST else value, "unit": cost.unit}
        for cost, value in zip(decider.policy.costs, eviction.cost, strict=True)
    ]


def _none(decider: Decider, decision: Decision, stages: Stages, why: str) -> Answer:
    decision.detail = {"why": why}
    return _answer(decider, decision, stages, wire.preemption(None), "none")


def _answer(decider: Decider, decision: Decision, stages: Stages, body: bytes, result: str) -> Answer:
    decision.result = result
    stages.mark("answer")
    decision.stages_us = stages.spent
    decider.decisions.add(decision)
    return Answer(body, result, decision)
