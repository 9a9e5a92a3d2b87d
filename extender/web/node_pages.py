"""Which pod holds which GPUs: of one group of nodes, and of one node with how each holding is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, get_args

from extender.ask.fleet import stock
from extender.ask.judge import Judge, over
from extender.ask.pending import pods_that_wait
from extender.ask.text import no_such_node
from extender.cluster.cluster import ClusterView
from extender.cluster.dump import node_map
from extender.errors import BadRequest, NotFound
from extender.objects.nodes import DeviceState
from extender.objects.queueing import queue_of
from extender.reservations.claims import NONE
from extender.web.pages import JSON, Content, Query
from extender.web.racks import LEVELS, Groups, reserved

HOLDERS: Final = ("pod", "gang", "queue")
"""What one letter of a map stands for."""
HUES: Final = 7
"""Colours that the stylesheet has: with more namespaces they repeat."""
PER_PAGE: Final = 72
"""Nodes that are drawn at once."""
NO_HOLDER: Final[JSON] = {"holder": None, "colour": None}
"""Of a GPU that no pod holds."""


def nodes_view(content: Content, query: Query) -> JSON:
    """`?by=` and `?in=`: of one group; `?page=`: from 1; `?holder=`: as above."""
    level, kind = one_of(query, "by", LEVELS), one_of(query, "holder", HOLDERS)
    group, page, cluster = query.get("in", ""), page_of(query), content.verbs.cluster
    names = members(cluster, level, group)
    holders = Holders(cluster, kind)
    shown = names[(page - 1) * PER_PAGE : page * PER_PAGE]
    return {
        "by": level,
        "group_name": group,
        "holder_kind": kind,
        "holder_kinds": HOLDERS,
        "page_number": page,
        "pages": max(1, -(-len(names) // PER_PAGE)),
        "nodes_in_all": len(names),
        "nodes": maps_of(content, shown, holders),
        **holders.as_json(),
    }


def one_of(query: Query, key: str, words: tuple[str, ...]) -> str:
    """The word that is asked for, the first without one. BadRequest."""
    word = query.get(key) or words[0]
    if word not in words:
        raise BadRequest(f"{key}={word} is not known: {key} may be {', '.join(words)}", path=key)
    return word


def page_of(query: Query) -> int:
    """From 1. BadRequest."""
    text = query.get("page") or "1"
    if not text.isascii() or not text.isdigit() or len(text) > 6 or int(text) < 1:
        raise BadRequest("page is a whole number from 1", path="page")
    return int(text)


def gpu_namespaces(cluster: ClusterView) -> list[str]:
    """The namespaces whose pods hold GPUs or wait for them, by name."""
    return list(_gpu_namespaces(cluster, cluster.generation))


@lru_cache(maxsize=1)
def _gpu_namespaces(cluster: ClusterView, generation: int) -> tuple[str, ...]:
    """Kept as long as nothing changes: each drawing asks for it."""
    bound = cluster.budgets
    holding = {space for space in bound.namespaces() if any(pod.gpus for pod in bound.pods_in(space))}
    return tuple(sorted(holding | {pod.namespace for pod in pods_that_wait(cluster) if pod.gpus}))


class Holders:
    """The holders of a map. Each has a number, from which its letters follow, and a colour: that of its namespace, the
    same in all views; of queues their own. `kind`: of HOLDERS."""

    def __init__(self, cluster: ClusterView, kind: str) -> None:
        self._cluster, self._kind = cluster, kind
        self._numbers: dict[str, int] = {}
        self._colours = {namespace: number for number, namespace in enumerate(gpu_namespaces(cluster))}
        self._used: dict[str, int] = {}
        """The colours of the namespaces, or queues, of these holders."""

    def of(self, pod: str) -> JSON:
        """`holder`: the number of a pod's holder, and its `colour`. `pod`: namespace/name."""
        holder = self._holder(pod)
        number = self._numbers.setdefault(holder, len(self._numbers))
        if self._kind == "queue":
            key, colour = holder, number
        else:
            key = pod.partition("/")[0]
            colour = self._colours.setdefault(key, len(self._colours))
        self._used[key] = colour % HUES
        return {"holder": number, "colour": colour % HUES}

    def as_json(self) -> JSON:
        """`holders`: by number; `colours`: of each namespace, or queue, that holds GPUs here, by name."""
        return {"holders": list(self._numbers), "colours": dict(sorted(self._used.items()))}

    def _holder(self, name: str) -> str:
        namespace, _, rest = name.partition("/")
        pod = self._cluster.pod(namespace, rest)
        if pod is None or self._kind == "pod":
            return name
        if self._kind == "queue":
            return queue_of(pod)
        gang = self._cluster.workloads.gang_of(pod.uid)
        return name if gang is None else str(gang)


def members(cluster: ClusterView, level: str, group: str) -> list[str]:
    """The nodes of a group that offer GPUs, by name."""
    groups = Groups(cluster, level)
    offering = (cluster.nodes.get(name) for name in cluster.gpus.topologies)
    return sorted(
        node.name for node in offering if node is not None and any(node.gpus.values()) and groups.of(node) == group
    )


def maps_of(content: Content, names: Sequence[str], holders: Holders) -> list[JSON]:
    """The map of each of the nodes, in their order; nodes that no longer exist are left out."""
    return [_drawn(content.verbs.cluster, view, holders) for view in _maps(content, names)]


def _maps(content: Content, names: Iterable[str], without: frozenset[str] = NONE) -> Iterator[JSON]:
    """As `stocked`, with what is `reserved` there. `without`: uids of pods for which nothing counts as reserved."""
    by_node = reserved(content, without)
    for view in stocked(over(content.verbs), content.times.monotonic(), names, without):
        yield view | {"reserved": by_node.get(view["node"], [])}


def stocked(judge: Judge, now: float, names: Iterable[str], without: frozenset[str] = NONE) -> Iterator[JSON]:
    """What `/debug/map` has of each of the nodes: `node_map`, and how many GPUs are free and reserved; nodes that offer
    no GPUs are left out."""
    views = [view for name in names if (view := node_map(judge.cluster, name)) is not None]
    counted = stock(judge, now, judge.rows([view["node"] for view in views]), without)
    for view, free, kept in zip(views, counted.free, counted.reserved, strict=True):
        takes = view["schedulable"]
        yield view | {"free": free if takes else 0, "closed_gpus": 0 if takes else free, "reserved_gpus": kept}


def _drawn(cluster: ClusterView, view: JSON, holders: Holders) -> JSON:
    """With, of each GPU, `state` (held, reserved, free, closed: free on a node that takes no pods, unhealthy, unknown),
    `holder` and `colour`: as of `Holders`, None where no pod holds it, and `island`: the number of the GPUs that are
    linked with it."""
    planned = {index for reservation in view["reserved"] for index in reservation["gpus"] or ()}
    islands = _islands(view["links"], len(view["gpus"]))
    open_gpus = [gpu["index"] for gpu in view["gpus"] if gpu["healthy"] and not gpu["pods"]]
    kept, left = len(planned.intersection(open_gpus)), view["free"] + view["closed_gpus"]
    more = max(0, view["reserved_gpus"] - kept)  # those that are reserved too, not fixed which
    if view["unplaced"] or len(open_gpus) > kept + more + left:  # some are held, or not offered
        rest = "unknown"
    elif more:
        rest = "unknown" if left else "reserved"
    else:
        rest = "free" if view["schedulable"] else "closed"
    for gpu in view["gpus"]:
        pods, index = gpu["pods"], gpu["index"]
        free = "reserved" if index in planned else rest
        gpu["state"] = "unhealthy" if not gpu["healthy"] else "held" if pods else free
        gpu["island"] = islands[index]
        gpu |= holders.of(pods[0]["pod"]) if pods else NO_HOLDER
    return view | {"source": cluster.gpus.topologies[view["node"]].source}


def drawing(content: Content, name: str, without: Iterable[str] = ()) -> tuple[JSON, Holders] | None:
    """(what the drawing of one node shows, its holders); None: there is no such node, or it offers no GPUs. `without`:
    names of pods for which nothing counts as reserved."""
    cluster = content.verbs.cluster
    holders = Holders(cluster, "pod")
    pods = (cluster.pod(*pod.split("/", 1)) for pod in without)
    uids = frozenset([pod.uid for pod in pods if pod is not None])
    for view in _maps(content, [name], uids):
        return _drawn(cluster, view, holders) | {"numa": cluster.gpus.topologies[name].numa}, holders
    return None


def has_page(content: Content) -> Callable[[str], bool]:
    """Whether a node of this name has a view: it exists, and offers GPUs."""
    cluster = content.verbs.cluster

    def known(name: str) -> bool:
        node = cluster.nodes.get(name)
        return node is not None and name in cluster.gpus.topologies and any(node.gpus.values())

    return known


def node_view(content: Content, query: Query) -> JSON:
    """`?node=`: which. NotFound: there is none, or it offers no GPUs."""
    name, cluster = query.get("node", ""), content.verbs.cluster
    drawn = drawing(content, name)
    if drawn is None:
        why = "the node offers no GPUs" if name in cluster.nodes else no_such_node(cluster.nodes, name)
        raise NotFound(why, path=name)
    view, holders = drawn
    topology = cluster.gpus.topologies[name]
    groups = {level: Groups(cluster, level).of(cluster.nodes[name]) for level in ("rack", "model")}
    return view | groups | {
        **holders.as_json(),
        "holdings": _holdings(view),
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
            holding = by_pod.setdefault(pod["pod"], {**pod, "gpus": [], **{key: gpu[key] for key in NO_HOLDER}})
            holding["gpus"].append(gpu["index"])
    rest = [{**pod, "gpus": None, "how": "unknown", **NO_HOLDER} for pod in node["unplaced"]]
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


# -- /debug/map


def node_maps(judge: Judge, now: float, only: str | None = None, rack: str | None = None) -> JSON:
    """`kind: Map`: the nodes by name; `now`: by the server's clock; `only`: one of them, `rack`: those of a rack.
    NotFound: there is no node `only`."""
    cluster = judge.cluster
    if only is not None and only not in cluster.nodes:
        raise NotFound(no_such_node(cluster.nodes, only), path=f"node {only}")
    racks_of_nodes = Groups(cluster, "rack")
    known = {name: cluster.nodes.get(name) for name in (sorted(cluster.gpus.topologies) if only is None else (only,))}
    racks_by_name = {name: racks_of_nodes.of(node) or None for name, node in known.items() if node is not None}
    names = [name for name, of_node in racks_by_name.items() if rack in (None, of_node)]
    maps = [shown | {"rack": racks_by_name[shown["node"]]} for shown in stocked(judge, now, names)]
    return {"apiVersion": "gpu-extender.io/v1", "kind": "Map", "warnings": [], "nodes": maps}
