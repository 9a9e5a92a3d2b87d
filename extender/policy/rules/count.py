"""The node offers such GPUs, whole ones where links are required, and enough of them are free: allocatable less what
running, terminating, assumed and nominated pods hold."""

from __future__ import annotations

from array import array
from typing import ClassVar

from ext_core import fit, places
from ext_core.reasons import CountCodes, ResourceCodes
from extender.cluster.device_plugins import partial
from extender.cluster.tables import Tables
from extender.policy.contracts import Class, PodRequest, Reason

FEW = Reason(
    code=10,
    key="too-few-gpus",
    cls=Class.HOPELESS,
    text="gpu-extender: the node has fewer GPUs than requested",
    remedy="Ask for fewer GPUs per pod, or add larger nodes.",
    by_count=True,
)
PROMISED = Reason(
    code=11,
    key="gpus-promised",
    cls=Class.TRANSIENT,
    text="gpu-extender: the node's free GPUs are promised to a pod that is being bound",
    remedy="Nothing: the pod is tried again within seconds.",
)
RESERVED = Reason(
    code=12,
    key="gpus-reserved",
    cls=Class.HOPELESS,
    text="gpu-extender: the node's free GPUs are reserved for a nominated pod of equal or higher priority",
    remedy="Wait for the nominated pod to be bound, or raise this pod's priority.",
)
RELEASING = Reason(
    code=13,
    key="gpus-releasing",
    cls=Class.EVICTABLE,
    text="gpu-extender: the node's GPUs are still held by pods that are terminating",
    remedy="Nothing: the pod is tried again when they are gone.",
    by_count=True,
)
BUSY = Reason(
    code=14,
    key="gpus-busy",
    cls=Class.EVICTABLE,
    text="gpu-extender: too few GPUs are free, pods of lower priority hold them",
    remedy="Wait, or let the pod preempt (preemptionPolicy: PreemptLowerPriority).",
    by_count=True,
)
HELD = Reason(
    code=15,
    key="gpus-held",
    cls=Class.HOPELESS,
    text="gpu-extender: too few GPUs are free, pods that this one may not evict hold them",
    remedy="Wait for running pods to end (or for their protection to), raise the priority, or add nodes.",
    by_count=True,
)


class Count:
    """Rejects a node with too few free GPUs: never enough, assumed, reserved, terminating, or held."""

    name: ClassVar[str] = "count"
    reasons: ClassVar[tuple[Reason, ...]] = (FEW, PROMISED, RESERVED, RELEASING, BUSY, HELD)
    _codes: ClassVar = CountCodes(
        few=FEW.code,
        assumed=PROMISED.code,
        reserved=RESERVED.code,
        releasing=RELEASING.code,
        busy=BUSY.code,
        held=HELD.code,
    )

    def idle(self, tables: Tables, request: PodRequest) -> bool:
        """Never: any row may be full."""
        return False

    def fill(self, tables: Tables, request: PodRequest, rows: array[int], out: array[int]) -> None:
        """Writes the reason codes of the rejected `rows` into `out`."""
        fit.count(tables.nodes, tables.pods, request.ask, rows, out, self._codes)


NONE = Reason(
    code=2,
    key="no-gpu-resource",
    cls=Class.HOPELESS,
    text="gpu-extender: the node offers no GPUs of the requested resource name",
    remedy="Ask for the resource name that the node's device plugin registers, or add GPU nodes.",
    by_claims=True,
)
AWAY = Reason(
    code=3,
    key="device-plugin-away",
    cls=Class.TRANSIENT,
    text="gpu-extender: the node's device plugin offers no GPUs for the moment",
    remedy="Look at the device plugin's pod on the node; a restart takes seconds.",
)


class ResourceOffered:
    """Rejects a node that is not known yet, or that offers no GPUs of the requested name."""

    name: ClassVar[str] = "resource"
    reasons: ClassVar[tuple[Reason, ...]] = (NONE, AWAY)
    _codes: ClassVar = ResourceCodes(none=NONE.code, away=AWAY.code)

    def idle(self, tables: Tables, request: PodRequest) -> bool:
        """Never: any row may offer no such GPUs."""
        return False

    def fill(self, tables: Tables, request: PodRequest, rows: array[int], out: array[int]) -> None:
        """Writes the reason codes of the rejected `rows` into `out`."""
        fit.resource(tables.nodes, request.ask, rows, out, self._codes)


SHARED = Reason(
    code=25,
    key="links-shared",
    cls=Class.HOPELESS,
    text="gpu-extender: the node hands out shares of GPUs for the requested resource, and shares have no links",
    remedy="Ask for whole GPUs, or leave links: required away: several shares may even be on one GPU.",
)
ALL = bytes([SHARED.code, *range(1, 256)])  # refuses what is not refused yet


class Shares:
    """Rejects a node that offers shares of GPUs (replicas, MIG), for pods with `links: required`."""

    name: ClassVar[str] = "shares"
    reasons: ClassVar[tuple[Reason, ...]] = (SHARED,)

    def idle(self, tables: Tables, request: PodRequest) -> bool:
        """For a pod that does not require links, or has one GPU."""
        return request.links != "required" or request.wanted < 2

    def fill(self, tables: Tables, request: PodRequest, rows: array[int], out: array[int]) -> None:
        """Writes the reason codes of the rejected `rows` into `out`."""
        if self.idle(tables, request):
            return
        if partial(tables.resources[request.resource]):
            out[:] = array("B", out.tobytes().translate(ALL))
        else:
            places.split(tables.places, rows, out, SHARED.code)
