"""What objects still hold: the texts that are reachable from one, in whatever it consists of."""

from __future__ import annotations

from typing import Any

from extender.cluster.annotation_limits import AnnotationLimits
from extender.cluster.cluster import Cluster
from extender.cluster.listener import Listener
from extender.cluster.node_health import NodeHealth
from extender.settings import Settings

# Health is remembered for half an hour, within limits of its own (tests/cluster/test_pod_failures.py). The listeners
# are no part of the cluster.
LEFT_OUT = (NodeHealth, Listener, Settings, AnnotationLimits)


def texts(root: object) -> set[str]:
    """Every text in the dicts, lists, tuples, sets and attributes below `root`."""
    found: set[str] = set()
    seen: set[int] = set()
    left = [root]
    while left:
        one = left.pop()
        if isinstance(one, str):
            found.add(one)
            continue
        if id(one) in seen or isinstance(one, LEFT_OUT):
            continue
        seen.add(id(one))
        left += _parts(one)
    return found


def _parts(one: Any) -> list[Any]:
    if isinstance(one, dict):
        return [*one.keys(), *one.values()]
    if isinstance(one, list | tuple | set | frozenset):
        return [*one]
    names = {name for kind in type(one).__mro__ for name in getattr(kind, "__slots__", ())}
    names |= set(getattr(one, "__struct_fields__", ())) | set(getattr(one, "__dict__", {}))
    return [getattr(one, name) for name in names if hasattr(one, name)]


def kept_of(cluster: Cluster, mark: str) -> set[str]:
    """The texts with `mark` that the cluster still holds."""
    return {text for text in texts(cluster) if mark in text}
