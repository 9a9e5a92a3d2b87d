"""What it costs a preempt reply that its reservation is written to the API server first.

    python -m benchmarks.reservations [--nodes 50] [--calls 300] [--pause 0.1] [-o json]

A real API server and etcd (tests/e2e; etcd does not sync to disk there, which a real one does) hold nodes of eight
GPUs, full of one-GPU pods. Two servers of ours watch them, one with `reservations.store: configmap`, the other with
`memory`. Each call is a new pod of a higher priority than all before it that wants four GPUs and is offered every node.
The two are asked in turns; a pause between the calls keeps the number of standing reservations near what a busy cluster
has (each ends five seconds later here, since its pod does not exist). Every answer is checked.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from statistics import median
from typing import Any

from benchmarks.serving import Connection, request
from benchmarks.verbs import percentile
from tests.e2e import builders, cleaning
from tests.e2e.api import wait_for
from tests.e2e.build import ControlPlaneUnavailable, build
from tests.e2e.cluster import ControlPlane
from tests.e2e.extender_process import ExtenderProcess

STORES = ("memory", "configmap")
GPUS, WANTED, NAMESPACE = 8, 4, "bench"


def fill(control_plane: ControlPlane, nodes: int) -> dict[str, list[str]]:
    """Full nodes; node -> its pods' uids."""
    api = control_plane.api
    api.create(builders.namespace(NAMESPACE))
    names = [f"n{i:03d}" for i in range(nodes)]
    api.create_many(builders.node(name, GPUS) for name in names)

    def pod(node: str, j: int) -> dict[str, Any]:
        made = builders.pod(f"{node}-{j}", NAMESPACE, 1, cpu="100m", memory="1Mi")
        made["spec"]["nodeName"] = node
        return made

    wait_for(lambda: "default" in {a["metadata"]["name"] for a in api.list("ServiceAccount", NAMESPACE)}, 30, "account")
    api.create_many(pod(name, j) for name in names for j in range(GPUS))
    held: dict[str, list[str]] = {name: [] for name in names}
    for one in api.list("Pod", NAMESPACE):
        held[one["spec"]["nodeName"]].append(one["metadata"]["uid"])
    return held


def body(held: dict[str, list[str]], number: int) -> bytes:
    pod = builders.pod(f"urgent-{number}", NAMESPACE, WANTED, cpu="100m", memory="1Mi")
    pod["metadata"]["uid"] = f"00000000-0000-0000-0000-{number:012d}"
    pod["spec"]["priority"] = 1_000 + number
    offered = {
        node: {"Pods": [{"UID": uid} for uid in uids[:WANTED]], "NumPDBViolations": 0} for node, uids in held.items()
    }
    return json.dumps({"Pod": pod, "NodeNameToVictims": None, "NodeNameToMetaVictims": offered}).encode()


def right(answer: bytes, held: dict[str, list[str]]) -> bool:
    victims = json.loads(answer)["NodeNameToMetaVictims"] or {}
    return len(victims) == 1 and all(
        {one["UID"] for one in found["Pods"]} <= set(held[node]) and len(found["Pods"]) == WANTED
        for node, found in victims.items()
    )


def measure(nodes: int, calls: int, pause: float) -> list[dict[str, Any]]:
    times: dict[str, list[float]] = {store: [] for store in STORES}
    with contextlib.ExitStack() as stack:
        control_plane = stack.enter_context(ControlPlane(build(lambda line: print(line, file=sys.stderr))))
        stack.callback(cleaning.clean, control_plane.api)
        held = fill(control_plane, nodes)
        open_: dict[str, Connection] = {}
        for number, store in enumerate(STORES):
            process = ExtenderProcess(
                control_plane.folder,
                control_plane.logs,
                control_plane.kubeconfig(),
                control_plane.reaper,
                config={
                    "apiVersion": "gpu-extender.io/v1",
                    "kind": "GpuExtenderConfiguration",
                    "reservations": {"store": store},
                    "events": {"enabled": False},
                },
                number=number,
            )
            stack.callback(process.kill)
            process.start()
            open_[store] = Connection(process.port)
            stack.callback(open_[store].close)
        for number in range(-5, calls):
            for store in STORES if number % 2 else reversed(STORES):
                made = request("POST", "/v1/preempt", body(held, number + 5))
                began = time.perf_counter()
                reply = open_[store].send(made)
                spent = time.perf_counter() - began
                if reply.status != 200 or not right(reply.body, held):
                    raise SystemExit(f"reservations: {store} answered wrongly: {reply.status} {reply.body[:300]!r}")
                if number >= 0:
                    times[store].append(spent)
                time.sleep(pause)
    return [
        {
            "store": store,
            "candidates": nodes,
            "calls": len(times[store]),
            "p50_ms": round(median(times[store]) * 1e3, 2),
            "p99_ms": round(percentile(times[store], 0.99) * 1e3, 2),
            "max_ms": round(max(times[store]) * 1e3, 2),
        }
        for store in STORES
    ]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reservations", description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=50, help="candidates of each call")
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--pause", type=float, default=0.1, help="seconds between two calls")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    asked = parser.parse_args(arguments)
    try:
        found = measure(asked.nodes, asked.calls, asked.pause)
    except ControlPlaneUnavailable as reason:
        print(f"reservations was SKIPPED, no control plane: {reason}", file=sys.stderr)
        return 1
    if asked.output == "json":
        print(json.dumps({"reservations": found}, indent=1))
    else:
        print("| store | candidates | calls | p50, ms | p99, ms | most, ms |\n|---|--:|--:|--:|--:|--:|")
        for row in found:
            print("| " + " | ".join(str(value) for value in row.values()) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
