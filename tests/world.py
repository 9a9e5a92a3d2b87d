"""A small world: a cluster made by hand, and the server over it, asked as kube-scheduler asks.

The verbs are called through the ASGI application without a socket: nothing in it waits when the cluster is frozen, so
one coroutine is driven to its end by hand. Time stands still until a test moves it.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any

from starlette.routing import Router

from extender.act.controller import ClusterSource
from extender.act.events import EventRecorder
from extender.act.evictions import OwnEvictions
from extender.act.queue.controller import QueueController
from extender.act.reservations import ReservationStore
from extender.ask import forks
from extender.ask.forks import Forks
from extender.cluster.cluster import Cluster
from extender.decide.decisions import Answer
from extender.errors import Busy
from extender.objects import decode, records
from extender.objects.records import Event
from extender.policy.reasons import REASONS
from extender.server import acting, deciding, wiring
from extender.server.calls import Binder
from extender.server.gate import Reviews
from extender.settings import Settings
from extender.times import Clock
from extender.topologies import Topology
from extender.topologies.annotation import encode

GPU, AMD = "nvidia.com/gpu", "amd.com/gpu"
WALL = 1_800_000_000.0  # seconds since 1970
JSON = dict[str, Any]
TEXT = {reason.key: reason.text for reason in REASONS.values()}
PRODUCT = "nvidia.com/gpu.product"
DGX1V = [
    [0, 1, 1, 2, 2, 0, 0, 0],
    [1, 0, 2, 1, 0, 2, 0, 0],
    [1, 2, 0, 2, 0, 0, 1, 0],
    [2, 1, 2, 0, 0, 0, 0, 1],
    [2, 0, 0, 0, 0, 1, 1, 2],
    [0, 2, 0, 0, 1, 0, 2, 1],
    [0, 0, 1, 0, 1, 2, 0, 2],
    [0, 0, 0, 1, 2, 1, 2, 0],
]


def rfc3339(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def pairs(gpus: int = 8) -> list[list[int]]:
    return [[4 if a != b and a // 2 == b // 2 else 0 for b in range(gpus)] for a in range(gpus)]


def topology(links: Sequence[Sequence[int]]) -> str:
    """The node annotation for a graph whose entries are NVLinks, on one NUMA node."""
    made = tuple(tuple(row) for row in links)
    ids = range(len(made))
    return encode(
        Topology(
            len(made),
            made,
            kind="nvlink",
            gbps=25.0,
            numa=tuple(0 for _ in ids),
            pcie=tuple(tuple("X" if a == b else "PHB" for b in ids) for a in ids),
            source="annotation",
            detail="a test",
        )
    )


def workload(
    name: str,
    gpus: int | str = 0,
    *,
    resource: str = GPU,
    priority: int = 0,
    cpu: str = "1",
    memory: str = "1Gi",
    namespace: str = "default",
    node: str = "",
    nominated: str = "",
    phase: str = "Pending",
    start: float | None = None,
    grace: int = 30,
    terminating: float | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    links: str = "",
    held: Iterable[int] = (),
    never: bool = False,
    owner: str = "",
    spec: Mapping[str, Any] | None = None,
) -> JSON:
    """A v1.Pod. `held`: GPUs that it is seen to hold; `terminating`: seconds since 1970 when its grace ends."""
    amounts = {"cpu": cpu, "memory": memory} | ({resource: str(gpus)} if gpus else {})
    limits = {resource: str(gpus)} if gpus else {}
    notes = dict(annotations or {})
    if links:
        notes["gpu-extender.io/links"] = links
    if held:
        notes["gpu-extender.io/held-gpus"] = ",".join(map(str, held))
    metadata: JSON = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "resourceVersion": "7"}
    metadata |= {"labels": dict(labels or {}), "annotations": notes}
    if terminating is not None:
        metadata |= {"deletionTimestamp": rfc3339(terminating), "deletionGracePeriodSeconds": grace}
    if owner:
        metadata["ownerReferences"] = [
            {"apiVersion": "apps/v1", "kind": owner, "name": "owner", "uid": "uid-owner", "controller": True}
        ]
    whole: JSON = {
        "containers": [{"name": "main", "resources": {"requests": amounts, "limits": limits}}],
        "priority": priority,
        "terminationGracePeriodSeconds": grace,
        "preemptionPolicy": "Never" if never else "PreemptLowerPriority",
    }
    if node:
        whole["nodeName"] = node
    status: JSON = {"phase": phase}
    if nominated:
        status["nominatedNodeName"] = nominated
    if start is not None:
        status["startTime"] = rfc3339(start)
    return {"metadata": metadata, "spec": whole | dict(spec or {}), "status": status}


def machine(
    name: str,
    gpus: int | str = 8,
    *,
    resource: str = GPU,
    links: Sequence[Sequence[int]] | None = None,
    cpu: str = "64",
    memory: str = "512Gi",
    pods: str = "110",
    capacity: int | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    unschedulable: bool = False,
) -> JSON:
    """A v1.Node. `capacity`: GPUs, where the node has others than are allocatable."""
    notes = dict(annotations or {})
    if links is not None:
        notes["gpu-extender.io/topology"] = topology(links)
    there = {"cpu": cpu, "memory": memory, "pods": pods}
    allocatable = there | ({resource: str(gpus)} if gpus else {})
    whole = there | ({resource: str(gpus if capacity is None else capacity)} if gpus or capacity else {})
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": dict(labels or {}), "annotations": notes},
        "spec": {"unschedulable": True} if unschedulable else {},
        "status": {"allocatable": allocatable, "capacity": whole},
    }


class Reply:
    """What the server answered."""

    def __init__(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        self.status, self.body = status, body
        self.headers = {key.decode().lower(): text.decode() for key, text in headers}

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class World:
    """A cluster that a test fills, and the server over it. `now`, `wall`: the time that it sees."""

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        source: ClusterSource | None = None,
        binder: Binder | None = None,
        events: EventRecorder | None = None,
        cluster: Cluster | None = None,
        reviews: Reviews | None = None,
    ) -> None:
        self.now, self.wall = 1000.0, WALL
        self.settings = settings or Settings()
        clock = Clock(lambda: self.now, lambda: self.wall)
        self.cluster = cluster or Cluster(self.settings)
        self.core = deciding.Core.over(self.cluster, source, events=events, clock=clock)
        self.verbs, self.metrics = self.core.verbs, self.core.metrics
        self._connect(acting.Outside(binder, reviews=reviews))

    def connect(
        self,
        *,
        keeper: ReservationStore | None = None,
        evictions: OwnEvictions | None = None,
        queue: QueueController | None = None,
    ) -> None:
        """The server anew, with these controllers, which are made over the verbs; None: as before."""
        stated = {"keeper": keeper, "evictions": evictions, "queue": queue}
        changed: dict[str, Any] = {name: value for name, value in stated.items() if value is not None}
        self._connect(replace(self.outside, **changed))

    def _connect(self, outside: acting.Outside) -> None:
        self.outside = outside
        vars(self).pop("server", None)
        if self.settings.shadow:  # it watches all that happens in the cluster
            assert self.app

    @cached_property
    def server(self) -> wiring.Server:
        """Connected when a test first needs it: that takes longer than many a test."""
        return wiring.connect(self.core, self.outside, InPlace(self.cluster))

    @property
    def app(self) -> Router:
        return self.server.app

    # -- the cluster ----------------------------------------------------------------------------------------------

    def set(self, kind: records.Kind, wire: JSON) -> JSON:
        record = decode.record(kind, json.dumps(wire).encode(), self.cluster.gpu_names)
        self.cluster.apply([Event(kind, "set", record)], self.now)
        return wire

    def drop(self, kind: records.Kind, wire: JSON) -> None:
        record = decode.record(kind, json.dumps(wire).encode(), self.cluster.gpu_names)
        self.cluster.apply([Event(kind, "delete", record)], self.now)

    def node(self, name: str, gpus: int | str = 8, **facts: Any) -> JSON:
        return self.set("Node", machine(name, gpus, **facts))

    def pod(self, name: str, gpus: int | str = 0, node: str = "", **facts: Any) -> JSON:
        """A pod that the watch has brought; running when it has a node."""
        facts.setdefault("phase", "Running" if node else "Pending")
        return self.set("Pod", workload(name, gpus, node=node, **facts))

    def gone(self, *names: str) -> None:
        """These pods' deletion has come by the watch."""
        for name in names:
            record = next(pod for pod in self.cluster.pods.values() if pod.name == name)
            self.cluster.apply([Event("Pod", "delete", record)], self.now)

    def budget(self, name: str, allowed: int, labels: Mapping[str, str], **status: Any) -> JSON:
        return self.set(
            "PodDisruptionBudget",
            {
                "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
                "spec": {"selector": {"matchLabels": dict(labels)}},
                "status": {"disruptionsAllowed": allowed, **status},
            },
        )

    # -- the verbs ------------------------------------------------------------------------------------------------

    def call(
        self,
        path: str,
        body: bytes | Sequence[bytes] = b"",
        method: str = "POST",
        *,
        host: str = "127.0.0.1:8888",
        **headers: str,
    ) -> Reply:
        """One HTTP request. A sequence of bodies: it comes in chunks, without Content-Length."""
        chunks = [body] if isinstance(body, bytes) else list(body)
        length = [(b"content-length", str(len(body)).encode())] if isinstance(body, bytes) else []
        where, _, query = path.partition("?")
        scope: MutableMapping[str, Any] = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": where,
            "raw_path": where.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(b"host", host.encode()), (b"content-type", b"application/json"), *length]
            + [(key.replace("_", "-").encode(), text.encode()) for key, text in headers.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8888),
        }
        said: list[MutableMapping[str, Any]] = []

        async def receive() -> MutableMapping[str, Any]:
            return {"type": "http.request", "body": chunks.pop(0) if chunks else b"", "more_body": bool(chunks)}

        async def send(message: MutableMapping[str, Any]) -> None:
            said.append(message)

        drive(self.app, scope, receive, send)
        return Reply(said[0]["status"], said[0]["headers"], b"".join(part.get("body", b"") for part in said[1:]))

    async def answered(self, verb: str, body: bytes) -> Answer:
        """What the server answers to a body, on the running event loop: without HTTP."""
        call: Callable[[bytes], Answer | Awaitable[Answer]] = getattr(self.server.calls, verb)
        coming = call(body)
        return coming if isinstance(coming, Answer) else await coming

    def post(self, verb: str, request: Any) -> Any:
        """The answer of a verb that has to be 200."""
        reply = self.call(f"/v1/{verb}", json.dumps(request).encode())
        assert reply.status == 200, (reply.status, reply.body)
        return reply.json

    def filter(self, pod: JSON, names: Iterable[str] | None = None) -> JSON:
        """The answer; over all nodes unless they are named."""
        answer: JSON = self.post("filter", self.args(pod, names))
        return answer

    def prioritize(self, pod: JSON, names: Iterable[str] | None = None) -> dict[str, int]:
        return {entry["Host"]: entry["Score"] for entry in self.post("prioritize", self.args(pod, names))}

    def preempt(self, pod: JSON, offered: Mapping[str, Iterable[str]], violations: int = 0) -> dict[str, list[str]]:
        """node -> names of the victims, as answered. `offered`: node -> names of the victims that are offered."""
        answer = self.post(
            "preempt",
            {
                "Pod": pod,
                "NodeNameToVictims": None,
                "NodeNameToMetaVictims": {
                    node: {"Pods": [{"UID": f"uid-{name}"} for name in names], "NumPDBViolations": violations}
                    for node, names in offered.items()
                },
            },
        )
        return {
            node: [victim["UID"].removeprefix("uid-") for victim in victims["Pods"]]
            for node, victims in answer["NodeNameToMetaVictims"].items()
        }

    def bind(self, pod: JSON, node: str) -> str:
        meta = pod["metadata"]
        answer = self.post(
            "bind",
            {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node},
        )
        assert list(answer) == ["Error"]
        error: str = answer["Error"]
        return error

    def args(self, pod: JSON, names: Iterable[str] | None = None) -> JSON:
        return {"Pod": pod, "Nodes": None, "NodeNames": list(self.cluster.nodes if names is None else names)}

    def decision(self, **query: str) -> JSON:
        """The latest decision, as /debug/decisions tells it."""
        text = "&".join(f"{key}={value}" for key, value in query.items())
        answer = self.call("/debug/decisions" + (f"?{text}" if text else ""), method="GET").json
        latest: JSON = answer["decisions"][0]
        return latest

    def metric(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"gpu_extender_{name}", labels) or 0.0

    # -- what must not change -------------------------------------------------------------------------------------

    def state(self) -> tuple[Any, ...]:
        """Everything that a bad request must leave alone."""
        rows = [self.cluster.tables.nodes.node(self.cluster.row(name)) for name in sorted(self.cluster.nodes)]
        verbs = self.verbs
        return (
            self.cluster.generation,
            dict(self.cluster.nodes),
            dict(self.cluster.pods),
            dict(self.cluster.placements.nominated),
            rows,
            verbs.assumed.current(self.now),
            verbs.reservations.current(self.now),
            {uid: verbs.attempts.of(uid, self.now) for uid in self.cluster.pods},
            len(list(verbs.decisions.latest())),
        )


class InPlace(Forks):
    """Answers questions in this process, so that nothing waits. A what-if changes the cluster: a fork answers it."""

    def __init__(self, cluster: Cluster | None = None) -> None:
        super().__init__(rest=0.0)
        self._cluster = cluster

    async def ask(self, name: str, *asked: Any, fresh: bool = False, lost: Callable[[], bool] = bool) -> Any:
        if self._asked >= forks.MOST_ASKED:
            raise Busy("many questions are being answered")
        if "WhatIf" in name:
            return await super().ask(name, *asked, fresh=fresh, lost=lost)
        before = 0 if self._cluster is None else self._cluster.generation
        made = Made(self.questions[name](*asked))
        if self._cluster is not None:  # a fork counts generations of its own
            self._cluster._generation = before
        return made


class Made:
    """An answer that was made in this process."""

    def __init__(self, text: bytes) -> None:
        self.text, self.size = text, len(text)

    async def pieces(self) -> AsyncIterator[bytes]:
        yield self.text

    async def whole(self) -> bytes:
        return self.text

    def close(self) -> None:
        pass


def drive(app: Callable[..., Awaitable[None]], *args: Any) -> None:
    """Run a coroutine that never has to wait; it may let others run."""
    steps: Any = app(*args)
    try:
        while steps.send(None) is None:
            pass
    except StopIteration:
        return
    steps.close()
    raise AssertionError("the application waits for something")


@contextmanager
def logged() -> Iterator[list[MutableMapping[str, Any]]]:
    """The log lines that are written meanwhile."""
    from structlog.testing import capture_logs

    with capture_logs() as lines:
        yield lines


def refused(answer: JSON) -> dict[str, str]:
    """node -> reason, of both maps."""
    return {**answer["FailedNodes"], **answer["FailedAndUnresolvableNodes"]}
