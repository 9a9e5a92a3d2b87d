"""What the events since the last write have made stale."""

from __future__ import annotations


class Stale:
    """`pods`: uids of pods whose rows differ from their records; `nodes`: names of nodes on which pods hold other
    amounts; `ledgers`: names of nodes on which pods may hold other GPUs, or which have other GPUs."""

    def __init__(self) -> None:
        self.pods: dict[str, None] = {}
        self.nodes: set[str] = set()
        self.ledgers: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self.pods or self.nodes or self.ledgers)

    def node(self, name: str, *, gpus: bool) -> None:
        """A pod has come to the node, or has left it. `gpus`: it asks for GPUs."""
        self.nodes.add(name)
        if gpus:
            self.ledgers.add(name)

    def take(self) -> tuple[dict[str, None], set[str], set[str]]:
        """The three, which are empty from now on."""
        taken = self.pods, self.nodes, self.ledgers
        self.pods, self.nodes, self.ledgers = {}, set(), set()
        return taken
