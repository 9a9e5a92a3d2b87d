"""The CPU of a whole call in two trees, in turns: what a change brings on a machine that does other work too.

    python -m benchmarks.paired TREE [--rounds 12] [--nodes 5000]

TREE is another checkout of this repository, with its kernels built in place. Each tree has a process with a frozen
fleet. The bytes of a request go into its connection class, without a socket; the CPU time of its thread is read until
the log line is made. So the client, the kernel and the other tree's caches cost nothing here. Each round has a block of
calls of both, in alternating order.
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
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import uvloop

from benchmarks import fleet
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

    def __init__(self, nodes: int, settings: Mapping[str, Any], **options: Any) -> None:
        """`settings`: besides those of the calls; `options`: of `wiring.over_file`."""
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
            file.write(fleet.part_filled(nodes, [json.loads(pod.fill(number))["Pod"] for number in KNOWN]))
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
        verb, names, known = CASES[case]
        body = fleet.args(1, self._emptiest[:names] if names else self._every)
        asked = request("POST", f"/v1/{verb}", body.fill(next(self._numbers[known])))
        pieces = [asked[at : at + PIECE] for at in range(0, len(asked), PIECE)]
        time.sleep(0.001)  # what was assumed expires
        self._sink.written = b""
        began = time.thread_time()
        for piece in pieces:
            self._protocol.data_received(piece)
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        spent = (time.thread_time() - began) * 1e6
        written = self._sink.written
        if not written.startswith(b"HTTP/1.1 200 ") or b"gpu-worker" not in written:
            raise RuntimeError(f"{case}: {written[:300]!r}")
        return spent


async def worker(nodes: int) -> None:
    """Answer lines of (case, calls) with the microseconds of each call, JSON; of the tree in PYTHONPATH."""
    driven = Driven(nodes, {})
    for line in sys.stdin:
        case, calls = json.loads(line)
        print(json.dumps([await driven.call(case) for _ in range(calls)]), file=sys.__stdout__, flush=True)


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


def measure(other: Path, rounds: int, nodes: int) -> str:
    """The table."""
    trees = [Tree(other.resolve(), nodes), Tree(commits.REPOSITORY, nodes)]
    rows = []
    try:
        for case in CASES:
            found: list[list[float]] = [tree.spent(case, WARM_UP)[:0] for tree in trees]
            for number in range(rounds):
                for at in (0, 1) if number % 2 == 0 else (1, 0):
                    found[at] += trees[at].spent(case, BLOCK)
            cells = [f"{sorted(one)[len(one) // 10]:.0f} / {median(one):.0f}" for one in found]
            ratio = sorted(found[1])[len(found[1]) // 10] / sorted(found[0])[len(found[0]) // 10]
            rows.append([case, *cells, f"{ratio:.2f}"])
    finally:
        for tree in trees:
            tree.close()
    heads = [f"call, of {nodes} nodes", "the other tree, us: p10 / p50", "this one, us: p10 / p50", "ratio of p10"]
    return table(heads, rows, words=1)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paired", description=__doc__.splitlines()[0])
    parser.add_argument("tree", type=Path, nargs="?", help="another checkout, with its kernels built")
    parser.add_argument("--rounds", type=int, default=12, help=f"of {BLOCK} calls for each tree and case")
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.worker:
        uvloop.run(worker(asked.nodes))
        return 0
    if asked.tree is None:
        parser.error("the other tree is missing")
    print(measure(asked.tree, asked.rounds, asked.nodes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
