"""When a reservation ends, and why."""

from __future__ import annotations

CAUSES = {
    "bound": "the preemptor has a node",
    "deleted": "the preemptor is deleted",
    "outbid": "pods of a higher priority took the GPUs",
    "replaced": "the GPUs were lost, another reservation was made for the preemptor",
    "not-used": "the last victim has been gone for a minute",
    "not-carried-out": "kube-scheduler threw the answer away: no pod was evicted",
    "victims-stay": "victims are there long after their grace period has ended",
    "node-lost": "the node is deleted",
}
"""Why a reservation ends: metric label and sentence."""
