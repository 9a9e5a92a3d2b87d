"""NICs of their own for the GPUs of a set: the kernels against their twins, brute force, and machines by hand."""

from __future__ import annotations

from array import array
from itertools import combinations, permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ext_core import fit, score
from ext_core.ask import Ask
from ext_core.links import LinkShapes
from ext_core.reasons import NicCodes
from tests.core.test_links import clique, graphs, ids, mask
from tests.core.worlds import GPU, OTHER, World, ask, ints, rows_of, same_error, worlds
from tests.reference import fit as plain_fit
from tests.reference import links as reference
from tests.reference import score as plain_score

MODES = ("ignore", "preferred", "required")
CODES = NicCodes(1, 2, 3, 4)
SWITCHES = [[5 if a == b else 4 if a // 2 == b // 2 else 0 for b in range(8)] for a in range(8)]
"""PCIe levels of eight GPUs, two a switch."""
ONE_A_SWITCH = [0b11, 0b1100, 0b110000, 0b11000000]


def wants(gpus: int, *, containers: int = 1) -> Ask:
    return Ask((0, 0, 1, gpus), containers=containers)


def intern(shapes: LinkShapes, links: list[list[int]], nics: list[Any] | None, **more: Any) -> int:
    given: dict[str, Any] = {"gpu_total": False, "pcie": None, "numa": None, "plugin": "arbitrary", "gbps": 25.0}
    return shapes.intern_with_nics(nics, links, **(given | more))


def switched(nics: list[int] | None, plugin: str = "relay") -> tuple[LinkShapes, int]:
    """Eight GPUs of an NVSwitch machine, two a PCIe switch."""
    shapes = LinkShapes()
    shapes.planned = plugin == "relay"
    return shapes, intern(shapes, clique(8, 18), nics, gpu_total=True, pcie=SWITCHES, plugin=plugin)


def most_matched(gpus: tuple[int, ...], nics: list[int]) -> int:
    """The definition: of all ways to name a NIC, or none, for each GPU, the most that are near and each named once."""
    names = [*range(len(nics)), *[-1] * len(gpus)]
    return max(
        sum(bool(nic >= 0 and nics[nic] >> gpu & 1) for gpu, nic in zip(gpus, named, strict=True))
        for named in permutations(names, len(gpus))
    )


@settings(max_examples=min(60, settings().max_examples))
@given(st.integers(1, 4), st.lists(st.integers(0, 15), max_size=3))
def test_the_number_is_the_largest_matching(size: int, near: list[int]) -> None:
    nics = [gpus & (1 << size) - 1 for gpus in near]
    shapes = LinkShapes()
    shape = intern(shapes, clique(size, 0), nics)
    for gpus in range(1 << size):
        assert shapes.nics(shape, gpus) == most_matched(ids(gpus), nics)


@settings(max_examples=min(60, settings().max_examples))
@given(st.data())
def test_twins_agree(data: st.DataObject) -> None:
    links = data.draw(graphs(5))
    size = len(links)
    more: dict[str, Any] = {
        "pcie": data.draw(st.none() | graphs(size, (0, 1, 2, 3, 4)).filter(lambda g: len(g) == size)),
        "numa": data.draw(st.none() | st.lists(st.integers(-1, 2), min_size=size, max_size=size)),
        "plugin": data.draw(st.sampled_from(["nvidia", "nvidia", "amd", "arbitrary", "relay", "first", "unordered"])),
        "gbps": 25.0,
        "gpu_total": data.draw(st.booleans()),
    }
    nics = data.draw(st.none() | st.lists(st.integers(0, (1 << size) - 1), max_size=5))
    fast, slow = LinkShapes(), reference.LinkShapes()
    shape = fast.intern_with_nics(nics, links, **more)
    assert slow.intern_with_nics(nics, links, **more) == shape
    assert fast.nics_known == slow.nics_known == (nics is not None)
    for free in range(1, 1 << size):
        assert fast.nics(shape, free) == slow.nics(shape, free)
        for k in range(size + 2):
            for planned in (True, False):
                fast.planned = slow.planned = planned
                for mode in MODES:
                    assert fast.with_nics(shape, free, k, mode) == slow.with_nics(shape, free, k, mode)
                    for told in (True, False):
                        got, want = (one.expected_nics(shape, free, k, mode, told) for one in (fast, slow))
                        assert got == want, (free, k, mode, told)
                for how in ((0, 1), (1, 1), (0, 2)):
                    for linked in (False, True):
                        for asked in (wants(k, containers=how[1]), wants(k, containers=how[1]).as_planned()):
                            got, want = (one.certain_nics(shape, free, asked, how[0], linked) for one in (fast, slow))
                            assert got == want, (free, k, how, linked, asked.planned)


@pytest.mark.parametrize("plugin", ["relay", "first"])
def test_a_share_of_nics_is_rounded_to_the_nearest_millionth(plugin: str) -> None:
    fast, slow = LinkShapes(), reference.LinkShapes()
    for one in (fast, slow):
        shape = one.intern_with_nics(
            [1, 2], [[0] * 3] * 3, plugin=plugin, gbps=25.0, pcie=None, numa=None, gpu_total=False
        )
        assert one.expected_nics(shape, 7, 3, "ignore", False) == pytest.approx(2 / 3, abs=5e-7)
    assert fast.expected_nics(shape, 7, 3, "ignore", False) == slow.expected_nics(shape, 7, 3, "ignore", False)


@given(st.integers(1, 255), st.integers(1, 8), st.lists(st.integers(0, 255), max_size=8))
def test_the_choice_has_the_most_nics_of_all_sets_that_are_equal_in_links(free: int, k: int, nics: list[int]) -> None:
    shapes, shape = switched(nics)
    if k > free.bit_count():
        assert shapes.with_nics(shape, free, k, "preferred") is None
        return
    sets = [mask(*some) for some in combinations(ids(free), k)]
    most = max(shapes.nics(shape, some) or 0 for some in sets)  # behind one switch all sets are equal in links
    for mode in ("preferred", "required"):
        chosen = shapes.with_nics(shape, free, k, mode)
        assert chosen in sets
        assert shapes.nics(shape, chosen) == most


def test_one_nic_a_switch_by_hand() -> None:
    """Without a wish two GPUs of one switch are chosen, which share a NIC; with one, GPUs of two switches."""
    shapes, shape = switched(ONE_A_SWITCH)
    assert shapes.choice(shape, 0xFF, 2).gpus == shapes.with_nics(shape, 0xFF, 2, "ignore") == 0b11  # type: ignore[union-attr]
    assert shapes.nics(shape, 0b11) == 1
    assert shapes.with_nics(shape, 0xFF, 2, "preferred") == 0b101
    assert shapes.with_nics(shape, 0xFF, 4, "preferred") == 0b01010101
    assert shapes.with_nics(shape, 0xFF, 8, "preferred") == 0xFF
    assert shapes.nics(shape, 0xFF) == 4
    assert [shapes.certain_nics(shape, 0xFF, wants(k)) for k in (2, 4, 5)] == [2, 2, 0]
    assert [shapes.certain_nics(shape, 0b1111, wants(k)) for k in (2, 3)] == [2, 0]
    assert shapes.expected_nics(shape, 0b11, 2, "preferred") == 0.5


def test_links_come_first_where_nics_are_preferred_and_last_where_they_are_required() -> None:
    """0=1 and 2=3 are linked, each pair has one NIC: linked GPUs share it."""
    shapes = LinkShapes()
    shapes.planned = True
    pairs = [[4 if a != b and a // 2 == b // 2 else 0 for b in range(4)] for a in range(4)]
    shape = intern(shapes, pairs, [0b11, 0b1100], plugin="relay")
    assert shapes.with_nics(shape, 0b1111, 2, "preferred") == 0b11
    assert shapes.with_nics(shape, 0b1111, 2, "required") == 0b101
    assert shapes.certain_nics(shape, 0b1111, wants(2)) == 2
    assert shapes.certain_nics(shape, 0b1111, wants(2), linked=True) == 0


def test_a_device_plugin_hands_out_what_it_likes() -> None:
    """NVIDIA's takes two GPUs of one switch, which share a NIC; an arbitrary one two of 28 pairs of which 24 do not."""
    shapes, shape = switched(ONE_A_SWITCH, "nvidia")
    assert shapes.certain_nics(shape, 0xFF, wants(2)) == 0
    assert shapes.expected_nics(shape, 0xFF, 2, "preferred") == 0.5
    shapes, shape = switched(ONE_A_SWITCH, "arbitrary")
    assert shapes.certain_nics(shape, 0xFF, wants(2)) == 1
    assert shapes.expected_nics(shape, 0xFF, 2, "preferred") == round((24 + 4 / 2) / 28, 6)
    shapes, shape = switched([1 << gpu for gpu in range(8)], "nvidia")
    assert shapes.certain_nics(shape, 0xFF, wants(2)) == 2
    shapes, shape = switched(ONE_A_SWITCH, "relay")
    shapes.planned = False  # the relay chooses by links alone
    assert shapes.certain_nics(shape, 0xFF, wants(2)) == 0


def test_which_nic_is_which_does_not_matter() -> None:
    shapes, shape = switched(ONE_A_SWITCH)
    again: dict[str, Any] = {"gpu_total": True, "pcie": SWITCHES, "plugin": "relay"}
    assert intern(shapes, clique(8, 18), [*ONE_A_SWITCH[::-1], 0], **again) == shape
    assert intern(shapes, clique(8, 18), ONE_A_SWITCH[:3], **again) != shape
    assert intern(shapes, clique(8, 18), None, **again) != shape


@pytest.mark.parametrize("nics", [[1 << 8], [-1], ["x"], [True], [1] * 65])
def test_what_is_no_nic_is_refused(nics: list[Any]) -> None:
    with pytest.raises(ValueError, match="nics"):
        switched(nics)


def test_64_nics_of_16_gpus_are_counted() -> None:
    shapes = LinkShapes()
    shape = intern(shapes, clique(16, 18), [1 << nic % 16 for nic in range(64)], gpu_total=True)
    assert shapes.nics(shape, 0xFFFF) == 16
    shape = intern(shapes, clique(16, 18), [0xFFFF] * 3, gpu_total=True)
    assert shapes.nics(shape, 0xFFFF) == 3


# ---- over the rows of a table

requests = st.builds(
    lambda resource, gpus, containers, links, nics, planned: ask(
        resource, gpus, containers=containers, links=links, nics=nics, planned=planned
    ),
    st.sampled_from([GPU, GPU, GPU, OTHER]),
    st.integers(0, 5),
    st.integers(1, 2),
    st.sampled_from(MODES),
    st.sampled_from(["preferred", "required", "required"]),
    st.booleans(),
)


@given(worlds(), st.data(), requests)
def test_the_rule(world: World, data: st.DataObject, asked: Any) -> None:
    rows = data.draw(rows_of(world))
    before = data.draw(st.lists(st.sampled_from([0, 0, 9]), min_size=len(rows), max_size=len(rows)))
    out, wanted = bytearray(before), list(before)
    fit.nics(world.nodes, asked, ints(rows), out, CODES)
    plain_fit.nics(world.twin_nodes, asked, rows, wanted, CODES)
    assert list(out) == wanted
    if asked.nics != "required":
        assert wanted == before


@given(worlds(), st.data(), requests)
def test_the_scorer(world: World, data: st.DataObject, asked: Any) -> None:
    rows = data.draw(rows_of(world))
    out, wanted = array("d", [7.0] * len(rows)), [0.0] * len(rows)
    score.nics(world.nodes, asked, ints(rows), out)
    plain_score.nics(world.twin_nodes, asked, rows, wanted)
    assert out.tolist() == wanted
    assert all(0.0 <= value <= 1.0 for value in wanted)


@given(worlds(), st.lists(st.integers(-1, 7), max_size=3), st.integers(-1, 4))
def test_bad_input_is_rejected_alike(world: World, rows: list[int], length: int) -> None:
    size, asked = len(rows) if length < 0 else length, ask(GPU, 2, nics="required")
    same_error(
        lambda: fit.nics(world.nodes, asked, ints(rows), bytearray(size), CODES),
        lambda: plain_fit.nics(world.twin_nodes, asked, rows, [0] * size, CODES),
    )
    same_error(
        lambda: score.nics(world.nodes, asked, ints(rows), array("d", bytes(8 * size))),
        lambda: plain_score.nics(world.twin_nodes, asked, rows, [0.0] * size),
    )
