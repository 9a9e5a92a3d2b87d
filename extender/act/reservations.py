"""The reservations of the verbs, kept in one ConfigMap of ours: they outlive this process.

Theory of operation
-------------------
1. One key per preemptor's uid, its value a small JSON object; times are seconds since 1970.
2. A reservation is written before its preempt reply is sent, within the deadline of the settings (a slow API server is
   waited for longer now and then: server/calls.py). When that fails the answer is that no pod is evicted, and
   nothing is reserved. All else that changes (a reservation ends, its victims are
   gone) is written within about a second.
3. One write at a time (act/document.py): one key for a preempt reply, and those of the replies that wait
   beside it. Where another instance has written since, the map is read before the next try: what is not known is taken
   over, what the other has removed is dropped.
4. The map is read before the first verb is answered and every few seconds then, since another instance may have been
   asked meanwhile. What cannot be read is dropped with a warning; the rest stays. What another instance wrote is
   compared with the lists before it counts (`contradiction`), and dropped as well where it contradicts them.
   Fields that this version does not know are kept, and what another version leaves out of an entry is written once
   (`_is_stated`): else both would write the entry in turns.
   What a version to come has written is left as it is until its pod is bound or deleted, at most for NEWER_SECONDS:
   that version may run again after a downgrade. Meanwhile no pod is evicted for that pod, since others may be
   terminating for it.
5. Without the right to read or write it (403) no pod is evicted, which is logged once and counted. After a write that
   failed each round writes, if need be without a change, until one succeeds: the right to read is not that to write.
   The preemptors that were turned away are then woken (parked.py);
   `reservations.store: memory` does without the map, and without what it is good for.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import msgspec

from extender.act.controller import Controller
from extender.act.document import NEWER_SECONDS, Amount, Changes, Entries, KeptDocument, Priority, Seconds
from extender.cluster.cluster import ClusterView
from extender.cluster.tables import FIRST_GPU
from extender.decide.verbs import Verbs
from extender.kube.client import ApiError, NoAnswer
from extender.kube.own_objects import ConfigMap, VersionConflict
from extender.log import get_log
from extender.metrics import Metrics
from extender.objects.pods import MOST_GRACE
from extender.objects.records import PodRecord
from extender.objects.stored_texts import Damaged, Newer, decoded
from extender.reservations.reservations import CAUSES, UNSEEN_SECONDS, Reservation
from extender.times import Backoff, Clock, Epoch

LOOK_SECONDS = 1.0  # between two looks at what is over
REREAD_SECONDS = 2.0  # until then another instance passes pods on GPUs that are free and planned by this one
SOON_SECONDS = 0.05  # while the lists are not in
REFRESH_SECONDS = 5.0  # a request on a connection that died waits no longer: preemptors wait for it
TRIES = 5
PLANNED: Final = "another instance has planned for the pod meanwhile"
OUTBID: Final = "another instance has planned for a pod that comes first there"
log = get_log()


@dataclass(slots=True)
class Trouble:
    """What is wrong with the map."""

    problem: str = "not read yet"  # in words
    logged: str = ""  # the kind that was logged last
    failed: bool = False  # until it is read or written again
    forbidden: bool = False  # until it is read or written again
    unwritten: bool = False  # a reservation was not written, and no write has been since


class ReservationStore(Controller):
    """Keeps the reservations of `verbs`, and answers before a preempt reply whether its plan is kept."""

    name = "reservations"

    def __init__(
        self,
        verbs: Verbs,
        metrics: Metrics,
        configmap: ConfigMap | None,
        *,
        ready: Callable[[], bool] = lambda: True,
        clock: Clock | None = None,
    ) -> None:
        """`configmap`: None where the settings keep reservations in memory only; `ready`: whether the lists are in;
        before that no reservation can be judged."""
        clock = clock or Clock()
        self._verbs, self._metrics, self._ready = verbs, metrics, ready
        self._clock = clock.monotonic
        self._entries = ReservationEntries(verbs.cluster.resources, Epoch(clock))
        self._settings = verbs.settings.reservations
        self._lock = asyncio.Lock()
        self._in_memory = configmap is None
        self._document = KeptDocument([] if configmap is None else [configmap], self._clock, MOST_ENTRIES)
        self._waiting: dict[str, int] = {}  # uids of the reservations that replies wait for, and how many do
        self._unsure: set[str] = set()  # written with no answer: they may be in the map
        self._written: dict[str, str] = {}  # the latest texts of this instance
        # Taken over, and not compared with the lists yet: when the victims of our own plan for that pod were gone.
        self._foreign: dict[str, float | None] = {}
        self._read_at: float | None = None
        self._judged = False  # what was read at the start has been compared with the lists
        self._trouble = Trouble()
        metrics.reservations_kept.set(0)

    # -- what the server asks -------------------------------------------------------------------------------------

    def missing(self) -> list[str]:
        """The reservations, until they are read and judged."""
        known = self._in_memory or self._judged or self._trouble.forbidden
        return [] if known else [f"reservations: {self._trouble.problem}"]

    @property
    def read_back(self) -> bool:
        """Whether the plans of a process before us are known: after a start no preemptor is unknown."""
        return self._read_at is not None

    @property
    def spread_seconds(self) -> float:
        """After which every instance has read a reservation, as long as the API server answers."""
        return 0.0 if self._in_memory else REREAD_SECONDS + LOOK_SECONDS

    @property
    def is_writable(self) -> bool:
        """Whether a reservation would be written, as far as is known."""
        return self._in_memory or not (self._trouble.unwritten or self._trouble.failed)

    async def reserve(self, plan: Reservation, patience: float = 0.0) -> str:
        """Keep a plan that the verbs have; "" when it is written, else why it is not: then no pod may be evicted.
        `patience`: seconds to wait, where that is above the deadline of the settings."""
        if self._in_memory:
            return ""
        began, wait = time.perf_counter(), max(self._settings.deadline_seconds, patience)
        try:
            async with asyncio.timeout(wait):
                why = await self._keep(plan.uid)
            result = "refused" if why else "ok"
        except TimeoutError:
            result, why = "late", f"not written within {wait:.3g} s"
            self._trouble.unwritten = True
        except (ApiError, NoAnswer) as error:
            result = "forbidden" if _forbidden(error) else "failed"
            why = self._failed(error)
            self._trouble.unwritten = True
        self._metrics.reservation_writes.labels(result).inc()
        self._metrics.reservation_write_duration.observe(time.perf_counter() - began)
        if why:
            self._unsure.add(plan.uid)
        return why

    # -- the task -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Read, compare, write and release, round after round."""
        backoff, failures, chance = Backoff(first=0.2, most=2.0), 0, random.Random()
        while True:
            delay = LOOK_SECONDS
            if not self._in_memory:
                try:
                    async with asyncio.timeout(REFRESH_SECONDS):
                        await self.refresh()
                    failures = 0
                except TimeoutError:
                    self._failed(NoAnswer(f"no answer within {REFRESH_SECONDS:g} s"))
                    failures += 1
                    delay = backoff.delay(failures, chance)
                except (ApiError, NoAnswer) as error:
                    self._failed(error)
                    failures += 1
                    delay = backoff.delay(failures, chance)
            if self._ready():
                self._compare()
                self._judge()
                self._verbs.releases.sweep(self._clock())
            elif not failures:
                delay = SOON_SECONDS
            await asyncio.sleep(delay)

    def _judge(self) -> None:
        """Once the lists are in: a preemptor that is in none of them was deleted while we were away. A victim that is
        in none of them may have been evicted."""
        if self._judged or self._read_at is None:
            return
        self._judged = True
        self._verbs.freshness.reservations_read(self._clock())
        for plan in self._verbs.reservations.all():
            if plan.uid not in self._verbs.cluster.pods:
                self._verbs.releases.pod_deleted(plan.uid)
            elif not plan.begun and any(uid not in self._verbs.cluster.pods for uid in plan.victims):
                plan.begun = True
                self._verbs.reservations.add(plan)  # a record repeats it as it is now

    def _compare(self) -> None:
        """Drop the plans that this server did not write and that contradict the lists. One whose pod we do not see yet
        is compared when it comes; until then it lasts UNSEEN_SECONDS at most."""
        verbs = self._verbs
        plans = {plan.uid: plan for plan in verbs.reservations.all()} if self._foreign else {}
        for uid in sorted(self._foreign):
            plan, pod = plans.get(uid), verbs.cluster.pods.get(uid)
            if plan is not None and pod is None:
                continue
            emptied = self._foreign.pop(uid)
            if plan is None or pod is None:
                continue
            why = contradiction(verbs.cluster, plan, pod)
            if not why:
                believed(verbs.cluster, plan, pod, emptied)
                verbs.reservations.add(plan)  # a record repeats it as it is now
                continue
            verbs.reservations.drop(uid)
            self._metrics.reservations_damaged.inc()
            log.warning(
                "a reservation contradicts the cluster, and is dropped: who may write the ConfigMap?",
                pod=f"{pod.namespace}/{pod.name}", node=plan.node[:253], plan=plan.id, err=why,
            )  # fmt: skip

    async def refresh(self) -> None:
        """Read the map when that is due, or after a write without an answer, and write what has changed since."""
        unsure = self._read_at is None or self._trouble.failed or bool(self._unsure)
        if unsure or self._clock() - (self._read_at or 0.0) >= REREAD_SECONDS:
            async with self._lock:
                await self._read()
        if self._ready():
            await self._flush()

    def _failed(self, error: ApiError | NoAnswer) -> str:
        """Say what is wrong, once for each problem; gives it back."""
        self._metrics.reservations_kept.set(0)
        trouble = self._trouble
        trouble.problem, trouble.failed = str(error), True
        problem = f"the ConfigMap cannot be read or written, so no pod is evicted: {error}"
        self._metrics.degraded.note("reservations", problem)
        if _forbidden(error):
            trouble.forbidden = True
            if trouble.logged != "forbidden":
                trouble.logged = "forbidden"
                log.error(
                    "the reservations may not be kept, so no pod is evicted: allow get, create and patch of the "
                    "ConfigMap (manifests/deployment.yaml), or set reservations.store to memory",
                    err=str(error),
                )
        elif trouble.logged != "failed":
            trouble.logged = "failed"
            log.warning("the reservations cannot be read or written", err=str(error))
        return str(error)

    # -- the map --------------------------------------------------------------------------------------------------

    async def _keep(self, uid: str) -> str:
        """Write the reservation of this pod, and of those that wait beside it. "" or why it has no place in the map."""
        self._waiting[uid] = self._waiting.get(uid, 0) + 1
        try:
            async with self._lock:
                known = self._document.text(uid)
                for _ in range(TRIES):
                    if not self._document.is_known:
                        await self._read()
                    if uid in self._document.newer:
                        return "a newer version of gpu-extender has reserved for the pod, and its entry stands"
                    if self._is_planned(uid, known):
                        return PLANNED
                    plans = ((pod_uid, self._verbs.reservations.get(pod_uid)) for pod_uid in self._waiting)
                    wanted = {pod_uid: self._entries.text(plan) for pod_uid, plan in plans if plan is not None}
                    if uid not in wanted:
                        return "its pod is gone, or has a node"
                    if wanted[uid] == self._document.text(uid):
                        return ""  # written beside another one
                    if self._outbid(uid):
                        return OUTBID
                    # What waits beside it is compared too: it would count as written.
                    changes: Changes = {
                        one: text for one, text in wanted.items() if one == uid or not self._outbid(one)
                    }
                    if not self._document.has_room(changes):
                        changes = self._changes() | {uid: wanted[uid]}
                        if not self._document.has_room(changes):
                            return f"there are {len(self._verbs.reservations.all()) - 1} reservations already"
                    if await self._write(changes):
                        return ""
            return "other instances keep writing the reservations"
        finally:
            self._waiting[uid] -= 1
            if not self._waiting[uid]:
                del self._waiting[uid]

    def _is_planned(self, uid: str, known: str | None) -> bool:
        """Whether another instance has planned for this pod since its entry was `known`: then that plan is taken over.
        Else both would evict for it."""
        text, ours = self._document.text(uid), self._verbs.reservations.get(uid)
        if text is None or text == known or ours is None or text == self._entries.text(ours):
            return False
        try:
            plan = self._entries.plan(uid, text, self._clock())
        except Damaged:
            return False
        verbs, pod = self._verbs, self._verbs.cluster.pods.get(uid)
        if pod is not None and contradiction(verbs.cluster, plan, pod):
            return False
        verbs.reservations.add(plan)
        self._foreign[uid] = None
        self._compare()
        return True

    def _outbid(self, uid: str) -> bool:
        """Whether plans that were written before this one leave its pod too little: another instance may have chosen
        the same victims."""
        plans, plan = self._verbs.reservations.all(), self._verbs.reservations.get(uid)
        assert plan is not None
        written = (other for other in plans if other.node == plan.node and self._document.text(other.uid) is not None)
        first = (other for other in written if other is not plan and other.priority >= plan.priority)
        return self._verbs.releases.outbid(plan, first)

    async def _flush(self) -> None:
        """Make the map what the verbs have."""
        self._forget_newer()
        async with self._lock:
            for _ in range(TRIES):
                if not self._document.is_known:
                    await self._read()
                changes = self._changes()
                if not (changes or self._trouble.unwritten) or await self._write(changes):
                    return  # a write without changes shows whether writes are possible again

    def _changes(self) -> dict[str, str | None]:
        """The keys that the map has otherwise than the verbs; None: the key is to be removed. What replies wait for
        they write."""
        texts = {plan.uid: self._entries.text(plan) for plan in self._verbs.reservations.all()}
        self._written = {uid: text for uid, text in self._written.items() if uid in texts}
        return {
            uid: text
            for uid, text in self._document.changes(texts).items()
            if uid not in self._waiting and not self._is_stated(uid, text, self._document.text(uid))
        }

    def _is_stated(self, uid: str, text: str | None, stored: str | None) -> bool:
        """Whether the map states what `text` does. Another version may write it in another order, or leave out of what
        this instance has written what it does not know."""
        if text is None or stored is None or text == stored:
            return text == stored
        ours, theirs = fields(text), fields(stored)
        is_part = bool(theirs) and theirs.items() <= ours.items()
        return theirs == ours or (is_part and self._written.get(uid) == text)

    def _forget_newer(self) -> None:
        """Entries of a version to come that are over: the map loses them. The lists are in."""
        newer, pods = self._document.newer, self._verbs.cluster.pods
        for uid, since in list(newer.items()):
            pod, age = pods.get(uid), self._clock() - since
            deleted = pod is None and age >= UNSEEN_SECONDS  # before that the watch may be behind
            if deleted or (pod is not None and pod.node) or age >= NEWER_SECONDS:
                del newer[uid]

    async def _write(self, changes: Changes) -> bool:
        """Write these keys; False where another instance has written since."""
        self._unsure |= changes.keys()
        try:
            await self._document.write(changes)
        except VersionConflict:
            return False
        self._unsure -= changes.keys()
        self._written |= {uid: text for uid, text in changes.items() if text is not None}
        self._trouble.unwritten = False
        self._good()
        return True

    async def _read(self) -> None:
        fetched = await self._document.fetch()
        theirs, version, _ = fetched[0]
        stored, newer = dict(self._document.items()), self._document.newer
        reservations, now = self._verbs.reservations, self._clock()
        plans = {plan.uid: plan for plan in reservations.all()}
        known = plans.keys()
        for uid, text in sorted(theirs.items())[:MOST_ENTRIES]:
            before = stored.get(uid)
            theirs_is_newer = (
                uid in known
                and before not in (None, text)
                and self._is_stated(uid, self._entries.text(plans[uid]), before)
            )
            replaced = before != text and newer.pop(uid, None) is not None
            if not theirs_is_newer and not replaced and (uid in known or before is not None or uid in self._unsure):
                continue  # ours, or ours until a moment ago: to be removed
            try:
                plan = self._entries.plan(uid, text, now)
            except Newer as error:
                newer[uid] = now
                log.warning("a reservation of a newer version is left as it is", uid=uid[:80], err=str(error))
                continue
            except Damaged as error:
                self._metrics.reservations_damaged.inc()
                log.warning("a reservation cannot be read, and is dropped", uid=uid[:80], err=str(error))
                continue
            before_it = plans.get(uid)
            plan.begun |= before_it is not None and before_it.begun and before_it.id == plan.id
            reservations.add(plan)
            self._foreign[uid] = before_it.emptied if before_it is not None else None
            log.info("reservation taken over", pod=plan.pod or uid, node=plan.node, plan=plan.id)
        gone = stored.keys() & known - theirs.keys() if version else ()  # without a map nothing has ended
        for uid in gone:
            reservations.drop(uid)  # another instance has seen its end
        self._document.newer = {uid: since for uid, since in newer.items() if uid in theirs}
        self._document.note(fetched)
        self._read_at = now
        self._unsure.clear()
        if self._ready():
            self._compare()
        if not self._trouble.unwritten:  # the right to read it is not the right to write it
            self._good()

    def _good(self) -> None:
        self._metrics.reservations_kept.set(1)
        self._metrics.degraded.note("reservations", "")
        self._trouble.failed, self._trouble.forbidden, self._trouble.logged = False, False, ""


def _forbidden(error: ApiError | NoAnswer) -> bool:
    return isinstance(error, ApiError) and error.status in (401, 403)


def released(metrics: Metrics, reservation: Reservation, cause: str) -> None:
    """Count and log a reservation that ends. `cause`: one of CAUSES."""
    metrics.reservations_released.labels(cause).inc()
    log.info(
        "reservation released",
        pod=reservation.pod or reservation.uid,
        node=reservation.node,
        plan=reservation.id,
        why=CAUSES[cause],
    )


# -- one reservation as text: a small JSON object, whose times are seconds since 1970; and whether it may be believed
#
# The ConfigMap has no signature. A user that may write it could write a plan for any waiting pod, and have GPUs kept,
# or pods evicted, for it. So a plan is taken over only where everything agrees that we can see: it asks for what its
# pod asks for, at its pod's priority, and its victims are pods of a lower priority on that node.


FORMAT: Final = 1
MOST_ENTRIES: Final = 500
MOST_VICTIMS: Final = 1_000  # a node has some hundred pods
MOST_TEXT: Final = 100_000  # bytes of one entry
AHEAD_SECONDS: Final = 300.0  # another machine's clock may be ahead by so much
Uid = Annotated[str, msgspec.Meta(min_length=1)]


class _Entry(msgspec.Struct, kw_only=True):
    """A reservation, as the map states it."""

    format: Literal[1]
    pod: str = ""
    node: Uid
    victims: Annotated[list[Uid], msgspec.Meta(min_length=1, max_length=MOST_VICTIMS)]
    amounts: dict[str, Amount]
    priority: Priority
    at: Seconds
    # A version before this one wrote what a pod asked for, beyond any time: that counts as MOST_GRACE.
    grace: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    emptied: Seconds | msgspec.UnsetType = msgspec.UNSET
    own: bool | msgspec.UnsetType = msgspec.UNSET
    begun: bool | msgspec.UnsetType = msgspec.UNSET
    wait: Annotated[float, msgspec.Meta(ge=0)] | msgspec.UnsetType = msgspec.UNSET


_READ: Final = msgspec.json.Decoder(_Entry)
_FIELDS: Final = msgspec.json.Decoder(dict[str, Any])


def fields(text: str) -> dict[str, Any]:
    """What an entry states, by name; empty where it cannot be read."""
    try:
        return _FIELDS.decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeEncodeError):
        return {}


class ReservationEntries(Entries):
    """Writes and reads reservations."""

    def text(self, plan: Reservation) -> str:
        """The value of one key of the ConfigMap."""
        entry = _Entry(
            format=FORMAT,
            pod=plan.pod,
            node=plan.node,
            victims=list(plan.victims),
            amounts=self._stated(plan.amounts),
            priority=plan.priority,
            at=self._wall(plan.at),
            grace=min(float(plan.grace), MOST_GRACE),
            emptied=msgspec.UNSET if plan.emptied is None else self._wall(plan.emptied),
            own=plan.own or msgspec.UNSET,
            begun=plan.begun or msgspec.UNSET,
            wait=plan.wait or msgspec.UNSET,
        )
        text = msgspec.json.encode(entry).decode()
        return f"{text[:-1]},{plan.unknown[1:]}" if plan.unknown else text

    def plan(self, uid: str, text: str, now: float) -> Reservation:
        """The reservation of the pod with this uid, as `text` states it. Raises Damaged. `now`: seconds."""
        entry = decoded(text, _READ, FORMAT, MOST_TEXT)
        if len(set(entry.victims)) < len(entry.victims):
            raise Damaged("victims are not distinct")
        at = entry.at - self._epoch()
        if at > now + AHEAD_SECONDS:
            raise Damaged("its time is yet to come")
        unknown = {name: value for name, value in fields(text).items() if name not in _Entry.__struct_encode_fields__}
        return Reservation(
            uid,
            entry.node,
            tuple(entry.victims),
            self._amounts(entry.amounts),
            entry.priority,
            min(now, at),  # another machine's clock may be ahead
            None if isinstance(entry.emptied, msgspec.UnsetType) else min(now, entry.emptied - self._epoch()),
            entry.pod,
            min(entry.grace, MOST_GRACE),
            entry.own is True,
            0.0 if isinstance(entry.wait, msgspec.UnsetType) else min(entry.wait, MOST_GRACE),
            entry.begun is True,
            msgspec.json.encode(unknown).decode() if unknown else "",
        )


# -- whether an entry contradicts what the watch shows


def contradiction(cluster: ClusterView, plan: Reservation, pod: PodRecord) -> str:
    """Why the plan cannot be one of ours; "" when nothing contradicts it. `pod`: its preemptor, as the watch has it.

    A victim that is in no list has terminated meanwhile, and contradicts nothing. Neither do our settings: those of the
    instance that carries it out may be others, while a Deployment is rolled out.
    """
    wanted = cluster.amounts(pod)[FIRST_GPU:]
    if plan.pod and plan.pod != f"{pod.namespace}/{pod.name}":
        return f"its pod is {pod.namespace}/{pod.name}"
    if plan.priority != pod.priority:
        return f"its pod has priority {pod.priority:,}, not {plan.priority:,}"
    if plan.amounts[FIRST_GPU:] != wanted or not any(wanted):
        return "its pod asks for other GPUs"
    if pod.never:
        return "its pod may evict no pod (preemptionPolicy: Never)"
    return next((text for uid in plan.victims if (text := _of_victim(cluster, plan, uid))), "")


def _of_victim(cluster: ClusterView, plan: Reservation, uid: str) -> str:
    victim = cluster.pods.get(uid)
    if victim is None:
        return ""
    name = f"victim {victim.namespace}/{victim.name}"
    if victim.node != plan.node:
        return f"{name} is on node {victim.node}" if victim.node else f"{name} is on no node"
    if victim.priority >= plan.priority:
        return f"{name} has priority {victim.priority:,}"
    return f"{name} is never a victim" if victim.daemon or victim.mirror or victim.devices else ""


def believed(cluster: ClusterView, plan: Reservation, pod: PodRecord, emptied: float | None) -> None:
    """Bound what the entry states by what we can see, so that it reserves no more, and no longer: by CPU and memory of
    the pod; by the grace of the victims that are there; where none is, by `emptied`: when the victims of our own plan
    for that pod were gone."""
    running = [victim for uid in plan.victims if (victim := cluster.pods.get(uid)) is not None]
    plan.amounts = tuple(map(min, plan.amounts, cluster.amounts(pod)))
    plan.grace = min(plan.grace, max((victim.grace_seconds for victim in running), default=0))
    if not running and emptied is not None:
        plan.emptied = emptied if plan.emptied is None else min(emptied, plan.emptied)
