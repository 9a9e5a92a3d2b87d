"""What the page costs at 5,000 nodes: bytes, the server's CPU, its longest slice, and the first paint in Chromium.

    python -m benchmarks.page [--nodes 5000] [--waiting 200] [--runs 5]

Racks of 16 nodes with 8 GPUs each, six of them held; pods of ten kinds wait. CPU and slices are measured in this
process, slice by slice as a server makes them: the least of the runs for each piece, because other processes cost too.
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

from extender.web.slices import SLICE_SECONDS

from extender import log
from extender.server import garbage
from tests.browser import chromium
from tests.web.page.served import served
from tests.web.page.test_views import site
from tests.world import WALL, World, machine, pairs, workload

VIEWS: Mapping[str, Mapping[str, str]] = {
    "/": {},
    "/nodes": {"in": "rack-007"},
    "/node": {"node": "node-00112"},
    "/waiting": {},
    "/pod": {"pod": "default/waits-1"},
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
TARGET_BYTES, TARGET_CPU_MS, TARGET_SLICE_MS, TARGET_PAINT_MS = 500_000, 150.0, 5.0, 1_000.0


def filled(nodes: int, waiting: int) -> World:
    """A world of so many nodes, and pods that wait, with some decisions."""
    from extender.objects import decode
    from extender.objects.event import Event

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


def slices(made: Iterator[bytes]) -> tuple[int, list[float]]:
    """(bytes of a page, CPU seconds of each piece)."""
    size, spent = 0, list[float]()
    while True:
        began = time.thread_time()
        piece = next(made, None)
        spent.append(time.thread_time() - began)
        if piece is None:
            return size, spent
        size += len(piece)


def longest(pieces: Sequence[float]) -> float:
    """The longest slice of pieces that are made one after the other until a slice's time is over, in seconds."""
    most = now = 0.0
    for piece in pieces:
        now += piece
        most = max(most, now)
        if now >= SLICE_SECONDS:
            now = 0.0
    return most


def measured(world: World, path: str, runs: int) -> tuple[int, float, float]:
    """(bytes, CPU in ms, longest slice in ms) of a view, each time of a new site: no answer is kept."""
    found = []
    for _ in range(runs):
        here = site(world)
        view = next(one for one in here.views if one.path == path)
        found.append(slices(here.pieces(view, VIEWS[path], as_json=False)))
    least = [min(spent[at] for _, spent in found) for at in range(min(len(spent) for _, spent in found))]
    return found[0][0], sum(least) * 1e3, longest(least) * 1e3


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
    print(f"{TARGET_CPU_MS:g} ms CPU, {TARGET_SLICE_MS:g} ms a slice, {TARGET_PAINT_MS:g} ms to the first paint")
    print(f"{'view':14} {'bytes':>9} {'CPU ms':>8} {'slice ms':>9} {'paint ms':>9}")
    for path, (size, cpu, slice_) in rows.items():
        paint = f"{times[path]:9.0f}" if path in times else f"{'-':>9}"
        print(f"{path:14} {size:9} {cpu:8.1f} {slice_:9.2f} {paint}")
    size, cpu, _ = rows["/"]
    met = size < TARGET_BYTES and cpu < TARGET_CPU_MS and times.get("/", 0.0) < TARGET_PAINT_MS
    return 0 if met and max(slice_ for *_, slice_ in rows.values()) < TARGET_SLICE_MS else 1


if __name__ == "__main__":
    sys.exit(main())
