"""The terms of a cost for people. Commands load this alone of the policy."""

from __future__ import annotations

from typing import Final

LABELS: Final = {
    "pdb_violations": "disruption budgets violated",
    "highest_victim_priority": "highest priority of a victim",
    "gangs_broken": "gangs broken",
    "work_lost_gpu_seconds": "work lost",
    "grace_seconds": "longest termination grace",
    "victims": "victims",
    "freed_beyond_gpus": "GPUs freed beyond those missing",
    "leftover_fragmentation": "links lost to later pods",
    "victims_stranded": "victims with no other place",
    "seconds": "time to wait",
}


def label(term: str) -> str:
    """A term of a cost for people; others by their names."""
    return LABELS.get(term, term.replace("_", " "))
