"""The cluster of an openb run as columns, for the rivals: what is left on each node."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from benchmarks.openb_trace import MOST_GPUS, WHOLE, Node, Pod

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class State:
    """`cpu`, `memory`: what is left; `free[n, g]`: milli of each GPU, -1 where the node has no such GPU. `version`
    rises with every change of a node."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = nodes
        self.cpu: Ints = np.array([node.cpu for node in nodes], dtype=np.int64)
        self.memory: Ints = np.array([node.memory for node in nodes], dtype=np.int64)
        self.gpus: Ints = np.array([node.gpus for node in nodes], dtype=np.int64)
        self.free: Ints = np.full((len(nodes), MOST_GPUS), -1, dtype=np.int64)
        for i, node in enumerate(nodes):
            self.free[i, : node.gpus] = WHOLE
        self.version: Ints = np.zeros(len(nodes), dtype=np.int64)
        self.cpu_all, self.memory_all = self.cpu.copy(), self.memory.copy()
        self.capacity = int(self.gpus.sum()) * WHOLE
        names = np.array([node.model for node in nodes])
        self._of_model = {model: names == model for model in sorted(set(names.tolist()))}

    def allowed(self, models: tuple[str, ...]) -> Bools:
        """Nodes of one of these models."""
        found = np.zeros(len(self.nodes), dtype=bool)
        for model in models:
            if model in self._of_model:
                found |= self._of_model[model]
        return found

    def fits(self, pod: Pod) -> Bools:
        """Nodes where the pod fits now: CPU, memory, model, GPUs with enough left."""
        found = (self.cpu >= pod.cpu) & (self.memory >= pod.memory)
        if pod.gpus:
            found &= (self.free >= pod.milli).sum(axis=1) >= pod.gpus
        if pod.models:
            found &= self.allowed(pod.models)
        return found

    def left(self, rows: Ints) -> Ints:
        """Milli-GPU left on nodes."""
        found: Ints = np.where(self.free[rows] > 0, self.free[rows], 0).sum(axis=1)
        return found

    def place(self, pod: Pod, row: int, gpus: Sequence[int]) -> None:
        """AssertionError: it does not fit there (a policy is wrong)."""
        assert len(set(gpus)) == pod.gpus, "as many GPUs as it asks for"
        assert all(self.free[row, g] >= pod.milli for g in gpus), "room on each GPU"
        assert self.cpu[row] >= pod.cpu, "CPU left"
        assert self.memory[row] >= pod.memory, "memory left"
        self.cpu[row] -= pod.cpu
        self.memory[row] -= pod.memory
        for g in gpus:
            self.free[row, g] -= pod.milli
        self.version[row] += 1


class Walk:
    """Which nodes kube-scheduler looks at: from where the last cycle ended, until enough are found where the pod fits.

    Enough is (50 - nodes / 125) %, at least 5 % and at least 100 nodes, unless all are asked for.
    """

    def __init__(self, nodes: int, *, everything: bool = False) -> None:
        self.nodes = nodes
        percent = max(5, 50 - nodes // 125)
        self.enough = nodes if everything or nodes < 100 else max(100, nodes * percent // 100)
        self._start = 0

    def rows(self, fits: Bools) -> Ints:
        """The rows found, in the order of the walk."""
        found = np.flatnonzero(fits)
        at = int(np.searchsorted(found, self._start))
        taken = np.concatenate((found[at:], found[:at]))[: self.enough]
        if len(taken) == self.enough:
            self._start = (int(taken[-1]) + 1) % self.nodes
        return taken


@dataclass(slots=True)
class Ties:
    """How equal scores are broken: by the first name, or at random as kube-scheduler does."""

    drawn: random.Random
    by_name: bool = False

    def best(self, rows: Ints, scores: npt.NDArray[np.floating[Any]] | Ints) -> int:
        """The index of the best score. Among equals: the smallest row, or any."""
        equal = np.flatnonzero(scores == scores.max())
        if self.by_name:
            return int(equal[np.argmin(rows[equal])])
        return int(equal[self.drawn.randrange(len(equal))])


class Placing(Protocol):
    """A policy in a run. It is told of every arrival, and asked where the pod goes if it fits anywhere."""

    def arrive(self, pod: Pod) -> None: ...
    def choose(self, state: State, pod: Pod, rows: Ints, ties: Ties) -> tuple[int, Sequence[int]]:
        """(row, GPUs), one of `rows`; all of them fit."""
