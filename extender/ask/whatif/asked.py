"""A what-if as a server is asked it: in JSON, about the cluster as it is. It is answered in a fork, which may change
the cluster."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import orjson

from extender.ask import judge
from extender.ask.place import QueueLook
from extender.ask.suppose import SupposedCluster
from extender.ask.whatif import engine
from extender.ask.whatif.question import Added, Changes, Document, Question, read
from extender.decide.verbs import Verbs
from extender.errors import BadInput
from extender.objects import yaml_documents
from extender.queue.report import QueueReport

WAYS_SECONDS: Final = 20
"""CPU time after which no further way out is looked for."""
FIELDS: Final = frozenset({"objects", "manifest", "pods", "add", "cordon", "drain", "holdings"})
MOST_NAMES: Final = 1_000
"""Pods or nodes that one field names."""


def answer(verbs: Verbs, body: bytes, report: QueueReport | None, now: float, wall: float) -> Iterator[bytes]:
    """`kind: WhatIf`. The cluster of the verbs is changed by it, and serves no second question. `report`: the
    latest look at the queue, None where it is not known; `now`: on its clock; `wall`: seconds since 1970. NotFound,
    BadInput."""
    cluster = verbs.cluster
    cluster.tick(now)
    until = time.process_time() + WAYS_SECONDS
    asked = question(body, cluster.gpu_names)
    supposed = SupposedCluster(judge.over(verbs), now, live=True, over=lambda: time.process_time() > until)
    return engine.answer(supposed, asked, wall, queue=QueueLook(report)).pieces()


def question(body: bytes, gpus: frozenset[str]) -> Question:
    """The question of a body. BadInput."""
    try:
        fields = orjson.loads(body)
    except ValueError as error:
        raise BadInput(f"malformed JSON: {error}", path="body") from None
    if not isinstance(fields, dict) or fields.keys() - FIELDS:
        known = ", ".join(sorted(FIELDS))
        raise BadInput(f"expected an object with some of these fields: {known}", path="body")
    documents = [Document(value, f"objects[{at}]") for at, value in enumerate(_list(fields, "objects"))]
    repeated: list[str] = []
    manifest = _manifest(fields.get("manifest"), repeated)
    documents += [Document(document, f"manifest: items[{at}]") for at, document in enumerate(manifest)]
    named = [_pod(text) for text in _names(fields, "pods")]
    added = [_added(entry, f"add[{at}]") for at, entry in enumerate(_list(fields, "add"))]
    changes = Changes(tuple(added), tuple(_names(fields, "cordon")), tuple(_names(fields, "drain")))
    holdings = fields.get("holdings")
    if not isinstance(holdings, bool | None):
        raise BadInput("expected true or false", path="holdings")
    asked = read(documents, gpus, named, changes)
    return replace(asked, holdings=holdings is not False, repeated=tuple(repeated))


def _manifest(text: Any, repeated: list[str]) -> list[Any]:
    """The objects of a manifest in YAML or JSON."""
    if not isinstance(text, str | None):
        raise BadInput("expected a text", path="manifest")
    try:
        documents = yaml_documents.documents((text or "").encode(), aliases=False, repeated=repeated)
        return [document for document in documents if document is not None]
    except RecursionError:
        raise BadInput("nested too deep", path="manifest") from None
    except (yaml_documents.Error, ValueError) as error:
        raise BadInput(f"malformed YAML: {' '.join(str(error).split())}", path="manifest") from None


def _list(fields: Mapping[str, Any], field: str) -> list[Any]:
    value = fields.get(field)
    if value is None:
        return []
    if not isinstance(value, list):
        raise BadInput("expected a list", path=field)
    return value


def _names(fields: Mapping[str, Any], field: str) -> list[str]:
    names = _list(fields, field)
    if len(names) > MOST_NAMES or not all(isinstance(name, str) for name in names):
        raise BadInput(f"expected a list of {MOST_NAMES} names at most", path=field)
    return names


def _pod(text: str) -> tuple[str, str]:
    namespace, _, name = text.partition("/")
    if not namespace or not name or "/" in name:
        raise BadInput(f"{text[:100]!r} is not NAMESPACE/NAME", path="pods")
    return namespace, name


def _added(entry: Any, path: str) -> Added:
    count, like = (entry.get("count"), entry.get("like")) if isinstance(entry, dict) else (None, None)
    if not isinstance(count, int) or isinstance(count, bool) or count < 1 or not isinstance(like, str):
        raise BadInput('expected {"count": N, "like": NODE or catalogue:ID}', path=path)
    return Added(count, like)
