"""The writes on a pod that the queue releases: its seat (nominated node and annotations), and its gates without ours.

Both are merge patches that state the resourceVersion they change, so a pod that was changed meanwhile is read again
first. A merge patch replaces the list of gates: the precondition keeps the gates of other controllers safe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple
from urllib.parse import quote

import msgspec

from extender.kube.client import MERGE_PATCH, STRATEGIC_PATCH, ApiError, ApiServer, Unreachable
from extender.objects.queueing import PINNED
from extender.objects.records import PodRecord
from extender.objects.selectors import NodeTerm, Requirement

REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
Outcome = Literal["written", "conflict", "gone", "refused", "unknown"]


NO_ANNOTATIONS: Final[Mapping[str, str | None]] = {}


class Patched(NamedTuple):
    """What became of a patch. ``conflict``: the object has changed; ``gone``: it is deleted; ``refused``: the API
    server never allows it; ``unknown``: no answer, or one that asks for patience (429, 500 and above). ``version``: the
    object's resourceVersion once written."""

    outcome: Outcome
    version: str = ""
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
        left = [{"name": gate} for gate in gates]
        body: dict[str, object] = {
            "metadata": {"resourceVersion": version, **({"annotations": dict(annotations)} if annotations else {})},
            "spec": {"schedulingGates": left or None},
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
        outcome: Outcome = "unknown" if error.status == 429 or error.status >= 500 else "refused"
        return Patched(outcome, message=str(error))
    except Unreachable as error:
        return Patched("unknown", message=str(error))
    try:
        return Patched("written", _DECODER.decode(answer).metadata.resourceVersion)
    except (msgspec.MsgspecError, RecursionError) as error:
        return Patched("unknown", message=f"no object came: {error}")


def pinned_terms(terms: tuple[NodeTerm, ...] | None, node: str) -> list[dict[str, list[dict[str, object]]]]:
    """Node selector terms that leave one node of those that `terms` admit. The API server takes an update of a gated
    pod that appends to each of its terms; an empty one admits no node, and has to stay empty."""
    pin = Requirement("metadata.name", "In", (node,))
    made = [one._replace(fields=(*one.fields, pin)) if one.labels or one.fields else one for one in terms or ()]
    return [
        {
            **({"matchExpressions": list(map(_requirement, one.labels))} if one.labels else {}),
            **({"matchFields": list(map(_requirement, one.fields))} if one.fields else {}),
        }
        for one in made or [NodeTerm(fields=(pin,))]
    ]


def _requirement(one: Requirement) -> dict[str, object]:
    return {"key": one.key, "operator": one.operator, **({"values": list(one.values)} if one.values else {})}


def _path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}"
