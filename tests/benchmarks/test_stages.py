"""Where the time of a call goes: each file that a call passes through counts for its own stage."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.stages import stage_of

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("file", "stage"),
    [
        ("server/connections.py", "HTTP: event loop, uvicorn, connections"),
        ("server/calls.py", "the call around the decision"),
        ("act/reservations.py", "the call around the decision"),
        ("decide/wire.py", "bytes to names and pod"),
        ("objects/decode.py", "bytes to names and pod"),
        ("policy/pod_request.py", "the pod as a request"),
        ("reservations/claims.py", "claims of other pods"),
        ("policy/rules.py", "rules"),
        ("policy/scorers.py", "scorers"),
        ("policy/policy.py", "combining rules and scores"),
        ("decide/decisions.py", "decision record"),
        ("decide/verbs.py", "the verb: choice, answer to bytes"),
    ],
)
def test_the_stage_of_a_file(file: str, stage: str) -> None:
    path = ROOT / "extender" / file
    assert path.exists()
    assert stage_of(str(path)) == stage
