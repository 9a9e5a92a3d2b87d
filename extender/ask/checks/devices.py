"""GPUs by DRA: what no pod can get, what cannot be mapped to the GPU graph, and what is not counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from extender.ask.checks.finding import Finding, Posture, Severity, verb
from extender.ask.offline.text import count
from extender.objects.nodes import DeviceState
from extender.objects.records import NodeDevices

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
    for (driver, pool), device in posture.cluster.dra.invalid_pools().items():
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
