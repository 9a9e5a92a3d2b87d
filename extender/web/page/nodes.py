"""GPU maps: the nodes of one rack, and one node with its links and how each holding is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, get_args

from extender.cluster.dump import node_map
from extender.cluster.view import ClusterView
from extender.errors import NotFound
from extender.objects.nodes import DeviceState
from extender.objects.queueing import queue_of
from extender.web.page.racks import Groups
from extender.web.page.reserved import Kept

COLOURS: Final = ("pod", "gang", "queue")
"""What one colour and letter of a map stand for."""
JSON = dict[str, Any]


class Holders:
    """The holders of a map, each with a number: its colour and its letters follow from it. `colour_by`: of COLOURS."""

    def __init__(self, cluster: ClusterView, colour_by: str) -> None:
        self._cluster, self._colour_by = cluster, colour_by
        self._numbers: dict[str, int] = {}

    def number(self, pod: str) -> int:
        """The number of a pod's holder. `pod`: namespace/name."""
        return self._numbers.setdefault(self._holder(pod), len(self._numbers))

    def names(self) -> list[str]:
        """The holders by number."""
        return list(self._numbers)

    def _holder(self, name: str) -> str:
        namespace, _, rest = name.partition("/")
        pod = self._cluster.pod(namespace, rest)
        if pod is None or self._colour_by == "pod":
            return name
        if self._colour_by == "queue":
            return queue_of(pod)
        gang = self._cluster.workloads.gang_of(pod.uid)
        return name if gang is None else str(gang)


def members(cluster: ClusterView, level: str, group: str) -> list[str]:
    """The nodes of a group that offer GPUs, by name."""
    groups, group_nodes = Groups(cluster, level), list[str]()
    for name in list(cluster.gpus.topologies):
        node = cluster.nodes.get(name)
        if node is not None and any(node.gpus.values()) and groups.of(node) == group:
            group_nodes.append(name)
    return sorted(group_nodes)


def maps(cluster: ClusterView, names: Sequence[str], reserved_by_node: Kept, holders: Holders) -> list[JSON]:
    """The map of each of the nodes, in their order; nodes that no longer exist are left out."""
    drawn = []
    for name in names:
        if (view := shown(cluster, name, reserved_by_node, holders.number)) is not None:
            drawn.append(view)
    return drawn


def shown(cluster: ClusterView, name: str, reserved_by_node: Kept, number: Callable[[str], int]) -> JSON | None:
    """What `/debug/map` has of a node, with what is reserved there and, of each GPU, `state` (held, reserved, free,
    unhealthy, unknown), `holder`: the number of what holds it, None without one, and `island`: the number of the GPUs
    that are linked with it. `number`: of the holder of a pod."""
    view, node = node_map(cluster, name), cluster.nodes.get(name)
    if view is None or node is None:
        return None
    reserved = reserved_by_node.get(name, [])
    planned = {index: reservation for reservation in reserved for index in reservation["gpus"] or ()}
    unplaced = bool(view["unplaced"])
    islands = _islands(view["links"], len(view["gpus"]))
    for gpu in view["gpus"]:
        pods = gpu["pods"]
        index = gpu["index"]
        free = "reserved" if index in planned else "unknown" if unplaced else "free"
        gpu["state"] = "unhealthy" if not gpu["healthy"] else "held" if pods else free
        gpu["holder"] = number(pods[0]["pod"]) if pods else None
        gpu["island"] = islands[index]
    return view | {"reserved": reserved, "source": cluster.gpus.topologies[name].source}


def node_view(cluster: ClusterView, name: str, reserved_by_node: Kept) -> JSON:
    """One node. NotFound: there is none, or it offers no GPUs."""
    holders = Holders(cluster, "pod")
    view = shown(cluster, name, reserved_by_node, holders.number)
    if view is None:
        raise NotFound("the cluster has no such node, or it offers no GPUs", path=name)
    topology = cluster.gpus.topologies[name]
    groups = {level: Groups(cluster, level).of(cluster.nodes[name]) for level in ("rack", "model")}
    return view | groups | {
        "holders": holders.names(),
        "holdings": _holdings(view),
        "numa": topology.numa,
        "nics": topology.as_json()["nics"],
        "detail": topology.detail,
        "devices": _published(cluster, name),
        "topology_warnings": [*topology.warnings, *topology.disagreements],
        "failures": [{"pod": failure.pod, "what": failure.what} for failure in cluster.health.failures(name)],
    }  # fmt: skip


def _published(cluster: ClusterView, name: str) -> JSON | None:
    """Of the GPUs that a DRA driver publishes for a node, how many are in each state; None without one."""
    devices = cluster.nodes[name].devices
    if devices is None:
        return None
    known = cluster.gpus.indices(name)
    states = Counter(gpu.state for gpu in devices.gpus)
    return {
        "published": len(devices.gpus),
        **{state: states[state] for state in get_args(DeviceState)},
        "unmapped": sum(gpu.id not in known for gpu in devices.gpus),
        "others": devices.others,
    }


def _holdings(node: Mapping[str, Any]) -> list[JSON]:
    """Each pod with its GPUs, in the order of these; then those whose positions are not known."""
    by_pod: dict[str, JSON] = {}
    for gpu in node["gpus"]:
        for pod in gpu["pods"]:
            holding = by_pod.setdefault(pod["pod"], {**pod, "gpus": [], "holder": gpu["holder"]})
            holding["gpus"].append(gpu["index"])
    rest = [{**pod, "gpus": None, "how": "unknown", "holder": None} for pod in node["unplaced"]]
    return [*({**holding, "count": len(holding["gpus"])} for holding in by_pod.values()), *rest]


def _islands(links: Sequence[Sequence[int]] | None, count: int) -> list[int]:
    """The number of each GPU's island: the GPUs that a chain of links connects. Each GPU alone without known links."""
    island = list(range(count))
    for a in range(count if links else 0):
        for b in range(a):
            if links is not None and links[a][b]:
                old, new = max(island[a], island[b]), min(island[a], island[b])
                island = [new if number == old else number for number in island]
    order = {number: place for place, number in enumerate(dict.fromkeys(island))}
    return [order[number] for number in island]
