"""What nodes have for claims is kept as a column, and looked at again where something has changed."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from itertools import pairwise
from math import inf
from typing import Any

from ext_core import fit
from extender.cluster.dra.claim_fits import MOST_AT_ONCE, Specs
from extender.sim import claims as dra
from extender.sim.machines import gpu_uuids, topology_annotation
from tests.cluster.dra.world import MACHINE, DraWorld

NODES = ("n1", "n2", "n3")


def claims(world: DraWorld) -> list[Specs]:
    """Of pods that wait, one for each kind of claim."""
    last = f"device.attributes['{dra.DRIVER}'].uuid != '{gpu_uuids('n1', MACHINE)[0]}'"
    asked: dict[str, dict[str, Any]] = {
        "one": {}, "four": {"count": 4}, "chosen": {"count": 2, "selectors": [{"cel": {"expression": last}}]},
        "tolerant": {"count": 5, "tolerations": [{"operator": "Exists"}]},
    }  # fmt: skip
    specs = []
    for name, exactly in asked.items():
        made = dra.claim(name, "default", 1)
        made["spec"]["devices"]["requests"][0]["exactly"] |= exactly
        world.set("ResourceClaim", made)
        pod = world.claimant(f"waits-{name}", name)
        specs.append(world.cluster.pods[pod["metadata"]["uid"]].claim_specs)
    return specs


def events(world: DraWorld, rng: random.Random) -> Callable[[], object]:
    """Something that changes, at random."""
    node, gpu = rng.choice(NODES), rng.randrange(8)
    name = f"held-{node}-{gpu}"
    uuids = gpu_uuids(rng.choice((node, node, "other")), MACHINE)
    notes = {"gpu-extender.io/topology": topology_annotation(MACHINE, rng.sample(uuids, 8))}

    def held() -> None:
        world.claim(name, 1, node=node, devices=[gpu], pods=[f"p-{name}"])
        world.claimant(f"p-{name}", name, node=node)

    def released() -> None:
        if world.cluster.pod("default", f"p-{name}") is not None:
            world.gone(f"p-{name}")
        world.drop("ResourceClaim", {"metadata": {"name": name, "namespace": "default"}})

    def deleted() -> None:
        world.drop("Node", {"metadata": {"name": node}})

    return rng.choice((
        held, held, released, deleted,
        lambda: world.dra_node(node),
        lambda: world.dra_node(node, annotated=False),
        lambda: world.node(node, 0, annotations=notes),
        lambda: world.node(node, 0),
        lambda: world.publish(node, taints={gpu: "broken"}),
        lambda: world.publish(node, order=rng.sample(range(8), 8)),
        lambda: world.taint_rule(driver=dra.DRIVER, pool=node),
        lambda: world.drop("DeviceTaintRule", {"metadata": {"name": "rule", "uid": "uid-rule-rule"}}),
        lambda: world.dra_class(kind=rng.choice(("gpu", "gpu", "mig"))),
    ))  # fmt: skip


def columns(world: DraWorld, specs: list[Specs]) -> list[list[int]]:
    """By claims, of all rows."""
    rows = world.cluster.rows.all()
    return [
        [column[row] for row in rows]
        for column in (world.cluster.given_to_claims(one, rows, array("B", bytes(len(rows)))) for one in specs)
    ]


def test_what_has_changed_is_looked_at_again() -> None:
    seen: set[int] = set()
    for seed in range(6):
        rng, world = random.Random(seed), DraWorld()
        world.dra_class()
        for name in NODES:
            world.dra_node(name)
        specs = claims(world)
        columns(world, specs)
        for step in range(60):
            for _ in range(rng.choice((1, 1, 2))):
                event = events(world, rng)
                event()
            kept = columns(world, specs)
            world.cluster.dra.fits.changed(None)
            assert kept == columns(world, specs), (seed, step)
            seen.update(value for column in kept for value in column)
    assert {0, fit.UNMET} < seen
    assert fit.UNSEEN not in seen
    assert len(seen) > 30


def test_of_the_nodes_that_are_asked_about_those_that_are_rejected_are_not_looked_at() -> None:
    world = DraWorld()
    world.dra_class()
    for name in NODES:
        world.dra_node(name)
    [specs, *_] = claims(world)
    rows, codes = array("i", map(world.cluster.row, ("n1", "n2"))), array("B", (0, 9))
    column = world.cluster.given_to_claims(specs, rows, codes)
    assert [column[world.cluster.row(name)] for name in NODES] == [1, fit.UNSEEN, fit.UNSEEN]


def test_nodes_that_come_and_go_are_not_remembered_while_no_pod_asks() -> None:
    world = DraWorld()
    world.dra_class()
    for node in NODES:
        world.dra_node(node)
    specs, rows = claims(world)[0], array("i", map(world.cluster.row, NODES))
    fits, codes = world.cluster.dra.fits, array("B", bytes(len(rows)))
    before = world.cluster.given_to_claims(specs, rows, codes)[:]
    for number in range(1000):
        fits.changed([f"burst-{number}"])
    assert all(len(kept.dropped) <= len(NODES) + 1 for kept in fits._kept.values())
    assert world.cluster.given_to_claims(specs, rows, codes) == before


def test_a_verb_looks_at_some_nodes_a_call_and_what_others_have_is_not_known_meanwhile() -> None:
    names = [f"n{number}" for number in range(40)]
    answers = []
    for bounded in (True, False):
        world = DraWorld()
        world.dra_class()
        for name in names:
            world.dra_node(name)
        specs, rows = claims(world)[2], array("i", map(world.cluster.row, names))  # each node has UUIDs of its own
        world.cluster.bound_looks(MOST_AT_ONCE / 64 if bounded else inf)
        looked_at = [world.cluster.given_to_claims(specs, rows, array("B", bytes(len(rows))))[:] for _ in range(40)]
        answers.append(looked_at)
        if bounded:
            known = [sum(0 < column[row] < fit.UNMET for row in rows) for column in looked_at]
            assert 0 < known[0] < 10
            assert all(before < after or after == len(names) for before, after in pairwise(known))
    some, whole = answers
    assert some[-1] == whole[0] == whole[-1]
