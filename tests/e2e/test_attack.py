"""Four tenants, one of them hostile, on a real control plane, while the server is killed and fed: accounts of its own.

`make attack` runs the long form and prints the same report; its exit status follows the hard rows.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.e2e import builders
from tests.e2e.attack_accounts import Seen, preemptors_of, report
from tests.e2e.attack_load import HONEST, HOSTILE, NODES, PINNED
from tests.e2e.attack_run import Attack, namespaces
from tests.e2e.chaos import Chaos
from tests.e2e.cluster import ControlPlane
from tests.e2e.scene import SceneFactory
from tests.e2e.soak_accounts import follow, preempted, story, told_of, why_unplaced
from tests.e2e.trace import Trace

SMALL = {"GPU_EXTENDER_ATTACK": 60, "GPU_EXTENDER_ATTACK_KILLS": 3, "GPU_EXTENDER_ATTACK_SEED": 1}


def test_an_attack_of_one_tenant(scene: SceneFactory, control_plane: ControlPlane, tmp_path: Path) -> None:
    """GPU_EXTENDER_ATTACK: pods (60); _KILLS (3) and _SEED (1)."""
    pods, kills, seed = (int(os.environ.get(name, "") or default) for name, default in SMALL.items())
    nodes = NODES | PINNED
    cluster = scene(nodes, kubelet={"termination_seconds": 0.5, "start_seconds": 0.2, "seed": seed}, verbosity=4)
    spaces = namespaces(cluster.api, (*HONEST, HOSTILE))
    trace = Trace(cluster.api, "", cluster.extender.url, builders.GPU)
    kinds = {name: options["topology"] for name, options in nodes.items()}
    seen = Seen(trace, [], {space: tenant for tenant, space in spaces.items()}, kinds)
    attack = Attack(cluster, control_plane, seed, pods, kills, spaces, trace, seen)
    print(f"\nseed {seed}: {pods} pods in {len(attack.arrivals)} objects, {kills} kills, {attack.lasts:.0f} s")
    chaos = Chaos()
    attack.disturb(chaos)
    with trace:
        attack.begin()
        with chaos:
            attack.arrive()
        attack.settle()
        attack.account()
        events = cluster.api.list("Event", fields="reason=Preempted")
        attack.idle()
    seen.log = cluster.kubelets.truth.log()
    preemptors = preemptors_of(seen)
    seen.unplanned = follow(trace, preemptors, preempted(events))
    rows = report(seen, preemptors, cluster.scheduler.log)
    print(*rows, sep="\n")
    print(f"kills: {told_of(trace, 'the server is killed')}; stuck: {seen.stuck[:10]}; odd: {dict(seen.bad_statuses)}")
    logs = (cluster.extender.log, cluster.scheduler.log)
    for one in preemptors.values():
        if one.rounds and not one.node and why_unplaced(one) == "unexplained":
            file = tmp_path / f"{one.name}.txt"
            file.write_text(story(logs, trace, (), one))
            print(f"  {one.name} evicted in vain: {file}")
    assert chaos.errors == []
    broken = [str(row) for row in rows if row.broken]
    if broken:
        pytest.fail("\n".join(broken))
