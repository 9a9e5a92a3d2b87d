"""Pictures of one node for an answer: which GPUs are chosen, which are held by victims, which free ones lack a link.

A picture has `caption`, what is to be seen; `node`: as `NodeMap` has it; `marks`: of each GPU "chosen", "victim" or
None; `lacking`: pairs of free GPUs without a link between them, where that is why the pod waits.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from extender.web.node_pages import NO_HOLDER, Holders, drawing
from extender.web.pages import JSON, Content

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


def victims(stated: Iterable[Mapping[str, Any] | str]) -> list[Victim]:
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
        free = gpu | _FREE
        if victim is None:
            before.append(free if taker in on else gpu | {"state": reserved["state"]})
        else:
            lost.append(index)
            before.append(gpu | {"state": "held"} if victim in on else _held(gpu, victim, holders))
        if taker is None:
            after.append(gpu if victim is None else free)
        else:
            taken[index] = taker
            after.append(_held(gpu, taker, holders))
    kept = {key: now[0][key] for key in ("reserved", "reserved_gpus")}
    first = _picture("before", node | kept | {"gpus": before}, ())
    first["marks"] = ["victim" if gpu["index"] in lost else None for gpu in before]
    return [first, _picture("after", node | {"gpus": after}, taken)]


_FREE: Final[JSON] = {"state": "free", "pods": [], **NO_HOLDER}


def _held(gpu: JSON, pod: str, holders: Holders) -> JSON:
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
        for victim in victims(shown["victims"] or ()):
            leaves(victim.pod, victim.uid)
    nodes = list(dict.fromkeys([*leaving, *placed]))[:MOST_NODES]
    drawn = ((node, placed.get(node, []), leaving.get(node, [])) for node in nodes)
    changed = [
        {"node": node, "pods": pods, "pictures": _changed(content, node, pods, gone)} for node, pods, gone in drawn
    ]
    return [shown for shown in changed if shown["pictures"]]


def _changed(content: Content, name: str, pods: Sequence[JSON], leaving: Sequence[Victim]) -> list[JSON]:
    takers = {pod["pod"]: pod["gpus"] for pod in pods}
    if name in content.verbs.cluster.nodes:
        return before_and_after(content, name, leaving, takers)[0 if leaving else 1 :]
    drawn = drawing(content, COPY.sub("", name))  # a node that the question adds is as the one that it is like
    if drawn is None:
        return []
    node, holders = drawn
    taken = {gpu: pod for pod, gpus in takers.items() for gpu in gpus}
    gpus = [_held(gpu, pod, holders) if (pod := taken.get(gpu["index"])) else gpu | _FREE for gpu in node["gpus"]]
    return [_picture("", node | {"node": name, "gpus": gpus}, taken)]


def _picture(caption: str, node: JSON, chosen: Collection[int]) -> JSON:
    marks = ["chosen" if gpu["index"] in chosen else None for gpu in node["gpus"]]
    return {"caption": caption, "node": node, "marks": marks, "lacking": []}
