"""kube-scheduler's own allocator of ResourceClaims as a child process, for one node at a time."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator
from typing import Any

import orjson

from tests.e2e.build import build_allocator

Object = dict[str, Any]
AT_ONCE = 100


def answers(cases: Iterable[Object]) -> Iterator[Object]:
    """The answer of each case, as cmd/allocator/main.go describes both."""
    lines = [orjson.dumps(case) for case in cases]
    program = str(build_allocator())
    for start in range(0, len(lines), AT_ONCE):
        done = subprocess.run(
            [program], input=b"\n".join(lines[start : start + AT_ONCE]) + b"\n", capture_output=True, check=True
        )
        yield from map(orjson.loads, done.stdout.splitlines())
