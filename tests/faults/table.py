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
- `GPU_EXTENDER_METAMORPHIC_CASES=100 python -m pytest tests/metamorphic`: the same random cluster stated in two ways
  (other names, another order, unused labels, later times, other owners, other versions of claims, three instances, two
  clusters in one file) gets the same answers from the commands over a file and from the verbs. `make soak` runs it. Of
  equal nodes, and of evictions of equal cost, the first by name is chosen.
- `GPU_EXTENDER_MODEL_EPISODES=2000 python -m pytest tests/model`: the controllers of the queue and the verbs, one to
  three replicas of them, with a model of kube-scheduler, kubelets and the tenants' controllers in virtual time.
  Gangs of all owners come, end and lose pods; nodes come, fail and are cordoned; quotas change; replicas are killed
  and lose requests. After each step no GPU is reserved twice, no gate is open that a replica does not know, and no
  queue is above its limit. At rest no gang waits that has a place, by trying every node. 60 episodes are part of
  `make test`, 2,000 of `make soak`. It leaves out: claims, evictions by the queue, and owners whose pods start in
  an order once some of them have ended. 2,000 fresh episodes (100,000 steps) passed, after their finds and those of
  4,250 before them were mended.
- `make soak HOURS=8`: one server under verbs, events, broken watches and pages, without kube-scheduler: 10 pods a
  second, in real time. The last hour is judged against the second: RSS at most 1.05 x, p99 at most 1.2 x. Of a run of
  less than 8 hours the last eighth is judged against the second one.
- `make soak HOURS=8 REAL=1`: the same pods, events, broken and expired watches and pages in one real hour, at 80 pods
  a second; a window is a played hour. It fails where less than 0.9 of the pods were played. `REAL` is at least 1. What
  follows a clock is not played faster: assumed pods, reservations, Leases, ages of records, and the end of a watch
  that the API server closes after minutes.
  A run of it on two processors that other programs used too (load 5 to 8), with 200 nodes: steady, 288,000 of 288,000
  pods. RSS of the last hour was 1.03 x that of the second, p99 1.00 x.

  | hour | pods | calls | p50 ms | p99 ms | RSS MiB |
  |--:|--:|--:|--:|--:|--:|
  | 1 | 36,000 | 82,854 | 0.86 | 21.34 | 133.2 |
  | 2 | 36,000 | 82,444 | 0.94 | 21.74 | 142.1 |
  | 3 | 36,000 | 82,378 | 0.96 | 21.45 | 144.4 |
  | 4 | 36,000 | 82,252 | 1.01 | 21.49 | 144.7 |
  | 5 | 36,000 | 82,036 | 1.17 | 21.91 | 145.0 |
  | 6 | 35,992 | 82,527 | 1.20 | 22.14 | 145.3 |
  | 7 | 36,008 | 82,122 | 1.15 | 24.40 | 145.7 |
  | 8 | 36,000 | 82,299 | 1.11 | 21.76 | 146.0 |

  p99 is that of filter calls that would reject all nodes: they wait 20 ms once, for a watch that may be behind. Such a
  wait hides a slower server from p99, but not from p50. A new server had a p50 of 0.73 to 0.88 ms while the machine
  was less busy, and of 1.06 to 1.38 ms right after the run.
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
