"""What the cost terms see of the gathered pods: their columns, budgets and gangs as groups, who can run elsewhere."""

from __future__ import annotations

from array import array

from ext_core import gather
from extender.cluster import Cluster
from extender.contracts import Groups, Victims
from extender.costs.victims_stranded import VictimsStranded
from extender.decide import Decider
from extender.progress import lost, saved_ms, start_ms
from extender.records import PodRecord


def columns(decider: Decider, gathered: gather.Gathered, prices: list[array[int]], now_ms: int) -> Victims:
    cluster = decider.cluster
    stranded = array("q", bytes(8 * len(gathered.pods)))
    if any(isinstance(cost, VictimsStranded) for cost in decider.policy.costs):
        rooms = {ask: _room(cluster, ask) for ask in gather.distinct(gathered.ask, gathered.going)}
        stranded = gather.stranded(cluster.tables.pods, gathered.pods, gathered.ask, gathered.going, rooms)
    return Victims(
        gathered.pods,
        gathered.priority,
        gathered.start_ms,
        gathered.saved_ms,
        gathered.restart_s,
        gathered.grace_s,
        gathered.gpus,
        gathered.going,
        now_ms,
        _budgets(cluster, gathered),
        *_gangs(cluster, gathered, now_ms),
        stranded,
        prices,
    )


def _room(cluster: Cluster, ask: int) -> tuple[int, int]:
    amounts, selector, terms, tolerations = cluster.asks[ask]
    return gather.room(cluster.tables.nodes, array("q", amounts), cluster.admitted(selector, terms, tolerations))


def _budgets(cluster: Cluster, gathered: gather.Gathered) -> Groups:
    """PodDisruptionBudgets as groups. A pod that goes already, or that a budget has counted already, costs nothing."""
    sets = gather.distinct(gathered.budgets, gathered.going)
    keys = sorted({key for one in sets for key in cluster.budget_sets[one]})
    index = {key: g for g, key in enumerate(keys)}
    members = {one: tuple(index[key] for key in cluster.budget_sets[one]) for one in sets}
    allowance = array("q", [max(0, cluster.budgets[key].disruptions_allowed) for key in keys])
    names = tuple(f"{namespace}/{name}" for namespace, name in keys)
    return Groups(*gather.memberships(gathered.budgets, gathered.going, members), allowance, names)


def _gangs(cluster: Cluster, gathered: gather.Gathered, now_ms: int) -> tuple[Groups, array[int]]:
    """(gangs as groups, the work in GPU-seconds that all running members of each lose when it breaks)."""
    present = gather.distinct(gathered.gang, gathered.going)
    members: dict[int, tuple[int, ...]] = {gang: (g,) for g, gang in enumerate(present)}
    work = gather.gangs(cluster.tables.pods, len(cluster.gang_refs), now_ms)[1] if present else array("q")
    found = [gang for one in present if (gang := cluster.gang_of_id[one]) is not None]
    assert len(found) == len(present)
    price = array("q", [work[one] for one in present])
    for one in cluster.strays.keys() & members.keys():
        price[members[one][0]] += sum(_lost(cluster, pod, now_ms) for pod in cluster.strays[one])
    allowance = array("q", [gang.allowance for gang in found])
    names = tuple([gang.ref.name for gang in found])
    return Groups(*gather.memberships(gathered.gang, gathered.going, members), allowance, names), price


def _lost(cluster: Cluster, pod: PodRecord, now_ms: int) -> int:
    restart = cluster.claims.restart_seconds(pod)
    return lost(sum(cluster.amounts(pod)[3:]), start_ms(pod), saved_ms(pod), restart, now_ms)
