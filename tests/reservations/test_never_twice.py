"""preempt over time: a need is met once, a plan lasts while it is true, and what is old or stuck does not count."""

from __future__ import annotations

from typing import Any

import pytest

from extender.preemption import preemption
from extender.preemption.search import VictimSearch
from tests.world import GPU, JSON, TEXT, WALL, World, pairs, refused, workload

LONG_AGO = WALL - 10_000


def urgent(gpus: int = 8, **facts: Any) -> JSON:
    return workload("p", gpus, priority=100, **facts)


def two_full_nodes() -> World:
    """v1 is cheaper than v2; the preemptor is known."""
    world = World()
    for i in (1, 2):
        world.node(f"n{i}", 8)
        world.pod(f"v{i}", 8, f"n{i}", priority=i, start=WALL)
    world.set("Pod", urgent())
    return world


OFFER = {"n1": ["v1"], "n2": ["v2"]}


# -- what the pod's latest filter call said ----------------------------------------------------------------------------


def test_nobody_goes_while_feasible_nodes_were_left_out_of_the_shortlist(world: World) -> None:
    world.node("full", 8)
    world.pod("v", 8, "full")
    free = [f"n{i:02}" for i in range(40)]
    for name in free:
        world.node(name, 8)
    assert len(world.filter(urgent(), free)["NodeNames"]) == 16
    assert world.preempt(urgent(), {"full": ["v"]}) == {}
    assert len(world.filter(urgent(), free)["NodeNames"]) == 40  # now another filter refuses them all
    assert world.preempt(urgent(), {"full": ["v"]}) == {"full": ["v"]}


def test_a_doubt_of_another_cycle_does_not_count(world: World) -> None:
    world.node("n", 8)
    world.pod("v", 8, "n")
    assert world.filter(urgent(), ["n", "joining"])["Error"]
    world.now += 1.9
    assert world.preempt(urgent(), {"n": ["v"]}) == {}
    world.now += 0.2
    assert world.preempt(urgent(), {"n": ["v"]}) == {"n": ["v"]}


def test_a_doubt_ends_after_a_minute_even_if_its_cause_changes(world: World) -> None:
    world.node("n", 8)
    world.pod("v", 8, "n")
    for i in range(13):
        assert world.filter(urgent(), ["n", f"joining-{i}"])["Error"]
        assert world.preempt(urgent(), {"n": ["v"]}) == {}
        world.now += 5
    assert world.filter(urgent(), ["n", "joining-13"])["Error"] == ""
    assert world.preempt(urgent(), {"n": ["v"]}) == {"n": ["v"]}


@pytest.mark.parametrize(("later", "cordoned", "node"), [(1, False, "n1"), (3, False, "n2"), (1, True, "n2")])
def test_a_node_refused_for_links_is_legal_in_that_cycle_only(later: float, cordoned: bool, node: str) -> None:
    world = World()
    world.node("n1", 4, links=pairs(4))
    world.node("n2", 4, links=pairs(4))
    world.pod("a", 1, "n1", held=[0])
    world.pod("b", 1, "n1", held=[2])
    world.pod("c", 4, "n2", priority=5, held=range(4))
    pod = urgent(2, links="required")
    assert refused(world.filter(pod, ["n1"])) == {"n1": TEXT["links-busy"]}
    world.now += later
    if cordoned:
        world.node("n1", 4, links=pairs(4), unschedulable=True)
    assert list(world.preempt(pod, {"n2": ["c"]})) == [node]


def test_a_node_name_that_is_used_again_is_strange_again(world: World) -> None:
    world.node("full", 8)
    world.pod("v", 8, "full")
    assert world.filter(workload("q", 8), ["new"])["Error"]
    new = world.node("new", 8)
    world.drop("Node", new)
    world.now += 10_000
    assert world.filter(urgent(), ["new"])["Error"]
    assert world.preempt(urgent(), {"full": ["v"]}) == {}


# -- who is offered ----------------------------------------------------------------------------------------------------

OTHERS = ["rdma/hca", "ephemeral-storage", "hugepages-2Mi"]


@pytest.mark.parametrize("where", ["requests", "limits", "overhead"])
@pytest.mark.parametrize("other", OTHERS)
def test_the_offer_is_the_floor_where_another_resource_is_asked_for(world: World, other: str, where: str) -> None:
    world.node("n", 8)
    world.pod("has-it", 4, "n", priority=10, start=WALL)
    world.pod("cheap", 4, "n", priority=0, start=WALL)
    resources: dict[str, dict[str, str]] = {"limits": {GPU: "4"}, "requests": {GPU: "4"}}
    spec: JSON = {"containers": [{"name": "c", "resources": resources}]}
    (spec.setdefault("overhead", {}) if where == "overhead" else resources[where])[other] = "1"
    assert world.preempt(urgent(4, spec=spec), {"n": ["has-it"]}) == {"n": ["has-it"]}


# -- plans -------------------------------------------------------------------------------------------------------------


def test_while_a_plan_stands_on_a_pair_machine_nobody_lower_breaks_the_pair(world: World) -> None:
    world.node("n", 4, links=pairs(4))
    world.pod("stays", 1, "n", priority=1000, held=[0])
    world.pod("v", 1, "n", held=[2])
    pod = world.set("Pod", urgent(2, links="required"))
    assert world.preempt(pod, {"n": ["v"]}) == {"n": ["v"]}
    for nominated in ("", "n"):
        pod = world.set("Pod", urgent(2, links="required", nominated=nominated))
        world.gone(*[there.name for there in world.cluster.pods_on("n") if there.name == "v"])
        lower = workload("lower", 1)  # three GPUs are free, it would leave two: 1 and 2, or 1 and 3
        assert refused(world.filter(lower, ["n"])) == {"n": TEXT["gpus-reserved"]}
    assert world.filter(pod, ["n"])["NodeNames"] == ["n"]
    world.verbs.assumed.forget("uid-p")
    assert world.filter(workload("higher", 1, priority=101), ["n"])["NodeNames"] == ["n"]


def test_time_to_carry_a_plan_out_counts_from_the_last_victims_end() -> None:
    world = two_full_nodes()
    assert world.preempt(urgent(), OFFER) == {"n1": ["v1"]}
    world.pod("v1", 8, "n1", priority=1, start=WALL, terminating=WALL + 30)
    world.now += 30
    world.gone("v1")
    world.node("n1", 8, unschedulable=True)
    assert world.preempt(urgent(), {"n2": ["v2"]}) == {}
    world.now += 4.9
    assert world.preempt(urgent(), {"n2": ["v2"]}) == {}
    world.now += 0.2
    assert world.preempt(urgent(), {"n2": ["v2"]}) == {"n2": ["v2"]}


def test_a_standing_plan_ends_when_its_node_is_cordoned() -> None:
    world = two_full_nodes()
    assert world.preempt(urgent(), OFFER) == {"n1": ["v1"]}
    assert world.preempt(urgent(), {"n2": ["v2"]}) == {"n1": ["v1"]}
    world.node("n1", 8, unschedulable=True)
    assert world.preempt(urgent(), {"n2": ["v2"]}) == {"n2": ["v2"]}


def test_a_standing_plan_ends_when_a_higher_pod_takes_its_gpus() -> None:
    world = two_full_nodes()
    world.pod("v1", 4, "n1", priority=1, start=WALL)
    assert world.preempt(urgent(), OFFER) == {"n1": ["v1"]}
    world.pod("higher", 4, "n1", priority=1000)
    assert world.preempt(urgent(), {"n2": ["v2"]}) == {"n2": ["v2"]}


def test_a_plan_that_is_never_carried_out_reserves_nothing_after_10_seconds() -> None:
    world = two_full_nodes()
    world.pod("v1", 4, "n1", priority=1, start=WALL)
    assert world.preempt(urgent(), OFFER) == {"n1": ["v1"]}
    lower = workload("lower", 4)
    world.now += 9.9
    assert refused(world.filter(lower, ["n1"])) == {"n1": TEXT["gpus-reserved"]}
    world.now += 0.2
    assert world.filter(lower, ["n1"])["NodeNames"] == ["n1"]


def test_a_plan_that_was_carried_out_reserves_for_a_minute() -> None:
    world = two_full_nodes()
    assert world.preempt(urgent(), OFFER) == {"n1": ["v1"]}
    world.pod("v1", 8, "n1", priority=1, start=WALL, terminating=WALL + 30)
    world.now += 30
    world.gone("v1")
    for seconds in (0, 59):
        world.now += seconds
        assert refused(world.filter(workload("lower", 4), ["n1"])) == {"n1": TEXT["gpus-reserved"]}
    world.now += 2
    assert world.filter(workload("lower", 4), ["n1"])["NodeNames"] == ["n1"]


# -- pods that are ending ----------------------------------------------------------------------------------------------


def test_a_pod_stuck_in_terminating_does_not_hold_evictions_up(world: World) -> None:
    world.node("n1", 8)
    world.node("n2", 8)
    world.pod("v1", 8, "n1", start=WALL)
    world.pod("stuck", 4, "n2", terminating=LONG_AGO)
    world.pod("higher", 4, "n2", priority=1000)
    assert world.preempt(urgent(4), {"n1": ["v1"], "n2": ["stuck"]}) == {"n1": ["v1"]}


def test_a_pod_stuck_in_terminating_is_no_free_victim(world: World) -> None:
    world.node("n", 8)
    world.pod("stuck", 4, "n", terminating=LONG_AGO)
    world.pod("v", 4, "n", start=WALL)
    assert world.preempt(urgent(4), {"n": ["v"]}) == {"n": ["v"]}
    assert world.preempt(workload("all", 8, priority=100), {"n": ["v"]}) == {}


def test_terminating_members_do_not_run_in_their_gang(world: World) -> None:
    world.node("n1", 8)
    world.node("n2", 8)
    gang = {"gpu-extender.io/gang": "g", "gpu-extender.io/gang-min": "2"}
    world.pod("g1", 4, "n1", labels=gang, start=WALL)
    world.pod("alone", 4, "n1", start=WALL - 1000)
    world.pod("g2", 1, "n2", labels=gang, start=WALL)
    world.pod("g3", 1, "n2", labels=gang, start=WALL)
    assert world.preempt(urgent(4), {"n1": ["g1"]}) == {"n1": ["g1"]}  # it has one to spare
    world.verbs.reservations.drop("uid-p")
    world.pod("g3", 1, "n2", labels=gang, start=WALL, terminating=WALL + 20)
    assert world.preempt(urgent(4), {"n1": ["g1"]}) == {"n1": ["alone"]}


def test_while_a_pod_that_requires_links_is_on_its_way_nobody_is_sent_beside_it(world: World) -> None:
    """kube-scheduler binds side by side: two singles that are admitted first would leave it two GPUs without a link."""
    world.node("n", 4, links=pairs(4))
    assert world.filter(workload("linked", 2, links="required"), ["n"])["NodeNames"] == ["n"]
    assert world.filter(workload("single", 1), ["n"])["Error"]  # try again: it is a matter of moments
    world.pod("linked", 2, "n", links="required", held=[0, 1])
    assert world.filter(workload("single", 1), ["n"])["NodeNames"] == ["n"]


def test_where_we_bind_each_pod_is_judged_again_so_nobody_has_to_wait(world: World) -> None:
    world.node("n", 4, links=pairs(4))
    world.verbs.claims.bind_is_called()
    assert world.filter(workload("linked", 2, links="required"), ["n"])["NodeNames"] == ["n"]
    assert world.filter(workload("single", 1), ["n"])["NodeNames"] == ["n"]


def test_on_uniform_links_the_count_is_guard_enough(world: World) -> None:
    world.node("n", 4, links=[[0 if a == b else 2 for b in range(4)] for a in range(4)])
    assert world.filter(workload("linked", 2, links="required"), ["n"])["NodeNames"] == ["n"]
    assert world.filter(workload("single", 1), ["n"])["NodeNames"] == ["n"]


# -- what is freed for others ------------------------------------------------------------------------------------------


def two_racks(size: int = 8) -> World:
    """Two nodes, each full of pods of `size` GPUs; the lower preemptor has had those of n1 evicted."""
    world = World()
    for i in (1, 2):
        world.node(f"n{i}", 8)
        for k in range(8 // size):
            world.pod(f"v{i}{k}", size, f"n{i}", start=WALL - 100 * i)
    return world


def going(world: World, name: str, gpus: int, node: str) -> None:
    world.pod(name, gpus, node, start=WALL - 100, terminating=WALL + 5)


def test_a_higher_preemptor_leaves_a_lower_ones_place_where_another_costs_as_much() -> None:
    world = two_racks(size=4)
    lower = world.set("Pod", workload("lower", 8, priority=100))
    offer = {"n1": ["v10", "v11"], "n2": ["v20", "v21"]}
    assert world.preempt(lower, offer) == {"n1": ["v10", "v11"]}
    going(world, "v10", 4, "n1")
    going(world, "v11", 4, "n1")
    # One victim here, instead of none and two more for the lower one.
    higher = world.set("Pod", workload("higher", 4, priority=200))
    [(node, victims)] = world.preempt(higher, {"n1": ["v10"], "n2": ["v20"]}).items()
    assert (node, len(victims)) == ("n2", 1)
    assert world.decision(pod="default/higher")["left_to"] == ["default/lower"]


def test_a_higher_preemptor_shares_what_goes_where_there_is_room_for_both() -> None:
    world = two_racks(size=4)
    lower = world.set("Pod", workload("lower", 2, priority=100))
    assert world.preempt(lower, {"n1": ["v10"], "n2": ["v20"]}) == {"n1": ["v11"]}
    going(world, "v11", 4, "n1")
    higher = world.set("Pod", workload("higher", 2, priority=200))
    assert world.preempt(higher, {"n1": ["v10"], "n2": ["v20"]}) == {"n1": ["v11"]}  # both fit where v11 was


def test_a_higher_preemptor_takes_a_lower_ones_place_where_another_costs_more() -> None:
    world = two_racks()
    world.pod("v20", 8, "n2", start=WALL - 100, priority=50)
    lower = world.set("Pod", workload("lower", 8, priority=40))
    assert world.preempt(lower, {"n1": ["v10"]}) == {"n1": ["v10"]}
    going(world, "v10", 8, "n1")
    higher = world.set("Pod", workload("higher", 8, priority=200))
    # n2's pod is worth more than all that the lower one may evict: it has to look elsewhere.
    assert world.preempt(higher, {"n1": ["v10"], "n2": ["v20"]}) == {"n1": ["v10"]}  # which goes anyway


def test_a_higher_preemptor_leaves_a_place_to_a_lower_one_that_has_no_other() -> None:
    world = two_racks()
    lower = world.set("Pod", workload("lower", 8, priority=100, spec={"nodeSelector": {"only": "n1"}}))
    world.node("n1", 8, labels={"only": "n1"})
    assert world.preempt(lower, {"n1": ["v10"]}) == {"n1": ["v10"]}
    going(world, "v10", 8, "n1")
    higher = world.set("Pod", workload("higher", 8, priority=200))
    assert world.preempt(higher, {"n1": ["v10"], "n2": ["v20"]}) == {"n2": ["v20"]}


@pytest.mark.parametrize("allowed", [0, 1])
def test_no_budget_is_violated_to_leave_a_place_to_a_lower_one(allowed: int) -> None:
    world = two_racks()
    world.pod("v20", 8, "n2", start=WALL - 200, labels={"app": "kept"})
    world.budget("kept", allowed, {"app": "kept"})
    lower = world.set("Pod", workload("lower", 8, priority=100))
    assert world.preempt(lower, {"n1": ["v10"]}) == {"n1": ["v10"]}
    going(world, "v10", 8, "n1")
    higher = world.set("Pod", workload("higher", 8, priority=200))
    found = world.preempt(higher, {"n1": ["v10"], "n2": ["v20"]})
    assert found == ({"n2": ["v20"]} if allowed else {"n1": ["v10"]})


def test_a_place_that_is_free_now_is_left_too() -> None:
    """kube-scheduler has not seen yet that v10 is gone, and offers n1."""
    world = two_racks()
    lower = world.set("Pod", workload("lower", 8, priority=100))
    assert world.preempt(lower, {"n1": ["v10"]}) == {"n1": ["v10"]}
    world.gone("v10")
    higher = world.set("Pod", workload("higher", 8, priority=200))
    assert world.preempt(higher, {"n1": ["v10"], "n2": ["v20"]}) == {"n2": ["v20"]}


def test_too_many_plans_are_not_weighed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would be a search, in one answer."""
    for most, searches in ((0, 1), (4, 3)):  # its own; with the lower one's place left to it; for the lower one again
        monkeypatch.setattr(preemption, "MOST_OUTBID", most)
        found: list[object] = []
        find = VictimSearch.find

        def count(*given: Any, find: Any = find, found: list[object] = found) -> Any:
            found.append(0)
            return find(*given)

        monkeypatch.setattr(VictimSearch, "find", count)
        world = two_racks()
        lower = world.set("Pod", workload("lower", 8, priority=100))
        assert world.preempt(lower, {"n1": ["v10"]}) == {"n1": ["v10"]}
        going(world, "v10", 8, "n1")
        found.clear()
        higher = world.set("Pod", workload("higher", 8, priority=200))
        assert world.preempt(higher, {"n1": ["v10"], "n2": ["v20"]})
        monkeypatch.setattr(VictimSearch, "find", find)
        assert len(found) == searches


def test_who_has_a_place_of_its_own_coming_takes_no_other() -> None:
    world = two_racks()
    lower = world.set("Pod", workload("lower", 8, priority=100))
    higher = world.set("Pod", workload("higher", 8, priority=200))
    assert world.preempt(lower, {"n1": ["v10"]}) == {"n1": ["v10"]}
    assert world.preempt(higher, {"n2": ["v20"]}) == {"n2": ["v20"]}
    going(world, "v20", 8, "n2")
    world.gone("v10")
    higher = world.set("Pod", workload("higher", 8, priority=200, nominated="n2"))
    assert refused(world.filter(higher)) == {"n1": TEXT["freed-elsewhere"], "n2": TEXT["gpus-releasing"]}
    world.gone("v20")  # the scheduler may not have seen that yet, and names n1 alone
    assert refused(world.filter(higher, ["n1"])) == {"n1": TEXT["freed-elsewhere"]}
    world.now += 5.1  # it does not come back to n2
    assert world.filter(higher, ["n1"])["NodeNames"] == ["n1"]


def test_who_lost_its_own_place_may_take_another() -> None:
    world = two_racks()
    lower = world.set("Pod", workload("lower", 8, priority=100))
    higher = world.set("Pod", workload("higher", 8, priority=200))
    assert world.preempt(lower, {"n1": ["v10"]}) == {"n1": ["v10"]}
    assert world.preempt(higher, {"n2": ["v20"]}) == {"n2": ["v20"]}
    world.gone("v10")
    world.node("n2", 8, unschedulable=True)
    assert world.filter(higher, ["n1"])["NodeNames"] == ["n1"]


def test_a_higher_pod_prefers_a_node_that_nobody_waits_for(world: World) -> None:
    for i in (1, 2):
        world.node(f"n{i}", 8)
    world.pod("v", 8, "n1")
    world.pod("w", 2, "n2")
    lower = world.set("Pod", workload("lower", 4, priority=100))
    assert world.preempt(lower, {"n1": ["v"]}) == {"n1": ["v"]}
    world.gone("v")
    world.pod("u", 4, "n1")  # packing would choose n1 now: it would be full
    higher = workload("higher", 4, priority=200)
    assert world.filter(higher)["NodeNames"] == ["n2", "n1"]
    world.verbs.assumed.forget("uid-higher")
    points = world.prioritize(higher)
    assert points["n2"] > points["n1"]
