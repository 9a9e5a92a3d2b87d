"""The reader of the texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documents.typed import Reader


@pytest.fixture
def reader(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Reader:
    """A cluster file in a folder of its own."""
    return Reader(tmp_path, capsys)
