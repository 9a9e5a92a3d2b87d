"""What other pods wait while one tenant asks about pods whose claims all differ.

    python -m benchmarks.claim_shapes [--nodes 5000] [--shapes 100] [--names 5000] [--reads uuid]

The cluster of benchmarks.claims with a DRA driver. One client asks filter about a pod of each claim, one after the
other; each claim has a selector of its own, which reads an attribute that differs on each device (`uuid`) or is equal
on nodes of one model (`productName`). Another client asks meanwhile about pods with limits and 16 names.

After that, in this process, how long the queue looks at all nodes for such a claim, and its longest slice.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import threading
import time
from typing import Any, Final

from benchmarks import claims, fleet
from benchmarks.serving import Connection, Servers, request
from benchmarks.verbs import SETTINGS, SHORTLIST
from extender.ask import frozen
from extender.cluster.cluster import Cluster
from extender.queue.placement import look_at_devices
from extender.settings import Settings
from extender.sim import claims as dra

REST: Final = 0.01
"""Seconds between calls of the other client."""
QUEUED: Final = 20
"""Pods for whose claims the queue looks at the nodes."""
STOP: Final = object()


def cluster(nodes: int, shapes: int, reads: str) -> tuple[bytes, list[dict[str, Any]]]:
    """The cluster, and the pods of the tenant."""
    whole = json.loads(claims.cluster(nodes, range(2), by_driver=True))
    pods = []
    for number in range(shapes):
        pod = claims.asking(10 + number, claims.CHOSEN)
        made = claims.claim_of(10 + number, claims.CHOSEN)
        text = f"device.attributes['{dra.DRIVER}'].{reads} != 'none {number}'"
        made["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = [{"cel": {"expression": text}}]
        whole["items"] += [made, {"apiVersion": "v1", "kind": "Pod", **pod}]
        pods.append(pod)
    return json.dumps(whole).encode(), pods


def call(pod: dict[str, Any], names: tuple[str, ...]) -> bytes:
    """A call of filter."""
    asked = {"Pod": pod, "Nodes": None, "NodeNames": names}
    return request("POST", "/v1/filter", json.dumps(asked, separators=(",", ":")).encode())


def timed(connection: Connection, made: bytes) -> float:
    """Milliseconds."""
    began = time.perf_counter()
    reply = connection.send(made)
    took = (time.perf_counter() - began) * 1e3
    if reply.status != 200:
        raise RuntimeError(f"{reply.status} {reply.body[:300]!r}")
    return took


def slices(whole: bytes, pods: list[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """Milliseconds of CPU, of each pod: of all slices in which the queue looks at the nodes, and of the longest."""
    cluster = Cluster(Settings())
    cluster.bound_looks()
    cluster.apply(frozen.parse(whole, cluster.gpu_names), 0.0)
    while cluster.dra.stale:
        cluster.tick(0.0)
    sums: list[float] = []
    longest: list[float] = []
    gc.freeze()  # as the server does
    for pod in pods:
        took: list[float] = []
        steps = look_at_devices(cluster, [cluster.pods[pod["metadata"]["uid"]]])
        more = True
        while more:
            began = time.process_time()
            more = next(steps, STOP) is not STOP
            took.append((time.process_time() - began) * 1e3)
        sums.append(sum(took))
        longest.append(max(took))
    return sums, longest


def text(of: list[float]) -> str:
    """Milliseconds."""
    of = sorted(of)
    at = [of[min(len(of) - 1, int(len(of) * share))] for share in (0.5, 0.99, 1.0)]
    return "p50 {:.1f} p99 {:.1f} max {:.1f} ms".format(*at)


def main(arguments: list[str] | None = None) -> int:
    """Prints the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.claim_shapes", description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--shapes", type=int, default=100)
    parser.add_argument("--names", type=int, default=5000)
    parser.add_argument("--reads", default="uuid")
    asked = parser.parse_args(arguments)
    whole, pods = cluster(asked.nodes, asked.shapes, asked.reads)
    every = tuple(fleet.name(i) for i in range(asked.nodes))
    others = [call(claims.asking(number, claims.LIMITS), every[:SHORTLIST]) for number in range(2)]
    servers = Servers()
    try:
        served = servers.ours(whole, SETTINGS)
        tenant, other = Connection(served.port), Connection(served.port)
        alone = [timed(other, others[i % 2]) for i in range(200)]
        beside: list[float] = []
        stop = threading.Event()

        def ask() -> None:
            while not stop.wait(REST):
                beside.append(timed(other, others[len(beside) % 2]))

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        half = len(pods) // 2
        took = [timed(tenant, call(pod, every[: asked.names])) for pod in pods[:half]]
        stop.set()
        thread.join(60)
        before = served.cpu()
        for pod in pods[half:]:
            timed(tenant, call(pod, every[: asked.names]))
        cpu = (served.cpu() - before) * 1e3 / (len(pods) - half)
    finally:
        servers.close()
    print(f"the tenant's first calls: {text(took)}; of these the first {took[0]:.1f} ms")
    print(f"CPU of the server for a first call, with no other client: {cpu:.1f} ms")
    sums, longest = slices(whole, pods[:QUEUED])
    print(f"CPU of the queue for a first look at all nodes: {text(sums)}; its longest slice: {text(longest)}")
    print(f"others meanwhile ({len(beside)} calls): {text(beside)}; alone: {text(alone)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
