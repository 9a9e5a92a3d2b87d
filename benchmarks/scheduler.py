"""What an extender costs kube-scheduler, or saves it: the scheduler's own algorithm time per pod.

    python -m benchmarks.scheduler [--nodes 5000] [--pods 200] [--rounds 5] [--seconds 720] [--arms ...] [-o json]

A real control plane (tests/e2e) holds empty nodes of eight GPUs. In each round each arm has a fresh kube-scheduler, and
a fresh extender. It places one-GPU pods, some to warm up and then `--pods`, in each of the ways below. The figures are
the mean of scheduler_scheduling_algorithm_duration_seconds, and the CPU time of the scheduler and of the extender, each
per pod. CPU time includes what both do meanwhile in all threads (binding, watches), half a second after the last bind
included. The order of the arms, and that of the ways, is reversed from round to round. A ratio is made of the figures
of one round; printed are the median of the rounds and their spread.

Arms:

none    no extender
null    an extender whose filter answers the first 16 names and whose prioritize has no opinion (benchmarks.null_server)
ours    gpu-extender, watching that cluster, with the settings of manifests/gpu-extender.yaml
before  gpu-extender as it was at an earlier commit (benchmarks.before), with its default settings

Ways, each with the manifest's scheduler configuration:

all           plain pods, and `percentageOfNodesToScore: 100`
sampled       plain pods, and the scheduler's own sampling of nodes
all, nominated      pods are created with a scheduling gate; `status.nominatedNodeName` is patched; then the gate is
sampled, nominated  removed. kube-scheduler asks about that node alone first. Not with the arm null.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, build_opener

from benchmarks import before, fleet, say
from benchmarks.scheduler_table import report, targets
from benchmarks.serving import Servers, cpu_of
from benchmarks.spread import differences
from extender.kube.client import NoAnswer
from tests.e2e import builders, cleaning, commits
from tests.e2e.api import Api
from tests.e2e.build import ControlPlaneUnavailable, build
from tests.e2e.cluster import ControlPlane, Scheduler, parse_metrics
from tests.e2e.extender_process import ExtenderProcess
from tests.e2e.scene import scheduler_config
from tests.waiting import wait_for

NAMESPACE = "bench"
GATE = "bench.gpu-extender.io/hold"
WARM_UP = 20
ARMS = ("none", "null", "ours", "before")
SAMPLING = ("all", "sampled")
WAYS = tuple((sampling, nominated) for sampling in SAMPLING for nominated in (False, True))
ALGORITHM = "scheduler_scheduling_algorithm_duration_seconds"
CALLS = "gpu_extender_request_duration_seconds"
AFTERMATH = 0.5  # seconds after the last bind in which watch events still count
THREADS = 8  # that create, nominate and release pods
SETTINGS = Path(__file__).parents[1] / "manifests" / "gpu-extender.yaml"


def configuration(arm: str, url: str) -> dict[str, Any]:
    """The manifest's configuration with one profile for each sampling, named like it."""
    made = scheduler_config(url)
    if arm == "none":
        del made["extenders"]
    elif arm == "null":
        del made["extenders"][0]["preemptVerb"]
    share = made.pop("percentageOfNodesToScore")
    (profile,) = made["profiles"]
    made["profiles"] = [
        {**profile, "schedulerName": "all", "percentageOfNodesToScore": share},
        {**profile, "schedulerName": "sampled"},
    ]
    return made


@contextlib.contextmanager
def extender(arm: str, control_plane: ControlPlane) -> Iterator[tuple[str, int]]:
    """The arm's server, ready: URL and process id. For "none" there is none: 0."""
    if arm in ("ours", "before"):
        process = ExtenderProcess(
            control_plane.folder,
            control_plane.logs,
            control_plane.kubeconfig(),
            control_plane.reaper,
            config=SETTINGS.read_text() if arm == "ours" else "",
            number=len(list(control_plane.logs.glob("extender-*.log"))),
            env=commits.environment(before.tree()) if arm == "before" else None,
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


class Cluster:
    """The nodes of a control plane, and pods that come and go."""

    def __init__(self, api: Api, timeout: float) -> None:
        """`timeout`: seconds that the pods of one measurement may take."""
        self.api, self._timeout = api, timeout
        self.nodes = 0
        self._made = 0

    def grow(self, nodes: int, node: Callable[[int], dict[str, Any]] = fleet.node) -> None:
        """Make nodes until there are so many. `node`: the i-th."""
        self.api.create_many(map(node, range(self.nodes, nodes)))
        self.nodes = max(self.nodes, nodes)

    def place(self, count: int, scheduler: str, *, nominated: bool) -> int:
        """Create one-GPU pods and wait until all are bound. Returns how many are on the node that was nominated."""
        places = {}
        for i in range(self._made, self._made + count):
            places[f"p-{i}"] = fleet.name(i * 7 % self.nodes) if nominated else ""
        self._made += count
        pods = [builders.pod(name, NAMESPACE, 1, grace=0, scheduler=scheduler) for name in places]
        if nominated:
            for pod in pods:
                pod["spec"]["schedulingGates"] = [{"name": GATE}]
        self.api.create_many(pods, threads=THREADS)
        if nominated:
            with ThreadPoolExecutor(THREADS) as pool:
                list(pool.map(self._nominate, places, places.values()))
                list(pool.map(self._release, places))
        wait_for(self._all_bound, self._timeout, lambda: "pods were not bound", every=0.2)
        if not nominated:
            return 0
        bound = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in self.api.list("Pod", NAMESPACE)}
        return sum(bound[name] == node for name, node in places.items())

    def empty(self) -> None:
        """Delete the pods."""

        def gone() -> bool:
            with contextlib.suppress(NoAnswer):  # thousands take longer than one request may
                self.api.delete_all("Pod", NAMESPACE)
            return not self.api.list("Pod", NAMESPACE)

        wait_for(gone, self._timeout, "the pods are deleted")

    def _all_bound(self) -> bool:
        return not self.api.list("Pod", NAMESPACE, fields="spec.nodeName=")

    def _nominate(self, name: str, node: str) -> None:
        self.api.patch("Pod", name, {"status": {"nominatedNodeName": node}}, NAMESPACE, subresource="status")

    def _release(self, name: str) -> None:
        self.api.patch("Pod", name, {"spec": {"schedulingGates": None}}, NAMESPACE)


class Readings:
    """What the processes of one arm have counted so far."""

    def __init__(self, scheduler: Scheduler, server: int, url: str) -> None:
        self._scheduler, self._server, self._url = scheduler, server, url
        self.at = self._read()

    def _read(self) -> dict[str, float]:
        kept = dict(self._scheduler.metrics())
        if self._server:
            with contextlib.suppress(OSError, ValueError):
                kept |= {name: value for name, value in page_of(self._url).items() if name.startswith(CALLS)}
            kept["extender_cpu"] = cpu_of(self._server)
        kept["scheduler_cpu"] = cpu_of(self._scheduler.pid)
        return kept

    def since(self) -> dict[str, float]:
        """How much each has grown; the next call counts from here."""
        earlier, self.at = self.at, self._read()
        return differences(self.at, earlier, "")


def page_of(url: str) -> dict[str, float]:
    """The /metrics of an extender; empty for one that has none."""
    with build_opener(ProxyHandler({})).open(f"{url}/metrics", timeout=10) as answer:
        return parse_metrics(answer.read().decode())


def figures(grown: Mapping[str, float], pods: int) -> dict[str, Any]:
    """Milliseconds per pod. `calls`: the mean of the extender's own times, by verb."""
    attempts = grown[f"{ALGORITHM}_count"]
    found: dict[str, Any] = {
        "algorithm_ms": grown[f"{ALGORITHM}_sum"] / attempts * 1e3,
        "scheduler_cpu_ms": grown["scheduler_cpu"] / pods * 1e3,
        "extender_cpu_ms": grown.get("extender_cpu", 0.0) / pods * 1e3,
        "attempts": round(attempts),
        "calls": {},
    }
    found["cpu_ms"] = found["scheduler_cpu_ms"] + found["extender_cpu_ms"]
    for verb in ("filter", "prioritize"):
        labels = f'{{result="ok",verb="{verb}"}}'
        made = grown.get(f"{CALLS}_count{labels}", 0.0)
        if made:
            mean = grown[f"{CALLS}_sum{labels}"] / made * 1e3
            found["calls"][verb] = {"made": round(made), "mean_ms": round(mean, 3)}
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in found.items()}


def run(
    control_plane: ControlPlane, cluster: Cluster, arm: str, ways: Sequence[tuple[str, bool]], pods: int
) -> list[dict[str, Any]]:
    """One arm, once, in each of the ways. `attempts` above `pods` says that some were tried again."""
    found = []
    with extender(arm, control_plane) as (url, server):
        scheduler = control_plane.start_scheduler(configuration(arm, url), name=f"scheduler-{arm}")
        try:
            for sampling, nominated in ways:
                cluster.place(WARM_UP, sampling, nominated=nominated)
                readings = Readings(scheduler, server, url)
                began = time.monotonic()
                landed = cluster.place(pods, sampling, nominated=nominated)
                seconds = time.monotonic() - began
                time.sleep(AFTERMATH)
                made = figures(readings.since(), pods)
                if made["attempts"] < pods:
                    raise RuntimeError(f"{arm}: {made['attempts']} attempts for {pods} pods")
                found.append(
                    {"nodes": cluster.nodes, "arm": arm, "sampling": sampling, "nominated": nominated}
                    | {"pods": pods, "landed": landed, "all_bound_s": round(seconds, 2)}
                    | made
                )
                say(line(found[-1]))
                cluster.empty()
        finally:
            scheduler.kill()
            control_plane.forget_scheduler(scheduler)
            cluster.empty()
    return found


def line(made: Mapping[str, Any]) -> str:
    """One measurement, as progress shows it."""
    way = f"{made['arm']}, {made['sampling']}{', nominated' if made['nominated'] else ''}"
    return (
        f"{way}: {made['algorithm_ms']:.2f} ms a pod, CPU {made['scheduler_cpu_ms']:.2f} + "
        f"{made['extender_cpu_ms']:.2f} ms, all bound in {made['all_bound_s']} s"
    )


def ways_of(arm: str, number: int) -> list[tuple[str, bool]]:
    """The ways of an arm in a round."""
    ways = [way for way in WAYS if arm != "null" or not way[1]]
    return ways if number % 2 == 0 else ways[::-1]


def measure(
    binaries: Path, sizes: Sequence[int], arms: Sequence[str], pods: int, rounds: int, seconds: float
) -> list[dict[str, Any]]:
    """Every arm in each round. At each size no round begins after its share of `seconds`, the first excepted."""
    found = []
    if "before" in arms:
        before.tree()
    with ControlPlane(binaries) as control_plane:
        control_plane.api.create(builders.namespace(NAMESPACE))
        cluster = Cluster(control_plane.api, max(120.0, seconds / 2))
        try:
            for nodes in sorted(sizes):
                say(f"making {nodes - cluster.nodes} nodes, {nodes} in all")
                cluster.grow(nodes)
                end = time.monotonic() + seconds / len(sizes)
                for number in range(rounds):
                    if number and time.monotonic() > end:
                        say(f"out of time: {number} of {rounds} rounds at {nodes} nodes")
                        break
                    say(f"{nodes} nodes, round {number + 1} of {rounds}")
                    for arm in arms if number % 2 == 0 else arms[::-1]:
                        made = run(control_plane, cluster, arm, ways_of(arm, number), pods)
                        found += [{**one, "round": number} for one in made]
        finally:
            with contextlib.suppress(Exception):
                cleaning.clean(control_plane.api)
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scheduler", description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[5000], help="sizes of the cluster")
    parser.add_argument("--pods", type=int, default=200, help="pods of each measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=720.0, help="no new round after this; one runs at each size")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=ARMS)
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    asked = parser.parse_args(arguments)
    if min(asked.nodes) * fleet.SIZE < asked.pods + WARM_UP or asked.pods < 1:
        parser.error(f"{asked.pods} + {WARM_UP} pods need as many GPUs, and {min(asked.nodes)} nodes have eight each")
    arms = [arm for arm in ARMS if arm in asked.arms]
    try:
        found = measure(build(say), asked.nodes, arms, asked.pods, max(1, asked.rounds), asked.seconds)
    except commits.CommitUnavailable as reason:
        say(f"{reason}; or leave the arm out: --arms none null ours")
        return 1
    if asked.output == "json":
        lines = [one._asdict() for one in targets(found)]
        print(json.dumps({"scheduler": found, "targets": lines}, indent=1))
    else:
        print(report(found))
    return 0


def on_control_plane(main: Callable[[], int]) -> int:
    """The exit code of a command that needs a control plane; 1 where there is none, and `say` states why."""
    try:
        return main()
    except ControlPlaneUnavailable as reason:
        say(f"SKIPPED, no control plane: {reason}")
        return 1


if __name__ == "__main__":
    sys.exit(on_control_plane(main))
