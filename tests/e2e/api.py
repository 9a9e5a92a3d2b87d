"""The server's client of the Kubernetes API for code without an event loop, with the calls that tests make.

The requests run in a thread of their own, so that many threads may ask at once.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Literal, NamedTuple, TypeVar

import orjson

from extender.kube.client import ApiError, ApiServer, NoAnswer, Stream, Transport
from tests.e2e.effect import wait_for_effect

Object = dict[str, Any]
Objects = list[dict[str, Any]]
T = TypeVar("T")

FIELDS = b'"fieldsV1":'
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}]')

PATCH_TYPES = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
}


class Kind(NamedTuple):
    """Where the objects of a kind live."""

    group_version: str
    plural: str
    namespaced: bool = True


KINDS = {
    "Namespace": Kind("v1", "namespaces", False),
    "Node": Kind("v1", "nodes", False),
    "Pod": Kind("v1", "pods"),
    "ConfigMap": Kind("v1", "configmaps"),
    "Event": Kind("v1", "events"),
    "ResourceQuota": Kind("v1", "resourcequotas"),
    "LimitRange": Kind("v1", "limitranges"),
    "Secret": Kind("v1", "secrets"),
    "ServiceAccount": Kind("v1", "serviceaccounts"),
    "Deployment": Kind("apps/v1", "deployments"),
    "ReplicaSet": Kind("apps/v1", "replicasets"),
    "StatefulSet": Kind("apps/v1", "statefulsets"),
    "Job": Kind("batch/v1", "jobs"),
    "CronJob": Kind("batch/v1", "cronjobs"),
    "CustomResourceDefinition": Kind("apiextensions.k8s.io/v1", "customresourcedefinitions", False),
    "MutatingWebhookConfiguration": Kind("admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations", False),
    "ValidatingWebhookConfiguration": Kind("admissionregistration.k8s.io/v1", "validatingwebhookconfigurations", False),
    "JobSet": Kind("jobset.x-k8s.io/v1alpha2", "jobsets"),
    "LeaderWorkerSet": Kind("leaderworkerset.x-k8s.io/v1", "leaderworkersets"),
    "RayCluster": Kind("ray.io/v1", "rayclusters"),
    "TrainJob": Kind("trainer.kubeflow.org/v1alpha1", "trainjobs"),
    "TrainingRuntime": Kind("trainer.kubeflow.org/v1alpha1", "trainingruntimes"),
    "Lease": Kind("coordination.k8s.io/v1", "leases"),
    "PodDisruptionBudget": Kind("policy/v1", "poddisruptionbudgets"),
    "PriorityClass": Kind("scheduling.k8s.io/v1", "priorityclasses", False),
    "ClusterRole": Kind("rbac.authorization.k8s.io/v1", "clusterroles", False),
    "ClusterRoleBinding": Kind("rbac.authorization.k8s.io/v1", "clusterrolebindings", False),
    "Role": Kind("rbac.authorization.k8s.io/v1", "roles"),
    "ValidatingAdmissionPolicy": Kind("admissionregistration.k8s.io/v1", "validatingadmissionpolicies", False),
    "ValidatingAdmissionPolicyBinding": Kind(
        "admissionregistration.k8s.io/v1", "validatingadmissionpolicybindings", False
    ),
    "DaemonSet": Kind("apps/v1", "daemonsets"),
    "MutatingAdmissionPolicy": Kind("admissionregistration.k8s.io/v1", "mutatingadmissionpolicies", False),
    "MutatingAdmissionPolicyBinding": Kind("admissionregistration.k8s.io/v1", "mutatingadmissionpolicybindings", False),
    "ProvisioningRequest": Kind("autoscaling.x-k8s.io/v1", "provisioningrequests"),
    "PodTemplate": Kind("v1", "podtemplates"),
    "PodGroup": Kind("scheduling.k8s.io/v1beta1", "podgroups"),
    "DeviceClass": Kind("resource.k8s.io/v1", "deviceclasses", False),
    "ResourceSlice": Kind("resource.k8s.io/v1", "resourceslices", False),
    "ResourceClaim": Kind("resource.k8s.io/v1", "resourceclaims"),
    "DeviceTaintRule": Kind("resource.k8s.io/v1", "devicetaintrules", False),
    "ResourceClaimTemplate": Kind("resource.k8s.io/v1", "resourceclaimtemplates"),
    "RoleBinding": Kind("rbac.authorization.k8s.io/v1", "rolebindings"),
}


class WatchExpired(Exception):
    """The resource version is too old (410): list again."""


class Watch:
    """Events of one watch. Raises WatchExpired on 410, ApiError, and NoAnswer when the connection breaks."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, opens: Callable[[], AbstractAsyncContextManager[Stream]]
    ) -> None:
        self._loop = loop
        self._opens = opens
        self._arrived: SimpleQueue[bytes | Exception | None] = SimpleQueue()
        self._reader: Future[None] | None = None

    def __iter__(self) -> Iterator[tuple[str, Object]]:
        self._reader = asyncio.run_coroutine_threadsafe(self._read(), self._loop)
        try:
            for line in _lines(iter(self._next, None)):
                event = decode(line)
                if event["type"] == "ERROR":
                    status = event["object"]
                    if status.get("code") == 410:
                        raise WatchExpired
                    raise ApiError(status.get("code", 500), status.get("message", ""))
                yield event["type"], event["object"]
        finally:
            self.close()

    def close(self) -> None:
        """Ends the iteration, also when another thread is waiting in it for the next event."""
        if self._reader is not None:
            self._reader.cancel()
            self._arrived.put(NoAnswer("the watch was closed"))

    def _next(self) -> bytes | None:
        arrived = self._arrived.get()
        if isinstance(arrived, Exception):
            raise arrived
        return arrived

    async def _read(self) -> None:
        try:
            async with self._opens() as stream:
                async for chunk in stream.chunks:
                    self._arrived.put(chunk)
            self._arrived.put(None)
        except (ApiError, NoAnswer) as error:
            self._arrived.put(error)
        finally:
            self._arrived.put(NoAnswer("the watch was closed"))


class Api:
    """One user's view of the API server. Safe to use from several threads."""

    def __init__(self, url: str, token: str, ca: Path, timeout: float = 30) -> None:
        """``timeout`` in seconds bounds each request, watches excepted."""
        self.url = url
        self.token = token
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="api", daemon=True)
        self._thread.start()

        async def headers() -> Mapping[str, str]:
            return {"Authorization": f"Bearer {token}"}

        async def connect() -> ApiServer:
            tls = ssl.create_default_context(cafile=str(ca))
            return ApiServer(url, headers=headers, transport=Transport(tls), timeout=timeout)

        self._server = self._run(connect())

    def __enter__(self) -> Api:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        if self._loop.is_closed():
            return
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        watches = asyncio.all_tasks() - {asyncio.current_task()}
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)
        await self._server.close()

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        params: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Object:
        """One call; raises ApiError for every status but 2xx, NoAnswer without an answer."""
        content = None if body is None else orjson.dumps(body)
        return decode(self._run(self._server.request(method, path, content, params=params, content_type=content_type)))

    def text(self, path: str) -> str:
        """A plain-text page such as /readyz or /metrics."""
        return self._run(self._server.get(path)).decode()

    # ---- objects

    def create(self, item: Object) -> Object:
        """Creates an object, which must name its kind (and namespace, where the kind has one). Priorities and rights
        count when this returns."""
        made = self.request("POST", path_of(item["kind"], namespace=item["metadata"].get("namespace")), item)
        wait_for_effect(self, made)
        return made

    def create_bytes(self, kind: str, namespace: str, content: bytes) -> Object:
        """Creates an object that no encoder of ours can write."""
        return decode(self._run(self._server.post(path_of(kind, namespace=namespace), content)))

    def create_many(self, items: Iterable[Object], threads: int = 8) -> int:
        """Creates objects of any kinds in parallel, in no certain order; returns their number."""
        with ThreadPoolExecutor(threads) as pool:
            return sum(1 for _ in pool.map(self.create, items))

    def get(self, kind: str, name: str, namespace: str | None = None) -> Object:
        """One object."""
        return self.request("GET", path_of(kind, name, namespace))

    def find(self, kind: str, name: str, namespace: str | None = None) -> Object | None:
        """One object, or None when there is none of that name."""
        try:
            return self.get(kind, name, namespace)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def list(self, kind: str, namespace: str | None = None, *, labels: str = "", fields: str = "") -> Objects:
        """The objects of a kind; all namespaces when none is given."""
        return self.list_raw(kind, namespace, labels=labels, fields=fields)[0]

    def list_raw(
        self, kind: str, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> tuple[Objects, str]:
        """As list, with the resource version to start a watch from."""
        params = {"labelSelector": labels, "fieldSelector": fields}
        answer = self.request("GET", path_of(kind, namespace=namespace), params={k: v for k, v in params.items() if v})
        return answer["items"], answer["metadata"]["resourceVersion"]

    def replace(self, item: Object) -> Object:
        """Writes the whole object; a stale resource version is a conflict (409)."""
        meta = item["metadata"]
        return self.request("PUT", path_of(item["kind"], meta["name"], meta.get("namespace")), item)

    def patch(
        self,
        kind: str,
        name: str,
        body: Object,
        namespace: str | None = None,
        *,
        how: Literal["merge", "strategic"] = "merge",
        subresource: str = "",
    ) -> Object:
        """Changes a part of an object."""
        path = path_of(kind, name, namespace, subresource)
        return self.request("PATCH", path, body, content_type=PATCH_TYPES[how])

    def delete(
        self, kind: str, name: str, namespace: str | None = None, *, grace: int | None = None, uid: str = ""
    ) -> Object:
        """Deletes one object; ``grace`` in seconds (None: the object's own), ``uid`` as a precondition."""
        options: Object = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        if uid:
            options["preconditions"] = {"uid": uid}
        return self.request("DELETE", path_of(kind, name, namespace), options)

    def delete_all(self, kind: str, namespace: str | None = None, *, labels: str = "") -> None:
        """Deletes all objects of a kind, pods at once. A namespaced kind needs its namespace."""
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
        params = {"labelSelector": labels} if labels else None
        self.request("DELETE", path_of(kind, namespace=namespace), options, params=params)

    def watch(
        self,
        kind: str,
        namespace: str | None = None,
        *,
        version: str = "",
        labels: str = "",
        fields: str = "",
        seconds: float = 3600,
    ) -> Watch:
        """Iterate over it for (type, object), until the server ends the watch after ``seconds``."""
        params = {"watch": "true", "timeoutSeconds": str(max(1, round(seconds)))}
        if version:
            params["resourceVersion"] = version
        if labels:
            params["labelSelector"] = labels
        if fields:
            params["fieldSelector"] = fields
        path = path_of(kind, namespace=namespace)
        return Watch(self._loop, partial(self._server.stream, path, params, inactivity=seconds + 30))

    # ---- verbs of pods

    def bind(self, pod: Object, node: str, annotations: Mapping[str, str] | None = None) -> Object:
        """Binds a pod as a scheduler does. Annotations of the Binding end up on the pod in the same write."""
        meta = pod["metadata"]
        own: Object = {"name": meta["name"], "namespace": meta["namespace"], "uid": meta.get("uid", "")}
        if annotations:
            own["annotations"] = dict(annotations)
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": own, "target": target}
        return self.request("POST", path_of("Pod", meta["name"], meta["namespace"], "binding"), body)

    def evict(self, name: str, namespace: str, *, grace: int | None = None, uid: str = "") -> Object:
        """The Eviction API, which honours disruption budgets (429 when one is exhausted)."""
        options: Object = {}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        if uid:
            options["preconditions"] = {"uid": uid}
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": options,
        }
        return self.request("POST", path_of("Pod", name, namespace, "eviction"), body)


def path_of(kind: str, name: str = "", namespace: str | None = None, subresource: str = "") -> str:
    """The URL path of a kind's collection, of an object or of its subresource."""
    where = KINDS[kind]
    path = ("/api/" if where.group_version == "v1" else "/apis/") + where.group_version
    if where.namespaced and namespace:
        path += f"/namespaces/{namespace}"
    path += f"/{where.plural}"
    if name:
        path += f"/{name}"
    return f"{path}/{subresource}" if subresource else path


def decode(content: bytes) -> Object:
    """JSON; of objects that are nested too deeply for a parser, without their managed fields."""
    try:
        found: Object = orjson.loads(content)
    except orjson.JSONDecodeError:
        found = orjson.loads(_without_managed_fields(content))
    return found


def _without_managed_fields(content: bytes) -> bytes:
    kept: list[bytes] = []
    at = 0
    while (begin := content.find(FIELDS, at)) >= 0:
        kept.append(content[at : begin + len(FIELDS)] + b"{}")
        depth = 0
        for token in _TOKEN.finditer(content, begin + len(FIELDS)):
            depth += {b"{": 1, b"}": -1}.get(token[0], 0)
            if not depth:
                at = token.end()
                break
        else:
            return content
    return b"".join([*kept, content[at:]])


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from whole
