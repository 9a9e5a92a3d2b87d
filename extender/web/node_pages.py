"""Which pod holds which GPUs: of one group of nodes, of one node with how each holding is known, and in pictures of one
node before and after an answer."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, get_args

from extender.ask.fleet import stock
from extender.ask.judge import Judge, over
from extender.ask.pending import pods_that_wait
from extender.ask.text import no_such_node
from extender.ask.warn import several_resources, warning
from extender.cluster.cluster import ClusterView
from extender.cluster.dump import node_map, offering
from extender.cluster.nodes import model_of
from extender.cluster.statements import gpus_of
from extender.cluster.tables import FIRST_GPU
from extender.errors import BadRequest, NotFound
from extender.objects.nodes import DeviceState
from extender.objects.queueing import queue_of
from extender.objects.records import NodeRecord
from extender.queue.levels import keys_of
from extender.queue.report import first_names
from extender.reservations.claims import NONE
from extender.web.pages import JSON, Content, Query

HOLDERS: Final = ("pod", "gang", "queue")
"""What one letter of a map stands for."""
HUES: Final = 7
"""Colours that the stylesheet has: with more namespaces they repeat."""
PER_PAGE: Final = 72
"""Nodes that are drawn at once."""
MOST_NAMED: Final = 5
"""Nodes that one warning names."""
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
    nodes = (offering(cluster, name) for name in cluster.gpus.topologies)
    return sorted(node.name for node in nodes if node is not None and groups.of(node) == group)


def maps_of(content: Content, names: Sequence[str], holders: Holders) -> list[JSON]:
    """The map of each of the nodes, in their order; nodes that no longer exist are left out."""
    return [_drawn(content.verbs.cluster, view, holders) for view in _maps(content, names)]


def _maps(content: Content, names: Iterable[str], without: frozenset[str] = NONE) -> Iterator[JSON]:
    """As `stocked`, with what is `reserved` there. `without`: uids of pods for which nothing counts as reserved."""
    by_node = reserved_by_node(content, without)
    for view in stocked(over(content.verbs), content.clock.monotonic(), names, without):
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
    return lambda name: offering(content.verbs.cluster, name) is not None


def node_view(content: Content, query: Query) -> JSON:
    """`?node=`: which. NotFound: there is none, or it offers no GPUs."""
    name, cluster = query.get("node", ""), content.verbs.cluster
    drawn = drawing(content, name)
    if drawn is None:
        why = "the node offers no GPUs" if name in cluster.nodes else no_such_node(cluster.nodes, name)
        raise NotFound(why, path=name)
    view, holders = drawn
    topology = cluster.gpus.topologies[name]
    several = filter(None, [several_resources(cluster, name)])
    groups = {level: Groups(cluster, level).of(cluster.nodes[name]) for level in ("rack", "model")}
    return view | groups | {
        **holders.as_json(),
        "holdings": _holdings(view),
        "nics": topology.as_json()["nics"],
        "detail": topology.detail,
        "devices": _published(cluster, name),
        "topology_warnings": [*topology.warnings, *topology.disagreements, *several],
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
    several: dict[str, list[str]] = {}
    for shown in maps:
        if text := several_resources(cluster, shown["node"]):
            several.setdefault(text, []).append(shown["node"])
    notes = [
        warning("several-gpu-resources", f"{first_names(same, MOST_NAMED)}: {text}") for text, same in several.items()
    ]
    return {"apiVersion": "gpu-extender.io/v1", "kind": "Map", "warnings": notes, "nodes": maps}


# -- groups of nodes, and what is reserved on each

RESERVED_BY: Final = {
    "seat": "a seat of the queue",
    "reservation": "an eviction makes room for it",
    "nomination": "kube-scheduler nominated the node",
    "assumed": "placed here, not bound yet",
}
"""What the words mean by which GPUs are reserved."""
LEVELS: Final = ("rack", "clique", "block", "zone", "model")
"""What nodes are grouped by."""
Reserved = Mapping[str, list[JSON]]
"""GPUs that are kept for pods that are not on their nodes yet: seats of the queue, reservations, assumed pods."""


class Groups:
    """Which group each node is in. `level`: one of LEVELS."""

    def __init__(self, cluster: ClusterView, level: str) -> None:
        settings = cluster.settings
        self.level = level
        self._keys = settings.mix.model_labels if level == "model" else keys_of(level, settings.topology_levels)

    def of(self, node: NodeRecord) -> str:
        """The node's group, "" where it states none."""
        if self.level == "model":
            return model_of(node, self._keys)
        labels = node.labels
        for key in self._keys:
            if label := labels.get(key):
                return label
        return ""


def reserved_by_node(content: Content, without: Collection[str] = ()) -> Reserved:
    """By node: for which pod, how many GPUs, which (None: not known), and by what. A pod counts once. `without`: uids
    of pods that are left out."""
    claims, cluster = content.verbs.claims, content.verbs.cluster
    now = content.clock.monotonic()
    reserved_by_node: dict[str, list[JSON]] = {}
    seen = set(without)

    def add(uid: str, node: str, amounts: tuple[int, ...], gpus: int, by: str) -> None:
        pod = cluster.pods.get(uid)
        count = sum(amounts[FIRST_GPU:])
        if uid in seen or not count or (pod is not None and pod.node):
            return
        seen.add(uid)
        name = None if pod is None else f"{pod.namespace}/{pod.name}"
        indices = list(gpus_of(gpus)) if gpus else None
        reserved_by_node.setdefault(node, []).append({"pod": name, "by": by, "count": count, "gpus": indices})

    for seat in list(claims.seats):
        add(seat.uid, seat.node, seat.amounts, seat.gpus, "seat")
    for reservation in claims.reservations.current(now):
        add(reservation.uid, reservation.node, reservation.amounts, 0, "reservation")
    for uid, node in cluster.placements.nominated.items():
        pod = cluster.pods[uid]
        add(uid, node, cluster.amounts(pod), claims.planned(pod, node), "nomination")
    for held in claims.assumed.current(now):
        add(held.uid, held.node, held.amounts, held.gpus, "assumed")
    return reserved_by_node


# -- pictures of one node for an answer: which GPUs are chosen, which are held by victims, which free ones lack a link
#
# A picture has `caption`, what is to be seen; `node`: as `NodeMap` has it; `marks`: of each GPU "chosen", "victim" or
# None; `lacking`: pairs of free GPUs without a link between them, where that is why the pod waits.

MOST_NODES: Final = 12
"""Nodes of an answer that are drawn."""
COPY: Final = re.compile(r"-copy-\d+$")
"""The end of the name of a node that a what-if adds, like the one before it."""


class Victim(NamedTuple):
    """A pod that is or was to be evicted."""

    pod: str
    """namespace/name."""
    uid: str
    gpus: Sequence[int]
    """Indices; empty where they are not known."""


def victims_of(stated: Iterable[Mapping[str, Any] | str]) -> list[Victim]:
    """As a decision or a way out states them; an earlier plan that still stands has their uids alone."""
    return [
        Victim(f"{pod['namespace']}/{pod['name']}", pod["uid"], pod["gpus"] or ())
        for pod in stated
        if not isinstance(pod, str)
    ]


def picture(content: Content, name: str, caption: str, chosen: Collection[int] = ()) -> JSON | None:
    """The node as it is now; None: there is no such node, or it offers no GPUs."""
    drawn = drawing(content, name)
    return None if drawn is None else _picture(caption, drawn[0], chosen)


def unlinked(content: Content, name: str) -> JSON | None:
    """The node as it is now, with the pairs of free GPUs that no link connects. None as for `picture`."""
    drawn = drawing(content, name)
    if drawn is None:
        return None
    node, _ = drawn
    free = [gpu["index"] for gpu in node["gpus"] if gpu["state"] == "free"]
    links = node["links"] if node["link_scope"] == "pair" else None
    pairs = [[a, b] for a in free for b in free if a < b and links is not None and not links[a][b]]
    return _picture("", node, ()) | {"lacking": pairs}


def before_and_after(
    content: Content, name: str, evicted: Sequence[Victim], takers: Mapping[str, Collection[int]]
) -> list[JSON]:
    """The node before an eviction and after it, the other pods as they are now; empty: as None of `picture`. `takers`:
    by name, the pods that take their place, each with its GPUs, empty where they are not known. What is reserved for
    them counts before the eviction alone."""
    now, drawn = drawing(content, name), drawing(content, name, takers)
    if now is None or drawn is None:
        return []
    node, holders = drawn
    names = {victim.pod for victim in evicted}
    holder_of = {gpu: victim.pod for victim in evicted for gpu in victim.gpus}
    before, after, lost = list[JSON](), list[JSON](), list[int]()
    taken = {gpu: pod for pod, gpus in takers.items() for gpu in gpus}
    for gpu, reserved in zip(node["gpus"], now[0]["gpus"], strict=True):
        index, on = gpu["index"], [pod["pod"] for pod in gpu["pods"]]
        victim = next((pod for pod in on if pod in names), holder_of.get(index))
        taker = next((pod for pod in on if pod in takers), taken.get(index))
        free = gpu | FREE_GPU
        if victim is None:
            before.append(free if taker in on else gpu | {"state": reserved["state"]})
        else:
            lost.append(index)
            before.append(gpu | {"state": "held"} if victim in on else _as_held(gpu, victim, holders))
        if taker is None:
            after.append(gpu if victim is None else free)
        else:
            taken[index] = taker
            after.append(_as_held(gpu, taker, holders))
    kept = {key: now[0][key] for key in ("reserved", "reserved_gpus")}
    first = _picture("before", node | kept | {"gpus": before}, ())
    first["marks"] = ["victim" if gpu["index"] in lost else None for gpu in before]
    return [first, _picture("after", node | {"gpus": after}, taken)]


FREE_GPU: Final[JSON] = {"state": "free", "pods": [], **NO_HOLDER}


def _as_held(gpu: JSON, pod: str, holders: Holders) -> JSON:
    """The GPU as one that the pod holds, or would hold."""
    pods = [{"pod": pod, "priority": None, "terminating": False, "how": "planned"}]
    return gpu | {"state": "held", "pods": pods, **holders.of(pod)}


def after_what_if(content: Content, answer: Mapping[str, Any]) -> list[JSON]:
    """The first MOST_NODES nodes that an answer of what-if changes: `node`, the `pods` that are placed there, each with
    its GPUs, and `pictures`. Pods that are evicted, or that a drain moves, leave the node that they are on."""
    cluster = content.verbs.cluster
    placed, leaving = dict[str, list[JSON]](), dict[str, list[Victim]]()

    def leaves(name: str, uid: str) -> None:
        pod = cluster.pods.get(uid)
        if pod is not None and pod.node and all(victim.uid != uid for victim in leaving.get(pod.node, ())):
            leaving.setdefault(pod.node, []).append(Victim(name, uid, ()))

    for shown in answer["results"]:
        pod = shown["pod"]
        name = f"{pod['namespace']}/{pod['name']}"
        leaves(name, pod["uid"])
        if shown["node"] and shown["gpus"]:
            placed.setdefault(shown["node"], []).append({"pod": name, "gpus": shown["gpus"]})
    for shown in (*answer["results"], *answer["groups"]):
        for victim in victims_of(shown["victims"] or ()):
            leaves(victim.pod, victim.uid)
    nodes = list(dict.fromkeys([*leaving, *placed]))[:MOST_NODES]
    drawn = ((node, placed.get(node, []), leaving.get(node, [])) for node in nodes)
    changed = [
        {"node": node, "pods": pods, "pictures": _pictures_of(content, node, pods, gone)} for node, pods, gone in drawn
    ]
    return [shown for shown in changed if shown["pictures"]]


def _pictures_of(content: Content, name: str, pods: Sequence[JSON], leaving: Sequence[Victim]) -> list[JSON]:
    takers = {pod["pod"]: pod["gpus"] for pod in pods}
    if name in content.verbs.cluster.nodes:
        return before_and_after(content, name, leaving, takers)[0 if leaving else 1 :]
    drawn = drawing(content, COPY.sub("", name))  # a node that the question adds is as the one that it is like
    if drawn is None:
        return []
    node, holders = drawn
    taken = {gpu: pod for pod, gpus in takers.items() for gpu in gpus}
    gpus = [_as_held(gpu, pod, holders) if (pod := taken.get(gpu["index"])) else gpu | FREE_GPU for gpu in node["gpus"]]
    return [_picture("", node | {"node": name, "gpus": gpus}, taken)]


def _picture(caption: str, node: JSON, chosen: Collection[int]) -> JSON:
    marks = ["chosen" if gpu["index"] in chosen else None for gpu in node["gpus"]]
    return {"caption": caption, "node": node, "marks": marks, "lacking": []}
