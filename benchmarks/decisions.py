"""How many decisions about a large cluster the ring of decisions keeps in its default memory.

    python -m benchmarks.decisions [--nodes 5000] [--calls 15000]

In process, without a server: filter calls over all nodes, of which half reject every node and half answer the best.
The default of `decisions.maxBytes` bounds what the ring counts; beside it stands how much memory Python has allocated
for each of some hundred calls and not given back (tracemalloc).
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path
from statistics import median

from benchmarks import fleet
from benchmarks.spread import Line, table, targets_table
from extender.ask import frozen
from extender.cluster.cluster import Cluster
from extender.server.deciding import Core
from extender.settings import Settings

TARGET = 5000
TRACED = 200


def filled(nodes: int) -> Core:
    """What decides, over a part-filled fleet, with default settings."""
    cluster = Cluster(Settings())
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        file.write(fleet.part_filled(nodes))
        file.flush()
        cluster.apply(frozen.read(Path(file.name), cluster.gpu_names, []), time.monotonic())
    return Core.over(cluster)


def measure(nodes: int, calls: int) -> tuple[int, float, float]:
    """(decisions kept, bytes that a call leaves allocated, milliseconds of CPU of a call)."""
    core = filled(nodes)
    names = [fleet.name(i) for i in range(nodes)]
    bodies = [fleet.args(gpus, names) for gpus in (1, fleet.SIZE)]
    spent = []

    def ask(number: int) -> None:
        body = bodies[number % 2].fill(number)
        began = time.thread_time()
        core.verbs.filter.answer(body, 10.0 * number, time.time())  # what was assumed has expired
        spent.append(time.thread_time() - began)

    for number in range(TRACED):  # what is kept for the shapes of requests is there from now on
        ask(number)
    tracemalloc.start()
    for number in range(TRACED, 2 * TRACED):
        ask(number)
    gc.collect()
    left = tracemalloc.get_traced_memory()[0] / TRACED
    tracemalloc.stop()
    spent.clear()
    for number in range(2 * TRACED, calls):
        ask(number)
    return sum(1 for _ in core.verbs.decisions.latest()), left, median(spent) * 1e3


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decisions", description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--calls", type=int, default=15000)
    asked = parser.parse_args(arguments)
    if asked.calls <= 2 * TRACED:
        parser.error(f"--calls: more than {2 * TRACED}")
    kept, left, spent = measure(asked.nodes, asked.calls)
    limit = Settings().decisions.max_bytes
    heads = ["nodes", "calls", "limit, MiB", "decisions kept", "KiB of each, as counted", "as allocated"]
    each = limit / kept / 1024 if kept < asked.calls else float("nan")
    row = [asked.nodes, asked.calls, limit >> 20, kept, f"{each:.1f}", f"{left / 1024:.1f}", f"{spent:.2f}"]
    print(table([*heads, "CPU of a call, ms"], [[str(cell) for cell in row]], words=0))
    got = f"{kept}" if kept < asked.calls else f"all of {kept}"
    print("\n" + targets_table([Line(f"ring of decisions at {asked.nodes} nodes", ">= 5,000", got, kept >= TARGET)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
