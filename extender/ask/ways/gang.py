"""Ways out for a gang that does not start now. Each is verified: the gang is placed again, whole, on the cluster as the
change makes it, and the change is taken back.

- wait: what ends by itself on the nodes where the gang is placed then. Not the least wait: the placement's own.
- uncordon: the fewest nodes found, one where one is enough.
- evict: the plan that the verdict rests on.
- quota: what the queue may hold, raised as far as the gang needs it: by the fewest GPUs, of one GPU model or of two.
- relax-domain: the next wider level at which one domain holds the gang, else the domain is only preferred. The smaller
  change keeps the closer level.
- relax-links and smaller: as for a single pod, the same for all pods of the gang that wait; smaller also with fewer
  pods, where its minimum allows it.
- add-nodes: as few machines as are enough, of the smallest kind that takes a pod.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import msgspec

from extender.ask import machines
from extender.ask import nodes as judged_nodes
from extender.ask.nodes import CORDON, uncordoned
from extender.ask.place import GangCase, Outcome
from extender.ask.suppose import copies
from extender.ask.text import amount, count
from extender.ask.ways import Way, in_order, term
from extender.ask.ways.pod import Passing, claimed, most_gpus, terminating, wait_for, with_gpus, with_links
from extender.ask.ways.pod import nearest as of_pod
from extender.cluster.demand import LINKS, links_of
from extender.objects.queueing import DOMAIN, Domain
from extender.objects.records import NodeRecord, PodRecord
from extender.policy.roles import NODE
from extender.preemption import certificate
from extender.preemption.gang_plan import cost_of
from extender.preemption.search import ends
from extender.queue.levels import keys_of
from extender.queue.placement import NoPlace, Placed
from extender.queue.report import first_names
from extender.queue.usage import PLAIN, OverQuota
from extender.reservations.seats import Seat
from extender.settings import QueueLimits

MOST_RAISES: Final = 16
"""Models and rules that one gang may be over."""
MOST_TRIED: Final = 64
"""Quotas that are tried for one gang."""
MOST_UNCORDONED: Final = 16
"""Nodes that are tried alone."""
NAMED: Final = 3
"""Pods or nodes that a text names."""
HIGHEST: Final = 2**31 - 1


class Raise(NamedTuple):
    """One field of a queue in the settings, for one GPU model."""

    field: str
    model: str
    before: int
    to: int


def ways(case: GangCase, outcome: Outcome) -> list[Way]:
    """The ways out, the cheapest first."""
    if outcome.lacks:
        return []
    if outcome.elsewhere is not None:
        options = [_raised(case, outcome.elsewhere)]
    else:
        tried: list[Callable[[GangCase], Way | None]] = [_relaxed, _loose, _smaller]
        if outcome.over is None:  # room alone is no way out for a gang that its queue may not hold
            tried += [_wait, _uncordon, _fewer, _add_nodes]
        options = [_evict(case, outcome), *(way(case) for way in tried if not case.supposed.over())]
    return in_order([way for way in options if way is not None])


def nearest(case: GangCase, outcome: Outcome) -> dict[str, Any] | None:
    """The nearest miss of the first pod that finds no place once as many as fit have theirs."""
    supposed, gang, none = case.supposed, case.gang, outcome.none
    if none is None:
        none = NoPlace(0, None, outcome.why)
    placed: Placed | NoPlace = none
    most = min(none.most, len(gang.pods) - 1)
    while most > 0 and not isinstance(placed, Placed):
        placed = case.place(most)
        most = most if isinstance(placed, Placed) else min(placed.most, most - 1)
    seats = list(_seats(case, placed)) if isinstance(placed, Placed) else []
    at = next((at for at in range(len(seats), len(gang.pods)) if case.requests[at].gpus), None)
    if at is None:
        return None
    pod = gang.pods[at]
    if gang.domain is not None and gang.domain.required and none.domain is not None and none.domain[0] != NODE:
        pod = msgspec.structs.replace(pod, node_selector=(*pod.node_selector, none.domain))
    asked = msgspec.structs.replace(case.asked, pod=pod, request=supposed.claims.alone(pod))
    supposed.claims.seats.reserve(seats)
    try:
        nodes = judged_nodes.read(supposed.judge, asked)
        return of_pod(supposed.judge, asked, nodes)
    finally:
        for seat in seats:
            supposed.claims.seats.drop(seat.uid)


def _seats(case: GangCase, placed: Placed) -> Sequence[Seat]:
    cluster, gang = case.supposed.cluster, case.gang
    return [
        Seat(
            pod.uid, f"{pod.namespace}/{pod.name}", gang.ref.text, node, cluster.amounts(pod), mask, HIGHEST,
            case.asked.now,
        )
        for pod, node, mask in zip(gang.pods, placed.nodes, placed.gpus, strict=False)
    ]  # fmt: skip


def _evict(case: GangCase, outcome: Outcome) -> Way | None:
    search = outcome.search
    if outcome.placed is None or search is None or search.best is None:
        return None
    cluster, best = case.supposed.cluster, search.best
    victims = [certificate.victim(cluster, pod) for pod in outcome.victims]
    spec = {
        "domain": None if best.domain is None else {"level": best.domain[0], "value": best.domain[1]},
        "nodes": sorted(set(outcome.placed.nodes)),
        "victims": victims,
        "proved": search.proved,
    }
    needs = ("eviction-by-hand",) if case.queued and not case.supposed.settings.evictions.enabled else ()
    text = first_names([f"{pod.namespace}/{pod.name}" for pod in outcome.victims], NAMED)
    text += certificate.breaks(cluster, outcome.victims)
    return Way("evict", f"evict {text}", spec, cost_of(search, best), tuple(map(float, best.cost)), needs)


def _wait(case: GangCase) -> Way | None:
    """All pods that are terminating gone, and no claim of another pod: then what of it is on the nodes of the gang."""
    cluster, judge, wall = case.supposed.cluster, case.supposed.judge, case.asked.wall
    passing_pairs: list[tuple[str, Passing]] = []
    for pod in list(cluster.pods.values()):
        if pod.node and pod.uid not in case.own and ends(pod, wall):
            passing_pairs.append((pod.node, terminating(pod, wall)))
    passing_pairs += [(node, claim) for node, claim in claimed(judge, case.asked) if claim.uid not in case.own]
    if not passing_pairs:
        return None
    placed = _without(case, passing_pairs)
    if placed is None:
        return None
    needed = [(node, passing) for node, passing in passing_pairs if node in placed.nodes]
    again = _without(case, needed)
    if again is None or not needed:
        return None
    return wait_for({"nodes": sorted(set(again.nodes))}, sorted(passing for _, passing in needed))


def _without(case: GangCase, passing_pairs: Iterable[tuple[str, Passing]]) -> Placed | None:
    """The place of the gang once these have ended, each on its node."""
    gone: dict[int, list[str]] = {}
    claims: set[str] = set()
    for node, passing in passing_pairs:
        if passing.running:
            gone.setdefault(case.supposed.cluster.row(node), []).append(passing.uid)
        else:
            claims.add(passing.uid)
    placed = case.place(without=frozenset(claims), gone=gone)
    return placed if isinstance(placed, Placed) else None


@dataclass(frozen=True, slots=True)
class _Changed:
    """Nodes that are changed for a while."""

    case: GangCase
    after: Sequence[NodeRecord]
    """The changed nodes, instead of `before`, or beside the nodes that exist."""
    before: Sequence[NodeRecord] = ()
    like: NodeRecord | None = None
    """The node that `after` are copies of; None: they replace `before`."""

    def place(self) -> Placed | None:
        """The place of the gang with the changed nodes, which are as before once this ends."""
        supposed = self.case.supposed
        if self.like is None:
            supposed.set_nodes(self.after)
        else:
            supposed.add_nodes(self.like, self.after)
        try:
            placed = self.case.place()
        finally:
            supposed.set_nodes(self.before)
            if self.like is not None:
                supposed.drop_nodes(self.after)
        return placed if isinstance(placed, Placed) else None


def _uncordon(case: GangCase) -> Way | None:
    cluster = case.supposed.cluster
    cordoned = [node for _, node in sorted(cluster.nodes.items()) if _is_cordoned(node)]
    if not cordoned:
        return None
    placed = _Changed(case, list(map(uncordoned, cordoned)), cordoned).place()
    if placed is None:
        return None
    used = [node for node in cordoned if node.name in placed.nodes]
    for cordoned_node in cordoned[:MOST_UNCORDONED] if len(used) > 1 else ():
        if _Changed(case, [uncordoned(cordoned_node)], [cordoned_node]).place() is not None:
            used = [cordoned_node]
            break
    if _Changed(case, list(map(uncordoned, used)), used).place() is None:
        return None
    names = [node.name for node in used]
    spec: dict[str, Any] = {"node": names[0], "nodes": names}
    return Way(
        "uncordon", f"uncordon {first_names(names, NAMED)}", spec, (term("nodes", len(names), "nodes"),), (len(names),)
    )


def _is_cordoned(node: NodeRecord) -> bool:
    return node.unschedulable or any(taint.key == CORDON.key for taint in node.taints)


def _fewer(case: GangCase) -> Way | None:
    """Fewer pods, as many as the minimum asks for or more: the most that fit."""
    gang = case.gang
    least = max(1, gang.minimum - len(gang.members))
    most = len(gang.pods) - 1
    while gang.known and most >= least:
        placed = case.place(most)
        if isinstance(placed, Placed):
            was = len(gang.pods)
            spec = {"resource": "pods", "was": was, "is": most, "unit": "pods"}
            text = f"start {gang.ref} with {count(most, 'pod')} instead of {was:,}"
            return Way("smaller", text, spec, (term("given_up", was - most, "pods"),), (0.0, (was - most) / was))
        most = min(placed.most, most - 1)
    return None


def _add_nodes(case: GangCase) -> Way | None:
    """The fewest machines, by halving what is enough: with one more the gang still fits."""
    supposed, gang = case.supposed, case.gang
    largest = max(range(len(gang.pods)), key=lambda at: (case.requests[at].wanted, -at))
    asked = msgspec.structs.replace(case.asked, pod=gang.pods[largest], request=case.requests[largest])
    on_empty = machines.empty(supposed.judge, asked)
    like = supposed.cluster.nodes.get(on_empty.like)
    if like is None:
        return None
    low, high = 0, len(gang.pods)
    if _Changed(case, copies(like, high, supposed.cluster.nodes), like=like).place() is None:
        return None
    while high - low > 1 and not supposed.over():
        half = (low + high) // 2
        if _Changed(case, copies(like, half, supposed.cluster.nodes), like=like).place() is None:
            low = half
        else:
            high = half
    gpus = sum(like.gpus.values()) * high
    return Way(
        "add-nodes",
        f"add {count(high, 'node')} like {like.name} ({count(gpus, 'GPU')})",
        {"count": high, "like": like.name},
        (term("nodes", high, "nodes"), term("gpus", gpus, "GPUs")),
        (float(high),),
    )


def _loose(case: GangCase) -> Way | None:
    """Whether the gang starts where links are only preferred."""
    if not any(links_of(pod) == "required" for pod in case.gang.pods):
        return None
    pods = tuple(with_links(pod) for pod in case.gang.pods)
    if not _starts(case, pods):
        return None
    text = f"set {LINKS}: preferred on the pods of {case.gang.ref}"
    return Way("relax-links", text, {"annotation": LINKS, "value": "preferred"})


def _smaller(case: GangCase) -> Way | None:
    """The most GPUs a pod with which the gang starts, where all of its pods ask for the same."""
    sizes = {pod.gpus for pod in case.gang.pods}
    if len(sizes) != 1 or with_gpus(case.gang.pods[0], 1) is None:
        return None
    (((resource, was),),) = sizes

    def fits(count: int) -> Way | None:
        pods = tuple(less for pod in case.gang.pods if (less := with_gpus(pod, count)) is not None)
        if len(pods) < len(case.gang.pods) or not _starts(case, pods):
            return None
        each = f"each of the {len(pods):,} pods" if len(pods) > 1 else "the pod"
        return Way(
            "smaller",
            f"ask for {amount(resource, count)} instead of {was:,} in {each} of {case.gang.ref}",
            {"resource": resource, "was": was, "is": count, "unit": "GPUs", "pods": len(pods)},
            (term("given_up", (was - count) * len(pods), "GPUs"),),
            (0.0, (was - count) / was),
        )

    return most_gpus(was - 1, fits)


def _starts(case: GangCase, pods: tuple[PodRecord, ...]) -> bool:
    """Whether the gang would start with other requests of its pods."""
    other = case.changed(replace(case.gang, pods=pods))
    return isinstance(other.place(allowances=case.allowances), Placed)


def _raised(case: GangCase, placed: Placed) -> Way | None:
    """The quota with which the queue may hold the gang, raised by the fewest GPUs that were found."""
    gang = case.gang
    tried = [_raises(case, case.gpus(placed))]
    for raise_to in _enough(case):
        tried.append(_raises(case, raise_to))
    options = [(sum(change.to - change.before for change in raises), raises) for raises in tried if raises]
    if not options:
        return None
    more, raises = min(options, key=lambda option: option[0])
    texts = [f"{change.field} of model {change.model} from {change.before:,} to {change.to:,}" for change in raises]
    changes = [
        {"field": change.field, "model": change.model, "from": change.before, "to": change.to} for change in raises
    ]
    return Way(
        "quota",
        f"raise for queue {gang.queue} {', '.join(texts)}",
        {"queue": gang.queue, "changes": changes},
        (term("raised_by", more, "GPUs"),),
        (more,),
    )


def _enough(case: GangCase) -> list[dict[str, int]]:
    """GPUs by model, each enough beside what the quota leaves of the others: of one model the fewest, and of two models
    each pair of which neither can be less."""
    more = case.queues.quota.more(case.gang.queue)
    steps = _Steps(case, more)
    models = [
        model for model in case.queues.models.allowed(case.gang) if more.get(model, case.gang.gpus) < case.gang.gpus
    ]
    enough: list[dict[str, int]] = []
    for model in models:
        least = steps.least(model, {})
        if least is not None:
            enough.append({model: least})
    for at, model in enumerate(models):
        for other in models[at + 1 :]:
            for part in steps.sums(model):
                least = steps.least(other, {model: part})
                if least is not None:
                    enough.append({model: part, other: least})
    return enough


@dataclass(slots=True)
class _Steps:
    """Tries quotas by placing the gang, MOST_TRIED times."""

    case: GangCase
    more: Mapping[str, int]
    """What the quota leaves, by model."""
    tried: int = 0

    def sums(self, model: str) -> list[int]:
        """What some of the pods ask for together, beyond what the quota leaves of the model."""
        sums = {0}
        for pod in self.case.gang.pods:
            sums |= {total + pod.gpu_count for total in sums}
        return sorted(total for total in sums if total > self.more[model])

    def least(self, model: str, raised: Mapping[str, int]) -> int | None:
        """The fewest GPUs of the model with which the gang has a place, beside other models that are `raised`."""
        sums, fewest = self.sums(model), None
        low, high = 0, len(sums)
        while low < high and self.tried < MOST_TRIED:
            self.tried += 1
            middle = len(sums) - 1 if fewest is None else (low + high) // 2
            allowed = self.case.queues.allowances({**self.more, **raised, model: sums[middle]})
            if isinstance(self.case.place(allowances=allowed), Placed):
                fewest, high = sums[middle], middle
            elif fewest is None:
                return None
            else:
                low = middle + 1
        return fewest


def _raises(case: GangCase, asked: Mapping[str, int]) -> list[Raise]:
    """What has to be raised so that the queue may hold so many more GPUs of each model; [] where none is enough."""
    queue, quota = case.gang.queue, case.queues.quota
    before = rules = quota.rules.get(queue, PLAIN)
    for _ in range(MOST_RAISES):
        over = replace(quota, rules={**quota.rules, queue: rules}).refused(queue, asked)
        if over is None:
            return _changes(before, rules)
        rules = _with(rules, over, over.held + over.asked)
    return []


def _changes(before: QueueLimits, after: QueueLimits) -> list[Raise]:
    pairs = (
        ("limitGpus", before.limit_gpus, after.limit_gpus),
        ("guaranteedGpus", before.guaranteed_gpus, after.guaranteed_gpus),
    )
    return [
        Raise(field, model, was.get(model, 0), to)
        for field, was, raised in pairs
        for model, to in sorted(raised.items())
        if was.get(model) != to
    ]


def _with(rules: QueueLimits, over: OverQuota, to: int) -> QueueLimits:
    field = "limit_gpus" if over.rule == "limit" else "guaranteed_gpus"
    return rules.model_copy(update={field: {**getattr(rules, field), over.model: to}})


def _relaxed(case: GangCase) -> Way | None:
    gang = case.gang
    if gang.domain is None or not gang.domain.required:
        return None
    levels = case.supposed.settings.topology_levels
    keys = keys_of(gang.domain.level, levels)
    closest = max((at for at, key in enumerate(levels) if key in keys), default=-1)
    wider = [Domain(key, required=True) for key in levels[closest + 1 :]]
    for step, domain in enumerate([*wider, Domain(gang.domain.level, required=False)], 1):
        if not isinstance(case.changed(replace(gang, domain=domain)).place(allowances=case.allowances), Placed):
            continue
        text = f"{'required' if domain.required else 'preferred'}:{domain.level}"
        was = f"required:{gang.domain.level}"
        return Way(
            "relax-domain",
            f"set {DOMAIN}: {text} instead of {was} on the pods of {gang.ref}",
            {"annotation": DOMAIN, "value": text, "was": was},
            None,
            (step,),
        )
    return None
