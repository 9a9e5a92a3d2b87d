"""Moves pods for an advance reservation: each next place is held for the pod that its owner creates anew, then the pod
is asked to save its work, and evicted.

Theory of operation
-------------------
1. `plan` finds the moves and their order; the controller of advance reservations keeps both. At once the next places of
   all pods are held, for no pod: nothing that does not end before the moves begin takes them, nor later what an earlier
   move makes free.
2. They begin at the latest useful moment: when as much time is left as they take at most (`lead_seconds`).
3. In turn, the places of each move are judged as soon as all instances know them, and its pods are asked to save their
   work. When all are ready, the places are held for the pods that the owners create from then on; once that is written
   the old pods are evicted, as budgets allow. When new ones run on all places these are held no longer, and the next
   move begins. What is held and the pods that are there show which step is next, to this process or the one after it.
4. So no pod is evicted before its next place is held for its successor; and no pod that the owner has created for other
   reasons takes it.
5. A place that is lost before its pod is evicted, as with its node, ends the moves: they are planned anew. One that is
   lost later is given up, and so is one on which no new pod has run NOT_USED_SECONDS after the old one: an owner may
   have been scaled down. Its new pod may go anywhere.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final, Literal, NamedTuple, Protocol

import msgspec

from extender.act.saving import ASKING_SECONDS, Need, SaveRequests
from extender.ask.judge import Judge
from extender.cluster.cluster import Cluster, ClusterView
from extender.decide.evicted import OURS, Cause, EvictedPods
from extender.kube.pod_writes import PodEvictions
from extender.objects.queueing import opened
from extender.objects.records import PodRecord
from extender.policy.contracts import PodRequest
from extender.policy.pod_request import owner_key
from extender.preemption.candidates import Preemptor
from extender.preemption.certificate import how_many
from extender.queue.endings import takes_pods
from extender.reservations.advance import Eligibility, Held, places_of, present, seat
from extender.reservations.claims import Claims, Counted, uniform
from extender.reservations.moves import MOVE, MovedPod, PlannedMove, owner_of, place_name, turn_of
from extender.reservations.seats import Seat
from extender.times import Backoff, Backoffs, Clock, rfc3339

START_SECONDS: Final = 60.0
"""Until a new pod runs on its place: its owner creates it, kube-scheduler tries it, its containers start."""
NOT_USED_SECONDS: Final = 300.0
"""From the end of the last pod of a move until its places are given up."""
LOST: Final = "its next place is not free"
LOST_SECONDS: Final = 60.0
"""For as long moves that are lost are not tried again: others are planned meanwhile."""
ROUND: Final = Backoff(5.0, 5.0)  # between two rounds of one move: what a budget rejects now it may soon allow
LOWEST: Final = -(2**31)


class Keeper(Protocol):
    """Keeps what is held where all instances read it."""

    async def hold(self, held: Sequence[Held]) -> str:
        """Hold these, in place of those of the same names. "" once it is written, else why it is not."""

    async def drop(self, names: Collection[str]) -> str:
        """Hold those of these names no longer. "" as of `hold`."""


class MovesState(NamedTuple):
    """How far the moves for one advance reservation are."""

    phase: Literal["waits", "moving", "done", "lost"]
    """lost: a place is not there any more, so that the moves are to be planned anew."""
    text: str = ""
    """What is waited for, for people."""
    done: int = 0
    """How many moves have ended."""


def lead_seconds(cluster: ClusterView, moves: Iterable[PlannedMove], spread: float) -> float:
    """How long the moves take at most that are left, where budgets allow them and the owners create pods at once.
    `spread`: seconds until all instances know what is written."""
    return sum(_lasts(cluster, pods) + spread for move in moves if (pods := _there(cluster, move.pods)))


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
    """The current move for a reservation."""

    name: str
    """Of the reservation."""
    number: int
    move: PlannedMove
    places: list[Held]
    pods: list[PodRecord]
    """Those that are there still."""
    of: int
    """How many moves there are."""

    @property
    def key(self) -> str:
        return place_name(self.name, self.number, self.move)

    @property
    def by(self) -> str:
        """What its pods are asked and evicted for: no pod has such a name."""
        return f"the advance reservation {self.name}"

    @property
    def remaining(self) -> list[PodRecord]:
        """The pods that do not end yet."""
        return [pod for pod in self.pods if not pod.terminating]

    def state(self, text: str, phase: Literal["moving", "lost"] = "moving") -> MovesState:
        """The state of the moves. `text`: what the current one waits for."""
        others = len(self.move.pods) - 1
        more = f" and {how_many(others)} more" if others else ""
        named = f"move {self.number + 1} of {self.of}, {self.move.pods[0].pod}{more}"
        return MovesState(phase, f"{named}: {text}", self.number)


@dataclass(slots=True)
class Moves:
    """Carries out moves on one cluster, where this instance may act. `spread`: as of `lead_seconds`."""

    judge: Judge
    keeper: Keeper
    evictions: PodEvictions
    saves: SaveRequests
    evicted: EvictedPods
    clock: Clock
    spread: float
    _since: dict[tuple[str, str], float] = field(default_factory=dict)
    """By what, and the name of a place, or what those of a move begin with: since when it is held ("held") or lost
    ("lost"), its pods are asked ("asked", seconds since 1970) and gone ("gone")."""
    _rounds: Backoffs = field(default_factory=lambda: Backoffs(ROUND))
    _needs: dict[str, Need] = field(default_factory=dict)

    async def sweep(self, names: Collection[str]) -> None:
        """Withdraw requests to save that no move has any more, and forget all but these reservations. Once, before the
        turns of all of them."""
        self._needs = {name: need for name, need in self._needs.items() if name in names}
        self._since = {key: at for key, at in self._since.items() if turn_of(key[1])[0] in names}
        await self.saves.sweep(self._needs.values())

    async def turn(
        self, name: str, moves: Sequence[PlannedMove], since: float, until: float, may_act: Callable[[], bool]
    ) -> MovesState:
        """Take the next step of the moves for a reservation. `since`, `until`: its times, seconds since 1970;
        `may_act`: asked before each request, since one may wait long for the API server."""
        self._needs.pop(name, None)
        held = [place for place in self._claims.advance if place.name.startswith(f"{name}{MOVE}")]
        step = self._current(name, moves, held)
        if over := self._over(moves, held, step):
            why = await self.keeper.drop(over)
            done = len(moves) if step is None else step.number
            return MovesState("moving", why or "places are given up", done)
        if step is None:
            return MovesState("done", done=len(moves))
        if not may_act():
            return step.state("another instance acts")
        if self.clock.monotonic() - self._since.get(("lost", step.key), -inf) < LOST_SECONDS:
            return step.state(LOST, "lost")
        if not step.places:
            begins = since - lead_seconds(self._cluster, moves, self.spread)
            times = begins, until + NOT_USED_SECONDS
            return step.state(await self._hold(name, moves, held, times) or "its next place is held")
        if self.clock.wall() < (begins := max(place.since for place in step.places)):
            return MovesState("waits", f"the moves begin at {rfc3339(begins)}")
        if not all(place.owner for place in step.places):
            return await self._asks(step, held, may_act)
        return await self._evicts(step, may_act)

    @property
    def _cluster(self) -> Cluster:
        return self.judge.cluster

    @property
    def _claims(self) -> Claims:
        return self.judge.claims

    def _current(self, name: str, moves: Sequence[PlannedMove], held: Sequence[Held]) -> _Step | None:
        """The first move whose pods are there still, or whose new ones do not run yet."""
        for number, move in enumerate(moves):
            key, pods = place_name(name, number, move), _there(self._cluster, move.pods)
            places = [place for place in held if place.name.startswith(key)]
            if pods or any(place.owner for place in places):
                return _Step(name, number, move, places, pods, len(moves))
        return None

    def _over(self, moves: Sequence[PlannedMove], held: Sequence[Held], step: _Step | None) -> list[str]:
        """The names of places that are used, or that no pod needs: of moves before, of pods that have ended by
        themselves, and of moves that are not planned any more."""
        keys = [place_name(turn_of(place.name)[0], at, move) for place in held[:1] for at, move in enumerate(moves)]
        wanted = tuple(keys if step is None else keys[step.number :])
        over: list[str] = []
        for place in held:
            planned, now = place.name.startswith(wanted), self.clock.monotonic()
            if not place.owner:
                over += [] if planned and step is not None else [place.name]
            elif step is None or not place.name.startswith(step.key) or not step.pods:
                late = now - self._since.setdefault(("gone", place.name), now) > NOT_USED_SECONDS
                if late or self._is_lost(place) or self._is_used(place):
                    over.append(place.name)
        return over

    # -- its places are not held

    async def _hold(
        self, name: str, moves: Sequence[PlannedMove], held: Sequence[Held], times: tuple[float, float]
    ) -> str:
        """Hold the places of all moves. `times`: from when on what does not end before keeps off them, and until when.
        As `Keeper.hold`."""
        known, new = {place.name for place in held}, list[Held]()
        for number, move in enumerate(moves):
            to = {pod.uid: pod.to for pod in move.pods}
            by_owner: dict[str, list[PodRecord]] = {}
            for pod in _there(self._cluster, move.pods):
                by_owner.setdefault(owner_key(pod), []).append(pod)
            for owner, pods in by_owner.items():
                place = place_name(name, number, move, owner)
                if place not in known and all(self._cluster.row(to[pod.uid]) >= 0 for pod in pods):
                    seats = tuple(self._seat(place, at, pod, to[pod.uid]) for at, pod in enumerate(pods))
                    new.append(Held(place, seats, *times))
        return await self.keeper.hold(new) if new else "its next place is gone"

    def _seat(self, place: str, number: int, pod: PodRecord, node: str) -> Seat:
        """The seat of a pod; with all free GPUs of the node where a count could not guard links that it requires."""
        request, row = self._claims.alone(pod), self._cluster.row(node)
        amounts = list(self._cluster.amounts(pod))
        if request.gpus and request.by_position and not uniform(self._cluster, row, request):
            free = self._cluster.tables.nodes.free_of(row)[request.resource]
            amounts[request.resource] = max(amounts[request.resource], free)
        return seat(place, number, node, tuple(amounts), self.clock.monotonic())

    # -- its places are held for no pod

    async def _asks(self, step: _Step, held: Sequence[Held], may_act: Callable[[], bool]) -> MovesState:
        """Ask the pods to save their work; once all are ready the places are for the pods that come."""
        now, wall = self.clock.monotonic(), self.clock.wall()
        if now - self._since.setdefault(("held", step.key), now) < self.spread:
            return step.state("its next place is held")
        if not self._stands(step):
            await self.keeper.drop([place.name for place in held if not place.owner])
            self._since["lost", step.key] = now
            return step.state(LOST, "lost")
        remaining, limits = step.remaining, self._cluster.limits
        wait = max((limits.saving(pod).when_asked for pod in remaining), default=0)
        need = Need(step.by, remaining, self._since.setdefault(("asked", step.key), wall), max(0, wait))
        if not any(self.saves.has_asked(pod) for pod in remaining):
            if self._rounds.waits(step.key, wall):
                return step.state("its eviction is not allowed now")
            if (refusal := await self.evictions.refusal(remaining)) is not None:
                self._rounds.failed(step.key, wall)
                del self._since["asked", step.key]
                return step.state(refusal[1].message)
        self._needs[step.name] = need
        if not may_act() or not await self.saves.ready(need):
            return step.state("its pods save their work")
        nodes = {one.node for place in step.places for one in place.seats}
        owners = {owner_key(pod) for pod in step.pods}
        comes = [
            place._replace(owner=owner, before=_before(self._cluster, owner, nodes))
            for place in step.places
            if (owner := owner_of(place.name)) in owners
        ]
        return step.state(await self.keeper.hold(comes) or "its pods are evicted")

    def _stands(self, step: _Step) -> bool:
        """Whether new pods fit on all places of the move, beside all that others hold, and all that is held for earlier
        moves."""
        cluster, names = self._cluster, frozenset(place.name for place in step.places)
        nodes = {one.node for place in step.places for one in place.seats}
        rows = {node: cluster.row(node) for node in nodes if takes_pods(node, cluster)}
        if len(rows) < len(nodes) or min(rows.values()) < 0:
            return False
        beside = places_of(step.key, nodes)
        to = {pod.uid: pod.to for pod in step.move.pods}
        for pod in step.pods:
            new = msgspec.structs.replace(opened(pod), uid=f"{pod.uid}/moved", node="")
            request = msgspec.structs.replace(self._claims.alone(pod), uid=new.uid, priority=LOWEST, lasts=None)
            asked = Preemptor(request, new, self.clock.monotonic(), self.clock.wall())
            with self._counted(request, Eligibility(usable=names, beside=beside)):
                codes, _ = self.judge.codes(asked, array("i", [rows[to[pod.uid]]]))
                if codes[0] or self.judge.short(asked, rows[to[pod.uid]]):
                    return False
            with self._counted(request, Eligibility(beside=beside)):
                if min(cluster.tables.nodes.free_of(rows[to[pod.uid]])) < 0:
                    return False
        return True

    def _counted(self, request: PodRequest, eligible: Eligibility) -> Counted:
        """The claims of others for a pod that may use places."""
        counted = self._claims.of(request, self.clock.monotonic())
        counted.eligible = eligible
        return counted

    # -- its places are held for the pods that come

    async def _evicts(self, step: _Step, may_act: Callable[[], bool]) -> MovesState:
        """Evict the pods, and wait until others run on their places."""
        wall, why = self.clock.wall(), "its pods end"
        if step.pods:
            self._needs[step.name] = Need(step.by, step.remaining, wall, 0.0)  # what was asked stays asked
            if self._rounds.waits(step.key, wall):
                return step.state(why)
            self._rounds.failed(step.key, wall)
            if len(step.remaining) == len(step.pods) and any(map(self._is_lost, step.places)):
                await self.keeper.drop([place.name for place in step.places])  # no pod has left yet
                self._since["lost", step.key] = self.clock.monotonic()
                return step.state(LOST, "lost")
            for pod in step.remaining:
                if not may_act():
                    break
                self.evicted.note([pod], Cause(OURS, f"it moves for {step.by}", at=wall, victims=len(step.move.pods)))
                answer = await self.evictions.evict(pod)
                if answer.outcome not in ("evicted", "gone"):
                    why = f"{pod.namespace}/{pod.name}: {answer.message}"
            return step.state(why)
        return step.state("no pod runs on its next place yet")

    def _is_lost(self, place: Held) -> bool:
        return not all(takes_pods(one.node, self._cluster) for one in place.seats)

    def _is_used(self, place: Held) -> bool:
        """Whether as many pods run on the place as it is for."""
        return sum(pod.phase == "Running" for pod in present(place, self._cluster)) >= len(place.seats)


def _before(cluster: ClusterView, owner: str, nodes: Collection[str]) -> frozenset[str]:
    """Uids of the owner's pods that are there already, and could take a place on these nodes."""
    pods = (pod for pod in cluster.pods.values() if not pod.node or pod.node in nodes)
    return frozenset(pod.uid for pod in pods if owner_key(pod) == owner)
