"""/debug/explain: the verdict on one pod, and its latest decisions. /debug/top: the fleet, and why pods wait.
/debug/capacity: what could start now."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response

from extender.ask.explain import Explainer
from extender.cluster.view import ClusterView
from extender.decide.decisions import Decisions
from extender.errors import BadRequest
from extender.web.decisions_page import asked, fields, pod_of
from extender.web.pages import OWN_PODS_ONLY, Pages, refused

SHOWN_DECISIONS: Final = 5
OWN: Final = ("apiVersion", "kind", "pod", "verdict", "node", "gpus", "how", "funnel", "reasons", "nearest", "first",
              "second", "difference", "devices", "evicted", "cost_now")  # fmt: skip
"""Fields of an explanation that name no other pod, but for the preemptor: an Event on the victim names it, too."""
LEFT_OUT: Final = {
    "code": "left-out",
    "message": "sentence, ways_out, queue and decisions may name pods of other namespaces; they need the right to list "
    "pods in all namespaces",
}


class ExplainPage:
    """The handlers of these pages."""

    def __init__(self, explainer: Explainer, cluster: ClusterView, decisions: Decisions, pages: Pages) -> None:
        """`decisions`: the latest decisions."""
        self._explainer, self._cluster, self._kept = explainer, cluster, decisions
        self._all, self._own = pages.page(self.explained), pages.page(self.own)
        self._top = pages.page(lambda: (orjson.dumps(explainer.fleet()),))
        self._capacity = pages.page(lambda: (orjson.dumps(explainer.capacity()),))

    async def explain(self, request: Request) -> Response:
        """`?pod=NAMESPACE/NAME`; `?most=`: how many decisions; `?nodes=`: how many nodes of each."""
        try:
            pod, shown = pod_of(request.query_params), asked(request, SHOWN_DECISIONS)
        except BadRequest as error:
            return refused(error)
        if getattr(request.state, OWN_PODS_ONLY, False):
            return await self._own(request, *pod)
        return await self._all(request, pod, *shown)

    async def top(self, request: Request) -> Response:
        """Of all nodes, and of all pods that wait."""
        return await self._top(request)

    async def capacity(self, request: Request) -> Response:
        """Of all nodes, and of the first that wait."""
        return await self._capacity(request)

    def explained(self, pod: tuple[str, str], most: int, nodes: int) -> Iterator[bytes]:
        """The page about a pod (namespace, name), with so many decisions, and so many nodes of each."""
        shown = self._explainer.explain(self._explainer.pod(*pod))
        yield orjson.dumps(shown.as_json())[:-1] + b","
        yield from fields(self._kept.latest(), pod, most, nodes, self._cluster)
        yield b"}"

    def own(self, namespace: str, name: str) -> Iterator[bytes]:
        """The page for a reader who may list the pods of this pod's namespace alone."""
        answer = self._explainer.explain(self._explainer.pod(namespace, name)).as_json()
        classes = [dict(entry, pods=None) for entry in answer["evictable_by"] or ()]
        above = None if answer["evictable_by"] is None else classes  # the pods that wait may be those of others
        denied = None if answer["preemption"] is None else {**answer["preemption"], "lower": None}
        empty: dict[str, Any] = {
            "sentence": "", "why": None, "ways_out": [], "queue": None, "decisions": [], "decisions_left_out": 0
        }  # fmt: skip
        yield orjson.dumps(
            {
                **{field: answer[field] for field in OWN},
                **empty,
                "evictable_by": above,
                "preemption": denied,
                "warnings": [LEFT_OUT],
            }
        )
