"""What ends by itself: assumed pods, reservations, nominated pods and seats that are counted, and pods that terminate.

Each node is looked at alone: of what is to end there as much as is needed, the soonest first. A smaller wait ends
sooner; where no time is known, later than any known time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from ext_core import survey
from extender.ask.judge import Judge
from extender.ask.nodes import TOO_FEW, JudgedNodes
from extender.ask.text import seconds
from extender.ask.ways import Way, term
from extender.objects.records import PodRecord
from extender.preemption.search import Preemptor, ends
from extender.queue.report import first_names
from extender.reservations.reservations import Reservation

MOST_NAMED: Final = 3
"""Pods that a text names."""


class Passing(NamedTuple):
    """What ends on a node."""

    seconds: float
    """Until then; infinite where not known."""
    what: str
    """assumed, reservation, nominated, seat, terminating, or victim (of this pod, and not terminating yet)."""
    uid: str
    pod: str
    text: str
    """For people."""

    @property
    def running(self) -> bool:
        """Whether it is a pod on the node, and no claim."""
        return self.what in ("terminating", "victim")


def wait(judge: Judge, asked: Preemptor, nodes: JudgedNodes) -> Way | None:
    """The soonest moment at which the pod fits by what ends by itself."""
    passing: dict[str, list[Passing]] = {}
    for node, claim in claimed(judge, asked):
        passing.setdefault(node, []).append(claim)
    cluster, terminating_on = judge.cluster, set[str]()
    for row in survey.terminating(cluster.tables.pods):
        pod = cluster.pods.get(cluster.pod_rows.uids[row])
        if pod is not None and ends(pod, asked.wall):
            terminating_on.add(pod.node)
    for name in terminating_on.intersection(nodes.open):
        for pod in cluster.pods_on(name):
            if ends(pod, asked.wall):
                passing.setdefault(name, []).append(terminating(pod, asked.wall))
    best: tuple[float, int, str] | None = None
    chosen: list[Passing] = []
    for name in sorted(passing.keys() & nodes.open):
        on_node = sorted(passing[name])
        if nodes.bare[name] in TOO_FEW and not any(due.running for due in on_node):
            continue  # even without any claim too few GPUs are free
        needed = _needed(judge, asked, name, on_node)
        if needed and (best is None or (needed[-1].seconds, len(needed), name) < best):
            best, chosen = (needed[-1].seconds, len(needed), name), needed
    if best is None or not _fits(judge, asked, best[2], chosen):
        return None
    return way({"node": best[2]}, chosen)


def claimed(judge: Judge, asked: Preemptor) -> Iterator[tuple[str, Passing]]:
    """What other pods claim, by node, as far as it counts for this pod: each with the node that it is claimed on."""
    claims, cluster, request, now = judge.claims, judge.cluster, asked.request, asked.now
    for pod in claims.assumed.current(now, unheard=request.links == "required" or request.by_position):
        if pod.uid == request.uid:
            continue
        remaining = max(0.0, pod.until - now)
        name = _name(judge, pod.uid)
        text = f"{name}, which is assumed on {pod.node}"
        text += ", to be seen in the watch" if pod.bound else f", for {seconds(remaining)} at most (hold.seconds)"
        yield pod.node, Passing(remaining, "assumed", pod.uid, name, text)
    for seat in claims.seats:
        if seat.priority >= request.priority and seat.uid != request.uid:
            yield (
                seat.node,
                Passing(math.inf, "seat", seat.uid, seat.pod, f"{seat.pod}, which has a seat on {seat.node}"),
            )
    for reservation in claims.reservations.current(now):
        own = reservation.uid == request.uid
        if own or claims.reservations.precedes(reservation, request.uid, request.priority):
            remaining = max(0.0, reservation.at + claims.reservations.seconds + reservation.grace - now)
            text = f"{reservation.pod}, for which GPUs on {reservation.node} are reserved, "
            text += f"for {seconds(remaining)} at most"
            if own:
                yield from _victims(judge, reservation, now)
            else:
                yield reservation.node, Passing(remaining, "reservation", reservation.uid, reservation.pod, text)
    for uid, node in cluster.placements.nominated.items():
        other = cluster.pods.get(uid)
        if other is not None and other.priority >= request.priority and uid != request.uid:
            name = f"{other.namespace}/{other.name}"
            yield node, Passing(math.inf, "nominated", uid, name, f"{name}, which is nominated to {node}")


def _victims(judge: Judge, own: Reservation, now: float) -> Iterator[tuple[str, Passing]]:
    """The victims of the pod's own reservation that do not terminate yet. Those that save their work are evicted when
    their time is over, at the latest."""
    saves = own.own and own.wait > 0
    saving = max(0.0, own.at + own.wait - now)
    remaining = max(0.0, own.at + own.wait + own.grace - now) if saves else math.inf
    how = "which is being evicted for it"
    if saves:
        how = f"which saves its work before it is evicted (at most {saving:.0f} s, then {own.grace:.0f} s of grace)"
    for uid in own.victims:
        pod = judge.cluster.pods.get(uid)
        if pod is not None and not pod.terminating:
            name = f"{pod.namespace}/{pod.name}"
            yield own.node, Passing(remaining, "victim", uid, name, f"{name} on {own.node}, {how}")


def _name(judge: Judge, uid: str) -> str:
    pod = judge.cluster.pods.get(uid)
    return f"{pod.namespace}/{pod.name}" if pod is not None else f"uid {uid}"


def terminating(pod: PodRecord, wall: float) -> Passing:
    """The end of a pod that is terminating."""
    remaining = math.inf if pod.deletion_at is None else max(0.0, pod.deletion_at - wall)
    name = f"{pod.namespace}/{pod.name}"
    when = "" if math.isinf(remaining) else f" ({seconds(remaining)} of grace left)"
    return Passing(remaining, "terminating", pod.uid, name, f"{name}, which is terminating on {pod.node}{when}")


def _needed(judge: Judge, asked: Preemptor, node: str, on_node: list[Passing]) -> list[Passing]:
    """As many of what is on the node, the first ones, as have to end so that the pod fits; none where all are not
    enough. What ends at one moment ends together."""
    for last, passing in enumerate(on_node, 1):
        together = last < len(on_node) and on_node[last].seconds == passing.seconds and not math.isinf(passing.seconds)
        if not together and _fits(judge, asked, node, on_node[:last]):
            return on_node[:last]
    return []


def _fits(judge: Judge, asked: Preemptor, node: str, gone: list[Passing]) -> bool:
    if judge.cluster.row(node) < 0:
        return False
    claims = frozenset(passing.uid for passing in gone if not passing.running)
    pods = {passing.uid for passing in gone if passing.running}
    if not pods:
        return judge.fits(asked, node, claims)
    with judge.cluster.without(pods, node):
        return judge.fits(asked, node, claims)


def way(where: Mapping[str, Any], chosen: list[Passing]) -> Way:
    """The wait for all of them, the latest one last. `where`: what the specification states of the nodes."""
    last = chosen[-1].seconds
    known = None if math.isinf(last) else round(last, 1)
    return Way(
        "wait",
        "wait for " + " and ".join(_texts(chosen, str(where.get("node") or ""))),
        {**where, "for": [{"what": passing.what, "pod": passing.pod, "uid": passing.uid} for passing in chosen]},
        (term("seconds", known, "seconds"),),
        (last,),
    )


def _texts(chosen: list[Passing], node: str) -> list[str]:
    """What ends, for people: several pods that are terminating on the node in one text."""
    ending = [passing for passing in chosen if passing.what == "terminating"]
    if len(ending) < 2 or not node:
        return [passing.text for passing in chosen]
    names = first_names([passing.pod for passing in ending], MOST_NAMED)
    last = ending[-1].seconds
    when = "" if math.isinf(last) else f" ({seconds(last)} of grace left)"
    together = f"{len(ending)} pods that are terminating on {node}{when}: {names}"
    return [*(passing.text for passing in chosen if passing.what != "terminating"), together]
