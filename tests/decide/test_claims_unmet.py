"""filter: nodes whose devices do not meet a claim that is not counted as GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from extender.reservations.advance import Held, seat
from extender.reservations.seats import Seat
from extender.sim import claims as dra
from tests.cluster.dra.world import DraWorld
from tests.world import JSON


@pytest.fixture
def world() -> DraWorld:
    made = DraWorld()
    made.dra_class()
    made.dra_node("n1")
    made.dra_node("n2", taints=dict.fromkeys(range(6), "broken"))
    return made


def claim(world: DraWorld, **asked: Any) -> None:
    made = dra.claim("c", "default", 2)
    made["spec"]["devices"]["requests"][0]["exactly"] |= asked
    world.set("ResourceClaim", made)


def test_a_node_that_does_not_meet_the_claim_is_rejected_with_the_request(world: DraWorld) -> None:
    selectors = [{"cel": {"expression": f"device.attributes['{dra.DRIVER}'].uuid.endsWith('none')"}}]
    claim(world, selectors=selectors)
    answer = world.filter(world.claimant("p", "c"))
    assert not answer["NodeNames"]
    [text] = set(answer["FailedAndUnresolvableNodes"].values())
    assert text.startswith("gpu-extender: the devices that are published and free there do not meet a ResourceClaim")
    assert text.endswith(": request gpus of claim c")


def test_a_node_that_meets_it_passes(world: DraWorld) -> None:
    claim(world, count=8, capacity={"requests": {"memory": "1Gi"}})
    assert world.filter(world.claimant("p", "c"))["NodeNames"] == ["n1"]


# -- device taints: two GPUs of n2 are not tainted


EXISTS = {"key": "broken", "operator": "Exists"}


@pytest.mark.parametrize(
    ("count", "toleration", "passes"),
    [
        (2, None, True),
        (3, None, False),
        (8, EXISTS, True),
        (8, {"operator": "Exists"}, True),
        (8, {"key": "broken"}, True),
        (8, EXISTS | {"effect": "NoSchedule"}, True),
        (3, EXISTS | {"effect": "NoExecute"}, False),
        (3, EXISTS | {"effect": "None"}, False),
        (3, {"key": "other", "operator": "Exists"}, False),
        (3, {"key": "broken", "value": "no"}, False),
    ],
)
def test_a_tainted_gpu_is_free_for_claims_that_tolerate_it_alone(
    world: DraWorld, count: int, toleration: dict[str, str] | None, passes: bool
) -> None:
    claim(world, count=count, tolerations=[toleration] if toleration else [])
    assert ("n2" in world.filter(world.claimant("p", "c"))["NodeNames"]) == passes
    assert (world.free("n1"), world.free("n2")) == (8, 2)


def test_all_taints_of_a_gpu_have_to_be_tolerated(world: DraWorld) -> None:
    world.taint_rule(key="old", driver=dra.DRIVER, pool="n2")
    claim(world, count=3, tolerations=[EXISTS])
    assert world.filter(world.claimant("p", "c"))["NodeNames"] == ["n1"]
    claim(world, count=8, tolerations=[EXISTS, {"key": "old"}])
    assert world.filter(world.claimant("p", "c"))["NodeNames"] == ["n1", "n2"]


@pytest.mark.parametrize(("plain", "passes"), [(2, True), (3, False)])
def test_of_several_requests_only_those_that_tolerate_get_tainted_gpus(
    world: DraWorld, plain: int, passes: bool
) -> None:
    made = dra.claim("c", "default", 1)
    exactly = {"deviceClassName": dra.DRIVER, "count": 5, "tolerations": [EXISTS]}
    made["spec"]["devices"]["requests"] = [
        {"name": "a", "exactly": exactly},
        {"name": "b", "exactly": {"deviceClassName": dra.DRIVER, "count": plain}},
    ]
    world.set("ResourceClaim", made)
    assert ("n2" in world.filter(world.claimant("p", "c"))["NodeNames"]) == (passes and plain + 5 <= 8)


def test_a_pod_on_its_way_counts_among_the_gpus_that_are_not_tainted(world: DraWorld) -> None:
    world.drop("Node", {"metadata": {"name": "n1"}})
    world.claim("other", 1)
    assert world.filter(world.claimant("q", "other"))["NodeNames"] == ["n2"]
    made = dra.claim("c", "default", 2)
    made["spec"]["devices"]["requests"].append(
        {"name": "b", "exactly": {"deviceClassName": dra.DRIVER, "count": 1, "tolerations": [EXISTS]}}
    )
    world.set("ResourceClaim", made)
    answer = world.filter(world.claimant("p", "c"))
    assert not answer["NodeNames"]
    assert "being bound" in answer["Error"]


def test_what_a_tolerating_pod_holds_is_not_free_again_for_others(world: DraWorld) -> None:
    made = world.claim("c", 3, node="n2", devices=[0, 1, 7], pods=["p"])
    made["spec"]["devices"]["requests"][0]["exactly"]["tolerations"] = [EXISTS]
    world.set("ResourceClaim", made)
    world.claimant("p", "c", node="n2")
    assert world.free("n2") == 1
    world.gone("p")
    world.drop("ResourceClaim", made)
    assert world.free("n2") == 2


def test_links_are_required_of_the_tainted_gpus_that_a_claim_gets(world: DraWorld) -> None:
    for node in ("n1", "n2"):
        made = world.claim(f"held-{node}", 1, node=node, devices=[1], pods=[f"q-{node}"])
        world.claimant(f"q-{node}", made["metadata"]["name"], node=node)
    claim(world, count=2, tolerations=[EXISTS])  # it gets GPUs 0 and 2, which are linked
    assert sorted(world.filter(world.claimant("p", "c", links="required"))["NodeNames"]) == ["n1", "n2"]
    claim(world, count=2)  # 0 and 2 of n1; 6 and 7 of n2
    assert sorted(world.filter(world.claimant("p", "c", links="required"))["NodeNames"]) == ["n1", "n2"]
    claim(world, count=3, tolerations=[EXISTS])  # 0, 2 and 3
    assert sorted(world.filter(world.claimant("p", "c", links="required"))["NodeNames"]) == ["n1", "n2"]
    claim(world, count=4, tolerations=[EXISTS])  # 0, 2, 3 and 4: no ring
    assert world.filter(world.claimant("p", "c", links="required"))["NodeNames"] == []


@pytest.mark.parametrize("counted", [True, False])
def test_where_kube_scheduler_names_a_node_that_has_no_devices_for_us_we_are_behind(counted: bool) -> None:
    world = DraWorld()
    world.verbs.freshness.counted = counted
    world.dra_class()
    world.dra_node("n1")
    world.node("n2", 0)  # its slices are not seen yet
    world.claim("c", 1)
    pod = world.claimant("p", "c")
    answer = world.filter(pod, ["n2"])
    assert bool(answer["Error"]) == counted
    world.publish("n2")
    assert world.filter(pod, ["n2"])["NodeNames"] == ["n2"]


# -- kube-scheduler knows nothing of what is reserved: it allocates the first number of GPUs that no pod holds

RESERVED = ("seat", "date", "nominated", "assumed")


def first_of(world: DraWorld, *counts: int) -> JSON:
    """A pod that waits, with a claim for the first of these numbers."""
    made = dra.claim("c", "default", 1)
    named = [{"name": f"of-{count}", "deviceClassName": dra.DRIVER, "count": count} for count in counts]
    made["spec"]["devices"]["requests"] = [{"name": "gpus", "firstAvailable": named}]
    world.set("ResourceClaim", made)
    return world.claimant("p", "c")


def reserve(world: DraWorld, how: str, gpus: int) -> None:
    """Reserve GPUs of n1 for another pod, or for a date."""
    nominated = "n1" if how == "nominated" else ""
    other = world.pod("other", gpus, nominated=nominated, priority=100 if nominated else 0)
    amounts = world.cluster.amounts(world.cluster.pods["uid-other"])
    claims = world.verbs.claims
    if how == "seat":
        claims.seats.reserve([Seat("uid-other", "default/other", "g", "n1", amounts, 0, 0, world.now)])
    if how == "date":
        held = Held("big", (seat("big", 0, "n1", amounts, world.now),), world.wall + 60, world.wall + 120)
        claims.advance.take([held], world.wall - world.now)
    if how == "assumed":
        assert world.filter(other, ["n1"])["NodeNames"] == ["n1"]


@pytest.mark.parametrize("how", RESERVED)
@pytest.mark.parametrize("positions", [True, False])
@pytest.mark.parametrize(("held", "reserved", "passes"), [(0, 4, True), (0, 5, False), (3, 2, False), (5, 1, True)])
def test_a_node_is_rejected_where_it_would_take_reserved_gpus(
    how: str, positions: bool, held: int, reserved: int, passes: bool
) -> None:
    world = DraWorld()
    world.dra_class()
    world.dra_node("n1", annotated=positions)
    for gpu in range(held):
        world.claim(f"held-{gpu}", 1, node="n1", devices=[gpu], pods=[f"holds-{gpu}"])
        world.claimant(f"holds-{gpu}", f"held-{gpu}", node="n1")
    reserve(world, how, reserved)
    assert (world.filter(first_of(world, 4, 2))["NodeNames"] == ["n1"]) == passes


def test_it_is_assumed_with_the_gpus_that_it_will_take(world: DraWorld) -> None:
    assert world.filter(first_of(world, 6, 2), ["n1"])["NodeNames"] == ["n1"]
    assert not world.filter(world.pod("third", 3), ["n1"])["NodeNames"]
    assert world.filter(world.pod("second", 2), ["n1"])["NodeNames"] == ["n1"]
