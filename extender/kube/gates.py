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
from typing import Any, Final
from urllib.parse import quote

import msgspec

from extender.kube.client import STRATEGIC_PATCH, ApiError, ApiServer, NoAnswer
from extender.kube.lists import WatchedKind, pages
from extender.objects import tolerant
from extender.objects.queueing import GATE, WANTS_NODES, is_queued
from extender.objects.records import Page, PodRecord, RecordError
from extender.times import Backoff

POLICIES: Final = ("gpu-extender-queue", "gpu-extender-claims")
"""The MutatingAdmissionPolicies that add our gate, of `manifests/queue` and `manifests/claims-rewrite`."""
AGE_LIMIT: Final = "gpu-extender.io/queue-age-limit"
"""The annotation of a namespace: for how long a pod may wait behind our gate."""
PARALLEL: Final = 8  # patches at a time
TRIES: Final = 8  # of one patch: about half a minute

_BINDINGS: Final = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings"
_PASSING: Final = frozenset({409, 429, 500, 502, 503, 504})
_PAGE: Final = 250
_EXPIRED: Final = 410  # the list is continued too late


class _Meta(msgspec.Struct):
    name: str
    annotations: dict[str, str] | None = None


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    policy_name: str = ""


class _Object(msgspec.Struct):
    """A Namespace, or the binding of a policy."""

    metadata: _Meta
    spec: _Spec = _Spec()


@dataclass(slots=True)
class Tally:
    """What became of the pods with our gate."""

    removed: dict[str, int] = field(default_factory=dict)  # the number of pods of each namespace that lost it
    gone: int = 0  # pods that were deleted meanwhile
    refused: list[tuple[PodRecord, str]] = field(default_factory=list)  # each other pod with the API server's words

    @property
    def pods(self) -> int:
        """How many pods lost the gate."""
        return sum(self.removed.values())


async def remove_gates(
    server: ApiServer, wanted: Callable[[PodRecord], bool], progress: Callable[[Tally], None], namespace: str = ""
) -> Tally:
    """Remove our gate from the pods that are `wanted`, in one namespace or ("") in all. `progress` gets the tally after
    each page of pods. Raises ApiError or NoAnswer where the API server keeps failing; what is done stays done."""
    tally, limit = Tally(), asyncio.Semaphore(PARALLEL)

    async def remove(pod: PodRecord) -> None:
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
    bindings = msgspec.json.decode(listed.get("items", b"null"), type=list[_Object] | None) or []
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
    async with aclosing(_pages(server, WatchedKind("Group", "/api/v1/namespaces", _PAGE))) as read:
        async for page in read:
            for raw in page.items:
                try:
                    meta = msgspec.json.decode(raw, type=_Object).metadata
                except (msgspec.MsgspecError, RecursionError) as error:
                    raise NoAnswer(f"a Namespace that cannot be read: {error}") from error
                if (text := (meta.annotations or {}).get(AGE_LIMIT)) is not None:
                    limits[meta.name] = text
    return limits


async def _gated(server: ApiServer, namespace: str) -> AsyncGenerator[list[PodRecord]]:
    """The pods with our gate, and those that are shown to the autoscaler, page by page, each as far as it can be read.
    No bound pod has a gate: the API server refuses both together."""
    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods" if namespace else "/api/v1/pods"
    async with aclosing(_pages(server, WatchedKind("Pod", path, _PAGE, "spec.nodeName="))) as read:
        async for page in read:
            pods = tolerant.all_of("Pod", page.items, frozenset(), None, [])
            yield [pod for pod in pods if isinstance(pod, PodRecord) and is_queued(pod)]


async def _pages(server: ApiServer, listed: WatchedKind) -> AsyncGenerator[Page]:
    try:
        async with aclosing(pages(server, listed)) as read:
            async for page in read:
                yield page
    except RecordError as error:
        raise NoAnswer(f"GET {listed.path}: {error}") from error


async def _remove(server: ApiServer, pod: PodRecord, tally: Tally) -> None:
    path = f"/api/v1/namespaces/{quote(pod.namespace, safe='')}/pods/{quote(pod.name, safe='')}"
    gates = [{"$patch": "delete", "name": GATE}]
    meta: dict[str, Any] = {"uid": pod.uid}
    if WANTS_NODES in pod.annotations:
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
