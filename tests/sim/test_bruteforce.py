"""The oracle of the demonstration, on cases small enough for pencil and paper."""

from __future__ import annotations

from extender.sim import day
from extender.sim.day import build
from extender.sim.machines import SimPod, machine


def test_who_saved_last_is_the_cheapest() -> None:
    clock, cluster, kubelets = build(seed=0)
    clock.advance(3_600)  # 09:00
    uids = {}
    for name, notes in (("old", {}), ("saved", {"gpu-extender.io/last-checkpoint": "2026-03-02T09:50:00Z"})):
        uids[name] = cluster.create(SimPod(name, "a", 4, annotations=notes).object())
        cluster.bind(uids[name], "hgx", {})
    kubelets.sync()
    clock.advance(3_600)  # 10:00
    uid = cluster.create(SimPod("urgent", "a", 4, links="required", priority=1).object())
    urgent = cluster.pod(uid)
    assert urgent is not None
    found = day.cheapest(cluster, kubelets, urgent)
    assert list(found) == ["hgx"]  # all other nodes need no eviction, or have nobody to evict
    # 4 GPUs x 600 s since the checkpoint; the other has 4 x 3,600 s to lose
    assert found["hgx"] == day.BruteForceEviction((0, 0, 2_400, 30, 1), "hgx", frozenset({uids["saved"]}))


def test_a_budget_outweighs_all_work() -> None:
    clock, cluster, kubelets = build(seed=0)
    cluster.add_budget("b", "a", {"app": "x"}, min_available=1)
    guarded = cluster.create(SimPod("guarded", "a", 4, labels={"app": "x"}).object())
    other = cluster.create(SimPod("other", "a", 4).object())
    for uid in (other, guarded):
        cluster.bind(uid, "hgx", {})
    kubelets.sync()
    clock.advance(3_600)
    urgent = cluster.pod(cluster.create(SimPod("urgent", "a", 4, priority=1).object()))
    assert urgent is not None
    assert day.cheapest(cluster, kubelets, urgent)["hgx"].victims == {other}


def test_what_the_plugin_may_hand_out() -> None:
    cube = machine("dgx1-v100")
    assert day.always_linked(cube, frozenset(range(8)), 4)
    assert not day.always_linked(cube, frozenset({0, 2, 4, 5}), 4)
    assert not day.always_linked(cube, frozenset({0, 2}), 4)  # too few
    assert day.always_linked(cube, frozenset({0, 1, 2, 3}), 2)  # 0-3 or 1-2
