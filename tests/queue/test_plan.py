"""What starts next: order, quota and backfill over the real placement on a small cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from extender.objects.pods import SEAT_TEXT
from extender.queue.placement import JointPlacement
from extender.queue.plan import Planner
from extender.settings import Settings
from tests.act.queue.rig import gated
from tests.objects.test_gangs import obj
from tests.world import World, machine, pairs, rfc3339, workload

NOTHING: Mapping[str, str] = {}
HEAD = {"apiVersion": "gpu-extender.io/v1", "kind": "GpuExtenderConfiguration"}


def cluster(nodes: int, **queue: Any) -> World:
    made = World(Settings.model_validate({**HEAD, "queue": {"enabled": True, **queue}}))
    for i in range(nodes):
        made.node(f"n{i}", 8, links=pairs(8))
    return made


def wait(
    world: World,
    name: str,
    pods: int,
    gpus: int,
    age: float,
    *,
    duration: str = "",
    notes: Mapping[str, str] = NOTHING,
    apart: str = "",
    **facts: Any,
) -> None:
    """A gang of pods that has waited for `age` seconds. `notes`: further annotations; `apart`: of which label `app` no
    two are on one node."""
    notes = {"gpu-extender.io/gang": name, "gpu-extender.io/gang-size": str(pods), **notes}
    if duration:
        notes["gpu-extender.io/duration"] = duration
    for i in range(pods):
        pod = gated(f"{name}-{i}", gpus, annotations=notes, **facts)
        pod["metadata"]["creationTimestamp"] = rfc3339(world.wall - age)
        pod["spec"] |= repels(apart) if apart else {}
        world.set("Pod", pod)


def look(world: World) -> tuple[list[str], dict[str, Any]]:
    """(the gangs that start, in order; of each other one why it waits, behind which, and its earliest start)."""
    placement = JointPlacement(world.cluster, world.verbs.policy)
    planner = Planner(world.cluster, world.verbs.claims, placement, lambda: world.now, lambda: world.wall)
    started = []
    for start in planner.looks({}):
        if start is not None:
            started.append(start.gang.ref.name)
    waits = {
        one.gang.ref.name: (one.code, one.blocked_by, None if one.start is None else one.start - world.wall)
        for one in planner.report.waiting
    }
    return started, waits


def texts(world: World) -> dict[str, str]:
    """Why each gang waits, for people."""
    placement = JointPlacement(world.cluster, world.verbs.policy)
    planner = Planner(world.cluster, world.verbs.claims, placement, lambda: world.now, lambda: world.wall)
    assert [start for start in planner.looks({}) if start is not None] == []
    return {one.gang.ref.name: one.text for one in planner.report.waiting}


@pytest.fixture
def world() -> World:
    return cluster(2)


def test_what_starts_in_a_look_counts_for_the_head_of_the_same_look(world: World) -> None:
    # a takes n0 for 600 s. b needs both nodes: it starts in 600 s. c ends in 300 s, and takes n1. d states no end.
    wait(world, "a", 1, 8, 400, duration="10m")
    wait(world, "b", 2, 8, 300)
    wait(world, "d", 1, 8, 200)
    wait(world, "c", 1, 8, 100, duration="5m")
    started, waits = look(world)
    assert (started, waits) == (["a", "c"], {"b": ("head", "", 600.0), "d": ("place", "", None)})


def test_seats_of_an_earlier_look_end_too(world: World) -> None:
    wait(world, "a", 1, 8, 400, duration="10m")
    assert look(world)[0] == ["a"]
    wait(world, "b", 2, 8, 300)
    wait(world, "d", 1, 8, 200)
    assert look(world) == ([], {"b": ("head", "", 600.0), "d": ("delays", "default/b", None)})


@pytest.mark.parametrize(
    ("reason", "message"), [("Unschedulable", "no CPU"), ("SchedulerError", f"gpu-extender: {SEAT_TEXT}")]
)
def test_no_start_is_stated_where_a_pod_is_rejected_on_its_seat(world: World, reason: str, message: str) -> None:
    """When it starts is not known, and so not when it ends."""
    wait(world, "a", 1, 8, 400, duration="10m")
    assert look(world)[0] == ["a"]
    notes = {"gpu-extender.io/gang": "a", "gpu-extender.io/gang-size": "1", "gpu-extender.io/duration": "10m"}
    rejected = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    pod = workload("a-0", 8, annotations=notes)
    pod["status"]["conditions"] = [rejected]
    world.set("Pod", pod)
    wait(world, "b", 2, 8, 300)
    assert look(world) == ([], {"b": ("head", "", None)})


@pytest.mark.parametrize("lost", ["cordoned", "gone"])
def test_no_start_is_stated_while_a_gang_has_lost_its_seat(world: World, lost: str) -> None:
    """It gets another one before the head, also on the nodes that the head waits for."""
    world.pod("r", 8, "n1", start=world.wall, annotations={"gpu-extender.io/duration": "5m"})
    wait(world, "a", 1, 8, 400, duration="10m")
    assert look(world)[0] == ["a"]
    wait(world, "b", 1, 8, 300)
    start = look(world)[1]["b"][2]
    assert start is not None
    if lost == "gone":
        world.drop("Node", machine("n0"))
    else:
        world.set("Node", machine("n0", unschedulable=True))
    assert look(world) == ([], {"b": ("head", "", None)})
    assert "gangs that lost seats get others first: gpu-extender:default/a" in texts(world)["b"]


def test_a_higher_priority_is_first() -> None:
    world = cluster(1)
    wait(world, "low", 1, 8, 400)
    wait(world, "high", 1, 8, 100, priority=10)
    started, waits = look(world)
    assert (started, waits["low"][0]) == (["high"], "head")


def test_the_queue_with_the_lower_share_is_first() -> None:
    world = cluster(3)
    world.pod("r", 8, "n0", labels={"gpu-extender.io/queue": "rich"})
    wait(world, "a", 2, 8, 400, labels={"gpu-extender.io/queue": "rich"})
    wait(world, "b", 2, 8, 100, labels={"gpu-extender.io/queue": "poor"})
    assert look(world)[0] == ["b"]


def test_the_share_is_of_what_was_held_on_average_where_the_setting_says_so() -> None:
    """The gang of rich is the older one, and neither queue holds GPUs. Rich held all until now: poor is first."""

    def first(half_life: float, step: float = 60.0) -> list[str]:
        world = cluster(1, useHalfLifeSeconds=half_life)
        placement = JointPlacement(world.cluster, world.verbs.policy)
        planner = Planner(world.cluster, world.verbs.claims, placement, lambda: world.now, lambda: world.wall)
        world.pod("r", 8, "n0", labels={"gpu-extender.io/queue": "rich"})
        wait(world, "a", 1, 8, 400, labels={"gpu-extender.io/queue": "rich"})
        wait(world, "b", 1, 8, 100, labels={"gpu-extender.io/queue": "poor"})
        assert not any(planner.looks({}))
        world.now, world.wall = world.now + 60, world.wall + step
        world.gone("r")
        return [start.gang.ref.name for start in planner.looks({}) if start is not None]

    assert first(0) == ["a"]
    assert first(600) == ["b"]
    assert first(600, -300.0) == ["b"], "the wall clock is set back"


def test_a_queue_stays_within_its_limit() -> None:
    world = cluster(3, queues={"team": {"limitGpus": {"nvidia.com/gpu": 8}}})
    for name in "ab":
        wait(world, name, 1, 8, 100, labels={"gpu-extender.io/queue": "team"})
    started, waits = look(world)
    assert (started, waits) == (["a"], {"b": ("quota", "", None)})


def test_strict_lets_no_gang_pass_the_head() -> None:
    world = cluster(2, strict=True)
    world.pod("r", 8, "n0")
    wait(world, "b", 2, 8, 300)
    wait(world, "c", 1, 8, 100, duration="5m")
    started, waits = look(world)
    assert (started, waits["c"]) == ([], ("order", "default/b", None))


def test_gangs_of_one_kind_that_have_no_place_are_placed_once() -> None:
    world = cluster(1)
    world.pod("r", 8, "n0")
    for i in range(20):
        world.set("Pod", gated(f"p{i}", 1))
    started, waits = look(world)
    assert started == []
    assert {code for code, _, _ in waits.values()} == {"head", "place"}


def test_an_in_tree_group_starts_with_all_of_its_pods_or_none() -> None:
    """Two of three must run, and there is room for two. Pods of another source start at their minimum."""
    world = cluster(1)
    spec = {"schedulingPolicy": {"gang": {"minCount": 2}}}
    world.set("Group", obj("scheduling.k8s.io/v1beta1", "PodGroup", "g", spec))
    for i in range(3):
        made = gated(f"g-{i}", 4)
        made["spec"]["schedulingGroup"] = {"podGroupName": "g"}
        world.set("Pod", made)
    started, waits = look(world)
    assert (started, waits["g"][0]) == ([], "never")
    world.node("n1", 8, links=pairs(8))
    assert look(world)[0] == ["g"]


def crowded(**queue: Any) -> World:
    """Two nodes with free GPUs, and pods without GPUs that hold most of the CPU: on n1 for ten minutes."""
    world = cluster(2, **queue)
    for name in ("web-a", "web-b"):
        world.pod(name, 0, "n0", cpu="20")
    world.pod("batch", 0, "n1", cpu="40", start=world.wall, annotations={"gpu-extender.io/duration": "10m"})
    return world


def test_a_gang_that_lacks_the_cpu_of_pods_without_gpus_waits_for_them() -> None:
    world = crowded()
    wait(world, "a", 1, 1, 100, cpu="40")
    assert look(world) == ([], {"a": ("head", "", 600.0)})  # of the two nodes that one of which the end is known


def test_it_waits_for_gpu_pods_too_where_it_needs_their_room() -> None:
    world = crowded()
    world.pod("r", 8, "n1", cpu="1", start=world.wall, annotations={"gpu-extender.io/duration": "20m"})
    wait(world, "a", 2, 8, 100, cpu="40")
    assert look(world) == ([], {"a": ("head", "", None)})
    assert "default/batch, default/web-a, default/web-b" in texts(world)["a"]


def test_a_gang_for_which_no_node_is_large_enough_does_not_wait_for_them() -> None:
    world = crowded()
    wait(world, "a", 1, 1, 100, cpu="65")
    assert look(world) == ([], {"a": ("never", "", None)})


@pytest.mark.parametrize("ends", [False, True])
def test_what_fits_nowhere_states_how_many_pods_fit_once_all_has_ended(world: World, ends: bool) -> None:
    """First in order, and behind a head that waits for the running pod."""
    world.pod("r", 8, "n1", start=world.wall)
    if ends:
        wait(world, "head", 2, 8, 200)
    wait(world, "a", 3, 8, 100)
    assert look(world)[1]["a"][0] == "never"
    assert texts(world)["a"] == "2 of 3 pods fit in the cluster, whatever ends there"


def test_pods_of_daemonsets_and_static_pods_never_end() -> None:
    world = cluster(1)
    world.set("Pod", workload("agent", 0, node="n0", phase="Running", cpu="40", owner="DaemonSet"))
    wait(world, "a", 1, 1, 100, cpu="40")
    assert look(world) == ([], {"a": ("never", "", None)})


def test_a_gang_that_finds_no_gpus_with_nics_holds_up_none_that_needs_no_nics() -> None:
    """Both ask for the same but for NICs, and no NICs are known."""
    required = {"gpu-extender.io/nics": "required"}
    for pods in (1, 2):
        world = cluster(1)
        wait(world, "a", pods, 2, 200, notes=required)
        wait(world, "b", pods, 2, 100)
        started, waits = look(world)
        assert started == ["b"]
        assert waits["a"][0] == "never"


def repels(app: str) -> dict[str, Any]:
    term = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": "kubernetes.io/hostname"}
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


@pytest.mark.parametrize("size", [1, 2])
def test_pods_that_a_running_pod_tells_apart_by_labels_are_not_of_one_kind(size: int) -> None:
    """The running pod repels app=db. A pod with this label fits nowhere, in whichever order; the others start."""
    for ages in ((300, 100), (100, 300)):
        world = cluster(1)
        world.set("Pod", workload("r", 1, node="n0", phase="Running", spec=repels("db")))
        wait(world, "db", size, 1, ages[0], labels={"app": "db"})
        wait(world, "web", size, 1, ages[1], labels={"app": "web"})
        started, waits = look(world)
        assert (started, waits["db"][0]) == (["web"], "never")


def test_pods_of_equal_requests_keep_to_the_anti_affinity_of_their_gang(world: World) -> None:
    """Leader and workers ask for the same. Each repels workers; then the leader does not."""
    for i, role in enumerate(("leader", "worker", "worker")):
        notes = {"gpu-extender.io/gang": "g", "gpu-extender.io/gang-size": "3"}
        pod = gated(f"g-{i}", 1, annotations=notes, labels={"app": role})
        pod["spec"] |= repels("worker")
        world.set("Pod", pod)
    assert look(world) == ([], {"g": ("never", "", None)}), "it needs three nodes"
    leader = gated("g-0", 1, annotations=notes, labels={"app": "leader"})
    leader["metadata"]["resourceVersion"] = "2"
    world.set("Pod", leader)
    assert look(world)[0] == ["g"]
    nodes = {seat.pod: seat.node for seat in world.verbs.claims.seats}
    assert nodes["default/g-1"] != nodes["default/g-2"]


def test_a_gang_that_lacks_pods_is_behind_one_of_a_higher_priority() -> None:
    """Else a large Job that is being remade pod by pod would keep an urgent gang from its turn."""
    low = {"gpu-extender.io/gang": "low", "gpu-extender.io/gang-size": "3"}
    for priority, expected in ((0, "low"), (10, "urgent")):
        other = cluster(2)
        other.pod("r", 8, "n1", start=other.wall)
        other.pod("low-0", 8, "n0", annotations=low, start=other.wall)
        for i in (1, 2):
            other.set("Pod", gated(f"low-{i}", 8, annotations=low))
        wait(other, "urgent", 1, 8, 900, priority=priority)
        started, waits = look(other)
        assert (started, [name for name, why in waits.items() if why[0] == "head"]) == ([], [expected])


def test_planned_positions_are_not_certain_for_a_head_that_requires_links() -> None:
    """The head starts once the running pod has ended. By their plans four more GPUs fit beside it, and leave linked
    ones; but nothing observes which these are, so the head's links would not be certain for 90 hours."""
    for links, expected in (("required", ([], "delays")), ("preferred", (["long"], None))):
        world = cluster(1)
        ends = {"gpu-extender.io/duration": "1h"}
        world.pod("r", 2, "n0", cpu="60", annotations=ends, start=world.wall)
        wait(world, "head", 1, 2, 300, cpu="8", notes={"gpu-extender.io/links": links})
        wait(world, "long", 2, 2, 100, duration="90h")
        started, waits = look(world)
        assert waits["head"] == ("head", "", 3600.0)
        assert (started, waits["long"][0] if "long" in waits else None) == expected


def test_a_gang_behind_the_head_that_can_never_start_is_reported_so(world: World) -> None:
    world.pod("r", 4, "n0", start=world.wall)
    wait(world, "head", 2, 8, 300)
    wait(world, "never", 3, 8, 200)
    wait(world, "later", 2, 8, 100)
    started, waits = look(world)
    assert (started, {name: why[0] for name, why in waits.items()}) == (
        [],
        {"head": "head", "never": "never", "later": "place"},
    )


def test_the_share_counts_also_within_a_look(world: World) -> None:
    """16 GPUs are free. The older gangs of one queue would take all of them in one look."""
    for i in range(20):
        wait(world, f"burst{i:02}", 1, 1, 200 - i, labels={"gpu-extender.io/queue": "burst"})
        wait(world, f"other{i:02}", 1, 1, 100 - i, labels={"gpu-extender.io/queue": "other"})
    started, waits = look(world)
    assert started == [name for i in range(8) for name in (f"burst{i:02}", f"other{i:02}")]
    assert next(iter(waits)) == "burst08"
    assert waits["burst08"][0] == "head"
