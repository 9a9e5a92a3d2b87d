"""The rules of benchmarks/preemption.py on small clusters, against their definitions."""

from __future__ import annotations

from itertools import combinations

import pytest

from benchmarks import preemption
from benchmarks.preemption_rules import RULES, State, choose, in_tree_victims, minimal_sets


@pytest.fixture(scope="module")
def state() -> State:
    return State.make(12, 3, "multigpu50")


def test_every_node_is_full_and_no_gpu_is_held_twice(state: State) -> None:
    for pods in state.on:
        assert sum(pod.size for pod in pods) == 8
        assert sum(pod.gpus for pod in pods) == 255
        assert all(pod.gpus.bit_count() == pod.size for pod in pods)


@pytest.mark.parametrize("need", [1, 2, 4, 8])
@pytest.mark.parametrize("rule", RULES)
def test_victims_suffice_and_sit_on_the_node(state: State, rule: str, need: int) -> None:
    choice = choose(rule, state, range(12), need)
    assert choice is not None
    node, victims = choice
    assert len({pod.index for pod in victims}) == len(victims)
    assert all(pod.node == node for pod in victims)
    assert sum(pod.size for pod in victims) >= need


def test_no_set_at_all_is_cheaper_than_the_exact_rules(state: State) -> None:
    """All sets, not only the minimal ones."""
    for need in (2, 4):
        best = choose("exact lexicographic", state, range(12), need)
        assert best is not None
        every = [
            state.cost(some)
            for pods in state.on
            for count in range(1, len(pods) + 1)
            for some in combinations(pods, count)
            if sum(pod.size for pod in some) >= need
        ]
        assert state.cost(best[1]) == min(every)


def test_kube_scheduler_spares_the_most_important(state: State) -> None:
    """Nobody among its victims could be taken back."""
    for node in range(12):
        for need in (1, 2, 4):
            found = in_tree_victims(state, node, need)
            assert found is not None
            assert sorted(pod.index for pod in found[0]) in [
                sorted(pod.index for pod in some) for some in minimal_sets(state, node, need)
            ]


def test_ours_is_at_the_optimum_in_every_event() -> None:
    args = preemption.parser().parse_args(["--nodes", "24", "--clusters", "2", "--offsets", "2", "--needs", "2", "4"])
    rows = preemption.measure(args)
    ours = [row for row in rows if row["rule"] == "ours"]
    assert len(ours) == 4
    assert all(row["events"] == 4 and row["optimum_share"] == 1.0 for row in ours)
    assert all(row["linked_share"] == 1.0 for row in rows if row["rule"] == "ours, links required")
