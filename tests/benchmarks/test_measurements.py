"""Benchmarks on small input: the same in every run, no figure beyond what exists, and what their parts count."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest

from benchmarks import cluster_run, look, moves, nics, nvlink
from benchmarks.advance import packs
from benchmarks.cluster_run import Devices, Host, Ours, Policy, Ranked, Tally
from benchmarks.look import Queue
from benchmarks.nvlink import Board, Job, machines, mask, measure, play
from benchmarks.stages import stage_of

# -- policies on one machine: the mix, the rivals, and what ours has to reach ------------------------------------------


@pytest.mark.parametrize("name", machines())
def test_ours_enforced_reaches_its_goal_and_loses_to_nobody(name: str) -> None:
    machine = machines()[name]
    shares = {policy: measure(machine, policy, 300, 20).share or 0.0 for policy in nvlink.POLICIES}
    ours = shares.pop("ours, enforced")
    assert round(ours, 3) >= machine.published["goal"]
    assert ours >= max(shares.values())


def test_the_rivals_are_who_they_say() -> None:
    # Published means of the same mix on DGX-1V, 2-5 GPUs.
    machine = machines()["dgx1v-2-5"]
    for policy, published in {
        "random": 0.274,
        "lowest id": 0.530,
        "topology-aware": 0.637,
        "go-gpuallocator": 0.706,
        "MAPA greedy": 0.711,
        "exact, ring then rings left": 0.833,
    }.items():
        assert measure(machine, policy, 300, 20).share == pytest.approx(published, abs=0.004), policy


def test_the_head_of_the_line_waits_and_jobs_that_end_together_free_together() -> None:
    board = Board(machines()["dgx1v-1-8"])
    jobs = [Job(4, 5, True), Job(4, 5, True), Job(8, 5, True), Job(1, 9, True)]
    held = [gpus for _, gpus in play(board, jobs, nvlink.lowest_id(board), random.Random(0))]
    # Two of four run; eight waits for both, which end at once; the single waits behind it.
    assert held == [mask(range(4)), mask(range(4, 8)), mask(range(8)), mask([0])]


# -- the measurement of NICs: the same in every run, and no way gives more than the machine has ------------------------


def test_the_same_pods_give_the_same_figures() -> None:
    found = nics.measure(300, 3)
    assert found == nics.measure(300, 3)
    for ways in found.values():
        for row in ways.values():
            assert 0.0 <= row.gangs["aligned"] <= row.could <= 1.0
    assert found["p4d"]["planned with NICs"].gangs["aligned"] > found["p4d"]["planned"].gangs["aligned"]


# -- what a look at the queue costs: the benchmark's queues wait as they should, and its numbers are printed -----------


SMALL = (
    Queue("empty", 0, 0, 0),
    Queue("gangs", 3, 2, 8),
    Queue("start", 3, 2, 8, starts=True),
    Queue("singles", 5, 1, 1, delays=True),
)


@pytest.mark.parametrize(("pods", "more"), [("1", []), ("8", []), ("2", ["--learned"])])
def test_it_prints_json(
    pods: str, more: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(look, "QUEUES", SMALL)
    assert look.main(["--nodes", "40", "--pods", pods, "--rounds", "1", *more, "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["kind"] == "LookBenchmark"
    assert [row["queue"] for row in document["rows"]] == ["empty", "gangs", "start", "singles"]
    assert all(row["again_ms"] >= row["again_longest_ms"] >= 0 for row in document["rows"])


# -- the rules of benchmarks/moves.py on a small state: each regains a place, and takes no more than there is ----------


def state(seed: int) -> moves.State:
    rng = random.Random(seed)
    drawn = [(rng.uniform(60, 9e4), moves.Job((0, 0, 0), (gpus,), frozenset(), 0.0)) for gpus in (1, 1, 2, 4) * 9]
    drawn.append((9e4, moves.Job((0, 0, 0), (8, 4), frozenset(), 0.0)))
    return moves.filled(moves.State([(0, 0, 8)] * 12, [""] * 12), drawn, 0.7, rng)


@pytest.mark.parametrize("rule", moves.RULES)
def test_each_rule_regains_places(rule: str) -> None:
    made = state(1)
    held = sum(job.gpus for job in made.jobs)
    row = moves.Row()
    moves.regain(made, moves.RULES[rule], 2, row)  # it checks what is free
    assert len(row.hours) == 2
    assert sum(job.gpus for job in made.jobs) == held


def test_no_rule_loses_less_for_the_first_place() -> None:
    for seed in range(5):
        rows = {name: moves.Row() for name in moves.RULES}
        for name, row in rows.items():
            moves.regain(state(seed), moves.RULES[name], 1, row)
        if rows["ours"].proved:
            assert all(rows["ours"].hours[0] <= row.hours[0] + 0.01 for row in rows.values() if row.hours)


# -- the packing that shows which reservations no moves could have kept, against all arrangements one by one -----------


CASES = 400


def test_packing_is_exact_in_small_cases() -> None:
    fits = Counter[bool]()
    for case in range(CASES):
        rng = random.Random(case)
        free = tuple(rng.randint(2, 5) for _ in range(rng.randint(1, 3)))
        turns = {owner: rng.randint(0, 2) for owner in range(2)}
        pods = [(rng.randint(1, 3), rng.randrange(len(free)), owner, turns[owner]) for owner in (0, 0, 1, 1)]
        shape = [rng.randint(1, 3) for _ in range(rng.randint(1, 2))]
        found = packs(pods, free, shape)
        assert found == _one_by_one(pods, free, shape), case
        fits[found] += 1
    assert min(fits.values()) > CASES / 10


def _one_by_one(pods: list[tuple[int, int, int, int]], free: tuple[int, ...], shape: list[int]) -> bool:
    for nodes in product(range(len(free)), repeat=len(pods) + len(shape)):
        left = list(free)
        for gpus, node in zip([*(pod[0] for pod in pods), *shape], nodes, strict=True):
            left[node] -= gpus
        moved = Counter(pod[2] for pod, node in zip(pods, nodes, strict=False) if node != pod[1])
        if min(left) >= 0 and all(moved[owner] <= turns for _, _, owner, turns in pods):
            return True
    return False


# -- the simulated fleet of benchmarks/cluster.py: counts add up, runs repeat, nothing is given twice ------------------


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


# -- where the time of a call goes: each file that a call passes through counts for its own stage ----------------------


ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("file", "stage"),
    [
        ("server/connections.py", "HTTP: event loop, uvicorn, connections"),
        ("server/calls.py", "the call around the decision"),
        ("act/reservations.py", "the call around the decision"),
        ("decide/wire.py", "bytes to names and pod"),
        ("objects/decode.py", "bytes to names and pod"),
        ("policy/pod_request.py", "the pod as a request"),
        ("reservations/claims.py", "claims of other pods"),
        ("policy/rules.py", "rules"),
        ("policy/scorers.py", "scorers"),
        ("policy/policy.py", "combining rules and scores"),
        ("decide/decisions.py", "decision record"),
        ("decide/verbs.py", "the verb: choice, answer to bytes"),
    ],
)
def test_the_stage_of_a_file(file: str, stage: str) -> None:
    path = ROOT / "extender" / file
    assert path.exists()
    assert stage_of(str(path)) == stage
