"""How long a filter call waits while people ask a large server, and what the answers take.

    python -m benchmarks.debug_pages [--nodes 15000] [--pods 150000] [--calls 1500] [--rounds 2]

One client asks filter for 100 candidates, again and again. Beside it another process asks one question a second, or
none: a machine changes its speed within a minute, so each question has calls without it next to it, in both orders, and
the ratios are medians over these pairs. `p50`, `p99`: wall time of the calls in milliseconds, without and with the
question; the first ones, which a server answers at once, are over by then. `answer`: the median from a question to its
last byte, `first`: of the first one. Memory in MiB: `server`, its RSS; `forks`, what its forks have of their own at
most. Other processes make the calls wait, too: run it with a real-time priority (`chrt -r 1`) where there are some;
forks drop it.
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
from contextlib import suppress
from pathlib import Path
from statistics import median, quantiles
from urllib.request import urlopen

from benchmarks.serving import Connection

PAGES = (
    "/debug/explain?pod=default/waits-1",
    "/debug/top",
    "/",
    "/debug/decisions?most=300&nodes=20000",
    "/debug/state",
)
EVERY = 1.0  # seconds between two questions
BURST = 10.0  # seconds: the server's rests are used up then (extender.ask.forks.SAVED_REST)
END = 6.0  # seconds after the last question: its forks have ended
LOOKS = 40  # at the memory of forks, ten a second
WAITING = 200  # pods
FILL = 100  # decisions over all nodes


def serve(nodes: int, pods: int) -> None:
    """A server over a cluster made here; prints its port."""
    import uvicorn

    from extender.cluster.cluster import Cluster
    from extender.objects import decode, records
    from extender.objects.records import Event
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
    waiting = (record("Pod", workload(f"waits-{i}", 1 + i % 10)) for i in range(WAITING))
    events = itertools.chain(made, held, waiting)
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
    """Asks for the page again and again until it is ended; prints what each answer took, in ms."""
    while True:
        began = time.perf_counter()
        with urlopen(f"http://127.0.0.1:{port}{page}") as answer:
            while answer.read(1 << 16):
                pass
        took = time.perf_counter() - began
        print(round(took * 1e3), flush=True)
        time.sleep(max(0.0, EVERY - took))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.debug_pages")
    parser.add_argument("--nodes", type=int, default=15_000)
    parser.add_argument("--pods", type=int, default=150_000)
    parser.add_argument("--calls", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=2)
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
        measure(int(server.stdout.readline()), server.pid, command, options.calls, options.rounds)
    finally:
        server.terminate()
        server.wait()
    return 0


def measure(port: int, pid: int, command: list[str], calls: int, rounds: int) -> None:
    """One line a question."""
    connection = Connection(port)
    _calls(connection, calls // 4)
    head = "".join(f"{name:>14}" for name in ("p50", "p99"))
    head += "".join(f"{name:>8}" for name in ("p50 x", "p99 x", "max", "answer", "first", "server", "forks"))
    print(f"{'question':38}{head}   (of {os.cpu_count()} CPUs)")
    for page in PAGES:
        alone: list[list[float]] = []
        beside: list[list[float]] = []
        took: list[list[int]] = []
        forks = 0
        for number in range(rounds):
            if number % 2 == 0:
                alone.append(_calls(connection, calls))
            reader = subprocess.Popen(
                [*command, "--read", str(port), page], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            try:
                time.sleep(BURST)
                beside.append(_calls(connection, calls))
                for _ in range(LOOKS):  # not between two calls, which would find the caches full of page tables
                    forks = max(forks, _own_of_forks(pid))
                    time.sleep(0.1)
            finally:
                reader.terminate()
            took.append([int(line) for line in reader.communicate()[0].split()])
            time.sleep(END)
            if number % 2:
                alone.append(_calls(connection, calls))
        _print(page, alone, beside)
        answers = (median(itertools.chain(*took)), took[0][0])
        print("".join(f"{one:8.0f}" for one in (*answers, _memory(pid, "Rss:"), forks)), flush=True)


def _print(page: str, alone: list[list[float]], beside: list[list[float]]) -> None:
    """The wall times of calls, in milliseconds: blocks without and with a question."""
    print(f"{page:38}", end="")
    ratios = ""
    for percent in (50, 99):
        pairs = [
            [quantiles(block, n=100)[percent - 1] for block in blocks] for blocks in zip(alone, beside, strict=True)
        ]
        print(f"{median(one for one, _ in pairs):7.2f}{median(one for _, one in pairs):7.2f}", end="")
        ratios += f"{median(with_it / without for without, with_it in pairs):8.2f}"
    print(f"{ratios}{max(itertools.chain(*beside)):8.2f}", end="")


def _memory(pid: int | str, field: str) -> int:
    """MiB."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(text.partition(field)[2].split()[0]) // 1024


def _own_of_forks(pid: int) -> int:
    """MiB that the forks of a process have of their own, together."""
    total = 0
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with suppress(OSError, ValueError, IndexError):  # it has ended
            total += _memory(child, "Private_Dirty:") + _own_of_forks(int(child))
    return total


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
        time.sleep(0.01)
    return spent


if __name__ == "__main__":
    sys.exit(main())
