"""Answers one what-if of a running server in a process of its own: `python -m extender.whatif.worker`.

Standard input has the state of the server (`live.written`), then the question in JSON and the time at which it is
asked. Standard output gets the answer, or the error with its status. The CPU time of the process is bounded, and the
process of the verbs comes first. An argument states how many bytes of memory it may take: a question of 1 MiB can ask
for 1,000 pods of that size, and a container that exceeds its limit ends with the server in it."""

from __future__ import annotations

import os
import pickle
import resource
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, BinaryIO, Final

import orjson

from extender.cluster.slices import finish
from extender.errors import BadInput, ExtenderError
from extender.objects.manifests import yaml_documents
from extender.whatif import engine, live
from extender.whatif.question import Added, Changes, Document, Question, read

STDOUT: Final = 1
NICE: Final = 10
"""How much the verbs' process is preferred."""
WAYS_SECONDS: Final = 20
"""CPU time after which no further way out is looked for."""
MOST_SECONDS: Final = 60
"""CPU time after which the process is ended."""
NO_MEMORY: Final = b"the answer needs more memory than is left: ask about fewer pods"
FIELDS: Final = frozenset({"objects", "manifest", "pods", "add", "cordon", "drain", "holdings"})
MOST_NAMES: Final = 1_000
"""Pods or nodes that one field names."""


def main() -> int:
    """Answers, once."""
    os.nice(NICE)
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_SECONDS, MOST_SECONDS))
    for most in map(int, sys.argv[1:]):
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    with open(os.dup(STDOUT), "wb") as out, open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), STDOUT)  # what the copy logs is logged by the server already
        out.writelines(_answer(sys.stdin.buffer))
    return 0


def _answer(file: BinaryIO) -> list[bytes]:
    """The status as a line, then the body."""
    try:
        snapshot = live.read(file, lambda: time.process_time() > WAYS_SECONDS)
        body, wall = pickle.load(file)
        asked = question(body, snapshot.cluster.gpu_names)
        made = finish(engine.answer(snapshot, asked, wall))
        return [b"200\n", *made.pieces()]
    except ExtenderError as error:
        return [b"%d\n" % error.status, orjson.dumps(error.as_json())]
    except MemoryError:
        return [b"503\n", b'{"error":{"code":"no-memory","path":"","message":"%s"}}' % NO_MEMORY]


def question(body: bytes, gpus: frozenset[str]) -> Question:
    """The question of a body. BadInput."""
    try:
        said = orjson.loads(body)
    except ValueError as error:
        raise BadInput(f"malformed JSON: {error}", path="body") from None
    if not isinstance(said, dict) or said.keys() - FIELDS:
        known = ", ".join(sorted(FIELDS))
        raise BadInput(f"expected an object with some of these fields: {known}", path="body")
    documents = [Document(one, f"objects[{at}]") for at, one in enumerate(_list(said, "objects"))]
    documents += [Document(one, f"manifest: items[{at}]") for at, one in enumerate(_manifest(said.get("manifest")))]
    named = [_pod(text) for text in _names(said, "pods")]
    added = [_added(one, f"add[{at}]") for at, one in enumerate(_list(said, "add"))]
    changes = Changes(tuple(added), tuple(_names(said, "cordon")), tuple(_names(said, "drain")))
    holdings = said.get("holdings")
    if not isinstance(holdings, bool | None):
        raise BadInput("expected true or false", path="holdings")
    return replace(read(documents, gpus, named, changes), holdings=holdings is not False)


def _manifest(text: Any) -> list[Any]:
    """The objects of a manifest in YAML or JSON."""
    if not isinstance(text, str | None):
        raise BadInput("expected a text", path="manifest")
    try:
        found = yaml_documents.documents((text or "").encode(), aliases=False)
        return [one for one in found if one is not None]
    except RecursionError:
        raise BadInput("nested too deep", path="manifest") from None
    except (yaml_documents.Error, ValueError) as error:
        raise BadInput(f"malformed YAML: {' '.join(str(error).split())}", path="manifest") from None


def _list(said: Mapping[str, Any], field: str) -> list[Any]:
    found = said.get(field)
    if found is None:
        return []
    if not isinstance(found, list):
        raise BadInput("expected a list", path=field)
    return found


def _names(said: Mapping[str, Any], field: str) -> list[str]:
    found = _list(said, field)
    if len(found) > MOST_NAMES or not all(isinstance(one, str) for one in found):
        raise BadInput(f"expected a list of {MOST_NAMES} names at most", path=field)
    return found


def _pod(text: str) -> tuple[str, str]:
    namespace, _, name = text.partition("/")
    if not namespace or not name or "/" in name:
        raise BadInput(f"{text[:100]!r} is not NAMESPACE/NAME", path="pods")
    return namespace, name


def _added(one: Any, path: str) -> Added:
    count, what = (one.get("count"), one.get("like")) if isinstance(one, dict) else (None, None)
    if not isinstance(count, int) or isinstance(count, bool) or count < 1 or not isinstance(what, str):
        raise BadInput('expected {"count": N, "like": NODE or catalogue:ID}', path=path)
    return Added(count, what)


if __name__ == "__main__":
    sys.exit(main())
