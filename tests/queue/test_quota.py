"""Limits, guarantees and borrowing, computed by hand: 100 GPUs of model m."""

from __future__ import annotations

import pytest

from extender.queue.usage import OverQuota, Quota
from extender.settings import QueueLimits

CAPACITY = {"m": 100, "x": 8}
# the rules, GPUs held, GPUs wanted, GPUs that queue a asks for -> (rule, held, most) or None
CASES: dict[str, tuple[dict[str, QueueLimits], dict[str, int], dict[str, int], int, tuple[str, int, int] | None]] = {
    "no rules": ({}, {"a": 50, "b": 40}, {}, 10, None),
    "more than is free: places decide": ({}, {"a": 50, "b": 40}, {}, 11, None),
    "up to the limit": ({"a": QueueLimits(limit_gpus={"m": 60})}, {"a": 50}, {}, 10, None),
    "beyond the limit": ({"a": QueueLimits(limit_gpus={"m": 60})}, {"a": 50}, {}, 11, ("limit", 50, 60)),
    "a limit of 0": ({"a": QueueLimits(limit_gpus={"m": 0})}, {}, {}, 1, ("limit", 0, 0)),
    "a limit of another model": ({"a": QueueLimits(limit_gpus={"x": 0})}, {}, {}, 1, None),
    "within the guarantee": ({"a": QueueLimits(guaranteed_gpus={"m": 60}, borrow=False)}, {"a": 50}, {}, 10, None),
    "beyond the guarantee, no borrowing": (
        {"a": QueueLimits(guaranteed_gpus={"m": 60}, borrow=False)}, {"a": 50}, {}, 11, ("guarantee", 50, 60),
    ),
    "no guarantee, no borrowing": ({"a": QueueLimits(borrow=False)}, {}, {}, 1, ("guarantee", 0, 0)),
    "beyond the guarantee it borrows": ({"a": QueueLimits(guaranteed_gpus={"m": 60})}, {"a": 60}, {}, 40, None),
    "a guarantee that nobody waits for is lent": (
        {"b": QueueLimits(guaranteed_gpus={"m": 40})}, {"a": 60}, {}, 40, None,
    ),
    # b is guaranteed 40, holds 10 and waits for 20: 30 are kept, 70 are left
    "a guarantee that is waited for is kept": (
        {"b": QueueLimits(guaranteed_gpus={"m": 40})}, {"a": 60, "b": 10}, {"b": 20}, 10, None,
    ),
    "one GPU more": (
        {"b": QueueLimits(guaranteed_gpus={"m": 40})}, {"a": 60, "b": 10}, {"b": 20}, 11, ("lent", 60, 70),
    ),
    # b waits for 100, of which 40 are within its guarantee
    "what is waited for beyond the guarantee is not kept": (
        {"b": QueueLimits(guaranteed_gpus={"m": 40})}, {"a": 50}, {"b": 100}, 10, None,
    ),
    "others that borrow keep what they hold, and no more": (
        {"b": QueueLimits(guaranteed_gpus={"m": 40})}, {"a": 20, "b": 70}, {"b": 5}, 10, None,
    ),
    # a is within its own guarantee, be it lent out or not: places decide
    "its own guarantee is not asked of others": (
        {"a": QueueLimits(guaranteed_gpus={"m": 40})}, {"a": 10, "b": 90}, {}, 30, None,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("rules", "held", "wanted", "asked", "expected"), CASES.values(), ids=CASES)
def test_who_may_hold_more(
    rules: dict[str, QueueLimits],
    held: dict[str, int],
    wanted: dict[str, int],
    asked: int,
    expected: tuple[str, int, int] | None,
) -> None:
    quota = Quota(
        rules, CAPACITY, {key: {"m": n} for key, n in held.items()}, {key: {"m": n} for key, n in wanted.items()}
    )
    found = quota.refused("a", {"m": asked})
    assert (None if found is None else (found.rule, found.held, found.most)) == expected


def test_each_model_counts_for_itself() -> None:
    quota = Quota({"a": QueueLimits(limit_gpus={"m": 10, "x": 2})}, CAPACITY, {"a": {"m": 8, "x": 1}}, {})
    assert quota.refused("a", {"m": 2, "x": 1}) is None
    assert quota.refused("a", {"m": 2, "x": 2}) == OverQuota("a", "limit", "x", 2, 1, 2)
    assert quota.refused("a", {"m": 3, "x": 2}) == OverQuota("a", "limit", "m", 3, 8, 10)  # the first by name
    assert quota.refused("a", {"m": 0}) is None
    assert quota.refused("a", {"unknown": 1}) is None  # there is no place


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("limit", "queue a would hold 1,012 GPUs of model m, its limit is 1,010"),
        ("guarantee", "queue a would hold 1,012 GPUs of model m, its guarantee is 1,010 and it may not borrow"),
        ("lent", "queue a would hold 1,012 GPUs of model m, other queues and their guarantees leave it 1,010"),
    ],
)
def test_the_reason_has_the_numbers(rule: str, text: str) -> None:
    assert OverQuota("a", rule, "m", 4, 1_008, 1_010).text == text  # type: ignore[arg-type]
