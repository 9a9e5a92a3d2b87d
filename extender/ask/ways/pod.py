"""What helps a single pod that fits nowhere: its ways out, and the nearest miss."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from ext_core import survey
from extender.ask import machines
from extender.ask.judge import Judge
from extender.ask.nodes import TOO_FEW, JudgedNodes
from extender.ask.suppose import SupposedCluster
from extender.ask.text import LINKED, amount, count, is_bytes, seconds
from extender.ask.ways import Way, in_order, term
from extender.cluster.cluster import ClusterView
from extender.cluster.demand import LINKS
from extender.cluster.gpus import MOST_GPUS
from extender.decide.decisions import LINKS_ONLY
from extender.objects.records import PodRecord
from extender.policy.rules import Links
from extender.preemption import certificate
from extender.preemption.search import OTHER, Eviction, Preemptor, SearchResult, ends, others_short, waits_on
from extender.queue.report import first_names
from extender.reservations.reservations import Reservation

MOST_NAMED: Final = 3
"""Pods that a text names."""


class Help(NamedTuple):
    """What helps."""

    ways: Sequence[Way]
    """The cheapest first."""
    nearest: dict[str, Any] | None
    fits: bool
    """Whether the pod may fit on a node that exists, as of `machines.Empty`."""


def helping(supposed: SupposedCluster, asked: Preemptor, nodes: JudgedNodes, search: SearchResult) -> Help:
    """`search`: for an eviction; none is a way out while pods are evicted for the pod."""
    judge, over = supposed.judge, supposed.over
    on_empty = machines.empty(judge, asked)
    if on_empty.like and not _copy_meets_claims(supposed, asked, on_empty.like):
        on_empty = on_empty._replace(like="")
    waiting = None if over() else wait(judge, asked, nodes)
    under_way = waiting is not None and any(passing["what"] == "victim" for passing in waiting.spec["for"])
    ways = [None if under_way else evict(judge, asked, nodes, search), add_nodes(judge, on_empty), waiting]
    for steps in (uncordon, relax_links):
        if not over():
            ways.append(steps(judge, asked, nodes))
    if not over():
        ways += [fewer_gpus(judge, asked, nodes), *(less(judge, asked, nodes, r) for r in range(len(AMOUNT_FIELDS)))]
    known = in_order([way for way in ways if way is not None])
    return Help(known, nearest(judge, asked, nodes), on_empty.fits)


def _copy_meets_claims(supposed: SupposedCluster, asked: Preemptor, name: str) -> bool:
    """Whether one more node like this one, with all its devices free, meets the claims of the pod, or that is not
    known."""
    fits = supposed.cluster.dra.fits
    claims, like = fits.of(asked.pod), supposed.cluster.nodes[name]
    if claims is None:
        return True
    added = machines.copy(like)
    supposed.add_nodes(like, [added])
    try:
        return not fits.rejects(supposed.cluster.nodes[added.name], claims)
    finally:
        supposed.drop_nodes([added])


# -- what the pod itself may ask for instead

AMOUNT_FIELDS: Final = ("cpu_milli", "memory")
"""The fields of a pod's CPU and memory, by their index in the tables."""


def changed(judge: Judge, asked: Preemptor, pod: PodRecord) -> Preemptor:
    """The question for the pod with another specification."""
    return msgspec.structs.replace(asked, pod=pod, request=judge.claims.request(pod, asked.now))


def with_gpus(pod: PodRecord, gpus: int) -> PodRecord | None:
    """The pod with other GPUs; None where more than one container asks for them: which one is to have fewer?"""
    if len(pod.gpus) != 1 or len(pod.gpu_containers) != 1:
        return None
    ((resource, _),), ((container, _, _),) = pod.gpus, pod.gpu_containers
    return msgspec.structs.replace(pod, gpus=((resource, gpus),), gpu_containers=((container, resource, gpus),))


def with_links(pod: PodRecord) -> PodRecord:
    """The pod that only prefers links."""
    return msgspec.structs.replace(pod, annotations={**pod.annotations, LINKS: "preferred"})


def _place(judge: Judge, asked: Preemptor, names: Sequence[str]) -> str:
    """The best of these nodes, judged once more; "" where the pod fits on none of them."""
    node = judge.place(asked, names)
    return node if node and judge.fits(asked, node) else ""


def relax_links(judge: Judge, asked: Preemptor, nodes: JudgedNodes) -> Way | None:
    """Whether the pod fits where links are only preferred: there is no smaller step."""
    if asked.request.links != "required" or asked.request.wanted < 2:
        return None
    relaxed = changed(judge, asked, with_links(asked.pod))
    if not (node := _place(judge, relaxed, nodes.open)):
        return None
    return Way(
        "relax-links",
        f"set {LINKS}: preferred (it fits on {node})",
        {"annotation": LINKS, "value": "preferred", "node": node},
    )


def fewer_gpus(judge: Judge, asked: Preemptor, nodes: JudgedNodes) -> Way | None:
    """The most GPUs with which the pod fits, all else as it is."""
    if with_gpus(asked.pod, 1) is None:
        return None
    ((resource, was),) = asked.pod.gpus
    most = _most_free(judge, asked, nodes)
    if asked.request.links == "required":
        most = min(most, MOST_GPUS)  # of more GPUs no links are known

    def fits(gpus: int) -> Way | None:
        pod = with_gpus(asked.pod, gpus)
        assert pod is not None
        fewer = changed(judge, asked, pod)
        if not (node := _place(judge, fewer, nodes.open)):
            return None
        return Way(
            "smaller",
            f"ask for {amount(resource, gpus)} instead of {was:,} (it fits on {node})",
            {"resource": resource, "was": was, "is": gpus, "unit": "GPUs", "node": node},
            (term("given_up", was - gpus, "GPUs"),),
            (0.0, (was - gpus) / was),
        )

    return most_gpus(min(was - 1, most), fits)


def most_gpus(most: int, fits: Callable[[int], Way | None]) -> Way | None:
    """The way with the most GPUs, `most` or fewer. `fits`: the way with this many, None where they do not fit.

    Of more than MOST_GPUS no links are known: what fits with more of them fits with fewer, so they are bisected. A node
    may state a million GPUs."""
    best, low, high = None, MOST_GPUS, most
    while low < high:
        middle = (low + high + 1) // 2
        way = fits(middle)
        if way is None:
            high = middle - 1
        else:
            best, low = way, middle
    for gpus in range(min(most, MOST_GPUS), 0, -1):
        if best is not None:
            break
        best = fits(gpus)
    return best


def _most_free(judge: Judge, asked: Preemptor, nodes: JudgedNodes) -> int:
    """The most GPUs that are free on one node: with more it fits nowhere."""
    free = survey.free(judge.cluster.tables.nodes, asked.request.resource, judge.rows(nodes.open))
    return max(free, default=0)


def less(judge: Judge, asked: Preemptor, nodes: JudgedNodes, r: int) -> Way | None:
    """The most CPU or memory (by its index in the tables) with which the pod fits, where it is all that is missing."""
    names = [name for name, short in nodes.short.items() if short == (r,) and name not in nodes.repelled]
    rows = judge.rows(names)
    with judge.claims.of(asked.request, asked.now):
        free = survey.free(judge.cluster.tables.nodes, r, rows)
    best, was = max(free, default=0), asked.request.amounts[r]
    if not 0 < best < was:
        return None
    resource, where = judge.cluster.resources[r], judge.cluster.names[rows[free.index(best)]]
    pod = msgspec.structs.replace(asked.pod, **{AMOUNT_FIELDS[r]: best})
    if not judge.fits(changed(judge, asked, pod), where):
        return None
    return Way(
        "smaller",
        f"ask for {amount(resource, best)} instead of {amount(resource, was)} (it fits on {where})",
        {"resource": resource, "was": was, "is": best, "unit": UNITS[r], "node": where},
        (term("given_up", was - best, UNITS[r]),),
        (1.0 + r, (was - best) / was),
    )


# -- the nearest miss: the node where least is missing, and how much.

LINK_CODES: Final = frozenset(reason.code for reason in Links.reasons)
MOST_SIZES: Final = 32
"""Sizes of linked sets that are tried, from the pod's own downward."""
UNITS: Final = ("millicores", "bytes", "pods")
OTHER_UNITS: Final = ("units", "bytes of the resource")
"""Of resources that are no columns of the tables: in numbers, in bytes."""
Missing = dict[str, Any]


def nearest(judge: Judge, asked: Preemptor, nodes: JudgedNodes) -> dict[str, Any] | None:
    """The node where the fewest GPUs are missing, then the least part of CPU, memory and pod slots, then the first by
    name; None where no node that admits the pod lacks only amounts and links. Claims count as taken."""
    linked = _linked_sizes(judge, asked, [name for name in nodes.open if nodes.codes[name] in LINK_CODES])
    lacks = [name for name in nodes.open if nodes.codes[name] in TOO_FEW or name in linked or nodes.short.get(name)]
    best: tuple[int, float, str] | None = None
    missing: list[Missing] = []
    cluster, rows = judge.cluster, judge.rows(lacks)
    short_of = array("i", [linked.get(cluster.names[row], -1) for row in rows])
    with judge.claims.of(asked.request, asked.now):
        least = survey.nearest(cluster.tables.nodes, asked.request.ask, rows, short_of)
        if least is not None:
            at, gpus, rest = least
            name = cluster.names[rows[at]]
            best, missing = (gpus, rest, name), _missing_on(judge, asked, rows[at], linked.get(name))
    for name in lacks if asked.request.others else ():
        offered = cluster.nodes[name].gpus
        if nodes.short.get(name) != (OTHER,) or not all(offered.get(gpu) for gpu, _ in asked.pod.gpus):
            continue
        with judge.claims.of(asked.request, asked.now):
            short = others_short(cluster, asked.request, name)
        rest = sum((wanted - max(0, free)) / wanted for _, free, wanted in short)
        if best is None or (0, rest, name) < best:
            best, missing = (0, rest, name), _missing_others(short)
    return None if best is None else {"node": best[2], "missing": missing}


def _missing_others(short: Sequence[tuple[str, int, int]]) -> list[Missing]:
    return [
        {"what": what, "have": max(0, free), "need": wanted, "unit": OTHER_UNITS[is_bytes(what)]}
        for what, free, wanted in short
    ]


def _missing_on(judge: Judge, asked: Preemptor, row: int, linked: int | None) -> list[Missing]:
    """What is missing on a node. `linked`: the most free GPUs that are linked; None: links are not what is missing."""
    resources, request = judge.cluster.resources, asked.request
    free = judge.cluster.tables.nodes.free_of(row)
    missing = [
        {"what": resources[r], "have": max(0, free[r]), "need": wanted, "unit": "GPUs" if r > 2 else UNITS[r]}
        for r, wanted in enumerate(request.amounts)
        if wanted and wanted > free[r]
    ]
    missing += _missing_others(others_short(judge.cluster, request, judge.cluster.names[row]))
    if linked is not None:
        missing.append({"what": LINKED, "have": linked, "need": request.wanted, "unit": "GPUs"})
    return missing


def _linked_sizes(judge: Judge, asked: Preemptor, names: list[str]) -> dict[str, int]:
    """By node: for how many GPUs, fewer than the pod asks for, the rules pass it."""
    linked: dict[str, int] = {}
    if with_gpus(asked.pod, 1) is None:
        return linked
    most = asked.request.wanted - 1
    unlinked = names
    for size in range(most, max(0, most - MOST_SIZES), -1):
        pod = with_gpus(asked.pod, size)
        assert pod is not None
        passed = judge.passed(changed(judge, asked, pod), unlinked)
        linked.update(dict.fromkeys(passed, size))
        unlinked = [name for name in unlinked if name not in linked]
        if not unlinked:
            break
    return linked


# -- the cheapest eviction of running pods: a smaller one costs less, by the cost terms of the settings in their order


def search_victims(judge: Judge, asked: Preemptor, nodes: JudgedNodes) -> SearchResult:
    """The eviction that preempt would find over all nodes that admit the pod, and the node for which it would wait
    first; time does not end the search."""
    cluster, rows = judge.cluster, judge.rows(nodes.open)
    with judge.claims.of(asked.request, asked.now):
        result = judge.search.find(asked, rows, limited=False)
        codes = judge.policy.judge(cluster.tables, asked.request, rows)
        return msgspec.structs.replace(result, waits_on=waits_on(cluster, asked, rows, codes, result.best))


def above_ceiling(judge: Judge, search: SearchResult) -> str:
    """What the cheapest eviction would cost where every one is above the ceiling; "" else."""
    if search.above is None or search.ceiling is None:
        return ""
    return search.ceiling.above(judge.policy, search.above.cost)


def evict(judge: Judge, asked: Preemptor, nodes: JudgedNodes, search: SearchResult) -> Way | None:
    """The way out by the eviction that was found; None: there is none, or the pod may not preempt. To wait is enough
    where all victims are terminating."""
    best = search.best
    if best is None or asked.request.never or all(victim.terminating for victim in best.pods):
        return None
    return _eviction(judge, asked, nodes, best, proved=search.proved) if _makes_room(judge, asked, best) else None


def _makes_room(judge: Judge, asked: Preemptor, best: Eviction) -> bool:
    """Whether our own filter passes the pod without the victims, CPU, memory and other resources looked at."""
    gone = {pod.uid for pod in best.pods}
    with judge.claims.of(asked.request, asked.now), judge.cluster.without(gone, best.node):
        codes = judge.policy.judge(judge.cluster.tables, asked.request, array("i", [best.row]))
        return not codes[0] and not judge.short(asked, best.row)


def _eviction(judge: Judge, asked: Preemptor, nodes: JudgedNodes, best: Eviction, *, proved: bool) -> Way:
    cluster, settings = judge.cluster, judge.cluster.settings
    victims = certificate.important(best.pods)
    cost = certificate.cost_of(judge.policy, best)
    names = [f"{pod.namespace}/{pod.name}" for pod in victims]
    needs: tuple[str, ...] = ()
    if asked.pod.gated:
        needs = ("eviction-by-hand",)  # neither kube-scheduler nor the queue evicts for a pod behind a gate
    elif (
        LINKS_ONLY[nodes.codes[best.node]] and not settings.evictable_as_failed_nodes and not settings.evictions.enabled
    ):
        needs = ("evictions.enabled",)
    return Way(
        "evict",
        f"evict {first_names(names, MOST_NAMED)} on {best.node}{certificate.breaks(cluster, victims)}",
        {"node": best.node, "victims": [certificate.victim(cluster, pod) for pod in victims], "proved": proved},
        cost,
        tuple(map(float, best.cost)),
        needs,
    )


# -- what ends by itself: assumed pods, reservations, nominated pods and seats that are counted, and pods that terminate
#
# Each node is looked at alone: of what is to end there as much as is needed, the soonest first. A smaller wait ends
# sooner; where no time is known, later than any known time.


class Passing(NamedTuple):
    """What ends on a node."""

    seconds: float
    """Until then; infinite where not known."""
    what: str
    """assumed, reservation, nominated, seat, terminating, or victim (of this pod, and not terminating yet)."""
    uid: str
    pod: str
    text: str
    """For people."""

    @property
    def running(self) -> bool:
        """Whether it is a pod on the node, and no claim."""
        return self.what in ("terminating", "victim")


def wait(judge: Judge, asked: Preemptor, nodes: JudgedNodes) -> Way | None:
    """The soonest moment at which the pod fits by what ends by itself."""
    passing: dict[str, list[Passing]] = {}
    for node, claim in claimed(judge, asked):
        passing.setdefault(node, []).append(claim)
    cluster, terminating_on = judge.cluster, set[str]()
    for row in survey.terminating(cluster.tables.pods):
        pod = cluster.pods.get(cluster.pod_rows.uids[row])
        if pod is not None and ends(pod, asked.wall):
            terminating_on.add(pod.node)
    for name in terminating_on.intersection(nodes.open):
        for pod in cluster.pods_on(name):
            if ends(pod, asked.wall):
                passing.setdefault(name, []).append(terminating(pod, asked.wall))
    best: tuple[float, int, str] | None = None
    chosen: list[Passing] = []
    for name in sorted(passing.keys() & nodes.open):
        on_node = sorted(passing[name])
        if nodes.bare[name] in TOO_FEW and not any(due.running for due in on_node):
            continue  # even without any claim too few GPUs are free
        needed = _needed_ends(judge, asked, name, on_node)
        if needed and (best is None or (needed[-1].seconds, len(needed), name) < best):
            best, chosen = (needed[-1].seconds, len(needed), name), needed
    if best is None or not _fits_after(judge, asked, best[2], chosen):
        return None
    return wait_for({"node": best[2]}, chosen)


def claimed(judge: Judge, asked: Preemptor) -> Iterator[tuple[str, Passing]]:
    """What other pods claim, by node, as far as it counts for this pod: each with the node that it is claimed on."""
    claims, cluster, request, now = judge.claims, judge.cluster, asked.request, asked.now
    for pod in claims.assumed.current(now, unheard=request.links == "required" or request.by_position):
        if pod.uid == request.uid:
            continue
        remaining = max(0.0, pod.until - now)
        name = _pod_name(judge, pod.uid)
        text = f"{name}, which is assumed on {pod.node}"
        text += ", to be seen in the watch" if pod.bound else f", for {seconds(remaining)} at most (hold.seconds)"
        yield pod.node, Passing(remaining, "assumed", pod.uid, name, text)
    for seat in claims.seats:
        if seat.priority >= request.priority and seat.uid != request.uid:
            yield (
                seat.node,
                Passing(math.inf, "seat", seat.uid, seat.pod, f"{seat.pod}, which has a seat on {seat.node}"),
            )
    for reservation in claims.reservations.current(now):
        own = reservation.uid == request.uid
        if own or claims.reservations.precedes(reservation, request.uid, request.priority):
            remaining = max(0.0, reservation.at + claims.reservations.seconds + reservation.grace - now)
            text = f"{reservation.pod}, for which GPUs on {reservation.node} are reserved, "
            text += f"for {seconds(remaining)} at most"
            if own:
                yield from _own_victims(judge, reservation, now)
            else:
                yield reservation.node, Passing(remaining, "reservation", reservation.uid, reservation.pod, text)
    for uid, node in cluster.placements.nominated.items():
        other = cluster.pods.get(uid)
        if other is not None and other.priority >= request.priority and uid != request.uid:
            name = f"{other.namespace}/{other.name}"
            yield node, Passing(math.inf, "nominated", uid, name, f"{name}, which is nominated to {node}")


def _own_victims(judge: Judge, own: Reservation, now: float) -> Iterator[tuple[str, Passing]]:
    """The victims of the pod's own reservation that do not terminate yet. Those that save their work are evicted when
    their time is over, at the latest."""
    saves = own.own and own.wait > 0
    saving = max(0.0, own.at + own.wait - now)
    remaining = max(0.0, own.at + own.wait + own.grace - now) if saves else math.inf
    how = "which is being evicted for it"
    if saves:
        how = f"which saves its work before it is evicted (at most {saving:.0f} s, then {own.grace:.0f} s of grace)"
    for uid in own.victims:
        pod = judge.cluster.pods.get(uid)
        if pod is not None and not pod.terminating:
            name = f"{pod.namespace}/{pod.name}"
            yield own.node, Passing(remaining, "victim", uid, name, f"{name} on {own.node}, {how}")


def _pod_name(judge: Judge, uid: str) -> str:
    pod = judge.cluster.pods.get(uid)
    return f"{pod.namespace}/{pod.name}" if pod is not None else f"uid {uid}"


def terminating(pod: PodRecord, wall: float) -> Passing:
    """The end of a pod that is terminating."""
    remaining = math.inf if pod.deletion_at is None else max(0.0, pod.deletion_at - wall)
    name = f"{pod.namespace}/{pod.name}"
    when = "" if math.isinf(remaining) else f" ({seconds(remaining)} of grace left)"
    return Passing(remaining, "terminating", pod.uid, name, f"{name}, which is terminating on {pod.node}{when}")


def for_terminating(cluster: ClusterView, node: str, wall: float) -> str:
    """The wait for all pods that are terminating on the node, for people."""
    ending = sorted(terminating(pod, wall) for pod in cluster.pods_on(node) if pod.terminating)
    return wait_for({"node": node}, ending).change


def _needed_ends(judge: Judge, asked: Preemptor, node: str, on_node: list[Passing]) -> list[Passing]:
    """As many of what is on the node, the first ones, as have to end so that the pod fits; none where all are not
    enough. What ends at one moment ends together."""
    for last, passing in enumerate(on_node, 1):
        together = last < len(on_node) and on_node[last].seconds == passing.seconds and not math.isinf(passing.seconds)
        if not together and _fits_after(judge, asked, node, on_node[:last]):
            return on_node[:last]
    return []


def _fits_after(judge: Judge, asked: Preemptor, node: str, gone: list[Passing]) -> bool:
    if judge.cluster.row(node) < 0:
        return False
    claims = frozenset(passing.uid for passing in gone if not passing.running)
    pods = {passing.uid for passing in gone if passing.running}
    if not pods:
        return judge.fits(asked, node, claims)
    with judge.cluster.without(pods, node):
        return judge.fits(asked, node, claims)


def wait_for(where: Mapping[str, Any], chosen: list[Passing]) -> Way:
    """The wait for all of them, the latest one last. `where`: what the specification states of the nodes."""
    last = chosen[-1].seconds
    known = None if math.isinf(last) else round(last, 1)
    return Way(
        "wait",
        "wait for " + " and ".join(_texts_of_wait(chosen, str(where.get("node") or ""))),
        {**where, "for": [{"what": passing.what, "pod": passing.pod, "uid": passing.uid} for passing in chosen]},
        (term("seconds", known, "seconds"),),
        (last,),
    )


def _texts_of_wait(chosen: list[Passing], node: str) -> list[str]:
    """What ends, for people: several pods that are terminating on the node in one text."""
    ending = [passing for passing in chosen if passing.what == "terminating"]
    if len(ending) < 2 or not node:
        return [passing.text for passing in chosen]
    names = first_names([passing.pod for passing in ending], MOST_NAMED)
    last = ending[-1].seconds
    when = "" if math.isinf(last) else f" ({seconds(last)} of grace left)"
    together = f"{len(ending)} pods that are terminating on {node}{when}: {names}"
    return [*(passing.text for passing in chosen if passing.what != "terminating"), together]


# -- a machine that may not be used, and one that does not exist: there is no smaller change


def uncordon(judge: Judge, asked: Preemptor, nodes: JudgedNodes) -> Way | None:
    """Whether the pod fits on a node that only a cordon keeps it off: the best of these."""
    if not (node := _place(judge, asked, nodes.cordoned)):
        return None
    return Way("uncordon", f"uncordon {node}", {"node": node}, (term("nodes", 1, "nodes"),))


def add_nodes(judge: Judge, on_empty: machines.Empty) -> Way | None:
    """One more machine of the smallest kind that takes the pod."""
    node = judge.cluster.nodes.get(on_empty.like)
    if node is None:
        return None
    gpus = sum(node.gpus.values())
    return Way(
        "add-nodes",
        f"add a node like {node.name} ({count(gpus, 'GPU')})",
        {"count": 1, "like": node.name},
        (term("nodes", 1, "nodes"), term("gpus", gpus, "GPUs")),
    )
