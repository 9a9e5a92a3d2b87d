"""The cheapest eviction, found by trying every one: what the demonstration checks the server against.

Nothing of the server is used: the pods' own JSON, the simulated kubelets' truth, and the device plugin asked again and
again. Costs in the order of the default settings; gangs are not modelled.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from itertools import combinations
from typing import Any, NamedTuple

from extender.sim import in_tree
from extender.sim.cluster import SimCluster, guards
from extender.sim.device_plugin import PluginPanicked, TooFewDevices
from extender.sim.kubelet import Kubelets
from extender.sim.machines import GPU, SimMachine

Object = dict[str, Any]
DRAWS = 40  # times that the plugin is asked for one set of free GPUs: its ties are drawn by lot


class BruteForceEviction(NamedTuple):
    """An eviction that suffices on one node."""

    cost: tuple[int, int, int, int, int]  # violations, highest priority, GPU-seconds lost, longest grace, victims
    node: str
    victims: frozenset[str]


def cheapest(cluster: SimCluster, kubelets: Kubelets, pod: Object) -> dict[str, BruteForceEviction]:
    """The cheapest sufficient eviction on each node that has one, for a pod of one container."""
    cheapest_of: dict[str, BruteForceEviction] = {}
    for node in cluster.nodes():
        name = str(node["metadata"]["name"])
        best = min(
            _evictions(cluster, kubelets, pod, node),
            default=None,
            key=lambda choice: (choice.cost, sorted(choice.victims)),
        )
        if best is not None:
            cheapest_of[name] = best
    return cheapest_of


def always_linked(machine: SimMachine, free: Sequence[int] | frozenset[int], size: int) -> bool:
    """Whether each set that the node's device plugin was seen to hand out is linked, and none made it crash."""
    plugin = machine.plugin()
    try:
        return all(machine.linked(plugin.choose(free, size, random.Random(seed))) for seed in range(DRAWS))
    except (PluginPanicked, TooFewDevices):
        return False


def linked_set(kubelets: Kubelets, node: str, free: frozenset[int], size: int) -> bool:
    """Whether a pod would get linked GPUs out of `free`: behind a relay where there is a linked set."""
    hardware = kubelets.machines[node]
    if kubelets.is_relayed(node):
        return any(hardware.linked(frozenset(gpus)) for gpus in combinations(sorted(free), size))
    return always_linked(hardware, free, size)


def _evictions(cluster: SimCluster, kubelets: Kubelets, pod: Object, node: Object) -> Iterator[BruteForceEviction]:
    name = str(node["metadata"]["name"])
    pods = cluster.pods(name)
    lower = [other for other in pods if in_tree.priority(other) < in_tree.priority(pod)]
    wanted = in_tree.asked(pod)[GPU]
    required = pod["metadata"]["annotations"].get("gpu-extender.io/links") == "required"
    for count in range(1, len(lower) + 1):
        for gone in combinations(lower, count):
            uids = frozenset(str(victim["metadata"]["uid"]) for victim in gone)
            if in_tree.refusal(pod, node, [p for p in pods if p["metadata"]["uid"] not in uids]) is not None:
                continue
            free = kubelets.truth.free(name).union(*(kubelets.truth.gpus_of(uid) for uid in uids))
            if not required or linked_set(kubelets, name, free, wanted):
                yield BruteForceEviction(_cost(cluster, kubelets, gone), name, uids)


def _cost(cluster: SimCluster, kubelets: Kubelets, gone: Sequence[Object]) -> tuple[int, int, int, int, int]:
    now = cluster.clock.wall()
    violations = 0
    for budget in cluster.all("PodDisruptionBudget"):
        members = sum(1 for victim in gone if guards(budget, victim))
        violations += max(0, members - int(budget["status"]["disruptionsAllowed"]))
    lost = 0
    for victim in gone:
        notes = victim["metadata"]["annotations"]
        since = _seconds(victim["status"]["startTime"])
        if checkpoint := notes.get("gpu-extender.io/last-checkpoint"):
            since = max(since, _seconds(checkpoint))
        restart = min(3600, int(notes.get("gpu-extender.io/restart-seconds", "0")))
        lost += len(kubelets.truth.gpus_of(str(victim["metadata"]["uid"]))) * (int(now - since) + restart)
    return (
        violations,
        max(in_tree.priority(victim) for victim in gone),
        lost,
        max(int(victim["spec"]["terminationGracePeriodSeconds"]) for victim in gone),
        len(gone),
    )


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()


def most_pairs(links: Sequence[Sequence[int]], gpus: Collection[int]) -> int:
    """How many disjoint linked pairs these GPUs have at most, tried in every way."""
    if not gpus:
        return 0
    first, *others = sorted(gpus)
    partners = [gpu for gpu in others if links[first][gpu]]
    with_first = [1 + most_pairs(links, set(others) - {gpu}) for gpu in partners]
    return max([most_pairs(links, others), *with_first])
