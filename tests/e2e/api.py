"""A thin JSON client of the Kubernetes API, fast enough to make 5,000 nodes in a test.

It is not the product's client on purpose: the tests must not share the product's mistakes.
"""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple

import httpx
import orjson

Object = dict[str, Any]
Objects = list[dict[str, Any]]

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
    "ServiceAccount": Kind("v1", "serviceaccounts"),
    "Deployment": Kind("apps/v1", "deployments"),
    "ReplicaSet": Kind("apps/v1", "replicasets"),
    "StatefulSet": Kind("apps/v1", "statefulsets"),
    "Job": Kind("batch/v1", "jobs"),
    "Lease": Kind("coordination.k8s.io/v1", "leases"),
    "PodDisruptionBudget": Kind("policy/v1", "poddisruptionbudgets"),
    "PriorityClass": Kind("scheduling.k8s.io/v1", "priorityclasses", False),
    "ClusterRole": Kind("rbac.authorization.k8s.io/v1", "clusterroles", False),
    "ClusterRoleBinding": Kind("rbac.authorization.k8s.io/v1", "clusterrolebindings", False),
    "Role": Kind("rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": Kind("rbac.authorization.k8s.io/v1", "rolebindings"),
}


class ApiError(Exception):
    """The API server said no. ``status`` is the HTTP status, ``reason`` Kubernetes' word for it."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


class WatchExpired(Exception):
    """The resource version is too old (410): list again."""


class Watch:
    """Events of one watch. Raises WatchExpired on 410, httpx.TransportError when the connection breaks."""

    def __init__(self, http: httpx.Client, request: httpx.Request) -> None:
        self._http = http
        self._request = request
        self._answer: httpx.Response | None = None

    def __iter__(self) -> Iterator[tuple[str, Object]]:
        answer = self._answer = self._http.send(self._request, stream=True)
        try:
            if answer.status_code >= 400:
                raise _error(answer.status_code, answer.read())
            for line in _lines(answer.iter_bytes()):
                event = decode(line)
                if event["type"] == "ERROR":
                    status = event["object"]
                    if status.get("code") == 410:
                        raise WatchExpired
                    raise ApiError(status.get("code", 500), status.get("reason", ""), status.get("message", ""))
                yield event["type"], event["object"]
        finally:
            answer.close()

    def close(self) -> None:
        """Ends the iteration, also when another thread is waiting in it for the next event."""
        if self._answer is None:
            return
        stream = self._answer.extensions.get("network_stream")
        if stream is not None:
            # Closing the response would not wake the reader; ending the connection below it does. The plain
            # socket's method, since the TLS one forgets the session that the reader is using.
            with contextlib.suppress(OSError):
                socket.socket.shutdown(stream.get_extra_info("socket"), socket.SHUT_RDWR)


class Api:
    """One user's view of the API server. Safe to use from several threads."""

    def __init__(self, url: str, token: str, ca: Path, timeout: float = 30) -> None:
        """``timeout`` in seconds bounds each request, watches excepted."""
        self.url = url
        self.token = token
        self._http = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {token}"},
            verify=ssl.create_default_context(cafile=str(ca)),
            timeout=timeout,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
            trust_env=False,
        )

    def __enter__(self) -> Api:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        params: Mapping[str, str | int] | None = None,
        content_type: str = "application/json",
    ) -> Object:
        """One call; raises ApiError for every status of 400 and more."""
        content = None if body is None else orjson.dumps(body)
        headers = {} if body is None else {"Content-Type": content_type}
        answer = self._http.request(method, path, content=content, headers=headers, params=params)
        if answer.status_code >= 400:
            raise _error(answer.status_code, answer.content)
        return decode(answer.content)

    def post(self, path: str, content: bytes) -> httpx.Response:
        """JSON as it stands, also what orjson would not write; the answer, whatever its status."""
        return self._http.post(path, content=content, headers={"Content-Type": "application/json"})

    def text(self, path: str) -> str:
        """A plain-text page such as /readyz or /metrics."""
        answer = self._http.get(path)
        if answer.status_code >= 400:
            raise _error(answer.status_code, answer.content)
        return answer.text

    # ---- objects

    def create(self, item: Object) -> Object:
        """Creates an object, which must name its kind (and namespace, where the kind has one)."""
        return self.request("POST", path_of(item["kind"], namespace=item["metadata"].get("namespace")), item)

    def create_bytes(self, kind: str, namespace: str, content: bytes) -> Object:
        """Creates an object that no encoder of ours can write."""
        headers = {"Content-Type": "application/json"}
        answer = self._http.post(path_of(kind, namespace=namespace), content=content, headers=headers)
        if answer.status_code >= 400:
            raise _error(answer.status_code, answer.content)
        return decode(answer.content)

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
        params: dict[str, str | int] = {"watch": "true", "timeoutSeconds": max(1, round(seconds))}
        if version:
            params["resourceVersion"] = version
        if labels:
            params["labelSelector"] = labels
        if fields:
            params["fieldSelector"] = fields
        timeout = httpx.Timeout(30, read=seconds + 30)
        path = path_of(kind, namespace=namespace)
        return Watch(self._http, self._http.build_request("GET", path, params=params, timeout=timeout))

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
    # httpx's own splitter decodes and knows eleven kinds of line ends; this is the hot path.
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from whole


def _error(status: int, content: bytes) -> ApiError:
    try:
        answer = decode(content)
        return ApiError(status, answer.get("reason", ""), answer.get("message", ""))
    except (orjson.JSONDecodeError, AttributeError):
        return ApiError(status, "", content.decode(errors="replace")[:500])
