"""Preemptors of many priorities compete at once: which evictions are second evictions, and how long each one waits.

A preemptor's first plan that was carried out is its need; what is evicted for it after that is a second eviction
(`soak_accounts.causes` gives the reason). The same scenario reports the evicted GPUs that no preemptor needed.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.e2e import builders
from tests.e2e.scene import Scene
from tests.e2e.soak_accounts import GPUS, Preemptor, causes, follow, preempted
from tests.e2e.trace import Trace
from tests.waiting import wait_for

SIZES = (1, 1, 2, 2, 4, 4, 8)  # GPUs of a preemptor
VICTIM_SIZES = (1, 2, 2, 4)
LOW = "low"
LOW_PRIORITY = 10
PACE = 0.05  # seconds between two creations, beside the call itself
QUIET_SECONDS = 8.0  # longer than the backoff of kube-scheduler's first attempts


@dataclass(frozen=True, slots=True)
class Scenario:
    """`order`: of creation, "random" or "lowest-first"; `share`: of all GPUs, what the preemptors request in total;
    `pace`: seconds between two creations, beside the call itself. Pods run without end."""

    seed: int
    order: str = "random"
    nodes: int = 12
    priorities: int = 6
    share: float = 0.6
    pace: float = 0.0

    def victims(self) -> dict[str, list[int]]:
        """Node -> sizes of the pods that fill it."""
        rng = random.Random(self.seed)
        found: dict[str, list[int]] = {}
        for i in range(self.nodes):
            sizes: list[int] = []
            while sum(sizes) < GPUS:
                sizes.append(min(rng.choice(VICTIM_SIZES), GPUS - sum(sizes)))
            found[f"n{i:02d}"] = sizes
        return found

    def preemptors(self) -> list[Preemptor]:
        """In the order in which they are created."""
        rng = random.Random(self.seed + 1000)
        made: list[Preemptor] = []
        while True:
            size = rng.choice(SIZES)
            if sum(one.size for one in made) + size > self.share * self.nodes * GPUS:
                break
            priority = 100 * (1 + rng.randrange(self.priorities))
            made.append(Preemptor(f"p{len(made):02d}-{priority}", size, priority, "0"))
        return made if self.order == "random" else sorted(made, key=lambda one: one.priority)


@dataclass
class Result:
    """What one scenario came to. Waits in seconds, from creation to bound; `visible`: of the second evictions, those
    where a pod that took the place existed, with no plan, when the plan was made."""

    preemptors: int = 0
    evictions: int = 0
    second: Counter[str] = field(default_factory=Counter)
    gpus_evicted: int = 0
    gpus_needed: int = 0
    waits: list[float] = field(default_factory=list)
    visible: int = 0
    lines: list[str] = field(default_factory=list)

    @property
    def share(self) -> float:
        """Second evictions of all evictions."""
        return self.second.total() / self.evictions if self.evictions else 0.0

    def __add__(self, other: Result) -> Result:
        return Result(
            self.preemptors + other.preemptors,
            self.evictions + other.evictions,
            self.second + other.second,
            self.gpus_evicted + other.gpus_evicted,
            self.gpus_needed + other.gpus_needed,
            self.waits + other.waits,
            self.visible + other.visible,
        )

    def __str__(self) -> str:
        tenths = statistics.quantiles(self.waits, n=10)
        second = f"second {self.second.total()} = {self.share:.1%} {dict(self.second)}, to a visible pod {self.visible}"
        return (
            f"{self.preemptors} preemptors, {self.evictions} evictions, {second}; "
            f"GPUs evicted {self.gpus_evicted}, needed {self.gpus_needed}; "
            f"wait median {statistics.median(self.waits):.2f} s, p90 {tenths[8]:.2f} s, max {max(self.waits):.2f} s"
        )


def fill(cluster: Scene, scenario: Scenario) -> list[str]:
    """Fill every node with pods of the lowest priority; their names."""
    cluster.api.create(builders.priority_class(LOW, LOW_PRIORITY))
    for i in range(scenario.priorities):
        cluster.api.create(builders.priority_class(f"c{100 * (i + 1)}", 100 * (i + 1)))
    pods = [
        builders.pod(f"{node}-v{i}", cluster.namespace, size, priority_class=LOW, grace=5, cpu="100m", node_name=node)
        for node, sizes in scenario.victims().items()
        for i, size in enumerate(sizes)
    ]
    cluster.create_all(pods)
    names = [pod["metadata"]["name"] for pod in pods]
    wait_for(lambda: _all_run(cluster, len(names)), 60, "the nodes are full")
    return names


def _all_run(cluster: Scene, count: int) -> bool:
    pods = cluster.api.list("Pod", cluster.namespace)
    return len([pod for pod in pods if pod["status"].get("phase") == "Running"]) == count


def run(cluster: Scene, scenario: Scenario, timeout: float = 90.0) -> tuple[Result, Trace, list[Preemptor]]:
    """Create the preemptors, wait until each one is bound, and account for every eviction."""
    victims = fill(cluster, scenario)
    ones = scenario.preemptors()
    with Trace(cluster.api, cluster.namespace, cluster.extender.url, builders.GPU) as trace:
        wait_for(lambda: len(trace.pods) >= len(victims), 60, "the trace sees all pods")
        for one in ones:
            one.created = time.time()
            cluster.pod(one.name, one.size, priority_class=f"c{one.priority}", cpu="100m")
            one.uid = cluster.uids[one.name]
            time.sleep(scenario.pace)
        _settled(trace, ones, timeout)
        cluster.kubelets.settle()
        events = cluster.api.list("Event", cluster.namespace, fields="reason=Preempted")
    follow(trace, {one.name: one for one in ones}, preempted(events))
    return account(trace, ones), trace, ones


def _settled(trace: Trace, ones: Sequence[Preemptor], timeout: float) -> None:
    """Wait until each preemptor is bound, or nothing more happens: the highest may leave no whole node for the last."""
    count, since, deadline = -1, time.time(), time.time() + timeout
    while time.time() < deadline:
        found = sum(one.uid in trace.pods and trace.pods[one.uid].bound is not None for one in ones)
        if found == len(ones):
            return
        ends = [pod.gone for pod in trace.pods.values() if pod.gone is not None]
        if found != count or any(end > since for end in ends):
            count, since = found, time.time()
        if time.time() - since > QUIET_SECONDS:
            return
        time.sleep(0.1)


def account(trace: Trace, ones: Sequence[Preemptor]) -> Result:
    """Every eviction, by what it was for."""
    result = Result(len(ones), sum(one.evictions for one in ones))
    for one in ones:
        why = causes(trace, one)
        result.second += why
        if one.node:
            result.waits.append(one.started - one.created)
        if why:
            rounds = "; ".join(f"{r.made - one.created:.2f} s {r.node} {len(r.victims)} pods" for r in one.rounds)
            result.lines.append(f"{one.name} {one.size} GPUs: {rounds}; bound to {one.node} {dict(why)}")
            result.lines += _takers(trace, one)
            result.visible += _visible(trace, one)
    evicted = {uid for one in ones for plan in one.rounds for uid in plan.victims}
    result.gpus_evicted = sum(trace.pods[uid].gpus for uid in evicted)
    result.gpus_needed = sum(one.size for one in ones)
    return result


def _takers(trace: Trace, one: Preemptor) -> list[str]:
    """For each plan that was lost: the pods of a higher priority that came to its node. Times relative to the plan."""
    told: list[str] = []
    for before, _ in zip(one.rounds, one.rounds[1:], strict=False):
        gone = max((trace.pods[uid].gone or 0) - before.made for uid in before.victims)
        told.append(f"    plan on {before.node}, last victim gone {gone:+.2f}")
        for pod in trace.pods.values():
            if pod.node != before.node or pod.priority <= one.priority or not pod.bound:
                continue
            plans = [plan for plan in trace.plans if plan.uid == pod.uid]
            seen = " ".join(f"{p.node} x{len(p.victims)} {p.made - before.made:+.2f}" for p in plans)
            told.append(
                f"    {pod.name} {pod.gpus} GPUs: created {pod.created - before.made:+.2f}, "
                f"bound {pod.bound - before.made:+.2f}, its plans: {seen or 'none'}"
            )
    return told


def _visible(trace: Trace, one: Preemptor) -> int:
    """Evictions after a plan was lost to a higher priority that waited, untried, when the plan was made."""
    found = 0
    for before, after in zip(one.rounds, one.rounds[1:], strict=False):
        tried = {plan.uid for plan in trace.plans if plan.made < before.made}
        found += len(after.victims) * any(
            pod.node == before.node
            and pod.priority > one.priority
            and pod.created < before.made < (pod.bound or 0) < after.made
            and pod.uid not in tried
            for pod in trace.pods.values()
        )
    return found
