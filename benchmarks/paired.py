"""The CPU of a whole call, or of a pod's event, in two trees, in turns: what a change brings on a machine that does
other work too.

    python -m benchmarks.paired TREE [--rounds 12] [--nodes 5000] [--cases "filter, 16" preempt]

TREE is another checkout of this repository, with its kernels built in place. Each tree has a process with a frozen
fleet. The bytes of a request go into its connection class, without a socket; the CPU time of its thread is read until
the log line is made. So the client, the kernel and the other tree's caches cost nothing here. Each round has a block of
calls of both, in alternating order. preempt is asked over a fleet of OFFERED full nodes. An event is decoded and
applied to a cluster of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import uvloop

from benchmarks import event_worker, fleet
from benchmarks.serving import request
from benchmarks.spread import table
from tests.e2e import commits

BLOCK = 20
PIECE = 64 << 10  # bytes that a socket gives at once
KNOWN = range(1 << 24, (1 << 24) + 3_000)  # the numbers of the pods in the cluster
WARM_UP = 20
SHORTLIST = 16
CASES = {
    f"{verb}, {names or 'all'} {'name' if names == 1 else 'names'}, pod {'known' if known else 'not known'}": (
        verb,
        names,
        known,
    )
    for verb, names, known in (
        ("filter", 1, True),
        ("filter", SHORTLIST, True),
        ("filter", SHORTLIST, False),
        ("prioritize", SHORTLIST, True),
        ("prioritize", SHORTLIST, False),
        ("filter", 0, False),  # 0: all
    )
}
OFFERED = 500
PREEMPT = f"preempt, {OFFERED} nodes offered, 4 of 8 GPUs"
EVENTS = ("event, a GPU pod changes", "event, a GPU pod comes and goes")
ALL_CASES = (*CASES, PREEMPT, *EVENTS)
EVENT_NODES = 40


class Sink(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.written = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return False

    def resume_reading(self) -> None:
        pass

    def pause_reading(self) -> None:
        pass


class Driven:
    """A server over a frozen fleet, and the calls of CASES, through its connection class without a socket."""

    def __init__(self, nodes: int, settings: Mapping[str, Any], *, full: bool = False, **options: Any) -> None:
        """`settings`: besides those of the calls; `full`: no GPU is free, for PREEMPT; `options`: of
        `wiring.over_file`."""
        from uvicorn.server import ServerState

        from extender import log
        from extender.server import garbage, wiring
        from extender.server.serve import config
        from extender.settings import Settings

        self._every = [fleet.name(i) for i in range(nodes)]
        self._emptiest = sorted(self._every, key=lambda name: fleet.taken(int(name[-4:])))
        self._numbers: dict[bool, Iterator[int]] = {True: itertools.cycle(KNOWN), False: itertools.count()}
        made = Settings.model_validate({"hold": {"seconds": 0.0001}, **settings})  # see benchmarks.verbs
        log.configure("json")
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            pod = fleet.args(1, self._emptiest[:1])
            waiting = [json.loads(pod.fill(number))["Pod"] for number in KNOWN]
            file.write(fleet.full(nodes) if full else fleet.part_filled(nodes, waiting))
            file.flush()
            server = wiring.over_file(made, Path(file.name), **options)
        self.app = server.app
        garbage.begin()
        uvicorn = config(server.app, server.connections, made)
        uvicorn.load()
        self._protocol = server.connections.protocol()(uvicorn, ServerState(), {}, asyncio.get_running_loop())
        self._sink = Sink()
        self._protocol.connection_made(self._sink)

    async def call(self, case: str) -> float:
        """Microseconds of this thread's CPU that one call takes."""
        verb, names, known = CASES.get(case, ("preempt", 0, False))
        if case == PREEMPT:
            body = fleet.preemption(fleet.SIZE // 2, [fleet.SIZE] * len(self._every))
        else:
            body = fleet.args(1, self._emptiest[:names] if names else self._every)
        asked = request("POST", f"/v1/{verb}", body.fill(next(self._numbers[known])))
        pieces = [asked[at : at + PIECE] for at in range(0, len(asked), PIECE)]
        time.sleep(0.001)  # what was assumed expires
        self._sink.written = b""
        began = time.thread_time()
        for piece in pieces:
            self._protocol.data_received(piece)
            await asyncio.sleep(0)
        while not self._sink.written:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        spent = (time.thread_time() - began) * 1e6
        written = self._sink.written
        if not written.startswith(b"HTTP/1.1 200 ") or b"gpu-worker" not in written:
            raise RuntimeError(f"{case}: {written[:300]!r}")
        return spent


class Events:
    """A cluster, and events of one pod on a node with 30 pods."""

    def __init__(self) -> None:
        self._round = event_worker.Round(EVENT_NODES)
        self._beat = 0

    def spent(self, case: str) -> float:
        """Microseconds of this thread's CPU that an event takes, decoding included."""
        self._beat += 1
        cluster, names = self._round.cluster, self._round.cluster.gpu_names
        if case == EVENTS[0]:
            steps: list[event_worker.Step] = [("Pod", "set", event_worker.pod("g0-1", "n1", 1, self._beat))]
        else:
            steps = event_worker.came_and_went("gpu", "n1", 1, self._beat)
        texts = [json.dumps(pod).encode() for _, _, pod in steps]
        time.sleep(0.001)  # as between calls
        began = time.thread_time()
        for (_, change, _), text in zip(steps, texts, strict=True):
            record = event_worker.records.pod(text, names)  # type: ignore[attr-defined]
            cluster.apply([event_worker.Event("Pod", change, record)], float(self._beat))  # type: ignore[arg-type,attr-defined]
        return (time.thread_time() - began) * 1e6 / len(steps)


async def worker(nodes: int) -> None:
    """Answer lines of (case, calls) with the microseconds of each call, JSON; of the tree in PYTHONPATH."""
    driven, events, full = Driven(nodes, {}), Events(), None
    for line in sys.stdin:
        case, calls = json.loads(line)
        if case in EVENTS:
            spent = [events.spent(case) for _ in range(calls)]
        elif case == PREEMPT:
            full = full or Driven(OFFERED, {}, full=True)
            spent = [await full.call(case) for _ in range(calls)]
        else:
            spent = [await driven.call(case) for _ in range(calls)]
        print(json.dumps(spent), file=sys.__stdout__, flush=True)


class Tree:
    """The process of one tree."""

    def __init__(self, folder: Path, nodes: int) -> None:
        # This file, but the modules of the tree: it may be older than this file.
        command = [sys.executable, "-P", __file__, "--worker", "--nodes", str(nodes)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | commits.environment(folder),
        )

    def spent(self, case: str, calls: int) -> list[float]:
        """Microseconds of each call."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([case, calls]) + "\n")
        self._process.stdin.flush()
        while line := self._process.stdout.readline():
            if line.startswith("["):
                return list(json.loads(line))
        raise RuntimeError("a tree's process has ended: are its kernels built?")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def measure(other: Path, rounds: int, nodes: int, cases: Sequence[str]) -> str:
    """The table of the cases that begin with one of `cases`."""
    trees = [Tree(other.resolve(), nodes), Tree(commits.REPOSITORY, nodes)]
    rows = []
    try:
        for case in [case for case in ALL_CASES if case.startswith(tuple(cases))]:
            found: list[list[float]] = [tree.spent(case, WARM_UP)[:0] for tree in trees]
            for number in range(rounds):
                for at in (0, 1) if number % 2 == 0 else (1, 0):
                    found[at] += trees[at].spent(case, BLOCK)
            cells = [f"{sorted(one)[len(one) // 10]:.0f} / {median(one):.0f}" for one in found]
            ratio = sorted(found[1])[len(found[1]) // 10] / sorted(found[0])[len(found[0]) // 10]
            rows.append([case, *cells, f"{ratio:.2f}", f"{median(found[1]) / median(found[0]):.2f}"])
    finally:
        for tree in trees:
            tree.close()
    heads = [
        f"call, of {nodes} nodes",
        "the other tree, us: p10 / p50",
        "this one, us: p10 / p50",
        "ratio of p10",
        "of p50",
    ]
    return table(heads, rows, words=1)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paired", description=__doc__.splitlines()[0])
    parser.add_argument("tree", type=Path, nargs="?", help="another checkout, with its kernels built")
    parser.add_argument("--rounds", type=int, default=12, help=f"of {BLOCK} calls for each tree and case")
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--cases", nargs="+", default=[""], help="what their names begin with")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.worker:
        uvloop.run(worker(asked.nodes))
        return 0
    if asked.tree is None:
        parser.error("the other tree is missing")
    print(measure(asked.tree, asked.rounds, asked.nodes, asked.cases))
    return 0


if __name__ == "__main__":
    sys.exit(main())
