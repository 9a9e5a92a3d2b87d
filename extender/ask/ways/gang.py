"""Ways out of the queue for a gang behind our gate, or a single pod: the whole gang is placed, or no way is reported.

- quota: what the queue may hold, raised as far as the gang needs it: by the fewest GPUs, of one GPU model or of two.
- relax-domain: the next wider level at which one domain holds the gang, else the domain is only preferred. The smaller
  change keeps the closer level.
- relax-links and smaller: as for a single pod, the same for all pods of the gang that wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from extender.ask.judge import Judge
from extender.ask.text import amount
from extender.ask.ways.request import most_gpus, with_gpus, with_links
from extender.ask.ways.way import Way, term
from extender.cluster.pod_kinds import LINKS, links_of
from extender.cluster.slices import finish
from extender.objects.queueing import DOMAIN, Domain
from extender.objects.records import PodRecord
from extender.preemption.candidates import Preemptor
from extender.queue import absent
from extender.queue.gang import WaitingGang, together, waits
from extender.queue.levels import keys_of
from extender.queue.placement import GpuAllowance, JointPlacement, Placed
from extender.queue.places import Places
from extender.queue.quota import PLAIN, OverQuota, QueueRules
from extender.queue.usage import Models, QueueHoldings, rules_of

MOST_RAISES: Final = 16
"""Models and rules that one gang may be over."""
MOST_TRIED: Final = 64
"""Quotas that are tried for one gang."""


class Raise(NamedTuple):
    """One field of a queue in the settings, for one GPU model."""

    field: str
    model: str
    before: int
    to: int


@dataclass(frozen=True, slots=True)
class Situation:
    """A gang, and what its queue may hold."""

    gang: WaitingGang
    queues: QueueHoldings
    placed: Placed | None
    """Where all its pods fit now, within the quota if they do; None: nowhere."""
    over: OverQuota | None
    """Why the queue may not hold it there, or may hold it nowhere."""

    @property
    def allowances(self) -> list[GpuAllowance]:
        """What the quota leaves the gang."""
        return self.queues.allowances(self.queues.quota.more(self.gang.queue))


def situation(judge: Judge, asked: Preemptor) -> Situation | None:
    """The gang of a pod behind our gate; None: the pod is not there any more."""
    cluster = judge.cluster
    gang = finish(together(cluster, [asked.pod.uid]))
    if gang is None:
        return None
    return _with_place(judge, asked, situated(judge, gang))


def situated(judge: Judge, gang: WaitingGang, *, ruled: bool = True) -> Situation:
    """A gang and what its queue may hold, before it is placed. `ruled`: whether the rules of queues count for it."""
    cluster = judge.cluster
    waiting = finish(waits(cluster))
    models = finish(Models.read(cluster))
    seats = {seat.uid: seat.node for seat in judge.claims.seats}
    late = absent.seated(cluster, judge.claims.seats)
    held = finish(models.held(seats, late))
    queues = QueueHoldings(cluster, models, rules_of(cluster.settings) if ruled else {}, held, late)
    queues.wanted = finish(models.wanted(waiting))
    return Situation(gang, queues, None, None)


def _with_place(judge: Judge, asked: Preemptor, now: Situation) -> Situation:
    allowances = now.allowances
    placed = _placed(judge, asked, now.gang, now.gang.domain, allowances)
    if placed is None and allowances:
        placed = _placed(judge, asked, now.gang, now.gang.domain)
    now = replace(now, placed=placed)
    return replace(now, over=over_quota(now))


def not_whole(judge: Judge, asked: Preemptor) -> str:
    """Of a pod without our gate: why its gang cannot run whole beside it, for people; "" where it can, or the pod has
    no gang. kube-scheduler starts such pods one by one."""
    cluster, named = judge.cluster, judge.cluster.workloads.gang_of(asked.pod.uid)
    if named is None:
        return ""
    gang = finish(together(cluster, list(cluster.workloads.gang_pods.get(named, ())), named.text))
    if gang is None or gang.lacking < 2 or len(gang.pods) < gang.lacking:
        return ""
    requests = [judge.claims.alone(pod) for pod in gang.pods]
    places, own = _places(judge, asked), [pod.uid for pod in gang.pods]
    outcome = finish(places.steps(gang, gang.pods, requests, places.counted(requests[0], own)))
    if isinstance(outcome, Placed) or outcome.most >= gang.lacking:
        return ""
    return (
        f"its gang {gang.ref} cannot run whole: {outcome.text}; without the gate of the queue its pods start one by one"
    )


def ways(judge: Judge, asked: Preemptor, now: Situation, *, of_one: bool = False) -> list[Way]:
    """The ways that let the gang start, each alone. `of_one`: also less for the only pod of a gang, which else is
    reported of the pod by itself."""
    if now.placed is not None:
        raised = None if now.over is None else _raised(judge, asked, now, now.placed)
        return [] if raised is None else [raised]
    tried = [_relaxed(judge, asked, now)]
    if of_one or len(now.gang.pods) + len(now.gang.members) > 1:
        tried += [_loose(judge, asked, now), _smaller(judge, asked, now)]
    return [way for way in tried if way is not None]


def _loose(judge: Judge, asked: Preemptor, now: Situation) -> Way | None:
    """Whether the gang starts where links are only preferred."""
    if not any(links_of(pod) == "required" for pod in now.gang.pods):
        return None
    pods = tuple(with_links(pod) for pod in now.gang.pods)
    if not _starts(judge, asked, now, pods):
        return None
    text = f"set {LINKS}: preferred on the pods of {now.gang.ref}"
    return Way("relax-links", text, {"annotation": LINKS, "value": "preferred"})


def _smaller(judge: Judge, asked: Preemptor, now: Situation) -> Way | None:
    """The most GPUs a pod with which the gang starts, where all of its pods ask for the same."""
    sizes = {pod.gpus for pod in now.gang.pods}
    if len(sizes) != 1 or with_gpus(now.gang.pods[0], 1) is None:
        return None
    (((resource, was),),) = sizes

    def fits(count: int) -> Way | None:
        pods = tuple(less for pod in now.gang.pods if (less := with_gpus(pod, count)) is not None)
        if len(pods) < len(now.gang.pods) or not _starts(judge, asked, now, pods):
            return None
        return Way(
            "smaller",
            f"ask for {amount(resource, count)} instead of {was} in each pod of {now.gang.ref}",
            {"resource": resource, "was": was, "is": count, "unit": "GPUs", "pods": len(pods)},
            (term("given_up", (was - count) * len(pods), "GPUs"),),
            (0.0, (was - count) / was),
        )

    return most_gpus(was - 1, fits)


def _starts(judge: Judge, asked: Preemptor, now: Situation, pods: tuple[PodRecord, ...]) -> bool:
    """Whether the gang would start with other requests of its pods."""
    other = replace(now.gang, pods=pods)
    return _placed(judge, asked, other, other.domain, now.allowances) is not None


def over_quota(now: Situation) -> OverQuota | None:
    """Why the queue may not hold the gang: on no nodes, or not where it is placed."""
    queues = now.queues
    over = queues.over(now.gang)
    if over is not None or now.placed is None:
        return over
    return queues.quota.refused(now.gang.queue, _gpus(queues.models, now.gang, now.placed))


def _raised(judge: Judge, asked: Preemptor, now: Situation, placed: Placed) -> Way | None:
    """The quota with which the queue may hold the gang, raised by the fewest GPUs that were found."""
    gang = now.gang
    tried = [_raises(now, _gpus(now.queues.models, gang, placed))]
    for raise_to in _enough(judge, asked, now):
        tried.append(_raises(now, raise_to))
    options = [(sum(change.to - change.before for change in raises), raises) for raises in tried if raises]
    if not options:
        return None
    more, raises = min(options, key=lambda option: option[0])
    texts = [f"{change.field} of model {change.model} from {change.before} to {change.to}" for change in raises]
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


def _enough(judge: Judge, asked: Preemptor, now: Situation) -> list[dict[str, int]]:
    """GPUs by model, each enough beside what the quota leaves of the others: of one model the fewest, and of two models
    each pair of which neither can be less."""
    more = now.queues.quota.more(now.gang.queue)
    steps = _Steps(judge, asked, now, more)
    models = [model for model in now.queues.models.allowed(now.gang) if more.get(model, now.gang.gpus) < now.gang.gpus]
    enough: list[dict[str, int]] = []
    for model in models:
        least = steps.least(model, {})
        if least is not None:
            enough.append({model: least})
    for at, model in enumerate(models):
        for other in models[at + 1 :]:
            for gpus in steps.sums(model):
                least = steps.least(other, {model: gpus})
                if least is not None:
                    enough.append({model: gpus, other: least})
    return enough


@dataclass(slots=True)
class _Steps:
    """Tries quotas by placing the gang, MOST_TRIED times."""

    judge: Judge
    asked: Preemptor
    now: Situation
    more: Mapping[str, int]
    """What the quota leaves, by model."""
    tried: int = 0

    def sums(self, model: str) -> list[int]:
        """What some of the pods ask for together, beyond what the quota leaves of the model."""
        sums = {0}
        for pod in self.now.gang.pods:
            sums |= {total + pod.gpu_count for total in sums}
        return sorted(total for total in sums if total > self.more[model])

    def least(self, model: str, raised: Mapping[str, int]) -> int | None:
        """The fewest GPUs of the model with which the gang has a place, beside other models that are `raised`."""
        sums, fewest = self.sums(model), None
        low, high = 0, len(sums)
        while low < high and self.tried < MOST_TRIED:
            self.tried += 1
            middle = len(sums) - 1 if fewest is None else (low + high) // 2
            allowed = self.now.queues.allowances({**self.more, **raised, model: sums[middle]})
            gang = self.now.gang
            if _placed(self.judge, self.asked, gang, gang.domain, allowed) is not None:
                fewest, high = sums[middle], middle
            elif fewest is None:
                return None
            else:
                low = middle + 1
        return fewest


def _raises(now: Situation, asked: Mapping[str, int]) -> list[Raise]:
    """What has to be raised so that the queue may hold so many more GPUs of each model; [] where none is enough."""
    queue, quota = now.gang.queue, now.queues.quota
    before = rules = quota.rules.get(queue, PLAIN)
    for _ in range(MOST_RAISES):
        over = replace(quota, rules={**quota.rules, queue: rules}).refused(queue, asked)
        if over is None:
            return _changes(before, rules)
        rules = _with(rules, over, over.held + over.asked)
    return []


def _changes(before: QueueRules, after: QueueRules) -> list[Raise]:
    pairs = (("limitGpus", before.limit, after.limit), ("guaranteedGpus", before.guaranteed, after.guaranteed))
    return [
        Raise(field, model, was.get(model, 0), to)
        for field, was, raised in pairs
        for model, to in sorted(raised.items())
        if was.get(model) != to
    ]


def _with(rules: QueueRules, over: OverQuota, to: int) -> QueueRules:
    if over.rule == "limit":
        return replace(rules, limit={**rules.limit, over.model: to})
    return replace(rules, guaranteed={**rules.guaranteed, over.model: to})


def _relaxed(judge: Judge, asked: Preemptor, now: Situation) -> Way | None:
    gang = now.gang
    if gang.domain is None or not gang.domain.required:
        return None
    levels = judge.cluster.settings.topology_levels
    keys = keys_of(gang.domain.level, levels)
    closest = max((at for at, key in enumerate(levels) if key in keys), default=-1)
    wider = [Domain(key, required=True) for key in levels[closest + 1 :]]
    for step, domain in enumerate([*wider, Domain(gang.domain.level, required=False)], 1):
        if _placed(judge, asked, gang, domain, now.allowances) is None:
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


def _places(judge: Judge, asked: Preemptor) -> Places:
    return Places(judge.cluster, judge.claims, JointPlacement(judge.cluster, judge.policy), lambda: asked.now)


def _placed(
    judge: Judge, asked: Preemptor, gang: WaitingGang, domain: Domain | None, allowances: Sequence[GpuAllowance] = ()
) -> Placed | None:
    """A place for the pods of the gang that wait, or for as many as are enough to start it, which stands by the tables
    as they are at the end."""
    gang, places, own = replace(gang, domain=domain), _places(judge, asked), frozenset(pod.uid for pod in gang.pods)
    requests = [judge.claims.alone(pod) for pod in gang.pods]
    if not requests:
        return None
    counted = places.counted(requests[0], own)
    placed = finish(places.enough(gang, requests, counted, allowances))
    if not isinstance(placed, Placed):
        return None
    pods = len(placed.rows)
    with counted(())(placed.rows):
        return placed if places.placement.still_fits(placed, gang.pods[:pods], requests[:pods]) else None


def _gpus(models: Models, gang: WaitingGang, placed: Placed) -> dict[str, int]:
    """GPUs by model that the gang takes where it is placed."""
    by_node: dict[str, int] = {}
    for pod, node in zip(gang.pods, placed.nodes, strict=False):
        by_node[node] = by_node.get(node, 0) + pod.gpu_count
    return models.of(by_node)
