"""What tests of commands are given."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.canned import Cli, serving


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capsys)


@pytest.fixture
def server() -> Iterator[str]:
    with serving() as url:
        yield url
