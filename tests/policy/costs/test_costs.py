"""The cost terms: what each says of the pods that may be victims. The sums over sets are the victim search's."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from ext_core.links import LinkShapes
from extender.policy.contracts import CostTerm, VictimGroups, Victims
from extender.policy.costs import COSTS, prices

NONE = VictimGroups(array("i", [0]), array("i"), array("q"), ())
SECOND = 1000  # milliseconds
NOW = 1_800_000_000 * SECOND


def victims(
    *,
    priority: Sequence[int] = (),
    start_ms: Sequence[int] = (),
    saved_ms: Sequence[int] = (),
    restart_s: Sequence[int] = (),
    saves_s: Sequence[int] = (),
    ignores: Sequence[int] = (),
    grace_s: Sequence[int] = (),
    gpus: Sequence[int] = (),
    terminating: Sequence[int] = (),
    budgets: VictimGroups = NONE,
    gangs: VictimGroups = NONE,
    stranded: Sequence[int] = (),
    lacking: Sequence[int] = (),
    leftover: list[array[int]] | None = None,
) -> Victims:
    """As many pods as the longest column; the others are filled up with 0."""
    n = max(len(column) for column in (priority, start_ms, saved_ms, restart_s, grace_s, gpus, terminating))

    def column(values: Sequence[int]) -> array[int]:
        return array("q", [*values, *[0] * (n - len(values))])

    return Victims(
        pods=array("i", range(n)),
        priority=column(priority),
        start_ms=column(start_ms),
        saved_ms=column(saved_ms),
        restart_s=column(restart_s),
        saves_s=column(saves_s) if saves_s else array("q", [-1]) * n,
        ignores=column(ignores) if ignores else array("q", [0]) * n,
        grace_s=column(grace_s),
        gpus=column(gpus),
        terminating=column(terminating),
        now_ms=NOW,
        budgets=budgets,
        gangs=gangs,
        gang_work=array("q"),
        stranded=column(stranded),
        lacking=array("q", lacking),
        leftover=leftover or [],
    )


def term(cost: CostTerm, given: Victims) -> list[Any]:
    """What the term says, its columns as lists."""
    return [list(part) if isinstance(part, array) else part for part in cost.term(given)]


def test_highest_priority() -> None:
    assert term(COSTS["highest_victim_priority"], victims(priority=[100, -5, 2_000_000], terminating=[0, 0, 1])) == [
        "max",
        [100, -5, -(2**31) - 1],
    ]  # who goes anyway is below every priority


def test_grace() -> None:
    assert term(COSTS["grace_seconds"], victims(grace_s=[30, 0, 600], terminating=[0, 0, 1])) == [
        "max",
        [30, 0, 0],
    ]  # the third goes already: nobody waits for it on our account


def test_victim_count() -> None:
    assert term(COSTS["victims"], victims(terminating=[0, 1, 0])) == ["sum", [1, 0, 1]]


def test_work_lost() -> None:
    hour = 3600 * SECOND
    given = victims(
        # never saved; saved 60 s ago; saved before its start (a resumed job); terminating; no GPU; starts in the future
        gpus=[8, 2, 4, 8, 0, 2],
        start_ms=[NOW - hour, NOW - hour, NOW - 100 * SECOND, NOW - hour, NOW - hour, NOW + hour],
        saved_ms=[0, NOW - 60 * SECOND, NOW - hour, 0, 0, 0],
        restart_s=[0, 30, 20, 0, 10, 5],
        terminating=[0, 0, 0, 1, 0, 0],
    )
    # 8 * 3600 = 28800; 2 * (60 + 30) = 180; 4 * (3600 + 20) = 14480; terminating: 0; no GPU: 0; 2 * (0 + 5) = 10
    assert term(COSTS["work_lost_gpu_seconds"], given) == ["sum", [28800, 180, 14480, 0, 0, 10]]


def test_what_a_pod_saves_before_it_ends_is_not_lost() -> None:
    given = victims(
        # within 90 s of its SIGTERM; at once; it has run for less; it saved 60 s ago; it does not save; terminating
        gpus=[8, 8, 4, 2, 2, 8],
        start_ms=[NOW - 3600 * SECOND] * 2 + [NOW - 30 * SECOND] + [NOW - 3600 * SECOND] * 3,
        saved_ms=[0, 0, 0, NOW - 60 * SECOND, 0, 0],
        restart_s=[10, 0, 10, 5, 5, 5],
        saves_s=[90, 0, 90, 90, -1, 90],
        terminating=[0, 0, 0, 0, 0, 1],
    )
    # 8 * (90 + 10) = 800; 8 * 0; 4 * (30 + 10) = 160; 2 * (60 + 5) = 130; 2 * (3600 + 5) = 7210; 0
    assert term(COSTS["work_lost_gpu_seconds"], given) == ["sum", [800, 0, 160, 130, 7210, 0]]


def test_of_what_a_pod_would_save_counts_what_others_like_it_did_not_save() -> None:
    given = victims(
        gpus=[8] * 4,
        start_ms=[NOW - 3600 * SECOND] * 3 + [NOW - 30 * SECOND],
        restart_s=[10] * 4,
        saves_s=[90, 90, -1, 90],
        ignores=[0, 250, 250, 250],
    )
    # 8 * (90 + 10); 8 * (90 + 3510 / 4 + 10) = 7820; it does not save: 8 * 3610; it has run for less: 8 * 40
    assert term(COSTS["work_lost_gpu_seconds"], given) == ["sum", [800, 7820, 28880, 320]]


def test_work_lost_counts_whole_seconds() -> None:
    given = victims(gpus=[1, 1], start_ms=[NOW - 1999, NOW - 2000], restart_s=[0, 0])
    assert term(COSTS["work_lost_gpu_seconds"], given) == ["sum", [1, 2]]


def test_pdb_violations() -> None:
    # Pod 0 is in both budgets, pod 1 in none, pod 2 in the second; the first may lose one, the second none.
    budgets = VictimGroups(array("i", [0, 2, 2, 3]), array("i", [0, 1, 1]), array("q", [1, 0]), ("a", "b"))
    given = victims(gpus=[1, 1, 1], budgets=budgets)
    assert term(COSTS["pdb_violations"], given) == [
        "group",
        [0, 2, 2, 3],
        [0, 1, 1],
        [1, 0],
        [1, 1],
    ]


def test_gangs_broken() -> None:
    # Pods 0 and 1 are of one gang that may lose one, pod 2 of none.
    gangs = VictimGroups(array("i", [0, 1, 2, 2]), array("i", [0, 0]), array("q", [1]), ("train",))
    assert term(COSTS["gangs_broken"], victims(gpus=[1, 1, 1], gangs=gangs)) == ["gang", [0, 1, 2, 2], [0, 0], [1], [1]]


def test_gpus_freed_beyond_the_request() -> None:
    # One candidate, which lacks 3 GPUs: its victims' GPUs count, but those of the pod that is terminating already.
    given = victims(gpus=[4, 1, 2], terminating=[0, 0, 1], lacking=[3])
    assert term(COSTS["freed_beyond_gpus"], given) == ["sum", [4, 1, 0], [3]]


def test_victims_stranded() -> None:
    assert term(COSTS["victims_stranded"], victims(stranded=[1, 0, 1])) == ["sum", [1, 0, 1]]


def test_leftover_fragmentation() -> None:
    table = array("q", [3, 2, 1, 0])
    assert COSTS["leftover_fragmentation"].term(victims(leftover=[table])) == ("mask", [table])


def test_what_a_set_of_free_gpus_leaves_broken_up() -> None:
    shapes = LinkShapes()
    pairs = [[4 if a != b and a // 2 == b // 2 else 0 for b in range(4)] for a in range(4)]  # 0-1, 2-3
    shape = shapes.intern(pairs, gpu_total=False, pcie=None, numa=[0] * 4, plugin="nvidia", gbps=25.0)
    found = prices(shapes, shape, 4, 1)
    whole, pair = shapes.ways(shape, 0b1111), shapes.ways(shape, 0b0011)
    assert whole is not None
    assert pair is not None
    assert whole == 2 * pair > 0
    assert found[0b0001] == whole  # the only GPU is taken: nothing stays
    assert found[0b0111] == whole - pair  # the lone GPU 2 is taken: the pair 0-1 stays
    assert found[0b0011] == whole  # one of the pair is taken
    assert found[0b1111] == whole - pair


def test_nobody_to_evict() -> None:
    for cost in COSTS.values():
        assert all(not isinstance(part, array) or len(part) <= 1 for part in cost.term(victims()))


def test_the_default_order_of_the_terms() -> None:
    assert list(COSTS) == [
        "pdb_violations",
        "highest_victim_priority",
        "gangs_broken",
        "work_lost_gpu_seconds",
        "grace_seconds",
        "victims",
        "freed_beyond_gpus",
        "leftover_fragmentation",
        "victims_stranded",
    ]
    assert all(cost.unit for cost in COSTS.values())
