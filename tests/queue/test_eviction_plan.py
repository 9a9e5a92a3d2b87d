"""A plan of evictions after it was found: what keeps it from being carried out."""

from __future__ import annotations

from extender.cluster.slices import finish
from extender.preemption.gang_plan import GangSearch
from extender.queue.eviction_plan import EvictionPlan, EvictionPlanner
from extender.queue.placement import JointPlacement
from extender.queue.plan import Planner, QueueHead
from extender.reservations.seats import Seat
from tests.act.queue.test_evicting import made
from tests.queue.test_plan import wait
from tests.reservations.test_advance import hold, take
from tests.world import World


def of_head(world: World) -> tuple[QueueHead, EvictionPlanner]:
    """The first gang of the queue, which finds no place, and what looks for evictions for it."""
    cluster, claims, policy = world.cluster, world.verbs.claims, world.verbs.policy
    placement = JointPlacement(cluster, policy)
    planner = Planner(cluster, claims, placement, lambda: world.now, lambda: world.wall)
    assert [start for start in planner.looks({}) if start is not None] == []
    assert planner.head is not None
    search = GangSearch(cluster, policy, world.settings.preemption)
    return planner.head, EvictionPlanner(cluster, claims, placement, search, lambda: world.now, lambda: world.wall)


def test_a_pod_that_uses_an_advance_reservation_is_no_victim_of_others() -> None:
    """n1 has the cheapest victim, whose GPUs would be held again for its namespace."""
    for namespace, node in (("lab", "n1"), ("ml", "n2")):
        world = made()
        world.gone("r-n1")
        world.pod("user", 8, "n1", start=world.wall - 60, namespace=namespace)
        wait(world, "urgent", 1, 8, 100, priority=100)
        held = hold(world, "big", {"n1": 8}, world.wall - 90, world.wall + 900, namespaces=frozenset({"ml"}))
        take(world, *([held] if namespace == "ml" else []))
        head, plans = of_head(world)
        plan = finish(plans.steps(head))
        assert isinstance(plan, EvictionPlan)
        assert plan.seats[0].node == node


def test_a_seat_that_came_meanwhile_keeps_its_node() -> None:
    """The search takes no node with seats. It is made in slices, so a seat may come while it goes on."""
    world = made()
    wait(world, "urgent", 1, 8, 100, priority=100)
    cluster, claims = world.cluster, world.verbs.claims
    head, plans = of_head(world)
    plan = finish(plans.steps(head))
    assert isinstance(plan, EvictionPlan)
    assert (plan.seats[0].node, plans.hindrance(plan)) == ("n1", "")
    nothing = (0,) * len(cluster.resources)
    for node, why in (("n2", ""), ("n1", "default/other has a seat on node n1")):
        claims.seats.reserve([Seat("uid-other", "default/other", "default/other", node, nothing, 0, 0, world.now)])
        assert plans.hindrance(plan) == why
    assert [seat.node for seat in claims.seats] == ["n1"]
