"""The server is killed again and again while pods evict others: nothing is lost, nothing is promised twice.

One thing no extender can hold on to: a call that fails makes kube-scheduler take back the preemptor's nomination. If
another pod takes the freed GPUs before the preemptor is tried again, there has to be a second eviction. The test allows
that where a kill lies between the two, and nowhere else, and counts it.
"""

from __future__ import annotations

import math
import os
import random
import threading
import time

from tests.e2e import builders
from tests.e2e.kubelet import RUN_SECONDS
from tests.e2e.scene import SceneFactory

H100 = {"topology": "dgx-h100"}
VICTIM_GPUS = 4


def test_killed_again_and_again_during_preemptions(scene: SceneFactory) -> None:
    """40 preemptors (GPU_EXTENDER_SOAK: another number) against a ReplicaSet that fills the cluster anew each time."""
    rounds = int(os.environ.get("GPU_EXTENDER_SOAK", "40"))
    kills = max(5, rounds // 8)
    rng = random.Random(20)
    cluster = scene({f"n{i}": H100 for i in range(6)}, kubelet={"termination_seconds": 0.5, "start_seconds": 0.2})
    for name, value in (("high", 1000), ("low", 10)):
        cluster.api.create(builders.priority_class(name, value))
    template = builders.pod("-", cluster.namespace, VICTIM_GPUS, priority_class="low", grace=5, cpu="100m")
    cluster.api.create(builders.replica_set("load", 12, template))
    sizes = {f"urgent{i:03d}": rng.choice((2, 4, 4, 8)) for i in range(rounds)}
    pace = 0.8

    ended = threading.Event()
    killed: list[float] = []

    def killer() -> None:
        began = time.monotonic()
        for at in sorted(rng.uniform(0, rounds * pace) for _ in range(kills)):
            if ended.wait(max(0.0, began + at - time.monotonic())):
                return
            killed.append(time.time())
            cluster.extender.restart()

    thread = threading.Thread(target=killer)
    thread.start()
    try:
        for name, size in sizes.items():
            runs = {RUN_SECONDS: str(rng.choice((2, 3, 4)))}
            cluster.pod(name, size, priority_class="high", cpu="100m", annotations=runs)
            time.sleep(pace)
        thread.join()
        late = set(sizes)
        deadline = time.monotonic() + 90
        while late and time.monotonic() < deadline:
            phases = {
                p["metadata"]["name"]: p["status"].get("phase") for p in cluster.api.list("Pod", cluster.namespace)
            }
            late = {name for name in late if phases[name] != "Succeeded"}
            time.sleep(0.5)
        # With the preemptors gone, the load comes back as a whole.
        back = 0
        while back < 12 and time.monotonic() < deadline:
            found = cluster.api.list("Pod", cluster.namespace, labels="app=load")
            back = sum(
                p["status"].get("phase") == "Running" and "deletionTimestamp" not in p["metadata"] for p in found
            )
            time.sleep(0.5)
    finally:
        ended.set()
        thread.join()
    cluster.kubelets.settle()
    truth = cluster.kubelets.truth
    evictions = cluster.evictions()
    times = {name: sorted(evictions.get(cluster.uids[name], {}).values()) for name in sizes}
    counts = {name: len(found) for name, found in times.items()}
    needed = {name: math.ceil(size / VICTIM_GPUS) for name, size in sizes.items()}
    more = {name: counts[name] - needed[name] for name in sizes if counts[name] > needed[name]}
    twice = [name for name in more if not any(times[name][0] - 1 <= kill <= times[name][-1] for kill in killed)]
    total = sum(counts.values())
    print(
        f"soak: {rounds} preemptors, {len(killed)} kills, {total} evictions for "
        f"{sum(count > 0 for count in counts.values())} preemptors (at most needed: {sum(needed.values())}), "
        f"more than needed after a kill: {more}, without one: {twice}, not run: {sorted(late)}, "
        f"load back: {back} of 12, refusals: {dict(truth.reasons())}"
    )
    assert len(killed) == kills
    assert total > rounds / 4  # it was about evictions
    assert late == set()
    assert back == 12
    assert twice == []
    assert sum(more.values()) <= 2 * kills
    assert truth.double_allocations == 0
