"""Advance reservations: GPUs for a date, as operators state them in a ConfigMap, one key each, and tenants on
a gang that waits in the queue; and the room that one needs.

An entry that cannot be used states why, and stops no other one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

from extender.errors import BadInput
from extender.objects import yaml_documents
from extender.objects.progress import checkpoint
from extender.objects.records import PodRecord

CONFIG_MAP: Final = "gpu-extender-advance-reservations"
START_AT: Final = "gpu-extender.io/start-at"
MOST_ENTRIES: Final = 64
"""That are read of the ConfigMap: the first by name."""
LONGEST: Final = 4_096
"""Characters of one entry."""
MOST_NAMESPACES: Final = 64
_NAMESPACE: Final = re.compile("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
MOST_KEYS: Final = 256
"""Of the ConfigMap: what is beyond them is not looked at."""
MOST_TIME: Final = 64
"""Characters of a time."""
LATEST: Final = 4_102_444_800.0
"""The year 2100: every later time is an error."""
_ROOM: Final = {"for": "for", "node": "node", "model": "model", "domain": "domain", "priorityClass": "priority-class"}
"""The words of `plan`, by field."""
_FIELDS: Final = (*_ROOM, "from", "until", "namespaces")


class AdvanceEntry(NamedTuple):
    """One entry of the ConfigMap."""

    name: str  # its key
    room: WantedRoom
    since: float  # `from`, seconds since 1970
    until: float  # the same
    namespaces: tuple[str, ...] = ()  # whose pods may use it; none where a node is emptied


def entries(data: Mapping[str, str], known: Collection[str] = ()) -> tuple[list[AdvanceEntry], dict[str, str]]:
    """(the entries by name, why each other key is none). `data`: of the ConfigMap; `known`: keys that the bounds leave
    out last."""
    found: list[AdvanceEntry] = []
    faults: dict[str, str] = {}
    for number, (name, text) in enumerate(sorted(data.items(), key=lambda item: (item[0] not in known, item))):
        if number == MOST_KEYS:
            faults[name] = f"more than {MOST_KEYS} keys: this one and those after it are not read"
            break
        try:
            if len(found) == MOST_ENTRIES:
                raise BadInput(f"more than {MOST_ENTRIES} advance reservations", path=name)
            found.append(entry(name, text))
        except BadInput as error:
            faults[name] = error.message if error.path in ("", name) else f"{error.path}: {error.message}"
    return found, faults


def entry(name: str, text: str) -> AdvanceEntry:
    """What one key states, as YAML or JSON. BadInput."""
    stated = _fields(text)
    if unknown := [str(key)[:40] for key in stated if key not in _FIELDS]:
        raise BadInput(f"unknown: {', '.join(unknown[:8])}; fields: {', '.join(_FIELDS)}", path="fields")
    asked = WantedRoom.of({word: _text(stated, field) for field, word in _ROOM.items() if field in stated})
    since, until = _moment(stated, "from"), _moment(stated, "until")
    if until <= since:
        raise BadInput("until is not after from", path="until")
    named = stated.get("namespaces", [])
    if not isinstance(named, list) or not all(isinstance(namespace, str) for namespace in named):
        raise BadInput("not a list of names", path="namespaces")
    if len(named) > MOST_NAMESPACES:
        raise BadInput(f"more than {MOST_NAMESPACES}", path="namespaces")
    if odd := [namespace for namespace in named if not _NAMESPACE.fullmatch(namespace)]:
        raise BadInput(f"{odd[0][:40]!r} is not the name of a namespace", path="namespaces")
    if bool(named) == bool(asked.node):
        why = "no pod uses a node that is emptied" if named else "none is stated: no pod could use the GPUs"
        raise BadInput(why, path="namespaces")
    return AdvanceEntry(name, asked, since, until, tuple(sorted(set(named))))


def starts_at(pod: PodRecord) -> float | None:
    """The date for which the pod's gang asks, seconds since 1970; None: for none."""
    text = pod.annotations.get(START_AT)
    return (moment(text) or None) if text else None


def _fields(text: str) -> Mapping[Any, Any]:
    if len(text) > LONGEST:
        raise BadInput(f"longer than {LONGEST} characters", path="")
    try:
        stated = list(yaml_documents.documents(text.encode(), aliases=False, typed=False))
    except (yaml_documents.Error, RecursionError, UnicodeEncodeError, ValueError) as error:
        raise BadInput(f"neither YAML nor JSON: {' '.join(str(error).split())[:200]}", path="") from error
    if len(stated) != 1 or not isinstance(stated[0], dict):
        raise BadInput("not one mapping of fields", path="")
    return stated[0]


def _text(stated: Mapping[Any, Any], field: str) -> str:
    text = stated[field]
    if not isinstance(text, str) or not text:
        raise BadInput("not a text", path=field)
    return text


def _moment(stated: Mapping[Any, Any], field: str) -> float:
    seconds = moment(_text(stated, field)) if field in stated else 0.0
    if not seconds:
        raise BadInput("not a time with its offset, like 2026-12-01T08:00:00Z", path=field)
    return seconds


def moment(text: str) -> float:
    """Seconds since 1970 of an RFC 3339 time; 0.0 when it is none, or after LATEST."""
    seconds = checkpoint(text) / 1000.0 if len(text) <= MOST_TIME else 0.0
    return seconds if seconds <= LATEST else 0.0


# -- which room `plan` is asked to make: the same words as options of the command and as the query of the page


MOST_PODS: Final = 128
"""Pods of a shape."""
MOST_GPUS: Final = 1_024
"""GPUs of one pod of a shape."""


class WantedRoom(NamedTuple):
    """What is asked."""

    pods: int = 0
    """Of the shape; 0: none, a node is to be emptied."""
    gpus: int = 0
    """Of one pod."""
    level: str = ""
    """All pods go into one domain of this level; "": anywhere."""
    value: str = ""
    """Into this domain; "": any."""
    model: str = ""
    """On nodes of this GPU model; "": of any, all of one."""
    priority_class: str = ""
    """Only pods of a lower priority move, and its cost ceiling counts; "": pods of any priority, without a ceiling."""
    node: str = ""
    """It is to be emptied."""
    at: float = 0.0
    """When, seconds since 1970: what is declared to end before counts as gone; 0.0: now."""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> WantedRoom:
        """`for` (GPUS or PODSxGPUS) with `domain` (LEVEL or LEVEL=VALUE) and `model`, or `node`; `priority-class`;
        `at` (RFC 3339). BadInput."""
        shape, node = query.get("for", ""), query.get("node", "")
        if bool(shape) == bool(node):
            raise BadInput(
                "state a shape that is to fit, like --for 4x8, or a node that is to be emptied, like --node n7",
                path="for",
            )
        level, _, value = query.get("domain", "").partition("=")
        if value and not level:
            raise BadInput("a value without its level, as in rack=r1", path="domain")
        if node and (level or query.get("model")):
            raise BadInput("a domain and a model belong to a shape", path="node")
        at = time_of(query["at"], "at") if query.get("at") else 0.0
        asked = cls(0, 0, level, value, query.get("model", ""), query.get("priority-class", ""), node, at)
        if not shape:
            return asked
        *pods, gpus = shape.split("x")
        numbers = [int(text) if text.isascii() and text.isdigit() and len(text) < 5 else 0 for text in (*pods, gpus)]
        if len(numbers) > 2 or not (0 < numbers[-1] <= MOST_GPUS and 0 < numbers[0] <= MOST_GPUS):
            raise BadInput(f"{shape[:40]!r} is not GPUS or PODSxGPUS, like 8 or 4x8", path="for")
        if len(numbers) > 1 and numbers[0] > MOST_PODS:
            raise BadInput(f"more than {MOST_PODS} pods", path="for")
        return asked._replace(pods=numbers[0] if len(numbers) > 1 else 1, gpus=numbers[-1])


def time_of(text: str, path: str) -> float:
    """Seconds since 1970 of an RFC 3339 time with its zone. BadInput, at `path`."""
    if not (milliseconds := checkpoint(text)):
        raise BadInput(f"{text[:40]!r} is not a time like 2026-12-01T08:00:00Z", path=path)
    return milliseconds / 1000
