"""Where a gang starts: all its pods at once, or none, with the GPUs of each.

The order of what is better: GPUs that are whole, where pods ask for whole ones; nodes of one GPU model, unless the
gang may mix them; the closest level at which one domain holds the gang (a node, then the levels of the
settings from the closest on, then anywhere); in each domain of that level the fewest nodes, then the lowest price of
slots (`ext_core.slots`: what the pods to come lose, and a little for what is left empty on nodes that are used); of the
domains the one with the lowest price, then fewest nodes; then the first, in the order of node names. `required` domains
end the search at their level; members that run already fix the domain.

Consecutive pods, in the order given, go on one node, then in one domain of the closest level, and so on upward.

Rules: those of filter (`Policy.judge`, once for each role), node selector, required node affinity, taints, cordons,
free CPU, memory, pod slots and other resources, required anti-affinity by node of and against bound pods and among the
gang's own pods. NOT modelled, see `not_modelled`: required pod affinity, anti-affinity over other topologies, spread
constraints, volumes, host ports. GPUs that are shared are filled first-fit, which may miss a place for pods with
different shares. Claims (DRA) that GPUs by number do not tell are met by the devices of each node: `units.py`.

A quota is part of the search: a `GpuAllowance` is how many GPUs the gang may take of the nodes of a model together.

The tables are read first, all at once or a portion of the nodes a slice; what follows works on a copy. The tables may
change between two slices: before seats are written, `still_fits` judges the chosen nodes again, with the claims of
other pods in the tables. Prices are those of now, also where the tables are read as they will be.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Final

from ext_core.fit import UNMET
from ext_core.joint import Joint
from ext_core.link_sets import LinkSets
from ext_core.places import whole
from extender.cluster.cluster import ClusterView
from extender.cluster.dra.claim_fits import Specs
from extender.cluster.dra.node_gpus import CLAIMS_ALONE, NO_DEVICES, GpuAsk
from extender.cluster.slices import STEP, Sliced, at_once, finish
from extender.cluster.tables import FIRST_GPU, plain
from extender.objects.devices import DeviceClassRecord
from extender.objects.parts import GPU_PARTS
from extender.objects.queueing import KUEUE_SLICES, Domain
from extender.objects.records import PodRecord
from extender.policy.contracts import PodRequest
from extender.policy.pod_request import wants_whole
from extender.policy.policy import Policy
from extender.policy.roles import (
    NODE,
    PodRole,
    RoleOthers,
    Unplaceable,
    judged,
    kernel_roles,
    repelled,
    roles_in_slices,
    roles_of,
)
from extender.policy.scorers import FULLNESS
from extender.queue.filling import NO_LIMITS, NODES, SearchBudget, SearchLimits, Solution, solve
from extender.queue.levels import Layout, PlacementLevel, inside, nodes, unread, value_of
from extender.queue.units import MOST_SEARCHES, ClaimDoubt, ClaimRefusals, Sized, Units, asking, depends

MOST_DOMAINS: Final = 32
"""Domains that are searched for the most pods that fit, where not all do."""
MOST_NAMED: Final = 64
"""Of what one pod asks for and is not looked at."""
PORTION: Final = 512
"""Nodes that are read in one slice."""
ANYWHERE: Final = ""
"""The name of the level of which the whole cluster is one domain."""


@dataclass(frozen=True, slots=True)
class GpuAllowance:
    """How many GPUs a gang may take of some nodes together."""

    rows: Collection[int]  # of these nodes
    most: int


@dataclass(frozen=True, slots=True)
class NodeChoice:
    """Which nodes may be chosen."""

    among: Collection[int] | None = None  # their rows, None: all
    allowances: Sequence[GpuAllowance] = ()  # of nodes of which not every number of GPUs may be taken
    sized: Collection[int] | None = None
    """Rows for pods whose claims take another number elsewhere, None: all."""
    mixes: bool = True
    """Whether nodes of several GPU models may be chosen although those of one have room."""
    holders: Collection[int] = ()
    """Rows of the nodes of members that run and have GPUs: of their model the others should be."""


ANY_NODES: Final = NodeChoice()


@dataclass(frozen=True, slots=True)
class Placed:
    """A place for each pod, in the order given."""

    rows: tuple[int, ...]  # of its node
    gpus: tuple[int, ...]  # mask of the GPUs that are planned for it, 0 = no positions
    domain: tuple[str, str] | None  # (label, value) of the domain that holds all, None: no single one
    proved: bool  # no placement is better
    nodes: tuple[str, ...] = ()  # name of its node
    least: int = 1  # none in this domain is on fewer nodes
    amounts: tuple[tuple[int, ...], ...] = ()
    """For each pod the R amounts with which it counts, () where each counts with those of its record."""
    doubt: ClaimDoubt | None = None
    """A node that meets the claims of its pods in some orders alone."""


NOW: Final = " fit now in "
"""Between how many pods fit, and where."""


@dataclass(frozen=True, slots=True)
class NoPlace:
    """The gang does not fit now."""

    most: int  # how many of its pods were found to fit in `domain`, the one that takes most
    domain: tuple[str, str] | None
    text: str  # for people
    proved: bool = True  # no domain takes all of them
    doubt: ClaimDoubt | None = None
    """A node that does not meet the claims of some pods together, which are counted as met alone."""


def whatever_ends(text: str) -> str:
    """The text of a gang that has no place either once all pods have ended. `text`: found then."""
    held, now, where = text.partition(NOW)
    return f"{held} fit in {where}, whatever ends there" if now else text


Steps = Generator[None, None, Placed | NoPlace]
Within = Callable[[Sequence[int]], AbstractContextManager[None]]
"""The tables as a search reads them, for some rows: with the claims that count, and without the pods that do not."""


@dataclass(slots=True)
class _Gang:
    """What was read for one search. Nodes by index, in the order of the topology (`levels.Layout`)."""

    cluster: ClusterView
    joint: Joint
    roles: list[PodRole]
    names: list[str]  # by row
    tiers: list[PlacementLevel | None]
    """To one domain of which its pods with GPUs are confined, the best first; None: to none."""
    levels: list[PlacementLevel]
    asked: PlacementLevel | None
    members: set[int]  # indices of the nodes of running members
    required: bool
    limits: SearchLimits
    budget: SearchBudget
    refusals: ClaimRefusals | None
    """None: the GPUs that are counted tell whether claims are met."""
    proved: bool = True

    @property
    def outer(self) -> PlacementLevel | None:
        """The level of which one domain has to hold the gang."""
        return self.asked if self.required else None

    @property
    def sizes(self) -> tuple[int, ...]:
        """GPUs of a pod of each role."""
        return tuple([role.pod.gpu_count for role in self.roles])

    @property
    def counts(self) -> list[int]:
        """Pods of each role."""
        return [len(role.at) for role in self.roles]

    def domain(self, level: PlacementLevel | None, nodes: Collection[int]) -> tuple[str, str] | None:
        """(label, value) of the one domain of the level that these nodes are in."""
        if level is None or level.name == ANYWHERE or len({level.domain[i] for i in nodes}) != 1:
            return None
        return level.of_node(self.cluster, self.joint.row(next(iter(nodes))))


class JointPlacement:
    """Places gangs on the tables of a cluster. It changes nothing in them."""

    def __init__(self, cluster: ClusterView, policy: Policy) -> None:
        self._cluster, self._policy = cluster, policy
        self._sets, self.layout = LinkSets(cluster.tables.shapes), Layout(cluster)

    def place(
        self,
        pods: Sequence[PodRecord],
        requests: Sequence[PodRequest],
        domain: Domain | None,
        members: Collection[int] = (),
    ) -> Placed | NoPlace:
        """As `steps`, in one go."""
        return finish(self.steps(pods, requests, domain, members))

    def steps(
        self,
        pods: Sequence[PodRecord],
        requests: Sequence[PodRequest],
        domain: Domain | None,
        members: Collection[int] = (),
        within: Within | None = None,
        *,
        choice: NodeChoice = ANY_NODES,
    ) -> Steps:
        """A place for every pod, or none. `requests`: of the pods, one each; `members`: rows of the nodes of members
        that run already. With `within` it reads the nodes in portions, each inside of it; else all of them during this
        call, and the claims that count are in the tables. The generator yields every few milliseconds, and returns the
        result."""
        if not pods:
            return at_once(Placed((), (), None, proved=True, least=0))
        if depends(pods):
            return self._in_units((pods, requests), (domain, members, choice), within)
        return self._plain((pods, requests), (domain, members, choice), within)

    def _in_units(
        self,
        asked: tuple[Sequence[PodRecord], Sequence[PodRequest]],
        where: tuple[Domain | None, Collection[int], NodeChoice],
        within: Within | None,
    ) -> Steps:
        """As `steps`, for pods with claims."""
        try:
            units = Units.read(self._cluster, *asked)
        except Unplaceable as error:
            return at_once(NoPlace(0, None, str(error)))
        domain, members, choice = where
        # Without `within` the tables are read now, as their claims are.
        tried = [
            (way, self._plain((way.pods, way.requests), (domain, members, replace(choice, sized=way.rows)), within))
            for way in units.ways()
        ]
        return self._tried(units, tried)

    def _tried(self, units: Units, tried: list[tuple[Sized, Steps]]) -> Steps:
        """The first of these searches that finds a place, else the one that placed most pods."""
        failed: NoPlace | None = None
        for way, steps in tried:
            result = yield from steps
            if isinstance(result, Placed):
                return _of_pods(units, way, result)
            failed = result if failed is None or result.most > failed.most else failed
        if failed is None:
            return NoPlace(0, None, "no node has GPUs for its claims")
        if any(pod.claim_numbers for pod in units.pods):
            text = "each counts with the most GPUs that its claims may take of a node, on nodes with equally many"
            failed = replace(failed, text=f"{failed.text}; {text}", proved=False)
        if len(units.pods) < len(units.of):
            units_fit = set(range(failed.most))
            failed = replace(failed, most=sum(1 for unit in units.of if unit in units_fit))
        return failed

    def _plain(
        self,
        asked: tuple[Sequence[PodRecord], Sequence[PodRequest]],
        where: tuple[Domain | None, Collection[int], NodeChoice],
        within: Within | None,
    ) -> Steps:
        """As `steps`, of pods that take what their records state."""
        (pods, requests), (domain, members, choice) = asked, where
        if within is not None:
            return self._in_portions((pods, requests), (domain, members, choice), within)
        try:
            gang, rows = self._begin(roles_of(self._cluster, pods, requests), domain, members, choice)
            self._read(gang.joint, gang.roles, self._apart(gang.roles, rows, choice), rows)
        except Unplaceable as error:
            return at_once(NoPlace(0, None, str(error)))
        return self._renewed(gang, _met(gang))

    def _in_portions(
        self,
        asked: tuple[Sequence[PodRecord], Sequence[PodRequest]],
        where: tuple[Domain | None, Collection[int], NodeChoice],
        within: Within,
    ) -> Steps:
        """As `steps` with `within`. `asked`: the pods and their requests; `where`: domain, members and choice."""
        try:
            roles = yield from roles_in_slices(self._cluster, *asked)
            yield from look_at_devices(self._cluster, [role.pod for role in roles])
            gang, rows = self._begin(roles, *where)
        except Unplaceable as error:
            return NoPlace(0, None, str(error))
        return (yield from self._renewed(gang, self._portions(gang, rows, within, where[-1])))

    def still_fits(self, placed: Placed, pods: Sequence[PodRecord], requests: Sequence[PodRequest]) -> bool:
        """Whether the placement stands, by the tables as they are now: the same nodes, in the same domain, take all
        pods on the planned GPUs. The claims of others are in the tables, those of this gang are not."""
        cluster = self._cluster
        if depends(pods):
            try:
                pods, requests, placed = _by_unit(Units.read(cluster, pods, requests), placed)
            except Unplaceable:
                return False
        on: dict[int, list[int]] = {}
        for at, (row, name) in enumerate(zip(placed.rows, placed.nodes, strict=True)):
            if cluster.row(name) != row:
                return False
            on.setdefault(row, []).append(at)
        records = [cluster.nodes[cluster.names[row]] for row in on]
        if placed.domain is not None and any(
            value_of(record, placed.domain[0]) != placed.domain[1] for record in records
        ):
            return False
        if not on:
            return True
        try:
            roles = roles_of(cluster, pods, requests)
            joint, rows = self._joint(roles), array("i", on)
            self._read(joint, roles, self._apart(roles, rows), rows)
        except Unplaceable:
            return False
        role_of = {at: c for c, role in enumerate(roles) for at in role.at}
        for node, placed_here in enumerate(on.values()):
            counts = [0] * len(roles)
            for at in placed_here:
                counts[role_of[at]] += 1
            masks = [placed.gpus[at] for at in sorted(placed_here, key=role_of.__getitem__)]
            if not joint.holds(node, counts, masks):
                return False
        refusals = self._refusals(roles)
        return refusals is None or refusals.doubt(placed.rows, in_any_order=False) is None

    def _joint(self, roles: list[PodRole]) -> Joint:
        """Of no node yet."""
        tables, others = self._cluster.tables, RoleOthers.of(roles)
        joint = Joint(tables.nodes, tables.demand.slots, self._sets, kernel_roles(roles), FULLNESS, others.asked)
        joint.set_prices(self._policy.fragmentation.prices(tables))
        return joint

    def _begin(
        self, roles: list[PodRole], domain: Domain | None, members: Collection[int], choice: NodeChoice
    ) -> tuple[_Gang, array[int]]:
        """(a search that has read no node yet, the rows of the nodes in its order)."""
        rows, known = self.layout.read()
        asked = None if domain is None else self.layout.asked(domain.level)
        required = domain is not None and domain.required
        levels = _levels(known, asked, len(rows), required=required)
        running = frozenset(members)
        indices = {i for i, row in enumerate(rows) if row in running} if running else set()
        names = list(self._cluster.names)
        limits, tiers = _limits(roles, rows, choice.allowances), self._tiers(roles, rows, choice)
        if (refusals := self._refusals(roles)) is not None:
            refusals.read(rows if choice.among is None else sorted(choice.among))
        gang = _Gang(
            self._cluster,
            self._joint(roles),
            roles,
            names,
            tiers,
            levels,
            asked,
            indices,
            required,
            limits,
            SearchBudget(),
            refusals,
        )
        return gang, rows

    def _refusals(self, roles: Sequence[PodRole]) -> ClaimRefusals | None:
        together = self._cluster.dra.together([role.pod for role in roles])
        return None if together is None else ClaimRefusals(self._cluster, together, roles)

    def whole(self, rows: array[int]) -> frozenset[int]:
        """Those of the rows whose nodes hand out whole GPUs, or none."""
        values = array("d", bytes(8 * len(rows)))
        whole(self._cluster.tables.places, rows, values)
        return frozenset(row for row, value in zip(rows, values, strict=True) if value)

    def _tiers(self, roles: Sequence[PodRole], rows: array[int], choice: NodeChoice) -> list[PlacementLevel | None]:
        """As of `_Gang`: whole GPUs of one model, whole GPUs, GPUs of one model, any."""
        places, resources = self._cluster.tables.places, self._cluster.tables.resources
        requests = [role.request for role in roles if role.request.gpus]
        if not requests:
            return [None]
        tiers: list[PlacementLevel | None] = [None]
        if not choice.mixes and places.models() > 1:
            models = self.layout.models()
            held = {number for row, number in zip(rows, models.domain, strict=True) if row in choice.holders} - {-1}
            if held:
                models = models._replace(domain=array("i", [n if n in held else -1 for n in models.domain]))
            if len(held) < 2:
                tiers.insert(0, models)
        if places.splits() and all(wants_whole(request, resources) for request in requests):
            whole_rows = self.whole(rows)
            whole_nodes = PlacementLevel("whole", (), array("i", [0 if row in whole_rows else -1 for row in rows]), 1)
            tiers[:0] = [whole_nodes if tier is None else inside(tier, whole_nodes) for tier in tiers]
        return tiers

    def _apart(self, roles: list[PodRole], rows: array[int], choice: NodeChoice = ANY_NODES) -> list[set[int]]:
        """For each role the rows where required anti-affinity rejects it, and those of `rows` without the devices that
        its claims need, that may not be chosen, or of which not as many GPUs may be taken as one pod asks for."""
        among, sized = choice.among, choice.sized
        others = set() if among is None else {row for row in rows if row not in among}
        return [
            repelled(self._cluster, role.pod).union(
                without_devices(self._cluster, role.pod, rows),
                others,
                () if sized is None or not role.pod.claim_numbers else (row for row in rows if row not in sized),
                *(allowance.rows for allowance in choice.allowances if allowance.most < role.pod.gpu_count),
            )
            for role in roles
        ]

    def _read(self, joint: Joint, roles: list[PodRole], apart: list[set[int]], rows: array[int]) -> None:
        """Read these nodes, which follow those that were read before. Unplaceable: the pods cannot be judged."""
        cluster = self._cluster
        marks = [judged(cluster, self._policy, role, rows, off) for role, off in zip(roles, apart, strict=True)]
        left = RoleOthers.of(roles).left(cluster, rows)
        joint.read(cluster.tables.nodes, cluster.tables.hazards, rows, marks, left)

    def _portions(self, gang: _Gang, rows: array[int], within: Within, choice: NodeChoice) -> Steps:
        """The search, once all nodes are read."""
        apart = self._apart(gang.roles, rows, choice)
        yield
        try:
            for start in range(0, len(rows), PORTION):
                portion = rows[start : start + PORTION]
                with within(portion):
                    self._read(gang.joint, gang.roles, apart, portion)
                yield
        except Unplaceable as error:
            return NoPlace(0, None, str(error))
        return (yield from _met(gang))

    def _renewed(self, gang: _Gang, search: Steps) -> Steps:
        """The search; between its slices new types of slots may come, and then prices are read again."""
        while True:
            if not gang.joint.priced():
                gang.joint.set_prices(self._policy.fragmentation.prices(self._cluster.tables))
            try:
                next(search)
            except StopIteration as end:
                result: Placed | NoPlace = end.value
                return result
            yield


def not_modelled(pod: PodRecord, classes: Iterable[DeviceClassRecord] = (), *, claims: bool | None = None) -> list[str]:
    """What the pod asks for that a placement does not look at, so that kube-scheduler may reject the node. `classes`:
    of the cluster, which may serve resources that it asks for; `claims`: whether nodes are left of which it is not
    known whether they meet its claims, None: that is not known here."""
    beyond = sorted({term.topology_key for term in pod.anti_affinity_terms} - {NODE})
    counted = dict(plain(pod.others, classes))
    asked = {
        "pod affinity": bool(pod.affinity_terms),
        **{f"pod anti-affinity by {key}": True for key in beyond},
        "topology spread constraints": pod.hard_spread,
        "volumes": pod.volumes,
        "host ports": pod.host_ports,
        f"RuntimeClass {pod.runtime_class}": bool(pod.runtime_class) and pod.created is None,
        "resource claims": pod.claims if claims is None else claims,
        **{f"a part of a GPU by the annotation {name}": name in pod.annotations for name in GPU_PARTS},
        "slices of a gang by topology": KUEUE_SLICES in pod.annotations,
        **{f"resource {name}": name not in counted for name, _ in pod.others},
    }
    return [name for name, is_asked in asked.items() if is_asked][:MOST_NAMED]


def without_devices(cluster: ClusterView, pod: PodRecord, rows: array[int]) -> set[int]:
    """Those of `rows` whose nodes give the pod no GPUs: all are for claims alone, and the pod asks for the resource;
    where the queue allocates devices, the node has none, and the pod has claims; its devices do not meet the pod's
    claims; a claim of the pod is used on another node."""
    dra, names = cluster.dra, cluster.names
    if pod.claim_node:
        return {row for row in rows if names[row] != pod.claim_node}
    if (claims := dra.fits.of(pod)) is not None:
        column = finish(_given(cluster, claims.specs, rows))
        return {row for row in rows if column[row] == UNMET}
    if not pod.gpus or not (dra.slices or dra.claims.on):
        return set()
    asked, reasons = GpuAsk.of(pod), (CLAIMS_ALONE, NO_DEVICES) if dra.claims.on else (CLAIMS_ALONE,)
    return {row for row in rows if asked.mismatch(cluster.nodes[names[row]]) in reasons}


def look_at_devices(cluster: ClusterView, pods: Sequence[PodRecord]) -> Sliced[None]:
    """Look at the devices of all nodes for the claims of these pods, which are placed together, as many at once as a
    verb does. What follows looks again only where something has changed since."""
    for specs in cluster.dra.allocated_for(pods):
        rows = cluster.rows.all()
        for start in range(0, len(rows), STEP):
            yield from _given(cluster, specs, rows[start : start + STEP])
            yield


def _given(cluster: ClusterView, specs: Specs, rows: array[int]) -> Sliced[array[int]]:
    """The column of `given_to_claims`, once all `rows` are looked at. Each call looks at one of them at least."""
    while True:
        column = cluster.given_to_claims(specs, rows, array("B", bytes(len(rows))))
        rows = array("i", [row for row in map(cluster.row, cluster.dra.fits.left(specs)) if row >= 0])
        if not rows:
            return column
        yield


def _of_pods(units: Units, way: Sized, of_units: Placed) -> Placed:
    """The place of each pod, by that of its unit. The first pod of a unit has its GPUs."""
    first = {unit: at for at, unit in reversed(list(enumerate(units.of)))}
    none = units.cluster.tables.nodes.resources - FIRST_GPU
    gpus = [
        way.requests[unit].amounts[FIRST_GPU:] if first[unit] == at else (0,) * none for at, unit in enumerate(units.of)
    ]
    amounts = [(*own[:FIRST_GPU], *more) for own, more in zip(units.own, gpus, strict=True)]
    return replace(
        of_units,
        rows=tuple([of_units.rows[unit] for unit in units.of]),
        gpus=tuple([of_units.gpus[unit] if first[unit] == at else 0 for at, unit in enumerate(units.of)]),
        nodes=tuple([of_units.nodes[unit] for unit in units.of]),
        amounts=tuple(amounts),
    )


def _by_unit(units: Units, placed: Placed) -> tuple[Sequence[PodRecord], Sequence[PodRequest], Placed]:
    """The units, and the place of each. Unplaceable: the pods of one are on several nodes."""
    first = {unit: at for at, unit in reversed(list(enumerate(units.of)))}
    if any(placed.rows[at] != placed.rows[first[unit]] for at, unit in enumerate(units.of)):
        raise Unplaceable("pods that share a claim are on several nodes")
    at_first = [first[unit] for unit in range(len(units.pods))]
    requests = list(units.requests)
    for unit, at in enumerate(at_first if placed.amounts else ()):
        own = requests[unit].amounts
        requests[unit] = asking(requests[unit], (*own[:FIRST_GPU], *placed.amounts[at][FIRST_GPU:]))
    of_units = replace(
        placed,
        rows=tuple([placed.rows[at] for at in at_first]),
        gpus=tuple([placed.gpus[at] for at in at_first]),
        nodes=tuple([placed.nodes[at] for at in at_first]),
        amounts=(),
    )
    return units.pods, requests, of_units


def _limits(roles: Sequence[PodRole], rows: Sequence[int], allowances: Sequence[GpuAllowance]) -> SearchLimits:
    """Those allowances that do not leave all pods on their nodes, as the search reads them."""
    sizes = tuple([role.pod.gpu_count for role in roles])
    asked = sum([size * len(role.at) for size, role in zip(sizes, roles, strict=True)])
    scarce = [allowance for allowance in allowances if allowance.most < asked]
    if not scarce:
        return NO_LIMITS
    groups = {row: group for group, allowance in enumerate(scarce) for row in allowance.rows}
    most = tuple([allowance.most for allowance in scarce])
    return SearchLimits(array("i", [groups.get(row, -1) for row in rows]), most, sizes)


def _levels(
    known: list[PlacementLevel], asked: PlacementLevel | None, height: int, *, required: bool
) -> list[PlacementLevel]:
    """The levels to try, the closest first."""
    node, anywhere = nodes(height), PlacementLevel(ANYWHERE, (), array("i", bytes(4 * height)), min(1, height))
    if asked is None or (not required and NODE in asked.keys):
        return [node, *known, anywhere]
    places = [i for i, level in enumerate(known) if level.keys[0] in asked.keys]
    if not required:
        return [node, *known, anywhere] if places else [node, asked, *known, anywhere]
    closer = [] if NODE in asked.keys else [node, *known[: min(places, default=0)]]
    return [*closer, asked]


def _met(gang: _Gang) -> Steps:
    """A place where the devices of each node meet the claims of its pods."""
    refusals = gang.refusals
    if refusals is None:
        return (yield from _search(gang))
    for in_any_order in (True, False):
        gang.joint.refuse_nothing()
        for _ in range(MOST_SEARCHES):
            result = yield from _search(gang)
            if isinstance(result, NoPlace):
                break
            if not (yield from refusals.refuse(gang.joint, result.rows, in_any_order=in_any_order)):
                return replace(result, doubt=refusals.doubt(result.rows, in_any_order=True))
        if refusals.first is None:
            return result
    doubt = refusals.unknown or refusals.first
    if isinstance(result, NoPlace):
        return replace(result, proved=result.proved and refusals.unknown is None, doubt=doubt)
    return NoPlace(0, None, "it is not known whether any nodes meet its claims together", proved=False, doubt=doubt)


def _search(gang: _Gang) -> Steps:
    proved = True
    for tier in gang.tiers:
        gang.budget, gang.proved = SearchBudget(), True
        for level in gang.levels:
            narrowed = _anchored(gang, inside(level, gang.outer))
            yield
            solution = yield from _at_level(gang, narrowed, tier)
            if solution is not None:
                gang.proved = gang.proved and proved
                return (yield from _placed(gang, narrowed, solution))
        proved = proved and gang.proved
    return (yield from _nowhere(gang, gang.levels[-1]))


def _at_level(
    gang: _Gang, level: PlacementLevel, tier: PlacementLevel | None
) -> Generator[None, None, Solution | None]:
    """All pods in one domain of a level, those with GPUs in one of the tier."""
    confined = level if tier is None else inside(level, tier)
    if NODE in level.keys:
        return (yield from _alone(gang, confined))
    if tier is None or all(role.request.gpus for role in gang.roles):
        return (yield from _together(gang, confined))
    return (yield from _together(gang, confined, level))


def _anchored(gang: _Gang, level: PlacementLevel) -> PlacementLevel:
    """The level with the domains that running members leave to choose from."""
    if not gang.members or level.name == ANYWHERE:
        return level
    domains = {level.domain[i] for i in gang.members} - {-1}
    anchors = domains if len(domains) == 1 or level is gang.asked else set[int]()
    return level._replace(domain=array("i", [number if number in anchors else -1 for number in level.domain]))


def _alone(gang: _Gang, level: PlacementLevel) -> Generator[None, None, Solution | None]:
    """All pods on one node."""
    height, domain = gang.joint.height, level.domain
    if gang.limits.most:  # none of these groups has enough for all
        domain = array("i", [-1 if group >= 0 else n for n, group in zip(domain, gang.limits.group, strict=True)])
    best: tuple[int, int] | None = None  # price, node
    for first in range(0, height, NODES):
        node_price = gang.joint.alone(first, min(first + NODES, height), domain)
        if node_price is not None and (best is None or node_price[1] < best[0]):
            best = node_price[1], node_price[0]
        yield
    if best is None:
        return None
    return Solution([(best[1], tuple(gang.counts))], best[0], 1, proved=True, placed=True)


def _together(
    gang: _Gang, level: PlacementLevel, around: PlacementLevel | None = None
) -> Generator[None, None, Solution | None]:
    """All pods in one domain of a level. `around`: the level that this one divides, of which pods without GPUs may be
    anywhere in the domain."""
    best: Solution | None = None
    outer = {} if around is None else dict(zip(level.domain, around.domain, strict=True))
    for number, pods in _rooms(gang, level) if around is None else _rooms_around(gang, level, around, outer):
        if pods < sum(gang.counts):
            continue
        if around is None:
            solution = yield from _solved(gang, level, number)
        else:
            at = gang.joint.members(around.domain, outer[number])
            limits = gang.limits.only(level.domain, number, gang.sizes)
            solution = yield from solve(gang.joint, at, gang.counts, gang.budget, limits)
        gang.proved = gang.proved and solution.proved
        if solution.placed and (best is None or _key(solution) < _key(best)):
            best = solution
        yield
    return best


def _solved(gang: _Gang, level: PlacementLevel, number: int) -> Generator[None, None, Solution]:
    """All pods on the nodes of one domain."""
    return solve(gang.joint, gang.joint.members(level.domain, number), gang.counts, gang.budget, gang.limits)


def _key(solution: Solution) -> tuple[int, int]:
    return solution.price, len(solution.chosen)


def _rooms(gang: _Gang, level: PlacementLevel) -> list[tuple[int, int]]:
    """(domain, pods): the domains that may be chosen, and how many pods fit there at most, by each role alone."""
    counts, rooms = gang.counts, _by_role(gang, level)
    width = len(counts)
    return [
        (number, sum([min(count, rooms[number * width + c]) for c, count in enumerate(counts)]))
        for number in sorted(set(level.domain) - {-1})
    ]


def _rooms_around(
    gang: _Gang, level: PlacementLevel, around: PlacementLevel, outer: Mapping[int, int]
) -> list[tuple[int, int]]:
    """As `_rooms`, with pods without GPUs anywhere in the domain of `around`. `outer`: that of each domain."""
    counts, inner, wide = gang.counts, _by_role(gang, level), _by_role(gang, around)
    width = len(counts)
    confined = [bool(role.request.gpus) for role in gang.roles]
    rooms = [
        (number, [inner[number * width + c] if confined[c] else wide[outer[number] * width + c] for c in range(width)])
        for number in sorted(set(level.domain) - {-1})
    ]
    rooms.sort(key=lambda room: -sum(map(min, counts, room[1])))
    return [(number, sum(map(min, counts, by_role))) for number, by_role in rooms[:MOST_DOMAINS]]


def _by_role(gang: _Gang, level: PlacementLevel) -> Sequence[int]:
    """[domain, role]: how many pods of each role alone fit in each domain at most."""
    limits = gang.limits
    if not limits.most:
        return gang.joint.sums(level.domain, level.domains)
    width, groups = len(gang.counts), len(limits.most) + 1
    parts = array("i", [n * groups + g + 1 if n >= 0 else -1 for n, g in zip(level.domain, limits.group, strict=True)])
    sums = gang.joint.sums(parts, level.domains * groups)
    rooms = [0] * (level.domains * width)
    for at, room in enumerate(sums):
        part, c = divmod(at, width)
        number, group = divmod(part, groups)
        size = limits.sizes[c]
        rooms[number * width + c] += min(room, limits.most[group - 1] // size) if group and size else room
    return rooms


def _nowhere(gang: _Gang, level: PlacementLevel) -> Generator[None, None, NoPlace]:
    """Why not, by the domain that takes most."""
    level = _anchored(gang, level)
    bounds = sorted([(-pods, number) for number, pods in _rooms(gang, level)])
    best: tuple[Solution, int] | None = None
    for bound, number in bounds[:MOST_DOMAINS]:
        if best is not None and best[0].pods >= -bound:
            break
        solution = yield from _solved(gang, level, number)
        if best is None or solution.pods > best[0].pods:
            best = solution, number
        yield
    if best is None:
        if level.name == ANYWHERE:
            return NoPlace(0, None, "there is no node that may be chosen", gang.proved)
        text = f"no node that may be chosen is in a domain of level {level.name}"
        if not level.domains and (labels := (yield from unread(gang.cluster))):
            text += f": nodes have {', '.join(labels)}, which topologyLevels of the settings does not list"
        return NoPlace(0, None, text, gang.proved)
    solution, number = best
    domain = gang.domain(level, [level.domain.index(number)])
    proved = gang.proved and solution.proved
    where = "the cluster" if domain is None else f"any domain of {domain[0]}"
    if domain is not None and solution.pods:
        where = f"{domain[0]}={domain[1]}, the domain that takes most"
    text = f"{solution.pods} of {sum(gang.counts)} pods{NOW}{where}"
    return NoPlace(solution.pods, domain, text if proved else f"{text} (found by filling: more may fit)", proved)


def _placed(gang: _Gang, level: PlacementLevel, solution: Solution) -> Generator[None, None, Placed]:
    """The pods in their order on the chosen nodes in theirs."""
    pods_of_role = [iter(role.at) for role in gang.roles]
    size = sum(gang.counts)
    nodes, gpus = [0] * size, [0] * size
    for i, (node, counts) in enumerate(solution.chosen):
        if i % NODES == 0:
            yield
        masks = iter(gang.joint.gpus(node, counts) or ())
        for c, count in enumerate(counts):
            for _ in range(count):
                at = next(pods_of_role[c])
                nodes[at], gpus[at] = node, next(masks)
    used = {node for node, _ in solution.chosen}
    rows = tuple([gang.joint.row(node) for node in nodes])
    return Placed(
        rows=rows,
        gpus=tuple(gpus),
        domain=gang.domain(gang.asked, used) or gang.domain(level, used),
        proved=gang.proved and solution.proved,
        nodes=tuple([gang.names[row] for row in rows]),
        least=solution.least,
    )
