"""Pods through the queue, beside plain pods without us: kube-scheduler's own time, and how soon all are bound.

    python -m benchmarks.queue_live [--nodes 5000] [--pods 200] [--gang 1] [--rounds 5] [--seconds 420] [-o json]

A real control plane (tests/e2e) holds empty nodes of eight GPUs. In each round each arm has a fresh kube-scheduler, and
places one-GPU pods with all nodes scored and with the scheduler's own sampling:

none     plain pods, no extender
queued   pods behind our gate, in gangs of `--gang`; gpu-extender places, nominates and releases them

The figures are the mean of scheduler_scheduling_algorithm_duration_seconds per pod, our filter included, and pods per
second from the first creation to the last pod seen bound: creation by eight clients is in it. The order of the arms is
reversed from round to round; a ratio is made of the figures of one round. Printed are medians and the spread.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import fleet, say
from benchmarks.scheduler import (
    NAMESPACE,
    SAMPLING,
    THREADS,
    WARM_UP,
    Cluster,
    Readings,
    configuration,
    figures,
    on_control_plane,
)
from benchmarks.spread import Line, Spread, at_least, at_most, ratios, table, targets_table
from extender.objects.queueing import GATE
from tests.e2e import builders, cleaning
from tests.e2e.build import build
from tests.e2e.cluster import ControlPlane
from tests.e2e.extender_process import ExtenderProcess
from tests.waiting import wait_for

ARMS = ("none", "queued")
AFTERMATH = 0.5  # seconds after the last bind in which watch events still count
TEXT = {"all": "all nodes scored", "sampled": "default sampling"}
SETTINGS = {"apiVersion": "gpu-extender.io/v1", "kind": "GpuExtenderConfiguration", "queue": {"enabled": True}}
PARTS = {"all": 20, "sampled": 5}  # the target: a plain pod's time without us, divided by this


class Pods:
    """Creates pods of one arm and waits until they are bound."""

    def __init__(self, cluster: Cluster, arm: str, gang: int) -> None:
        self._cluster, self._arm, self._gang = cluster, arm, gang
        self._prefix = f"{arm}-{time.monotonic_ns()}"  # no name is used twice: the watch may be behind
        self._made = 0

    def place(self, count: int, scheduler: str) -> float:
        """Seconds until all are bound."""
        began = time.monotonic()
        self._cluster.api.create_many((self._pod(self._made + i, scheduler) for i in range(count)), threads=THREADS)
        self._made += count
        unbound = {"fields": "spec.nodeName="}
        wait_for(lambda: not self._cluster.api.list("Pod", NAMESPACE, **unbound), 300, "the pods are bound", every=0.1)
        return time.monotonic() - began

    def _pod(self, number: int, scheduler: str) -> dict[str, Any]:
        name, gang = f"{self._prefix}-{number}", f"{self._prefix}-{number // self._gang}"
        notes = {"gpu-extender.io/gang": gang, "gpu-extender.io/gang-size": str(self._gang)} if self._gang > 1 else {}
        pod = builders.pod(name, NAMESPACE, 1, grace=0, scheduler=scheduler, annotations=notes)
        if self._arm == "queued":
            pod["spec"]["schedulingGates"] = [{"name": GATE}]
        return pod


@contextlib.contextmanager
def extender(arm: str, control_plane: ControlPlane, number: int) -> Iterator[tuple[str, int]]:
    """The arm's server: URL and process id; for "none" there is none."""
    if arm == "none":
        yield "", 0
        return
    process = ExtenderProcess(
        control_plane.folder,
        control_plane.logs,
        control_plane.kubeconfig(),
        control_plane.reaper,
        config={**SETTINGS, "queue": {"enabled": True, "lease": f"queue-{number}"}},
        number=len(list(control_plane.logs.glob("extender-*.log"))),
    )
    try:
        process.start()
        yield process.url, process.pid
    finally:
        process.kill()


def run(control_plane: ControlPlane, cluster: Cluster, arm: str, asked: Any, number: int) -> list[dict[str, Any]]:
    """One arm, once, in both samplings."""
    found = []
    with extender(arm, control_plane, number) as (url, server):
        scheduler = control_plane.start_scheduler(configuration("none" if arm == "none" else "ours", url))
        try:
            for sampling in SAMPLING if number % 2 == 0 else SAMPLING[::-1]:
                pods = Pods(cluster, arm, asked.gang)
                pods.place(-(-WARM_UP // asked.gang) * asked.gang, sampling)
                readings = Readings(scheduler, server, url)
                seconds = pods.place(asked.pods, sampling)
                time.sleep(AFTERMATH)
                made = figures(readings.since(), asked.pods)
                found.append(
                    {"round": number, "arm": arm, "sampling": sampling, "pods_per_second": asked.pods / seconds} | made
                )
                spent = f"CPU {made['scheduler_cpu_ms']:.1f} + {made['extender_cpu_ms']:.1f} ms"
                rate = f"{found[-1]['pods_per_second']:.0f} pods/s"
                say(f"{arm}, {sampling}: {made['algorithm_ms']:.2f} ms a pod, {rate}, {spent}")
                cluster.empty()
        finally:
            scheduler.kill()
            control_plane.forget_scheduler(scheduler)
            cluster.empty()
    return found


def measure(binaries: Path, asked: Any) -> list[dict[str, Any]]:
    """All rounds that begin within `--seconds`, one at least."""
    found: list[dict[str, Any]] = []
    with ControlPlane(binaries) as control_plane:
        control_plane.api.create(builders.namespace(NAMESPACE))
        cluster = Cluster(control_plane.api, 300.0)
        try:
            say(f"making {asked.nodes} nodes")
            cluster.grow(asked.nodes)
            end = time.monotonic() + asked.seconds
            for number in range(asked.rounds):
                if number and time.monotonic() > end:
                    say(f"out of time: {number} of {asked.rounds} rounds")
                    break
                for arm in ARMS if number % 2 == 0 else ARMS[::-1]:
                    found += run(control_plane, cluster, arm, asked, number)
        finally:
            with contextlib.suppress(Exception):
                cleaning.clean(control_plane.api)
    return found


def column(rows: Sequence[dict[str, Any]], figure: str, arm: str, sampling: str) -> list[float]:
    """One value a round."""
    return [row[figure] for row in rows if (row["arm"], row["sampling"]) == (arm, sampling)]


def report(rows: Sequence[dict[str, Any]]) -> str:
    """The table and the targets."""
    heads = ["sampling", "pods", "algorithm time, ms a pod", "pods bound per second", "CPU of kube-scheduler, ms"]
    heads.append("CPU of the extender, ms")
    names = ("algorithm_ms", "pods_per_second", "scheduler_cpu_ms", "extender_cpu_ms")
    cells = [
        [TEXT[sampling], arm, *(Spread.of(column(rows, name, arm, sampling)).text() for name in names)]
        for sampling in SAMPLING
        for arm in ARMS
    ]
    return "\n\n".join([table(heads, cells, words=2), "Targets", targets_table(targets(rows))])


def targets(rows: Sequence[dict[str, Any]]) -> list[Line]:
    """What the queue has to reach, beside plain pods without us in the same round."""
    lines = []
    for sampling, part in PARTS.items():
        time_ratio, rate = (
            ratios(column(rows, name, "queued", sampling), column(rows, name, "none", sampling))
            for name in ("algorithm_ms", "pods_per_second")
        )
        lines.append(
            at_most(f"algorithm time of a released pod, {TEXT[sampling]}", f"<= 1/{part}", time_ratio, 1 / part, 3)
        )
        line = at_least(f"pods bound per second, {TEXT[sampling]}", ">= 3", rate, 3.0)
        lines.append(line if sampling == "all" else line._replace(target="reported", met=None))
    return lines


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.queue_live", description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=200, help="pods of each measurement")
    parser.add_argument("--gang", type=int, default=1, help="pods of a gang")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=420.0, help="no new round after this; one runs")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    asked = parser.parse_args(arguments)
    if asked.nodes * fleet.SIZE < asked.pods + WARM_UP or asked.pods % asked.gang:
        parser.error("the pods need as many GPUs, eight a node, and --pods is a multiple of --gang")
    found = measure(build(say), asked)
    print(json.dumps(found, indent=1) if asked.output == "json" else report(found))
    return 0


if __name__ == "__main__":
    sys.exit(on_control_plane(main))
