"""Ways out for a gang that does not start now. Each is verified: the gang is placed again on the copy as the change
makes it, and the change is taken back.

- wait: what ends by itself on the nodes where the gang is placed then. Not the least wait: the placement's own.
- uncordon: the fewest nodes found, one where one is enough.
- evict: the plan that the verdict rests on.
- quota, relax-domain, relax-links, smaller: as for a gang in the queue; smaller also with fewer pods, where its minimum
  allows it.
- add-nodes: as few machines as are enough, of the smallest kind that takes a pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from extender.ask import nodes as judged_nodes
from extender.ask.admission import CORDON, uncordoned
from extender.ask.nearest import nearest as of_pod
from extender.ask.suppose import copies
from extender.ask.text import count
from extender.ask.ways import gang as gang_ways
from extender.ask.ways import machines
from extender.ask.ways import wait as waits
from extender.ask.ways.gang import Situation
from extender.ask.ways.way import Way, in_order, term
from extender.ask.whatif.group import Seating, Task
from extender.objects.records import NodeRecord
from extender.policy.roles import NODE
from extender.preemption import certificate
from extender.preemption.candidates import ends
from extender.preemption.gang_plan import cost_of
from extender.queue.placement import NoPlace, Placed
from extender.queue.report import first_names
from extender.reservations.seats import Seat

MOST_UNCORDONED: Final = 16
"""Nodes that are tried alone."""
NAMED: Final = 3
"""Pods or nodes that a text names."""
HIGHEST: Final = 2**31 - 1


def ways(task: Task, now: Situation, seating: Seating) -> list[dict[str, Any]]:
    """The ways out, the cheapest first, as JSON. `seating`: the eviction that was found, if one was."""
    snapshot = task.snapshot
    options = [_evict(task, seating)]
    options += gang_ways.ways(snapshot.judge, task.asked, now, of_one=True)
    if now.over is None:  # room alone is no way out for a gang that its queue may not hold
        for steps in (_wait, _uncordon, _fewer, _add_nodes):
            if not snapshot.over():
                options.append(steps(task))
    return [way.as_json() for way in in_order([way for way in options if way is not None])]


def nearest(task: Task, none: NoPlace) -> dict[str, Any] | None:
    """The nearest miss of the first pod that finds no place once as many as fit have theirs."""
    snapshot, gang = task.snapshot, task.gang
    placed: Placed | NoPlace = none
    most = min(none.most, len(gang.pods) - 1)
    while most > 0 and not isinstance(placed, Placed):
        placed = task.place(most)
        most = most if isinstance(placed, Placed) else min(placed.most, most - 1)
    seats = list(_seats(task, placed)) if isinstance(placed, Placed) else []
    at = next((at for at in range(len(seats), len(gang.pods)) if task.requests[at].gpus), None)
    if at is None:
        return None
    pod = gang.pods[at]
    if gang.domain is not None and gang.domain.required and none.domain is not None and none.domain[0] != NODE:
        pod = msgspec.structs.replace(pod, node_selector=(*pod.node_selector, none.domain))
    asked = task.asked._replace(pod=pod, request=snapshot.claims.alone(pod))
    snapshot.claims.seats.reserve(seats)
    try:
        nodes = judged_nodes.read(snapshot.judge, asked)
        return of_pod(snapshot.judge, asked, nodes)
    finally:
        for seat in seats:
            snapshot.claims.seats.drop(seat.uid)


def _seats(task: Task, placed: Placed) -> Sequence[Seat]:
    cluster, gang = task.snapshot.cluster, task.gang
    return [
        Seat(
            pod.uid, f"{pod.namespace}/{pod.name}", gang.ref.text, node, cluster.amounts(pod), mask, HIGHEST,
            task.asked.now,
        )
        for pod, node, mask in zip(gang.pods, placed.nodes, placed.gpus, strict=False)
    ]  # fmt: skip


def _evict(task: Task, seating: Seating) -> Way | None:
    search = seating.found
    if seating.placed is None or search is None or search.best is None:
        return None
    cluster, best = task.snapshot.cluster, search.best
    victims = [certificate.victim(cluster, pod) for pod in seating.victims]
    spec = {
        "domain": None if best.domain is None else {"level": best.domain[0], "value": best.domain[1]},
        "nodes": sorted(set(seating.placed.nodes)),
        "victims": victims,
        "proved": search.proved,
    }
    needs = ("eviction-by-hand",) if task.queued and not task.snapshot.settings.evictions.enabled else ()
    text = first_names([f"{pod.namespace}/{pod.name}" for pod in seating.victims], NAMED)
    return Way("evict", f"evict {text}", spec, cost_of(search, best), tuple(map(float, best.cost)), needs)


def _wait(task: Task) -> Way | None:
    """All pods that are terminating gone, and no claim of another pod: then what of it is on the nodes of the gang."""
    cluster, judge, wall = task.snapshot.cluster, task.snapshot.judge, task.asked.wall
    passing_pairs: list[tuple[str, waits.Passing]] = []
    for pod in list(cluster.pods.values()):
        if pod.node and pod.uid not in task.own and ends(pod, wall):
            passing_pairs.append((pod.node, waits.terminating(pod, wall)))
    passing_pairs += [(node, claim) for node, claim in waits.claimed(judge, task.asked) if claim.uid not in task.own]
    if not passing_pairs:
        return None
    placed = _without(task, passing_pairs)
    if placed is None:
        return None
    needed = [(node, passing) for node, passing in passing_pairs if node in placed.nodes]
    again = _without(task, needed)
    if again is None or not needed:
        return None
    return waits.way({"nodes": sorted(set(again.nodes))}, sorted(passing for _, passing in needed))


def _without(task: Task, passing_pairs: Iterable[tuple[str, waits.Passing]]) -> Placed | None:
    """The place of the gang once these have ended, each on its node."""
    gone: dict[int, list[str]] = {}
    claims: set[str] = set()
    for node, passing in passing_pairs:
        if passing.running:
            gone.setdefault(task.snapshot.cluster.row(node), []).append(passing.uid)
        else:
            claims.add(passing.uid)
    placed = task.place(without=frozenset(claims), gone=gone)
    return placed if isinstance(placed, Placed) else None


@dataclass(frozen=True, slots=True)
class _Changed:
    """Nodes that are changed for a while."""

    task: Task
    after: Sequence[NodeRecord]
    """The changed nodes, instead of `before`, or beside the nodes that exist."""
    before: Sequence[NodeRecord] = ()
    like: NodeRecord | None = None
    """The node that `after` are copies of; None: they replace `before`."""

    def place(self) -> Placed | None:
        """The place of the gang with the changed nodes, which are as before once this ends."""
        snapshot = self.task.snapshot
        if self.like is None:
            snapshot.set_nodes(self.after)
        else:
            snapshot.add_nodes(self.like, self.after)
        try:
            placed = self.task.place()
        finally:
            snapshot.set_nodes(self.before)
            if self.like is not None:
                snapshot.drop_nodes(self.after)
        return placed if isinstance(placed, Placed) else None


def _uncordon(task: Task) -> Way | None:
    cluster = task.snapshot.cluster
    cordoned = [node for _, node in sorted(cluster.nodes.items()) if _is_cordoned(node)]
    if not cordoned:
        return None
    placed = _Changed(task, list(map(uncordoned, cordoned)), cordoned).place()
    if placed is None:
        return None
    used = [node for node in cordoned if node.name in placed.nodes]
    for cordoned_node in cordoned[:MOST_UNCORDONED] if len(used) > 1 else ():
        if _Changed(task, [uncordoned(cordoned_node)], [cordoned_node]).place() is not None:
            used = [cordoned_node]
            break
    if _Changed(task, list(map(uncordoned, used)), used).place() is None:
        return None
    names = [node.name for node in used]
    spec: dict[str, Any] = {"node": names[0], "nodes": names}
    return Way(
        "uncordon", f"uncordon {first_names(names, NAMED)}", spec, (term("nodes", len(names), "nodes"),), (len(names),)
    )


def _is_cordoned(node: NodeRecord) -> bool:
    return node.unschedulable or any(taint.key == CORDON.key for taint in node.taints)


def _fewer(task: Task) -> Way | None:
    """Fewer pods, as many as the minimum asks for or more: the most that fit."""
    gang = task.gang
    least = max(1, gang.minimum - len(gang.members))
    most = len(gang.pods) - 1
    while gang.known and most >= least:
        placed = task.place(most)
        if isinstance(placed, Placed):
            was = len(gang.pods)
            spec = {"resource": "pods", "was": was, "is": most, "unit": "pods"}
            text = f"start {gang.ref} with {count(most, 'pod')} instead of {was}"
            return Way("smaller", text, spec, (term("given_up", was - most, "pods"),), (0.0, (was - most) / was))
        most = min(placed.most, most - 1)
    return None


def _add_nodes(task: Task) -> Way | None:
    """The fewest machines, by halving what is enough: with one more the gang still fits."""
    snapshot, gang = task.snapshot, task.gang
    largest = max(range(len(gang.pods)), key=lambda at: (task.requests[at].wanted, -at))
    asked = task.asked._replace(pod=gang.pods[largest], request=task.requests[largest])
    on_empty = machines.empty(snapshot.judge, asked)
    like = snapshot.cluster.nodes.get(on_empty.like)
    if like is None:
        return None
    low, high = 0, len(gang.pods)
    if _Changed(task, copies(like, high, snapshot.cluster.nodes), like=like).place() is None:
        return None
    while high - low > 1 and not snapshot.over():
        half = (low + high) // 2
        if _Changed(task, copies(like, half, snapshot.cluster.nodes), like=like).place() is None:
            low = half
        else:
            high = half
    gpus = sum(like.gpus.values()) * high
    return Way(
        "add-nodes",
        f"add {count(high, 'node')} like {like.name} ({count(gpus, 'GPU')})",
        {"count": high, "like": like.name},
        (term("nodes", high, "nodes"), term("gpus", gpus, "GPUs")),
        (float(high),),
    )
