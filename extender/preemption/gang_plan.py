"""Preemption for a gang: which pods are evicted, on many nodes, so that the whole gang starts, at the lowest cost.

The gang stays in one domain. Domains are taken in the order of their lower bounds (`_floor`), and left where the bound
is not below the two best plans so far. In a domain each node offers sets of victims (`gang_options.py`), and one is
chosen of each (`gang_search.py`). A plan counts only if the gang's joint placement passes our own rules on a copy of
the tables without the victims. Nothing is evicted or reserved here.

The search is made in slices, and the tables may change between two of them. What it read of them stays as it was; only
the plan's own nodes are judged by the tables of its last slice. Whoever carries a plan out judges it again.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar

import msgspec

from ext_core import gather
from ext_core.link_sets import LinkSets
from extender.cluster.cluster import Cluster
from extender.cluster.slices import Pace, Sliced, at_once, finish, in_order
from extender.cluster.tables import FIRST_GPU
from extender.objects.records import PodRecord
from extender.policy.contracts import PodRequest, Victims
from extender.policy.costs import leftover_fragmentation, pdb_violations, victims_stranded
from extender.policy.policy import Policy
from extender.policy.reasons import PLUGIN_PANICS
from extender.policy.roles import PodRole, Unplaceable, admitted, roles_of
from extender.policy.rules import Count, Links
from extender.preemption import certificate
from extender.preemption.cost_inputs import CostCeiling, NodeInputs, Rooms, ceiling_of, columns
from extender.preemption.cost_inputs import terms as cost_terms
from extender.preemption.gang_options import Charges, Counts, Field, Node, Option, Options, RoleCapacity, Vector
from extender.preemption.gang_search import NEVER, Freed, Plan, Prices, Room, Search, SearchOutcome, floor
from extender.preemption.search import LOWEST, Inquiry, Preemptor, ends
from extender.settings import PreemptionSettings as Limits

HIGHEST = 2**31 - 1  # EVERY of ext_core: no pod is spared for its priority, or for its devices
BORROWERS = ("victims_beside_borrowers", "pods")  # the term of a reclaim
BY_ROOM = frozenset(reason.code for reason in (*Count.reasons, *Links.reasons, PLUGIN_PANICS))
"""Reasons that depend on which pods are on the node: they are judged again without the victims."""


Joint: TypeAlias = "Callable[[array[int]], Sliced[Sequence[int] | None]]"
"""Places the whole gang: the row of each pod in order, of these rows alone; None: there is no place. It reads the
tables when it is called; what it returns works on a copy."""
Counted = Callable[[], AbstractContextManager[None]]
"""Counts the claims of all others in the tables, as in `Claims.of`."""


@dataclass(frozen=True, slots=True)
class PendingGang:
    """The pods to place."""

    pods: tuple[PodRecord, ...]
    requests: tuple[PodRequest, ...]
    """Of `pods`, in the same order."""
    now: float
    """Seconds on the server's monotonic clock."""
    wall: float
    """Seconds since 1970."""
    spared: frozenset[str] = frozenset()
    """Uids that are never victims, such as members of the gang that run."""


@dataclass(frozen=True, slots=True)
class Reclaim:
    """The gang's queue is below its guarantee."""

    borrower: Callable[[PodRecord], bool]
    """Whether the pod's queue uses more than its own guarantee; such pods are evicted before others."""
    regardless_of_priority: bool = False
    """Borrowers of equal or higher priority may be victims too."""


@dataclass(frozen=True, slots=True)
class DomainCandidates:
    """The nodes of one domain."""

    domain: tuple[str, str] | None
    """(label, value); None: the whole cluster."""
    rows: array[int]


@dataclass(frozen=True, slots=True)
class GangEviction:
    """One plan."""

    domain: tuple[str, str] | None
    pods: tuple[PodRecord, ...]
    """The victims, most important first; none: the gang fits without an eviction."""
    rows: tuple[int, ...]
    """Where each pod of the gang is placed."""
    cost: Vector
    """By term, in order."""
    unknown: tuple[str, ...] = ()
    """Terms that are not computed, and count as 0."""


@dataclass(frozen=True, slots=True)
class GangSearchResult:
    """What a search for a gang found."""

    evictions: tuple[GangEviction, ...] = ()
    """Lowest cost first; the second is the best of another domain."""
    why: str = ""
    """Why there is no eviction."""
    proved: bool = True
    """No plan costs less."""
    bound: Vector | None = None
    """No plan costs less than this; None: no bound is known."""
    terms: tuple[tuple[str, str], ...] = ()
    """(name, unit) of each number of a cost."""
    nodes: int = 0
    """Nodes examined."""
    domains: int = 0
    """Domains searched."""
    sets: int = 0
    """Partial plans examined."""

    @property
    def best(self) -> GangEviction | None:
        """The plan with the lowest cost; None where no eviction helps."""
        return self.evictions[0] if self.evictions else None

    @property
    def runner_up(self) -> GangEviction | None:
        """The best plan of another domain; None where there is none."""
        return self.evictions[1] if len(self.evictions) > 1 else None


@dataclass(slots=True)
class _Domain:
    """A domain that may be searched. `floor`: no plan there costs less."""

    candidates: DomainCandidates
    field: Field
    inquiry: Inquiry
    floor: Vector
    missing: Collection[int]


@dataclass(frozen=True, slots=True)
class _Best:
    """The best plan of a domain; `whole`: its cost with the number of pods as the last term; `bound`: of what was not
    examined there, None: all was."""

    eviction: GangEviction | None
    whole: Vector
    bound: Vector | None
    sets: int


@dataclass(frozen=True, slots=True)
class _Task:
    """What one call looks for."""

    gang: PendingGang
    roles: list[PodRole]
    way: SearchContext

    devices: bool
    """Whether pods that hold GPUs by claims may be victims: the queue allocates what they leave to the gang. Of a pod
    that kube-scheduler allocates them to, it is not known whether they will do."""

    @property
    def priority(self) -> int:
        """Of the gang: pods below it may be victims."""
        return min(request.priority for request in self.gang.requests)


@dataclass(frozen=True, slots=True)
class SearchContext:
    """How a search is made."""

    reclaim: Reclaim | None = None
    """None where the gang's queue has all of its guarantee."""
    joint: Joint | None = None
    """None places by the rules of filter, pod beside pod."""
    counted: Counted = nullcontext
    """Around each slice that reads tables. Claims of the gang's own pods must not be among them."""
    pace: Pace = field(default_factory=Pace)
    """The length of a slice, and the CPU time after which the search only completes what it has."""
    ceiling: CostCeiling | None = None
    """The search sets it, by the settings."""


class GangSearch:
    """Searches over one cluster, by one policy."""

    def __init__(self, cluster: Cluster, policy: Policy, limits: Limits) -> None:
        """`limits`: `search_budget` is about how many partial plans are examined in a domain."""
        self._cluster, self._policy, self._limits = cluster, policy, limits
        self._sets = LinkSets(cluster.tables.shapes)

    def find(
        self, gang: PendingGang, candidates: Sequence[DomainCandidates], way: SearchContext | None = None
    ) -> GangSearchResult:
        """As `steps`, in one go. Claims are the caller's, as in `VictimSearch`."""
        return finish(self.steps(gang, candidates, way or SearchContext()))

    def steps(
        self, gang: PendingGang, candidates: Sequence[DomainCandidates], way: SearchContext
    ) -> Sliced[GangSearchResult]:
        """The cheapest plan over these domains, by the policy as it is now; of equals the first."""
        now = copy(self)
        now._policy = self._policy.now()
        ceiling = ceiling_of(
            self._limits, gang.pods, sum(sum(request.amounts[FIRST_GPU:]) for request in gang.requests)
        )
        result = yield from now._steps(gang, candidates, replace(way, ceiling=ceiling))
        if ceiling is None or result.best is not None:
            return result
        above = (yield from now._steps(gang, candidates, way)).best
        if above is None:
            return result
        cost = [value for (name, _), value in zip(result.terms, above.cost, strict=True) if name != BORROWERS[0]]
        return replace(result, why=ceiling.above(now._policy, cost))

    def _steps(
        self, gang: PendingGang, candidates: Sequence[DomainCandidates], way: SearchContext
    ) -> Sliced[GangSearchResult]:
        terms = self._terms(way.reclaim)
        if any(request.never for request in gang.requests):
            return GangSearchResult(why="the preemptionPolicy of the gang's pods is Never", terms=terms)
        if not any(request.gpus for request in gang.requests):
            return GangSearchResult(why="no pod of the gang asks for GPUs", terms=terms)
        hopeful: list[_Domain] = []
        try:
            claims = self._cluster.dra.claims
            devices = claims.on and all(pod.claimed and not claims.why_not(pod) for pod in gang.pods)
            task = _Task(gang, roles_of(self._cluster, gang.pods, gang.requests), way, devices)
            for domain_candidates in candidates:
                domain = yield from _inside(way.counted, self._domain(task, domain_candidates))
                if NEVER not in domain.floor:
                    hopeful.append(domain)
        except Unplaceable as error:
            return GangSearchResult(why=str(error), terms=terms)
        hopeful.sort(key=lambda domain: domain.floor)
        best: list[_Best] = []
        bounds: list[Vector] = []
        searched = sets = 0
        for domain in hopeful:
            cutoff = best[1].whole if len(best) == 2 else None
            if cutoff is not None and domain.floor >= cutoff:
                break
            if best and way.pace.over:
                bounds.append(domain.floor)
                continue
            domain_plan = yield from self._within(task, domain, cutoff)
            searched, sets = searched + 1, sets + domain_plan.sets
            if domain_plan.bound is not None:
                bounds.append(max(domain_plan.bound, domain.floor))
            if domain_plan.eviction is not None:
                best = sorted([*best, domain_plan], key=lambda plan: plan.whole)[:2]
        evictions = tuple(plan.eviction for plan in best if plan.eviction is not None)
        lowest = min([*bounds, *(plan.whole for plan in best[:1])], default=None)
        open_end = any(not best or bound < best[0].whole for bound in bounds)
        return GangSearchResult(
            evictions,
            "" if evictions else self._why(hopeful, proved=not open_end),
            not open_end and not (evictions and victims_stranded.name in evictions[0].unknown),
            lowest[: len(terms)] if lowest is not None else None,
            terms,
            len({row for domain_candidates in candidates for row in domain_candidates.rows}),
            searched,
            sets,
        )

    def _terms(self, reclaim: Reclaim | None) -> tuple[tuple[str, str], ...]:
        names = [(cost.name, cost.unit) for cost in self._policy.costs]
        if reclaim is not None:
            names.insert(self._place_of_borrowers(), BORROWERS)
        return tuple(names)

    def _place_of_borrowers(self) -> int:
        """Behind the disruption budgets where they come first: a plan that violates one is not carried out."""
        costs = self._policy.costs
        return 1 if costs and costs[0] is pdb_violations else 0

    @staticmethod
    def _why(hopeful: Sequence[_Domain], *, proved: bool) -> str:
        if not hopeful:
            return "in no domain do the free GPUs and those of possible victims suffice for the whole gang"
        searched = "no eviction" if proved else "before the search budget ended no eviction was found that"
        return f"{searched} lets the whole gang start in one domain"

    # -- a domain before its search ---------------------------------------------------------------------------------

    def _domain(self, task: _Task, candidates: DomainCandidates) -> Sliced[_Domain]:
        """The domain, its possible victims and what a plan there costs at least. All that is numbered anew as the
        cluster changes is read in the first slice."""
        cluster, gang, pace = self._cluster, task.gang, task.way.pace
        most = self._most(task, candidates.rows)
        rows = array("i", most)
        head = task.roles[0].request
        now_ms = int(gang.wall * 1000)
        # Pods that are terminating free what they hold, whatever their priority; the others are sorted out below.
        capacity, tables = RoleCapacity(cluster, self._policy, self._sets, task.roles), cluster.tables
        gathered = gather.victims(tables.nodes, tables.pods, head.asking(HIGHEST), rows, now_ms)
        capacity.fill(rows, gathered)
        records = [cluster.pods[cluster.pod_rows.uids[pod]] for pod in gathered.pods]
        free_of = {row: (cluster.names[row], capacity.free(row)) for row in rows}
        lacking = array("q", [self._lacking(task, gathered, records, free_of)])
        seen, missing = columns(cluster, self._policy, gathered, NodeInputs(lacking, []), now_ms, Rooms(pace.until))
        yield from pace.pause()
        pods: dict[int, list[int]] = {}
        nodes = array("i", bytes(4 * len(gathered.pods)))
        for i, row in enumerate(rows):
            yield from pace.pause()
            for k in range(gathered.start[i], gathered.start[i + 1]):
                nodes[k] = i
                if self._may_go(task, records[k]):
                    pods.setdefault(row, []).append(k)
        terms = yield from self._columns(task, seen, records)
        names = [(pod.namespace, pod.name) for pod in records]
        order = yield from pace.paced(
            in_order([(-gathered.priority[k], gathered.start_ms[k], names[k], k) for k in range(len(nodes))])
        )
        preemptor = Preemptor(
            msgspec.structs.replace(head, priority=task.priority), task.roles[0].pod, gang.now, gang.wall
        )
        inquiry = Inquiry(cluster, self._policy, preemptor, None, self._limits.search_budget, 0)
        charges = yield from Charges.read(terms, nodes, [key[-1] for key in order], pace)
        domain_field = Field(cluster, gathered, records, pods, free_of, most, charges, capacity, gang.wall)
        return _Domain(candidates, domain_field, inquiry, (yield from _floor(domain_field, pace)), missing)

    def _lacking(
        self,
        task: _Task,
        gathered: gather.Gathered,
        records: Sequence[PodRecord],
        free_of: dict[int, tuple[str, tuple[int, ...]]],
    ) -> int:
        """GPUs that the whole gang asks for, less those of the domain that are free, or that terminating pods leave."""
        ending = [k for k, pod in enumerate(records) if pod.terminating and self._may_go(task, pod)]
        total = 0
        for r in range(FIRST_GPU, len(self._cluster.resources)):
            asked = sum(role.request.amounts[r] * len(role.at) for role in task.roles)
            free = sum(max(0, amounts[r]) for _, amounts in free_of.values())
            total += max(0, asked - free - sum(gathered.amounts[r, k] for k in ending))
        return total

    def _most(self, task: _Task, rows: array[int]) -> dict[int, Counts]:
        """For each row the pods of each role that may run there, whatever is evicted, in the order of the nodes' names;
        rows with none are left out."""
        columns_of: list[set[int]] = []
        for role in task.roles:
            admitted_rows = admitted(self._cluster, role.pod, rows)
            codes = self._policy.judge(self._cluster.tables, role.request, admitted_rows)
            columns_of.append(
                {row for row, code in zip(admitted_rows, codes, strict=True) if not code or code in BY_ROOM}
            )
        counts_of = {
            row: tuple(
                len(role.at) if row in passing else 0 for role, passing in zip(task.roles, columns_of, strict=True)
            )
            for row in sorted(rows, key=self._cluster.names.__getitem__)
        }
        return {row: counts for row, counts in counts_of.items() if any(counts)}

    def _may_go(self, task: _Task, pod: PodRecord) -> bool:
        """Whether the pod is a possible victim, or frees what it holds by itself: one that should have ended long ago
        may stay for ever. DaemonSet, static and protected pods are not gathered."""
        gang, reclaim = task.gang, task.way.reclaim
        if pod.uid in gang.spared or pod.uid in self._cluster.tables.given.users:
            return False
        if any(role.pod.may_need(pod) for role in task.roles):
            return False
        if pod.terminating:
            return ends(pod, gang.wall)
        if pod.devices and not task.devices:
            return False
        if pod.priority < task.priority:
            return True
        return reclaim is not None and reclaim.regardless_of_priority and reclaim.borrower(pod)

    def _columns(self, task: _Task, seen: Victims, records: Sequence[PodRecord]) -> Sliced[list[Any]]:
        """The cost terms over the gathered pods, with that of a reclaim. The last term is the number of pods: of equal
        costs the fewest are evicted."""
        pace, reclaim = task.way.pace, task.way.reclaim
        yield from pace.pause()
        terms = cost_terms(self._policy, seen, task.way.ceiling)
        yield from pace.pause()
        if reclaim is not None:
            lent = array("q", [0 if pod.terminating or reclaim.borrower(pod) else 1 for pod in records])
            terms.insert(self._place_of_borrowers(), ("sum", lent))
        return [*terms, ("sum", array("q", [1 for _ in records]))]

    # -- its search -------------------------------------------------------------------------------------------------

    def _within(self, task: _Task, domain: _Domain, cutoff: Vector | None) -> Sliced[_Best]:
        """The best plan of a domain that costs less than `cutoff`."""
        sets, way = 0, task.way
        for judged in (False, True):
            domain_field = replace(domain.field, judged=judged)
            nodes = yield from _inside(
                way.counted, _nodes(Options(domain_field, way.pace), domain_field, domain.inquiry)
            )
            demand = tuple(len(role.at) for role in task.roles)
            search = Search(domain_field.charges, nodes, demand, way.pace)
            outcome = yield from search.run(cutoff, self._limits.search_budget)
            sets += outcome.examined
            complete = all(node.complete for node in nodes)
            bound = _open(outcome, domain.floor, cutoff, complete=complete)
            if outcome.plan is None:
                return _Best(None, (), bound, sets)
            eviction = yield from self._eviction(task, domain, outcome.plan)
            if eviction is not None:
                return _Best(eviction, outcome.plan.value, bound, sets)
            if way.pace.over:
                break
        return _Best(None, (), domain.floor, sets)  # the joint placement does not accept what the rules pass

    def _eviction(self, task: _Task, domain: _Domain, plan: Plan) -> Sliced[GangEviction | None]:
        """The plan, where the whole gang is placed without its victims on a copy of the tables."""
        cluster, domain_field, way = self._cluster, domain.field, task.way
        chosen = [option for option in plan.options() if any(option.counts)]
        victims = [k for option in chosen for k in option.pods]
        if not all(domain_field.stands(option.row) for option in chosen):
            return None
        with way.counted(), ExitStack() as copy:
            for option in chosen:
                if option.pods:
                    copy.enter_context(cluster.without(domain_field.uids(option.pods), cluster.names[option.row]))
            if way.joint is not None:
                steps = way.joint(domain.candidates.rows)
            else:
                steps = at_once(_seats(cluster, chosen, domain_field.capacity))
        placed = yield from way.pace.paced(steps)
        if placed is None:
            return None
        unknown = [cost.name for cost in self._policy.costs if cost is leftover_fragmentation]
        gathered = domain_field.gathered
        if any(gathered.ask[k] in domain.missing and not gathered.terminating[k] for k in victims):
            unknown.append(victims_stranded.name)
        pods = certificate.important(domain_field.records[k] for k in victims)
        return GangEviction(domain.candidates.domain, tuple(pods), tuple(placed), plan.value[:-1], tuple(unknown))


T = TypeVar("T")


def _inside(counted: Counted, steps: Sliced[T]) -> Sliced[T]:
    """Steps that read tables, with the claims counted in each slice."""
    while True:
        with counted():
            try:
                next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
        yield


def _nodes(options: Options, domain_field: Field, inquiry: Inquiry) -> Sliced[list[Node]]:
    """The options of all nodes."""
    nodes: list[Node] = []
    for row in domain_field.most:
        nodes.append((yield from options.of(row, inquiry)))
    return nodes


def _open(outcome: SearchOutcome, floor: Vector, cutoff: Vector | None, *, complete: bool) -> Vector | None:
    """What a plan that was not examined costs at least; None where none can be cheaper. `complete`: all sets of victims
    of each node were options."""
    bound = outcome.bound if complete else floor
    best = outcome.plan.value if outcome.plan is not None else cutoff
    if bound is None or (best is not None and max(bound, floor) >= best):
        return None
    return max(bound, floor)


def _floor(domain_field: Field, pace: Pace) -> Sliced[Vector]:
    """What a plan costs at least, by the GPUs of each role alone and of all roles together."""
    charges = domain_field.charges
    prices: dict[int, tuple[Vector, Prices]] = {}
    for pods in domain_field.pods.values():
        yield from pace.pause()
        prices |= {k: (charges.alone(k), charges.shared(k)) for k in pods}
    credit = charges.credit
    bound: Vector = tuple(LOWEST if maximum else 0 for maximum in charges.maxima)

    def rooms(resource: int, most: dict[int, int]) -> Sliced[list[Room]]:
        freed, rooms_of_nodes = domain_field.gathered.amounts, list[Room]()
        for row in domain_field.most:
            yield from pace.pause()
            pods = [k for k in domain_field.pods.get(row, ()) if freed[resource, k]]
            frees = tuple([Freed(*prices[k], freed[resource, k]) for k in pods])
            if most[row]:
                rooms_of_nodes.append(Room(domain_field.nodes[row][1][resource], frees, most[row]))
        return rooms_of_nodes

    totals: dict[int, int] = {}
    for c, role in enumerate(domain_field.capacity.roles):
        most = {row: counts[c] for row, counts in domain_field.most.items()}
        for resource, wanted in role.request.gpus:
            node_rooms = yield from rooms(resource, most)
            least = yield from floor(node_rooms, wanted, len(role.at), charges.maxima, credit, pace)
            bound = max(bound, least)
            totals[resource] = totals.get(resource, 0) + wanted * len(role.at)
    for resource, total in totals.items() if len(domain_field.capacity.roles) > 1 else ():
        most = dict.fromkeys(domain_field.most, total)
        node_rooms = yield from rooms(resource, most)
        bound = max(bound, (yield from floor(node_rooms, 1, total, charges.maxima, credit, pace)))
    return bound if NEVER in bound else charges.less(bound)


def _seats(cluster: Cluster, chosen: Sequence[Option], capacity: RoleCapacity) -> list[int] | None:
    """The row of each pod of the gang: those of a role one after the other, node by node in the order of names."""
    waiting = [list(role.at) for role in capacity.roles]
    rows = [-1] * sum(map(len, waiting))
    for option in sorted(chosen, key=lambda option: cluster.names[option.row]):
        taken = tuple(min(n, len(pods)) for n, pods in zip(option.counts, waiting, strict=True))
        if not capacity.takes(option.row, taken):
            return None
        for n, pods in zip(taken, waiting, strict=True):
            for at in pods[:n]:
                rows[at] = option.row
            del pods[:n]
    return None if any(waiting) else rows


def cost_of(found: GangSearchResult, eviction: GangEviction) -> list[dict[str, Any]]:
    """The cost by term."""
    return certificate.by_term(found.terms, eviction.cost, eviction.unknown)


def gang_certificate(cluster: Cluster, found: GangSearchResult) -> dict[str, Any]:
    """What the answer rests on. `gap`: the first term in which a plan that was not examined may cost less."""
    best, other = found.best, found.runner_up
    second = lost_on = gap = None
    if best is not None and other is not None:
        domain = other.domain
        second = {
            "domain": None if domain is None else {"level": domain[0], "value": domain[1]},
            "victims": [certificate.victim(cluster, pod) for pod in other.pods],
            "cost": cost_of(found, other),
        }
        pairs = zip(found.terms, best.cost, other.cost, strict=True)
        lost_on = next((term[0] for term, a, b in pairs if a != b), "domain")
    if best is not None and found.bound is not None and not found.proved:
        pairs = zip(found.terms, best.cost, found.bound, strict=True)
        gap = next(({"term": term[0], "value": a, "bound": b} for term, a, b in pairs if a != b), None)
    return {
        "proved": found.proved,
        "nodes_examined": found.nodes,
        "domains_examined": found.domains,
        "sets_examined": found.sets,
        "runner_up": second,
        "lost_on": lost_on,
        "gap": gap,
    }
