"""What servers have promised: the reservations and seats that they keep in ConfigMaps, and the GPUs that pods state."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from extender.kube.client import NoAnswer
from extender.reservations.seats import ABSENT
from tests.e2e.kubelet import RUN_SECONDS
from tests.e2e.scene import Scene

PLAN = "gpu-extender.io/gpus"
RESERVATIONS = "gpu-extender-reservations"
SEATS = tuple(f"gpu-extender-seats-{shard}" for shard in range(4))


def kept(cluster: Scene, name: str) -> dict[str, Any]:
    """The documents in a ConfigMap of the server, by key."""
    found = cluster.api.find("ConfigMap", name, "kube-system") or {}
    return {key: json.loads(text) for key, text in (found.get("data") or {}).items()}


def seats(cluster: Scene) -> dict[str, Any]:
    """The documents of all gangs with seats, by key."""
    return {key: text for name in SEATS for key, text in kept(cluster, name).items()}


def reservations(cluster: Scene) -> dict[str, Any]:
    """The documents of all reservations, by the uid of the preemptor."""
    return kept(cluster, RESERVATIONS)


def standing(reservation: Mapping[str, Any]) -> dict[str, Any]:
    """What of a reservation never changes: all but whether its evictions have begun, which 0.2.0 does not keep, and
    when its victims were gone."""
    return {key: value for key, value in reservation.items() if key not in ("begun", "emptied")}


def stated(pods: list[Any]) -> dict[str, tuple[str, str]]:
    """By the uid of a pod that has not ended: the node that it is on, or nominated to, and the GPUs that it states."""
    found = {}
    for pod in pods:
        plan = pod["metadata"].get("annotations", {}).get(PLAN)
        if plan and pod["status"].get("phase") not in ("Succeeded", "Failed"):
            where = pod["spec"].get("nodeName") or pod["status"].get("nominatedNodeName", "")
            found[pod["metadata"]["uid"]] = (where, plan)
    return found


class Load(threading.Thread):
    """Pods of one and two GPUs that come one after the other and end; meanwhile no GPU may be stated twice, and no plan
    may change."""

    def __init__(self, cluster: Scene) -> None:
        super().__init__(name="load")
        self.cluster, self.names, self.faults = cluster, list[str](), list[str]()
        self._plans: dict[str, tuple[str, str]] = {}
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(0.3):
            try:
                self._step()
            except Exception as error:  # the test's thread reports it
                self.faults.append(repr(error))
                return

    def _step(self) -> None:
        name = f"load{len(self.names):03d}"
        self.names.append(name)
        more = {"links": "required"} if len(self.names) % 3 == 0 else {}
        self.cluster.pod(
            name, 2 if more else 1, cpu="100m", node_selector={"pool": "load"}, annotations={RUN_SECONDS: "1"}, **more
        )
        now = stated(self.cluster.api.list("Pod", self.cluster.namespace))
        taken = [(node, gpu) for node, plan in now.values() for gpu in plan.split(",")]
        if len(taken) != len(set(taken)):
            self.faults.append(f"a GPU is stated twice: {now}")
        changed = {uid: (self._plans[uid], plan) for uid, plan in now.items() if self._plans.get(uid, plan) != plan}
        if changed:
            self.faults.append(f"plans have changed: {changed}")
        self._plans |= now

    @contextlib.contextmanager
    def running(self) -> Iterator[Load]:
        self.start()
        try:
            yield self
        finally:
            self._ended.set()
            self.join()


class Promises(threading.Thread):
    """Follows each version of the ConfigMaps: a reservation or a seat stands as it was written until its pod is bound
    or deleted. `seen`: the uids of the pods that had one; `faults`: what did not stand."""

    def __init__(self, cluster: Scene) -> None:
        super().__init__(name="promises")
        self.seen, self.faults = set[str](), list[str]()
        self._cluster = cluster
        self._standing: dict[str, dict[str, Any]] = {}  # ConfigMap -> uid -> what is promised
        self._watch = cluster.api.watch("ConfigMap", "kube-system")

    def run(self) -> None:
        try:
            for how, item in self._watch:
                data = {} if how == "DELETED" else item.get("data") or {}
                self._look(item["metadata"]["name"], data)
        except NoAnswer:  # the watch was closed
            return
        except Exception as error:  # the test's thread reports it
            self.faults.append(repr(error))

    def _look(self, name: str, data: Mapping[str, str]) -> None:
        now: dict[str, Any]
        if name == RESERVATIONS:
            now = {uid: standing(json.loads(text)) for uid, text in data.items()}
        elif name in SEATS:
            places = [one[:4] for text in data.values() for one in json.loads(text)["seats"]]
            now = {uid: (node, gpus) for uid, _, node, gpus in places if not uid.startswith(ABSENT)}
        else:
            return
        before, self._standing[name] = self._standing.get(name, {}), now
        self.seen |= now.keys()
        for uid, promise in before.items():
            if uid in now and now[uid] != promise:
                self.faults.append(f"{name}: {uid} was promised {promise}, then {now[uid]}")
            elif uid not in now and self._waits(uid):
                self.faults.append(f"{name}: {uid} waits, and its promise is lost: {promise}")

    def _waits(self, uid: str) -> bool:
        """Whether the pod exists and is neither bound nor terminating."""
        pods = self._cluster.api.list("Pod", self._cluster.namespace)
        return any(
            not pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]
            for pod in pods
            if pod["metadata"]["uid"] == uid
        )

    @contextlib.contextmanager
    def followed(self) -> Iterator[Promises]:
        self.start()
        try:
            yield self
        finally:
            self._watch.close()
            self.join()
