"""Random clusters of two GPU models with limits, guarantees and mixed gangs, against a brute force: once nothing starts
any more, no gang waits that has a place within the quotas beside all that is seated and reserved.

`python -m tests.queue.test_quota_random` prints what they were.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations_with_replacement, groupby, product
from random import Random
from typing import Any

import pytest

from extender.queue.gang import WaitingGang
from extender.queue.placement import JointPlacement
from extender.queue.plan import Planner
from extender.queue.usage import FoundPlace
from extender.settings import Settings
from tests.act.queue.rig import gated
from tests.cases import cases
from tests.queue.test_plan import HEAD
from tests.world import PRODUCT, World, pairs, rfc3339

CASES = cases(150)
MODELS = ("A100", "H100")
QUEUES = ("a", "b", "c")
LOOKS = 6
Gpus = Counter[str]


@dataclass
class Asked:
    """A gang of the case. `sizes`: GPUs of its pods, by name; `least`: how many start together."""

    queue: str
    sizes: list[int]
    least: int
    models: tuple[str, ...]


@dataclass
class Case:
    """`models`: of the nodes; `rules`: settings of the queues; `running`: uid -> (queue, node, GPUs)."""

    world: World
    models: list[str]
    rules: dict[str, dict[str, Any]]
    running: dict[str, tuple[str, int, int]]
    gangs: dict[str, Asked] = field(default_factory=dict)


def some_rules(chance: Random) -> dict[str, Any]:
    rules: dict[str, Any] = {}
    if chance.random() < 0.6:
        rules["limitGpus"] = {
            m: chance.choice((0, 2, 4, 8, 12, 16)) for m in chance.sample(MODELS, chance.choice((1, 2)))
        }
    if chance.random() < 0.4:
        rules["guaranteedGpus"] = {m: chance.choice((2, 4, 8)) for m in chance.sample(MODELS, chance.choice((1, 2)))}
        for model, most in rules.get("limitGpus", {}).items():
            if rules["guaranteedGpus"].get(model, 0) > most:
                rules["guaranteedGpus"][model] = most
    if chance.random() < 0.15:
        rules["borrow"] = False
    return rules


def case(seed: int, world_type: type[World] = World) -> Case:
    chance = Random(seed)
    models = [chance.choice(MODELS) for _ in range(chance.randint(2, 4))]
    rules = {queue: some_rules(chance) for queue in QUEUES}
    world = world_type(Settings.model_validate({**HEAD, "queue": {"enabled": True, "queues": rules}}))
    made = Case(world, models, rules, {})
    for i, model in enumerate(models):
        world.node(f"n{i}", 8, links=pairs(8), labels={PRODUCT: model})
        left = 8
        while left and chance.random() < 0.5:
            gpus, queue = chance.choice([n for n in (1, 2, 4, 8) if n <= left]), chance.choice((*QUEUES, "x"))
            name = f"r{len(made.running)}"
            notes = {"gpu-extender.io/duration": f"{chance.randint(1, 5)}h"} if chance.random() < 0.5 else {}
            world.pod(name, gpus, f"n{i}", labels={"gpu-extender.io/queue": queue}, annotations=notes, start=world.wall)
            made.running[name] = queue, i, gpus
            left -= gpus
    for i in range(chance.randint(1, 4)):
        made.gangs[f"g{i}"] = waiting(chance, world, f"g{i}")
    return made


def waiting(chance: Random, world: World, name: str) -> Asked:
    sizes = [chance.choice((1, 2, 4, 8))] * chance.randint(1, 3)
    if chance.random() < 0.4:
        sizes = [chance.choice((1, 2, 4, 8)) for _ in sizes]
    least = chance.randint(1, len(sizes)) if len(set(sizes)) == 1 and chance.random() < 0.3 else len(sizes)
    models = (chance.choice(MODELS),) if chance.random() < 0.2 else MODELS
    queue = chance.choice(QUEUES)
    notes = {"gpu-extender.io/gang": name, "gpu-extender.io/gang-size": str(len(sizes))}
    if least < len(sizes):
        notes["gpu-extender.io/gang-min"] = str(least)
    facts: dict[str, Any] = {"priority": chance.choice((0, 0, 10)), "labels": {"gpu-extender.io/queue": queue}}
    age = chance.randint(1, 1000)
    for j, gpus in enumerate(sizes):
        pod = gated(f"{name}-{j}", gpus, annotations=notes, **facts)
        pod["metadata"]["creationTimestamp"] = rfc3339(world.wall - age)
        if len(models) == 1:
            pod["spec"]["nodeSelector"] = {PRODUCT: models[0]}
        world.set("Pod", pod)
    return Asked(queue, sizes, least, models)


# -- the brute force --------------------------------------------------------------------------------------------------


def places(sizes: list[int], free: list[int], models: list[str], allowed: tuple[str, ...]) -> Iterator[Gpus]:
    """GPUs by model of each way to put pods of these sizes on nodes with so much free."""
    nodes = [i for i, model in enumerate(models) if model in allowed]
    groups = [(size, len(list(equal))) for size, equal in groupby(sorted(sizes, reverse=True))]
    seen = set()
    for chosen in product(*(combinations_with_replacement(nodes, count) for _, count in groups)):
        used: Counter[int] = Counter()
        for (size, _), some in zip(groups, chosen, strict=True):
            for node in some:
                used[node] += size
        if all(free[node] >= count for node, count in used.items()):
            gpus = Counter[str]()
            for node, count in used.items():
                gpus[models[node]] += count
            key = tuple(sorted(gpus.items()))
            if key not in seen:
                seen.add(key)
                yield gpus


@dataclass
class Books:
    """What queues hold, by queue and model, and what gangs wait for within guarantees."""

    case: Case
    held: dict[str, Gpus]
    wanted: dict[str, Gpus]

    def allows(self, queue: str, asked: Gpus) -> bool:
        return all(self._allows(queue, model, count) for model, count in asked.items() if count)

    def _allows(self, queue: str, model: str, count: int) -> bool:
        rules, after = self.case.rules.get(queue, {}), self._held(queue, model) + count
        guaranteed = rules.get("guaranteedGpus", {}).get(model, 0)
        if after > rules.get("limitGpus", {}).get(model, 1000):
            return False
        if after <= guaranteed:
            return True
        kept = sum(self._unmet(other, model) for other in QUEUES if other != queue)
        free = 8 * self.case.models.count(model) - sum(self._held(other, model) for other in (*QUEUES, "x"))
        return rules.get("borrow", True) and (not kept or count <= free - kept)

    def _held(self, queue: str, model: str) -> int:
        return self.held.get(queue, Gpus())[model]

    def _unmet(self, queue: str, model: str) -> int:
        guaranteed = self.case.rules[queue].get("guaranteedGpus", {}).get(model, 0)
        return max(0, min(int(guaranteed) - self._held(queue, model), self.wanted.get(queue, Gpus())[model]))

    def with_more(self, queue: str, gpus: Mapping[str, int], sign: int = 1) -> Books:
        held = {name: Gpus(counts) for name, counts in self.held.items()}
        wanted = {name: Gpus(counts) for name, counts in self.wanted.items()}
        for model, count in gpus.items():
            held.setdefault(queue, Gpus())[model] += sign * count
            if sign > 0 and queue in wanted:
                wanted[queue][model] -= count
        return Books(self.case, held, wanted)


@dataclass
class Outcome:
    """`missed`: gangs that had a place and wait, with why they wait; `over`: queues that hold more than they may."""

    missed: list[tuple[str, str]]
    over: list[str]
    started: int
    waits: Counter[str]


def outcome(one: Case) -> Outcome:
    world = one.world
    placement = JointPlacement(world.cluster, world.verbs.policy)
    planner = Planner(world.cluster, world.verbs.claims, placement, lambda: world.now, lambda: world.wall)
    started = 0
    broken: list[str] = []
    for _ in range(LOOKS):
        starts = []
        for start in planner.looks({}):
            if start is not None:
                starts.append(start)
                broken += exceeded(one, start.gang)
        started += len(starts)
        if not starts:
            break
    else:
        broken.append("it does not come to rest")
    return Outcome(missed(one, planner), broken, started, Counter(wait.code for wait in planner.report.waiting))


def free_of(one: Case) -> list[int]:
    free = [8] * len(one.models)
    for _, node, gpus in one.running.values():
        free[node] -= gpus
    for seat in one.world.verbs.claims.seats:
        free[int(seat.node[1:])] -= sum(seat.amounts[3:])
    return free


def held_of(one: Case) -> dict[str, Gpus]:
    held: dict[str, Gpus] = {queue: Gpus() for queue in (*QUEUES, "x")}
    for queue, node, gpus in one.running.values():
        held[queue][one.models[node]] += gpus
    for seat in one.world.verbs.claims.seats:
        held[one.gangs[seat.gang.rsplit("/", 1)[1]].queue][one.models[int(seat.node[1:])]] += sum(seat.amounts[3:])
    return held


def exceeded(one: Case, gang: WaitingGang) -> list[str]:
    """Rules of the queue of a gang that has just started which it breaks."""
    held, rules = held_of(one)[gang.queue], one.rules[gang.queue]
    took = {one.models[int(seat.node[1:])] for seat in one.world.verbs.claims.seats if seat.gang == gang.ref.text}
    bounds = [rules.get("limitGpus", {})]
    if not rules.get("borrow", True):
        bounds.append({model: rules.get("guaranteedGpus", {}).get(model, 0) for model in MODELS})
    return [f"{gang.ref}: {m} {held[m]}" for bound in bounds for m in took if held[m] > bound.get(m, 1000)]


def missed(one: Case, planner: Planner) -> list[tuple[str, str]]:
    """The gangs that wait and have a place."""
    waiting = {wait.gang.ref.name: wait for wait in planner.report.waiting}
    books, free, head = Books(one, held_of(one), {}), free_of(one), planner.report.head
    for name in waiting:
        asked = one.gangs[name]
        if ever(one, asked):
            for model in asked.models:
                books.wanted.setdefault(asked.queue, Gpus())[model] += sum(asked.sizes)
    later, seats = books, list(free)
    if head is not None:
        assert isinstance(head.seats, FoundPlace)
        for pod, node in zip(head.seats.pods, head.seats.placed.nodes, strict=True):
            seats[int(node[1:])] -= pod.gpu_count
        for end in head.gone:
            name = one.world.cluster.pods[end.uid].name
            if name in one.running:
                queue, node_of, gpus = one.running[name]
                later = later.with_more(queue, {one.models[node_of]: gpus}, -1)
            else:  # a seat of this test: it ends too
                seat = one.world.verbs.claims.seats.of(end.uid)
                assert seat is not None
                queue = one.gangs[seat.gang.rsplit("/", 1)[1]].queue
                later = later.with_more(queue, {one.models[int(seat.node[1:])]: sum(seat.amounts[3:])}, -1)
    found: list[tuple[str, str]] = []
    for name, wait in sorted(waiting.items()):
        asked = one.gangs[name]
        behind = head is not None and head.gang.ref.name != name
        room = seats if behind else free
        for taken in places(asked.sizes[: asked.least], room, one.models, asked.models):
            if not books.allows(asked.queue, taken):
                continue
            if behind and head is not None:
                assert isinstance(head.seats, FoundPlace)
                of_head = Gpus(head.seats.gpus(planner._models)) if planner._models else Gpus()
                both = later.with_more(asked.queue, taken).allows(head.gang.queue, of_head)
                if not both or not later.with_more(head.gang.queue, of_head).allows(asked.queue, taken):
                    continue
            found.append((name, wait.code))
            break
    return found


def ever(one: Case, asked: Asked) -> bool:
    """Whether the gang has a place within the rules of its own queue once all has ended."""
    empty = Books(one, {}, {})
    ways = places(asked.sizes[: asked.least], [8] * len(one.models), one.models, asked.models)
    return any(empty.allows(asked.queue, gpus) for gpus in ways)


@pytest.mark.parametrize("part", range(10))
def test_no_gang_waits_that_has_a_place_within_the_quotas(part: int) -> None:
    for seed in range(part, CASES, 10):
        found = outcome(case(seed))
        assert (found.missed, found.over) == ([], []), seed


if __name__ == "__main__":
    total, codes, gangs, bad = 0, Counter[str](), 0, []
    for seed in range(CASES):
        result = outcome(case(seed))
        total += result.started
        codes.update(result.waits)
        gangs += result.started + result.waits.total()
        if result.missed or result.over:
            bad.append((seed, result.missed, result.over))
    print(f"{CASES} clusters, {gangs} gangs: {total} started, {dict(codes)} wait; wrong: {len(bad)}", bad[:10])
