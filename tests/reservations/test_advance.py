"""What an advance reservation holds, and against which pods."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import pytest

from extender.objects.records import Event, PodRecord
from extender.policy import reasons
from extender.policy.pod_request import owner_key
from extender.reservations.advance import AdvanceReservations, Eligibility, Held, present, seat, turn_of
from extender.reservations.seats import Seat
from tests.world import JSON, WALL, World, pairs, refused, workload

MOST = 1_000_000


def hold(world: World, name: str, nodes: dict[str, int], since: float, until: float, **facts: Any) -> Held:
    """Held GPUs by node, one seat each."""
    amounts = [0] * len(world.cluster.resources)
    seats = []
    for number, (node, gpus) in enumerate(nodes.items()):
        amounts[3] = gpus
        seats.append(seat(name, number, node, tuple(amounts), world.now))
    return Held(name, tuple(seats), since, until, **facts)


def take(world: World, *held: Held) -> None:
    world.verbs.claims.advance.take(held, world.wall - world.now)


def passes(world: World, pod: JSON) -> set[str]:
    """The nodes that filter passes; the pod is not assumed on one of them."""
    names = set(world.filter(pod)["NodeNames"] or ())
    world.verbs.assumed.forget(pod["metadata"]["uid"])
    return names


def lasting(name: str, gpus: int, seconds: float | None, **facts: Any) -> JSON:
    notes = {} if seconds is None else {"gpu-extender.io/duration": f"{int(seconds)}s"}
    return workload(name, gpus, annotations=notes, **facts)


def two_nodes() -> World:
    world = World()
    for name in ("n1", "n2"):
        world.node(name, 8)
    return world


@pytest.fixture
def world() -> World:
    return two_nodes()


def test_before_its_date_only_pods_that_end_before_use_the_gpus(world: World) -> None:
    take(world, hold(world, "big", {"n1": 8}, WALL + 600, WALL + 1200, namespaces=frozenset({"ml"})))
    assert passes(world, lasting("short", 8, 600)) == {"n1", "n2"}
    assert passes(world, lasting("long", 8, 601)) == {"n2"}
    assert passes(world, lasting("unknown", 1, None, priority=MOST)) == {"n2"}
    assert passes(world, lasting("own", 8, None, namespace="ml")) == {"n2"}
    assert refused(world.filter(lasting("unknown", 8, None), ["n1"])) == {"n1": reasons.GPUS_FOR_A_DATE.text}


def test_from_its_date_on_its_namespaces_take_the_gpus_and_first_those(world: World) -> None:
    take(world, hold(world, "big", {"n1": 8}, WALL, WALL + 1200, namespaces=frozenset({"ml"})))
    assert passes(world, lasting("short", 8, 1)) == {"n2"}
    own = workload("own", 8, namespace="ml")
    assert passes(world, own) == {"n1"}
    assert passes(world, workload("large", 9, namespace="ml")) == set()


def test_a_pod_without_gpus_uses_nothing_of_it(world: World) -> None:
    take(world, own := hold(world, "big", {"n1": 8}, WALL, WALL + 1200, namespaces=frozenset({"ml"})))
    world.pod("launcher", 0, "n1", namespace="ml")
    assert present(own, world.cluster) == []
    world.pod("worker", 2, "n1", namespace="ml")
    assert [pod.name for pod in present(own, world.cluster)] == ["worker"]


def test_what_its_pods_use_counts_once(world: World) -> None:
    take(world, hold(world, "big", {"n1": 4}, WALL, WALL + 1200, namespaces=frozenset({"ml"})))
    world.pod("own", 4, "n1", namespace="ml")
    assert passes(world, workload("other", 4)) == {"n1", "n2"}
    assert passes(world, workload("second", 8, namespace="ml")) == {"n2"}
    world.gone("own")
    assert passes(world, workload("other", 8)) == {"n2"}


@pytest.mark.parametrize("others", [{"ml"}, {"ml", "lab"}])
def test_a_pod_uses_one_of_two_reservations(world: World, others: set[str]) -> None:
    """What is held by the other one stays held: for its namespaces, and against all others."""
    both = {"a": frozenset({"ml"}), "b": frozenset(others)}
    take(world, *(hold(world, name, {"n1": 4}, WALL, WALL + 1200, namespaces=of) for name, of in both.items()))
    world.pod("own", 4, "n1", namespace="ml")
    assert passes(world, workload("other", 1)) == {"n2"}
    assert passes(world, workload("second", 4, namespace="ml")) == {"n1"}
    assert passes(world, workload("beside", 4, namespace="lab")) == ({"n1"} if "lab" in others else {"n2"})
    world.pod("second", 4, "n1", namespace="ml")
    world.gone("own")
    assert passes(world, workload("other", 1)) == {"n2"}


def test_pods_of_several_namespaces_use_what_leaves_most_to_all() -> None:
    """Whatever the order in which they came."""
    both = {"a": frozenset({"ml", "lab"}), "b": frozenset({"ml", "web"})}
    for order in (("ml", "lab"), ("lab", "ml")):
        world = World()
        world.node("n1", 9)
        take(world, *(hold(world, name, {"n1": 4}, WALL, WALL + 1200, namespaces=of) for name, of in both.items()))
        for namespace in order:
            world.pod(namespace, 4, "n1", namespace=namespace)
        assert passes(world, workload("other", 1)) == {"n1"}


def test_a_pod_that_was_there_before_uses_nothing_of_it(world: World) -> None:
    world.pod("old", 4, "n1", namespace="ml")
    facts = {"namespaces": frozenset({"ml"}), "before": frozenset({"uid-old"})}
    take(world, hold(world, "big", {"n1": 4}, WALL, WALL + 1200, **facts))
    assert passes(world, workload("other", 1)) == {"n2"}


def test_a_pod_of_its_namespace_that_came_before_the_date_uses_nothing_of_it(world: World) -> None:
    """It took GPUs that are not held, after the place was chosen."""
    world.pod("early", 4, "n1", namespace="ml", start=WALL - 60)
    take(world, own := hold(world, "big", {"n1": 4}, WALL, WALL + 1200, namespaces=frozenset({"ml"})))
    assert present(own, world.cluster) == []
    assert passes(world, workload("other", 1)) == {"n2"}
    world.pod("own", 4, "n1", namespace="ml", start=WALL + 1)
    assert [pod.name for pod in present(own, world.cluster)] == ["own"]


def test_it_holds_nothing_from_its_end_on(world: World) -> None:
    take(world, hold(world, "big", {"n1": 8}, WALL, WALL + 60, namespaces=frozenset({"ml"})))
    world.now += 60
    world.wall += 60
    assert passes(world, workload("other", 8)) == {"n1", "n2"}


def test_a_node_that_is_emptied_takes_no_pod_until_the_end(world: World) -> None:
    take(world, hold(world, "fan", {"n1": 8}, WALL + 60, WALL + 120))
    assert passes(world, lasting("short", 1, 30)) == {"n1", "n2"}
    world.now += 61
    world.wall += 61
    assert passes(world, lasting("other", 1, 30)) == {"n2"}


def test_the_next_place_of_a_pod_that_moves_is_for_the_pods_of_its_owner(world: World) -> None:
    facts = {"owner": "default/ReplicaSet/owner/uid-owner", "before": frozenset({"uid-old"})}
    world.pod("old", 8, "n1", owner="ReplicaSet")
    take(world, hold(world, "move", {"n2": 8}, 0.0, WALL + 600, **facts))
    assert passes(world, workload("other", 8, priority=MOST)) == set()
    again = workload("new", 8, owner="ReplicaSet")
    assert passes(world, again) == {"n2"}
    forged = workload("forged", 8, owner="ReplicaSet")
    forged["metadata"]["ownerReferences"][0]["uid"] = "uid-of-another"
    assert passes(world, forged) == set()
    world.gone("old")
    assert passes(world, again) == {"n2"}  # its own place, though n1 is free
    world.pod("new", 8, "n2", owner="ReplicaSet")
    assert passes(world, workload("other", 8)) == {"n1"}


def test_the_workers_of_a_leaderworkerset_have_a_place_though_their_statefulset_is_another_one(world: World) -> None:
    """It is deleted with the group's leader, and created anew under its name."""
    labels = {"leaderworkerset.sigs.k8s.io/name": "lws"}
    old = world.pod("old", 8, "n1", owner="StatefulSet", labels=labels)
    owner = owner_key(world.cluster.pods[old["metadata"]["uid"]])
    take(world, hold(world, "move", {"n2": 8}, 0.0, WALL + 600, owner=owner, before=frozenset({"uid-old"})))
    again, plain = workload("new", 8, owner="StatefulSet", labels=labels), workload("plain", 8, owner="StatefulSet")
    again["metadata"]["ownerReferences"][0]["uid"] = "uid-of-another"
    assert passes(world, again) == {"n2"}
    assert passes(world, plain) == set()


def test_no_pod_is_evicted_for_gpus_that_are_held(world: World) -> None:
    world.pod("low", 8, "n1")
    world.pod("other", 8, "n2")
    take(world, hold(world, "big", {"n1": 8}, WALL + 600, WALL + 1200, namespaces=frozenset({"ml"})))
    urgent = world.pod("urgent", 8, priority=100)
    world.filter(urgent, ["n1", "n2"])
    assert set(world.preempt(world_pod("urgent"), {"n1": ["low"], "n2": ["other"]})) == {"n2"}


@pytest.mark.parametrize("gang", ["move-²", "move-٣", "move-" + "9" * 5000, "move-1"])
def test_the_name_of_a_gang_that_looks_like_a_move_stops_nothing(world: World, gang: str) -> None:
    """A tenant names it. What is held for its date is read with all other reservations."""
    pod = world.pod("gated", 4, priority=5)
    name = f"gang gpu-extender:default/{gang}"
    amounts = world.cluster.amounts(world.cluster.pods[pod["metadata"]["uid"]])
    of_gang = Seat("uid-gated", "default/gated", name, "n1", amounts, 0, 5, world.now)
    place = hold(world, "fans/move-1.uid/owner", {"n2": 8}, 0.0, WALL + 600, owner="default/ReplicaSet/owner/uid-owner")
    take(world, Held(name, (of_gang,), WALL, WALL + 600), place)
    assert [turn_of(held.name)[0] != "fans" for held in world.verbs.claims.advance] == [True, False]
    assert passes(world, workload("other", 4, owner="ReplicaSet")) == {"n2"}


def test_a_pod_that_uses_a_reservation_is_no_victim_of_others(world: World) -> None:
    """Its GPUs would be held again for its namespace once it is gone."""
    world.pod("user", 8, "n1", namespace="ml")
    world.pod("other", 8, "n2", priority=50)
    take(world, hold(world, "big", {"n1": 8}, WALL, WALL + 1200, namespaces=frozenset({"ml"})))
    offered = {"n1": ["user"], "n2": ["other"]}
    urgent = world_pod("urgent")
    world.filter(urgent)
    assert world.preempt(urgent, offered) == {"n2": ["other"]}
    assert world.preempt(world_pod("alone"), {"n1": ["user"]}) == {}
    own = workload("own", 8, priority=100, namespace="ml")
    world.filter(own)
    assert world.preempt(own, offered) == {"n1": ["user"]}


def test_terminating_users_make_no_room_for_others() -> None:
    world = World()
    world.node("n1", 8)
    world.pod("user", 4, "n1", namespace="ml", terminating=WALL + 10)
    world.pod("other", 4, "n1")
    take(world, hold(world, "big", {"n1": 4}, WALL, WALL + 1200, namespaces=frozenset({"ml"})))
    urgent = world_pod("urgent")
    world.filter(urgent)
    assert world.preempt(urgent, {"n1": ["user", "other"]}) == {}


@pytest.mark.parametrize("seed", range(20))
def test_pods_are_evicted_where_that_makes_room_and_nowhere_else(seed: int) -> None:
    """Beside deletions of every set of pods."""
    chance = random.Random(seed)
    world = World()
    names = [f"n{at}" for at in range(chance.randint(1, 3))]
    for name in names:
        world.node(name, 8, links=pairs(8))
    for at in range(chance.randrange(9)):
        node, gpus = chance.choice(names), chance.randint(1, 4)
        first = sum(world.cluster.gpu_amount(pod) for pod in world.cluster.pods_on(node))
        if first + gpus <= 8:
            facts: Any = {"start": WALL - chance.choice((1, 1000)), "priority": chance.choice((0, 0, 50))}
            seen = range(first, first + gpus)
            world.pod(f"r{at}", gpus, node, namespace=chance.choice(("ml", "lab")), held=seen, **facts)
    held = []
    for at in range(chance.randint(1, 3)):
        nodes = {name: chance.randint(1, 8) for name in chance.sample(names, chance.randint(1, len(names)))}
        since = WALL + chance.choice((-60, -60, 600))
        of = frozenset(chance.sample(("ml", "lab"), chance.randrange(3)))
        held.append(hold(world, f"h{at}", nodes, since, since + 900, namespaces=of))
    take(world, *held)
    for at in range(3):
        links = chance.choice(("", "required"))
        pod = world.pod(
            f"p{at}", chance.randint(1, 8), namespace=chance.choice(("ml", "web")), priority=10, links=links
        )
        if not passes(world, pod):
            lower = {name: [one for one in world.cluster.pods_on(name) if one.priority < 10] for name in names}
            offered = {name: [one.name for one in pods] for name, pods in lower.items() if pods}
            helps = any(_passes_without(world, pod, gone) for pods in lower.values() for gone in _sets(pods))
            chosen = world.preempt(pod, offered) if offered else {}
            assert bool(chosen) == helps
            for node, victims in chosen.items():
                gone = [one for one in world.cluster.pods_on(node) if one.name in victims]
                assert _passes_without(world, pod, gone)
        world.gone(f"p{at}")


def _sets(pods: Sequence[PodRecord]) -> Iterator[Sequence[PodRecord]]:
    return (some for number in range(1, len(pods) + 1) for some in combinations(pods, number))


def _passes_without(world: World, pod: JSON, gone: Sequence[PodRecord]) -> bool:
    """Whether filter passes the pod on the node of these pods once they are deleted."""
    node = gone[0].node
    world.cluster.apply([Event("Pod", "delete", one) for one in gone], world.now)
    found = passes(world, pod) & {node}
    world.cluster.apply([Event("Pod", "set", one) for one in gone], world.now)
    return bool(found)


def world_pod(name: str) -> JSON:
    return workload(name, 8, priority=100)


def unused(held: Counter[frozenset[str]], used: Counter[str]) -> int:
    """GPUs that are held for these namespaces, ml, lab or both, and that their pods do not use."""
    alone = sum(min(used[of], held[frozenset({of})]) for of in ("ml", "lab"))
    return held.total() - alone - min(held[frozenset({"ml", "lab"})], used.total() - alone)


@pytest.mark.parametrize("seed", range(30))
def test_random_pods_beside_a_plain_count(seed: int) -> None:
    """Nodes that filter passes, beside one loop over pods and seats. A pod that ends before every date is judged as if
    there were none; a pod that does not end gets no GPU that is held."""
    chance = random.Random(seed)
    world = World()
    names = [f"n{at}" for at in range(chance.randint(1, 4))]
    for name in names:
        world.node(name, 8)
    running: list[tuple[str, str, int]] = []
    for at in range(chance.randrange(8)):
        node, gpus, namespace = chance.choice(names), chance.randint(1, 4), chance.choice(("ml", "lab"))
        if sum(used for _, there, used in running if there == node) + gpus <= 8:
            world.pod(f"r{at}", gpus, node, namespace=namespace)
            running.append((namespace, node, gpus))
    held = []
    for at in range(chance.randint(1, 3)):
        since = WALL + chance.choice((-60, 0, 60, 600))
        namespaces = frozenset(chance.sample(("ml", "lab"), chance.randrange(3)))
        nodes = {name: chance.randint(1, 8) for name in chance.sample(names, chance.randint(1, len(names)))}
        held.append(hold(world, f"h{at}", nodes, since, since + chance.choice((30, 900)), namespaces=namespaces))
    for at in range(12):
        gpus, seconds = chance.randint(1, 8), chance.choice((None, 1, 59, 60, 61, 600, 5000))
        namespace = chance.choice(("ml", "lab", "web"))
        pod = lasting(f"p{at}", gpus, seconds, namespace=namespace, priority=chance.choice((0, MOST)))
        take(world)
        free = passes(world, pod)
        take(world, *held)
        wanted, preferred = set(), set()
        for name in names:
            used = Counter[str]()
            for of, there, number in running:
                used[of] += number * (there == name)
            left, others = 8 - used.total(), Counter[frozenset[str]]()
            for one in held:
                on = sum(seat.amounts[3] for seat in one.seats if seat.node == name)
                begun, mine = one.since <= WALL, namespace in one.namespaces
                if one.until <= WALL or (not begun and seconds is not None and WALL + seconds <= one.since):
                    continue
                if begun and mine:
                    preferred |= {name} if gpus <= on else set()
                elif begun:
                    others[one.namespaces] += on
                else:
                    left -= on
            if gpus <= left - unused(others, used):
                wanted.add(name)
        found = passes(world, pod)
        assert found <= free
        assert found == wanted or (found <= wanted & preferred and found), (pod, held)
        if seconds is not None and all(one.since >= WALL + seconds for one in held if one.until > WALL):
            assert found == free


@pytest.mark.parametrize("seed", range(15))
def test_what_is_left_follows_each_event_as_if_it_was_read_anew(seed: int) -> None:
    """Random pods, nodes and times: what is kept is what a reader that begins now finds."""
    dice, world = random.Random(seed), World()
    names = [f"n{at}" for at in range(6)]
    for name in names:
        world.node(name, 8)
    dates = [
        hold(
            world, f"d{at}", {name: dice.randint(1, 8) for name in dice.sample(names, dice.randint(1, 5))},
            WALL + dice.randint(-60, 60), WALL + dice.randint(61, 200),
            **dice.choice(({"namespaces": frozenset({"ml"})}, {"namespaces": frozenset({"ml", "b"})}, {})),
        )
        for at in range(4)
    ]  # fmt: skip
    take(world, *dates)
    kept = world.verbs.claims.advance
    for step in range(80):
        for _ in range(dice.choice((0, 1, 1, 4))):
            number = dice.randrange(12)
            if dice.random() < 0.3 and f"uid-p{number}" in world.cluster.pods:
                world.gone(world.cluster.pods[f"uid-p{number}"].name)
            elif dice.random() < 0.1:
                world.node(dice.choice(names), dice.choice((4, 8)), unschedulable=dice.random() < 0.5)
            elif dice.random() < 0.05:
                name = dice.choice(names)
                if name in world.cluster.nodes:
                    world.cluster.apply([Event("Node", "delete", world.cluster.nodes[name])], world.now)
            else:
                world.pod(
                    f"p{number}", dice.choice((0, 1, 2, 5)), dice.choice((*names, "")),
                    namespace="ml" if number % 3 else "b", start=dice.choice((None, world.wall, WALL - 600)),
                    phase=dice.choice(("Running", "Running", "Succeeded")),
                )  # fmt: skip
        if dice.random() < 0.2:
            world.now, world.wall = world.now + 10, world.wall + 10
        fresh = AdvanceReservations()
        fresh.take(kept, kept.epoch)
        eligible = Eligibility(usable=frozenset(dice.sample([date.name for date in dates], dice.randint(0, 2))))
        args = eligible, world.cluster, world.now
        assert kept.users_of_others(*args) == fresh.users_of_others(*args), step
        expected_of_some, expected = fresh.sums(0, *args, ())
        some, sums = kept.sums(0, *args, ())
        assert sums is not None
        assert expected is not None
        assert (dict(some), sums.amounts) == (dict(expected_of_some), expected.amounts), step
        assert set(sums.closed(world.cluster)) == set(expected.closed(world.cluster)), step
        passes(world, lasting("asks", dice.choice((1, 4, 8)), None, namespace=dice.choice(("ml", "a"))))
