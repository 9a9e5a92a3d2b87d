"""/debug/explain: the verdict on one pod, and its latest decisions. /debug/top: the fleet, and why pods wait.
/debug/capacity: what could start now."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response

from extender.cluster.slices import Sliced
from extender.cluster.view import ClusterView
from extender.errors import ExtenderError
from extender.objects.records import PodRecord
from extender.verbs.decisions import Decisions
from extender.verdict.explain import Explainer
from extender.web.decisions_page import Show, asked, fields, pod_of
from extender.web.pages import OWN_PODS_ONLY, Pages
from extender.web.responses import error_response

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

    def __init__(self, explainer: Explainer, cluster: ClusterView, kept: Decisions, pages: Pages) -> None:
        """`kept`: the latest decisions."""
        self._explainer, self._cluster, self._kept, self._pages = explainer, cluster, kept, pages

    async def explain(self, request: Request) -> Response:
        """`?pod=NAMESPACE/NAME`; `?most=`: how many decisions; `?nodes=`: how many nodes of each."""
        try:
            pod = self._explainer.pod(*pod_of(request.query_params))
            most, show = asked(request, self._cluster, SHOWN_DECISIONS)
        except ExtenderError as error:
            return error_response(error.status, error.code, error.message, error.path)
        if getattr(request.state, OWN_PODS_ONLY, False):
            return self._pages.answer(own_pieces(self._explainer, pod))
        return self._pages.answer(pieces(self._explainer, pod, self._kept, most, show))

    async def top(self, request: Request) -> Response:
        """Of all nodes, and of all pods that wait."""
        return self._pages.answer(_whole(self._explainer.fleet()))

    async def capacity(self, request: Request) -> Response:
        """Of all nodes, and of the first that wait."""
        return self._pages.answer(_whole(self._explainer.capacity()))


def _whole(steps: Sliced[dict[str, Any]]) -> Iterator[bytes]:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            yield orjson.dumps(end.value)
            return
        yield b""


def own_pieces(explainer: Explainer, pod: PodRecord) -> Iterator[bytes]:
    """The page for a reader who may list the pods of this pod's namespace alone."""
    steps = explainer.explain(pod)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            answer = end.value.as_json()
            break
        yield b""
    classes = [dict(one, pods=None) for one in answer["evictable_by"] or ()]
    above = None if answer["evictable_by"] is None else classes  # the pods that wait may be those of others
    denied = None if answer["preemption"] is None else {**answer["preemption"], "lower": None}
    empty: dict[str, Any] = {"sentence": "", "ways_out": [], "queue": None, "decisions": [], "decisions_left_out": 0}
    yield orjson.dumps(
        {
            **{field: answer[field] for field in OWN},
            **empty,
            "evictable_by": above,
            "preemption": denied,
            "warnings": [LEFT_OUT],
        }
    )


def pieces(explainer: Explainer, pod: PodRecord, kept: Decisions, most: int, show: Show) -> Iterator[bytes]:
    """The page, each piece with one slice of the work."""
    steps = explainer.explain(pod)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            yield orjson.dumps(end.value.as_json())[:-1] + b","
            break
        yield b""
    yield from fields(list(kept.latest()), (pod.namespace, pod.name), most, show)
    yield b"}"
