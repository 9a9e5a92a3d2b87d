"""The tables of benchmarks.scheduler: medians of the rounds, ratios within a round, and the targets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from benchmarks.spread import Line, Spread, at_most, ratios, table, targets_table

Rows = Sequence[dict[str, Any]]
SAMPLING = {"all": "all nodes scored", "sampled": "default sampling"}
FLOORS = ("none", "null", "before")


class Found:
    """The measurements at one size."""

    def __init__(self, rows: Rows, nodes: int) -> None:
        self._rows = [row for row in rows if row["nodes"] == nodes]
        self.nodes = nodes
        self.rounds = 1 + max(row["round"] for row in self._rows)

    def of(self, figure: str, arm: str, sampling: str, nominated: bool) -> list[float]:
        """One value a round; NaN where there is none."""
        wanted = (arm, sampling, nominated)
        made = {row["round"]: row for row in self._rows if (row["arm"], row["sampling"], row["nominated"]) == wanted}
        return [float(made[i][figure]) if i in made else math.nan for i in range(self.rounds)]

    def rows(self, nominated: bool) -> list[tuple[str, str]]:
        """The (sampling, arm) that were measured."""
        order = ("none", "null", "ours", "before")
        there = {(row["sampling"], row["arm"]) for row in self._rows if row["nominated"] == nominated}
        return sorted(there, key=lambda one: (one[0], order.index(one[1])))

    def landed(self, sampling: str, arm: str) -> str:
        """How many nominated pods are on their node, of how many."""
        made = [row for row in self._rows if row["nominated"] and (row["sampling"], row["arm"]) == (sampling, arm)]
        return f"{sum(row['landed'] for row in made)} of {sum(row['pods'] for row in made)}"


def sizes(rows: Rows) -> list[int]:
    """The numbers of nodes that were measured."""
    return sorted({row["nodes"] for row in rows})


def plain(found: Found) -> str:
    """Plain pods: times, CPU, and the ratios of the algorithm time and of both processes' CPU time to each floor."""
    heads = ["sampling", "arm", "algorithm time, ms a pod", "CPU of kube-scheduler, ms", "CPU of the extender, ms"]
    heads += ["CPU, both, ms"] + [f"{what} / {floor}" for floor in FLOORS for what in ("time", "CPU")]
    rows = []
    for sampling, arm in found.rows(nominated=False):
        cells = [SAMPLING[sampling], arm]
        for figure in ("algorithm_ms", "scheduler_cpu_ms", "extender_cpu_ms", "cpu_ms"):
            cells.append(Spread.of(found.of(figure, arm, sampling, False)).text())
        for floor in FLOORS:
            for figure in ("algorithm_ms", "cpu_ms"):
                mine, theirs = (found.of(figure, one, sampling, False) for one in (arm, floor))
                cells.append(ratios(mine, theirs).text() if arm != floor else "1")
        rows.append(cells)
    return table(heads, rows, words=2)


def nominated(found: Found) -> str:
    """Nominated pods: times, CPU, and the algorithm time as part of a plain pod's without an extender."""
    heads = ["sampling", "arm", "algorithm time, ms a pod", "CPU of kube-scheduler, ms", "CPU of the extender, ms"]
    heads += ["time / a plain pod's, none", "on their node"]
    rows = []
    for sampling, arm in found.rows(nominated=True):
        cells = [SAMPLING[sampling], arm]
        for figure in ("algorithm_ms", "scheduler_cpu_ms", "extender_cpu_ms"):
            cells.append(Spread.of(found.of(figure, arm, sampling, True)).text())
        mine, floor = found.of("algorithm_ms", arm, sampling, True), found.of("algorithm_ms", "none", sampling, False)
        rows.append([*cells, ratios(mine, floor).text(3), found.landed(sampling, arm)])
    return table(heads, rows, words=2)


def calls(rows: Rows) -> str:
    """The extender's own times, as its metric has them: means over all rounds."""
    cells = []
    for nodes in sizes(rows):
        for arm in ("ours", "before"):
            for sampling in SAMPLING:
                for way in (False, True):
                    key = (nodes, arm, sampling, way)
                    made = [r for r in rows if (r["nodes"], r["arm"], r["sampling"], r["nominated"]) == key]
                    if made:
                        name = f"{SAMPLING[sampling]}{', nominated' if way else ''}"
                        verbs = [_calls(made, verb) for verb in ("filter", "prioritize")]
                        cells.append([str(nodes), arm, name, *[cell for verb in verbs for cell in verb]])
    heads = ["nodes", "arm", "pods", "filter calls a pod", "mean, ms", "prioritize calls a pod", "mean, ms"]
    return table(heads, cells, words=3)


def _calls(rows: Rows, verb: str) -> tuple[str, str]:
    made = [row["calls"].get(verb, {"made": 0, "mean_ms": 0.0}) for row in rows]
    number = sum(one["made"] for one in made)
    pods = sum(row["pods"] for row in rows)
    spent = sum(one["made"] * one["mean_ms"] for one in made)
    return f"{number / pods:.2f}", f"{spent / number:.2f}" if number else "-"


def report(rows: Rows) -> str:
    """All tables."""
    parts = []
    for nodes in sizes(rows):
        found = Found(rows, nodes)
        pods = rows[0]["pods"]
        parts.append(f"{nodes} nodes, {pods} plain one-GPU pods, {found.rounds} rounds: median (lowest to highest)")
        parts += [plain(found), f"{nodes} nodes, {pods} nominated pods", nominated(found)]
    parts += ["The extender's own time of its calls", calls(rows), "Targets", targets_table(targets(rows))]
    return "\n\n".join(parts)


def targets(rows: Rows) -> list[Line]:
    """What the issue asks for, at each size."""
    lines = []
    for nodes in sizes(rows):
        lines += _targets(Found(rows, nodes))
    return lines


def _targets(found: Found) -> list[Line]:
    lines = []
    for sampling, text in SAMPLING.items():
        where = f"{found.nodes} nodes, {text}"

        def ratio(figure: str, floor: str, *, nominated: bool = False) -> Spread:
            mine = found.of(figure, "ours", sampling, nominated)  # noqa: B023
            return ratios(mine, found.of(figure, floor, sampling, False))  # noqa: B023

        lines += [
            at_most(f"CPU of kube-scheduler and extender, {where}", "<= 1.15 x null", ratio("cpu_ms", "null"), 1.15),
            _below(f"algorithm time, {where}", "< none", ratio("algorithm_ms", "none")),
            _reported(f"algorithm time, {where}", "aim 1.1 x null", ratio("algorithm_ms", "null")),
            _nominated(where, sampling, ratio("algorithm_ms", "none", nominated=True)),
            at_most(f"extender CPU, {where}", "<= 1/3 of before", ratio("extender_cpu_ms", "before"), 1 / 3),
        ]
    return lines


def _nominated(where: str, sampling: str, got: Spread) -> Line:
    part = 20 if sampling == "all" else 5
    return at_most(f"algorithm time of nominated pods, {where}", f"<= 1/{part} of plain, none", got, 1 / part, 3)


def _below(measure: str, target: str, got: Spread) -> Line:
    line = at_most(measure, target, got, 1.0)
    return line._replace(met=got.median < 1.0) if line.met is not None else line


def _reported(measure: str, target: str, got: Spread) -> Line:
    return at_most(measure, target, got, 1.1)._replace(met=None)
