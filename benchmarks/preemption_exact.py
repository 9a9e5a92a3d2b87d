"""The optimum by brute force: every set of pods of every node, priced in all nine terms of the default settings.

Nothing of the server's search is used. A node of 16 pods has 65,536 sets; their prices are columns of numpy, built from
the definitions, and the cheapest is found by keeping, term by term, the sets that are least in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks import preemption_links as links
from benchmarks.preemption_rules import Choice, Cost, Running, State, importance

Column = npt.NDArray[np.int64]
WORK, VICTIMS = 3, 5  # of Cost
LEXICOGRAPHIC = tuple(range(9))
COST_ONLY = (WORK, VICTIMS)
MOST_PODS = 16


@dataclass(slots=True)
class Sets:
    """All sets of one node's pods, bit i is `pods[i]`. `free`: the GPUs free without them; `terms`: as Cost has them,
    without leftover_fragmentation, and with all GPUs of the victims as freed_beyond_gpus."""

    pods: list[Running]
    free: Column
    count: Column
    terms: list[Column]


def sets(state: State, node: int) -> Sets:
    pods = sorted(state.on[node], key=importance)
    if len(pods) > MOST_PODS:
        raise ValueError(f"{len(pods)} pods are too many for brute force")
    every = np.arange(1 << len(pods), dtype=np.int64)
    inside = [(every >> i) & 1 for i in range(len(pods))]
    free = np.full(len(every), state.free_masks[node], dtype=np.int64)
    for pod, there in zip(pods, inside, strict=True):
        free |= there * pod.gpus
    count = sum((free >> gpu & 1 for gpu in range(state.machines[node].gpus)), np.zeros_like(every))
    gangs = {pod.gang for pod in pods if pod.gang >= 0}
    broken = {
        gang: np.max([there for pod, there in zip(pods, inside, strict=True) if pod.gang == gang], axis=0)
        for gang in gangs
    }
    zero = np.zeros_like(every)
    work = sum((broken[gang] * sum(pod.work for pod in state.gangs[gang]) for gang in gangs), zero)
    work = work + sum((there * pod.work for pod, there in zip(pods, inside, strict=True) if pod.gang < 0), zero)
    terms = [
        _violations(state, pods, inside),
        np.max([np.where(there, pod.priority, -(2**31)) for pod, there in zip(pods, inside, strict=True)], axis=0),
        sum(broken.values(), zero),
        work,
        np.max([there * pod.grace for pod, there in zip(pods, inside, strict=True)], axis=0),
        sum(inside, zero),
        sum((there * pod.size for pod, there in zip(pods, inside, strict=True)), zero),
        zero,
        sum((there * state.stranded(pod) for pod, there in zip(pods, inside, strict=True)), zero),
    ]
    return Sets(pods, free, count, terms)


def _violations(state: State, pods: Sequence[Running], inside: Sequence[Column]) -> Column:
    """Victims in order of importance; one that finds any of its budgets spent is a violation."""
    left = {budget: np.full_like(inside[0], state.allowed[budget]) for pod in pods for budget in pod.budgets}
    found = np.zeros_like(inside[0])
    for pod, there in zip(pods, inside, strict=True):
        over = np.zeros_like(found)
        for budget in pod.budgets:
            left[budget] = left[budget] - there
            over |= left[budget] < 0
        found = found + there * over
    return found


@dataclass(frozen=True, slots=True)
class Best:
    cost: Cost
    choice: Choice


def cheapest(
    state: State, node: int, every: Sets, need: int, order: Sequence[int] = LEXICOGRAPHIC, *, required: bool = False
) -> Best | None:
    """The cheapest set of pods of the node that frees enough: GPUs, `required`: that are certain to be linked. Terms
    are compared in this order; of equals the first set."""
    machine = state.machines[node]
    enough = every.count >= need
    terms = list(every.terms)
    terms[6] = terms[6] - state.lacking(node, need)
    if machine.gpus <= links.PRICED_GPUS and not links.uniform(machine, need):
        masks = range(1 << machine.gpus)
        if required:
            enough &= np.array([links.certain(machine, mask, need) for mask in masks])[every.free]
        prices = [links.leftover(machine, mask, need) if mask.bit_count() >= need else 0 for mask in masks]
        terms[7] = np.array(prices, dtype=np.int64)[every.free]
    enough[0] = False  # nobody goes: no eviction
    kept = np.flatnonzero(enough)
    if not len(kept):
        return None
    for term in order:
        column = terms[term][kept]
        kept = kept[column == column.min()]
    first = int(kept[0])
    cost = tuple(int(column[first]) for column in terms)
    return Best(cost, (node, [pod for i, pod in enumerate(every.pods) if first >> i & 1]))


class Exact:
    """The cheapest set of each node for each need: in the order of the settings, by work alone, and with links."""

    def __init__(self, state: State, needs: Sequence[int]) -> None:
        self.by_node: dict[tuple[int, bool, bool], list[Best | None]] = {}
        for node in range(len(state.on)):
            every = sets(state, node)
            for need in needs:
                for by_work, required in ((False, False), (True, False), (False, True)):
                    order = COST_ONLY if by_work else LEXICOGRAPHIC
                    best = cheapest(state, node, every, need, order, required=required)
                    self.by_node.setdefault((need, by_work, required), []).append(best)

    def best(self, nodes: Sequence[int], need: int, *, by_work: bool = False, required: bool = False) -> Best | None:
        """Over these nodes; of equals the first by number. Not both `by_work` and `required`."""
        of = self.by_node[need, by_work, required]
        order = COST_ONLY if by_work else LEXICOGRAPHIC
        found = [best for node in sorted(nodes) if (best := of[node]) is not None]
        return min(found, key=lambda best: [best.cost[term] for term in order], default=None)
