"""The writes on a pod: its seat (nominated node and annotations), its gates without ours, and its eviction.

The patches state the resourceVersion they change, so a pod that was changed meanwhile is read again first. A merge
patch replaces the list of gates: the precondition keeps the gates of other controllers safe. Evictions
use the eviction API, which respects the pod's PodDisruptionBudgets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple
from urllib.parse import quote

import msgspec

from extender.kube.client import MERGE_PATCH, STRATEGIC_PATCH, ApiError, ApiServer, NoAnswer
from extender.metrics import Metrics
from extender.objects.queueing import PINNED
from extender.objects.records import PodRecord
from extender.objects.selectors import NodeTerm, Requirement

REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
PatchOutcome = Literal["written", "conflict", "gone", "refused", "unknown"]


NO_ANNOTATIONS: Final[Mapping[str, str | None]] = {}


class Patched(NamedTuple):
    """What became of a patch. ``conflict``: the object has changed; ``gone``: it is deleted; ``refused``: the API
    server never allows it; ``unknown``: no answer, or one that asks for patience (429, 500 and above)."""

    outcome: PatchOutcome
    version: str = ""  # the object's resourceVersion once written
    message: str = ""


class _Meta(msgspec.Struct):
    resourceVersion: str = ""


class _Written(msgspec.Struct):
    metadata: _Meta


class PodPatches:
    """Patches of pods at one API server."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server

    async def nominate(
        self, namespace: str, name: str, version: str, node: str, annotations: Mapping[str, str | None]
    ) -> Patched:
        """Nominate the pod for a node ("" withdraws the nomination), and write annotations (None removes one): both or
        neither. The API server takes annotations with the status of a pod."""
        body: dict[str, object] = {
            "metadata": {"resourceVersion": version, "annotations": dict(annotations)},
            "status": {"nominatedNodeName": node or None},
        }
        return await self._patch(f"{_path(namespace, name)}/status", body)

    async def open(
        self,
        namespace: str,
        name: str,
        version: str,
        gates: Sequence[str],
        annotations: Mapping[str, str | None] = NO_ANNOTATIONS,
    ) -> Patched:
        """Leave the pod with these gates, and write annotations (None removes one)."""
        names = [{"name": gate} for gate in gates]
        body: dict[str, object] = {
            "metadata": {"resourceVersion": version, **({"annotations": dict(annotations)} if annotations else {})},
            "spec": {"schedulingGates": names or None},
        }
        return await self._patch(_path(namespace, name), body)

    async def pin(
        self, pod: PodRecord, version: str, node: str, gates: Sequence[str], annotations: Mapping[str, str | None]
    ) -> Patched:
        """As `open`, and let the pod run on this node alone. With no gate left its affinity cannot change any more."""
        body: dict[str, object] = {
            "metadata": {"resourceVersion": version, "annotations": {**annotations, PINNED: node}},
            "spec": {
                "schedulingGates": [{"name": gate} for gate in gates] or None,
                "affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": pinned_terms(pod.node_terms, node)}}},
            },
        }
        return await self._patch(_path(pod.namespace, pod.name), body)

    async def annotate(self, namespace: str, name: str, version: str, annotations: Mapping[str, str | None]) -> Patched:
        """Write annotations (None removes one)."""
        body: dict[str, object] = {"metadata": {"resourceVersion": version, "annotations": dict(annotations)}}
        return await self._patch(_path(namespace, name), body)

    async def condition(self, namespace: str, name: str, version: str, condition: Mapping[str, str]) -> Patched:
        """Write one condition of the pod; its other conditions stay."""
        status = {"conditions": [dict(condition)]}
        body: dict[str, object] = {"metadata": {"resourceVersion": version}, "status": status}
        return await self._patch(f"{_path(namespace, name)}/status", body, STRATEGIC_PATCH)

    async def _patch(self, path: str, body: dict[str, object], content_type: str = MERGE_PATCH) -> Patched:
        return await patched(self._server, path, body, content_type)


_DECODER: Final = msgspec.json.Decoder(_Written)


async def patched(server: ApiServer, path: str, body: Mapping[str, object], content_type: str) -> Patched:
    """Patch the object of a path, which states the resourceVersion that it changes; raises nothing."""
    try:
        answer = await server.change("PATCH", path, msgspec.json.encode(body), content_type)
    except ApiError as error:
        if error.status == 409:
            return Patched("conflict", message=str(error))
        if error.status == 404:
            return Patched("gone", message=str(error))
        outcome: PatchOutcome = "unknown" if error.status == 429 or error.status >= 500 else "refused"
        return Patched(outcome, message=str(error))
    except NoAnswer as error:
        return Patched("unknown", message=str(error))
    try:
        return Patched("written", _DECODER.decode(answer).metadata.resourceVersion)
    except (msgspec.MsgspecError, RecursionError) as error:
        return Patched("unknown", message=f"no object came: {error}")


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


def _path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}"


# -- evictions


AT_ONCE: Final = 8  # requests under way
EvictionOutcome = Literal["evicted", "gone", "blocked", "refused", "unknown"]


class Evicted(NamedTuple):
    """What became of it. ``gone``: no pod with that uid is there; ``blocked``: a budget does not allow it now;
    ``unknown``: no answer, or a failure of the server's."""

    outcome: EvictionOutcome
    message: str = ""


async def evict(server: ApiServer, namespace: str, name: str, uid: str, *, dry_run: bool) -> Evicted:
    """Ask for the end of this very pod. ``dry_run``: only whether it would be allowed."""
    options: dict[str, object] = {"preconditions": {"uid": uid}}
    if dry_run:
        options["dryRun"] = ["All"]
    body = msgspec.json.encode(
        {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": options,
        }
    )
    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}/eviction"
    try:
        await server.post(path, body)
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


class PodEvictions:
    """Evicts pods, and counts what the API server answers."""

    def __init__(self, server: ApiServer, metrics: Metrics) -> None:
        self._server, self._metrics = server, metrics

    async def refusal(self, pods: Iterable[PodRecord]) -> tuple[PodRecord, str] | None:
        """The first of these pods whose eviction the API server does not allow in a dry run, and why; None: it allows
        every one. Pods that are terminating are not asked about."""
        asked = [pod for pod in pods if not pod.terminating]
        for first in range(0, len(asked), AT_ONCE):
            some = asked[first : first + AT_ONCE]
            answers = await asyncio.gather(
                *(evict(self._server, pod.namespace, pod.name, pod.uid, dry_run=True) for pod in some)
            )
            for pod, answer in zip(some, answers, strict=True):
                if answer.outcome not in ("evicted", "gone"):
                    self._metrics.evictions.labels(f"dry-run-{answer.outcome}").inc()
                    return pod, f"{pod.namespace}/{pod.name}: {answer.message}"
        return None

    async def evict(self, pod: PodRecord) -> Evicted:
        """Evict one pod."""
        answer = await evict(self._server, pod.namespace, pod.name, pod.uid, dry_run=False)
        self._metrics.evictions.labels(answer.outcome).inc()
        return answer
