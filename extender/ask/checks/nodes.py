"""Nodes that lost GPUs, that are not ready, and whose links are not known."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from extender.ask.checks.finding import Finding, Item, Posture, at, listed, name_of
from extender.ask.offline.text import short
from extender.cluster.gpus.device_sharing import COUNT, MIG_STRATEGY
from extender.objects.records import NodeRecord

MOST_MESSAGE: Final = 120
MOST_DIGITS: Final = 4
VENDOR: Final = "nvidia.com/"
"""Of the device plugins whose feature discovery sets that label."""


def findings(posture: Posture) -> Iterator[Finding]:
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
        yield from _not_ready(about, wires.get(name, {}))
        yield from _links(posture, name, about)


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


def _not_ready(about: str, item: Item) -> Iterator[Finding]:
    """By its condition; a node of an input that states none is not judged."""
    for condition in listed(at(item, "status", "conditions")):
        if at(condition, "type") == "Ready" and at(condition, "status") != "True":
            yield Finding(
                "warning", "node-not-ready", about, f"it is not ready{_why(condition)}: its GPUs take no new pod",
                "Look at kubelet on the node.", repeats=True,
            )  # fmt: skip


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
