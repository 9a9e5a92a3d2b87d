"""What a server remembers of the cluster, and how it differs from another view of the same cluster.

Both sides are the same program over different inputs: what a running server has collected from its watches, and a
fresh list. Where they differ, the watch missed something, or the two were taken at different moments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

MOST_COUNT: Final = (1 << 53) - 1  # what every reader of JSON reads exactly


class Difference(NamedTuple):
    """A difference between the server's cache and the API server."""

    kind: str
    name: str
    what: str
    """missing (the server does not have it), extra (the API server does not have it), or the field that differs."""
    cached: Any
    """The server's value, None without one."""
    listed: Any
    """The API server's value, None without one."""


def differences(cached: Mapping[str, Any], listed: Mapping[str, Any]) -> Iterator[Difference]:
    """Of two states, in the order nodes, pods, each by name or uid."""
    for kind, key in (("Node", "nodes"), ("Pod", "pods")):
        ours, theirs = cached[key], listed[key]
        for name in sorted({*ours, *theirs}):
            a, b = ours.get(name), theirs.get(name)
            shown = (a or b).get("pod", name)
            if a is None:
                yield Difference(kind, shown, "missing", None, b)
            elif b is None:
                yield Difference(kind, shown, "extra", a, None)
            else:
                for field in sorted({*a, *b}):
                    if a.get(field) != b.get(field):
                        yield Difference(kind, shown, field, a.get(field), b.get(field))


def drift(answer: Mapping[str, Any]) -> dict[str, int]:
    """Of the pods whose GPUs are observed and that have a plan: how many hold what was planned, and how many other
    GPUs."""
    counts = {"as_planned": 0, "otherwise": 0}
    for pod in answer["pods"].values():
        if pod["how"] == "observed" and pod["planned"] is not None:
            counts["as_planned" if pod["gpus"] == sorted(pod["planned"]) else "otherwise"] += 1
    return counts
