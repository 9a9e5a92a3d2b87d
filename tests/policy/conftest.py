"""What tests of rules and scorers are given."""

from __future__ import annotations

import pytest

from tests.tables import Small


@pytest.fixture
def small() -> Small:
    return Small()
