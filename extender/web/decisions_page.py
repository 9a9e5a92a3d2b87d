"""/debug/decisions: the latest decisions, newest first."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from extender.cluster.dump import BLOCK
from extender.cluster.view import ClusterView
from extender.errors import BadRequest
from extender.verbs.decisions import Decision, Decisions
from extender.web import decision_page
from extender.web.pages import Pages
from extender.web.responses import error_response

DECISION_BYTES: Final = 32 << 20
"""Of one answer of /debug/decisions; what does not fit is left out, and counted."""
MOST_DECISIONS: Final = 1_000
MOST_NODES: Final = 20_000


class DecisionsPage:
    """The handler of the page."""

    def __init__(self, cluster: ClusterView, kept: Decisions, pages: Pages) -> None:
        """`kept`: the latest decisions."""
        self._cluster, self._kept, self._pages = cluster, kept, pages

    async def decisions(self, request: Request) -> Response:
        """`?pod=NAMESPACE/NAME`: of this pod alone; `?most=`: how many decisions; `?nodes=`: how many nodes of each."""
        try:
            pod = pod_of(request.query_params) if "pod" in request.query_params else None
            most, show = asked(request, self._cluster)
        except BadRequest as error:
            return error_response(error.status, error.code, error.message, error.path)
        return self._pages.answer(decision_list(list(self._kept.latest()), pod, most, show))


def pod_of(query: Mapping[str, str]) -> tuple[str, str]:
    """(namespace, name) of the pod that a page is asked about. BadRequest."""
    namespace, slash, name = query.get("pod", "").partition("/")
    if not slash or not namespace or not name:
        raise BadRequest("pod is NAMESPACE/NAME", path="pod")
    return namespace, name


def asked(request: Request, cluster: ClusterView, default: int = 20) -> tuple[int, Show]:
    """(how many decisions are shown, how each is). BadRequest."""
    most, nodes = _number(request, "most", default), _number(request, "nodes", 100)
    shown = min(nodes, MOST_NODES)
    return max(0, min(most, MOST_DECISIONS)), lambda one: decision_page.pieces(
        one, cluster, one.scored.stamp.weights, shown
    )


def _number(request: Request, key: str, default: int) -> int:
    text = request.query_params.get(key, str(default))
    if not text.isascii() or not text.isdigit() or len(text) > 6:
        raise BadRequest("most and nodes are whole numbers", path="most")
    return int(text)


Show = Callable[[Decision], Iterator[bytes]]
"""The text of one decision, in small pieces."""


def decision_list(kept: list[Decision], pod: tuple[str, str] | None, most: int, show: Show) -> Iterator[bytes]:
    """/debug/decisions: of `kept`, newest first, those about a pod or with it as a victim (all without one); at most
    `most`, and DECISION_BYTES."""
    yield b'{"apiVersion":"gpu-extender.io/v1","kind":"DecisionList","warnings":[],'
    yield from fields(kept, pod, most, show)
    yield b"}"


def fields(kept: list[Decision], pod: tuple[str, str] | None, most: int, show: Show) -> Iterator[bytes]:
    """Two fields of an object: `decisions`, and `decisions_left_out`: how many of the most are not shown."""
    yield b'"decisions":['
    found = yield from _about(kept, pod, most)
    kept.clear()  # what is pushed out of the ring meanwhile may go
    written, left_out = 0, 0
    while found:
        one = found.popleft()
        if written >= DECISION_BYTES:
            left_out += 1
            continue
        comma = b"," if written else b""
        for piece in show(one):
            written += len(piece)
            yield comma + piece if piece else piece
            comma = b"" if piece else comma
    yield b'],"decisions_left_out":%d' % left_out


def _about(kept: list[Decision], pod: tuple[str, str] | None, most: int) -> Generator[bytes, None, deque[Decision]]:
    found: deque[Decision] = deque()
    for i, decision in enumerate(kept):
        if len(found) >= most:
            break
        if pod is None or decision.concerns(*pod):
            found.append(decision)
        if i % BLOCK == BLOCK - 1:
            yield b""
    return found
