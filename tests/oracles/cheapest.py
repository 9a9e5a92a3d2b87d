"""Brute force for one node: the cheapest sufficient victims by definition, over all 2^pods sets.

Written from the definitions in `ext_core/victims.pyi`, with no code of the kernel or of its twin. It knows one node,
whose pods are 0..P-1 in order of importance.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

LOWEST = -(2**63)


@dataclass
class Node:
    """One candidate and its eligible pods, as sets and dicts."""

    short: list[int]  # what must come free, per resource
    frees: list[list[int]]  # [pod][resource]
    gpus: list[set[int]]  # [pod] GPUs that it holds
    free_gpus: set[int]
    unknown: int  # GPUs held at unknown positions
    unknown_of: list[int]  # [pod]
    good: set[frozenset[int]] | None  # the sets of free GPUs that will do; None: any
    forced: set[int]
    terms: list[dict[str, Any]] = field(default_factory=list)


def free_after(node: Node, victims: frozenset[int]) -> frozenset[int]:
    return frozenset(node.free_gpus.union(*(node.gpus[pod] for pod in victims)))


def suffices(node: Node, victims: frozenset[int]) -> bool:
    if not node.forced <= victims:
        return False
    for resource, amount in enumerate(node.short):
        if sum(node.frees[pod][resource] for pod in victims) < amount:
            return False
    if node.good is None:
        return True
    still_unknown = node.unknown - sum(node.unknown_of[pod] for pod in victims)
    return still_unknown <= 0 and free_after(node, victims) in node.good


def term_cost(node: Node, term: dict[str, Any], victims: frozenset[int]) -> int:
    form = term["form"]
    if form == "sum":
        return int(sum(term["of"][pod] for pod in victims)) - int(term["lacking"])
    if form == "max":
        return int(max([LOWEST, *(term["of"][pod] for pod in victims)]))
    if form == "mask":
        return 0 if node.good is None else int(term["price"][free_after(node, victims)])
    if form == "group":
        total = 0
        for pod in victims:
            # the pod's place in each budget's queue: how many victims of the group come before or with it
            over = [
                group
                for group in term["groups"][pod]
                if sum(1 for v in victims if v <= pod and group in term["groups"][v]) > term["allowance"][group]
            ]
            total += max((term["price"][group] for group in over), default=0)
        return total
    assert form == "gang"
    size = Counter(group for pod in victims for group in term["groups"][pod])
    broken = [group for group in size if size[group] > term["allowance"][group]]
    total = sum(term["price"][group] for group in broken)
    if term["of"] is not None:
        total += sum(term["of"][pod] for pod in victims if not set(term["groups"][pod]) & set(broken))
    return int(total)


def cost(node: Node, victims: frozenset[int]) -> tuple[int, ...]:
    return tuple(term_cost(node, term, victims) for term in node.terms)


def ranks(node: Node) -> dict[int, int]:
    """What the pod costs alone, the price of masks aside; then the larger index first."""
    plain = Node([], [], [], set(), 0, [], None, set(), node.terms)  # no GPUs: every mask term is 0
    order = sorted(range(len(node.gpus)), key=lambda pod: (cost(plain, frozenset([pod])), -pod))
    return {pod: rank for rank, pod in enumerate(order)}


def cheapest(node: Node) -> tuple[frozenset[int], tuple[int, ...]] | None:
    """The best set and its cost; None: no set suffices."""
    rank = ranks(node)
    found = []
    most = [term.get("most") for term in node.terms]
    for bits in range(1 << len(node.gpus)):
        victims = frozenset(pod for pod in range(len(node.gpus)) if bits >> pod & 1)
        paid = cost(node, victims)
        below = all(limit is None or value <= limit for value, limit in zip(paid, most, strict=True))
        if below and suffices(node, victims):
            found.append((paid, len(victims), sorted(rank[pod] for pod in victims), victims))
    if not found:
        return None
    best = min(found, key=lambda entry: entry[:3])
    return best[3], best[0]
