"""The fleet at a glance: what is left of each GPU model, and whose pods ignore requests to save."""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from operator import sub
from typing import Any, Final, NamedTuple

from ext_core import survey
from ext_core.link_sets import LinkSets
from extender.ask.judge import Judge
from extender.ask.machines import probe
from extender.cluster.annotation_limits import ignored_text
from extender.cluster.cluster import ClusterView
from extender.cluster.nodes import model_of
from extender.cluster.tables import FIRST_GPU
from extender.reservations.claims import NONE

SIZES: Final = (2, 4, 8, 16)
"""Sizes of linked sets."""
MOST_IGNORING: Final = 20
"""Owners that an answer names, those that ignore the most first."""


class Model:
    """What there is, and what is left, of one GPU model."""

    def __init__(self, name: str) -> None:
        self.name, self.nodes, self.gpus, self.reserved, self.free, self.whole = name, 0, 0, 0, 0, 0
        self.closed: dict[str, Counter[str]] = {}
        """What the nodes that take no pods have, by why they do not."""
        self.sets: Counter[int] = Counter()
        self.graphs: Counter[tuple[int, int, int]] = Counter()
        """How many nodes have this shape, this mask of GPUs that are not taken, and so many free ones among them."""

    def as_json(self) -> dict[str, Any]:
        """The JSON form."""
        sets = [{"gpus": size, "sets": self.sets[size]} for size in SIZES if self.sets[size]]
        return {
            "model": self.name,
            "nodes": self.nodes,
            "gpus": self.gpus,
            "held_gpus": self.gpus - self.reserved - self.free,
            "reserved_gpus": self.reserved,
            "free_gpus": self.free,
            "whole_nodes": self.whole,
            "linked_sets": sets,
            "closed": [{"reason": why, **self.closed[why]} for why in sorted(self.closed)],
        }


def models(judge: Judge, now: float, names: Iterable[str] | None = None) -> list[dict[str, Any]]:
    """Of each model, over the nodes that take pods: how many GPUs are held, reserved and free (`stock`), whole nodes
    (all GPUs are free), and how many disjoint linked sets of each size are free. A node counts no sets where its links
    are not known, or where it matters which GPUs are held and that is not known. The nodes that take no pods
    (`NodeRecord.closed`) are counted apart, those that offer no GPUs are left out. `names`: of nodes, None: all."""
    cluster = judge.cluster
    labels, by_name = cluster.settings.mix.model_labels, dict[str, Model]()
    rows = cluster.rows.index.rows(sorted(cluster.gpus.topologies if names is None else names))
    node_records = [cluster.nodes[cluster.names[row]] for row in rows]
    texts = [(model_of(node, labels), node.closed) for node in node_records]
    alike = Counter(zip(texts, *stock(judge, now, rows), strict=True))
    for ((text, closed), gpus, _, reserved, free, shape, mask), nodes in alike.items():
        if not gpus:
            continue
        if (model := by_name.get(text)) is None:
            model = by_name[text] = Model(text)
        if closed:
            apart = model.closed.setdefault(closed, Counter(nodes=0, gpus=0, free_gpus=0))
            apart.update(nodes=nodes, gpus=nodes * gpus, free_gpus=nodes * free)
            continue
        model.nodes += nodes
        model.gpus += nodes * gpus
        model.reserved += nodes * reserved
        model.free += nodes * free
        model.whole += nodes * (free == gpus > 0)
        if shape:
            model.graphs[shape, mask, free] += nodes
    _count_sets(by_name.values(), cluster)
    return [by_name[name].as_json() for name in sorted(by_name)]


def _count_sets(fleet_models: Iterable[Model], cluster: ClusterView) -> None:
    """Each graph once: nodes of one kind that hold as many pods have few different ones."""
    sets = LinkSets(cluster.tables.shapes)
    known: dict[tuple[int, int], list[int]] = {}
    for model in fleet_models:
        for (shape, mask, free), nodes in model.graphs.items():
            if (shape, mask) not in known:
                known[shape, mask] = [sets.most(shape, mask, size) for size in SIZES]
            for size, number in zip(SIZES, known[shape, mask], strict=True):
                model.sets[size] += nodes * min(number, free // size)


def ignoring_fields(cluster: ClusterView, namespace: str = "") -> dict[str, Any]:
    """Two fields of an answer: the first owners whose pods ignore requests to save, as `SaveAnswersRecord` has
    it, and how many are left out. Owner None: those that were not asked yet. `namespace`: "": any."""
    owners = [
        (ignores, record.name, owner)
        for record in cluster.save_answers.values()
        for owner, ignores in ((None, record.ignores), *record.owners.items())
        if ignores and namespace in ("", record.name)
    ]
    owners.sort(key=lambda row: (-row[0], row[1], row[2] or ""))
    shown = [
        {"namespace": name, "owner": owner, "ignored_percent": ignores / 10, "text": ignored_text(ignores)}
        for ignores, name, owner in owners[:MOST_IGNORING]
    ]
    return {"ignores_requests": shown, "ignores_requests_left_out": max(0, len(owners) - MOST_IGNORING)}


# -- the fleet over the last hours: it is kept in memory, within a bound, so it begins when the server starts


EVERY_SECONDS: Final = 90.0
"""Between two points, at least."""
MOST_POINTS: Final = 240
"""Six hours of them."""


class FleetPoint(NamedTuple):
    """The fleet at a moment. GPUs are those of nodes that take pods."""

    at: float
    """Seconds since 1970."""
    gpus: int
    allocated_gpus: int
    waiting_pods: int
    waiting_gpus: int


class FleetCounts(NamedTuple):
    """One look at the fleet."""

    models: Sequence[Mapping[str, Any]]
    """What is left of each GPU model, as `extender.ask.fleet.models` has it."""
    point: FleetPoint


class Trend:
    """The latest points, the oldest first."""

    def __init__(self) -> None:
        self._points: deque[FleetPoint] = deque(maxlen=MOST_POINTS)

    def add(self, point: FleetPoint) -> None:
        """A look has ended. A point that follows the latest one too closely is left out."""
        if not self._points or point.at - self._points[-1].at >= EVERY_SECONDS:
            self._points.append(point)

    @property
    def points(self) -> Sequence[FleetPoint]:
        """What is known, the oldest first."""
        return tuple(self._points)


# -- what is free: the one count of GPUs that `top`, `map`, the pages and the metrics show.
#
# Each GPU that a node offers is held, reserved or free. Held: a pod of the node has it. Reserved: it is kept for a pod
# that is not on the node yet (an assumed or nominated pod, a seat, a reservation), or for a date. Where such a pod
# requires links or NICs, all that is not held is kept for it. Free: neither; that is what a pod of the lowest priority
# may get, as for `capacity`. An unhealthy GPU is not offered.


class Stock(NamedTuple):
    """Of each row, in units of its GPU resources: `gpus` are `held`, `reserved` and `free` together."""

    gpus: Sequence[int]
    held: Sequence[int]
    reserved: Sequence[int]
    free: Sequence[int]
    shapes: Sequence[int]
    """The link shape; 0 where it is not known, or where it matters which GPUs are held and that is not known."""
    masks: Sequence[int]
    """The GPUs that are not held and not planned for a pod; where all are linked and it is not known which ones, any as
    many; 0 with shape 0. `free` may be fewer: which of them are reserved is not always fixed."""


def stock(judge: Judge, now: float, rows: array[int], without: frozenset[str] = NONE) -> Stock:
    """`now`: by the server's clock; `without`: uids of pods for which nothing counts as reserved."""
    cluster = judge.cluster
    gpus, left_by_pods, _, _ = survey.stock(cluster.tables.nodes, rows)
    _, request = probe(judge, cluster.resources[FIRST_GPU], 1)
    with judge.claims.of(request, now, without=without):
        _, left, shapes, masks = survey.stock(cluster.tables.nodes, rows)
    not_held = list(map(min, gpus, left_by_pods))
    free = list(map(min, not_held, left))
    return Stock(gpus, list(map(sub, gpus, not_held)), list(map(sub, not_held, free)), free, shapes, masks)
