"""Searches a place for the pods of a gang on the tables as they are at another moment, or with other pods on them; and
starts a gang on its place by the tables as they are now."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Final

from extender.cluster.cluster import Cluster, ClusterView
from extender.cluster.slices import RUN, Sliced, pauses
from extender.cluster.tables import plain
from extender.objects.gangs import Ref
from extender.objects.gangs.jobset import JobSet
from extender.objects.queueing import Domain, rank_of
from extender.objects.records import PartDomain, PodRecord
from extender.policy.contracts import PodRequest
from extender.policy.roles import NODE
from extender.queue.gang import MOST_SEATS, StandIns, WaitingGang, job_of, present
from extender.queue.levels import domain_of_node, keys_of
from extender.queue.placement import GpuAllowance, JointPlacement, NodeChoice, NoPlace, Placed, Steps, Within
from extender.reservations.claims import Claims, of_others
from extender.reservations.seats import Seat, is_absent

MOST_MODELS: Final = 32
"""GPU models that are tried for all parts of a gang together."""
NO_ROWS: Final[Mapping[int, Sequence[str]]] = {}
JOBSETS: Final = f"{JobSet.name}:"
"""With this begin the names of JobSets in their seats."""


class Places:
    """Searches on one cluster. It changes nothing. `clock`: seconds on the server's clock."""

    def __init__(self, cluster: Cluster, claims: Claims, placement: JointPlacement, clock: Callable[[], float]) -> None:
        self._cluster, self._claims, self.placement, self._clock = cluster, claims, placement, clock

    def steps(
        self,
        gang: WaitingGang,
        pods: Sequence[PodRecord],
        requests: Sequence[PodRequest],
        counted: Counted,
        allowances: Sequence[GpuAllowance] = (),
        among: Collection[int] | None = None,
    ) -> Steps:
        """A place for every one of these pods of the gang, or none, beside its members. `requests`: of the pods;
        `allowances`, `among`: as of a `NodeChoice`; a gang whose parts are kept apart or together gets any nodes."""
        members = self._members(gang)
        holders = frozenset(row for pod, row in members if pod.gpu_count)
        if not (gang.apart or gang.part_domains):
            rows = [row for _, row in members]
            choice = NodeChoice(among, allowances, mixes=gang.mixes, holders=holders)
            return (yield from self.placement.steps(pods, requests, gang.domain, rows, counted(()), choice=choice))
        beside = Beside(counted, allowances, gang.mixes, holders)
        search = PartSearch(self._cluster, self.placement, (pods, requests), members, beside)
        if gang.apart:
            return (yield from search.apart(gang.apart, (yield from self._of_other_job_sets(gang))))
        return (yield from search.together(gang.part_domains, gang.domain))

    def enough(
        self,
        gang: WaitingGang,
        requests: Sequence[PodRequest],
        counted: Counted,
        allowances: Sequence[GpuAllowance] = (),
        among: Collection[int] | None = None,
    ) -> Steps:
        """A place for all pods of the gang (MOST_SEATS at once, where it need not start whole), else for the first of
        them, as many as fit, if these are enough to start it. `requests`: of all its pods; the others as of `steps`."""
        most = len(gang.pods) if gang.whole else min(len(gang.pods), MOST_SEATS)
        while True:
            result = yield from self.steps(gang, gang.pods[:most], requests[:most], counted, allowances, among)
            if isinstance(result, Placed):
                return result
            most = min(result.most, most - 1)
            if most < max(1, gang.needed):
                return result

    def _of_other_job_sets(self, gang: WaitingGang) -> Sliced[set[int]]:
        """Rows of the nodes with pods of other JobSets, and with their seats."""
        cluster, seats, own = self._cluster, self._claims.seats, gang.ref.text
        names = {seat.node for seat in seats if seat.gang != own and seat.gang.startswith(JOBSETS)}
        for (named, uids), pause in pauses(list(cluster.workloads.gang_pods.items()), RUN):
            if pause:
                yield
            if named.source == JobSet.name and named != gang.ref:
                names.update(pod.node for uid in uids if (pod := cluster.pods.get(uid)) is not None)
        return {row for name in names if (row := cluster.row(name)) >= 0}

    def counted(
        self,
        requests: Sequence[PodRequest],
        own: Collection[str],
        gone: Mapping[int, Sequence[str]] = NO_ROWS,
        taken: Sequence[Part] = (),
        starts_within: float = 0.0,
    ) -> Counted:
        """The tables as a search reads them: with the claims of all others, without the pods of `gone`, by row, and
        with the seats of `taken` and of further parts taken. `requests`: of the gang; `own`: uids that do not count;
        `starts_within`: as of `of_others`."""

        def with_parts(parts: Sequence[Part]) -> Within:
            @contextmanager
            def within(rows: Sequence[int]) -> Iterator[None]:
                ended = [uid for row in rows for uid in gone.get(row, ())]
                others = of_others(self._claims, requests, self._clock(), {*own, *ended}, starts_within=starts_within)
                with self._cluster.ended(ended), others:
                    for part in (*taken, *parts):
                        self._take(part, rows)
                    yield

            return within

        return with_parts

    def _take(self, part: Part, rows: Collection[int]) -> None:
        """Count the seats of other pods on these rows as taken, inside of the claims."""
        counted_rows = frozenset(rows)
        for counted, row, gpus in zip(part.amounts, part.placed.rows, part.placed.gpus, strict=True):
            if row in counted_rows:
                self._cluster.tables.nodes.add_claim(row, counted, gpus, False)
        for request, node in zip(part.requests, part.placed.nodes, strict=True):
            if request.others:
                self._cluster.placements.others.claim(node, request.others)

    def _members(self, gang: WaitingGang) -> list[tuple[PodRecord, int]]:
        """(member, row of its node) of its members that run, or have seats."""
        seats = self._claims.seats
        nodes = [(pod, pod.node or (seat.node if (seat := seats.of(pod.uid)) else "")) for pod in gang.members]
        return [(pod, self._cluster.row(node)) for pod, node in nodes if node]


# -- gangs whose parts are placed one after the other, each in one domain
#
# A JobSet with an exclusive topology: each of its Jobs in one domain, and no domain with two Jobs. The Jobs are placed
# one after the other, the largest first, each in a domain that no other Job uses, of this JobSet or of another one.
# Where every domain that takes a larger Job also takes a smaller one, as with equal pods, this finds a place whenever
# there is one; else it may miss one.
#
# A PodGang of Grove with parts that must each be in one domain: a scaling group in a block, its cliques in racks. All
# pods are placed as if nothing were required of the parts: pods of a gang are near each other, so most places keep to
# it. Where one does not, the parts are placed one after the other, the largest first, each in one domain, and then what
# is of no part; parts of a part likewise, within its domain. A place that is found keeps all domains; one may be
# missed.


MOST_PART_SEARCHES: Final = 256
"""Placements that are searched for the parts of one gang."""
MOST_TRIED: Final = 16
"""Domains that are tried for one part with parts of its own."""


@dataclass(frozen=True, slots=True)
class Part:
    """Pods that are placed already."""

    requests: Sequence[PodRequest]
    placed: Placed
    at: Sequence[int] = ()  # their places among the pods of the gang

    @property
    def amounts(self) -> Sequence[tuple[int, ...]]:
        """With which each counts."""
        return self.placed.amounts or [request.amounts for request in self.requests]


Counted = Callable[[Sequence[Part]], Within]
"""The tables that a search reads, with these parts taken too."""


@dataclass(frozen=True, slots=True)
class Beside:
    """What counts for all parts together."""

    within: Counted
    allowances: Sequence[GpuAllowance] = ()  # as of a `NodeChoice`
    mixes: bool = True  # as of a `NodeChoice`
    holders: Collection[int] = ()  # as of a `NodeChoice`


def kept_together(cluster: ClusterView, parts: Iterable[PartDomain], seated: Sequence[tuple[PodRecord, int]]) -> bool:
    """Whether the pods of each part are in one domain. `seated`: pods with the rows of their nodes."""
    for part in parts:
        keys = keys_of(part.level, cluster.settings.topology_levels)
        rows = {row for pod, row in seated if rank_of(pod)[0] in part.roles}
        domains = {domain_of_node(cluster, (NODE,) if NODE in keys else keys, row) for row in rows}
        if len(domains) > 1 or None in domains:
            return False
    return True


class PartSearch:
    """Searches a place for a gang with parts, on nodes of one GPU model where one has room. `pods`: its pods, with
    their `requests`; `members`: those that run, with the rows of their nodes."""

    def __init__(
        self,
        cluster: ClusterView,
        placement: JointPlacement,
        asked: tuple[Sequence[PodRecord], Sequence[PodRequest]],
        members: Sequence[tuple[PodRecord, int]],
        beside: Beside,
    ) -> None:
        self._cluster, self._placement, self._members, self._beside = cluster, placement, members, beside
        self._pods, self._requests = asked
        self._left = MOST_PART_SEARCHES

    def together(self, parts: Sequence[PartDomain], domain: Domain | None) -> Steps:
        """As `JointPlacement.steps`, for all pods, each of the parts in one domain."""
        everything = range(len(self._pods))
        whole = yield from self._place(everything, domain, None, self._beside, ())
        if isinstance(whole, NoPlace) or self._kept(parts, everything, whole):
            return whole
        asked, where = (everything, parts), (domain, whole, None)
        return (yield from self._of_each_model(lambda beside: self._parts(asked, where, beside, ())))

    def apart(self, level: str, others: Collection[int]) -> Steps:
        """As `JointPlacement.steps`, for the pods of all Jobs, each in a domain of its own. `others`: rows of the nodes
        with pods of other JobSets."""
        return self._of_each_model(lambda beside: self._jobs(level, others, beside))

    def _of_each_model(self, search: Callable[[Beside], Steps]) -> Steps:
        """On nodes of one model after the other, then of any."""
        for closed in self._closed_models():
            placed = yield from search(replace(self._beside, allowances=closed, mixes=True))
            if isinstance(placed, Placed):
                return placed
        return (yield from search(self._beside))

    def _closed_models(self) -> Iterator[Sequence[GpuAllowance]]:
        """For each GPU model that all parts may be on the allowances that leave it alone, those of whole GPUs first."""
        placement, beside = self._placement, self._beside
        rows, _ = placement.layout.read()
        models = placement.layout.models()
        if beside.mixes or models.domains < 2:
            return
        whole_rows = placement.whole(rows)
        model_of = dict(zip(rows, models.domain, strict=True))
        numbers = {model_of[row] for row in beside.holders if row in model_of} - {-1} or {*models.domain} - {-1}
        if beside.holders and len(numbers) > 1:
            return
        whole_numbers = {model_of[row] for row in whole_rows}
        for number in sorted(numbers, key=lambda number: (number not in whole_numbers, number))[:MOST_MODELS]:
            others = frozenset(row for row, of in model_of.items() if of not in (-1, number))
            yield (*beside.allowances, GpuAllowance(others, 0))

    def _place(
        self,
        at: Sequence[int],
        domain: Domain | None,
        among: Collection[int] | None,
        beside: Beside,
        before: Sequence[Part],
        part_of: Callable[[PodRecord], Hashable] = lambda pod: rank_of(pod)[0],
    ) -> Steps:
        """These pods, as if they had no parts. `among`: rows that may be chosen, None: all; `before`: the parts that
        have a place; `part_of`: equal for the pods of one part, of which those that run count as members."""
        self._left -= 1
        pods = self._pods
        placed = ((pods[pod], row) for part in before for pod, row in zip(part.at, part.placed.rows, strict=True))
        taken = [(row, pod.gpu_count) for pod, row in placed]
        allowances = [
            GpuAllowance(allowance.rows, allowance.most - sum(gpus for row, gpus in taken if row in allowance.rows))
            for allowance in beside.allowances
        ]
        holders = frozenset([*beside.holders, *(row for row, gpus in taken if gpus)])
        own = {part_of(pods[pod]) for pod in at}
        return self._placement.steps(
            [pods[pod] for pod in at],
            [self._requests[pod] for pod in at],
            domain,
            [row for pod, row in self._members if part_of(pod) in own],
            beside.within(before),
            choice=NodeChoice(among, allowances, mixes=beside.mixes, holders=holders),
        )

    def _part(self, at: Sequence[int], placed: Placed) -> Part:
        return Part([self._requests[pod] for pod in at], placed, at)

    # -- Jobs that are kept apart

    def _jobs(self, level: str, others: Collection[int], beside: Beside) -> Steps:
        jobs: dict[Hashable, list[int]] = {}
        for at, pod in enumerate(self._pods):
            jobs.setdefault(job_of(pod), []).append(at)
        running: dict[Hashable, list[int]] = {}
        for pod, row in self._members:
            running.setdefault(job_of(pod), []).append(row)
        yield
        rows, _ = self._placement.layout.read()
        domain_of = dict(zip(rows, self._placement.layout.asked(level).domain, strict=True))
        users: dict[int, Hashable] = {domain_of[row]: None for row in others if row in domain_of}
        users |= {domain_of[row]: job for job, job_rows in running.items() for row in job_rows if row in domain_of}
        own: list[Part] = []
        for job, members in sorted(jobs.items(), key=lambda entry: (entry[0] not in running, -len(entry[1]), entry[1])):
            yield
            free = frozenset(row for row, number in domain_of.items() if number >= 0 and users.get(number, job) == job)
            placed = yield from self._place(members, Domain(level, True), free, beside, own, job_of)
            if isinstance(placed, NoPlace):
                text = f"each of its {len(jobs)} Jobs needs a domain of {level} of its own, {len(own)} have one"
                return NoPlace(0, placed.domain, f"{text}: {placed.text}", proved=False, doubt=placed.doubt)
            own.append(self._part(members, placed))
            users[domain_of[placed.rows[0]]] = job
        return _joined(own)

    # -- parts that are kept together

    def _kept(self, parts: Iterable[PartDomain], at: Sequence[int], placed: Placed) -> bool:
        seated = [(self._pods[pod], row) for pod, row in zip(at, placed.rows, strict=True)]
        return kept_together(self._cluster, parts, [*seated, *self._members])

    def _parts(
        self,
        asked: tuple[Sequence[int], Sequence[PartDomain]],
        where: tuple[Domain | None, Placed, Collection[int] | None],
        beside: Beside,
        before: Sequence[Part],
    ) -> Steps:
        """Each of the parts of some pods for itself. `asked`: the pods and their parts; `where`: the domain, a place of
        all of them that does not keep to the parts, the rows that may be chosen."""
        (at, parts), most, why, doubt = asked, 0, "", None
        for around, named in self._domains(*where):
            own: list[Part] = []
            unplaced = [*at]
            for part in [*_outermost(parts), None]:
                members = [pod for pod in unplaced if part is None or rank_of(self._pods[pod])[0] in part.roles]
                domain = where[0] if part is None else Domain(part.level, True)
                inner = [] if part is None else [other for other in parts if other is not part and _inside(other, part)]
                result: Placed | NoPlace = NoPlace(0, None, f"{MOST_PART_SEARCHES} placements are tried", proved=False)
                if self._left > 0:
                    result = yield from self._place(members, domain, around, beside, (*before, *own))
                if isinstance(result, Placed) and not self._kept(inner, members, result):
                    result = yield from self._parts((members, inner), (domain, result, around), beside, (*before, *own))
                if isinstance(result, NoPlace):
                    doubt = doubt or result.doubt
                    why = result.text if part is None else f"{', '.join(part.roles)} in one {part.level}: {result.text}"
                    break
                own.append(self._part(members, result))
                unplaced = [pod for pod in unplaced if pod not in set(members)]
            else:
                placed = _joined(own, named)
                if self._kept(parts, at, placed):
                    return placed
                why = "its parts overlap"
            most = max(most, sum(len(part.at) for part in own))
        return NoPlace(most, None, why, proved=False, doubt=doubt)

    def _domains(
        self, domain: Domain | None, placed: Placed, among: Collection[int] | None
    ) -> list[tuple[Collection[int] | None, tuple[str, str] | None]]:
        """(rows, name) of the domains to try, that of a place first, then the largest; all rows without one."""
        if domain is None or not domain.required:
            return [(among, None)]
        rows, _ = self._placement.layout.read()
        level = self._placement.layout.asked(domain.level)
        rows_of: dict[int, list[int]] = {}
        for row, number in zip(rows, level.domain, strict=True):
            if number >= 0 and (among is None or row in among):
                rows_of.setdefault(number, []).append(row)
        first = placed.rows[0]
        tried = sorted(rows_of.values(), key=lambda domain_rows: (first not in domain_rows, -len(domain_rows)))
        return [
            (frozenset(of), level.of_node(self._cluster, of[0])) for of in tried[: 1 if self._members else MOST_TRIED]
        ]


def _joined(parts: Sequence[Part], domain: tuple[str, str] | None = None) -> Placed:
    """The place of the pods of all parts, by their places `at`. `domain`: the one that holds all."""
    of = [
        (at, part.placed.rows[i], part.placed.gpus[i], part.placed.nodes[i], part.amounts[i])
        for part in parts
        for i, at in enumerate(part.at)
    ]
    of.sort()
    return Placed(
        rows=tuple([row for _, row, _, _, _ in of]),
        gpus=tuple([gpus for _, _, gpus, _, _ in of]),
        domain=domain,
        proved=False,
        nodes=tuple([node for _, _, _, node, _ in of]),
        amounts=tuple([amounts for *_, amounts in of]) if any(part.placed.amounts for part in parts) else (),
        least=sum(part.placed.least for part in parts),
        doubt=next((part.placed.doubt for part in parts if part.placed.doubt is not None), None),
    )


def _outermost(parts: Sequence[PartDomain]) -> list[PartDomain]:
    """Those of the parts that are in no other one, the largest first."""
    outermost: list[PartDomain] = []
    for part in sorted(parts, key=lambda part: -len(part.roles)):
        if not any(_inside(part, other) for other in outermost):
            outermost.append(part)
    return outermost


def _inside(part: PartDomain, other: PartDomain) -> bool:
    return set(part.roles) <= set(other.roles)


# -- the start of a gang: its seats are judged by the tables as they are now, and reserved
#
# A gang may have thousands of pods, so this is done a part of its nodes after the other, each in one slice: its seats
# are judged and reserved at once. From then on they count for all others, so the first ones still stand when the last
# ones are judged.


SLICE_PODS: Final = 64  # pods that are judged in one slice
NO_PODS: Final[Mapping[str, Sequence[str]]] = {}


@dataclass(frozen=True, slots=True)
class GangStart:
    """A gang that starts now."""

    name: str  # as in its seats
    gang: WaitingGang
    seats: tuple[Seat, ...]
    placed: Placed


class Starts:
    """Judges and reserves the seats of gangs. `clock`: seconds on the server's clock."""

    def __init__(self, cluster: Cluster, claims: Claims, placement: JointPlacement, clock: Callable[[], float]) -> None:
        self._cluster, self._claims, self._placement, self._clock = cluster, claims, placement, clock

    def begin(self, gang: WaitingGang, pods: Sequence[PodRecord], placed: Placed) -> Sliced[GangStart | None]:
        """Reserve the seats of these pods of a gang; None: they do not all stand, and the seats are as before."""
        name, own, seats = gang.ref.text, self.own(gang), self._claims.seats
        new_seats: dict[int, Seat] = {}  # by the place of the pod
        before: list[Seat] = []  # what the gang gave up for it
        done = False
        try:
            for part in _slices(placed):
                if len(part) < len(pods):
                    yield
                waiting, where = self._waiting([pods[at] for at in part]), _slice(placed, part)
                if len(waiting) < len(part) or not self._fit(waiting, where, own):
                    return None
                new = seats_of(self._cluster, name, waiting, where, self._clock())
                before += [seat for seat_of_pod in new if (seat := seats.of(seat_of_pod.uid)) is not None]
                seats.reserve(new)
                new_seats |= zip(part, new, strict=True)
            seats.end_absent(name, new_seats.values())
            done = True
        finally:
            if not done:
                self._restore(new_seats.values(), before)
        return GangStart(name, gang, tuple([new_seats[at] for at in range(len(pods))]), placed)

    def stand(self, start: GangStart) -> Sliced[bool]:
        """Whether all pods of a gang that is not released yet still have their seats, by the tables as they are now."""
        seated = {seat.uid for seat in start.seats}
        pods = self._waiting([pod for pod in start.gang.pods if pod.uid in seated])
        return len(pods) == len(seated) and (yield from self.fit(pods, start.placed, self.own(start.gang)))

    def hold(self, seats: Sequence[Seat], stand_ins: StandIns, staying: Collection[str] = ()) -> Sliced[bool]:
        """Whether the pods of a gang still wait, and have these seats once the pods that they wait for are gone, by the
        tables as they are now. `staying`: uids of those that are not gone even then."""
        cluster, late = self._cluster, dict[str, PodRecord]()
        if any(seat.absent for seat in seats):
            named = Ref.of(seats[0].gang)
            late = {pod.uid: pod for pod in (yield from stand_ins.steps(named, present(cluster, named)))}
        pods = [pod for seat in seats if (pod := late.get(seat.uid) or cluster.pods.get(seat.uid)) is not None]
        rows = tuple([cluster.row(seat.node) for seat in seats])
        if len(pods) < len(seats) or not all(pod.waits for pod in pods) or min(rows) < 0:
            return False
        masks, nodes = tuple([seat.gpus for seat in seats]), tuple([seat.node for seat in seats])
        gone = {uid for seat in seats for uid in seat.awaits}.difference(staying)
        # What claims for one of several numbers take of a node is chosen with the node.
        amounts = tuple([seat.amounts for seat in seats]) if any(pod.claim_numbers for pod in pods) else ()
        placed = Placed(rows, masks, None, proved=False, nodes=nodes, amounts=amounts)
        return (yield from self.fit(pods, placed, {seat.uid for seat in seats}, gone))

    def fit(
        self, pods: Sequence[PodRecord], placed: Placed, own: Collection[str], gone: Collection[str] = ()
    ) -> Sliced[bool]:
        """Whether these pods have their places, by the tables as they are now. `own`: uids that do not count; `gone`:
        those of running pods that do not."""
        for part in _slices(placed):
            if len(part) < len(pods):
                yield
            if not self._fit([pods[at] for at in part], _slice(placed, part), own, gone):
                return False
        return True

    def seats(self, name: str, pods: Sequence[PodRecord], placed: Placed, at: float) -> Sliced[tuple[Seat, ...]]:
        """As `seats_of`, in slices. `at`: when the gang was released."""
        new_seats: dict[int, Seat] = {}
        for part in _slices(placed):
            if new_seats:
                yield
            part_pods = [pods[at_pod] for at_pod in part]
            new_seats |= zip(part, seats_of(self._cluster, name, part_pods, _slice(placed, part), at), strict=True)
        return tuple([new_seats[at_pod] for at_pod in range(len(pods))])

    def own(self, gang: WaitingGang) -> set[str]:
        """The uids under which the gang's own seats count: those of its pods, and its absent ones."""
        return {pod.uid for pod in gang.pods}.union(self._claims.seats.absent.get(gang.ref.text, ()))

    def _waiting(self, pods: Sequence[PodRecord]) -> list[PodRecord]:
        """Those of these pods that still wait for their seats, as they are now, and those that do not exist yet."""
        known_pods = self._cluster.pods
        known = [pod if is_absent(pod.uid) else known_pods.get(pod.uid) for pod in pods]
        return [pod for pod in known if pod is not None and pod.waits]

    def _fit(self, pods: Sequence[PodRecord], placed: Placed, own: Collection[str], gone: Collection[str] = ()) -> bool:
        requests = [self._claims.alone(pod) for pod in pods]
        ended = self._cluster.ended(gone) if gone else nullcontext()
        with ended, of_others(self._claims, requests, self._clock(), own, placed.rows):
            return self._placement.still_fits(placed, pods, requests)

    def _restore(self, reserved: Collection[Seat], before: Sequence[Seat]) -> None:
        """Take back what was made, and what stood there before. A pod whose seat was written since, by another reading
        of the maps, keeps that."""
        seats = self._claims.seats
        ours = {seat.uid for seat in reserved if seats.of(seat.uid) is seat}
        for uid in ours:
            seats.drop(uid)
        seats.reserve(seat for seat in before if seat.uid in ours)


def seats_of(
    cluster: Cluster,
    name: str,
    pods: Sequence[PodRecord],
    placed: Placed,
    now: float,
    awaits: Mapping[str, Sequence[str]] = NO_PODS,
) -> tuple[Seat, ...]:
    """The seats of the placed pods of a gang, in their order. `name`: as in the seats; `now`: on the server's clock;
    `awaits`: by node, the uids of the pods that are evicted there."""
    classes = cluster.device_classes.values()
    return tuple([
        Seat(
            pod.uid, f"{pod.namespace}/{pod.name}", name, node,
            placed.amounts[at] if placed.amounts else cluster.amounts(pod), gpus, pod.priority, now,
            *rank_of(pod), tuple(sorted(awaits.get(node, ()))), plain(pod.others, classes),
        )
        for at, (pod, node, gpus) in enumerate(zip(pods, placed.nodes, placed.gpus, strict=True))
    ])  # fmt: skip


def _slices(placed: Placed) -> Iterator[list[int]]:
    """The places of the pods, those of one node together, in parts of SLICE_PODS or a few more: all of a gang that has
    no more, in their order."""
    if len(placed.rows) <= SLICE_PODS:
        yield list(range(len(placed.rows)))
        return
    on: dict[int, list[int]] = {}
    for at, row in enumerate(placed.rows):
        on.setdefault(row, []).append(at)
    part: list[int] = []
    for on_node in on.values():
        part += on_node
        if len(part) >= SLICE_PODS:
            yield part
            part = []
    if part:
        yield part


def _slice(placed: Placed, part: Sequence[int]) -> Placed:
    """The placement of some of the pods."""
    if len(part) == len(placed.rows):
        return placed
    return Placed(
        tuple([placed.rows[at] for at in part]),
        tuple([placed.gpus[at] for at in part]),
        placed.domain,
        proved=False,
        nodes=tuple([placed.nodes[at] for at in part]),
        amounts=tuple([placed.amounts[at] for at in part if placed.amounts]),
    )
