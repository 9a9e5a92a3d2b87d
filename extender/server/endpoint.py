"""The verbs over HTTP. Each has the call performed, counts, answers in the form that the verb has, and logs once the
answer is sent. `server/connections.py` hands over a body when it is whole; other ASGI servers call a plain ASGI
application.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from prometheus_client import Counter
from starlette.requests import ClientDisconnect

from extender.decide import wire
from extender.decide.decisions import Answer, Decision
from extender.errors import BadRequest, BodyTooLarge, ExtenderError
from extender.log import Allowance, get_log, info
from extender.metrics import Durations, Metrics
from extender.policy.reasons import REASONS, UNKNOWN_NODE
from extender.server import connections, garbage
from extender.server.connections import VerbReply
from extender.server.shadow import VerbCalls
from extender.web.pages import error_response, not_known

SAMPLED: Final = frozenset(("filter", "prioritize"))
"""Verbs of which kube-scheduler makes many calls for one pod: above a rate not every line is written."""
BURST_SECONDS: Final = 10.0
"""So many seconds' worth of lines may come at once."""
MOST_REJECTED: Final = 10_000
"""Pods whose rejections are remembered, so that the first one for each reason is logged."""
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Perform = Callable[[bytes], Answer | Awaitable[Answer]]
"""The call of a verb; an awaitable where it may have to wait."""
log = get_log()


class Endpoint:
    """The verbs of one server. While a list is missing every verb answers 503: never a guess."""

    def __init__(
        self,
        calls: VerbCalls,
        missing: Callable[[], list[str]],
        metrics: Metrics,
        lines: DecisionLog,
        most_bytes: int,
    ) -> None:
        """`missing`: what is not known yet, in words, empty when verbs may be answered; `most_bytes`: of a body."""
        performs: dict[str, Perform] = {
            "filter": calls.filter,
            "prioritize": calls.prioritize,
            "preempt": calls.preempt,
            "bind": calls.bind,
        }
        self.missing, self.metrics, self.lines, self.most_bytes = missing, metrics, lines, most_bytes
        self._warned_of_sampling = False
        self.refused: dict[int, Counter] = {}  # by reason code
        self.verbs = {verb: VerbApp(self, verb, perform) for verb, perform in performs.items()}

    def sampled(self, named: int, left_out: int) -> None:
        """A call named `named` nodes, and not the `left_out` others where its pod fits too."""
        self.metrics.sampled_requests.inc()
        if not self._warned_of_sampling:
            self._warned_of_sampling = True
            log.warning(
                "kube-scheduler leaves out nodes where the pod fits: it samples (set percentageOfNodesToScore: 100), "
                "or another plugin or extender rejects them; logged once, counted in "
                "gpu_extender_sampled_requests_total",
                named=named,
                left_out=left_out,
            )


class VerbApp:
    """One verb. What it counts is looked up by label once."""

    def __init__(self, endpoint: Endpoint, verb: str, perform: Perform) -> None:
        self._endpoint, self._verb, self._perform = endpoint, verb, perform
        self._missing, self.most_bytes = endpoint.missing, endpoint.most_bytes
        self._durations: dict[str, Durations] = {}
        self._decisions: dict[str, Counter] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One call over ASGI."""
        began = time.perf_counter()
        try:
            foreign = _foreign(scope)
            whole = b"" if foreign else await read(scope, receive, self.most_bytes)
        except Exception as error:
            reply = self.failed(error, began)
        else:
            coming = self._reply("bad_request", *foreign, began) if foreign else self.begin(whole, began)
            reply = coming if isinstance(coming, VerbReply) else await coming
        headers = [(b"content-length", b"%d" % len(reply.content)), (b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": reply.content})
        self.sent(reply)

    def begin(self, whole: bytes, began: float) -> VerbReply | Awaitable[VerbReply]:
        """The reply to a body; an awaitable only where it has to wait. `began`: `time.perf_counter` when the request
        came."""
        try:
            missing = self._missing()
            if missing:
                status, content = _error(503, "not-ready", not_known(missing))
                return self._reply("not_ready", status, content, began)
            answer = self._perform(whole)
            if isinstance(answer, Answer):
                return self._answered(answer, began)
        except Exception as error:
            return self.failed(error, began)
        return self._finish(answer, began)

    async def _finish(self, coming: Awaitable[Answer], began: float) -> VerbReply:
        try:
            return self._answered(await coming, began)
        except Exception as error:
            return self.failed(error, began)

    def _answered(self, answer: Answer, began: float) -> VerbReply:
        self._count(answer)
        return self._reply("ok", 200, answer.body, began, answer)

    def failed(self, error: Exception, began: float) -> VerbReply:
        """The reply to a request that is bad, that its client gave up, or that met a defect; for `except` blocks."""
        if isinstance(error, BadRequest):
            return self._reply("bad_request", *self._bad(error), began)
        if isinstance(error, ClientDisconnect):
            return self._reply("gone", 400, b"", began)
        log.error("defect", verb=self._verb, exc_info=error)
        return self._reply("error", *_refusal(self._verb, ExtenderError(f"internal error: {error!r}"[:300])), began)

    def _reply(self, result: str, status: int, content: bytes, began: float, answer: Answer | None = None) -> VerbReply:
        duration = self._durations.get(result)
        if duration is None:
            duration = self._durations[result] = self._endpoint.metrics.request_duration.labels(self._verb, result)
        duration.observe(time.perf_counter() - began)
        return VerbReply(status, content, answer)

    def sent(self, reply: VerbReply) -> None:
        """Log once the event loop has sent the reply, so that no client waits for it."""
        if reply.answer is None:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # driven by hand
            self._after(reply.answer)
        else:
            loop.call_soon(self._after, reply.answer)

    def _after(self, answer: Answer) -> None:
        self._endpoint.lines.write(self._verb, answer)
        garbage.collect()

    def _bad(self, error: BadRequest) -> tuple[int, bytes]:
        self._endpoint.metrics.bad_requests.labels(self._verb, error.code).inc()
        log.warning("bad request", verb=self._verb, code=error.code, path=error.path, err=error.message[:300])
        return _refusal(self._verb, error)

    def _count(self, answer: Answer) -> None:
        endpoint, decision = self._endpoint, answer.decision
        counter = self._decisions.get(answer.result)
        if counter is None:
            counter = self._decisions[answer.result] = endpoint.metrics.decisions.labels(self._verb, answer.result)
        counter.inc()
        if decision is None:
            return
        refused, judged = endpoint.refused, decision.judged
        for code, count in judged.reasons.items():
            if code not in refused:
                refused[code] = endpoint.metrics.refused_nodes.labels(REASONS[code].key)
            refused[code].inc(count)
        sampled = decision.detail.get("sampled")
        if sampled is not None:
            endpoint.sampled(sampled["named"], sampled["left_out"])
        if judged.unknown_count and self._verb == "filter":  # they have no row, and so no code
            endpoint.metrics.refused_nodes.labels(UNKNOWN_NODE.key).inc(judged.unknown_count)


class DecisionLog:
    """The log lines of decisions. Above a rate the lines of SAMPLED verbs are sampled, except for errors and the first
    rejection of a pod for a reason; the metric counts those that are left out."""

    def __init__(
        self,
        metrics: Metrics,
        name_at: Callable[[int, int], str],
        per_second: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`name_at`: of the node that had a row at a generation; `per_second`: lines on average over BURST_SECONDS;
        `clock`: seconds."""
        self._metrics, self._name_at, self._clock = metrics, name_at, clock
        self._allowance = Allowance(max(1.0, BURST_SECONDS * per_second), per_second)
        self._rejected: dict[str, int] = {}  # uid -> the reason codes it was rejected for, one bit each; oldest first

    def write(self, verb: str, answer: Answer) -> None:
        """The line of an answer that is sent; none for a pod without GPUs."""
        decision = answer.decision
        if decision is None:
            return
        sampled = verb in SAMPLED and not decision.error and not self._first(answer)
        if sampled and self._allowance.take(self._clock()) is None:
            self._metrics.log_lines_sampled.inc()
            return
        request, ranked, detail = decision.request, decision.scored.ranked, decision.detail
        info(
            "decided",
            {
                "verb": verb,
                "pod": f"{request.namespace}/{request.name}",
                "result": answer.result,
                "candidates": decision.candidates,
                "feasible": decision.feasible,
                "reasons": _reasons(decision),
                "node": self._name_at(ranked[0], decision.generation) if ranked else detail.get("node"),
                "plan": detail.get("plan"),
                "why": detail.get("why"),
                "err": decision.error or None,
                "us": round(decision.spent_us),
                **(decision.logged() if detail or decision.proved is not None else {}),
            },
        )

    def _first(self, answer: Answer) -> bool:
        """Whether a pod is rejected for a reason that it was not rejected for before."""
        decision = answer.decision
        if decision is None or answer.result != "refused":
            return False
        codes = 1 << UNKNOWN_NODE.code if decision.judged.unknown_count else 0
        for code in decision.judged.reasons:
            codes |= 1 << code
        uid = decision.request.uid
        before = self._rejected.pop(uid, 0)
        self._rejected[uid] = before | codes
        if len(self._rejected) > MOST_REJECTED:
            del self._rejected[next(iter(self._rejected))]
        return before | codes != before


def _reasons(decision: Decision) -> dict[str, int] | None:
    """How many nodes were rejected for which reason; None where all fit."""
    judged = decision.judged
    if not judged.reasons and not judged.unknown_count:
        return None
    counts = {REASONS[code].key: count for code, count in judged.reasons.items()}
    if judged.unknown_count:
        counts[UNKNOWN_NODE.key] = judged.unknown_count
    return counts


def _foreign(scope: Scope) -> tuple[int, bytes] | None:
    """The answer to a request that a web page made: a browser states `Origin` with each POST, and asks before it sends
    JSON to another server. kube-scheduler sends JSON, and no `Origin`."""
    for name, value in scope["headers"]:
        if name == b"origin":
            return _error(403, "other-origin", "a web page may not call a verb", "Origin")
        if name == b"content-type" and value.partition(b";")[0].strip().lower() != b"application/json":
            return _error(415, "not-json", "a verb takes application/json", "Content-Type")
    return None


def _error(status: int, code: str, message: str, path: str = "") -> tuple[int, bytes]:
    return status, bytes(error_response(status, code, message, path).body)


def _refusal(verb: str, error: ExtenderError) -> tuple[int, bytes]:
    """An error in the form that the verb understands: `Error` where it has one, else a status that is not 200."""
    text = f"gpu-extender: {error}"
    if verb == "filter":
        return 200, wire.filter_error(text)
    if verb == "bind":
        return 200, wire.binding(text)
    return _error(error.status if error.status != 500 else 503, error.code, error.message, error.path)


# -- the body of a call over ASGI -------------------------------------------------------------------------------------


async def read(
    scope: MutableMapping[str, Any], receive: Callable[[], Awaitable[MutableMapping[str, Any]]], most: int
) -> bytes:
    """All bytes of the body, `most` at most. BadRequest: it is larger, or its connection gave it up; ClientDisconnect:
    the client left."""
    for key, length in scope["headers"]:
        if key == b"content-length" and length.isdigit() and int(length) > most:
            raise BodyTooLarge(f"the body has {int(length)} bytes, the limit is {most} (settings: limits.bodyBytes)")
    parts: list[bytes] = []
    size = 0
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        refused = connections.refusal(scope)
        if refused is not None:
            parts.clear()  # the connection keeps the error, which keeps this frame
            raise refused
        part = message.get("body", b"")
        more = message.get("more_body", False)
        size += len(part)
        if size > most:
            raise BodyTooLarge(f"the body has more than {most} bytes (settings: limits.bodyBytes)")
        parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
