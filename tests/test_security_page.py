"""docs/security.md names a test or a command for each defence: they exist."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TABLE = (ROOT / "docs" / "security.md").read_text().partition("## What tests it")[2]
ROWS = [line.strip("|").split("|") for line in TABLE.splitlines() if line.startswith("| ")][1:]


@pytest.mark.parametrize(("defence", "guards"), ROWS, ids=[row[0].strip() for row in ROWS])
def test_what_tests_a_defence_exists(defence: str, guards: str) -> None:
    named = re.findall("`([^`]+)`", guards)
    assert named, defence
    for one in named:
        if one.startswith("python -m "):
            assert find_spec(one.removeprefix("python -m ")), one
            continue
        file, _, name = one.partition("::")
        text = (ROOT / file).read_text()
        assert re.search(rf"^(async )?def {name}\(" if name else "^(async )?def test_", text, re.MULTILINE), one


def test_no_defence_is_lost() -> None:
    assert len(ROWS) == 43
