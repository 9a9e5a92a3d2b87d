"""Which GPUs a gang gets: whole ones before shares, and those of one model where one has room. Against brute force."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace

import pytest

from extender.cluster.nodes import model_of
from extender.objects.queueing import GATE
from extender.queue.placement import NodeChoice, NoPlace, Placed
from tests.cases import cases
from tests.queue.drawn import Best, Case, Oracle, gang, rack, random_case
from tests.queue.gangs import waiting
from tests.queue.late_owners import RACK
from tests.queue.test_apart import SETTINGS, domains, start, wait
from tests.queue.test_placement import ended, idle
from tests.world import JSON, World, pairs

CASES = cases(300)
PRODUCT, REPLICAS, COUNT = "nvidia.com/gpu.product", "nvidia.com/gpu.replicas", "nvidia.com/gpu.count"
ONE = NodeChoice(mixes=False)


def of(product: str, shares: int = 1, gpus: int = 4) -> JSON:
    """Labels of a node with so many GPUs; each is handed out in so many shares."""
    if shares == 1:
        return {PRODUCT: product}
    return {PRODUCT: f"{product}-SHARED", REPLICAS: str(shares), COUNT: str(gpus)}


def place(case: Case, choice: NodeChoice = ONE) -> Placed | NoPlace:
    members = [case.cluster.row(name) for name in case.members]
    choice = replace(choice, holders=members)
    return ended(case.placement.steps(case.pods, case.requests, case.domain, members, choice=choice))


def nodes_of(found: Placed | NoPlace) -> set[str]:
    assert isinstance(found, Placed), found
    return set(found.nodes)


class Tiers(Oracle):
    """The best placement of the first tier that has any."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.every_way = self.ways
        records = [case.cluster.nodes[name] for name in self.names]
        self.model = [model_of(record, case.settings.mix.model_labels) for record in records]
        self.whole = [case.cluster.gpus.divisions[name].whole for name in self.names]
        self.has_gpus = [bool(role.request.gpus) for role in self.roles]

    def tiers(self) -> list[list[Hashable]]:
        """For each node the group that pods with GPUs may share, None: none."""
        models: list[Hashable] = list(self.model)
        held = {self.model[self.names.index(name)] for name in self.case.members}
        if held:
            models = [model if model in held and len(held) == 1 else None for model in models]
        everything: list[Hashable] = [""] * len(self.names)
        tiers = [models, everything]
        return [
            [group if whole else None for group, whole in zip(tier, self.whole, strict=True)] for tier in tiers
        ] + tiers

    def first(self) -> tuple[int, Best] | None:
        """(the tier, its best placement)."""
        for number, tier in enumerate(self.tiers()):
            if (best := self._best_of(tier)) is not None:
                return number, best
        return None

    def _best_of(self, tier: Sequence[Hashable]) -> Best | None:
        best: Best | None = None
        for group in {*tier} - {None}:
            self.ways = [
                {counts: price for counts, price in ways.items() if at == group or not self._gpus(counts)}
                for at, ways in zip(tier, self.every_way, strict=True)
            ]
            if (found := self.best()) is not None and (best is None or found < best):
                best = found
        self.ways = self.every_way
        return best

    def _gpus(self, counts: Sequence[int]) -> bool:
        return any(n and has for n, has in zip(counts, self.has_gpus, strict=True))

    def reached(self, placed: Placed) -> Best:
        """Level, price and nodes of a placement."""
        used: dict[int, list[int]] = {}
        for c, role in enumerate(self.roles):
            for at in role.at:
                used.setdefault(self.names.index(placed.nodes[at]), [0] * len(self.roles))[c] += 1
        assert all(self.fits(self.names[i], counts) for i, counts in used.items())
        level = next(d for d, within in enumerate(self.levels()) if any(set(used) <= set(one) for one in within))
        return Best(level, sum(self.joint.price(i, counts) or 0 for i, counts in used.items()), len(used))


def mixed_case(rng: random.Random) -> Case:
    """Up to six nodes of up to three models, of which some hand out shares."""
    drawn = random_case(rng)
    for node in drawn.nodes:
        size = int(node["status"]["allocatable"]["nvidia.com/gpu"])
        shares = rng.choice([1, 1, 1, 2])
        node["metadata"]["labels"] |= of(rng.choice("abc"), shares, size // shares)
        if shares > 1:
            node["metadata"]["annotations"] = {}
    for pod in drawn.gang:
        pod["metadata"]["annotations"].pop("gpu-extender.io/links", None)
    return Case(drawn.nodes, drawn.running, drawn.gang, drawn.domain, drawn.members)


def test_random_gangs_are_on_whole_gpus_of_one_model_wherever_there_is_room() -> None:
    """And a gang for which no model has room has the best place over all, as before."""
    found: Counter[str] = Counter()
    for seed in range(CASES):
        case = mixed_case(random.Random(seed))
        if not any(request.gpus for request in case.requests):
            continue
        oracle, placed = Tiers(case), place(case)
        first = oracle.first()
        if first is None:
            assert isinstance(placed, NoPlace), seed
            found["no place"] += 1
            continue
        tier, best = first
        assert isinstance(placed, Placed), (seed, best, placed)
        assert case.placement.still_fits(placed, case.pods, case.requests), seed
        asking = [node for node, request in zip(placed.nodes, case.requests, strict=True) if request.gpus]
        groups = {oracle.tiers()[tier][oracle.names.index(node)] for node in asking}
        assert len(groups) == 1, (seed, tier, placed.nodes)
        assert None not in groups, (seed, tier, placed.nodes)
        assert oracle.reached(placed) == best, (seed, tier)
        found[("whole, one model", "whole", "one model", "any")[tier]] += 1
        found["pods without GPUs"] += len(asking) < len(placed.nodes)
    assert all(found[what] for what in ("no place", "whole, one model", "whole", "any", "pods without GPUs")), found
    print(dict(found))


def test_one_model_before_the_closest_domain() -> None:
    nodes = [
        idle("a", 4, {**rack("r1"), **of("A")}),
        idle("b", 4, {**rack("r1"), **of("B")}),
        idle("c", 4, {**rack("r2"), **of("A")}),
    ]
    assert nodes_of(place(Case(nodes, [], gang(2, 4)))) == {"a", "c"}
    assert nodes_of(place(Case(nodes, [], gang(2, 4)), NodeChoice())) == {"a", "b"}


def test_several_models_where_none_has_room() -> None:
    nodes = [idle("a", 4, of("A")), idle("b", 4, of("B"))]
    assert nodes_of(place(Case(nodes, [], gang(2, 4)))) == {"a", "b"}


def test_members_that_run_state_the_model() -> None:
    nodes = [idle("a", 2, of("A")), idle("b", 4, of("B")), idle("c", 2, of("A"))]
    assert nodes_of(place(Case(nodes, [], gang(2, 2)))) == {"b"}
    assert nodes_of(place(Case(nodes, [], gang(1, 2), members=("a",)))) == {"a"}
    assert nodes_of(place(Case(nodes, [], gang(2, 2), members=("a",)))) == {"a", "c"}


def test_pods_without_gpus_go_anywhere() -> None:
    """The launcher has CPU on the nodes of the other model alone."""
    nodes = [idle("a", 4, of("A"), cpu="4"), idle("b", 4, of("A"), cpu="4"), idle("c", 4, of("B"), cpu="64")]
    launcher = gang(1, 0, cpu="32")[0] | {"metadata": gang(1, 0)[0]["metadata"] | {"name": "launcher", "uid": "l"}}
    placed = place(Case(nodes, [], [*gang(2, 4, cpu="1"), launcher]))
    assert isinstance(placed, Placed), placed
    assert placed.nodes == ("a", "b", "c")


def test_shares_are_taken_last() -> None:
    nodes = [idle("s", 16, of("T", 4)), idle("a", 4, of("A")), idle("b", 4, of("B"))]
    assert nodes_of(place(Case(nodes, [], gang(2, 4)))) == {"a", "b"}
    assert nodes_of(place(Case(nodes, [], gang(3, 4)))) == {"s"}
    assert nodes_of(place(Case(nodes, [], gang(1, 1)))) <= {"a", "b"}
    ignoring = gang(2, 4, links="ignore")
    assert nodes_of(place(Case(nodes, [], ignoring))) == {"s"}


@pytest.mark.parametrize("more", [0, 1])
def test_jobs_that_are_kept_apart_are_on_one_model(more: int) -> None:
    """Of model A two racks hold a Job each, of model B one does: the first Job alone would fit there as well."""
    world = World(SETTINGS)
    for name, product in (("n0-0", "B"), ("n1-0", "A"), ("n2-0", "A")):
        world.node(name, 4, links=pairs(4), labels={RACK: f"r{name[1]}", **of(product)})
    wait(world, *[1] * (2 + more))
    seats = start(world)
    assert seats is not None
    used = {rack for racks in domains(seats).values() for rack in racks}
    assert used == ({"n0", "n1", "n2"} if more else {"n1", "n2"})


def test_who_may_mix() -> None:
    """The annotation of the pods with GPUs, else the settings."""
    for stated, default, mixes in (
        ("", "one", False), ("any", "one", True), ("one", "any", False), ("", "any", True), ("none", "any", True),
    ):  # fmt: skip
        settings = SETTINGS.model_validate({"queue": {"enabled": True}, "placement": {"gpuModels": default}})
        world = World(settings)
        world.node("a", 4, labels=of("A"))
        for i in range(2):
            notes = {"gpu-extender.io/gang": "g", "gpu-extender.io/gang-min": "2"}
            notes |= {"gpu-extender.io/gpu-models": stated} if stated else {}
            world.pod(f"g-{i}", 2, annotations=notes, spec={"schedulingGates": [{"name": GATE}]})
        (only,) = waiting(world.cluster)
        assert only.mixes is mixes, (stated, default)
