"""/debug/decisions: the latest decisions, newest first."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from extender.cluster.cluster import Cluster
from extender.cluster.dump import BLOCK
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

    def __init__(self, cluster: Cluster, kept: Decisions, pages: Pages) -> None:
        """`kept`: the latest decisions."""
        self._cluster, self._kept, self._pages = cluster, kept, pages

    async def decisions(self, request: Request) -> Response:
        """`?pod=NAMESPACE/NAME`: of this pod alone; `?most=`: how many decisions; `?nodes=`: how many nodes of each."""
        text = request.query_params.get("pod")
        pod = None
        if text is not None:
            namespace, slash, name = text.partition("/")
            if not slash or not namespace or not name:
                return error_response(400, "bad-request", "pod is NAMESPACE/NAME", "pod")
            pod = namespace, name
        most = _number(request, "most", 20)
        nodes = _number(request, "nodes", 100)
        if most is None or nodes is None:
            return error_response(400, "bad-request", "most and nodes are whole numbers", "most")
        weights = {entry.name: entry.weight for entry in self._cluster.settings.scorers}
        shown = min(nodes, MOST_NODES)
        return self._pages.answer(
            decision_list(
                list(self._kept.latest()),
                pod,
                max(1, min(most, MOST_DECISIONS)),
                lambda decision: decision_page.pieces(decision, self._cluster, weights, shown),
            )
        )


def _number(request: Request, key: str, default: int) -> int | None:
    text = request.query_params.get(key, str(default))
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else None


def decision_list(
    kept: list[Decision], pod: tuple[str, str] | None, most: int, show: Callable[[Decision], Iterator[bytes]]
) -> Iterator[bytes]:
    """/debug/decisions: of `kept`, newest first, those about a pod (all without one). `show`: the text of one.

    At most `most`, and DECISION_BYTES: `decisions_left_out` states how many of the most are not shown."""
    yield b'{"apiVersion":"gpu-extender.io/v1","kind":"DecisionList","warnings":[],"decisions":['
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
    yield b'],"decisions_left_out":%d}' % left_out


def _about(kept: list[Decision], pod: tuple[str, str] | None, most: int) -> Generator[bytes, None, deque[Decision]]:
    found: deque[Decision] = deque()
    for i, decision in enumerate(kept):
        if len(found) >= most:
            break
        if pod is None or (decision.request.namespace, decision.request.name) == pod:
            found.append(decision)
        if i % BLOCK == BLOCK - 1:
            yield b""
    return found
