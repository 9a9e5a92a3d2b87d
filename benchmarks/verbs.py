"""What a verb costs: the whole round trip on loopback, beside servers that decide nothing, in the same run.

    python -m benchmarks.verbs [--names 100 1000 5000] [--candidates 100 500] [--calls 200] [--seconds 100] [-o json]

Three servers answer the same requests over one kept-alive connection each: ours over a frozen fleet, a Starlette and
uvicorn application with the same settings that sends back the very bytes ours answered, and a raw asyncio protocol
that does. They are called in turns, blocks of ours, Starlette, raw, raw, Starlette, ours, so that a neighbour on the
machine hits them alike. Every answer is checked: a wrong one ends the run with status 1.

ours, starlette, raw: median and 99th percentile in ms. `cpu`: the server's CPU time a call, which neighbours hardly
touch. `core`: our CPU time less that of Starlette, which is what the decision costs beyond the transport.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks import fleet, say
from benchmarks.serving import Connection, Reply, Served, Servers, request
from benchmarks.spread import Line, Spread, at_most, targets_table

# In a live cluster the watch ends a hold within milliseconds of the bind. Here nothing is ever bound: the default
# five seconds would judge a call by thousands of pods in flight, which no scheduler has.
SETTINGS = {"hold": {"seconds": 0.002}}
SHORTLIST = 16
FEWEST = SHORTLIST // 2  # nodes that filter answers of so few: pods in flight fill some
BLOCK = 5
ROUNDS = 5
KNOWN = 1 << 24  # the number of the first pod that is in the cluster
WARM_UP = 2 * BLOCK + 1
SERVERS = ("ours", "starlette", "raw")


class WrongAnswer(Exception):
    """An answer that is not what the request asked for: its time means nothing."""


Check = Callable[[Any], bool]


@dataclass
class Case:
    """One kind of request. `check`: whether a decoded answer is right; `times`: of each call, and `cpu`: of each block
    of calls, seconds by server; `known`: the pods of the requests are in the cluster."""

    verb: str
    what: str
    size: int
    body: fleet.Body
    check: Check
    times: dict[str, list[float]] = field(default_factory=lambda: {server: [] for server in SERVERS})
    bytes_in: int = 0
    bytes_out: int = 0
    cpu: dict[str, list[float]] = field(default_factory=lambda: {server: [] for server in SERVERS})
    known: bool = False

    @property
    def path(self) -> str:
        return f"/v1/{self.verb}?case={self.what.replace(' ', '-')}-{self.size}"


def cases(names: int) -> list[Case]:
    """What is asked of a part-filled fleet of that many nodes."""
    every = [fleet.name(i) for i in range(names)]
    some = every[: min(SHORTLIST, names)]
    known = set(every)

    def first(answer: Any) -> bool:
        got = answer["NodeNames"]
        enough = len(got) == len(some) if names > SHORTLIST else FEWEST <= len(got) <= len(some)
        return not answer["Error"] and len(got) == len(set(got)) and enough and known.issuperset(got)

    def refused(answer: Any) -> bool:
        out = {**answer["FailedNodes"], **answer["FailedAndUnresolvableNodes"]}
        return not answer["Error"] and not answer["NodeNames"] and out.keys() == known

    def scored(wanted: set[str]) -> Check:
        def check(answer: Any) -> bool:
            points = {entry["Host"]: entry["Score"] for entry in answer}
            return points.keys() == wanted and len(answer) == len(wanted) and max(points.values()) == 10

        return check

    return [
        Case("filter", "first attempt", names, fleet.args(1, every), first),
        Case("filter", "all refused", names, fleet.args(fleet.SIZE, every), refused),
        Case("prioritize", "shortlist", names, fleet.args(1, some), scored(set(some))),
        Case("prioritize", "all", names, fleet.args(1, every), scored(known)),
    ]


def few_names(nodes: int) -> list[Case]:
    """What is asked about SHORTLIST nodes of a part-filled fleet of `nodes`, of pods that are known and that are not.
    The asked nodes are the emptiest."""
    some = sorted((fleet.name(i) for i in range(nodes)), key=lambda name: fleet.taken(int(name[-4:])))[:SHORTLIST]

    def few(answer: Any) -> bool:
        got = answer["NodeNames"]
        return not answer["Error"] and FEWEST <= len(got) == len(set(got)) and set(some).issuperset(got)

    def scored(answer: Any) -> bool:
        points = {entry["Host"]: entry["Score"] for entry in answer}
        return points.keys() == set(some) and len(answer) == len(some) and max(points.values()) == 10

    body = fleet.args(1, some)
    return [
        Case(verb, f"of {nodes} nodes, pod {'' if known else 'not '}known", len(some), body, check, known=known)
        for verb, check in (("filter", few), ("prioritize", scored))
        for known in (True, False)
    ]


def preempt_case(candidates: int) -> Case:
    """Half a node for a pod of high priority; each candidate is full of one-GPU pods."""

    def check(answer: Any) -> bool:
        ((node, victims),) = answer["NodeNameToMetaVictims"].items()
        i = int(node.rpartition("-")[2])
        there = {fleet.pod_uid(i, j) for j in range(fleet.SIZE)}
        uids = [pod["UID"] for pod in victims["Pods"]]
        return i < candidates and len(set(uids)) == len(uids) == fleet.SIZE // 2 and there.issuperset(uids)

    return Case(
        "preempt", "4 of 8 GPUs", candidates, fleet.preemption(fleet.SIZE // 2, [fleet.SIZE] * candidates), check
    )


class Run:
    """Three connections and the numbers of the next pods: of one that is not known, and of a known one."""

    def __init__(self, served: dict[str, Served], known: range) -> None:
        """`known`: the numbers of the pods in the cluster."""
        self.served = served
        self.open = {name: Connection(server.port) for name, server in served.items()}
        self._unknown, self._known = itertools.count(), itertools.cycle(known)

    def close(self) -> None:
        for connection in self.open.values():
            connection.close()

    def measure(self, case: Case, calls: int, seconds: float) -> None:
        """At most `calls` calls of each server, and about `seconds` in all; 2 blocks in each of ROUNDS at least."""
        self._call(case, "ours", 2 * BLOCK, keep=False)
        answer = self._send(case, "ours")
        for server in SERVERS[1:]:
            self._expect(self.open[server].send(request("PUT", f"/canned/{case.path.partition('=')[2]}", answer.body)))
            self._call(case, server, BLOCK, keep=False)
        before = self._answered(case.verb)
        until = time.monotonic() + seconds
        for done, server in enumerate(self._turns()):
            made = len(case.times["ours"])
            if done % 6 == 0 and made >= 2 * ROUNDS * BLOCK and (made >= calls or time.monotonic() > until):
                break
            self._call(case, server, BLOCK, keep=True)
        counted, sent = self._answered(case.verb) - before, len(case.times["ours"])
        if round(counted) != sent:
            raise WrongAnswer(f"{case.path}: our metrics count {counted:.0f} requests answered, {sent} were sent")

    @staticmethod
    def _turns() -> Iterator[str]:
        while True:
            yield from SERVERS
            yield from reversed(SERVERS)

    def _call(self, case: Case, server: str, count: int, *, keep: bool) -> None:
        requests = [self._request(case) for _ in range(count)]
        replies: list[Reply] = []
        times: list[float] = []
        send, clock = self.open[server].send, time.perf_counter
        cpu = self.served[server].cpu()
        gc.disable()
        for made in requests:
            began = clock()
            reply = send(made)
            times.append(clock() - began)
            replies.append(reply)
        gc.enable()
        cpu = self.served[server].cpu() - cpu
        for reply in replies:
            self._right(case, server, reply)
        case.bytes_in, case.bytes_out = len(requests[-1]), len(replies[-1].body)
        if keep:
            case.times[server] += times
            case.cpu[server].append(cpu)

    def _request(self, case: Case) -> bytes:
        return request("POST", case.path, case.body.fill(next(self._known if case.known else self._unknown)))

    def _send(self, case: Case, server: str) -> Reply:
        reply = self.open[server].send(self._request(case))
        self._right(case, server, reply)
        return reply

    def _expect(self, reply: Reply) -> None:
        if reply.status != 200:
            raise WrongAnswer(f"status {reply.status}: {reply.body[:300]!r}")

    def _right(self, case: Case, server: str, reply: Reply) -> None:
        self._expect(reply)
        try:
            right = case.check(json.loads(reply.body))
        except (ValueError, KeyError, TypeError, AttributeError):
            right = False
        if not right:
            raise WrongAnswer(f"{server} answered {case.path} wrongly: {reply.body[:300]!r}")

    def _answered(self, verb: str) -> float:
        """How many requests our server says it has answered well."""
        page = self.open["ours"].send(request("GET", "/metrics")).body.decode()
        wanted = "gpu_extender_request_duration_seconds_count{"
        lines = [line for line in page.splitlines() if line.startswith(wanted)]
        return sum(float(n.rpartition(" ")[2]) for n in lines if f'verb="{verb}"' in n and 'result="ok"' in n)


def percentile(values: list[float], share: float) -> float:
    """Nearest rank: a value that was measured, never one between two."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * round(share * 1000) // 1000) - 1)]


def figures(case: Case) -> dict[str, Any]:
    """What is printed, milliseconds and bytes."""
    found: dict[str, Any] = {
        "verb": case.verb,
        "case": case.what,
        "names": case.size,
        "calls": len(case.times["ours"]),
        "bytes_in": case.bytes_in,
        "bytes_out": case.bytes_out,
    }
    for server in SERVERS:
        found[f"{server}_p50_ms"] = round(median(case.times[server]) * 1e3, 3)
        found[f"{server}_p99_ms"] = round(percentile(case.times[server], 0.99) * 1e3, 3)
        found[f"{server}_cpu_ms"] = round(sum(case.cpu[server]) / len(case.times[server]) * 1e3, 3)
    found["core_ms"] = round(found["ours_cpu_ms"] - found["starlette_cpu_ms"], 3)
    found["times_starlette"] = round(found["ours_p50_ms"] / found["starlette_p50_ms"], 2)
    ratios = cpu_ratios(case)
    found["cpu_ratio"] = {"median": median(ratios), "lowest": min(ratios), "highest": max(ratios)}
    return found


def cpu_ratios(case: Case) -> list[float]:
    """Our CPU time / that of the Starlette server, by round: ROUNDS parts of the run, each with blocks of both in both
    orders."""
    pairs = len(case.cpu["ours"]) // 2  # a turn there and back has two blocks of each server
    edges = [2 * (pairs * i // ROUNDS) for i in range(ROUNDS + 1)]
    spans = [slice(start, end) for start, end in itertools.pairwise(edges)]
    return [round(sum(case.cpu["ours"][span]) / sum(case.cpu["starlette"][span]), 2) for span in spans]


def measure(sizes: list[int], candidates: list[int], calls: int, seconds: float) -> list[dict[str, Any]]:
    # No pod is asked about twice: the second time it would be a retry. Starlette does not look who is asked about.
    known = range(KNOWN, KNOWN + 2 * len(SERVERS) * (calls + 2 * ROUNDS * BLOCK + 2 * WARM_UP))
    few = {n: few_names(n) if n > SHORTLIST else [] for n in sizes}
    waiting = {n: [json.loads(case.body.fill(i))["Pod"] for i in known for case in few[n][:1]] for n in sizes}
    planned: list[tuple[bytes, list[Case]]] = [(fleet.part_filled(n, waiting[n]), few[n] + cases(n)) for n in sizes]
    if candidates:
        planned.append((fleet.full(max(candidates)), [preempt_case(n) for n in candidates]))
    left = sum(len(group) for _, group in planned)
    end = time.monotonic() + seconds
    found = []
    for cluster, group in planned:
        with Servers() as servers:
            say(f"starting the servers for {max(case.size for case in group)} nodes")
            served = {"ours": servers.ours(cluster, SETTINGS), **{kind: servers.null(kind) for kind in SERVERS[1:]}}
            run = Run(served, known)
            try:
                for case in group:
                    run.measure(case, calls, max(1.0, (end - time.monotonic()) / left))
                    left -= 1
                    found.append(figures(case))
                    made = found[-1]
                    say(f"{case.verb} {case.what} {case.size}: {made['ours_p50_ms']} ms, {made['calls']} calls")
            except (ConnectionError, TimeoutError, WrongAnswer) as error:
                error.add_note(servers.tail())
                raise
            finally:
                run.close()
    return found


def targets(found: list[dict[str, Any]]) -> list[Line]:
    """CPU time as a ratio to the Starlette server's: at SHORTLIST names, and of a first attempt at 5,000."""
    lines = []
    for row in found:
        ratio = Spread(**row["cpu_ratio"]) if "cpu_ratio" in row else None
        if ratio and row["names"] == SHORTLIST and row["case"].startswith("of "):
            measure = f"{row['verb']} at {SHORTLIST} names {row['case']}, CPU"
            lines.append(at_most(measure, "<= 2.0 x the Starlette server", ratio, 2.0))
        elif ratio and (row["verb"], row["case"], row["names"]) == ("filter", "first attempt", 5000):
            lines.append(at_most("filter at 5,000 names, CPU", "<= 4 x the Starlette server", ratio, 4.0))
    return lines


def table(found: list[dict[str, Any]]) -> str:
    heads = ["verb", "case", "names", "in, B", "out, B"]
    heads += [f"{server} p50 / p99 / cpu" for server in SERVERS]
    heads += ["core", "ours / starlette, p50", "ours / starlette, cpu"]
    lines = ["| " + " | ".join(heads) + " |", "|---|---" + "|--:" * (len(heads) - 2) + "|"]
    for row in found:
        cells = [str(row[key]) for key in ("verb", "case", "names", "bytes_in", "bytes_out")]
        for server in SERVERS:
            cells.append(" / ".join(f"{row[f'{server}_{what}_ms']:.2f}" for what in ("p50", "p99", "cpu")))
        ratio = row["cpu_ratio"]
        cells += [f"{row['core_ms']:.2f}", f"{row['times_starlette']:.1f}"]
        cells.append(f"{ratio['median']:.2f} ({ratio['lowest']:.2f} to {ratio['highest']:.2f})")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.verbs", description=__doc__.splitlines()[0])
    parser.add_argument("--names", type=int, nargs="*", default=[100, 1000, 5000], help="sizes of the fleet")
    parser.add_argument("--candidates", type=int, nargs="*", default=[100, 500], help="nodes offered to preempt")
    parser.add_argument("--calls", type=int, default=200, help="calls of each server and case, at most")
    parser.add_argument("--seconds", type=float, default=100.0, help="for all calls together, about")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    asked = parser.parse_args(arguments)
    try:
        found = measure(asked.names, asked.candidates, asked.calls, asked.seconds)
    except WrongAnswer as error:
        say("\n".join([str(error), *getattr(error, "__notes__", ())]))
        return 1
    if not found:
        say("nothing was asked for")
        return 1
    lines = targets(found)
    if asked.output == "json":
        print(json.dumps({"verbs": found, "targets": [line._asdict() for line in lines]}, indent=1))
    else:
        print("\n\n".join([table(found), *([targets_table(lines)] if lines else [])]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
