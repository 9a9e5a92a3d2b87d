"""An API server that keeps objects: enough of create, get, replace, merge-patch and the Eviction API.

It answers every request of `serving(Script([objects.answer]))`. `fail` is asked first: a status instead of an answer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.kube.api_server import Request, Writer, failed, hung_up, whole

Fail = Callable[[Request], int]


@dataclass
class Objects:
    """What is stored, by path. `delay`: seconds before each answer."""

    stored: dict[str, Any] = field(default_factory=dict)
    fail: Fail = lambda request: 0
    why: str = "as told"  # what a failed answer says
    delay: float = 0.0
    version: int = 1
    said: list[tuple[str, str]] = field(default_factory=list)  # (method, path) of each request
    posted: list[Any] = field(default_factory=list)
    patched: list[Any] = field(default_factory=list)
    lost: bool = False  # what is written is stored, and its answer is lost

    async def answer(self, request: Request, writer: Writer) -> None:
        self.said.append((request.method, request.path))
        if self.delay:
            await asyncio.sleep(self.delay)
        status = self.fail(request)
        if status:
            await failed(status, self.why)(request, writer)
            return
        await self._do(request, writer)

    async def _do(self, request: Request, writer: Writer) -> None:
        status, found = self.handled(request.method, request.path, request.body)
        if status >= 400:
            await failed(status, found)(request, writer)
        elif self.lost and request.method == "PATCH":
            await hung_up()(request, writer)
        else:
            await whole(status, found)(request, writer)

    def handled(self, method: str, path: str, raw: bytes | None) -> tuple[int, Any]:
        """What is answered to a request that does not fail: a status of 400 and more comes with a message."""
        body: Any = json.loads(raw) if raw else None
        path = path.removesuffix("/status")
        found: Any = self.stored.get(path)
        if method == "POST":
            self.posted.append(body)
            if path.endswith(("/eviction", "/binding")):
                return 201, {"kind": "Status", "status": "Success"}
            place = f"{path}/{body['metadata']['name']}"
            return (409, "already exists") if place in self.stored else (201, self.put(place, body))
        if method == "PATCH":
            self.patched.append(body)
        if found is None:
            return 404, "not found"
        if method == "GET":
            return 200, found
        if method == "DELETE":
            del self.stored[path]
            return 200, found
        version = found["metadata"]["resourceVersion"]
        meta = body.get("metadata")
        stated = meta.get("resourceVersion") if isinstance(meta, dict) else None
        if stated != version and (method == "PUT" or stated is not None):
            return 409, "the object has been modified"
        return 200, self.put(path, body if method == "PUT" else merged(found, body))

    def put(self, place: str, body: Any) -> Any:
        self.version += 1
        meta = {**body.get("metadata", {}), "resourceVersion": str(self.version)}
        self.stored[place] = {**body, "metadata": meta}
        return self.stored[place]


def merged(into: Any, patch: Any) -> Any:
    """RFC 7386; conditions by their type, as the strategic patches that write them."""
    if not isinstance(patch, dict) or not isinstance(into, dict):
        return patch
    out = dict(into)
    for key, value in patch.items():
        if value is None:
            out.pop(key, None)
        elif key == "conditions":
            by_type = {condition["type"]: condition for condition in out.get(key) or ()}
            out[key] = list((by_type | {condition["type"]: condition for condition in value}).values())
        else:
            out[key] = merged(out.get(key), value)
    return out
