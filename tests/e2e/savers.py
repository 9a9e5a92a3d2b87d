"""Training pods under the simulated kubelet that are asked to save their work: each does so in its own way, or not.

`SavingTrace` sees each change of a pod, keeps the requests and answers, and hands each new request to `Savers`. A
kubelet brings a request into the container KUBELET_SECONDS after it stands on the pod.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import inf
from typing import Any, Final, NamedTuple

from extender.kube.client import ApiError
from tests.e2e.api import Api, Object
from tests.e2e.kubelet import SimulatedKubelets
from tests.e2e.queue_record import Change, Holder
from tests.e2e.soak_accounts import seconds
from tests.e2e.trace import Trace

OURS: Final = "gpu-extender.io/"
ASKED, SAVED, CHECKPOINT = OURS + "save-requested", OURS + "saved", OURS + "last-checkpoint"
GANG, SPEAKS = OURS + "gang", OURS + "saves-for-gang"
BEHAVES = "test.gpu-extender.io/behaves"
KUBELET_SECONDS = 0.3
STATED = 3  # seconds that saving takes at most, as the pods state


class Kind(NamedTuple):
    """How a pod saves. `after`: seconds from the file to what it does."""

    act: str
    after: float = 1.0
    stated: Mapping[str, str] = {OURS + "saves-on-request": f"{STATED}s"}


KINDS: Final[dict[str, Kind]] = {
    "saves": Kind("save"),
    "checkpoints": Kind("checkpoint"),
    "exits": Kind("exit"),
    "dies": Kind("die", 0.1),
    "restarts": Kind("restart"),
    "hangs": Kind(""),
    "lies": Kind("lie", 0.1),
    "repeats": Kind("repeat", 0.1),
    "late": Kind("save", STATED + 0.5),
    "long": Kind("save", 4.0, {OURS + "saves-on-request": "5s"}),
    "terminates": Kind("", 0.0, {OURS + "saves-on-termination": f"{STATED}s"}),
    "plain": Kind("", 0.0, {}),
}
"""By name. A gang has a pod that `saves`, for all, and one that `hangs`."""


@dataclass
class Asked:
    """One request on one pod, as the API server had it. Times are seconds since 1970: `at` and `until` as it states
    them, the others as seen. `ended`: it stood no more while the pod ran on."""

    uid: str
    id: str
    at: float
    until: float
    since: float
    by: list[str] = field(default_factory=list)
    answered: float = inf
    ended: float = inf


class SavingTrace(Trace):
    """Keeps also the requests, how each pod ended, and who held the Lease. `asks`: called with a pod that has a new
    request."""

    def __init__(self, api: Api, namespace: str, url: str, resource: str, lease: str) -> None:
        super().__init__(api, namespace, url, resource)
        self._beside(self._follow, "Lease", "kube-system", f"metadata.name={lease}", self._lease)
        self.holders: list[Change] = []
        self.asks: Callable[[Object, Asked], None] = lambda pod, asked: None
        self.asked: list[Asked] = []
        self.kinds: dict[str, str] = {}  # by uid, of pods that train
        self.gangs: dict[str, str] = {}
        self.speaks: set[str] = set()
        self.evicted: dict[str, str] = {}  # reason of DisruptionTarget
        self.evicted_at: dict[str, float] = {}  # when that was written: before the pod is deleted
        self._standing: dict[str, Asked] = {}

    def _pod(self, now: float, change: str, pod: Object) -> None:
        super()._pod(now, change, pod)
        uid, notes = pod["metadata"]["uid"], pod["metadata"].get("annotations", {})
        if BEHAVES not in notes:
            return
        self.kinds[uid] = notes[BEHAVES]
        if GANG in notes:
            self.gangs[uid] = notes[GANG]
        if SPEAKS in notes:
            self.speaks.add(uid)
        for condition in pod["status"].get("conditions", ()):
            if condition["type"] == "DisruptionTarget" and uid not in self.evicted:
                self.evicted[uid], self.evicted_at[uid] = condition["reason"], now
                self.lines.append((now, f"pod {self.pods[uid].name} is evicted: {condition['reason']}"))
        self._request(now, pod, json.loads(notes.get(ASKED) or "null"))
        standing = self._standing.get(uid)
        if standing is not None and standing.answered == inf and _answers(pod, standing):
            standing.answered = now
            self.lines.append((now, f"pod {self.pods[uid].name} has answered"))

    def _lease(self, now: float, change: str, lease: Object) -> None:
        holder = Holder(lease["spec"].get("holderIdentity") or "")
        if not self.holders or self.holders[-1].what != holder:
            self.holders.append(Change(now, holder, False))
            self.mark(f"the Lease is held by {holder.name or 'nobody'}")

    def _request(self, now: float, pod: Object, stated: Any) -> None:
        uid = pod["metadata"]["uid"]
        standing = self._standing.get(uid)
        if standing is not None and (stated is None or stated["id"] != standing.id):
            standing.ended = now
            del self._standing[uid]
            self.lines.append((now, f"pod {self.pods[uid].name} is asked no more"))
        if stated is None:
            return
        if uid not in self._standing:
            at, until = seconds(stated["at"]), seconds(stated["until"])
            asked = self._standing[uid] = Asked(uid, stated["id"], at, until, now)
            self.asked.append(asked)
            self.asks(pod, asked)
        if stated["by"] not in self._standing[uid].by[-1:]:
            self._standing[uid].by.append(stated["by"])
            self.lines.append((now, f"pod {self.pods[uid].name} is asked by {stated['by']}, {stated['id']}"))

    def stand(self) -> list[Asked]:
        """The requests that stand on pods that run."""
        return [one for one in list(self._standing.values()) if self.pods[one.uid].gone is None]


def _answers(pod: Object, asked: Asked) -> bool:
    """Whether it has saved by what it states, or a container of it has ended since."""
    notes = pod["metadata"]["annotations"]
    checkpoint = notes.get(CHECKPOINT)
    if notes.get(SAVED) == asked.id or (checkpoint is not None and seconds(checkpoint) >= asked.at):
        return True
    states = [
        state[key]["terminated"]["finishedAt"]
        for state in pod["status"].get("containerStatuses", ())
        for key in ("state", "lastState")
        if "terminated" in state.get(key, {})
    ]
    return any(seconds(ended) >= asked.at for ended in states)


class Savers:
    """What the containers do once they are asked. `calls`: held while the API server is away."""

    def __init__(self, api: Api, kubelets: SimulatedKubelets, calls: threading.RLock) -> None:
        self._api, self._kubelets, self._calls = api, kubelets, calls
        self._timers: list[threading.Timer] = []
        self._last = "p-none"  # an id that another pod was asked with

    def asked(self, pod: Object, asked: Asked) -> None:
        """A request stands on the pod."""
        kind, old = KINDS[pod["metadata"]["annotations"][BEHAVES]], self._last
        self._last = asked.id
        if kind.act:
            timer = threading.Timer(KUBELET_SECONDS + kind.after, self._act, (kind.act, pod, asked, old))
            self._timers.append(timer)
            timer.start()

    def end(self) -> None:
        """None does anything more."""
        for timer in self._timers:
            timer.cancel()

    def _act(self, act: str, pod: Object, asked: Asked, old: str) -> None:
        now = datetime.fromtimestamp(time.time(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        notes = {
            "save": {SAVED: asked.id},
            "lie": {SAVED: "p-" + "0" * 12},
            "repeat": {SAVED: old},
            "checkpoint": {CHECKPOINT: now},
        }
        if act in notes:
            meta = pod["metadata"]
            body = {"metadata": {"uid": meta["uid"], "annotations": notes[act]}}
            with self._calls, contextlib.suppress(ApiError):
                self._api.patch("Pod", meta["name"], body, meta["namespace"])
        elif act == "restart":
            self._kubelets.restarts(asked.uid, 75)
        else:
            self._kubelets.exits(asked.uid, 75 if act == "exit" else 137)
