"""What TLS with client certificates costs a call: the same server over plain HTTP and over TLS, in turns.

    python -m benchmarks.tls [--names 16 1000 5000] [--calls 400] [--handshakes 200]

Each server answers first attempts of filter over one kept connection, as kube-scheduler has it. The server's CPU time
is that of a call, as the median of blocks: neighbours hardly touch it. p50 has the client's share of TLS too. A
handshake is a new connection with one GET, over TLS and plain; certificates are P-256, as manifests/remote makes them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from ssl import SSLContext
from statistics import median

from benchmarks import fleet
from benchmarks.serving import Connection, Served, Servers, cpu_of, request
from benchmarks.verbs import SETTINGS
from tests.e2e.process import free_port
from tests.e2e.remote import Issued
from tests.server.certificate_files import client, trusting

BLOCK = 20
Connect = Callable[[], Connection]


class Measured:
    """Calls of one server. `times`: of each, `cpu`: of the server a call, by block; seconds."""

    def __init__(self, connect: Connect, pid: int) -> None:
        self._connection, self._pid = connect(), pid
        self.times: list[float] = []
        self.cpu: list[float] = []

    def block(self, made: list[bytes]) -> None:
        cpu = cpu_of(self._pid)
        for one in made:
            began = time.perf_counter()
            reply = self._connection.send(one)
            self.times.append(time.perf_counter() - began)
            if reply.status != 200:
                raise SystemExit(f"status {reply.status}: {reply.body[:300]!r}")
        self.cpu.append((cpu_of(self._pid) - cpu) / len(made))

    def close(self) -> None:
        self._connection.close()


def secured(servers: Servers, cluster: bytes, issued: Issued) -> tuple[Served, int]:
    """(the server, its port with TLS). Its other port has health in plain HTTP."""
    port, plain = free_port(), free_port()
    return servers.listening(cluster, SETTINGS, [*issued.arguments(port, plain)], plain), port


def calls(plain: Connect, tls: Connect, pids: tuple[int, int], names: int, number: int) -> str:
    """A row of the table."""
    body = fleet.args(1, [fleet.name(i) for i in range(names)])
    both = [Measured(plain, pids[0]), Measured(tls, pids[1])]
    made = iter(range(1 << 30))
    for turn in range(-2, max(2, number // BLOCK)):  # two to warm up
        asked = [request("POST", "/v1/filter", body.fill(next(made))) for _ in range(BLOCK)]
        for one in both if turn % 2 else reversed(both):
            one.block(asked)
        if turn < 0:
            for one in both:
                one.times.clear()
                one.cpu.clear()
    for one in both:
        one.close()
    figures = [(median(one.times) * 1e3, median(one.cpu) * 1e3) for one in both]
    (p50, cpu), (tls_p50, tls_cpu) = figures
    return f"| {names} | {p50:.3f} | {tls_p50:.3f} | {cpu:.3f} | {tls_cpu:.3f} | {tls_cpu - cpu:+.3f} |"


def opening(connect: Connect, pid: int, number: int) -> float:
    """The server's CPU for a new connection with one GET, milliseconds; the least of five parts."""
    parts = []
    for _ in range(5):
        before = cpu_of(pid)
        for _ in range(max(1, number // 5)):
            connection = connect()
            connection.send(request("GET", "/healthz"))
            connection.close()
        parts.append((cpu_of(pid) - before) / max(1, number // 5))
    return min(parts) * 1e3


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tls", description=__doc__.splitlines()[0])
    parser.add_argument("--names", type=int, nargs="*", default=[16, 1000, 5000], help="nodes in a request")
    parser.add_argument("--calls", type=int, default=400, help="of each server and size")
    parser.add_argument("--handshakes", type=int, default=200, help="new connections of each server")
    asked = parser.parse_args(arguments)
    cluster = fleet.part_filled(max(asked.names))
    with Servers() as servers, tempfile.TemporaryDirectory() as folder:
        issued = Issued(Path(folder) / "issued")
        context: SSLContext = trusting(issued.ca, client(issued.ca))
        plain = servers.ours(cluster, SETTINGS)
        tls, port = secured(servers, cluster, issued)

        def open_plain() -> Connection:
            return Connection(plain.port)

        def open_tls() -> Connection:
            return Connection(port, tls=context)

        print("| names | p50, ms | with TLS | server's CPU, ms | with TLS | TLS |\n|--:|--:|--:|--:|--:|--:|")
        for names in asked.names:
            print(calls(open_plain, open_tls, (plain.pid, tls.pid), names, asked.calls), flush=True)
        costs = opening(open_plain, plain.pid, asked.handshakes), opening(open_tls, tls.pid, asked.handshakes)
        print(f"\na new connection, server's CPU: {costs[0]:.2f} ms, with TLS {costs[1]:.2f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
