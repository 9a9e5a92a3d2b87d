"""The simulated API server: objects as Kubernetes JSON, versions, a watch, and the time, which stands still until
the simulation advances it.

Readers get copies, writers go through the methods, and every write is reported to the watchers, in order. Safe to use
from any thread.
"""

from __future__ import annotations

import copy
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple

from extender.objects.records import Kind

Object = dict[str, Any]
_UIDS = uuid.UUID("a9c1bb4e-2f64-4c8e-8a53-62f0d9b9d6a1")
FINISHED = ("Succeeded", "Failed")


class SimClock:
    """Seconds for the server's two clocks, and times as Kubernetes writes them.

    One thread advances it, others read. After `release` it goes on at the pace of real time.
    """

    def __init__(self, start: datetime) -> None:
        """`start`: a moment with a time zone."""
        self._start = start
        self._passed = 0.0
        self._released_at: float | None = None

    def monotonic(self) -> float:
        """Seconds since the start, plus a number that is not 0: so the two clocks are never mistaken."""
        return 1_000.0 + self._seconds()

    def wall(self) -> float:
        """Seconds since 1970."""
        return self._start.timestamp() + self._seconds()

    def now(self) -> datetime:
        """The simulated moment, in UTC."""
        return self._start.astimezone(UTC) + timedelta(seconds=self._seconds())

    def text(self, seconds: float = 0.0) -> str:
        """RFC 3339, to the second; `seconds` from now."""
        return (self.now() + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")

    def advance(self, seconds: float) -> None:
        """Move on by so many seconds; ValueError below 0."""
        if seconds < 0:
            raise ValueError(f"{seconds} s: time does not run backwards")
        self._passed += seconds

    def until(self, moment: datetime) -> None:
        """Advance to a moment; one that has passed already changes nothing."""
        self.advance(max(0.0, (moment - self.now()).total_seconds()))

    def release(self) -> None:
        """From now on time passes by itself."""
        self._released_at = time.monotonic()

    def _seconds(self) -> float:
        return self._passed + (time.monotonic() - self._released_at if self._released_at is not None else 0.0)


class SimChange(NamedTuple):
    """One write, as a watch reports it."""

    kind: Kind
    change: Literal["set", "delete"]
    item: Object


class WriteConflict(Exception):
    """The write cannot be done; the message states why."""


class ConfigMaps:
    """ConfigMaps of one namespace, by name. A write states the version that it changes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._maps: dict[str, tuple[dict[str, str], int]] = {}

    def read(self, name: str) -> tuple[dict[str, str], str]:
        """Its data and its version; nothing and "" where there is none."""
        with self._lock:
            data, version = self._maps.get(name, ({}, 0))
            return dict(data), str(version or "")

    def change(self, name: str, changes: Mapping[str, str | None], version: str) -> str:
        """Write keys, None removes one; the new version. Conflict where `version` is not the one that is there."""
        with self._lock:
            data, version_number = self._maps.get(name, ({}, 0))
            if str(version_number or "") != version:
                raise WriteConflict(f"configmaps {name} has been modified")
            changed = {key: text for key, text in {**data, **changes}.items() if text is not None}
            self._maps[name] = changed, version_number + 1
            return str(version_number + 1)

    def texts(self) -> list[str]:
        """All values, of all of them."""
        with self._lock:
            return [text for data, _ in self._maps.values() for text in data.values()]


class SimCluster:
    """Nodes, pods, disruption budgets and the objects of DRA; and ConfigMaps, which are not watched."""

    def __init__(self, clock: SimClock) -> None:
        self.clock = clock
        self.config_maps = ConfigMaps()
        self._lock = threading.RLock()
        self._version = 0
        self._items: dict[tuple[Kind, str], Object] = {}
        self._watchers: list[Callable[[SimChange], None]] = []

    # ---- questions

    def nodes(self) -> list[Object]:
        """By name."""
        return sorted(self.all("Node"), key=lambda node: str(node["metadata"]["name"]))

    def node(self, name: str) -> Object:
        """KeyError when there is none."""
        node_object = self._get("Node", name)
        if node_object is None:
            raise KeyError(name)
        return node_object

    def pods(self, node: str | None = None) -> list[Object]:
        """In the order of their creation; of one node, those that hold something there (finished ones do not)."""
        pods = self.all("Pod")
        if node is None:
            return pods
        return [
            pod for pod in pods if pod["spec"].get("nodeName") == node and pod["status"].get("phase") not in FINISHED
        ]

    def pod(self, uid: str) -> Object | None:
        """The pod with this uid; None when there is none."""
        return self._get("Pod", uid)

    def named(self, namespace: str, name: str, kind: Kind = "Pod") -> Object:
        """KeyError when there is none."""
        for item in self.all(kind):
            if (item["metadata"].get("namespace", ""), item["metadata"]["name"]) == (namespace, name):
                return item
        raise KeyError(f"{namespace}/{name}")

    def all(self, kind: Kind) -> list[Object]:
        """Of one kind, in the order of their creation."""
        with self._lock:
            return [copy.deepcopy(item) for (of, _), item in self._items.items() if of == kind]

    # ---- the watch

    def watch(self, tell: Callable[[SimChange], None]) -> None:
        """Report all that is there, then every write. `tell` is called under the lock, from the writer's thread."""
        with self._lock:
            for (kind, _), item in self._items.items():
                tell(SimChange(kind, "set", copy.deepcopy(item)))
            self._watchers.append(tell)

    # ---- writes

    def add_node(self, node: Object) -> None:
        """A new node; it gets its uid here."""
        with self._lock:
            self._put("Node", _with_uid(node, "Node"))

    def annotate_node(self, name: str, key: str, value: str) -> None:
        """Write one annotation of a node; KeyError when there is no such node."""
        with self._lock:
            item = self.node(name)
            item["metadata"].setdefault("annotations", {})[key] = value
            self._put("Node", item)

    def add(self, kind: Kind, item: Object) -> None:
        """A new object that no controller of ours follows; Conflict when its name is taken."""
        with self._lock:
            if (kind, _key(kind, item)) in self._items:
                raise WriteConflict(f"{kind} {_key(kind, item)} exists already")
            self._put(kind, _with_uid(item, kind))

    def add_budget(self, name: str, namespace: str, labels: Mapping[str, str], min_available: int) -> None:
        """A PodDisruptionBudget; its status follows the pods, as the disruption controller keeps it."""
        item = {
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"minAvailable": min_available, "selector": {"matchLabels": dict(labels)}},
            "status": {"disruptionsAllowed": 0, "disruptedPods": {}},
        }
        with self._lock:
            self.add("PodDisruptionBudget", item)
            self._count_budgets()

    def create(self, pod: Object) -> str:
        """The uid of the new pod; Conflict when its name is taken."""
        meta = pod["metadata"]
        with self._lock:
            if any(
                (other["metadata"]["namespace"], other["metadata"]["name"]) == (meta["namespace"], meta["name"])
                for other in self.all("Pod")
            ):
                raise WriteConflict(f"pods {meta['namespace']}/{meta['name']} exists already")
            created = _with_uid(pod, f"Pod/{self._version}")
            created["metadata"]["creationTimestamp"] = self.clock.text()
            created["status"] = {"phase": "Pending"}
            self._put("Pod", created)
            return str(created["metadata"]["uid"])

    def bind(self, uid: str, node: str, annotations: Mapping[str, str]) -> None:
        """pods/binding: sets the node and puts the annotations on the pod, in one write; once only."""
        with self._lock:
            item = self._pod(uid)
            if ("Node", node) not in self._items:
                raise WriteConflict(f"nodes {node} not found")
            if item["spec"].get("nodeName"):
                raise WriteConflict(f"pod is already assigned to node {item['spec']['nodeName']}")
            if item["metadata"].get("deletionTimestamp"):
                raise WriteConflict("pod is being deleted")
            if item["spec"].get("schedulingGates"):
                raise WriteConflict("pod has non-empty schedulingGates")
            item["spec"]["nodeName"] = node
            item["metadata"].setdefault("annotations", {}).update(annotations)
            item["status"].pop("nominatedNodeName", None)
            item["status"]["conditions"] = [_condition("PodScheduled", "True")]
            self._put("Pod", item)

    def set_status(self, uid: str, **fields: Any) -> None:
        """Merge into the status; None takes a field away. A pod that was deleted stays deleted."""
        with self._lock:
            if ("Pod", uid) not in self._items:
                return
            item = self._pod(uid)
            for key, value in fields.items():
                if value is None:
                    item["status"].pop(key, None)
                else:
                    item["status"][key] = value
            self._put("Pod", item)
            self._count_budgets()

    def set_annotation(self, uid: str, key: str, value: str) -> None:
        """Write one annotation of a pod; Conflict when there is no such pod."""
        with self._lock:
            item = self._pod(uid)
            item["metadata"].setdefault("annotations", {})[key] = value
            self._put("Pod", item)

    def patch(
        self, namespace: str, name: str, version: str, change: Callable[[Object], None], kind: Kind = "Pod"
    ) -> str:
        """Change an object in place where it still has the version; its new one. Conflict: it has another; KeyError:
        it does not exist."""
        with self._lock:
            item = self.named(namespace, name, kind)
            if item["metadata"]["resourceVersion"] != version:
                raise WriteConflict(f"{kind} {namespace}/{name} has been modified")
            change(item)
            self._put(kind, item)
            return str(item["metadata"]["resourceVersion"])

    def delete(self, uid: str) -> None:
        """A bound pod has its grace period to end (its kubelet removes it); others are gone at once."""
        with self._lock:
            item = self._pod(uid)
            if not item["spec"].get("nodeName"):
                self.remove(uid)
                return
            if "deletionTimestamp" in item["metadata"]:
                return
            grace = int(item["spec"].get("terminationGracePeriodSeconds", 30))
            item["metadata"]["deletionTimestamp"] = self.clock.text(grace)
            item["metadata"]["deletionGracePeriodSeconds"] = grace
            self._put("Pod", item)
            self._count_budgets()

    def remove(self, uid: str) -> None:
        """Delete the object."""
        with self._lock:
            pod = self._items.pop(("Pod", uid), None)
            if pod is not None:
                self._report("Pod", "delete", pod)
                self._count_budgets()

    # ---- how

    def _get(self, kind: Kind, key: str) -> Object | None:
        with self._lock:
            return copy.deepcopy(self._items.get((kind, key)))

    def _put(self, kind: Kind, item: Object) -> None:
        """Write a new or a changed object, under the lock; it gets the next version."""
        self._version += 1
        item["metadata"]["resourceVersion"] = str(self._version)
        self._items[kind, _key(kind, item)] = item
        self._report(kind, "set", item)

    def _report(self, kind: Kind, change: Literal["set", "delete"], item: Object) -> None:
        for tell in self._watchers:
            tell(SimChange(kind, change, copy.deepcopy(item)))

    def _pod(self, uid: str) -> Object:
        pod = self._get("Pod", uid)
        if pod is None:
            raise WriteConflict(f"pods with uid {uid} not found")
        return pod

    def _count_budgets(self) -> None:
        """disruptionsAllowed = healthy pods - minAvailable, never below 0."""
        for budget in self.all("PodDisruptionBudget"):
            healthy = sum(1 for pod in self.all("Pod") if guards(budget, pod) and _healthy(pod))
            allowed = max(0, healthy - int(budget["spec"]["minAvailable"]))
            if budget["status"]["disruptionsAllowed"] != allowed:
                budget["status"]["disruptionsAllowed"] = allowed
                self._put("PodDisruptionBudget", budget)


def guards(budget: Object, pod: Object) -> bool:
    """Whether a disruption budget speaks of a pod."""
    wanted = budget["spec"]["selector"]["matchLabels"]
    labels = pod["metadata"].get("labels", {})
    same_namespace = budget["metadata"]["namespace"] == pod["metadata"]["namespace"]
    return same_namespace and all(labels.get(key) == value for key, value in wanted.items())


def _key(kind: Kind, item: Object) -> str:
    meta = item["metadata"]
    if kind in ("Pod", "Node"):
        return str(meta["uid"] if kind == "Pod" else meta["name"])
    return f"{meta.get('namespace', '')}/{meta['name']}"


def full_name(pod: Object) -> str:
    """NAMESPACE/NAME."""
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def _healthy(pod: Object) -> bool:
    return pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]


def _with_uid(item: Object, salt: str) -> Object:
    copied = copy.deepcopy(item)
    meta = copied["metadata"]
    meta["uid"] = str(uuid.uuid5(_UIDS, f"{salt}/{meta.get('namespace', '')}/{meta['name']}"))
    return copied


def _condition(kind: str, status: str) -> Object:
    return {"type": kind, "status": status}
