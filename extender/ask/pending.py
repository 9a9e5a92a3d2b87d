"""The pods that wait: why, of which PriorityClass and for how long, in which gangs of which others run, and in which
queue.

A gang is partial where fewer pods run than must, while others of it wait: their GPUs are held and do no work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Any, Final, NamedTuple

from ext_core import fit
from extender.ask import node_reasons
from extender.ask.judge import Judge
from extender.ask.node_reasons import TOO_LITTLE, UNREADABLE
from extender.ask.nodes import admitting, deciding
from extender.ask.text import count
from extender.cluster.cluster import ClusterView
from extender.objects import gangs
from extender.objects.queueing import queue_of
from extender.objects.records import PodRecord
from extender.policy.pod_request import wants_of
from extender.policy.reasons import REASONS, TOO_FEW_GPUS
from extender.policy.roles import Unplaceable, admitted
from extender.preemption.search import Preemptor
from extender.queue import report
from extender.queue.report import QueueLeader, QueueReport, Why, not_the_leader
from extender.reservations.claims import Claims
from extender.reservations.reservations import Reservation
from extender.reservations.seats import Seat
from extender.times import deadline

POD_SIZES: Final = ((1, "1"), (2, "2"), (4, "3-4"), (8, "5-8"), (16, "9-16"), (inf, "17+"))
"""Most GPUs of a pod, and what such pods are called."""
MOST_PASSED: Final = 512
"""Nodes with free GPUs whose CPU, memory and pod slots are looked at."""
FITS, NOT_ADMITTED, GATED = "fits", "not-admitted", "gated"
EVICTING, SAVING = "evicting", "saving"
MEANINGS: Final[Mapping[str, str]] = {
    FITS: "a node has room now, kube-scheduler has not bound it yet",
    NOT_ADMITTED: "no node admits it (cordon, taints, selectors, affinity)",
    GATED: "a scheduling gate holds it back",
    UNREADABLE: node_reasons.MEANINGS[UNREADABLE],
    EVICTING: "pods are being evicted for it",
    SAVING: "pods save their work before they are evicted for it",
    TOO_LITTLE[0]: "the nodes with free GPUs lack CPU",
    TOO_LITTLE[1]: "the nodes with free GPUs lack memory",
    TOO_LITTLE[2]: "the nodes with free GPUs lack pod slots",
    TOO_LITTLE[-1]: "the nodes with free GPUs lack another resource that it asks for",
    **{reason.key: reason.text.removeprefix("gpu-extender: ") for reason in REASONS.values()},
    TOO_FEW_GPUS.key: "no node has as many GPUs as it asks for",
    **{f"queue: {code}": text for code, text in report.MEANINGS.items()},
}
"""What each reason means of any pod."""
MOST_CLASSES: Final = 50
"""PriorityClasses that are counted separately, those of the highest value; the pods of all others count as OTHER."""
NO_CLASS, OTHER = "none", "other"
"""Instead of a name: the pod has no class; its class is none of the first."""
PARTIAL_SECONDS: Final = 300.0
"""For which a gang may be partial before it is reported: pods of one gang do not start at the same moment."""
LONGEST_BACKOFF: Final = 12.0
"""Seconds within which kube-scheduler tries a pod again that an event woke: podMaxBackoffSeconds is 10."""
MOST_NAMED: Final = 20
"""Such gangs that an answer names, those that hold the most GPUs."""


WaitingPods = Sequence[tuple[PodRecord, Why]]
"""Each pod that waits, and why, as `reasons` gives them."""


class WaitingCounts(NamedTuple):
    """What metrics and the controllers need of all pods that wait."""

    by_size: Mapping[tuple[str, str], int]
    """How many, as the function `by_size`."""
    passed_over: Mapping[str, float]
    """Uids of those that fit now, that this server refused at their last call, and that kube-scheduler has not tried
    again since, though its longest backoff is over; when that was, in seconds since 1970."""


def pods_that_wait(cluster: ClusterView) -> Iterator[PodRecord]:
    """The pods of the queue, and the GPU pods outside of it that have no node. Those behind the gate of another
    controller do not count."""
    return (cluster.pods[uid] for uid in (*cluster.placements.queued, *cluster.placements.waiting))


def by_reason(waiting: WaitingPods) -> list[dict[str, Any]]:
    """How many pods wait, with how many GPUs."""
    pods: Counter[str] = Counter()
    gpus: Counter[str] = Counter()
    for pod, why in waiting:
        pods[why.reason] += 1
        gpus[why.reason] += pod.gpu_count
    return [
        {"reason": reason, "text": MEANINGS[reason], "pods": pods[reason], "gpus": gpus[reason]}
        for reason in sorted(pods)
    ]


def by_size(waiting: WaitingPods) -> Mapping[tuple[str, str], int]:
    """How many pods wait, by reason and by the GPUs that a pod asks for (POD_SIZES)."""
    pods: Counter[tuple[str, str]] = Counter()
    for pod, why in waiting:
        pods[why.reason, next(text for most, text in POD_SIZES if pod.gpu_count <= most)] += 1
    return pods


def reasons(
    judge: Judge, question: Callable[[PodRecord], Preemptor], report: QueueReport | None
) -> list[tuple[PodRecord, Why]]:
    """Each pod that waits, and why: of the queue as its gang, in the order of `_waiting_order`. `question`: of a pod,
    at this moment. Pods that ask for the same are judged once."""
    queued = _queued(report)
    waiting: list[tuple[PodRecord, Why]] = []
    known: dict[Hashable, str] = {}
    for pod in pods_that_wait(judge.cluster):
        if not pod.gpus:
            continue
        if pod.gated:
            why = queued.get(pod.uid) or meaning(GATED)
        else:
            asked, key = question(pod), alike(pod)
            if key not in known:
                known[key] = _reason(judge, asked)
            why = _why(judge, asked, known[key])
        waiting.append((pod, why))
    sort_key = _waiting_order(report)
    return sorted(waiting, key=lambda row: sort_key(row[0]))


def _waiting_order(report: QueueReport | None) -> Callable[[PodRecord], tuple[Any, ...]]:
    """The sort key of a pod: the order in which pods that wait are listed everywhere. The highest priority is first;
    then those that kube-scheduler tries, then those of the queue by the position of their gang; then the oldest.
    Incomplete gangs are last, as in the queue."""
    positions = {
        pod.uid: (waiting.code == "incomplete", -waiting.gang.priority, at)
        for at, waiting in enumerate(() if report is None else report.waiting)
        for pod in waiting.gang.pods
    }

    def sort_key(pod: PodRecord) -> tuple[Any, ...]:
        incomplete, priority, position = positions.get(pod.uid, (False, -pod.priority, len(positions)))
        return incomplete, priority, pod.gated, position, pod.created or 0.0, pod.namespace, pod.name, pod.uid

    return sort_key


def alike(pod: PodRecord) -> Hashable:
    """What the verdict on a pod outside the queue depends on, as far as the pod itself states it."""
    return (
        pod.namespace, wants_of(pod), pod.priority, pod.never,
        pod.node_selector, pod.node_terms, pod.tolerations, pod.anti_affinity_terms, pod.nominated_node,
        tuple(pod.annotations.items()), tuple(pod.labels.items()), bool(pod.unread),
    )  # fmt: skip


def _queued(report: QueueReport | None) -> Mapping[str, Why]:
    """Why each gang waits, by the uids of its pods."""
    gangs = () if report is None else report.waiting
    return {pod.uid: waiting.why for waiting in gangs for pod in waiting.gang.pods}


def meaning(reason: str) -> Why:
    """The reason with what it means of any pod."""
    return Why(reason, MEANINGS[reason])


def of_nodes(judge: Judge, asked: Preemptor) -> Why:
    """Why a pod outside the queue waits: for the pods that are evicted for it; else the reason of the nodes that lack
    the least (`deciding`); `fits` where a node has room now."""
    return _why(judge, asked, _reason(judge, asked))


def _why(judge: Judge, asked: Preemptor, reason: str) -> Why:
    """`reason`: of the nodes."""
    if asked.pod.unread:
        return Why(reason, asked.pod.unread_text)
    return (None if reason == FITS else _evicting(judge, asked)) or meaning(reason)


def _evicting(judge: Judge, asked: Preemptor) -> Why | None:
    """That its victims save their work, or terminate; None: none of them is left, or it has none."""
    reservation = judge.claims.reservations.of(asked.request.uid, asked.now)
    if reservation is None:
        return None
    remaining = [pod for uid in reservation.victims if (pod := judge.cluster.pods.get(uid)) is not None and pod.node]
    until = saves_until(judge.cluster, reservation, asked.now, asked.wall)
    if until is not None:
        saving = sum(not victim.terminating for victim in remaining)
        pods = f"{count(saving, 'pod')} on {reservation.node} save{'s its' if saving == 1 else ' their'} work"
        return Why(SAVING, f"{pods} before the eviction for it, until {deadline(until, asked.wall)} at the latest")
    pods = f"{count(len(remaining), 'pod')} on {reservation.node} {'is' if len(remaining) == 1 else 'are'}"
    return Why(EVICTING, f"{pods} being evicted for it") if remaining else None


def saves_until(cluster: ClusterView, reservation: Reservation, now: float, wall: float) -> float | None:
    """Until when victims of a reservation save their work, at the latest, seconds since 1970; None: none does. `now`:
    on the clock of reservations."""
    victims = (cluster.pods.get(uid) for uid in reservation.victims)
    saving = any(pod is not None and pod.node and not pod.terminating for pod in victims)
    waits = reservation.own and reservation.wait and saving
    return wall - now + reservation.at + reservation.wait if waits else None


def _reason(judge: Judge, asked: Preemptor) -> str:
    cluster = judge.cluster
    if asked.pod.unread:
        return UNREADABLE
    try:
        rows = admitted(cluster, asked.pod, cluster.rows.all())
    except Unplaceable:
        return UNREADABLE
    reasons = Counter[str]()
    if cluster.dra.fits.of(asked.pod) is not None:
        names, others = admitting(asked.pod, cluster, [cluster.names[row] for row in rows])
        rows = judge.rows(names)
        reasons.update(why for _, why in others)
    with judge.claims.of(asked.request, asked.now):
        codes, _ = judge.codes(asked, rows)
        passed = fit.passed(rows, codes)[:MOST_PASSED]
        short = [judge.short(asked, row) for row in passed]
    if not all(short):
        return FITS
    reasons.update({REASONS[code].key: number for code, number in fit.counts(codes).items()})
    reasons.update(TOO_LITTLE[lacking[0]] for lacking in short)
    return deciding(reasons) or NOT_ADMITTED


# -- by PriorityClass


class Pending(NamedTuple):
    """The pods of one class that wait."""

    pods: int
    oldest_seconds: float
    """For how long the first of them has waited."""
    outranks: bool
    """Whether pods of a lower priority hold GPUs meanwhile."""


def by_class(cluster: ClusterView, wall: float) -> Mapping[str, Pending]:
    """By PriorityClass, those of which pods wait. Pods behind the gate of another controller do not count. `wall`:
    seconds since 1970."""
    holding = (pod for pod in cluster.pods.values() if pod.node and not pod.finished and not pod.terminating)
    lowest = min((pod.priority for pod in holding if pod.gpus), default=inf)
    classes = sorted(
        cluster.priority_classes.values(), key=lambda priority_class: (-priority_class.value, priority_class.name)
    )
    names = {priority_class.name for priority_class in classes[:MOST_CLASSES]}
    classes_waiting: dict[str, Pending] = {}
    for pod in pods_that_wait(cluster):
        if not pod.gpus:
            continue
        name = (pod.priority_class if pod.priority_class in names else OTHER) if pod.priority_class else NO_CLASS
        before = classes_waiting.get(name, Pending(0, 0.0, outranks=False))
        age = 0.0 if pod.created is None else max(0.0, wall - pod.created)
        outranks = before.outranks or lowest < pod.priority
        classes_waiting[name] = Pending(before.pods + 1, max(before.oldest_seconds, age), outranks)
    return classes_waiting


# -- partial gangs


class PartialGang(NamedTuple):
    """A gang of which too few pods run."""

    ref: gangs.Ref
    running: tuple[PodRecord, ...]
    """Its pods that have a node, by name."""
    waiting: int
    """How many of its GPU pods have none."""
    minimum: int
    """How many must run."""
    gpus: int
    """How many GPUs the running pods hold."""
    seconds: float | None
    """For how long this has been so, None where the times are not known."""

    @property
    def text(self) -> str:
        """What is wrong, for people."""
        return (
            f"{len(self.running)} of the {self.minimum} pods that must run together have a node and hold "
            f"{count(self.gpus, 'GPU')}, while {self.waiting} wait"
        )

    def as_json(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "gang": str(self.ref),
            "source": self.ref.source,
            "running": len(self.running),
            "waiting": self.waiting,
            "min": self.minimum,
            "held_gpus": self.gpus,
            "seconds": None if self.seconds is None else round(self.seconds, 3),
        }


def partial_gangs(cluster: ClusterView, wall: float) -> list[PartialGang]:
    """The gangs that have been partial for PARTIAL_SECONDS, or for a time that is not known; those that hold the most
    GPUs first. `wall`: seconds since 1970."""
    waiting: dict[gangs.Ref, list[PodRecord]] = {}
    for pod in pods_that_wait(cluster):
        if (named := cluster.gangs.ref(pod)) is not None:
            waiting.setdefault(named, []).append(pod)
    partials = []
    for named, pods in waiting.items():
        gang = _partial(cluster, named, pods, wall)
        if gang is not None and (gang.seconds is None or gang.seconds >= PARTIAL_SECONDS):
            partials.append(gang)
    return sorted(partials, key=lambda gang: (-gang.gpus, gang.ref))


def partial_fields(partials: Sequence[PartialGang]) -> dict[str, Any]:
    """Two fields of an answer: the first of them, and how many are left out."""
    return {
        "partial_gangs": [gang.as_json() for gang in partials[:MOST_NAMED]],
        "partial_gangs_left_out": max(0, len(partials) - MOST_NAMED),
    }


def _partial(cluster: ClusterView, named: gangs.Ref, waiting: list[PodRecord], wall: float) -> PartialGang | None:
    """The gang, where it is partial. It is from when its first pod ran and the first of those that wait existed."""
    running = sorted(
        [pod for pod in cluster.gangs.bound(named) if not pod.terminating and not pod.finished],
        key=lambda pod: (pod.name, pod.uid),
    )
    minimum = cluster.gangs.together(named)
    gpus = sum(cluster.gpu_amount(pod) for pod in running)
    if minimum is None or not gpus or len(running) >= minimum:
        return None
    starts = [pod.start for pod in running if pod.start is not None]
    created = [pod.created for pod in waiting if pod.created is not None]
    seconds = wall - max(min(starts), min(created)) if starts and created else None
    return PartialGang(named, tuple(running), len(waiting), minimum, gpus, seconds)


# -- `kind: Queue`


def queue(
    report: QueueReport | None,
    claims: Claims,
    cluster: ClusterView,
    only: str | None,
    leader: QueueLeader | None = None,
) -> dict[str, Any]:
    """`kind: Queue`. `only`: of one queue, with all advance reservations; `leader`: which instance knows the order."""
    warnings = [not_the_leader(leader)] if report is None else []
    report = report or QueueReport()
    waiting, incomplete = list[Any](), list[Any]()
    for position, row in enumerate(report.waiting, 1):
        if only in (None, row.gang.queue):
            (incomplete if row.code == "incomplete" else waiting).append(report.entry(position))
    seats_of = {name: claims.seats.gang(name) for name in claims.seats.gangs}
    return {
        "apiVersion": "gpu-extender.io/v1",
        "kind": "Queue",
        "warnings": warnings,
        "queues": [row for row in report.queues if only in (None, row["name"])],
        "waiting": waiting,
        "incomplete": incomplete,
        "releasing": [
            _release(name, seats, cluster)
            for name, seats in seats_of.items()
            if seats and only in (None, _queue_of_seats(seats, cluster))
        ],
        "advance_reservations": list(claims.advance.report),
    }


def _release(name: str, seats: Sequence[Seat], cluster: ClusterView) -> dict[str, Any]:
    """What is being released, with these seats. `name`: the text of the gang's reference."""
    source, _, gang = name.partition(":")
    shown = [{"pod": seat.pod, "node": seat.node} | ({"absent": True} if seat.absent else {}) for seat in seats]
    return {"gang": gang, "source": source, "awaits": _awaited(seats, cluster), "seats": shown}


def _awaited(seats: Iterable[Seat], cluster: ClusterView) -> list[str]:
    """The pods that are evicted for these seats and are not gone."""
    uids = {uid for seat in seats for uid in seat.awaits}
    return sorted(f"{pod.namespace}/{pod.name}" for uid in uids if (pod := cluster.pods.get(uid)) is not None)


def _queue_of_seats(seats: Sequence[Seat], cluster: ClusterView) -> str | None:
    """The queue of their pods; where none of them exists that of a pod of their gang. None: there is no such pod."""
    members = cluster.workloads.gang_pods.get(gangs.Ref.of(seats[0].gang), ())
    pods = (cluster.pods.get(uid) for uid in (*(seat.uid for seat in seats), *members))
    return next((queue_of(pod) for pod in pods if pod is not None), None)
