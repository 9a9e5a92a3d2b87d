"""What one watch event costs from the socket on: CPU time of the process, in the process that reads it.

    python -m benchmarks.watch [--rounds 7] [--events 600] [--bursts 1 10] [--arms ours before] [--tree FOLDER]

A stub of an API server, in this process, sends the pod events of a recorded stream (loadtest) in bursts of so many.
Each event is one HTTP chunk, as a real API server sends it, and bursts come a few milliseconds apart. A worker
(benchmarks.watch_worker) reads them. The arms take turns, and printed are the median of the rounds and their spread:

floor    bytes read from the socket by an asyncio protocol that does nothing else
read     the reflector makes a record of each event
applied  the cluster applies the records as well; the nodes of the events exist

`--tree` adds an arm: another folder with the files and the compiled kernels of this project.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import say
from benchmarks.events import arms
from benchmarks.spread import Spread, ratios, table
from loadtest import recording
from loadtest.recording import NODES, PODS
from tests.e2e import commits
from tests.kube.api_server import Request, Script, Writer, serving, whole

WORKER = Path(__file__).parent / "watch_worker.py"
WARM = 200  # events that come first and do not count
APART = 0.003  # seconds between two bursts
COPIES = 4  # of the recorded nodes
PARTS = ("read", "applied")
_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: application/json\r\n\r\n"
Found = dict[int, dict[str, dict[str, list[float]]]]
"""Microseconds of each round, by burst, arm and part."""


class Stub:
    """An empty list, then a watch that sends the events; the first step of the path is how many make a burst."""

    def __init__(self, events: int) -> None:
        recorded = recording.read()
        lines = [line for line in recorded.stream if line.path == PODS]
        self.events: list[bytes] = []
        turn = 0
        while len(self.events) < events:
            for copy in range(COPIES):
                self.events += [
                    line.fill(copy, turn, 1000 + len(self.events) + at, recorded.size) for at, line in enumerate(lines)
                ]
            turn += 1
        del self.events[events:]
        self.nodes = b"\n".join(
            line.fill(copy, 0, 1, recorded.size)
            for copy in range(COPIES)
            for line in recorded.lists
            if line.path == NODES
        )

    async def answer(self, request: Request, writer: Writer) -> None:
        """One request."""
        if "watch" not in request.params:
            await whole(200, {"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": []})(request, writer)
            return
        burst = int(request.path.split("/")[1])
        writer.write(_HEAD)
        for at in range(0, len(self.events), burst):
            chunks = [b"%x\r\n%s\r\n" % (len(event), event) for event in self.events[at : at + burst]]
            writer.write(b"".join(chunks))
            await writer.drain()
            await asyncio.sleep(APART)
        await asyncio.Event().wait()


async def once(url: str, tree: Path, part: str, events: int, nodes: bytes) -> float:
    """Microseconds of an event, from one worker over the code of `tree`."""
    environment = {**os.environ, **commits.environment(tree)}
    words = ["-W", "ignore", str(WORKER), url, part, str(WARM), str(events)]
    pipe = asyncio.subprocess.PIPE
    worker = await asyncio.create_subprocess_exec(
        sys.executable, *words, env=environment, stdin=pipe, stdout=pipe, stderr=pipe
    )
    out, err = await worker.communicate(nodes)
    if worker.returncode:
        raise RuntimeError(f"watch_worker over {tree}: {err.decode()[-2000:]}")
    found: float = json.loads(out.splitlines()[-1])
    return found


async def measure(trees: Mapping[str, Path], bursts: Sequence[int], rounds: int, events: int) -> Found:
    """All arms, in turns. The floor is the part `floor` of the arm `floor`."""
    cases = [("floor", "floor", commits.REPOSITORY)] + [(arm, part, trees[arm]) for arm in trees for part in PARTS]
    found: Found = {burst: {} for burst in bursts}
    stub = Stub(WARM + events)
    async with serving(Script([stub.answer])) as url:
        for number in range(rounds):
            for burst in bursts:
                for arm, part, tree in cases[:: 1 if number % 2 == 0 else -1]:
                    took = await once(f"{url}/{burst}", tree, part, events, stub.nodes)
                    found[burst].setdefault(arm, {}).setdefault(part, []).append(took)
            say(f"watch: round {number + 1} of {rounds}")
    return found


def report(found: Found) -> str:
    """The table."""
    rows = []
    for burst, by_arm in found.items():
        floor = by_arm["floor"]["floor"]
        arms_here = [arm for arm in by_arm if arm != "floor"]
        for part in PARTS:
            ours = by_arm["ours"][part]
            cells = [str(burst), part, Spread.of(floor).text(0)]
            cells += [Spread.of(by_arm[arm][part]).text(0) for arm in arms_here]
            cells += [ratios(ours, by_arm[arm][part]).text() for arm in arms_here if arm != "ours"]
            rows.append([*cells, ratios(ours, floor).text(1)])
    heads = ["events a burst", "part", "floor, us", *(f"{arm}, us" for arm in arms_here)]
    heads += [f"ours / {arm}" for arm in arms_here if arm != "ours"]
    return table([*heads, "ours / floor"], rows, words=0)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.watch", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--events", type=int, default=600, help="that count, of each worker")
    parser.add_argument("--bursts", type=int, nargs="+", default=(1, 10))
    parser.add_argument("--arms", nargs="+", choices=("ours", "before"), default=("ours", "before"))
    parser.add_argument("--tree", type=Path, help="one more arm, named `other`")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    asked = parser.parse_args(arguments)
    try:
        trees = arms(["ours", *asked.arms])
    except commits.CommitUnavailable as reason:
        say(f"{reason}; or leave the arm out: --arms ours")
        return 1
    if asked.tree:
        trees["other"] = asked.tree.resolve()
    found: Any = asyncio.run(measure(trees, asked.bursts, asked.rounds, asked.events))
    print(json.dumps(found, indent=1) if asked.output == "json" else report(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
