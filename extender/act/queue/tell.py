"""What people see of the queue: Events on the first pod of a gang, metrics, and log lines."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import inf
from operator import itemgetter
from typing import Final

from extender.act.controller import each
from extender.act.events import EventRecorder, named, of_pod, price_text
from extender.decide.decisions import WORK_LOST, Decision
from extender.kube.own_objects import Regarding
from extender.log import get_log
from extender.metrics import Metrics
from extender.objects.records import PodRecord
from extender.preemption.certificate import how_many
from extender.queue.places import GangStart
from extender.queue.plan import gang_name, unread
from extender.queue.report import CODES, QueueReport
from extender.reservations.seats import Seat

EVENT_SECONDS: Final = 10.0  # a gang that starts sooner gets no Event about its waiting
SIZES: Final = ((1, "1"), (8, "2-8"), (64, "9-64"), (inf, "65+"))
MOST_QUEUES: Final = 500  # of the metric of shares
log = get_log()


class Teller:
    """Reports one server's queue."""

    def __init__(self, metrics: Metrics, events: EventRecorder) -> None:
        self._metrics, self._events = metrics, events
        self._reported: dict[str, str] = {}  # gang -> the code of its latest Event

    def started(self, start: GangStart, wall: float) -> None:
        """A gang's seats are written. `wall`: seconds since 1970."""
        pods, placed = len(start.seats), start.placed
        waited = max(0.0, wall - start.gang.created)
        self._metrics.queue_wait.labels(size_of(pods)).observe(waited)
        self._reported.pop(start.name, None)
        domain = None if placed.domain is None else "=".join(placed.domain)
        nodes = sorted({seat.node for seat in start.seats})
        log.info("starts", gang=start.name, pods=pods, nodes=len(nodes), domain=domain, waited=round(waited, 3))
        late = sum(seat.absent for seat in start.seats)
        where = f"node {nodes[0]}" if len(nodes) == 1 else f"{len(nodes)} nodes" + (f" of {domain}" if domain else "")
        text = f"{start.name}: {how_many(pods)} start{'s' if pods == 1 else ''} on {where}, after {waited:.0f} s"
        if late:
            text += f"; seats are reserved for {late} of them, which do not exist yet"
        elif start.gang.unread:
            text += f"; {unread(start.gang)}"
            log.warning("the templates of late pods cannot be read", gang=start.name, err=start.gang.unread)
        self._events.tell(of_pod(start.gang.existing[0]), "Started", "Queueing", text)

    def not_created(self, gang: str, pods: Sequence[PodRecord], seats: Sequence[Seat], seconds: float) -> None:
        """Seats ended because their pods were not created in time. `pods`: the pods of the gang that exist."""
        names = ", ".join(seat.pod for seat in seats[:3]) + (" ..." if len(seats) > 3 else "")
        text = f"{gang} is incomplete: {len(seats)} pods do not exist after {seconds:.0f} s, their seats are given up"
        log.warning("seats of pods that do not exist are given up", gang=gang, seats=len(seats), pods=names)
        for pod in pods[:1]:
            self._events.tell(of_pod(pod), "Incomplete", "Queueing", f"{text}: {names}")

    def evicting(self, gang: str, seats: Sequence[Seat], pods: Sequence[PodRecord], decision: Decision | None) -> None:
        """The evictions for a gang begin. `decision`: their record."""
        nodes = len({pod.node for pod in pods})
        price = price_text({} if decision is None else decision.detail)
        log.info("evicts", gang=gang, nodes=nodes, **({} if decision is None else decision.logged()))
        self._metrics.planned("queue", len(pods), None if decision is None else decision.value_of(WORK_LOST))
        first, names = _of_seats(seats), named([{"namespace": pod.namespace, "name": pod.name} for pod in pods])
        places = "1 node" if nodes == 1 else f"{nodes} nodes"
        evictions = f"{how_many(len(pods))} of lower priority or lent GPUs evicted on {places} to start it: {names}"
        self._events.tell(first, "Evicting", "Queueing", f"{gang}: {evictions}; {price}")
        for pod in pods:
            note = f"has to leave node {pod.node} for {gang} (priority {seats[0].priority:,}); {price}"
            self._events.tell(of_pod(pod), "ChosenAsVictim", "Evicting", note, related=first)

    def not_evicted(self, gang: str, seats: Sequence[Seat], decision: Decision) -> None:
        """A plan for a gang is not carried out: the record has why."""
        log.warning("no pod is evicted for a gang", gang=gang, err=decision.error, **decision.logged())
        note = f"no pod is evicted for {gang}: {decision.error}; {price_text(decision.detail)}"
        self._events.tell(_of_seats(seats), "EvictionNotAllowed", "Queueing", note, warning=True)

    def evicted(self, pods: int, *, started: bool) -> None:
        """So many pods were evicted for a gang that starts, or waits again."""
        self._metrics.queue_evictions.labels("started" if started else "in-vain").inc(pods)

    def given_back(self, seats: Sequence[Seat], why: str) -> None:
        """A gang waits again for which pods were to be evicted."""
        note = f"{seats[0].gang} waits again: {why}"
        self._events.tell(_of_seats(seats), "SeatsGivenBack", "Queueing", note, warning=True)

    async def waiting(self, report: QueueReport) -> None:
        """A look at the queue has ended. Others run in between."""
        counts = dict.fromkeys(product(CODES, [name for _, name in SIZES]), 0)
        reported: dict[str, str] = {}
        async for gang_waiting in each(report.waiting):
            counts[gang_waiting.code, size_of(gang_waiting.gang.number)] += 1
            name = gang_name(gang_waiting.gang)
            before = self._reported.get(name)
            if report.wall - gang_waiting.gang.created >= EVENT_SECONDS and before != gang_waiting.code:
                before, why = gang_waiting.code, report.why_not_evicted(gang_waiting)
                dates = report.starts(gang_waiting)
                known = dates is not None and (dates.windows or dates.latest is not None)
                start = f"; {dates.text(report.wall)}" if dates is not None and known else ""
                never = gang_waiting.code == "never"
                verb = "fits nowhere" if never else "waits"
                note = f"{name} {verb}: {gang_waiting.text}" + (f"; no pod is evicted: {why}" if why else "") + start
                first = of_pod(gang_waiting.gang.existing[0])
                self._events.tell(first, "Waiting", "Queueing", note, warning=never)
            if before is not None:
                reported[name] = before
        self._reported = reported
        for labels, count in counts.items():
            self._metrics.queue_waiting.labels(*labels).set(count)
        share = self._metrics.queue_share
        share.clear()
        for queue in sorted(report.queues, key=itemgetter("share"), reverse=True)[:MOST_QUEUES]:
            share.labels(queue["name"]).set(queue["share"])


def size_of(pods: int) -> str:
    """The class of sizes of a gang of so many pods."""
    return next(name for most, name in SIZES if pods <= most)


def _of_seats(seats: Sequence[Seat]) -> Regarding:
    """The first of their pods that exists."""
    seat = next((candidate for candidate in seats if not candidate.absent), seats[0])
    namespace, _, name = seat.pod.partition("/")
    return Regarding("Pod", namespace, name, seat.uid)
