"""Whose devices kubelet is asking for, and which: the plans of the pods that are bound to this node.

kubelet's question names no pod. But kubelet admits pods one at a time, in the order in which they were bound, and asks
container by container; so the first waiting pod whose next container wants that many devices is the one that asks. Two
waiting pods of one size may be taken for each other (kubelet sorts pods by age after a restart): they change places,
and each still gets a set that was planned.

A pod waits until kubelet has said anything about it (`status.startTime`), or until the relay has seen its devices
allocated. What is remembered here beyond the API server's objects is only what they will say a moment later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from ext_core.links import LinkShapes
from extender.errors import BadTopology
from extender.node.apiserver import ApiEndpoint, Watch
from extender.topologies import annotation

PLAN = "gpu-extender.io/gpus"
Plan = Mapping[str, frozenset[int]]  # container -> GPU indices; "" = the whole pod


class Container(NamedTuple):
    """A container that asks for devices."""

    name: str
    amounts: Mapping[str, int]  # extended resource -> devices


@dataclass(slots=True)
class Pod:
    """A pod that is bound to this node."""

    uid: str
    name: str  # namespace/name
    containers: tuple[Container, ...]  # as kubelet admits them: init containers first
    plan: Plan | None
    listed: Mapping[str, tuple[int, ...]]  # the plan with GPUs that are named twice: two parts of one
    waiting: bool
    refused: bool  # it ended without a start: kubelet did not admit it
    bound_at: tuple[str, str]  # when it was scheduled, when it was created
    arrival: int = 0
    given: dict[tuple[str, str], frozenset[str]] = field(default_factory=dict)  # (container, resource) -> device ids
    failed: bool = False  # an Allocate for it went wrong: kubelet will not ask again
    changed: bool = False  # it has changed places with another: the plan is that one's

    def next(self, resource: str) -> Container | None:
        """The container that kubelet asks for next."""
        for container in self.containers:
            if container.amounts.get(resource) and (container.name, resource) not in self.given:
                return container
        return None

    def planned(self) -> frozenset[int]:
        """All GPUs of the plan."""
        return frozenset().union(*self.plan.values()) if self.plan else frozenset()


class Asker(NamedTuple):
    """The container that the devices are for."""

    pod: Pod
    container: Container


def read(item: Mapping[str, Any]) -> Pod:
    """A pod of the API."""
    meta, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    asking = [Container(str(c.get("name")), amounts) for c in containers if (amounts := _amounts(c))]
    scheduled = ""
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled":
            scheduled = str(condition.get("lastTransitionTime") or "")
    text = str((meta.get("annotations") or {}).get(PLAN, ""))
    started = bool(status.get("startTime")) or status.get("phase") not in (None, "", "Pending")
    return Pod(
        uid=str(meta["uid"]),
        name=f"{meta.get('namespace')}/{meta.get('name')}",
        containers=tuple(asking),
        plan=read_plan(text),
        listed=_listed(text) or {},
        waiting=not started and not meta.get("deletionTimestamp"),
        refused=status.get("phase") == "Failed",
        bound_at=(scheduled, str(meta.get("creationTimestamp") or "")),
    )


def read_plan(text: str) -> Plan | None:
    """ "0,3" -> {"": {0, 3}}; "c1=0,3;c2=5" by container; None when it is neither, or a GPU stands twice."""
    listed = _listed(text) or {}
    seen = [gpu for gpus in listed.values() for gpu in gpus]
    return {name: frozenset(gpus) for name, gpus in listed.items()} if len(set(seen)) == len(seen) and seen else None


def _listed(text: str) -> dict[str, tuple[int, ...]] | None:
    gpus_of: dict[str, tuple[int, ...]] = {}
    for part in text.split(";"):
        name, _, ids = part.rpartition("=")
        words = [word.strip() for word in ids.split(",")]
        if name in gpus_of or not all(word.isascii() and word.isdigit() and len(word) <= 2 for word in words):
            return None
        gpus_of[name] = tuple(map(int, words))
    return gpus_of


def wanted(asker: Asker, must: frozenset[int], available: frozenset[int], size: int) -> frozenset[int] | None:
    """The planned GPUs for this container, all of `must` among them; None where they are not available.

    A plan for the whole pod serves its containers one after another, in ascending order; so it does for an init
    container that a plan by containers does not name.
    """
    plan = asker.pod.plan
    if plan is None:
        return None
    own = plan.get(asker.container.name)
    if own is None:
        own = asker.pod.planned()
    elif len(own) != size:
        return None
    chosen = must | frozenset(sorted(own & available - must)[: max(0, size - len(must))])
    return chosen if len(chosen) == size and must <= available and chosen - must <= own else None


def wanted_parts(
    asker: Asker, must: Sequence[str], available: Mapping[int, Sequence[str]], size: int
) -> list[str] | None:
    """The planned devices where GPUs are handed out in parts; None where they are not available.

    "2,2,5" is one part for each number, "2,5" equal parts of each. `available`: the devices of each GPU, `must` among
    them.
    """
    listed = asker.pod.listed.get(asker.container.name) or asker.pod.listed.get("") or ()
    if not listed or size % len(listed):
        return None
    forced, chosen = set(must), list[str]()
    for gpu in sorted(set(listed)):
        devices = sorted(available.get(gpu, ()), key=lambda device: device not in forced)
        count = listed.count(gpu) * (size // len(listed))
        if len(devices) < count:
            return None
        chosen += devices[:count]
    return chosen if forced <= set(chosen) else None


class Bound:
    """The pods bound to this node. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._pods: dict[str, Pod] = {}
        self._arrivals = 0
        self._answered: dict[str, Asker] = {}  # resource -> whom the last preference was for

    # ---- what the API server reports

    def replace(self, items: Iterable[Mapping[str, Any]]) -> None:
        """All pods of the node; those that are new here in the order in which they were bound."""
        with self._lock:
            pods = [read(item) for item in items]
            gone = self._pods.keys() - {pod.uid for pod in pods}
            for pod in sorted(pods, key=lambda pod: (*pod.bound_at, pod.uid)):
                self._put(pod)
            for uid in gone:
                del self._pods[uid]

    def put(self, item: Mapping[str, Any]) -> None:
        """A pod was bound to the node, or has changed."""
        with self._lock:
            self._put(read(item))

    def drop(self, uid: str) -> None:
        """The pod was deleted."""
        with self._lock:
            self._pods.pop(uid, None)

    def _put(self, pod: Pod) -> None:
        known = self._pods.get(pod.uid)
        if known is None:
            self._arrivals += 1
            pod.arrival = self._arrivals
        else:
            pod.arrival, pod.given, pod.failed = known.arrival, known.given, known.failed
            if known.changed:
                pod.plan, pod.listed, pod.changed = known.plan, known.listed, True
        self._pods[pod.uid] = pod
        if known is not None and known.waiting and not (pod.waiting or pod.refused or pod.given):
            self._change_places(pod)

    def _change_places(self, started: Pod) -> None:
        """It runs, though we took another that still waits for the asker: what that one was given is its."""
        if not started.containers:
            return
        for pod in sorted(self._pods.values(), key=lambda pod: pod.arrival):
            if pod.waiting and pod.given and not pod.failed and pod.containers == started.containers:
                pod.given, started.given = started.given, pod.given
                pod.plan, started.plan = started.plan, pod.plan
                pod.listed, started.listed = started.listed, pod.listed
                pod.changed = started.changed = True
                return

    # ---- what kubelet does

    def kubelet_restarted(self) -> None:
        """kubelet begins anew, with the oldest pods first; what it was in the middle of is forgotten."""
        with self._lock:
            self._answered.clear()
            for pod in sorted(self._waiting(), key=lambda pod: (pod.bound_at[1], pod.arrival)):
                self._arrivals += 1
                pod.arrival = self._arrivals

    def asker(self, resource: str, size: int) -> Asker | None:
        """Who asks for so many devices, as far as is known here."""
        with self._lock:
            pods = self._waiting()
            # kubelet is through with one pod before it begins the next.
            for pod in sorted(pods, key=lambda pod: (not pod.given, pod.arrival)):
                container = pod.next(resource)
                if container is not None and container.amounts[resource] == size:
                    return Asker(pod, container)
            return None

    def promised(self, but: Asker | None = None) -> frozenset[int]:
        """The GPUs in the plans of waiting pods, without the asker's."""
        with self._lock:
            others = [pod for pod in self._waiting() if but is None or pod.uid != but.pod.uid]
            return frozenset().union(*(pod.planned() for pod in others))

    def answered(self, resource: str, asker: Asker | None) -> None:
        """A preference was answered: the Allocate that follows is for this one."""
        with self._lock:
            self._answered.pop(resource, None)
            if asker is not None:
                self._answered[resource] = asker

    def allocated(self, resource: str, ids: Iterable[str], *, gpus: frozenset[int] | None, failed: bool) -> Pod | None:
        """Devices were allocated, or the plugin refused; the pod that it was for, where that is known.

        kubelet does not ask for a preference when it takes all that is left, or what an init container leaves; then it
        is the waiting pod with that plan (`gpus`), else the first one of that size.
        """
        with self._lock:
            given = frozenset(ids)
            asker = self._answered.pop(resource, None)
            if asker is not None and asker.container.amounts.get(resource) != len(given):
                asker = None
            asker = asker or self._planned_for(resource, gpus, len(given)) or self.asker(resource, len(given))
            if asker is None:
                return None
            pod = self._pods.get(asker.pod.uid, asker.pod)
            pod.given[asker.container.name, resource] = given
            pod.failed = pod.failed or failed
            return pod

    def _planned_for(self, resource: str, gpus: frozenset[int] | None, size: int) -> Asker | None:
        for pod in sorted(self._waiting(), key=lambda pod: pod.arrival):
            container = pod.next(resource)
            if gpus and container and container.amounts[resource] == size and pod.plan:
                own = pod.plan.get(container.name, pod.planned())
                if own == gpus:
                    return Asker(pod, container)
        return None

    def _waiting(self) -> list[Pod]:
        waiting = [pod for pod in self._pods.values() if pod.waiting and not pod.failed]
        return [
            pod for pod in waiting if any(pod.next(name) for container in pod.containers for name in container.amounts)
        ]


def _amounts(container: Mapping[str, Any]) -> dict[str, int]:
    """Extended resources and how many devices of each; the API server allows whole numbers only, limits = requests."""
    limits = (container.get("resources") or {}).get("limits") or {}
    return {name: int(str(n)) for name, n in limits.items() if "/" in name and str(n).isdigit() and int(str(n))}


# -- the plans as the API server has them, followed by two watches: the pods of this node, and the node itself


class LivePlans:
    """What the relay asks, from any thread. The API server is asked for this node's objects only: it has an index for
    them."""

    def __init__(self, server: ApiEndpoint, node: str, say: Callable[[str], None], topology_file: Path | None) -> None:
        """`topology_file`: the annotation's value as the agent leaves it on this node; it counts before the node's."""
        self.bound = Bound()
        self._node = NodeGraph()
        self._file = topology_file
        self._file_at: int | None = None
        self._file_graph: Graph | None = None
        self.pods = Watch(
            server,
            "/api/v1/pods",
            {"fieldSelector": f"spec.nodeName={node}"},
            self.bound,
            say=say,
        )
        self.nodes = Watch(
            server,
            "/api/v1/nodes",
            {"fieldSelector": f"metadata.name={node}"},
            self._node,
            say=say,
        )

    def start(self) -> None:
        """Begin to follow."""
        self.pods.start()
        self.nodes.start()

    def stop(self) -> None:
        """End."""
        self.pods.stop()
        self.nodes.stop()

    def look(self, timeout: float) -> bool:
        """One GET of the pods, now; and of the node while its GPUs are unknown."""
        if self.graph() is None:
            self.nodes.look(timeout)
        return self.pods.look(timeout)

    def graph(self) -> Graph | None:
        """The node's GPUs."""
        return self._from_file() or self._node.get()

    def _from_file(self) -> Graph | None:
        if self._file is None:
            return None
        try:
            at = self._file.stat().st_mtime_ns
            if at != self._file_at:
                self._file_graph, self._file_at = graph(self._file.read_bytes()), at
        except OSError:
            self._file_graph, self._file_at = None, None
        return self._file_graph


def trouble(plans: LivePlans) -> str:
    """Why the process should be restarted; "" while all is well. An API server that is away is no reason."""
    return "" if plans.pods.alive and plans.nodes.alive else "the API server is not watched"


# -- which of the GPUs to prefer, in indices and in device ids


class Graph:
    """The GPUs of this node: what its topology annotation states."""

    def __init__(self, uuids: Sequence[str], shapes: LinkShapes, shape: int) -> None:
        """`uuids`: the device id of each index; `shape`: in `shapes`, 0 when the links are unknown."""
        self.index = {uuid: gpu for gpu, uuid in enumerate(uuids)}
        self._shapes = shapes
        self._shape = shape

    def gpu(self, device: str) -> int | None:
        """The GPU behind a device id (replicas are called `GPU-...::3`); None for what is no whole GPU of ours."""
        return self.index.get(device.partition("::")[0])

    def gpus(self, ids: Iterable[str]) -> dict[int, list[str]] | None:
        """GPU -> its device ids among these, in order; None when one of them is no GPU of ours (as MIG)."""
        devices: dict[int, list[str]] = {}
        for device in sorted(ids, key=_natural):
            gpu = self.gpu(device)
            if gpu is None:
                return None
            devices.setdefault(gpu, []).append(device)
        return devices

    def best(
        self, available: frozenset[int], must: frozenset[int], size: int, promised: frozenset[int]
    ) -> frozenset[int] | None:
        """The best set by the links, with as few promised GPUs in it as can be; None where the links are unknown.

        Fewer available than `size`, or more forced: None too.
        """
        if not self._shape or size > len(available) or len(must) > size or not must <= available:
            return None
        free = available - promised - must
        missing = size - len(must)
        if not must and missing <= len(free):
            chosen = self._shapes.choice(self._shape, _mask(free), size)
            return None if chosen is None else _members(chosen.gpus)
        forced, pool = must, free
        if missing > len(free):
            forced, pool, missing = must | free, available & promised - must, missing - len(free)
        everything = _mask(available)

        def worth(rest: tuple[int, ...]) -> tuple[int, ...]:
            return self._shapes.objective(self._shape, everything, _mask(forced) | _mask(rest)) or ()

        rest = max(combinations(sorted(pool), missing), key=worth)  # the first of equals: the smallest ids
        return forced | frozenset(rest)


def graph(text: str | bytes) -> Graph | None:
    """From the value of the annotation gpu-extender.io/topology; None where it cannot be read or names no ids."""
    try:
        stated = annotation.decode(text)
    except BadTopology:
        return None
    if stated.uuids is None:
        return None
    shapes = LinkShapes()
    return Graph(stated.uuids, shapes, stated.intern(shapes, "arbitrary"))


class NodeGraph:
    """The last graph that the node's annotation stated. Any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._text = ""
        self._graph: Graph | None = None

    def put(self, node: Mapping[str, object]) -> None:
        """The node as the API server has it."""
        metadata = node.get("metadata")
        annotations = metadata.get("annotations") if isinstance(metadata, Mapping) else None
        text = annotations.get(annotation.KEY, "") if isinstance(annotations, Mapping) else ""
        with self._lock:
            if text != self._text:
                self._text, self._graph = text, graph(text) if text else None

    def replace(self, nodes: Sequence[Mapping[str, object]]) -> None:
        """The list of the API server: this node, or nothing where it has no object."""
        self.put(nodes[0] if nodes else {})

    def drop(self, uid: str) -> None:
        """The object was deleted: its graph is unknown."""
        self.put({})

    def get(self) -> Graph | None:
        """The graph; None while it is unknown."""
        with self._lock:
            return self._graph


def _natural(device: str) -> tuple[str, int, str]:
    name, _, replica = device.partition("::")
    return (name, int(replica), "") if replica.isdigit() else (name, -1, replica)


def _mask(gpus: Iterable[int]) -> int:
    return sum(1 << gpu for gpu in gpus)


def _members(mask: int) -> frozenset[int]:
    return frozenset(gpu for gpu in range(mask.bit_length()) if mask >> gpu & 1)
