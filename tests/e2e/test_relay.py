"""The relay between kubelet's own device manager and a vendor's plugin that knows nothing of it, over real sockets.

dgx1-v100: 2 links join 0-3, 0-4, 1-2, 1-5, 2-3, 4-7, 5-6, 6-7; 1 link 0-1, 0-2, 1-3, 2-6, 3-7, 4-5, 4-6, 5-7.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from itertools import count

import pytest

from extender.sim.machines import topology_annotation
from tests.e2e.build import build_device_manager
from tests.e2e.device_manager import Object, pod
from tests.e2e.relay_rig import NODE, Rig
from tests.e2e.vendor_plugin import VendorPlugin
from tests.waiting import wait_for


@pytest.fixture(scope="module", autouse=True)
def _program() -> None:
    build_device_manager()


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig() as made:
        yield made


# ---- the plan holds


def test_planned_sets_are_handed_out(rig: Rig) -> None:
    rig.start_plugin()
    assert rig.gpus(rig.run(pod("a", 2, plan="3,5")).ids()) == {3, 5}
    assert rig.gpus(rig.run(pod("b", 4, plan="0,1,2,4")).ids()) == {0, 1, 2, 4}
    assert rig.relay.counts()["answers_planned"] == 2
    assert all(name != "GetPreferredAllocation" for name, _ in rig.plugin.calls) if rig.plugin else False


def test_without_the_relay_the_plugin_chooses() -> None:
    with Rig(direct=True) as rig:
        rig.start_plugin()
        a, b = rig.gpus(rig.run(pod("a", 2, plan="3,5")).ids())
        assert rig.machine.links[a][b] == 2  # NVIDIA's rule on a fresh machine; 3-5 has no link


def test_an_unplanned_pod_leaves_other_plans_alone(rig: Rig) -> None:
    """The best pair of all has 2 links; {0,3}, {1,2}, {4,7} and {5,6} are promised, 6-7 is not free either."""
    rig.start_plugin()
    rig.run(pod("x", 2, plan="6,7"))
    waiting = pod("waits", 4, plan="0,1,2,3")
    rig.bind(waiting)
    assert rig.gpus(rig.run(pod("a", 2)).ids()) == {4, 5}
    assert rig.gpus(rig.admit(waiting).ids()) == {0, 1, 2, 3}
    assert rig.relay.counts()["answers_linked"] == 1


def test_two_waiting_plans_of_one_size(rig: Rig) -> None:
    """kubelet admits in the order of binding: each its own. In the other order they change places, and no more."""
    rig.start_plugin()
    first, second = pod("first", 2, plan="0,3"), pod("second", 2, plan="5,6")
    rig.bind(first, second)
    assert rig.gpus(rig.admit(first).ids()) == {0, 3}
    assert rig.gpus(rig.admit(second).ids()) == {5, 6}
    third, fourth = pod("third", 1, plan="1"), pod("fourth", 1, plan="7")
    rig.bind(third, fourth)
    assert [rig.gpus(rig.admit(p).ids()) for p in (fourth, third)] == [{1}, {7}]


def test_a_pod_that_the_watch_has_not_brought_yet(rig: Rig) -> None:
    """One GET finds it."""
    rig.start_plugin()
    rig.run(pod("before", 1, plan="7"))
    rig.api.held_back = True
    got = rig.run(pod("a", 2, plan="3,5"), watched=False)
    assert rig.gpus(got.ids()) == {3, 5}


def test_an_api_server_that_hangs_costs_a_second_at_most(rig: Rig) -> None:
    """Then the links decide: 2-link pairs, the first of equals that leaves most."""
    rig.start_plugin()
    rig.api.held_back, rig.api.slow = True, 30
    got = rig.run(pod("a", 2, plan="3,5"), watched=False)
    assert rig.machine.links[min(rig.gpus(got.ids()))][max(rig.gpus(got.ids()))] == 2
    assert got.seconds < 3
    rig.api.slow = 0


def test_a_plan_whose_gpu_failed(rig: Rig) -> None:
    """Its pod gets the best that is left, without another's GPUs; 4-5 has 1 link, 6-7 2 links but is promised."""
    plugin = rig.start_plugin()
    broken, other = pod("broken", 2, plan="0,3"), pod("other", 2, plan="6,7")
    rig.bind(broken, other)
    for gpu in (0, 1, 2):
        plugin.set_health(gpu, False)
    rig.manager.wait_for(5)
    assert rig.gpus(rig.admit(broken).ids()) == {4, 5}
    assert rig.gpus(rig.admit(other).ids()) == {6, 7}
    assert rig.relay.counts()["plans_broken"] == 1


# ---- containers


def test_several_containers(rig: Rig) -> None:
    rig.start_plugin()
    got = rig.run(pod("a", {"c1": 2, "c2": 1, "c3": 2}, plan="c1=0,3;c2=5;c3=4,7"))
    assert [rig.gpus(got.ids(name)) for name in ("c1", "c2", "c3")] == [{0, 3}, {5}, {4, 7}]


def test_an_init_container_passes_its_devices_on(rig: Rig) -> None:
    """The plan is the whole pod's: the init container takes its first GPU, and the main one all three."""
    rig.start_plugin()
    got = rig.run(pod("a", 3, init={"prepare": 1}, plan="2,3,6"))
    assert (rig.gpus(got.ids("prepare")), rig.gpus(got.ids())) == ({2}, {2, 3, 6})
    got = rig.run(pod("b", 1, init={"prepare": 2}, plan="1,5"))
    assert rig.gpus(got.ids("prepare")) == {1, 5}
    assert rig.gpus(got.ids()) < {1, 5}


def test_a_sidecar_keeps_its_devices(rig: Rig) -> None:
    rig.start_plugin()
    got = rig.run(pod("a", 2, init={"side": 1}, sidecars=["side"], plan="side=4;main=5,6"))
    assert (rig.gpus(got.ids("side")), rig.gpus(got.ids())) == ({4}, {5, 6})


def test_all_that_is_left_is_not_asked_for(rig: Rig) -> None:
    """kubelet takes the last GPUs without a question; the plans that follow are still each their own."""
    rig.start_plugin()
    rig.run(pod("a", 6, plan="0,1,2,3,4,5"))
    last = pod("last", 2, plan="6,7")
    assert rig.gpus(rig.run(last).ids()) == {6, 7}
    rig.end(last)
    assert rig.gpus(rig.run(pod("b", 1, plan="7")).ids()) == {7}


# ---- ids of other kinds


def test_replicas_obey_a_plan_and_are_else_the_plugins(rig: Rig) -> None:
    ids = [f"{uuid}::{copy}" for uuid in rig.uuids for copy in range(2)]
    plugin = rig.add(VendorPlugin(rig.plugins, ids))
    rig.manager.wait_for(16)
    got = rig.run(pod("a", 2, plan="3,5"))
    assert rig.gpus(got.ids()) == {3, 5}
    parts = rig.run(pod("parts", 3, plan="2,2,6")).ids()
    assert sorted(rig.uuids.index(device.partition("::")[0]) for device in parts) == [2, 2, 6]
    assert len(rig.run(pod("b", 3)).ids()) == 3
    assert [name for name, _ in plugin.calls].count("GetPreferredAllocation") == 1


def test_mig_devices_are_the_plugins(rig: Rig) -> None:
    mig = [f"MIG-{number:08d}" for number in range(4)]
    plugin = rig.add(VendorPlugin(rig.plugins, mig, resource="nvidia.com/mig-1g.10gb", endpoint="nvidia-mig.sock"))
    rig.manager.wait_for(4, "nvidia.com/mig-1g.10gb")
    got = rig.run(pod("a", 1, resource="nvidia.com/mig-1g.10gb"))
    assert got.ids(resource="nvidia.com/mig-1g.10gb")[0] in mig
    assert ("GetPreferredAllocation", mig) in plugin.calls


def test_several_resources_of_several_plugins(rig: Rig) -> None:
    """A plan is about GPUs; the other resource's plugin goes on as ever, one without preferences too."""
    rig.start_plugin()
    rig.add(VendorPlugin(rig.plugins, ["nic0", "nic1"], resource="vendor.com/nic", endpoint="nic.sock", prefers=False))
    rig.manager.wait_for(2, "vendor.com/nic")
    got = rig.run(pod("a", 2, plan="3,5", resources={"vendor.com/nic": 1}))
    assert rig.gpus(got.ids()) == {3, 5}
    assert len(got.ids(resource="vendor.com/nic")) == 1


def test_numa_alignment_is_kubelets_and_comes_first() -> None:
    """single-numa-node: kubelet offers only the GPUs 0-3; a plan across both halves is broken."""
    with Rig(policy="single-numa-node") as rig:
        rig.start_plugin()
        across = pod("across", 2, plan="3,7")
        assert rig.gpus(rig.run(across).ids()) in ({0, 3}, {1, 2}, {2, 3})  # 2 links each
        assert rig.relay.counts()["plans_broken"] == 1
        rig.end(across)
        assert rig.gpus(rig.run(pod("inside", 2, plan="0,1")).ids()) == {0, 1}


@pytest.mark.parametrize("policy", ["best-effort", "restricted", "single-numa-node"])
@pytest.mark.parametrize("direct", [True, False])
def test_every_topology_manager_policy_may_withhold_linked_gpus(policy: str, direct: bool) -> None:
    """Of the GPUs 0, 2, 4 and 5 kubelet offers those of one NUMA node, 0 and 2, which are not linked; so the annotation
    topology-manager has all of them count (tests/test_enforced.py)."""
    with Rig("h100-nvl-8", direct=direct, policy=policy) as rig:
        rig.start_plugin()
        holders = {}
        for number in range(8):
            holder = pod(f"p{number}", 1)
            (gpu,) = rig.gpus(rig.run(holder).ids())
            holders[gpu] = holder
        for gpu in (0, 2, 4, 5):
            rig.end(holders[gpu])
        assert rig.gpus(rig.run(pod("linked", 2, plan="" if direct else "4,5")).ids()) == {0, 2}


def test_what_a_plugin_must_do_before_each_start(rig: Rig) -> None:
    plugin = rig.start_plugin(pre_start=True)
    got = rig.run(pod("a", 2, plan="3,5"))
    assert ("PreStartContainer", sorted(got.ids())) in plugin.calls


# ---- who comes and goes


def test_kubelet_restarts(rig: Rig) -> None:
    """Its new socket is seen, the devices come from memory: the plugin is asked nothing again."""
    plugin = rig.start_plugin()
    runs, waits = pod("runs", 2, plan="3,5"), pod("waits", 2, plan="0,4")
    held = rig.run(runs).ids()
    rig.bind(waits)
    rig.manager.stop()
    rig.manager.start()
    rig.manager.wait_for(8)
    assert rig.manager.allocations()["runs"]["main"]["nvidia.com/gpu"] == held
    assert rig.gpus(rig.admit(waits).ids()) == {0, 4}
    assert [name for name, _ in plugin.calls].count("ListAndWatch") == 1
    assert [name for name, _ in plugin.calls].count("Register") == 1


def test_health_reaches_a_restarted_kubelet(rig: Rig) -> None:
    plugin = rig.start_plugin()
    rig.manager.stop()
    plugin.set_health(2, False)
    rig.manager.start()
    rig.manager.wait_for(7)
    plugin.set_health(2, True)
    rig.manager.wait_for(8)


def test_the_plugin_restarts(rig: Rig) -> None:
    """Meanwhile kubelet has no healthy device, as it would without us; then all is as before."""
    plugin = rig.start_plugin()
    held = rig.run(pod("runs", 2, plan="3,5")).ids()
    waits = pod("waits", 2, plan="0,4")
    rig.bind(waits)
    plugin.stop()
    rig.manager.wait_for(0)
    plugin.start()
    rig.manager.wait_for(8)
    assert rig.manager.allocations()["runs"]["main"]["nvidia.com/gpu"] == held
    assert rig.gpus(rig.admit(waits).ids()) == {0, 4}


@pytest.mark.parametrize("kill", [False, True])
def test_the_relay_restarts(rig: Rig, kill: bool) -> None:
    """With a pod running and two waiting; it knows again what it has to."""
    plugin = rig.start_plugin()
    held = rig.run(pod("runs", 2, plan="3,5")).ids()
    first = pod("first", 2, plan="0,4", created="2026-01-01T00:00:05Z")
    waits = [first, pod("second", 2, plan="6,7", created="2026-01-01T00:00:06Z")]
    rig.bind(*waits)
    rig.relay.stop(kill=kill)
    rig.manager.wait_for(0)
    rig.relay.start()
    rig.manager.wait_for(8)
    assert rig.manager.allocations()["runs"]["main"]["nvidia.com/gpu"] == held
    assert [rig.gpus(rig.admit(one).ids()) for one in waits] == [{0, 4}, {6, 7}]
    assert [name for name, _ in plugin.calls].count("Register") == 2
    assert len(list(rig.kubelet.glob("gpu-extender-*"))) == 1


def test_a_plugin_that_dies_in_allocate(rig: Rig) -> None:
    """That pod fails, at once and with the reason; the next one gets its plan from the plugin's next life."""
    options = '{"machine": "dgx1-v100", "die_in_allocate": %s}'
    command = [sys.executable, "-m", "tests.e2e.vendor_plugin", str(rig.plugins)]
    dying = subprocess.Popen([*command, options % "true"])
    try:
        rig.manager.wait_for(8)
        first, second = pod("first", 2, plan="3,5"), pod("second", 2, plan="0,4")
        rig.bind(first, second)
        got = rig.admit(first)
        # The plugin's list ends too: kubelet may hang up before it hears the answer.
        assert any(code in got.error for code in ("Unavailable", "Canceled"))
        assert got.seconds < 2
    finally:
        dying.kill()
        dying.wait()
    rig.manager.wait_for(0)
    alive = subprocess.Popen([*command, options % "false"])
    try:
        rig.manager.wait_for(8)
        assert rig.gpus(rig.admit(second).ids()) == {0, 4}
    finally:
        alive.kill()
        alive.wait()


def test_a_failed_allocate_does_not_hold_its_plan(rig: Rig) -> None:
    """The pod will not ask again: the next of its size is not taken for it, before the API server has told."""
    calls: list[int] = []

    def fail_once() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("no")

    rig.start_plugin(in_allocate=fail_once)
    first, second = pod("first", 2, plan="3,5"), pod("second", 2, plan="0,4")
    rig.bind(first, second)
    assert rig.manager.admit(first).error
    assert rig.gpus(rig.admit(second).ids()) == {0, 4}


def test_the_api_server_is_away(rig: Rig) -> None:
    """What is known is served; when it is back, the rest."""
    rig.start_plugin()
    known = pod("known", 2, plan="3,5")
    rig.bind(known)
    rig.api.down, asked = True, len(rig.api.requests)
    wait_for(lambda: len(rig.api.requests) > asked)  # the watch has ended, and the next one is refused
    assert rig.gpus(rig.admit(known).ids()) == {3, 5}
    assert rig.relay.livez() == (200, "ok")
    rig.api.down = False
    assert rig.gpus(rig.run(pod("later", 2, plan="0,4"), watched=False).ids()) == {0, 4}


def test_watches_that_are_too_old_begin_anew(rig: Rig) -> None:
    rig.start_plugin()
    rig.api.forget()
    lists = len(rig.api.requests)
    wait_for(lambda: len(rig.api.requests) > lists + 2)
    rig.api.held_back = False
    assert rig.gpus(rig.run(pod("a", 2, plan="3,5")).ids()) == {3, 5}


def test_gpus_are_renumbered(rig: Rig) -> None:
    """The node's new annotation counts as soon as the watch brings it: the UUID decides, not the number it had."""
    rig.start_plugin()
    order = [3, 5, 0, 1, 2, 4, 6, 7]
    note = topology_annotation(rig.machine, [rig.uuids[old] for old in order])
    rig.api.node(NODE, {"gpu-extender.io/topology": note})
    tries = count()

    def handed_out() -> set[int]:
        asks = pod(f"a{next(tries)}", 2, plan="0,1")
        got = rig.gpus(rig.run(asks).ids())
        rig.end(asks)
        return got

    wait_for(lambda: handed_out() == {3, 5}, 60, "the new numbers count")


def test_pass_through_chooses_nothing() -> None:
    with Rig(pass_through=True) as rig:
        plugin = rig.start_plugin()
        rig.run(pod("a", 2, plan="3,5"))
        assert any(name == "GetPreferredAllocation" for name, _ in plugin.calls)
        assert not [request for request in rig.api.requests if request[0] == "GET"]


def test_kubelets_own_folder_is_refused(rig: Rig) -> None:
    answer = subprocess.run(
        [*rig.relay.command[:4], "--plugins", str(rig.kubelet), "--kubelet", str(rig.kubelet), "--pass-through"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 1
    assert "kubelet's own folder" in answer.stderr
    assert (rig.kubelet / "kubelet.sock").is_socket()


def test_the_probe_sees_a_socket_that_is_gone(rig: Rig) -> None:
    (rig.plugins / "kubelet.sock").unlink()
    wait_for(lambda: rig.relay.child is None or rig.relay.child.poll() is not None)
    assert rig.relay.child is not None
    assert rig.relay.child.returncode == 1


def test_many_pods_with_restarts_in_between(rig: Rig) -> None:
    """Every planned pod gets its planned set, whatever restarts: the short form of benchmarks/relay.py."""
    plugin = rig.start_plugin()
    rng = random.Random(5)
    running: dict[str, set[int]] = {}
    pods: dict[str, Object] = {}
    for number in range(120):
        if number in (39, 79):
            if number == 39:
                rig.manager.stop()
                rig.manager.start()
            else:
                rig.relay.stop(kill=True)
                rig.manager.wait_for(0)
                rig.relay.start()
            rig.manager.wait_for(8)
        if number == 60:
            plugin.stop()
            rig.manager.wait_for(0)
            plugin.start()
            rig.manager.wait_for(8)
        free = set(range(8)) - set().union(*running.values())
        while len(free) < 4 or (running and rng.random() < 0.4):
            gone = rng.choice(sorted(running))
            rig.end(pods[gone])
            free |= running.pop(gone)
        size = rng.choice([1, 2, 4])
        planned = set(rng.sample(sorted(free), size))
        one = pod(f"pod-{number}", size, plan=",".join(map(str, sorted(planned))))
        got = rig.run(one, watched=bool(number % 3))
        assert rig.gpus(got.ids()) == planned, (number, rig.relay.tail())
        running[f"pod-{number}"], pods[f"pod-{number}"] = planned, one
