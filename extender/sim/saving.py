"""A preemption that loses seconds: the victim is asked to save its work before its GPUs are taken."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from rich.text import Text

from extender.objects.save_request import SAVE_REQUESTED, SAVED
from extender.sim.calls import Extender
from extender.sim.cluster import SimCluster
from extender.sim.day import ANY_ARCH, MORNING, DayServer, Scene, expect, fleet, ids, node_map
from extender.sim.kubelet import Kubelets
from extender.sim.machines import SimPod
from extender.sim.scheduler import Scheduler

VICTIM, NEEDS = "pretrain", "2m"  # what the training says that it needs to save
PREEMPTOR, PRIORITY_CLASS = "chat", "production"
GPUS = 4
SAVES_SECONDS = 4  # what it really needs
MOST_WAIT_SECONDS = 600  # of pods of that class: preemption.mostWaitSeconds


def asked(cluster: SimCluster, kubelets: Kubelets, extender: Extender, server: DayServer, seed: int) -> Scene:
    """20:30: a service takes the GPUs of a training, which saves first. Raises NotAsTold."""
    clock = cluster.clock
    clock.until(MORNING.replace(hour=20, minute=30))
    scheduler = Scheduler(cluster, extender, seed=seed, settle=server.settle, bound=kubelets.sync)
    victim = cluster.named("train", VICTIM)
    uid, node = str(victim["metadata"]["uid"]), str(victim["spec"]["nodeName"])
    cluster.set_annotation(uid, "gpu-extender.io/saves-on-request", NEEDS)
    began = clock.now()
    ran = (began - datetime.fromisoformat(victim["status"]["startTime"])).total_seconds()

    service = SimPod(PREEMPTOR, "serving", GPUS, links="required", priority=1_000, tolerations=ANY_ARCH).object()
    service["spec"]["priorityClassName"] = PRIORITY_CLASS
    preemptor = cluster.create(service)
    [outcome] = scheduler.run([preemptor])
    expect((outcome.result, outcome.victims) == ("waits", ()), f"kube-scheduler evicts no pod: {outcome}")

    def request() -> dict[str, Any]:
        text = cluster.named("train", VICTIM)["metadata"]["annotations"].get(SAVE_REQUESTED, "{}")
        return dict(json.loads(text))

    server.until(lambda: bool(request()), f"ask train/{VICTIM} to save its work")
    expect(request()["by"] == f"serving/{PREEMPTOR}", f"it is asked for that service: {request()}")
    expect(len(kubelets.truth.gpus_of(uid)) == GPUS, "the training runs on meanwhile")
    held = kubelets.truth.gpus_of(uid)

    clock.advance(SAVES_SECONDS)
    cluster.set_annotation(uid, SAVED, request()["id"])
    saved = clock.now()

    def evicted() -> bool:
        return "deletionTimestamp" in cluster.named("train", VICTIM)["metadata"]

    server.until(evicted, f"evict train/{VICTIM}")
    kubelets.terminate(uid)  # it has nothing left to do: it ends at once on SIGTERM
    [outcome] = scheduler.run([preemptor])
    expect((outcome.result, outcome.node) == ("bound", node), f"{PREEMPTOR} is bound to {node}: {outcome}")
    expect(kubelets.truth.gpus_of(preemptor) == held, f"it holds the GPUs {ids(held)}, which were freed for it")
    server.settle()

    lost, instead = GPUS * (saved - began).total_seconds(), GPUS * ran / 3600
    scene = Scene(
        "asked to save first",
        began.strftime("%H:%M"),
        "A service needs four linked GPUs. The cheapest victim is a training that can save within two minutes when it "
        "is asked. So kube-scheduler is answered no victims, the GPUs are reserved, and the training is asked. It "
        "saves, answers, and is evicted.",
        f"serving/{PREEMPTOR}",
        view="explain",
    )
    scene.shows = [*node_map(kubelets, node, preemptor), Text(), *fleet(cluster, kubelets)]
    scene.answers.append(
        f"asked {began:%H:%M:%S}, saved {saved:%H:%M:%S}, {PREEMPTOR} started {clock.now():%H:%M:%S}: "
        f"{lost:.0f} GPU-seconds lost instead of {instead:.0f} GPU-hours"
    )
    return scene
