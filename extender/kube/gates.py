"""Our scheduling gate on pods, and the policy that adds it: found and removed without a running server.

A gate is removed by a strategic merge patch, whose `$patch: delete` names the gate. Of the other ways, a JSON merge
patch can only replace the whole list, and a JSON patch names a position: it fails when another controller removes its
own gate in between. This patch leaves other gates alone, needs no resourceVersion, and may be sent twice. The uid in it
makes the API server reject it for another pod of the same name.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, TypeVar
from urllib.parse import quote

import msgspec

from ext_core import prune
from extender.kube.client import STRATEGIC_PATCH, ApiError, ApiServer, NoAnswer
from extender.kube.lists import WatchedKind, pages
from extender.objects import tolerant
from extender.objects.queueing import GATE, WANTS_NODES
from extender.objects.records import RecordError
from extender.times import Backoff

POLICIES: Final = ("gpu-extender-queue", "gpu-extender-claims")
"""The MutatingAdmissionPolicies that add our gate, of `manifests/queue` and `manifests/claims-rewrite`."""
AGE_LIMIT: Final = "gpu-extender.io/queue-age-limit"
"""The annotation of a namespace: for how long a pod may wait behind our gate."""
PARALLEL: Final = 8  # patches at a time
TRIES: Final = 8  # of one patch: about half a minute

_BINDINGS: Final = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings"
_PASSING: Final = frozenset({409, 429, 500, 502, 503, 504})
_PAGE: Final = 500
_EXPIRED: Final = 410  # the list is continued too late
_T = TypeVar("_T")


class _Gate(msgspec.Struct):
    name: str = ""


class _Meta(msgspec.Struct, rename="camel"):
    name: str
    namespace: str = ""
    uid: str = ""
    creation_timestamp: datetime | None = None
    annotations: dict[str, str] | None = None


class _PodSpec(msgspec.Struct, rename="camel"):
    scheduling_gates: list[_Gate] | None = None


class _Pod(msgspec.Struct):
    metadata: _Meta
    spec: _PodSpec


class _Namespace(msgspec.Struct):
    metadata: _Meta


class _BindingSpec(msgspec.Struct, rename="camel"):
    policy_name: str = ""


class _Binding(msgspec.Struct):
    metadata: _Meta
    spec: _BindingSpec


@dataclass(frozen=True, slots=True)
class GatedPod:
    """A pod with our gate."""

    namespace: str
    name: str
    uid: str
    created: float  # seconds since 1970
    shown: bool = False  # it waits in the queue without the gate, so that an autoscaler sees it

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(slots=True)
class Tally:
    """What became of the pods with our gate."""

    removed: dict[str, int] = field(default_factory=dict)  # the number of pods of each namespace that lost it
    gone: int = 0  # pods that were deleted meanwhile
    refused: list[tuple[GatedPod, str]] = field(default_factory=list)  # each other pod with the API server's words

    @property
    def pods(self) -> int:
        """How many pods lost the gate."""
        return sum(self.removed.values())


async def remove_gates(
    server: ApiServer, wanted: Callable[[GatedPod], bool], progress: Callable[[Tally], None], namespace: str = ""
) -> Tally:
    """Remove our gate from the pods that are `wanted`, in one namespace or ("") in all. `progress` gets the tally after
    each page of pods. Raises ApiError or NoAnswer where the API server keeps failing; what is done stays done."""
    tally, limit = Tally(), asyncio.Semaphore(PARALLEL)

    async def remove(pod: GatedPod) -> None:
        async with limit:
            await _remove(server, pod, tally)

    while True:
        try:
            async with aclosing(_gated(server, namespace)) as read:
                async for pods in read:
                    await _together([remove(pod) for pod in pods if wanted(pod)])
                    progress(tally)
            return tally
        except ApiError as error:
            if error.status != _EXPIRED:
                raise
            tally.refused.clear()  # they are listed, and tried, again


async def delete_bindings(server: ApiServer) -> list[str]:
    """Delete the bindings of our policies, so that no new pod gets the gate; returns their names. Raises ApiError,
    NoAnswer."""
    body = await server.find(_BINDINGS)
    if body is None:  # a Kubernetes before 1.36: the policy cannot be there
        return []
    listed = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    bindings = msgspec.json.decode(listed.get("items", b"null"), type=list[_Binding] | None) or []
    names = [binding.metadata.name for binding in bindings if binding.spec.policy_name in POLICIES]
    for name in names:
        try:
            await server.request("DELETE", f"{_BINDINGS}/{quote(name, safe='')}")
        except ApiError as error:
            if error.status != 404:
                raise
    return names


async def age_limits(server: ApiServer) -> dict[str, str]:
    """The annotation AGE_LIMIT of each namespace that has it, as it is. Raises ApiError, NoAnswer."""
    limits: dict[str, str] = {}
    async with aclosing(_objects(server, "/api/v1/namespaces", "", _Namespace)) as read:
        async for namespaces in read:
            for namespace in namespaces:
                if (text := (namespace.metadata.annotations or {}).get(AGE_LIMIT)) is not None:
                    limits[namespace.metadata.name] = text
    return limits


async def _gated(server: ApiServer, namespace: str) -> AsyncGenerator[list[GatedPod]]:
    """The pods with our gate, and those that are shown to the autoscaler, page by page. No bound pod has a gate: the
    API server refuses both together."""
    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods" if namespace else "/api/v1/pods"
    async with aclosing(_objects(server, path, "spec.nodeName=", _Pod)) as read:
        async for pods in read:
            yield [
                GatedPod(meta.namespace, meta.name, meta.uid, created.timestamp() if created else 0.0, shown)
                for pod in pods
                for meta in (pod.metadata,)
                for created in (meta.creation_timestamp,)
                for shown in (WANTS_NODES in (meta.annotations or {}),)
                if shown or any(gate.name == GATE for gate in pod.spec.scheduling_gates or ())
            ]


async def _objects(server: ApiServer, path: str, selector: str, wanted: type[_T]) -> AsyncGenerator[list[_T]]:
    """The objects of a list, page by page."""
    decoder = msgspec.json.Decoder(wanted)
    listed = WatchedKind("Group", path, _PAGE, selector)  # the kind is for records; these are read here
    try:
        async with aclosing(pages(server, listed)) as read:
            async for page in read:
                yield [_decoded(raw, decoder) for raw in page.items]
    except RecordError as error:
        raise NoAnswer(f"GET {path}: {error}") from error


def _decoded(raw: msgspec.Raw, decoder: msgspec.json.Decoder[_T]) -> _T:
    """The object. A tenant can nest one deeper than the decoder reads; what we read lies near its top."""
    try:
        return decoder.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        try:
            return decoder.decode(prune.prune(bytes(raw), tolerant.DEEPEST))
        except (msgspec.MsgspecError, ValueError) as error:
            raise NoAnswer(f"an object that cannot be read: {error}") from error


async def _remove(server: ApiServer, pod: GatedPod, tally: Tally) -> None:
    path = f"/api/v1/namespaces/{quote(pod.namespace, safe='')}/pods/{quote(pod.name, safe='')}"
    gates = [{"$patch": "delete", "name": GATE}]
    meta: dict[str, Any] = {"uid": pod.uid}
    if pod.shown:
        meta["annotations"] = {WANTS_NODES: None}
    body = msgspec.json.encode({"metadata": meta, "spec": {"schedulingGates": gates}})
    try:
        await _retried(lambda: server.request("PATCH", path, body, content_type=STRATEGIC_PATCH))
    except ApiError as error:
        if error.status == 404 or (error.status == 422 and "metadata.uid" in error.message):
            tally.gone += 1
        elif error.status in _PASSING:
            raise
        else:
            tally.refused.append((pod, str(error)))
    else:
        tally.removed[pod.namespace] = tally.removed.get(pod.namespace, 0) + 1


async def _retried(request: Callable[[], Coroutine[Any, Any, bytes]]) -> None:
    """The request, tried again after a conflict, a 429, a failure of the server's or a lost connection."""
    backoff, jitter = Backoff(first=0.25, most=10.0), random.Random()
    for failures in range(1, TRIES + 1):
        try:
            await request()
            return
        except (ApiError, NoAnswer) as error:
            status = error.status if isinstance(error, ApiError) else 503
            if status not in _PASSING or failures == TRIES:
                raise
            asked = error.retry_after if isinstance(error, ApiError) else None
            await asyncio.sleep(max(backoff.delay(failures, jitter), asked or 0.0))


async def _together(tasks: list[Coroutine[Any, Any, None]]) -> None:
    """All of them; the first error ends the others."""
    try:
        async with asyncio.TaskGroup() as group:
            for task in tasks:
                group.create_task(task)
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
