"""The domains in which an eviction may make room for a gang, and where the joint placement puts the gang there."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from extender.cluster.cluster import Cluster
from extender.cluster.slices import Sliced
from extender.objects.records import NodeRecord
from extender.policy.roles import NODE
from extender.preemption.gang_plan import Candidates, Gang, GangFound
from extender.queue.gang import WaitingGang
from extender.queue.placing.levels import Layout, Level
from extender.queue.placing.placement import Allowance, Choice, JointPlacement, Placed, Steps


def unsearched(gang: WaitingGang) -> str:
    """Why no eviction is searched for the gang, for people; "" where one is."""
    return "its Jobs are kept apart: no pod is evicted for such a gang" if gang.apart else ""


@dataclass(frozen=True, slots=True)
class Kept:
    """Places the pods of `asked` for an eviction search, and keeps each place that it finds: `places`, by the rows.
    `allowances`: as of a `Choice`."""

    cluster: Cluster
    placement: JointPlacement
    gang: WaitingGang
    asked: Gang
    allowances: Sequence[Allowance] = ()
    places: dict[tuple[int, ...], Placed] = field(default_factory=dict)

    def joint(self, rows: array[int]) -> Sliced[Sequence[int] | None]:
        """The row of each pod, of these rows alone; None: there is no place."""
        members = [self.cluster.row(pod.node) for pod in self.gang.members if pod.node]
        pods, requests = self.asked.pods, self.asked.requests
        choice = Choice(frozenset(rows), self.allowances)
        return self._kept(self.placement.steps(pods, requests, self.gang.domain, members, choice=choice))

    def _kept(self, steps: Steps) -> Sliced[Sequence[int] | None]:
        placed = yield from steps
        if not isinstance(placed, Placed):
            return None
        self.places[placed.rows] = placed
        return placed.rows


def candidates(cluster: Cluster, layout: Layout, gang: WaitingGang, rows: Collection[int]) -> Iterable[Candidates]:
    """The domains that the gang may choose from, with those of `rows` that are in them; where it only prefers one, the
    whole cluster too."""
    domain = gang.domain
    order, _ = layout.read()
    if domain is None or not domain.required:
        yield Candidates(None, array("i", [row for row in order if row in rows]))
    if domain is None:
        return
    level = layout.asked(domain.level)
    members = {cluster.row(pod.node) for pod in gang.members if pod.node}
    of_domain: dict[int, list[int]] = {}
    anchors: set[int] = set()
    for row, number in zip(order, level.domain, strict=True):
        if number >= 0:
            of_domain.setdefault(number, []).append(row)
            if row in members:
                anchors.add(number)
    for number, there in of_domain.items():
        kept = [row for row in there if row in rows]
        if kept and (not anchors or number in anchors):
            yield Candidates(_named(cluster, level, there[0]), array("i", kept))


def in_a_domain(found: GangFound) -> GangFound:
    """Of plans that cost the same the one inside a domain is first: the gang prefers one."""
    best, other = found.best, found.runner_up
    if best is None or other is None or best.domain is not None or other.domain is None or other.cost > best.cost:
        return found
    return replace(found, evictions=(other, best))


def _named(cluster: Cluster, level: Level, row: int) -> tuple[str, str]:
    """(label, value) of the domain that the node is in."""
    record = cluster.nodes[cluster.names[row]]
    return next((key, value) for key in level.keys if (value := _value(record, key)))


def _value(record: NodeRecord, key: str) -> str:
    return record.name if key == NODE else record.labels.get(key, "")
