"""The registry: codes, keys and sentences are one each, and every rule's reasons are in it."""

from __future__ import annotations

from extender.policy import reasons
from extender.policy.contracts import Reason
from extender.policy.reasons import REASONS
from extender.policy.rules import RULES


def test_codes_are_unique_bytes() -> None:
    constants = {name: value for name, value in vars(reasons).items() if isinstance(value, Reason)}
    assert len(REASONS) == len(constants)  # no code twice
    assert all(1 <= code <= 255 for code in REASONS)


def test_keys_and_texts_are_unique() -> None:
    assert len({reason.key for reason in REASONS.values()}) == len(REASONS)
    assert len({reason.text for reason in REASONS.values()}) == len(REASONS)


def test_texts_are_one_constant_line() -> None:
    for reason in REASONS.values():
        assert reason.text.startswith("gpu-extender: ")
        assert "\n" not in reason.text
        assert reason.remedy.endswith(".")


def test_rule_names_are_unique() -> None:
    assert [rule.name for rule in RULES] == ["resource", "shares", "failing", "count", "links", "nics", "hazard"]


def test_reasons_are_in_the_order_of_the_rules() -> None:
    given = [reason.code for rule in RULES for reason in rule.reasons]
    assert given == [code for code in REASONS if code in given]
