"""Servers that decide nothing: what HTTP alone costs. `python -m benchmarks.null_server starlette|raw|shortlist PORT`

starlette  the same stack as ours (uvicorn, Starlette, the same routes and settings), a canned answer
raw        an asyncio protocol that looks for the end of the body and writes a canned answer: the floor in Python
shortlist  the raw protocol, but filter answers the first 16 names and prioritize scores all alike: what any extender
           that shortens kube-scheduler's list brings, whatever it decides

`PUT /canned/KEY` sets the answer to `POST /v1/VERB?case=KEY`.
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from extender.decide.decisions import VERBS
from extender.metrics import Metrics
from extender.server.connections import Connections
from extender.server.serve import config
from extender.settings import Settings

SHORTLIST = 16
canned: dict[str, bytes] = {}


async def verb(request: Request) -> Response:
    parts = [part async for part in request.stream()]
    b"".join(parts)
    return Response(canned[request.query_params["case"]], media_type="application/json")


async def put(request: Request) -> Response:
    canned[request.path_params["key"]] = await request.body()
    return Response(b"ok")


async def ready(request: Request) -> Response:
    return Response(b"ok")


def starlette(settings: Settings) -> Starlette:
    routes = [Route(f"/v1/{verb_name}", verb, methods=["POST"]) for verb_name in VERBS]
    routes += [Route("/canned/{key}", put, methods=["PUT"]), Route("/readyz", ready, methods=["GET"])]
    made = Starlette(routes=routes)
    made.router.redirect_slashes = False
    return made


class Raw(asyncio.Protocol):
    """HTTP/1.1 with Content-Length and nothing else."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self.kept = bytearray()
        self.whole = 0  # bytes of the request that is coming in; 0: its head is not complete

    def data_received(self, data: bytes) -> None:
        self.kept += data
        while True:
            if not self.whole:
                end = self.kept.find(b"\r\n\r\n")
                if end < 0:
                    return
                head = bytes(self.kept[:end]).lower()
                at = head.find(b"content-length:")
                length = 0 if at < 0 else int(head[at + 15 :].split(b"\r\n", 1)[0])
                self.whole, self.start = end + 4 + length, end + 4
            if len(self.kept) < self.whole:
                return
            target = bytes(self.kept[: self.kept.find(b"\r\n")]).split(b" ")[1]
            body = self.answer(target, bytes(self.kept[self.start : self.whole]))
            del self.kept[: self.whole]
            self.whole = 0
            head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
            self.transport.write(head + body)

    def answer(self, target: bytes, body: bytes) -> bytes:
        path, _, query = target.decode().partition("?")
        if path.startswith("/canned/"):
            canned[path.removeprefix("/canned/")] = body
            return b"ok"
        return canned[query.removeprefix("case=")] if query else b"ok"


class Shortlist(Raw):
    """Sixteen names, no opinion."""

    def answer(self, target: bytes, body: bytes) -> bytes:
        if target == b"/readyz":
            return b"ok"
        names = orjson.loads(body)["NodeNames"]
        if target.endswith(b"/filter"):
            return orjson.dumps({"Nodes": None, "NodeNames": names[:SHORTLIST], "FailedNodes": {}, "Error": ""})
        return orjson.dumps([{"Host": host, "Score": 0} for host in names])


async def serve(protocol: type[Raw], port: int) -> None:
    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", port)
    await server.serve_forever()


def main(kind: str, port: int) -> None:
    if kind == "starlette":
        settings = Settings()
        at = settings.model_copy(update={"server": settings.server.model_copy(update={"port": port})})
        uvicorn.Server(config(starlette(at), Connections(at, Metrics()), at)).run()
        return
    import uvloop

    uvloop.run(serve({"raw": Raw, "shortlist": Shortlist}[kind], port))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
