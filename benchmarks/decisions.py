"""How many decisions about a large cluster the ring of decisions keeps in its default memory.

    python -m benchmarks.decisions [--nodes 5000] [--calls 6000]

In process, without a server: filter calls over all nodes, of which half reject every node and half answer the best.
The default of `decisions.maxBytes` bounds what the ring counts; beside it stands how much the process has grown while
the ring was filled.
"""

from __future__ import annotations

import argparse
import gc
import resource
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks import fleet
from benchmarks.spread import Line, table, targets_table
from extender.cluster.cluster import Cluster
from extender.offline import frozen
from extender.server.wiring import Core
from extender.settings import Settings

TARGET = 5000


def rss() -> int:
    """Resident bytes of this process now (Linux)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def filled(nodes: int) -> Core:
    """What decides, over a part-filled fleet, with default settings."""
    cluster = Cluster(Settings())
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        file.write(fleet.part_filled(nodes))
        file.flush()
        cluster.apply(frozen.read(Path(file.name), cluster.gpu_names, []), time.monotonic())
    return Core.over(cluster)


def measure(nodes: int, calls: int) -> tuple[int, int, float]:
    """(decisions kept, bytes that the process has grown, milliseconds of CPU of a call)."""
    core = filled(nodes)
    names = [fleet.name(i) for i in range(nodes)]
    bodies = [fleet.args(gpus, names) for gpus in (1, fleet.SIZE)]
    answer, spent = core.verbs.filter.answer, []
    for number in range(20):  # what is kept for the shapes of requests is there from now on
        answer(bodies[number % 2].fill(calls + number), float(number), time.time())
    gc.collect()
    before = rss()
    for number in range(calls):
        body = bodies[number % 2].fill(number)
        began = time.thread_time()
        answer(body, 1000.0 + 10.0 * number, time.time())  # what was assumed has expired
        spent.append(time.thread_time() - began)
    gc.collect()
    return sum(1 for _ in core.verbs.decisions.latest()), rss() - before, median(spent) * 1e3


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decisions", description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--calls", type=int, default=6000)
    asked = parser.parse_args(arguments)
    kept, grown, spent = measure(asked.nodes, asked.calls)
    limit = Settings().decisions.max_bytes
    heads = ["nodes", "calls", "limit, MiB", "decisions kept", "KiB of each, as counted", "process grown, MiB"]
    each = limit / kept / 1024 if kept < asked.calls else float("nan")
    row = [asked.nodes, asked.calls, limit >> 20, kept, f"{each:.1f}", f"{grown / 2**20:.0f}", f"{spent:.2f}"]
    print(table([*heads, "CPU of a call, ms"], [[str(cell) for cell in row]], words=0))
    got = f"{kept}" if kept < asked.calls else f"all of {kept}"
    print("\n" + targets_table([Line(f"ring of decisions at {asked.nodes} nodes", ">= 5,000", got, kept >= TARGET)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
