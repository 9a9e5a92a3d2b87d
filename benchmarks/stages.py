"""Where the CPU time of a call goes: by stage, today and in the arm `before`, beside the servers that decide nothing.

    python -m benchmarks.stages [--nodes 5000] [--rounds 3] [--calls 600] [--seconds 6] [--functions 0]

One kept-alive connection asks in a closed loop. First, without any profiler, the servers take turns, and the CPU time
of each is read: these are the totals. Then samples of the server show where that time goes (benchmarks.sampled_server).
A sample counts for the innermost Python function of the tree or of a package, and so for that function's file. What
compiled kernels take counts for the Python file that calls them. `--functions N` prints the first N functions too.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from benchmarks import before, fleet, say
from benchmarks.serving import Connection, Served, Servers, request
from benchmarks.spread import Spread, ratios, table
from benchmarks.verbs import SETTINGS
from tests.e2e import commits

SAMPLED = Path(__file__).parent / "sampled_server.py"
ARMS = ("before", "ours")
FLOORS = ("starlette", "raw")
SHORTLIST = 16
BLOCK = 20
WRONG = b'"Error":"gpu-extender'
# The first name that the file's path contains decides. Paths of the arm `before` have no packages.
STAGES = (
    ("HTTP: event loop, uvicorn, connections", ("uvicorn/", "uvloop", "server/connections", "server/serve", "/cli/")),
    ("Starlette", ("starlette/",)),
    ("log line", ("structlog/", "extender/log.py")),
    ("metrics", ("prometheus_client/", "extender/metrics.py")),
    ("garbage collection", ("server/garbage",)),
    ("the call around the decision", ("extender/server/", "extender/act/", "extender/app.py", "controllers/")),
    (
        "bytes to names and pod",
        ("decide/wire", "extender/wire.py", "extender/objects", "extender/records", "resources.py"),
    ),
    ("the pod as a request", ("pod_request", "extender/request.py", "cluster/pods", "placement.py")),
    ("claims of other pods", ("reservations/", "extender/holds.py")),
    ("rules", ("/rules",)),
    ("scorers", ("/scorers", "cluster/demand", "extender/mix.py")),
    ("combining rules and scores", ("policy/", "extender/policy.py", "extender/contracts.py")),
    ("decision record", ("decisions.py",)),
    ("the verb: choice, answer to bytes", ("extender/decide", "extender/decide.py", "ext_core")),
)
OTHER = "everything else"


def stage_of(file: str) -> str:
    """The stage that a file belongs to."""
    path = file.rpartition("site-packages/")[2]
    return next((name for name, parts in STAGES if any(part in path for part in parts)), OTHER)


class Sampled:
    """The server of one arm, with samples on demand."""

    def __init__(self, servers: Servers, arm: str, cluster: bytes) -> None:
        self.file = servers.folder / f"samples-{arm}.json"
        tree = before.tree() if arm == "before" else commits.REPOSITORY
        self.served = servers.launched([str(SAMPLED), str(self.file)], cluster, SETTINGS, commits.environment(tree))

    def samples(self, connection: Connection, requests: Iterator[bytes], seconds: float) -> Counter[tuple[str, str]]:
        """Samples by file and function, while calls are made for so many seconds."""
        os.kill(self.served.pid, signal.SIGUSR1)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            connection.send(next(requests))
        self.file.unlink(missing_ok=True)
        os.kill(self.served.pid, signal.SIGUSR2)
        while not self.file.exists():
            connection.send(next(requests))  # the handler runs when Python does
        return Counter({(file, name): count for file, name, count in json.loads(self.file.read_text())})


def requests_of(verb: str, names: list[str], key: str) -> Iterator[bytes]:
    """Requests about another pod each."""
    body = fleet.args(1, names)
    return (request("POST", f"/v1/{verb}?case={key}", body.fill(number)) for number in itertools.count())


def totals(
    served: dict[str, Served], connections: dict[str, Connection], asked: Iterator[bytes], rounds: int, calls: int
) -> dict[str, list[float]]:
    """Microseconds of CPU a call, by server, one entry a round."""
    found: dict[str, list[float]] = {name: [] for name in served}
    for number in range(-1, rounds):  # one round to warm up
        spent = dict.fromkeys(served, 0.0)
        turns = max(1, calls // BLOCK)
        for turn in range(turns):
            for name in list(served)[:: 1 if turn % 2 == 0 else -1]:
                bodies = list(itertools.islice(asked, BLOCK))
                began = served[name].cpu()
                replies = [connections[name].send(body) for body in bodies]
                spent[name] += served[name].cpu() - began
                for reply in replies:
                    if reply.status != 200 or WRONG in reply.body:
                        raise RuntimeError(f"{name}: {reply.status} {reply.body[:300]!r}")
        if number >= 0:
            for name, seconds in spent.items():
                found[name].append(seconds / turns / BLOCK * 1e6)
    return found


class Case:
    """One kind of call: totals and samples of the servers."""

    def __init__(self, what: str, verb: str, names: list[str]) -> None:
        self.what, self.key = what, what.replace(" ", "-").replace(",", "")
        self.requests = requests_of(verb, names, self.key)
        self.totals: dict[str, list[float]] = {}
        self.samples: dict[str, Counter[tuple[str, str]]] = {}

    def shares(self, arm: str) -> dict[str, float]:
        """The share of each stage."""
        found: Counter[str] = Counter()
        for (file, _), count in self.samples[arm].items():
            found[stage_of(file)] += count
        return {name: count / found.total() for name, count in found.items()}

    def table(self) -> str:
        """Microseconds by stage."""
        names = [name for name, _ in STAGES] + [OTHER]
        shares = {arm: self.shares(arm) for arm in ARMS}
        cpu = {name: Spread.of(values) for name, values in self.totals.items()}
        rows = [
            [name, *(f"{shares[arm].get(name, 0.0) * cpu[arm].median:.0f}" for arm in ARMS)]
            for name in names
            if any(shares[arm].get(name, 0.0) > 0.001 for arm in ARMS)
        ]
        rows.append(["**all**", *(cpu[arm].text(0) for arm in ARMS)])
        for floor in FLOORS:
            cells = (ratios(self.totals[arm], self.totals[floor]).text(1) for arm in ARMS)
            rows.append([f"ratio to {floor}: {cpu[floor].text(0)} us", *cells])
        counted = ", ".join(f"{arm} {self.samples[arm].total()} samples" for arm in ARMS)
        heads = [self.what, "before, us of CPU", "today, us of CPU"]
        return table(heads, rows, words=1) + f"\n\n({counted})"

    def functions(self, count: int) -> str:
        """The functions with the most samples, today."""
        found = self.samples["ours"]
        lines = [
            f"{number / found.total():6.1%}  {Path(file).name}:{name}"
            for (file, name), number in found.most_common(count)
        ]
        return "\n".join(lines)


def measure(nodes: int, rounds: int, calls: int, seconds: float) -> list[Case]:
    every = [fleet.name(i) for i in range(nodes)]
    emptiest = sorted(every, key=lambda name: fleet.taken(int(name[11:])))[:SHORTLIST]
    cases = [
        Case(f"filter, {SHORTLIST} names", "filter", emptiest),
        Case(f"prioritize, {SHORTLIST} names", "prioritize", emptiest),
        Case(f"filter, {nodes} names", "filter", every),
    ]
    with Servers() as servers:
        say(f"starting the servers for {nodes} nodes")
        cluster = fleet.part_filled(nodes)
        sampled = {arm: Sampled(servers, arm, cluster) for arm in ARMS}
        served = {arm: one.served for arm, one in sampled.items()} | {name: servers.null(name) for name in FLOORS}
        connections = {name: Connection(one.port) for name, one in served.items()}
        for case in cases:
            answer = connections["ours"].send(next(case.requests)).body
            for floor in FLOORS:
                connections[floor].send(request("PUT", f"/canned/{case.key}", answer))
            case.totals = totals(served, connections, case.requests, rounds, calls)
            for arm in ARMS:
                case.samples[arm] = sampled[arm].samples(connections[arm], case.requests, seconds)
            say(f"{case.what}: {Spread.of(case.totals['ours']).text(0)} us")
        for connection in connections.values():
            connection.close()
    return cases


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stages", description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--calls", type=int, default=600, help="of each server, case and round")
    parser.add_argument("--seconds", type=float, default=6.0, help="of samples, for each arm and case")
    parser.add_argument("--functions", type=int, default=0, help="functions to print")
    asked = parser.parse_args(arguments)
    try:
        cases = measure(asked.nodes, asked.rounds, asked.calls, asked.seconds)
    except commits.CommitUnavailable as reason:
        say(str(reason))
        return 1
    for case in cases:
        print(case.table() + "\n")
        if asked.functions:
            print(case.functions(asked.functions) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
