"""ext_core.hazard against its twin, on machines where NVIDIA's plugin crashes over many free sets."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_core import hazard
from ext_core.ask import Ask
from ext_core.links import LinkShapes
from ext_core.reasons import HazardCodes
from ext_core.rows import NodeFacts, NodeUse
from ext_core.table import NodeTable
from tests.core.worlds import GPU, OTHER, R, ask
from tests.reference import hazard as plain
from tests.reference import table as lists

CODES = HazardCodes(panics=60, lost=61)
IDS = range(6)
SHAPES = LinkShapes()
SWITCH = [[12 * (a != b) for b in IDS] for a in IDS]
NEAR = [[4 * (a + b == 1) for b in IDS] for a in IDS]  # 0 and 1 on one PCIe switch, the rest far apart
CRASHES = SHAPES.intern(SWITCH, gpu_total=True, pcie=NEAR, numa=None, plugin="nvidia", gbps=25.0)
UNTOLD = SHAPES.intern(SWITCH, gpu_total=True, pcie=None, numa=None, plugin="nvidia", gbps=25.0)

masks = st.sampled_from([0, 0, 1, 0b11, 0b101, 0b100, 0b110101])


@st.composite
def tables(draw: st.DrawFn) -> tuple[NodeTable, lists.NodeTable, hazard.Hazards, plain.Hazards, int]:
    fast, slow, flags, twin_flags = NodeTable(R, SHAPES), lists.NodeTable(R, SHAPES), hazard.Hazards(), plain.Hazards()
    count = draw(st.integers(1, 6))
    for row in range(count):
        healthy = draw(st.sampled_from([63, 63, 63, 31]))
        there = draw(st.sampled_from([healthy.bit_count()] * 3 + [5]))
        sure, likely, unknown = draw(masks), draw(masks), draw(st.sampled_from([0, 0, 0, 1]))
        held = (sure | likely).bit_count() + unknown
        wanted = draw(st.sampled_from([0, 0, 0b1000]))
        shape = draw(st.sampled_from([CRASHES, CRASHES, CRASHES, UNTOLD, 0]))
        gpu = draw(st.sampled_from([GPU, GPU, GPU, GPU, OTHER, -1]))
        pending = draw(st.sampled_from([0, 0, 0, 1]))
        for table in (fast, slow):
            table.add(row)
            table.set_node(row, NodeFacts((0, 0, 0, there, there), gpu, shape, healthy, 0))
            table.set_held(row, NodeUse((0, 0, 0, held, held), sure, likely, unknown, pending))
            if wanted:
                table.add_claim(row, (0, 0, 0, 1, 0), wanted, False)
        for against in draw(st.lists(st.sampled_from([0, 0, 0, *range(16)]), min_size=1, max_size=2)):
            flags.set(row, against)
            twin_flags.set(row, against)
    return fast, slow, flags, twin_flags, count


@given(tables(), st.integers(0, 6), st.sampled_from([1, 1, 1, 2]), st.sampled_from([GPU, GPU, OTHER]))
def test_twins_agree(made: Any, wanted: int, containers: int, resource: int) -> None:
    fast, slow, flags, twin_flags, count = made
    rows = array("i", range(count))
    before = [9 * (row == 1) for row in rows]
    codes, twin_codes = array("B", before), list(before)
    asked = ask(resource, wanted, containers=containers)
    hazard.reject(fast, flags, asked, rows, codes, CODES)
    plain.reject(slow, twin_flags, asked, list(rows), twin_codes, CODES)
    assert codes.tolist() == twin_codes
    out, twin_out = array("d", [-1.0] * count), [-1.0] * count
    hazard.safety(fast, flags, asked, rows, out)
    plain.safety(slow, twin_flags, asked, list(rows), twin_out)
    assert out.tolist() == twin_out
    assert all(0.0 <= value <= 1.0 for value in out)
    assert (flags.rejects(asked), flags.doubts(asked)) == (twin_flags.rejects(asked), twin_flags.doubts(asked))
    assert flags.rejects(asked) or codes.tolist() == before
    assert flags.doubts(asked) or set(out) == {1.0}


def test_there_are_crashes_to_find() -> None:
    # Five free, by threes: {0,1,-} and {2,3,4} have 50 + 30 points, {0,1,x} and the other two 70 + 10: as many. Of the
    # 120 orders in which kubelet may name them, 36 lead to {0,1,-}.
    assert SHAPES.crash(CRASHES, 0b011111, 3) == 300_000
    # Over 0-1 and two more: 0-1-x (70) beats the split with the lone one first; all is well.
    assert SHAPES.crash(CRASHES, 0b001111, 3) == 0


def test_rows_far_apart_keep_their_flags() -> None:
    flags = hazard.Hazards()
    flags.set(3, 5)
    flags.set(1000, 15)
    assert (flags.get(3), flags.get(999), flags.get(1000), flags.get(10**6)) == (5, 0, 15, 0)


def test_bad_calls() -> None:
    nodes = NodeTable(R)
    nodes.add(0)
    flags = hazard.Hazards()
    for row, value in ((-1, 0), (0, 16), (0, -1)):
        with pytest.raises(ValueError, match="expected"):
            flags.set(row, value)
    with pytest.raises(IndexError):
        hazard.safety(nodes, flags, ask(GPU, 1), array("i", [1]), array("d", [0.0]))
    with pytest.raises(ValueError, match="length"):
        hazard.reject(nodes, flags, ask(GPU, 1), array("i", [0]), array("B"), CODES)
    with pytest.raises(ValueError, match="differ in resources"):
        hazard.reject(nodes, flags, Ask((0, 0, 1, 1)), array("i", [0]), array("B", [0]), CODES)
