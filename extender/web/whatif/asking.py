"""The view of the page that asks what if: its form, and the answer as HTML.

The form is sent by the page's script, in JSON: no form of another site can send that. The answer is made by the process
of its own that makes it for every client; here it is only written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import orjson

from extender.cluster.slices import Sliced
from extender.web.page import render
from extender.whatif.question import MOST_PODS

MOST_BYTES: Final = 1 << 20
"""Of a question."""
MOST_SHOWN: Final = 256 << 10
"""Of an answer that becomes HTML: more would take too long in one piece."""
MOST_GIVEN: Final = 2_000
"""Characters of a field that an address fills in."""
TOO_LARGE: Final = (
    "the answer is too large for the page: ask about fewer pods, or use gpu-extender whatif, which prints all of it"
)
TEMPLATE: Final = "whatif_answer.html"
JSON = dict[str, Any]


def form(query: Mapping[str, str]) -> Sliced[JSON]:
    """`?pod=NAMESPACE/NAME`, `?drain=NODE`, `?cordon=NODE`: what the form has when it opens; names apart by spaces."""
    yield
    given = {key: query.get(key, "")[:MOST_GIVEN] for key in ("pod", "cordon", "drain")}
    return {**given, "most_bytes": MOST_BYTES, "most_pods": MOST_PODS}


def pieces(text: bytes) -> Iterator[bytes]:
    """The HTML of an answer in JSON, or of an error."""
    if len(text) > MOST_SHOWN:
        text = orjson.dumps({"error": {"code": "too-large", "path": "", "message": TOO_LARGE}})
    said = orjson.loads(text)
    yield b""
    grouped = {f"{pod['namespace']}/{pod['name']}" for one in said.get("groups", ()) for pod in one["pods"]}
    model = {"error": said.get("error"), "answer": said, "grouped": grouped}
    yield from render.pieces(TEMPLATE, model)
