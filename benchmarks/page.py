"""What the page costs at 5,000 nodes: bytes, the CPU of its process, and the first paint in Chromium.

    python -m benchmarks.page [--nodes 5000] [--waiting 200] [--runs 5]

Racks of 16 nodes with 8 GPUs each, six of them held; pods of ten kinds wait. CPU is measured in this process,
the least of the runs, because other processes cost too.
The first paint is the browser's own number (first-contentful-paint), the median of the runs, of a server in another
process. Without Chromium it is left out.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any

from extender import log
from extender.server import garbage
from tests.browser import chromium
from tests.web.page.served import served
from tests.web.page.test_views import made, site
from tests.world import WALL, World, machine, pairs, workload

VIEWS: Mapping[str, Mapping[str, str]] = {
    "/": {},
    "/nodes": {"in": "rack-007"},
    "/node": {"node": "node-00112"},
    "/waiting": {},
    "/pod": {"pod": "default/waits-1"},
    "/queue": {},
    "/capacity": {},
    "/advice": {},
    "/whatif": {},
    "/preemptions": {},
    "/prices": {},
    "/decisions": {},
}
DECISIONS = 50
PER_RACK = 16
RACK = "cloud.provider.com/topology-rack"
FIRST_PAINT = """() => new Promise((found) => new PerformanceObserver((list) => {
  for (const one of list.getEntriesByName("first-contentful-paint")) found(one.startTime);
}).observe({ type: "paint", buffered: true }))"""
TARGET_BYTES, TARGET_CPU_MS, TARGET_PAINT_MS = 500_000, 150.0, 1_000.0


def filled(nodes: int, waiting: int) -> World:
    """A world of so many nodes, and pods that wait, with some decisions."""
    from extender.objects import decode
    from extender.objects.records import Event

    world, rng = World(), random.Random(1)
    wires: list[tuple[Any, Any]] = []
    for n in range(nodes):
        name = f"node-{n:05}"
        labels = {RACK: f"rack-{n // PER_RACK:03}", "nvidia.com/gpu.product": rng.choice(("A100", "H100"))}
        wires.append(("Node", machine(name, 8, links=pairs(8), labels=labels)))
        for gpu in rng.sample(range(8), 6):
            pod = workload(f"runs-{n}-{gpu}", 1, node=name, phase="Running", held=[gpu], start=WALL - 600)
            wires.append(("Pod", pod))
    for n in range(waiting):
        wires.append(("Pod", workload(f"waits-{n}", 1 + n % 10, links="required", priority=n % 10)))
    names = world.cluster.gpu_names
    events = [Event(kind, "set", decode.record(kind, json.dumps(one).encode(), names)) for kind, one in wires]
    world.cluster.apply(events, world.now)
    for n in range(DECISIONS):
        world.filter(workload(f"asked-{n}", 2))
    return world


def measured(world: World, path: str, runs: int) -> tuple[int, float]:
    """(bytes, CPU in ms) of a view, the least of the runs."""
    found = []
    for _ in range(runs):
        began = time.thread_time()
        size = len(made(site(world), path, VIEWS[path]))
        found.append((size, (time.thread_time() - began) * 1e3))
    return min(found, key=lambda one: one[1])


@contextmanager
def server(nodes: int, waiting: int) -> Iterator[str]:
    """The address of a server in another process."""
    command = [sys.executable, "-m", "benchmarks.page", "--nodes", str(nodes), "--waiting", str(waiting), "--serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        try:
            yield running.stdout.readline().decode().strip()
        finally:
            running.stdin.close()


def paints(path: str, nodes: int, waiting: int, runs: int) -> dict[str, float]:
    """By view: milliseconds to the first paint, the median of runs in new contexts: nothing is cached."""
    found = {}
    with server(nodes, waiting) as url, chromium.browser(path) as browser:
        for view, query in VIEWS.items():
            times = []
            for _ in range(runs):
                context = browser.new_context(base_url=url)
                page = context.new_page()
                page.goto(view + "?" + "&".join(f"{key}={text}" for key, text in query.items()))
                times.append(page.evaluate(FIRST_PAINT))
                context.close()
            found[view] = median(times)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.page", description=__doc__)
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--waiting", type=int, default=200)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    log.configure(level=logging.ERROR)
    garbage.begin()
    world = filled(options.nodes, options.waiting)
    gc.collect()
    gc.freeze()
    if options.serve:
        with served(world) as url:
            print(url, flush=True)
            sys.stdin.read()
        return 0
    rows = {path: measured(world, path, options.runs) for path in VIEWS}
    browser = chromium.installed()
    times = {} if browser is None else paints(browser, options.nodes, options.waiting, options.runs)
    print(f"{options.nodes} nodes, {options.waiting} pods that wait; targets of /: {TARGET_BYTES} bytes, ", end="")
    print(f"{TARGET_CPU_MS:g} ms CPU, {TARGET_PAINT_MS:g} ms to the first paint")
    print(f"{'view':14} {'bytes':>9} {'CPU ms':>8} {'paint ms':>9}")
    for path, (size, cpu) in rows.items():
        paint = f"{times[path]:9.0f}" if path in times else f"{'-':>9}"
        print(f"{path:14} {size:9} {cpu:8.1f} {paint}")
    size, cpu = rows["/"]
    met = size < TARGET_BYTES and cpu < TARGET_CPU_MS and times.get("/", 0.0) < TARGET_PAINT_MS
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
