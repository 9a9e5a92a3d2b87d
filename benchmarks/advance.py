"""Reservations kept on time by moves, and victims without a successor: the product's own search, claims, filter and
moves, over a simulated clock.

    python -m benchmarks.advance [--cases 300] [--seed 0]
    python -m benchmarks.advance --speed      filter after an event at 5,000 nodes, with and without 64 reservations
                                              that have begun, of 64 nodes each: CPU, alternating

Each case is a small random cluster (tests/act/moved.py): 3 to 6 nodes with 8 GPUs, owners whose pods are spread over
them, some saving when asked, some in gangs. It has a reservation (1x8, 2x4 or 1x6) that needs moves, two minutes after
these have to begin. Pods of other tenants come all the time and take any node that filter passes; kube-scheduler takes
a random one of these; owners and containers take their time; the server is killed after one write of seven.

- `ours`: what the product does. Where it is late, `Bound` shows whether any moves could have kept it after the latest
  loss of a node: if not, it is beyond the bounds.
- `by hand`: the same moves, as `plan` prints them: pods are evicted one move after the other, 90 s at most
  for each, and nothing holds their next places.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from functools import cache
from statistics import median
from typing import Final

from extender import log
from extender.act.moves import START_SECONDS
from extender.act.saving import ASKING_SECONDS
from extender.cluster.tables import FIRST_GPU
from extender.reservations.advance import Held, seat
from tests.act.moved import SPREAD, TICK, Scene, carried_out, drawn, gpus_of, places_of, stranger
from tests.world import World, workload

SHAPES: Final = ((1, 8), (2, 4), (1, 6))
STRANGERS: Final = 0.3
HINDRANCES: Final[Mapping[str, Mapping[str, float]]] = {
    "nothing": {},
    "budgets refuse 1 of 3": {"refuses": 0.33},
    "owners grow": {"grows": 0.1},
    "nodes vanish": {"vanish": 0.01},
}
"""By name: what goes wrong, how likely in a tick or for a request."""
HAND_SECONDS: Final = 90.0
COLUMNS: Final = (
    "what goes wrong", "kept on time: ours, by hand", "ours beyond the bounds", "ours, of the others",
    "victims: ours, by hand", "of these without a successor that runs", "ours for which no node has room",
    "our restarts",
)  # fmt: skip


class Counts:
    """Of one line."""

    def __init__(self) -> None:
        self.cases = self.kept = self.beyond = self.victims = self.without = self.no_room = self.restarts = 0

    def add(self, scene: Scene, *, kept: bool, possible: bool, lost: tuple[int, int]) -> None:
        """A case that needed moves. `possible`: as of a `Bound`; `lost`: as of `without`."""
        self.cases += 1
        self.kept += kept
        self.beyond += not kept and not possible
        self.victims += len(scene.evicted)
        self.without += lost[0]
        self.no_room += lost[1]
        self.restarts += scene.restarts


def line(name: str, ours: Counts, by_hand: Counts) -> str:
    """For people."""
    both = ours, by_hand
    cells = (
        name,
        ", ".join(_share(counts.kept, counts.cases) for counts in both),
        f"{ours.beyond:,}",
        _share(ours.kept, ours.cases - ours.beyond),
        ", ".join(f"{counts.victims:,}" for counts in both),
        ", ".join(f"{counts.without:,}" for counts in both),
        f"{ours.no_room:,}",
        f"{ours.restarts:,}",
    )
    return f"| {' | '.join(cells)} |"


def _share(kept: int, cases: int) -> str:
    return f"{100 * kept / max(1, cases):.1f} %"


class Bound:
    """Whether moves could have kept a reservation after the latest node was lost: by an exact packing of its own, which
    knows nothing of the product's search, and of no order of moves.

    At each look all pods that run, and those of the reservation, are packed onto the nodes that are left. A pod stays
    on its node if saving and its grace period may take longer than is left, if so many others of its owner move that it
    has its turn too late, or if its gang has pods that wait. Where that packs at no look from the loss to the date, the
    bounds did not allow it."""

    def __init__(self, scene: Scene, pods: int, gpus: int) -> None:
        self.scene, self.shape = scene, (gpus,) * pods
        self.possible, self._nodes = True, len(scene.nodes)

    def look(self) -> None:
        """At a look of the controller."""
        if len(self.scene.nodes) < self._nodes:
            self.possible, self._nodes = False, len(self.scene.nodes)
        self.possible = self.possible or self._packs()

    def _packs(self) -> bool:
        scene, left = self.scene, self.scene.since - self.scene.world.wall
        names = sorted(scene.nodes)
        free = [scene.nodes[name] for name in names]
        pods: list[tuple[int, int, int, int]] = []  # GPUs, node, owner, how many of the owner may move
        for number, owner in enumerate(scene.owners):
            bound = [pod for pod in scene.of(owner) if pod["spec"].get("nodeName")]
            leaves = SPREAD + (owner.saves + ASKING_SECONDS if owner.saves >= 0 else 0.0) + owner.grace
            turns = 1 + int((left - leaves) // (leaves + START_SECONDS)) if left >= leaves else 0
            if owner.gang:
                turns = len(bound) if turns and len(bound) == owner.replicas else 0
            pods += [(gpus_of(pod), names.index(pod["spec"]["nodeName"]), number, turns) for pod in bound]
        return packs(tuple(pods), tuple(free), self.shape)


def packs(pods: Sequence[tuple[int, int, int, int]], free: tuple[int, ...], shape: Sequence[int]) -> bool:
    """Whether all fit. `pods`: (GPUs, its node, its owner, how many of this may move), those of one owner together;
    `free`: GPUs by node without them; `shape`: GPUs of what fits anywhere."""

    @cache
    def rest(at: int, moved: int, free: tuple[int, ...]) -> bool:
        if sum(free) < needed[at] or min(free) < 0:
            return False
        if at >= len(items):
            return True
        gpus, home, owner, turns = items[at]
        moved = moved if at and items[at - 1][2] == owner else 0
        nodes = [home] if moved == turns else range(len(free))
        return any(
            rest(at + 1, moved + (node != home), (*free[:node], free[node] - gpus, *free[node + 1 :])) for node in nodes
        )

    items = [*pods, *((gpus, -1, -1, len(shape)) for gpus in shape)]
    needed = [sum(item[0] for item in items[at:]) for at in range(len(items) + 1)]
    return rest(0, 0, free)


def case(seed: int, hindrance: Mapping[str, float]) -> tuple[Scene, tuple[int, int]]:
    """A cluster and a shape."""
    rng = random.Random(seed)
    facts = {name: value for name, value in hindrance.items() if name != "grows"}
    return drawn(rng, crashes=0.15, **facts), rng.choice(SHAPES)


async def by_hand(scene: Scene, pods: int, gpus: int, grows: float) -> bool:
    """Evict as `plan` prints it; whether the room is there on time."""
    if not scene.book(pods, gpus, 120.0):
        return False
    moves, begins = list(scene.moves), scene.since - scene.lead()
    leaving: set[str] = set()
    until = 0.0
    while scene.world.wall < scene.since:
        runs = not any(owner.replicas > len(scene.of(owner)) for owner in scene.owners) and not leaving & set(
            scene.pods
        )
        if moves and scene.world.wall >= begins and (runs or scene.world.wall > until):
            leaving, until = {pod.uid for pod in moves[0].pods}, scene.world.wall + HAND_SECONDS
            for pod in moves.pop(0).pods:
                if pod.uid in scene.pods:
                    scene.crashes = 0.0
                    await scene.evict(scene.world.cluster.pods[pod.uid])
        _others(scene, grows)
        scene.tick()
    return bool(places_of(scene))


def _others(scene: Scene, grows: float) -> None:
    if scene.rng.random() < STRANGERS:
        stranger(scene)
    if scene.rng.random() < grows:
        scene.rng.choice(scene.owners).replicas += 1


def without(scene: Scene, before: Set[str]) -> tuple[int, int]:
    """(victims for which no other pod of their owner runs, those of them for which no node has as many GPUs free).
    `before`: uids of the pods at the beginning."""
    evicted = Counter(uid.removeprefix("uid-").rpartition("-")[0] for uid in scene.evicted)
    runs = Counter[str]()
    for uid, pod in scene.pods.items():
        if uid not in before and pod["spec"].get("nodeName") and pod["metadata"]["namespace"] == "default":
            runs[pod["metadata"]["name"].rpartition("-")[0]] += 1
    most = max(map(scene.free, scene.nodes))
    gpus = {owner.name: owner.gpus for owner in scene.owners if owner.namespace == "default"}
    lost = evicted - runs
    return lost.total(), sum(number for name, number in lost.items() if gpus[name] > most)


def speed(nodes: int = 5_000, reservations: int = 64, each: int = 64, calls: int = 200) -> None:
    """Print what filter costs after an event about a pod, and how that compares."""
    rng, worlds, milliseconds = random.Random(0), list[World](), dict[bool, list[float]]()
    for held in (False, True):
        world = World()
        for node in range(nodes):
            world.node(f"n{node}", 8)
            world.pod(f"p{node}", 4, f"n{node}", namespace="ml" if node % 3 else "default", start=world.wall)
        amounts = tuple([8 if at == FIRST_GPU else 0 for at in range(len(world.cluster.resources))])
        places = [[f"n{number * each + at}" for at in range(each)] for number in range(reservations)]
        dates = [
            Held(
                f"d{number}", tuple([seat(f"d{number}", at, node, amounts, 0.0) for at, node in enumerate(place)]),
                world.wall - 60, world.wall + 3_600, frozenset({"ml"}),
            )
            for number, place in enumerate(places)
        ]  # fmt: skip
        world.verbs.claims.advance.take(dates if held else (), world.wall - world.now)
        worlds.append(world)
    gc.collect()
    gc.freeze()
    names = [f"n{node}" for node in range(nodes)]
    for call in range(calls):
        node = rng.randrange(nodes)
        for held in rng.sample((False, True), 2):
            world = worlds[held]
            world.pod(f"p{node}", 4, f"n{node}", namespace="ml" if call % 2 else "default", start=world.wall)
            pod = workload(f"w{call}", 2)
            begins = time.thread_time()
            world.filter(pod, names)
            milliseconds.setdefault(held, []).append(1_000 * (time.thread_time() - begins))
            world.verbs.assumed.forget(pod["metadata"]["uid"])
    without, beside = (median(milliseconds[held]) for held in (False, True))
    print(f"{nodes:,} nodes: {without:.2f} ms; {reservations} reservations of {each} nodes: {beside:.2f} ms")
    print(f"{beside / without:.2f} x")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--speed", action="store_true")
    options = parser.parse_args()
    log.configure(level=logging.CRITICAL)
    if options.speed:
        speed()
        return
    print(f"| {' | '.join(COLUMNS)} |\n|---|{'--:|' * (len(COLUMNS) - 1)}")
    unheld = 0
    for name, hindrance in HINDRANCES.items():
        grows = hindrance.get("grows", 0.0)
        held, by_hands = Counts(), Counts()
        for seed in range(options.seed, options.seed + options.cases):
            for counts in (held, by_hands):
                scene, shape = case(seed, hindrance)
                before, bound = set(scene.pods), Bound(scene, *shape)
                if counts is held:
                    kept = asyncio.run(carried_out(scene, *shape, strangers=STRANGERS, grows=grows, look=bound.look))
                else:
                    kept = asyncio.run(by_hand(scene, *shape, grows))
                if scene.planned_moves:
                    counts.add(scene, kept=kept, possible=bound.possible, lost=without(scene, before))
                    unheld += len(scene.without_place) if counts is held else 0
        print(line(name, held, by_hands), flush=True)
    print(f"\n{held.cases} of {options.cases} clusters need moves; one look each {TICK:.0f} s")
    print(f"{unheld} pods were evicted by ours before their next place was held")


if __name__ == "__main__":
    main()
