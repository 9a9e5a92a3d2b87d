"""What a watch event costs, and what events cost a filter call that comes meanwhile.

    python -m benchmarks.events [--rounds 5] [--events 200] [--nodes 5000] [--calls 400] [--parts cost p99] [-o json]

cost  Events about a node with 8, 30 and 110 pods are applied one by one, in a process of its own and without a server
      (benchmarks.event_worker): CPU time of the thread, beside reading the object, and beside a JSON parser that reads
      the same bytes, which is the floor. The same with the code of the arm `before` (benchmarks.before). The two take
      turns; a round is the median of many events, and printed are the median of the rounds and their spread.
p99   A server over a stub of an API server, which replays a recorded watch stream (loadtest). One connection asks
      filter about all nodes in a closed loop, while 0, 100 and 1,000 events/s arrive; beside it the Starlette server
      that decides nothing, to which no events arrive: it shows what the machine alone does. A ratio is made of the
      figures of one round.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import before, fleet, say
from benchmarks.serving import Connection, request
from benchmarks.spread import Line, Spread, at_most, ratios, table, targets_table
from benchmarks.verbs import percentile
from tests.e2e import commits

CLUSTER = 500  # nodes of the cluster whose events are counted
RATES = (0, 100, 1000)
SETTLE = 1.0  # seconds at a new rate before calls count
WORKER = Path(__file__).parent / "event_worker.py"
LIMIT_US = 60.0
Round = dict[str, Any]


# -- the cost of an event ---------------------------------------------------------------------------------------------


def cost_once(tree: Path, events: int) -> Round:
    """What one worker has measured, over the code of `tree`."""
    environment = {**os.environ, **commits.environment(tree)}
    words = [sys.executable, "-W", "ignore", str(WORKER), str(CLUSTER), str(events)]
    made = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    if made.returncode:
        raise RuntimeError(f"event_worker over {tree}: {made.stderr[-2000:]}")
    found: Round = json.loads(made.stdout.splitlines()[-1])
    return found


def cost(rounds: int, events: int, arms: Mapping[str, Path]) -> dict[str, list[Round]]:
    """By arm, one entry a round."""
    found: dict[str, list[Round]] = {arm: [] for arm in arms}
    for number in range(rounds):
        for arm in list(arms)[:: 1 if number % 2 == 0 else -1]:
            found[arm].append(cost_once(arms[arm], events))
        say(f"cost of an event: round {number + 1} of {rounds}")
    return found


def cost_table(found: Mapping[str, Sequence[Round]]) -> str:
    arms = list(found)
    heads = ["event", "pods on the node", *(f"{arm}, us" for arm in arms)]
    heads += ["ours / before"] if "before" in arms else []
    heads += ["reading the object, us", "with it / a JSON parser"]
    rows = []
    for what, crowds in found["ours"][0]["apply"].items():
        kind = "node" if what.startswith("node") else "pod"
        for crowd in crowds:
            taken = {arm: [one["apply"][what][crowd] for one in found[arm]] for arm in arms}
            cells = [what, crowd, *(Spread.of(taken[arm]).text(0) for arm in arms)]
            if "before" in arms:
                cells.append(ratios(taken["ours"], taken["before"]).text())
            read, parsed = ([one[step][kind] for one in found["ours"]] for step in ("decode", "parse"))
            whole = [a + b for a, b in zip(taken["ours"], read, strict=True)]
            rows.append([*cells, Spread.of(read).text(0), ratios(whole, parsed).text(1)])
    return table(heads, rows, words=1)


def cost_target(found: Mapping[str, Sequence[Round]]) -> Line:
    """The case with the highest cost."""
    ours = found["ours"]
    cases = [(what, crowd) for what, crowds in ours[0]["apply"].items() for crowd in crowds]
    taken = {case: Spread.of(one["apply"][case[0]][case[1]] for one in ours) for case in cases}
    what, crowd = max(taken, key=lambda case: taken[case].median)
    measure = f"one watch event, the highest: {what}, {crowd} pods on the node"
    return at_most(measure, "<= 60 us plus its decoding", taken[what, crowd], LIMIT_US, 0)


# -- filter while events arrive ---------------------------------------------------------------------------------------


def calls(port: int, requests: Iterator[bytes], count: int) -> list[float]:
    """Seconds of each call. RuntimeError for a wrong answer."""
    connection = Connection(port)
    times, replies, clock = [], [], time.perf_counter
    try:
        for asked in itertools.islice(requests, count):
            began = clock()
            reply = connection.send(asked)
            times.append(clock() - began)
            replies.append(reply)
    finally:
        connection.close()
    wrong = [reply for reply in replies if reply.status != 200 or b'"Error":""' not in reply.body]
    if wrong:
        raise RuntimeError(f"a wrong answer of filter: {wrong[0].status} {wrong[0].body[:300]!r}")
    return times


def p99(nodes: int, rounds: int, count: int) -> list[Round]:
    """One entry for each rate and round."""
    from loadtest.servers import Own  # it imports benchmarks

    own = Own()
    found = []
    try:
        say(f"p99: starting a server over a stub with {nodes} nodes")
        own.start_live(nodes, 0)
        assert own.ours is not None
        assert own.null is not None
        body = fleet.args(1, [fleet.name(i) for i in range(nodes)])
        asked = (request("POST", "/v1/filter?case=filter", body.fill(number)) for number in itertools.count())
        canned = Connection(own.ours.port).send(next(asked)).body
        Connection(own.null.port).send(request("PUT", "/canned/filter", canned))
        for number in range(rounds):
            for rate in RATES if number % 2 == 0 else RATES[::-1]:
                own.rate(rate)
                time.sleep(SETTLE)
                sent, began = own.sent()["events"], time.monotonic()
                mine = calls(own.ours.port, asked, count)
                seconds = time.monotonic() - began
                got = (own.sent()["events"] - sent) / seconds
                null = calls(own.null.port, asked, count)
                one: Round = {"round": number, "rate": rate, "events_per_second": round(got)}
                for server, times in (("ours", mine), ("null", null)):
                    one |= {f"{server}_p50_ms": median(times) * 1e3, f"{server}_p99_ms": percentile(times, 0.99) * 1e3}
                found.append(one)
            say(f"p99: round {number + 1} of {rounds}")
    except BaseException as error:
        error.add_note(own.tail())
        raise
    finally:
        own.close()
    return found


def _at(found: Sequence[Round], rate: int, figure: str) -> list[float]:
    return [one[figure] for one in sorted(found, key=lambda one: one["round"]) if one["rate"] == rate]


def p99_table(found: Sequence[Round], nodes: int) -> str:
    heads = ["events/s asked", "sent", "p50, ms", "p99, ms", "p99 / idle", "null server: p99, ms", "its p99 / idle"]
    heads += ["p50 / null's"]
    rows = []
    for rate in RATES:
        cells = [str(rate), f"{median(_at(found, rate, 'events_per_second')):.0f}"]
        cells += [Spread.of(_at(found, rate, f"ours_{what}_ms")).text() for what in ("p50", "p99")]
        for server in ("ours", "null"):
            own = _at(found, rate, f"{server}_p99_ms")
            cells += [Spread.of(own).text()] if server == "null" else []
            cells.append(ratios(own, _at(found, 0, f"{server}_p99_ms")).text())
        cells.append(ratios(_at(found, rate, "ours_p50_ms"), _at(found, rate, "null_p50_ms")).text(1))
        rows.append(cells)
    return f"filter over {nodes} names, while events arrive\n\n" + table(heads, rows, words=0)


def p99_target(found: Sequence[Round]) -> Line:
    got = ratios(_at(found, 1000, "ours_p99_ms"), _at(found, 0, "ours_p99_ms"))
    return at_most("p99 of filter under 1,000 events/s", "<= 2 x idle", got, 2.0)


# -- the command ------------------------------------------------------------------------------------------------------


def arms(named: Sequence[str]) -> dict[str, Path]:
    """The trees under test. BeforeUnavailable."""
    trees: dict[str, Callable[[], Path]] = {"ours": lambda: commits.REPOSITORY, "before": lambda: before.tree()}
    return {arm: trees[arm]() for arm in trees if arm in named}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.events", description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=("cost", "p99"), default=("cost", "p99"))
    parser.add_argument("--arms", nargs="+", choices=("ours", "before"), default=("ours", "before"), help="of cost")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--events", type=int, default=200, help="of each case and round")
    parser.add_argument("--nodes", type=int, default=5000, help="that filter is asked about")
    parser.add_argument("--calls", type=int, default=400, help="of filter at each rate and round")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    asked = parser.parse_args(arguments)
    found: dict[str, Any] = {}
    texts, lines = [], []
    try:
        if "cost" in asked.parts:
            found["cost"] = cost(asked.rounds, asked.events, arms(["ours", *asked.arms]))
            texts.append(cost_table(found["cost"]))
            lines.append(cost_target(found["cost"]))
    except commits.CommitUnavailable as reason:
        say(f"{reason}; or leave the arm out: --arms ours")
        return 1
    if "p99" in asked.parts:
        found["p99"] = p99(asked.nodes, asked.rounds, asked.calls)
        texts.append(p99_table(found["p99"], asked.nodes))
        lines.append(p99_target(found["p99"]))
    if asked.output == "json":
        print(json.dumps({"events": found, "targets": [one._asdict() for one in lines]}, indent=1))
    else:
        print("\n\n".join([*texts, targets_table(lines)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
