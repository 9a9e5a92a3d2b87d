"""The views of what waits: pods by reason; the queues with their gangs in order; what starts next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from math import inf
from typing import Final, Literal

from extender.ask.pending import WaitingPods, queue, saves_until
from extender.cluster.cluster import ClusterView
from extender.cluster.nodes import model_of
from extender.cluster.tables import FIRST_GPU
from extender.objects.gangs import Ref
from extender.objects.queueing import queue_of
from extender.objects.records import PodRecord
from extender.queue.backfill import HeadReservation
from extender.queue.gang import SINGLE
from extender.queue.gang_runs import seated, stated
from extender.queue.report import QueueReport, Why, first_names
from extender.reservations.claims import Claims
from extender.web.node_pages import Groups
from extender.web.pages import JSON, Content, Query

MOST: Final = 200
"""Pods, or gangs, that a view shows."""


def queue_view(content: Content, query: Query) -> JSON:
    """`?queue=`: of one. As /debug/queue, with the first MOST of each list."""
    verbs, only, report = content.verbs, query.get("queue", ""), content.report()
    whole = queue(report, verbs.claims, verbs.cluster, only or None, content.leader)
    now, wall = content.clock.monotonic(), content.clock.wall()
    queues, waiting, incomplete = whole["queues"], whole["waiting"], whole["incomplete"]
    return {
        "warnings": whole["warnings"],
        "queue": only,
        "next_starts": next_starts(verbs.cluster, verbs.claims, report, now, wall),
        "queues": queues[:MOST],
        "models": _shared_models(content, report),
        "queues_left_out": max(0, len(queues) - MOST),
        "waiting": waiting[:MOST],
        "incomplete": incomplete[:MOST],
        "waiting_left_out": sum(max(0, len(gangs) - MOST) for gangs in (waiting, incomplete)),
        "releasing": [released | {"seats": released["seats"][:MOST]} for released in whole["releasing"][:MOST]],
        "advance_reservations": whole["advance_reservations"][:MOST],
    }


def _shared_models(content: Content, report: QueueReport | None) -> list[JSON]:
    """What all queues use of each GPU model, and what there is of it: unlike the fleet, shares also count the GPUs of
    nodes that take no pods, which pods still hold."""
    used = Counter[str]()
    for row in () if report is None else report.queues:
        used.update(row["used_gpus"])
    models = content.explainer.models() if used else ()
    counted = [(model, sum(apart["gpus"] for apart in model["closed"])) for model in models]
    return [
        {"model": model["model"], "gpus": model["gpus"] + closed, "gpus_of_closed_nodes": closed,
         "used_gpus": used[model["model"]]}
        for model, closed in counted
    ]  # fmt: skip


def waiting_view(content: Content, query: Query) -> JSON:
    """`?reason=`: for one reason; `?namespace=`: of one namespace."""
    namespace = query.get("namespace", "")
    waiting = [row for row in content.explainer.waiting() if namespace in ("", row[0].namespace)]
    return {"namespace": namespace, **pods_view(waiting, query.get("reason", ""), content.report())}


def pods_view(waiting: WaitingPods, reason: str, report: QueueReport | None) -> JSON:
    """The pods that wait, in their order. `reason`: for one reason, "" all; `report`: states when they start."""
    reasons = Counter(why.reason for _, why in waiting)
    starts = {} if report is None else report.start_texts()
    chosen = [(pod, why) for pod, why in waiting if reason in ("", why.reason)]
    return {
        "reason": reason,
        "reasons": dict(sorted(reasons.items())),
        "pods": [_pod_entry(pod, why, starts.get(pod.uid, "")) for pod, why in chosen[:MOST]],
        "pods_left_out": max(0, len(chosen) - MOST),
    }


def _pod_entry(pod: PodRecord, why: Why, start: str) -> JSON:
    """A pod that waits, in a line. `start`: when it starts, for people; "" where that is not estimated."""
    return {
        "pod": f"{pod.namespace}/{pod.name}",
        "priority": pod.priority,
        "gpus": dict(pod.gpus),
        "queue": queue_of(pod) if pod.gated else None,
        "created": pod.created,
        "reason": why.reason,
        "text": why.text,
        "start": start,
    }


# -- what starts and ends next, by rack: the gangs that are released, the head of the queue, preemptions with a
# -- reservation, and the pods that state when they end


MOST_LANES: Final = 12
"""Racks that are shown."""
MOST_BARS: Final = 10
"""In one of them."""
MOST_WINDOWS: Final = 10
"""Gangs whose expected starts are drawn, the first ones in order."""
MOST_NAMED: Final = 5
LEAST_SECONDS: Final = 1_800.0
MOST_SECONDS: Final = 48 * 3_600.0
"""Of the axis."""
Kind = Literal["head", "starts", "reserved", "ends"]
ORDER: Final[Mapping[Kind, int]] = {"head": 0, "starts": 2, "reserved": 3, "ends": 4}
LAST_AWAITED: Final = 1
"""In that order, the last end that the head waits for: the latest start of the head follows from it."""


@dataclass(slots=True)
class Bar:
    """GPUs of one rack that a gang or pod takes or gives up. Times are in seconds since 1970, None: not known."""

    kind: Kind
    name: str
    is_pod: bool
    begin: float | None
    end: float | None
    victims: int = 0
    """Pods that leave before."""
    gpus: int = 0
    nodes: set[str] = field(default_factory=set)
    awaited: bool = False
    """Whether the head waits for its end."""
    last_awaited: bool = False
    """Whether the head waits for no later one."""

    def add(self, node: str, gpus: int) -> None:
        """GPUs on one more node."""
        self.gpus += gpus
        self.nodes.add(node)

    @property
    def shown_order(self) -> tuple[int, bool, float, str]:
        """The sort key of the bars that a rack shows: of ends, those that the head waits for come first."""
        at = self.end if self.kind == "ends" else self.begin
        return ORDER[self.kind], not self.awaited, inf if at is None else at, self.name

    @property
    def kept_order(self) -> tuple[int, bool, float, str]:
        """The sort key by which a rack with too many bars keeps the first ones: as `shown_order`, but with the last
        end that the head waits for before the others."""
        return (LAST_AWAITED, *self.shown_order[1:]) if self.last_awaited else self.shown_order

    def as_json(self) -> JSON:
        """The JSON form."""
        return {**asdict(self), "nodes": len(self.nodes)}


class Lanes:
    """The bars of each rack."""

    def __init__(self, cluster: ClusterView) -> None:
        self._cluster, self._racks = cluster, Groups(cluster, "rack")
        self._rack_of: dict[str, str] = {}
        self._bars: dict[str, dict[tuple[Kind, str, float | None], Bar]] = {}
        self.unstated: dict[str, int] = {}
        """By rack, the GPUs of pods that do not state when they end."""
        self.closed: dict[str, int] = {}
        """By rack, the GPUs that pods hold on nodes that take no pods."""

    def rack(self, node: str) -> str:
        """The rack of a node, "" without one."""
        rack = self._rack_of.get(node)
        if rack is None:
            record = self._cluster.nodes.get(node)
            rack = self._rack_of[node] = "" if record is None else self._racks.of(record)
        return rack

    def bar(self, node: str, kind: Kind, name: str, begin: float | None, end: float | None, *, pod: bool) -> Bar:
        """The bar of a gang or pod in the rack of a node; a new one where there is none."""
        bars = self._bars.setdefault(self.rack(node), {})
        key = kind, name, end
        if key not in bars:
            bars[key] = Bar(kind, name, pod, begin, end)
        return bars[key]

    def shown(self) -> list[tuple[str, list[Bar]]]:
        """The racks with their bars: first that of the last awaited end, then those in which something starts, then
        those in which the first pods end."""
        lanes = [(rack, sorted(bars.values(), key=lambda bar: bar.kept_order)) for rack, bars in self._bars.items()]
        return sorted(
            lanes,
            key=lambda lane: (not any(bar.last_awaited for bar in lane[1]), lane[1][0].kept_order, lane[0]),
        )

    def mark_last_awaited(self) -> None:
        """Marks the ends that the head waits for longest, after all have been added."""
        awaited = [bar for bars in self._bars.values() for bar in bars.values() if bar.awaited]
        last = max((bar.end for bar in awaited if bar.end is not None), default=None)
        for bar in awaited:
            bar.last_awaited = bar.end == last


def next_starts(cluster: ClusterView, claims: Claims, report: QueueReport | None, now: float, wall: float) -> JSON:
    """`report`: of the latest look of the queue, None: it is not known here; `now`: on the server's clock; `wall`:
    seconds since 1970."""
    lanes, head = Lanes(cluster), None if report is None else report.head
    if head is not None:
        _head(lanes, head)
    for seat in list(claims.seats):
        pod, row = cluster.pods.get(seat.uid), cluster.row(seat.node)
        if row >= 0 and (pod is None or not pod.node):
            end = None if pod is None else seated(pod, row, cluster, wall).at
            ref = Ref.of(seat.gang)
            begin = None if seat.awaits else wall
            bar = lanes.bar(seat.node, "starts", str(ref), begin, end, pod=ref.source == SINGLE)
            bar.add(seat.node, sum(seat.amounts[FIRST_GPU:]))
    for reservation in claims.reservations.current(now):
        pod = cluster.pods.get(reservation.uid)
        if pod is None or not pod.node:
            saved = saves_until(cluster, reservation, now, wall)
            bar = lanes.bar(reservation.node, "reserved", reservation.pod, None, saved, pod=True)
            bar.add(reservation.node, sum(reservation.amounts[FIRST_GPU:]))
            bar.victims += sum(uid in cluster.pods for uid in reservation.victims)
    _endings(lanes, cluster, head, wall)
    shown, windows = lanes.shown(), [] if report is None else list(_windows(report, wall))
    return {
        "at": wall,
        "until": _until([bar for _, bars in shown[:MOST_LANES] for bar in bars[:MOST_BARS]], windows, wall),
        "windows": windows,
        "head": None if report is None or head is None else _of_head(report, head, cluster, wall),
        "lanes": [
            {
                "rack": rack,
                "bars": [bar.as_json() for bar in sorted(bars[:MOST_BARS], key=lambda bar: bar.shown_order)],
                "bars_left_out": max(0, len(bars) - MOST_BARS),
                "awaited_left_out": sum(bar.awaited for bar in bars[MOST_BARS:]),
                "unstated_gpus": lanes.unstated.get(rack, 0),
                "gpus_of_closed_nodes": lanes.closed.get(rack, 0),
            }
            for rack, bars in shown[:MOST_LANES]
        ],
        "lanes_left_out": max(0, len(shown) - MOST_LANES),
    }


def _windows(report: QueueReport, wall: float) -> Iterator[JSON]:
    """When the first gangs in order start, as far as that is known."""
    known = (
        (waiting.gang.ref, dates)
        for waiting in report.waiting
        if (dates := report.starts(waiting)) is not None and dates.windows
    )
    for ref, dates in islice(known, MOST_WINDOWS):
        windows = [window._asdict() for window in dates.windows]
        yield {"gang": str(ref), "is_pod": ref.source == SINGLE, "text": dates.text(wall), "windows": windows}


def _of_head(report: QueueReport, head: HeadReservation, cluster: ClusterView, wall: float) -> JSON:
    """The head in a line: `text`, when it starts, and `why` its latest start is not known; "" where there is none;
    `expected`: the middle of the windows, seconds since 1970; `limits`: those of its queue, at its start."""
    why = ""
    if head.start is None:
        why = "pods before which it waits state no end, or have no place of their own yet"
    elif head.displaced:
        why = f"released gangs get other seats before it: {first_names(head.displaced, MOST_NAMED)}"
    elif head.after:
        why = f"gangs may start before it within the guarantees of {first_names(head.after, MOST_NAMED)}"
    elif head.late is not None:
        why = "the ends of pods before which it waits are learned, and not the latest ones"
    ref = head.gang.ref
    awaited = len(head.blocked_by)
    dates = next((report.starts(waiting) for waiting in report.waiting if waiting.gang.ref == ref), None)
    return {
        "gang": str(ref), "is_pod": ref.source == SINGLE, "start": head.stated, "why": why, "awaited": awaited,
        "text": "" if dates is None else dates.text(wall), "expected": None if dates is None else dates.expected,
        "limits": _limits(report, head, cluster),
    }  # fmt: skip


def _limits(report: QueueReport, head: HeadReservation, cluster: ClusterView) -> list[JSON]:
    """By model that the head takes, and of which its queue has a limit: how many GPUs the queue holds now, how many of
    them end before the head starts, and how many it takes. Held and not ended, with those, are within the limit."""
    queue, models = head.gang.queue, cluster.settings.mix.model_labels
    rules, used = cluster.settings.queue.queues.get(queue), Counter[str]()
    for row in report.queues:
        if row["name"] == queue:
            used.update(row["used_gpus"])
    ended, taken = Counter[str](), Counter[str]()
    for ending in head.gone:
        pod, node = cluster.pods.get(ending.uid), cluster.nodes.get(cluster.names[ending.row])
        if pod is not None and node is not None and queue_of(pod) == queue:
            ended[model_of(node, models)] += pod.gpu_count
    for node_name, gpus in head.seats.gpus_by_node().items():
        if (node := cluster.nodes.get(node_name)) is not None:
            taken[model_of(node, models)] += gpus
    return [
        {"model": model, "limit": limit, "held": used[model], "ended": ended[model], "taken": taken[model]}
        for model, limit in sorted({} if rules is None else rules.limit_gpus.items())
        if taken[model]
    ]


def _head(lanes: Lanes, head: HeadReservation) -> None:
    """The seats that the head gets."""
    start, ref = head.stated, head.gang.ref
    end = None if start is None else head.gang.end(start)
    for node, gpus in head.seats.gpus_by_node().items():
        lanes.bar(node, "head", str(ref), start, end, pod=ref.source == SINGLE).add(node, gpus)


def _endings(lanes: Lanes, cluster: ClusterView, head: HeadReservation | None, wall: float) -> None:
    """The running pods that state when they end; those of one gang at one time together."""
    awaited = frozenset(() if head is None else head.blocked_by)
    for pod, at in stated(cluster, wall):
        gpus, rack, node = cluster.gpu_amount(pod), lanes.rack(pod.node), cluster.nodes.get(pod.node)
        if node is not None and node.closed:
            lanes.closed[rack] = lanes.closed.get(rack, 0) + gpus
        if at is None:
            lanes.unstated[rack] = lanes.unstated.get(rack, 0) + gpus
            continue
        gang = cluster.workloads.gang_of(pod.uid)
        name = f"{pod.namespace}/{pod.name}" if gang is None else str(gang)
        bar = lanes.bar(pod.node, "ends", name, wall, at, pod=gang is None)
        bar.add(pod.node, gpus)
        bar.awaited |= pod.uid in awaited
    lanes.mark_last_awaited()


def _until(bars: Sequence[Bar], windows: Sequence[JSON], wall: float) -> float:
    """The end of the axis: all starts are within it, and four of five ends."""
    starts = list(_offsets((bar.begin for bar in bars if bar.kind == "head"), wall))
    starts += [window["end"] - wall for of_gang in windows for window in of_gang["windows"]]
    ends = sorted(_offsets((bar.end for bar in bars), wall))
    needed = max([LEAST_SECONDS, *(1.2 * start for start in starts), *ends[: int(0.8 * len(ends)) + 1][-1:]])
    return wall + min(MOST_SECONDS, needed)


def _offsets(times: Iterable[float | None], wall: float) -> Iterator[float]:
    """How long it is until each time that is known."""
    return (at - wall for at in times if at is not None)
