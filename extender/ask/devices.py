"""What allocates the devices of a pod's claims, and which ones (`queue.plannedAllocation`)."""

from __future__ import annotations

from typing import Any

from extender.cluster.cluster import ClusterView
from extender.cluster.statements import PLAN, gpus_of, stated_mask
from extender.objects.queueing import PINNED
from extender.objects.records import PodRecord


def devices_of(pod: PodRecord, cluster: ClusterView) -> dict[str, Any] | None:
    """Of a pod without a node; None where it has no claims for GPUs, or the queue allocates nothing."""
    if pod.left_devices:
        text = f"kube-scheduler allocates its devices by first fit: {pod.left_devices}"
        return _shown("kube-scheduler", text, why=pod.left_devices)
    if not pod.planned:
        return None
    node = pod.nominated_node or pod.annotations.get(PINNED, "")
    names = _names(pod, cluster, node)
    if not names:
        return _shown("queue", "the queue chooses its devices, and writes the allocation before it opens the gate")
    listed = f"{', '.join(names)} of {node}"
    claims = cluster.dra.planned.named(pod.uid)
    if not claims or not all(claim.allocated for claim in claims):
        text = f"the queue plans {listed}, and writes the allocation before it opens the gate"
        return _shown("queue", text, node=node, names=names)
    return _shown("queue", f"the queue has allocated {listed}", node=node, names=names, allocated=True)


def _names(pod: PodRecord, cluster: ClusterView, node: str) -> list[str]:
    """The planned devices of the node; none where they are not known."""
    record = cluster.nodes.get(node)
    if record is None or record.devices is None:
        return []
    indices, planned = cluster.gpus.indices(node), set(gpus_of(stated_mask(pod, PLAN)))
    return [gpu.id.rpartition("/")[2] for gpu in record.devices.gpus if indices.get(gpu.id, -1) in planned]


def _shown(
    by: str, text: str, *, why: str | None = None, node: str | None = None, names: list[str] | None = None,
    allocated: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """The JSON form, of which `text` is for people."""
    return {"allocated_by": by, "why": why, "node": node, "names": names or [], "allocated": allocated, "text": text}
