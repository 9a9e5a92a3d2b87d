"""What the cost terms see of the gathered pods: their columns, budgets and gangs as groups, which can run elsewhere."""

from __future__ import annotations

import time
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ext_core import gather
from extender.cluster.cluster import ClusterView
from extender.cluster.eligibility import MOST_PARTS, TooLong
from extender.objects import gangs
from extender.objects.progress import lost, saved_ms, start_ms
from extender.objects.queueing import role_of
from extender.objects.records import PodRecord
from extender.policy.contracts import VictimGroups, Victims
from extender.policy.costs import victims_stranded, work_lost_gpu_seconds
from extender.policy.policy import Policy
from extender.settings import PreemptionSettings

# -- limits: what an eviction may cost at most, and how long the search may take -------------------------------------


@dataclass(frozen=True, slots=True)
class CostCeiling:
    """What an eviction may lose."""

    setting: str  # where it is stated
    allows: str  # what it states, for people
    most: int  # GPU-seconds of work

    def above(self, policy: Policy, cost: Sequence[int]) -> str:
        """The sentence about the eviction that would be the cheapest."""
        lost = cost[policy.costs.index(work_lost_gpu_seconds)]
        would = f"the cheapest eviction would lose {_hours(lost)} GPU-hours of work"
        return f"{would}, and {self.setting} allows {self.allows}"


def ceiling_of(limits: PreemptionSettings, pods: Sequence[PodRecord], gpus: int) -> CostCeiling | None:
    """The lowest ceiling for these preemptors, which gain so many GPUs together; None: there is none."""
    stated: list[CostCeiling] = []
    for name in sorted({pod.priority_class for pod in pods} & limits.ceilings.keys()):
        ceiling, setting = limits.ceilings[name], f"preemption.ceilings.{name}"
        if ceiling.gpu_hours is not None:
            seconds = round(ceiling.gpu_hours * 3600)
            stated.append(CostCeiling(f"{setting}.gpuHours", _hours(seconds), seconds))
        if ceiling.gpu_hours_per_gpu is not None:
            seconds = round(ceiling.gpu_hours_per_gpu * 3600 * gpus)
            gained = f"{_hours(seconds)} ({ceiling.gpu_hours_per_gpu:g} for each of {gpus} GPUs)"
            stated.append(CostCeiling(f"{setting}.gpuHoursPerGpu", gained, seconds))
    return min(stated, key=lambda ceiling: ceiling.most, default=None)


def terms(policy: Policy, victims: Victims, ceiling: CostCeiling | None) -> list[Any]:
    """The forms of the cost terms for the search, without sets that are above the ceiling."""
    forms: list[Any] = []
    for cost in policy.costs:
        term = cost.term(victims)
        if ceiling is not None and cost is work_lost_gpu_seconds:
            term = ("below", ceiling.most, term)
        forms.append(term)
    return forms


def _hours(seconds: int) -> str:
    return f"{seconds / 3600:.4g}"


# -- time --------------------------------------------------------------------------------------------------------------
#
# The time of searches, which is the one thing of a decision that another run could not repeat: so where it ended them
# is kept, and can be given instead of a clock.


class SearchTime:
    """Whether the time of a search is over. Each question has a number, counted from `begin`. `stops`: number and
    answer of each that ended something, one after the other."""

    def __init__(self) -> None:
        self.stops: list[int] = []
        self._kept = False  # none asks for them before `begin`
        self._asked = 0
        self._given: dict[int, int] | None = None

    def begin(self, given: Sequence[int] | None = None) -> None:
        """Count anew. `given`: the stops of another run, which count instead of the clock."""
        self.stops, self._asked, self._kept = [], 0, True
        self._given = None if given is None else dict(zip(given[::2], given[1::2], strict=True))

    def over(self, until: int) -> bool:
        """Whether it is later than `until`, on this thread's clock in nanoseconds; 0: never."""
        if not until:
            return False
        self._asked += 1
        late = self._asked in self._given if self._given is not None else time.thread_time_ns() > until
        if late and self._kept:
            self.stops += (self._asked, 1)
        return late

    def left(self, until: int) -> tuple[int, int]:
        """(nanoseconds until then, 0: no limit; the look at the clock at which a kernel stops instead, 0: none)."""
        if not until:
            return 0, 0
        self._asked += 1
        if self._given is not None:
            return 0, self._given.get(self._asked, 0)
        return max(1, until - time.thread_time_ns()), 0

    def stopped(self, look: int) -> None:
        """The kernel that `left` was asked for has stopped at this look at the clock; 0: it came to its end."""
        if look and self._kept:
            self.stops += (self._asked, look)


# -- what the cost terms need ---------------------------------------------------------------------------------------


FEW_ASKS = 64  # that are looked at whatever time is left: the pods of one search seldom ask for more different things
FEW_PARTS = 512  # `Eligibility.program`: of those; beyond it an ask waits until the others are done
CHECKED = 8  # asks between two looks at the clock


class NodeInputs(NamedTuple):
    """What cost terms see of the nodes: `Victims.lacking` and `Victims.leftover`."""

    lacking: array[int]
    prices: list[array[int]]


@dataclass(slots=True)
class Rooms:
    """Where else the possible victims of one search have room. `until`: on this thread's clock, in nanoseconds, when no
    more is looked at, 0 = never; `time`: whether that is so; `known`: what `gather.room` says, by ask; `alike`: by
    amounts and nodes; `free`: the nodes that have some of a resource left."""

    until: int = 0
    time: SearchTime = field(default_factory=SearchTime)
    known: dict[int, tuple[int, int]] = field(default_factory=dict)
    alike: dict[tuple[object, ...], tuple[int, int]] = field(default_factory=dict)
    free: dict[int, array[int]] = field(default_factory=dict)

    def fill(self, cluster: ClusterView, asks: list[int]) -> None:
        """Look for room for these asks. Those that are short come first, and of each namespace one after the other: a
        namespace whose pods all ask for something else waits for its own."""
        new = [ask for ask in asks if ask not in self.known]
        long: list[int] = []
        for i, ask in enumerate(_in_turn(cluster, new)):
            if self.until and i >= FEW_ASKS and i % CHECKED == 0 and self.time.over(self.until):
                return
            try:
                self.known[ask] = self._room(cluster, ask, FEW_PARTS if self.until else 0)
            except TooLong:
                long.append(ask)
        for ask in long:
            if self.time.over(self.until):
                return
            with suppress(TooLong):
                self.known[ask] = self._room(cluster, ask, MOST_PARTS)

    def _room(self, cluster: ClusterView, ask: int, most: int) -> tuple[int, int]:
        asked, program = cluster.requirements[ask], cluster.requirements.program(ask, most)
        assert asked is not None
        key = (asked.amounts, *program)
        rooms = self.alike.get(key)
        if rooms is None:
            allowed = cluster.eligibility.rows(program)
            scarce = max(r for r, wanted in enumerate(asked.amounts) if wanted > 0)  # GPUs, where it wants some
            if scarce not in self.free:
                self.free[scarce] = gather.some_free(cluster.tables.nodes, scarce)
            rooms = gather.room(cluster.tables.nodes, array("q", asked.amounts), allowed, self.free[scarce])
            if program.members <= FEW_ASKS:
                self.alike[key] = rooms
        return rooms


def _in_turn(cluster: ClusterView, asks: list[int]) -> list[int]:
    """The first ask of each namespace, then the second of each, and so on."""
    if len(asks) <= FEW_ASKS:
        return asks
    turns: Counter[str] = Counter()
    placed: list[tuple[int, int]] = []
    for ask in asks:
        asked = cluster.requirements[ask]
        assert asked is not None
        placed.append((turns[asked.namespace], ask))
        turns[asked.namespace] += 1
    return [ask for _, ask in sorted(placed)]


def columns(
    cluster: ClusterView,
    policy: Policy,
    gathered: gather.Gathered,
    nodes: NodeInputs,
    now_ms: int,
    rooms: Rooms,
) -> tuple[Victims, frozenset[int]]:
    """(what the cost terms see; asks of which it is not known whether there is room elsewhere: they count as if)."""
    stranded = array("q", bytes(8 * len(gathered.pods)))
    missing: frozenset[int] = frozenset()
    if victims_stranded in policy.costs:
        present = gather.distinct(gathered.ask, gathered.terminating)
        rooms.fill(cluster, present)
        missing = frozenset(present).difference(rooms.known)
        stranded = gather.stranded(cluster.tables.pods, gathered.pods, gathered.ask, gathered.terminating, rooms.known)
    seen = Victims(
        gathered.pods,
        gathered.priority,
        gathered.start_ms,
        gathered.saved_ms,
        gathered.restart_s,
        gathered.saves_s,
        gathered.ignores,
        gathered.grace_s,
        gathered.gpus,
        gathered.terminating,
        now_ms,
        _budgets(cluster, gathered),
        *_gangs(cluster, gathered, now_ms),
        stranded,
        nodes.lacking,
        nodes.prices,
    )
    return seen, missing


def _budgets(cluster: ClusterView, gathered: gather.Gathered) -> VictimGroups:
    """PodDisruptionBudgets as groups. A pod that is terminating, or that a budget has counted, costs nothing."""
    sets = gather.distinct(gathered.budgets, gathered.terminating)
    keys = sorted({key for number in sets for key in cluster.budgets.sets[number]})
    index = {key: g for g, key in enumerate(keys)}
    members = {number: tuple(index[key] for key in cluster.budgets.sets[number]) for number in sets}
    allowance = array("q", [max(0, cluster.budgets.records[key].disruptions_allowed) for key in keys])
    names = tuple(f"{namespace}/{name}" for namespace, name in keys)
    return VictimGroups(*gather.memberships(gathered.budgets, gathered.terminating, members), allowance, names)


def _gangs(cluster: ClusterView, gathered: gather.Gathered, now_ms: int) -> tuple[VictimGroups, array[int]]:
    """(gangs as groups, the work in GPU-seconds that all running members of each lose when it breaks)."""
    present = gather.distinct(gathered.gang, gathered.terminating)
    members: dict[int, tuple[int, ...]] = {gang: (g,) for g, gang in enumerate(present)}
    wait, numbers = gathered.most_wait, len(cluster.gangs.by_number)
    work = gather.gangs(cluster.tables.pods, numbers, now_ms, wait)[1] if present else array("q")
    gangs_present = [gang for number in present if (gang := cluster.gangs.by_number[number]) is not None]
    assert len(gangs_present) == len(present)
    price = array("q", [work[number] for number in present])
    for number in cluster.gangs.strays.keys() & members.keys():
        price[members[number][0]] += sum(
            work_lost(cluster, pod, now_ms, wait) for pod in cluster.gangs.strays[number].values()
        )
    allowance = array("q", [gang.allowance for gang in gangs_present])
    names = tuple([gang.ref.name for gang in gangs_present])
    ids = gathered.gang
    if any(gang.roles for gang in gangs_present):
        ids = _with_roles(cluster, gathered, members, allowance)
        price.extend([0] * (len(allowance) - len(price)))
    return VictimGroups(*gather.memberships(ids, gathered.terminating, members), allowance, names), price


def _with_roles(
    cluster: ClusterView, gathered: gather.Gathered, members: dict[int, tuple[int, ...]], allowance: array[int]
) -> array[int]:
    """The gang of each pod; pods of a critical role have an id of their own. Adds these ids to `members`, whose second
    group is the role, and the roles to `allowance`."""
    ids, uids = array("i", gathered.gang), cluster.pod_rows.uids
    of_role: dict[tuple[int, str], int] = {}
    for number in list(members):
        gang = cluster.gangs.by_number[number]
        for role in gang.critical_roles if gang is not None else ():
            of_role[number, role.name] = new = len(cluster.gangs.by_number) + len(of_role)
            members[new] = (*members[number], len(allowance))
            allowance.append(role.allowance)
    critical = {number for number, _ in of_role}
    for k, number in enumerate(gathered.gang):
        if number in critical:
            role_name = role_of(cluster.pods[uids[gathered.pods[k]]])
            ids[k] = of_role.get((number, role_name), number)
    return ids


def work_lost(cluster: ClusterView, pod: PodRecord, now_ms: int, most_wait: int = 0) -> int:
    """GPU-seconds that the end of one pod loses. `now_ms`: milliseconds since 1970; `most_wait`: seconds for which it
    may be asked to save its work before."""
    limits, gpus = cluster.limits, cluster.gpu_amount(pod)
    saving, since = limits.saving(pod), saved_ms(pod) or start_ms(pod)
    return lost(gpus, since, limits.restart_seconds(pod), saving.within(most_wait), saving.ignores, now_ms)


# -- whose work ends with an eviction: the victims, and the running members of gangs that break. Those that lose less by
# it are asked to save their work first


def stopped(cluster: ClusterView, pods: Iterable[PodRecord]) -> tuple[Mapping[gangs.Ref, str], dict[str, PodRecord]]:
    """(the gangs that break, as of `Gang.why_broken`; the pods whose work ends, by uid) where these bound pods are
    evicted; without those that are terminating anyway."""
    evicted = [pod for pod in pods if not pod.terminating]
    members: dict[gangs.Gang, list[PodRecord]] = {}
    for pod in evicted:
        gang = cluster.gangs.of(pod)
        if gang is not None:
            members.setdefault(gang, []).append(pod)
    by_uid = {pod.uid: pod for pod in evicted}
    broken = {gang.ref: why for gang, among in members.items() if (why := gang.why_broken(among)) is not None}
    for gang, among in members.items():
        if gang.ref in broken:
            by_uid.update((pod.uid, pod) for pod in cluster.gangs.running(among[0]))
    return broken, by_uid


def to_ask(cluster: ClusterView, pods: Iterable[PodRecord], now_ms: int, most_wait: int) -> dict[str, int]:
    """By uid, in how many seconds each pod saves its work that is asked to where these pods are evicted. `now_ms`:
    milliseconds since 1970; `most_wait`: seconds for which the preemptor waits at most; 0: no pod is asked."""
    if not most_wait:
        return {}
    return {
        uid: cluster.limits.saving(pod).on_request
        for uid, pod in stopped(cluster, pods)[1].items()
        if work_lost(cluster, pod, now_ms, most_wait) < work_lost(cluster, pod, now_ms)
    }
