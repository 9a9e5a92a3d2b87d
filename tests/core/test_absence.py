"""Tables without some pods: the kernel against its twin, and what a node has once its pods are gone."""

from __future__ import annotations

import random
from array import array

import pytest

from ext_core.absence import Absence
from ext_core.rows import NodeUse, PodRow
from ext_core.table import NodeTable, PodTable
from tests.reference import absence as slow
from tests.reference import table as lists

R, NODES = 5, 6


def tables(chance: random.Random) -> tuple[NodeTable, PodTable, lists.NodeTable, lists.PodTable, int]:
    """The same random tables twice, and the number of pods."""
    fast, rows = (NodeTable(R), PodTable(R)), (lists.NodeTable(R), lists.PodTable(R))
    pods = [
        PodRow(
            chance.randrange(NODES + 1),  # one node has no row
            chance.randrange(3),
            tuple(chance.randrange(5) for _ in range(R)),
            chance.choice([0, 0, chance.getrandbits(8)]),
            chance.choice([0, 0, 1, 2]),
            0,
        )
        for _ in range(chance.randrange(12))
    ]
    for nodes, table in (fast, rows):
        for row in range(NODES):
            nodes.add(row)
        for at, pod in enumerate(pods):
            table.put(at, pod)
    for row in range(NODES):
        use = NodeUse(
            tuple(chance.randrange(12) for _ in range(R)),
            chance.getrandbits(8), chance.getrandbits(8), chance.randrange(4), chance.randrange(4),
        )  # fmt: skip
        fast[0].set_held(row, use)
        rows[0].set_held(row, use)
    return *fast, *rows, len(pods)


def test_the_kernel_does_what_its_twin_does() -> None:
    chance = random.Random(5)
    for _ in range(500):
        nodes, pods, slow_nodes, slow_pods, count = tables(chance)
        before = [nodes.node(row) for row in range(NODES)]
        gone = array("i", [pod for pod in range(count) if chance.random() < 0.5])
        absence, twin = Absence(nodes, pods, gone), slow.Absence(slow_nodes, slow_pods, gone)
        assert [nodes.node(row) for row in range(NODES)] == [slow_nodes.node(row) for row in range(NODES)]
        absence.end()
        twin.end()
        assert [nodes.node(row) for row in range(NODES)] == [slow_nodes.node(row) for row in range(NODES)] == before


def test_a_node_whose_pods_are_all_gone_is_empty() -> None:
    nodes, pods = NodeTable(R), PodTable(R)
    nodes.add(0)
    for at, (mask, unsure) in enumerate(((0b11, 0), (0b1100, 0), (0, 2))):
        pods.put(at, PodRow(0, 0, (1, 1, 1, 2, 0), mask, unsure, 0))
    nodes.set_held(0, NodeUse((3, 3, 3, 6, 0), 0b1111, 0b110000, 1, 1))
    version = nodes.version_of(0)
    absence = Absence(nodes, pods, array("i", [0, 1, 2]))
    found = nodes.node(0)
    assert (found.used, found.sure, found.likely, found.unknown, found.pending) == ((0,) * R, 0, 0, 0, 0)
    assert nodes.version_of(0) > version
    absence.end()
    assert nodes.node(0).sure == 0b1111
    part = Absence(nodes, pods, array("i", [0]))  # who holds which of the uncertain GPUs stays uncertain
    found = nodes.node(0)
    assert (found.used, found.sure, found.likely, found.unknown) == ((2, 2, 2, 4, 0), 0b1100, 0b110000, 1)
    part.end()


def test_what_is_no_row_is_an_error() -> None:
    nodes, pods = NodeTable(R), PodTable(R)
    with pytest.raises(ValueError, match="pod row 0"):
        Absence(nodes, pods, array("i", [0]))
    with pytest.raises(ValueError, match="other resources"):
        Absence(nodes, PodTable(R + 1), array("i"))
