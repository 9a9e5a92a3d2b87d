"""What the events since the last write have made stale."""

from __future__ import annotations

from extender.objects.records import PodRecord


class Stale:
    """`pods`: uids of pods whose rows differ from their records; `nodes`: names of nodes on which pods hold other
    amounts; `ledgers`: names of nodes on which pods may hold other GPUs, or which have other GPUs. After a defect:
    `unwritten`: uids of pods whose rows could not be written, by node; `unread`: nodes whose ledger is not read."""

    def __init__(self) -> None:
        self.pods: dict[str, None] = {}
        self.nodes: set[str] = set()
        self.ledgers: set[str] = set()
        self.unwritten: dict[str, dict[str, None]] = {}
        self.unread: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self.pods or self.nodes or self.ledgers)

    def pod(self, pod: PodRecord) -> None:
        """A pod has come to its node: its row must be written, and what depends on it."""
        self.pods[pod.uid] = None
        self.node(pod.node, gpus=bool(pod.gpus))

    def node(self, name: str, *, gpus: bool) -> None:
        """A pod has come to the node, or has left it. `gpus`: it asks for GPUs."""
        self.nodes.add(name)
        if gpus:
            self.ledgers.add(name)

    def try_again(self, node: str) -> None:
        """An event is about the node, or a pod of it: what could not be written of it is stale again."""
        if self.unwritten or self.unread:
            self.pods.update(self.unwritten.pop(node, {}))
            if node in self.unread:
                self.unread.remove(node)
                self.ledgers.add(node)

    def take(self) -> tuple[dict[str, None], set[str], set[str]]:
        """The three, which are empty from now on."""
        taken = self.pods, self.nodes, self.ledgers
        self.pods, self.nodes, self.ledgers = {}, set(), set()
        return taken
