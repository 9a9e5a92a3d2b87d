"""docs/reliability.md is what the command prints, and each test that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.faults.table import Fault, faults, page

ROOT = Path(__file__).parents[2]
ASKED = {
    "The API server is not available": 1, "410": 1, "watch is slow": 1, "another order": 1, "ConfigMap": 2,
    "settings file": 1, "Lease is stolen": 1, "clock steps": 1, "disk is full": 1, "SIGTERM": 1, "node is cut off": 1,
}  # fmt: skip
"""Words of the faults that the page must have, and how many have them."""


def test_the_page_is_what_is_printed() -> None:
    assert (ROOT / "docs" / "reliability.md").read_text() == page()


def test_no_fault_is_lost() -> None:
    assert {word: sum(word in fault.name for fault in faults()) for word in ASKED} == ASKED


@pytest.mark.parametrize("fault", faults(), ids=lambda fault: fault.name)
def test_what_shows_it_exists(fault: Fault) -> None:
    assert fault.tests
    assert fault.promised
    assert fault.observed
    for test in fault.tests:
        file, _, name = test.partition("::")
        assert re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text(), re.MULTILINE), test
