"""What the watch of the API server shows of gangs behind our gate: each change of pods, nodes, Jobs and the Lease."""

from __future__ import annotations

import json
import time
from math import inf
from pathlib import Path
from typing import NamedTuple

from extender.kube.client import ApiError, NoAnswer
from tests.e2e.api import Api, Object, WatchExpired
from tests.e2e.builders import GPU
from tests.e2e.watching import Watching

GATE = "gpu-extender.io/queue"
PLAN = "gpu-extender.io/gpus"
GANG = "gang"  # the label that names a pod's gang


class Pod(NamedTuple):
    """A pod as one event shows it. `over`: it holds nothing any more; `gang`: "" of a foreign pod."""

    uid: str
    gang: str
    gpus: int
    gated: bool
    node: str
    nominated: str
    planned: frozenset[int]
    over: bool
    succeeded: bool
    leaving: bool


class Node(NamedTuple):
    """A node as one event shows it. `gpus`: 0 of one that takes no pods."""

    name: str
    gpus: int


class Holder(NamedTuple):
    """The identity that holds the queue's Lease, "" for none."""

    name: str


class Owner(NamedTuple):
    """The Job of a gang. `succeeded`: as its status states."""

    gang: str
    succeeded: int


What = Pod | Node | Holder | Owner


class Change(NamedTuple):
    """One event. `gone`: the object is deleted."""

    at: float
    what: What
    gone: bool


class Gang(NamedTuple):
    """`pods` of `gpus` each."""

    name: str
    pods: int
    gpus: int


class Record(Watching):
    """A context manager around the part of a test that is judged. `lease`: the name of the queue's."""

    def __init__(self, api: Api, namespace: str, lease: str) -> None:
        super().__init__(api)
        self.changes: list[Change] = []
        self.errors: list[BaseException] = []
        self.ended = inf
        """When the record ended, seconds since 1970."""
        self._beside(self._keep, "Pod", namespace, "")
        self._beside(self._keep, "Node", None, "")
        self._beside(self._keep, "Job", namespace, "")
        self._beside(self._keep, "Lease", "kube-system", f"metadata.name={lease}")

    def __exit__(self, *error: object) -> None:
        self.ended = time.time()
        super().__exit__(*error)

    def save(self, file: Path) -> None:
        """Write the changes to a file, one a line, for whoever has to explain them."""
        with file.open("w") as out:
            for change in sorted(self.changes, key=lambda change: change.at):
                what = {key: sorted(v) if isinstance(v, frozenset) else v for key, v in change.what._asdict().items()}
                out.write(json.dumps({"at": round(change.at, 3), "gone": change.gone, **what}) + "\n")

    def _keep(self, kind: str, namespace: str | None, fields: str) -> None:
        known: dict[str, What] = {}
        while not self._stopping.is_set():
            try:
                listed, version = self._api.list_raw(kind, namespace, fields=fields)
                there = {item["metadata"]["uid"] for item in listed}
                for uid in known.keys() - there:
                    self._seen(known, "DELETED", known[uid], uid)
                for item in listed:
                    self._seen(known, "ADDED", _read(kind, item), item["metadata"]["uid"])
                for change, item in self._watch(kind, namespace, version, fields):
                    self._seen(known, change, _read(kind, item), item["metadata"]["uid"])
            except (WatchExpired, ApiError, NoAnswer):
                self._stopping.wait(0.1)
            except BaseException as error:
                self.errors.append(error)
                return

    def _seen(self, known: dict[str, What], change: str, what: What, uid: str) -> None:
        if change == "DELETED":
            known.pop(uid, None)
            self.changes.append(Change(time.time(), what, True))
        elif known.get(uid) != what:
            known[uid] = what
            self.changes.append(Change(time.time(), what, False))


def _read(kind: str, item: Object) -> What:
    meta, spec, status = item["metadata"], item["spec"], item.get("status", {})
    if kind == "Lease":
        return Holder(spec.get("holderIdentity") or "")
    if kind == "Job":
        return Owner(meta["name"], status.get("succeeded", 0))
    if kind == "Node":
        count = 0 if spec.get("unschedulable") else int(status.get("allocatable", {}).get(GPU, 0))
        return Node(meta["name"], count)
    asked = sum(int(one["resources"].get("requests", {}).get(GPU, 0)) for one in spec["containers"])
    planned = meta.get("annotations", {}).get(PLAN, "")
    phase = status.get("phase")
    return Pod(
        uid=meta["uid"],
        gang=meta.get("labels", {}).get(GANG, ""),
        gpus=asked,
        gated=any(gate["name"] == GATE for gate in spec.get("schedulingGates") or ()),
        node=spec.get("nodeName", ""),
        nominated=status.get("nominatedNodeName", ""),
        planned=frozenset(int(gpu) for gpu in planned.split(",")) if planned else frozenset(),
        over=phase in ("Succeeded", "Failed"),
        succeeded=phase == "Succeeded",
        leaving="deletionTimestamp" in meta,
    )
