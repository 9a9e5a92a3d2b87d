"""The node's own choice, against trying every set."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.node.plans import Graph, NodeGraph, graph
from extender.sim.machines import gpu_uuid, machine, topology_annotation

V100 = machine("dgx1-v100")
UUIDS = [gpu_uuid("n", gpu) for gpu in range(8)]
TEXT = topology_annotation(V100, UUIDS)


def of(text: str) -> Graph:
    found = graph(text)
    assert found is not None
    return found


GRAPH = of(TEXT)
SETS = st.frozensets(st.integers(0, 7))


def test_ids_of_whole_gpus_and_of_replicas() -> None:
    assert GRAPH.gpus([UUIDS[3], UUIDS[1]]) == {1: [UUIDS[1]], 3: [UUIDS[3]]}
    replicas = [f"{UUIDS[2]}::{number}" for number in (10, 2)]
    assert GRAPH.gpus(replicas) == {2: [replicas[1], replicas[0]]}
    assert GRAPH.gpus([UUIDS[0], "MIG-1"]) is None


@given(SETS, SETS, st.integers(1, 8), st.data())
def test_the_best_set_touches_as_few_promised_gpus_as_can_be(
    available: frozenset[int], promised: frozenset[int], size: int, data: st.DataObject
) -> None:
    must = data.draw(st.frozensets(st.sampled_from(sorted(available or {0})), max_size=size))
    got = GRAPH.best(available, must, size, promised)
    if not must <= available or size > len(available):
        assert got is None
        return
    assert got is not None
    assert len(got) == size
    assert must <= got <= available
    sets = [frozenset(one) for one in combinations(sorted(available), size) if must <= frozenset(one)]
    assert len(got & promised) == min(len(one & promised) for one in sets)


def test_links_decide() -> None:
    """1 and 2 have two links, 0 and 1 one, 0 and 2 one."""
    assert GRAPH.best(frozenset({0, 1, 2}), frozenset(), 2, frozenset()) == frozenset({1, 2})
    assert GRAPH.best(frozenset({0, 1, 2, 3}), frozenset({0}), 2, frozenset()) == frozenset({0, 3})


def test_unknown_links_choose_nothing() -> None:
    assert graph('{"v":1,"gpus":2,"links":[]}') is None  # no ids: no use
    assert graph("{") is None
    lone = of('{"v":1,"gpus":2,"links":[],"uuids":["GPU-a","GPU-b"]}')
    assert lone.best(frozenset({0, 1}), frozenset(), 1, frozenset()) == frozenset({0})


@pytest.mark.parametrize("node", [{}, {"metadata": {}}, {"metadata": {"annotations": {}}}])
def test_a_node_without_the_annotation(node: dict[str, object]) -> None:
    known = NodeGraph()
    known.put({"metadata": {"annotations": {"gpu-extender.io/topology": TEXT}}})
    assert known.get() is not None
    known.put(node)
    assert known.get() is None
