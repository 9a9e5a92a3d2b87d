"""/debug/queue: what waits behind our gate, in order, and what is being released."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from extender.cluster.view import ClusterView
from extender.objects.gangs import Ref
from extender.objects.queueing import queue_of
from extender.queue.leader import QueueLeader, not_the_leader
from extender.queue.report import Report
from extender.reservations.seats import Seat, Seats
from extender.web.pages import Pages


class QueuePage:
    """The handler of the page."""

    def __init__(
        self,
        report: Callable[[], Report | None],
        seats: Seats,
        cluster: ClusterView,
        pages: Pages,
        leader: QueueLeader | None = None,
    ) -> None:
        """`report`: the latest one of this server; None where it does not hold the queue's Lease, or there is none;
        `leader`: which instance knows it."""
        self._report, self._seats, self._cluster, self._pages = report, seats, cluster, pages
        self._leader = leader

    async def queue(self, request: Request) -> Response:
        """`?queue=`: of one."""
        only = request.query_params.get("queue")
        return self._pages.answer(pieces(self._report(), self._seats, self._cluster, only, self._leader))


def pieces(
    report: Report | None, seats: Seats, cluster: ClusterView, only: str | None, leader: QueueLeader | None = None
) -> Iterator[bytes]:
    """The page. `only`: of one queue; `leader`: which instance knows the order."""
    warnings = [not_the_leader(leader)] if report is None else []
    report = report or Report()
    yield orjson.dumps({"apiVersion": "gpu-extender.io/v1", "kind": "Queue", "warnings": warnings})[:-1]
    yield from _list("queues", (queue if only in (None, queue["name"]) else None for queue in report.queues))
    yield from _list("waiting", _waiting(report, only, incomplete=False))
    yield from _list("incomplete", _waiting(report, only, incomplete=True))
    yield from _releasing(seats, cluster, only)
    yield b"}"


def _list(name: str, entries: Iterable[Any]) -> Iterator[bytes]:
    """A field of an object behind its first one, an entry a piece; None: an entry that is not of the queue."""
    yield b',"%s":[' % name.encode()
    comma = b""
    for entry in entries:
        if entry is None:
            yield b""
        else:
            yield comma + orjson.dumps(entry)
            comma = b","
    yield b"]"


def _waiting(report: Report, only: str | None, *, incomplete: bool) -> Iterator[dict[str, Any] | None]:
    for position, one in enumerate(report.waiting, 1):
        shown = (one.code == "incomplete") is incomplete and only in (None, one.gang.queue)
        yield report.entry(position) if shown else None


def _releasing(seats: Seats, cluster: ClusterView, only: str | None) -> Iterator[bytes]:
    yield b',"releasing":['
    comma = b""
    for name in list(seats.gangs):
        held = seats.gang(name)
        if not held or only not in (None, queue_of_seats(held, cluster)):
            yield b""
            continue
        yield comma + orjson.dumps(_head(name, held, cluster))[:-1]
        yield from _list("seats", (_seat(seat) for seat in held))
        yield b"}"
        comma = b","
    yield b"]"


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
    there = cluster.workloads.gang_pods.get(Ref.of(seats[0].gang), ())
    pods = (cluster.pods.get(uid) for uid in (*(seat.uid for seat in seats), *there))
    return next((queue_of(pod) for pod in pods if pod is not None), None)
