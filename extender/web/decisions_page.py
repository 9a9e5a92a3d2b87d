"""/debug/decisions: the latest decisions, newest first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from extender.cluster.view import ClusterView
from extender.decide.decisions import Decision, Decisions
from extender.errors import BadRequest
from extender.web import decision_page
from extender.web.pages import Pages, refused

DECISION_BYTES: Final = 32 << 20
"""Of one answer of /debug/decisions; what does not fit is left out, and counted."""
MOST_DECISIONS: Final = 1_000
MOST_NODES: Final = 20_000


class DecisionsPage:
    """The handler of the page."""

    def __init__(self, cluster: ClusterView, decisions: Decisions, pages: Pages) -> None:
        """`decisions`: the latest decisions."""
        self._page = pages.page(lambda pod, most, nodes: decision_list(decisions.latest(), pod, most, nodes, cluster))

    async def decisions(self, request: Request) -> Response:
        """`?pod=NAMESPACE/NAME`: of this pod alone; `?most=`: how many decisions; `?nodes=`: how many nodes of each."""
        try:
            pod = pod_of(request.query_params) if "pod" in request.query_params else None
            most, nodes = asked(request)
        except BadRequest as error:
            return refused(error)
        return await self._page(request, pod, most, nodes)


def pod_of(query: Mapping[str, str]) -> tuple[str, str]:
    """(namespace, name) of the pod that a page is asked about. BadRequest."""
    namespace, slash, name = query.get("pod", "").partition("/")
    if not slash or not namespace or not name:
        raise BadRequest("pod is NAMESPACE/NAME", path="pod")
    return namespace, name


def asked(request: Request, default: int = 20) -> tuple[int, int]:
    """How many decisions are shown, and how many nodes of each. BadRequest."""
    most, nodes = _number(request, "most", default), _number(request, "nodes", 100)
    return max(0, min(most, MOST_DECISIONS)), min(nodes, MOST_NODES)


def _number(request: Request, key: str, default: int) -> int:
    text = request.query_params.get(key, str(default))
    if not text.isascii() or not text.isdigit() or len(text) > 6:
        raise BadRequest("most and nodes are whole numbers", path="most")
    return int(text)


def decision_list(
    latest: Iterable[Decision], pod: tuple[str, str] | None, most: int, nodes: int, cluster: ClusterView
) -> Iterator[bytes]:
    """/debug/decisions: of the latest, newest first, those about a pod or with it as a victim (all without one); at
    most `most`, and DECISION_BYTES."""
    yield b'{"apiVersion":"gpu-extender.io/v1","kind":"DecisionList","warnings":[],'
    yield from fields(latest, pod, most, nodes, cluster)
    yield b"}"


def fields(
    latest: Iterable[Decision], pod: tuple[str, str] | None, most: int, nodes: int, cluster: ClusterView
) -> Iterator[bytes]:
    """Two fields of an object: `decisions`, and `decisions_left_out`: how many of the most are not shown."""
    yield b'"decisions":['
    written, left_out = 0, 0
    about = (decision for decision in latest if pod is None or decision.concerns(*pod))
    for decision in islice(about, most):
        if written >= DECISION_BYTES:
            left_out += 1
            continue
        text = decision_page.text(decision, cluster, decision.scored.stamp.weights, nodes)
        yield b"," + text if written else text
        written += len(text)
    yield b'],"decisions_left_out":%d' % left_out
