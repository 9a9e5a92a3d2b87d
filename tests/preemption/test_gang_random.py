"""Plans for gangs against brute force: the least cost of all sets of victims with which all pods can be placed."""

from __future__ import annotations

import random
from array import array
from collections import Counter
from collections.abc import Iterator

import msgspec
import pytest

from extender.policy import pod_request
from extender.policy.policy import Policy
from extender.preemption import gang_options, gang_search
from extender.preemption.gang_plan import (
    DomainCandidates,
    GangSearch,
    GangSearchResult,
    PendingGang,
    Reclaim,
    SearchContext,
)
from extender.settings import Settings
from extender.settings.fields import LossCeiling
from tests.cases import cases
from tests.oracles.gang_evictions import Case, Oracle, Running, Wanted
from tests.world import WALL, World, pairs

CASES = cases(40)
MOST_VICTIMS = 9
WAIT = 60
ASKING = Settings.model_validate(
    {"evictions": {"enabled": True}, "preemption": {"mostWaitSeconds": {"prod": WAIT, "batch": WAIT}}}
)
KINDS = ("counts", "links", "groups", "minima", "roles", "reclaim")


def random_case(kind: str, rng: random.Random) -> Case:
    """Two racks of one to three nodes, nearly full."""
    required = kind == "links"
    nodes = {}
    pods: list[Running] = []
    for rack in range(2):
        for n in range(rng.randint(1, 2 if required else 3)):
            gpus = 4 if required else rng.choice([2, 3, 4])
            nodes[f"n{rack}{n}"] = (gpus, 16, f"r{rack}", pairs(gpus) if required else None)
    groups = kind in ("groups", "minima")
    budgets = {f"b{b}": rng.choice([0, 1, 1, 2]) for b in range(rng.randint(1, 3 if groups else 2))}
    minimum = {f"g{g}": rng.choice([1, 2, 2, 3]) for g in range(3 if groups else 2)}
    for name, (gpus, _, _, _) in nodes.items():
        free, cpus = list(range(gpus)), 16
        rng.shuffle(free)
        for i in range(rng.randint(1, 4)):
            takes = min(len(free), rng.choice([0, 1, 1, 2, 2, 3]))
            eats = min(cpus, rng.randint(1, 4))
            cpus -= eats
            tied = rng.random() < (0.8 if groups else 0.3)
            pods.append(
                Running(
                    f"p{name}-{i}", name, takes, eats, tuple(sorted(free.pop() for _ in range(takes))),
                    priority=rng.choice([0, 0, 1, 1, 2, 7]),
                    gang=rng.choice(list(minimum)) if tied and rng.random() < 0.6 else "",
                    labels=tuple(b for b in budgets if rng.random() < (0.4 if tied else 0.1)),
                    age=rng.choice([60, 60, 600, 600, 3600]),
                    restart=rng.choice([0, 0, 30]),
                    grace=rng.choice([0, 30, 30]),
                    ending=rng.choice([10.0, -300.0]) if rng.random() < 0.08 else None,
                    spared=rng.random() < 0.05,
                )
            )  # fmt: skip
    case = Case(nodes, pods, _wanted(kind, rng), 5, minimum, budgets)
    if kind == "minima":
        for gang in minimum:
            case.roles[gang] = {"head": rng.choice([0, 1, 1]), "worker": rng.choice([0, 1, 1, 2])}
            minimum[gang] = sum(case.roles[gang].values())
        for pod in pods:
            pod.role = rng.choice(["head", "worker", "worker", "other"]) if pod.gang else ""
    if kind == "reclaim":
        case.borrowers = frozenset(pod.name for pod in pods if rng.random() < 0.5)
        case.regardless = rng.random() < 0.5
    for pod in pods:
        pod.saves = rng.choice([-1, -1, 0, 20, 40])
        pod.asked = rng.choice([-1, -1, 0, 30, 90])
    case.wait = rng.choice([0, WAIT])
    return case


def _wanted(kind: str, rng: random.Random) -> list[Wanted]:
    links = "required" if kind == "links" else ""
    first = Wanted(rng.randint(1, 4), 2 if links else rng.choice([1, 1, 2]), rng.choice([1, 1, 5]), links)
    if kind != "roles":
        return [first]
    return [first, Wanted(rng.randint(1, 2), rng.choice([0, 1, 3]) or 3, 2)]


def searched(
    case: Case, world: World, names: list[str], budget: int = 200_000, ceiling: float | None = None
) -> GangSearchResult:
    cluster = world.cluster
    pods = tuple(next(pod for pod in cluster.pods.values() if pod.name == name) for name in names)
    if ceiling is not None:
        pods = tuple(msgspec.structs.replace(pod, priority_class="batch") for pod in pods)
    requests = tuple(pod_request.read(pod, cluster) for pod in pods)
    racks: dict[str, list[int]] = {}
    for name, (_, _, rack, _) in case.nodes.items():
        racks.setdefault(rack, []).append(cluster.row(name))
    candidates = [DomainCandidates(("rack", rack), array("i", rows)) for rack, rows in sorted(racks.items())]
    lent = case.borrowers
    reclaim = None if lent is None else Reclaim(lambda pod: pod.name in lent, case.regardless)
    limits = world.settings.preemption.model_copy(update={"search_budget": budget})
    if ceiling is not None:
        limits = limits.model_copy(update={"ceilings": {"batch": LossCeiling(gpu_hours=ceiling)}})
    searching = GangSearch(cluster, Policy.of(world.settings), limits)
    return searching.find(PendingGang(pods, requests, world.now, WALL), candidates, SearchContext(reclaim))


def drawn(kind: str, cases: int) -> Iterator[tuple[int, Case]]:
    """Cases that brute force can do, with their seeds."""
    seed = 0
    while cases:
        seed += 1
        case = random_case(kind, random.Random(f"{kind}-{seed}"))
        racks = Counter(case.nodes[pod.node][2] for pod in case.pods if case.may_go(pod))
        if max(racks.values(), default=0) <= MOST_VICTIMS:
            cases -= 1
            yield seed, case


@pytest.mark.parametrize("kind", KINDS)
def test_plans_cost_what_brute_force_finds(kind: str) -> None:
    answered = evicted = several = 0
    for seed, case in drawn(kind, CASES):
        world = World(ASKING)
        names = case.world(world)
        before = world.state()
        found = searched(case, world, names)
        assert world.state()[:4] == before[:4]
        oracle = Oracle(case, world)
        expected = least(case, oracle)
        assert [one.cost for one in found.evictions] == expected, (kind, seed)
        assert found.proved, (kind, seed)
        if found.best is None:
            continue
        answered += 1
        evicted += bool(found.best.pods)
        several += len({pod.node for pod in found.best.pods}) > 1
        uids = {pod.name for pod in found.best.pods}
        assert found.best.domain is not None
        assert found.best.cost == oracle.cost([pod for pod in case.pods if pod.name in uids], found.best.domain[1])
        rack = [name for name, facts in case.nodes.items() if facts[2] == found.best.domain[1]]
        assert {world.cluster.names[row] for row in found.best.rows} <= set(rack)
        assert placed(case, oracle, world, found, uids)
    assert answered > CASES // 4
    assert evicted > CASES // 6
    assert several > CASES // 40


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_proved_is_bounded(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With few sets of each node, and few partial plans, another plan may cost less, but not less than the bound."""
    monkeypatch.setattr(gang_options, "MOST_SETS", 2)
    monkeypatch.setattr(gang_options, "MOST_JUDGED", 2)
    monkeypatch.setattr(gang_search, "FIRST_WIDTH", 1)
    open_ends = 0
    for seed, case in drawn(kind, CASES // 2):
        world = World(ASKING)
        names = case.world(world)
        found = searched(case, world, names, budget=1)
        expected = least(case, Oracle(case, world))
        costs = [one.cost for one in found.evictions]
        if found.proved:
            assert costs[:1] == expected[:1], (kind, seed)
        else:
            open_ends += 1
            assert found.bound is not None
            assert not expected or found.bound <= expected[0], (kind, seed)
            assert not costs or expected[0] <= costs[0], (kind, seed)
    assert open_ends


def least(case: Case, oracle: Oracle, most: int | None = None) -> list[tuple[int, ...]]:
    """The least cost of each rack where the gang can start, ascending."""
    racks = {facts[2] for facts in case.nodes.values()}
    return sorted(cost[:-1] for rack in racks if (cost := oracle.best(rack, most)) is not None)


@pytest.mark.parametrize("kind", KINDS)
def test_plans_below_a_ceiling_are_those_of_brute_force(kind: str) -> None:
    """Of each case the ceiling is what the cheapest plan of all loses, less one: another plan, or none."""
    others = none = 0
    for seed, case in drawn(kind, CASES // 2):
        case.wait = WAIT
        world = World(ASKING)
        names = case.world(world)
        oracle = Oracle(case, world)
        free = least(case, oracle)
        work = 3 if case.borrowers is None else 4
        if not free or not free[0][work]:
            continue
        most = free[0][work] - 1
        expected = least(case, oracle, most)
        found = searched(case, world, names, ceiling=most / 3600)
        assert [one.cost for one in found.evictions] == expected, (kind, seed)
        assert found.proved, (kind, seed)
        others += bool(expected)
        none += not expected
        if not expected:
            assert found.why.endswith(f"and preemption.ceilings.batch.gpuHours allows {most / 3600:.4g}")
    assert others
    assert none


def placed(case: Case, oracle: Oracle, world: World, found: GangSearchResult, gone: set[str]) -> bool:
    """Whether every node takes the pods of the gang that the plan places there."""
    assert found.best is not None
    roles = [c for c, role in enumerate(case.gang) for _ in range(role.count)]
    for row in set(found.best.rows):
        here = [role for role, at in zip(roles, found.best.rows, strict=True) if at == row]
        counts = tuple(here.count(c) for c in range(len(case.gang)))
        if not oracle.takes(world.cluster.names[row], gone, counts):
            return False
    return True
