"""HTML of templates, and the files that it links.

All templates are compiled when the first server is made, so that no page pays for it. Their bytecode is kept beside
that of this module, where that is kept: compiling takes a fifth of the start of a server.

A file's address contains a hash of its bytes: browsers keep it for ever, and a new version has another address.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemBytecodeCache, FileSystemLoader, StrictUndefined, Template, pass_context
from jinja2.runtime import Context

from extender.ask import capacity, node_reasons, pending
from extender.ask.explanation import BETTER
from extender.ask.text import (
    HOW,
    STATED,
    count,
    lacks,
    named_gpus,
    needs,
    proof,
    result_text,
    seconds,
    terms,
    terms_alone,
    value,
)
from extender.decide.decisions import VERBS
from extender.policy.labels import label
from extender.queue.levels import short_names
from extender.times import rfc3339, time_of_day
from extender.web import drawing
from extender.web.node_pages import HUES, RESERVED_BY

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
"""The content security policy: nothing inline, nothing of another origin."""
HEADERS: Final = {
    "content-security-policy": POLICY,
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
    "vary": "accept",
}
FOREVER: Final = {**HEADERS, "cache-control": "public, max-age=31536000, immutable"}
JSON_TYPE: Final = "application/json"
HTML_TYPE: Final = "text/html; charset=utf-8"
HERE: Final = Path(__file__).parent
TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
HASH: Final = 12


class Asset(NamedTuple):
    """A file that pages link."""

    url: str
    """Its address."""
    media_type: str
    content: bytes


@cache
def assets() -> Mapping[str, Asset]:
    """By file name."""
    by_name = {}
    for path in sorted((HERE / "static").iterdir()):
        if path.suffix in TYPES:
            content = path.read_bytes()
            digest = sha256(content).hexdigest()[:HASH]
            url = f"/static/{path.stem}.{digest}{path.suffix}"
            by_name[path.name] = Asset(url, f"{TYPES[path.suffix]}; charset=utf-8", content)
    return by_name


@cache
def templates() -> Mapping[str, Template]:
    """By file name, compiled."""
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        bytecode_cache=_bytecode(),
    )
    environment.globals |= {
        "asset": {name: asset.url for name, asset in assets().items()},
        "count": count,
        "drawn": drawing.graph,
        "bars": drawing.bars,
        "better": BETTER,
        "compared": drawing.compared,
        "lines": drawing.lines,
        "percent": drawing.percent,
        "shade": drawing.shade,
        "ticks": drawing.ticks,
        "machines_text": capacity.growth_sentence,
        "verbs": VERBS,
        "switched": drawing.switched,
        "widths": drawing.widths,
        "strip": drawing.strip,
        "how_known": HOW,
        "hues": HUES,
        "reserved_by": RESERVED_BY,
        "node_reasons": node_reasons.MEANINGS,
        "pod_reasons": pending.MEANINGS,
        "stated": STATED,
        "link": link,
        "proof": proof,
        "result_text": result_text,
        "split": drawing.split,
        "short_names": short_names,
    }
    environment.filters |= {
        "number": number,
        "duration": duration,
        "clock": clock,
        "stamp": rfc3339,
        "minute": minute,
        "moment": time_of_day,
        "letters": letters,
        "label": label,
        "lacks": lacks,
        "named_gpus": named_gpus,
        "needs": partial(needs, whole=True),
        "terms": terms,
        "terms_alone": terms_alone,
        "value": value,
    }
    return {name: environment.get_template(name) for name in environment.list_templates(["html"])}


def _bytecode() -> FileSystemBytecodeCache | None:
    """Beside this module's own; another version of this file, which may have other options, has other files."""
    folder = HERE / "__pycache__"
    if sys.dont_write_bytecode or not os.access(folder, os.W_OK):
        return None
    return FileSystemBytecodeCache(str(folder), f"%s.{Path(__file__).stat().st_mtime_ns}.jinja")


def html(template: str, model: Mapping[str, Any]) -> bytes:
    """The HTML of a model."""
    return templates()[template].render(model).encode()


def link(path: str, **query: object) -> str:
    """The address of a view; what is None or "" is left out."""
    parameters = {key.rstrip("_"): value for key, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(parameters)}" if parameters else path


def number(value: float | None) -> str:
    """With thousands apart; at most three digits behind the point."""
    if value is None:
        return "unknown"
    if isinstance(value, int) or value.is_integer() or abs(value) >= 1_000:
        return f"{value:,.0f}"
    text = f"{value:.3g}"
    return f"{value:.6f}".rstrip("0").rstrip(".") if "e" in text else text


def duration(value: float | None) -> str:
    """Seconds in words."""
    return "unknown" if value is None else seconds(value)


@pass_context
def clock(context: Context, at: float) -> str:
    """The time of day, UTC, with its day where that is not the day of the view."""
    return time_of_day(at, context["page"]["at"], "%H:%M:%S")


def minute(at: float) -> str:
    """The time of day without its seconds, UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M")


def letters(key: int) -> str:
    """The sign of a holder in a map: A to Z, then AA and so on."""
    sign = ""
    key += 1
    while key:
        key, rest = divmod(key - 1, 26)
        sign = chr(ord("A") + rest) + sign
    return sign
