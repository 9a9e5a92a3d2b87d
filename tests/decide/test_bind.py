"""bind: checked again, the GPUs written with the Binding, the same answer to the same question."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest

from ext_core.links import LinkShapes
from extender.decide.decisions import BindIntent, Written
from extender.decide.wire import Binding
from extender.objects.records import PodRecord
from extender.objects.records import pod as read_pod
from extender.server.calls import Binder
from extender.sim.machines import gpu_uuids, machine, topology_annotation
from extender.topologies.annotation import KEY, RELAY, decode
from tests.waiting import run_bounded
from tests.world import GPU, JSON, TEXT, World, pairs, workload

PLAN = "gpu-extender.io/gpus"


class Api(Binder):
    """The API server, as far as bind needs it. `outcome`: what the next write ends in."""

    def __init__(self) -> None:
        self.world: World | None = None
        self.pods: dict[tuple[str, str], JSON] = {}
        self.wrote: list[tuple[Binding, dict[str, str]]] = []
        self.asked = 0
        self.outcome = Written("bound")

    async def pod(self, namespace: str, name: str) -> PodRecord | None:
        self.asked += 1
        found = self.pods.get((namespace, name))
        return None if found is None else read_pod(found, frozenset({GPU}))

    async def bind(self, binding: Binding, annotations: dict[str, str]) -> Written:
        self.wrote.append((binding, annotations))
        return self.outcome


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def world(api: Api) -> World:
    made = World(binder=api)
    made.node("n", 8, links=pairs(8))
    return made


def test_the_plan_is_written_with_the_binding(world: World, api: Api) -> None:
    pod = world.pod("p", 2)
    assert world.bind(pod, "n") == ""
    assert api.wrote == [(Binding("default", "p", "uid-p", "n"), {PLAN: "0,1"})]
    assert api.asked == 0  # the watch had brought it
    shown = world.decision()
    assert (shown["verb"], shown["result"], shown["gpus"]) == ("bind", "bound", [0, 1])


def test_the_plan_avoids_gpus_that_others_hold(world: World, api: Api) -> None:
    world.pod("r", 3, "n", held=[0, 1, 2])
    assert world.bind(world.pod("p", 2), "n") == ""
    assert api.wrote[0][1] == {PLAN: "4,5"}


def test_pods_that_are_being_bound_get_different_gpus(world: World, api: Api) -> None:
    for name in "abcd":
        assert world.bind(world.pod(name, 2), "n") == ""
    plans = [annotations[PLAN] for _, annotations in api.wrote]
    assert sorted(plans) == ["0,1", "2,3", "4,5", "6,7"]
    assert world.bind(world.pod("e", 2), "n") == TEXT["gpus-promised"]


def test_a_pod_that_is_being_bound_is_a_possible_victim_of_a_higher_priority(world: World) -> None:
    world.pod("low", 4, "n")
    assert world.bind(world.pod("p", 4), "n") == ""
    answer = world.filter(workload("q", 8, priority=5, nominated="n"))
    assert answer["FailedNodes"] == {"n": TEXT["gpus-busy"]}


def test_several_gpu_containers_are_named(world: World, api: Api) -> None:
    containers: list[Any] = [
        {"name": "c1", "resources": {"limits": {GPU: "2"}}},
        {"name": "none"},
        {"name": "zero", "resources": {"limits": {GPU: "0"}}},
        {"name": "c2", "resources": {"limits": {GPU: "1"}}},
    ]
    assert world.bind(world.pod("p", spec={"containers": containers}), "n") == ""
    plan = api.wrote[0][1][PLAN]
    parts = dict(part.split("=") for part in plan.split(";"))
    assert list(parts) == ["c1", "c2"]
    used = [int(i) for ids in parts.values() for i in ids.split(",")]
    assert len(parts["c1"].split(",")) == 2
    assert len(set(used)) == 3
    assert all(text == ",".join(sorted(text.split(","))) for text in parts.values())


def test_gpus_of_an_init_container_are_used_again(world: World, api: Api) -> None:
    spec = {
        "initContainers": [{"name": "i", "resources": {"limits": {GPU: "4"}}}],
        "containers": [{"name": "c", "resources": {"limits": {GPU: "2"}}}],
    }
    assert world.bind(world.pod("p", spec=spec), "n") == ""
    assert len(api.wrote[0][1][PLAN].split(",")) == 4


def test_without_gpus_the_pod_is_bound_without_a_plan(world: World, api: Api) -> None:
    assert world.bind(world.pod("p"), "n") == ""
    assert api.wrote == [(Binding("default", "p", "uid-p", "n"), {})]


def test_positions_that_nobody_models_are_not_planned(api: Api) -> None:
    world = World(binder=api)
    world.node("n", 32)
    assert world.bind(world.pod("p", 2), "n") == ""
    assert api.wrote[0][1] == {}


def test_a_pod_that_is_bound_there_already_is_fine(world: World, api: Api) -> None:
    """A call that timed out may have been carried out; it is asked again."""
    pod = world.pod("p", 2, "n")
    assert world.bind(pod, "n") == ""
    assert api.wrote == []
    world.node("m", 8)
    assert "n already" in world.bind(pod, "m")
    assert api.wrote == []


def test_binding_twice_before_the_watch_tells(world: World, api: Api) -> None:
    pod = world.pod("p", 8)
    assert world.bind(pod, "n") == ""
    assert world.bind(pod, "n") == ""  # its own hold does not stand in its way
    assert api.wrote[0] == api.wrote[1]


def test_the_check_before_the_write_refuses(world: World, api: Api) -> None:
    pod = world.pod("p", 8)
    assert world.filter(pod)["NodeNames"] == ["n"]
    world.pod("quicker", 1, "n", priority=99)
    assert world.bind(pod, "n") == TEXT["gpus-held"]
    assert api.wrote == []
    assert world.decision()["result"] == "refused"


def test_a_pod_is_written_first_where_a_later_one_could_take_a_gpu_of_its_set(world: World) -> None:
    """The plugin chooses in the order of the Bindings, and a count does not guard a set."""
    world.node("all", 8, links=[[4 * (a != b) for b in range(8)] for a in range(8)])

    def first(name: str, node: str, **fields: Any) -> bool:
        world.pod(name, 2, **fields)
        intent = world.verbs.bind.answer(
            Binding("default", name, f"uid-{name}", node), world.cluster.pods[f"uid-{name}"], 0.0, 0.0
        )
        assert isinstance(intent, BindIntent)
        return intent.first

    assert first("required", "n", links="required")
    assert not first("preferred", "n", links="preferred")
    assert not first("uniform", "all", links="required")


def test_its_binding_reaches_the_api_server_before_that_of_a_pod_decided_later() -> None:
    """Seen on the real kube-scheduler: both pods are tried in the same moment, and the second write is the faster."""

    class Slow(Api):
        async def bind(self, binding: Binding, annotations: dict[str, str]) -> Written:
            if binding.name == "linked":
                await asyncio.sleep(0.02)
            return await super().bind(binding, annotations)

    api = Slow()
    world = World(binder=api)
    world.node("n", 8, links=pairs(8))
    world.pod("there", 5, "n", held=[0, 1, 2, 3, 4])  # 5, 6, 7 are free: any one of them may go behind the pair alone

    def asked(name: str, gpus: int, links: str = "") -> bytes:
        world.pod(name, gpus, links=links)
        return json.dumps({"PodName": name, "PodNamespace": "default", "PodUID": f"uid-{name}", "Node": "n"}).encode()

    async def both() -> None:
        one, other = asked("linked", 2, "required"), asked("other", 1)
        answers = await asyncio.gather(world.answered("bind", one), world.answered("bind", other))
        assert [answer.result for answer in answers] == ["bound", "bound"]

    run_bounded(both())
    assert [binding.name for binding, _ in api.wrote] == ["linked", "other"]


def test_links_are_checked_again_too(world: World, api: Api) -> None:
    pod = world.pod("p", 2, links="required")
    for i in range(4):
        world.pod(f"r{i}", 1, "n", held=[2 * i], priority=99)
    assert world.bind(pod, "n") == TEXT["links-held"]
    assert api.wrote == []


def test_a_conflict_is_an_error_and_the_pod_is_assumed_no_more(world: World, api: Api) -> None:
    api.outcome = Written("failed", "the pod is bound to another node")
    assert world.bind(world.pod("p", 8), "n") == api.outcome.message
    assert world.filter(workload("q", 8))["NodeNames"] == ["n"]


def test_a_pod_that_the_watch_has_not_brought_is_read(world: World, api: Api) -> None:
    pod = workload("p", 2)
    api.pods[("default", "p")] = pod
    assert world.bind(pod, "n") == ""
    assert api.asked == 1
    assert api.wrote[0][1] == {PLAN: "0,1"}


def test_another_pod_of_that_name_is_not_bound(world: World, api: Api) -> None:
    asked = workload("p", 2)
    assert "gone" in world.bind(asked, "n")
    later = workload("p", 2)
    later["metadata"]["uid"] = "uid-later"
    api.pods[("default", "p")] = later
    assert "another one" in world.bind(asked, "n")
    assert api.wrote == []


def test_an_unknown_node_is_refused(world: World, api: Api) -> None:
    assert world.bind(world.pod("p", 2), "strange") == TEXT["unknown-node"]
    assert api.wrote == []


def test_a_frozen_cluster_binds_nothing() -> None:
    world = World()
    world.node("n", 8)
    assert "frozen" in world.bind(world.pod("p", 2), "n")


def test_a_binder_that_fails_is_an_error_and_no_500(world: World, api: Api) -> None:
    async def fail(binding: Binding, annotations: dict[str, str]) -> Written:
        raise OSError("connection reset")

    api.bind = fail  # type: ignore[method-assign]
    assert "connection reset" in world.bind(world.pod("p", 8), "n")


@pytest.mark.parametrize("key", ["PodName", "PodNamespace", "PodUID", "Node"])
@pytest.mark.parametrize("value", [None, "", 3, ["n"], {}])
def test_a_request_that_lacks_something_is_refused(world: World, api: Api, key: str, value: Any) -> None:
    whole: JSON = {"PodName": "p", "PodNamespace": "default", "PodUID": "uid-p", "Node": "n"}
    error = world.post("bind", whole | {key: value})["Error"]
    assert error.startswith(f"gpu-extender: {key}: ")
    del whole[key]
    assert world.post("bind", whole)["Error"] == error
    assert api.wrote == []
    assert world.metric("bad_requests_total", verb="bind", code="bad-request") == 2


def test_no_plan_over_gpus_that_may_be_taken(world: World, api: Api) -> None:
    """Somebody holds one of the eight, and nobody says which: whatever we wrote could be it."""
    quiet = world.pod("quiet", 1, "n")
    assert world.bind(world.pod("p", 2), "n") == ""
    assert api.wrote == [(Binding("default", "p", "uid-p", "n"), {})]
    world.drop("Pod", quiet)
    assert world.bind(world.pod("q", 2), "n") == ""
    assert PLAN in api.wrote[1][1]


@pytest.mark.parametrize("name", ["dgx1-v100", "h100-nvl-8", "v100-8-permuted", "dgx-h100"])
def test_the_plan_has_the_best_ring_of_what_is_free_at_bind(world: World, api: Api, name: str) -> None:
    """Pods come and end by chance. What comes free after the bind does not change the plan: tests/e2e/enforced_run.py
    judges whole runs by this."""
    made, rng, shapes = machine(name), random.Random(name), LinkShapes()
    stated = topology_annotation(made, gpu_uuids("m", made))
    world.node("m", made.gpus, annotations={KEY: stated, RELAY: "1"})
    shape = decode(stated).intern(shapes, "nvidia")
    free, held = (1 << made.gpus) - 1, dict[str, int]()
    for number in range(60):
        while held and (free.bit_count() < 2 or rng.random() < 0.4):
            ended = rng.choice(list(held))
            world.gone(ended)
            free |= held.pop(ended)
        size = rng.randint(1, free.bit_count())
        assert world.bind(world.pod(f"p{number}", size, links="preferred"), "m") == ""
        plan = api.wrote[-1][1][PLAN]
        mask = sum(1 << int(gpu) for gpu in plan.split(","))
        assert (mask.bit_count(), mask & ~free) == (size, 0)
        if size > 1:
            assert shapes.ring(shape, mask) == shapes.top(shape, free, size), (plan, bin(free))
        world.pod(f"p{number}", size, "m", links="preferred", annotations={PLAN: plan})
        free, held[f"p{number}"] = free & ~mask, mask
