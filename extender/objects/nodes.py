"""Nodes."""

from __future__ import annotations

from functools import lru_cache
from sys import intern
from typing import Final, Literal

import msgspec

from extender.objects import schema
from extender.objects.parts import ObjectRecord, metadata, ours, strings
from extender.objects.resources import other_amounts, quantity
from extender.objects.schema import Reader
from extender.objects.selectors import NodeTerm, Taint

DRAIN: Final = "gpu-extender.io/drain"
"""The annotation of a node that an operator empties of GPU pods."""
PASSING: Final = "node.kubernetes.io/"
"""The prefix of taints that Kubernetes sets and takes away itself, for example while a node is not ready."""
NOT_ADMITTING: Final = ("NoSchedule", "NoExecute")
DeviceState = Literal["usable", "tainted", "divided", "allocated"]
"""usable: free, or held by a pod of the node; tainted: only claims that tolerate it get it; divided: a part of it (MIG)
is allocated; allocated: to a claim that no pod of the node holds."""


class GpuDevice(msgspec.Struct, frozen=True, gc=False):
    """A whole GPU that a DRA driver publishes."""

    id: str  # driver/pool/device
    uuid: str
    # its place in the order of the GPU indices, by the attribute index or else by PCI address, -1 where the driver
    # states neither
    place: int
    state: DeviceState = "usable"
    plain: bool = True  # as of DeviceRecord
    root: str = ""  # as of DeviceRecord
    taints: tuple[Taint, ...] = ()  # those by which it is "tainted"


class NodeDevices(msgspec.Struct, frozen=True, gc=False):
    """The GPUs that a DRA driver publishes for a node, in the order of its slices."""

    resource: str
    gpus: tuple[GpuDevice, ...]
    # (allocatable, capacity) of the device plugin for the same resource, None where the node states none
    plugin: tuple[int | None, int | None]
    others: int = 0  # published devices that are no whole GPUs (MIG, shared ones)
    # kube-scheduler takes the first free ones in this order for any pod that asks for the resource
    first_fit: bool = False
    # (name, PCIe root) of the network devices with RDMA that a driver publishes there
    nics: tuple[tuple[str, str], ...] = ()
    # a DeviceClass serves the resource, so that pods which ask for it without a claim get these GPUs too
    served: bool = False

    @property
    def for_claims_alone(self) -> bool:
        """Whether these are all GPUs of the node, and pods get them by claims alone."""
        return bool(self.gpus) and not self.served and not self.plugin[1]

    @property
    def unusable(self) -> int:
        """How many GPUs no pod can get, nor holds."""
        return sum([gpu.state != "usable" for gpu in self.gpus])


class NodeRecord(ObjectRecord, frozen=True, gc=False, kw_only=True):
    """A node."""

    labels: dict[str, str]
    annotations: dict[str, str]
    unschedulable: bool
    taints: tuple[Taint, ...]
    cpu_milli: int
    memory: int
    pods: int
    gpus: dict[str, int]  # allocatable; the cluster adds those that a DRA driver publishes
    gpu_capacity: dict[str, int]  # counts unhealthy ones too
    devices: NodeDevices | None = None  # what a DRA driver publishes
    # allocatable, of all other resources that pods may ask for
    others: dict[str, int] = msgspec.field(default_factory=dict)

    @property
    def closed(self) -> str:
        """Why the node takes no new pod, whichever it is: `cordoned`, or the taint that Kubernetes itself has set
        (`unreachable`, `not-ready`, `disk-pressure` ...); "" where it takes pods."""
        if self.unschedulable:
            return "cordoned"
        if not self.taints:
            return ""
        own = {
            taint.key.removeprefix(PASSING)
            for taint in self.taints
            if taint.key.startswith(PASSING) and taint.effect in NOT_ADMITTING
        }
        first = next((why for why in ("unreachable", "not-ready") if why in own), None)
        return first or min(own, default="")


def selects(
    node_selector: tuple[tuple[str, str], ...], node_terms: tuple[NodeTerm, ...] | None, node: NodeRecord
) -> bool:
    """Whether a nodeSelector and a required node affinity let a pod onto the node."""
    labels = node.labels
    if any(labels.get(key) != wanted for key, wanted in node_selector):
        return False
    return node_terms is None or any(term.matches(node.name, labels) for term in node_terms)


def _node_of(wire: schema.Node, gpus: frozenset[str]) -> NodeRecord:
    """Where a node does not say what is allocatable, that is its capacity, as the API has it."""
    meta = metadata(wire.metadata)
    spec = wire.spec or schema.NodeSpec()
    status = wire.status or schema.NodeStatus()
    capacity = status.capacity or {}
    where, allocatable = ("capacity", capacity) if status.allocatable is None else ("allocatable", status.allocatable)
    path = f"status.{where}"
    return NodeRecord(
        uid=meta.uid or "",
        name=intern(meta.name or ""),
        resource_version=meta.resource_version or "",
        labels=strings(meta.labels),
        annotations=ours(meta.annotations),
        unschedulable=bool(spec.unschedulable),
        taints=tuple([_taint(taint.key, taint.value or "", taint.effect) for taint in spec.taints or ()]),
        cpu_milli=quantity(allocatable, "cpu", path),
        memory=quantity(allocatable, "memory", path),
        pods=quantity(allocatable, "pods", path),
        gpus={name: quantity(allocatable, name, path) for name in sorted(gpus) if name in allocatable},
        gpu_capacity={name: quantity(capacity, name, "status.capacity") for name in sorted(gpus) if name in capacity},
        others=_others(other_amounts(allocatable, gpus)),
    )


node: Final = Reader(schema.Node, _node_of)


@lru_cache(maxsize=1024)  # machines of one kind share theirs
def _others(amounts: tuple[tuple[str, int], ...]) -> dict[str, int]:
    return dict(amounts)


@lru_cache(maxsize=4096)  # of nodes: the API server bounds a taint to 400 characters, so all together are below 4 MB
def _taint(key: str, text: str, effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]) -> Taint:
    return Taint(intern(key), intern(text), effect)
