"""Evictions for the first gang in the queue: the cheapest victims, none in vain, and what each crash leaves."""

from __future__ import annotations

import json
from typing import Any

import pytest

from extender.ask.pending import queue as queue_json
from extender.settings import Settings
from tests.act.queue.rig import PODS, SIGNS_PATH, Rig, fails_after, gated, rig, run, settings
from tests.act.queue.test_controller import gang
from tests.kube.api_server import Request
from tests.kube.objects import Objects
from tests.queue.late_owners import OWNERS, RACK
from tests.world import WALL, World, machine, pairs, rfc3339, workload

NODES = ("n1", "n2", "n3")


def made(chosen: Settings | None = None) -> World:
    """Three nodes that are full: a pod each, that on n3 with the most to lose."""
    world = World(chosen or settings(evictions=True))
    for name, age in zip(NODES, (60, 600, 6000), strict=True):
        world.node(name, 8, links=pairs(8))
        world.pod(f"r-{name}", 8, name, start=WALL - age)
    return world


class Evicted:
    """What was posted to the Eviction API."""

    def __init__(self, one: Rig) -> None:
        self._objects, self.tried, self.refused = one.objects, list[str](), set[str]()
        before = one.objects.fail

        def look(request: Request) -> int:
            if request.path.endswith("/eviction"):
                name = request.path.split("/")[-2]
                dry = "dryRun" in json.loads(request.body)["deleteOptions"]
                if not self.refused.isdisjoint((name, f"dry {name}" if dry else f"real {name}")):
                    return 429
                if not dry and name not in self.tried:  # what is evicted is asked for again until the watch shows it
                    self.tried.append(name)
            return before(request)

        one.objects.fail = look


def ending(one: Rig, *names: str) -> None:
    """The watch shows these pods as terminating."""
    for name in names:
        pod = one.world.cluster.pod("default", name)
        assert pod is not None
        one.world.pod(name, 8, pod.node, priority=pod.priority, terminating=one.world.wall + 30)


def is_open(one: Rig, name: str, pods: int) -> bool:
    found = {one.is_open(f"{name}-{i}") for i in range(pods)}
    assert len(found) == 1, "a gang is released whole"
    return found.pop()


def in_vain(one: Rig) -> tuple[float, float]:
    """(pods that were evicted for gangs that started, and for others)."""
    counter = one.world.metrics.queue_evictions
    return tuple(counter.labels(outcome)._value.get() for outcome in ("started", "in-vain"))


def page(one: Rig) -> Any:
    report = one.controller.report
    return json.loads(json.dumps(queue_json(report, one.world.verbs.claims, one.world.cluster, None)))


def kept(objects: Objects) -> list[Any]:
    """The entries in the ConfigMaps."""
    maps = [found for path, found in objects.stored.items() if "configmaps" in path and path != SIGNS_PATH]
    return [json.loads(text) for found in maps for text in found["data"].values() if text]


@pytest.mark.parametrize("ahead", [-3600.0, 120.0])
async def test_a_clock_that_differs_from_that_of_the_api_server_evicts_no_other_pods(ahead: float) -> None:
    """The API server states when a pod has to have ended. By our clock that may be over already, or far."""
    async with rig(made()) as one:
        evicted = Evicted(one)
        one.create(*gang("g", 1, 8, priority=10))
        one.world.wall += ahead
        await one.turn()
        assert evicted.tried == ["r-n1"]
        one.world.pod("r-n1", 8, "n1", terminating=one.world.wall - ahead + 30)
        await one.turns(50, seconds=1.0)
        assert (evicted.tried, in_vain(one)) == (["r-n1"], (0, 0))
        await one.turns(15, seconds=1.0)
        assert [note for reason, note in one.told if reason == "SeatsGivenBack"] == [
            "gpu-extender:default/g waits again: default/r-n1 does not end in its time"
        ]


async def test_the_cheapest_victims_are_evicted_and_the_gang_starts_whole() -> None:
    async with rig(made()) as one:
        evicted = Evicted(one)
        one.create(*gang("g", 2, 8, priority=10))
        await one.turn()
        assert sorted(evicted.tried) == ["r-n1", "r-n2"]
        assert not is_open(one, "g", 2)
        [entry] = kept(one.objects)
        assert entry["awaits"] == {"n1": ["uid-r-n1"], "n2": ["uid-r-n2"]}
        assert page(one)["releasing"][0]["awaits"] == ["default/r-n1", "default/r-n2"]
        ending(one, "r-n1", "r-n2")
        one.create(gated("rival", 8))
        one.world.gone("r-n1")
        await one.turns(5)
        assert not is_open(one, "g", 2), "one victim still runs"
        assert not one.is_open("rival"), "the seats keep others off"
        one.world.gone("r-n2")
        await one.turns(3)
        assert is_open(one, "g", 2)
        assert {one.pod(f"g-{i}")["status"]["nominatedNodeName"] for i in range(2)} == {"n1", "n2"}
        assert sorted(evicted.tried) == ["r-n1", "r-n2"]
        assert in_vain(one) == (2, 0)
        victim = one.world.verbs.evicted.latest("default", "r-n2")
        assert victim is not None
        why = "the queue evicted it to start gpu-extender:default/g (priority 10); no cheaper plan exists"
        assert victim.cause.why == why
        assert {"term": "victims", "value": 2, "unit": "pods"} in (victim.cause.cost or ())


async def test_with_evictions_off_the_plan_is_shown_and_no_pod_is_evicted() -> None:
    async with rig(made(settings(evictions=False))) as one:
        evicted = Evicted(one)
        one.create(*gang("g", 2, 8, priority=10))
        await one.turns(5)
        assert evicted.tried == []
        assert not one.seats
        [waiting] = page(one)["waiting"]
        [way] = waiting["ways_out"]
        assert (way["kind"], way["verified"]) == ("evict", True)
        assert way["change"] == "evict 2 pods on 2 nodes: default/r-n1, default/r-n2"
        assert sorted(victim["name"] for victim in way["spec"]["victims"]) == ["r-n1", "r-n2"]
        assert way["spec"]["certificate"]["proved"]
        assert {"term": "victims", "value": 2, "unit": "pods"} in way["cost"]


def begun(chosen: Settings | None = None) -> World:
    """A gang of two, for which the evictions of two pods begin."""
    world = made(chosen)

    async def test() -> None:
        async with rig(world) as one:
            one.create(*gang("g", 2, 8, priority=10))
            await one.turn()

    run(test())
    return world


def test_evictions_are_recorded_with_their_cost_as_those_of_the_preempt_verb() -> None:
    world = begun()
    [record] = world.call("/preemptions.json", method="GET").json["preemptions"]
    assert (record["verb"], record["pod"], record["result"]) == ("evict", "default/g-0", "evicting")
    assert record["gang"] == {"name": "default/g", "source": "gpu-extender", "nodes": ["n1", "n2"]}
    assert [pod["name"] for pod in record["victims"]] == ["r-n2", "r-n1"]
    cost = {term["term"]: term["value"] for term in record["cost"]}
    assert (cost["victims"], cost["work_lost_gpu_seconds"]) == (2, 8 * (60 + 600))
    assert record["certificate"]["proved"]
    text = world.call("/preemptions", method="GET", accept="text/html").body.decode()
    assert "gang default/g" in text
    assert "work lost" in text
    assert f"{8 * 660 / 3600:.3g}" in text
    sums = world.metrics.registry.get_sample_value
    lost = "gpu_extender_preemption_work_lost_gpu_seconds"
    assert (sums(f"{lost}_count", {"by": "queue"}), sums(f"{lost}_sum", {"by": "queue"})) == (1, 8 * 660)
    assert sums("gpu_extender_preemption_victims_sum", {"by": "queue"}) == 2


async def test_events_about_evictions_have_their_cost() -> None:
    async with rig(made()) as one:
        one.create(*gang("g", 2, 8, priority=10))
        await one.turn()
        notes = dict(one.told)
        assert {"Evicting", "ChosenAsVictim"} <= set(notes)
        for reason in ("Evicting", "ChosenAsVictim"):
            assert "work lost 1.47 GPU-hours, " in notes[reason]
            assert notes[reason].endswith("; no cheaper plan exists")
        assert "start it: default/r-n2, default/r-n1; cost: " in notes["Evicting"]


@pytest.mark.parametrize("case", ["budget", "right", "off", "ceiling"])
async def test_why_a_plan_is_not_carried_out_is_in_the_queue_and_in_events(case: str) -> None:
    chosen = settings(evictions=case != "off")
    if case == "ceiling":
        ceilings = {"ceilings": {"urgent": {"gpuHours": 1.0}}}
        chosen = Settings.model_validate(chosen.model_dump(by_alias=True) | {"preemption": ceilings})

    world = made(chosen)
    if case == "budget":
        for name in NODES:
            world.pod(f"r-{name}", 8, name, start=WALL - 60, labels={"app": "x"})
        world.budget("x", 1, {"app": "x"})
    async with rig(world) as one:
        evicted = Evicted(one)
        if case == "right":
            evicted.refused = {f"dry r-{name}" for name in NODES}
        one.create(*gang("g", 2, 8, priority=10))
        for i in range(2):
            one.pod(f"g-{i}")["spec"]["priorityClassName"] = "urgent"
            one.pod(f"g-{i}")["metadata"]["creationTimestamp"] = rfc3339(world.wall)
        one.watch()
        await one.turns(60)
        assert evicted.tried == []
        [waiting] = page(one)["waiting"]
        why = {
            "budget": "a PodDisruptionBudget does not allow the eviction of 1 pod",
            "right": "an eviction is not allowed: default/r-n",
            "off": "evictions.enabled is false",
            "ceiling": " GPU-hours of work, and preemption.ceilings.urgent.gpuHours allows 1",
        }[case]
        assert why in waiting["not_evicted"]
        notes = dict(one.told)
        reason = "EvictionNotAllowed" if case in ("budget", "right") else "Waiting"
        assert why in notes[reason]
        assert "no pod is evicted" in notes[reason]
        records = [one for one in world.verbs.decisions.latest() if one.verb == "evict"]
        assert {record.result for record in records} == ({"not-evicted"} if reason != "Waiting" else set())
        assert len(records) < 10


async def test_a_gang_that_is_not_the_head_has_no_pod_evicted_and_its_entry_states_it() -> None:
    async with rig(made(settings(evictions=False))) as one:
        one.create(*gang("g", 2, 8, priority=10), *gang("h", 2, 8, priority=9))
        await one.turns(5)
        first, second = page(one)["waiting"]
        assert first["not_evicted"] == "evictions.enabled is false"
        assert (second["reason"], second["not_evicted"]) == (
            "place",
            "evictions are planned for the head alone, which is gpu-extender:default/g",
        )


@pytest.mark.parametrize("facts", [{"priority": 0}, {"priority": 10, "never": True}])
async def test_no_pod_of_equal_priority_is_evicted_and_none_for_a_gang_that_may_not(facts: Any) -> None:
    async with rig(made()) as one:
        evicted = Evicted(one)
        one.create(*gang("g", 2, 8, **facts))
        await one.turns(3)
        assert evicted.tried == []
        assert page(one)["waiting"][0]["ways_out"] == []


async def test_a_budget_that_the_watch_shows_is_not_violated() -> None:
    """The plan is shown: it states the violation."""

    world = made()
    for name in NODES:
        world.pod(f"r-{name}", 8, name, start=WALL - 60, labels={"app": "x"})
    world.budget("x", 1, {"app": "x"})
    async with rig(world) as one:
        evicted = Evicted(one)
        one.create(*gang("g", 2, 8, priority=10))
        await one.turns(3)
        assert evicted.tried == []
        [way] = page(one)["waiting"][0]["ways_out"]
        assert way["cost"][0] == {"term": "pdb_violations", "value": 1, "unit": "victims"}


@pytest.mark.parametrize("dry", [True, False])
async def test_an_eviction_that_the_api_server_rejects_has_others_evicted(dry: bool) -> None:
    """No pod was evicted before: the seats are given back, and the next plan leaves that pod alone."""

    async with rig(made()) as one:
        evicted = Evicted(one)
        evicted.refused = {"r-n2" if dry else "r-n1", "r-n1"} - ({"r-n1"} if dry else {"r-n2"})
        one.create(*gang("g", 2, 8, priority=10))
        await one.turn()
        assert evicted.tried == []
        await one.turns(40)
        other = "r-n1" if dry else "r-n2"
        assert sorted(evicted.tried) == sorted({other, "r-n3"})
        assert in_vain(one) == (0, 0)


async def test_a_later_eviction_that_is_rejected_is_tried_again() -> None:
    """The budget changes after the dry run, and allows it later."""

    async with rig(made()) as one:
        evicted = Evicted(one)

        before = one.objects.fail

        def fail(request: Request) -> int:
            if evicted.tried:
                evicted.refused = {"r-n1", "r-n2"} - set(evicted.tried)
            return before(request)

        one.objects.fail = fail
        one.create(*gang("g", 2, 8, priority=10))
        await one.turn()
        [first] = evicted.tried
        one.world.gone(first)
        await one.turns(60)
        assert evicted.tried == [first]
        assert len(one.seats) == 2
        one.objects.fail = before
        evicted.refused = set()
        await one.turns(40)
        assert sorted(evicted.tried) == ["r-n1", "r-n2"]
        one.world.gone(evicted.tried[1])
        await one.turns(3)
        assert is_open(one, "g", 2)
        assert in_vain(one) == (2, 0)


async def test_a_later_eviction_that_stays_rejected_gives_the_seats_back() -> None:
    """The other pod is evicted instead: the first one was not evicted for nothing."""

    async with rig(made()) as one:
        evicted = Evicted(one)
        before = one.objects.fail

        def fail(request: Request) -> int:
            if evicted.tried[:1]:
                evicted.refused = {"r-n1", "r-n2"} - {evicted.tried[0]}
            return before(request)

        one.objects.fail = fail
        one.create(*gang("g", 2, 8, priority=10))
        await one.turn()
        one.world.gone(evicted.tried[0])
        await one.turns(70, 2.0)
        assert evicted.tried[1:] == ["r-n3"]
        one.world.gone("r-n3")
        await one.turns(5)
        assert is_open(one, "g", 2)
        assert in_vain(one)[0] == 1


def again(world: World, objects: Objects, gone: tuple[str, ...] = ()) -> World:
    """What another instance sees a minute later, without the pods of `gone`."""
    other = made()
    for name in gone:
        other.gone(name)
    other.now, other.wall = world.now + 60, world.wall + 60
    return other


@pytest.mark.parametrize("left", range(6))
@pytest.mark.parametrize("seen", [False, True])
async def test_the_next_holder_of_the_lease_goes_on(left: int, seen: bool) -> None:
    """The first instance dies after so many writes of seats, nominations and evictions. `seen`: what it evicted is gone
    by then."""

    objects, world = Objects(), made()
    first: list[str] = []
    async with rig(world, objects) as one:
        one.create(*gang("g", 2, 8, priority=10))
        objects.fail = fails_after(left)
        evicted = Evicted(one)
        await one.turn()
        first = evicted.tried[:]
        objects.fail = lambda request: 0
    async with rig(again(world, objects, tuple(first) if seen else ()), objects, "b") as two:
        two.watch()
        evicted = Evicted(two)
        if not seen and first:
            ending(two, *first)
        for _ in range(8):  # a Lease that is not renewed is free after 15 s
            await two.turn(2.5)
        assert set(first) | set(evicted.tried) == {"r-n1", "r-n2"}
        for name in set(evicted.tried) | (set(first) if not seen else set()):
            two.world.gone(name)
        await two.turns(12)
        assert is_open(two, "g", 2)
        assert in_vain(two) == (2, 0)


async def test_a_pod_that_an_entry_names_beside_its_nodes_is_left_alone() -> None:
    """The ConfigMap has no signature."""
    objects, world = Objects(), made()
    async with rig(world, objects) as one:
        one.create(*gang("g", 2, 8, priority=10))
        await one.turn()
    for found in objects.stored.values():
        for key, text in (found.get("data") or {}).items():
            if "uid-r-n1" in text:
                found["data"][key] = text.replace('"uid-r-n1"', '"uid-r-n1","uid-r-n3"')
    assert kept(objects)[0]["awaits"]["n1"] == ["uid-r-n1", "uid-r-n3"]
    async with rig(again(world, objects), objects, "b") as two:
        two.watch()
        evicted = Evicted(two)
        for _ in range(8):
            await two.turn(2.5)
        assert sorted(evicted.tried) == ["r-n1", "r-n2"]
        for name in evicted.tried:
            two.world.gone(name)
        await two.turns(12)
        assert is_open(two, "g", 2)


async def test_the_next_holder_with_evictions_off_gives_the_seats_back() -> None:
    objects, world = Objects(), made()
    async with rig(world, objects) as one:
        objects.fail = lambda request: 503 if request.path.endswith("/eviction") else 0
        one.create(*gang("g", 2, 8, priority=10))
        await one.turn()
        assert len(kept(objects)) == 1
        objects.fail = lambda request: 0
    other = made(settings(evictions=False))
    other.now, other.wall = world.now + 60, world.wall + 60
    async with rig(other, objects, "b") as two:
        two.watch()
        evicted = Evicted(two)
        await two.turns(12, 2.5)
        assert evicted.tried == []
        assert kept(objects) == []
        assert not two.seats


async def test_a_victim_that_ends_by_itself_is_not_evicted() -> None:
    """It ends after the plan was written, and before it is carried out."""

    async with rig(made()) as one:
        evicted = Evicted(one)
        before = one.objects.fail

        def fail(request: Request) -> int:
            if "/configmaps" in request.path and one.seats and one.world.cluster.pod("default", "r-n1"):
                one.world.gone("r-n1")
            return before(request)

        one.objects.fail = fail
        one.create(*gang("g", 2, 8, priority=10))
        await one.turn()
        assert evicted.tried == ["r-n2"]
        one.world.gone("r-n2")
        await one.turns(3)
        assert is_open(one, "g", 2)
        assert in_vain(one) == (1, 0)


async def test_what_ends_elsewhere_on_the_node_saves_a_victim() -> None:
    """The plan takes one of two pods of a node. The other one ends before the eviction."""

    world = World(settings(evictions=True))
    world.node("n1", 8)
    for name, age in (("cheap", 60), ("dear", 6000)):
        world.pod(name, 4, "n1", start=WALL - age)
    async with rig(world) as one:
        evicted = Evicted(one)
        before = one.objects.fail

        def fail(request: Request) -> int:
            if "/configmaps" in request.path and one.seats and world.cluster.pod("default", "dear"):
                world.gone("dear")
            return before(request)

        one.objects.fail = fail
        one.create(gated("p", 4, priority=10))
        await one.turns(3)
        assert evicted.tried == []
        assert one.is_open("p")


@pytest.mark.parametrize("after", ["seats", "evictions"])
async def test_a_gang_that_is_deleted_gives_its_seats_back(after: str) -> None:
    async with rig(made()) as one:
        evicted = Evicted(one)
        before = one.objects.fail

        def delete() -> None:
            for i in range(2):
                del one.objects.stored[f"{PODS}/g-{i}"]
            one.world.gone("g-0", "g-1")

        def fail(request: Request) -> int:
            early = after == "seats" and "/configmaps" in request.path and one.seats and not evicted.tried
            if early and one.world.cluster.pod("default", "g-0"):
                delete()
            return before(request)

        one.objects.fail = fail
        one.create(*gang("g", 2, 8, priority=10))
        await one.turn()
        if after == "evictions":
            delete()
        await one.turns(40)
        assert not one.seats
        assert kept(one.objects) == []
        assert sorted(evicted.tried) == ([] if after == "seats" else ["r-n1", "r-n2"])
        assert in_vain(one) == (0, 0 if after == "seats" else 2)


async def test_a_node_that_is_cordoned_before_the_first_eviction() -> None:
    async with rig(made()) as one:
        evicted = Evicted(one)
        before = one.objects.fail

        def fail(request: Request) -> int:
            if "/configmaps" in request.path and one.seats and not one.world.cluster.nodes["n1"].unschedulable:
                one.world.set("Node", machine("n1", 8, links=pairs(8), unschedulable=True))
            return before(request)

        one.objects.fail = fail
        one.create(*gang("g", 2, 8, priority=10))
        await one.turns(40)
        assert sorted(evicted.tried) == ["r-n2", "r-n3"]


async def test_a_victim_that_does_not_end_has_another_evicted() -> None:
    """Its node is gone, or a finalizer holds it. What the first plan evicted is counted as in vain."""

    async with rig(made()) as one:
        evicted = Evicted(one)
        one.create(*gang("g", 2, 8, priority=10))
        await one.turn()
        assert sorted(evicted.tried) == ["r-n1", "r-n2"]
        ending(one, "r-n1")
        one.world.gone("r-n2")
        await one.turns(11, 5.0)
        assert len(one.seats) == 2, "its grace period of 30 s, and 30 s more"
        await one.turns(6, 5.0)
        assert evicted.tried[2:] == ["r-n3"]
        one.world.gone("r-n3")
        await one.turns(5)
        assert is_open(one, "g", 2)
        assert {one.pod(f"g-{i}")["status"]["nominatedNodeName"] for i in range(2)} == {"n2", "n3"}
        assert in_vain(one) == (1, 2)


async def test_a_stolen_lease_ends_the_evictions_of_this_instance() -> None:
    async with rig(made()) as one:
        evicted = Evicted(one)
        before = one.objects.fail

        def fail(request: Request) -> int:
            answer = before(request)
            if evicted.tried:
                for path in [path for path in one.objects.stored if "leases" in path]:
                    one.objects.stored[path]["spec"]["holderIdentity"] = "b"
                one.world.now += 20.0
            return answer

        one.objects.fail = fail
        one.create(*gang("g", 2, 8, priority=10))
        await one.turns(3)
        assert len(evicted.tried) == 1
        assert len(kept(one.objects)) == 1


async def test_a_gang_of_a_higher_priority_that_comes_meanwhile_takes_other_victims() -> None:
    """What is evicted for a gang is its own: else it were evicted in vain."""

    async with rig(made()) as one:
        evicted = Evicted(one)
        one.create(*gang("g", 2, 8, priority=10))
        await one.turn()
        one.create(gated("high", 8, priority=100))
        await one.turns(3)
        assert sorted(evicted.tried) == ["r-n1", "r-n2", "r-n3"]
        one.world.gone("r-n1", "r-n2", "r-n3")
        await one.turns(6)
        assert is_open(one, "g", 2)
        assert one.is_open("high")
        assert one.pod("high")["status"]["nominatedNodeName"] == "n3"
        assert in_vain(one) == (3, 0)


async def test_the_same_gang_is_searched_for_again_only_when_something_changed() -> None:
    world = made(settings(evictions=False))
    async with rig(world) as one:
        plans: Any = one.controller._evictions._plans
        searches, before = 0, plans.steps

        def counted(*asked: Any) -> Any:
            nonlocal searches
            searches += 1
            return before(*asked)

        plans.steps = counted
        one.create(*gang("g", 2, 8, priority=10))
        one.watch = lambda: None  # type: ignore[method-assign]
        await one.turns(20)
        assert searches == 1
        world.pod("other", 0, "n1")
        await one.turns(5)
        assert searches == 2


async def test_two_urgent_gangs_in_sequence_evict_though_the_owner_remakes_the_victims() -> None:
    """A Job of low priority fills the cluster. It lacks the pod that the first gang evicted; the second gang is the
    head all the same."""
    low = {"gpu-extender.io/gang": "low", "gpu-extender.io/gang-size": "3"}
    world = World(settings(evictions=True))
    for name in NODES:
        world.node(name, 8, links=pairs(8))
        world.pod(f"low-{name}", 8, name, start=WALL - 600, annotations=low)

    async with rig(world) as one:
        evicted = Evicted(one)
        for number, name in enumerate(("first", "second"), 1):
            one.create(gated(name, 8, priority=10))
            await one.turns(4)
            assert len(evicted.tried) == number
            [victim] = evicted.tried[number - 1 :]
            one.world.gone(victim)
            one.create(gated(f"again-{number}", 8, annotations=low))
            await one.turns(4)
            assert one.is_open(name)
            one.bind(name)
            await one.turn()


def reclaiming(*, regardless: bool) -> World:
    """The queue `own` has a guarantee of 16 GPUs and holds none; `lender` holds more than its own; `rich` does not."""
    queues = {"own": {"guaranteedGpus": {"nvidia.com/gpu": 16}}, "rich": {"guaranteedGpus": {"nvidia.com/gpu": 8}}}
    world = World(settings(evictions=True, queues=queues, reclaimRegardlessOfPriority=regardless))
    owners = (("n1", "rich", 60, 0), ("n2", "lender", 600, 0), ("n3", "lender", 6000, 20))
    for name, queue, age, priority in owners:
        world.node(name, 8, links=pairs(8))
        labels = {"gpu-extender.io/queue": queue}
        world.pod(f"r-{name}", 8, name, start=WALL - age, priority=priority, labels=labels)
    return world


@pytest.mark.parametrize(("regardless", "pods", "victims"), [
    (False, 1, ["r-n2"]),  # dearer than r-n1, which is of a queue within its guarantee
    (False, 2, ["r-n1", "r-n2"]),  # r-n3 has a higher priority
    (True, 2, ["r-n2", "r-n3"]),
])  # fmt: skip
async def test_a_queue_below_its_guarantee_takes_pods_of_borrowers_first(
    regardless: bool, pods: int, victims: list[str]
) -> None:
    async with rig(reclaiming(regardless=regardless)) as one:
        evicted = Evicted(one)
        one.create(*gang("g", pods, 8, priority=10, labels={"gpu-extender.io/queue": "own"}))
        await one.turns(3)
        assert sorted(evicted.tried) == victims


async def test_what_a_queue_has_within_its_guarantee_is_not_reclaimed() -> None:
    """`lender` borrows 8 of its 16 GPUs: one of its two pods of a higher priority is left."""
    queues = {"own": {"guaranteedGpus": {"nvidia.com/gpu": 16}}, "lender": {"guaranteedGpus": {"nvidia.com/gpu": 8}}}
    world = World(settings(evictions=True, queues=queues, reclaimRegardlessOfPriority=True))
    for name, age in (("n1", 60), ("n2", 600)):
        world.node(name, 8)
        world.pod(f"r-{name}", 8, name, start=WALL - age, priority=20, labels={"gpu-extender.io/queue": "lender"})

    async with rig(world) as one:
        evicted = Evicted(one)
        one.create(*gang("g", 2, 8, priority=10, labels={"gpu-extender.io/queue": "own"}))
        await one.turns(3)
        assert evicted.tried == []
        one.create(gated("p", 8, priority=10, labels={"gpu-extender.io/queue": "own"}))
        for path in [f"{PODS}/g-{i}" for i in range(2)]:
            del one.objects.stored[path]
        world.gone("g-0", "g-1")
        await one.turns(3)
        assert evicted.tried == ["r-n1"]


async def test_pods_without_gpus_are_evicted_for_the_cpu_that_they_hold() -> None:
    """Only one of lower priority, and only as many as are needed."""
    world = World(settings(evictions=True))
    world.node("n1", 8, links=pairs(8))
    for name, priority in (("low", -5), ("other", -5), ("same", 0)):
        world.pod(name, 0, "n1", cpu="20", priority=priority)

    async with rig(world) as one:
        evicted = Evicted(one)
        one.create(*gang("g", 2, 4, cpu="10"))
        await one.turns(10)
        assert len(evicted.tried) == 1
        assert evicted.tried[0] in ("low", "other")
        one.world.gone(evicted.tried[0])
        await one.turns(10)
        assert is_open(one, "g", 2)
        assert in_vain(one) == (1, 0)


@pytest.mark.parametrize("crash", [False, True])
def test_pods_are_evicted_for_a_gang_whose_pods_do_not_all_exist_yet(crash: bool) -> None:
    """A leader exists, and its two workers come once it is ready: all three have seats before the first eviction."""
    owner = OWNERS["LeaderWorkerSet, LeaderReady"]
    world = World(settings(evictions=True))
    for name in ("n1", "n2"):
        world.node(name, 8, links=pairs(8))
        world.pod(f"r-{name}", 8, name, priority=-5)

    async def rest(one: Rig) -> None:
        await one.turns(10)
        one.world.gone("r-n1", "r-n2")
        await one.turns(10)
        assert one.is_open("g-0")
        assert in_vain(one) == (2, 0)
        one.bind("g-0")
        for name in owner.late:
            one.create(owner.make(name))
        await one.turns(5)
        assert [one.is_open(name) for name in owner.late] == [True, True]

    async def test() -> None:
        async with rig(world) as one:
            evicted = Evicted(one)
            for made in owner.objects:
                world.set("Group", made)
            one.create(owner.make("g-0"))
            await one.turns(3)
            assert sorted(evicted.tried) == ["r-n1", "r-n2"]
            assert sum(seat.absent for seat in one.seats) == 2
            assert not one.is_open("g-0")
            if not crash:
                await rest(one)
        if crash:
            async with rig(world, one.objects, "b") as two:
                await two.turn()
                world.now, world.wall = world.now + 30, world.wall + 30
                await rest(two)

    run(test())


def in_rack(pods: list[Any]) -> list[Any]:
    """The pods prefer to be in one rack."""
    for pod in pods:
        pod["metadata"]["annotations"]["gpu-extender.io/domain"] = f"preferred:{RACK}"
    return pods


async def test_of_plans_that_cost_the_same_one_in_the_preferred_domain_is_carried_out() -> None:
    world = World(settings(evictions=True))
    for i in range(4):
        world.node(f"n{i}", 8, links=pairs(8), labels={RACK: "ab"[i % 2]})
        world.pod(f"r{i}", 8, f"n{i}", priority=-5)

    async with rig(world) as one:
        evicted = Evicted(one)
        one.create(*in_rack(gang("g", 2, 8)))
        await one.turns(10)
        assert {int(name[1:]) % 2 for name in evicted.tried} in ({0}, {1})
        assert len(evicted.tried) == 2


async def test_a_preferred_domain_is_worth_no_other_victims() -> None:
    """In each rack one of the two pods has a higher priority."""
    world = World(settings(evictions=True))
    for i, priority in enumerate((-5, -5, -1, -1)):
        world.node(f"n{i}", 8, links=pairs(8), labels={RACK: "ab"[i % 2]})
        world.pod(f"r{i}", 8, f"n{i}", priority=priority)

    async with rig(world) as one:
        evicted = Evicted(one)
        one.create(*in_rack(gang("g", 2, 8)))
        await one.turns(10)
        assert sorted(evicted.tried) == ["r0", "r1"]


# -- victims that save their work first

SAVES = {"gpu-extender.io/saves-on-request": "45s"}
ASKED = "gpu-extender.io/save-requested"


def asking() -> Settings:
    preemption = {"mostWaitSeconds": {"prod": 60}}
    return Settings.model_validate(
        {"queue": {"enabled": True}, "evictions": {"enabled": True}, "preemption": preemption}
    )


async def saving(one: Rig) -> None:
    """Three full nodes, whose pods save within 45 seconds, and a gang of two that waits."""
    for name, age in zip(NODES, (60, 600, 6000), strict=True):
        one.create(workload(f"r-{name}", 8, node=name, phase="Running", start=WALL - age, annotations=SAVES))
    pods = gang("g", 2, 8, priority=10)
    for pod in pods:
        pod["spec"]["priorityClassName"] = "prod"
    one.create(*pods)


def stands(one: Rig, name: str) -> Any:
    return json.loads(one.pod(name)["metadata"]["annotations"].get(ASKED, "null"))


def saved(one: Rig, name: str) -> None:
    pod = one.pod(name)
    pod["metadata"]["annotations"]["gpu-extender.io/saved"] = stands(one, name)["id"]
    one.create(pod)


def writes(one: Rig) -> int:
    return len([1 for patch in one.objects.patched if (patch["metadata"].get("annotations") or {}).get(ASKED)])


async def test_victims_save_their_work_before_the_queue_evicts_them() -> None:
    async with rig(made(asking())) as one:
        evicted = Evicted(one)
        await saving(one)
        await one.turns(3)
        victims = [name for name in ("r-n1", "r-n2", "r-n3") if stands(one, name)]
        assert len(victims) == 2
        assert stands(one, victims[0])["by"] == "default/g"
        assert evicted.tried == []
        saved(one, victims[0])
        await one.turns(3, 2.0)
        assert evicted.tried == []  # they are evicted together
        saved(one, victims[1])
        await one.turns(3, 2.0)
        assert sorted(evicted.tried) == victims
        assert writes(one) == 2
        one.delete(victims[0])
        one.delete(victims[1])
        await one.turns(8)
        assert is_open(one, "g", 2)


@pytest.mark.parametrize("method", ["POST", "PATCH"])
async def test_a_victim_that_ends_during_the_dry_run_or_while_it_is_asked_to_save_stops_nothing(method: str) -> None:
    async with rig(made(asking())) as one:
        await saving(one)
        before, ended = one.objects.fail, list[str]()

        def end(request: Request) -> int:
            if request.method == method and "/pods/" in request.path and not ended:
                ended.extend(name for name in ("r-n1", "r-n2") if f"/{name}" in request.path)
                one.world.gone(ended[0])
            return before(request)

        one.objects.fail = end
        await one.controller.turn()
        asked = [name for name in ("r-n1", "r-n2", "r-n3") if stands(one, name)]
        assert len(asked) == (1 if method == "POST" else 2)
        assert (ended[0] in asked) == (method == "PATCH")


async def test_the_queue_waits_no_longer_than_the_victims_said() -> None:
    async with rig(made(asking())) as one:
        evicted = Evicted(one)
        await saving(one)
        await one.turns(3)
        await one.turns(8, 5.0)
        assert evicted.tried == []
        await one.turns(4, 5.0)
        assert len(evicted.tried) == 2
        assert writes(one) == 2


async def test_the_next_holder_of_the_lease_asks_no_second_time() -> None:
    objects = Objects()
    async with rig(made(asking()), objects) as one:
        await saving(one)
        await one.turns(3)
        assert writes(one) == 2
        wall, now = one.world.wall, one.world.now
    async with rig(made(asking()), objects, "b") as two:
        evicted = Evicted(two)
        two.world.wall, two.world.now = wall + 1, now + 1
        two.watch()
        await two.turns(11, 2.0)  # it has the Lease after 15 s
        assert two.world.metrics.queue_leader._value.get() == 1
        assert (writes(two), evicted.tried) == (2, [])
        for name in NODES:
            if stands(two, f"r-{name}"):
                saved(two, f"r-{name}")
        await two.turns(3, 2.0)
        assert len(evicted.tried) == 2


async def test_a_request_is_withdrawn_when_the_gang_is_gone() -> None:
    async with rig(made(asking())) as one:
        evicted = Evicted(one)
        await saving(one)
        await one.turns(3)
        assert writes(one) == 2
        one.delete("g-0")
        one.delete("g-1")
        await one.turns(10, 2.0)
        assert [stands(one, f"r-{name}") for name in NODES] == [None] * 3
        assert evicted.tried == []


async def test_a_queue_that_reclaims_its_guarantee_asks_the_borrower_first() -> None:
    queues = {"own": {"guaranteedGpus": {"nvidia.com/gpu": 8}}}
    chosen = asking().model_dump(by_alias=True, exclude_unset=True)
    chosen["queue"] |= {"queues": queues, "reclaimRegardlessOfPriority": True}
    world = World(Settings.model_validate(chosen))
    world.node("n1", 8, links=pairs(8))
    async with rig(world) as one:
        evicted = Evicted(one)
        labels = {"gpu-extender.io/queue": "lender"}
        one.create(
            workload(
                "r", 8, node="n1", phase="Running", start=WALL - 600, priority=20, labels=labels, annotations=SAVES
            )
        )
        pods = gang("g", 1, 8, priority=10, labels={"gpu-extender.io/queue": "own"})
        pods[0]["spec"]["priorityClassName"] = "prod"
        one.create(*pods)
        await one.turns(3)
        assert stands(one, "r")["by"] == "default/g"
        assert evicted.tried == []
        saved(one, "r")
        await one.turns(3, 2.0)
        assert evicted.tried == ["r"]
