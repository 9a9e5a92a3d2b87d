"""Whether a pod wants to be packed or spread, and which pods are its siblings.

Spread is for serving: replicas of one service on different nodes, and racks, so that no failure takes them all.
"""

from __future__ import annotations

from typing import Literal

from extender.objects.records import PodRecord
from extender.settings import Placement

ANNOTATION = "gpu-extender.io/placement"
APP = "app.kubernetes.io/name"
Way = Literal["pack", "spread"]
_WAYS: dict[str, Way] = {"pack": "pack", "spread": "spread"}
SiblingKey = tuple[str, str, str]


def way(pod: PodRecord, said: Placement) -> Way:
    """The annotation, else the settings: the first label rule that fits, then the PriorityClass, then the default.

    An annotation with any other value says nothing.
    """
    text = pod.annotations.get(ANNOTATION, "").strip().lower()
    if text in _WAYS:
        return _WAYS[text]
    for rule, chosen in said.by_label.items():
        key, equals, value = rule.partition("=")
        if key in pod.labels and (not equals or pod.labels[key] == value):
            return chosen
    return said.by_priority_class.get(pod.priority_class, said.default)


def siblings(pod: PodRecord) -> SiblingKey | None:
    """What its siblings have in common: the controller that owns them, else the app's name; None when it has none."""
    if pod.owner is not None:
        return pod.namespace, "owner", pod.owner.identity
    name = pod.labels.get(APP)
    return (pod.namespace, "app", name) if name else None
