"""Moves pods for an advance reservation: each next place is held for the pod that its owner creates anew, then the pod
is asked to save its work, and evicted.

Theory of operation
-------------------
1. `plan` finds the moves and their order; the controller of advance reservations keeps both. At once the next places of
   all pods are held, for no pod: nothing that does not end before the moves begin takes them, nor later what an earlier
   move makes free.
2. They begin at the latest useful moment: when as much time is left as they take at most (`lead_seconds`).
3. A move waits for each earlier one that is not over and has the same owner or budget, or leaves a node to which it
   goes. Those that wait for none run at once, AT_ONCE at most.
4. The places of each move are judged as soon as all instances know them, and its pods are asked to save their work.
   When all are ready, the places are held for the pods that the owners create from then on; once that is written the
   old pods are evicted, as budgets allow. When new ones run on all places these are held no longer, and the move is
   over. What is held and the pods that are there show which step is next, to this process or the one after it.
5. So no pod is evicted before its next place is held for its successor, nor while its next node takes no pods; and no
   pod that the owner has created for other reasons takes the place.
6. A place that is lost before its pod is evicted, as with its node, and a budget that refuses for REFUSED_SECONDS, end
   the moves: they are planned anew, once no gang is left half evicted that can still leave. After the eviction a place
   whose node takes no pods any more is held on another node, as soon as one has room: no further pod moves for it. A
   place is given up where no new pod has run on it NOT_USED_SECONDS after the old one: an owner may have been scaled
   down. Its new pod may go anywhere.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from typing import Final, Literal, NamedTuple

import msgspec

from extender.act.advance_store import AdvanceStore
from extender.act.saving import ASKING_SECONDS, Need, SaveRequests
from extender.ask.judge import Judge
from extender.cluster.cluster import Cluster, ClusterView
from extender.cluster.tables import FIRST_GPU
from extender.decide.evicted import OURS, Cause, EvictedPods
from extender.kube.pod_writes import PodEvictions
from extender.objects.queueing import opened
from extender.objects.records import PodRecord
from extender.policy.contracts import PodRequest
from extender.policy.pod_request import owner_key
from extender.policy.roles import takes
from extender.preemption.certificate import how_many
from extender.preemption.search import Preemptor
from extender.reservations import advance
from extender.reservations.advance import Eligibility, Held, MovedPod, PlannedMove
from extender.reservations.claims import Claims, Counted, uniform
from extender.reservations.seats import Seat
from extender.times import Backoff, Backoffs, Clock, rfc3339

START_SECONDS: Final = 60.0
"""Until a new pod runs on its place: its owner creates it, kube-scheduler tries it, its containers start."""
NOT_USED_SECONDS: Final = 300.0
"""From the end of the last pod of a move until its places are given up."""
AT_ONCE: Final = 8
"""Moves for one reservation."""
DELETED: Final = "deleted"
LOST: Final = "its next place is not free"
LOST_SECONDS: Final = 60.0
"""For as long moves that are lost are not tried again: others are planned meanwhile."""
REFUSED_SECONDS: Final = 60.0
"""For as long an eviction is tried that is not allowed, until other moves are planned."""
ROUND: Final = Backoff(5.0, 5.0)  # between two rounds of one move: what a budget rejects now it may soon allow
LOWEST: Final = -(2**31)


class MovesState(NamedTuple):
    """How far the moves for one advance reservation are."""

    phase: Literal["waits", "moving", "done", "lost"]
    """lost: a place is not there any more, so that the moves are to be planned anew."""
    text: str = ""
    """What is waited for, for people."""
    done: int = 0
    """How many moves have ended."""


class _Lost(Exception):
    """The moves cannot go on as they are planned, and why, for people."""


def why_closed(cluster: ClusterView, node: str) -> str:
    """Why the node takes no new pod, "" where it does."""
    record = cluster.nodes.get(node)
    return DELETED if record is None or cluster.row(node) < 0 else record.closed


def is_closed(cluster: ClusterView, place: Held) -> bool:
    """Whether a node of the place takes no new pod."""
    return any(why_closed(cluster, one.node) for one in place.seats)


def lead_seconds(cluster: ClusterView, moves: Iterable[PlannedMove], spread: float) -> float:
    """How long the moves take at most that are left, where budgets allow them and the owners create pods at once.
    `spread`: seconds until all instances know what is written."""
    free, after = [0.0] * AT_ONCE, dict[Hashable, float]()  # when one may begin; when those it waits for have ended
    for move in moves:
        if pods := _there(cluster, move.pods):
            waits_for, blocks = _order(cluster, move, pods)
            begins = max(heappop(free), max(after.get(key, 0.0) for key in waits_for))
            ends = begins + _lasts(cluster, pods) + spread
            heappush(free, ends)
            after |= {key: max(ends, after.get(key, 0.0)) for key in blocks}
    return max(free)


def _order(
    cluster: ClusterView, move: PlannedMove, pods: Sequence[PodRecord], owners: Iterable[str] = ()
) -> tuple[set[Hashable], set[Hashable]]:
    """What a move waits for where it is an earlier one's, and what later moves wait for: owners, budgets, and the nodes
    to which it goes and which it leaves. `pods`: those that are there still; `owners`: of others."""
    shared: set[Hashable] = {("owner", owner) for owner in owners}
    for pod in pods:
        shared.add(("owner", owner_key(pod)))
        shared.update(("budget", key) for key in cluster.budgets.of(pod))
    return shared | {pod.to for pod in move.pods}, shared | {pod.node for pod in pods}


def _lasts(cluster: ClusterView, pods: Sequence[PodRecord]) -> float:
    saves = max(cluster.limits.saving(pod).when_asked for pod in pods)
    ends = max(pod.grace_seconds + cluster.limits.restart_seconds(pod) for pod in pods)
    return (saves + ASKING_SECONDS if saves >= 0 else 0.0) + ends + START_SECONDS


def _there(cluster: ClusterView, pods: Iterable[MovedPod]) -> list[PodRecord]:
    """Those that hold their nodes still, terminating ones too."""
    known = (cluster.pods.get(pod.uid) for pod in pods)
    return [pod for pod in known if pod is not None and pod.node and not pod.finished]


@dataclass(slots=True)
class _Step:
    """A move for a reservation that is not over: its pods are there still, or their new ones do not run yet."""

    name: str
    """Of the reservation."""
    number: int
    move: PlannedMove
    places: list[Held]
    pods: list[PodRecord]
    """Those that are there still."""

    @property
    def key(self) -> str:
        return advance.place_name(self.name, self.number, self.move)

    @property
    def by(self) -> str:
        """What its pods are asked and evicted for: no pod has such a name."""
        return f"the advance reservation {self.name}"

    @property
    def begun(self) -> bool:
        """Whether its places are held for the pods that come."""
        return any(place.owner for place in self.places)

    @property
    def remaining(self) -> list[PodRecord]:
        """The pods that do not end yet."""
        return [pod for pod in self.pods if not pod.terminating]

    def is_lost(self, cluster: ClusterView) -> bool:
        """Whether a pod that does not end yet has a next node that takes no pods, and no other place instead."""
        remaining = {pod.uid: owner_key(pod) for pod in self.remaining}
        closed = {remaining[pod.uid] for pod in self.move.pods if pod.uid in remaining and why_closed(cluster, pod.to)}
        return (not self.begun and bool(closed)) or any(
            is_closed(cluster, of) for of in self.places if of.owner in closed
        )

    def text(self, of: int, text: str) -> str:
        """What it waits for, for people. `of`: how many moves there are."""
        others = len(self.move.pods) - 1
        more = f" and {how_many(others)} more" if others else ""
        return f"move {self.number + 1} of {of}, {self.move.pods[0].pod}{more}: {text}"


@dataclass(slots=True)
class Moves:
    """Carries out moves on one cluster, where this instance may act. `spread`: as of `lead_seconds`."""

    judge: Judge
    store: AdvanceStore
    evictions: PodEvictions
    saves: SaveRequests
    evicted: EvictedPods
    clock: Clock
    spread: float
    enabled: bool = True
    """Whether pods are evicted (evictions.enabled); else only what was asked and held before is given up."""
    _since: dict[tuple[str, str], float] = field(default_factory=dict)
    """By what, and the name of a place, or what those of a move begin with: since when it is held ("held"), its pods
    are asked ("asked", seconds since 1970), its places known to be for those that come ("begun"), its pods not allowed
    to be evicted ("refused"), evicted and gone ("gone")."""
    _lost: dict[str, tuple[Sequence[PlannedMove], float, str]] = field(default_factory=dict)
    """By reservation: moves that are lost, since when, and why."""
    _rounds: Backoffs = field(default_factory=lambda: Backoffs(ROUND))
    _needs: dict[str, Need] = field(default_factory=dict)
    _replaced: bool = False
    """Whether a place is held on another node since `sweep`: others count with it from then on."""

    async def sweep(self, names: Collection[str]) -> None:
        """Withdraw requests to save that no move has any more, and forget all but these reservations. Once, before the
        turns of all of them."""
        self._needs = {key: need for key, need in self._needs.items() if advance.turn_of(key)[0] in names}
        self._since = {key: at for key, at in self._since.items() if advance.turn_of(key[1])[0] in names}
        self._lost = {name: lost for name, lost in self._lost.items() if name in names}
        self._replaced = False
        await self.saves.sweep(self._needs.values())

    async def turn(
        self, name: str, moves: Sequence[PlannedMove], since: float, until: float, may_act: Callable[[], bool]
    ) -> MovesState:
        """Take the next step of the moves for a reservation. `since`, `until`: its times, seconds since 1970;
        `may_act`: asked before each request, since one may wait long for the API server."""
        held = [place for place in self._claims.advance if place.name.startswith(f"{name}{advance.MOVE}")]
        steps = self._steps(name, moves if self.enabled else (), held)
        done = len(moves) - len(steps)
        self._needs = {key: need for key, need in self._needs.items() if advance.turn_of(key)[0] != name}
        for step in steps:  # what was asked stays asked, by whatever process
            begins = max((place.since for place in step.places), default=inf)
            if begins <= self.clock.wall() and any(map(self.saves.has_asked, step.remaining)):
                self._needs[step.key] = self._need(step)
        if over := self._over(held, steps):
            why = await self.store.drop(over)
            return MovesState("moving", why or "places are given up", done)
        if may_act() and not self._replaced and (other := self._other_place(held)) is not None:
            self._replaced = True
            return MovesState("moving", await self.store.hold([other]) or "another next place is held", done)
        if not steps:
            return MovesState("done", done=done) if self.enabled else MovesState("waits", "evictions.enabled is false")
        if not may_act():
            return MovesState("moving", "another instance acts", done)
        before = self._lost.get(name)
        if before is not None and before[0] == moves and self.clock.monotonic() - before[1] < LOST_SECONDS:
            return MovesState("lost", before[2], done)
        lost = {step.key: LOST for step in steps if step.is_lost(self._cluster)}
        begins, ends = since - lead_seconds(self._cluster, moves, self.spread), until + NOT_USED_SECONDS
        if not lost and (new := [*self._unheld(steps, begins, ends), *_longer(held, ends)]):
            return MovesState("moving", await self.store.hold(new) or "the next places are held", done)
        begins = max((place.since for step in steps for place in step.places), default=0.0)
        if self.clock.wall() < begins and not lost:
            return MovesState("waits", f"the moves begin at {rfc3339(begins)}", done)
        text = ""
        for step in self._current(steps):
            if step.key not in lost and (step.begun or not lost):
                try:
                    waits_for = await self._goes_on(step, may_act, first=step is steps[0])
                    text = text or step.text(len(moves), waits_for)
                except _Lost as error:
                    lost[step.key] = str(error)
        undone = [step for step in steps if self._undone(step)]
        if not lost or any(step.remaining for step in steps if step not in undone and step.key not in lost):
            return MovesState("moving", text, done)
        why = next(iter(lost.values()))
        self._lost[name] = moves, self.clock.monotonic(), why
        return MovesState("lost", await self._give_up(undone) or why, done)

    async def _give_up(self, steps: Iterable[_Step]) -> str:
        """Hold the places of these moves no longer. As `AdvanceStore.drop`."""
        places = {place.name: step.key for step in steps for place in step.places}
        keys = frozenset(places.values())
        self._since = {key: at for key, at in self._since.items() if key[1] not in keys}
        return await self.store.drop(places)

    @property
    def _cluster(self) -> Cluster:
        return self.judge.cluster

    @property
    def _claims(self) -> Claims:
        return self.judge.claims

    def _steps(self, name: str, moves: Sequence[PlannedMove], held: Sequence[Held]) -> list[_Step]:
        """The moves that are not over, in order."""
        places: dict[str, list[Held]] = {}
        for place in held:
            places.setdefault(advance.move_of(place.name), []).append(place)
        steps = [
            _Step(name, at, move, places.get(advance.place_name(name, at, move), []), _there(self._cluster, move.pods))
            for at, move in enumerate(moves)
        ]
        return [step for step in steps if step.pods or step.begun]

    def _undone(self, step: _Step) -> bool:
        """Whether none of its pods has left, or was evicted: by a process before this one, that shows in `spread`."""
        if not step.begun:
            return True
        now, whole = self.clock.monotonic(), len(step.remaining) == len(step.move.pods)
        known = now - self._since.setdefault(("begun", step.key), now) >= self.spread
        return whole and known and ("evicted", step.key) not in self._since

    def _current(self, steps: Sequence[_Step]) -> list[_Step]:
        """Those that go on now: those that have begun, and those that wait for none before them."""
        current, earlier = list[_Step](), set[Hashable]()
        for step in steps:
            owners = [place.owner for place in step.places if place.owner]
            waits_for, blocks = _order(self._cluster, step.move, step.pods, owners)
            if step.begun or waits_for.isdisjoint(earlier):
                current.append(step)
            earlier |= blocks
        return sorted(current, key=lambda step: not step.begun)[:AT_ONCE]

    def _over(self, held: Sequence[Held], steps: Sequence[_Step]) -> list[str]:
        """The names of places that are used, or that no pod needs: of pods that have ended by themselves, and of moves
        that are not planned any more."""
        of, now = {step.key: step for step in steps}, self.clock.monotonic()
        over: list[str] = []
        for place in held:
            step = of.get(advance.move_of(place.name))
            if not place.owner:
                over += [place.name] if step is None or step.begun else []
            elif step is None or not step.pods:
                late = now - self._since.setdefault(("gone", place.name), now) > NOT_USED_SECONDS
                elsewhere = is_closed(self._cluster, place) and len(self._successors(place)) >= len(place.seats)
                if late or elsewhere or self._is_used(place):
                    over.append(place.name)
        return over

    # -- a place that is lost after the eviction

    def _other_place(self, held: Iterable[Held]) -> Held | None:
        """The first place for pods that come whose node takes none, on another node with room; None: there is none."""
        for place in held:
            if (
                not place.owner
                or not is_closed(self._cluster, place)
                or self._rounds.waits(place.name, self.clock.monotonic())
            ):
                continue
            self._rounds.failed(place.name, self.clock.monotonic())
            number = next(at for at, one in enumerate(place.seats) if why_closed(self._cluster, one.node))
            pod = self._waiting_pod(place)
            if pod is not None and (node := self._node_for(pod)):
                there = {pod.uid for pod in self._cluster.pods_on(node) if owner_key(pod) == place.owner}
                seats = list(place.seats)
                seats[number] = self._seat(place.name, number, pod, node)
                return place._replace(seats=tuple(seats), before=place.before | there)
        return None

    def _waiting_pod(self, place: Held) -> PodRecord | None:
        """The pod that waits for the place, or one that leaves for it; None: it is not known, or has another place."""
        came = {pod.uid for pod in self._successors(place)}
        if len(came) >= len(place.seats):
            return None
        pods = [pod for pod in self._pods_for(place) if pod.uid not in came]
        waiting = [pod for pod in pods if not pod.node and not pod.terminating and not pod.finished]
        return next(iter(waiting or [pod for pod in pods if pod.terminating and pod.node]), None)

    def _successors(self, place: Held) -> list[PodRecord]:
        """The pods that its owner has created since, and that have a node, or a seat."""
        return [
            pod
            for pod in self._pods_for(place)
            if (pod.node or self._claims.seats.of(pod.uid) is not None) and not pod.terminating and not pod.finished
            and (pod.created or 0.0) >= place.since - advance.CLOCK_SECONDS
        ]  # fmt: skip

    def _pods_for(self, place: Held) -> Iterator[PodRecord]:
        """The pods of the owner that were not on its nodes already."""
        pods = self._cluster.pods.values()
        return (pod for pod in pods if place.is_for(pod.uid, pod.namespace, owner_key(pod)))

    def _node_for(self, pod: PodRecord) -> str:
        """The node with the fewest free GPUs on which the pod fits beside all that is held; "": it fits on none."""
        cluster, asked = self._cluster, self._asked(pod)
        rows = self.judge.rows(name for name in cluster.gpus.schedulable if takes(cluster.nodes[name], pod))
        with self._counted(asked.request, advance.ANY_POD):
            codes, _ = self.judge.codes(asked, rows)
            free = cluster.tables.nodes.free_of
            fits = sorted((sum(free(row)[FIRST_GPU:]), row) for row, code in zip(rows, codes, strict=True) if not code)
            return next((cluster.names[row] for _, row in fits if not self.judge.short(asked, row)), "")

    def _asked(self, pod: PodRecord) -> Preemptor:
        """A new pod in place of this one, for which all that others hold counts."""
        new = msgspec.structs.replace(opened(pod), uid=f"{pod.uid}/moved", node="")
        request = msgspec.structs.replace(self._claims.alone(pod), uid=new.uid, priority=LOWEST, lasts=None)
        return Preemptor(request, new, self.clock.monotonic(), self.clock.wall())

    # -- its places are not held

    def _unheld(self, steps: Iterable[_Step], begins: float, ends: float) -> Iterator[Held]:
        """What is to be held for moves for which nothing is: what does not end before `begins` keeps off it, until
        `ends`."""
        for step in steps:
            if not step.places:
                to = {pod.uid: pod.to for pod in step.move.pods}
                by_owner: dict[str, list[PodRecord]] = {}
                for pod in step.pods:
                    by_owner.setdefault(owner_key(pod), []).append(pod)
                for owner, pods in by_owner.items():
                    place = advance.place_name(step.name, step.number, step.move, owner)
                    seats = tuple(self._seat(place, at, pod, to[pod.uid]) for at, pod in enumerate(pods))
                    yield Held(place, seats, begins, ends)

    def _seat(self, place: str, number: int, pod: PodRecord, node: str) -> Seat:
        """The seat of a pod; with all free GPUs of the node where a count could not guard links that it requires."""
        request, row = self._claims.alone(pod), self._cluster.row(node)
        amounts = list(self._cluster.amounts(pod))
        if request.gpus and request.by_position and not uniform(self._cluster, row, request):
            free = self._cluster.tables.nodes.free_of(row)[request.resource]
            amounts[request.resource] = max(amounts[request.resource], free)
        return advance.seat(place, number, node, tuple(amounts), self.clock.monotonic())

    async def _goes_on(self, step: _Step, may_act: Callable[[], bool], *, first: bool) -> str:
        """Take the next step of one move; what it waits for. `first`: no earlier one may make it room. Raises _Lost."""
        if step.begun:
            return await self._evicts(step, may_act)
        return await self._asks(step, may_act, first=first)

    # -- its places are held for no pod

    async def _asks(self, step: _Step, may_act: Callable[[], bool], *, first: bool) -> str:
        """Ask the pods to save their work; once all are ready the places are for the pods that come."""
        now, wall = self.clock.monotonic(), self.clock.wall()
        if now - self._since.setdefault(("held", step.key), now) < self.spread:
            return "its next place is held"
        if not self._stands(step):
            if first:
                raise _Lost(LOST)
            return LOST
        allowed = step.key in self._needs
        if not allowed and self._rounds.waits(step.key, self.clock.monotonic()):
            return "its eviction is not allowed now"
        need = self._needs[step.key] = self._need(step)
        asked = await self.saves.may_evict(need, self.evictions, may_act, allowed=allowed)
        if asked.pod is not None:
            self._rounds.failed(step.key, self.clock.monotonic())
            del self._needs[step.key], self._since["asked", step.key]
            return self._refused(step, asked.why)
        self._since.pop(("refused", step.key), None)
        if asked.state != "ready":
            return "its pods save their work"
        nodes = {one.node for place in step.places for one in place.seats}
        owners = {owner_key(pod) for pod in step.pods}
        comes = [
            place._replace(owner=owner, before=_before(self._cluster, owner, nodes), since=wall)
            for place in step.places
            if (owner := advance.owner_of(place.name)) in owners
        ]
        self._since["begun", step.key] = -inf  # by this process
        return await self.store.hold(comes) or "its pods are evicted"

    def _need(self, step: _Step) -> Need:
        """For its pods that save their work when asked, from the first call on."""
        wait = max((self._cluster.limits.saving(pod).when_asked for pod in step.remaining), default=0)
        now = self.clock.monotonic()
        began = self.clock.wall() - (now - self._since.setdefault(("asked", step.key), now))
        return Need(step.by, step.remaining, began, max(0, wait))

    def _refused(self, step: _Step, why: str) -> str:
        """Its pods may not be evicted now. Raises _Lost where that has been so for long."""
        now = self.clock.monotonic()
        if now - self._since.setdefault(("refused", step.key), now) >= REFUSED_SECONDS:
            raise _Lost(why)
        return why

    def _stands(self, step: _Step) -> bool:
        """Whether new pods fit on all places of the move, beside all that others hold, and all that is held for earlier
        moves."""
        cluster, names = self._cluster, frozenset(place.name for place in step.places)
        nodes = {one.node for place in step.places for one in place.seats}
        rows = {node: cluster.row(node) for node in nodes}
        if any(why_closed(cluster, node) for node in nodes):
            return False
        beside = advance.places_of(step.key, nodes)
        to = {pod.uid: pod.to for pod in step.move.pods}
        for pod in step.pods:
            asked = self._asked(pod)
            if not takes(cluster.nodes[to[pod.uid]], pod):
                return False
            with self._counted(asked.request, Eligibility(usable=names, beside=beside)):
                codes, _ = self.judge.codes(asked, array("i", [rows[to[pod.uid]]]))
                if codes[0] or self.judge.short(asked, rows[to[pod.uid]]):
                    return False
            with self._counted(asked.request, Eligibility(beside=beside)):
                if min(cluster.tables.nodes.free_of(rows[to[pod.uid]])) < 0:
                    return False
        return True

    def _counted(self, request: PodRequest, eligible: Eligibility) -> Counted:
        """The claims of others for a pod that may use places."""
        counted = self._claims.of(request, self.clock.monotonic())
        counted.eligible = eligible
        return counted

    # -- its places are held for the pods that come

    async def _evicts(self, step: _Step, may_act: Callable[[], bool]) -> str:
        """Evict the pods, and wait until others run on their places."""
        wall, why = self.clock.wall(), ""
        if not step.pods:
            return "no pod runs on its next place yet"
        if self._rounds.waits(step.key, self.clock.monotonic()):
            return "its pods end"
        self._rounds.failed(step.key, self.clock.monotonic())
        for pod in step.remaining:
            if not may_act() or step.is_lost(self._cluster):
                break
            self.evicted.note([pod], Cause(OURS, f"it moves for {step.by}", at=wall, victims=len(step.move.pods)))
            answer = await self.evictions.evict(pod)
            if answer.outcome not in ("blocked", "refused"):  # without an answer it may have been evicted
                self._since["evicted", step.key] = self.clock.monotonic()
            if answer.outcome not in ("evicted", "gone"):
                why = f"{pod.namespace}/{pod.name}: {answer.message}"
        return self._refused(step, why) if why and self._undone(step) else why or "its pods end"

    def _is_used(self, place: Held) -> bool:
        """Whether as many pods run on the place as it is for."""
        return sum(pod.phase == "Running" for pod in advance.present(place, self._cluster)) >= len(place.seats)


def _longer(held: Iterable[Held], ends: float) -> Iterator[Held]:
    """Those that would end before: their reservation has been extended."""
    return (place._replace(until=ends) for place in held if place.until < ends)


def _before(cluster: ClusterView, owner: str, nodes: Collection[str]) -> frozenset[str]:
    """Uids of the owner's pods that are there already, and could take a place on these nodes."""
    pods = (pod for pod in cluster.pods.values() if not pod.node or pod.node in nodes)
    return frozenset(pod.uid for pod in pods if owner_key(pod) == owner)
