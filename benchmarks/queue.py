"""queue: gangs that wait for the GPUs of a cluster, under ours and its rivals, in a discrete-event simulation.

    python -m benchmarks.queue [--workloads kalos halves] [--loads 0.8 0.9 1.0] [--estimates user exact none]
                               [--arms ours easy ...] [--seeds 10] [--size 1.0] [--classes] [-o table|json]

Arms: `stock` kube-scheduler (LeastAllocated, its default; `stock, packed`: MostAllocated), Coscheduling, Kueue
(BestEffortFIFO; `strict`: StrictFIFO; `tas`: with topology), Slurm-like EASY and conservative backfill, and ours: the
product's own code for order, backfill and placement; no queue has a quota. `benchmarks/queue_sim` has the rivals'
rules, each beside what was left out; `workloads.py` there says what the gangs' shapes are taken from.

Ours places a gang with this objective, in order: all of its pods or none; inside the domain that it requires; inside
one domain of the closest level that has one with room (node, rack, block, cluster); in that domain on the fewest nodes,
and of these at the lowest price of slots, which is what the pods to come lose; of the domains the one with the lowest
price, then the fewest nodes.

Each seed shakes the arrivals of a trace (`--traces` of them, in turn) by up to a minute. A load is what the gangs ask
for, of what the cluster has while they arrive: only the arrivals are stretched. The first 15 % of the gangs warm the
cluster up and are not counted. Nothing is preempted, no node is lost, and a decision takes no time.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import NamedTuple

from benchmarks import say
from benchmarks.queue_sim import report
from benchmarks.queue_sim.arms import ARMS
from benchmarks.queue_sim.gangs import Shape
from benchmarks.queue_sim.measures import MEASURES, figures
from benchmarks.queue_sim.report import Case
from benchmarks.queue_sim.workloads import ESTIMATES, NAMES, declared, draw, shaken
from benchmarks.queue_sim.world import Account, World

VERSION = "gpu-extender.io/v1"
WARM_UP = 0.15
LOADS = (0.8, 0.9, 1.0)
GANGS = {"gfs": 1500, "kalos": 600, "helios": 1500, "philly": 2000, "halves": 200, "racks": 600}
"""How many a run has: about half a day of the simulated cluster, three days for `halves`."""


class Run(NamedTuple):
    """One arm over one shaken trace."""

    case: Case
    arm: str
    seed: int
    trace: int
    gangs: int


def simulate(run: Run, shape: Shape | None = None) -> dict[str, float]:
    """The measures of one run; the same for the same arguments."""
    shape = shape or Shape()
    trace = draw(run.case.workload, shape, run.gangs, run.case.load, run.trace)
    gangs = sorted(
        declared(shaken(trace, run.seed), run.case.estimates, run.seed), key=lambda gang: (gang.arrived, gang.id)
    )
    counted = gangs[int(WARM_UP * len(gangs)) :]
    world = World(shape, Account(counted[0].arrived, counted[-1].arrived))
    world.run(gangs, ARMS[run.arm](world, random.Random(run.seed)))
    return figures(world, counted)


def measure(runs: Sequence[Run], workers: int) -> dict[Run, dict[str, float]]:
    """Each run's figures; progress goes to stderr."""
    found: dict[Run, dict[str, float]] = {}
    with ProcessPoolExecutor(workers) as pool:
        waiting = {pool.submit(simulate, run): run for run in runs}
        for done in as_completed(waiting):
            found[waiting[done]] = done.result()
            if len(found) % 20 == 0:
                say(f"{len(found)} of {len(runs)} runs")
    return {run: found[run] for run in runs}


def results(found: dict[Run, dict[str, float]]) -> dict[Case, dict[str, list[dict[str, float]]]]:
    """The figures by case and arm, seeds in order."""
    made: dict[Case, dict[str, list[dict[str, float]]]] = {}
    for run, values in found.items():
        made.setdefault(run.case, {}).setdefault(run.arm, []).append(values)
    return made


def _count(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 100_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 100000")
    return int(text)


def _between(low: float, high: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not low <= number <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {low:g} to {high:g}")
        return number

    return read


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.queue", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--workloads", nargs="+", choices=NAMES, default=["kalos", "halves"])
    parser.add_argument("--loads", nargs="+", type=_between(0.05, 3.0), default=list(LOADS))
    parser.add_argument("--estimates", nargs="+", choices=ESTIMATES, default=["user"])
    parser.add_argument("--arms", nargs="+", choices=tuple(ARMS), default=list(ARMS))
    parser.add_argument("--seeds", type=_count, default=10, help="so many, from 1 up")
    parser.add_argument("--traces", type=_count, default=5, help="seed n shakes trace n modulo this")
    parser.add_argument(
        "--size", type=_between(0.05, 100.0), default=1.0, help="times the usual number of gangs in a run"
    )
    parser.add_argument("--workers", type=_count, default=2)
    parser.add_argument("--classes", action="store_true", help="also the waits by size class")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    asked = _arguments(arguments)
    runs = [
        Run(Case(workload, load, estimates), arm, seed, seed % asked.traces, int(asked.size * GANGS[workload]))
        for workload in asked.workloads
        for estimates in asked.estimates
        for load in asked.loads
        for arm in asked.arms
        for seed in range(1, asked.seeds + 1)
    ]
    shape = Shape()
    say(f"{shape.size} nodes, {shape.capacity} GPUs, {len(runs)} runs")
    made = results(measure(runs, asked.workers))
    wins, losses = report.comparisons(made)
    if asked.output == "json":
        print(json.dumps(_document(made, losses), indent=1))
        return 0
    print(report.tables(made))
    if asked.classes:
        names = [one.name for one in MEASURES if one.name not in report.SHOWN]
        print(f"\nwaits by GPUs\n\n{report.tables(made, names)}")
    for title, lines in (("wins", wins), ("losses", losses)):
        print(f"\n{title}: {len(lines)}")
        print("\n".join(f"  {line}" for line in lines))
    print("\ntargets")
    for target in report.targets(made):
        print(f"  {'met   ' if target.met else 'MISSED'}  {target.text}")
    return 0


def _document(made: dict[Case, dict[str, list[dict[str, float]]]], losses: Sequence[str]) -> dict[str, object]:
    rows = [
        {**case._asdict(), "arm": arm, "seed": i + 1, **{name: round(value, 4) for name, value in one.items()}}
        for case, arms in made.items()
        for arm, seeds in arms.items()
        for i, one in enumerate(seeds)
    ]
    return {
        "apiVersion": VERSION,
        "kind": "QueueBenchmark",
        "warnings": [{"code": "loss", "message": line} for line in losses],
        "targets": [target._asdict() for target in report.targets(made)],
        "rows": rows,
    }


if __name__ == "__main__":
    sys.exit(main())
