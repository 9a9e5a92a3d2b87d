"""Only `Cluster` writes: a reader that gets a `ClusterView` finds no method that changes state."""

from __future__ import annotations

from extender.cluster.cluster import Cluster, ClusterView

WRITERS = {
    "apply",
    "tick",
    "at",
    "plans_come",
    "bound_looks",
    "without",
    "ended",
    "with_bound",
    "subscribe",
    "observe",
    "take",
    "demand",
    "expect",
    "faulted",
    "suppose_claims",
    "invalid",
    "faults",
}


def test_a_view_has_no_writer() -> None:
    public = {name for name in dir(ClusterView) if not name.startswith("_")}
    assert public & WRITERS == set()
    assert {name for name in vars(Cluster) if not name.startswith("_")} <= WRITERS  # a new one: reading or writing?
