"""Which victims of a plan have to be evicted still, once other pods have ended: compared with sums of GPUs."""

from __future__ import annotations

import random

from extender.reservations.reservations import Reservation
from tests.world import WALL, World

CASES, GPUS = 300, 8


def test_a_victim_is_spared_where_the_pod_fits_without_its_end() -> None:
    spared = 0
    for seed in range(CASES):
        rng, world = random.Random(seed), World()
        world.node("n0", GPUS)
        held: dict[str, int] = {}
        while left := GPUS - sum(held.values()):
            name = f"p{len(held)}"
            held[name] = rng.randint(1, min(4, left))
            ends = WALL + 30 if rng.random() < 0.2 else None
            world.pod(name, held[name], "n0", priority=rng.choice((1, 1, 9)), terminating=ends)
        wanted, promised = rng.randint(1, GPUS), rng.randint(1, 2)
        world.pod("urgent", wanted, priority=5)
        world.pod("other", promised, priority=rng.choice((1, 5)))  # GPUs are reserved for it there
        cluster = world.cluster
        pods = {pod.name: pod for pod in cluster.pods.values()}
        victims = [pods[name] for name in held if pods[name].priority == 1 and not pods[name].terminating]
        for name, of_it in (("urgent", victims), ("other", [])):
            pod, uids = pods[name], tuple([victim.uid for victim in of_it])
            plan = Reservation(pod.uid, "n0", uids, cluster.amounts(pod), pod.priority, world.now)
            world.verbs.reservations.add(plan)
        world.gone(*[name for name in held if rng.random() < 0.2])
        there = [pod for pod in victims if pod.uid in cluster.pods]
        standing = world.verbs.reservations.get("uid-urgent")
        assert standing is not None
        needed = world.verbs.preempt.needed(standing, there, world.now, world.wall)
        promised *= world.verbs.reservations.get("uid-other") is not None  # unless it was outbid
        free = GPUS - promised - sum(held[pod.name] for pod in cluster.pods_on("n0") if not pod.terminating)
        freed = sum(held[pod.name] for pod in needed)
        if free + sum(held[pod.name] for pod in there) < wanted:
            assert needed == there
            continue
        assert free + freed >= wanted
        assert all(free + freed - held[pod.name] < wanted for pod in needed)
        spared += len(there) - len(needed)
    assert spared > CASES / 4


def test_none_is_spared_where_more_decides_than_is_modelled(world: World) -> None:
    world.node("n0", GPUS)
    world.pod("low", 4, "n0", priority=1)
    spread = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
    for name, spec, evicted in (("plain", {}, []), ("spread", {"topologySpreadConstraints": [spread]}, ["low"])):
        world.pod(name, 4, priority=5, spec=spec)
        pods = {pod.name: pod for pod in world.cluster.pods.values()}
        pod, low = pods[name], pods["low"]
        plan = Reservation(pod.uid, "n0", (low.uid,), world.cluster.amounts(pod), 5, world.now)
        needed = world.verbs.preempt.needed(plan, [low], world.now, world.wall)
        assert [victim.name for victim in needed] == evicted
