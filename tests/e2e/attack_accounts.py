"""The attack's own accounts: what kubelets admitted, what kube-scheduler logged, what the pods went through.

Nothing in here asks the product what it believes. Hard rows decide the exit status; the others are reported.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles

from extender.sim import machines
from extender.sim.kubelet import AllocationEvent
from tests.e2e import trace
from tests.e2e.attack_load import HOSTILE, PRIORITIES
from tests.e2e.soak_accounts import Preemptor, causes, why_unplaced
from tests.e2e.trace import PodStory, Trace

FAILED_CALL = re.compile(r"code (5\d\d)")
MOST_WAIT = 2.0  # seconds that an honest gang waits longer beside an attack than in the control run
FAILING = "gpu-extender: GPU pods failed on the node"  # a node is rejected for all; else "for pods of this namespace"


@dataclass(frozen=True)
class Row:
    """One line of the report. `most`: a hard bound, None where the row is only reported."""

    name: str
    value: float | str
    most: float | None = None

    @property
    def broken(self) -> bool:
        return self.most is not None and isinstance(self.value, (int, float)) and self.value > self.most

    def __str__(self) -> str:
        value = f"{self.value:.2f}".rstrip("0").rstrip(".") if isinstance(self.value, float) else str(self.value)
        bound = "" if self.most is None else f"   at most {self.most:g}" + ("   BROKEN" if self.broken else "")
        return f"{self.name:76}{value:>10}{bound}"


@dataclass(frozen=True)
class Wait:
    """How long an honest gang waited, in seconds; `started`: False where it still waited at the end."""

    seconds: float
    started: bool


@dataclass(frozen=True)
class Waits:
    """The waits of the honest gangs of one run."""

    median: float
    longest: float
    gangs: int
    waiting: int

    @classmethod
    def of(cls, waits: Sequence[Wait]) -> Waits:
        seconds = [wait.seconds for wait in waits]
        return cls(median(seconds), max(seconds), len(waits), sum(not wait.started for wait in waits))

    def __str__(self) -> str:
        waiting = f", {self.waiting} still wait" if self.waiting else ""
        return f"{self.median:.1f} / {self.longest:.1f} s of {self.gangs}{waiting}"


def beside(scene: str, control: Waits, attacked: Waits) -> Row:
    """How much longer the longest wait is beside the attack, in seconds. A gang that still waits may wait for ever."""
    more = math.inf if attacked.waiting > control.waiting else attacked.longest - control.longest
    return Row(f"{scene}: {control}, attacked {attacked}; longest wait more by, s", more, MOST_WAIT)


@dataclass
class Seen:
    """What was seen in a run. Times: seconds since 1970. `tenants`: namespace -> tenant; `required`: uids of pods that
    require links; `direct`: uids that were created with a node; `down`: when the server was being restarted by us."""

    trace: Trace
    log: Sequence[AllocationEvent]
    tenants: Mapping[str, str]
    machines: Mapping[str, str]
    required: set[str] = field(default_factory=set)
    direct: set[str] = field(default_factory=set)
    down: list[tuple[float, float]] = field(default_factory=list)
    ended: int = 0
    """How often the server ended by itself, or could not start."""
    stuck: list[str] = field(default_factory=list)
    idle_calls: float = 0.0
    bodies: int = 0
    bad_statuses: Counter[str] = field(default_factory=Counter)
    """Of the fuzzed bodies: statuses that are not documented."""
    unplanned: int = 0


def preemptors_of(seen: Seen) -> dict[str, Preemptor]:
    """Every pod whose priority is above the lowest, by uid, as `soak_accounts` wants it."""
    found = {}
    for pod in seen.trace.pods.values():
        if pod.priority > PRIORITIES["low"]:
            deleted = pod.going if pod.going is not None and pod.bound is None else math.inf
            found[pod.uid] = Preemptor(
                pod.name, pod.gpus, pod.priority, "", uid=pod.uid, created=pod.created, deleted=deleted
            )
    return found


def twice(seen: Seen) -> int:
    """Pods that kube-scheduler bound, and whose GPUs were not there to give."""
    reasons = ("over-promised", "plan-conflict")
    return sum(one.what == "refused" and one.reason in reasons and one.uid not in seen.direct for one in seen.log)


def unlinked(seen: Seen) -> tuple[int, int]:
    """Of the pods that require links: how many kubelet admitted, and how many of those to GPUs without a ring."""
    admitted = [one for one in seen.log if one.what == "admitted" and one.uid in seen.required]
    return len(admitted), sum(not machines.machine(seen.machines[one.node]).linked(one.gpus) for one in admitted)


def failed_calls(seen: Seen, log: Path) -> tuple[int, int]:
    """5xx that kube-scheduler logged: while we had the server down or starting, and at other times."""
    during = other = 0
    for line in log.read_text(errors="replace").splitlines():
        if FAILED_CALL.search(line):
            at = trace.time_of(line)
            if at is not None and any(since - 1 <= at <= until + 1 for since, until in seen.down):
                during += 1
            else:
                other += 1
    return during, other


def waits(pods: Iterable[PodStory]) -> list[float]:
    """Seconds from creation to binding, of the pods that were bound by kube-scheduler."""
    return sorted(pod.bound - pod.created for pod in pods if pod.bound is not None and pod.priority > PRIORITIES["low"])


def report(seen: Seen, preemptors: Mapping[str, Preemptor], scheduler_log: Path) -> list[Row]:
    """The rows, hard ones first."""
    admitted, torn = unlinked(seen)
    during, other = failed_calls(seen, scheduler_log)
    evicting = [one for one in preemptors.values() if one.rounds]
    in_vain: Counter[str] = Counter()
    again: Counter[str] = Counter()
    for one in evicting:
        again += causes(seen.trace, one)
        if not one.node:
            in_vain[why_unplaced(one)] += one.evictions
    failing = seen.trace.said(FAILING)
    rows = [
        Row("the server ended by itself, or did not start", seen.ended, 0),
        Row("GPUs given twice (pods that kubelet rejected for it)", twice(seen), 0),
        Row(f"pods that require links, on GPUs without a ring, of {admitted}", torn, 0),
        Row("evictions in vain, unexplained", in_vain["unexplained"], 0),
        Row("honest pods that are stuck", len(seen.stuck), 0),
        Row("conditions of pods that name a node rejected for one tenant's failures", len(failing), 0),
        Row("5xx for kube-scheduler while the server was up", other, 0),
        Row(f"undocumented statuses for {seen.bodies} fuzzed bodies", sum(seen.bad_statuses.values()), 0),
        Row("filter calls when idle", seen.idle_calls, 0),
        Row("5xx for kube-scheduler while the server was killed and started", during),
        Row("evictions", sum(one.evictions for one in evicting)),
        Row("  in vain, the preemptor was deleted", in_vain["deleted"]),
        Row("  second evictions for one need", sum(again.values())),
        *(Row(f"    {cause}", count) for cause, count in sorted(again.items())),
        Row("  in no reservation that was kept", seen.unplanned),
    ]
    return rows + _tenants(seen, evicting)


def _tenants(seen: Seen, evicting: Sequence[Preemptor]) -> list[Row]:
    by_tenant: dict[str, list[PodStory]] = {}
    for pod in seen.trace.pods.values():
        by_tenant.setdefault(seen.tenants.get(pod.space, pod.space), []).append(pod)
    victims = Counter(
        seen.tenants.get(seen.trace.pods[uid].space, "?")
        for one in evicting
        for plan in one.rounds
        for uid in plan.victims
        if uid in seen.trace.pods and seen.trace.pods[uid].priority == PRIORITIES["low"]
    )
    rows = []
    total = sum(sum(waits(pods)) for pods in by_tenant.values()) or 1.0
    asked = sum(pod.gpus for pods in by_tenant.values() for pod in pods if pod.priority > PRIORITIES["low"]) or 1
    for tenant, pods in sorted(by_tenant.items()):
        found = waits(pods)
        if len(found) > 1:
            last = quantiles(found, n=20)[-1]
            rows.append(Row(f"waiting of {tenant}, median and 95th percentile, s", f"{median(found):.1f} {last:.1f}"))
    honest = [pods for tenant, pods in by_tenant.items() if tenant != HOSTILE]
    share = sum(sum(waits(pods)) for pods in honest) / total
    wanted = sum(pod.gpus for pods in honest for pod in pods if pod.priority > PRIORITIES["low"]) / asked
    rows.append(Row("honest tenants' share of the waiting time", f"{share:.0%}"))
    rows.append(Row("  and of the GPUs that were asked for", f"{wanted:.0%}"))
    cheat = victims[HOSTILE] / max(1, sum(victims.values()))
    rows.append(Row("evictions of the load that cheats with annotations, of all of the load", f"{cheat:.0%}"))
    return rows
