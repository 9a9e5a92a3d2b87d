"""Our allocator of claims beside that of kube-scheduler, over random cases. ALLOCATOR_CASES: how many."""

from __future__ import annotations

import os
import random
from collections import Counter

from tests.cluster.dra.allocator_cases import cases, ours
from tests.e2e.allocator import answers

CASES = int(os.environ.get("ALLOCATOR_CASES", "3000"))


def test_the_same_devices_are_taken() -> None:
    asked = list(cases(random.Random(29), CASES))
    outcomes: Counter[str] = Counter()
    for case, answer in zip(asked, answers(case.as_json() for case in asked), strict=True):
        allocation = ours(case)
        if allocation.unknown:
            outcomes["unknown"] += 1
            continue
        if answer.get("tooLong"):
            outcomes["too long for kube-scheduler"] += 1
            assert allocation.results is None
            continue
        expected = None if answer["allocations"] is None else [
            [
                (
                    result["request"], result["driver"], result["pool"], result["device"],
                    bool(result.get("adminAccess")), "shareID" in result,
                )
                for result in entry["devices"]["results"]
            ]
            for entry in answer["allocations"]
        ]  # fmt: skip
        actual = None if allocation.results is None else [
            [
                (result.request, *_named(result.candidate.id), result.admin, result.amounts is not None)
                for result in results
            ]
            for results in allocation.results
        ]  # fmt: skip
        assert actual == expected, (case.as_json(), answer, allocation.why)
        outcomes["error" if "error" in answer else "unfit" if expected is None else "fits"] += 1
    print(f"{CASES} cases: {dict(sorted(outcomes.items()))}")
    assert outcomes["unknown"] <= CASES // 10
    assert min(outcomes["fits"], outcomes["unfit"]) >= CASES // 10


def _named(device: str) -> tuple[str, str, str]:
    driver, pool, name = device.split("/")
    return driver, pool, name
