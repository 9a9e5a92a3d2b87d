"""Fields of Kubernetes objects that change what is scheduled or evicted, and that we do not read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from extender.objects.parts import api_group

GROUP_FIELDS: Final = {
    "schedulingConstraints": "its pods are not kept in one domain: write gpu-extender.io/domain on them",
    "disruptionMode": "its pods are evicted by their minimum alone",
    "priority": "the priority of each pod counts",
    "priorityClassName": "the PriorityClass of each pod counts",
    "preemptionPolicy": "the preemptionPolicy of each pod counts",
    "resourceClaims": "devices of these claims are not counted",
    "parentCompositePodGroupName": "each PodGroup starts by itself",
}
"""Of a PodGroup of scheduling.k8s.io, and of the templates of a Workload: what counts instead."""


def unread(item: Any) -> Iterator[str]:
    """One sentence for each such field that the object states."""
    if not isinstance(item, Mapping):
        return
    kind, api, spec = item.get("kind"), item.get("apiVersion"), item.get("spec")
    group = api_group(api if isinstance(api, str) else None)
    if not isinstance(spec, Mapping):
        return
    name = f"{kind} {_name(item)}"
    if kind == "PodDisruptionBudget" and spec.get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
        yield (
            f"{name}: unhealthyPodEvictionPolicy AlwaysAllow is not read: a pod that is not ready counts against the "
            "budget as any other, as in the preemption of kube-scheduler"
        )
    elif group == "scheduling.k8s.io" and kind == "PodGroup":
        yield from _of_group(name, spec)
    elif group == "scheduling.k8s.io" and kind == "Workload":
        for key in ("podGroups", "podGroupTemplates"):
            parts = spec.get(key)
            for part in parts if isinstance(parts, list) else ():
                if isinstance(part, Mapping):
                    yield from _of_group(f"{name}, {key} {part.get('name')}", part)


def _of_group(name: str, spec: Mapping[str, Any]) -> Iterator[str]:
    for field, instead in GROUP_FIELDS.items():
        if spec.get(field) not in (None, [], {}):
            yield f"{name}: {field} is not read: {instead}"


def _name(item: Mapping[str, Any]) -> str:
    meta = item.get("metadata")
    meta = meta if isinstance(meta, Mapping) else {}
    return f"{meta.get('namespace') or 'default'}/{meta.get('name') or ''}"
