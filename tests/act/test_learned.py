"""A learned document: read at the start, written when it has changed, never in the way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from extender.act.document import LearnedStore
from extender.kube.client import ApiServer
from extender.kube.own_objects import ConfigMap
from extender.objects.stored_texts import is_newer
from tests.act.test_reservations import connected
from tests.kube.objects import Objects
from tests.waiting import eventually, run_bounded
from tests.world import World, logged

PATH = "/api/v1/namespaces/kube-system/configmaps/gpu-extender-mix"


class Learner:
    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}

    def dump(self) -> str:
        return json.dumps({"sizes": self.sizes})

    def load(self, text: str) -> None:
        self.sizes = {str(key): int(value) for key, value in json.loads(text)["sizes"].items()}


def map_of(server: ApiServer) -> ConfigMap:
    return ConfigMap(server, "kube-system", "gpu-extender-mix")


def run(
    objects: Objects,
    learner: Learner,
    during: Callable[[], None] = lambda: None,
    every: float = 300.0,
    done: Callable[[], bool] = lambda: True,
) -> None:
    """Reads the document, and writes it at the end: once `done` holds."""

    async def whole() -> None:
        async with connected(objects) as server:
            document = LearnedStore(map_of(server), learner.dump, learner.load, every=every)
            await document.begin()
            task = asyncio.create_task(document.run())
            during()
            await asyncio.sleep(0)  # the task begins
            await eventually(done)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    run_bounded(whole())


def stored(objects: Objects) -> Any:
    return json.loads(objects.stored[PATH]["data"]["document"])


def test_it_is_written_at_the_end_and_read_at_the_start() -> None:
    objects, first, second = Objects(), Learner(), Learner()
    run(objects, first, lambda: first.sizes.update({"8": 3}))
    assert stored(objects) == {"sizes": {"8": 3}}
    run(objects, second)
    assert second.sizes == {"8": 3}
    assert [method for method, _ in objects.said] == ["GET", "GET", "POST", "GET"]  # what is the same is not written


async def test_it_is_written_now_and_then() -> None:
    objects, learner = Objects(), Learner()
    learner.sizes = {"1": 1}
    written = []
    async with connected(objects) as server:
        task = asyncio.create_task(LearnedStore(map_of(server), learner.dump, learner.load, every=0.01).run())
        await eventually(lambda: PATH in objects.stored)
        written.append(stored(objects))
        learner.sizes = {"1": 2}
        await eventually(lambda: stored(objects) == {"sizes": {"1": 2}})
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert written == [{"sizes": {"1": 1}}]


@pytest.mark.parametrize("text", ["{", "[]", '{"sizes": 3}', '{"sizes": {"8": "x"}}', "null"])
def test_what_is_damaged_is_learned_anew(text: str) -> None:
    objects, learner = Objects(), Learner()
    objects.put(PATH, {"metadata": {}, "data": {"document": text}})
    with logged() as lines:
        run(objects, learner)
    assert [line["event"] for line in lines] == ["what was learned is damaged, and is learned anew"]
    assert stored(objects) == {"sizes": {}}


async def test_a_document_of_a_newer_version_is_neither_read_nor_written_over() -> None:
    objects, learner = Objects(), Learner()
    theirs = json.dumps({"apiVersion": "gpu-extender.io/v2", "kind": "Mix", "sizes": {"8": 3}})
    with logged() as lines:
        async with connected(objects) as server:
            document = LearnedStore(map_of(server), learner.dump, learner.load)
            learner.sizes = {"1": 1}
            await document.save()
            assert stored(objects) == {"sizes": {"1": 1}}
            objects.put(PATH, {"metadata": {}, "data": {"document": theirs}})
            learner.sizes = {"1": 2}
            await document.save()  # that version runs beside this one
            await document.begin()
            learner.sizes["1"] += 1
            await document.save()
    assert learner.sizes == {"1": 3}
    assert objects.stored[PATH]["data"]["document"] == theirs
    assert len(lines) == 1
    assert "newer version" in lines[0]["event"]


@pytest.mark.parametrize(
    ("text", "newer"),
    [
        ('{"apiVersion": "gpu-extender.io/v2", "kind": "Mix"}', True),
        ('{"apiVersion": "gpu-extender.io/v11", "kind": "Mix"}', True),
        ('{"apiVersion": "gpu-extender.io/v1", "kind": "Mix"}', False),
        ('{"apiVersion": "gpu-extender.io/v02", "kind": "Mix"}', False),
        ('{"apiVersion": "example.com/v2", "kind": "Mix"}', False),
        ('{"apiVersion": "gpu-extender.io/v2", "kind": "Other"}', False),
        ('{"apiVersion": 2, "kind": "Mix"}', False),
        ("[" * 100_000, False),
        ("[]", False),
        ("", False),
    ],
)
def test_which_demand_mixes_are_of_a_version_to_come(text: str, newer: bool) -> None:
    assert is_newer(text, 1) == newer


def test_an_api_server_that_comes_late_is_waited_for() -> None:
    objects, learner, asked = Objects(), Learner(), 0
    objects.put(PATH, {"metadata": {}, "data": {"document": '{"sizes": {"4": 2}}'}})

    def fail(request: Any) -> int:
        nonlocal asked
        asked += 1
        return 503 if asked < 3 else 0

    objects.fail = fail
    run(objects, learner)
    assert learner.sizes == {"4": 2}


def test_no_access_is_said_and_stops_nothing() -> None:
    objects, learner = Objects(fail=lambda request: 403), Learner()
    learner.sizes = {"1": 1}
    with logged() as lines:
        run(objects, learner, every=0.01, done=lambda: len(objects.said) >= 4)
    assert [line["event"] for line in lines] == [
        "what was learned cannot be read, and is learned anew",
        "what was learned cannot be kept",
    ]


def test_a_document_that_is_too_large_is_not_sent() -> None:
    objects, learner = Objects(), Learner()
    learner.sizes = {str(i): i for i in range(100_000)}
    run(objects, learner)
    assert PATH not in objects.stored


def test_another_instance_writes_at_the_same_time() -> None:
    objects, learner = Objects(), Learner()
    learner.sizes = {"1": 1}

    async def whole() -> None:
        async with connected(objects) as server:
            document = LearnedStore(map_of(server), learner.dump, learner.load)
            reads = 0

            def meddle(request: Any) -> int:
                nonlocal reads
                reads += request.method == "GET"
                if request.method == "POST":
                    objects.put(PATH, {"metadata": {}, "data": {"document": "{}"}})  # it was there first
                return 0

            objects.fail = meddle
            await document.save()
            assert reads == 2

    run_bounded(whole())
    assert stored(objects) == {"sizes": {"1": 1}}


def test_the_mix_of_requests_outlives_a_restart() -> None:
    objects, first, second = Objects(), World(), World()

    async def kept(world: World, *, saves: bool) -> None:
        async with connected(objects) as server:
            document = LearnedStore(map_of(server), world.cluster.demand.dump, world.cluster.demand.load)
            await document.begin()
            if saves:
                world.pod("p", 2)
                await document.save()

    run_bounded(kept(first, saves=True))
    run_bounded(kept(second, saves=False))
    assert first.cluster.demand.mix.weights() != []
    assert second.cluster.demand.mix.weights() == first.cluster.demand.mix.weights()


async def test_all_that_share_the_map_are_written_at_the_end() -> None:
    objects = Objects()
    learners = [Learner() for _ in range(5)]
    async with connected(objects) as server:
        stores = [
            LearnedStore(map_of(server), learner.dump, learner.load, key=f"k{number}")
            for number, learner in enumerate(learners)
        ]
        for store in stores:
            await store.begin()
        tasks = [asyncio.create_task(store.run()) for store in stores]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert sorted(objects.stored[PATH]["data"]) == [f"k{number}" for number in range(5)]
