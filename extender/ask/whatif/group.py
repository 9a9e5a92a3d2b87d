"""What would happen to a gang: all its pods at once, or none, where the joint placement puts them; else the cheapest
eviction that makes room for all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from extender.ask import nodes as judged_nodes
from extender.ask.nodes import JudgedNodes
from extender.ask.suppose import SupposedCluster
from extender.ask.ways.gang import Situation, over_quota, situated
from extender.ask.whatif import single
from extender.ask.whatif.running import running
from extender.ask.whatif.single import warning
from extender.cluster.cluster import ClusterView
from extender.cluster.slices import Pace, finish
from extender.cluster.statements import gpus_of
from extender.errors import BadInput
from extender.objects import gangs
from extender.objects.queueing import is_queued, opened
from extender.objects.records import PodRecord
from extender.policy.contracts import PodRequest
from extender.policy.roles import Unplaceable, roles_of
from extender.preemption import certificate
from extender.preemption.candidates import Preemptor
from extender.preemption.gang_plan import GangSearch, GangSearchResult, cost_of, gang_certificate
from extender.queue.eviction_plan import EvictionPlanner, unsearched
from extender.queue.gang import WaitingGang
from extender.queue.placement import GpuAllowance, JointPlacement, NoPlace, Placed, not_modelled
from extender.queue.places import NO_ROWS, Places
from extender.queue.plan import QueueHead

LIMIT_MILLISECONDS: Final = 3_000.0
"""CPU time of the eviction search for a live server: then the best plan that is known counts, as not proved."""


@dataclass(frozen=True, slots=True)
class Seating:
    """Where the pods of a gang go."""

    placed: Placed | None = None
    """The joint placement without the `victims`; None: nowhere."""
    victims: tuple[PodRecord, ...] = ()
    found: GangSearchResult | None = None


@dataclass(frozen=True, slots=True)
class Grouped:
    """The answer about a gang."""

    group: dict[str, Any]
    """As JSON."""
    results: list[dict[str, Any]]
    """Of each of its pods, in the order of `pods`."""
    pods: Sequence[PodRecord]
    seating: Seating
    warnings: Sequence[Mapping[str, str]] = ()


@dataclass(frozen=True, slots=True)
class Task:
    """A gang on the copy."""

    snapshot: SupposedCluster
    gang: WaitingGang
    """Whole, so that all its pods start together."""
    requests: tuple[PodRequest, ...]
    asked: Preemptor
    """The question for its first pod with GPUs."""
    placement: JointPlacement
    own: frozenset[str]
    queued: bool
    """Whether its pods wait behind our gate, so that the rules of their queue count."""

    @classmethod
    def of(cls, snapshot: SupposedCluster, gang: WaitingGang, wall: float) -> Task:
        """BadInput: none of its pods asks for a GPU."""
        queued = any(map(is_queued, gang.pods))
        gang = replace(gang, pods=tuple(map(opened, gang.pods)), whole=True)
        requests = tuple(map(snapshot.claims.alone, gang.pods))
        first = next((at for at, request in enumerate(requests) if request.gpus), None)
        if first is None:
            wanted = ", ".join(snapshot.cluster.resources[3:])
            raise BadInput(f"no pod of it asks for a GPU ({wanted})", path=f"gang {gang.ref}")
        asked = Preemptor(requests[first], gang.pods[first], snapshot.now, wall)
        own = frozenset(pod.uid for pod in (*gang.pods, *gang.members))
        placement = JointPlacement(snapshot.cluster, snapshot.judge.policy)
        return cls(snapshot, gang, requests, asked, placement, own, queued)

    def place(
        self,
        pods: int | None = None,
        without: frozenset[str] = frozenset(),
        allowances: Sequence[GpuAllowance] = (),
        gone: Mapping[int, Sequence[str]] = NO_ROWS,
    ) -> Placed | NoPlace:
        """A place for the first `pods` of the gang, None: all, which stands by the rules. `without`: uids of other pods
        whose claims do not count; `allowances`: as of a `Choice`; `gone`: uids of pods that do not run, by row."""
        snapshot, gang_pods, requests = self.snapshot, self.gang.pods[:pods], self.requests[:pods]
        places = Places(snapshot.cluster, snapshot.claims, self.placement, lambda: snapshot.now)
        counted = places.counted(requests[0], self.own | without, gone)
        return finish(places.steps(self.gang, gang_pods, requests, counted, allowances))


def judge(snapshot: SupposedCluster, gang: WaitingGang, wall: float, *, evicts: bool = True) -> Grouped:
    """What happens to a gang on the copy as it is: nothing is placed yet. `evicts`: whether pods may be evicted for it.
    BadInput: none of its pods asks for a GPU."""
    from extender.ask.whatif import group_ways  # it places gangs, too

    task = Task.of(snapshot, gang, wall)
    snapshot.cluster.at(wall)
    warnings = list(_about(task, gang))
    why = _incomplete(gang)
    seating, proved, now, none = Seating(), True, None, NoPlace(0, None, why)
    if not why:
        now = situated(snapshot.judge, task.gang, ruled=task.queued)
        outcome = task.place(allowances=now.allowances)
        if isinstance(outcome, NoPlace) and now.allowances:
            outcome = task.place()
        proved = outcome.proved
        if isinstance(outcome, NoPlace):
            none, why = outcome, outcome.text
            seating = Seating() if unsearched(task.gang) or not evicts else _evicting(task, now)
            proved = proved and (seating.found is None or seating.found.proved)
        else:
            now = replace(now, placed=outcome)
            seating = Seating(outcome)
        if seating.placed is not None and (refused := over_quota(replace(now, placed=seating.placed))) is not None:
            now, why, seating = replace(now, over=refused), refused.text, Seating()
    nodes = _by_pod(task)
    verdict = "cannot" if seating.placed is None else "evict" if seating.victims else "fits"
    group = _group(task, verdict, seating, proved=proved)
    if verdict == "evict" and all(victim.terminating for victim in seating.victims):
        warnings.append(single.enough_to_wait(seating.victims))
    if verdict != "fits":
        group["text"] = why
        group["ways_out"] = [] if now is None else group_ways.ways(task, now, seating)
        group["nearest"] = None if now is None else group_ways.nearest(task, none)
        if snapshot.over():
            warnings.append(single.OUT_OF_TIME)
    results = [_result(task, at, nodes[at], group, seating) for at in range(len(gang.pods))]
    return Grouped(group, results, gang.pods, seating, warnings)


def carry_out(snapshot: SupposedCluster, grouped: Grouped) -> None:
    """Place the pods on the copy, and evict their victims."""
    placed = grouped.seating.placed
    if placed is None:
        return
    snapshot.evict(grouped.seating.victims)
    for at, (pod, node, mask) in enumerate(zip(grouped.pods, placed.nodes, placed.gpus, strict=True)):
        snapshot.place(pod, node, mask, placed.amounts[at] if placed.amounts else ())


def _incomplete(gang: WaitingGang) -> str:
    """Why it cannot start wherever there is room, "" where nothing hinders it."""
    present = len(gang.pods) + len(gang.members)
    if present < gang.minimum:
        return f"{present} of the {gang.minimum} pods that it needs to start are there"
    return ""


def _evicting(task: Task, now: Situation) -> Seating:
    """The cheapest eviction after which all pods have a place."""
    snapshot, gang = task.snapshot, task.gang
    search = GangSearch(snapshot.cluster, snapshot.judge.policy, snapshot.settings.preemption)
    planner = EvictionPlanner(
        snapshot.cluster, snapshot.claims, task.placement, search, lambda: snapshot.now, lambda: task.asked.wall
    )
    pace = Pace(0.0, LIMIT_MILLISECONDS) if snapshot.live else Pace()
    evicted = finish(planner.cheapest(QueueHead(gang, now.queues), gang.pods, (), pace))
    return Seating(evicted.placed, evicted.victims, evicted.search)


def _by_pod(task: Task) -> list[JudgedNodes | None]:
    """Of each pod how its own nodes are judged; pods of one role share that. None: it asks for no GPU."""
    snapshot, gang = task.snapshot, task.gang
    nodes_by_pod: list[JudgedNodes | None] = [None] * len(gang.pods)
    try:
        roles = roles_of(task.snapshot.cluster, gang.pods, task.requests)
    except Unplaceable:
        return nodes_by_pod
    for role in roles:
        if role.request.gpus and not snapshot.over():
            asked = task.asked._replace(request=role.request, pod=role.pod)
            nodes = judged_nodes.read(snapshot.judge, asked)
            for at in role.at:
                nodes_by_pod[at] = nodes
    return nodes_by_pod


def _group(task: Task, verdict: str, seating: Seating, *, proved: bool) -> dict[str, Any]:
    """The JSON form."""
    snapshot, gang, placed, search = task.snapshot, task.gang, seating.placed, seating.found
    best = None if search is None else search.best
    domain = None if placed is None else placed.domain
    proof = {
        "proved": True,
        "nodes_examined": len(snapshot.cluster.nodes),
        "sets_examined": 0,
        "runner_up": None,
        "lost_on": None,
    }
    if search is not None:
        proof = gang_certificate(snapshot.cluster, search)
    return {
        "gang": str(gang.ref),
        "source": gang.ref.source,
        "min": gang.minimum if gang.known else None,
        "size": gang.size,
        "verdict": verdict,
        "domain": None if domain is None else {"level": domain[0], "value": domain[1]},
        "pods": [
            {"name": pod.name, "namespace": pod.namespace} | _seat(placed, at) for at, pod in enumerate(gang.pods)
        ],
        **_running(snapshot.cluster, gang),
        "victims": [certificate.victim(snapshot.cluster, pod) for pod in seating.victims],
        "cost": cost_of(search, best) if search is not None and best is not None and seating.victims else [],
        "certificate": proof | {"proved": proved},
    }


def _running(cluster: ClusterView, gang: WaitingGang) -> dict[str, Any]:
    """The pods of the gang that run already; no key where there is none."""
    pods = running(cluster, gang.members)
    return {"running": pods} if pods else {}


def _seat(placed: Placed | None, at: int) -> dict[str, Any]:
    if placed is None:
        return {"node": None, "gpus": None}
    return {"node": placed.nodes[at], "gpus": list(gpus_of(placed.gpus[at])) or None}


def _result(task: Task, at: int, nodes: JudgedNodes | None, group: dict[str, Any], seating: Seating) -> dict[str, Any]:
    """The result of one pod. Each victim stands in the result of the first pod on its node; cost and certificate are
    the group's."""
    pod, placed = task.gang.pods[at], seating.placed
    known = nodes if nodes is not None else JudgedNodes((), Counter(), {}, {}, {}, {}, frozenset(), [])
    result = single.empty(task.snapshot, pod, known)
    result |= {"verdict": group["verdict"], "cost": group["cost"], "certificate": group["certificate"]} | _seat(
        placed, at
    )
    if placed is not None:
        first = placed.nodes.index(placed.nodes[at]) == at
        evicted = {victim.uid for victim in seating.victims if first and victim.node == placed.nodes[at]}
        result["victims"] = [victim for victim in group["victims"] if victim["uid"] in evicted]
    if group["verdict"] != "fits":
        result |= {"ways_out": group["ways_out"], "nearest": group["nearest"]}
    return result


def _about(task: Task, gang: WaitingGang) -> Iterator[dict[str, str]]:
    for pod, request in zip(gang.pods, task.requests, strict=True):
        yield from single.about(task.snapshot, request, pod)
    if gang.other_gates:
        yield warning("gated", f"gang {gang.ref}: {', '.join(gang.other_gates)} has to be opened first")
    if not gang.known:
        yield warning(
            "gang-minimum-unknown",
            f"how many pods of {gang.ref.source} gang {gang.ref} must run cannot be read "
            f"({gangs.SOURCES[gang.ref.source].states}): all {len(gang.pods) + len(gang.members)} count as needed",
        )
    missing = sorted({feature for pod in gang.pods for feature in not_modelled(pod)})
    if missing:
        yield warning("not-all-checked", f"gang {gang.ref} asks for more than is checked: {', '.join(missing)}")


def of_one(cluster: ClusterView, gang: WaitingGang, result: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON form of a gang of which one pod is placed, by the result of that pod."""
    (pod,) = gang.pods
    entry = {
        "gang": str(gang.ref),
        "source": gang.ref.source,
        "min": gang.minimum if gang.known else None,
        "size": gang.size,
        "domain": None,
        "pods": [{"name": pod.name, "namespace": pod.namespace, "node": result["node"], "gpus": result["gpus"]}],
        **_running(cluster, gang),
    }
    copied = ("verdict", "victims", "cost", "certificate", "text", "ways_out", "nearest")
    return entry | {key: result[key] for key in copied if key in result}
