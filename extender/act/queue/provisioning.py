"""Asks an autoscaler for the nodes of a gang: a ProvisioningRequest (autoscaling.x-k8s.io/v1) and its PodTemplates.

Cluster Autoscaler 1.30.2 and later adds the nodes for all pods of a request, or none. The class is
`best-effort-atomic-scale-up`. The objects are in the gang's namespace, and the first pod of the gang owns them: they
are deleted with it, so nothing of ours has to remember them.

Cluster Autoscaler tries a request again by itself for a week. One that has failed, or whose nodes are booked no longer,
stays so: another one is made, later each time. The number of the attempt is the end of its name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable
from hashlib import sha256
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import quote

import msgspec

from extender.kube.client import ApiError
from extender.log import get_log
from extender.objects.records import PodRecord
from extender.queue.gang import WaitingGang
from extender.queue.plan import gang_name

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
log = get_log()


class _Condition(msgspec.Struct):
    type: str = ""
    status: str = ""
    message: str = ""


class _Status(msgspec.Struct):
    conditions: list[_Condition] | None = None


class _Request(msgspec.Struct):
    status: _Status | None = None


class TooManyKinds(Exception):
    """The pods of a gang differ in more ways than a request may name."""


class ProvisioningServer(Protocol):
    """Requests to one API server, as `ApiServer`. They raise ApiError and NoAnswer."""

    async def get(self, path: str) -> bytes:
        """The body of a 200."""
        ...

    async def post(self, path: str, body: bytes) -> bytes:
        """The body of a 2xx answer."""
        ...


class ProvisioningRequests:
    """Makes them at one API server."""

    def __init__(self, server: ProvisioningServer) -> None:
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
        core = f"/api/v1/namespaces/{quote(first.namespace, safe='')}"
        pod = msgspec.json.decode(await self._server.get(f"{core}/pods/{quote(like.name, safe='')}"))
        spec = {key: value for key, value in pod["spec"].items() if key not in _OF_POD}
        template = {"metadata": {"labels": pod["metadata"].get("labels") or {}}, "spec": spec}
        await self._make(f"{core}/podtemplates", _object("v1", "PodTemplate", name, first) | {"template": template})
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
        if wall < at:
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
