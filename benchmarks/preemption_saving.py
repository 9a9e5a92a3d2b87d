"""Preemption without lost work: what evictions lose where victims are asked to save first, on a trace of real jobs.

    python -m benchmarks.preemption_saving --jobs philly.csv [--nodes 64] [--seeds 10] [--most 15000] [--wait 600]
                                           [--arms stock kueue ours asking oracle] [-o table|json]

`--jobs`: a CSV file with `interval` (seconds since the job before), `gpu_num` and `run_time` (seconds) of each job.
Priorities, checkpoints and times to save are models, stated in `benchmarks/saving_sim.py`; placement is the same for
all. Arms:

    stock    kube-scheduler's rule for victims; they are killed
    kueue    Kueue's rule (lowest priority, most recent first, whole jobs, then taken back); they are killed
    ours     the product's own search, for pods and gangs, with its default settings; they are killed
    asking   the same with `preemption.mostWaitSeconds`: victims that can are asked to save, and have `--wait` seconds
    oracle   asks too, and knows how each victim will answer and when it ends; priorities do not bind it

    lost     GPU-hours that evictions lost, with the restarts: by jobs that can save and do, that could and hang, that
             cannot be asked; a checkpoint that a job writes by itself counts in every arm
    wait     how long urgent jobs waited for their victims, p50 and p99, seconds (grace periods are the same, not in it)
    open     jobs that have not ended 30 days after the last arrival
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

from benchmarks import saving_rules as rules
from benchmarks import say
from benchmarks.saving_sim import NODE_GPUS, Account, BadJobs, Cluster, Watcher, drawn, read

ARMS = ("stock", "kueue", "ours", "asking", "oracle")
AFTER = 30 * 86_400.0
KINDS = ("saves", "hangs", "silent")
Row = tuple[float, int, float]


class Run(NamedTuple):
    """One arm over one seed. `wait`: seconds that a victim has to save."""

    arm: str
    seed: int
    nodes: int
    wait: float


def simulate(rows: Sequence[Row], run: Run) -> Account:
    """The account of one run; the same for the same arguments."""
    jobs = drawn(rows, run.seed, run.nodes * NODE_GPUS)
    asks = run.wait if run.arm in ("asking", "oracle") else 0.0
    until = jobs[-1].arrived + AFTER
    if run.arm in ("ours", "asking"):
        ours = rules.Ours(run.nodes, asks)
        return Cluster(run.nodes, ours.choose, ours, asks).run(jobs, until)
    rule = {"stock": rules.stock, "kueue": rules.kueue, "oracle": rules.oracle}[run.arm]
    return Cluster(run.nodes, rule, Watcher(), asks).run(jobs, until)


def measure(rows: Sequence[Row], runs: Sequence[Run], workers: int) -> dict[Run, Account]:
    """Each run's account; progress goes to stderr."""
    accounts: dict[Run, Account] = {}
    with ProcessPoolExecutor(workers) as pool:
        waiting = {pool.submit(simulate, rows, run): run for run in runs}
        for done in as_completed(waiting):
            accounts[waiting[done]] = done.result()
            say(f"{len(accounts)} of {len(runs)} runs")
    return accounts


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that so large a share of the values does not exceed."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0


def figures(accounts: Sequence[Account]) -> dict[str, float]:
    """The figures of an arm over its seeds: GPU-hours lost, mean by kind of job, and worst in all."""
    lost = {kind: mean(account.lost[kind] for account in accounts) / 3600 for kind in KINDS}
    return {
        **lost,
        "lost": sum(lost.values()),
        "worst": max(sum(account.lost.values()) for account in accounts) / 3600,
        "evicted": mean(sum(account.evicted.values()) for account in accounts),
        "preemptors": mean(len(account.waits) for account in accounts),
        "wait_p50": median(quantile(account.waits, 0.5) for account in accounts),
        "wait_p99": max(quantile(account.waits, 0.99) for account in accounts),
        "unfinished": max(account.unfinished for account in accounts),
    }


def table(by_arm: dict[str, dict[str, float]]) -> str:
    """One row an arm, Markdown."""
    lines = [
        "| arm | GPU-hours lost, mean (worst) | of jobs that save | that hang | that cannot be asked | jobs evicted | "
        "urgent jobs that preempt | their wait, p50 / p99, s | open |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for arm, row in by_arm.items():
        lines.append(
            f"| {arm} | {row['lost']:,.0f} ({row['worst']:,.0f}) | {row['saves']:,.1f} | {row['hangs']:,.1f} | "
            f"{row['silent']:,.1f} | {row['evicted']:,.0f} | {row['preemptors']:,.0f} | "
            f"{row['wait_p50']:.0f} / {row['wait_p99']:.0f} | {row['unfinished']:.0f} |"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row for each arm, and the ratio that the target names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=Path, required=True)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--most", type=int, default=15_000, help="of the jobs in the file")
    parser.add_argument("--wait", type=float, default=600.0, help="seconds that a victim has to save")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    options = parser.parse_args(arguments)
    try:
        rows = read(options.jobs, options.most)
    except (OSError, BadJobs) as error:
        say(str(error))
        return 2
    runs = [Run(arm, seed, options.nodes, options.wait) for seed in range(options.seeds) for arm in options.arms]
    accounts = measure(rows, runs, options.workers)
    by_arm = {arm: figures([accounts[run] for run in runs if run.arm == arm]) for arm in options.arms}
    if options.output == "json":
        print(json.dumps(by_arm, indent=2))
        return 0
    print(table(by_arm))
    if {"ours", "asking"} <= by_arm.keys():
        ratio = by_arm["ours"]["saves"] / max(by_arm["asking"]["saves"], 1e-9)
        print(f"\nJobs that can save lose {ratio:.1f} times less with asking than without.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
