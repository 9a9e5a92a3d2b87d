"""An extender that allows everything and keeps every request byte for byte."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

import orjson

Object = dict[str, Any]
Answer = Callable[[Object], object]


def allow_all(arguments: Object) -> Object:
    """filter: each node that was asked about passes, in the form in which it came."""
    return {"Nodes": arguments["Nodes"], "NodeNames": arguments["NodeNames"], "FailedNodes": {}, "Error": ""}


def equal_scores(arguments: Object) -> list[Object]:
    """prioritize: five points for each."""
    if arguments["NodeNames"] is not None:
        names = arguments["NodeNames"]
    else:
        names = [node["metadata"]["name"] for node in arguments["Nodes"]["items"]]
    return [{"Host": name, "Score": 5} for name in names]


def agree(arguments: Object) -> Object:
    """preempt: the scheduler's own victims, which the answer names by uid whatever form they came in."""
    victims = arguments["NodeNameToMetaVictims"]
    if victims is None:
        victims = {
            node: {
                "Pods": [{"UID": pod["metadata"]["uid"]} for pod in offer["Pods"]],
                "NumPDBViolations": offer["NumPDBViolations"],
            }
            for node, offer in arguments["NodeNameToVictims"].items()
        }
    return {"NodeNameToMetaVictims": victims}


class RecordingExtender:
    """A server on loopback; ``requests`` holds (verb, headers, raw body) in order of arrival."""

    def __init__(self, answers: Mapping[str, Answer] | None = None) -> None:
        """``answers`` replaces what a verb answers; bind has no answer of its own."""
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        verbs: dict[str, Answer] = {"filter": allow_all, "prioritize": equal_scores, "preempt": agree}
        verbs.update(answers or {})
        requests = self.requests

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                verb = self.path.rpartition("/")[2]
                requests.append((verb, dict(self.headers), body))
                answer = orjson.dumps(verbs[verb](orjson.loads(body)))
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: object) -> None:
                """Quiet: the requests are kept anyway."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> RecordingExtender:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def bodies(self, verb: str) -> list[bytes]:
        """The raw bodies that came for a verb."""
        return [body for name, _, body in list(self.requests) if name == verb]
