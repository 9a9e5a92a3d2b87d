"""Measurements, one after the other, each with its defaults (`make bench`, ARGS as the names).

python -m benchmarks            the targets of live speed, whose parts are measurements of their own: half an hour
python -m benchmarks all        these, then those of the quality of decisions: two hours
"""

from __future__ import annotations

import sys
from importlib import import_module

from tests.e2e.build import ControlPlaneUnavailable

ALL = ("targets", "preempt_speed", "nvlink", "cluster", "preemption", "queue", "queue_live", "relay")
PARTS = ("verbs", "decisions", "events", "reservations", "memory", "scheduler")  # of the targets
MORE = (
    "stages",
    "nics",
    "joint",
    "look",
    "gang_evictions",
    "podgroups",
    "page",
    "tls",
    "claims",
    "claim_shapes",
    "manifests",
)


def main(names: list[str]) -> int:
    known = ("all", *ALL, *PARTS, *MORE)
    if unknown := [name for name in names if name not in known]:
        print(f"no such measurement: {', '.join(unknown)}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    worst = 0
    for name in ALL if "all" in names else names or ("targets",):
        try:
            worst = max(worst, import_module(f"benchmarks.{name}").main([]))
        except ControlPlaneUnavailable as reason:
            print(f"{name} was SKIPPED, no control plane: {reason}", file=sys.stderr)
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
