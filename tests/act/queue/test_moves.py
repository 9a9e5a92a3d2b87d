"""A gang that is placed again: no GPU is stated by two pods at any moment, whatever fails in between."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from extender.act.queue.seat_store import SeatEntries
from extender.cluster.statements import gpus_of
from extender.objects.pods import MOVING_TEXT, SEAT_TEXT
from tests.act.queue.rig import PODS, SIGNS_PATH, Rig
from tests.act.queue.test_controller import PLAN, gang
from tests.kube.api_server import Request
from tests.kube.objects import Objects
from tests.world import World, machine, pairs

UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}


def stated(objects: Objects) -> dict[tuple[str, str], list[str]]:
    """(node, planned GPU) -> the pods that state it, by the API server."""
    found: dict[tuple[str, str], list[str]] = {}
    for path, pod in objects.stored.items():
        if not path.startswith(PODS):
            continue
        node = pod["spec"].get("nodeName") or pod["status"].get("nominatedNodeName")
        for gpu in filter(None, (pod["metadata"].get("annotations") or {}).get(PLAN, "").split(",")):
            if node:
                found.setdefault((node, gpu), []).append(path.removeprefix(f"{PODS}/"))
    return found


def follow(one: Rig, fail: Any = lambda request: 0) -> list[list[str]]:
    """Look before each request who states what; the pods that state one GPU. The watch brings each write at once."""
    twice: list[list[str]] = []

    def look(request: Request) -> int:
        one.watch()
        twice.extend(pods for pods in stated(one.objects).values() if len(pods) > 1)
        return int(fail(request))

    one.objects.fail = look
    return twice


def condition(one: Rig, name: str, **facts: str) -> None:
    """kube-scheduler has tried the pod, and withdrawn its nomination."""
    pod = one.pod(name)
    status = {**pod["status"], "conditions": [{**UNSCHEDULABLE, **facts}]}
    status.pop("nominatedNodeName", None)
    one.objects.put(f"{PODS}/{name}", {**pod, "status": status})
    one.watch()


def seats(one: Rig) -> dict[str, tuple[str, int]]:
    return {seat.pod.partition("/")[2]: (seat.node, seat.gpus) for seat in one.seats}


async def released(one: Rig, pods: int = 4) -> list[Any]:
    """A gang of pods with four GPUs, whose gates are open."""
    made = gang("g", pods, 4)
    one.create(*made)
    await one.turns(3)
    assert all(one.is_open(f"g-{i}") for i in range(pods))
    return made


def lose(world: World, name: str) -> None:
    """The node is gone, and another one has come."""
    world.node("n3", 8, links=pairs(8))
    world.drop("Node", machine(name, 8, links=pairs(8)))


@pytest.mark.parametrize("conflicts", [0, 1, 3])
async def test_no_gpu_is_stated_twice_while_a_gang_moves(world: World, one: Rig, conflicts: int) -> None:
    """kube-scheduler writes the status of each pod at the same time: the first writes are conflicts."""

    await released(one)
    left = {f"{PODS}/g-{i}/status": conflicts for i in range(4)}

    def conflict(request: Request) -> int:
        if request.method == "PATCH" and left.get(request.path, 0) > 0:
            left[request.path] -= 1
            path = request.path.removesuffix("/status")
            one.objects.put(path, one.objects.stored[path])  # its version moves on
        return 0

    twice = follow(one, conflict)
    lose(world, "n1")
    await one.turns(4)
    assert twice == []
    now = {f"g-{i}": one.pod(f"g-{i}") for i in range(4)}
    places = {(pod["status"]["nominatedNodeName"], pod["metadata"]["annotations"][PLAN]) for pod in now.values()}
    assert (len(places), {node for node, _ in places}) == (4, {"n2", "n3"})


async def test_pods_that_swap_nodes_state_no_seat_in_between(world: World, one: Rig) -> None:
    """The last pod of the gang cannot be written for a while: its siblings do not get the GPUs that it states."""

    await released(one)
    before = seats(one)
    stays = next(name for name, (node, _) in before.items() if node == "n2")

    def refuse(request: Request) -> int:
        return 500 if request.method == "PATCH" and request.path == f"{PODS}/{stays}/status" else 0

    twice = follow(one, refuse)
    planner: Any = one.controller.planner
    again = planner.again

    def swapped(name: str, held: Any, fixed: Any) -> Any:
        """All pods change their places among each other."""
        made = yield from again(name, held, fixed)
        if isinstance(made, str):
            return made
        places = [(seat.node, seat.gpus) for seat in made]
        return tuple(
            seat._replace(node=node, gpus=gpus)
            for seat, (node, gpus) in zip(made, places[1:] + places[:1], strict=True)
        )

    planner.again = swapped
    lose(world, "n1")
    await one.turns(6)
    assert twice == []
    assert seats(one)[stays] == before[stays]  # no seat is reserved before the old ones are stated no more
    one.objects.fail = lambda request: 0
    twice = follow(one)
    await one.turns(12)
    assert twice == []
    assert len(set(seats(one).values())) == 4
    assert all(len(pods) == 1 for pods in stated(one.objects).values())
    assert len(stated(one.objects)) == 16


@pytest.mark.parametrize(
    ("why", "moves"),
    [
        ({"reason": "SchedulerError", "message": 'Post "http://e/v1/filter": connect: connection refused'}, False),
        (
            {"reason": "SchedulerError", "message": "failed filter with extender at URL http://e/v1/filter, code 503"},
            False,
        ),
        ({"reason": "SchedulerError", "message": "gpu-extender: the API server is silent"}, False),
        ({"reason": "Unschedulable", "message": "0/2 nodes are available: 2 Insufficient cpu."}, True),
        (
            {
                "reason": "SchedulerError",
                "message": f"gpu-extender: {SEAT_TEXT}",
            },
            True,
        ),
        (
            {
                "reason": "Unschedulable",
                "message": "0/2 nodes are available: 2 gpu-extender: " + MOVING_TEXT,
            },
            False,
        ),
    ],
)
async def test_a_call_that_failed_is_no_rejection_of_the_seat(one: Rig, why: dict[str, str], moves: bool) -> None:
    """kube-scheduler could not ask a server that was killed: the seats stand, and the gang is not placed again."""

    await released(one, pods=2)
    before = seats(one)
    placed: list[str] = []
    planner: Any = one.controller.planner
    again = planner.again

    def count(name: str, held: Any, fixed: Any) -> Any:
        placed.append(name)
        return (yield from again(name, held, fixed))

    planner.again = count
    for name in before:
        condition(one, name, **why)
    await one.turns(20)
    assert bool(placed) is moves
    assert seats(one) == before
    assert all(one.pod(name)["status"]["nominatedNodeName"] == node for name, (node, _) in before.items())


async def test_a_conflict_is_tried_again_at_once(one: Rig) -> None:
    """Within the turn that met it: a second of waiting is a second in which a pod states what it has lost."""

    one.create(*gang("g", 2, 4))
    left = [3]

    def conflict(request: Request) -> int:
        if request.method == "PATCH" and request.path == f"{PODS}/g-0/status" and left[0]:
            left[0] -= 1
            one.objects.put(f"{PODS}/g-0", one.pod("g-0"))
            one.watch()
        return 0

    one.objects.fail = conflict
    await one.controller.turn()
    assert [one.is_open("g-0"), one.is_open("g-1")] == [True, True]


def seats_of_maps(one: Rig) -> Counter[tuple[str, int]]:
    """How many seats the ConfigMaps state for each planned GPU."""
    entries = SeatEntries(one.world.cluster.resources, lambda: one.world.wall - one.world.now)
    maps = [found for path, found in one.objects.stored.items() if "/configmaps/seats-" in path and path != SIGNS_PATH]
    texts = [text for one_map in maps for text in (one_map.get("data") or {}).values()]
    seats = [seat for text in texts for seat in entries.seats(text, one.world.now)]
    return Counter((seat.node, gpu) for seat in seats for gpu in gpus_of(seat.gpus))


async def test_the_maps_never_state_one_gpu_twice_while_gangs_move_together(world: World, one: Rig) -> None:
    """One gang gets what another one gives up in the same look. Each is in a map of its own, and the instance may end
    between the two writes."""
    for name in ("n3", "n4"):
        world.node(name, 8, links=pairs(8))

    twice: list[Any] = []

    def look(request: Request) -> int:
        twice.extend(gpu for gpu, count in seats_of_maps(one).items() if count > 1)
        return 0

    for name in ("a", "b"):
        one.create(*gang(name, 1, 8))
        await one.turns(2)
    before = seats(one)
    assert len({shard for shard, found in one.objects.stored.items() if found.get("data")} - {SIGNS_PATH}) == 2
    one.objects.fail = look
    planner: Any = one.controller.planner
    free = next(name for name in ("n1", "n2", "n3", "n4") if name not in {node for node, _ in before.values()})
    places = {"label:default/a": free, "label:default/b": before["a-0"][0]}

    def again(name: str, held: Any, fixed: Any) -> Any:
        yield
        return tuple(seat._replace(node=next(v for k, v in places.items() if k[-1] == name[-1])) for seat in held)

    planner.again = again
    # The second one is written first where both are written together.
    keep = one.controller._acting.store.keep
    store: Any = one.controller._acting.store
    store.keep = lambda gangs: keep(sorted(gangs, reverse=True))
    for node, _ in before.values():
        world.node(node, 8, links=pairs(8), unschedulable=True)
    await one.turn()
    assert {name: node for name, (node, _) in seats(one).items()} == {"a-0": free, "b-0": before["a-0"][0]}
    assert seats_of_maps(one).total() == 16
    assert twice == []


async def test_a_pod_keeps_the_node_where_pods_are_evicted_for_it(world: World, one: Rig) -> None:
    """Its seat was taken while its gate opened, and kube-scheduler evicts for it elsewhere. The queue does not nominate
    it back to its seat, and gives no other gang what the evicted pod leaves: else the next eviction is in vain, too."""

    world.pod("low", 8, node="n2", priority=0)
    one.create(*gang("g", 1, 8, priority=10))
    await one.turns(3)
    assert (one.is_open("g-0"), one.pod("g-0")["status"]["nominatedNodeName"]) == (True, "n1")

    world.pod("foreign", 8, node="n1", priority=10)
    world.pod("low", 8, node="n2", priority=0, terminating=world.wall + 30)
    tried = {**one.pod("g-0")["status"], "conditions": [UNSCHEDULABLE], "nominatedNodeName": "n2"}
    one.objects.put(f"{PODS}/g-0", {**one.pod("g-0"), "status": tried})
    one.watch()
    for _ in range(20):
        await one.turn()
        assert one.pod("g-0")["status"]["nominatedNodeName"] == "n2"

    world.gone("low")
    one.create(*gang("again", 1, 8))  # its owner has made it anew
    await one.turns(5)
    assert seats(one) == {"g-0": ("n2", 255)}
    assert not one.is_open("again-0")
