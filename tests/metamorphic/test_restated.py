"""Other names, another order in the file, unused labels, later times and more instances change no answer; and the
answers about a single pod agree."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from copy import deepcopy
from dataclasses import replace
from functools import partial
from random import Random

import pytest

from extender.objects.queueing import GATE
from extender.settings import Settings
from tests.act.queue.rig import Rig, rig
from tests.kube.objects import Objects
from tests.metamorphic.answers import asked, difference, events, known, offline, queued, verbs
from tests.metamorphic.changes import Restated, labelled, renamed, restated, shifted, shuffled
from tests.metamorphic.clusters import CASES, Stated, drawn
from tests.metamorphic.test_other_names import alone, is_gated
from tests.waiting import run_bounded
from tests.world import JSON, World

Change = Callable[[Stated, Random], Restated]
NODES, PODS, SPACES = (partial(renamed, kinds=(kind,)) for kind in ("Node", "Pod", "Namespace"))
CHANGES: dict[str, Sequence[Change]] = {
    "nodes renamed": (NODES,),
    "pods and gangs renamed": (PODS,),
    "namespaces renamed": (SPACES,),
    "another order": (shuffled,),
    "unused labels": (labelled,),
    "later": (shifted,),
    "all": (NODES, PODS, SPACES, shuffled, labelled, shifted),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_states_the_same_gets_the_same_answers(name: str) -> None:
    """Ties are decided by name, and the new names keep the order of the old: so every answer is equal, word by word."""
    for seed in range(CASES):
        stated, commands, answers = known(seed, claims=seed % 4 == 1)
        other = restated(stated, Random(seed), CHANGES[name])
        assert not difference(commands, other.read(offline(other.stated))), seed
        assert not difference(answers, other.read(verbs(other.stated))), seed


# -- no single pod waits that has a place ------------------------------------------------------------------------------


def singles(stated: Stated) -> Iterator[tuple[Stated, JSON]]:
    """The cluster with one single in the queue alone, and without quotas; and that pod, as it is asked about."""
    settings = stated.settings.model_dump(by_alias=True, exclude_unset=True, mode="json")
    settings["queue"].pop("queues", None)
    made = replace(stated, settings=Settings.model_validate(settings))
    for one in alone(made):
        waiting = [pod for pod in one.of("Pod") if is_gated(pod)]
        if len(waiting) == 1 and "gpu-extender.io/domain" not in waiting[0]["metadata"]["annotations"]:
            (pod,) = waiting
            spec = {key: value for key, value in pod["spec"].items() if key != "schedulingGates"}
            yield one, {**pod, "spec": spec}


def test_no_single_waits_that_has_a_place() -> None:
    """what-if and the queue agree on it. filter passes the node that they name, also once the victims are gone; it may
    pass others, which kube-scheduler itself rejects."""
    seen = {"starts": 0, "waits": 0}
    for seed in range(2 * CASES):
        for stated, pod in singles(drawn(seed)):
            name = pod["metadata"]["name"]
            starts = bool(queued(stated)["starts"])
            seen["starts" if starts else "waits"] += 1
            rest = replace(stated, items=tuple(one for one in stated.items if not is_gated(one)), asked=(pod,))
            (result,) = asked(rest, pending=False)["results"]
            assert (result["verdict"] == "fits") == starts, (seed, name, result["verdict"])
            if starts:
                assert result["node"] in passed(rest, pod), (seed, name)
            elif result["verdict"] == "evict":
                victims = {victim["uid"] for victim in result["victims"]}
                left = [one for one in rest.items if one["metadata"].get("uid") not in victims]
                assert result["node"] in passed(replace(rest, items=tuple(left)), pod), (seed, name)
    assert min(seen.values()), seen


def passed(stated: Stated, pod: JSON) -> list[str]:
    """The nodes that filter passes."""
    world = World(stated.settings)
    world.wall = stated.wall
    world.cluster.apply(events(stated), world.now)
    return list(world.filter(pod, sorted(world.cluster.nodes)).get("NodeNames") or ())


# -- one instance or three: the same gates open, and the pods are nominated to the same nodes --------------------------


TURNS = 4


async def released(stated: Stated, instances: int) -> dict[str, str]:
    """Name of each pod whose gate is open -> its nominated node."""
    objects, rigs = Objects(), list[Rig]()
    async with AsyncExitStack() as stack:
        for identity in "abc"[:instances]:
            world = World(stated.settings)
            world.wall = stated.wall
            world.cluster.apply(events(stated), world.now)
            rigs.append(await stack.enter_async_context(rig(world, objects, identity)))
        leader, followers = rigs[0], rigs[1:]
        for one in rigs:
            await one.turn()
        pods = [pod for pod in stated.of("Pod") if is_gated(pod)]
        leader.create(*deepcopy(pods))
        for _ in range(TURNS):
            turn = asyncio.create_task(leader.turn())
            while not turn.done():
                for one in followers:
                    one.watch()
                    await one.controller._follow()
                await asyncio.sleep(0.002)
            await turn
        stored = [leader.pod(pod["metadata"]["name"], pod["metadata"]["namespace"]) for pod in pods]
        return {
            pod["metadata"]["name"]: pod["status"].get("nominatedNodeName", "")
            for pod in stored
            if GATE not in [gate["name"] for gate in pod["spec"].get("schedulingGates") or ()]
        }


def test_several_instances_start_what_one_starts() -> None:
    opened = 0
    for seed in range(CASES):
        stated = drawn(seed)
        alone = run_bounded(released(stated, 1))
        assert run_bounded(released(stated, 3)) == alone, seed
        opened += len(alone)
    assert opened
