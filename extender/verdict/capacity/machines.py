"""The nodes that count, by GPU model, and the pod that asks them for nothing but GPUs."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from extender.cluster.gpus.device_sharing import partial
from extender.objects import records
from extender.objects.records import NodeRecord, PodRecord
from extender.policy.contracts import PodRequest
from extender.queue.usage import model_of
from extender.verdict.judge import Judge

LOOKED_AT: Final = 512
"""Nodes of one slice."""
LOWEST: Final = -(2**31)
"""The priority of the pod: the claims of all others count."""


@dataclass(slots=True)
class Fleet:
    """`models`: names of the nodes of each GPU model, by name; `resource`: of each model; `gpus`: how many of it each
    of these nodes offers; `closed`: nodes that take no pod now (a cordon, or a taint of Kubernetes' own); `divided`:
    nodes that hand out parts of GPUs, which do not count.
    """

    models: dict[str, list[str]] = field(default_factory=dict)
    resource: dict[str, str] = field(default_factory=dict)
    gpus: dict[str, int] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    divided: int = 0

    def open(self, model: str) -> list[str]:
        """The nodes of a model that take pods now."""
        return [name for name in self.models[model] if name not in self.closed]


def read(judge: Judge) -> Fleet:
    """The nodes that offer whole GPUs."""
    cluster, found = judge.cluster, Fleet()
    labels, restricted = cluster.settings.mix.model_labels, cluster.restricted
    known: dict[tuple[str, ...], str | None] = {}
    for name in sorted(cluster.nodes):
        node, division = cluster.nodes.get(name), cluster.gpus.divisions.get(name)
        resource = None
        if node is not None:
            offered = (*node.gpu_capacity, *node.gpus)
            if offered not in known:
                known[offered] = _whole_resource(node, cluster.gpu_names)
            resource = known[offered]
        if node is None or resource is None or division is None or not division.whole:
            found.divided += division is not None and not division.whole
            found.closed.add(name)
            continue
        model = model_of(node, labels)
        if model not in found.models:
            found.models[model], found.resource[model] = [], resource
        found.models[model].append(name)
        found.gpus[name] = node.gpus.get(found.resource[model], 0)
        if name in restricted and node.closed:
            found.closed.add(name)
    return found


def _whole_resource(node: NodeRecord, names: Collection[str]) -> str | None:
    """The GPU resource that the node has, unless its name says that it counts parts; None without one."""
    resource = resource_of(node, names)
    return None if resource is None or partial(resource) else resource


def resource_of(node: NodeRecord, names: Collection[str]) -> str | None:
    """The GPU resource that the node has; None without one."""
    return next((name for name in sorted(node.gpu_capacity | node.gpus) if name in names), None)


def probe(judge: Judge, resource: str, gpus: int, links: str = "preferred") -> tuple[PodRecord, PodRequest]:
    """A pod that asks for GPUs and nothing else, that tolerates every taint, and that comes after all others."""
    amounts = {resource: str(gpus)}
    pod = records.pod(
        {
            "metadata": {"name": "capacity", "annotations": {"gpu-extender.io/links": links}},
            "spec": {
                "containers": [{"name": "main", "resources": {"requests": amounts, "limits": amounts}}],
                "tolerations": [{"operator": "Exists"}],
                "priority": LOWEST,
            },
        },
        judge.cluster.gpu_names,
    )
    return pod, judge.claims.alone(pod)


class Look(NamedTuple):
    """What an answer rests on. `now`: the server's clock; `whole`: the nodes of any model that are whole now, once they
    are known."""

    judge: Judge
    fleet: Fleet
    now: float
    whole: frozenset[str] = frozenset()


def within(look: Look, request: PodRequest) -> AbstractContextManager[None]:
    """The tables with the claims of all others."""
    return look.judge.claims.of(request, look.now)
