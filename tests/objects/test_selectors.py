"""Selectors, node terms and tolerations against Kubernetes' rules."""

from __future__ import annotations

import pytest

from extender.objects import schema
from extender.objects.selectors import (
    MOST_VALUES,
    NOTHING,
    ManyValues,
    NodeTerm,
    Operator,
    PodTerm,
    Requirement,
    Selector,
    Taint,
    Toleration,
    requirements,
    untolerated,
)


@pytest.mark.parametrize(
    ("operator", "values", "labels", "expected"),
    [
        ("In", ("a", "b"), {"k": "b"}, True),
        ("In", ("a",), {"k": "b"}, False),
        ("In", ("a",), {}, False),
        ("NotIn", ("a",), {"k": "b"}, True),
        ("NotIn", ("a",), {"k": "a"}, False),
        ("NotIn", ("a",), {}, True),
        ("Exists", (), {"k": ""}, True),
        ("Exists", (), {"j": ""}, False),
        ("DoesNotExist", (), {}, True),
        ("DoesNotExist", (), {"k": "a"}, False),
        ("Gt", ("4",), {"k": "5"}, True),
        ("Gt", ("5",), {"k": "5"}, False),
        ("Gt", ("5",), {}, False),
        ("Lt", ("5",), {"k": "-7"}, True),
        ("Lt", ("5",), {"k": "four"}, False),
        ("Lt", ("5",), {"k": "1_0"}, False),
        ("Gt", ("-9223372036854775808",), {"k": "9223372036854775807"}, True),
        ("Gt", ("0",), {"k": "9223372036854775808"}, False),  # beyond int64
    ],
)
def test_requirement(operator: Operator, values: tuple[str, ...], labels: dict[str, str], expected: bool) -> None:
    assert Requirement("k", operator, values).matches(labels) is expected


@pytest.mark.parametrize("number", [MOST_VALUES, MOST_VALUES + 1])
def test_many_values_are_looked_up(number: int) -> None:
    stated = [f"v{i}" for i in range(number)]
    among, beside = (
        next(requirements([schema.Expression(key="k", operator=operator, values=stated)], "")).matches
        for operator in ("In", "NotIn")
    )
    for label in (*stated, "other"):
        assert among({"k": label}) is not beside({"k": label}) is (label not in stated)
    assert (among({}), beside({})) == (False, True)
    [made] = requirements([schema.Expression(key="k", operator="In", values=stated)], "")
    assert made == Requirement("k", "In", tuple(stated))
    assert isinstance(made.values, ManyValues) is (number > MOST_VALUES)


def test_an_empty_selector_matches_all_and_the_null_one_nothing() -> None:
    assert Selector().matches({})
    assert Selector().empty
    assert not NOTHING.matches({})
    assert not NOTHING.empty


def test_a_term_with_unknown_namespaces_may_match_any() -> None:
    term = PodTerm("zone", Selector((Requirement("app", "In", ("x",)),)), None)
    assert term.may_match("anything", {"app": "x"})
    assert not term.may_match("anything", {"app": "y"})
    assert not term._replace(namespaces=frozenset({"a"})).may_match("b", {"app": "x"})


def test_an_empty_node_term_matches_no_node() -> None:
    assert not NodeTerm().matches("n", {})
    assert NodeTerm(fields=(Requirement("metadata.name", "In", ("n",)),)).matches("n", {})
    assert not NodeTerm(fields=(Requirement("metadata.name", "In", ("m",)),)).matches("n", {})


@pytest.mark.parametrize(
    ("toleration", "taint", "expected"),
    [
        (Toleration("", "Exists", "", ""), Taint("k", "v", "NoSchedule"), True),
        (Toleration("k", "Exists", "", ""), Taint("k", "v", "NoExecute"), True),
        (Toleration("k", "Equal", "v", "NoSchedule"), Taint("k", "v", "NoSchedule"), True),
        (Toleration("k", "Equal", "v", "NoExecute"), Taint("k", "v", "NoSchedule"), False),
        (Toleration("k", "Equal", "w", ""), Taint("k", "v", "NoSchedule"), False),
        (Toleration("j", "Exists", "", ""), Taint("k", "v", "NoSchedule"), False),
        (Toleration("k", "Gt", "10", ""), Taint("k", "11", "NoSchedule"), True),
        (Toleration("k", "Gt", "10", ""), Taint("k", "10", "NoSchedule"), False),
        (Toleration("k", "Lt", "10", ""), Taint("k", "9", "NoSchedule"), True),
        (Toleration("k", "Lt", "10", ""), Taint("k", "x", "NoSchedule"), False),
    ],
)
def test_toleration(toleration: Toleration, taint: Taint, expected: bool) -> None:
    assert toleration.tolerates(taint) is expected
    assert (untolerated([taint], [toleration]) is None) is expected


def test_prefer_no_schedule_keeps_nobody_off() -> None:
    assert untolerated([Taint("k", "v", "PreferNoSchedule")], []) is None
