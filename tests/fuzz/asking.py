"""Asks the ASGI application on an event loop, and checks what every answer of a verb must be."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, MutableMapping
from typing import Any

from tests.fuzz.engine import Broken

STATUSES = {200, 400, 413}  # of a server whose lists are complete
FILTER_KEYS = {"Nodes", "NodeNames", "FailedNodes", "FailedAndUnresolvableNodes", "Error"}


def ask(loop: asyncio.AbstractEventLoop, app: Any, verb: str, body: bytes, pieces: int = 1) -> tuple[int, bytes]:
    """(status, body) of POST /v1/<verb>; the body comes in so many pieces."""
    size = max(1, -(-len(body) // pieces))
    chunks = [body[at : at + size] for at in range(0, len(body), size)] or [b""]
    said: list[MutableMapping[str, Any]] = []
    path = f"/v1/{verb}"
    scope = {
        "type": "http", "http_version": "1.1", "method": "POST", "scheme": "http", "path": path,
        "raw_path": path.encode(), "root_path": "", "query_string": b"", "client": ("127.0.0.1", 1),
        "headers": [(b"host", b"test"), (b"content-length", str(len(body)).encode())], "server": ("127.0.0.1", 8888),
    }  # fmt: skip

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": chunks.pop(0) if chunks else b"", "more_body": bool(chunks)}

    async def send(message: MutableMapping[str, Any]) -> None:
        said.append(message)

    loop.run_until_complete(app(scope, receive, send))
    return said[0]["status"], b"".join(part.get("body", b"") for part in said[1:])


def check_answer(verb: str, status: int, raw: bytes) -> Any:
    """The answer as JSON, None for a refusal by status; Broken where no kube-scheduler could read it."""
    if status not in STATUSES:
        raise Broken("a status that is not documented", f"{verb}: {status} {raw[:300]!r}", f"{verb} {status}")
    if b"internal error" in raw:
        raise Broken("an answer reports an internal error", f"{verb}: {raw[:300]!r}", verb)
    try:
        answer = json.loads(raw.decode("utf-8"), parse_int=_whole)
    except (UnicodeDecodeError, ValueError) as error:
        raise Broken(
            "an answer is no JSON", f"{verb}: {error}: {raw[:300]!r}", f"{verb} {type(error).__name__}"
        ) from error
    if status != 200:
        if not isinstance(answer.get("error"), dict) or not answer["error"].get("message"):
            raise Broken("an error without a message", f"{verb}: {raw[:300]!r}", verb)
        return None
    return answer


def _whole(digits: str) -> int | str:
    """A number of any length is JSON, and whole nodes come back as they were sent; Python reads no more than 4,300."""
    return int(digits) if len(digits) <= 400 else digits


def check_filter(answer: Any, sent: Collection[str] | None) -> None:
    """`sent`: the names in the request, None where the request is not readable to us."""
    if not isinstance(answer, dict) or set(answer) != FILTER_KEYS or not isinstance(answer["Error"], str):
        raise Broken("the filter answer has another shape", str(answer)[:300])
    if answer["Error"]:
        return
    names, nodes = answer["NodeNames"], answer["Nodes"]
    if (names is None) == (nodes is None):
        raise Broken("the filter answer has both node forms, or neither", str(answer)[:300])
    passed = names if nodes is None else nodes.get("items")
    if not isinstance(passed, list):
        raise Broken("the filter answer has a null list", str(answer)[:300])
    if nodes is not None:
        passed = [item["metadata"]["name"] for item in passed]
    refused = {**answer["FailedNodes"], **answer["FailedAndUnresolvableNodes"]}
    if not all(isinstance(text, str) and text for text in refused.values()):
        raise Broken("a node is rejected without a reason", str(answer)[:300])
    if both := set(passed) & set(refused):
        raise Broken("a node passes and is rejected", str(both)[:300])
    if sent is not None and (strange := (set(passed) | set(refused)) - set(sent)):
        raise Broken("filter names a node that was not sent", str(sorted(strange))[:300])


def check_prioritize(answer: Any, sent: Collection[str] | None) -> None:
    if not isinstance(answer, list):
        raise Broken("the prioritize answer is no list", str(answer)[:300])
    for one in answer:
        if set(one) != {"Host", "Score"} or type(one["Score"]) is not int or not 0 <= one["Score"] <= 10:
            raise Broken("a score is no whole number from 0 to 10", str(one)[:300])
    if sent is not None and (strange := {one["Host"] for one in answer} - set(sent)):
        raise Broken("prioritize names a node that was not sent", str(sorted(strange))[:300])


def victims_of(answer: Any) -> dict[str, list[str]]:
    """node -> uids, after a check of the shape."""
    if not isinstance(answer, dict) or list(answer) != ["NodeNameToMetaVictims"]:
        raise Broken("the preempt answer has another shape", str(answer)[:300])
    found: dict[str, list[str]] = {}
    for node, victims in answer["NodeNameToMetaVictims"].items():
        if set(victims) != {"Pods", "NumPDBViolations"} or not isinstance(victims["Pods"], list):
            raise Broken("the preempt answer has another shape", str(answer)[:300])
        if type(victims["NumPDBViolations"]) is not int or abs(victims["NumPDBViolations"]) >= 2**63:
            raise Broken("NumPDBViolations is no int64", str(answer)[:300])
        found[node] = [pod["UID"] for pod in victims["Pods"]]
    return found
