"""Advance reservations that overlap, and are extended, shortened, changed and deleted at random while pods move for
them: no GPU is held for two at a time, no pod moves for an entry that is gone, and in the end nothing is held."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from random import Random

import pytest

from tests.act.test_advance import Instance
from tests.act.test_advance_moves import Evicting, runs
from tests.cases import cases
from tests.reservations.test_advance import passes
from tests.world import GPU, JSON, machine, rfc3339

SEEDS = (1, 2, 16, 21, 27, *range(100, 99 + cases(1)))  # in most others no pod has to move
NODES = {"n0": 8, "n1": 8, "n2": 8, "n3": 4}
NAMES = ("a", "b", "c")
LATE_SECONDS = 13.0  # after which every instance knows of an edit
TURN_SECONDS = 6.0


class Edited(Evicting):
    """The owners create a pod anew at once, and kube-scheduler takes the first node that passes."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        pods: list[JSON] = []
        for node, gpus in NODES.items():
            free = gpus
            while free and self.chance.random() < 0.75:
                size = self.chance.choice([one for one in (1, 2, 4, 8) if one <= free])
                pods.append(runs(f"p{len(pods)}", size, node))
                free -= size
        super().__init__(*pods)
        self.nodes = [machine(name, gpus) for name, gpus in NODES.items()]
        self.entries: dict[str, JSON] = {}
        self.stands_until = 0.0  # until when pods may move
        self.waiting: dict[str, JSON] = {}
        self.made = 0

    def edit(self) -> None:
        name = self.chance.choice(NAMES)
        known = self.entries.get(name)
        if known is None:
            since = self.passed + self.chance.choice((100, 400, 900))
            made: JSON = {"since": since, "until": since + self.chance.choice((60, 600, 2000))}
            if self.chance.random() < 0.3:
                made["node"] = self.chance.choice(sorted(NODES))
            else:
                made |= {"for": self.chance.choice(("1x8", "2x4", "1x4", "2x8")), "namespaces": ["ml"]}
            self.entries[name] = made
        elif self.chance.random() < 0.4:
            del self.entries[name]
        else:
            change = self.chance.choice(("until", "until", "since", "namespaces"))
            if change == "namespaces" and "namespaces" in known:
                known["namespaces"] = self.chance.choice((["ml"], ["ml", "lab"]))
            elif change == "since":
                known["since"] = self.passed + self.chance.choice((-50, 60, 500))
            else:
                known["until"] += self.chance.choice((-900, -100, 100, 900))
            known["until"] = max(known["until"], known["since"] + 10)
        self.ask(**{name: self.entries.get(name)})

    def play(self, instance: Instance) -> None:
        """The owners and kube-scheduler."""
        world = instance.world
        for name in self.evicted:
            pod = next(one for one in self.pods if one["metadata"]["name"] == name)
            assert self.passed <= self.stands_until, "a pod moves for no entry"
            self.made += 1
            new = deepcopy(pod)
            meta = {"name": f"q{self.made}", "uid": f"uid-q{self.made}", "creationTimestamp": rfc3339(world.wall)}
            new["metadata"] |= meta
            new["spec"].pop("nodeName")
            new["status"] = {"phase": "Pending"}
            self.pods.remove(pod)
            self.waiting[new["metadata"]["name"]] = world.set("Pod", new)
        self.evicted.clear()
        for name, pod in list(self.waiting.items()):
            nodes = sorted(passes(world, pod))
            if nodes and self.chance.random() < 0.7:
                pod["spec"]["nodeName"] = nodes[0]
                pod["status"] = {"phase": "Running", "startTime": rfc3339(world.wall)}
                self.pods.append(world.set("Pod", pod))
                del self.waiting[name]

    def look(self, instance: Instance) -> None:
        """What always holds."""
        if self.entries:
            self.stands_until = self.passed + LATE_SECONDS
        kept = [one for one in instance.controller._store.kept.values() if one.phase != "ended"]
        for moment in {one.since for one in kept}:
            on: Counter[str] = Counter()
            for seat in (seat for one in kept if one.since <= moment < one.until for seat in one.seats):
                on[seat.node] += seat.amounts.get(GPU, 0)
            assert all(count <= NODES[node] for node, count in on.items()), (on, kept)
        used: Counter[str] = Counter()
        for pod in instance.world.cluster.pods.values():
            used[pod.node] += sum(count for _, count in pod.gpus)
        assert all(used[node] <= gpus for node, gpus in NODES.items()), used


async def episode(seed: int) -> int:
    """Edits, then all entries are deleted; how many pods have moved."""
    case = Edited(seed)
    moved = 0
    async with case.server() as instance:
        for at in range(case.chance.choice((60, 120))):
            if case.chance.random() < 0.05 or at < 2:
                case.edit()
            await instance.turn(TURN_SECONDS)
            moved += len(case.evicted)
            case.play(instance)
            case.look(instance)
        case.ask(**dict.fromkeys(case.entries))
        case.entries.clear()
        await instance.turn(TURN_SECONDS, times=4)
        case.play(instance)
        assert not [name for name in NAMES if instance.held(name)]
        for _ in range(70):
            await instance.turn(TURN_SECONDS)
            assert not case.evicted
            case.play(instance)
        kept = case.kept()
        assert not case.waiting, kept
        assert not list(instance.world.verbs.claims.advance), kept
        assert not kept
    return moved


@pytest.mark.parametrize("seed", SEEDS)
async def test_edits_at_random(seed: int) -> None:
    await episode(seed)
