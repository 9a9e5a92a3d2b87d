"""Selectors of devices are evaluated as kube-scheduler's allocator does, by its own code."""

from __future__ import annotations

import subprocess
import time
from collections import Counter

from extender.objects.cel import DeviceProperties, selector
from extender.objects.devices import resource_slice
from tests.e2e.build import ControlPlaneUnavailable, build_selectors
from tests.needs import lacking
from tests.selector_cases import Case, cases

NUMBER = 6_000
MOST_UNKNOWN = 0.03
"""Of the expressions that Kubernetes accepts."""


def properties(case: Case) -> DeviceProperties:
    """The device as it is read from a slice."""
    spec = {"driver": case.driver, "pool": {"name": "p", "generation": 1}, "devices": [case.device]}
    wire = {"metadata": {"name": "s", "uid": "u", "resourceVersion": "1"}, "spec": spec}
    record = resource_slice(wire)
    return DeviceProperties(record.driver, record.devices[0])


def ours(case: Case) -> str:
    """As the command answers, or "unknown"."""
    verdict = selector(case.expression).judge(properties(case))
    return "error" if verdict.fails else {True: "true", False: "false", None: "unknown"}[verdict.selected]


def test_random_selectors_are_evaluated_as_by_kube_scheduler() -> None:
    try:
        program = build_selectors()
    except ControlPlaneUnavailable as reason:
        lacking(str(reason))
    asked = list(cases(int(time.time()), NUMBER))
    text = "".join(f"{case.line()}\n" for case in asked)
    answered = subprocess.run([program], input=text, capture_output=True, text=True, check=True).stdout.splitlines()
    words = [line.split(" ", 1)[0] for line in answered]
    pairs = Counter[tuple[str, str]]()
    wrong: list[str] = []
    for case, word, line in zip(asked, words, answered, strict=True):
        answer = ours(case)
        pairs[word, answer] += 1
        if answer not in (word, "unknown"):
            wrong.append(f"{answer} instead of {line}: {case.line()}")
    valid = NUMBER - words.count("invalid")
    unknown = sum(number for (word, answer), number in pairs.items() if answer == "unknown" and word != "invalid")
    print(f"\n{valid} cases, unknown {unknown / valid:.2%}: {dict(pairs)}")
    assert not wrong, "\n".join(wrong[:5])
    assert unknown / valid < MOST_UNKNOWN
    assert min(pairs["true", "true"], pairs["false", "false"], pairs["error", "error"]) > NUMBER / 20
