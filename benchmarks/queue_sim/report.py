"""The results as text: tables, targets, wins and losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

from benchmarks.queue_sim.arms import EASY, OURS
from benchmarks.queue_sim.measures import MEASURES, Measure

BY_NAME = {one.name: one for one in MEASURES}
SHOWN = (
    "top_mean", "top_p99", "mean", "p50", "p95", "p99", "longest", "jct", "slowdown", "utilisation", "held",
    "deadlocks", "starved", "delayed", "timeouts", "fairness", "one_rack",
)  # fmt: skip
PARTS = {"utilisation", "fairness", "one_rack"}
"""Figures between 0 and 1."""
ONE_RACK = 0.95
EQUAL = 1e-9


class Case(NamedTuple):
    """A table: what is the same for all its arms."""

    workload: str
    load: float
    estimates: str

    def __str__(self) -> str:
        return f"{self.workload}, load {self.load:g}, estimates {self.estimates}"


Seeds = Sequence[Mapping[str, float]]
"""The figures of each seed, in the same order for each arm."""
Results = Mapping[Case, Mapping[str, Seeds]]


class Target(NamedTuple):
    text: str
    met: bool


def worst(measure: Measure, seeds: Seeds) -> float:
    values = [one[measure.name] for one in seeds]
    return min(values) if measure.less is False else max(values)


def middle(name: str, seeds: Seeds) -> float:
    return median(one[name] for one in seeds)


def _number(name: str, value: float) -> str:
    if name in PARTS:
        return f"{value:.3f}"
    return f"{value:.1f}" if abs(value) < 100 else f"{value:.0f}"


def tables(results: Results, names: Sequence[str] = SHOWN) -> str:
    """For each case one table: a line for each arm, "median (worst seed)"."""
    made = []
    for case, arms in results.items():
        body = [["arm", *names]]
        for arm, seeds in arms.items():
            cells = [f"{_number(n, middle(n, seeds))} ({_number(n, worst(BY_NAME[n], seeds))})" for n in names]
            body.append([arm, *cells])
        widths = [max(len(line[i]) for line in body) for i in range(len(names) + 1)]
        lines = ["  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in body]
        made.append(f"{case}; median of {len(next(iter(arms.values())))} seeds (worst)\n" + "\n".join(lines))
    return "\n\n".join(made)


def targets(results: Results) -> list[Target]:
    """The targets of ours over all cases; empty where ours or EASY did not run."""
    cases = {case: arms for case, arms in results.items() if OURS in arms and EASY in arms}
    if not cases:
        return []
    every = [seed for arms in cases.values() for seed in arms[OURS]]
    held, deadlocks, starved, delayed = (
        max(one[name] for one in every) for name in ("held", "deadlocks", "starved", "delayed")
    )
    rack = min(one["one_rack"] for one in every)
    made = [
        Target(f"GPU-hours held by unstarted gangs 0.0: {held:.1f}, worst seed", held == 0),
        Target(f"deadlocks 0: {deadlocks:.0f}, worst seed", deadlocks == 0),
        Target(f"gangs that starve 0: {starved:.0f}, worst seed", starved == 0),
        Target(f"gangs that start later than reserved, once first by age, 0: {delayed:.0f}, worst seed", delayed == 0),
        Target(f"gangs in one rack >= {ONE_RACK}: {rack:.3f}, worst seed", rack >= ONE_RACK),
    ]
    for case, arms in cases.items():
        for name, least in (("top_mean", False), ("top_p99", False), ("utilisation", True)):
            ours, easy = middle(name, arms[OURS]), middle(name, arms[EASY])
            sign = 1 if least else -1
            good = [
                sign * (one[name] - other[name]) >= -EQUAL for one, other in zip(arms[OURS], arms[EASY], strict=True)
            ]
            text = (
                f"{case}: {BY_NAME[name].text} {'>=' if least else '<='} EASY's: {_number(name, ours)} against "
                f"{_number(name, easy)}; in {sum(good)} of {len(good)} seeds"
            )
            made.append(Target(text, sign * (ours - easy) >= -EQUAL))
    return made


def comparisons(results: Results) -> tuple[list[str], list[str]]:
    """(wins, losses) of ours by the medians: for each case and measure against the best rival."""
    wins: list[str] = []
    losses: list[str] = []
    for case, arms in results.items():
        if OURS not in arms:
            continue
        for measure in MEASURES:
            rivals = {arm: middle(measure.name, seeds) for arm, seeds in arms.items() if arm != OURS}
            if not rivals or measure.less is None:
                continue
            best = (min if measure.less else max)(rivals, key=lambda arm: rivals[arm])
            ours = middle(measure.name, arms[OURS])
            ahead = (rivals[best] - ours) * (1 if measure.less else -1)
            line = (
                f"{case}: {measure.name} {_number(measure.name, ours)}, the best rival ({best}) "
                f"{_number(measure.name, rivals[best])}"
            )
            if abs(ahead) > EQUAL:
                (wins if ahead > 0 else losses).append(line)
    return wins, losses
