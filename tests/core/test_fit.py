"""The reasons of fit, against the plain definitions."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_core import fit
from ext_core.ask import Ask
from ext_core.reasons import CountCodes, LinkCodes, NicCodes, ResourceCodes
from tests.core.worlds import (
    GPU,
    KINDS,
    OTHER,
    SHAPES,
    Call,
    R,
    World,
    ask,
    build,
    ints,
    masks,
    priorities,
    rows_of,
    same_error,
    worlds,
)
from tests.reference import fit as plain

resources = st.sampled_from([GPU, GPU, GPU, OTHER])
several = st.tuples(st.integers(0, 8), st.sampled_from([0, 0, 1, 3]))  # units of both GPU resources
rejected = st.sampled_from([0, 0, 0, 9])  # what an earlier rule wrote
RESOURCE, COUNT, LINKS = ResourceCodes(2, 3), CountCodes(10, 11, 12, 13, 14, 15), LinkCodes(20, 21, 22, 23, 24)


def agree(rule: str, world: World, data: st.DataObject, asked: Ask, codes: object) -> None:
    """The rule and its twin write the same reasons, over what an earlier rule wrote, for some rows in any order."""
    rows = data.draw(rows_of(world))
    wanted = data.draw(st.lists(rejected, min_size=len(rows), max_size=len(rows)))
    out = bytearray(wanted)
    fast, slow = [world.nodes, world.pods], [world.twin_nodes, world.twin_pods]
    if rule == "resource":
        fast, slow = fast[:1], slow[:1]
    getattr(fit, rule)(*fast, asked, ints(rows), out, codes)
    getattr(plain, rule)(*slow, asked, rows, wanted, codes)
    assert list(out) == wanted


@given(worlds(), st.data(), several)
def test_resource(world: World, data: st.DataObject, gpus: tuple[int, int]) -> None:
    agree("resource", world, data, Ask((0, 0, 1, *gpus)), RESOURCE)


@given(worlds(), st.data(), several, priorities)
def test_count(world: World, data: st.DataObject, gpus: tuple[int, int], priority: int) -> None:
    agree("count", world, data, Ask((0, 0, 1, *gpus), priority=priority), COUNT)


@given(worlds(), st.data(), resources, st.integers(1, 4), st.integers(1, 5), priorities)
def test_count_of_shares(
    world: World, data: st.DataObject, resource: int, gpus: int, share: int, priority: int
) -> None:
    agree("count", world, data, ask(resource, gpus, share=share, priority=priority), COUNT)


@pytest.mark.parametrize("offered", [2**31, 2**32, 2**32 + 3, 2**40])
def test_more_gpus_than_32_bits_hold_hide_none(offered: int) -> None:
    """A device plugin offers more GPUs than the graph has: none of them is hidden."""
    shape, gpus = KINDS["nvswitch, nics"]
    alloc = (0, 0, 9, offered, 0)
    world = build([("add", (0,)), ("set_node", (0, alloc, GPU, shape, (1 << gpus) - 1, 4)),
                   ("set_held", (0, (0,) * R, 0, 0, 0, 0, ()))], [])  # fmt: skip
    out, asked = bytearray(1), ask(GPU, 6, links="required")
    fit.links(world.nodes, world.pods, asked, ints([0]), out, LINKS)
    assert out[0] == 0
    fit.nics(world.nodes, ask(GPU, 6, nics="required"), ints([0]), out, NicCodes(1, 2, 3, 4))
    wanted = [0]
    plain.nics(world.twin_nodes, ask(GPU, 6, nics="required"), [0], wanted, NicCodes(1, 2, 3, 4))
    assert list(out) == wanted


@st.composite
def fragmented(draw: st.DrawFn) -> World:
    """One node of up to 4 GPUs of 4 units each. Pods hold parts of them, some at positions that are unknown."""
    gpus = draw(st.integers(1, 4))
    parts, puts, used, sure = [0] * gpus, list[Call](), 0, 0
    for pod in range(draw(st.integers(0, 4))):
        mask, each = draw(st.integers(1, (1 << gpus) - 1)), draw(st.sampled_from([1, 2, 2, 3, 4]))
        units = each * mask.bit_count()
        if used + units > 4 * gpus:
            break
        used += units
        sure |= mask if each == 4 else 0
        parts = [have + (each if each < 4 and mask >> gpu & 1 else 0) for gpu, have in enumerate(parts)]
        flags = draw(st.sampled_from([0, 0, 0, 1, 2, 16]))
        known = draw(st.sampled_from([mask, mask, mask, 0]))
        puts.append(("put", (pod, 0, draw(priorities), (0, 0, 1, units, 0), known, 0, flags)))
    claims: list[Call] = [
        (
            "add_claim",
            (0, (0, 0, 1, draw(st.integers(1, 4)), 0), draw(st.sampled_from([0, 1, 2, 3])), draw(st.booleans())),
        )
        for _ in range(draw(st.sampled_from([0, 0, 1, 2])))
    ]
    alloc, healthy, likely = (0, 0, 9, 4 * gpus, 0), (1 << gpus) - 1, draw(st.sampled_from([0, 0, 0, 1]))
    return build(
        [("add", (0,)), ("set_node", (0, alloc, GPU, 0, healthy, 4, 4)),
         ("set_held", (0, (0, 0, 9, used, 0), sure, likely, 0, 0, tuple(parts))), *claims],
        puts,
    )  # fmt: skip


@given(fragmented(), st.integers(1, 3), st.integers(2, 4), priorities)
def test_count_of_shares_on_a_fragmented_node(world: World, gpus: int, share: int, priority: int) -> None:
    asked, out, wanted = ask(GPU, gpus, share=share, priority=priority), bytearray(1), [0]
    fit.count(world.nodes, world.pods, asked, ints([0]), out, COUNT)
    plain.count(world.twin_nodes, world.twin_pods, asked, [0], wanted, COUNT)
    assert list(out) == wanted


def shared(parts: tuple[int, ...], *pods: tuple[int, ...], claims: tuple[tuple[int, int], ...] = ()) -> World:
    """One node of two GPUs of 1000 units; pods: (priority, units, mask, flags, ...); claims: (units, mask)."""
    used = sum(units for _, units, *_ in pods)
    return build(
        [("add", (0,)), ("set_node", (0, (0, 0, 9, 2000, 0), GPU, 0, 0b11, 4, 1000)),
         ("set_held", (0, (0, 0, len(pods), used, 0), 0, 0, 0, 0, parts)),
         *(("add_claim", (0, (0, 0, 1, units, 0), mask, True)) for units, mask in claims)],
        [("put", (i, 0, priority, (0, 0, 1, units, 0), mask, 0, *more))
         for i, (priority, units, mask, *more) in enumerate(pods)],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("world", "gpus", "share", "code"),
    [
        (shared((500, 500), (9, 500, 1, 0), (9, 500, 2, 0)), 1, 1000, 15),  # 1000 are free, on no GPU as a whole
        (shared((500, 500), (9, 500, 1, 0), (9, 500, 2, 0)), 2, 500, 0),
        (shared((500, 500), (9, 500, 1, 0), (9, 500, 2, 0)), 1, 1, 0),
        (shared((500, 500), (9, 500, 1, 0), (0, 500, 2, 0)), 1, 1000, 14),  # the second is below us
        (shared((500, 500), (9, 500, 1, 0), (9, 500, 2, 1)), 1, 1000, 13),  # the second terminates
        (shared((500, 500), (9, 500, 1, 0), (0, 500, 2, 2)), 1, 1000, 15),  # the second is spared
        (shared((500, 500), (9, 500, 1, 0), (0, 500, 2, 0, 0, 0, 0, 0, 9)), 1, 1000, 15),  # and here protected
        (shared((), claims=((400, 1), (400, 2))), 1, 1000, 11),
        (shared((), claims=((1000, 1),)), 1, 1000, 0),
        (shared(()), 3, 300, 10),
        (shared(()), 1, 1001, 10),
    ],
)
def test_shares_by_hand(world: World, gpus: int, share: int, code: int) -> None:
    for module, nodes, pods, rows in (
        (fit, world.nodes, world.pods, ints([0])),
        (plain, world.twin_nodes, world.twin_pods, [0]),
    ):
        out = bytearray(1)
        module.count(nodes, pods, ask(GPU, gpus, share=share, priority=5), rows, out, COUNT)
        assert out[0] == code


@pytest.mark.parametrize(
    ("claims", "flags", "wanted", "code"),
    [
        ([(2, True, True)], 0, 2, 11),
        ([(2, True, True)], 0, 4, 14),  # 2 are assumed and 2 run: all of lower priority
        ([(2, True, True)], 1, 4, 14),  # and here those that run terminate
        ([(2, True, True)], 2, 4, 15),  # and here they are spared
        ([(2, True, False)], 0, 3, 15),  # the assumed pod is no victim
        ([(1, True, True), (1, True, True)], 0, 4, 14),
        ([(1, True, True), (1, True, False)], 0, 3, 14),
        ([(1, True, True), (1, True, False)], 0, 4, 15),
        ([(1, True, True), (1, False, False)], 0, 3, 14),  # one is nominated
        ([(2, False, True)], 0, 3, 15),  # only assumed pods are victims
    ],
)
def test_assumed_pods_by_hand(claims: list[tuple[int, bool, bool]], flags: int, wanted: int, code: int) -> None:
    """Of 4 GPUs a pod of lower priority holds 2; claims: (GPUs, tentative, evictable)."""
    world = build(
        [("add", (0,)), ("set_node", (0, (0, 0, 9, 4, 0), GPU, 0, 0b1111, 4)),
         ("set_held", (0, (0, 0, 1, 2, 0), 0, 0, 2, 0)),
         *(("add_claim", (0, (0, 0, 1, gpus, 0), 0, *kind)) for gpus, *kind in claims)],
        [("put", (0, 0, 0, (0, 0, 1, 2, 0), 0, 2, flags))],
    )  # fmt: skip
    out, plain_out = bytearray(1), [0]
    fit.count(world.nodes, world.pods, ask(GPU, wanted, priority=5), ints([0]), out, COUNT)
    plain.count(world.twin_nodes, world.twin_pods, ask(GPU, wanted, priority=5), [0], plain_out, COUNT)
    assert (out[0], plain_out[0]) == (code, code)


@given(worlds(), st.data(), resources, st.integers(0, 8), st.integers(1, 3), priorities, st.booleans())
def test_links(
    world: World, data: st.DataObject, resource: int, gpus: int, containers: int, priority: int, planned: bool
) -> None:
    asked = ask(resource, gpus, containers=containers, priority=priority, links="required", planned=planned)
    agree("links", world, data, asked, LINKS)


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("containers", [0, 1, 2])
def test_link_table(kind: str, containers: int) -> None:
    shape, gpus = KINDS[kind]
    for wanted in range(gpus + 2):
        for planned in (True, False):
            made = fit.link_table(SHAPES, shape, gpus, wanted, containers, planned)
            assert made == plain.link_table(SHAPES, shape, gpus, wanted, containers, planned)


@pytest.mark.parametrize("kind", ["dgx-1v, claims", "dgx-1v, unordered"])
def test_any_linked_set_will_do_where_the_queue_allocates(kind: str) -> None:
    """Of the free GPUs 2 to 7 kube-scheduler takes the first four, which are not linked."""
    shape, gpus = KINDS[kind]
    free = 0b11111100
    made = {planned: fit.link_table(SHAPES, shape, gpus, 4, 1, planned)[free] for planned in (True, False)}
    assert made == {True: 1, False: 0}
    assert fit.link_table(SHAPES, shape, gpus, 4, 1, True)[0b00111100] == 0  # none is linked
    other, gpus = KINDS["dgx-1v, any plugin"]
    assert fit.link_table(SHAPES, other, gpus, 4, 1, True)[free] == 0  # a device plugin follows no plan of ours


@given(st.integers(0, 4).flatmap(lambda gpus: st.binary(min_size=1 << gpus, max_size=1 << gpus)))
def test_monotone(drawn: bytes) -> None:
    table = bytes(byte & 1 for byte in drawn)
    assert fit.monotone(table) is plain.monotone(table)


@pytest.mark.parametrize("table", [b"", bytes(3)])
def test_monotone_wants_a_mark_for_each_set(table: bytes) -> None:
    same_error(lambda: fit.monotone(table), lambda: plain.monotone(table))


def test_monotone_by_hand() -> None:
    shape, gpus = KINDS["dgx-1v"]
    assert fit.monotone(fit.link_table(SHAPES, shape, gpus, 2, 1))
    assert not fit.monotone(fit.link_table(SHAPES, shape, gpus, 4, 1))  # the best split of eight may have no such four


@pytest.mark.parametrize("gpus", [-1, 17])
def test_link_table_rejects_more_than_16_gpus(gpus: int) -> None:
    for module in (fit, plain):
        with pytest.raises(ValueError, match="at most 16"):
            module.link_table(SHAPES, 1, gpus, 2, 1)


@pytest.mark.parametrize("kind", sorted(KINDS))
@given(st.data(), st.integers(0, 9))
def test_uniform(kind: str, data: st.DataObject, wanted: int) -> None:
    shape, gpus = KINDS[kind]
    healthy = data.draw(masks(gpus))
    made = fit.uniform(SHAPES, shape, healthy, wanted)
    assert made is plain.uniform(SHAPES, shape, healthy, wanted)


@pytest.mark.parametrize(
    ("kind", "wanted", "answer"),
    [
        ("nvswitch", 2, True),
        ("nvswitch", 8, True),  # all of them: there is one set, and it is linked
        ("nvswitch", 9, False),  # there are not that many
        ("dgx-1v", 2, False),  # 0 and 5 have no link
        ("dgx-1v", 8, True),
        ("pairs", 2, False),
        ("unknown", 1, True),  # one GPU needs no link
        ("unknown", 2, False),
    ],
)
def test_uniform_by_hand(kind: str, wanted: int, answer: bool) -> None:
    shape, gpus = KINDS[kind]
    assert fit.uniform(SHAPES, shape, (1 << gpus) - 1, wanted) is answer


pairs = st.lists(st.tuples(st.integers(0, 5), st.sampled_from([0, 0, 1, 7, 255])), max_size=12)


@given(pairs, st.sets(st.sampled_from([0, 1, 7, 255])))
def test_passed_and_rejected(columns: list[tuple[int, int]], marks: set[int]) -> None:
    rows, codes = [row for row, _ in columns], [code for _, code in columns]
    chosen = [1 if code in marks else 0 for code in range(256)]
    assert fit.passed(ints(rows), bytearray(codes)).tolist() == plain.passed(rows, codes)
    found, why = fit.rejected(ints(rows), bytearray(codes), bytes(chosen))
    assert (found.tolist(), why.tolist()) == plain.rejected(rows, codes, chosen)


@given(pairs, st.sampled_from([7, 9]), st.integers(-1, 5))
def test_withhold(columns: list[tuple[int, int]], code: int, but: int) -> None:
    rows, codes = [row for row, _ in columns], [code for _, code in columns]
    out = array("B", codes)
    assert fit.withhold(ints(rows), out, code, but) == plain.withhold(rows, codes, code, but)
    assert out.tolist() == codes


@pytest.mark.parametrize(("rows", "codes", "chosen"), [(1, 2, 256), (2, 1, 256), (1, 1, 255), (1, 1, 257)])
def test_passed_and_rejected_want_equal_lengths(rows: int, codes: int, chosen: int) -> None:
    same_error(
        lambda: fit.rejected(ints([0] * rows), bytearray(codes), bytes(chosen)),
        lambda: plain.rejected([0] * rows, [0] * codes, [0] * chosen),
    )
    same_error(lambda: fit.passed(ints([0] * rows), bytearray(codes)), lambda: plain.passed([0] * rows, [0] * codes))
    same_error(
        lambda: fit.withhold(ints([0] * rows), bytearray(codes), 7), lambda: plain.withhold([0] * rows, [0] * codes, 7)
    )


@pytest.mark.parametrize("links", ["preferred", "ignore"])
@given(world=worlds(), gpus=st.integers(0, 8))
def test_links_reject_for_pods_that_require_them_only(links: str, world: World, gpus: int) -> None:
    rows = list(range(world.nodes.height))
    asked, out = ask(GPU, gpus, links=links), bytearray(len(rows))
    fit.links(world.nodes, world.pods, asked, ints(rows), out, LINKS)
    plain.links(world.twin_nodes, world.twin_pods, asked, rows, wanted := [0] * len(rows), LINKS)
    assert list(out) == wanted == [0] * len(rows)


@given(worlds(), st.lists(st.integers(-1, 7), max_size=3), st.integers(-1, 4), st.integers(R - 1, R + 1))
def test_bad_input_is_rejected_alike(world: World, rows: list[int], length: int, width: int) -> None:
    size = len(rows) if length < 0 else length
    asked = Ask((0, 0, 1, *[2] * (width - GPU)), links="required")
    same_error(
        lambda: fit.resource(world.nodes, asked, ints(rows), bytearray(size), RESOURCE),
        lambda: plain.resource(world.twin_nodes, asked, rows, [0] * size, RESOURCE),
    )
    same_error(
        lambda: fit.count(world.nodes, world.pods, asked, ints(rows), bytearray(size), COUNT),
        lambda: plain.count(world.twin_nodes, world.twin_pods, asked, rows, [0] * size, COUNT),
    )
    same_error(
        lambda: fit.links(world.nodes, world.pods, asked, ints(rows), bytearray(size), LINKS),
        lambda: plain.links(world.twin_nodes, world.twin_pods, asked, rows, [0] * size, LINKS),
    )


# -- what claims get is known

NICS = NicCodes(30, 31, 32, 33)
looked = st.one_of(st.sampled_from([0, fit.UNSEEN, fit.UNMET]), st.integers(1, 0xFF))
judged = st.sampled_from([0, 0, 9, 20, 21, 22, 23, 24, 30, 31, 32, 33])


@pytest.mark.parametrize(("rule", "codes"), [("given_links", LINKS), ("given_nics", NICS)])
@given(world=worlds(), data=st.data(), resource=resources)
def test_what_claims_get_is_judged_instead(
    rule: str, codes: object, world: World, data: st.DataObject, resource: int
) -> None:
    rows = data.draw(rows_of(world))
    wanted = data.draw(st.lists(judged, min_size=len(rows), max_size=len(rows)))
    column = data.draw(st.lists(looked, min_size=world.nodes.height, max_size=world.nodes.height))
    out = bytearray(wanted)
    getattr(fit, rule)(world.nodes, resource, ints(rows), out, array("I", column), codes)
    getattr(plain, rule)(world.twin_nodes, resource, rows, wanted, column, codes)
    assert list(out) == wanted


@given(st.data(), st.lists(st.sampled_from([0, 5, fit.UNSEEN, fit.UNMET]), min_size=1, max_size=9))
def test_what_is_not_looked_at_and_what_is_unmet(data: st.DataObject, column: list[int]) -> None:
    rows = data.draw(st.lists(st.integers(0, len(column) - 1), max_size=9))
    wanted = data.draw(st.lists(rejected, min_size=len(rows), max_size=len(rows)))
    out, looked = bytearray(wanted), array("I", column)
    assert fit.unseen(ints(rows), out, looked).tolist() == plain.unseen(rows, wanted, column)
    assert fit.unmet(ints(rows), out, looked, 26) == plain.unmet(rows, wanted, column, 26)
    assert list(out) == wanted


@given(worlds(), st.lists(st.integers(-1, 7), max_size=3), st.integers(-1, 4), st.integers(0, 8), st.integers(2, R))
def test_bad_columns_are_rejected_alike(world: World, rows: list[int], length: int, height: int, resource: int) -> None:
    size, column = len(rows) if length < 0 else length, [0] * height
    looked = array("I", column)
    same_error(lambda: fit.unseen(ints(rows), bytearray(size), looked), lambda: plain.unseen(rows, [0] * size, column))
    same_error(
        lambda: fit.unmet(ints(rows), bytearray(size), looked, 1), lambda: plain.unmet(rows, [0] * size, column, 1)
    )
    same_error(
        lambda: fit.given_links(world.nodes, resource, ints(rows), bytearray(size), looked, LINKS),
        lambda: plain.given_links(world.twin_nodes, resource, rows, [0] * size, column, LINKS),
    )
    same_error(
        lambda: fit.given_nics(world.nodes, resource, ints(rows), bytearray(size), looked, NICS),
        lambda: plain.given_nics(world.twin_nodes, resource, rows, [0] * size, column, NICS),
    )


def test_a_gpu_that_a_staying_pod_holds_too_does_not_make_links() -> None:
    # GPUs 0..3 of an NVSwitch node are healthy. Pod 0 (evictable) holds 0 and 1, pod 1 stays and is seen on 1, 2, 3:
    # the eviction gains GPU 0 alone.
    shape, _ = KINDS["nvswitch"]
    world = build(
        [("add", (0,)), ("set_node", (0, (0, 0, 9, 4, 0), GPU, shape, 0b1111, 0)),
         ("set_held", (0, (0, 0, 2, 4, 0), 0b1111, 0, 0, 0))],
        [("put", (0, 0, 0, (0, 0, 1, 2, 0), 0b0011, 0, 0)), ("put", (1, 0, 9, (0, 0, 1, 3, 0), 0b1110, 0, 0))],
    )  # fmt: skip
    out = bytearray(1)
    fit.links(world.nodes, world.pods, ask(GPU, 2, priority=5, links="required"), ints([0]), out, LINKS)
    assert out[0] == 24


def test_of_a_gpu_that_the_shape_does_not_have_no_links_are_known() -> None:
    shape, _ = KINDS["nvswitch"]
    world = build([("add", (0,)), ("set_node", (0, (0, 0, 9, 4, 0), GPU, shape, 0b1111, 0))], [])
    codes = []
    for gpus in (0b11, 0b11 | 1 << 16):  # no shape has so many
        out = bytearray([LINKS.unknown])
        fit.given_links(world.nodes, GPU, ints([0]), out, array("I", [gpus]), LINKS)
        codes.append(out[0])
    assert codes == [0, LINKS.never]


@given(st.lists(st.integers(0, 255)))
def test_counts_of_codes(codes: list[int]) -> None:
    assert fit.counts(array("B", codes)) == plain.counts(codes)
