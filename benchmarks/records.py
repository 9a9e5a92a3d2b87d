"""What records and the page cost the verbs.

    python -m benchmarks.records [--calls 900] [--nodes 5000]

Decision records, and the record of `serve --record`, are measured in turns with neither. Servers over the same frozen
fleet, in one process, driven as by `benchmarks.paired`, get each call one after the other, in alternating order. Read
is the CPU time of the event loop's thread: the median of the differences to the server with neither in the same turn,
so that other processes of the machine cost all alike. And that of the writer's thread, which costs all the same.

One reader of the page follows the live updates, and opens the fleet at each event, as a browser does: an event comes
every 10 s, when something changes all the time. Its share is that of a server whose calls follow one another.

The target is less than 5 % of what the calls cost without any.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable
from operator import sub
from pathlib import Path
from statistics import median

import uvloop
from starlette.types import ASGIApp, Message

from benchmarks.paired import CASES, Driven
from benchmarks.spread import Line, table, targets_table
from extender.web.site import LEAST_SECONDS

BLOCK = 60
DRAIN = 0.3  # seconds after a block: the writer looks every 0.25 s
WARM_UP = 20
UPDATES = 3  # of the page
PAGE = "page"
TARGET = 5.0  # per cent


async def worker(nodes: int, cases: list[str], calls: int) -> None:
    """Print for each case: the microseconds of a call with neither, then what each other form adds on the event loop,
    and on the writer's thread."""
    with tempfile.TemporaryDirectory() as folder:
        forms = [Driven(nodes, settings) for settings in ({"decisions": {"maxBytes": 0}}, {})]
        forms.append(Driven(nodes, {}, record=Path(folder)))
        clock = _writers_clock()
        for case in cases:
            spent: list[list[float]] = [[] for _ in forms]
            began = 0.0
            for turn in range(WARM_UP + calls):
                if turn % BLOCK == WARM_UP:
                    await asyncio.sleep(DRAIN)
                if turn == WARM_UP:
                    spent, began = [[] for _ in forms], time.clock_gettime(clock)
                for at in (0, 1, 2) if turn % 2 else (2, 1, 0):
                    spent[at].append(await forms[at].call(case))
            await asyncio.sleep(DRAIN)
            written = (time.clock_gettime(clock) - began) * 1e6 / calls
            more = [median(map(sub, spent[at], spent[0])) for at in (1, 2)]
            print(json.dumps([median(spent[0]), *more, written]), file=sys.__stdout__, flush=True)


def _writers_clock() -> int:
    """The CPU clock of the thread that writes the record."""
    [writer] = [one for one in threading.enumerate() if one.name == "record"]
    assert writer.ident is not None
    return time.pthread_getcpuclockid(writer.ident)


async def reader(nodes: int) -> None:
    """Print the CPU of one reader of the page, in seconds for each second."""
    app = Driven(nodes, {}).app
    await _get(app, "/", "")  # templates are read
    idle = await _spent(asyncio.sleep(LEAST_SECONDS * UPDATES))
    print(await _spent(_follow(app)) - idle, file=sys.__stdout__, flush=True)


async def _spent(what: Awaitable[None]) -> float:
    """CPU for each second of the time that it takes."""
    began, cpu = time.monotonic(), time.process_time()
    await what
    return (time.process_time() - cpu) / (time.monotonic() - began)


async def _follow(app: ASGIApp) -> None:
    for _ in range(UPDATES):
        await _get(app, "/live", "generation=0", until=b"event: change")  # never the one that it is
        if b"<h1" not in await _get(app, "/", ""):
            raise RuntimeError("the page is not there")


async def _get(app: ASGIApp, path: str, query: str, until: bytes = b"") -> bytes:
    """The body of an answer, as far as `until`; then the client has left."""
    left, body = asyncio.Event(), bytearray()

    async def receive() -> Message:
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        body.extend(message.get("body", b""))
        if until and until in body:
            left.set()

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": query.encode(), "root_path": "",
        "headers": [(b"host", b"127.0.0.1"), (b"accept", b"text/html")], "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }  # fmt: skip
    await app(scope, receive, send)
    return bytes(body)


def page(nodes: int) -> float:
    """Per cent of a processor that one reader of the page costs."""
    command = [sys.executable, "-m", "benchmarks.records", "--worker", PAGE, "--nodes", str(nodes)]
    ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    return 100 * float(ran.stdout)


def measure(calls: int, nodes: int, cases: list[str]) -> tuple[str, dict[str, float]]:
    """The table, and the per cent that decision records alone, and all records, cost: the median of the cases."""
    command = [sys.executable, "-m", "benchmarks.records", "--worker", "calls"]
    command += ["--nodes", str(nodes), "--calls", str(calls), "--cases", *cases]
    ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    rows: list[list[str]] = []
    costs: dict[str, list[float]] = {"decisions": [], "both": []}
    for case, line in zip(cases, ran.stdout.splitlines(), strict=True):
        neither, decisions, both, written = json.loads(line)
        costs["decisions"].append(100 * decisions / neither)
        costs["both"].append(100 * (both + written) / neither)
        shares = [f"{found[-1]:+.1f} %" for found in costs.values()]
        rows.append([case, f"{neither:.0f}", f"{decisions:+.1f}", f"{both:+.1f}", f"{written:.1f}", *shares])
    heads = [f"call, of {nodes} nodes", "neither, us", "decisions, us", "both, us", "writer, us", "decisions", "both"]
    return table(heads, rows, words=1), {form: median(found) for form, found in costs.items()}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.records", description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=900, help="of each form and case")
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--cases", nargs="*", choices=list(CASES), default=list(CASES))
    parser.add_argument("--worker", choices=("calls", PAGE), help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.worker:
        page_alone = asked.worker == PAGE
        uvloop.run(reader(asked.nodes) if page_alone else worker(asked.nodes, asked.cases, asked.calls))
        return 0
    shown, costs = measure(asked.calls, asked.nodes, asked.cases)
    print(shown)
    read = page(asked.nodes)
    names = {"decisions": "decision records and a reader of the page", "both": "these and serve --record"}
    lines = [
        Line(f"{names[form]}, of the verbs' CPU", f"< {TARGET:g} %", f"{cost + read:.1f} %", cost + read < TARGET)
        for form, cost in costs.items()
    ]
    print(f"\na reader of the page: {read:.2f} % of a processor\n\n" + targets_table(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
