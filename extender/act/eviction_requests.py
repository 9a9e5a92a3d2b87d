"""EvictionRequests (`lifecycle.k8s.io/v1alpha1`, Kubernetes 1.37 with the gate EvictionRequestAPI) for pods that are
asked to save their work and name `spec.evictionResponders`. Off by default: `preemption.evictionRequests`.

An EvictionRequest stands as long as the request of `saving.py`. It is created after the annotation is written, and
deleted before the annotation is removed: the API takes a deletion as a withdrawal. So whoever finds the annotation
after a crash knows of it. Its name follows from the pod, so that creating it twice makes one; its owner is the pod, so
that it ends with it. Nothing waits for it: the pod answers as any other, and the Eviction API evicts. No controller of
Kubernetes 1.37 reads these objects, and its API server accepts no responders of pods with a `schedulingGroup`.
"""

from __future__ import annotations

from typing import Any, Final, Literal
from urllib.parse import quote

import msgspec

from extender.kube.client import ApiError, ApiServer, NoAnswer
from extender.log import get_log
from extender.objects.records import PodRecord

API: Final = "lifecycle.k8s.io/v1alpha1"
Outcome = Literal["stands", "none", "unknown"]
"""none: the pod names no responder, or the API server does not take the object; unknown: it is tried again."""
log = get_log()


class _Spec(msgspec.Struct):
    evictionResponders: list[Any] | None = None


class _Metadata(msgspec.Struct):
    uid: str = ""


class _Pod(msgspec.Struct):
    metadata: _Metadata
    spec: _Spec


_POD: Final = msgspec.json.Decoder(_Pod)


class EvictionRequests:
    """Those of one Lease at one API server."""

    def __init__(self, server: ApiServer, part: str) -> None:
        """`part`: what evicts, in the names of its objects and of the requester."""
        self._server, self._part = server, part

    async def create(self, pod: PodRecord) -> Outcome:
        """Request the eviction of the pod where it names responders; raises nothing."""
        path = f"/api/v1/namespaces/{quote(pod.namespace, safe='')}/pods/{quote(pod.name, safe='')}"
        try:
            found = await self._server.find(path)
            stated = None if found is None else _POD.decode(found)
            if stated is None or stated.metadata.uid != pod.uid or not stated.spec.evictionResponders:
                return "none"
            await self._server.post(self._path(pod), msgspec.json.encode(self._object(pod)))
        except ApiError as error:
            if error.status == 409:  # it stands already
                return "stands"
            return self._failed(pod, error, "none" if error.is_final else "unknown")
        except (NoAnswer, msgspec.MsgspecError, RecursionError) as error:
            return self._failed(pod, error, "unknown")
        return "stands"

    async def withdraw(self, pod: PodRecord) -> bool:
        """Delete the EvictionRequest of the pod; whether none stands now. It raises nothing."""
        try:
            await self._server.request("DELETE", f"{self._path(pod)}/{self._name(pod)}")
        except (ApiError, NoAnswer) as error:
            return isinstance(error, ApiError) and error.status in (403, 404)
        return True

    def _object(self, pod: PodRecord) -> dict[str, Any]:
        owner = {"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid}
        return {
            "apiVersion": API,
            "kind": "EvictionRequest",
            "metadata": {
                "name": self._name(pod),
                "labels": {"app.kubernetes.io/managed-by": "gpu-extender"},
                "ownerReferences": [owner],
            },
            "spec": {
                "target": {"pod": {"name": pod.name, "uid": pod.uid}},
                "requester": f"gpu-extender.io/{self._part}",
                "intent": "Eviction",
            },
        }

    def _name(self, pod: PodRecord) -> str:
        return f"gpu-extender-{self._part}-{pod.uid}"

    @staticmethod
    def _path(pod: PodRecord) -> str:
        return f"/apis/{API}/namespaces/{quote(pod.namespace, safe='')}/evictionrequests"

    @staticmethod
    def _failed(pod: PodRecord, error: Exception, outcome: Outcome) -> Outcome:
        name = f"{pod.namespace}/{pod.name}"
        log.warning("no EvictionRequest is made (preemption.evictionRequests)", pod=name, err=str(error))
        return outcome
