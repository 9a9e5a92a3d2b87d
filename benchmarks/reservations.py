"""What it costs a preempt reply that its reservation is written to the API server first.

    python -m benchmarks.reservations [--nodes 50] [--calls 300] [--rounds 5] [--pause 0.1] [-o json]

A real API server and etcd (tests/e2e; etcd does not sync to disk there, which a real one does) hold nodes of eight
GPUs, full of one-GPU pods. Two servers of ours watch them, one with `reservations.store: configmap`, the other with
`memory`. Each call is a new pod of a higher priority than all before it that wants four GPUs and is offered every node.
The third arm is the floor of the write, a *bare patch*: one key of another ConfigMap that has the same data as the
reservations have then, written by a plain socket on a kept TLS connection. The bare patch states no version to compare.
The arms take turns in alternating order; a pause between the calls keeps the number of standing reservations near what
a busy cluster has (each ends five seconds later here, since its pod does not exist). Every answer is checked.

The targets table has configmap / (memory + 1.3 x bare patch), of the p50 and of the p99: the calls are cut into rounds.
The p99 of a round is nearly its slowest call, so the line before gives the ratios over all calls.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import ssl
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from benchmarks.serving import Connection, request
from benchmarks.spread import Spread, at_most, table, targets_table
from benchmarks.verbs import percentile
from tests.e2e import builders, cleaning
from tests.e2e.api import Api, path_of
from tests.e2e.build import ControlPlaneUnavailable, build
from tests.e2e.cluster import ControlPlane
from tests.e2e.extender_process import ExtenderProcess
from tests.waiting import wait_for

STORES = ("memory", "configmap")
ARMS = (*STORES, "bare patch")
SHARES = {"p50": 0.5, "p99": 0.99}
GPUS, WANTED, NAMESPACE = 8, 4, "bench"
KEPT_IN, KEPT, BARE = "kube-system", "gpu-extender-reservations", "gpu-extender-bare"


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


class BarePatch:
    """A plain socket that patches one key of a ConfigMap with the data that the reservations have now."""

    def __init__(self, url: str, ca: Path, token: str, api: Api) -> None:
        self._api, self._token = api, token
        host = urlsplit(url)
        plain = socket.create_connection((host.hostname, host.port), timeout=30)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = ssl.create_default_context(cafile=str(ca)).wrap_socket(plain, server_hostname=host.hostname)
        self._there = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": BARE, "namespace": KEPT_IN}}
        api.create({**self._there, "data": {}})

    def prepare(self, number: int) -> bytes:
        """The same data as the reservations have; the request that sets one key more."""
        data = (self._api.find("ConfigMap", KEPT, KEPT_IN) or {}).get("data") or {}
        self._api.request("PUT", path_of("ConfigMap", BARE, KEPT_IN), {**self._there, "data": data})
        text = next(iter(data.values()), "x" * 500)
        patch = json.dumps({"data": {f"00000000-0000-0000-0001-{number:012d}": text}}).encode()
        head = (
            f"PATCH {path_of('ConfigMap', BARE, KEPT_IN)} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: application/json\r\n"
            f"Authorization: Bearer {self._token}\r\nContent-Type: application/merge-patch+json\r\n"
            f"Content-Length: {len(patch)}\r\n\r\n"
        )
        return head.encode() + patch

    def send(self, made: bytes) -> None:
        """Bytes out, the whole answer in."""
        self._socket.sendall(made)
        got = b""
        while not _complete(got):
            more = self._socket.recv(1 << 16)
            if not more:
                raise ConnectionError("the API server closed the connection")
            got += more
        if not got.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"reservations: the bare patch failed: {got[:300]!r}")

    def close(self) -> None:
        self._socket.close()


def _complete(got: bytes) -> bool:
    head, found, rest = got.partition(b"\r\n\r\n")
    if not found:
        return False
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return len(rest) >= int(line[15:])
    return rest.endswith(b"0\r\n\r\n")


def measure(nodes: int, calls: int, pause: float) -> dict[str, list[float]]:
    """Seconds of each call, by arm."""
    times: dict[str, list[float]] = {arm: [] for arm in ARMS}
    with contextlib.ExitStack() as stack:
        control_plane = stack.enter_context(ControlPlane(build(lambda line: print(line, file=sys.stderr))))
        stack.callback(cleaning.clean, control_plane.api)
        held = fill(control_plane, nodes)
        send: dict[str, Callable[[int], float]] = {
            store: _asks(_server(control_plane, store, number, stack), held) for number, store in enumerate(STORES)
        }
        bare = BarePatch(control_plane.url, control_plane.ca, control_plane.token("admin"), control_plane.api)
        stack.callback(bare.close)

        def patched(number: int) -> float:
            made = bare.prepare(number)
            time.sleep(pause / 2)
            began = time.perf_counter()
            bare.send(made)
            return time.perf_counter() - began

        send["bare patch"] = patched
        for number in range(-5, calls):
            for arm in ARMS if number % 2 else ARMS[::-1]:
                spent = send[arm](number + 5)
                if number >= 0:
                    times[arm].append(spent)
                time.sleep(pause)
    return times


def _server(control_plane: ControlPlane, store: str, number: int, stack: contextlib.ExitStack) -> Connection:
    config = {
        "apiVersion": "gpu-extender.io/v1",
        "kind": "GpuExtenderConfiguration",
        "reservations": {"store": store},
        "events": {"enabled": False},
    }
    folder, logs, kubeconfig = control_plane.folder, control_plane.logs, control_plane.kubeconfig()
    process = ExtenderProcess(folder, logs, kubeconfig, control_plane.reaper, config=config, number=number)
    stack.callback(process.kill)
    process.start()
    connection = Connection(process.port)
    stack.callback(connection.close)
    return connection


def _asks(connection: Connection, held: dict[str, list[str]]) -> Callable[[int], float]:
    def ask(number: int) -> float:
        made = request("POST", "/v1/preempt", body(held, number))
        began = time.perf_counter()
        reply = connection.send(made)
        spent = time.perf_counter() - began
        if reply.status != 200 or not right(reply.body, held):
            raise SystemExit(f"reservations: a wrong answer: {reply.status} {reply.body[:300]!r}")
        return spent

    return ask


def rows(times: dict[str, list[float]], nodes: int) -> list[dict[str, Any]]:
    """The figures of each arm."""
    return [
        {
            "arm": arm,
            "candidates": nodes,
            "calls": len(spent),
            "p50_ms": round(median(spent) * 1e3, 2),
            "p99_ms": round(percentile(spent, 0.99) * 1e3, 2),
            "max_ms": round(max(spent) * 1e3, 2),
        }
        for arm, spent in times.items()
    ]


def to_target(times: dict[str, list[float]], rounds: int) -> dict[str, list[float]]:
    """configmap / (memory + 1.3 x bare patch) of p50 and p99, one value a round."""
    size = max(1, len(times["memory"]) // rounds)
    found: dict[str, list[float]] = {name: [] for name in SHARES}
    for at in range(0, size * rounds, size):
        part = {arm: spent[at : at + size] for arm, spent in times.items()}
        for name, share in SHARES.items():
            memory, ours, bare = (percentile(part[arm], share) for arm in ARMS)
            found[name].append(ours / (memory + 1.3 * bare))
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reservations", description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=50, help="candidates of each call")
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5, help="parts into which the calls are cut")
    parser.add_argument("--pause", type=float, default=0.1, help="seconds between two calls")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    asked = parser.parse_args(arguments)
    try:
        times = measure(asked.nodes, asked.calls, asked.pause)
    except ControlPlaneUnavailable as reason:
        print(f"reservations was SKIPPED, no control plane: {reason}", file=sys.stderr)
        return 1
    found, by_round = rows(times, asked.nodes), to_target(times, asked.rounds)
    target = "<= in memory + 1.3 x a bare patch (ratio 1)"
    lines = [
        at_most(f"preempt with the default store, {name}", target, Spread.of(by_round[name]), 1.0) for name in SHARES
    ]
    if asked.output == "json":
        print(json.dumps({"reservations": found, "targets": [one._asdict() for one in lines]}, indent=1))
        return 0
    whole = {name: values[0] for name, values in to_target(times, 1).items()}
    heads = ("arm", "candidates", "calls", "p50, ms", "p99, ms", "most, ms")
    print(table(heads, [[str(value) for value in row.values()] for row in found], 1))
    print("\nOf all calls: " + ", ".join(f"{name} {whole[name]:.2f} of the target" for name in SHARES))
    print("\n" + targets_table(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
