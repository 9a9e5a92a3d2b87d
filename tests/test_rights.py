"""Each rule of each role states why it is there, and docs/rights.md has them all."""

from __future__ import annotations

import pytest

from tests import rights
from tests.rights import Rule

RULES = list(rights.rules())


def test_every_role_of_the_manifests_is_read() -> None:
    written = [
        line
        for file in rights.files()
        for line in file.read_text().splitlines()
        if line in ("kind: Role", "kind: ClusterRole")
    ]
    assert len(written) == len({(one.file, one.role) for one in RULES}) > 10


@pytest.mark.parametrize("one", RULES, ids=lambda one: f"{one.file}-{one.objects}")
def test_a_comment_justifies_the_rule(one: Rule) -> None:
    assert len(one.why.split()) >= 4


def test_no_rule_has_a_wildcard() -> None:
    wide = [one for one in RULES for field in ("apiGroups", "resources", "verbs") if "*" in one.rule.get(field, ())]
    assert wide == []


def test_a_comment_ends_at_the_line_before() -> None:
    assert rights._comment(["# other", "- a", "# for one", "# reason"]) == "for one reason"
    assert rights._comment(["# reason", "- a"]) == ""
