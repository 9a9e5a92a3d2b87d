"""Nodes that lost GPUs, or offer fewer than their pods hold, that are not ready, or whose links are not known; and GPUs
by DRA that no pod can get, that cannot be mapped to the GPU graph, or that are not counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ext_core import survey
from extender.ask.checks.finding import Finding, Item, Posture, Severity, at, listed, name_of, verb
from extender.ask.text import count, short
from extender.ask.warn import several_resources
from extender.cluster.device_plugins import COUNT, MIG_STRATEGY
from extender.cluster.tables import FIRST_GPU
from extender.objects.cel import selector
from extender.objects.nodes import DRAIN, DeviceState, NodeDevices
from extender.objects.records import NodeRecord
from extender.preemption.draining import drain_of, when

MOST_MESSAGE: Final = 120
MOST_DIGITS: Final = 4
VENDOR: Final = "nvidia.com/"
"""Of the device plugins whose feature discovery sets that label."""
_STATES: Final[Mapping[DeviceState, tuple[Severity, str, str, str]]] = {
    "tainted": (
        "warning", "devices-tainted", "tainted",
        "Look at the taints in the ResourceSlices of the node: kubectl get resourceslices -o yaml.",
    ),
    "allocated": (
        "warning", "devices-allocated-to-no-pod", "allocated to claims that no pod of the node holds",
        "Delete the claims that no pod needs: Kubernetes deallocates a claim by itself only after a pod has used it.",
    ),
    "divided": (
        "info", "devices-divided", "in use in part (MIG)", "Nothing: they are free again once their partitions are.",
    ),
}  # fmt: skip


def findings(posture: Posture) -> Iterator[Finding]:
    """What is wrong with each node that has, or should have, GPUs, and with the DeviceClasses."""
    yield from _nodes(posture)
    yield from _held_beyond(posture)
    yield from _devices(posture)


def _nodes(posture: Posture) -> Iterator[Finding]:
    """What is wrong with each node that has, or should have, GPUs."""
    wires = {name_of(item): item for item in posture.of("Node")}
    for name in sorted(posture.cluster.nodes):
        node, about = posture.cluster.nodes[name], f"Node/{name}"
        stated = _stated(posture, node)
        if not stated:
            continue
        allocatable = sum(node.gpus.values()) + (node.devices.unusable if node.devices is not None else 0)
        if allocatable < stated:
            yield Finding(
                "warning", "gpus-lost", about, f"{allocatable} of {stated} GPUs are allocatable",
                "Look at the device plugin and the driver on the node: a GPU is unhealthy, or is not found.",
                (("allocatable_gpus", allocatable), ("gpus", stated)), repeats=True,
            )  # fmt: skip
        if several := several_resources(posture.cluster, name):
            yield Finding(
                "info", "several-gpu-resources", about, f"it offers {several}",
                "Let one resource serve the node, or name the one that counts first in resources of the settings.",
                repeats=True,
            )  # fmt: skip
        yield from _not_ready(node, about, wires.get(name, {}))
        yield from _drained(posture, node, about)
        yield from _links(posture, name, about)
        yield from _stated_otherwise(posture, name, about)


def _held_beyond(posture: Posture) -> Iterator[Finding]:
    """Nodes that offer fewer GPUs than their pods hold, as after a device plugin lost one."""
    cluster = posture.cluster
    rows = cluster.rows.all()
    for index in range(FIRST_GPU, len(cluster.resources)):
        resource = cluster.resources[index]
        for row, left in zip(rows, survey.free(cluster.tables.nodes, index, rows), strict=True):
            if left >= 0:
                continue
            offered = cluster.nodes[cluster.names[row]].gpus.get(resource, 0)
            yield Finding(
                "warning", "pods-hold-lost-gpus", f"Node/{cluster.names[row]}",
                f"its pods hold {count(offered - left, 'GPU')} ({resource}), and {offered:,} are allocatable: "
                f"{count(-left, 'GPU')} of these pods {verb(-left, 'is', 'are')} lost",
                "Look at the device plugin and the driver on the node, and delete the pods that hold a lost GPU.",
                (("held_gpus", offered - left), ("allocatable_gpus", offered)), repeats=True,
            )  # fmt: skip


def _stated(posture: Posture, node: NodeRecord) -> int:
    """The GPUs that the node has, or states to have: by its capacity, or by the label of GPU feature discovery, where
    its device plugin offers whole GPUs under one name."""
    capacity = sum((node.gpu_capacity or node.gpus).values())
    division = posture.cluster.gpus.divisions.get(node.name)
    label = node.labels.get(COUNT, "")
    whole = division is not None and division.whole and node.labels.get(MIG_STRATEGY, "none") in ("", "none")
    if whole and any(name.startswith(VENDOR) for name in node.gpu_capacity) and label.isascii() and label.isdigit():
        return max(capacity, int(label[:MOST_DIGITS]))
    return capacity


def _not_ready(node: NodeRecord, about: str, item: Item) -> Iterator[Finding]:
    """By its condition; a node of an input that states none is not judged. kube-scheduler reads taints alone."""
    follows = "its GPUs take no new pod" if node.closed else "no taint keeps pods off it"
    for condition in listed(at(item, "status", "conditions")):
        if at(condition, "type") == "Ready" and at(condition, "status") != "True":
            yield Finding(
                "warning", "node-not-ready", about, f"it is not ready{_why(condition)}: {follows}",
                "Look at kubelet on the node.", repeats=True,
            )  # fmt: skip


def _drained(posture: Posture, node: NodeRecord, about: str) -> Iterator[Finding]:
    """What leaves a node that an operator empties, and what does not."""
    drain = drain_of(posture.cluster, node)
    if drain is None or not (drain.pods or drain.staying):
        return
    enabled, leaving = posture.settings.evictions.enabled, len(drain.pods)
    text = f"{DRAIN}: {count(leaving, 'GPU pod')} {verb(leaving, 'leaves', 'leave')} "
    text += when(posture.cluster, drain, posture.wall)
    if drain.staying:
        first = drain.staying[0]
        text = f"{text}; {len(drain.staying)} stay, the first is {first.pod.namespace}/{first.pod.name}: {first.why}"
    moves = enabled and node.unschedulable and not any(stays.budget for stays in drain.staying)
    remedy = "Nothing." if moves else "Turn on evictions.enabled, cordon the node, or look at the budgets."
    yield Finding("info" if moves else "warning", "node-drains", about, text, remedy)


def _why(condition: Any) -> str:
    reason = at(condition, "reason")
    return f" ({short(reason, MOST_MESSAGE)})" if isinstance(reason, str) and reason else ""


def _links(posture: Posture, name: str, about: str) -> Iterator[Finding]:
    topology = posture.cluster.gpus.topologies.get(name)
    division = posture.cluster.gpus.divisions.get(name)
    if topology is None or division is None or not division.whole or topology.gpus < 2 or topology.links is not None:
        return
    why = f" ({short(topology.detail, MOST_MESSAGE)})" if topology.detail else ""
    yield Finding(
        "warning", "links-unknown", about, f"how its GPUs are linked is not known{why}: it is rejected for pods that "
        "require links", "Run the agent there, or state its links: gpu-extender topo -o annotation prints the value.",
        repeats=True,
    )  # fmt: skip


def _stated_otherwise(posture: Posture, name: str, about: str) -> Iterator[Finding]:
    topology = posture.cluster.gpus.topologies.get(name)
    if topology is None:
        return
    for text in (*topology.disagreements, *topology.warnings):
        yield Finding(
            "warning" if text in topology.disagreements else "info", "gpus-stated-otherwise", about,
            f"{short(text, MOST_MESSAGE)}; what counts of its GPUs is {short(topology.detail, MOST_MESSAGE)}",
            "Correct what is wrong, or state the links: gpu-extender topo -o annotation prints the value.",
            repeats=True,
        )  # fmt: skip


def _devices(posture: Posture) -> Iterator[Finding]:
    """What is worth knowing of each node with a DRA driver, and of the DeviceClasses."""
    for name in sorted(posture.cluster.nodes):
        devices = posture.cluster.nodes[name].devices
        if devices is not None:
            yield from _of_node(posture, name, devices)
    for resource in sorted(posture.cluster.dra.uncounted):
        yield Finding(
            "warning", "devices-not-counted", f"resource/{resource}", f"a DeviceClass serves {resource} and need not "
            "select whole GPUs of its driver: GPUs by DRA are not counted, and their nodes get the lowest score",
            "Select by device.driver and the attribute type alone, joined by &&, as the class of the driver does.",
        )  # fmt: skip
    for name, record in sorted(posture.cluster.device_classes.items()):
        for text in record.selectors:
            if why := selector(text).unsupported:
                yield Finding(
                    "warning", "selector-not-known", f"DeviceClass/{name}",
                    f"the CEL selector {short(text, MOST_MESSAGE)} cannot be evaluated here ({why}): which devices "
                    "its claims get is not known",
                    "Try it with kubectl apply --dry-run=server; docs/dra.md lists what is not evaluated.",
                )  # fmt: skip
    for (driver, pool), device in posture.cluster.dra.published.invalid().items():
        yield Finding(
            "warning", "device-pool-invalid", f"ResourceSlice/{driver}/{pool}", f"two devices of pool {pool} of "
            f"{driver} have the name {device}: kube-scheduler allocates no device of the pool, and none is counted",
            "Delete the ResourceSlice that the driver does not publish any more: kubectl get resourceslices.",
        )  # fmt: skip


def _of_node(posture: Posture, name: str, devices: NodeDevices) -> Iterator[Finding]:
    about, published = f"Node/{name}", len(devices.gpus)
    states = Counter(gpu.state for gpu in devices.gpus)
    for state, (severity, code, condition, remedy) in _STATES.items():
        if number := states.get(state, 0):
            yield Finding(
                severity, code, about,
                f"{number} of {published} GPUs by DRA {verb(number, 'is', 'are')} {condition}: no other pod gets them",
                remedy, (("gpus", number), ("published_gpus", published)), repeats=True,
            )  # fmt: skip
    known = posture.cluster.gpus.indices(name)
    if lost := sum(gpu.id not in known for gpu in devices.gpus):
        yield Finding(
            "warning", "devices-unmapped", about, f"{count(lost, 'device')} cannot be mapped to a GPU of the node's "
            "graph, neither by uuid nor by index or PCI address: which GPUs their pods hold is not known",
            "Run the agent on the node, or state the uuids in its topology.",
            (("devices", lost), ("published_gpus", published)), repeats=True,
        )  # fmt: skip
    if published and devices.plugin[0]:
        yield Finding(
            "warning", "devices-and-plugin", about, "a device plugin and a DRA driver both offer GPUs: neither knows "
            "what the other hands out", "Let one of them serve the node.",
            (("plugin_gpus", devices.plugin[0]), ("published_gpus", published)), repeats=True,
        )  # fmt: skip
