"""Each rule of each role states why it is there, and docs/rights.md has them all."""

from __future__ import annotations

import pytest

from tests import rights
from tests.rights import Rule


@pytest.fixture(scope="module")
def rules() -> list[Rule]:
    return list(rights.rules())


def test_every_role_of_the_manifests_is_read(rules: list[Rule]) -> None:
    written = [
        line
        for file in rights.files()
        for line in file.read_text().splitlines()
        if line in ("kind: Role", "kind: ClusterRole")
    ]
    assert len(written) == len({(rule.file, rule.role) for rule in rules}) > 10


def test_a_comment_justifies_each_rule(rules: list[Rule]) -> None:
    assert [rule for rule in rules if len(rule.why.split()) < 4] == []


def test_no_rule_has_a_wildcard(rules: list[Rule]) -> None:
    wide = [one for one in rules for field in ("apiGroups", "resources", "verbs") if "*" in one.rule.get(field, ())]
    assert wide == []


def test_a_comment_ends_at_the_line_before() -> None:
    assert rights._comment(["# other", "- a", "# for one", "# reason"]) == "for one reason"
    assert rights._comment(["# reason", "- a"]) == ""
