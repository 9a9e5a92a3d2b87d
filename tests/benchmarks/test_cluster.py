"""The simulated fleet of benchmarks/cluster.py: counts add up, runs repeat, nothing is given twice."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from benchmarks import cluster_run
from benchmarks.cluster_run import Devices, Host, Ours, Policy, Ranked, Tally


def run(policy: str, devices: Devices, seed: int = 7) -> Tally:
    def make(hosts: Sequence[Host], rng: random.Random) -> Policy:
        return (
            Ours(hosts, 16, rng, relay=devices == "enforced")
            if policy == "ours"
            else Ranked(hosts, cluster_run.best_fit, rng)
        )

    return cluster_run.run(
        make, devices, nodes=16, load=1.2, arrivals=120, warm=80, seed=seed, sample=True, sizes={1: 2, 2: 2, 4: 2, 8: 1}
    )


@pytest.mark.parametrize(("policy", "devices"), [("best-fit", "lowest-id"), ("ours", "stock"), ("ours", "enforced")])
def test_a_run_repeats_itself_and_its_counts_add_up(policy: str, devices: Devices) -> None:
    first, second = run(policy, devices), run(policy, devices)
    assert first == second
    assert first != run(policy, devices, seed=8)
    assert sum(first.arrived.values()) == 120
    for size, linked in first.linked.items():
        assert linked <= first.placed[size] <= first.arrived[size]


def test_lowest_ids_break_links_that_the_enforced_plan_keeps() -> None:
    ours, lowest = run("ours", "enforced"), run("best-fit", "lowest-id")
    assert sum(ours.linked.values()) > sum(lowest.linked.values())


@pytest.mark.parametrize(("nodes", "expected"), [(60, 60), (1000, 420), (5000, 500), (15000, 750)])
def test_nodes_are_sampled_as_kube_scheduler_samples_them(nodes: int, expected: int) -> None:
    assert cluster_run.sampled(nodes) == expected
