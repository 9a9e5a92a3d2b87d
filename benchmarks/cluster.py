"""Mixed machines under arrivals and departures: how often a job gets linked GPUs, now and for the jobs to come.

    python -m benchmarks.cluster [--nodes 1000] [--load 0.95] [--arrivals 4000] [--warm 8000] [--seeds 2]
                                 [--sampling default|all] [--shortlist 16 0] [--policies ...] [--pods FILE]
                                 [-o table|json|plot]

1,000 nodes of six machines (NVSwitch, cube mesh, bridged pairs, no links), whole-GPU jobs of 1, 2, 4 and 8 GPUs in
the shares of the openb trace's multigpu50 variant (its own times cannot load a cluster: arrivals and run times are
invented, seeded, Poisson and exponential), `load` times the fleet's GPUs offered on average, a job that fits nowhere
is dropped.

    linked 2/4/8   of the jobs of that size that *arrived*, the share that got GPUs joined by a ring of links
    ring           ring bandwidth of the GPUs held / the node's own best for that size, mean over multi-GPU jobs placed
    GB/s           the same, absolute
    refused        of all jobs, the share that fitted nowhere;  idle: of all GPUs, the mean share unused
    8s free        linked eight-GPU jobs that would still fit, mean;  largest: the largest linked job that fits, mean
    panics         admissions that failed because the stock device plugin crashed over the request

Policies: least-allocated and most-allocated (NodeResourcesFit's two), best-fit, each with the stock plugin and with
lowest ids (a plugin without preference); ours with the stock plugin and enforced (the set that we planned).
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from benchmarks import cluster_run as world
from benchmarks.cluster_run import Devices, Host, Ours, Policy, Ranked, Tally

SCORES = {
    "least-allocated": world.least_allocated,
    "most-allocated": world.most_allocated,
    "best-fit": world.best_fit,
}
LINES: dict[str, tuple[str, Devices]] = {
    **{f"{name}, lowest ids": (name, "lowest-id") for name in SCORES},
    **{f"{name}, stock plugin": (name, "stock") for name in SCORES},
    "ours, stock plugin": ("ours", "stock"),
    "ours, enforced": ("ours", "enforced"),
}


@dataclass(frozen=True)
class Task:
    """One run. `shortlist`: nodes that our filter answers at most, 0 = all; of no meaning for the others."""

    line: str
    shortlist: int
    load: float
    seed: int
    nodes: int
    arrivals: int
    warm: int
    sample: bool
    sizes: tuple[tuple[int, int], ...]


def one(task: Task) -> Tally:
    name, devices = LINES[task.line]

    def make(hosts: Sequence[Host], rng: random.Random) -> Policy:
        if name == "ours":
            return Ours(hosts, task.shortlist, rng, relay=devices == "enforced")
        return Ranked(hosts, SCORES[name], rng)

    return world.run(
        make,
        devices,
        nodes=task.nodes,
        load=task.load,
        arrivals=task.arrivals,
        warm=task.warm,
        seed=task.seed,
        sample=task.sample,
        sizes=dict(task.sizes),
    )


def figures(tally: Tally) -> dict[str, float | None]:
    """What is printed of one run; None where nothing of that size arrived."""

    def share(size: int) -> float | None:
        return tally.linked.get(size, 0) / tally.arrived[size] if tally.arrived.get(size) else None

    many = sum(count for size, count in tally.placed.items() if size > 1)
    arrived, placed = sum(tally.arrived.values()), sum(tally.placed.values())
    return {
        **{f"linked_share_{size}_gpus": share(size) for size in (2, 4, 8)},
        "ring_share_of_node_best": sum(tally.ring.values()) / many if many else None,
        "ring_gbps": sum(tally.gbps.values()) / many if many else None,
        "refused_share": (arrived - placed) / arrived if arrived else None,
        "idle_gpu_percent": 100 * tally.idle / tally.moments if tally.moments else None,
        "linked_eights_free": tally.whole / tally.moments if tally.moments else None,
        "largest_linked_job_gpus": tally.largest / tally.moments if tally.moments else None,
        "plugin_panics": float(tally.panics),
    }


def sizes_of(path: Path) -> dict[int, int]:
    """Whole-GPU pods of an openb file by GPUs asked for; BadTrace in words when it is no such file."""
    found: dict[int, int] = {}
    with path.open(newline="") as file:
        for number, row in enumerate(csv.DictReader(file), 2):
            try:
                gpus, each = int(row["num_gpu"]), int(row["gpu_milli"])
            except (KeyError, TypeError, ValueError):
                raise SystemExit(f"{path}:{number}: num_gpu and gpu_milli must be whole numbers") from None
            if gpus in (1, 2, 4, 8) and each == 1000:
                found[gpus] = found.get(gpus, 0) + 1
    if not found:
        raise SystemExit(f"{path}: no pod asks for 1, 2, 4 or 8 whole GPUs")
    return dict(sorted(found.items()))


def tasks(args: argparse.Namespace) -> list[Task]:
    sizes = tuple((sizes_of(args.pods) if args.pods else world.SIZES).items())
    return [
        Task(line, shortlist, load, seed, args.nodes, args.arrivals, args.warm, args.sampling == "default", sizes)
        for load in args.load
        for line in args.policies
        for shortlist in (args.shortlist if LINES[line][0] == "ours" else [0])
        for seed in range(args.seeds)
    ]


def rows(done: Sequence[tuple[Task, Tally]]) -> list[dict[str, Any]]:
    """One row for each load and line: mean over the seeds, and their standard deviation."""
    grouped: dict[tuple[float, str, int], list[dict[str, float | None]]] = {}
    for task, tally in done:
        grouped.setdefault((task.load, task.line, task.shortlist), []).append(figures(tally))
    made = []
    for (load, line, shortlist), runs in grouped.items():
        row: dict[str, Any] = {"load": load, "policy": line, "shortlist": shortlist, "seeds": len(runs)}
        for key in runs[0]:
            values = [run[key] for run in runs]
            known = [value for value in values if value is not None]
            row[key] = mean(known) if known else None
            row[f"{key}_sd"] = stdev(known) if len(known) > 1 else None
        made.append(row)
    return made


COLUMNS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("linked 2", "linked_share_2_gpus", lambda x: f"{100 * x:.1f} %"),
    ("linked 4", "linked_share_4_gpus", lambda x: f"{100 * x:.1f} %"),
    ("linked 8", "linked_share_8_gpus", lambda x: f"{100 * x:.1f} %"),
    ("ring", "ring_share_of_node_best", lambda x: f"{x:.3f}"),
    ("GB/s", "ring_gbps", lambda x: f"{x:.0f}"),
    ("refused", "refused_share", lambda x: f"{100 * x:.1f} %"),
    ("idle", "idle_gpu_percent", lambda x: f"{x:.2f} %"),
    ("8s free", "linked_eights_free", lambda x: f"{x:.1f}"),
    ("largest", "largest_linked_job_gpus", lambda x: f"{x:.2f}"),
    ("panics", "plugin_panics", lambda x: f"{x:.1f}"),
)


def table(found: Sequence[dict[str, Any]]) -> str:
    head = ["load", "policy", *(title for title, _, _ in COLUMNS)]
    lines = ["| " + " | ".join(head) + " |", "|--:|---|" + "--:|" * len(COLUMNS)]
    for row in found:
        cells = ["-" if row[key] is None else show(row[key]) for _, key, show in COLUMNS]
        lines.append("| " + " | ".join([f"{row['load']:g}", _name(row), *cells]) + " |")
    return "\n".join(lines)


def plot(found: Sequence[dict[str, Any]]) -> str:
    """Bars for a terminal: the shares, 50 characters wide."""
    width = max(len(_name(row)) for row in found)
    lines = []
    for title, key, show in COLUMNS[:4]:
        for load in dict.fromkeys(row["load"] for row in found):
            lines.append(f"\n{title}, load {load:g}")
            for row in found:
                if row["load"] == load:
                    bar = "unknown" if row[key] is None else "█" * round(50 * row[key]) + f" {show(row[key])}"
                    lines.append(f"{_name(row):{width}} {bar}")
    return "\n".join(lines)


def _name(row: dict[str, Any]) -> str:
    name = str(row["policy"])
    return f"{name}, K = {row['shortlist'] or 'all'}" if name.startswith("ours") else name


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--nodes", type=int, default=1000)
    made.add_argument("--load", type=float, nargs="+", default=[0.95])
    made.add_argument("--arrivals", type=int, default=4000, help="jobs that are counted")
    made.add_argument("--warm", type=int, default=8000, help="jobs before them, which fill the empty fleet")
    made.add_argument("--seeds", type=int, default=2)
    made.add_argument("--sampling", choices=("default", "all"), default="default")
    made.add_argument("--shortlist", type=int, nargs="+", default=[16, 0], help="nodes our filter answers; 0 = all")
    made.add_argument("--policies", nargs="+", choices=list(LINES), default=list(LINES), metavar="POLICY")
    made.add_argument("--pods", type=Path, help="an openb pod list to take the sizes from")
    made.add_argument("--processes", type=int, default=2)
    made.add_argument("-o", "--output", choices=("table", "json", "plot"), default="table")
    return made


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    todo = tasks(args)
    done: list[tuple[Task, Tally]] = []
    with ProcessPoolExecutor(args.processes) as pool:
        for task, tally in zip(todo, pool.map(one, todo), strict=True):
            done.append((task, tally))
            print(
                f"{len(done)} of {len(todo)}: {task.line}, load {task.load:g}, seed {task.seed}",
                file=sys.stderr,
                flush=True,
            )
    found = rows(done)
    if args.output == "json":
        head = {"apiVersion": "gpu-extender.io/v1", "kind": "ClusterBenchmark", "warnings": []}
        print(json.dumps({**head, "nodes": args.nodes, "sampling": args.sampling, "rows": found}, indent=1))
    else:
        print(plot(found) if args.output == "plot" else table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
