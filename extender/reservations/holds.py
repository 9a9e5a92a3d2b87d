"""What we answered and can not see yet.

Hold: between our answer and the watch (or the bind) that tells where the pod went, the node that it will most likely
take counts as taken, for a few seconds at most. It expires by itself: kube-scheduler may have thrown the answer away.
Where bind has asked for it, it is no guess any more, and lasts until the watch brings the pod, a minute at most.
While the API server is silent it still counts against pods that require links: the pod may be bound, on GPUs that we
do not know, and the watch could not have shown it. For the others kube-scheduler's own count is enough.
Plan: a preemption that we answered. Until the preemptor is bound, deleted or outbid, or its last victim has been gone
for a minute, what its victims hold is the preemptor's, and the same need is never answered with other victims.
Attempt: what this pod's latest filter call said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from hashlib import sha256

RELEASES = {
    "bound": "the preemptor has a node",
    "deleted": "the preemptor is gone",
    "outbid": "pods of a higher priority took the place",
    "replaced": "the place was lost, another plan was made for the preemptor",
    "not-used": "the last victim has been gone for a minute",
    "not-carried-out": "kube-scheduler threw the answer away: nobody was evicted",
    "victims-stay": "victims are there long after their grace has ended",
    "node-lost": "the node is gone",
}
"""Why a plan ends: metric label and sentence."""


BOUND_SECONDS = 60.0  # a watch that is behind for longer makes us not ready (extender.web.health)
UNHEARD_SECONDS = 60.0  # how much longer a hold lasts at most while the API server is silent


@dataclass(frozen=True, slots=True)
class Hold:
    """`amounts`: R amounts; `gpus`: mask it will probably take; `until`: seconds on the caller's clock; `bound`: bind
    asked for it, so that the pod is nowhere else."""

    uid: str
    node: str
    amounts: tuple[int, ...]
    gpus: int
    until: float
    bound: bool = False


@dataclass(slots=True)
class Plan:
    """A preemption that was answered, or an eviction of our own (`own`). `victims`: uids; `amounts`: R amounts of the
    preemptor; `pod`: its namespace/name, for people; `grace`: the victims' longest, in seconds."""

    uid: str
    node: str
    victims: tuple[str, ...]
    amounts: tuple[int, ...]
    priority: int
    at: float
    emptied: float | None = None  # when we first saw that its last victim is gone
    pod: str = ""
    grace: float = 0.0
    own: bool = False

    @property
    def id(self) -> str:
        """What people call it by: the same after a restart, another one for other victims."""
        text = " ".join((self.uid, self.node, *sorted(self.victims)))
        return sha256(text.encode()).hexdigest()[:8]


@dataclass(slots=True)
class Attempt:
    """A pod's latest filter call. `first`: when its first call came; `links_only`: nodes refused for links alone;
    `transient`: whether any node was refused as transient, and `since` when that has been so without a pause;
    `left_out`: whether feasible nodes were left out of the shortlist; `left`: whether this call, or one before, left
    nodes to preemptors of lower priorities."""

    first: float
    at: float
    links_only: tuple[str, ...] = ()
    transient: bool = False
    since: float | None = None
    left_out: bool = False
    left: bool = False


@dataclass(slots=True)
class Holds:
    """Time comes in as an argument; everything here ends by itself."""

    hold_seconds: float
    plan_seconds: float = 600.0  # beyond the victims' grace: a victim that hangs must not bind its preemptor for ever
    attempt_seconds: float = 300.0
    known_at: Callable[[], float | None] = field(default=lambda: None)
    """Until when all that happened to pods is known, on the caller's clock; None: it always is."""
    _holds: dict[str, Hold] = field(default_factory=dict)
    _plans: dict[str, Plan] = field(default_factory=dict)
    _attempts: dict[str, Attempt] = field(default_factory=dict)

    def hold(
        self, uid: str, node: str, amounts: tuple[int, ...], gpus: int, now: float, *, bound: bool = False
    ) -> None:
        self._holds.pop(uid, None)  # the youngest stands last
        seconds = BOUND_SECONDS if bound else self.hold_seconds
        if not seconds:  # the settings turn tentative holds off: silence does not make one
            return
        self._holds[uid] = Hold(uid, node, amounts, gpus, now + seconds, bound)

    def doubt(self, uid: str, now: float) -> None:
        """Nobody knows whether bind's write was carried out: if it was, the watch tells soon."""
        hold = self._holds.get(uid)
        if hold is not None:
            self._holds[uid] = replace(hold, until=min(hold.until, now + self.hold_seconds))

    def forget(self, uid: str) -> None:
        """The pod is bound, or gone: nothing is tentative about it any more."""
        self._holds.pop(uid, None)
        self._plans.pop(uid, None)

    def drop_hold(self, uid: str) -> None:
        self._holds.pop(uid, None)

    def held(self, now: float, *, unheard: bool = False) -> Iterator[Hold]:
        """The holds that still count, oldest first; `unheard`: with those that only silence keeps."""
        known = self.known_at()
        oldest = now if known is None else min(now, max(known, now - UNHEARD_SECONDS))
        for uid in [uid for uid, hold in self._holds.items() if hold.until <= oldest]:
            del self._holds[uid]
        yield from [hold for hold in self._holds.values() if unheard or hold.until > now]

    def get(self, uid: str, now: float) -> Hold | None:
        hold = self._holds.get(uid)
        return hold if hold is not None and hold.until > now else None

    def plan(self, plan: Plan) -> None:
        self._plans[plan.uid] = plan

    def drop_plan(self, uid: str) -> None:
        self._plans.pop(uid, None)

    def planned(self, uid: str, now: float) -> Plan | None:
        plan = self._plans.get(uid)
        if plan is not None and self.old(plan, now):
            return None
        return plan

    def plans(self, now: float) -> Iterator[Plan]:
        """The plans that are not too old, in the order they were made."""
        yield from [plan for plan in self._plans.values() if not self.old(plan, now)]

    def all_plans(self) -> list[Plan]:
        """The old ones too, which nobody has dropped yet."""
        return list(self._plans.values())

    def old(self, plan: Plan, now: float) -> bool:
        return now - plan.at > self.plan_seconds + plan.grace

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
