"""What a test needs of its machine: without it the test is skipped, and fails where CI is set."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def lacking(reason: str) -> NoReturn:
    """Ends the test. `reason`: one line, what the machine lacks."""
    if os.environ.get("CI"):
        pytest.fail(f"{reason}; CI is set, so this test must run", pytrace=False)
    pytest.skip(reason)
