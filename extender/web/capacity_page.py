"""What could run now: the largest jobs by model, what would start those that wait, advice, and the price of slots."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from extender.ask.capacity import FIRST
from extender.ask.fleet import SIZES
from extender.web.node_pages import picture, unlinked
from extender.web.pages import JSON, Content, Query

MOST: Final = 200
"""Request types whose price is shown."""
DRAWN: Final = 16
"""Pods that are drawn on a node."""
CHANGED_SECONDS: Final = 15.0
"""How long an answer serves while the cluster changes."""
SAME_SECONDS: Final = 60.0
"""And while it does not: the work that an eviction loses grows all the same."""


class KeptCapacity:
    """An answer that costs much: all requests within some seconds get the same one. It states its time."""

    def __init__(self, generation: Callable[[], int], clock: Callable[[], float]) -> None:
        """`generation`: rises with each change of what it rests on; `clock`: seconds."""
        self._generation, self._clock = generation, clock
        self._at, self._made_at = 0.0, -1
        self._answer = b""

    async def answer(self, make: Callable[[], Awaitable[bytes]]) -> bytes:
        """The kept answer, or a new one: after SAME_SECONDS in any case, after CHANGED_SECONDS where the cluster has
        changed."""
        age = self._clock() - self._at
        if not self._answer or age >= (SAME_SECONDS if self._made_at == self._generation() else CHANGED_SECONDS):
            at, generation = self._clock(), self._generation()
            if answer := await make():  # else the client has left
                self._at, self._made_at, self._answer = at, generation, answer
        return self._answer


def capacity_view(content: Content) -> JSON:
    """As `gpu-extender capacity`, with `models` as of `/debug/top`; `first`: how many gangs, and kinds of pods, are
    explained; and `drawings`: of the largest pods of the first models those that differ, each with the `picture` of a
    node that it fits on, or whose free GPUs lack links."""
    answer = content.explainer.capacity()
    shown = [pod for pod in answer["largest"] if pod["gpus"]][:DRAWN]
    examples = content.explainer.examples(shown)
    drawings = list[JSON]()
    for pod, (node, gpus) in zip(shown, examples, strict=True):
        linked, last = pod["links"] == "required", drawings[-1] if drawings else {}
        if linked and (last.get("model"), last.get("gpus"), last.get("node")) == (pod["model"], pod["gpus"], node):
            continue  # the same GPUs: those of the pod that does not ask for links are linked
        alone = linked and pod["gpus"] == 1
        drawn = unlinked(content, node) if alone else picture(content, node, "", gpus)
        drawings.append(pod | {"node": node, "picture": drawn})
    return answer | {"sizes": SIZES, "first": FIRST, "models": content.explainer.models(), "drawings": drawings}


def prices_view(content: Content, query: Query) -> JSON:
    """The price of a slot by request type, the highest first: how often it is asked for, and how many slots of it the
    cluster has left. The prices add up to 1; a type of which no slot is left has none, and comes last."""
    tables = content.verbs.cluster.tables
    demand = tables.demand
    prices = content.verbs.policy.fragmentation.prices(tables)
    rows = zip(demand.names, demand.weights, demand.slots.totals(), prices, strict=True)
    types: list[JSON] = [
        {"type": name, "weight": weight, "slots_left": int(slots), "price": price if slots >= 1 else None}
        for name, weight, slots, price in rows
    ]
    types.sort(key=lambda gpu_type: (-(gpu_type["price"] or 0.0), -gpu_type["weight"], gpu_type["type"]))
    return {"types": types[:MOST], "types_left_out": max(0, len(types) - MOST)}
