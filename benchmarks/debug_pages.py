"""How long a filter call waits while people read the debug pages of a large server.

    python -m benchmarks.debug_pages [--nodes 15000] [--pods 150000] [--calls 150]

One client asks filter for 100 candidates, again and again. Beside it another process reads one page in a loop. Wall
time of the calls in milliseconds, and the server's memory. What a page costs a call is the difference to `none`.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import quantiles
from urllib.request import urlopen

from benchmarks.serving import Connection

PAGES = ("", "/debug/decisions?most=300&nodes=20000", "/debug/state", "/debug/topologies", "/metrics")
FILL = 100  # decisions over all nodes


def serve(nodes: int, pods: int) -> None:
    """A server over a cluster made here; prints its port."""
    import uvicorn

    from extender.cluster.cluster import Cluster
    from extender.objects import decode, records
    from extender.objects.event import Event
    from extender.server import deciding, garbage, wiring
    from extender.server.serve import config
    from extender.settings import Settings
    from tests.world import machine, pairs, workload

    garbage.begin()
    settings = Settings.model_validate({"server": {"port": 0}})
    cluster = Cluster(settings)
    core = deciding.Core.over(cluster)

    def record(kind: records.Kind, wire: object) -> Event:
        return Event(kind, "set", decode.record(kind, json.dumps(wire).encode(), cluster.gpu_names))

    made = (record("Node", machine(f"node-{i:06}", 8, links=pairs(8))) for i in range(nodes))
    held = (
        record("Pod", workload(f"pod-{i:06}", int(i < 4 * nodes), node=f"node-{i % nodes:06}", phase="Running"))
        for i in range(pods)
    )
    events = itertools.chain(made, held)
    while batch := list(itertools.islice(events, 500)):
        cluster.apply(batch, time.monotonic())
    gc.collect()
    gc.freeze()
    server = wiring.connect(core)
    host = uvicorn.Server(config(server.app, server.connections, settings))
    names = list(cluster.nodes)
    for i in range(FILL):
        body = {"Pod": workload(f"new-{i}", 2), "NodeNames": names}
        core.verbs.filter.answer(json.dumps(body).encode(), time.monotonic(), time.time())
    startup = host.startup

    async def told(sockets: object = None) -> None:
        await startup()
        print(host.servers[0].sockets[0].getsockname()[1], flush=True)

    host.startup = told  # type: ignore[method-assign] # to say where it listens
    host.run()


def read(port: int, page: str) -> None:
    """Reads the page until it is ended."""
    while True:
        with urlopen(f"http://127.0.0.1:{port}{page}") as answer:
            while answer.read(1 << 16):
                pass


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.debug_pages")
    parser.add_argument("--nodes", type=int, default=15_000)
    parser.add_argument("--pods", type=int, default=150_000)
    parser.add_argument("--calls", type=int, default=150)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--read", metavar="PORT PAGE", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        serve(options.nodes, options.pods)
        return 0
    if options.read:
        read(int(options.read[0]), options.read[1])
        return 0
    command = [sys.executable, "-m", "benchmarks.debug_pages"]
    sizes = ["--nodes", str(options.nodes), "--pods", str(options.pods)]
    server = subprocess.Popen(
        [*command, *sizes, "--serve"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert server.stdout is not None
        measure(int(server.stdout.readline()), server.pid, command, options.calls)
    finally:
        server.terminate()
        server.wait()
    return 0


def measure(port: int, pid: int, command: list[str], calls: int) -> None:
    """One line a page."""
    connection = Connection(port)
    print(f"{'page':40} {'p50':>7} {'p99':>7} {'max':>7} {'MiB':>6}   (of {os.cpu_count()} CPUs)")
    for page in PAGES:
        reader = subprocess.Popen([*command, "--read", str(port), page], stderr=subprocess.DEVNULL) if page else None
        try:
            time.sleep(1.0 if reader is None else 2.0)  # until it reads
            spent = sorted(_calls(connection, calls))
        finally:
            if reader is not None:
                reader.terminate()
                reader.wait()
        cut = quantiles(spent, n=100)
        status = Path(f"/proc/{pid}/status").read_text()
        memory = int(status.partition("VmRSS:")[2].split()[0]) // 1024
        print(f"{page or 'none':40} {cut[49]:7.2f} {cut[98]:7.2f} {spent[-1]:7.2f} {memory:6}", flush=True)


def _calls(connection: Connection, calls: int) -> list[float]:
    """Milliseconds of each."""
    from tests.world import workload

    spent = []
    for i in range(calls):
        body = json.dumps(
            {"Pod": workload(f"asked-{i}", 2), "NodeNames": [f"node-{n:06}" for n in range(100)]}
        ).encode()
        began = time.perf_counter()
        reply = connection.send(b"POST /v1/filter HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        spent.append((time.perf_counter() - began) * 1e3)
        assert reply.status == 200
        time.sleep(0.02)
    return spent


if __name__ == "__main__":
    sys.exit(main())
