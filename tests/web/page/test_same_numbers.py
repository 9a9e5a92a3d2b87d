"""The same number, pod or node states the same in each view, over random clusters and those of the recorded answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cache
from itertools import chain
from random import Random
from time import gmtime, strftime
from typing import Any, Final

import pytest

from extender.objects.queueing import GATE
from extender.settings import Settings
from tests.answers import record
from tests.answers.questions import world_of
from tests.web.page.scene import NOTE, RACK, scene, with_queue
from tests.world import DGX1V, JSON, PRODUCT, WALL, World, pairs

SEEDS: Final = 12
COUNTS: Final = ("gpus", "held_gpus", "reserved_gpus", "free_gpus")
SETTINGS: Final = Settings.model_validate({"queue": {"enabled": True}})
SPACES: Final = ("red", "green", "blue")


def drawn(seed: int) -> World:
    """Nodes of two models in racks and without; some cordoned, or with fewer GPUs than are held; pods that run, end,
    wait, are assumed, nominated or gated, and that pods are evicted for."""
    rng, world = Random(seed), World(SETTINGS)
    for n in range(rng.randint(3, 9)):
        _node(world, rng, f"n{n}")
    admitted = [node.name for node in world.cluster.nodes.values() if not node.unschedulable]
    for n in range(rng.randint(2, 8)):
        _waits(world, rng, f"w{n}", admitted)
    for n in range(rng.randint(0, 3)):
        notes, size = {NOTE + "gang-size": str(rng.randint(1, 3))}, rng.choice((1, 4, 8))
        for k in range(rng.randint(1, 3)):
            world.pod(
                f"g{n}-{k}", size, namespace=rng.choice(SPACES), annotations=notes, labels={NOTE + "gang": f"g{n}"},
                spec={"schedulingGates": [{"name": GATE}]}, priority=rng.choice((0, 5)),
            )  # fmt: skip
    return with_queue(world)


def _node(world: World, rng: Random, name: str) -> None:
    gpus = rng.choice((4, 8))
    links = rng.choice((None, pairs(gpus), DGX1V if gpus == 8 else pairs(4)))
    labels = {PRODUCT: rng.choice(("A", "B"))} | ({RACK: f"r{rng.randrange(2)}"} if rng.random() < 0.8 else {})
    lost = rng.choice((0, 0, 0, 1, 3))
    world.node(name, gpus - lost, capacity=gpus, links=links, labels=labels, unschedulable=rng.random() < 0.2)
    free = list(range(gpus))
    rng.shuffle(free)
    for n in range(rng.randint(0, 5)):
        size = rng.choice((1, 1, 2, 4))
        if size > len(free):
            break
        held, free = sorted(free[:size]), free[size:]
        known = rng.random() < 0.7
        world.pod(
            f"{name}-{n}", size, name, namespace=rng.choice(SPACES), held=held if known else (),
            priority=rng.choice((0, 0, 10)), phase="Succeeded" if rng.random() < 0.1 else "Running", start=WALL - 60,
            terminating=WALL + 20 if rng.random() < 0.1 else None,
        )  # fmt: skip


def _waits(world: World, rng: Random, name: str, admitted: list[str]) -> None:
    what = rng.choice(("waits", "asked", "evicts", "nominated"))
    nominated = rng.choice(admitted) if what == "nominated" and admitted else ""
    pod = world.pod(
        name, rng.choice((1, 2, 4, 16)), namespace=rng.choice(SPACES), priority=rng.choice((0, 5, 100)),
        links=rng.choice(("", "", "required")), nominated=nominated,
    )  # fmt: skip
    if what in ("asked", "evicts") and admitted and not world.filter(pod, admitted).get("NodeNames"):
        running = world.cluster.pods.values()
        victims = {node: [one.name for one in running if one.node == node and not one.finished] for node in admitted}
        world.preempt(pod, {node: names for node, names in victims.items() if names and what == "evicts"})


@cache
def made(name: str) -> World:
    """The cluster of a seed, of the scene, or of a recorded scenario."""
    if name.startswith("seed-"):
        return drawn(int(name.removeprefix("seed-")))
    return scene() if name == "scene" else world_of(record.read(name)[0])


CLUSTERS: Final = ("scene", *(f"seed-{seed}" for seed in range(SEEDS)), *record.names())


@pytest.fixture(params=CLUSTERS, scope="module")
def world(request: pytest.FixtureRequest) -> World:
    return made(request.param)


def data(world: World, path: str) -> Any:
    where, _, query = path.partition("?")
    return world.call(f"{where}.json" + (f"?{query}" if query else ""), method="GET").json


def debug(world: World, path: str) -> Any:
    return world.call(f"/debug/{path}", method="GET").json


def summed(parts: Iterable[JSON], keys: Iterable[str] = COUNTS) -> list[int]:
    """The sum of each of the numbers."""
    listed = list(parts)
    return [sum(part[key] for part in listed) for key in keys]


def test_gpus_are_counted_alike(world: World) -> None:
    fleet = data(world, "/")
    summary = fleet["summary"]
    counts = [summary[key] for key in ("gpus", "allocated_gpus", "reserved_gpus", "free_gpus")]
    assert sum(counts[1:]) == counts[0]
    assert summed(fleet["models"]) == counts
    assert summed(data(world, "/capacity")["models"]) == summed(debug(world, "top")["models"]) == counts
    closed = [one for model in fleet["models"] for one in model["closed"]]
    for level in fleet["levels"]:
        racks = data(world, f"/?by={level}")["racks"]
        assert summed(racks) == counts, level
        parts = ("nodes", "gpus", "free_gpus")
        assert summed((rack["closed"] for rack in racks), parts) == summed(closed, parts), level
        assert sum(rack["nodes"] for rack in racks) == sum(model["nodes"] for model in fleet["models"]), level
        assert sum(rack["whole_nodes"] for rack in racks) == summary["whole_nodes"], level
    by_model = {rack["name"]: summed([rack]) for rack in data(world, "/?by=model")["racks"]}
    assert by_model == {model["model"]: summed([model]) for model in fleet["models"]}
    for key in ("gpus", "free_gpus"):
        assert summary[f"{key}_of_closed_nodes"] == sum(one[key] for one in closed)
    cells = [cell for group in fleet["heat"]["groups"] for cell in group["cells"] if cell["takes_pods"]]
    assert summed(cells) == counts
    assert sum(cell["value"] for cell in cells) == summary["allocated_gpus"]


def test_a_node_states_the_same_everywhere(world: World) -> None:
    fleet = data(world, "/")
    cells = {cell["name"]: cell for group in fleet["heat"]["groups"] for cell in group["cells"]}
    mapped = {node["node"]: node for node in debug(world, "map")["nodes"]}
    drawings = {node["node"]: node for node in chain.from_iterable(fleet["maps"])}
    assert cells.keys() == mapped.keys() == drawings.keys()
    for name, cell in cells.items():
        node = data(world, f"/node?node={name}")
        for other in (mapped[name], drawings[name]):
            assert {key: node[key] for key in other if key not in ("gpus", "rack")} == {
                key: part for key, part in other.items() if key not in ("gpus", "rack")
            }, name
        states = Counter(gpu["state"] for gpu in node["gpus"])
        assert states == Counter(gpu["state"] for gpu in drawings[name]["gpus"]), name
        assert (cell["free_gpus"], cell["closed_gpus"]) == (node["free"], node["closed_gpus"]), name
        assert cell["takes_pods"] == node["schedulable"], name
        assert cell["gpus"] == sum(cell[f"{part}_gpus"] for part in ("held", "reserved", "free", "closed")), name
        assert (cell["value"], cell["reserved_gpus"]) == (cell["held_gpus"], node["reserved_gpus"]), name
        assert cell["unhealthy_gpus"] == states["unhealthy"], name
        whole = sum(node["resources"].values()) == len(node["gpus"]) - states["unhealthy"]  # else shares of them
        if whole and not states["unknown"]:
            assert (states["free"], states["closed"]) == (node["free"], node["closed_gpus"]), name
        listed = [node for node in data(world, f"/nodes?in={node['rack']}")["nodes"] if node["node"] == name]
        assert [one["free"] for one in listed] == [node["free"]]


def test_a_pod_that_runs_states_what_its_node_states(world: World) -> None:
    for name in debug(world, "map")["nodes"]:
        node = data(world, f"/node?node={name['node']}")
        for holding in node["holdings"]:
            pod = data(world, f"/pod?pod={holding['pod']}")
            assert (pod["node"], pod["gpus"]) == (node["node"], holding["gpus"]), holding["pod"]
            assert pod["pod"]["priority"] == holding["priority"]
            assert pod["how"] == holding["how"]


def test_namespaces_add_up(world: World) -> None:
    fleet = data(world, "/")
    summary = fleet["summary"]
    own = [data(world, f"/?namespace={space}") for space in fleet["choices"]["namespaces"]]
    assert sum(one["summary"]["waiting_pods"] for one in own) == summary["waiting_pods"]
    assert sum(one["summary"]["waiting_gpus"] for one in own) == summary["waiting_gpus"]
    held = [one["summary"]["namespace_gpus"] for one in own]
    asked = sum(holding["count"] for node in debug(world, "map")["nodes"] if node["schedulable"]
                for holding in data(world, f"/node?node={node['node']}")["holdings"])  # fmt: skip
    if asked > summary["allocated_gpus"]:  # pods hold GPUs that their nodes no longer offer
        assert max(held) <= summary["allocated_gpus"] <= sum(held)
    else:
        assert sum(held) == summary["allocated_gpus"]
    for one in own:
        cells = [cell for group in one["heat"]["groups"] for cell in group["cells"]]
        counted = [sum(cell["value"] for cell in cells if cell["takes_pods"] is takes) for takes in (True, False)]
        assert counted == [one["summary"][key] for key in ("namespace_gpus", "namespace_gpus_of_closed_nodes")]


def test_what_waits_is_counted_alike(world: World) -> None:
    fleet, waiting, top = data(world, "/"), data(world, "/waiting"), debug(world, "top")
    counts = waiting["reasons"]
    assert fleet["summary"]["waiting_pods"] == sum(counts.values()) == len(waiting["pods"])
    for entries in (fleet["waiting"], top["waiting"]):
        assert {one["reason"]: one["pods"] for one in entries} == counts
        assert sum(one["gpus"] for one in entries) == fleet["summary"]["waiting_gpus"]
    assert fleet["waiting_pods"] == waiting["pods"][:5]
    for one in waiting["pods"]:
        shown, told = data(world, f"/pod?pod={one['pod']}"), debug(world, f"explain?pod={one['pod']}")
        assert shown["why"] == told["why"] == {"reason": one["reason"], "text": one["text"]}, one["pod"]
        assert (shown["gpus_asked"], shown["pod"]["priority"]) == (one["gpus"], one["priority"])
        assert (shown["verdict"] == "gated") == (one["queue"] is not None), one["pod"]
        if one["reason"] == "fits":
            assert shown["verdict"] == "fits", one["pod"]
        if shown["queue"] is not None:
            assert one["reason"] == f"queue: {shown['queue']['reason']}", one["pod"]


def test_the_advice_of_a_pod_is_the_same(world: World) -> None:
    """On the page of capacity, of the pod, and of its queue; and which machines would start all that wait."""
    capacity = data(world, "/capacity")
    for one in capacity["unblock"]:
        shown = data(world, f"/pod?pod={one['pod']}")
        for key in ("verdict", "ways_out", "nearest"):
            assert shown[key] == one[key], (one["pod"], key)
        assert one["sentence"] == debug(world, f"explain?pod={one['pod']}")["sentence"]
    assert capacity["advice"]["nodes"] == data(world, "/advice")["nodes"]


@pytest.mark.parametrize("name", CLUSTERS[: 1 + SEEDS])  # in the others pods hold shares, and nodes offer no GPU
def test_queues_hold_what_nodes_state(name: str) -> None:
    """By model: of pods that are on a node, have a seat there, or are nominated to it."""
    world = made(name)
    used, held = Counter[str](), Counter[str]()
    for queue in data(world, "/queue")["queues"]:
        used.update(queue["used_gpus"])
    for mapped in debug(world, "map")["nodes"]:
        node = data(world, f"/node?node={mapped['node']}")
        held[node["model"]] += sum(holding["count"] for holding in node["holdings"])
        held[node["model"]] += sum(one["count"] for one in node["reserved"] if one["by"] in ("seat", "nomination"))
    assert used == +held
    there = Counter[str]()
    models = data(world, "/")["models"]
    for model in models:
        there[model["model"]] = model["gpus"] + sum(apart["gpus"] for apart in model["closed"])
    shared = data(world, "/queue")["models"] if used else []
    assert {one["model"]: one["gpus"] for one in shared} == (there if used else {})
    assert Counter({one["model"]: one["used_gpus"] for one in shared}) == used
    for queue in data(world, "/queue")["queues"]:
        largest = max((number / there[model] for model, number in queue["used_gpus"].items()), default=0.0)
        assert queue["share"] == pytest.approx(largest / queue["weight"], abs=1e-5), queue["name"]


def test_what_waits_is_in_one_order(world: World) -> None:
    """On /waiting and the fleet, among what capacity explains, and in the queue."""
    pods = data(world, "/waiting")["pods"]
    place = {one["pod"]: at for at, one in enumerate(pods)}
    places = [place[one["pod"]] for one in data(world, "/capacity")["unblock"]]
    assert places == sorted(places)
    assert [one["priority"] for one in pods if one["queue"] is None] == sorted(
        (one["priority"] for one in pods if one["queue"] is None), reverse=True
    )
    queue = data(world, "/queue")
    gangs = sorted((*queue["waiting"], *queue["incomplete"]), key=lambda gang: gang["position"])
    listed = dict.fromkeys(
        (gang["position"] for one in pods if one["queue"] is not None
         for gang in gangs if f"queue: {gang['reason']}" == one["reason"] and _is_of(world, one["pod"], gang)),
    )  # fmt: skip
    assert list(listed) == [gang["position"] for gang in gangs if gang["position"] in listed]


def _is_of(world: World, name: str, gang: JSON) -> bool:
    pod = world.cluster.pod(*name.split("/"))
    assert pod is not None
    ref = world.cluster.gangs.ref(pod)
    return bool(gang["gang"] == (name if ref is None else str(ref)))


def test_a_head_states_one_expected_start(world: World) -> None:
    """Its bars begin at its latest start, or are drawn from the expected one on, which the sentence states too."""
    view = data(world, "/queue")
    plan = view["next_starts"]
    if plan["head"] is None:
        return
    head = plan["head"]
    [waits] = [one for one in view["waiting"] if one["gang"] == head["gang"]]
    assert head["text"] == ("" if waits["start"] is None else waits["start"]["text"])
    bars = [bar for lane in plan["lanes"] for bar in lane["bars"] if bar["kind"] == "head"]
    assert {bar["begin"] for bar in bars} <= {head["start"]}
    if head["expected"] is not None:
        assert f"expected {strftime('%H:%M', gmtime(head['expected']))} UTC" in head["text"]
    for one in head["limits"]:
        assert one["held"] - one["ended"] + one["taken"] <= one["limit"], one


def test_queues_are_counted_alike(world: World) -> None:
    view, told = data(world, "/queue"), debug(world, "queue")
    for key in ("queues", "waiting", "incomplete", "releasing"):
        assert view[key] == told[key], key
    gangs = Counter(gang["queue"] for gang in (*view["waiting"], *view["incomplete"]))
    assert gangs == Counter({queue["name"]: queue["waiting"] for queue in view["queues"] if queue["waiting"]})
    reasons = Counter(one["reason"] for one in data(world, "/waiting")["pods"] if one["queue"] is not None)
    of_gangs = Counter[str]()
    for gang in (*view["waiting"], *view["incomplete"]):
        of_gangs[f"queue: {gang['reason']}"] += 1
    assert of_gangs.keys() <= reasons.keys()


def test_reservations_are_on_their_nodes(world: World) -> None:
    nodes = {node["node"]: data(world, f"/node?node={node['node']}") for node in debug(world, "map")["nodes"]}
    for reservation in data(world, "/preemptions")["reservations"]:
        kept = [one for one in nodes[reservation["node"]]["reserved"] if one["pod"] == reservation["pod"]]
        assert [one["by"] for one in kept] in (["reservation"], ["seat"]), reservation
        shown = data(world, f"/pod?pod={reservation['pod']}")
        assert shown["why"]["reason"] in ("evicting", "saving", "fits"), reservation


def test_decisions_are_those_of_their_pods(world: World) -> None:
    listed = data(world, "/decisions")["decisions"]
    for one in listed:
        reply = world.call(f"/pod.json?pod={one['pod']}", method="GET")
        if reply.status == 200:
            assert one in reply.json["decisions"] or len(reply.json["decisions"]) >= 10
