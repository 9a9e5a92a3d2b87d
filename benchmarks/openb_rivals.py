"""The policies beside ours, as their sources score (integers 0 to 100), over all candidate nodes at once.

random, dotprod, clustering, packing, bestfit and fgd: the simulator of "Beware of Fragmentation" (USENIX ATC 2023).
fgd+bestfit: FGD's coarse score, then BestFit's among its equals. least-allocated, most-allocated: kube-scheduler's
NodeResourcesFit with its default resources, CPU and memory. GPUs within the node: the fullest that fits (random: any;
fgd: by its score; kube's: the lowest id).

FGD's target workload is read from the whole trace, the future too: that is its advantage over the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from benchmarks.openb_state import Bools, Ints, Placing, State, Ties
from benchmarks.openb_trace import MOST_GPUS, WHOLE, Pod

Floats = npt.NDArray[np.float64]
Score = Callable[[State, Pod, Ints], Ints]
MOST_CPU = 128_000
MOST_MILLI = MOST_GPUS * WHOLE
TYPICAL = 0.95  # of the pods are in FGD's target workload


def fullest(state: State, pod: Pod, row: int) -> list[int]:
    """The GPUs with least left that fit, then the lowest ids."""
    free = state.free[row].tolist()
    return sorted((g for g in range(MOST_GPUS) if free[g] >= pod.milli), key=lambda g: (free[g], g))[: pod.gpus]


def lowest(state: State, pod: Pod, row: int) -> list[int]:
    """The lowest ids that fit."""
    free = state.free[row].tolist()
    return [g for g in range(MOST_GPUS) if free[g] >= pod.milli][: pod.gpus]


class Scored:
    """A policy that is one score per node."""

    def __init__(self, score: Score, gpus: Callable[[State, Pod, int], list[int]] = fullest) -> None:
        self._score, self._gpus = score, gpus

    def arrive(self, pod: Pod) -> None:
        """Nothing is learned."""

    def choose(self, state: State, pod: Pod, rows: Ints, ties: Ties) -> tuple[int, Sequence[int]]:
        row = int(rows[ties.best(rows, self._score(state, pod, rows))])
        return row, self._gpus(state, pod, row)


class Random:
    """Any node, any GPUs."""

    def arrive(self, pod: Pod) -> None:
        """Nothing is learned."""

    def choose(self, state: State, pod: Pod, rows: Ints, ties: Ties) -> tuple[int, Sequence[int]]:
        row = int(rows[ties.drawn.randrange(len(rows))])
        fit = [g for g in range(MOST_GPUS) if state.free[row, g] >= pod.milli]
        return row, sorted(ties.drawn.sample(fit, pod.gpus))


def dotprod(state: State, pod: Pod, rows: Ints) -> Ints:
    cpu = state.cpu[rows] / MOST_CPU * (pod.cpu / MOST_CPU)
    gpu = state.left(rows) / MOST_MILLI * (pod.demand / MOST_MILLI)
    return _int(100 * (1 - 0.5 * (cpu + gpu)))


def bestfit_raw(state: State, pod: Pod, rows: Ints) -> Ints:
    """Before it is stretched over the candidates."""
    cpu = (state.cpu[rows] - pod.cpu) / MOST_CPU
    gpu = (state.left(rows) - pod.demand) / MOST_MILLI
    return _int(100 * (1 - 0.5 * cpu - 0.5 * gpu))


def bestfit(state: State, pod: Pod, rows: Ints) -> Ints:
    raw = bestfit_raw(state, pod, rows)
    low, high = int(raw.min()), int(raw.max())
    return np.full(len(rows), 100) if low == high else (raw - low) * 100 // (high - low)


def packing(state: State, pod: Pod, rows: Ints) -> Ints:
    """Partly used GPUs first, then free GPUs of used nodes, then free nodes."""
    if not pod.gpus:
        return np.zeros(len(rows), dtype=np.int64)
    free = np.sort(np.where(state.free[rows] >= pod.milli, state.free[rows], 2 * WHOLE), axis=1)[:, : pod.gpus]
    opened = (free == WHOLE).sum(axis=1)
    parts = np.where(free < WHOLE, free // 10, 0).sum(axis=1)
    used = np.where(opened > 0, np.maximum(50 - opened, 33), np.maximum(100 - parts // 10, 50))
    gpus = state.gpus[rows]
    return np.where(state.left(rows) == gpus * WHOLE, np.maximum(33 - gpus, gpus), used)


class Clustering:
    """Pods of one size together. A node's tags: the sizes of the pods that it has."""

    def __init__(self, nodes: int) -> None:
        self._tags: Ints = np.zeros(nodes, dtype=np.int64)

    @staticmethod
    def tag(pod: Pod) -> int:
        return 1 if pod.shares else 1 << pod.gpus

    def arrive(self, pod: Pod) -> None:
        """Nothing is learned."""

    def choose(self, state: State, pod: Pod, rows: Ints, ties: Ties) -> tuple[int, Sequence[int]]:
        scores: Ints = np.zeros(len(rows), dtype=np.int64)
        if pod.gpus:
            tags, own = self._tags[rows], self.tag(pod)
            bonus = np.select([tags == own, (tags & own) > 0, tags == 0], [75, 50, 25], 0)
            scores = bonus + _int(25 * (MOST_MILLI - state.left(rows)) / MOST_MILLI)
        row = int(rows[ties.best(rows, scores)])
        if pod.gpus:
            self._tags[row] |= self.tag(pod)
        return row, fullest(state, pod, row)


def least_allocated(state: State, pod: Pod, rows: Ints) -> Ints:
    cpu = (state.cpu[rows] - pod.cpu) * 100 // state.cpu_all[rows]
    memory = (state.memory[rows] - pod.memory) * 100 // state.memory_all[rows]
    return (cpu + memory) // 2


def most_allocated(state: State, pod: Pod, rows: Ints) -> Ints:
    cpu = (state.cpu_all[rows] - state.cpu[rows] + pod.cpu) * 100 // state.cpu_all[rows]
    memory = (state.memory_all[rows] - state.memory[rows] + pod.memory) * 100 // state.memory_all[rows]
    return (cpu + memory) // 2


class Fgd:
    """Fragmentation gradient descent: the placement after which the least idle GPU is of no use to the typical pods.

    A node's fragmentation is the sum over typical pods of popularity x the idle GPU that the pod cannot use: what is
    left on GPUs too small for it where it fits, everything idle where it does not. Score: 100 x sigmoid of the fall in
    GPUs, cut to an integer. Memory is ignored. Scores are kept by node version and kind of pod.
    """

    def __init__(self, trace: Sequence[Pod], state: State, *, then_bestfit: bool = False) -> None:
        self._then_bestfit = then_bestfit
        typical = typical_pods(trace)
        kinds = [kind for kind, _ in typical]
        self._popularity: Floats = np.array([part for _, part in typical])
        self._cpu: Ints = np.array([kind[0] for kind in kinds], dtype=np.int64)
        self._milli: Ints = np.array([kind[1] for kind in kinds], dtype=np.int64)
        self._gpus: Ints = np.array([kind[2] for kind in kinds], dtype=np.int64)
        every = np.ones(len(state.nodes), dtype=bool)
        self._allowed: Bools = np.array([state.allowed(kind[3]) if kind[3] else every for kind in kinds])
        self._kept: dict[tuple[int, int, int], tuple[Ints, Ints, Ints]] = {}

    def arrive(self, pod: Pod) -> None:
        """Nothing is learned."""

    def fragmentation(self, rows: Ints, cpu: Ints, free: Ints) -> Floats:
        """Milli-GPU, of nodes with `cpu` and `free` left."""
        idle = np.where(free > 0, free, 0)
        enough = free[:, None, :] >= self._milli[None, :, None]
        fits = (self._gpus > 0) & (cpu[:, None] >= self._cpu) & self._allowed[:, rows].T
        fits &= enough.sum(axis=2) >= self._gpus
        lost = np.where(fits, np.where(enough, 0, idle[:, None, :]).sum(axis=2), idle.sum(axis=1)[:, None])
        found: Floats = lost @ self._popularity
        return found

    def choose(self, state: State, pod: Pod, rows: Ints, ties: Ties) -> tuple[int, Sequence[int]]:
        scores, gpus = self._scores(state, pod, rows)
        best = scores * 1000.0
        if self._then_bestfit:
            cpu = (state.cpu[rows] - pod.cpu) / MOST_CPU
            gpu = (state.left(rows) - pod.demand) / MOST_MILLI
            best += 100 * (1 - 0.5 * cpu - 0.5 * gpu)
        i = ties.best(rows, best)
        row = int(rows[i])
        return row, [int(gpus[i])] if pod.shares else lowest(state, pod, row)

    def _scores(self, state: State, pod: Pod, rows: Ints) -> tuple[Ints, Ints]:
        """Of `rows`: the score of the best placement, and its GPU when a share is asked for."""
        key = (pod.cpu, pod.milli, pod.gpus)
        if key not in self._kept:
            size = len(state.nodes)
            self._kept[key] = (np.full(size, -1), np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.int64))
        version, score, gpu = self._kept[key]
        stale = rows[version[rows] != state.version[rows]]
        if len(stale):
            score[stale], gpu[stale] = self._fresh(state, pod, stale)
            version[stale] = state.version[stale]
        return score[rows], gpu[rows]

    def _fresh(self, state: State, pod: Pod, rows: Ints) -> tuple[Ints, Ints]:
        free, cpu = state.free[rows], state.cpu[rows]
        before = self.fragmentation(rows, cpu, free)
        if not pod.shares:
            after = free.copy()
            ids = np.argsort(np.where(free >= pod.milli, 0, 1), axis=1, kind="stable")[:, : pod.gpus]
            np.put_along_axis(after, ids, np.take_along_axis(free, ids, axis=1) - pod.milli, axis=1)
            return _sigmoid(before - self.fragmentation(rows, cpu - pod.cpu, after)), np.zeros(len(rows), np.int64)
        which, gpu = np.nonzero(free >= pod.milli)
        after = free[which]
        after[np.arange(len(which)), gpu] -= pod.milli
        scores: Ints = np.full(free.shape, -1)
        fall = before[which] - self.fragmentation(rows[which], cpu[which] - pod.cpu, after)
        scores[which, gpu] = _sigmoid(fall)
        chosen = scores.argmax(axis=1)
        return scores[np.arange(len(rows)), chosen], chosen


def typical_pods(trace: Sequence[Pod]) -> list[tuple[tuple[int, int, int, tuple[str, ...]], float]]:
    """The most frequent (cpu, milli, GPUs, models) that cover 95 % of the pods, with their parts of these."""
    counted = Counter((pod.cpu, pod.milli, pod.gpus, pod.models) for pod in trace)
    chosen: list[tuple[tuple[int, int, int, tuple[str, ...]], int]] = []
    covered = 0
    for kind, count in sorted(counted.items(), key=lambda pair: (-pair[1], pair[0])):
        if covered >= TYPICAL * len(trace):
            break
        chosen.append((kind, count))
        covered += count
    return [(kind, count / covered) for kind, count in chosen]


def _int(values: npt.NDArray[np.float64]) -> Ints:
    return values.astype(np.int64)


def _sigmoid(fall: Floats) -> Ints:
    """Milli-GPU to 0..100."""
    return _int(100 / (1 + np.exp(-fall / WHOLE)))


RIVALS: dict[str, Callable[[State, Sequence[Pod]], Placing]] = {
    "random": lambda state, trace: Random(),
    "dotprod": lambda state, trace: Scored(dotprod),
    "clustering": lambda state, trace: Clustering(len(state.nodes)),
    "packing": lambda state, trace: Scored(packing),
    "bestfit": lambda state, trace: Scored(bestfit),
    "fgd": lambda state, trace: Fgd(trace, state),
    "fgd+bestfit": lambda state, trace: Fgd(trace, state, then_bestfit=True),
    "least-allocated": lambda state, trace: Scored(least_allocated, lowest),
    "most-allocated": lambda state, trace: Scored(most_allocated, lowest),
}
"""By name: (state, trace) -> the policy. Only FGD looks at the trace."""
