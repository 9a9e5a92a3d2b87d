"""The plans of this node as the API server has them, followed by two watches: its pods, and the node itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from extender.node.apiserver import ApiServer, Watch
from extender.node.graph import Graph, NodeGraph, graph
from extender.node.plans import Bound


class LivePlans:
    """What the relay asks. The API server is asked for this node's objects only, which it has an index for."""

    def __init__(self, server: ApiServer, node: str, say: Callable[[str], None], topology_file: Path | None) -> None:
        """`topology_file`: the annotation's value as the agent leaves it on this node; it counts before the node's."""
        self.bound = Bound()
        self._node = NodeGraph()
        self._file = topology_file
        self._file_at: int | None = None
        self._file_graph: Graph | None = None
        self.pods = Watch(
            server,
            "/api/v1/pods",
            {"fieldSelector": f"spec.nodeName={node}"},
            self.bound,
            say=say,
        )
        self.nodes = Watch(
            server,
            "/api/v1/nodes",
            {"fieldSelector": f"metadata.name={node}"},
            self._node,
            say=say,
        )

    def start(self) -> None:
        """Begin to follow."""
        self.pods.start()
        self.nodes.start()

    def stop(self) -> None:
        """End."""
        self.pods.stop()
        self.nodes.stop()

    def look(self, timeout: float) -> bool:
        """One GET of the pods, now; and of the node while its GPUs are unknown."""
        if self.graph() is None:
            self.nodes.look(timeout)
        return self.pods.look(timeout)

    def graph(self) -> Graph | None:
        """The node's GPUs."""
        return self._from_file() or self._node.get()

    def _from_file(self) -> Graph | None:
        if self._file is None:
            return None
        try:
            at = self._file.stat().st_mtime_ns
            if at != self._file_at:
                self._file_graph, self._file_at = graph(self._file.read_bytes()), at
        except OSError:
            self._file_graph, self._file_at = None, None
        return self._file_graph


def trouble(plans: LivePlans) -> str:
    """Why the process should be restarted; "" while all is well. An API server that is away is no reason."""
    return "" if plans.pods.alive and plans.nodes.alive else "the API server is not watched"
