"""links: required and the stock plugin: more free GPUs may be worse ones, since its rule splits all of them. Whoever is
evicted all the same is not evicted in vain, on any machine of the catalogue."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations

import pytest

from extender.policy.reasons import LINKS_NEVER
from extender.policy.rules import Links
from extender.settings import Settings
from extender.topologies import catalogue
from extender.topologies.annotation import encode
from tests.cases import cases
from tests.world import JSON, WALL, World, refused, workload


def _wiring(entry: catalogue.Entry) -> tuple[object, ...]:
    return entry.topology.links, entry.topology.gpu_total, entry.topology.pcie


LINKED = [
    entry for entry in catalogue.entries() if entry.topology.gpus <= 8 and entry.topology.links and entry.topology.kind
]
MACHINES = {  # those that are wired alike once
    entry.id: entry.topology
    for i, entry in enumerate(LINKED)
    if not any(_wiring(entry) == _wiring(other) for other in LINKED[:i])
}
LINKS = [reason.text for reason in Links.reasons]
CERTAIN = 2
CASES = cases(10)


@dataclass
class Case:
    """A full or half full node, and a pod that requires `size` linked GPUs. Pods: name -> GPUs."""

    world: World
    size: int
    low: dict[str, int] = field(default_factory=dict)
    ending: dict[str, int] = field(default_factory=dict)
    stay: dict[str, int] = field(default_factory=dict)

    @property
    def pod(self) -> JSON:
        return workload("needs", self.size, priority=10, links="required")

    def passes(self, gone: frozenset[str]) -> bool:
        """Whether what these leave free, beside the ending ones, is enough and sure to be linked."""
        shape, free, _ = self.world.cluster.tables.nodes.graph_of(0)
        for name, mask in (self.low | self.stay).items():
            free &= ~(0 if name in gone else mask)
        return self.world.cluster.tables.shapes.certain(shape, free, self.size) == CERTAIN


def drawn(machine: str) -> Iterator[Case]:
    draw, graph = random.Random(machine), MACHINES[machine]
    for _ in range(CASES):
        case = Case(World(Settings(scheduler_version="1.38")), min(draw.randint(2, graph.gpus), draw.randint(2, 6)))
        idle = draw.random()
        case.world.node("n", graph.gpus, annotations={"gpu-extender.io/topology": encode(graph)})
        left = draw.sample(range(graph.gpus), graph.gpus)
        while left:
            size = min(len(left), draw.choice((1, 1, 2, 3)))
            held, left = left[:size], left[size:]
            if draw.random() < idle:
                continue
            kind = draw.choice(("low", "low", "low", "ending", "stay"))
            name = f"{kind}-{len(left)}"
            priority = draw.choice((1, 20)) if kind == "ending" else 20 if kind == "stay" else draw.choice((1, 2))
            ends = WALL + 30 if kind == "ending" else None
            start = WALL - draw.randint(0, 9999)
            case.world.pod(name, size, "n", held=held, priority=priority, terminating=ends, start=start)
            getattr(case, kind)[name] = sum(1 << gpu for gpu in held)
        yield case


@pytest.mark.parametrize("machine", sorted(MACHINES))
def test_what_filter_says_of_an_eviction_and_who_is_evicted_makes_room(machine: str) -> None:
    """evictable: somebody may go, or goes already, and then it fits; held: nobody who may. links-never is said of the
    machine: that a few of its sets would do for as long as nobody else ends (5 of 6 GPUs of a DGX-1) is no hope."""
    planned = 0
    for case in drawn(machine):
        pod = case.world.set("Pod", case.pod)
        answer = case.world.filter(pod)
        if answer["NodeNames"]:
            continue
        reason = refused(answer)["n"]
        if reason in LINKS:  # else a count comes first
            sets = (frozenset(some) for n in range(len(case.low) + 1) for some in combinations(case.low, n))
            helps = any(case.passes(gone) for gone in sets)
            assert bool(answer["FailedNodes"]) == helps or reason == LINKS_NEVER.text, (case, reason)
            assert helps or not answer["FailedNodes"], (case, reason)
        if victims := case.world.preempt(pod, {"n": list(case.low)}):
            gone = frozenset(victims["n"])
            assert gone <= case.low.keys() | case.ending.keys()
            case.world.gone(*gone, *(case.ending.keys() - gone))
            assert case.passes(gone), (case, gone)
            assert case.world.filter(pod)["NodeNames"] == ["n"], (case, gone)
            planned += 1
    print(machine, planned)
