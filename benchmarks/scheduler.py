"""What an extender costs kube-scheduler, or saves it: the scheduler's own algorithm time per pod.

    python -m benchmarks.scheduler [--nodes 5000] [--pods 200] [--seconds 900] [-o json]

A real control plane (tests/e2e) holds empty nodes of eight GPUs. For each arm a fresh kube-scheduler places one-GPU
pods, a few to warm up and then `--pods`; the figure is the mean of scheduler_scheduling_algorithm_duration_seconds over
the latter, in ms. Beside it stands the CPU time a pod of the scheduler and of the extender, all their threads and all
that they do meanwhile (binding, watching): it swings less where other work runs. Arms:

none   no extender
null   an extender whose filter answers the first 16 names and whose prioritize has no opinion (benchmarks.null_server)
ours   gpu-extender, watching that cluster, with the manifest's configuration

each with `percentageOfNodesToScore: 100` (all) and with the scheduler's own sampling (sampled), all else of the
manifest's configuration alike. The arms run in this order and then in the reverse: a drift of the machine shows.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import fleet
from benchmarks.serving import Servers, cpu_of
from tests.e2e import builders, cleaning
from tests.e2e.api import Api, wait_for
from tests.e2e.build import ControlPlaneUnavailable, build
from tests.e2e.cluster import ControlPlane, Scheduler
from tests.e2e.extender_process import ExtenderProcess
from tests.e2e.scene import scheduler_config

NAMESPACE = "bench"
WARM_UP = 20
ARMS = ("none", "null", "ours")
SAMPLING = ("all", "sampled")
ALGORITHM = "scheduler_scheduling_algorithm_duration_seconds"


def configuration(arm: str, sampling: str, url: str) -> dict[str, Any]:
    """The manifest's configuration, changed in what the arm is about."""
    made = scheduler_config(url)
    if arm == "none":
        del made["extenders"]
    elif arm == "null":
        del made["extenders"][0]["preemptVerb"]
    if sampling == "sampled":
        del made["percentageOfNodesToScore"]
    return made


@contextlib.contextmanager
def extender(arm: str, control_plane: ControlPlane) -> Iterator[tuple[str, int]]:
    """The arm's server, ready: URL and process id. For "none" there is none: 0."""
    if arm == "ours":
        process = ExtenderProcess(
            control_plane.folder,
            control_plane.logs,
            control_plane.kubeconfig(),
            control_plane.reaper,
            number=len(list(control_plane.logs.glob("extender-*.log"))),
        )
        try:
            process.start()
            yield process.url, process.pid
        finally:
            process.kill()
    elif arm == "null":
        with Servers() as servers:
            served = servers.null("shortlist")
            yield f"http://127.0.0.1:{served.port}", served.pid
    else:
        yield "", 0


def algorithm(scheduler: Scheduler) -> tuple[float, float]:
    """(seconds, attempts) so far."""
    series = scheduler.metrics()
    return series[f"{ALGORITHM}_sum"], series[f"{ALGORITHM}_count"]


def place(api: Api, count: int, timeout: float) -> float:
    """Create `count` one-GPU pods and wait until all are bound; seconds that took."""
    began = time.monotonic()
    before = len(api.list("Pod", NAMESPACE))
    api.create_many(builders.pod(f"p-{before + i}", NAMESPACE, 1, grace=0) for i in range(count))

    def bound() -> bool:
        return not api.list("Pod", NAMESPACE, fields="spec.nodeName=")

    wait_for(bound, timeout, lambda: "pods were not bound", every=0.1)
    return time.monotonic() - began


def run(control_plane: ControlPlane, arm: str, sampling: str, pods: int, timeout: float) -> dict[str, Any]:
    """One arm, once. `attempts` above `pods` says that some were tried again."""
    api = control_plane.api
    with extender(arm, control_plane) as (url, server):
        scheduler = control_plane.start_scheduler(configuration(arm, sampling, url), name=f"scheduler-{arm}")
        try:
            place(api, WARM_UP, timeout)
            before, used = algorithm(scheduler), [cpu_of(pid) for pid in (scheduler.pid, server)]
            seconds = place(api, pods, timeout)
            spent, attempts = (after - b for after, b in zip(algorithm(scheduler), before, strict=True))
            used = [cpu_of(pid) - b for pid, b in zip((scheduler.pid, server), used, strict=True)]
        finally:
            scheduler.kill()
            control_plane.forget_scheduler(scheduler)
            api.delete_all("Pod", NAMESPACE)
    if attempts < pods:
        raise RuntimeError(f"{arm}: {attempts:.0f} attempts for {pods} pods")
    wait_for(lambda: not api.list("Pod", NAMESPACE), 30, "the pods went")
    return {
        "arm": arm,
        "sampling": sampling,
        "algorithm_ms": round(spent / attempts * 1e3, 2),
        "scheduler_cpu_ms": round(used[0] / pods * 1e3, 2),
        "extender_cpu_ms": round(used[1] / pods * 1e3, 2) if server else 0.0,
        "attempts": round(attempts),
        "all_bound_s": round(seconds, 2),
    }


def measure(binaries: Path, nodes: int, pods: int, seconds: float) -> list[dict[str, Any]]:
    """Every arm in both orders; stops after `seconds` with what there is, once each arm ran in one order."""
    end = time.monotonic() + seconds
    found = []
    with ControlPlane(binaries) as control_plane:
        api = control_plane.api
        try:
            say(f"making {nodes} nodes")
            api.create(builders.namespace(NAMESPACE))
            api.create_many(fleet.node(i) for i in range(nodes))
            forth = [(arm, sampling) for sampling in SAMPLING for arm in ARMS]
            for number, (arm, sampling) in enumerate([*forth, *reversed(forth)]):
                if number >= len(forth) and time.monotonic() > end:
                    say("out of time: the second order is incomplete")
                    break
                made = run(control_plane, arm, sampling, pods, max(60.0, seconds / 4))
                made["order"] = "forth" if number < len(forth) else "back"
                found.append(made)
                say(f"{arm}, {sampling}: {made['algorithm_ms']} ms a pod, all bound in {made['all_bound_s']} s")
        finally:
            with contextlib.suppress(Exception):
                cleaning.clean(api)
    return found


def say(line: str) -> None:
    print(f"scheduler: {line}", file=sys.stderr, flush=True)


COLUMNS = {
    "algorithm_ms": "algorithm time, ms a pod",
    "scheduler_cpu_ms": "CPU of kube-scheduler, ms a pod",
    "extender_cpu_ms": "CPU of the extender, ms a pod",
}


def table(found: list[dict[str, Any]], nodes: int, pods: int) -> str:
    lines = [
        f"{nodes} nodes, {pods} one-GPU pods; forth / back",
        "",
        "| sampling | arm | " + " | ".join(COLUMNS.values()) + " | attempts |",
        "|---|---" + "|--:" * (len(COLUMNS) + 1) + "|",
    ]
    for sampling in SAMPLING:
        for arm in ARMS:
            rows = [row for row in found if (row["arm"], row["sampling"]) == (arm, sampling)]
            cells = [sampling, arm, *(" / ".join(f"{row[column]:.2f}" for row in rows) for column in COLUMNS)]
            lines.append("| " + " | ".join([*cells, " / ".join(str(row["attempts"]) for row in rows)]) + " |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scheduler", description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=200, help="pods measured in each run")
    parser.add_argument("--seconds", type=float, default=900.0, help="no new run of the second order after this")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    asked = parser.parse_args(arguments)
    if asked.nodes * fleet.SIZE < asked.pods + WARM_UP or asked.pods < 1:
        parser.error(f"{asked.pods} + {WARM_UP} pods need as many GPUs, and {asked.nodes} nodes have eight each")
    found = measure(build(say), asked.nodes, asked.pods, asked.seconds)
    if asked.output == "json":
        print(json.dumps({"nodes": asked.nodes, "pods": asked.pods, "scheduler": found}, indent=1))
    else:
        print(table(found, asked.nodes, asked.pods))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ControlPlaneUnavailable as reason:
        say(f"SKIPPED, no control plane: {reason}")
        sys.exit(1)
