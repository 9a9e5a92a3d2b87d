"""The reference pages of docs/ are what the code prints, and the lists in it are complete."""

from __future__ import annotations

import ast
import re

import pytest

from extender.cli import config
from extender.objects.annotations import NAMES, PREFIX
from extender.policy.costs import COSTS
from extender.policy.rules import RULES
from extender.policy.scorers import SCORERS
from tests.pages import commands, reference
from tests.pages.__main__ import DOCS, PAGES

ROOT = DOCS.parent


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_code_prints(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NODE_NAME", raising=False)
    assert (DOCS / f"{name}.md").read_text() == PAGES[name](), f"run: python -m tests.pages {name} > docs/{name}.md"


def test_every_field_of_the_settings_has_a_meaning() -> None:
    assert [field for field, _, _, meaning in config.rows() if len(meaning) < 9] == []


def test_bounds_of_a_class_or_namespace_are_listed_once() -> None:
    page = reference.settings_page()
    assert "`claims.byNamespace`" in page
    assert "`claims.byNamespace.NAMESPACE.gangMin`" not in page


def test_every_rule_scorer_and_cost_term_has_a_meaning() -> None:
    rows = [line for line in reference.policy_page().splitlines() if line.startswith("| `")]
    assert len(rows) == len(RULES) + len(SCORERS) + len(COSTS)
    assert [row for row in rows if len(row.split(" | ")[-1]) < 9] == []


def test_every_argument_of_the_commands_has_a_meaning() -> None:
    assert [line for line in commands.page().splitlines() if line.endswith("|  |")] == []


def test_every_name_of_ours_in_the_code_is_listed() -> None:
    others = {"v1", "extender", "planned"}  # apiVersion, the controller that Events name, a taint of devices
    found = {
        name
        for file in (ROOT / "extender").rglob("*.py")
        if "sim" not in file.parts
        for name in re.findall(rf'"{re.escape(PREFIX)}([a-z][a-z0-9-]*)"', file.read_text())
    }
    assert {one.name for one in NAMES} == found - others


def test_the_page_of_annotations_has_every_name_with_its_object_place_and_words() -> None:
    lines = (DOCS / "annotations.md").read_text().splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith(f"| `{PREFIX}")]
    by_name = {row[0].strip("`").removeprefix(PREFIX): row for row in rows}
    assert len(rows) == len(by_name)
    assert by_name.keys() == {name.name for name in NAMES}
    for name in NAMES:
        _, on, writer, values, meaning = by_name[name.name]
        assert on.partition(" ")[0] == name.on
        assert ("(label" in on or "a label works too" in meaning) == ("label" in name.places)
        assert all(f"`{word}`" in values for word in name.words)
        assert writer
        assert len(meaning) > 9


def test_every_finding_of_check_is_on_its_page() -> None:
    calls = [
        call
        for file in (ROOT / "extender").rglob("*.py")
        for call in ast.walk(ast.parse(file.read_text()))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Finding"
    ]
    codes = {code.value for call in calls for code in call.args[1:2] if isinstance(code, ast.Constant)}
    assert len(codes) > 40
    assert codes <= set(re.findall(r"`([a-z-]+)`", (ROOT / "docs" / "check.md").read_text()))
