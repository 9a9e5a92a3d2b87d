"""Asks pods to save their work before they are evicted, and knows when they have: for each eviction of ours.

Theory of operation
-------------------
A *need* is pods that are evicted for one preemptor. Those of them, and of the gangs that break, which state
`saves-on-request` and lose less by it are asked, all at once. The pods of the need are evicted when all are ready.

| state | how it is known | what follows |
|---|---|---|
| needed | no request stands on the pod | the annotation `save-requested` is written, with Events on pod and owner |
| asked | a request stands, and no answer | nothing until its time is over; an EvictionRequest, where it is on |
| saved | the annotation `saved` has the id of the request, or `last-checkpoint` is later than it | ready |
| exited | a container with GPUs, where any states them, has ended since the request | ready |
| deadline | the time of the request, or of the need, is over; or the request is not allowed | ready |

1. Of a gang one answer of a member that speaks for it is enough (`speakers`); without one all have to be ready.
2. A pod is asked once, however many needs it is in: a request that stands counts for each, until its own time. The
   name of a preemptor that needs it no more is replaced by that of one that does.
3. A request without a need for WITHDRAW_SECONDS is withdrawn: the annotation is removed. One on a pod that ends stays.
   The condition SaveRequested of the pod is true from the request until then, or until the pod answers. It is written
   with the annotation. It is for readers: nothing here depends on it.
4. The state is in the annotations and in the stored reservation. A new holder of the Lease reads them, and goes on. In
   one process an annotation that a tenant removes or changes is not written again: what was written counts.
5. What acts by another Lease (the queue) has requests of its own. Each counts for both, and is withdrawn by its writer;
   where that is turned off now, by any server that gets its Lease (`turned_off`).
6. The clock is ours. A request begins after the last exit of its pod, by whichever clock. The pod's own word ends the
   time early, and never later than the need waits.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeVar
from urllib.parse import quote

import msgspec

from extender.act.controller import Controller, Leadership, repeat
from extender.act.document import STORE_SECONDS, LearnedStore, Seconds
from extender.act.events import EventRecorder, of_pod
from extender.cluster.cluster import Cluster, ClusterView
from extender.kube.client import ApiError, ApiServer, NoAnswer, object_in
from extender.kube.own_objects import ConfigMap, Regarding
from extender.kube.pod_writes import AT_ONCE, PodEvictions, PodPatches, pod_path
from extender.log import get_log
from extender.metrics import Metrics
from extender.objects import gangs
from extender.objects.progress import duration_text
from extender.objects.records import Event, PodRecord, SaveAnswersRecord
from extender.objects.save_request import SAVE_REQUESTED, SAVED, SaveRequest, condition, requested, speakers
from extender.objects.stored_texts import SAVE_ANSWERS_BYTES, decoded, shortened
from extender.preemption.cost_inputs import stopped, to_ask, work_lost
from extender.times import Backoff, Backoffs, Clock

ASKING_SECONDS: Final = 5.0  # in which the requests are written: so much later than the longest time a need ends
WITHDRAW_SECONDS: Final = 5.0  # another instance may know of a need that this one does not see yet
ROUND_SECONDS: Final = 1.0  # of one turn, for requests to the API server
LOOK_SECONDS: Final = 0.5  # between two looks at what is turned off: an instance renews its Lease by them
PAUSE: Final = Backoff(2.0, 30.0)  # after a request that was not written
State = Literal["needed", "asked", "saved", "exited", "deadline"]
READY: Final = frozenset[State]({"saved", "exited", "deadline"})
ANSWERED: Final = frozenset[State]({"saved", "exited"})
log = get_log()
Item = TypeVar("Item")


class Need(NamedTuple):
    """Pods that are evicted for one preemptor."""

    by: str
    """namespace/name of the preemptor, or the name of its gang."""
    pods: Sequence[PodRecord]
    """The victims that are there, and not terminating."""
    at: float
    """When it began, seconds since 1970."""
    wait: float
    """Seconds for which it waits until the pods have saved their work; 0: none is asked."""

    @property
    def until(self) -> float:
        """When it waits no longer, seconds since 1970."""
        return self.at + self.wait + ASKING_SECONDS


class Step(NamedTuple):
    """How far a need is."""

    state: Literal["unknown", "not-allowed", "stopped", "saving", "ready"]
    """The API server has not answered in the dry run, or does not allow an eviction; the need does not stand any more;
    its pods save their work; they may be evicted."""
    pod: PodRecord | None = None
    """The first one whose eviction is not allowed."""
    why: str = ""
    """Why it is not, in the API server's words."""


@dataclass(slots=True)
class _Standing:
    """One request that stands."""

    request: SaveRequest
    pod: PodRecord  # as it was last seen
    owner: str  # its highest owner then
    work: int  # GPU-seconds that its end at the time of the request would have lost
    saved: bool = False  # it has answered, or another member of its gang has for it
    counted: bool = False  # its answer is counted
    closed: bool = False  # the condition says that it has answered
    eviction_request: Outcome = "unknown"  # whether an EvictionRequest stands
    unwanted: float | None = None  # since when no need has it, by the clock that does not step


def state_of(pod: PodRecord, request: SaveRequest | None, until: float, now: float) -> State:
    """The state of a pod of a need that waits until `until`. Times are seconds since 1970."""
    if request is None:
        return "needed" if now < until else "deadline"
    if answer := request.answer(pod):
        return answer
    return "asked" if now < min(request.until, until) else "deadline"


class SaveRequests:
    """The requests of one server that holds the Lease."""

    def __init__(
        self,
        cluster: ClusterView,
        patches: PodPatches,
        events: EventRecorder,
        metrics: Metrics,
        history: SaveHistory,
        prefix: str = "p-",
    ) -> None:
        """`history`: learns how they are answered; `prefix`: of the ids. Each Lease has its own: only its holder
        withdraws these."""
        self._prefix = prefix
        self._cluster, self._patches, self._events, self._metrics = cluster, patches, events, metrics
        self._history, self._wall, self._now = history, history.wall, history.now
        self._standing: dict[str, _Standing] | None = None  # by uid; None until the annotations are read
        self._left: bool | None = None  # whether an instance before has left requests; None: not known yet
        self._needed_by: frozenset[str] = frozenset()
        self._pauses = Backoffs(PAUSE)
        self._refused: set[str] = set()  # uids of pods that may not be asked
        self._unsure: dict[str, SaveRequest] = {}  # by uid: written with no answer
        self.eviction_requests: EvictionRequests | None = None
        """Makes these too; None: they are off."""

    def stand(self) -> bool:
        """Whether requests stand that this instance may have to withdraw; for those of an instance before it looks at
        all pods, once."""
        if self._left is None:
            self._left = bool(self._read())
        return self._left or bool(self._standing)

    async def turned_off(self, leadership: Leadership, *, wanted: bool = False) -> None:
        """No pod is asked any more: withdraw what an instance before has left, as the holder of its Lease. `wanted`:
        whether that is wanted for more than this."""
        await leadership.campaign(wanted or self.stand())
        if not leadership.held:
            self.forget()
        elif self.stand():
            await self.sweep([])

    def has_asked(self, pod: PodRecord) -> bool:
        """Whether a request stands on the pod, of whatever need."""
        return pod.uid in self._read() or requested(pod) is not None

    def forget(self) -> None:
        """This instance does not hold the Lease: another one may ask and withdraw, or none does."""
        self._left = bool(self._standing or self._unsure) or self._left
        self._standing = None
        self._refused.clear()
        self._unsure.clear()

    async def sweep(self, needs: Iterable[Need]) -> None:
        """Withdraw what no need has any more, and count how requests have ended. Before `ready`, with all needs."""
        needs = list(needs)
        self._needed_by = frozenset(need.by for need in needs)
        standing, now, self._left = self._read(), self._wall(), False
        self._adopt(standing)
        self._history.refresh()
        if not standing:
            return
        wanted = {uid for need in needs for uid in self._asks(need)}
        vain: list[_Standing] = []
        for uid, entry in list(standing.items()):
            pod = self._cluster.pods.get(uid)
            if pod is None or not pod.node or pod.finished:
                self._ended(entry, pod or entry.pod, now)
                del standing[uid]
                continue
            entry.pod = pod
            if uid in wanted or pod.terminating:
                entry.unwanted = None
            elif entry.unwanted is None:
                entry.unwanted = self._now()
            elif self._now() - entry.unwanted >= WITHDRAW_SECONDS and not self._pauses.waits(uid, self._now()):
                vain.append(entry)
        await _some(vain, self._withdraw)

    async def ready(self, need: Need) -> bool:
        """Ask the pods of a need that have not been asked yet; whether all of them may be evicted now. Some may have
        ended since the need was made, and some end during the requests."""
        asks, known = self._asks(need), self._cluster.pods
        pods = {uid: pod for uid in asks if (pod := known.get(uid)) is not None and not pod.terminating}
        if not pods:
            return True
        standing, now = self._read(), self._wall()
        states = {uid: self._state(pod, need.until, now) for uid, pod in pods.items()}
        unasked = [pods[uid] for uid, state in states.items() if state == "needed"]
        taken = [pods[uid] for uid in pods if uid in standing and self._is_free(standing[uid], need)]
        await _some(unasked, lambda pod: self._ask(pod, need, asks[pod.uid]))
        await _some(taken, lambda pod: self._take(pod, need))
        if self.eviction_requests is not None:
            asked = [standing[uid] for uid, state in states.items() if state == "asked" and uid in standing]
            await _some([entry for entry in asked if entry.eviction_request == "unknown"], self._request_eviction)
        answered = [uid for uid, state in states.items() if state in ANSWERED and uid in standing]
        await _some([pods[uid] for uid in answered if not standing[uid].closed], self._close)
        gangs: dict[object, list[PodRecord]] = {}
        for uid, pod in pods.items():
            gangs.setdefault(self._cluster.gangs.ref(pod) or uid, []).append(pod)
        for members in gangs.values():
            if _is_answered(members, states):
                for pod in members:
                    if (entry := standing.get(pod.uid)) is not None:
                        entry.saved = True
        return all(
            _is_answered(members, states) or all(states[pod.uid] in READY for pod in members)
            for members in gangs.values()
        )

    async def may_evict(
        self, need: Need, evictions: PodEvictions, goes_on: Callable[[], bool], *, allowed: bool
    ) -> Step:
        """Whether the pods of a need may be evicted now. None is asked to save before all evictions are allowed in a
        dry run; `allowed`: they were. `goes_on`: whether the need stands, since the dry run may have waited long."""
        refusal = None if allowed else await evictions.refusal(need.pods)
        if refusal is not None:
            pod, answer = refusal
            return Step("unknown" if answer.outcome == "unknown" else "not-allowed", pod, answer.message)
        if not goes_on():
            return Step("stopped")
        return Step("ready" if not need.wait or await self.ready(need) else "saving")

    # -- one pod ----------------------------------------------------------------------------------------------------

    def _asks(self, need: Need) -> dict[str, int]:
        """By uid, in how many seconds each pod saves its work that is asked, or has been."""
        asks = to_ask(self._cluster, need.pods, int(need.at * 1000), math.floor(need.wait))
        if not need.wait:
            return asks
        standing, losing, limits = self._read(), stopped(self._cluster, need.pods)[1], self._cluster.limits
        asked = dict[str, int]()
        for uid, pod in losing.items():  # what was asked has its time; a pod that is not believed cannot ask itself
            saving = limits.saving(pod)
            counts = saving.on_request if uid in standing else saving.when_asked if requested(pod) is not None else -1
            if counts >= 0:
                asked[uid] = 0
        return asked | asks

    def _read(self) -> dict[str, _Standing]:
        """The requests that stand. Those of an instance before this one are read once."""
        if self._standing is None:
            pods = [pod for pod in self._cluster.pods.values() if pod.node and SAVE_REQUESTED in pod.annotations]
            self._standing = {
                pod.uid: self._stands(request, pod, closed=request.answer(pod) != "")
                for pod in pods
                if (request := requested(pod)) is not None and request.id.startswith(self._prefix)
            }
        return self._standing

    def _stands(self, request: SaveRequest, pod: PodRecord, *, closed: bool = False) -> _Standing:
        owner = gangs.top_owner(pod, self._cluster.gangs.objects)
        work = work_lost(self._cluster, pod, int(request.at * 1000))
        return _Standing(request, pod, owner, work, closed=closed)

    def _state(self, pod: PodRecord, until: float, now: float) -> State:
        entry = self._read().get(pod.uid)
        if entry is None:  # one that the holder of another Lease has written counts too
            return "deadline" if pod.uid in self._refused else state_of(pod, requested(pod), until, now)
        state = state_of(pod, entry.request, until, now)
        if state in ANSWERED and not entry.counted:
            entry.counted = True
            self._metrics.save_requests.labels(state).inc()
        return state

    def _adopt(self, standing: dict[str, _Standing]) -> None:
        """The requests that were written, and whose answer was lost."""
        for uid, request in list(self._unsure.items()):
            pod = self._cluster.pods.get(uid)
            stated = None if pod is None else requested(pod)
            if pod is not None and stated is not None and stated.id == request.id:
                standing[uid] = self._stands(request, pod)
                self._asked(pod, request)
            if pod is None or uid in standing:
                del self._unsure[uid]

    async def _ask(self, pod: PodRecord, need: Need, seconds: int) -> None:
        now = self._wall()
        if self._pauses.waits(pod.uid, self._now()):
            return
        until = min(now + seconds, need.until)
        at = now if pod.exited is None else min(max(now, pod.exited + 1), until)  # the clock of its node may be ahead
        request = SaveRequest(f"{self._prefix}{secrets.token_hex(6)}", need.by, at, until)
        if await self._write(pod, request):
            self._asked(pod, request)

    def _asked(self, pod: PodRecord, request: SaveRequest) -> None:
        """The request stands."""
        self._metrics.save_requests.labels("asked").inc()
        within = duration_text(round(request.until - self._wall()))
        text = (
            f"save your work within {within} and write the annotation {SAVED}: {request.id}; then, or when the time is "
            f"over, the pod is evicted for {request.by}"
        )
        log.info("a pod is asked to save its work", pod=f"{pod.namespace}/{pod.name}", by=request.by, id=request.id)
        self._tell(pod, "SaveRequested", text)

    async def _take(self, pod: PodRecord, need: Need) -> None:
        """The request counts for this need from now on."""
        entry = self._read().get(pod.uid)
        if entry is not None and not self._pauses.waits(pod.uid, self._now()):
            await self._write(pod, entry.request._replace(by=need.by), entry)

    async def _write(self, pod: PodRecord, request: SaveRequest, entry: _Standing | None = None) -> bool:
        """Whether the request stands on the pod."""
        patched = await self._patches.note(pod, {SAVE_REQUESTED: request.text()}, condition(request, "", request.at))
        if patched.outcome == "written":
            self._pauses.succeeded(pod.uid)
            if entry is None:
                self._read()[pod.uid] = self._stands(request, pod)
            else:
                entry.request = request
            return True
        if patched.outcome == "refused" and entry is None:
            self._refused.add(pod.uid)
            self._metrics.save_requests.labels("refused").inc()
        if patched.outcome in ("unknown", "conflict") and entry is None:  # a write that is tried again meets itself
            self._unsure[pod.uid] = request
        if patched.outcome in ("refused", "unknown"):
            self._pauses.failed(pod.uid, self._now())
            log.warning("a pod cannot be asked", pod=f"{pod.namespace}/{pod.name}", err=patched.message)
        return False

    async def _request_eviction(self, entry: _Standing) -> None:
        if self.eviction_requests is not None and not self._pauses.waits(entry.pod.uid, self._now()):
            entry.eviction_request = await self.eviction_requests.create(entry.pod)
            if entry.eviction_request == "unknown":
                self._pauses.failed(entry.pod.uid, self._now())

    async def _close(self, pod: PodRecord) -> None:
        """The pod has answered. Its request stands until it is evicted, or the request is withdrawn."""
        entry = self._read().get(pod.uid)
        if entry is None or self._pauses.waits(pod.uid, self._now()):
            return
        patched = await self._patches.note(pod, {}, condition(entry.request, entry.request.answer(pod), self._wall()))
        entry.closed = patched.outcome not in ("conflict", "unknown")
        if patched.outcome == "unknown":
            self._pauses.failed(pod.uid, self._now())

    def _is_free(self, entry: _Standing, need: Need) -> bool:
        """Whether the preemptor that the request names needs it no more."""
        return entry.request.by != need.by and entry.request.by not in self._needed_by

    async def _withdraw(self, entry: _Standing) -> None:
        pod, evictions = entry.pod, self.eviction_requests
        if evictions is not None and entry.eviction_request != "none" and not await evictions.withdraw(pod):
            self._pauses.failed(pod.uid, self._now())
            return
        withdrawn = condition(entry.request, "withdrawn", self._wall())
        patched = await self._patches.note(pod, {SAVE_REQUESTED: None}, withdrawn)
        if patched.outcome == "conflict":  # the watch brings its new version
            return
        if patched.outcome == "unknown":
            self._pauses.failed(pod.uid, self._now())
            return
        self._read().pop(pod.uid, None)
        if patched.outcome == "written":
            self._metrics.save_requests.labels("withdrawn").inc()
            self._tell(pod, "SaveRequestWithdrawn", f"the pod is not evicted for {entry.request.by}")

    def _ended(self, entry: _Standing, pod: PodRecord, now: float) -> None:
        """The pod is gone. What it wrote in its grace period was late. One that ends before its time by no eviction of
        ours, or because another member of its gang has answered, has ignored nothing."""
        answer, in_time = entry.request.answer(pod), not pod.terminating and now < entry.request.until
        if entry.saved or answer or now >= entry.request.until:
            self._count_work(entry, pod, now, saved=entry.saved or bool(answer))
            in_time = in_time or entry.counted
            saved = entry.saved or (bool(answer) and in_time)
            self._history.note(pod.namespace, entry.owner, entry.request.at, saved=saved)
        if not entry.counted and (answer or now >= entry.request.until):
            late = "late" if answer == "saved" else "ignored"
            self._metrics.save_requests.labels(answer if answer and in_time else late).inc()
        self._pauses.succeeded(pod.uid)
        self._refused.discard(pod.uid)

    def _count_work(self, entry: _Standing, pod: PodRecord, now: float, *, saved: bool) -> None:
        """What the request of a pod that has ended came to. All its time since the request is lost."""
        since, gpus = max(0.0, now - entry.request.at), self._cluster.gpu_amount(pod)  # the clock may have stepped back
        lost = work_lost(self._cluster, pod, int(now * 1000))
        if saved:
            lost = min(lost, gpus * (math.ceil(since) + self._cluster.limits.restart_seconds(pod)))
        kept = max(0, entry.work - lost) if saved else 0
        self._metrics.asked_pod_ended(pod.priority_class, pod.namespace, kept, lost)

    def _tell(self, pod: PodRecord, reason: str, text: str) -> None:
        self._events.tell(of_pod(pod), reason, "Evicting", text)
        if pod.owner is not None:
            owner = Regarding(pod.owner.kind, pod.namespace, pod.owner.name, pod.owner.uid)
            self._events.tell(owner, reason, "Evicting", f"pod {pod.name}: {text}")


class LeftRequests(Controller):
    """Withdraws the requests of what is turned off."""

    name = "left-requests"

    def __init__(self, saves: SaveRequests, leadership: Leadership, may_act: Callable[[], bool]) -> None:
        """`may_act`: whether what is known of pods is complete and current."""
        self._saves, self._leadership, self._may_act = saves, leadership, may_act

    async def run(self) -> None:
        """Look, for ever."""
        try:
            await repeat(self.look, LOOK_SECONDS)
        finally:
            await self._leadership.resign()

    async def look(self) -> None:
        """Withdraw what is left."""
        await self.withdraw()

    async def withdraw(self, *, wanted: bool = False) -> None:
        """Withdraw the requests. `wanted`: whether the Lease is for more than this."""
        if self._may_act():
            await self._saves.turned_off(self._leadership, wanted=wanted)

    @property
    def leads(self) -> bool:
        """Whether this instance may act now."""
        return self._may_act() and self._leadership.held


async def _some(items: Sequence[Item], write: Callable[[Item], Awaitable[None]]) -> None:
    """Write these, several at once, for ROUND_SECONDS or so: other needs wait, and the Lease. The rest follows."""
    until = asyncio.get_running_loop().time() + ROUND_SECONDS
    for first in range(0, len(items), AT_ONCE):
        await asyncio.gather(*map(write, items[first : first + AT_ONCE]))
        if asyncio.get_running_loop().time() >= until:
            return


def _is_answered(pods: Sequence[PodRecord], states: Mapping[str, State]) -> bool:
    """Whether a member of a gang has answered that speaks for it. A single pod speaks for itself."""
    return any(states[pod.uid] in ANSWERED for pod in (speakers(pods) if len(pods) > 1 else pods))


# -- EvictionRequests (`lifecycle.k8s.io/v1alpha1`, Kubernetes 1.37 with the gate EvictionRequestAPI) for pods that are
# asked to save their work and name `spec.evictionResponders`. Off by default: `preemption.evictionRequests`.
#
# An EvictionRequest stands as long as the request above. It is created after the annotation is written, and deleted
# before the annotation is removed: the API takes a deletion as a withdrawal. So an instance that finds the annotation
# after a crash knows of it. Its name follows from the pod, so that creating it twice makes one; its owner is the pod,
# so that it ends with it. Nothing waits for it: the pod answers as any other, and the Eviction API evicts. No
# controller of Kubernetes 1.37 reads these objects, and its API server accepts no responders of pods with a
# `schedulingGroup`.


API: Final = "lifecycle.k8s.io/v1alpha1"
Outcome = Literal["stands", "none", "unknown"]
"""none: the pod names no responder, or the API server does not take the object; unknown: it is tried again."""


class _Spec(msgspec.Struct):
    evictionResponders: list[Any] | None = None


class _Metadata(msgspec.Struct):
    uid: str = ""


class _Pod(msgspec.Struct):
    metadata: _Metadata
    spec: _Spec


class EvictionRequests:
    """Those of one Lease at one API server."""

    def __init__(self, server: ApiServer, part: str) -> None:
        """`part`: what evicts, in the names of its objects and of the requester."""
        self._server, self._part = server, part

    async def create(self, pod: PodRecord) -> Outcome:
        """Request the eviction of the pod where it names responders; raises nothing."""
        try:
            found = await self._server.find(pod_path(pod.namespace, pod.name))
            stated = None if found is None else object_in(found, _Pod)
            if stated is None or stated.metadata.uid != pod.uid or not stated.spec.evictionResponders:
                return "none"
            await self._server.post(self._path(pod), msgspec.json.encode(self._object(pod)))
        except ApiError as error:
            if error.status == 409:  # it stands already
                return "stands"
            return self._failed(pod, error, "none" if error.is_final else "unknown")
        except NoAnswer as error:
            return self._failed(pod, error, "unknown")
        return "stands"

    async def withdraw(self, pod: PodRecord) -> bool:
        """Delete the EvictionRequest of the pod; whether none stands now. It raises nothing."""
        try:
            await self._server.request("DELETE", f"{self._path(pod)}/{self._name(pod)}")
        except (ApiError, NoAnswer) as error:
            return isinstance(error, ApiError) and error.status in (403, 404)
        return True

    def _object(self, pod: PodRecord) -> dict[str, Any]:
        owner = {"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid}
        return {
            "apiVersion": API,
            "kind": "EvictionRequest",
            "metadata": {
                "name": self._name(pod),
                "labels": {"app.kubernetes.io/managed-by": "gpu-extender"},
                "ownerReferences": [owner],
            },
            "spec": {
                "target": {"pod": {"name": pod.name, "uid": pod.uid}},
                "requester": f"gpu-extender.io/{self._part}",
                "intent": "Eviction",
            },
        }

    def _name(self, pod: PodRecord) -> str:
        return f"gpu-extender-{self._part}-{pod.uid}"

    @staticmethod
    def _path(pod: PodRecord) -> str:
        return f"/apis/{API}/namespaces/{quote(pod.namespace, safe='')}/evictionrequests"

    @staticmethod
    def _failed(pod: PodRecord, error: Exception, outcome: Outcome) -> Outcome:
        name = f"{pod.namespace}/{pod.name}"
        log.warning("no EvictionRequest is made (preemption.evictionRequests)", pod=name, err=str(error))
        return outcome


# -- how the owners of pods have answered requests to save their work: one that ignores them is believed less
#
# 1. A request that ends counts once for the owner (`gangs.top_owner`) and once for its namespace, as saved or as
#    ignored; a late answer is ignored. Members of a gang are asked together: the first one that ends counts.
# 2. Each count halves in HALF_LIFE_SECONDS. A namespace that is never asked is forgotten in time, and so is an owner.
# 3. An owner ignores a request as likely as it did before, and as OWN_WEIGHT more requests would that are answered as
#    its namespace answers. A namespace starts with NAMESPACE_WEIGHT answers that are saved. So a new name is worth no
#    more than its namespace: once that has ignored twelve requests in a week, and saved none, no pod with a new owner
#    is asked.
# 4. What follows is applied to the cluster as records, which all prices read (`AnnotationLimits.saving`), and which
#    `top` and the page show (`ask/fleet.py`).
# 5. A namespace keeps MOST_OWNERS, those that say most: with more names a tenant displaces its own. With
#    MOST_NAMESPACES a further one is not remembered until one is forgotten: none displaces another.
# 6. It is stored as a text (dump, load): of each namespace as many owners as SAVE_ANSWERS_BYTES have room for. Two
#    instances may both have learned: of each count the latest is kept.


HALF_LIFE_SECONDS: Final = 7 * 86_400.0
OWN_WEIGHT: Final = 0.5
NAMESPACE_WEIGHT: Final = 4.0
LEAST_WEIGHT: Final = 0.05  # answers: an owner with fewer by now is forgotten
MOST_OWNERS: Final = 16  # of a namespace
MOST_NAMESPACES: Final = 200
TOGETHER_SECONDS: Final = 60.0  # requests to one owner within this time are one
REFRESH_SECONDS: Final = 3_600.0
SHARE_STEP: Final = 10  # thousandths: a smaller change is not applied
ANSWERS_KEY: Final = "save-answers"
ANSWERS_FORMAT: Final = 1
MOST_ANSWERS_TEXT: Final = 900_000  # characters
C = TypeVar("C", bound="Counts")


class Counts(msgspec.Struct):
    """Answers, each counting less as it ages."""

    saved: Seconds = 0.0
    ignored: Seconds = 0.0
    at: Seconds = 0.0
    """As of when, seconds since 1970."""
    asked: Seconds = 0.0
    """When the latest of these requests was written."""

    def since(self, now: float) -> float:
        """The part of it that counts at `now`."""
        return float(0.5 ** (max(0.0, now - self.at) / HALF_LIFE_SECONDS))

    def weight(self, now: float) -> float:
        """How many answers it still is."""
        return (self.saved + self.ignored) * self.since(now)

    def note(self, asked: float, now: float, *, saved: bool) -> None:
        """One more answer."""
        part = self.since(now)
        self.saved, self.ignored = self.saved * part + saved, self.ignored * part + (not saved)
        self.at, self.asked = now, asked

    def share(self, now: float, prior: float, weight: float) -> float:
        """Of what is ignored, with `weight` answers more of which the share `prior` is."""
        part = self.since(now)
        return (self.ignored * part + prior * weight) / ((self.saved + self.ignored) * part + weight)


class Answers(Counts):
    """Those of a namespace, and of its owners."""

    owners: dict[str, Counts] = {}


class _StoredAnswers(msgspec.Struct):
    format: int
    namespaces: dict[str, Answers]


_READ_ANSWERS: Final = msgspec.json.Decoder(_StoredAnswers)


class SaveHistory:
    """What one server has learned, and what another one had stored."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster, self.now, self.wall = cluster, clock.monotonic, clock.wall
        self._namespaces: dict[str, Answers] = {}
        self._refreshed = 0.0

    def note(self, namespace: str, owner: str, asked: float, *, saved: bool) -> None:
        """A request has ended that was written at `asked`, in seconds since 1970."""
        now = self.wall()
        if namespace not in self._namespaces and len(self._namespaces) >= MOST_NAMESPACES:
            self._bound(now)
            if len(self._namespaces) >= MOST_NAMESPACES:
                return
        of = self._namespaces.setdefault(namespace, Answers())
        counts = of.owners.setdefault(owner, Counts())
        if counts.asked and abs(asked - counts.asked) < TOGETHER_SECONDS:
            return
        counts.note(asked, now, saved=saved)
        of.note(asked, now, saved=saved)
        of.owners = _most(of.owners, MOST_OWNERS, now)
        self._apply([namespace], now)

    def refresh(self) -> None:
        """Apply what has changed with time, now and then."""
        now = self.wall()
        if abs(now - self._refreshed) >= REFRESH_SECONDS:
            self._bound(now)
            self._apply([*self._namespaces, *(self._cluster.save_answers.keys() - self._namespaces.keys())], now)
            self._refreshed = now

    def dump(self) -> str:
        """The text to store."""
        now = self.wall()

        def most(owners: int) -> str:
            namespaces = {
                name: Answers(of.saved, of.ignored, of.at, of.asked, _most(of.owners, owners, now))
                for name, of in sorted(self._namespaces.items())
            }
            return msgspec.json.encode(_StoredAnswers(ANSWERS_FORMAT, namespaces), order="sorted").decode()

        return shortened(most, MOST_OWNERS, SAVE_ANSWERS_BYTES)

    def load(self, text: str) -> None:
        """Take over what is stored; what a clock that was ahead has written counts as of now. Raises Damaged."""
        now = self.wall()
        for namespace, stored in decoded(text, _READ_ANSWERS, ANSWERS_FORMAT, MOST_ANSWERS_TEXT).namespaces.items():
            for counts in (stored, *stored.owners.values()):
                counts.at, counts.asked = min(counts.at, now), min(counts.asked, now)
            known = self._namespaces.get(namespace)
            if known is None:
                self._namespaces[namespace] = stored
                continue
            newest = stored if stored.at > known.at else known
            known.saved, known.ignored, known.at, known.asked = newest.saved, newest.ignored, newest.at, newest.asked
            for owner, counts in stored.owners.items():
                if owner not in known.owners or counts.at > known.owners[owner].at:
                    known.owners[owner] = counts
        self._refreshed = 0.0
        self.refresh()

    def _bound(self, now: float) -> None:
        """Forget what counts no more, and what is beyond the bounds: what says least, then by name."""
        for answers in self._namespaces.values():
            answers.owners = _most(answers.owners, MOST_OWNERS, now)
        self._namespaces = _most(self._namespaces, MOST_NAMESPACES, now)

    def _apply(self, namespaces: list[str], now: float) -> None:
        records = (self._record(namespace, now) for namespace in sorted(namespaces))
        events = [event for event in map(self._event, records) if event is not None]
        if events:
            self._cluster.apply(events, self.now())

    def _event(self, record: SaveAnswersRecord) -> Event | None:
        known = self._cluster.save_answers.get(record.name)
        if record.ignores or any(record.owners.values()):
            return Event("SaveAnswers", "set", record) if record != known else None
        return Event("SaveAnswers", "delete", record) if known is not None else None

    def _record(self, namespace: str, now: float) -> SaveAnswersRecord:
        of = self._namespaces.get(namespace, Answers())
        all_of_it = of.share(now, 0.0, NAMESPACE_WEIGHT)
        owners = {
            owner: _steps(counts.share(now, all_of_it, OWN_WEIGHT)) for owner, counts in sorted(of.owners.items())
        }
        return SaveAnswersRecord(uid="", name=namespace, resource_version="", ignores=_steps(all_of_it), owners=owners)


class SaveHistoryStore(LearnedStore):
    """Keeps it, beside the demand mix. What other instances have stored meanwhile is taken over first, also by those
    that learn nothing: they answer verbs by it."""

    def __init__(self, configmap: ConfigMap, history: SaveHistory) -> None:
        super().__init__(configmap, history.dump, history.load, ANSWERS_FORMAT, key=ANSWERS_KEY, every=STORE_SECONDS)
        self._refresh = history.refresh

    async def save(self) -> None:
        """Merge and write it, and let time pass."""
        self._refresh()
        await self._take_over()
        await super().save()


def _steps(share: float) -> int:
    return round(share * 1000 / SHARE_STEP) * SHARE_STEP


def _most(counts: dict[str, C], most: int, now: float) -> dict[str, C]:
    """Those that are not forgotten, `most` at most."""
    kept = {name: of for name, of in counts.items() if of.weight(now) >= LEAST_WEIGHT}
    if len(kept) > most:
        kept = dict(sorted(kept.items(), key=lambda item: (-item[1].weight(now), item[0]))[:most])
    return kept
