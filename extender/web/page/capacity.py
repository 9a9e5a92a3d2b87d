"""What could run now: the largest jobs by model, what would start those that wait, advice, and the price of slots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from extender.cluster.demand.kinds import links_of
from extender.cluster.slices import Sliced
from extender.cluster.view import ClusterView
from extender.objects.records import PodRecord
from extender.policy.policy import Policy
from extender.verdict.explain import Explainer, Times
from extender.verdict.fleet import SIZES

MOST: Final = 200
"""Request types whose price is shown."""
CHANGED_SECONDS: Final = 15.0
"""How long an answer serves while the cluster changes."""
SAME_SECONDS: Final = 60.0
"""And while it does not: the work that an eviction loses grows all the same."""
JSON = dict[str, Any]


class Kept:
    """An answer that costs much: all who ask within some seconds get the same one. It states as of when it is."""

    def __init__(self, make: Callable[[], Sliced[JSON]], generation: Callable[[], int], times: Times) -> None:
        """`make`: the answer; `generation`: rises with each change of what it rests on."""
        self._make, self._generation, self._times = make, generation, times
        self._at, self._answer = 0.0, JSON()

    def answer(self) -> Sliced[JSON]:
        """The kept answer, or a new one: after SAME_SECONDS in any case, after CHANGED_SECONDS where the cluster has
        changed."""
        age = self._times.monotonic() - self._at
        same = self._answer and self._answer["as_of"]["generation"] == self._generation()
        if not self._answer or age >= (SAME_SECONDS if same else CHANGED_SECONDS):
            at, as_of = self._times.monotonic(), {"at": self._times.wall(), "generation": self._generation()}
            made = yield from self._make()
            self._at, self._answer = at, made | {"as_of": as_of}
        return self._answer


class CostlyViews:
    """The views that look at every pod and node, some of them many times."""

    def __init__(self, explainer: Explainer, generation: Callable[[], int], times: Times) -> None:
        self._explainer = explainer
        self._capacity = Kept(self._whole, generation, times)
        self._advice = Kept(self._advised, generation, times)

    def capacity(self) -> Sliced[JSON]:
        """As `gpu-extender capacity`, with `models` as `/debug/top` has them."""
        return self._capacity.answer()

    def advice(self, pod: PodRecord | None) -> Sliced[JSON]:
        """`shapes`, `drains` and `nodes` as `capacity` has them. `pod`: with the requests that are like its own only;
        None: all."""
        found = yield from self._advice.answer()
        if pod is None:
            return found | {"pod": None}
        asked = sum(count for _, count in pod.gpus), pod.cpu_milli, pod.memory, _links(pod)
        keys = ("gpus", "cpu_millicores", "memory_bytes", "links")
        like = [one for one in found["shapes"] if tuple(one[key] for key in keys) == asked]
        return found | {"pod": f"{pod.namespace}/{pod.name}", "shapes": like}

    def _whole(self) -> Sliced[JSON]:
        shown = yield from self._explainer.capacity()
        models = yield from self._explainer.models()
        return shown | {"sizes": SIZES, "models": models}

    def _advised(self) -> Sliced[JSON]:
        return self._explainer.advice()


def _links(pod: PodRecord) -> str:
    return "required" if links_of(pod) == "required" else "any"


def prices_view(cluster: ClusterView, policy: Policy) -> Sliced[JSON]:
    """The price of a slot by request type, the highest first: how often it is asked for, and how many slots of it the
    cluster has left. The prices add up to 1."""
    yield
    prices = policy.fragmentation.prices(cluster.tables)
    demand = cluster.tables.demand
    yield
    rows = zip(demand.names, demand.weights, demand.slots.totals(), prices, strict=True)
    types: list[JSON] = [
        {"type": name, "weight": weight, "slots_left": int(slots), "price": price}
        for name, weight, slots, price in rows
    ]
    yield
    types.sort(key=lambda one: (-one["price"], one["type"]))
    return {"types": types[:MOST], "types_left_out": max(0, len(types) - MOST)}
