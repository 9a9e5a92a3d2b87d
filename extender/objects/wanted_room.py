"""Which room `plan` is asked to make: the same words as options of the command and as the query of the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from extender.errors import BadInput
from extender.objects.progress import checkpoint

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
