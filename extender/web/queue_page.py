"""/debug/queue: what waits behind our gate, in order, and what is being released."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from extender.cluster.view import ClusterView
from extender.objects.gangs import Ref
from extender.objects.queueing import queue_of
from extender.queue.report import QueueLeader, QueueReport, not_the_leader
from extender.reservations.seats import Seat, Seats
from extender.web.pages import Pages


class QueuePage:
    """The handler of the page."""

    def __init__(
        self,
        report: Callable[[], QueueReport | None],
        seats: Seats,
        cluster: ClusterView,
        pages: Pages,
        leader: QueueLeader | None = None,
    ) -> None:
        """`report`: the latest one of this server; None where it does not hold the queue's Lease, or there is none;
        `leader`: which instance knows it."""
        self._page = pages.page(lambda only: (orjson.dumps(queue(report(), seats, cluster, only, leader)),))

    async def queue(self, request: Request) -> Response:
        """`?queue=`: of one."""
        return await self._page(request, request.query_params.get("queue"))


def queue(
    report: QueueReport | None, seats: Seats, cluster: ClusterView, only: str | None, leader: QueueLeader | None = None
) -> dict[str, Any]:
    """`kind: Queue`. `only`: of one queue; `leader`: which instance knows the order."""
    warnings = [not_the_leader(leader)] if report is None else []
    report = report or QueueReport()
    waiting, incomplete = list[Any](), list[Any]()
    for position, row in enumerate(report.waiting, 1):
        if only in (None, row.gang.queue):
            (incomplete if row.code == "incomplete" else waiting).append(report.entry(position))
    gangs = {name: seats.gang(name) for name in seats.gangs}
    return {
        "apiVersion": "gpu-extender.io/v1",
        "kind": "Queue",
        "warnings": warnings,
        "queues": [row for row in report.queues if only in (None, row["name"])],
        "waiting": waiting,
        "incomplete": incomplete,
        "releasing": [
            release(name, held, cluster)
            for name, held in gangs.items()
            if held and only in (None, queue_of_seats(held, cluster))
        ],
    }


def release(name: str, held: Sequence[Seat], cluster: ClusterView) -> dict[str, Any]:
    """What is being released, with these seats. `name`: the text of the gang's reference."""
    return _head(name, held, cluster) | {"seats": [_seat(seat) for seat in held]}


def _head(name: str, held: Sequence[Seat], cluster: ClusterView) -> dict[str, Any]:
    source, _, gang = name.partition(":")
    return {"gang": gang, "source": source, "awaits": _awaited(held, cluster)}


def _awaited(seats: Iterable[Seat], cluster: ClusterView) -> list[str]:
    """The pods that are evicted for these seats and are not gone."""
    uids = {uid for seat in seats for uid in seat.awaits}
    return sorted(f"{pod.namespace}/{pod.name}" for uid in uids if (pod := cluster.pods.get(uid)) is not None)


def _seat(seat: Seat) -> dict[str, Any]:
    """`absent`: its pod does not exist yet."""
    return {"pod": seat.pod, "node": seat.node} | ({"absent": True} if seat.absent else {})


def queue_of_seats(seats: Sequence[Seat], cluster: ClusterView) -> str | None:
    """The queue of their pods; where none of them exists that of a pod of their gang. None: there is no such pod."""
    members = cluster.workloads.gang_pods.get(Ref.of(seats[0].gang), ())
    pods = (cluster.pods.get(uid) for uid in (*(seat.uid for seat in seats), *members))
    return next((queue_of(pod) for pod in pods if pod is not None), None)
