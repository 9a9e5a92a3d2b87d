"""One round of benchmarks.events in a process of its own: what a watch event costs in CPU time, by case; JSON out.

    python -P event_worker.py NODES EVENTS      with the tree under test in PYTHONPATH

It imports nothing but the tree under test, today's or that of the arm `before`, and no other file of benchmarks/.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from extender.settings import Settings

try:
    from extender.cluster.cluster import Cluster
    from extender.objects import records
    from extender.objects.records import Event
except ImportError:  # the arm `before`
    from extender.events import Event  # type: ignore[import-not-found,no-redef]

    from extender import records  # type: ignore[attr-defined,no-redef]
    from extender.cluster import Cluster  # type: ignore[attr-defined,no-redef]

GPU, GPUS = "nvidia.com/gpu", 8
CROWDS = (8, 30, 110)  # pods on the node that the events are about
BLOCK = 8  # events between two readings of the clock
Object = dict[str, Any]
Step = tuple[str, str, Object]  # kind, change, object


def node(name: str, beat: int) -> Object:
    """A node of eight GPUs; `beat`: what its kubelet writes anew every few minutes."""
    amounts = {"cpu": "128", "memory": "1024Gi", "pods": "250", GPU: str(GPUS)}
    conditions = [
        {"type": kind, "status": status, "reason": "Kubelet", "lastHeartbeatTime": f"2026-01-01T00:{beat % 60:02d}:00Z"}
        for kind, status in (("MemoryPressure", "False"), ("DiskPressure", "False"), ("Ready", "True"))
    ]
    labels = {"kubernetes.io/hostname": name, "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": str(beat), "labels": labels},
        "spec": {},
        "status": {"capacity": amounts, "allocatable": amounts, "conditions": conditions},
    }


def pod(name: str, where: str, gpus: int, beat: int) -> Object:
    """A running pod of about 3 KB; `beat`: what changes in its status and counts for nothing."""
    asked = {"cpu": "500m", "memory": "1Gi", **({GPU: str(gpus)} if gpus else {})}
    env = [{"name": f"SETTING_{i}", "value": f"value-of-setting-{i}" * 3} for i in range(12)]
    container: Object = {"name": "main", "image": "registry.example/workload:1", "env": env}
    container |= {"resources": {"requests": asked, "limits": asked}}
    ready = {"type": "Ready", "status": "True", "message": f"beat {beat}"}
    return {
        "metadata": {
            "name": name, "namespace": "work", "uid": f"uid-{name}", "resourceVersion": str(beat),
            "labels": {"app": "workload"}, "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:status": {}}}] * 4,
        },
        "spec": {"nodeName": where, "containers": [container], "priority": 0},
        "status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z", "conditions": [ready]},
    }  # fmt: skip


class Round:
    """A cluster, and events about its first node that has so many pods."""

    def __init__(self, nodes: int) -> None:
        self.cluster = Cluster(Settings())
        self._beat = 0
        self.apply([("Node", "set", node(f"n{i}", 0)) for i in range(nodes)])
        for i in range(nodes):
            gpus, others = (GPUS, 2) if i >= len(CROWDS) else (GPUS - 2, CROWDS[i] - GPUS + 2)
            crowd = [("Pod", "set", pod(f"g{j}-{i}", f"n{i}", 1, 0)) for j in range(gpus)]
            crowd += [("Pod", "set", pod(f"c{j}-{i}", f"n{i}", 0, 0)) for j in range(others)]
            self.apply(crowd)

    def decoded(self, steps: Sequence[Step]) -> list[Event]:
        names = self.cluster.gpu_names
        read: dict[str, Callable[[bytes], Any]] = {
            "Pod": lambda text: records.pod(text, names),
            "Node": lambda text: records.node(text, names),
        }
        return [Event(kind, change, read[kind](json.dumps(made).encode())) for kind, change, made in steps]  # type: ignore[arg-type]

    def apply(self, steps: Sequence[Step]) -> None:
        self._beat += 1
        self.cluster.apply(self.decoded(steps), float(self._beat))

    def case(self, make: Callable[[int], Sequence[Step]], events: int) -> float:
        """Microseconds of an event: the median of blocks. `make`: the steps of one turn."""
        spent = []
        for _ in range(max(3, events // BLOCK)):
            given: list[list[Event]] = []
            while len(given) < BLOCK:
                self._beat += 1
                given += [[event] for event in self.decoded(make(self._beat))]
            now, apply = float(self._beat), self.cluster.apply
            gc.collect(0)
            began = time.thread_time_ns()
            for batch in given:
                apply(batch, now)
            spent.append((time.thread_time_ns() - began) / len(given) / 1e3)
        return median(spent)


def came_and_went(name: str, where: str, gpus: int, beat: int) -> list[Step]:
    """A pod comes to the node and leaves it."""
    made = pod(f"{name}-{beat}", where, gpus, beat)
    return [("Pod", "set", made), ("Pod", "delete", made)]


def decoding(text: bytes, read: Callable[[bytes], Any], times: int) -> float:
    """Microseconds of one reading: the median of blocks."""
    spent = []
    for _ in range(max(3, times // BLOCK)):
        began = time.thread_time_ns()
        for _ in range(BLOCK):
            read(text)
        spent.append((time.thread_time_ns() - began) / BLOCK / 1e3)
    return median(spent)


def main(nodes: int, events: int) -> dict[str, Any]:
    """Microseconds by case; `decode`, and `parse`: what a parser of JSON alone takes, the floor."""
    import orjson

    run = Round(nodes)
    gc.collect()
    gc.freeze()
    found: dict[str, dict[str, float]] = {}
    for i, crowd in enumerate(CROWDS):
        where = f"n{i}"
        cases: dict[str, Callable[[int], Sequence[Step]]] = {
            "CPU-only pod changes": lambda beat: [("Pod", "set", pod(f"c0-{i}", where, 0, beat))],  # noqa: B023
            "GPU pod changes": lambda beat: [("Pod", "set", pod(f"g0-{i}", where, 1, beat))],  # noqa: B023
            "CPU-only pod comes, goes": lambda beat: came_and_went("cpu", where, 0, beat),  # noqa: B023
            "GPU pod comes, goes": lambda beat: came_and_went("gpu", where, 1, beat),  # noqa: B023
            "node's heartbeat": lambda beat: [("Node", "set", node(where, beat))],  # noqa: B023
        }
        for what, make in cases.items():
            found.setdefault(what, {})[str(crowd)] = run.case(make, events)
    names = run.cluster.gpu_names
    texts = {"pod": json.dumps(pod("c0-0", "n0", 0, 1)).encode(), "node": json.dumps(node("n0", 1)).encode()}
    return {
        "apply": found,
        "decode": {
            "pod": decoding(texts["pod"], lambda text: records.pod(text, names), events),
            "node": decoding(texts["node"], lambda text: records.node(text, names), events),
        },
        "parse": {kind: decoding(text, orjson.loads, events) for kind, text in texts.items()},
    }


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), int(sys.argv[2]))))
