"""The rules of benchmarks/preemption.py on small clusters, against their definitions."""

from __future__ import annotations

import random
from itertools import combinations
from typing import Any

import pytest

from benchmarks import preemption
from benchmarks import preemption_links as links
from benchmarks.preemption_exact import WORK, Exact
from benchmarks.preemption_rules import FLEETS, NOW, Fleet, Running, State, choose, in_tree_victims, vgpu_manager

DGX1 = Fleet(("dgx1-v100",), 8)


@pytest.fixture(scope="module")
def state() -> State:
    return State.make(12, 3, "multigpu50")


def alike(fleet: Fleet, seed: int) -> State:
    """Nothing but the number of victims, and what comes after it, tells them apart."""
    made = State.make(6, seed, "multigpu50", fleet)
    for pod in made.pods:
        pod.priority, pod.start, pod.checkpoint, pod.restart, pod.grace = 0, NOW - 1000, None, 0, 30
        pod.gang, pod.budgets = -1, ()
    made.gangs, made.allowed = {}, []
    return made


def suffices(state: State, node: int, some: list[Running], need: int, *, required: bool) -> bool:
    free = state.freed((node, some))
    return links.certain(state.machines[node], free, need) if required else free.bit_count() >= need


@pytest.mark.parametrize("required", [False, True])
@pytest.mark.parametrize("fleet", list(FLEETS))
def test_no_set_at_all_is_cheaper_than_the_exact_rules(fleet: str, required: bool) -> None:
    """Every set, priced one by one, in plain Python; of the sixteen pods of a node only the first eight are."""
    made = State.make(5, 4, "multigpu50", FLEETS[fleet])
    for pods in made.on:
        for pod in pods[8:]:
            pod.priority = 10_000
    needs = [2, 4] if FLEETS[fleet].gpus == 8 else [2]
    exact = Exact(made, needs)
    for need in needs:
        every = [
            (node, list(some))
            for node, pods in enumerate(made.on)
            for count in range(1, len(pods[:8]) + 1)
            for some in combinations(pods[:8], count)
            if suffices(made, node, list(some), need, required=required)
        ]
        best = exact.best(range(5), need, required=required)
        assert best is not None
        assert best.cost == made.cost(best.choice, need) == min(made.cost(choice, need) for choice in every)
        if not required:
            by_work = exact.best(range(5), need, by_work=True)
            assert by_work is not None
            least = min((cost[WORK], cost[5]) for cost in (made.cost(choice, need) for choice in every))
            assert (by_work.cost[WORK], by_work.cost[5]) <= least


def threes(seed: int) -> State:
    """Two pods of three GPUs on each node, alike, one pod that stays, one GPU free: who goes decides what is left."""
    rng = random.Random(seed)
    made = alike(DGX1, seed)
    some, made.pods, made.on = iter(made.pods), [], [[] for _ in made.machines]
    for node, there in enumerate(made.on):
        order = rng.sample(range(8), 8)
        for held, priority in ((order[:3], 0), (order[3:6], 0), (order[6:7], 2000)):
            pod = next(some)
            pod.node, pod.size, pod.gpus, pod.priority = node, len(held), sum(1 << gpu for gpu in held), priority
            there.append(pod)
            made.pods.append(pod)
    return State(made.machines, made.pods, made.on, {}, [], [3])


def test_ours_is_at_the_optimum_where_the_last_terms_decide() -> None:
    """Those are leftover_fragmentation and victims_stranded: everything before them is equal."""
    decided = set()
    states = [threes(seed) for seed in range(10)]
    states += [alike(fleet, seed) for fleet in (DGX1, DGX1._replace(holes=0.6)) for seed in range(6)]
    for made in states:
        server, exact = preemption.Server(made), Exact(made, [2, 4])
        for need, required in ((2, False), (2, True), (4, False), (4, True)):
            best = exact.best(range(6), need, required=required)
            ours = server.choose(range(6), need, "required" if required else "ignore")
            if best is None or best.cost[1] >= 1000:  # nobody who may go
                assert ours.choice is None
                continue
            assert ours.choice is not None
            assert made.cost(ours.choice, need) == best.cost == ours.cost
            assert ours.proved
            costs = [
                made.cost((node, list(some)), need)
                for node, pods in enumerate(made.on)
                for count in range(1, best.cost[5] + 1)
                for some in combinations(pods, count)
                if suffices(made, node, list(some), need, required=required)
            ]
            decided |= {term for term in (7, 8) for cost in costs
                        if cost[:term] == best.cost[:term] and cost[term] != best.cost[term]}  # fmt: skip
    assert decided == {7, 8}


def test_kube_scheduler_spares_the_most_important(state: State) -> None:
    """Nobody among its victims could be taken back."""
    for node in range(12):
        for need in (1, 2, 4):
            found = in_tree_victims(state, node, need)
            assert found is not None
            freed = sum(pod.size for pod in found[0])
            assert freed >= need
            assert all(freed - pod.size < need for pod in found[0])


def test_vgpu_manager_adds_to_kube_schedulers_victims_where_links_need_it() -> None:
    added = 0
    for seed in range(6):
        made = State.make(8, seed, "default", DGX1)
        for need in (1, 2, 4, 8):
            assert vgpu_manager(made, range(8), need) == choose("in-tree", made, range(8), need)
        for need, alone in ((need, node) for need in (2, 4) for node in range(8)):
            choice = vgpu_manager(made, [alone], need, required=True)
            if choice is None:  # budgets that are spent, or nobody's links
                continue
            node, victims = choice
            assert links.linked(made.machines[node], made.freed(choice), need)
            kept = in_tree_victims(made, node, need)
            assert kept is not None
            assert victims[: len(kept[0])] == kept[0]
            more = victims[len(kept[0]) :]
            assert all(made.allowed[budget] > 0 for pod in more for budget in pod.budgets)
            keys = [(pod.gang >= 0, pod.priority, -pod.start) for pod in more]
            assert keys == sorted(keys)
            if more:
                assert not links.linked(made.machines[node], made.freed((node, victims[:-1])), need)
            added += len(more)
    assert added


def rows(*arguments: str) -> list[dict[str, Any]]:
    return preemption.measure(preemption.parser().parse_args(list(arguments)))


def test_ours_is_at_the_optimum_in_every_event() -> None:
    found = rows("--nodes", "24", "--clusters", "2", "--offsets", "2", "--needs", "2", "4", "--fleets", "8", "8-holes")
    ours = [row for row in found if row["rule"] == "ours"]
    assert len(ours) == 16
    assert all(row["events"] == row["optimum_events"] == row["proved_events"] for row in ours)
    assert all(row["events"] == (4 if row["line"] == "candidates" else 2) for row in ours)
    order = [(row["fleet"], row["need_gpus"]) for row in found]
    assert order == sorted(order)
    assert all(row["linked_share"] == 1.0 for row in ours if row["links"] == "required")
    # With links required in-tree evicts in vain somewhere: it does not look.
    assert any(row["linked_share"] < 1 for row in found if (row["rule"], row["links"]) == ("in-tree", "required"))
    assert all((row["unallocated_share"] > 0) >= (row["fleet"] == "8-holes") for row in found)
    assert len(preemption.table(found).split("\n")) == len(found) + 2
    assert preemption.reached(found).split("\n") == [
        f"fleet {fleet}: optimum 24 of 24, proved within budget 24 of 24" for fleet in ("8", "8-holes")
    ]


def test_sixteen_gpus_too() -> None:
    found = rows("--nodes", "6", "--clusters", "1", "--offsets", "1", "--fleets", "16", "16-close")
    ours = [row for row in found if row["rule"] == "ours"]
    assert {row["need_gpus"] for row in ours} == {1, 2, 4, 8, 16}
    assert all(row["events"] == row["optimum_events"] for row in ours)
    assert {row["links"] for row in found} == {"ignore"}  # all GPUs are linked alike


def test_what_an_outcome_tells() -> None:
    """One pod of four GPUs goes for two: two stay free, linked on a machine where all are."""
    made = State.make(60, 3, "multigpu50")
    node, pod = next((pod.node, pod) for pod in made.pods if pod.size == 4 and pod.node % 2)  # an HGX H100
    asked = preemption.Asked("free choice", list(range(60)), 2, "ignore")
    answered = preemption.Answered((node, [pod]), 0.5)
    outcome = preemption.judge(made, asked, answered, made.cost((node, [pod]), 2))
    assert (outcome.linked, outcome.spilled, outcome.block, outcome.seconds) == (True, 2, 2, 0.5)
    assert outcome.unallocated == 2 / 480
    assert outcome.cascade == (pod.priority > 0)
    assert outcome.cost == outcome.optimum


def test_a_certificate_that_is_not_true_is_found(state: State) -> None:
    server, asked = preemption.Server(state), preemption.Asked("free choice", list(range(12)), 2, "ignore")
    answered = server.choose(asked.nodes, 2, "ignore")
    assert answered.cost is not None
    dearer = (*answered.cost[:3], answered.cost[3] + 1, *answered.cost[4:])
    cheaper = (*answered.cost[:3], answered.cost[3] - 1, *answered.cost[4:])
    with pytest.raises(preemption.WrongAnswer, match="proved"):
        preemption.judge(state, asked, answered, cheaper)
    answered.proved = False
    assert preemption.judge(state, asked, answered, cheaper).optimum == cheaper
    answered.cost = dearer
    with pytest.raises(preemption.WrongAnswer, match="certificate"):
        preemption.judge(state, asked, answered, dearer)
