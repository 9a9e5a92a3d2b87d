"""Pictures of one node for an answer: which GPUs are chosen, which are held by victims, which free ones lack a link.

A picture has `caption`, what is to be seen; `node`: as `NodeMap` has it; `marks`: of each GPU "chosen", "victim" or
None; `lacking`: pairs of free GPUs without a link between them, where that is why the pod waits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from extender.web.node_pages import drawing
from extender.web.pages import JSON, Content


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
    content: Content, name: str, evicted: Sequence[Victim], chosen: Collection[int], taker: str
) -> list[JSON]:
    """The node before an eviction and after it, the other pods as they are now; empty: as None of `picture`. `chosen`:
    the GPUs of the pod that takes their place, empty where they are not known; `taker`: its name."""
    drawn = drawing(content, name)
    if drawn is None:
        return []
    node, holders = drawn
    names = {victim.pod for victim in evicted}
    holder_of = {gpu: victim.pod for victim in evicted for gpu in victim.gpus}
    before, after, lost, taken = list[JSON](), list[JSON](), set[int](), set(chosen)
    for gpu in node["gpus"]:
        free = gpu | {"state": "free", "pods": [], "holder": None}
        held = [pod for pod in gpu["pods"] if pod["pod"] in names]
        own = any(pod["pod"] == taker for pod in gpu["pods"])
        pod = held[0]["pod"] if held else holder_of.get(gpu["index"])
        if own:
            taken.add(gpu["index"])
        if pod is None:
            before.append(free if own else gpu)
            after.append(gpu)
            continue
        lost.add(gpu["index"])
        shown = held or [{"pod": pod, "priority": None, "terminating": False, "how": "observed"}]
        before.append(gpu | {"state": "held", "pods": shown, "holder": holders.number(pod)})
        after.append(gpu if own else free)
    first = _picture("before", node | {"gpus": before}, ())
    first["marks"] = ["victim" if gpu["index"] in lost else None for gpu in before]
    return [first, _picture("after", node | {"gpus": after}, taken)]


def _picture(caption: str, node: JSON, chosen: Collection[int]) -> JSON:
    marks = ["chosen" if gpu["index"] in chosen else None for gpu in node["gpus"]]
    return {"caption": caption, "node": node, "marks": marks, "lacking": []}
