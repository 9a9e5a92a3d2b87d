"""openb: how many GPUs a policy leaves unallocated when pods arrive one by one and none departs.

    python -m benchmarks.openb --nodes FILE --pods FILE... [--policies ours,fgd+bestfit,...] [--mode full]
                               [--sampling default|all] [--ties random|name] [--seeds 10] [-o table|json|plot]

The trace is public: github.com/hkust-adsl/kubernetes-scheduler-simulator, data/csv/openb_*.csv (Apache-2.0). A run
shuffles the pods with its seed, adds copies until they ask for 1.3 times the cluster's GPUs, and places them in that
order; a pod that fits nowhere is dropped. The figure is the part of all GPUs that is idle when as much has been asked
for as there is (100 % of arrivals), in percent: mean and standard deviation over the seeds. Less is better.

Modes: full; wholeall (without pods that share a GPU); whole (of these the GPU pods); roundup (GPU pods, a share takes
a whole GPU). Sampling: kube-scheduler looks at (50 - nodes/125) % of the nodes by default. Ties: at random, as
kube-scheduler does; ours has none, it ends in a fixed order.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from benchmarks import openb_floor, say
from benchmarks.openb_ours import Ours
from benchmarks.openb_rivals import RIVALS
from benchmarks.openb_state import Placing, State, Ties, Walk
from benchmarks.openb_trace import MODES, BadTrace, Node, Pod, arrivals, read_nodes, read_pods, select

VERSION = "gpu-extender.io/v1"
OURS = "ours"
POLICIES = (OURS, *RIVALS)
FLOOR = "lp-floor"
FIRST_SEED = 42


@dataclass(frozen=True, slots=True)
class Run:
    """One policy over one shuffle of one file."""

    pods: str
    mode: str
    sampling: str
    ties: str
    policy: str
    seed: int


def place(name: str, state: State, trace: Sequence[Pod]) -> Placing:
    return Ours(state) if name == OURS else RIVALS[name](state, trace)


def replay(nodes: Sequence[Node], trace: Sequence[Pod], run: Run, until: float = 1.0) -> float:
    """Percent of all GPUs idle once `until` x the capacity has been asked for."""
    state = State(nodes)
    policy = place(run.policy, state, trace)
    walk = Walk(len(nodes), everything=run.sampling == "all")
    ties = Ties(random.Random(run.seed), by_name=run.ties == "name")
    asked = placed = 0
    for pod in arrivals(list(trace), state.capacity, run.seed):
        asked += pod.demand
        policy.arrive(pod)
        rows = walk.rows(state.fits(pod))
        if len(rows):
            row, gpus = policy.choose(state, pod, rows, ties)
            state.place(pod, row, gpus)
            placed += pod.demand
        if asked >= until * state.capacity:
            break
    return 100.0 - 100.0 * placed / state.capacity


def _task(nodes: Path, run: Run) -> tuple[Run, float, float]:
    began = time.perf_counter()
    trace = select(read_pods(Path(run.pods)), run.mode)
    if run.policy == FLOOR:
        return run, openb_floor.floor(read_nodes(nodes), trace, run.seed), time.perf_counter() - began
    return run, replay(read_nodes(nodes), trace, run), time.perf_counter() - began


def measure(nodes: Path, runs: Sequence[Run], workers: int) -> dict[Run, float]:
    """Each run's figure; progress goes to stderr."""
    found: dict[Run, float] = {}
    began = time.perf_counter()
    with ProcessPoolExecutor(workers) as pool:
        waiting = [pool.submit(_task, nodes, run) for run in runs]
        for done in as_completed(waiting):
            run, figure, took = done.result()
            found[run] = figure
            spent = time.perf_counter() - began
            left = spent / len(found) * (len(runs) - len(found))
            print(
                f"openb: {len(found)}/{len(runs)} {Path(run.pods).stem} {run.mode} {run.policy} seed {run.seed}: "
                f"{figure:.2f} % in {took:.1f} s; about {left:.0f} s to go",
                file=sys.stderr,
                flush=True,
            )
    return found


def rows_of(found: dict[Run, float]) -> list[dict[str, Any]]:
    """One row a file, mode, sampling and policy, in the order asked for."""
    groups: dict[tuple[str, str, str, str], list[float]] = {}
    for run, figure in found.items():
        groups.setdefault((run.pods, run.mode, run.sampling, run.policy), []).append(figure)
    return [
        {
            "pods": Path(pods).name,
            "mode": mode,
            "sampling": sampling,
            "policy": policy,
            "seeds": len(figures),
            "unallocated_percent_at_100": round(mean(figures), 3),
            "sd": round(stdev(figures), 3) if len(figures) > 1 else None,
        }
        for (pods, mode, sampling, policy), figures in groups.items()
    ]


def losses(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Where another policy leaves less idle than ours, in words."""
    made = []
    for ours in (row for row in rows if row["policy"] == OURS):
        for row in rows:
            same = all(row[key] == ours[key] for key in ("pods", "mode", "sampling"))
            mine, theirs = ours["unallocated_percent_at_100"], row["unallocated_percent_at_100"]
            if same and row["policy"] not in (OURS, FLOOR) and theirs < mine:
                made.append(
                    f"{row['pods']}, {row['mode']}: {row['policy']} {theirs:.2f} %, ours {mine:.2f} %: behind by "
                    f"{mine - theirs:.2f}"
                )
    return made


def warnings_of(rows: Sequence[dict[str, Any]], notes: Sequence[str]) -> list[dict[str, str]]:
    made = [{"code": "loss", "message": line} for line in losses(rows)]
    if any(row["policy"].startswith("fgd") for row in rows):
        message = "fgd and fgd+bestfit read their target workload from the whole trace, the future too; ours does not."
        made.append({"code": "future-knowledge", "message": message})
    return made + [{"code": "no-floor", "message": note} for note in notes]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """A line a file and mode, a column a policy."""
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    lines: dict[tuple[str, str, str], dict[str, str]] = {}
    for row in rows:
        text = f"{row['unallocated_percent_at_100']:.2f}"
        if row["sd"] is not None:
            text += f" ({row['sd']:.2f})"
        lines.setdefault((row["pods"], row["mode"], row["sampling"]), {})[row["policy"]] = text
    head = ["pods", "mode", "nodes", *policies]
    body = [[*key, *(cells.get(policy, "-") for policy in policies)] for key, cells in lines.items()]
    widths = [max(len(line[i]) for line in (head, *body)) for i in range(len(head))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
                     for line in (head, *body))  # fmt: skip


def plot(rows: Sequence[dict[str, Any]], width: int = 60) -> str:
    """Bars, the shortest is the best."""
    most = max(row["unallocated_percent_at_100"] for row in rows) or 1.0
    made = []
    last = None
    for row in rows:
        if last != (title := (row["pods"], row["mode"], row["sampling"])):
            made.append(f"\n{row['pods']}, {row['mode']}, nodes looked at: {row['sampling']}; % of GPUs left idle")
            last = title
        bar = "#" * round(width * row["unallocated_percent_at_100"] / most)
        made.append(f"  {row['policy']:<16} {row['unallocated_percent_at_100']:6.2f} {bar}")
    return "\n".join(made).lstrip()


def _names(text: str) -> list[str]:
    names = list(dict.fromkeys(text.split(",")))
    if unknown := [name for name in names if name not in POLICIES]:
        raise argparse.ArgumentTypeError(f"no such policy: {', '.join(unknown)}; there are: {', '.join(POLICIES)}")
    return names


def _count(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 1000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 1000")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.openb", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--nodes", type=Path, required=True)
    parser.add_argument("--pods", type=Path, nargs="+", required=True)
    parser.add_argument("--policies", type=_names, default=list(POLICIES), help=f"of {','.join(POLICIES)}")
    parser.add_argument("--mode", choices=MODES, nargs="+", default=["full"])
    parser.add_argument("--sampling", choices=("default", "all"), default="default")
    parser.add_argument("--ties", choices=("random", "name"), default="random")
    parser.add_argument("--seeds", type=_count, default=10, help=f"so many, from {FIRST_SEED} up")
    parser.add_argument("--workers", type=_count, default=2)
    parser.add_argument("--no-floor", action="store_true", help="leave out the LP's lower bound")
    parser.add_argument("-o", "--output", choices=("table", "json", "plot"), default="table")
    asked = parser.parse_args(arguments)
    try:
        nodes = read_nodes(asked.nodes)
        for path in asked.pods:
            trace = read_pods(path)
            for mode in asked.mode:
                if not any(pod.gpus for pod in select(trace, mode)):
                    raise BadTrace(f"{path}: no pod of mode {mode} asks for a GPU")
    except BadTrace as error:
        return _refuse(str(error), asked.output)
    notes = [] if asked.no_floor or openb_floor.available() else ["the LP's floor needs scipy (an extra: bench)"]
    policies = [*asked.policies, *([FLOOR] if not asked.no_floor and not notes else [])]
    runs = [
        Run(str(path), mode, asked.sampling, asked.ties, policy, FIRST_SEED + i)
        for path in asked.pods
        for mode in asked.mode
        for policy in policies
        for i in range(asked.seeds)
    ]
    say(f"{len(nodes)} nodes, {sum(node.gpus for node in nodes)} GPUs, {len(runs)} runs")
    measured = measure(asked.nodes, runs, asked.workers)
    rows = rows_of({run: measured[run] for run in runs})
    told = warnings_of(rows, notes)
    if asked.output == "json":
        print(json.dumps({"apiVersion": VERSION, "kind": "OpenbBenchmark", "warnings": told, "rows": rows}, indent=1))
        return 0
    print((plot if asked.output == "plot" else table)(rows))
    for warning in told:
        print(f"{warning['code']}: {warning['message']}")
    return 0


def _refuse(message: str, output: str) -> int:
    if output == "json":
        print(json.dumps({"error": {"code": "bad-trace", "path": "", "message": message}}), file=sys.stderr)
    else:
        say(str(message))
    return 1


if __name__ == "__main__":
    sys.exit(main())
