"""The allocation rules of the simulated kubelets; these tests need no control plane."""

from __future__ import annotations

import random

import pytest

from extender.sim.kubelet import PLAN, AdmissionRejected, KubeletDevices, allocate, parse_plan
from extender.sim.machines import Arbitrary, NvidiaBestEffort, machine, topology_annotation
from tests.e2e.builders import GPU, Object, container, pod
from tests.e2e.kubelet import relay
from tests.sim.truth import HarnessTruth


def node(count: int = 8, *, obeys_plan: bool = False) -> KubeletDevices:
    ids = [f"GPU-{index}" for index in range(count)]
    return KubeletDevices("n", GPU, Arbitrary(), ids, [True] * count, obeys_plan)


def bound(uid: str, item: Object) -> Object:
    item["metadata"]["uid"] = uid
    item["spec"]["nodeName"] = "n"
    return item


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("", None),
        ("0,3", {"": {0, 3}}),
        ("c1=0,3;c2=5", {"c1": {0, 3}, "c2": {5}}),
    ],
)
def test_plans_are_read(text: str, plan: object) -> None:
    assert parse_plan(text) == plan


def test_init_containers_hand_on_and_sidecars_keep() -> None:
    # first takes 3; side takes 1 of them and keeps it; a takes the other 2; b gets a new one: 4 in all.
    item = pod(
        "p",
        init_containers=[container("first", 3), container("side", 1, sidecar=True)],
        containers=[container("a", 2), container("b", 1)],
    )
    taken = allocate(item, node(4), random.Random(0))
    assert taken["side"] | taken["a"] == taken["first"]
    assert not taken["b"] & taken["first"]


def test_gpus_stay_with_the_pod_until_it_is_released() -> None:
    truth = HarnessTruth()
    truth.add_node(node(2))
    truth.admit(bound("a", pod("a", gpus=2)))
    assert truth.holdings() == {"n": {0: "a", 1: "a"}}
    with pytest.raises(AdmissionRejected, match="Requested: 1, Available: 0"):
        truth.admit(bound("b", pod("b", gpus=1)))
    assert truth.double_allocations == 1
    truth.release("a")
    assert truth.holdings() == {}
    truth.admit(bound("c", pod("c", gpus=2)))
    assert [event.what for event in truth.log()] == ["admitted", "refused", "released", "admitted"]


def test_unhealthy_gpus_are_not_given() -> None:
    truth = HarnessTruth()
    truth.add_node(node(2))
    assert truth.set_health("n", 0, False) == 1
    truth.admit(bound("a", pod("a", gpus=1)))
    assert truth.gpus_of("a") == {1}


def test_a_plan_counts_only_where_it_is_obeyed() -> None:
    truth = HarnessTruth()
    truth.add_node(node(obeys_plan=True))
    two = [container("c1", 2), container("c2", 1)]
    truth.admit(bound("a", pod("a", containers=two, annotations={PLAN: "c1=0,3;c2=5"})))
    assert truth.holdings()["n"] == {0: "a", 3: "a", 5: "a"}
    for uid, plan in (("held", "3"), ("short", ""), ("wrong", "1,x")):
        size = 2 if uid == "short" else 1
        item = bound(uid, pod(uid, gpus=size, annotations={PLAN: plan or "1"}))
        with pytest.raises(AdmissionRejected):
            truth.admit(item)
    assert truth.reasons() == {"plan-conflict": 1, "plan-invalid": 2}
    assert truth.plans() == {"kept": 1}


def test_the_relay_gives_the_plan_or_the_best_that_is_left() -> None:
    """dgx1-v100: 0-3 have two links, 4-7 too; 0 and 4, 3 and 7 are joined as well."""
    what = machine("dgx1-v100")
    devices = KubeletDevices("n", GPU, Arbitrary(), [f"GPU-{number:08d}" for number in range(8)], [True] * 8)
    devices.prefers = relay(topology_annotation(what, devices.uuids, devices.healthy))
    truth = HarnessTruth()
    truth.add_node(devices)
    truth.admit(bound("a", pod("a", gpus=2, annotations={PLAN: "3,5"})))
    truth.admit(bound("b", pod("b", gpus=2, annotations={PLAN: "0,3"})))
    truth.admit(bound("c", pod("c", gpus=2, annotations={PLAN: "odd"})))
    held = {uid: truth.gpus_of(uid) for uid in "abc"}
    assert held["a"] == {3, 5}
    assert all(what.links[min(gpus)][max(gpus)] == 2 for gpus in (held["b"], held["c"]))
    assert truth.plans() == {"kept": 1, "missed": 1, "none": 1}
    assert truth.double_allocations == 0


def test_a_plugin_that_panics_refuses_the_pod() -> None:
    what = machine("dgx-a100")
    seen = set()
    for seed in range(20):
        truth = HarnessTruth(seed)
        plugin = NvidiaBestEffort(what.links, what.pcie, what.scope)
        devices = KubeletDevices("n", GPU, plugin, [str(n) for n in range(8)], [True] * 8)
        devices.holder = {3: "x", 5: "x", 7: "x"}
        truth.add_node(devices)
        try:
            truth.admit(bound("p", pod("p", gpus=3)))
        except AdmissionRejected:
            assert truth.reasons() == {"panic": 1}
            assert truth.gpus_of("p") == frozenset()
            seen.add("refused")
        else:
            seen.add("admitted")
    assert seen == {"refused", "admitted"}
