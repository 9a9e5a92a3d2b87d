"""All kubelets of a cluster of simulated nodes, over the real API.

A pod that is bound to one of the nodes is admitted or refused, gets concrete GPUs by the model of the
device plugin, runs, ends and is removed, each with the status a kubelet would write.
"""

from __future__ import annotations

import heapq
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Literal

from extender.kube.client import ApiError, NoAnswer
from extender.node import plans
from extender.node.plans import graph
from extender.sim.kubelet import (
    AdmissionRejected,
    KubeletDevices,
    Preference,
    container_status,
    container_statuses,
)
from extender.sim.machines import (
    TOPOLOGY,
    SimDevicePlugin,
    SimMachine,
    device_plugin,
    gpu_uuids,
    machine,
    topology_annotation,
)
from tests.e2e import builders
from tests.e2e.api import Api, Object, Watch, WatchExpired
from tests.sim.truth import HarnessTruth
from tests.waiting import wait_for

RUN_SECONDS = "sim.gpu-extender.io/run-seconds"
FAILS = "sim.gpu-extender.io/fails"  # the pod's command ends with an error as soon as it runs
FAIL_SECONDS = "sim.gpu-extender.io/fail-seconds"  # its container exits with 1 so long after its start
RAN_SECONDS = "sim.gpu-extender.io/ran-seconds"  # the start that it states lies so long before the real one
RELAY = "gpu-extender.io/relay"
Plugin = Literal["nvidia", "amd", "none", "plan", "relay"]


def relay(annotation: str) -> Preference:
    """What our relay prefers on the node with this topology annotation, by its own code: the plan, else the best by
    links."""
    links = graph(annotation)
    assert links is not None

    def prefers(
        pod: Object, container: str, size: int, must_include: frozenset[int], available: frozenset[int]
    ) -> frozenset[int] | None:
        asker = plans.Asker(plans.read(pod), plans.Container(container, {}))
        found = plans.wanted(asker, must_include, available, size)
        return found or links.best(available, must_include, size, frozenset())

    return prefers


@dataclass
class _Pod:
    item: Object
    terminating: bool = False
    admitted: bool = False

    @property
    def uid(self) -> str:
        return str(self.item["metadata"]["uid"])


@dataclass
class _Injection:
    probability: float
    node: str | None
    times: int | None


class SimulatedKubelets:
    """Plays kubelet for every node made with add_node. ``truth`` knows who holds what.

    One thread watches, one acts (so a node admits one pod at a time, in the order of arrival), and a few
    write status; what concerns one pod is always written by the same one, in order.
    """

    def __init__(
        self,
        api: Api,
        *,
        seed: int = 0,
        report_devices: bool = True,
        report_seconds: float = 0,
        admit_seconds: float = 0,
        start_seconds: float = 0,
        termination_seconds: float = 0.5,
        writers: int = 4,
    ) -> None:
        """Delays in seconds: from bind to admission (per node, one after another), from admission to Running,
        from Running to the device ids in status (``report_devices`` off: never), and from the deletion of a
        pod to its end (at most the pod's own grace period). A victim that ends within milliseconds may leave its
        preemptor parked: kube-scheduler has its deletion before the preemptor waits (kubernetes #141694).
        """
        self.truth = HarnessTruth(seed)
        self.report_devices = report_devices
        self.report_seconds = report_seconds
        self.admit_seconds = admit_seconds
        self.start_seconds = start_seconds
        self.termination_seconds = termination_seconds
        self.keeps_terminating = False  # while it is set no terminating pod ends
        self.errors: list[BaseException] = []
        self._api = api
        self._rng = random.Random(seed + 1)
        self._lock = threading.RLock()
        self._wake = threading.Condition(self._lock)
        self._machines: dict[str, SimMachine] = {}
        self._devices: dict[str, KubeletDevices] = {}
        self._annotated: set[str] = set()
        self._plugins: dict[tuple[str, SimMachine], SimDevicePlugin] = {}
        self._pods: dict[str, _Pod] = {}
        self._busy_until: dict[str, float] = {}
        self._injections: list[_Injection] = []
        self._agenda: list[tuple[float, int, Callable[[], None], bool]] = []
        self._numbers = itertools.count()
        self._under_way = 0
        self._stopping = threading.Event()
        self._watch: Watch | None = None
        self._writers = [ThreadPoolExecutor(1, f"kubelet-writer-{n}") for n in range(writers)]
        self._threads = [
            threading.Thread(target=self._guard, args=(loop,), name=name, daemon=True)
            for loop, name in ((self._watch_pods, "kubelet-watch"), (self._act, "kubelet-act"))
        ]

    def __enter__(self) -> SimulatedKubelets:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        if self._watch is not None:
            self._watch.close()
        with self._wake:
            self._wake.notify_all()
        for thread in self._threads:
            thread.join(5)
        for writer in self._writers:
            writer.shutdown(cancel_futures=True)
        if self.errors and kind is None:
            raise self.errors[0]

    # ---- nodes

    def add_node(self, name: str, **options: Any) -> Object:
        """Creates one node; the options are those of node_object()."""
        return self._api.create(self.node_object(name, **options))

    def add_nodes(self, names: Iterable[str], *, threads: int = 8, **options: Any) -> int:
        """Creates many equal nodes; returns their number."""
        return self._api.create_many((self.node_object(name, **options) for name in names), threads)

    def node_object(
        self,
        name: str,
        *,
        topology: str | Mapping[str, Any] | None = "dgx-h100",
        product: str | None = None,
        count: int | None = None,
        cpu: str = "128",
        memory: str = "1024Gi",
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        taints: Sequence[Mapping[str, str]] = (),
        annotate: bool = True,
        plugin: Plugin = "nvidia",
        resource: str | None = None,
    ) -> Object:
        """A node whose GPUs these kubelets manage from now on; the caller creates the object.

        ``topology`` is a catalogue id or an entry of that form, ``annotate`` writes it on the node, and
        ``plugin`` says who picks the GPUs: NVIDIA's or AMD's rule, nobody ("none"), our relay before NVIDIA's, which
        the node declares, or ("plan") one that obeys the pod's annotation or fails, and is NVIDIA's without one.
        """
        what = machine(topology, count)
        resource = resource or ("amd.com/gpu" if plugin == "amd" else builders.GPU)
        vendor = resource.partition("/")[0]
        product = what.product if product is None else product
        label = "amd.com/gpu.product-name" if vendor == "amd.com" else f"{vendor}/gpu.product"
        found = {label: product, f"{vendor}/gpu.count": str(what.gpus)} if product else {}
        devices = KubeletDevices(
            name=name,
            resource=resource,
            plugin=self._plugin(plugin, what),
            uuids=gpu_uuids(name, what),
            healthy=[True] * what.gpus,
            obeys_plan=plugin == "plan",
        )
        notes = dict(annotations or {})
        if plugin == "relay":
            devices.prefers = relay(topology_annotation(what, devices.uuids, devices.healthy))
            notes[RELAY] = "1"
        if annotate:
            notes[TOPOLOGY] = topology_annotation(what, devices.uuids, devices.healthy)
        with self._lock:
            self._machines[name] = what
            self._devices[name] = devices
            if annotate:
                self._annotated.add(name)
            self.truth.add_node(devices)
        return builders.node(
            name, what.gpus, resource=resource, cpu=cpu, memory=memory,
            labels={**found, **(labels or {})}, annotations=notes, taints=taints,
        )  # fmt: skip

    def remove_node(self, name: str) -> None:
        """The machine burns down: the node object and the pods on it go without a grace period."""
        self._api.delete("Node", name)
        self.truth.remove_node(name)
        with self._lock:
            self._devices.pop(name)
            self._annotated.discard(name)
            gone = [pod for pod in self._pods.values() if pod.item["spec"]["nodeName"] == name]
        for pod in gone:
            self._write(pod.uid, lambda pod=pod: self._remove(pod))  # type: ignore[misc]

    def set_health(self, name: str, gpu: int, healthy: bool) -> None:
        """A GPU fails or recovers; the node's allocatable count and its annotation follow."""
        left = self.truth.set_health(name, gpu, healthy)
        devices = self._devices[name]
        self._api.patch("Node", name, {"status": {"allocatable": {devices.resource: str(left)}}}, subresource="status")
        if name in self._annotated:
            value = topology_annotation(self._machines[name], devices.uuids, devices.healthy)
            self._api.patch("Node", name, {"metadata": {"annotations": {TOPOLOGY: value}}})

    def offer(self, name: str, there: bool) -> None:
        """The device plugin of a node goes or comes back: kubelet offers 0 GPUs meanwhile, of an unchanged capacity."""
        devices = self._devices[name]
        count = str(sum(devices.healthy) if there else 0)
        self._api.patch("Node", name, {"status": {"allocatable": {devices.resource: count}}}, subresource="status")

    def refuse(self, probability: float = 1, *, node: str | None = None, times: int | None = None) -> None:
        """From now on refuses pods with this probability, on one node or on all, ``times`` times at most."""
        with self._lock:
            self._injections.append(_Injection(probability, node, times))

    def settle(self, timeout: float = 60) -> None:
        """Waits until every bound pod of the API is admitted or refused and every deleted one is gone.

        Only ends of pods that lie in the future (run-seconds) are not waited for.
        """

        def quiet() -> bool:
            if self._under_way:
                return False
            return not any(self._waits_for_us(pod) for pod in self._api.list("Pod", fields="spec.nodeName!="))

        wait_for(quiet, timeout, lambda: f"{self._under_way} actions are under way", every=0.1)

    def _waits_for_us(self, pod: Object) -> bool:
        pending = pod["status"].get("phase") == "Pending" or "deletionTimestamp" in pod["metadata"]
        return pending and pod["spec"]["nodeName"] in self._devices

    # ---- what comes in

    def _watch_pods(self) -> None:
        while not self._stopping.is_set():
            try:
                pods, version = self._api.list_raw("Pod", fields="spec.nodeName!=")
                self._compare(pods)
                # A watch that ends by itself is not an outage: go on from where it was.
                while not self._stopping.is_set():
                    self._watch = self._api.watch("Pod", version=version, fields="spec.nodeName!=", seconds=600)
                    for kind, pod in self._watch:
                        version = pod["metadata"]["resourceVersion"]
                        self._seen(kind, pod)
            except (WatchExpired, ApiError, NoAnswer):
                self._stopping.wait(0.1)

    def _compare(self, pods: Sequence[Object]) -> None:
        """After a list: what is not in it has gone while nobody looked."""
        there = {pod["metadata"]["uid"] for pod in pods}
        with self._lock:
            gone = [pod.item for uid, pod in self._pods.items() if uid not in there]
        for pod in gone:
            self._seen("DELETED", pod)
        # The order of arrival is lost in a list; bindings are told by the pods' conditions, to the second.
        for pod in sorted(pods, key=_bound_at):
            self._seen("ADDED", pod)

    def _seen(self, kind: str, item: Object) -> None:
        uid, node = item["metadata"]["uid"], item["spec"]["nodeName"]
        with self._lock:
            if kind == "DELETED":
                if self._pods.pop(uid, None) is not None:
                    self.truth.release(uid, "deleted")
                return
            if node not in self._devices:
                return
            pod = self._pods.get(uid)
            if pod is None:
                if item["status"].get("phase") in ("Succeeded", "Failed"):
                    return
                pod = self._pods[uid] = _Pod(item)
                start = max(time.monotonic(), self._busy_until.get(node, 0)) + self.admit_seconds
                self._busy_until[node] = start
                self._at(start, lambda: self._admit(pod))
            pod.item = item
            if item["metadata"].get("deletionTimestamp") and not pod.terminating:
                pod.terminating = True
                grace = item["metadata"].get("deletionGracePeriodSeconds", 0)
                wait = min(self.termination_seconds, grace) if pod.admitted else 0
                self._at(time.monotonic() + wait, lambda: self._terminate(pod))

    # ---- what is done, in the acting thread

    def _at(self, when: float, action: Callable[[], None], *, counts: bool = True) -> None:
        with self._wake:
            self._under_way += counts
            heapq.heappush(self._agenda, (when, next(self._numbers), action, counts))
            self._wake.notify()

    def _act(self) -> None:
        while not self._stopping.is_set():
            with self._wake:
                while not self._stopping.is_set() and (not self._agenda or self._agenda[0][0] > time.monotonic()):
                    self._wake.wait(self._agenda[0][0] - time.monotonic() if self._agenda else None)
                if self._stopping.is_set():
                    return
                _, _, action, counts = heapq.heappop(self._agenda)
            action()
            with self._lock:
                self._under_way -= counts

    def _terminate(self, pod: _Pod) -> None:
        if self.keeps_terminating:
            self._at(time.monotonic() + 0.1, lambda: self._terminate(pod))
        else:
            self._write(pod.uid, lambda: self._remove(pod))

    def _admit(self, pod: _Pod) -> None:
        with self._lock:
            node = pod.item["spec"]["nodeName"]
            if pod.terminating or pod.uid not in self._pods or node not in self._devices:
                return
            try:
                taken = self.truth.admit(pod.item, injected=self._injected(node))
            except AdmissionRejected as no:
                status = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": str(no)}
                self._write(pod.uid, lambda: self._patch_status(pod, status))
                return
            pod.admitted = True
        started = time.monotonic() + self.start_seconds
        if FAILS in pod.item["metadata"].get("annotations", {}):
            self._at(started, lambda: self._fail(pod))
            return
        # One write when nothing lies between: that is what a test at scale pays for.
        at_once = self.report_devices and self.report_seconds == 0
        self._at(started, lambda: self._run(pod, taken if at_once else {}))
        if self.report_devices and not at_once:
            self._at(started + self.report_seconds, lambda: self._report(pod, taken))
        if seconds := pod.item["metadata"].get("annotations", {}).get(RUN_SECONDS):
            self._at(started + float(seconds), lambda: self._end(pod, "Succeeded"), counts=False)
        if seconds := pod.item["metadata"].get("annotations", {}).get(FAIL_SECONDS):
            self._at(started + float(seconds), lambda: self._end(pod, "Failed"), counts=False)

    def _injected(self, node: str) -> bool:
        for injection in self._injections:
            if injection.node not in (None, node) or injection.times == 0:
                continue
            if self._rng.random() < injection.probability:
                if injection.times is not None:
                    injection.times -= 1
                return True
        return False

    def _run(self, pod: _Pod, devices: Mapping[str, frozenset[int]]) -> None:
        now = _now()
        kinds = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady")
        status: Object = {
            "phase": "Running",
            "startTime": _now(-float(pod.item["metadata"].get("annotations", {}).get(RAN_SECONDS, "0"))),
            "hostIP": "127.0.0.1",
            "conditions": [{"type": kind, "status": "True", "lastTransitionTime": now} for kind in kinds],
            "containerStatuses": self._statuses(pod, devices, {"running": {"startedAt": now}}),
        }
        if init := pod.item["spec"].get("initContainers"):
            done = {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": now, "finishedAt": now}}
            on = {"running": {"startedAt": now}}
            status["initContainerStatuses"] = [
                container_status(c, on if c.get("restartPolicy") == "Always" else done) for c in init
            ]
        self._write(pod.uid, lambda: self._patch_status(pod, status))

    def _report(self, pod: _Pod, devices: Mapping[str, frozenset[int]]) -> None:
        running = {"running": {"startedAt": _now()}}
        status = {"containerStatuses": self._statuses(pod, devices, running)}
        self._write(pod.uid, lambda: self._patch_status(pod, status))

    def exits(self, uid: str, code: int) -> None:
        """The pod's containers exit with this code, now; nothing restarts them."""
        with self._lock:
            pod = self._pods.get(uid)
        if pod is not None:
            self._at(time.monotonic(), lambda: self._end(pod, "Failed" if code else "Succeeded", code))

    def restarts(self, uid: str, code: int) -> None:
        """The pod's containers exit with this code, and are started again at once: they keep their GPUs."""
        with self._lock:
            pod = self._pods.get(uid)
        if pod is not None:
            self._at(time.monotonic(), lambda: self._restart(pod, code))

    def _restart(self, pod: _Pod, code: int) -> None:
        if pod.terminating or pod.uid not in self._pods:
            return
        now = _now()
        ended = {"terminated": {"exitCode": code, "reason": "Error", "finishedAt": now}}
        more = {"state": {"running": {"startedAt": now}}, "lastState": ended}
        statuses = [
            {**status, **more, "restartCount": status["restartCount"] + 1}
            for status in pod.item["status"].get("containerStatuses", ())
        ]
        self._write(pod.uid, lambda: self._patch_status(pod, {"containerStatuses": statuses}))

    def _end(self, pod: _Pod, phase: Literal["Succeeded", "Failed"], failed_with: int = 1) -> None:
        """The pod's containers end by themselves."""
        if pod.terminating or pod.uid not in self._pods:
            return
        self.truth.release(pod.uid, phase.lower())
        now = _now()
        done = phase == "Succeeded"
        code, reason, why = (0, "Completed", "PodCompleted") if done else (failed_with, "Error", "PodFailed")
        ended = {"terminated": {"exitCode": code, "reason": reason, "finishedAt": now}}
        status = {
            "phase": phase,
            "conditions": [
                {
                    "type": kind,
                    "status": "False",
                    "reason": why,
                    "lastTransitionTime": now,
                }
                for kind in ("Ready", "ContainersReady")
            ],
            "containerStatuses": [container_status(c, ended) for c in pod.item["spec"]["containers"]],
        }
        self._write(pod.uid, lambda: self._patch_status(pod, status))

    def _fail(self, pod: _Pod) -> None:
        """Its containers exit with 1, which is the pod's own doing; what is restarted is not played."""
        self.truth.release(pod.uid, "failed")
        now = _now()
        ended = {"terminated": {"exitCode": 1, "reason": "Error", "startedAt": now, "finishedAt": now}}
        status = {
            "phase": "Failed",
            "startTime": now,
            "containerStatuses": [container_status(c, ended) for c in pod.item["spec"]["containers"]],
        }
        self._write(pod.uid, lambda: self._patch_status(pod, status))

    def _statuses(self, pod: _Pod, devices: Mapping[str, frozenset[int]], state: Object) -> list[Object]:
        return container_statuses(pod.item, self._devices.get(pod.item["spec"]["nodeName"]), devices, state)

    # ---- what goes out, in a writer

    def _write(self, uid: str, call: Callable[[], object]) -> None:
        with self._lock:
            if self._stopping.is_set():
                return
            self._under_way += 1
        self._writers[hash(uid) % len(self._writers)].submit(self._guard, lambda: self._until_written(call))

    def _until_written(self, call: Callable[[], object]) -> None:
        """Repeats through an outage, as a kubelet does; gives up when the pod is gone or another."""
        try:
            while not self._stopping.is_set():
                try:
                    call()
                    return
                except ApiError as error:
                    if error.status == 404 or (error.status == 409 and "UID" in str(error)):
                        return
                    # 409 without a word of the uid: too many wrote at once, and the API server gave up retrying.
                    if error.status < 500 and error.status not in (409, 429):
                        raise
                except NoAnswer:
                    pass
                self._stopping.wait(0.2)
        finally:
            with self._lock:
                self._under_way -= 1

    def _patch_status(self, pod: _Pod, status: Object) -> None:
        meta = pod.item["metadata"]
        # The uid makes it a conflict when the name belongs to a new pod by now.
        body = {"metadata": {"uid": meta["uid"]}, "status": status}
        self._api.patch("Pod", meta["name"], body, meta["namespace"], how="strategic", subresource="status")

    def _remove(self, pod: _Pod) -> None:
        # The containers have ended before the API server hears of it.
        self.truth.release(pod.uid, "terminated")
        meta = pod.item["metadata"]
        self._api.delete("Pod", meta["name"], meta["namespace"], grace=0, uid=meta["uid"])

    def _plugin(self, name: Plugin, what: SimMachine) -> SimDevicePlugin:
        model: Literal["nvidia", "amd", "none"] = "nvidia" if name == "plan" or name == "relay" else name
        with self._lock:
            key = (model, what)
            if key not in self._plugins:
                made = device_plugin(model, what.links, what.pcie, link_scope=what.scope, numa=what.numa)
                self._plugins[key] = made
            return self._plugins[key]

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self.errors.append(error)


def _bound_at(pod: Object) -> str:
    for condition in pod["status"].get("conditions", ()):
        if condition["type"] == "PodScheduled":
            return str(condition.get("lastTransitionTime") or "")
    return ""


def _now(seconds: float = 0.0) -> str:
    """So many seconds from now."""
    return (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
