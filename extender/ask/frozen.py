"""A frozen cluster: a Kubernetes List from a file.

As `kubectl get -A -o json` prints it (`gpu-extender whatif --help`): JSON or YAML, one List or several documents.
What states how many pods of a gang must run (Jobs, PodGroups ...: gangs.GROUP_KINDS) is read where it is in the file.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import orjson

from ext_core import prune
from extender.ask.text import short
from extender.ask.whatif.question import Document
from extender.errors import BadCluster
from extender.objects import decode, gangs, records, yaml_documents
from extender.objects.decode import Invalid
from extender.objects.limits import SYSTEM_CLASSES
from extender.objects.records import Event

MOST_LISTS: Final = 8
"""Levels of Lists in Lists."""
MOST_MESSAGE: Final = 1_000
"""Characters of what is wrong with an object: it may quote the object."""


def read(
    path: Path, gpus: frozenset[str], invalid: list[Invalid] | None = None, items: list[dict[str, Any]] | None = None
) -> list[Event]:
    """Every object of the file that we know, as events; BadCluster with the place of the first that is wrong."""
    return parse(load(path), gpus, str(path), invalid, items)


def load(path: Path) -> bytes:
    """The file; BadCluster when it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadCluster(f"cannot be read: {error.strerror or error}", path=str(path)) from error


def documents(raw: bytes, source: str, repeated: list[str] | None = None) -> list[Document]:
    """The objects of a manifest; BadCluster when it has none. `repeated`: where it is said which keys of it are
    repeated; they are an error else."""
    texts: list[str] | None = None if repeated is None else []
    items = list(_items(raw, source, repeated=texts))
    if repeated is not None:
        repeated += [f"{source}: {text}" for text in texts or ()]
    return [Document(item, f"{source}: items[{number}]") for number, item in enumerate(items)]


def parse(
    raw: bytes,
    gpus: frozenset[str],
    source: str = "cluster",
    invalid: list[Invalid] | None = None,
    items: list[dict[str, Any]] | None = None,
) -> list[Event]:
    """Every object of the file that we know, as events; all objects go to `items` as they stand there. An object is
    read as far as it can be (`decode.py`), and else left out: what is wrong goes to `invalid`. Where an object that
    only states how many pods of a group must run cannot be read, that number is unknown. BadCluster: it is malformed,
    or nothing in it can be read; it names the first object that is wrong.
    """
    events: list[Event] = []
    wrong: list[tuple[str, str]] = []
    invalid_objects: list[Invalid] = [] if invalid is None else invalid
    for number, item in enumerate(_items(raw, source, invalid_objects)):
        path = f"{source}: items[{number}]"
        if items is not None and isinstance(item, dict):
            items.append(item)
        kind = item.get("kind") if isinstance(item, dict) else None
        if not isinstance(kind, str):
            wrong.append((path, "an object without kind" if isinstance(item, dict) else "no object of Kubernetes"))
            continue
        known: records.Kind | None = next((record_kind for record_kind in records.KINDS if record_kind == kind), None)
        try:
            if known is None and gangs.is_group(item):
                known = "Group"
            if known is not None:
                record = _named(known, item, gpus, invalid_objects)
                events += [Event(known, "set", record)] if record is not None else []
        except records.RecordError as error:
            wrong.append((f"{path}.{error.path}".rstrip("."), f"{short(error.message, MOST_MESSAGE)}{_of(item)}"))
    if wrong and not events:
        path, message = wrong[0]
        more = len(wrong) - 1
        raise BadCluster(message + (f"; {more} more cannot be read" if more else ""), path=path)
    invalid_objects += [Invalid("Object", path, f"{message}: left out") for path, message in wrong]
    return _with_priorities(events)


def _too_deep(raw: bytes) -> Iterator[Invalid]:
    """The objects of a JSON list that are nested deeper than anything that we read."""
    try:
        spans = prune.elements(raw, *prune.members(raw)[b"items"])
    except (ValueError, KeyError):
        spans = []
    for start, end in spans:
        document = raw[start:end]
        shallow = prune.prune(document, decode.DEEPEST)
        if shallow != document:
            yield decode.invalid(shallow, "nested too deep; what is deeper is left out")


def _named(
    kind: records.Kind, item: dict[str, Any], gpus: frozenset[str], invalid: list[Invalid]
) -> records.Record | None:
    """The record, as far as it can be read; None where nothing of it counts. A pod without a uid, as files written by
    hand have it, gets one of its name: no other object has that."""
    if kind == "Group":
        return _group(item, gpus)
    try:
        record: records.Record | None = decode.record(kind, item, gpus)
    except records.RecordError as error:
        if not _of(item):
            raise
        reading = decode.read_invalid(kind, item, gpus, str(error))
        record = reading.record
        message = reading.message if record is not None else f"{short(str(error), MOST_MESSAGE)}: left out"
        invalid.append(Invalid(kind, decode.name_of(reading.identity), message))
    if isinstance(record, records.PodRecord) and not record.uid:
        return msgspec.structs.replace(record, uid=f"{record.namespace}/{record.name}")
    return record


def _group(item: dict[str, Any], gpus: frozenset[str]) -> records.GroupRecord:
    try:
        return gangs.group(item, gpus=gpus)
    except records.RecordError:
        metadata = item.get("metadata")
        bare = {"apiVersion": item.get("apiVersion"), "kind": item["kind"], "metadata": metadata}
        return msgspec.structs.replace(gangs.group(bare), minimum=-1)


def _of(item: dict[str, Any]) -> str:
    """Which object it is, for a message."""
    try:
        which = records.identity(item)
    except records.RecordError:
        return ""
    name = "/".join(part for part in (which.namespace, which.name) if part)
    return f" (in {item['kind']} {name})" if name else ""


def _with_priorities(events: list[Event]) -> list[Event]:
    """Pods that name a PriorityClass and no priority get the class's value. In a cluster the API server has done that
    when the pod came; files written by hand leave it to the reader. A class that is not there gives 0, as without."""
    values = SYSTEM_CLASSES | {
        event.record.name: event.record.value
        for event in events
        if isinstance(event.record, records.PriorityClassRecord)
    }
    return [
        event._replace(record=msgspec.structs.replace(pod, priority=values[pod.priority_class]))
        if isinstance(pod := event.record, records.PodRecord)
        and not pod.priority_given
        and pod.priority_class in values
        else event
        for event in events
    ]


def _items(
    raw: bytes, source: str, invalid: list[Invalid] | None = None, repeated: list[str] | None = None
) -> Iterator[Any]:
    faults: list[Invalid] = [] if invalid is None else invalid
    whole = _documents(_utf8(raw), source, faults, repeated)
    documents = [document for document in whole if document is not None]
    if len(documents) == 1 and isinstance(documents[0], list):  # as `jq -s` joins the answers of several calls
        documents = documents[0] or documents
    if not documents:
        raise BadCluster(
            "is empty: expected Kubernetes objects or a List, as kubectl get -o json prints it", path=source
        )
    for document in documents:
        if not isinstance(document, dict) or not isinstance(document.get("kind"), str):
            raise BadCluster("expected a Kubernetes object or List, with apiVersion and kind", path=source)
        yield from _of_list(document, source, faults, MOST_LISTS)


def _of_list(document: dict[str, Any], source: str, faults: list[Invalid], depth: int) -> Iterator[Any]:
    """The items of a List, and of `depth` levels of Lists in it; any other object itself."""
    kind = document["kind"]
    if not kind.endswith("List"):
        yield document
        return
    items = document.get("items")
    if items is not None and not isinstance(items, list):
        raise BadCluster("items is not a list", path=source)
    meta = document.get("metadata")
    if isinstance(meta, dict) and meta.get("continue"):
        faults.append(
            Invalid(kind, source, "metadata.continue is set: this is one page, and the other objects are missing")
        )
    inner = kind.removesuffix("List")
    for item in items or ():
        if inner and isinstance(item, dict):
            item.setdefault("kind", inner)  # typed lists leave the items' kind out
            item.setdefault("apiVersion", document.get("apiVersion"))
        nested = (
            isinstance(item, dict) and str(item.get("kind")).endswith("List") and isinstance(item.get("items"), list)
        )
        yield from _of_list(item, source, faults, depth - 1) if nested and depth else (item,)


def _utf8(raw: bytes) -> bytes:
    """The text without a byte order mark, as PowerShell writes one: in UTF-16 too."""
    for mark, encoding in (
        (codecs.BOM_UTF8, "utf-8"),
        (codecs.BOM_UTF16_LE, "utf-16-le"),
        (codecs.BOM_UTF16_BE, "utf-16-be"),
    ):
        if raw.startswith(mark):
            return raw[len(mark) :].decode(encoding, "replace").encode()
    return raw


def _documents(raw: bytes, source: str, invalid: list[Invalid], repeated: list[str] | None) -> list[Any]:
    malformed: orjson.JSONDecodeError | None = None
    if raw.lstrip()[:1] in (b"{", b"["):  # JSON, or YAML in its flow style, as KYAML is
        try:
            return [orjson.loads(raw)]
        except orjson.JSONDecodeError as error:
            malformed = error
            several = _deep(raw, invalid) or _several(raw)
            if several is not None:
                return several
    try:
        return list(yaml_documents.documents(raw, repeated=repeated))
    except (RecursionError, yaml_documents.Error, ValueError) as error:
        message = yaml_documents.malformed(error)
        if malformed is not None:
            message = f"malformed JSON: {malformed}"
        elif isinstance(error, RecursionError):
            message = "nested too deep: write the object that is as JSON"
        raise BadCluster(message, path=source) from (malformed or error)


def _deep(raw: bytes, invalid: list[Invalid]) -> list[Any] | None:
    """One JSON document that is nested too deep for a decoder, without what is deeper; None for anything else."""
    try:
        # A List and its items are two levels.
        shallow = [orjson.loads(prune.prune(raw, decode.DEEPEST + 2))]
    except ValueError:
        return None
    invalid += _too_deep(raw)
    return shallow


def _several(raw: bytes) -> list[Any] | None:
    """JSON documents one after the other, as several calls of kubectl print them into one file; between them may stand
    YAML's `---`. None when it is anything else."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return None
    values: list[Any] = []
    place = 0
    while place < len(text):
        gap = _BETWEEN.match(text, place)
        place = gap.end() if gap else place
        if place == len(text):
            break
        try:
            document, place = _JSON.raw_decode(text, place)
        except (ValueError, RecursionError):
            return None
        values.append(document)
    return values if len(values) > 1 else None


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is no JSON")  # as orjson has it


_JSON = json.JSONDecoder(parse_constant=_no_number)
_BETWEEN = re.compile(r"(?:\s|^---\s*$)+", re.MULTILINE)
