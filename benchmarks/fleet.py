"""A fleet of eight-GPU machines, frozen, and what a kube-scheduler would ask about it. The same in every run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.e2e import builders

GPU = builders.GPU
SIZE = 8
# Of five machines three have NVSwitch, one a cube mesh (subsets differ), one an older NVSwitch.
PRODUCTS = (
    "NVIDIA-H100-80GB-HBM3",
    "NVIDIA-H100-80GB-HBM3",
    "Tesla-V100-SXM2-16GB",
    "NVIDIA-H100-80GB-HBM3",
    "NVIDIA-A100-SXM4-80GB",
)
UID = b"00000000-0000-4000-8000-%012x"
PREEMPTOR = 1_000_000_000  # above every pod of the fleet; nine more digits' worth of rising priorities fit above it


def label_gpus(product: str) -> dict[str, str]:
    """The labels that GPU feature discovery sets."""
    return {"nvidia.com/gpu.product": product, "nvidia.com/gpu.count": str(SIZE)}


def node(i: int) -> dict[str, Any]:
    return builders.node(name(i), SIZE, labels=label_gpus(PRODUCTS[i % len(PRODUCTS)]))


def name(i: int) -> str:
    """15 bytes: 5,000 of them make a NodeNames of 90 KB."""
    return f"gpu-worker-{i:04d}"


def pod_uid(node_index: int, j: int) -> str:
    return f"10000000-0000-4000-8000-{node_index:010x}{j:02x}"


def running(node_index: int, j: int) -> dict[str, Any]:
    """A one-GPU pod that runs there. Starts and priorities differ, so that victims are worth comparing."""
    made = builders.pod(f"p-{node_index}-{j}", "work", 1, node_name=name(node_index), grace=30 + 5 * (j % 3))
    made["metadata"]["uid"] = pod_uid(node_index, j)
    made["spec"]["priority"] = 100 * (j % 2)
    minute = (7 * node_index + 13 * j) % 60
    made["status"] = {
        "phase": "Running",
        "startTime": f"2026-01-0{1 + (node_index + j) % 9}T{(node_index * 5 + j) % 24:02d}:{minute:02d}:00Z",
    }
    return made


def part_filled(count: int, waiting: Iterable[Mapping[str, Any]] = ()) -> bytes:
    """`count` nodes with one to seven GPUs taken: a one-GPU pod fits everywhere, an eight-GPU pod nowhere. `waiting`:
    pods that are in the cluster and have no node."""
    return _list(count, [taken(i) for i in range(count)], waiting)


def taken(node_index: int) -> int:
    """GPUs in use on a node of the part-filled fleet."""
    return 1 + node_index % 7


def full(count: int) -> bytes:
    """`count` nodes with eight one-GPU pods each: nothing fits without an eviction."""
    return _list(count, [SIZE] * count)


def _list(count: int, taken: Sequence[int], waiting: Iterable[Mapping[str, Any]] = ()) -> bytes:
    items = [node(i) for i in range(count)] + [running(i, j) for i in range(count) for j in range(taken[i])]
    items += [{"apiVersion": "v1", "kind": "Pod", **pod} for pod in waiting]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items}).encode()


@dataclass(frozen=True)
class Body:
    """A request with holes for the pod's uid, which is in its name too, and perhaps one for its priority: no two calls
    are about one pod.

    Every filled body has the same length.
    """

    parts: tuple[bytes, ...]

    def fill(self, number: int) -> bytes:
        uid = UID % number
        filled = self.parts[0] + uid + self.parts[1] + uid + self.parts[2]
        return filled if len(self.parts) == 3 else filled + b"%d" % (PREEMPTOR + number) + self.parts[3]


HOLE_UID, HOLE_PRIORITY = "@uid@", 987_654_321


def asking_pod(gpus: int, *, preempts: bool = False) -> dict[str, Any]:
    """A pod as kube-scheduler sends one: 3 KB, with environment, a token volume, tolerations and conditions."""
    made = builders.pod(f"trainer-{HOLE_UID}", "work", gpus, cpu="4", memory="16Gi")
    made.pop("kind")
    made.pop("apiVersion")
    made["metadata"].update(
        uid=HOLE_UID,
        resourceVersion="123456",
        creationTimestamp="2026-01-01T00:00:00Z",
        labels={"app.kubernetes.io/name": "trainer", "app.kubernetes.io/instance": "trainer-7", "team": "vision"},
    )
    container = made["spec"]["containers"][0]
    container["env"] = [{"name": f"TRAINER_SETTING_{i}", "value": f"value-of-setting-{i}" * 3} for i in range(16)]
    container["volumeMounts"] = [
        {"name": "kube-api-access", "readOnly": True, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}
    ]
    sources = [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
    ]
    made["spec"].update(
        volumes=[{"name": "kube-api-access", "projected": {"sources": sources, "defaultMode": 420}}],
        tolerations=[
            {"key": f"node.kubernetes.io/{what}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
            for what in ("not-ready", "unreachable")
        ],
        serviceAccountName="default",
        dnsPolicy="ClusterFirst",
        schedulerName="default-scheduler",
        enableServiceLinks=True,
        preemptionPolicy="PreemptLowerPriority",
        priority=HOLE_PRIORITY if preempts else 0,
    )
    made["status"] = {"phase": "Pending", "qosClass": "Burstable"}
    return made


def args(gpus: int, names: Sequence[str], *, preempts: bool = False) -> Body:
    """ExtenderArgs with NodeNames, for filter and prioritize."""
    return _body({"Pod": asking_pod(gpus, preempts=preempts), "Nodes": None, "NodeNames": list(names)}, preempts)


def preemption(gpus: int, offered: Sequence[int]) -> Body:
    """ExtenderPreemptionArgs: as many nodes as `offered` has entries, and so many of each node's pods as victims."""
    victims = {
        name(i): {"Pods": [{"UID": pod_uid(i, j)} for j in range(count)], "NumPDBViolations": 0}
        for i, count in enumerate(offered)
    }
    asked = {"Pod": asking_pod(gpus, preempts=True), "NodeNameToVictims": None, "NodeNameToMetaVictims": victims}
    return _body(asked, True)


def _body(asked: Mapping[str, Any], preempts: bool) -> Body:
    text = json.dumps(asked, separators=(",", ":")).encode()
    *heads, tail = text.split(HOLE_UID.encode())
    if not preempts:
        return Body((*heads, tail))
    return Body((*heads, *tail.split(b"%d" % HOLE_PRIORITY)))
