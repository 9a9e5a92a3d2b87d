"""A lower bound on what any policy leaves idle, all arrivals known beforehand: a configuration LP.

Each GPU is filled after one pattern of shares (or by a whole pod's GPU); the LP chooses how many GPUs have which
pattern and serves at most what has arrived. CPU, memory, nodes and models are ignored: no real placement reaches it.
Solved by column generation: the best new pattern for the dual prices is a knapsack of 1000 milli.
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Sequence

from benchmarks.openb_trace import WHOLE, Node, Pod, arrivals

CLOSE = 1e-7


def available() -> bool:
    return importlib.util.find_spec("scipy") is not None


def floor(nodes: Sequence[Node], trace: Sequence[Pod], seed: int, until: float = 1.0) -> float:
    """Percent of all GPUs idle at best once `until` x the capacity has been asked for."""
    from scipy.optimize import linprog

    gpus = sum(node.gpus for node in nodes)
    counts: Counter[int] = Counter()
    asked = 0
    for pod in arrivals(list(trace), gpus * WHOLE, seed):
        if pod.gpus:
            counts[pod.milli] += pod.gpus
        asked += pod.demand
        if asked >= until * gpus * WHOLE:
            break
    sizes = sorted(counts)
    patterns = [[WHOLE // size if other == size else 0 for other in sizes] for size in sizes]
    while True:
        # maximise the milli served: columns are `served` of each size and `used` of each pattern
        width = len(sizes)
        serve = [
            [1.0 if i == j else 0.0 for j in range(width)] + [-float(p[i]) for p in patterns] for i in range(width)
        ]
        rows = [*serve, [0.0] * width + [1.0] * len(patterns)]
        found = linprog(
            [-float(size) for size in sizes] + [0.0] * len(patterns),
            A_ub=rows,
            b_ub=[0.0] * width + [float(gpus)],
            bounds=[(0, counts[size]) for size in sizes] + [(0, None)] * len(patterns),
            method="highs",
        )
        duals = [-float(value) for value in found.ineqlin.marginals]
        value, pattern = _knapsack(sizes, duals[:-1])
        if value <= duals[-1] + CLOSE * WHOLE:
            return 100.0 - 100.0 * -float(found.fun) / (gpus * WHOLE)
        patterns.append(pattern)


def _knapsack(sizes: Sequence[int], prices: Sequence[float]) -> tuple[float, list[int]]:
    """The dearest multiset of sizes that one GPU holds."""
    best = [0.0] * (WHOLE + 1)
    last = [-1] * (WHOLE + 1)
    for room in range(1, WHOLE + 1):
        best[room] = best[room - 1]
        for i, size in enumerate(sizes):
            if size <= room and best[room - size] + prices[i] > best[room] + 1e-12:
                best[room], last[room] = best[room - size] + prices[i], i
    pattern, room = [0] * len(sizes), WHOLE
    while room > 0:
        if last[room] < 0:
            room -= 1
        else:
            pattern[last[room]] += 1
            room -= sizes[last[room]]
    return best[WHOLE], pattern
