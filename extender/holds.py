"""What we answered and can not see yet.

Hold: between our answer and the watch (or the bind) that tells where the pod went, the node that it will most likely
take counts as taken, for a few seconds at most. It expires by itself: kube-scheduler may have thrown the answer away.
Plan: a preemption that we answered. Until the preemptor is bound, deleted or the plan grows old, what its victims hold
is the preemptor's, and the same need is never answered with other victims.
Attempt: what this pod's latest filter call said.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Hold:
    """`amounts`: R amounts; `gpus`: mask it will probably take; `until`: seconds on the caller's clock."""

    uid: str
    node: str
    amounts: tuple[int, ...]
    gpus: int
    until: float


@dataclass(slots=True)
class Plan:
    """A preemption that was answered. `victims`: uids; `amounts`: R amounts of the preemptor."""

    uid: str
    node: str
    victims: tuple[str, ...]
    amounts: tuple[int, ...]
    priority: int
    at: float
    emptied: float | None = None  # when we first saw that its last victim is gone


@dataclass(slots=True)
class Attempt:
    """A pod's latest filter call. `first`: when its first call came; `links_only`: nodes refused for links alone;
    `transient`: whether any node was refused as transient, and `since` when that has been so without a pause;
    `left_out`: whether feasible nodes were left out of the shortlist."""

    first: float
    at: float
    links_only: tuple[str, ...] = ()
    transient: bool = False
    since: float | None = None
    left_out: bool = False


@dataclass(slots=True)
class Holds:
    """Time comes in as an argument; everything here ends by itself."""

    hold_seconds: float
    plan_seconds: float = 600.0
    attempt_seconds: float = 300.0
    _holds: dict[str, Hold] = field(default_factory=dict)
    _plans: dict[str, Plan] = field(default_factory=dict)
    _attempts: dict[str, Attempt] = field(default_factory=dict)

    def hold(self, uid: str, node: str, amounts: tuple[int, ...], gpus: int, now: float) -> None:
        self._holds.pop(uid, None)  # the youngest stands last
        self._holds[uid] = Hold(uid, node, amounts, gpus, now + self.hold_seconds)

    def forget(self, uid: str) -> None:
        """The pod is bound, or gone: nothing is tentative about it any more."""
        self._holds.pop(uid, None)
        self._plans.pop(uid, None)

    def drop_hold(self, uid: str) -> None:
        self._holds.pop(uid, None)

    def held(self, now: float) -> Iterator[Hold]:
        """The holds that still count, oldest first."""
        for uid in [uid for uid, hold in self._holds.items() if hold.until <= now]:
            del self._holds[uid]
        yield from list(self._holds.values())

    def get(self, uid: str, now: float) -> Hold | None:
        hold = self._holds.get(uid)
        return hold if hold is not None and hold.until > now else None

    def plan(self, plan: Plan) -> None:
        self._plans[plan.uid] = plan

    def drop_plan(self, uid: str) -> None:
        self._plans.pop(uid, None)

    def planned(self, uid: str, now: float) -> Plan | None:
        plan = self._plans.get(uid)
        if plan is not None and now - plan.at > self.plan_seconds:
            del self._plans[uid]
            return None
        return plan

    def plans(self, now: float) -> Iterator[Plan]:
        for uid in [uid for uid, plan in self._plans.items() if now - plan.at > self.plan_seconds]:
            del self._plans[uid]
        yield from list(self._plans.values())

    def attempt(self, uid: str, now: float) -> Attempt | None:
        """The pod's latest filter call, when it was at most `attempt_seconds` ago."""
        attempt = self._attempts.get(uid)
        return attempt if attempt is not None and now - attempt.at <= self.attempt_seconds else None

    def attempted(
        self, uid: str, now: float, links_only: tuple[str, ...] = (), transient: bool = False, left_out: bool = False
    ) -> Attempt:
        before = self.attempt(uid, now)
        self._attempts.pop(uid, None)  # the youngest stay at the end
        made = Attempt(before.first if before else now, now, links_only, transient, None, left_out)
        if transient:
            made.since = before.since if before is not None and before.since is not None else now
        self._attempts[uid] = made
        while self._attempts:
            eldest = next(iter(self._attempts))
            if now - self._attempts[eldest].at <= self.attempt_seconds:
                break
            del self._attempts[eldest]
        return made

    def count(self, now: float) -> int:
        return sum(1 for _ in self.held(now))
