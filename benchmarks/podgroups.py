"""Gangs that need one rack: through our queue, by kube-scheduler's own PodGroups, and the same pods without gangs.

    python -m benchmarks.podgroups [--nodes 5000] [--racks 50] [--gangs 750] [--pods 4] [--rounds 4] [-o json]

The shape is that of kube-scheduler's own performance test of topology (scheduler_perf, podgroup/tas). A real control
plane of Kubernetes 1.37 (tests/e2e) with the feature gates GenericWorkload and TopologyAwareWorkloadScheduling holds
empty nodes of eight GPUs in racks. In each round each arm has a fresh kube-scheduler, which samples nodes as it does by
default:

plain      pods without a gang and without a rack, no extender: the bound
podgroups  pods of PodGroups with `gang.minCount` and one topology constraint, no extender
queue      pods behind our gate, in gangs that require one rack

All pods are created at once by eight clients; the PodGroups exist before. *Pods/s* is from the first creation to the
last binding that a watch brings, *drained* from the first binding to the last. CPU is of the whole time. The order of
the arms is reversed from round to round; a ratio is made of the figures of one round.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import fleet, queue_live, say
from benchmarks.scheduler import NAMESPACE, THREADS, Cluster, configuration, on_control_plane
from benchmarks.serving import cpu_of
from benchmarks.spread import Line, Spread, at_least, ratios, table, targets_table
from extender.kube.client import ApiError, NoAnswer
from extender.objects.queueing import GATE
from tests.e2e import builders, cleaning
from tests.e2e.api import Api, WatchExpired
from tests.e2e.build import build
from tests.e2e.cluster import ControlPlane
from tests.waiting import wait_for

ARMS = ("plain", "podgroups", "queue")
TEXT = {"plain": "plain pods, no gangs", "podgroups": "PodGroups of kube-scheduler", "queue": "gpu-extender's queue"}
RACK = "topology.kubernetes.io/rack"
FEATURES = ("GenericWorkload", "TopologyAwareWorkloadScheduling")
GROUPS = "scheduling.k8s.io/v1beta1"
WARM_UP = 4  # gangs
LONGEST = 600  # seconds that one measurement may take
SAMPLED = "sampled"  # the scheduler's profile
BOUND = "spec.nodeName!="


class Bindings:
    """When each of these pods was seen bound, and where: by a watch, and by a list where the API server has closed
    it."""

    def __init__(self, api: Api, names: Collection[str]) -> None:
        self.at: dict[str, float] = {}
        self.nodes: dict[str, str] = {}
        self._api, self._names, self._closed = api, names, False
        self._begin()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _begin(self) -> None:
        pods, version = self._api.list_raw("Pod", NAMESPACE, fields=BOUND)
        self._watch = self._api.watch("Pod", NAMESPACE, version=version, fields=BOUND)
        for pod in pods:
            self._note(pod)

    def _note(self, pod: dict[str, Any]) -> None:
        name = pod["metadata"]["name"]
        if name in self._names and name not in self.at:
            self.nodes[name] = pod["spec"]["nodeName"]
            self.at[name] = time.monotonic()

    def _read(self) -> None:
        while not self._closed:
            with contextlib.suppress(NoAnswer, ApiError, WatchExpired):
                for kind, pod in self._watch:
                    if kind != "DELETED":
                        self._note(pod)
            if not self._closed:
                self._begin()

    def close(self) -> None:
        self._closed = True
        self._watch.close()
        self._reader.join()


class Gangs:
    """The gangs of one arm."""

    def __init__(self, arm: str, pods: int, gpus: int) -> None:
        self._arm, self._pods, self._gpus = arm, pods, gpus
        self._prefix = f"{arm}-{time.monotonic_ns()}"  # no name is used twice: the watch may be behind
        self.made = 0

    def names(self, count: int) -> list[str]:
        """Of as many more gangs."""
        self.made += count
        return [f"{self._prefix}-{number}" for number in range(self.made - count, self.made)]

    def group(self, gang: str) -> dict[str, Any]:
        """Its PodGroup."""
        spec = {
            "schedulingPolicy": {"gang": {"minCount": self._pods}},
            "schedulingConstraints": {"topology": [{"key": RACK}]},
        }
        meta = {"name": gang, "namespace": NAMESPACE}
        return {"apiVersion": GROUPS, "kind": "PodGroup", "metadata": meta, "spec": spec}

    def members(self, gang: str) -> Iterator[dict[str, Any]]:
        """Its pods, named GANG-NUMBER."""
        own: dict[str, Any] = {}
        if self._arm == "podgroups":
            own["schedulingGroup"] = {"podGroupName": gang}
        elif self._arm == "queue":
            own["schedulingGates"] = [{"name": GATE}]
            notes = {"gang": gang, "gang-size": str(self._pods), "domain": f"required:{RACK}"}
            own["annotations"] = {f"gpu-extender.io/{name}": value for name, value in notes.items()}
        for number in range(self._pods):
            yield builders.pod(f"{gang}-{number}", NAMESPACE, self._gpus, grace=0, scheduler=SAMPLED, **own)


def node(racks: int, nodes: int, i: int) -> dict[str, Any]:
    """The i-th node, in its rack."""
    made = fleet.node(i)
    made["metadata"]["labels"][RACK] = f"rack-{i * racks // nodes}"
    return made


def place(api: Api, gangs: Gangs, count: int) -> dict[str, float]:
    """So many gangs, from their creation until all are bound."""
    names = gangs.names(count)
    pods = [pod for name in names for pod in gangs.members(name)]
    if "schedulingGroup" in pods[0]["spec"]:
        api.create_many(map(gangs.group, names), threads=THREADS)
    bindings = Bindings(api, {pod["metadata"]["name"] for pod in pods})
    try:
        began = time.monotonic()
        api.create_many(pods, threads=THREADS)
        created = time.monotonic()
        wait_for(lambda: len(bindings.at) >= len(pods), LONGEST, lambda: f"{len(bindings.at)} bound", every=0.1)
        first, last = min(bindings.at.values()), max(bindings.at.values())
    finally:
        bindings.close()
    racks_of = {one["metadata"]["name"]: one["metadata"]["labels"][RACK] for one in api.list("Node")}
    racks: dict[str, set[str]] = defaultdict(set)
    for name, where in bindings.nodes.items():
        racks[name.rpartition("-")[0]].add(racks_of[where])
    return {
        "pods_per_second": len(pods) / (last - began),
        "drained_per_second": (len(pods) - 1) / (last - first),
        "created_per_second": len(pods) / (created - began),
        "in_one_rack": sum(len(found) == 1 for found in racks.values()) / count,
    }


def run(control_plane: ControlPlane, cluster: Cluster, arm: str, asked: Any, number: int) -> dict[str, Any]:
    """One arm, once."""
    ours = arm == "queue"
    with queue_live.extender("queued" if ours else "none", control_plane, number) as (url, server):
        scheduler = control_plane.start_scheduler(configuration("ours" if ours else "none", url))
        processes = {"scheduler": scheduler.pid, "apiserver": control_plane.apiserver.pid, "extender": server}
        try:
            gangs = Gangs(arm, asked.pods, asked.gpus)
            place(cluster.api, gangs, WARM_UP)
            before = {name: cpu_of(pid) if pid else 0.0 for name, pid in processes.items()}
            found: dict[str, Any] = {"arm": arm, "round": number} | place(cluster.api, gangs, asked.gangs)
            for name, pid in processes.items():
                spent = (cpu_of(pid) if pid else 0.0) - before[name]
                found[f"{name}_cpu_ms"] = spent / (asked.gangs * asked.pods) * 1e3
        finally:
            scheduler.kill()
            control_plane.forget_scheduler(scheduler)
            cluster.empty()
    say(", ".join(f"{name} {value:.3g}" if isinstance(value, float) else str(value) for name, value in found.items()))
    return found


def measure(binaries: Path, asked: Any) -> list[dict[str, Any]]:
    """All rounds that begin within `--seconds`, one at least."""
    found: list[dict[str, Any]] = []
    with ControlPlane(binaries, features=FEATURES, apis=[GROUPS]) as control_plane:
        control_plane.api.create(builders.namespace(NAMESPACE))
        cluster = Cluster(control_plane.api, LONGEST)
        try:
            say(f"making {asked.nodes} nodes")
            cluster.grow(asked.nodes, lambda i: node(asked.racks, asked.nodes, i))
            end = time.monotonic() + asked.seconds
            for number in range(asked.rounds):
                if number and time.monotonic() > end:
                    say(f"out of time: {number} of {asked.rounds} rounds")
                    break
                for arm in asked.arms if number % 2 == 0 else asked.arms[::-1]:
                    found.append(run(control_plane, cluster, arm, asked, number))
        finally:
            with contextlib.suppress(Exception):
                cleaning.clean(control_plane.api)
    return found


def column(rows: Sequence[dict[str, Any]], figure: str, arm: str) -> list[float]:
    """One value a round."""
    return [row[figure] for row in rows if row["arm"] == arm]


def report(rows: Sequence[dict[str, Any]]) -> str:
    """The table and the target."""
    heads = {
        "pods_per_second": ("pods/s", 0),
        "drained_per_second": ("drained, pods/s", 0),
        "in_one_rack": ("gangs in one rack", 2),
        "scheduler_cpu_ms": ("CPU of kube-scheduler, ms a pod", 1),
        "apiserver_cpu_ms": ("of the API server", 1),
        "extender_cpu_ms": ("of gpu-extender", 1),
    }
    arms = [arm for arm in ARMS if any(row["arm"] == arm for row in rows)]
    cells = [
        [TEXT[arm], *(Spread.of(column(rows, name, arm)).text(digits) for name, (_, digits) in heads.items())]
        for arm in arms
    ]
    lines = targets(rows) if len(arms) == len(ARMS) else []
    return "\n\n".join([table(["arm", *(head for head, _ in heads.values())], cells, words=1), targets_table(lines)])


def targets(rows: Sequence[dict[str, Any]]) -> list[Line]:
    """What the queue has to reach, beside PodGroups of the same round."""
    ours, theirs, plain = (column(rows, "pods_per_second", arm) for arm in ("queue", "podgroups", "plain"))
    whole = Spread.of(column(rows, "in_one_rack", "queue"))
    return [
        at_least("pods/s, queue / PodGroups", ">= 1.0", ratios(ours, theirs), 1.0),
        at_least("gangs of the queue in one rack", "all", whole, 1.0),
        at_least("pods/s, queue / plain", "reported", ratios(ours, plain), 1.0)._replace(met=None),
    ]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.podgroups", description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--racks", type=int, default=50)
    parser.add_argument("--gangs", type=int, default=750)
    parser.add_argument("--pods", type=int, default=4, help="pods of a gang")
    parser.add_argument("--gpus", type=int, default=1, help="GPUs of a pod")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=1200.0, help="no new round after this; one runs")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=ARMS)
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    asked = parser.parse_args(arguments)
    if asked.nodes * fleet.SIZE < (asked.gangs + WARM_UP) * asked.pods * asked.gpus:
        parser.error("the nodes have eight GPUs each, and hold all pods at once")
    found = measure(build(say), asked)
    print(json.dumps(found, indent=1) if asked.output == "json" else report(found))
    return 0


if __name__ == "__main__":
    sys.exit(on_control_plane(main))
