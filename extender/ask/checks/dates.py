"""Advance reservations that cannot be used, that fit on no node whatever ends, or that are over."""

from __future__ import annotations

from collections.abc import Iterator

from extender.ask.checks.finding import Finding, Posture, at, name_of
from extender.cluster.nodes import model_of
from extender.objects.advance import CONFIG_MAP, AdvanceEntry, entries


def findings(posture: Posture) -> Iterator[Finding]:
    """What is wrong with each entry of the ConfigMap of operators."""
    for item in posture.of("ConfigMap"):
        data = at(item, "data")
        if name_of(item) != CONFIG_MAP or not isinstance(data, dict):
            continue
        found, faults = entries({str(name): str(text) for name, text in data.items()})
        for name, why in faults.items():
            yield Finding(
                "error", "advance-invalid", _about(name), f"it cannot be used: {why}",
                "Correct the entry (docs/advance.md).",
            )  # fmt: skip
        for entry in found:
            if entry.until <= posture.wall:
                yield Finding("info", "advance-over", _about(entry.name), "it has ended", "Delete the entry.")
            elif why := _never(posture, entry):
                yield Finding(
                    "error", "advance-never-fits", _about(entry.name), why,
                    "Ask for a shape that fits the nodes (gpu-extender plan --for), or add nodes.",
                )  # fmt: skip


def _about(name: str) -> str:
    return f"ConfigMap/{CONFIG_MAP}/{name}"


def _never(posture: Posture, entry: AdvanceEntry) -> str:
    """Why it fits nowhere, whatever ends; "" where it does, by count. An input without nodes is not judged."""
    room, nodes = entry.room, posture.cluster.nodes
    if not nodes:
        return ""
    if room.node:
        return "" if room.node in nodes else f"there is no node {room.node}"
    labels = posture.settings.mix.model_labels
    of_model = [node for node in nodes.values() if not room.model or model_of(node, labels) == room.model]
    if not of_model:
        return f"no node has GPUs of the model {room.model}"
    fits = sum(sum(count // room.gpus for count in node.gpus.values()) for node in of_model)
    if fits < room.pods:
        return f"{fits} of {room.pods} pods with {room.gpus} GPUs fit on empty nodes"
    return ""
