"""The server without its code for DRA, as if the kinds of DRA were not watched: `python -m benchmarks.dra_free_server
serve ...`. Records of nodes and pods pass as their own objects state them, and nothing is ever read again."""

from __future__ import annotations

import sys
from typing import Final

from extender.cluster import cluster
from extender.cluster.dra.store import DraStore


def passed(store: DraStore, record: object) -> object:
    """The pod or node as its own object states it."""
    return record


def nothing(*arguments: object) -> None:
    """What is done for DRA."""


REPLACED: Final = (
    (DraStore, "pod", passed),
    (DraStore, "read", passed),
    (DraStore, "node", passed),
    (DraStore, "gone", nothing),
    (DraStore, "stale", False),
    (cluster, "renew", nothing),
)


def main() -> int:
    from extender.cli import main as extender

    for of, name, instead in REPLACED:
        setattr(of, name, instead)
    return extender(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
