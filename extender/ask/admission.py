"""Why kube-scheduler keeps a pod off a node, whatever runs there."""

from __future__ import annotations

from typing import Final

import msgspec

from extender.cluster.cluster import ClusterView
from extender.cluster.dra.node_gpus import GpuAsk
from extender.objects.nodes import PASSING
from extender.objects.records import NodeRecord, PodRecord
from extender.objects.selectors import Taint, untolerated

CORDON: Final = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
CORDONED: Final = "cordoned"


def rejected(pod: PodRecord, node: NodeRecord) -> str:
    """Why kube-scheduler keeps the pod off the node whatever runs there; "" when it does not."""
    return _kept_off(pod, node) or GpuAsk.of(pod).mismatch(node)


def _kept_off(pod: PodRecord, node: NodeRecord) -> str:
    """As `rejected`, but for how the node offers its GPUs."""
    if not (node.unschedulable or node.taints or is_choosy(pod)):
        return ""  # so are nearly all of thousands of nodes
    if node.unschedulable and untolerated((CORDON,), pod.tolerations) is not None:
        return CORDONED
    if any(node.labels.get(key) != wanted for key, wanted in pod.node_selector):
        return "node-selector"
    if not pod.accepts(node):
        return "node-affinity"
    taints = [taint for taint in node.taints if taint.key != CORDON.key or not node.unschedulable]
    return "taint" if untolerated(taints, pod.tolerations) is not None else ""


def sorted_out(pod: PodRecord, cluster: ClusterView, names: list[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """(the names of the nodes that admit the pod; (name, why) of the others, as `rejected` states), in their order.
    `names`: of nodes that exist."""
    nodes, restricted, choosy, asked = cluster.nodes, cluster.restricted, is_choosy(pod), GpuAsk.of(pod)
    fits = cluster.dra.fits
    claims = fits.of(pod)
    suspects = (
        names if claims is not None or tells_apart(pod, cluster) else [name for name in names if name in restricted]
    )
    others = []
    for name in suspects:
        node = nodes[name]
        why = _kept_off(pod, node) if choosy or name in restricted else ""
        why = why or asked.mismatch(node)
        if claims is not None:
            why = why or fits.rejects(node, claims)
        if why:
            others.append((name, why))
    if not others:
        return names, others
    rejecting = {name for name, _ in others}
    return [name for name in names if name not in rejecting], others


def tells_apart(pod: PodRecord, cluster: ClusterView) -> bool:
    """Whether it may be kept off nodes that are neither cordoned nor tainted."""
    return is_choosy(pod) or bool(pod.claimed or pod.claim_node) or (bool(pod.gpus) and bool(cluster.dra.slices))


def is_choosy(pod: PodRecord) -> bool:
    """Whether it states anything about the labels or the name of its node."""
    return bool(pod.node_selector) or pod.node_terms is not None


def uncordoned(node: NodeRecord) -> NodeRecord:
    """The node as it is once it is uncordoned: the node controller takes its taint away too."""
    taints = tuple(taint for taint in node.taints if taint.key != CORDON.key)
    return msgspec.structs.replace(node, unschedulable=False, taints=taints)


def ready(node: NodeRecord) -> NodeRecord:
    """The node without what passes: a cordon, and the taints that Kubernetes sets for conditions of nodes."""
    if not (node.unschedulable or node.taints):
        return node
    taints = tuple(taint for taint in node.taints if not taint.key.startswith(PASSING))
    return msgspec.structs.replace(node, unschedulable=False, taints=taints)
