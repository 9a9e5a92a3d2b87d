"""A node that declares the relay: what was planned there is held, and drift is counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import generate_latest

from ext_core.links import LinkShapes
from extender.cluster.statements import PLAN
from extender.sim.kubelet import AllocationEvent
from extender.topologies.annotation import KEY, RELAY, TOPOLOGY_MANAGER, decode, encode
from extender.topologies.load import from_catalogue
from tests.decide.test_bind import Api
from tests.e2e.enforced_run import KNOWN_SECONDS, Got, judge
from tests.e2e.trace import PodStory, Trace
from tests.world import DGX1V, GPU, JSON, TEXT, World, topology

STATED = {KEY: encode(replace(decode(topology(DGX1V)), uuids=tuple(f"GPU-{gpu:08d}" for gpu in range(8))))}
RELAYED = {**STATED, RELAY: "1"}


def how(world: World, node: str = "n") -> dict[str, tuple[str, tuple[int, ...] | None]]:
    return {one.uid: (one.how, one.gpus) for one in world.cluster.gpus.ledgers[node].holdings}


def test_the_relay_makes_more_free_sets_sure() -> None:
    """On a DGX-1V: of (free set, pod of several GPUs) those where whatever is handed out is linked; docs/relay.md."""
    graph, shapes = from_catalogue("dgx1-v100").topology(), LinkShapes()
    sure = {
        plugin: sum(
            shapes.certain(graph.intern(shapes, plugin), free, size) == 2
            for free in range(256)
            for size in range(2, free.bit_count() + 1)
        )
        for plugin in ("nvidia", "relay")
    }
    assert sure == {"nvidia": 496, "relay": 555}


def test_the_node_decides_whether_a_plan_is_enforced(world: World) -> None:
    for relay, expected in ((RELAYED, "enforced"), ({**STATED, RELAY: "0"}, "planned"), (STATED, "planned")):
        world.node("n", annotations=relay)
        world.pod("p", 2, "n", annotations={PLAN: "3,5"})
        assert how(world) == {"uid-p": (expected, (3, 5))}


def test_drift_is_counted_and_printed(world: World) -> None:
    world.node("n", annotations=RELAYED)
    for name, held in (("a", (0, 3)), ("b", (5, 7))):
        world.pod(name, 2, "n", annotations={PLAN: "0,3" if name == "a" else "1,2"})
        world.pod(name, 2, "n", annotations={PLAN: "0,3" if name == "a" else "1,2"}, held=held)
        world.pod(name, 2, "n", annotations={PLAN: "0,3" if name == "a" else "1,2"}, held=held)
    assert how(world)["uid-b"] == ("observed", (5, 7))
    assert world.cluster.gpus.drifts == {"kept": 1, "other": 1}
    for _ in range(2):
        world.call("/metrics", method="GET")
    text = generate_latest(world.metrics.registry).decode()
    assert 'gpu_extender_plans_total{outcome="kept"} 1.0' in text
    assert 'gpu_extender_plans_total{outcome="other"} 1.0' in text


def test_no_relay_and_no_rule_of_a_plugin_counts_beside_a_topology_manager(world: World) -> None:
    """kubelet may offer them GPUs of one NUMA node alone: only where every free set is linked is one certain."""
    for policy in ("none", "best-effort", "restricted", "single-numa-node", ""):
        world.node(policy or "unreadable", annotations={**RELAYED, TOPOLOGY_MANAGER: policy})
    needs = world.pod("needs", 2, links="required")
    assert world.filter(needs)["NodeNames"] == ["none"]
    for node in world.cluster.nodes:
        world.pod(f"all-but-a-pair-{node}", 6, node, held=(1, 2, 4, 5, 6, 7))  # 0 and 3 are linked
    assert sorted(world.filter(needs)["NodeNames"]) == sorted(world.cluster.nodes)


def test_required_links_need_no_luck_with_a_relay(world: World) -> None:
    """0, 1, 2, 4 and 5 are free. NVIDIA's rule splits them into 3 and 2 with the most links in sum, and answers with a
    three that has no ring; with the relay it is ours that comes, as 0-1-2."""
    world.node("stock", annotations=STATED)
    world.node("relayed", annotations=RELAYED)
    for node in ("stock", "relayed"):
        world.pod(f"holder-{node}", 3, node, held=(3, 6, 7))
    needs = world.pod("needs", 3, links="required")
    answer = world.filter(needs)
    assert answer["NodeNames"] == ["relayed"]


def two_containers(world: World, name: str, first: int, second: int, **facts: Any) -> JSON:
    ask = ({"name": at, "resources": {"limits": {GPU: str(n)}}} for at, n in (("a", first), ("b", second)))
    return world.pod(name, first + second, links="required", spec={"containers": [*ask]}, **facts)


def test_a_plan_keeps_the_gpus_of_several_containers_together() -> None:
    """0, 1, 2 and 5 are free: 0-1-2 is a ring, 1-2-5 is none. One by one, a plugin may give any of them."""
    api = Api()
    world = World(binder=api)
    world.node("stock", annotations=STATED)
    world.node("relayed", annotations=RELAYED)
    for node in ("stock", "relayed"):
        world.pod(f"holder-{node}", 4, node, held=(3, 4, 6, 7))
    needs = two_containers(world, "needs", 2, 1)
    assert world.filter(needs)["NodeNames"] == []  # nobody has asked us to bind: the relay would have no plan
    assert world.bind(world.pod("other", 1), "stock") == ""
    world.now += 10
    assert world.filter(needs)["NodeNames"] == ["relayed"]
    assert world.bind(needs, "stock") == TEXT["links-never"]
    assert world.bind(needs, "relayed") == ""
    assert api.wrote[-1][1][PLAN] == "a=0,1;b=2"


def test_plans_of_before_a_restart_show_that_bind_writes_them(world: World) -> None:
    world.node("n", annotations=RELAYED)
    world.pod("holder", 4, "n", held=(3, 4, 6, 7), annotations={PLAN: "3,4,6,7"})
    assert world.filter(two_containers(world, "needs", 2, 1))["NodeNames"] == ["n"]


@pytest.mark.parametrize(
    ("plan", "held", "node"),
    [("lies", (3, 4), RELAYED), ("0,1", (3, 4), RELAYED), ("3,4", (3, 4), STATED)],
)
def test_an_annotation_that_anybody_can_write_shows_nothing(plan: str, held: tuple[int, ...], node: Any) -> None:
    world = World()
    world.node("n", annotations=RELAYED)
    world.node("other", annotations=node)
    world.pod("holder", 2, "other", held=held, annotations={PLAN: plan})
    assert not world.filter(two_containers(world, "needs", 2, 1), ["n"])["NodeNames"]


def test_who_has_several_containers_evicts_for_a_linked_set_where_plans_are_enforced(world: World) -> None:
    """0 and 5 are free. Whoever holds 1 and 2 has to go, though the four that are free then are no ring."""
    world.node("n", annotations=RELAYED)
    world.pod("low", 2, "n", held=(1, 2), annotations={PLAN: "1,2"})
    world.pod("cheap", 1, "n", held=(4,))
    world.pod("high", 3, "n", priority=20, held=(3, 6, 7))
    needs = two_containers(world, "needs", 2, 1, priority=10)
    assert not world.filter(needs)["NodeNames"]
    assert world.preempt(needs, {"n": ["cheap"]}) == {"n": ["low"]}
    world.gone("low")
    assert world.filter(needs)["NodeNames"] == ["n"]


def test_a_relay_that_does_not_know_the_gpus_by_id_enforces_nothing(world: World) -> None:
    """The catalogue tells the links of such a machine, but no ids."""
    labels = {"nvidia.com/gpu.product": "Tesla-V100-SXM2-16GB"}
    world.node("n", labels=labels, annotations={RELAY: "1"})
    world.pod("p", 2, "n", annotations={PLAN: "3,5"})
    assert how(world) == {"uid-p": ("planned", (3, 5))}


# -- what the runs of tests/e2e/test_enforced.py count, on logs made by hand -------------------------------------------


NOBODY: Any = None
BEST = frozenset({0, 3})  # of a DGX-1V: two links
ONE_LINK = frozenset({0, 1})


def of_b(got: Got) -> list[str]:
    return [line for line in got.worse if line.startswith("  b ")]


def run(*pods: tuple[str, float, float, float | None, frozenset[int]]) -> Got:
    """(name, when the server decided to bind it, when it was admitted, when it ended, GPUs): in order of admission."""
    trace = Trace(NOBODY, "default", "", "")
    events: list[tuple[float, AllocationEvent]] = []
    for name, bound, admitted, ended, gpus in pods:
        trace.pods[name] = PodStory(name, name, len(gpus), 0, 0.0, "n", bound + 0.1, gone=ended)
        trace.decisions[bound, "bind", name] = {"verb": "bind", "result": "bound"}
        events.append((admitted, AllocationEvent(admitted, "admitted", name, name, "n", gpus, planned=gpus)))
        if ended is not None:
            events.append((ended, AllocationEvent(ended, "released", name, "", "n", gpus)))
    ordered = [event for _, event in sorted(events, key=lambda one: one[0])]
    return judge(ordered, trace, {"n": "dgx1-v100"}, stock=False)


def test_the_best_set_counts_in_full() -> None:
    got = run(("a", 0.0, 1.0, None, BEST))
    assert (got.ring_share, got.worse) == (1.0, [])


def test_a_worse_set_is_reported() -> None:
    got = run(("a", 0.0, 1.0, None, ONE_LINK))
    assert got.ring_share == 0.5
    assert got.worse == ["  a on n: ring 1000 of [0, 1], best 2000 of the free 11111111"]


def test_gpus_that_come_free_between_bind_and_admission_do_not_count() -> None:
    """Before: the share was that of the best set at admission, which no plan can know."""
    others = frozenset(range(8)) - ONE_LINK
    got = run(("a", 0.0, 1.0, 3.0, others), ("b", 2.0, 4.0, None, ONE_LINK))
    assert of_b(got) == []
    known = run(("a", 0.0, 1.0, 3.0, others), ("b", 3.0 + KNOWN_SECONDS, 4.0, None, ONE_LINK))
    assert len(of_b(known)) == 1


def test_a_pod_that_is_bound_and_not_yet_admitted_holds_its_gpus() -> None:
    others = frozenset(range(8)) - ONE_LINK
    got = run(("b", 2.0, 3.0, None, ONE_LINK), ("a", 1.0, 5.0, None, others))
    assert of_b(got) == []
