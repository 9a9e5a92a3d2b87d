"""Seats for pods that do not exist yet: reserved with the gang, taken over by the pods that come, and given up."""

from __future__ import annotations

import orjson
import pytest

from extender.ask.pending import queue
from extender.objects import gangs
from extender.objects.queueing import GATE
from tests.act.queue.rig import OTHER_GATE, PODS, Rig, rig, settings, world_of
from tests.queue.late_owners import OWNERS, LateOwner
from tests.world import JSON, World, pairs, workload

PLAN = "gpu-extender.io/gpus"
IN_ORDER = OWNERS["JobSet, InOrder"]
LEADER_READY = OWNERS["LeaderWorkerSet, LeaderReady"]


def own(one: Rig, owner: LateOwner) -> None:
    for made in owner.objects:
        one.world.set("Group", made)


def absent(one: Rig) -> list[str]:
    return sorted(seat.pod.removeprefix("default/") for seat in one.seats if seat.absent)


def node_of(one: Rig, name: str) -> str:
    return str(one.pod(name)["status"]["nominatedNodeName"])


def filter_names(world: World, pod: JSON) -> list[str]:
    """Where filter passes the pod; nothing is assumed."""
    found = world.filter(pod, ["n1", "n2"])["NodeNames"] or []
    world.verbs.assumed.forget(pod["metadata"]["uid"])
    return list(found)


def ended(one: Rig, cause: str) -> int:
    """Seats that ended for the cause."""
    return int(one.world.metrics.queue_seats_ended.labels(cause)._value.get())


@pytest.mark.parametrize("owner", OWNERS.values(), ids=OWNERS)
async def test_the_first_pods_start_and_the_late_ones_take_their_seats(one: Rig, owner: LateOwner) -> None:
    """What exists is released; the seats of the others are reserved until these come, one after the other."""

    own(one, owner)
    one.create(*(owner.make(name) for name in owner.early))
    await one.turn()
    assert all(one.is_open(name) for name in owner.early)
    assert len(absent(one)) == len(owner.late)
    assert f"seats are reserved for {len(owner.late)} of them, which do not exist yet" in one.told[0][1]
    reserved = {(seat.role, seat.ordinal): (seat.node, seat.gpus) for seat in one.seats if seat.absent}
    for name in owner.early:
        one.bind(name)
    await one.turn(60.0)
    for name in owner.late:
        one.create(owner.make(name))
        await one.turn()
        assert one.is_open(name)
        seat = one.seats.of(f"uid-{name}")
        assert seat is not None
        assert (seat.node, seat.gpus) == reserved.pop((seat.role, seat.ordinal), (seat.node, seat.gpus))
        assert node_of(one, name) == seat.node
        one.bind(name)
    await one.turn()
    assert (len(one.seats), ended(one, "bound")) == (0, len(owner.early) + len(owner.late))


async def test_a_gang_without_room_for_its_late_pods_waits_whole(world: World, one: Rig) -> None:
    own(one, IN_ORDER)
    world.pod("r", 8, "n1")  # eight GPUs are left, the gang asks for twelve
    one.create(IN_ORDER.make("driver-0-0"))
    await one.turn()
    assert not one.is_open("driver-0-0")
    assert len(one.seats) == 0
    (waits,) = one.controller.report.waiting if one.controller.report else ()
    assert (waits.gang.gpus, waits.text) == (12, "2 of 3 pods fit now in the cluster")
    world.gone("r")
    await one.turn()
    assert one.is_open("driver-0-0")


async def test_no_other_pod_gets_the_seat_of_a_pod_that_does_not_exist(world: World, one: Rig) -> None:
    """Twelve of 16 GPUs are the gang's: its leader holds four, eight are reserved."""

    own(one, IN_ORDER)
    one.create(IN_ORDER.make("driver-0-0"))
    await one.turn()
    one.bind("driver-0-0")
    await one.turn()
    assert filter_names(world, workload("big", 8)) == []
    assert len(filter_names(world, workload("small", 4))) == 1
    seat = next(seat for seat in one.seats if seat.ordinal > 0)
    pod = IN_ORDER.make("workers-1-0", gated=False)
    assert filter_names(world, pod) == []  # its own pod waits until it states the seat, and passes there alone
    one.create(pod)
    await one.turn()
    assert filter_names(world, one.pod("workers-1-0")) == [seat.node]


async def test_a_pod_that_was_never_gated_takes_its_seat(one: Rig) -> None:
    own(one, LEADER_READY)
    one.create(LEADER_READY.make("g-0"))
    await one.turn()
    one.bind("g-0")
    one.create(LEADER_READY.make("g-0-2", gated=False))
    await one.turn()
    seat = one.seats.of("uid-g-0-2")
    assert seat is not None
    assert (seat.ordinal, node_of(one, "g-0-2")) == (2, seat.node)
    assert absent(one) == ["g-0-1"]


async def test_a_pod_that_kube_scheduler_bound_before_ends_its_seat(one: Rig) -> None:
    own(one, LEADER_READY)
    one.create(LEADER_READY.make("g-0"))
    await one.turn()
    seat = next(seat for seat in one.seats if seat.ordinal == 1)
    one.create(LEADER_READY.make("g-0-1", gated=False, node=seat.node, phase="Running"))
    await one.turn()
    assert absent(one) == ["g-0-2"]
    assert ended(one, "bound") == 1


async def test_gates_of_others_keep_a_late_pod_from_its_seat(one: Rig) -> None:
    own(one, LEADER_READY)
    one.create(LEADER_READY.make("g-0"))
    await one.turn()
    held = LEADER_READY.make("g-0-1")
    held["spec"]["schedulingGates"] = [{"name": GATE}, {"name": OTHER_GATE}]
    one.create(held)
    await one.turn()
    assert (one.is_open("g-0-1"), absent(one)) == (False, ["g-0-1", "g-0-2"])
    one.create(LEADER_READY.make("g-0-1"))  # they have opened
    await one.turn()
    assert (one.is_open("g-0-1"), absent(one)) == (True, ["g-0-2"])


async def test_a_seat_whose_pod_does_not_come_is_given_up(world: World) -> None:
    async with rig(world_of(chosen=settings(absentSeatSeconds=60))) as one:
        own(one, LEADER_READY)
        one.create(LEADER_READY.make("g-0"))
        await one.turn()
        one.bind("g-0")
        await one.turn(50.0)
        one.create(LEADER_READY.make("g-0-1"))
        await one.turn(50.0)  # the gang comes along: 60 s from here
        assert absent(one) == ["g-0-2"]
        one.bind("g-0-1")
        await one.turn(20.0)
        await one.turn()
        assert (len(one.seats), ended(one, "not-created")) == (0, 1)
        held = one.world.metrics.queue_absent_gpu_seconds._value.get()
        assert held == pytest.approx(4 * (0.2 + 50) + 4 * 0.2 + 4 * 120.2, rel=0.5)
        (event,) = [event for event in one.told if event[0] == "Incomplete"]
        assert "leaderworkerset:default/g/0 is incomplete: 1 pods do not exist after 60 s" in event[1]
        one.create(LEADER_READY.make("g-0-2"))  # later it is placed beside the gang that runs
        await one.turn()
        assert one.is_open("g-0-2")


async def test_seats_of_pods_that_the_owner_lists_no_more_end(world: World, one: Rig) -> None:
    own(one, LEADER_READY)
    one.create(LEADER_READY.make("g-0"))
    await one.turn()
    one.bind("g-0")
    world.drop("Group", LEADER_READY.objects[0])
    await one.turn()
    assert (len(one.seats), ended(one, "deleted")) == (0, 2)


async def test_the_next_holder_of_the_lease_knows_absent_seats(world: World, one: Rig) -> None:
    own(one, IN_ORDER)
    one.create(IN_ORDER.make("driver-0-0"))
    await one.turn()
    one.bind("driver-0-0")
    seats = {(seat.uid, seat.node, seat.gpus, seat.role, seat.ordinal) for seat in one.seats if seat.absent}
    await one.turn()
    other = world_of(chosen=settings())
    other.now, other.wall = world.now + 10, world.wall + 10
    async with rig(other, one.objects, "b") as two:
        own(two, IN_ORDER)
        two.watch()
        for _ in range(12):  # a Lease that is not renewed is free after 15 s
            await two.turn(2.5)
        found = {(seat.uid, seat.node, seat.gpus, seat.role, seat.ordinal) for seat in two.seats}
        assert found == seats
        two.create(IN_ORDER.make("workers-1-0"))
        await two.turn()
        assert two.is_open("workers-1-0")
        assert (node_of(two, "workers-1-0"), len(absent(two))) in {(seat[1], 1) for seat in seats}


async def test_the_other_replicas_keep_pods_off_absent_seats(world: World, one: Rig) -> None:
    own(one, IN_ORDER)
    one.create(IN_ORDER.make("driver-0-0"))
    await one.turn()
    other = world_of(chosen=settings())
    other.now, other.wall = world.now, world.wall
    async with rig(other, one.objects, "b") as two:
        own(two, IN_ORDER)
        two.watch()
        await two.turn()
        assert two.controller.report is None  # the first one has the Lease
        assert absent(two) == ["g-workers-0-0", "g-workers-1-0"]
        assert filter_names(other, workload("big", 8)) == []


async def test_a_late_pod_starts_only_once_its_seat_is_written(one: Rig) -> None:
    """The write fails: the maps are read again, and the pod takes the seat at the next attempt."""

    own(one, IN_ORDER)
    one.create(IN_ORDER.make("driver-0-0"))
    await one.turn()
    one.bind("driver-0-0")
    await one.turn(1.5)
    await one.turn()
    seats = {(seat.node, seat.gpus) for seat in one.seats}
    one.objects.fail = lambda request: 503 if request.method == "PATCH" and "seats-" in request.path else 0
    one.create(IN_ORDER.make("workers-0-0"))
    await one.turn()
    assert not one.is_open("workers-0-0")
    assert "nominatedNodeName" not in one.pod("workers-0-0").get("status", {})
    one.objects.fail = lambda request: 0
    await one.turns(3, 1.5)
    assert one.is_open("workers-0-0")
    assert {(seat.node, seat.gpus) for seat in one.seats} == seats


async def test_absent_seats_on_a_lost_node_are_placed_again(world: World) -> None:
    world.node("n3", 8, links=pairs(8))
    async with rig(world) as one:
        own(one, IN_ORDER)
        one.create(IN_ORDER.make("driver-0-0"))
        await one.turn()
        one.bind("driver-0-0")
        await one.turn()
        lost = {seat.node for seat in one.seats} - {node_of(one, "driver-0-0")}
        for name in lost:
            world.node(name, 8, links=pairs(8), unschedulable=True)
        assert lost
        await one.turn()
        assert len(absent(one)) == 2
        assert not {seat.node for seat in one.seats} & lost


async def test_a_replacement_takes_the_seat_of_its_predecessor(one: Rig) -> None:
    """A late pod is deleted before it is bound; the next pod of its index has another name."""

    own(one, IN_ORDER)
    one.create(IN_ORDER.make("driver-0-0"))
    await one.turn()
    one.bind("driver-0-0")
    one.create(IN_ORDER.make("workers-0-0"))
    await one.turn()
    before = one.seats.of("uid-workers-0-0")
    assert before is not None
    one.delete("workers-0-0")
    await one.turn(20.0)
    assert len(absent(one)) == 2
    again = IN_ORDER.make("workers-0-0")
    again["metadata"] |= {"name": "again", "uid": "uid-again"}
    one.create(again)
    await one.turn()
    after = one.seats.of("uid-again")
    assert after is not None
    assert (after.node, after.gpus) == (before.node, before.gpus)


async def test_a_pod_of_another_shape_has_the_gang_placed_again(one: Rig) -> None:
    """A policy gave the pods fewer GPUs than the template states: no absent seat fits them."""

    own(one, IN_ORDER)
    one.create(IN_ORDER.make("driver-0-0"))
    await one.turn()
    one.bind("driver-0-0")
    await one.turn()
    smaller = IN_ORDER.make("workers-0-0")
    asked = smaller["spec"]["containers"][0]["resources"]
    for part in asked.values():
        part["nvidia.com/gpu"] = "2"
    one.create(smaller)
    await one.turn()
    await one.turn()
    assert one.is_open("workers-0-0")
    assert absent(one) == ["g-workers-1-0"]


async def test_absent_seats_that_are_not_made_again_are_given_up() -> None:
    """A pod of an elastic gang that asks for more than its template states gets the GPUs of the seats of others: no
    pod that comes later takes these over beside it."""
    small = World(settings())
    small.node("n1", 8, links=pairs(8))
    small.node("n2", 2, links=pairs(2))

    def make(name: str, gpus: int) -> JSON:
        made = IN_ORDER.make(name, annotations={"gpu-extender.io/gang-min": "1"})
        for part in made["spec"]["containers"][0]["resources"].values():
            part["nvidia.com/gpu"] = str(gpus)
        return made

    async with rig(small) as one:
        own(one, IN_ORDER)
        one.create(make("driver-0-0", 2))
        await one.turn()
        one.bind("driver-0-0")
        await one.turn()
        assert [(seat.node, seat.gpus) for seat in one.seats] == [("n1", 0x0F), ("n1", 0xF0)]
        one.create(make("workers-0-0", 8))
        await one.turns(2)
        assert [(seat.pod, seat.gpus) for seat in one.seats] == [("default/workers-0-0", 0xFF)]
        one.create(make("workers-1-0", 4))
        await one.turns(3)
        assert one.is_open("workers-0-0")
        assert not one.is_open("workers-1-0")


async def test_a_seat_that_is_placed_again_is_not_beside_one_that_a_held_pod_may_take() -> None:
    """Another controller holds back the pod of one absent seat while the node of the other one is lost."""
    small = World(settings())
    for name, gpus in (("n1", 4), ("n2", 2), ("n3", 4)):
        small.node(name, gpus, links=pairs(gpus))

    async with rig(small) as one:
        own(one, IN_ORDER)
        driver = IN_ORDER.make("driver-0-0")
        for part in driver["spec"]["containers"][0]["resources"].values():
            part["nvidia.com/gpu"] = "2"
        one.create(driver)
        await one.turn()
        one.bind("driver-0-0")
        held = IN_ORDER.make("workers-0-0")
        held["spec"]["schedulingGates"].append({"name": OTHER_GATE})
        one.create(held)
        await one.turn()
        late = next(seat for seat in one.seats if seat.pod.endswith("workers-1-0"))
        small.node(late.node, 4, links=pairs(4), unschedulable=True)
        await one.turns(20)
        places = [(seat.node, seat.gpus) for seat in one.seats]
        assert len(places) == len(set(places))


async def test_quota_counts_pods_that_do_not_exist() -> None:
    """The model's limit is twelve GPUs: with the eight that are reserved nothing more of the queue may start."""
    queues = {"default": {"limitGpus": {"nvidia.com/gpu": 12}}}

    async with rig(world_of(chosen=settings(queues=queues))) as one:
        own(one, IN_ORDER)
        one.create(IN_ORDER.make("driver-0-0"))
        await one.turn()
        one.bind("driver-0-0")
        await one.turn()
        one.create(workload("p", 1, spec={"schedulingGates": [{"name": GATE}]}))
        await one.turn()
        assert not one.is_open("p")
        (waits,) = one.controller.report.waiting if one.controller.report else ()
        assert (waits.code, waits.text) == (
            "quota", "queue default would hold 13 GPUs of model nvidia.com/gpu, its limit is 12"
        )  # fmt: skip


async def test_quota_counts_pods_that_come_between_two_looks_at_their_seats() -> None:
    """They exist, and have not taken over their absent seats yet: the queue holds these."""
    queues = {"default": {"limitGpus": {"nvidia.com/gpu": 12}}}

    async with rig(world_of(chosen=settings(queues=queues))) as one:
        own(one, IN_ORDER)
        one.create(IN_ORDER.make("driver-0-0"))
        await one.turn()
        look = one.controller._strangers.look

        async def meanwhile() -> None:
            """The seats that have ended, and those that are taken over, were looked at in this turn."""
            await look()
            if f"{PODS}/p" not in one.objects.stored:
                one.bind("driver-0-0")
                one.create(*(IN_ORDER.make(name) for name in IN_ORDER.late))
                one.create(workload("p", 1, spec={"schedulingGates": [{"name": GATE}]}))

        one.controller._strangers.look = meanwhile  # type: ignore[method-assign]
        await one.turn()
        assert not one.is_open("p")
        await one.turn()
        assert (one.is_open("p"), one.is_open("workers-0-0"), one.is_open("workers-1-0")) == (False, True, True)


async def test_a_template_that_cannot_be_read_is_told(world: World, one: Rig) -> None:
    broken: JSON = {**LEADER_READY.objects[0]}
    broken["spec"] = {"startupPolicy": "LeaderReady", "leaderWorkerTemplate": {"size": 3}}
    world.set("Group", broken)
    one.create(LEADER_READY.make("g-0"))
    await one.turn()
    assert one.is_open("g-0")
    assert absent(one) == []
    (event,) = [event for event in one.told if event[0] == "Started"]
    assert "no seats are reserved for the pods that its owner creates later: its pod templates" in event[1]


async def test_the_page_names_absent_seats(world: World, one: Rig) -> None:
    own(one, LEADER_READY)
    one.create(LEADER_READY.make("g-0"))
    await one.turn()
    one.bind("g-0")
    await one.turn()
    page = orjson.dumps(queue(one.controller.report, world.verbs.claims, world.cluster, "default"))
    assert page.count(b'"absent":true') == 2
    assert b'"pod":"default/g-0-1"' in page
    assert gangs.Ref.of(next(iter(one.seats.gangs))).part == "0"
