"""The request to a pod to save its work before it is evicted, and its answer: annotations on the pod, and a condition.

Whoever may write the pod can write both. A forged request or answer only hastens the pod's own eviction; a later
`until` counts up to what the preemptor waits (extender.act.saving).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from extender.objects.progress import checkpoint, saved_ms
from extender.objects.queueing import rank_of
from extender.objects.records import PodRecord
from extender.times import MOST_TIME, rfc3339

SAVE_REQUESTED: Final = "gpu-extender.io/save-requested"
SAVED: Final = "gpu-extender.io/saved"
CONDITION: Final = "gpu-extender.io/SaveRequested"
SAVES_FOR_GANG: Final = "gpu-extender.io/saves-for-gang"
MOST_TEXT: Final = 1_024  # of a request: an annotation may have 256 KiB

Reply = Literal["saved", "exited", ""]


class SaveRequest(NamedTuple):
    """What the pod is asked. Times are seconds since 1970."""

    id: str
    by: str
    """The preemptor, namespace/name, or the name of its gang."""
    at: float
    until: float

    def text(self) -> str:
        """The value of the annotation."""
        stated = _Stated(self.id, self.by, time_text(math.floor(self.at)), time_text(self.until))
        return msgspec.json.encode(stated).decode()

    def answer(self, pod: PodRecord) -> Reply:
        """How the pod has answered: the annotation `saved` has the id, or `last-checkpoint` is later; or a container
        has ended since, by the clock of its node; "": not yet."""
        if pod.annotations.get(SAVED, "").strip() == self.id or saved_ms(pod) >= self.at * 1000:
            return "saved"
        return "exited" if pod.exited is not None and pod.exited >= math.floor(self.at) else ""


def condition(request: SaveRequest, end: Literal["", "saved", "exited", "withdrawn"], at: float) -> dict[str, str]:
    """The condition of the pod: true from the request until its `end`, at `at`, seconds since 1970."""
    sooner = f"save the work until {time_text(request.until)}; then the pod is evicted for {request.by}"
    return {
        "type": CONDITION,
        "status": "False" if end else "True",
        "reason": (end or "asked").capitalize(),
        "message": sooner if not end else f"request {request.id} for {request.by}",
        "lastTransitionTime": time_text(math.floor(at if end else request.at)),
    }


class _Stated(msgspec.Struct):
    id: str
    by: str
    at: str
    until: str


_READ: Final = msgspec.json.Decoder(_Stated)


def requested(pod: PodRecord) -> SaveRequest | None:
    """The request that stands on the pod; None: none, or none that can be read."""
    text = pod.annotations.get(SAVE_REQUESTED, "")
    if not text or len(text) > MOST_TEXT:
        return None
    try:
        stated = _READ.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return None
    at, until = checkpoint(stated.at) / 1000, checkpoint(stated.until) / 1000
    readable = stated.id and stated.id.isprintable() and stated.by.isprintable()
    return SaveRequest(stated.id, stated.by, at, until) if readable and at and until else None


def speakers(pods: Sequence[PodRecord]) -> list[PodRecord]:
    """The members of a gang whose answer counts for all: those that state it, else the one of rank 0; none: all members
    have to answer."""
    stating = [pod for pod in pods if pod.annotations.get(SAVES_FOR_GANG, "").strip().lower() == "true"]
    first = [pod for pod in pods if rank_of(pod)[1] == 0]
    return stating or (first if len(first) == 1 else [])


def time_text(seconds: float) -> str:
    """RFC 3339 of seconds since 1970, rounded up."""
    return rfc3339(min(math.ceil(seconds), MOST_TIME))
