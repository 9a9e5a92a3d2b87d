"""The writes on a pod and its claims: its seat (nominated node and annotations), its gates without ours, its eviction,
its binding; the devices of its claims, and the DeviceTaintRules that keep devices for them.

The patches state the resourceVersion they change, so a pod that was changed meanwhile is read again first. A merge
patch replaces the list of gates: the precondition keeps the gates of other controllers safe. Evictions
use the eviction API, which respects the pod's PodDisruptionBudgets.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import quote

import msgspec

from ext_core import prune
from extender.kube.client import MERGE_PATCH, STRATEGIC_PATCH, ApiError, ApiServer, NoAnswer, object_in
from extender.kube.lists import WatchedKind, pages
from extender.metrics import Metrics
from extender.objects import decode, records
from extender.objects.devices import FENCE, FINALIZER, PLANNED_NODE, AllocatedDevice
from extender.objects.queueing import GATE, PINNED, WANTS_NODES, is_queued
from extender.objects.records import Page, PodRecord, RecordError
from extender.objects.selectors import NodeTerm, Requirement
from extender.times import Backoff

REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
PatchOutcome = Literal["written", "conflict", "gone", "refused", "unknown"]


NO_ANNOTATIONS: Final[Mapping[str, str | None]] = {}


class Patched(NamedTuple):
    """What became of a patch. ``conflict``: the object has changed; ``gone``: it is deleted; ``refused``: the API
    server never allows it; ``unknown``: no answer, or one that asks for patience (429, 500 and above)."""

    outcome: PatchOutcome
    version: str = ""  # the object's resourceVersion once written
    message: str = ""


class _Versioned(msgspec.Struct):
    resourceVersion: str = ""


class _Written(msgspec.Struct):
    metadata: _Versioned


class PodPatches:
    """Patches of pods at one API server. Each states the version of the pod that it changes: that of the record, unless
    another `version` is known. An annotation that is None is removed."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server

    async def nominate(
        self, pod: PodRecord, node: str, annotations: Mapping[str, str | None] = NO_ANNOTATIONS, version: str = ""
    ) -> Patched:
        """Nominate the pod for a node ("" withdraws the nomination), and write annotations: both or neither. The API
        server takes annotations with the status of a pod."""
        return await self._patch(pod, version, annotations, {"status": {"nominatedNodeName": node or None}}, "/status")

    async def open(
        self,
        pod: PodRecord,
        gates: Sequence[str],
        annotations: Mapping[str, str | None] = NO_ANNOTATIONS,
        version: str = "",
    ) -> Patched:
        """Leave the pod with these gates, and write annotations."""
        return await self._patch(pod, version, annotations, {"spec": _with_gates(gates)})

    async def pin(
        self, pod: PodRecord, node: str, gates: Sequence[str], annotations: Mapping[str, str | None], version: str = ""
    ) -> Patched:
        """As `open`, and let the pod run on this node alone. With no gate left its affinity cannot change any more."""
        terms = {"nodeSelectorTerms": pinned_terms(pod.node_terms, node)}
        spec = {**_with_gates(gates), "affinity": {"nodeAffinity": {REQUIRED: terms}}}
        return await self._patch(pod, version, {**annotations, PINNED: node}, {"spec": spec})

    async def annotate(self, pod: PodRecord, annotations: Mapping[str, str | None]) -> Patched:
        """Write annotations."""
        return await self._patch(pod, "", annotations, {})

    async def note(
        self, pod: PodRecord, annotations: Mapping[str, str | None], condition: Mapping[str, str] | None = None
    ) -> Patched:
        """As `annotate`, of a pod that is on a node: with its status, which needs a smaller right than its patch; and
        one `condition` in the same write. The other conditions of the pod stay."""
        body = {} if condition is None else {"status": {"conditions": [dict(condition)]}}
        return await self._patch(pod, "", annotations, body, "/status", STRATEGIC_PATCH)

    async def _patch(
        self,
        pod: PodRecord,
        version: str,
        annotations: Mapping[str, str | None],
        body: Mapping[str, object],
        part: str = "",
        content_type: str = MERGE_PATCH,
    ) -> Patched:
        stated = {"annotations": dict(annotations)} if annotations else {}
        meta = {"resourceVersion": version or pod.resource_version, **stated}
        path = f"{pod_path(pod.namespace, pod.name)}{part}"
        return await patched(self._server, path, {"metadata": meta, **body}, content_type)


def _with_gates(gates: Sequence[str]) -> dict[str, object]:
    return {"schedulingGates": [{"name": gate} for gate in gates] or None}


async def patched(server: ApiServer, path: str, body: Mapping[str, object], content_type: str) -> Patched:
    """Patch the object of a path, which states the resourceVersion that it changes; raises nothing."""
    try:
        answer = await server.change("PATCH", path, msgspec.json.encode(body), content_type)
        return Patched("written", object_in(answer, _Written).metadata.resourceVersion)
    except (ApiError, NoAnswer) as error:
        status = error.status if isinstance(error, ApiError) else 0
        if status in (404, 409):
            return Patched("gone" if status == 404 else "conflict", message=str(error))
        return _failed(error)


def _failed(error: ApiError | NoAnswer) -> Patched:
    """`unknown` without an answer, or where the server asks for patience."""
    refused = isinstance(error, ApiError) and error.is_final
    return Patched("refused" if refused else "unknown", message=str(error))


def pinned_terms(terms: tuple[NodeTerm, ...] | None, node: str) -> list[dict[str, list[dict[str, object]]]]:
    """Node selector terms that leave one node of those that `terms` admit. The API server takes an update of a gated
    pod that appends to each of its terms; an empty one admits no node, and has to stay empty."""
    pin = Requirement("metadata.name", "In", (node,))
    pinned = [term._replace(fields=(*term.fields, pin)) if term.labels or term.fields else term for term in terms or ()]
    return [
        {
            **({"matchExpressions": list(map(_requirement, term.labels))} if term.labels else {}),
            **({"matchFields": list(map(_requirement, term.fields))} if term.fields else {}),
        }
        for term in pinned or [NodeTerm(fields=(pin,))]
    ]


def _requirement(stated: Requirement) -> dict[str, object]:
    values = {"values": list(stated.values)} if stated.values else {}
    return {"key": stated.key, "operator": stated.operator, **values}


def pod_path(namespace: str, name: str) -> str:
    """Of a pod at the API server."""
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}"


# -- evictions


AT_ONCE: Final = 8  # requests under way
EvictionOutcome = Literal["evicted", "gone", "blocked", "refused", "unknown"]


class Evicted(NamedTuple):
    """What became of it. ``gone``: no pod with that uid is there; ``blocked``: a budget does not allow it now;
    ``unknown``: no answer, or a failure of the server's."""

    outcome: EvictionOutcome
    message: str = ""


class PodEvictions:
    """Evicts pods, and counts what the API server answers."""

    def __init__(self, server: ApiServer, metrics: Metrics) -> None:
        self._server, self._metrics = server, metrics

    async def refusal(self, pods: Iterable[PodRecord]) -> tuple[PodRecord, Evicted] | None:
        """The first of these pods whose eviction the API server does not allow in a dry run, and why; None: it allows
        every one. Pods that are terminating are not asked about."""
        asked = [pod for pod in pods if not pod.terminating]
        for first in range(0, len(asked), AT_ONCE):
            some = asked[first : first + AT_ONCE]
            answers = await asyncio.gather(*(self._asked(pod, {"dryRun": ["All"]}) for pod in some))
            for pod, answer in zip(some, answers, strict=True):
                if answer.outcome not in ("evicted", "gone"):
                    self._metrics.evictions.labels(f"dry-run-{answer.outcome}").inc()
                    return pod, answer._replace(message=f"{pod.namespace}/{pod.name}: {answer.message}")
        return None

    async def evict(self, pod: PodRecord) -> Evicted:
        """Evict one pod."""
        answer = await self._asked(pod, {})
        self._metrics.evictions.labels(answer.outcome).inc()
        return answer

    async def _asked(self, pod: PodRecord, options: Mapping[str, object]) -> Evicted:
        """Ask for the end of this very pod."""
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": {"preconditions": {"uid": pod.uid}, **options},
        }
        try:
            await self._server.post(f"{pod_path(pod.namespace, pod.name)}/eviction", msgspec.json.encode(body))
        except ApiError as error:
            if error.status in (404, 409):
                return Evicted("gone", str(error))  # 409: another pod has its name now
            # 500: the server answers so where more than one budget speaks of the pod, which it does not support.
            if error.status == 429 or (error.status == 500 and "PodDisruptionBudget" in error.message):
                return Evicted("blocked", str(error))
            return Evicted("unknown" if error.status >= 500 else "refused", str(error))
        except NoAnswer as error:
            return Evicted("unknown", str(error))
        return Evicted("evicted")


# -- bindings ----------------------------------------------------------------------------------------------------------

BindingOutcome = Literal["bound", "conflict", "not-found", "refused", "unknown"]

_OUTCOMES: Final[dict[int, BindingOutcome]] = {404: "not-found", 409: "conflict"}


class BindResult(NamedTuple):
    """What became of a binding.

    ``conflict``: the pod is bound already, is being deleted, or is another one with the same name. ``unknown``: no
    answer came, or one of 500 and above, after which the pod may or may not be bound; get_pod() shows it.
    """

    outcome: BindingOutcome
    message: str = ""
    """The server's words; "" for bound."""


class Bindings:
    """The writes of one API server that bind pods."""

    def __init__(self, server: ApiServer, gpus: frozenset[str]) -> None:
        self._server = server
        self._gpus = gpus

    async def bind(self, namespace: str, name: str, uid: str, node: str, annotations: Mapping[str, str]) -> BindResult:
        """Binds the pod with this uid to the node; the API server copies the annotations onto the pod with it."""
        body = msgspec.json.encode(
            {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {"namespace": namespace, "name": name, "uid": uid, "annotations": dict(annotations)},
                "target": {"apiVersion": "v1", "kind": "Node", "name": node},
            }
        )
        try:
            await self._server.post(f"{pod_path(namespace, name)}/binding", body)
        except ApiError as error:
            otherwise: BindingOutcome = "unknown" if error.status >= 500 else "refused"
            return BindResult(_OUTCOMES.get(error.status, otherwise), str(error))
        except NoAnswer as error:
            return BindResult("unknown", str(error))
        return BindResult("bound")

    async def get_pod(self, namespace: str, name: str) -> PodRecord | None:
        """The pod as the API server has it now, None when there is none; one that is nested too deep is read as well.
        Raises ApiError, NoAnswer, RecordError (of what is read in part only, too: bind must know all of it)."""
        raw = await self._server.find(pod_path(namespace, name))
        if raw is None:
            return None
        try:
            return records.pod(raw, self._gpus)
        except RecordError as error:
            pod = decode.read_invalid("Pod", raw, self._gpus, str(error)).record
            if not isinstance(pod, PodRecord) or pod.unread:
                raise
            return pod


# kubelet admits pods in the order in which the Bindings of its node reach the API server, and the device plugin chooses
# GPUs for each from those that are free then. A pod that requires links was promised that whatever is free as its turn
# comes is linked. Bind counted the pods that it decided before as if they took any GPUs, in any order. A pod that it
# decides later must not overtake (`Turns`).


LONGEST_TURN: Final = 1.0  # seconds that a Binding waits for another: kube-scheduler waits 2 s for the answer


class Turns:
    """The Bindings that are being written, and that no later one of their node may overtake."""

    def __init__(self) -> None:
        self._open: dict[str, list[asyncio.Event]] = {}  # by node, in the order in which they were asked for

    @asynccontextmanager
    async def of(self, node: str, *, first: bool) -> AsyncIterator[None]:
        """The block in which a Binding to the node is written. `first`: no block that is entered later begins before
        this one has ended. Raises TimeoutError where one before has not ended after LONGEST_TURN."""
        before = tuple(self._open.get(node, ()))
        mine = asyncio.Event() if first else None
        if mine is not None:
            self._open.setdefault(node, []).append(mine)
        try:
            if before:
                async with asyncio.timeout(LONGEST_TURN):
                    for turn in before:
                        await turn.wait()
            yield
        finally:
            if mine is not None:
                self._close(node, mine)

    def _close(self, node: str, turn: asyncio.Event) -> None:
        turn.set()
        others = [other for other in self._open[node] if other is not turn]
        if others:
            self._open[node] = others
        else:
            del self._open[node]


# -- ResourceClaims and DeviceTaintRules -------------------------------------------------------------------------------
#
# A status write cannot touch metadata. So the finalizer comes first, as kube-scheduler has it: without it the claim
# controller would never free the devices of a claim that outlives its pod.

_API: Final = "/apis/resource.k8s.io/v1"
_RULES: Final = f"{_API}/devicetaintrules"
Object = dict[str, Any]


class ResourceClaimWrites:
    """Reads and writes claims at one API server. What reads raises ApiError and NoAnswer, and ValueError for an object
    that cannot be read."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server

    async def claim(self, namespace: str, name: str) -> Object | None:
        """The claim as it is; None where it does not exist."""
        return await self._get(_claim_path(namespace, name))

    async def device_class(self, name: str) -> Object | None:
        """The DeviceClass; None where it does not exist."""
        return await self._get(f"{_API}/deviceclasses/{quote(name, safe='')}")

    async def protect(self, namespace: str, name: str, version: str, node: str) -> Patched:
        """Add the finalizer, and the annotation that the queue allocates the claim on the node."""
        meta = {"resourceVersion": version, "finalizers": [FINALIZER], "annotations": {PLANNED_NODE: node}}
        return await patched(self._server, _claim_path(namespace, name), {"metadata": meta}, STRATEGIC_PATCH)

    async def allocate(
        self, namespace: str, name: str, version: str, allocation: Mapping[str, object] | None
    ) -> Patched:
        """Write `status.allocation`, None: take it away."""
        body = {"metadata": {"resourceVersion": version}, "status": {"allocation": allocation}}
        return await patched(self._server, f"{_claim_path(namespace, name)}/status", body, MERGE_PATCH)

    async def _get(self, path: str) -> Object | None:
        body = await self._server.find(path)
        if body is None:
            return None
        if prune.prune(body, decode.DEEPEST) != body:  # tenants write the parameters of drivers
            raise ValueError(f"it is nested deeper than {decode.DEEPEST} levels")
        item = msgspec.json.decode(body)
        return item if isinstance(item, dict) else None


class DeviceTaintRuleWrites:
    """Makes and deletes DeviceTaintRules at one API server; raises nothing."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server

    async def fence(self, name: str, device: AllocatedDevice) -> Patched:
        """Keep kube-scheduler's allocator off a device; a rule with this name that is there already will do."""
        rule = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceTaintRule",
            "metadata": {"name": name, "labels": {"app.kubernetes.io/managed-by": "gpu-extender"}},
            "spec": {"deviceSelector": device._asdict(), "taint": {"key": FENCE, "effect": "NoSchedule"}},
        }
        return await self._written("POST", _RULES, 409, msgspec.json.encode(rule))

    async def lift(self, name: str) -> Patched:
        """Delete a rule; one that does not exist will do."""
        return await self._written("DELETE", f"{_RULES}/{quote(name, safe='')}", 404)

    async def _written(self, method: str, path: str, done: int, body: bytes | None = None) -> Patched:
        """`done`: the status by which it is so already."""
        try:
            await self._server.request(method, path, body)
        except (ApiError, NoAnswer) as error:
            if not isinstance(error, ApiError) or error.status != done:
                return _failed(error)
        return Patched("written")


def _claim_path(namespace: str, name: str) -> str:
    return f"{_API}/namespaces/{quote(namespace, safe='')}/resourceclaims/{quote(name, safe='')}"


# -- our scheduling gate on pods, and the policy that adds it: found and removed without a running server.
#
# A gate is removed by a strategic merge patch, whose `$patch: delete` names the gate. Of the other ways, a JSON merge
# patch can only replace the whole list, and a JSON patch names a position: it fails when another controller removes its
# own gate in between. This patch leaves other gates alone, needs no resourceVersion, and may be sent twice. The uid in
# it makes the API server reject it for another pod of the same name.


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


class _Bindings(msgspec.Struct):
    items: list[_Object] | None = None


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
    bindings = object_in(body, _Bindings).items or []
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
                meta = object_in(raw, _Object).metadata
                if (text := (meta.annotations or {}).get(AGE_LIMIT)) is not None:
                    limits[meta.name] = text
    return limits


async def _gated(server: ApiServer, namespace: str) -> AsyncGenerator[list[PodRecord]]:
    """The pods with our gate, and those that are shown to the autoscaler, page by page, each as far as it can be read.
    No bound pod has a gate: the API server refuses both together."""
    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods" if namespace else "/api/v1/pods"
    async with aclosing(_pages(server, WatchedKind("Pod", path, _PAGE, "spec.nodeName="))) as read:
        async for page in read:
            pods = decode.all_of("Pod", page.items, frozenset(), None, [])
            yield [pod for pod in pods if isinstance(pod, PodRecord) and is_queued(pod)]


async def _pages(server: ApiServer, listed: WatchedKind) -> AsyncGenerator[Page]:
    try:
        async with aclosing(pages(server, listed)) as read:
            async for page in read:
                yield page
    except RecordError as error:
        raise NoAnswer(f"GET {listed.path}: {error}") from error


async def _remove(server: ApiServer, pod: PodRecord, tally: Tally) -> None:
    path = pod_path(pod.namespace, pod.name)
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
