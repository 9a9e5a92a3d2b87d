"""What tenants run: gangs of the owners that the queue knows, and what their controllers do about pods that end."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from extender.objects.gangs import OUR_MINIMUM, OUR_SIZE
from extender.objects.queueing import GATE
from extender.sim.cluster import FINISHED
from tests.model.api import Api, pod_path
from tests.objects.test_gangs import obj, owned
from tests.queue.late_owners import OWNERS, template
from tests.world import JSON, rfc3339, workload

QUEUE, DURATION = "gpu-extender.io/queue", "gpu-extender.io/duration"
PRODUCT, HOSTNAME = "nvidia.com/gpu.product", "kubernetes.io/hostname"
GRACE = 2  # seconds
LATE = [name for name in OWNERS if "exclusive" not in name]
KINDS = ("label", "kueue", "podgroup", "job", *LATE)


@dataclass
class Gang:
    """One workload, alone in its namespace. `sizes`: GPUs by the name of each pod; `least`: how many must run;
    `late`: names of the pods that are created once the others run; `remade`: whether ended pods come again."""

    name: str
    kind: str
    queue: str
    priority: int
    sizes: dict[str, int]
    least: int
    seconds: int = 0
    models: tuple[str, ...] = ()
    apart: bool = False
    links: bool = False
    gated: bool = True
    remade: bool = True
    late: tuple[str, ...] = ()
    objects: list[str] = field(default_factory=list)  # paths
    uids: dict[str, str] = field(default_factory=dict)  # name -> uid of the pod that is there
    done: set[str] = field(default_factory=set)  # names of the pods that have succeeded
    ended: list[str] = field(default_factory=list)  # their uids
    number: int = 0  # of pods that were created
    born: float = 0.0
    disturbed: bool = False  # it lost a pod or a node, or its queue's rules changed
    over: bool = False

    @property
    def gpus(self) -> int:
        return sum(self.sizes.values())

    @property
    def left(self) -> list[str]:
        """The pods that have not succeeded."""
        return [name for name in self.sizes if name not in self.done]

    @property
    def needed(self) -> int:
        """How many must run, of those that are left."""
        return min(self.least, len(self.left))


def made(step: JSON, name: str) -> Gang:
    """The gang of a step."""
    kind = step.get("kind", "label")
    kind = kind if kind in KINDS else "single"
    pods, gpus = max(1, int(step.get("pods", 1))), step.get("gpus", 1)
    gang = Gang(
        name, kind, step.get("queue", "a"), int(step.get("priority", 0)), {}, pods, int(step.get("seconds_stated", 0)),
        tuple(step.get("models", ())), bool(step.get("apart")), bool(step.get("links")),
        remade=step.get("remade", True),
    )  # fmt: skip
    if kind in LATE:
        owner = OWNERS[kind]
        gang.sizes = {one: 0 if one == "g-launcher" else 4 for one in (*owner.early, *owner.late)}
        gang.least, gang.late = len(gang.sizes), owner.late
        gang.apart = gang.links = False
        gang.models = ()
        return gang
    if kind == "single":
        gang.sizes, gang.least = {"p-0": int(gpus)}, 1
        gang.gated = step.get("gated", True)
        gang.queue = gang.queue if gang.gated else "plain"
        return gang
    gang.sizes = {f"p-{i}": int(gpus) for i in range(pods)}
    if kind == "label" and step.get("least"):
        gang.least = max(1, min(pods, int(step["least"])))
    if kind == "label" and step.get("mixed") and gang.least == pods:
        gang.sizes["p-0"] = int(step["mixed"])
    return gang


class Tenants:
    """All gangs, and their controllers. `clock`: seconds since 1970."""

    def __init__(self, api: Api, wall: Callable[[], float]) -> None:
        self._api, self._wall = api, wall
        self.gangs: dict[str, Gang] = {}

    def submit(self, gang: Gang) -> None:
        """It is created, with its owners."""
        gang.born = self._wall()
        self.gangs[gang.name] = gang
        for wire in self._owners(gang):
            _label(wire, {QUEUE: gang.queue})
            meta = wire["metadata"] | {"namespace": gang.name}
            path = f"/groups/{gang.name}/{wire['kind']}-{meta['name']}/groups/{meta['name']}"
            gang.objects.append(path)
            self._api.put(path, {**wire, "metadata": meta})
        self._create(gang)

    def _owners(self, gang: Gang) -> list[JSON]:
        if gang.kind in LATE:
            return [json.loads(json.dumps(one)) for one in OWNERS[gang.kind].objects]
        if gang.kind == "podgroup":
            return [obj("scheduling.x-k8s.io/v1alpha1", "PodGroup", "g", {"minMember": gang.least})]
        if gang.kind == "job":
            pods = len(gang.sizes)
            spec = {"parallelism": pods, "completions": pods, "completionMode": "Indexed", "template": template()}
            return [obj("batch/v1", "Job", "g", spec)]
        return []

    def remove(self, gang: Gang) -> None:
        """It is deleted, with its owners and its pods."""
        gang.over = True
        for path in gang.objects:
            self._api.drop(path)
        gang.objects = []
        for uid in [*gang.uids.values(), *gang.ended]:
            self._api.delete(uid)

    def sync(self) -> None:
        """What the controllers of the owners do."""
        for gang in [*self.gangs.values()]:
            for name, uid in [*gang.uids.items()]:
                pod = self._api.pod(uid)
                if pod is None:
                    del gang.uids[name]
                elif pod["status"]["phase"] in FINISHED:
                    if pod["status"]["phase"] == "Succeeded":
                        gang.done.add(name)
                        self._note_done(gang)
                        gang.ended.append(uid)  # nobody deletes it before its owner is deleted
                    else:
                        self._api.remove(uid)
                    del gang.uids[name]
            if not gang.left and not gang.over:
                self.remove(gang)
            if gang.over and not gang.uids:
                del self.gangs[gang.name]
            elif not gang.over and gang.remade:
                self._create(gang)

    def _note_done(self, gang: Gang) -> None:
        """A Job states which of its indices have succeeded, a PodGroup how many of its pods."""
        if gang.kind in ("job", "podgroup") and gang.objects:
            wire = self._api.stored[gang.objects[0]]
            status: JSON = {"succeeded": len(gang.done)}
            if gang.kind == "job":
                status["completedIndexes"] = ",".join(sorted(name.removeprefix("p-") for name in gang.done))
            self._api.put(gang.objects[0], {**wire, "status": status})

    def _create(self, gang: Gang) -> None:
        early = [name for name in gang.sizes if name not in gang.late]
        for name in early:
            self._create_one(gang, name)
        runs = all(name in gang.done or self._runs(gang, name) for name in early)
        for name in gang.late:
            if not runs:
                break
            self._create_one(gang, name)
            runs = not gang.kind.startswith("StatefulSet") or self._runs(gang, name)

    def _runs(self, gang: Gang, name: str) -> bool:
        pod = self._api.pod(gang.uids.get(name, ""))
        return pod is not None and pod["status"]["phase"] == "Running"

    def _create_one(self, gang: Gang, name: str) -> None:
        if name in gang.done or name in gang.uids:
            return
        pod = self._pod(gang, name)
        if gang.kind.startswith("StatefulSet") and pod_path(pod) in self._api.stored:
            return
        gang.number += 1
        gang.uids[name] = pod["metadata"]["uid"]
        self._api.create(pod)

    def _pod(self, gang: Gang, name: str) -> JSON:
        facts: JSON = {"priority": gang.priority, "grace": GRACE, "namespace": gang.name}
        spec: JSON = {}
        if gang.models:
            spec["nodeSelector"] = {PRODUCT: gang.models[0]}
        if gang.apart:
            term = {"labelSelector": {"matchLabels": {"team": gang.name}}, "topologyKey": HOSTNAME}
            spec["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
        if gang.kind in LATE:
            pod = OWNERS[gang.kind].make(name, **facts)
        else:
            notes, labels = _marks(gang, name)
            gates = {"schedulingGates": [{"name": GATE}]} if gang.gated else {}
            pod = workload(name, gang.sizes[name], labels=labels, annotations=notes, spec=spec | gates, **facts)
            if gang.kind == "job":
                pod["metadata"]["ownerReferences"] = owned("Job", "batch/v1")
            if gang.links:
                pod["metadata"]["annotations"]["gpu-extender.io/links"] = "required"
        meta = pod["metadata"]
        meta["labels"] |= {QUEUE: gang.queue, "team": gang.name}
        meta["creationTimestamp"] = rfc3339(self._wall())
        meta["uid"] = f"uid-{gang.name}-{name}-{gang.number}"
        if not gang.kind.startswith("StatefulSet"):
            meta["name"] = f"{name}--{gang.number}"
        if gang.seconds:
            meta["annotations"][DURATION] = f"{gang.seconds}s"
        pod["spec"]["containers"][0]["image"] = "registry.example/workload:1"
        return pod


def _label(wire: Any, labels: dict[str, str]) -> None:
    """Label the pod templates in an object."""
    for part in wire.values() if isinstance(wire, dict) else wire if isinstance(wire, list) else ():
        _label(part, labels)
    if isinstance(wire, dict) and "containers" in wire.get("spec", ()):
        meta = wire.setdefault("metadata", {})
        meta["labels"] = {**meta.get("labels", {}), **labels}


def _marks(gang: Gang, name: str) -> tuple[dict[str, str], dict[str, str]]:
    """Annotations and labels that make it one of its gang."""
    notes: dict[str, str] = {}
    labels: dict[str, Any] = {}
    size, index = str(len(gang.sizes)), name.removeprefix("p-")
    if gang.kind == "label":
        notes = {"gpu-extender.io/gang": "g", OUR_SIZE: size}
        if gang.least < len(gang.sizes):
            notes[OUR_MINIMUM] = str(gang.least)
    elif gang.kind == "kueue":
        labels = {"kueue.x-k8s.io/pod-group-name": "g", "kueue.x-k8s.io/pod-group-pod-index": index}
        notes = {"kueue.x-k8s.io/pod-group-total-count": size}
    elif gang.kind == "podgroup":
        labels = {"scheduling.x-k8s.io/pod-group": "g"}
    elif gang.kind == "job":
        labels = {"batch.kubernetes.io/job-completion-index": index}
        notes = {"batch.kubernetes.io/job-completion-index": index}
    return notes, labels
