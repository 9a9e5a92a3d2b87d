"""The registry: codes, keys and sentences are one each, and every rule's reasons are in it."""

from __future__ import annotations

from pathlib import Path

from extender.policy.rules import (
    CLAIM_UNMET,
    HANDOVER,
    MOVING,
    QUEUED,
    REASONS,
    RULES,
    SEATED,
    STALE,
    STARTED,
    UNKNOWN_NODE,
    WHOLE,
)
from extender.policy.rules.__main__ import page as reasons_page


def test_codes_are_unique_bytes() -> None:
    reasons = [
        UNKNOWN_NODE,
        SEATED,
        MOVING,
        QUEUED,
        STARTED,
        WHOLE,
        HANDOVER,
        CLAIM_UNMET,
        STALE,
        *(reason for rule in RULES for reason in rule.reasons),
    ]
    assert len(REASONS) == len(reasons)  # no code twice
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


def test_the_reasons_page_is_what_the_rules_say() -> None:
    page = Path(__file__).parents[3] / "docs" / "reasons.md"
    assert page.read_text() == reasons_page()
