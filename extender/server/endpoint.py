"""The verbs over HTTP: reads the body, has the call performed, counts, and answers in the form that the verb has."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from starlette.background import BackgroundTask
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from extender.errors import BadRequest, ExtenderError
from extender.log import get_log
from extender.metrics import Metrics
from extender.policy.rules import REASONS, UNKNOWN_NODE
from extender.server import body, garbage
from extender.server.calls import Calls, Start
from extender.verbs import wire
from extender.verbs.answer import Answer
from extender.web.responses import error_response

VERBS: Final = ("filter", "prioritize", "preempt", "bind")
Handler = Callable[[Request], Awaitable[Response]]
log = get_log()


class Endpoint:
    """The verbs of one server. While a list is missing every verb answers 503: never a guess."""

    def __init__(self, calls: Calls, start: Start, metrics: Metrics, names: Sequence[str], most_bytes: int) -> None:
        """`names`: of the nodes, by row; `most_bytes`: of a body."""
        self._calls = {
            "filter": calls.filter,
            "prioritize": calls.prioritize,
            "preempt": calls.preempt,
            "bind": calls.bind,
        }
        self._start, self._metrics, self._names, self._most_bytes = start, metrics, names, most_bytes
        self._sampling = Sampling(metrics)

    def of(self, verb: str) -> Handler:
        """The handler of one of VERBS."""

        async def handle(request: Request) -> Response:
            return await self._handle(verb, request)

        return handle

    async def _handle(self, verb: str, request: Request) -> Response:
        began = time.perf_counter()
        try:
            whole = await body.read(request, self._most_bytes)
            missing = self._start.missing()
            if missing:
                text = "not known yet: " + ", ".join(missing)
                return self._done(verb, began, "not_ready", error_response(503, "not-ready", text))
            answer = await self._calls[verb](whole)
        except BadRequest as error:
            self._metrics.bad_requests.labels(verb, error.code).inc()
            log.warning("bad request", verb=verb, code=error.code, path=error.path, err=error.message[:300])
            return self._done(verb, began, "bad_request", _refusal(verb, error))
        except ClientDisconnect:
            return self._done(verb, began, "gone", Response(status_code=400))
        except Exception as error:
            log.exception("defect", verb=verb)
            return self._done(verb, began, "error", _refusal(verb, ExtenderError(f"internal error: {error!r}"[:300])))
        self._count(verb, answer)
        after = BackgroundTask(_after, verb, answer, self._node_of(answer))
        return self._done(verb, began, "ok", Response(answer.body, media_type="application/json", background=after))

    def _done(self, verb: str, began: float, result: str, response: Response) -> Response:
        self._metrics.request_duration.labels(verb, result).observe(time.perf_counter() - began)
        return response

    def _count(self, verb: str, answer: Answer) -> None:
        metrics, decision = self._metrics, answer.decision
        metrics.decisions.labels(verb, answer.result).inc()
        if decision is None:
            return
        for code, count in decision.judged.reasons.items():
            metrics.refused_nodes.labels(REASONS[code].key).inc(count)
        sampled = decision.detail.get("sampled")
        if sampled is not None:
            self._sampling.note(sampled["named"], sampled["schedulable_gpu_nodes"])
        if verb == "filter" and decision.judged.unknown_count:  # they have no row, and so no code
            metrics.refused_nodes.labels(UNKNOWN_NODE.key).inc(decision.judged.unknown_count)

    def _node_of(self, answer: Answer) -> str | None:
        """The node that the answer is about, by the names of this moment."""
        decision = answer.decision
        if decision is None:
            return None
        ranked = decision.scored.ranked
        return self._names[ranked[0]] if ranked else decision.detail.get("node")


class Sampling:
    """What one process has seen of it."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._warned = False

    def note(self, given: int, known: int) -> None:
        """A call named `given` nodes; `known` schedulable nodes have GPUs."""
        self._metrics.sampled_requests.inc()
        if not self._warned:
            self._warned = True
            log.warning(
                "kube-scheduler names fewer nodes than there are schedulable GPU nodes: the others are full, tainted "
                "or not selected, or it samples (then set percentageOfNodesToScore: 100); logged once, counted in "
                "gpu_extender_sampled_requests_total",
                given=given,
                known=known,
            )


async def _after(verb: str, answer: Answer, node: str | None) -> None:
    """Once the answer is sent, so that no client waits for it. A coroutine, or Starlette would use a thread."""
    _log(verb, answer, node)
    garbage.collect()


def _log(verb: str, answer: Answer, node: str | None) -> None:
    decision = answer.decision
    if decision is None:
        return
    request = decision.request
    log.info(
        "decided",
        verb=verb,
        pod=f"{request.namespace}/{request.name}",
        result=answer.result,
        candidates=decision.candidates,
        feasible=decision.feasible,
        node=node,
        plan=decision.detail.get("plan"),
        why=decision.detail.get("why"),
        err=decision.error or None,
        us=round(sum(decision.stages_us.values())),
        **decision.logged(),
    )


def _refusal(verb: str, error: ExtenderError) -> Response:
    """An error in the form that the verb understands: `Error` where it has one, else a status that is not 200."""
    text = f"gpu-extender: {error}"
    if verb == "filter":
        return Response(wire.filter_error(text), media_type="application/json")
    if verb == "bind":
        return Response(wire.binding(text), media_type="application/json")
    return error_response(error.status if error.status != 500 else 503, error.code, error.message, error.path)
