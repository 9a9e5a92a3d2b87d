"""The server is killed again and again while pods evict others: nothing is lost, nothing is promised twice.

Preemptors of two priorities come one after the other, a few are deleted while they wait, and a ReplicaSet fills the
cluster anew each time. Each eviction is followed to its end: the preemptor lands, or it does not and the cause is one
of those that nobody can help: it was deleted, its node was lost, or pods of a higher priority took the place. Nobody is
evicted a second time for one need, unless it was outbid or its node was lost. `soak_accounts` judges that by what
happened; what is unexplained is told with its whole story.
"""

from __future__ import annotations

import math
import os
import random
import time
from collections import Counter
from pathlib import Path

from tests.e2e import builders
from tests.e2e.api import Object
from tests.e2e.chaos import Chaos, kill, lose_node
from tests.e2e.kubelet import RUN_SECONDS
from tests.e2e.scene import H100, Scene, SceneFactory
from tests.e2e.soak_accounts import OUTBID_EARLIER, Preemptor, causes, follow, preempted, story, told_of, why_unplaced
from tests.e2e.trace import Trace

VICTIM_GPUS = 4
PRIORITIES = {"higher": 2000, "high": 1000, "low": 10}
FULL, LOAD = 12, 30  # pods that fill the cluster, and pods that want to: what is free is soon taken again
RACKS = 3  # preemptors go from rack to rack: in each, the load is back before the next comes
LEAST_PATIENCE = 400.0
"""Seconds after the last preemptor. One whose preempt call meets a dead server is parked by kube-scheduler; where no
pod ends after that it is tried again after 5 minutes, looked at every 30 s."""


def table(
    cluster: Scene, trace: Trace, preemptors: dict[str, Preemptor], folder: Path, unplanned: int
) -> tuple[Counter[str], Counter[str]]:
    """Print what became of the evictions; (beyond the need, unplaced), by cause. The story of each of these goes into
    a file of its own."""
    evicting = [one for one in preemptors.values() if one.rounds]
    again: Counter[str] = Counter()
    unplaced: Counter[str] = Counter()
    told: list[str] = []
    for one in evicting:
        why = causes(trace, one)
        again += why
        if not one.node:
            unplaced[why_unplaced(one)] += one.evictions
        if why or (not one.node and why_unplaced(one) == "unexplained"):
            file = folder / f"{one.name}.txt"
            file.write_text(story((cluster.extender.log, cluster.scheduler.log), trace, preemptors.values(), one))
            told.append(f"    {one.name}: {dict(why) or 'unplaced'}, {file}")
    landed = sum(one.evictions for one in evicting if one.node)
    elsewhere = sum(one.node != one.rounds[-1].node for one in evicting if one.node)
    rows: list[tuple[str, object]] = [
        ("preemptors", len(preemptors)),
        ("  deleted while they waited", sum(one.deleted < math.inf for one in preemptors.values())),
        ("  that evicted", len(evicting)),
        ("kills of the server", told_of(trace, "the server is killed")),
        ("nodes lost", told_of(trace, "is lost")),
        ("evictions", sum(one.evictions for one in evicting)),
        ("  the preemptor landed", landed),
        ("  it did not", sum(unplaced.values())),
        *((f"    {cause}", unplaced[cause]) for cause in ("deleted", "node lost", "outbid", "unexplained")),
        ("  beyond the need", sum(again.values())),
        *((f"    {cause}", again[cause]) for cause in ("outbid", OUTBID_EARLIER, "node lost", "unexplained")),
        ("  in no plan that was kept", unplanned),
        ("preemptors that landed elsewhere than on what was freed last", elsewhere),
    ]
    print()
    for name, value in rows:
        print(f"{name:62}{value!s:>6}")
    print("\n".join(told))
    return again, unplaced


def test_killed_again_and_again_during_preemptions(scene: SceneFactory, tmp_path: Path) -> None:
    """40 preemptors (GPU_EXTENDER_SOAK: another number), a kill for every eighth, a node lost for every fortieth."""
    rounds = int(os.environ.get("GPU_EXTENDER_SOAK", "40"))
    kills = max(5, rounds // 8)
    rng = random.Random(20)
    nodes = {f"n{i}": {**H100, "labels": {"rack": str(i % RACKS)}} for i in range(6)}
    cluster = scene(nodes, kubelet={"termination_seconds": 0.5, "start_seconds": 0.2}, verbosity=4)
    cluster.priorities(**PRIORITIES)
    template = builders.pod("-", cluster.namespace, VICTIM_GPUS, priority_class="low", grace=5, cpu="100m")
    cluster.api.create(builders.replica_set("load", LOAD, template))
    preemptors = {
        f"urgent{i:03d}": Preemptor(
            f"urgent{i:03d}", rng.choice((2, 4, 4, 8)), 2000 if rng.random() < 0.1 else 1000, str(i % RACKS)
        )
        for i in range(rounds)
    }
    doomed = {name for name in preemptors if rng.random() < 0.05}
    pace = 0.8

    kill_at = sorted(rng.uniform(0, rounds * pace) for _ in range(kills))
    lose_at = sorted((rng.uniform(0, rounds * pace), rng.choice(list(nodes))) for _ in range(max(1, rounds // 40)))

    trace = Trace(cluster.api, cluster.namespace, cluster.extender.url, builders.GPU)
    chaos = Chaos()
    chaos.at(kill_at, lambda n: kill(cluster, trace))
    chaos.at(
        [at for at, _ in lose_at],
        lambda n: lose_node(cluster, trace, lose_at[n][1], nodes[lose_at[n][1]], chaos.ended.wait),
    )
    with trace, chaos:
        for name, one in preemptors.items():
            runs = {RUN_SECONDS: str(rng.choice((0.5, 1)))}
            kind = "higher" if one.priority == 2000 else "high"
            rack = {"rack": one.rack}
            one.created = time.time()
            cluster.pod(name, one.size, priority_class=kind, cpu="100m", annotations=runs, node_selector=rack)
            one.uid = cluster.uids[name]
            time.sleep(pace)
            if name in doomed:
                one.deleted = time.time()
                cluster.api.delete("Pod", name, cluster.namespace, grace=0)
        chaos.wait()
        late = set(preemptors) - doomed
        deadline = time.monotonic() + max(LEAST_PATIENCE, rounds * pace / 2)
        pods: dict[str, Object] = {}
        while late and time.monotonic() < deadline:
            pods = {pod["metadata"]["name"]: pod for pod in cluster.api.list("Pod", cluster.namespace)}
            late = {name for name in late if name in pods and pods[name]["status"].get("phase") != "Succeeded"}
            time.sleep(0.5)
        # With the preemptors gone, the load comes back as a whole.
        back = 0
        while back < FULL and time.monotonic() < deadline:
            found = cluster.api.list("Pod", cluster.namespace, labels="app=load")
            back = sum(
                p["status"].get("phase") == "Running" and "deletionTimestamp" not in p["metadata"] for p in found
            )
            time.sleep(0.5)
        cluster.kubelets.settle()
    truth = cluster.kubelets.truth
    events = cluster.api.list("Event", cluster.namespace, fields="reason=Preempted")
    unplanned = follow(trace, preemptors, preempted(events))
    again, unplaced = table(cluster, trace, preemptors, tmp_path, unplanned)
    print(f"not run: {sorted(late)}; load back: {back} of {FULL}; refusals: {dict(truth.reasons())}")
    assert chaos.errors == []
    assert told_of(trace, "the server is killed") == kills
    assert sum(one.evictions for one in preemptors.values()) > rounds / 4  # it was about evictions
    assert late == set()
    assert back == FULL
    assert set(unplaced) <= {"deleted"}  # all others land, if later
    assert again["unexplained"] == 0
    assert unplanned == 0
    assert truth.double_allocations == 0
