"""What an autoscaler sees of gangs without a place, and that such a gang still starts whole."""

from __future__ import annotations

from typing import Any

import pytest

from extender.objects.queueing import WANTS_NODES
from extender.policy.reasons import QUEUED
from extender.settings import Settings
from tests.act.queue.rig import PODS, Rig, gated, rig, run, settings, world_of
from tests.act.queue.test_controller import gang
from tests.world import World, pairs, rfc3339


def one_node(**queue: Any) -> World:
    return world_of(["n1"], settings(**queue))


def condition(one: Rig, name: str) -> tuple[str, str] | None:
    found = [c for c in one.pod(name)["status"].get("conditions", ()) if c["type"] == "gpu-extender.io/Placeable"]
    return (found[0]["status"], found[0]["reason"]) if found else None


def shown(one: Rig, *names: str) -> list[bool]:
    return [one.is_open(name) and WANTS_NODES in one.pod(name)["metadata"].get("annotations", {}) for name in names]


def wanted(world: World) -> dict[tuple[str, ...], float]:
    [family] = world.metrics.queue_wanted_gpus.collect()
    return {tuple(one.labels[key] for key in ("queue", "model", "place")): one.value for one in family.samples}


async def turns(one: Rig, seconds: float) -> None:
    """Let the queue be looked at for a while."""
    await one.turns(int(seconds / 0.5), 0.5)


async def test_what_has_no_place_is_counted_and_stated_once() -> None:
    world = one_node()
    world.pod("r", 8, "n1")

    async with rig(world) as one:
        one.create(*gang("far", 2, 8), gated("near", 8), gated("cpu", 0, annotations={"gpu-extender.io/gang": "x"}))
        await turns(one, 3)
        assert wanted(world) == {("default", "", "none"): 16, ("default", "", "taken"): 8}
        assert condition(one, "far-0") == ("False", "NoPlace")
        assert [condition(one, name) for name in ("far-1", "near")] == [None, None]
        assert [path for method, path in one.objects.said if method == "PATCH" and "/far-" in path] == [
            "/api/v1/namespaces/default/pods/far-0/status"
        ]
        assert shown(one, "far-0", "far-1", "near") == [False, False, False]  # the setting is off
        world.node("n2", 8, links=pairs(8))
        await turns(one, 2)
        assert condition(one, "far-0") == ("True", "PlaceExists")
        assert wanted(world)["default", "", "taken"] == 24


async def test_the_condition_of_a_gang_that_started_is_true() -> None:
    world = one_node()

    async with rig(world) as one:
        one.create(*gang("g", 2, 8))
        await turns(one, 1)
        assert condition(one, "g-0") == ("False", "NoPlace")
        world.node("n2", 8, links=pairs(8))
        await turns(one, 1)
        for name in ("g-0", "g-1"):
            one.bind(name)
        await turns(one, 2)
        assert condition(one, "g-0") == ("True", "PlaceExists")
        assert wanted(world) == {}


async def test_one_gang_at_a_time_is_shown_and_starts_whole() -> None:
    world = one_node(autoscaler="unnominated")

    async with rig(world) as one:
        one.create(*gang("a", 3, 8), *gang("b", 2, 8), *gang("fits", 2, 4))
        await turns(one, 2)
        assert shown(one, "a-0", "a-1", "a-2") == [True] * 3
        assert shown(one, "b-0", "b-1") == [False] * 2
        assert one.is_open("fits-0")
        for name in ("fits-0", "fits-1"):
            one.bind(name)
        # kube-scheduler tries the pods: none may start alone, also where it would fit.
        world.node("n2", 8, links=pairs(8))
        answer = world.filter(one.pod("a-0"), ["n1", "n2"])
        assert answer["FailedAndUnresolvableNodes"] == dict.fromkeys(("n1", "n2"), QUEUED.text)
        assert not answer.get("NodeNames")
        await turns(one, 2)
        assert not any(seat.gang.endswith("a") for seat in one.seats)
        for name in ("n3", "n4"):
            world.node(name, 8, links=pairs(8))
        await turns(one, 2)
        nodes = {name: one.pod(name)["status"]["nominatedNodeName"] for name in ("a-0", "a-1", "a-2")}
        assert len(set(nodes.values())) == 3
        for name, node in nodes.items():
            assert WANTS_NODES not in one.pod(name)["metadata"]["annotations"]
            assert world.filter(one.pod(name), ["n2", "n3", "n4"])["NodeNames"] == [node]
            one.bind(name)
        await turns(one, 2)
        assert shown(one, "b-0", "b-1") == [True] * 2  # its turn


async def test_a_gang_that_gets_no_nodes_keeps_the_next_waiting_for_a_while() -> None:
    world = one_node(autoscaler="unnominated")

    async with rig(world) as one:
        one.create(*gang("a", 2, 8), *gang("b", 2, 8))
        await turns(one, 2)
        assert (shown(one, "a-0", "a-1"), shown(one, "b-0", "b-1")) == ([True] * 2, [False] * 2)
        world.now, world.wall = world.now + 880, world.wall + 880
        await turns(one, 2)
        assert shown(one, "b-0", "b-1") == [False] * 2
        world.now, world.wall = world.now + 30, world.wall + 30
        await turns(one, 2)
        assert shown(one, "b-0", "b-1") == [True] * 2


@pytest.mark.parametrize("wait", [0, 100])
async def test_the_head_is_shown_once_it_has_waited(wait: float) -> None:
    world = one_node(autoscaler="unnominated", autoscalerWaitSeconds=wait)
    world.pod("r", 8, "n1")

    async with rig(world) as one:
        pods = gang("a", 2, 4)
        for pod in pods:
            pod["metadata"]["creationTimestamp"] = rfc3339(world.wall)
        one.create(*pods)
        await turns(one, 3)
        assert shown(one, "a-0", "a-1") == [not wait] * 2
        world.now, world.wall = world.now + 100, world.wall + 100
        await turns(one, 2)
        assert shown(one, "a-0", "a-1") == [True] * 2


async def test_a_gang_over_its_quota_is_not_shown() -> None:
    world = one_node(autoscaler="unnominated", queues={"default": {"limitGpus": {"nvidia.com/gpu": 8}}})

    async with rig(world) as one:
        one.create(*gang("a", 2, 8))
        await turns(one, 2)
        assert shown(one, "a-0", "a-1") == [False] * 2
        assert wanted(world) == {}


async def test_a_pod_without_gpus_stays_gated_and_the_next_holder_goes_on() -> None:
    """It would not ask us, so it would start alone. The gates that a killed holder left are opened."""
    world = one_node(autoscaler="unnominated")

    async with rig(world) as one:
        pods = gang("a", 3, 8, size=4)
        launcher = gated("a-launcher", 0, annotations=pods[0]["metadata"]["annotations"])
        one.objects.fail = lambda request: 503 if request.path.endswith("/a-2") else 0
        one.create(*pods, launcher)
        await turns(one, 1)
        assert shown(one, "a-0", "a-1", "a-2") == [True, True, False]
        since = one.pod("a-0")["metadata"]["annotations"][WANTS_NODES]
        one.objects.fail = lambda request: 0
    async with rig(world, one.objects, "b") as two:
        await turns(two, 1)  # it sees the Lease, which ends unless it is renewed
        world.now, world.wall = world.now + 30, world.wall + 30
        await turns(two, 2)
        assert shown(two, "a-0", "a-1", "a-2", "a-launcher") == [True, True, True, False]
        assert two.pod("a-2")["metadata"]["annotations"][WANTS_NODES] == since


def test_without_the_queue_the_annotation_changes_nothing() -> None:
    world = World(Settings())
    world.node("n1", 8, links=pairs(8))
    pod = gated("p", 1, gates=(), annotations={WANTS_NODES: "2026-01-01T00:00:00Z"})
    assert world.filter(pod, ["n1"])["NodeNames"] == ["n1"]


REQUESTS = "/apis/autoscaling.x-k8s.io/v1/namespaces/default/provisioningrequests"
TEMPLATES = "/api/v1/namespaces/default/podtemplates"


def made(one: Rig, path: str) -> list[Any]:
    return [found for place, found in sorted(one.objects.stored.items()) if place.startswith(f"{path}/")]


async def test_a_provisioning_request_asks_for_the_nodes_of_one_gang() -> None:
    world = one_node(autoscaler="provisioningRequest")

    async with rig(world) as one:
        pods = gang("a", 3, 8, size=4)
        launcher = gated("a-launcher", 0, annotations=pods[0]["metadata"]["annotations"])
        one.create(*pods, launcher, *gang("b", 2, 8))
        await turns(one, 2)
        [request] = made(one, REQUESTS)
        name = request["metadata"]["name"]
        assert request["spec"] == {
            "provisioningClassName": "best-effort-atomic-scale-up.autoscaling.x-k8s.io",
            "podSets": [
                {"podTemplateRef": {"name": f"{name}-0"}, "count": 3},
                {"podTemplateRef": {"name": f"{name}-1"}, "count": 1},
            ],
        }
        templates = made(one, TEMPLATES)
        assert [one["metadata"]["name"] for one in templates] == [f"{name}-0", f"{name}-1"]
        assert "schedulingGates" not in templates[0]["template"]["spec"]
        assert templates[0]["template"]["spec"]["containers"] == one.pod("a-0")["spec"]["containers"]
        owner = {"apiVersion": "v1", "kind": "Pod", "name": "a-0", "uid": "uid-a-0"}
        assert [one["metadata"]["ownerReferences"] for one in [request, *templates]] == [[owner]] * 3
        for pod in ("a-0", "a-1", "a-2", "a-launcher"):
            notes = one.pod(pod)["metadata"]["annotations"]
            assert notes["autoscaling.x-k8s.io/consume-provisioning-request"] == name
            assert notes["autoscaling.x-k8s.io/provisioning-class-name"] == request["spec"]["provisioningClassName"]
            assert not one.is_open(pod)
        # The first pod is replaced: its objects are deleted with it, and all pods name the new ones.
        del one.objects.stored["/api/v1/namespaces/default/pods/a-0"]
        world.gone("a-0")
        one.create(gang("a", 1, 8, size=4)[0] | {"metadata": {**pods[0]["metadata"], "uid": "uid-new"}})
        await turns(one, 2)
        [other] = [two["metadata"]["name"] for two in made(one, REQUESTS) if two["metadata"]["name"] != name]
        key = "autoscaling.x-k8s.io/consume-provisioning-request"
        assert {one.pod(pod)["metadata"]["annotations"][key] for pod in ("a-0", "a-1", "a-launcher")} == {other}
        for node in ("n2", "n3"):
            world.node(node, 8, links=pairs(8))
        await turns(one, 2)
        assert [one.is_open(pod) for pod in ("a-0", "a-1", "a-2", "a-launcher")] == [True] * 4
        assert WANTS_NODES not in one.pod("a-0")["metadata"]["annotations"]


@pytest.mark.parametrize("readable", [True, False])
async def test_where_no_request_can_be_made_it_is_tried_again_after_a_while(readable: bool) -> None:
    world = one_node(autoscaler="provisioningRequest")

    async with rig(world) as one:
        one.objects.fail = lambda request: 404 if request.path == REQUESTS else 0  # its kind is not installed
        one.create(*gang("a", 2, 8))
        handled, unreadable = one.objects.handled, "" if readable else f"{PODS}/a-0"
        one.objects.handled = lambda method, path, raw: (  # type: ignore[method-assign]
            (200, []) if (method, path) == ("GET", unreadable) else handled(method, path, raw)
        )
        await turns(one, 10)
        asked = [path for _, path in one.objects.said]
        assert (asked.count(f"{PODS}/a-0"), asked.count(REQUESTS)) == (1, 1 if readable else 0)
        assert WANTS_NODES not in one.pod("a-0")["metadata"]["annotations"]
        one.objects.fail, unreadable = lambda request: 0, ""
        world.now, world.wall = world.now + 60, world.wall + 60
        await turns(one, 2)
        assert len(made(one, REQUESTS)) == 1


@pytest.mark.parametrize("when", ["refused", "ended"])
async def test_a_clock_that_steps_back_delays_no_request(when: str) -> None:
    world = one_node(autoscaler="provisioningRequest")

    async with rig(world) as one:
        one.objects.fail = lambda request: 404 if request.path == REQUESTS and when == "refused" else 0
        one.create(*gang("a", 2, 8))
        await turns(one, 2)
        one.objects.fail = lambda request: 0
        if when == "ended":
            ((path, request),) = [found for found in one.objects.stored.items() if found[0].startswith(REQUESTS)]
            condition = {"type": "Failed", "status": "True"}
            one.objects.put(path, {**request, "status": {"conditions": [condition]}})
        world.wall -= 86_400.0
        for _ in range(3):
            world.now, world.wall = world.now + 60, world.wall + 60
            await turns(one, 2)
        assert len(made(one, REQUESTS)) == (1 if when == "refused" else 2)


async def test_a_clock_that_steps_back_keeps_no_gang_from_being_shown() -> None:
    world = one_node(autoscaler="unnominated")

    async with rig(world) as one:
        one.create(*gang("a", 2, 8), *gang("b", 2, 8))
        await turns(one, 2)
        assert (shown(one, "a-0"), shown(one, "b-0")) == ([True], [False])
        world.wall -= 86_400.0
        world.now, world.wall = world.now + 900, world.wall + 900
        await turns(one, 2)
        assert shown(one, "b-0", "b-1") == [True] * 2


async def test_a_pod_that_states_a_time_to_come_keeps_no_other_gang_from_being_shown() -> None:
    world = one_node(autoscaler="unnominated")

    async with rig(world) as one:
        one.create(gated("odd", 64, gates=(), annotations={WANTS_NODES: "9999-01-01T00:00:00Z"}), gated("far", 64))
        await turns(one, 3)
        assert shown(one, "far") == [True]


async def test_who_writes_the_annotation_gets_no_turn_and_prolongs_none() -> None:
    """A tenant writes it on pods of a gang that is not first, and keeps it new on one that was shown."""
    world = one_node(autoscaler="unnominated")
    world.pod("r", 8, "n1")

    def claim(one: Rig, *names: str) -> None:
        for name in names:
            pod = one.pod(name)
            notes = {**pod["metadata"].get("annotations", {}), WANTS_NODES: rfc3339(world.wall)}
            one.objects.put(f"{PODS}/{name}", {**pod, "metadata": {**pod["metadata"], "annotations": notes}})
        one.watch()

    async with rig(world) as one:
        await turns(one, 1)  # nothing waits: what comes now was shown by no other instance
        one.create(gated("late", 8, priority=-1), *gang("a", 2, 8), *gang("b", 3, 8))
        claim(one, "late")
        await turns(one, 2)
        assert (shown(one, "a-0", "a-1"), shown(one, "b-0"), one.is_open("late")) == ([True] * 2, [False], False)
        for _ in range(4):
            world.now, world.wall = world.now + 240, world.wall + 240
            claim(one, "a-0", "a-1", "late")
            await turns(one, 1)
        assert (shown(one, "b-0", "b-1", "b-2"), one.is_open("late")) == ([True] * 3, False)


def test_a_request_that_failed_is_made_again_later_each_time() -> None:
    world = one_node(autoscaler="provisioningRequest")

    def end(one: Rig, kind: str) -> None:
        path, request = max((path, found) for path, found in one.objects.stored.items() if path.startswith(REQUESTS))
        condition = {"type": kind, "status": "True", "message": "no capacity"}
        one.objects.put(path, {**request, "status": {"conditions": [condition]}})

    async def after(one: Rig, seconds: float) -> int:
        world.now, world.wall = world.now + seconds, world.wall + seconds
        await turns(one, 1)
        return len(made(one, REQUESTS))

    async def test() -> None:
        async with rig(world) as one:
            one.create(*gang("a", 2, 8))
            await turns(one, 1)
            assert await after(one, 40) == 1  # it stands: it is looked at, and not made again
            end(one, "Failed")
            assert [await after(one, seconds) for seconds in (40, 40, 40)] == [1, 1, 2]  # a minute after it was seen
            first, second = (found["metadata"]["name"] for found in made(one, REQUESTS))
            assert second == f"{first}-r1"
            key = "autoscaling.x-k8s.io/consume-provisioning-request"
            assert {one.pod(name)["metadata"]["annotations"][key] for name in ("a-0", "a-1")} == {second}
            end(one, "BookingExpired")
            assert [await after(one, seconds) for seconds in (40, 60, 70)] == [2, 2, 3]  # two minutes
            assert len(made(one, TEMPLATES)) == 1

    run(test())
