"""Whether a gang fits whole, by trying every count of pods on every node: a second way to the same answer, which shares
no code with the joint placement. Positions matter only by machine: on a switch any GPUs are linked, else none are."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import product

Counts = tuple[int, ...]


@dataclass
class Node:
    """A machine. `free`: GPUs, milli-CPU, pod slots that nothing holds."""

    name: str
    gpus: int
    cpu: int
    slots: int
    switch: bool
    rack: str = ""
    zone: str = ""
    cordoned: bool = False
    pods: list[Pod] = field(default_factory=list)

    def free(self, gone: Collection[str]) -> tuple[int, int, int]:
        there = [pod for pod in self.pods if pod.name not in gone]
        return (
            self.gpus - sum(pod.gpus for pod in there),
            self.cpu - sum(pod.cpu for pod in there),
            self.slots - len(there),
        )


@dataclass
class Pod:
    """A running pod, or one kind of pod of the gang."""

    name: str
    gpus: int
    cpu: int
    priority: int = 0
    linked: bool = False
    zone: str = ""


def takes(node: Node, kinds: list[Pod], counts: Counts, gone: Collection[str]) -> bool:
    """Whether the node takes so many pods of each kind."""
    gpus, cpu, slots = node.free(gone)
    used = [(kind, count) for kind, count in zip(kinds, counts, strict=True) if count]
    if not used:
        return True
    if node.cordoned or any(kind.zone and kind.zone != node.zone for kind, _ in used):
        return False
    if any(kind.linked and kind.gpus > 1 and not node.switch for kind, _ in used):
        return False
    return (
        sum(kind.gpus * count for kind, count in used) <= gpus
        and sum(kind.cpu * count for kind, count in used) <= cpu
        and sum(counts) <= slots
    )


def fits(
    nodes: list[Node], kinds: list[Pod], wanted: Counts, gone: Collection[str] = (), *, rack: bool = False
) -> bool:
    """Whether all pods fit. `wanted`: of each kind; `gone`: pods that are away; `rack`: in one rack."""
    if rack:
        racks = {node.rack for node in nodes if node.rack}
        return any(fits([node for node in nodes if node.rack == one], kinds, wanted, gone) for one in racks)
    reached = {(0,) * len(wanted)}
    for node in nodes:
        ways = [counts for counts in _counts(wanted) if takes(node, kinds, counts, gone)]
        sums = {_sum(before, counts) for before in reached for counts in ways}
        reached = {one for one in sums if all(n <= most for n, most in zip(one, wanted, strict=True))}
    return wanted in reached


def _counts(wanted: Counts) -> Iterator[Counts]:
    return product(*(range(n + 1) for n in wanted))


def _sum(a: Counts, b: Counts) -> Counts:
    return tuple(x + y for x, y in zip(a, b, strict=True))
