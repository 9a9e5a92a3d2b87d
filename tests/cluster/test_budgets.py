"""Which budgets a pod is in: as Kubernetes' selectors state it, at a cost that one tenant cannot raise."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from extender.cluster import budgets as budgets_module
from extender.cluster.budgets import MOST_BUDGETS, MOST_COMPARED, Budgets
from extender.objects.records import PdbRecord, PodRecord
from extender.objects.selectors import ManyValues, Requirement, Selector
from extender.times import Rests
from tests.world import World

LABELS, VALUES = ("app", "tier", "zone"), ("a", "b", "c")


def budget(name: str, *requirements: Requirement, disrupted: Iterable[str] = (), nothing: bool = False) -> PdbRecord:
    return PdbRecord(
        uid=name,
        namespace="team",
        name=name,
        resource_version="1",
        selector=Selector(requirements, nothing),
        disruptions_allowed=0,
        disrupted_pods=frozenset(disrupted),
    )


def pods_of(world: World, labels: Iterable[dict[str, str]]) -> list[PodRecord]:
    """Pods as the cluster decodes them."""
    for number, stated in enumerate(labels):
        world.pod(f"p{number}", 0, "n", namespace="team", labels=stated)
    return list(world.cluster.pods.values())


def requirement(rng: random.Random) -> Requirement:
    operator = rng.choice(("In", "In", "NotIn", "Exists", "DoesNotExist"))
    values = tuple(rng.sample(VALUES, rng.randint(1, 2))) if operator in ("In", "NotIn") else ()
    return Requirement(rng.choice(LABELS), operator, values)  # type: ignore[arg-type]


def naive(pod: PodRecord, records: Iterable[PdbRecord]) -> list[str]:
    """Every budget is compared with the pod."""
    inside = [
        one.name
        for one in records
        if pod.labels
        and not one.selector.empty
        and pod.name not in one.disrupted_pods
        and one.selector.matches(pod.labels)
    ]
    return sorted(inside)[:MOST_BUDGETS]


@pytest.mark.parametrize("seed", range(60))
def test_sets_are_those_that_selectors_state(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(budgets_module, "FEW", rng.choice((0, 2, 8)))
    monkeypatch.setattr(budgets_module, "MOST_VALUES", rng.choice((1, 64)))
    world = World()
    world.node("n", 8)
    stated = [{key: rng.choice(VALUES) for key in rng.sample(LABELS, rng.randint(0, len(LABELS)))} for _ in range(8)]
    pods = pods_of(world, stated)
    budgets = Budgets({pod.uid: pod for pod in pods}, {(pod.namespace, pod.name): pod.uid for pod in pods})
    kept: dict[str, PdbRecord] = {}
    numbers: dict[str, int] = {}
    for pod in pods[:6]:
        budgets.add(pod)
        numbers[pod.uid] = budgets.number(pod.uid)
    for step in range(40):
        name = f"b{rng.randrange(12)}"
        if name in kept and rng.random() < 0.3:
            budgets.set(kept.pop(name), "delete", 0.0)
        else:
            wanted = [requirement(rng) for _ in range(rng.randint(0, 3))]
            disrupted = [pod.name for pod in pods if rng.random() < 0.1]
            kept[name] = budget(name, *wanted, disrupted=disrupted, nothing=rng.random() < 0.05)
            budgets.set(kept[name], "set", 0.0)
        if step == 20:
            for pod in pods[6:]:
                budgets.add(pod)
            budgets.remove(pods[0])
        if rng.random() < 0.6:
            for uid in budgets.refresh(0.0):
                numbers[uid] = budgets.number(uid)
    for _ in budgets.refresh(0.0):
        pass
    for pod in pods:
        expected = naive(pod, kept.values()) if pod.uid in budgets else []
        assert [name for _, name in budgets.of(pod)] == expected


def test_a_pod_is_compared_with_so_many_budgets_at_most(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant may write thousands of budgets that no label rules out."""
    world.node("n", 8)
    [pod] = pods_of(world, [{"app": "a"}])
    budgets = Budgets({pod.uid: pod}, {})
    budgets.add(pod)
    compared: list[str] = []
    matches = Selector.matches

    def counted(selector: Selector, labels: Mapping[str, str]) -> bool:
        compared.append("")
        return matches(selector, labels)

    monkeypatch.setattr(Selector, "matches", counted)
    for number in range(MOST_COMPARED + 200):
        budgets.set(budget(f"b{number:04}", Requirement("app", "NotIn", ("a",))), "set", 0.0)
    budgets.set(budget("z", Requirement("zone", "DoesNotExist")), "set", 0.0)
    assert list(budgets.refresh(0.0)) == []
    assert len(compared) == MOST_COMPARED
    budgets.set(budget("a", Requirement("zone", "DoesNotExist")), "set", 0.0)
    assert list(budgets.refresh(0.0)) == [pod.uid]
    assert budgets.of(pod) == (("team", "a"),)


@pytest.mark.parametrize("operator", ["In", "NotIn"])
def test_a_selector_with_many_values_is_found_by_its_label_and_looks_none_of_them_through(operator: Any) -> None:
    """An object of 1.5 MB has room for 150,000 values, and a tenant may change it all the time."""
    looked: list[str] = []

    class Value(str):
        def __eq__(self, other: object) -> bool:
            looked.append(self)
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    world = World()
    world.node("n", 8)
    [pod] = pods_of(world, [{"app": "v7"}])
    budgets = Budgets({pod.uid: pod}, {("team", pod.name): pod.uid})
    budgets.add(pod)
    values = ManyValues(Value(f"v{number}") for number in range(10_000))
    budgets.set(budget("b", Requirement("app", operator, values)), "set", 0.0)
    assert sum(len(place) for place in budgets._in["team"].by_label.values()) == 1
    assert list(budgets.refresh(0.0)) == ([pod.uid] if operator == "In" else [])
    assert len(looked) < 100
    budgets.set(budget("b", Requirement("app", operator, ("v7",))), "set", 0.0)  # no longer many
    list(budgets.refresh(0.0))
    assert budgets.of(pod) == ((("team", "b"),) if operator == "In" else ())


def test_a_namespace_whose_budgets_change_all_the_time_is_compared_for_a_tenth_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One tenant writes both, and its pods are compared on the event loop. The status of a budget counts at once."""
    monkeypatch.setattr(Rests, "LEAST", 0.0)
    world = World()
    world.node("n", 8)
    for number in range(200):
        world.pod(f"p{number}", 0, "n", labels={"app": "a"})
    compared: list[Selector] = []
    matches = Selector.matches

    def counted(selector: Selector, labels: Mapping[str, str]) -> bool:
        compared.append(selector)
        return matches(selector, labels)

    monkeypatch.setattr(Selector, "matches", counted)
    flips = 1000
    for number in range(flips):
        world.budget("first", number, {"app": "a"})
        world.budget("flips", 1, {"app": "ab"[number % 2]})
        assert world.cluster.budgets.records["default", "first"].disruptions_allowed == number
        world.now += 0.001
    assert len(compared) <= 0.12 * flips * 200 * 2  # each flip, all pods, both budgets
    pod = world.cluster.pods["uid-p0"]
    world.now += Rests.LONGEST
    world.cluster.tick(world.now)
    assert world.cluster.budgets.of(pod) == (("default", "first"),)  # the last flip was to "b"
    for change in ("set", "delete"):
        world.budget("flips", 1, {"app": "a"})
        if change == "delete":
            world.drop("PodDisruptionBudget", world.budget("flips", 1, {"app": "a"}))
        world.now += Rests.LONGEST
        world.cluster.tick(world.now)
        assert (("default", "flips") in world.cluster.budgets.of(pod)) == (change == "set")
