"""What an autoscaler can see of the queue: GPUs that are wanted, a condition on pods, and pods that it counts.

Cluster Autoscaler and Karpenter add nodes for pods that kube-scheduler has found unschedulable. A gated pod is not
tried, and a nominated one counts as placed. With `queue.autoscaler: unnominated` the gates of one gang at a time open
without seats. Its pods stay in the queue by the annotation `wants-nodes`: filter rejects every node for them, so they
are unschedulable, and no part of the gang starts. Once the whole gang has a place it is released as any other. With
`provisioningRequest` the gates stay closed, and a ProvisioningRequest asks for the nodes (`ProvisioningRequests`).

Each gang gets one turn of SHOWN_SECONDS, in which no other gang gets one. Each user that may update a pod may write the
annotation: it starts no turn, and prolongs none. It is only read when this instance has got the Lease, so that it goes
on with the gang that was shown.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Collection, Hashable, Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import islice
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec

from extender.act.controller import each
from extender.act.queue.release import AT_ONCE
from extender.cluster.cluster import Cluster
from extender.kube.client import ApiError, ApiServer, NoAnswer, object_in
from extender.kube.pod_writes import Patched, PodPatches, pod_path
from extender.log import get_log
from extender.metrics import Metrics
from extender.objects.gangs import Ref
from extender.objects.pods import PLACEABLE
from extender.objects.progress import checkpoint
from extender.objects.queueing import GATE, WANTS_NODES
from extender.objects.records import PodRecord
from extender.queue.gang import WaitingGang
from extender.queue.plan import gang_name
from extender.queue.report import QueueReport, Waiting
from extender.queue.usage import named_models
from extender.reservations.seats import Seats
from extender.times import rfc3339

SHOWN_SECONDS: Final = 900.0  # after which a gang that got no nodes no longer keeps the next one from being shown
SKEW_SECONDS: Final = 60.0  # by which the clock of the holder before may be ahead of ours
AGAIN_SECONDS: Final = 60.0  # after a ProvisioningRequest could not be made
MOST_CONDITIONS: Final = 64  # that are written in one look
MOST_SERIES: Final = 500  # of the metric, the largest; the others are counted together
OTHERS: Final = "(others)"
WAITS_FOR_ROOM: Final = ("head", "place", "delays", "order", "depth")
"""Why a gang waits that has a place once others have ended."""
log = get_log()


class Growth:
    """Shows gangs without a place to an autoscaler."""

    def __init__(
        self,
        cluster: Cluster,
        seats: Seats,
        pods: PodPatches,
        metrics: Metrics,
        requests: ProvisioningRequests | None = None,
    ) -> None:
        """`requests`: None where none can be made."""
        self._cluster, self._seats, self._pods, self._metrics = cluster, seats, pods, metrics
        self._settings, self._requests = cluster.settings.queue, requests
        self._failed = float("-inf")  # when a request could not be made, seconds since 1970
        self._turns: dict[Ref, float] = {}  # of the gangs that were shown, since when, seconds since 1970
        self._attempts = RequestAttempts()
        self._inherits = True  # the first look reads which gang another instance has shown
        self._written: dict[str, str] = {}  # uid -> the version of the pod over which its condition was written

    def begin(self) -> None:
        """This instance has just got the Lease: another one may have shown gangs."""
        self._inherits = True

    async def look(self, report: QueueReport) -> None:
        """A look at the queue has ended. Others run in between."""
        never: dict[str, Waiting] = {}
        shown: list[Waiting] = []
        next_one: Waiting | None = None
        turns: dict[Ref, float] = {}
        async for waiting in each(report.waiting):
            if waiting.code == "never":
                never[waiting.gang.existing[0].uid] = waiting
            since = self._turn(waiting, report.wall)
            if since is not None:
                turns[waiting.gang.ref] = since
                shown.append(waiting)
            elif next_one is None and self._wants_nodes(waiting, report.wall):
                next_one = waiting
        self._turns, self._inherits = turns, False
        self._attempts.keep([waiting.gang for waiting in shown])
        await self._count(report)
        await self._conditions(never, report.wall)
        recent = [since for since in turns.values() if abs(report.wall - since) < SHOWN_SECONDS]
        if next_one is not None and not recent:
            turns[next_one.gang.ref] = report.wall
            shown.append(next_one)
        for waiting in shown:
            if self._settings.autoscaler == "unnominated":
                await self._show(waiting)
            elif self._settings.autoscaler == "provisioningRequest" and self._requests is not None:
                await self._ask(waiting, self._requests, report.wall)

    def _turn(self, waiting: Waiting, wall: float) -> float | None:
        """Since when the gang has had its turn; None where it has not."""
        since_before = self._turns.get(waiting.gang.ref)
        if since_before is None and self._inherits and _is_shown(waiting.gang) and self._wants_nodes(waiting, wall):
            since = _since(waiting.gang)
            return min(wall, since) if since <= wall + SKEW_SECONDS else None
        return since_before

    def _wants_nodes(self, waiting: Waiting, wall: float) -> bool:
        """Whether new nodes would start the gang, and nothing else does soon."""
        waits = wall - waiting.gang.created
        return waiting.code == "never" or (waiting.code == "head" and waits >= self._settings.autoscaler_wait_seconds)

    # -- pods that the autoscaler counts ---------------------------------------------------------------------------

    async def _show(self, waiting: Waiting) -> None:
        """Open the gates of the gang's pods; pods without GPUs, which never ask us, stay gated where they can."""
        since = rfc3339(self._turns[waiting.gang.ref])
        closed = [pod for pod in waiting.gang.existing if GATE in pod.gates and (pod.gpus or waiting.gang.whole)]
        if not closed:
            return
        if not _is_shown(waiting.gang):
            log.info("is shown to the autoscaler", gang=gang_name(waiting.gang), pods=len(closed), why=waiting.text)
        done = await _in_parts(
            self._pods.open(pod, [gate for gate in pod.gates if gate != GATE], {WANTS_NODES: since}) for pod in closed
        )
        _log_refused(closed, done)

    async def _ask(self, waiting: Waiting, requests: ProvisioningRequests, wall: float) -> None:
        """Make the gang's ProvisioningRequest, and note on its pods that they use its nodes. Where a pod was replaced
        all are noted anew: if that was the first, the request is another. One that failed is made again."""
        pods, attempt = waiting.gang.existing, 0
        if abs(wall - self._failed) < AGAIN_SECONDS:  # the clock may step back
            return
        try:
            if all(WANTS_NODES in pod.annotations for pod in pods):
                attempt = await self._attempts.due(waiting.gang, requests, wall)
                if not attempt:
                    return
            notes = await requests.ask(waiting.gang, attempt)
        except (ApiError, NoAnswer, TooManyKinds) as error:
            self._failed = wall
            log.error("no ProvisioningRequest can be made", gang=gang_name(waiting.gang), err=str(error))
            return
        log.info("asks for nodes", gang=gang_name(waiting.gang), pods=len(pods), attempt=attempt, why=waiting.text)
        since = rfc3339(self._turns[waiting.gang.ref])
        done = await _in_parts(self._pods.annotate(pod, {**notes, WANTS_NODES: since}) for pod in pods)
        _log_refused(pods, done)

    # -- conditions -------------------------------------------------------------------------------------------------

    async def _conditions(self, never: dict[str, Waiting], wall: float) -> None:
        """State on the first pod of each gang whether it has a place at all. A pod that is being released is left: each
        write there would cost the release one of its own."""
        pods = self._cluster.pods
        wrong = [pod for uid in never if (pod := pods.get(uid)) is not None and pod.placeable]
        over = [pod for uid in self._stated() if uid not in never and (pod := pods.get(uid)) is not None]
        changed = [pod for pod in (*wrong, *over) if self._written.get(pod.uid) != pod.resource_version]
        changed = [pod for pod in changed if pod.node or self._seats.of(pod.uid) is None][:MOST_CONDITIONS]
        await _in_parts(self._state(pod, never.get(pod.uid), wall) for pod in changed)
        self._written = {uid: version for uid, version in self._written.items() if uid in pods}

    def _stated(self) -> Iterator[str]:
        """Pods whose condition is false, of those in the queue and of those where we wrote it."""
        pods = self._cluster.pods
        for uid in {*self._cluster.placements.queued, *self._written}:
            if (pod := pods.get(uid)) is not None and not pod.placeable:
                yield uid

    async def _state(self, pod: PodRecord, waiting: Waiting | None, wall: float) -> Patched:
        reason, text = ("NoPlace", waiting.text) if waiting is not None else ("PlaceExists", "")
        condition = {
            "type": PLACEABLE,
            "status": "True" if waiting is None else "False",
            "reason": reason,
            "message": text[:1000],
            "lastTransitionTime": rfc3339(wall),
        }
        patched = await self._pods.note(pod, {}, condition)
        if patched.outcome != "unknown":
            self._written[pod.uid] = pod.resource_version
        return patched

    # -- the metric -------------------------------------------------------------------------------------------------

    async def _count(self, report: QueueReport) -> None:
        """GPUs that gangs wait for, by queue, model and whether there is a place for them at all."""
        labels = self._cluster.settings.mix.model_labels
        counts: Counter[tuple[str, str, str]] = Counter()
        async for waiting in each(report.waiting):
            place = "none" if waiting.code == "never" else "taken" if waiting.code in WAITS_FOR_ROOM else ""
            gang = waiting.gang
            if place and gang.gpus:
                counts[gang.queue, ",".join(sorted(named_models(gang, labels)))[:100], place] += gang.gpus
        gauge = self._metrics.queue_wanted_gpus
        gauge.clear()
        for (queue, model, place), gpus in counts.most_common(MOST_SERIES):
            gauge.labels(queue, model, place).set(gpus)
        for (_, _, place), gpus in counts.most_common()[MOST_SERIES:]:
            gauge.labels(OTHERS, "", place).inc(gpus)


def _log_refused(pods: Sequence[PodRecord], done: Sequence[Patched]) -> None:
    for pod, patched in zip(pods, done, strict=True):
        if patched.outcome == "refused":
            log.error("a pod cannot be shown to the autoscaler", pod=pod.uid, err=patched.message)


def _is_shown(gang: WaitingGang) -> bool:
    return any(WANTS_NODES in pod.annotations for pod in gang.pods)


def _since(gang: WaitingGang) -> float:
    """Since when the gang is shown, seconds since 1970; 0 where it is not, or states no time."""
    return max((checkpoint(pod.annotations.get(WANTS_NODES, "")) for pod in gang.pods), default=0) / 1000


async def _in_parts(writes: Iterable[Awaitable[Patched]]) -> list[Patched]:
    """Carry out writes, AT_ONCE at the same time."""
    remaining, done = iter(writes), list[Patched]()
    while part := list(islice(remaining, AT_ONCE)):
        done += await asyncio.gather(*part)
    return done


# -- asks an autoscaler for the nodes of a gang: a ProvisioningRequest (autoscaling.x-k8s.io/v1) and its PodTemplates
#
# Cluster Autoscaler 1.30.2 and later adds the nodes for all pods of a request, or none. The class is
# `best-effort-atomic-scale-up`. The objects are in the gang's namespace, and the first pod of the gang owns them: they
# are deleted with it, so nothing of ours has to remember them.
#
# Cluster Autoscaler tries a request again by itself for a week. One that has failed, or whose nodes are booked no
# longer, stays so: another one is made, later each time. The number of the attempt is the end of its name.


API: Final = "autoscaling.x-k8s.io"
CLASS: Final = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
CONSUME: Final = "autoscaling.x-k8s.io/consume-provisioning-request"
CLASS_NAME: Final = "autoscaling.x-k8s.io/provisioning-class-name"
MOST_SETS: Final = 32  # podSets that the API allows
ENDED: Final = ("Failed", "BookingExpired", "CapacityRevoked")
"""Conditions of a request for which no nodes are added any more."""
CHECK_SECONDS: Final = 30.0  # between two looks at a request
FIRST_SECONDS, LONGEST_SECONDS = 60.0, 1800.0  # from the end of a request until the next one, twice as long each time
_OF_POD: Final = ("nodeName", "schedulingGates", "schedulingGroup", "ephemeralContainers")
"""Fields of a pod that are not its template's."""


class _Condition(msgspec.Struct):
    type: str = ""
    status: str = ""
    message: str = ""


class _Status(msgspec.Struct):
    conditions: list[_Condition] | None = None


class _Request(msgspec.Struct):
    status: _Status | None = None


class _Metadata(msgspec.Struct):
    labels: dict[str, str] | None = None


class _Pod(msgspec.Struct):
    metadata: _Metadata
    spec: dict[str, Any]


class TooManyKinds(Exception):
    """The pods of a gang differ in more ways than a request may name."""


class ProvisioningRequests:
    """Makes them at one API server."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server

    async def ask(self, gang: WaitingGang, attempt: int = 0) -> dict[str, str]:
        """Make the request of a gang, unless it is made already; the annotations by which its pods use the new nodes.
        Pods that do not exist yet count where others are alike; those of a kind of their own are left out, as only
        the API server has their whole template. Raises ApiError, NoAnswer, TooManyKinds."""
        first = gang.existing[0]
        kinds: dict[Hashable, list[PodRecord]] = {}
        for pod in gang.existing:
            kinds.setdefault(_kind(pod), []).append(pod)
        counts = Counter(map(_kind, gang.pods))
        if len(kinds) > MOST_SETS:
            raise TooManyKinds(f"its pods differ in {len(kinds)} ways, and a ProvisioningRequest names {MOST_SETS}")
        name = name_of(gang)
        sets = [
            {"podTemplateRef": await self._template(f"{name}-{i}", pods[0], first), "count": counts[kind]}
            for i, (kind, pods) in enumerate(kinds.items())
        ]
        spec = {"provisioningClassName": CLASS, "podSets": sets}
        named = _numbered(name, attempt)
        await self._make(_path(first), _object(f"{API}/v1", "ProvisioningRequest", named, first) | {"spec": spec})
        return {CONSUME: named, CLASS_NAME: CLASS}

    async def ended(self, gang: WaitingGang, attempt: int) -> str:
        """Why no nodes are added for the request any more; "" while it stands. Raises ApiError, NoAnswer."""
        try:
            body = await self._server.get(f"{_path(gang.existing[0])}/{_numbered(name_of(gang), attempt)}")
        except ApiError as error:
            if error.status != 404:
                raise
            return "it does not exist"
        try:
            status = msgspec.json.decode(body, type=_Request).status
        except (msgspec.MsgspecError, RecursionError) as error:
            return f"it cannot be read: {error}"
        conditions = (status.conditions if status else None) or []
        ended = (condition for condition in conditions if condition.type in ENDED and condition.status == "True")
        return next((f"{condition.type}: {condition.message}" for condition in ended), "")

    async def _template(self, name: str, like: PodRecord, first: PodRecord) -> dict[str, str]:
        """The reference of a PodTemplate for pods like this one; it is made."""
        pod = object_in(await self._server.get(pod_path(first.namespace, like.name)), _Pod)
        spec = {key: value for key, value in pod.spec.items() if key not in _OF_POD}
        template = {"metadata": {"labels": pod.metadata.labels or {}}, "spec": spec}
        path = f"/api/v1/namespaces/{quote(first.namespace, safe='')}/podtemplates"
        await self._make(path, _object("v1", "PodTemplate", name, first) | {"template": template})
        return {"name": name}

    async def _make(self, path: str, body: dict[str, Any]) -> None:
        try:
            await self._server.post(path, msgspec.json.encode(body))
        except ApiError as error:
            if error.status != 409:
                raise


class _Attempt(NamedTuple):
    """The latest request of a gang."""

    number: int
    at: float  # when it is looked at, or made again, seconds
    ended: bool  # which of the two


class RequestAttempts:
    """When the requests of gangs are looked at, and made again."""

    def __init__(self) -> None:
        self._latest: dict[str, _Attempt] = {}  # by the name of the first request

    def keep(self, gangs: Collection[WaitingGang]) -> None:
        """Forget all but these gangs."""
        names = set(map(name_of, gangs))
        self._latest = {name: attempt for name, attempt in self._latest.items() if name in names}

    async def due(self, gang: WaitingGang, requests: ProvisioningRequests, wall: float) -> int:
        """The number of the request that is to be made now, 0 for none. `wall`: seconds. Raises ApiError,
        NoAnswer."""
        name = name_of(gang)
        number, at, ended = self._latest.setdefault(name, _Attempt(0, wall + CHECK_SECONDS, False))
        if wall < at <= wall + LONGEST_SECONDS:  # else the clock has stepped back
            return 0
        if ended:
            self._latest[name] = _Attempt(number + 1, wall + CHECK_SECONDS, False)
            return number + 1
        self._latest[name] = _Attempt(number, wall + CHECK_SECONDS, False)
        if why := await requests.ended(gang, number):
            rest = min(FIRST_SECONDS * 2.0 ** min(number, 10), LONGEST_SECONDS)
            self._latest[name] = _Attempt(number, wall + rest, True)
            log.warning("a ProvisioningRequest has ended", request=_numbered(name, number), again_in=rest, err=why)
        return 0


def name_of(gang: WaitingGang) -> str:
    """The name of the gang's first request, and the beginning of the names of the others and of its PodTemplates."""
    return f"gpu-extender-{sha256(f'{gang_name(gang)} {gang.existing[0].uid}'.encode()).hexdigest()[:16]}"


def _numbered(name: str, attempt: int) -> str:
    return f"{name}-r{attempt}" if attempt else name


def _path(pod: PodRecord) -> str:
    return f"/apis/{API}/v1/namespaces/{quote(pod.namespace, safe='')}/provisioningrequests"


def _object(api: str, kind: str, name: str, owner: PodRecord) -> dict[str, Any]:
    """An object that is deleted with the pod."""
    reference = {"apiVersion": "v1", "kind": "Pod", "name": owner.name, "uid": owner.uid}
    labels = {"app.kubernetes.io/name": "gpu-extender", "app.kubernetes.io/component": "queue"}
    meta = {"name": name, "namespace": owner.namespace, "labels": labels, "ownerReferences": [reference]}
    return {"apiVersion": api, "kind": kind, "metadata": meta}


def _kind(pod: PodRecord) -> Hashable:
    """Pods of one kind need the same nodes."""
    needs = pod.gpus, pod.cpu_milli, pod.memory, pod.node_selector, pod.node_terms, pod.tolerations
    return *needs, pod.anti_affinity_terms, pod.affinity_terms, pod.other_resources, pod.volumes
