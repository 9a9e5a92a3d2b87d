"""What all queues hold, now and at another moment, and what a gang may take by the quota of its queue."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol

from extender.cluster.cluster import ClusterView
from extender.cluster.slices import RUN, Sliced, pauses
from extender.objects import gangs
from extender.objects.queueing import queue_of
from extender.objects.records import PodRecord
from extender.queue.endings import Ending
from extender.queue.gang import WaitingGang
from extender.queue.placement import GpuAllowance
from extender.queue.quota import OverQuota, QueueRules, Quota
from extender.queue.usage import NO_MODEL, Models
from extender.reservations.seats import Seat

NOTHING: Final[Mapping[str, int]] = {}
NO_PODS: Final[Mapping[str, PodRecord]] = {}


class Taken(Protocol):
    """GPUs that a gang takes, by model."""

    def gpus(self, models: Models) -> Mapping[str, int]:
        """How many of each model."""
        ...


class QueueHoldings(Mapping[gangs.Ref, OverQuota]):
    """What all queues hold; as a mapping, the gangs that their own limits and guarantees keep from starting, by what is
    held at the moment. `held` is added to as gangs start; `wanted`: as of a `Quota`, empty until it is read; `ruled`:
    whether there is a rule at all."""

    def __init__(
        self,
        cluster: ClusterView,
        models: Models,
        rules: Mapping[str, QueueRules],
        held: dict[str, dict[str, int]],
        late: Mapping[str, PodRecord] = NO_PODS,
    ) -> None:
        """`late`: as of `Models.held`."""
        self.models, self.rules, self.held = models, rules, held
        self.wanted: dict[str, dict[str, int]] = {}
        self.ruled = any(rule.limit or rule.guaranteed or not rule.borrow for rule in rules.values())
        self._cluster, self._late = cluster, late
        self._gangs: Mapping[gangs.Ref, WaitingGang] = {}
        self._waits_for: dict[gangs.Ref, list[str]] = {}  # the models of which a gang is counted in `wanted`
        self._own: dict[str, Mapping[str, int]] = {}  # by queue, what its own rules leave it
        self._rows: dict[str, set[int]] = {}  # of the nodes of each model, once one is asked for

    def of(self, waiting: Iterable[WaitingGang]) -> None:
        """The gangs that it is a mapping of."""
        self._gangs = {gang.ref: gang for gang in waiting}

    def __getitem__(self, ref: gangs.Ref) -> OverQuota:
        over = self.over(self._gangs[ref])
        if over is None:
            raise KeyError(ref)
        return over

    def __iter__(self) -> Iterator[gangs.Ref]:
        return (ref for ref in self._gangs if ref in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

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

    def changed(self, ended: Iterable[Ending], taken: Iterable[tuple[str, Taken]] = ()) -> Sliced[Quota]:
        """What the queues hold once these pods have ended, and with what (queue, seats) take."""
        held = {queue: dict(counts) for queue, counts in self.held.items()}
        for ending, pause in pauses(ended, RUN):
            if pause:
                yield
            pod = self._cluster.pods.get(ending.uid) or self._late.get(ending.uid)
            if pod is not None and pod.gpus:
                model = self.models.by_node.get(self._cluster.names[ending.row], NO_MODEL)
                _add(held, queue_of(pod), {model: -pod.gpu_count})
        wanted = {queue: dict(counts) for queue, counts in self.wanted.items()}
        for queue, seats in taken:
            gpus = seats.gpus(self.models)
            _add(held, queue, gpus)
            if queue in wanted:
                _add(wanted, queue, {model: -count for model, count in gpus.items()})
        return Quota(self.rules, self.models.capacity, held, wanted)

    def give_up(self, seats: Iterable[Seat]) -> None:
        """The pods of these seats do not count any more."""
        for seat in seats:
            pod = self._cluster.pods.get(seat.uid) or self._late.get(seat.uid)
            if pod is not None and pod.gpus and not pod.node and (model := self.models.by_node.get(seat.node)):
                _add(self.held, queue_of(pod), {model: -pod.gpu_count})
        self._own.clear()

    def take(self, gang: WaitingGang, gpus: Mapping[str, int]) -> None:
        """The gang starts with so many GPUs of each model."""
        _add(self.held, gang.queue, gpus)
        for model in self._waits_for.pop(gang.ref, ()):
            _add(self.wanted, gang.queue, {model: -gang.gpus})
        self._own.clear()

    def waits(self, gang: WaitingGang) -> None:
        """The gang is one that waits within its guarantee: of each model that it may get."""
        models = self._waits_for[gang.ref] = self.models.allowed(gang)
        _add(self.wanted, gang.queue, dict.fromkeys(models, gang.gpus))


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


def _add(amounts: dict[str, dict[str, int]], queue: str, gpus: Mapping[str, int]) -> None:
    counts = amounts.setdefault(queue, {})
    for model, count in gpus.items():
        counts[model] = counts.get(model, 0) + count
