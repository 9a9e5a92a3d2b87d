"""One kube-scheduler in a closed loop against a server that this file starts itself: a frozen fleet of 1,000 nodes.

    locust --headless --only-summary --users 1 --run-time 20s -f loadtest/locustfile.py     (= make loadtest SECONDS=20)

Each turn is a pod of its own: filter, then prioritize of what filter answered. Every tenth pod wants a whole node of a
fleet that has none: filter refuses it everywhere, and preempt answers which pods would have to go.

The run fails (exit status 1) on any error, any answer that is not 200 or not what was asked for, fewer requests than
LOADTEST_REQUESTS (default 500), or a 99th percentile above the budget of its verb, in ms: LOADTEST_P99_MS (default 50,
generous: two cores shared with neighbours; the client's own part, about 0.4 ms, is counted in). Percentiles are exact,
by nearest rank; locust's own are rounded to two digits.
"""

from __future__ import annotations

import os
from array import array
from collections import defaultdict
from typing import Any

import orjson
from locust import FastHttpUser, constant, events, task
from locust.env import Environment

from benchmarks import fleet
from benchmarks.serving import Servers
from benchmarks.verbs import SETTINGS, percentile

NODES = 1000
PREEMPT_EVERY = 10
CANDIDATES = 100
WARM_UP = 30
LEAST = int(os.environ.get("LOADTEST_REQUESTS", "500"))
BUDGET_MS = float(os.environ.get("LOADTEST_P99_MS", "50"))

NAMES = [fleet.name(i) for i in range(NODES)]
FILTER, FILTER_WHOLE = fleet.args(1, NAMES), fleet.args(fleet.SIZE, NAMES, preempts=True)
KNOWN = frozenset(NAMES)
taken = [fleet.taken(i) for i in range(NODES)]
PREEMPT = fleet.preemption(fleet.SIZE, taken[:CANDIDATES])

servers = Servers()
times: defaultdict[str, array[float]] = defaultdict(lambda: array("d"))
wrong: list[str] = []


@events.init.add_listener
def start(environment: Environment, **more: Any) -> None:
    """The server, before the first user."""
    try:
        server = servers.ours(fleet.part_filled(NODES), SETTINGS)
    except BaseException:
        servers.close()
        raise
    environment.host = f"http://127.0.0.1:{server.port}"


@events.request.add_listener
def note(name: str, response_time: float, exception: BaseException | None, **more: Any) -> None:
    """`response_time` in ms, not rounded."""
    times[name].append(response_time)
    if exception is not None and len(wrong) < 5:
        wrong.append(f"{name}: {exception}")


@events.quitting.add_listener
def judge(environment: Environment, **more: Any) -> None:
    """The verdict, and the server's end whatever it is."""
    try:
        failures = verdict(environment.stats.total.num_failures)
        for name, spent in sorted(times.items()):
            p50, p99 = (percentile(list(spent), share) for share in (0.5, 0.99))
            print(f"loadtest: {name}: {len(spent)} requests, p50 {p50:.2f} ms, p99 {p99:.2f} ms")
        if failures:
            print(*(f"loadtest: FAILED, {why}" for why in failures), servers.tail(), sep="\n")
        else:
            print(f"loadtest: passed, {NODES} nodes, budget {BUDGET_MS:g} ms")
        environment.process_exit_code = 1 if failures else 0
    finally:
        servers.close()


def verdict(failed: int) -> list[str]:
    """What is wrong with the run; nothing when it passes."""
    found = list(wrong)
    if failed and not found:
        found.append(f"{failed} requests failed")
    if (count := sum(map(len, times.values()))) < LEAST:
        found.append(f"{count} requests were made, fewer than {LEAST}: this measured nothing")
    if missing := {"filter", "prioritize", "preempt"} - times.keys():
        found.append(f"never asked: {', '.join(sorted(missing))}")
    for name, spent in sorted(times.items()):
        if (p99 := percentile(list(spent), 0.99)) > BUDGET_MS:
            found.append(f"{name}: p99 {p99:.2f} ms is over the budget of {BUDGET_MS:g} ms (LOADTEST_P99_MS)")
    return found


class Scheduler(FastHttpUser):
    """kube-scheduler has one pod in its hands at a time and never waits between two."""

    wait_time = constant(0)
    connection_timeout = network_timeout = 5.0

    def on_start(self) -> None:
        self.number = 0
        for _ in range(WARM_UP):
            self.pod()
        times.clear()

    @task
    def pod(self) -> None:
        self.number += 1
        if self.number % PREEMPT_EVERY == 0:
            self.whole_node()
        else:
            self.one_gpu()

    def one_gpu(self) -> None:
        names = self.ask("filter", FILTER.fill(self.number), fits)
        if names:
            self.ask("prioritize", fleet.args(1, names).fill(self.number), lambda points: scored(points, names))

    def whole_node(self) -> None:
        if self.ask("filter", FILTER_WHOLE.fill(self.number), refused) == []:
            self.ask("preempt", PREEMPT.fill(self.number), evicts)

    def ask(self, verb: str, body: bytes, check: Any) -> Any:
        """What `check` makes of the answer; a ValueError, or a status that is not 200, is a failed request."""
        headers = {"Content-Type": "application/json"}
        with self.client.post(f"/v1/{verb}", data=body, headers=headers, name=verb, catch_response=True) as reply:
            if reply.status_code != 200:
                reply.failure(f"status {reply.status_code}: {reply.text}"[:300])
                return None
            try:
                return check(orjson.loads(reply.content))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                reply.failure(f"{error!r}: {reply.text}"[:300])
                return None


def fits(answer: Any) -> list[str]:
    names: list[str] = answer["NodeNames"]
    if answer["Error"] or not names or not KNOWN.issuperset(names):
        raise ValueError("a one-GPU pod fits somewhere")
    return names


def refused(answer: Any) -> list[str]:
    if answer["Error"] or answer["NodeNames"] or answer["FailedAndUnresolvableNodes"].keys() != KNOWN:
        raise ValueError("no node is empty, and no node is refused in FailedNodes up to 1.37")
    return []


def scored(answer: Any, names: list[str]) -> bool:
    if {entry["Host"] for entry in answer} != set(names) or not all(0 <= entry["Score"] <= 10 for entry in answer):
        raise ValueError("every name has 0 to 10 points")
    return True


def evicts(answer: Any) -> bool:
    ((node, victims),) = answer["NodeNameToMetaVictims"].items()
    i = NAMES.index(node)
    if {pod["UID"] for pod in victims["Pods"]} != {fleet.pod_uid(i, j) for j in range(taken[i])}:
        raise ValueError("a whole node is free when all its pods are gone")
    return True
