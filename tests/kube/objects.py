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
        body: Any = json.loads(request.body) if request.body else None
        path = request.path.removesuffix("/status")
        found: Any
        if request.method == "GET":
            found = self.stored.get(path)
            await (whole(200, found) if found is not None else failed(404, "not found"))(request, writer)
        elif request.method == "POST":
            self.posted.append(body)
            if path.endswith(("/eviction", "/binding")):
                await whole(201, {"kind": "Status", "status": "Success"})(request, writer)
                return
            place = f"{path}/{body['metadata']['name']}"
            if place in self.stored:
                await failed(409, "already exists")(request, writer)
                return
            await whole(201, self.put(place, body))(request, writer)
        elif request.method == "DELETE":
            found = self.stored.pop(path, None)
            await (whole(200, found) if found is not None else failed(404, "not found"))(request, writer)
        elif request.method == "PUT":
            found = self.stored.get(path)
            if found is None:
                await failed(404, "not found")(request, writer)
            elif found["metadata"]["resourceVersion"] != body["metadata"].get("resourceVersion"):
                await failed(409, "the object has been modified")(request, writer)
            else:
                await whole(200, self.put(path, body))(request, writer)
        elif request.method == "PATCH":
            self.patched.append(body)
            found = self.stored.get(path)
            stated = body["metadata"].get("resourceVersion") if isinstance(body.get("metadata"), dict) else None
            if found is None:
                await failed(404, "not found")(request, writer)
            elif stated is not None and stated != found["metadata"]["resourceVersion"]:
                await failed(409, "the object has been modified")(request, writer)
            else:
                made = self.put(path, merged(found, body))
                await (hung_up() if self.lost else whole(200, made))(request, writer)

    def put(self, place: str, body: Any) -> Any:
        self.version += 1
        meta = {**body.get("metadata", {}), "resourceVersion": str(self.version)}
        self.stored[place] = {**body, "metadata": meta}
        return self.stored[place]


def merged(into: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict) or not isinstance(into, dict):
        return patch
    out = dict(into)
    for key, value in patch.items():
        if value is None:
            out.pop(key, None)
        else:
            out[key] = merged(out.get(key), value)
    return out
