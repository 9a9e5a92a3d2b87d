"""The last scene of the day: a pod that waits, and its ways out. It stays as it is, so that people can ask about it."""

from __future__ import annotations

from itertools import combinations

from rich.text import Text

from extender.sim.calls import Extender
from extender.sim.cluster import SimCluster
from extender.sim.day import MORNING, NODES, DayServer, Scene, expect, fleet, ids, node_map
from extender.sim.kubelet import Kubelets
from extender.sim.machines import SimPod, machine
from extender.sim.scheduler import Scheduler

POD, NAMESPACE = "nightly", "train"
WANTED = 4  # GPUs


def waits(cluster: SimCluster, kubelets: Kubelets, extender: Extender, server: DayServer, seed: int) -> Scene:
    """21:00: a training finds enough GPUs, but none that are linked. Raises NotAsTold."""
    cluster.clock.until(MORNING.replace(hour=21))
    scheduler = Scheduler(cluster, extender, seed=seed, settle=server.settle, bound=kubelets.sync)
    uid = cluster.create(SimPod(POD, NAMESPACE, WANTED, links="required").object())
    [outcome] = scheduler.run([uid])
    expect(outcome.result == "waits", f"{POD} waits: {outcome}")
    free = {name: kubelets.truth.free(name) for name in NODES}
    [node] = [name for name in NODES if len(free[name]) >= WANTED]
    hardware = machine(NODES[node])
    expect(not hardware.linked(free[node]), f"the GPUs {ids(free[node])} of {node} are not linked")

    told = extender.explained(f"{NAMESPACE}/{POD}")
    ways = {way["kind"]: way["spec"] for way in told["ways_out"]}
    expect(told["verdict"] == "waits", f"the server states that it waits: {told['sentence']}")
    expect("relax-links" in ways, f"{node} has enough GPUs for links: preferred: {told['sentence']}")
    most = max(size for size in range(1, WANTED) if any(map(hardware.linked, combinations(sorted(free[node]), size))))
    asks = ways.get("smaller", {}).get("is")
    expect(asks == most, f"{most} linked GPUs are free at most: {told['sentence']}")
    scene = Scene(
        "a pod that waits",
        cluster.clock.now().strftime("%H:%M"),
        f"Four GPUs are free on {node}, and no ring joins them: a training that requires links waits. The server "
        "states why, and each change that would let it start. It waits on: ask about it.",
        f"{NAMESPACE}/{POD}",
        view="explain",
    )
    scene.shows = [*node_map(kubelets, node, ""), Text(), *fleet(cluster, kubelets)]
    scene.answers.append(told["sentence"])
    for number, way in enumerate(told["ways_out"], start=1):
        scene.answers.append(f"way out {number}: {way['change']}")
    return scene
