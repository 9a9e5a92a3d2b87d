"""How many GPUs there are, how many each queue holds, and how many its gangs wait for, by model; what the quota of a
queue allows, and in which order gangs are considered."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import starmap
from typing import Any, Final, Literal

from extender.cluster.cluster import ClusterView
from extender.cluster.eligibility import MOST_PARTS, TooLong
from extender.cluster.nodes import NO_MODEL, model_of
from extender.cluster.slices import RUN, STEP, Sliced, collected, in_order, pauses
from extender.cluster.tables import FIRST_GPU
from extender.objects import gangs
from extender.objects.queueing import queue_of
from extender.objects.records import NodeRecord, PodRecord
from extender.objects.selectors import NodeTerm, Toleration
from extender.policy.contracts import PodRequest
from extender.queue.gang import WaitingGang
from extender.queue.gang_runs import Ending
from extender.queue.placement import GpuAllowance, Placed
from extender.reservations.seats import Seat
from extender.settings import QueueLimits

LEAST_GPUS: Final = 1e-6
"""Less use than this is forgotten."""
MOST_QUEUES: Final = 1000
"""That hold no GPUs now, and whose use is kept: any user that may create pods chooses names of queues."""
NOTHING: Final[Mapping[str, str]] = {}
NO_PODS: Final[Mapping[str, PodRecord]] = {}


def named_models(gang: WaitingGang, labels: Sequence[str]) -> set[str]:
    """The GPU models that the node selectors of its pods name; none where the gang may get any. `labels`: as above."""
    return {text for pod in gang.pods for key, text in pod.node_selector if key in labels}


Asked = tuple[tuple[tuple[str, str], ...], tuple[NodeTerm, ...] | None, tuple[Toleration, ...]]
"""What a pod states of its nodes: node selector, required node affinity, tolerations."""


class DecayedUse:
    """How many GPUs each queue has held on average, by model; earlier use counts less. It begins with what is held when
    it is first asked: another holder of the Lease does not know the past."""

    def __init__(self) -> None:
        self._mean: Mapping[str, Mapping[str, float]] = {}
        self._held: Amounts = {}  # since `_at`
        self._at = -math.inf
        self._paused = False

    def pause(self) -> None:
        """What was held since it was last asked is not known, and does not count."""
        self._paused = True

    def of(self, held: Amounts, now: float, half_life: float) -> Mapping[str, Mapping[str, float]]:
        """By queue and model. `held`: now; `now`: seconds; `half_life`: seconds after which use counts half, 0: what is
        held now."""
        if not half_life:
            self._mean, self._held, self._at = {}, {}, -math.inf
            return held
        passed = 0.0 if self._paused else max(0.0, now - self._at)
        weight_before = 0.5 ** (passed / half_life)
        parts = (
            ((1.0, held),)
            if self._at == -math.inf
            else ((weight_before, self._mean), (1.0 - weight_before, self._held))
        )
        means: dict[str, dict[str, float]] = {}
        for weight, part in parts:
            for queue, counts in part.items():
                for model, count in counts.items():
                    if (more := weight * count) >= LEAST_GPUS:
                        of_queue = means.setdefault(queue, {})
                        of_queue[model] = of_queue.get(model, 0.0) + more
        idle = [queue for queue in means if queue not in held]
        for queue in sorted(idle, key=lambda name: sum(means[name].values()))[: max(0, len(idle) - MOST_QUEUES)]:
            del means[queue]
        self._mean, self._at, self._paused = means, now, False
        self._held = {queue: dict(counts) for queue, counts in held.items()}  # the planner adds to it
        return means


class Models:
    """The GPU model of each node that offers GPUs, and what there is of each, for one plan."""

    def __init__(self, cluster: ClusterView) -> None:
        """Of no node yet: `read` adds them."""
        self._cluster = cluster
        self._records: dict[str, NodeRecord] = {}  # of which they are
        self.by_node: dict[str, str] = {}
        self.capacity: dict[str, int] = {}
        self._rows_of: dict[str, int] = {}
        self._admitted: dict[Asked, frozenset[str]] = {}

    @classmethod
    def read(cls, cluster: ClusterView, before: Models | None = None) -> Sliced[Models]:
        """Of all nodes that offer GPUs, in slices. `before`: what was read earlier, of nodes that are the same."""
        models_now, labels = cls(cluster), cluster.settings.mix.model_labels
        known, models = ({}, {}) if before is None else (before._records, before.by_node)
        for name, pause in pauses(list(cluster.gpus.topologies)):
            if pause:
                yield
            if (node := cluster.nodes.get(name)) is not None:
                models_now._records[name] = node
                model = models[name] if known.get(name) is node else model_of(node, labels)
                models_now.by_node[name] = model
                models_now.capacity[model] = models_now.capacity.get(model, 0) + sum(node.gpus.values())
        return models_now

    def held(
        self, seats: Mapping[str, str] = NOTHING, late: Mapping[str, PodRecord] = NO_PODS
    ) -> Sliced[dict[str, dict[str, int]]]:
        """GPUs by queue and model that its bound pods hold, and that its released pods are nominated for or have seats
        for, in slices. `seats`: uid of an unbound pod -> node; `late`: by uid, those of these pods that do not exist
        yet. Pods on unknown nodes hold nothing."""
        cluster, by_node = self._cluster, self.by_node
        nominated, queued = cluster.placements.nominated, cluster.placements.queued
        released: dict[str, list[str]] = {}
        for uid, node in ({uid: node for uid, node in nominated.items() if uid not in queued} | dict(seats)).items():
            released.setdefault(node, []).append(uid)
        by_queue: dict[str, dict[str, int]] = {}
        for (node, model), pause in pauses(by_node.items()):
            if pause:
                yield
            uids: Iterable[str] = cluster.placements.bound.get(node, ())
            if node in released:
                uids = {*uids, *released[node]}
            for uid in uids:
                pod = cluster.pods.get(uid) or late.get(uid)
                if pod is not None and pod.gpus and pod.node in ("", node):
                    counts = by_queue.setdefault(queue_of(pod), {})
                    for _, count in pod.gpus:
                        counts[model] = counts.get(model, 0) + count
        return by_queue

    def wanted(self, gangs: Iterable[WaitingGang]) -> Sliced[dict[str, dict[str, int]]]:
        """GPUs by queue and model that complete gangs wait for, in slices; of each model where a gang may get
        several."""
        by_queue: dict[str, dict[str, int]] = {}
        for gang, pause in pauses(gangs):
            if pause:
                yield
            if gang.complete:
                counts = by_queue.setdefault(gang.queue, {})
                for model in self.allowed(gang):
                    counts[model] = counts.get(model, 0) + gang.gpus
        return by_queue

    def allowed(self, gang: WaitingGang) -> list[str]:
        """The models of the nodes that the node selectors, node affinity and tolerations of its pods with GPUs leave,
        each model that any of them may get; cordons are not looked at."""
        asked = {(pod.node_selector, pod.node_terms, pod.tolerations) for pod in gang.pods if pod.gpus}
        return sorted(frozenset[str]().union(*map(self._admitting, asked)))

    def _admitting(self, asked: Asked) -> frozenset[str]:
        """The models of the nodes that such pods may run on; of all nodes where that takes too long."""
        known = self._admitted.get(asked)
        if known is None:
            eligibility = self._cluster.eligibility
            try:
                rows = int.from_bytes(eligibility.rows(eligibility.program(*asked, MOST_PARTS)).tobytes(), "little")
            except TooLong:
                rows = -1
            known = self._admitted[asked] = frozenset(model for model, of in self._rows().items() if rows & of)
        return known

    def _rows(self) -> Mapping[str, int]:
        """By model the rows of its nodes, one bit each."""
        if not self._rows_of:
            for name, model in self.by_node.items():
                if (row := self._cluster.row(name)) >= 0:
                    self._rows_of[model] = self._rows_of.get(model, 0) | 1 << row
        return self._rows_of

    def of(self, gpus: Mapping[str, int]) -> dict[str, int]:
        """GPUs by model, of GPUs by node: what a placed gang asks its quota for."""
        by_model: dict[str, int] = {}
        for node, count in gpus.items():
            model = self.by_node.get(node, NO_MODEL)
            by_model[model] = by_model.get(model, 0) + count
        return by_model


@dataclass(frozen=True, slots=True)
class FoundPlace:
    """A place for pods of a gang."""

    pods: Sequence[PodRecord]
    requests: Sequence[PodRequest]  # of the pods, one each
    placed: Placed

    @property
    def rows(self) -> tuple[int, ...]:
        """Rows of the nodes, for each pod."""
        return self.placed.rows

    def gpus_by_node(self) -> Counter[str]:
        """How many GPUs of each node it takes."""
        by_node: Counter[str] = Counter()
        amounts = self.placed.amounts
        for at, (pod, node) in enumerate(zip(self.pods, self.placed.nodes, strict=True)):
            by_node[node] += sum(amounts[at][FIRST_GPU:]) if amounts else pod.gpu_count
        return by_node

    def gpus(self, models: Models) -> dict[str, int]:
        """How many GPUs of each model it takes."""
        return models.of(self.gpus_by_node())


# -- whether a queue may hold more GPUs: its limit, its guarantee, and what it may borrow


Amounts = Mapping[str, Mapping[str, int]]
"""GPUs by queue and model."""
Rule = Literal["limit", "guarantee", "lent"]


@dataclass(frozen=True, slots=True)
class OverQuota:
    """Why a gang may not start: its queue holds `held` GPUs of the model, would hold `asked` more, and may hold
    `most`."""

    queue: str
    # "limit"; "guarantee" (the queue may not borrow); "lent" (the rest of what is free is kept for queues that wait
    # within their guarantees)
    rule: Rule
    model: str
    asked: int
    held: int
    most: int

    @property
    def text(self) -> str:
        """One sentence for people."""
        after = would_hold(self.queue, self.held + self.asked, self.model)
        if self.rule == "limit":
            return f"{after}, its limit is {self.most:,}"
        if self.rule == "guarantee":
            return f"{after}, its guarantee is {self.most:,} and it may not borrow"
        return f"{after}, other queues and their guarantees leave it {self.most:,}"


def would_hold(queue: str, gpus: int, model: str) -> str:
    """How many GPUs a queue would hold, for people: more than it may."""
    return f"queue {queue} would hold {gpus:,} GPUs of model {model}"


PLAIN: Final = QueueLimits()
"""The rules of a queue that the settings do not name."""
_NONE: Final[Mapping[str, int]] = {}


@dataclass(frozen=True, slots=True)
class Quota:
    """What all queues hold now."""

    rules: Mapping[str, QueueLimits]  # by queue, the default where absent
    capacity: Mapping[str, int]  # the GPUs of the cluster by model
    held: Amounts  # GPUs of bound and released pods
    wanted: Amounts  # GPUs that complete gangs wait for

    def refused(self, queue: str, asked: Mapping[str, int]) -> OverQuota | None:
        """Why the queue may not hold `asked` more GPUs, by model; None: it may. Models in the order of their names."""
        for model, count in sorted(asked.items()):
            bound = self._bound(queue, model) if count > 0 else None
            if bound is not None:
                rule, most = bound
                now = self.held.get(queue, _NONE).get(model, 0)
                if now + count > most:
                    return OverQuota(queue, rule, model, count, now, most)
        return None

    def more(self, queue: str) -> dict[str, int]:
        """How many more GPUs the queue may hold of each model of the cluster; any number of those that are absent."""
        held = self.held.get(queue, _NONE)
        bounds = ((model, self._bound(queue, model)) for model in sorted(self.capacity))
        return {model: max(0, bound[1] - held.get(model, 0)) for model, bound in bounds if bound is not None}

    def lends(self, queue: str, asked: Mapping[str, int], other: str) -> dict[str, int]:
        """How many more GPUs of each model the queue `other` may hold, so that `queue` may still hold `asked` more of
        what it borrows; any number of models that are absent."""
        lent: dict[str, int] = {}
        for model, count in sorted(asked.items()):
            reserved = self._kept(queue, model) if queue != other else 0
            if reserved and not self.within_guarantee(queue, {model: count}):
                # What the other queue takes within its guarantee is kept for it already.
                lent[model] = max(0, self._free(model) - reserved - count) + self.unmet(other, model)
        return lent

    def within_guarantee(self, queue: str, asked: Mapping[str, int]) -> bool:
        """Whether the queue holds no more than its guarantee once it holds `asked` more GPUs, by model."""
        rules, held = self.rules.get(queue, PLAIN), self.held.get(queue, _NONE)
        return all(held.get(model, 0) + count <= rules.guaranteed_gpus.get(model, 0) for model, count in asked.items())

    def before(self, queue: str, asked: Mapping[str, int]) -> list[str]:
        """The other queues that wait within their guarantees for GPUs of a model of which the queue borrows once it
        holds `asked` more. Their gangs may start before those of this queue."""
        held, guaranteed = self.held.get(queue, _NONE), self.rules.get(queue, PLAIN).guaranteed_gpus
        borrows = [m for m, count in asked.items() if count and held.get(m, 0) + count > guaranteed.get(m, 0)]
        return sorted(other for other in self.rules.keys() - {queue} if any(self.unmet(other, m) for m in borrows))

    def unmet(self, queue: str, model: str) -> int:
        """How many GPUs of its guarantee the queue waits for."""
        held = self.held.get(queue, _NONE).get(model, 0)
        wanted = self.wanted.get(queue, _NONE).get(model, 0)
        return max(0, min(self.rules.get(queue, PLAIN).guaranteed_gpus.get(model, 0) - held, wanted))

    def _bound(self, queue: str, model: str) -> tuple[Rule, int] | None:
        """(rule, the most GPUs of the model that the queue may hold); None: any number."""
        rules = self.rules.get(queue, PLAIN)
        limit, guaranteed = rules.limit_gpus.get(model), rules.guaranteed_gpus.get(model, 0)
        bounds: list[tuple[Rule, int]] = [] if limit is None else [("limit", limit)]
        if not rules.borrow:
            bounds.append(("guarantee", guaranteed))
        elif reserved := self._kept(queue, model):
            # What other queues wait for within their guarantees is not lent.
            now = self.held.get(queue, _NONE).get(model, 0)
            bounds.append(("lent", max(guaranteed, now + max(0, self._free(model) - reserved))))
        return min(bounds, key=lambda bound: bound[1], default=None)

    def _kept(self, queue: str, model: str) -> int:
        """GPUs of the model that other queues wait for within their guarantees: they are not lent."""
        return sum(self.unmet(other, model) for other in self.rules.keys() - {queue})

    def _free(self, model: str) -> int:
        """GPUs of the model that no queue holds."""
        return self.capacity.get(model, 0) - sum(held.get(model, 0) for held in self.held.values())


# -- What all queues hold, now and at another moment, and what a gang may take by the quota of its queue


class QueueHoldings:
    """What all queues hold. `held` is added to as gangs start; `wanted`: as of a `Quota`, empty until it is read;
    `ruled`: whether there is a rule at all."""

    def __init__(
        self,
        cluster: ClusterView,
        models: Models,
        rules: Mapping[str, QueueLimits],
        held: dict[str, dict[str, int]],
        late: Mapping[str, PodRecord] = NO_PODS,
    ) -> None:
        """`late`: as of `Models.held`."""
        self.models, self.rules, self.held = models, rules, held
        self.wanted: dict[str, dict[str, int]] = {}
        self.ruled = any(rule.limit_gpus or rule.guaranteed_gpus or not rule.borrow for rule in rules.values())
        self._cluster, self._late = cluster, late
        self._waits_for: dict[gangs.Ref, list[str]] = {}  # the models of which a gang is counted in `wanted`
        self._own: dict[str, Mapping[str, int]] = {}  # by queue, what its own rules leave it
        self._rows: dict[str, set[int]] = {}  # of the nodes of each model, once one is asked for

    @property
    def quota(self) -> Quota:
        """What the queues hold now."""
        return Quota(self.rules, self.models.capacity, self.held, self.wanted)

    def over(self, gang: WaitingGang) -> OverQuota | None:
        """Why the rules of its queue do not leave what the gang needs, on whatever nodes it is; None: they do. What
        other queues wait for does not count."""
        if not self.ruled:
            return None
        own = self._own.get(gang.queue)
        if own is None:
            own = self._own[gang.queue] = Quota(self.rules, self.models.capacity, self.held, {}).more(gang.queue)
        return None if not own else self._over(gang, own, Quota(self.rules, self.models.capacity, self.held, {}))

    def empty(self, *, waiting: bool) -> Quota:
        """The quota as if no queue held any GPU. `waiting`: what queues wait for counts."""
        return Quota(self.rules, self.models.capacity, {}, self.wanted if waiting else {})

    def ever_over(self, gang: WaitingGang, *, waiting: bool) -> OverQuota | None:
        """As `over`, of the quota that is `empty`."""
        if not self.ruled:
            return None
        quota = self.empty(waiting=waiting)
        return self._over(gang, quota.more(gang.queue), quota)

    def _over(self, gang: WaitingGang, more: Mapping[str, int], quota: Quota) -> OverQuota | None:
        models = self.models.allowed(gang)
        if not models or any(model not in more for model in models):
            return None
        sizes = sorted((pod.gpu_count for pod in gang.pods[: max(1, gang.needed)] if pod.gpus), reverse=True)
        if _holds([more[model] for model in models], sizes):
            return None
        refusals = (quota.refused(gang.queue, {model: sum(sizes)}) for model in models)
        return next((refusal for refusal in refusals if refusal is not None), None)

    # -- what a gang may take -------------------------------------------------------------------------------------

    def allowances(self, more: Mapping[str, int]) -> list[GpuAllowance]:
        """What may be taken of the nodes of each model. `more`: as of `Quota.more`."""
        if not more:
            return []
        if not self._rows:
            for node, model in self.models.by_node.items():
                if (row := self._cluster.row(node)) >= 0:
                    self._rows.setdefault(model, set()).add(row)
        return [GpuAllowance(self._rows.get(model, ()), most) for model, most in more.items()]

    def changed(self, ended: Iterable[Ending], taken: Iterable[tuple[str, FoundPlace]] = ()) -> Sliced[Quota]:
        """What the queues hold once these pods have ended, and with what (queue, seats) take."""
        held = {queue: dict(counts) for queue, counts in self.held.items()}
        for ending, pause in pauses(ended, RUN):
            if pause:
                yield
            pod = self._cluster.pods.get(ending.uid) or self._late.get(ending.uid)
            if pod is not None and pod.gpus:
                model = self.models.by_node.get(self._cluster.names[ending.row], NO_MODEL)
                add_gpus(held, queue_of(pod), {model: -pod.gpu_count})
        wanted = {queue: dict(counts) for queue, counts in self.wanted.items()}
        for queue, seats in taken:
            gpus = seats.gpus(self.models)
            add_gpus(held, queue, gpus)
            if queue in wanted:
                add_gpus(wanted, queue, {model: -count for model, count in gpus.items()})
        return Quota(self.rules, self.models.capacity, held, wanted)

    def give_up(self, seats: Iterable[Seat]) -> None:
        """The pods of these seats do not count any more."""
        for seat in seats:
            pod = self._cluster.pods.get(seat.uid) or self._late.get(seat.uid)
            if pod is not None and pod.gpus and not pod.node and (model := self.models.by_node.get(seat.node)):
                add_gpus(self.held, queue_of(pod), {model: -pod.gpu_count})
        self._own.clear()

    def take(self, gang: WaitingGang, gpus: Mapping[str, int]) -> None:
        """The gang starts with so many GPUs of each model."""
        add_gpus(self.held, gang.queue, gpus)
        for model in self._waits_for.pop(gang.ref, ()):
            add_gpus(self.wanted, gang.queue, {model: -gang.gpus})
        self._own.clear()

    def waits(self, gang: WaitingGang) -> None:
        """The gang is one that waits within its guarantee: of each model that it may get."""
        models = self._waits_for[gang.ref] = self.models.allowed(gang)
        add_gpus(self.wanted, gang.queue, dict.fromkeys(models, gang.gpus))


def least(bounds: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """The lowest of several bounds, by model."""
    lowest: dict[str, int] = {}
    for bound in bounds:
        for model, most in bound.items():
            lowest[model] = min(most, lowest.get(model, most))
    return lowest


def _holds(rooms: Collection[int], sizes: Sequence[int]) -> bool:
    """Whether pods of these sizes, the largest first, may fit in these rooms, by counting those of each size. It is
    exact for equal pods, and for sizes that divide each other."""
    for size in sorted(set(sizes)):
        units = sum(other // size for other in sizes if other >= size)
        if sum(room // size for room in rooms) < units:
            return False
    return True


def add_gpus(amounts: dict[str, dict[str, int]], queue: str, gpus: Mapping[str, int]) -> None:
    """Add GPUs of a queue, by model, to `amounts`: by queue and model."""
    counts = amounts.setdefault(queue, {})
    for model, count in gpus.items():
        counts[model] = counts.get(model, 0) + count


# -- in which order waiting gangs are considered: by priority, fair share and age


SHORTEST: Final = 60.0
"""Seconds; shorter run times count as this."""


def dominant_share(held: Mapping[str, float], capacity: Mapping[str, int]) -> float:
    """The largest part that `held` is of any GPU model, 0 to 1. `held`, `capacity`: GPUs by model.

    Dominant resource fairness (Ghodsi et al., NSDI 2011) with the GPU models as its resources.
    """
    return max((count / capacity[model] for model, count in held.items() if capacity.get(model)), default=0.0)


def fair_shares(
    held: Mapping[str, Mapping[str, float]], capacity: Mapping[str, int], rules: Mapping[str, QueueLimits]
) -> dict[str, float]:
    """By queue that holds GPUs: its dominant share divided by its weight. `held`: by queue and model, now or on
    average."""
    return {queue: dominant_share(counts, capacity) / rules.get(queue, PLAIN).weight for queue, counts in held.items()}


def order(
    gangs: Iterable[WaitingGang], shares: Mapping[str, float], *, now: float, patience: float
) -> Sliced[list[WaitingGang]]:
    """The gangs in the order in which they are considered: the higher priority, then those that run and lack pods, then
    the queue with the lower share, then the older gang, then by ref. In slices.

    What a gang that lost a pod holds is idle until it has another. A gang that has waited for `patience` seconds goes
    before all of its priority that have not, the oldest first: fair share does not starve it. `shares`: by queue, 0
    where absent; `now`: seconds since the epoch.
    """

    def key(number: int, gang: WaitingGang) -> tuple[Any, ...]:
        waited = now - gang.created >= patience
        share = 0.0 if waited else shares.get(gang.queue, 0.0)
        return -gang.priority, not _begun(gang), not waited, share, gang.created, gang.ref, number, gang

    return (yield from _by(key, gangs, RUN))


def in_turn(
    in_order: Sequence[WaitingGang], share: Callable[[str], float], *, now: float, patience: float
) -> Sliced[Iterator[WaitingGang]]:
    """The gangs as `order` has them, by the shares at the moment at which each is asked for: after a start those of
    other queues may come before the next one of its queue. `share`: of a queue by then; it never falls."""
    alike: list[tuple[bool, dict[str, deque[WaitingGang]]]] = []  # (whether they have waited long, by queue)
    last: object = None
    for gang, pause in pauses(in_order, RUN):
        if pause:
            yield
        waited = now - gang.created >= patience
        if last != (last := (gang.priority, _begun(gang), waited)):
            alike.append((waited, {}))
        alike[-1][1].setdefault("" if waited else gang.queue, deque()).append(gang)

    def turns() -> Iterator[WaitingGang]:
        for waited, by_queue in alike:
            if waited:
                yield from by_queue[""]
                continue
            first = [(0.0, of[0].created, of[0].ref, queue) for queue, of in by_queue.items()]  # asked below
            heapify(first)
            while first:
                known, created, ref, queue = heappop(first)
                if (risen := share(queue)) > known:
                    heappush(first, (risen, created, ref, queue))
                    continue
                gangs_of = by_queue[queue]
                yield gangs_of.popleft()
                if gangs_of:
                    heappush(first, (share(queue), gangs_of[0].created, gangs_of[0].ref, queue))

    return turns()


def behind(gangs: Iterable[WaitingGang], now: float) -> Sliced[list[WaitingGang]]:
    """The gangs behind the one that waits for its place, in the order in which they are tried: the higher priority,
    then those that run and lack pods, then the higher response, then as they are given. In slices.

    The response is how long a gang has waited, of how long it runs at most, times the square root of its GPUs. Short
    gangs fit into gaps that long ones do not (highest response ratio next, Brinch Hansen, 1971). Of gangs that are
    alike the larger one is first: it has fewer gaps to choose from. A gang that states no run time has response 0."""

    def key(number: int, gang: WaitingGang) -> tuple[Any, ...]:
        return -gang.priority, not _begun(gang), -response(gang, now), number, gang

    return (yield from _by(key, gangs, STEP))


def _by(
    key: Callable[[int, WaitingGang], tuple[Any, ...]], gangs: Iterable[WaitingGang], every: int
) -> Sliced[list[WaitingGang]]:
    """In the order of the keys, whose last is the gang."""
    keyed = yield from collected(starmap(key, enumerate(gangs)), every)
    return [entry[-1] for entry in (yield from in_order(keyed))]


def _begun(gang: WaitingGang) -> bool:
    """Whether it runs, and lacks pods."""
    return bool(gang.members) and gang.lacking > 0


def response(gang: WaitingGang, now: float) -> float:
    """See `behind`. `now`: seconds since the epoch."""
    end = gang.end(now)
    if end is None:
        return 0.0
    return max(0.0, now - gang.created) / max(SHORTEST, end - now) * math.sqrt(gang.gpus)
