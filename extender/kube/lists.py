"""The kinds of objects that are watched, and their lists, page by page, each of bounded bytes.

The pages serve the reflectors, and commands that look once and end (`list_all`). Only the reflector keeps watching.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from extender.kube.client import ApiError, ApiServer, TooLarge
from extender.objects import decode, records
from extender.objects.advance import CONFIG_MAP
from extender.objects.records import Event, Kind


@dataclass(frozen=True)
class WatchedKind:
    """Where a kind is listed and watched."""

    kind: Kind
    path: str
    limit: int = 250
    """Objects a page at most: what one answer may hold the event loop for. Fewer where they are large."""
    field_selector: str = ""
    optional: bool = False
    """The API may not be served (404), or the right to it may be missing (403): what works without these objects
    continues. A missing right is stated, by readiness as degraded, by commands as a warning."""
    group: tuple[str, str] | None = None
    """(API group, kind) of the objects, where several kinds are read as Group."""
    prompt: bool = False
    """Evictions rest on it: it is watched in short turns, so that a loss is noticed within seconds."""

    @property
    def name(self) -> str:
        """Its name in readiness and metrics."""
        return self.kind if self.group is None else f"{self.group[1]}.{self.group[0]}"

    @property
    def object_kind(self) -> str:
        """What its objects call themselves."""
        return self.kind if self.group is None else self.group[1]


_DRA: Final[tuple[tuple[Kind, str, int], ...]] = (
    ("ResourceSlice", "resourceslices", 25),  # up to 128 devices each
    ("ResourceClaim", "resourceclaims", 250),
    ("ResourceClaimTemplate", "resourceclaimtemplates", 250),
    ("DeviceTaintRule", "devicetaintrules", 250),  # from 1.37 on
)
# Finished pods hold nothing: they are left out as in kube-scheduler's own informer, and leave as deleted.
PODS: Final = WatchedKind(
    "Pod", "/api/v1/pods", field_selector="status.phase!=Succeeded,status.phase!=Failed", prompt=True
)
# They report on their node (`cluster/node_health.py`): the event by which a pod leaves PODS has its former state.
FAILED_PODS: Final = WatchedKind("FailedPod", "/api/v1/pods", field_selector="status.phase=Failed")
NODES: Final = WatchedKind("Node", "/api/v1/nodes", limit=100, prompt=True)  # about three times as large as pods
# Prompt, too: kube-scheduler deletes what we answer without asking the API server about budgets.
BUDGETS: Final = WatchedKind("PodDisruptionBudget", "/apis/policy/v1/poddisruptionbudgets", prompt=True)
PRIORITY_CLASSES: Final = WatchedKind("PriorityClass", "/apis/scheduling.k8s.io/v1/priorityclasses")
# They reject pods that are to be created, so no verb rests on them. Their status follows each pod of their namespace.
QUOTAS: Final = WatchedKind("ResourceQuota", "/api/v1/resourcequotas", optional=True)
# Without the classes no claim is read, and no node has GPUs for a resource that a class serves. Without the others the
# GPUs of DRA drivers are not known, and kube-scheduler alone places pods with claims.
DEVICE_CLASSES: Final = WatchedKind("DeviceClass", "/apis/resource.k8s.io/v1/deviceclasses", optional=True)
DRA: Final = tuple(
    WatchedKind(kind, f"/apis/resource.k8s.io/v1/{plural}", limit=limit, optional=True) for kind, plural, limit in _DRA
)
# They state how many pods of a gang must run (extender.objects.gangs). Only what is installed is served.
GROUPS: Final = tuple(
    WatchedKind("Group", f"/apis/{api}/{version}/{plural}", limit=500, optional=True, group=(api, kind))
    for api, version, kind, plural in (
        ("batch", "v1", "Job", "jobs"),
        ("apps", "v1", "StatefulSet", "statefulsets"),
        ("scheduling.x-k8s.io", "v1alpha1", "PodGroup", "podgroups"),
        ("scheduling.volcano.sh", "v1beta1", "PodGroup", "podgroups"),
        ("scheduling.k8s.io", "v1alpha2", "PodGroup", "podgroups"),
        ("scheduling.k8s.io", "v1alpha3", "PodGroup", "podgroups"),
        ("scheduling.k8s.io", "v1beta1", "PodGroup", "podgroups"),
        ("scheduling.k8s.io", "v1alpha1", "Workload", "workloads"),
        ("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets"),
        ("ray.io", "v1", "RayCluster", "rayclusters"),
        ("scheduler.grove.io", "v1alpha1", "PodGang", "podgangs"),
        ("leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet", "leaderworkersets"),
        ("kubeflow.org", "v1", "PyTorchJob", "pytorchjobs"),
        ("kubeflow.org", "v1", "TFJob", "tfjobs"),
        ("kubeflow.org", "v2beta1", "MPIJob", "mpijobs"),
        ("kubeflow.org", "v1", "XGBoostJob", "xgboostjobs"),
        ("kubeflow.org", "v1", "PaddleJob", "paddlejobs"),
        ("kubeflow.org", "v1", "JAXJob", "jaxjobs"),
    )
)
WATCHED_KINDS: Final = (PODS, NODES, BUDGETS, PRIORITY_CLASSES, DEVICE_CLASSES, QUOTAS, *DRA, *GROUPS, FAILED_PODS)
# What `check` reads as it stands: all pods, owners whose pods a quota may refuse, and advance reservations, too.
CHECKED_KINDS: Final = (
    WatchedKind("Pod", PODS.path),
    *(watched for watched in WATCHED_KINDS if watched not in (PODS, FAILED_PODS)),
    WatchedKind("Group", "/apis/apps/v1/deployments", optional=True, group=("apps", "Deployment")),
    WatchedKind("Group", "/apis/apps/v1/replicasets", optional=True, group=("apps", "ReplicaSet")),
    WatchedKind(
        "Group", "/api/v1/configmaps", field_selector=f"metadata.name={CONFIG_MAP}", optional=True,
        group=("", "ConfigMap"),
    ),
)  # fmt: skip


LARGEST_PAGE: Final = 2**24
"""Bytes; a page of more is asked for again with fewer objects. Tenants write objects of 1.4 MB."""


async def pages(server: ApiServer, watched: WatchedKind) -> AsyncGenerator[records.Page]:
    """Every page; close it (`contextlib.aclosing`). Only a page of one object may have more than LARGEST_PAGE bytes.

    While the caller works on a page the server sends the next one: the server and the caller work at the same time.
    Raises ApiError, NoAnswer, RecordError (an answer that is no list)."""
    reader = _Reader(server, watched)
    body = await reader.page("")
    while True:
        page = decode.page(body)
        if not page.continue_token:
            yield page
            return
        coming = asyncio.create_task(reader.page(page.continue_token))
        try:
            yield page
            del page
            body = await coming
        finally:
            coming.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await coming


class _Reader:
    """Reads one page after another, in as many objects as are below LARGEST_PAGE."""

    def __init__(self, server: ApiServer, watched: WatchedKind) -> None:
        self._server, self._watched, self._limit = server, watched, watched.limit

    async def page(self, token: str) -> bytes:
        """The body of the page at a continue token; "": the first."""
        watched = self._watched
        params = {"fieldSelector": watched.field_selector} if watched.field_selector else {}
        if token:
            params["continue"] = token
        while True:
            params["limit"] = str(self._limit)
            try:
                body = await self._server.get(watched.path, params, most=LARGEST_PAGE if self._limit > 1 else None)
            except TooLarge:
                self._limit = max(1, self._limit // 8)
                continue
            if len(body) < LARGEST_PAGE // 4:
                self._limit = min(2 * self._limit, watched.limit)
            return body


async def every_page(
    server: ApiServer, kinds: Sequence[WatchedKind], invalid: list[decode.Invalid]
) -> AsyncGenerator[tuple[WatchedKind, records.Page]]:
    """Every page of these kinds; close it. What need not be there has no objects, also where it may not be listed:
    `invalid` states that. ApiError, NoAnswer, RecordError (an answer that is no list)."""
    for watched in kinds:
        try:
            async with aclosing(pages(server, watched)) as read:
                async for page in read:
                    yield watched, page
        except ApiError as error:
            if not watched.optional or error.status not in (403, 404):
                raise
            if error.status == 403 and watched.group is None:  # of a group that is not served most users get 403
                why = "they may not be listed (403): they are unknown"
                invalid.append(decode.Invalid(watched.kind, "(all)", why))


async def list_all(
    server: ApiServer,
    gpus: frozenset[str],
    kinds: Sequence[WatchedKind] = WATCHED_KINDS,
    invalid: list[decode.Invalid] | None = None,
) -> list[Event]:
    """Every object of these kinds as an event, each as far as it can be read; what is wrong with one goes to
    `invalid`. Errors as `every_page`."""
    events: list[Event] = []
    wrong: list[decode.Invalid] = [] if invalid is None else invalid
    async with aclosing(every_page(server, kinds, wrong)) as read:
        async for watched, page in read:
            objects = decode.all_of(watched.kind, page.items, gpus, watched.group, wrong)
            events += [Event(watched.kind, "set", record) for record in objects]
    return events
