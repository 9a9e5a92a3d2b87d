"""benchmarks/preemption_saving.py: the simulated cluster keeps its accounts, and its rules are what they claim."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest

from benchmarks import saving_rules as rules
from benchmarks.preemption_saving import ARMS, Row, Run, simulate
from benchmarks.saving_sim import NODE_GPUS, URGENT, BadJobs, Choice, Cluster, Job, Running, Watcher, drawn, read

NODES = 4


def trace(seed: int, jobs: int = 250) -> list[Row]:
    """More than four nodes can run, so that urgent jobs evict."""
    rng = random.Random(seed)
    arrived, rows = 0.0, []
    for _ in range(jobs):
        arrived += rng.expovariate(1 / 400)
        rows.append((arrived, rng.choice((1, 1, 2, 4, 8, 8, 16, 28)), rng.choice((300.0, 3600.0, 40_000.0))))
    return rows


class Accounts(Watcher):
    """What holds GPUs, by node: never more than there are."""

    def __init__(self, rule: Callable[[Cluster, Job], Choice | None]) -> None:
        self.rule, self.choices = rule, 0

    def choose(self, cluster: Cluster, job: Job) -> Choice | None:
        choice = self.rule(cluster, job)
        if choice is not None:
            self.choices += 1
            victims = [cluster.running[number] for number in choice.victims]
            assert all(victim.job.priority < URGENT and not victim.asked for victim in victims)
            free = rules.without(cluster, victims)
            assert len(choice.seats) == job.pods
            assert all(free[node] >= job.pod_gpus for node in choice.seats)
            held = [0] * cluster.nodes
            for running in cluster.running.values():
                for node, gpus in running.seats.items():
                    held[node] += gpus
            assert max(held) <= NODE_GPUS
        return choice


@pytest.mark.parametrize("asks", [0.0, 600.0])
@pytest.mark.parametrize("rule", [rules.stock, rules.kueue, rules.oracle])
def test_every_job_ends_and_every_gpu_is_free_at_the_end(
    rule: Callable[[Cluster, Job], Choice | None], asks: float
) -> None:
    jobs = drawn(trace(1), 1, NODES * NODE_GPUS)
    accounts = Accounts(rule)
    cluster = Cluster(NODES, accounts.choose, accounts, asks)
    account = cluster.run(jobs, math.inf)
    assert account.unfinished == 0
    assert accounts.choices == len(account.waits) > 20
    assert cluster.free == [NODE_GPUS] * NODES
    assert max(account.waits) <= asks


def test_what_is_not_lost_is_work_that_was_done() -> None:
    """GPU-seconds that were held = those of the jobs + those that were lost."""
    rows = [row for row in trace(2) if row[1] <= NODE_GPUS]

    held = [0.0]

    class Counted(Cluster):
        def _leave(self, running: Running) -> None:
            held[0] += running.job.total * (self.now - running.started)
            super()._leave(running)

    jobs = drawn(rows, 2, NODES * NODE_GPUS)
    accounts = Accounts(rules.stock)
    account = Counted(NODES, accounts.choose, accounts).run(jobs, math.inf)
    worked = sum(job.total * job.seconds for job in jobs)
    assert held[0] == pytest.approx(worked + sum(account.lost.values()), rel=1e-9)


def test_the_oracle_takes_the_cheapest_set_of_a_node() -> None:
    rng = random.Random(3)
    for _ in range(300):
        job = Job(0, 0.0, 1, 1.0, 0, 0.0, math.inf, 0.0, 0.0)
        priced = [
            (float(rng.randrange(50)), rng.choice((1, 1, 2, 4)), Running(job, i, 0.0, 0.0, 0.0, {})) for i in range(6)
        ]
        lacking = rng.randrange(9)
        costs = [
            sum(cost for cost, _, _ in some)
            for count in range(len(priced) + 1)
            for some in combinations(priced, count)
            if sum(gpus for _, gpus, _ in some) >= lacking
        ]
        best = rules._cheapest(priced, lacking)
        assert (best[0] if best else None) == (min(costs) if costs else None)
        if best:
            assert sum(gpus for _, gpus, pod in priced if pod in best[1]) >= lacking


@pytest.mark.parametrize("arm", ARMS)
def test_an_arm_gives_the_same_account_each_time(arm: str) -> None:
    rows = trace(4, 120)
    run = Run(arm, 0, NODES, 600.0)
    first = simulate(rows, run)
    assert first == simulate(rows, run)
    assert first.waits
    assert first.unfinished == 0


def test_victims_that_are_asked_lose_less() -> None:
    rows = trace(5)
    ours, asking = (simulate(rows, Run(arm, 0, NODES, 600.0)) for arm in ("ours", "asking"))
    assert asking.lost["saves"] < ours.lost["saves"] / 2
    assert asking.evicted["saves"]


def test_a_file_without_jobs_is_named(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("interval,gpu_num,run_time\n0,8,60\n5,x,60\n")
    with pytest.raises(BadJobs, match=r"jobs\.csv:3: a job needs interval, gpu_num, run_time"):
        read(path, 10)


def test_a_victim_that_saves_loses_its_time_to_save_and_the_restart() -> None:
    train = Job(0, 0.0, 8, 50_000.0, 0, 0.0, 30.0, 60.0, 300.0)
    urgent = Job(1, 10_000.0, 8, 100.0, URGENT, 0.0, math.inf, 0.0, 0.0)
    cluster = Cluster(1, rules.oracle, Watcher(), 600.0)
    account = cluster.run([train, urgent], math.inf)
    assert account.lost == {"saves": 8 * (30.0 + 300.0), "hangs": 0.0, "silent": 0.0}
    assert account.waits == [30.0]
