"""GPUs that are kept for pods that are not on their nodes yet: seats of the queue, reservations, assumed pods."""

from __future__ import annotations

from typing import Any

from extender.cluster.gpus.statements import gpus_of
from extender.cluster.tables import FIRST_GPU
from extender.cluster.view import ClusterView
from extender.reservations.claims import Claims

Kept = dict[str, list[dict[str, Any]]]


def reserved(claims: Claims, cluster: ClusterView, now: float) -> Kept:
    """By node: for which pod, how many GPUs, which (None: not known), and by what. A pod counts once; `now`: seconds
    of the server's clock."""
    reserved_by_node: Kept = {}
    seen: set[str] = set()

    def add(uid: str, node: str, amounts: tuple[int, ...], gpus: int, by: str) -> None:
        pod = cluster.pods.get(uid)
        count = sum(amounts[FIRST_GPU:])
        if uid in seen or not count or (pod is not None and pod.node):
            return
        seen.add(uid)
        name = None if pod is None else f"{pod.namespace}/{pod.name}"
        indices = list(gpus_of(gpus)) if gpus else None
        reserved_by_node.setdefault(node, []).append({"pod": name, "by": by, "count": count, "gpus": indices})

    for seat in list(claims.seats):
        add(seat.uid, seat.node, seat.amounts, seat.gpus, "seat")
    for reservation in claims.reservations.current(now):
        add(reservation.uid, reservation.node, reservation.amounts, 0, "reservation")
    for held in claims.assumed.current(now):
        add(held.uid, held.node, held.amounts, held.gpus, "assumed")
    return reserved_by_node
