"""GPUs for a date in the queue, on the real control plane: an operator's entry, and a gang that states its own date."""

from __future__ import annotations

import time
from typing import Any

from extender.objects.advance import CONFIG_MAP
from extender.sim.machines import machine
from extender.times import rfc3339
from tests.e2e.kubelet import RUN_SECONDS
from tests.e2e.scene import H100, Scene, SceneFactory
from tests.e2e.test_queue import job, nodes_of, pods_of, waits
from tests.waiting import wait_for

SECONDS = 90
"""Until the date: two restarts take most of it, and a gang has to end 30 s before."""


def shown(cluster: Scene) -> list[Any]:
    """The reservations as /debug/queue has them."""
    return list(cluster._page("/debug/queue").json()["advance_reservations"])


def phase(cluster: Scene, name: str) -> str:
    return next((one["phase"] for one in shown(cluster) if one["name"] == name), "")


def started(cluster: Scene, name: str) -> float:
    """When the last of its pods was bound, seconds since 1970."""
    bound = [
        condition["lastTransitionTime"]
        for pod in pods_of(cluster, name)
        for condition in pod["status"]["conditions"]
        if condition["type"] == "PodScheduled"
    ]
    return max(time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%SZ")) - time.timezone for text in bound)


def reasons(cluster: Scene, namespace: str) -> set[str]:
    """Of the Events there."""
    return {event["reason"] for event in cluster.api.list("Event", namespace)}


def test_gangs_start_at_their_dates_on_the_gpus_that_are_held(
    scene: SceneFactory, settings: Any, namespace: str
) -> None:
    """Pods that end before use the GPUs meanwhile; the server is killed once, and restarted once."""
    limits = {namespace: {"limitGpus": {machine("dgx-h100").product: 32}}}
    chosen = {"queue": settings["queue"] | {"queues": limits}, "reservations": {"namespace": namespace}}
    cluster = scene({f"n{at}": H100 for at in range(4)}, settings=chosen)
    since = int(time.time()) + SECONDS
    entry = f"for: 2x8\nnamespaces: [{namespace}]\nfrom: {rfc3339(since)}\nuntil: {rfc3339(since + 300)}\n"
    meta = {"name": CONFIG_MAP, "namespace": namespace}
    cluster.api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"big": entry}})
    wait_for(lambda: phase(cluster, "big") == "ready", 30, lambda: str(shown(cluster)))
    job(cluster, "dated", 2, 8, annotations={"gpu-extender.io/start-at": rfc3339(since)})
    wait_for(lambda: len(shown(cluster)) == 2 and not any(one["phase"] == "no-place" for one in shown(cluster)), 30,
             lambda: str(shown(cluster)))  # fmt: skip
    held = {node for one in shown(cluster) for node in one["nodes"]}
    assert held == {"n0", "n1", "n2", "n3"}
    cluster.extender.kill()
    cluster.extender.start()
    job(cluster, "big", 2, 8)
    job(cluster, "short", 1, 8, annotations={RUN_SECONDS: "5", "gpu-extender.io/duration": "10s"})
    assert len(nodes_of(cluster, "short", 1, timeout=20)) == 1  # it ends before
    cluster.extender.stop()
    cluster.extender.start()
    wait_for(lambda: {one["phase"] for one in shown(cluster)} <= {"ready", "planned"}, 20, lambda: str(shown(cluster)))
    assert waits(cluster, "big")
    assert waits(cluster, "dated")
    timeout = since + 30 - time.time()
    nodes = [*nodes_of(cluster, "big", 2, timeout), *nodes_of(cluster, "dated", 2, timeout)]
    assert sorted(nodes) == sorted(held)
    for name in ("big", "dated"):
        assert -1 <= started(cluster, name) - since <= 20
    wait_for(lambda: phase(cluster, "big") == "in-use", 20, lambda: str(shown(cluster)))
    told = {"AdvanceReservationReady", "AdvanceReservationBegins"}  # Events are written after the phase
    wait_for(lambda: told <= reasons(cluster, namespace), 20, lambda: str(reasons(cluster, namespace)))
    job(cluster, "later", 1, 1)
    time.sleep(3)
    assert waits(cluster, "later")
