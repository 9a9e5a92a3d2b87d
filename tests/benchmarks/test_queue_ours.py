"""Ours in the queue benchmark: the adapter states to the product's code what is true in the simulated world.

The cluster is that of the rivals' examples: two racks of two nodes of eight GPUs.
"""

from __future__ import annotations

import random

import pytest

from benchmarks.queue_sim.gangs import Gang
from benchmarks.queue_sim.measures import figures
from benchmarks.queue_sim.ours import Ours, cluster_of, records_of
from benchmarks.queue_sim.world import Account, World
from extender.objects.queueing import Domain, domain_of, duration_of, queue_of
from extender.settings import Settings
from tests.benchmarks.test_queue_rivals import FOREVER, SMALL, THIRD, gang, run


def test_the_pods_state_what_the_gang_is() -> None:
    cluster = cluster_of(SMALL, Settings())
    assert len(cluster.nodes) == 4
    assert sum(sum(node.gpus.values()) for node in cluster.nodes.values()) == SMALL.capacity
    pods = records_of(Gang(7, 0.0, 2, 3, 4, 90.0, 100.0, required=True), cluster)
    assert len({pod.uid for pod in pods}) == 3
    for pod in pods:
        assert sum(count for _, count in pod.gpus) == 4
        assert (queue_of(pod), duration_of(pod), domain_of(pod)) == ("2", 100.0, Domain("rack", True))
    (single,) = records_of(Gang(8, 0.0, 0, 1, 4, 90.0, None), cluster)
    assert (duration_of(single), domain_of(single)) == (None, None)


def test_two_gangs_of_three_nodes_of_four_run_one_after_the_other() -> None:
    # stock deadlocks here
    world, at = run(Ours, [gang(0, 0, 3, 100), gang(1, 0, 3, 50)])
    assert at == {0: 0.0, 1: 100.0}
    assert (world.account.held, world.counts) == (0.0, {})


def test_the_head_is_not_delayed_and_others_pass() -> None:
    # The example of EASY: R has two nodes until 100, the head A gets three then. B (90 s at 2) and C (1000 s at 3,
    # beside the seats of A) pass. D (1000 s at 93) would delay A, and waits until A ends, at 150.
    gangs = [gang(0, 0, 2, 100), gang(1, 1, 3, 50), gang(2, 2, 1, 90), gang(3, 3, 1, 1000), gang(4, 93, 1, 1000)]
    _, at = run(Ours, gangs)
    assert at == {0: 0.0, 1: 100.0, 2: 2.0, 3: 3.0, 4: 150.0}


def test_without_estimates_the_pods_of_a_gang_end_together_as_in_easy() -> None:
    # A is to get three of four nodes when both pods of R have ended, at a time that is not known. The fourth one is
    # spare: B runs on it from 2 to 92, then C. A starts at 100, beside C.
    gangs = [
        gang(0, 0, 2, 100, declared=None),
        gang(1, 1, 3, 50, declared=None),
        gang(2, 2, 1, 90, declared=None),
        gang(3, 3, 1, 1000, declared=None),
    ]
    _, at = run(Ours, gangs)
    assert at == {0: 0.0, 1: 100.0, 2: 2.0, 3: 92.0}


def test_patience_ends_at_its_time_although_nothing_happens() -> None:
    ours = Ours(World(SMALL, Account(0.0, FOREVER)))
    ours.arrive(gang(0, 5, 3, 100))
    assert ours.wake == 5 + Settings().queue.patience_seconds


def test_one_reservation_as_in_easy() -> None:
    assert run(Ours, THIRD)[1] == {0: 0.0, 3: 3.0, 1: 100.0, 2: 1003.0}


def test_the_queue_that_holds_less_comes_first() -> None:
    # Queue 0 has all nodes, half of them until 100. Two gangs of two nodes wait, that of queue 1 is the younger: the
    # share of queue 1 is 0, so it starts at 100, and the other when it ends.
    gangs = [gang(0, 0, 2, 100), gang(1, 0, 2, 500), gang(2, 1, 2, 10), gang(3, 2, 2, 30, queue=1)]
    _, at = run(Ours, gangs)
    assert (at[3], at[2]) == (100.0, 130.0)


def test_a_required_rack_is_waited_for() -> None:
    # Each node has a single pod, until 50, 60, 70 and 80: two nodes are free at 60, but a rack is when both of its pods
    # have ended.
    gangs = [*(gang(i, 0, 1, 50 + 10 * i) for i in range(4)), Gang(4, 1.0, 0, 2, 8, 10.0, 10.0, required=True)]
    world, at = run(Ours, gangs)
    ends = {node: one.gang.seconds for one in world.started[:4] for node in one.seats}
    assert at[4] == min(max(ends[0], ends[1]), max(ends[2], ends[3]))
    assert world.started[4].racks == 1


def drawn(seed: int) -> list[Gang]:
    """Sixty gangs, more than the cluster has room for."""
    dice = random.Random(seed)
    return [
        Gang(i, 20.0 * i, dice.randrange(4), dice.choice((1, 1, 2, 4)), dice.choice((1, 2, 4, 8)), s, s)
        for i, s in enumerate(dice.uniform(10, 200) for _ in range(60))
    ]


@pytest.mark.parametrize("seed", range(3))
def test_looks_that_are_left_out_would_start_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    gangs = drawn(seed)
    world, at = run(Ours, gangs)
    monkeypatch.setattr(Ours, "_some_fit", lambda ours: bool(ours._waiting))
    every, at_every = run(Ours, gangs)
    assert at == at_every
    assert [one.seats for one in world.started] == [one.seats for one in every.started]


@pytest.mark.parametrize("seed", range(3))
def test_every_gang_starts_once_whole_and_none_holds_before(seed: int) -> None:
    gangs = drawn(seed)
    world = World(SMALL, Account(0.0, FOREVER))
    world.run(gangs, Ours(world))
    found = figures(world, gangs)
    assert (len(world.started), found["held"], found["deadlocks"]) == (60, 0.0, 0.0)
    assert world.free == [8] * 4
