"""The page docs/reliability.md, made from faults.toml."""

from __future__ import annotations

import tomllib
from pathlib import Path
from textwrap import wrap
from typing import Final, NamedTuple

SOURCE: Final = Path(__file__).parent / "faults.toml"
WIDTH: Final = 118
HEAD: Final = """\
# Reliability

What holds when something outside gpu-extender fails, and what the tests saw. `python -m tests.faults` prints this page
from `tests/faults/faults.toml`; `.venv/bin/python -m pytest FILE::TEST` runs a test of it. Those in `tests/e2e` need
the real control plane. [state.md](state.md) explains the times, [queue.md](queue.md#when-a-part-is-down) what holds
for gangs.
"""
TAIL: Final = """\
## What no test shows

- A pod that is deleted by force on a node that is cut off does not exist for the API server, and its containers may
  run. Its GPUs count as free. kubelet ends the containers when the node is back; until then a new pod may share a GPU.
- A step of the clock of a node moves the start that its kubelet writes, and with it protection and lost work.
- API server, etcd and network were on one machine in all e2e tests.

## Long runs

- `make fuzz CASES=1000000`: random hostile input for all verbs, watched objects, settings and cluster files.
  [tests/fuzz](../tests/fuzz/README.md) states how long it takes.
- `make soak HOURS=8`: one server under verbs, events, broken watches and pages, without kube-scheduler: 10 pods a
  second, in real time. The last hour is judged against the second: RSS at most 1.05 x, p99 at most 1.2 x. Of a run of
  less than 8 hours the last eighth is judged against the second one.
- `make soak HOURS=8 REAL=1`: the same pods, events, broken and expired watches and pages in one real hour, at 80 pods
  a second; a window is a played hour. It fails where less than 0.9 of the pods were played. `REAL` is at least 1. What
  follows a clock is not played faster: assumed pods, reservations, Leases, ages of records, and the end of a watch
  that the API server closes after minutes.
- `make soak`: preemptions and gangs on the real control plane, with kills, 45 min.
"""


class Fault(NamedTuple):
    """One fault. `promised`: what holds; `observed`: what the tests saw; `tests`: FILE::TEST, from the root."""

    name: str
    promised: str
    observed: str
    tests: tuple[str, ...]


def faults() -> list[Fault]:
    """All of them, in the order of the page."""
    read = tomllib.loads(SOURCE.read_text())["fault"]
    return [Fault(one["name"], one["promised"].strip(), one["observed"].strip(), tuple(one["tests"])) for one in read]


def page() -> str:
    """docs/reliability.md."""
    return "\n".join([HEAD, *map(_section, faults()), TAIL])


def _section(fault: Fault) -> str:
    points = [("Promised", fault.promised), ("Observed", fault.observed), ("Tests", "")]
    lines = [f"## {fault.name}", ""]
    for title, text in points:
        lines += wrap(f"- **{title}**: {text}".strip(), WIDTH, subsequent_indent="  ", break_long_words=False)
    return "\n".join([*lines, *(f"  - `{test}`" for test in fault.tests), ""])
