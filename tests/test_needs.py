"""What a machine lacks is said in one line: a skip, and a failure where CI is set."""

from __future__ import annotations

import pytest

from tests.needs import lacking


@pytest.mark.parametrize("ci", ["", "true"])
def test_a_test_is_skipped_only_where_ci_is_not_set(monkeypatch: pytest.MonkeyPatch, ci: str) -> None:
    monkeypatch.setenv("CI", ci)
    with pytest.raises(pytest.fail.Exception if ci else pytest.skip.Exception) as ended:
        lacking("no Chromium")
    assert str(ended.value) == ("no Chromium; CI is set, so this test must run" if ci else "no Chromium")
