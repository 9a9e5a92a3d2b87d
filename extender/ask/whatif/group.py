"""What would happen to a gang, as JSON: all its pods at once, or none (`ask.place`). And which pods of a question the
cluster has already: their owner has created them, under names of its own.

An owner's pods are named OWNER-INDEX in a question, and often have a generated suffix in the cluster. So they are
compared by their gang, role and index.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from extender.ask import nodes as judged_nodes
from extender.ask import place, warn
from extender.ask.node_reasons import counted_reasons
from extender.ask.nodes import JudgedNodes, admitting
from extender.ask.place import GangCase, Outcome
from extender.ask.suppose import SupposedCluster
from extender.ask.warn import warning
from extender.ask.ways import gang as gang_ways
from extender.ask.whatif import single
from extender.cluster.cluster import ClusterView
from extender.cluster.dra.claim_fits import Specs, unmet
from extender.cluster.statements import gpus_of
from extender.objects import gangs
from extender.objects.queueing import rank_of
from extender.objects.records import PodRecord
from extender.policy.roles import Unplaceable, roles_of
from extender.preemption import certificate
from extender.preemption.gang_plan import cost_of, gang_certificate
from extender.queue.gang import WaitingGang, present
from extender.queue.placement import Placed
from extender.queue.report import QueueReport
from extender.queue.units import ClaimDoubt

NO_SEARCH: Final = {"proved": True, "nodes_examined": 0, "sets_examined": 0, "runner_up": None, "lost_on": None}
"""The certificate of a gang for which no pod need leave."""
OF_GROUP: Final = ("verdict", "victims", "cost", "certificate", "text", "ways_out", "nearest")
"""What a gang of which one pod is placed has as that pod has it."""


@dataclass(frozen=True, slots=True)
class Grouped:
    """The answer about a gang."""

    group: dict[str, Any]
    """As JSON."""
    results: list[dict[str, Any]]
    """Of each of its pods, in the order of `pods`."""
    pods: Sequence[PodRecord]
    outcome: Outcome
    warnings: Sequence[Mapping[str, str]] = ()


def judge(
    supposed: SupposedCluster,
    gang: WaitingGang,
    wall: float,
    *,
    evicts: bool = True,
    report: QueueReport | None = None,
    start: Placed | None = None,
) -> Grouped:
    """What happens to a gang on the cluster as it is: nothing is placed yet. `evicts`: whether pods may be evicted for
    it; `report`: of the latest look at the queue; `start`: where the queue starts it. BadInput: none of its pods asks
    for a GPU."""
    case = GangCase.of(supposed, gang, wall, report)
    supposed.cluster.at(wall)
    warnings = list(_about(case, gang))
    outcome = place.outcome(case, evicts=evicts) if start is None else Outcome(start)
    nodes = _by_pod(case)
    verdict = "cannot" if outcome.placed is None else "evict" if outcome.victims else "fits"
    group = _group(case, verdict, outcome)
    if verdict == "evict" and all(victim.terminating for victim in outcome.victims):
        warnings.append(single.enough_to_wait(outcome.victims))
    if outcome.placed is not None:
        warnings += _of_place(case, outcome.placed)
        if outcome.placed.doubt is not None:
            warnings.append(_claims_in_turn(gang, outcome.placed.doubt))
    elif outcome.none is not None and outcome.none.doubt is not None:
        warnings.append(_claims_together(gang, outcome.none.doubt))
    if verdict != "fits":
        group["text"] = outcome.why
        group["ways_out"] = [way.as_json() for way in gang_ways.ways(case, outcome)]
        group["nearest"] = None if outcome.lacks else gang_ways.nearest(case, outcome)
        if supposed.over():
            warnings.append(single.OUT_OF_TIME)
        warnings += _admitted_nowhere(case)
    warnings += _about_claims(case, outcome)
    results = [_result(case, at, nodes[at], group, outcome) for at in range(len(gang.pods))]
    return Grouped(group, results, case.gang.pods, outcome, warnings)


def carry_out(supposed: SupposedCluster, grouped: Grouped) -> None:
    """Place the pods on the copy, and evict their victims."""
    placed = grouped.outcome.placed
    if placed is None:
        return
    supposed.evict(grouped.outcome.victims)
    for at, (pod, node, mask) in enumerate(zip(grouped.pods, placed.nodes, placed.gpus, strict=True)):
        supposed.place(pod, node, mask, placed.amounts[at] if placed.amounts else ())


def _by_pod(case: GangCase) -> list[JudgedNodes | None]:
    """Of each pod how its own nodes are judged; pods of one role share that. None: it asks for no GPU."""
    supposed, gang = case.supposed, case.gang
    nodes_by_pod: list[JudgedNodes | None] = [None] * len(gang.pods)
    try:
        roles = roles_of(case.supposed.cluster, gang.pods, case.requests)
    except Unplaceable:
        return nodes_by_pod
    for role in roles:
        if role.request.gpus and not supposed.over():
            asked = msgspec.structs.replace(case.asked, request=role.request, pod=role.pod)
            nodes = judged_nodes.read(supposed.judge, asked)
            for at in role.at:
                nodes_by_pod[at] = nodes
    return nodes_by_pod


def _group(case: GangCase, verdict: str, outcome: Outcome) -> dict[str, Any]:
    """The JSON form."""
    supposed, gang, placed, search = case.supposed, case.gang, outcome.placed, outcome.search
    best = None if search is None else search.best
    domain = None if placed is None else placed.domain
    proof = NO_SEARCH | {"nodes_examined": len(supposed.cluster.nodes)}
    if search is not None:
        proof = gang_certificate(supposed.cluster, search)
    return _stated(supposed.cluster, gang) | {
        "verdict": verdict,
        "domain": None if domain is None else {"level": domain[0], "value": domain[1]},
        "pods": [
            {"name": pod.name, "namespace": pod.namespace} | _seat(case, placed, at) for at, pod in enumerate(gang.pods)
        ],
        "victims": [certificate.victim(supposed.cluster, pod) for pod in outcome.victims],
        "cost": cost_of(search, best) if search is not None and best is not None and outcome.victims else [],
        "certificate": proof | {"proved": outcome.proved},
    }


def _stated(cluster: ClusterView, gang: WaitingGang) -> dict[str, Any]:
    """What the JSON form has of the gang as it is: `running`, where pods of it run already."""
    pods = running(cluster, gang.members)
    return {
        "gang": str(gang.ref),
        "source": gang.ref.source,
        "min": gang.minimum if gang.known else None,
        "size": gang.size,
        **({"running": pods} if pods else {}),
    }


def _seat(case: GangCase, placed: Placed | None, at: int) -> dict[str, Any]:
    """The node and the GPUs of a pod: none for one that asks for none, null where it is not known which."""
    if placed is None:
        return {"node": None, "gpus": None}
    asks = case.requests[at].gpus or case.supposed.cluster.dra.asks_gpus(case.gang.pods[at])
    return {"node": placed.nodes[at], "gpus": list(gpus_of(placed.gpus[at])) or (None if asks else [])}


def _result(
    case: GangCase, at: int, nodes: JudgedNodes | None, group: dict[str, Any], outcome: Outcome
) -> dict[str, Any]:
    """The result of one pod. Each victim stands in the result of the first pod on its node; cost and certificate are
    the group's."""
    pod, placed = case.gang.pods[at], outcome.placed
    known = nodes if nodes is not None else JudgedNodes((), Counter(), {}, {}, {}, {}, frozenset(), [])
    result = single.empty(case.supposed, pod, known)
    result["not_checked"] = [*case.gang.unchecked, *result["not_checked"]]
    result |= {"verdict": group["verdict"], "cost": group["cost"], "certificate": group["certificate"]}
    result |= _seat(case, placed, at)
    if placed is not None:
        first = placed.nodes.index(placed.nodes[at]) == at
        evicted = {victim.uid for victim in outcome.victims if first and victim.node == placed.nodes[at]}
        result["victims"] = [victim for victim in group["victims"] if victim["uid"] in evicted]
    if group["verdict"] != "fits":
        result |= {"ways_out": group["ways_out"], "nearest": group["nearest"]}
    return result


def _about(case: GangCase, gang: WaitingGang) -> Iterator[dict[str, str]]:
    for pod, request in zip(gang.pods, case.requests, strict=True):
        yield from single.about(case.supposed, request, pod)
    if not case.queued and (text := place.no_gate(case.supposed.cluster, gang)):
        yield warning("no-gate", text)
    if not gang.known:
        yield warning(
            certificate.MINIMUM_UNKNOWN,
            f"how many pods of {gang.ref.source} gang {gang.ref} must run cannot be read "
            f"({gangs.SOURCES[gang.ref.source].states}): all {len(gang.pods) + len(gang.members)} count as needed",
        )


def _admitted_nowhere(case: GangCase) -> Iterator[dict[str, str]]:
    """The pods that no node admits, whatever runs there; of equal ones the first."""
    cluster, gang = case.supposed.cluster, case.gang
    try:
        roles = roles_of(cluster, gang.pods, case.requests)
    except Unplaceable:
        return
    for role in roles:
        names, others = admitting(role.pod, cluster, list(cluster.nodes))
        if not names and others:
            why = counted_reasons(Counter(dict(others).values()))
            yield warning("no-node", f"pod {role.pod.namespace}/{role.pod.name}: no node admits it ({why})")


def _about_claims(case: GangCase, outcome: Outcome) -> Iterator[dict[str, str]]:
    """Which requests no node meets where the gang has no place, and of which it is not known whether nodes do; of pods
    with equal claims the first."""
    cluster, seen = case.supposed.cluster, set[Specs]()
    fits = cluster.dra.fits
    for pod in case.gang.pods:
        claims = fits.of(pod)
        if claims is None or claims.specs in seen:
            continue
        seen.add(claims.specs)
        rejecting = [name for name, node in cluster.nodes.items() if fits.rejects(node, claims)]
        if outcome.placed is None and len(rejecting) == len(cluster.nodes) > 0:
            yield single.claims_unmet(cluster, pod, min(rejecting), len(rejecting))
        yield from single.claims_unknown(cluster, pod)


def _of_place(case: GangCase, placed: Placed) -> Iterator[dict[str, str]]:
    """Warnings of the GPUs that the gang gets."""
    cluster, gang = case.supposed.cluster, case.gang
    members = [(pod, pod.node) for pod in gang.members]
    yield from warn.several_models(cluster, str(gang.ref), [*zip(gang.pods, placed.nodes, strict=True), *members])
    asked = zip(gang.pods, case.requests, placed.nodes, strict=True)
    first = {node: (pod, request) for pod, request, node in reversed(list(asked)) if request.wanted > 1}
    for node, (pod, request) in sorted(first.items()):
        yield from warn.shared_gpus(cluster, pod, request, node)


def _claims_together(gang: WaitingGang, doubt: ClaimDoubt) -> dict[str, str]:
    """Which claim a node does not meet beside those of the other pods there, or not in every order of the pods."""
    claims, at, unknown = doubt.refusal.claims, doubt.refusal.at, doubt.refusal.unknown
    code, text = ("claim-unknown", "it is not known whether ") if unknown else ("claim-unmet", "")
    text += f"{unmet(claims, at)} is {'' if unknown else 'not '}met on {doubt.node}"
    return warning(code, f"gang {gang.ref}: {text} beside the claims of its other pods there: {at.why}")


def _claims_in_turn(gang: WaitingGang, doubt: ClaimDoubt) -> dict[str, str]:
    """Which claim a node meets or not by the order in which kube-scheduler takes the pods."""
    text = f"whether {unmet(doubt.refusal.claims, doubt.refusal.at)} is met on {doubt.node}"
    why = "depends on the order in which kube-scheduler takes the pods"
    return warning("claim-unknown", f"gang {gang.ref}: {text} {why}")


def of_one(cluster: ClusterView, gang: WaitingGang, result: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON form of a gang of which one pod is placed, by the result of that pod."""
    (pod,) = gang.pods
    placed = {"name": pod.name, "namespace": pod.namespace, "node": result["node"], "gpus": result["gpus"]}
    copied = {key: result[key] for key in OF_GROUP if key in result}
    return _stated(cluster, gang) | {"domain": None, "pods": [placed], **copied}


def counterparts(cluster: ClusterView, named: gangs.Ref, pods: Sequence[PodRecord]) -> list[PodRecord | None]:
    """For each pod of an owner in the question the pod of the cluster that it is; None: it does not exist yet. Where
    the index does not decide, pods with a node come first."""
    members = sorted(present(cluster, named), key=lambda pod: (not pod.node, rank_of(pod), pod.name, pod.uid))
    ranks = [rank_of(pod) for pod in pods]
    by_rank = {rank: pod for pod in reversed(members) if (rank := rank_of(pod))[1] >= 0}
    matches = [by_rank.pop(rank, None) for rank in ranks]
    taken = {pod.uid for pod in matches if pod is not None}
    by_role: dict[str, deque[PodRecord]] = {}
    for pod in members:
        if pod.uid not in taken:
            by_role.setdefault(rank_of(pod)[0], deque()).append(pod)
    for at, (role, _) in enumerate(ranks):
        if matches[at] is None and by_role.get(role):
            matches[at] = by_role[role].popleft()
    return matches


def running(cluster: ClusterView, members: Iterable[PodRecord]) -> list[dict[str, Any]]:
    """The JSON form of those that have a node, with the GPUs that they hold, by node and name. `gpus`: null where it is
    not known which."""
    bound = sorted((pod for pod in members if pod.node), key=lambda pod: (pod.node, pod.name, pod.uid))
    entries = []
    for pod in bound:
        held = cluster.gpus.holding(pod.node, pod.uid)
        gpus = None if held is None or held.gpus is None else list(held.gpus)
        entries.append({"namespace": pod.namespace, "name": pod.name, "node": pod.node, "gpus": gpus})
    return entries


def running_whole(cluster: ClusterView, named: gangs.Ref) -> dict[str, Any]:
    """The JSON form of a gang of which all pods run: nothing is placed, and nothing is evicted for it."""
    members = present(cluster, named)
    size, least = gangs.wanted(named, gangs.Members(members), cluster.gangs.objects)
    return {
        "gang": str(named),
        "source": named.source,
        "min": size if least is None else least,
        "size": size,
        "verdict": "fits",
        "domain": None,
        "pods": [],
        "running": running(cluster, members),
        "victims": [],
        "cost": [],
        "certificate": NO_SEARCH,
    }
