"""Late gangs under drawn events: pods come in any order, are bound, are deleted, nodes are cordoned, the controller
restarts. No GPU is promised twice at any moment, and in the end every pod runs."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.act.queue.rig import PODS, Rig, rig, run, settings, world_of
from tests.act.queue.test_absent import own
from tests.cases import cases
from tests.kube.objects import Objects
from tests.queue.late_owners import OWNERS, LateOwner
from tests.world import JSON, World, pairs

KINDS = [name for name in OWNERS if "exclusive" not in name]
STEPS = 14  # before the restart, and after it


class Run:
    """One gang and its events."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.owner: LateOwner = OWNERS[self.chance.choice(KINDS)]
        self.objects = Objects()
        self.world = self.made()
        self.number = 0  # of the pods that were created: each has a uid of its own

    def made(self) -> World:
        world = world_of(chosen=settings(absentSeatSeconds=60))
        world.node("n3", 8, links=pairs(8))
        return world

    def missing(self) -> list[str]:
        """The pods that the owner would create now: the first ones, then the next of the late ones."""
        there = {self.rank(path) for path in self.objects.stored if path.startswith(PODS)}
        early = [name for name in self.owner.early if name not in there]
        return early or [name for name in self.owner.late if name not in there]

    def rank(self, path: str) -> str:
        return path.removeprefix(f"{PODS}/").partition("--")[0]

    def create(self, one: Rig) -> None:
        """A pod with a name and a uid that no pod had before."""
        name = self.missing()[0] if self.owner.late[0] != "g-launcher" else self.chance.choice(self.missing())
        self.number += 1
        pod = self.owner.make(name)
        pod["metadata"] |= {"name": f"{name}--{self.number}", "uid": f"uid-{self.number}"}
        one.create(pod)

    def bindable(self, one: Rig) -> list[str]:
        """The pods that kube-scheduler would bind: open, nominated, on a node that takes pods."""
        found = []
        for pod in self.unbound():
            name, node = pod["metadata"]["name"], pod.get("status", {}).get("nominatedNodeName", "")
            if one.is_open(name) and node and not self.world.cluster.nodes[node].unschedulable:
                found.append(name)
        return found

    def unbound(self) -> list[JSON]:
        pods = [pod for path, pod in self.objects.stored.items() if path.startswith(PODS)]
        return [pod for pod in pods if not pod["spec"].get("nodeName")]

    def event(self, one: Rig) -> None:
        """One of those that may happen."""
        what = self.chance.choice(("create", "create", "bind", "bind", "delete", "cordon", "uncordon", "wait"))
        waiting = [pod["metadata"]["name"] for pod in self.unbound()]
        if what == "create" and self.missing():
            self.create(one)
        elif what == "bind" and (names := self.bindable(one)):
            one.bind(self.chance.choice(names))
        elif what == "delete" and waiting:
            one.delete(self.chance.choice(waiting))
        elif what in ("cordon", "uncordon"):
            node = self.chance.choice(("n1", "n2", "n3"))
            self.world.node(node, 8, links=pairs(8), unschedulable=what == "cordon")

    def promised_once(self, one: Rig) -> None:
        """By node: what bound pods hold and what seats reserve."""
        held: Counter[str] = Counter()
        for pod in self.world.cluster.pods.values():
            held[pod.node] += sum(count for _, count in pod.gpus)
        masks: dict[str, int] = {}
        for seat in one.seats:
            known = self.world.cluster.pods.get(seat.uid)
            if known is None or not known.node:
                held[seat.node] += seat.amounts[3]
                assert not masks.get(seat.node, 0) & seat.gpus
                masks[seat.node] = masks.get(seat.node, 0) | seat.gpus
        del held[""]
        assert all(count <= 8 for count in held.values()), held


@pytest.mark.parametrize("seed", range(cases(8)))
def test_late_gangs_under_drawn_events(seed: int) -> None:
    drawn = Run(seed)

    async def play(identity: str, steps: int) -> None:
        async with rig(drawn.world, drawn.objects, identity) as one:
            own(one, drawn.owner)
            one.watch()
            for _ in range(steps):
                drawn.event(one)
                await one.turn(drawn.chance.choice((0.2, 1.5, 8.0)))
                drawn.promised_once(one)

    async def finish(identity: str) -> None:
        async with rig(drawn.world, drawn.objects, identity) as one:
            own(one, drawn.owner)
            for node in ("n1", "n2", "n3"):
                drawn.world.node(node, 8, links=pairs(8))
            one.watch()
            for _ in range(120):
                if drawn.missing():
                    drawn.create(one)
                for name in drawn.bindable(one):
                    one.bind(name)
                await one.turn(3.0)
                drawn.promised_once(one)
            assert (drawn.missing(), drawn.unbound(), len(one.seats)) == ([], [], 0)

    async def test() -> None:
        await play("a", STEPS)
        before, drawn.world = drawn.world, drawn.made()  # a restart: all that is not at the API server is lost
        drawn.world.now, drawn.world.wall = before.now + 20, before.wall + 20
        await play("b", STEPS)
        await finish("b")

    run(test())
