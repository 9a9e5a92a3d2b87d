"""Where gangs go whose claims GPUs by number do not tell, against all ways to put their pods on the nodes."""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from contextlib import nullcontext
from itertools import product
from typing import TypeVar

import pytest
from msgspec.structs import replace

from extender.ask.suppose import SupposedCluster
from extender.objects.records import PodRecord
from extender.queue import placement
from extender.queue.placement import JointPlacement, NoPlace, Placed
from extender.sim import claims as dra
from extender.sim.machines import machine
from tests.act.queue.rig import gated, settings
from tests.ask.whatif.asking import snapshot
from tests.ask.whatif.test_claims import claimant, parts
from tests.cases import cases
from tests.cluster.dra import drawn_claims as drawn
from tests.cluster.dra.world import DraWorld
from tests.queue.test_eviction_plan import of_head
from tests.world import JSON, rfc3339
from tests.world import machine as node_object

CASES = cases(60)
NAMES = ("n1", "n2", "n3")
T = TypeVar("T")


def case(rng: random.Random) -> tuple[list[JSON], list[int]]:
    """(the objects, the role of each pod)."""
    roles = rng.choice((1, 2, 2))
    at = sorted(rng.randrange(roles) for _ in range(rng.choice((2, 3, 4, 5))))
    names = NAMES[: rng.choice((1, 2, 3))]
    objects = list(drawn.nodes(rng, names))
    if rng.random() < 0.4:  # any GPUs beside chosen ones
        roles, at = 2, [0] * rng.choice((1, 2)) + [1] * rng.choice((1, 1, 2))
        objects += [dra.claim("t0", "default", 1, template=True), drawn.selecting("t1", rng.choice((1, 2)), "[8-f]$")]
    else:
        objects += [drawn.template(rng, f"t{c}") for c in range(roles)]
    objects += [drawn.pod(f"q{i}", f"t{c}") for i, c in enumerate(at)]
    return objects, at


def place(supposed: SupposedCluster, pods: Sequence[PodRecord]) -> Placed | NoPlace:
    requests = tuple(map(supposed.claims.alone, pods))
    return JointPlacement(supposed.cluster, supposed.judge.policy).place(pods, requests, None)


class Oracle:
    """All ways to put the pods on the nodes, in each order of the pods of a node. `at`: the role of each pod."""

    def __init__(self, objects: Sequence[JSON], names: Sequence[str], pods: Sequence[PodRecord], at: list[int]) -> None:
        self._objects, self._names, self._pods, self._at = objects, names, pods, at
        self._known: dict[tuple[str, tuple[int, ...]], tuple[bool, bool]] = {}

    def holds(self, nodes: Sequence[str]) -> tuple[bool, bool]:
        """Whether these nodes of the pods take them in any order, and in one."""
        on = {name: tuple(c for c, node in zip(self._at, nodes, strict=True) if node == name) for name in set(nodes)}
        answers = [self._takes(name, roles) for name, roles in on.items()]
        return all(in_any for in_any, _ in answers), all(in_one for _, in_one in answers)

    def best(self) -> tuple[bool, bool]:
        """As `holds`, of all ways."""
        answers = [self.holds(nodes) for nodes in product(self._names, repeat=len(self._at))]
        return any(in_any for in_any, _ in answers), any(in_one for _, in_one in answers)

    def _takes(self, name: str, roles: tuple[int, ...]) -> tuple[bool, bool]:
        if (name, roles) not in self._known:
            pods = [
                replace(self._pods[self._at.index(c)], uid=f"uid-{i}", name=f"pod-{i}") for i, c in enumerate(roles)
            ]
            self._known[name, roles] = drawn.orders(self._objects, name, pods, roles)
        return self._known[name, roles]


def test_gangs_go_where_the_devices_meet_all_claims_and_nowhere_else() -> None:
    rng = random.Random(11)
    answers = {"fits": 0, "by order": 0, "cannot": 0}
    for _ in range(CASES):
        objects, at = case(rng)
        supposed = snapshot(objects)
        pods = [supposed.cluster.pods[f"uid-q{i}"] for i in range(len(at))]
        oracle = Oracle(objects, list(supposed.cluster.nodes), pods, at)
        in_any, in_one = oracle.best()
        placed = place(supposed, pods)
        if isinstance(placed, NoPlace):
            # By number a pod counts with the most that its claims may take, and a tainted GPU with none.
            open_numbers = any(pod.claim_numbers for pod in pods) or "tolerations" in str(objects)
            assert not in_one or open_numbers, (placed, objects)
            answers["cannot"] += 1
            continue
        assert oracle.holds(placed.nodes)[0 if placed.doubt is None else 1]
        assert placed.doubt is None or not in_any
        answers["fits" if placed.doubt is None else "by order"] += 1
    assert all(answers.values()), answers


def test_where_the_searches_end_without_an_answer_no_place_is_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two pods for all parts of a GPU each, and nodes of one GPU."""
    objects = [dra.device_class(), dra.device_class("mig", kind="mig"), parts(1)]
    for name in NAMES:
        slices = dra.resource_slices(name, machine("dgx1-v100", 1), divisible=True)
        objects += [{"kind": "Node"} | node_object(name, 0), *slices]
    objects += [claimant(f"q{i}", "resourceClaimTemplateName", "parts") for i in range(2)]
    supposed = snapshot(objects)
    pods = [supposed.cluster.pods[f"uid-q{i}"] for i in range(2)]
    assert isinstance(place(supposed, pods), Placed)
    monkeypatch.setattr(placement, "MOST_SEARCHES", 1)
    nowhere = place(supposed, pods)
    assert isinstance(nowhere, NoPlace)
    assert (nowhere.proved, nowhere.text) == (False, "it is not known whether any nodes meet its claims together")
    assert nowhere.doubt is not None
    assert nowhere.doubt.refusal.claims.names == ("parts",)


MOST = 64
"""Steps of looks at once, here. A node takes about as many."""


def chosen_claims(*, full: bool = False) -> DraWorld:
    """40 nodes, and gated pods of a gang with claims of two new kinds: each selects by the UUID, and each node has
    UUIDs of its own. `full`: pods of low priority hold all CPUs."""
    world = DraWorld(settings(evictions=True))
    world.dra_class()
    for name in (f"n{number}" for number in range(40)):
        world.dra_node(name)
        if full:
            world.claim(f"held-{name}", 1, node=name, devices=[7], pods=[f"low-{name}"])
            world.claimant(f"low-{name}", f"held-{name}", node=name, priority=-5, cpu="64")
    for number in range(2):
        made = dra.claim(f"chosen-{number}", "default", 2)
        expression = f"device.attributes['{dra.DRIVER}'].uuid != 'none {number}'"
        made["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = [{"cel": {"expression": expression}}]
        world.set("ResourceClaim", made)
        notes = {"gpu-extender.io/gang": "train", "gpu-extender.io/gang-size": "2"}
        pod = gated(f"train-{number}", 0, annotations=notes, priority=100)
        pod["metadata"]["creationTimestamp"] = rfc3339(world.wall - 100)
        pod["spec"]["resourceClaims"] = [{"name": "gpus", "resourceClaimName": f"chosen-{number}"}]
        world.set("Pod", pod)
    world.cluster.bound_looks(MOST)
    return world


def most_at_once(world: DraWorld, steps: Generator[None, None, T]) -> tuple[float, T]:
    """(the most steps of looks in a slice, the result)."""
    fits, spent = world.cluster.dra.fits, [0.0]
    fits.changed(None)
    while True:
        before = fits.spent
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return max(*spent, fits.spent - before), result
        spent.append(fits.spent - before)


def test_a_gang_with_claims_of_a_new_kind_is_placed_in_slices() -> None:
    world = chosen_claims()
    pods = [pod for pod in world.cluster.pods.values() if pod.gates]
    requests = [world.verbs.claims.alone(pod) for pod in pods]
    joint = JointPlacement(world.cluster, world.verbs.policy)
    spent, placed = most_at_once(world, joint.steps(pods, requests, None, within=lambda rows: nullcontext()))
    assert 0 < spent < 3 * MOST
    world.cluster.dra.fits.changed(None)
    assert placed == joint.place(pods, requests, None)
    assert isinstance(placed, Placed)
    before = world.cluster.dra.fits.spent
    world.cluster.dra.fits.changed(None)
    assert joint.still_fits(placed, pods, requests)
    assert 0 < world.cluster.dra.fits.spent - before < 3 * MOST, "its node alone is looked at"


def test_an_eviction_for_claims_of_a_new_kind_is_searched_in_slices() -> None:
    world = chosen_claims(full=True)
    head, plans = of_head(world)
    spent, _ = most_at_once(world, plans.steps(head))
    assert 0 < spent < 3 * MOST
