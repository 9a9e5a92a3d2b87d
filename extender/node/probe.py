"""A page for kubelet's liveness probe and one for Prometheus, for programs too small for a web server."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def serve(
    host: str, port: int, trouble: Callable[[], str], counts: Callable[[], Mapping[str, float]], name: str
) -> int:
    """Serves /livez (200, or 500 with what `trouble` returns) and /metrics in a thread; returns the port.

    A count's name becomes `gpu_extender_NAME_total{what="..."}`.
    """

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path in ("/livez", "/healthz"):
                wrong = trouble()
                self._answer(500 if wrong else 200, wrong or "ok")
            elif path == "/metrics":
                self._answer(200, as_metrics(name, counts()))
            else:
                self._answer(404, "/livez and /metrics are here")

        def _answer(self, status: int, text: str) -> None:
            body = (text.rstrip("\n") + "\n").encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Probes come every few seconds; they are not logged."""

    server = ThreadingHTTPServer((host, port), Page)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="probe", daemon=True).start()
    return int(server.server_address[1])


def as_metrics(name: str, counts: Mapping[str, float]) -> str:
    """Counts in Prometheus' text format."""
    lines = [f"# TYPE gpu_extender_{name}_total counter"]
    for event, count in sorted(counts.items()):
        label = re.sub(r"[^a-z0-9]+", "_", event.lower()).strip("_")
        lines.append(f'gpu_extender_{name}_total{{what="{label}"}} {count:g}')
    return "\n".join(lines)
