"""Which of the node's GPUs to prefer, in indices and in device ids."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from ext_core.links import LinkShapes
from extender.topologies import annotation


class Graph:
    """The GPUs of this node: what its topology annotation states."""

    def __init__(self, uuids: Sequence[str], shapes: LinkShapes, shape: int) -> None:
        """`uuids`: the device id of each index; `shape`: in `shapes`, 0 when the links are unknown."""
        self.index = {uuid: gpu for gpu, uuid in enumerate(uuids)}
        self._shapes = shapes
        self._shape = shape

    def gpu(self, device: str) -> int | None:
        """The GPU behind a device id (replicas are called `GPU-...::3`); None for what is no whole GPU of ours."""
        return self.index.get(device.partition("::")[0])

    def gpus(self, ids: Iterable[str]) -> dict[int, list[str]] | None:
        """GPU -> its device ids among these, in order; None when one of them is no GPU of ours (as MIG)."""
        devices: dict[int, list[str]] = {}
        for device in sorted(ids, key=_natural):
            gpu = self.gpu(device)
            if gpu is None:
                return None
            devices.setdefault(gpu, []).append(device)
        return devices

    def best(
        self, available: frozenset[int], must: frozenset[int], size: int, promised: frozenset[int]
    ) -> frozenset[int] | None:
        """The best set by the links, with as few promised GPUs in it as can be; None where the links are unknown.

        Fewer available than `size`, or more forced: None too.
        """
        if not self._shape or size > len(available) or len(must) > size or not must <= available:
            return None
        free = available - promised - must
        missing = size - len(must)
        if not must and missing <= len(free):
            chosen = self._shapes.choice(self._shape, _mask(free), size)
            return None if chosen is None else _members(chosen.gpus)
        forced, pool = must, free
        if missing > len(free):
            forced, pool, missing = must | free, available & promised - must, missing - len(free)
        everything = _mask(available)

        def worth(rest: tuple[int, ...]) -> tuple[int, ...]:
            return self._shapes.objective(self._shape, everything, _mask(forced) | _mask(rest)) or ()

        rest = max(combinations(sorted(pool), missing), key=worth)  # the first of equals: the smallest ids
        return forced | frozenset(rest)


def graph(text: str | bytes) -> Graph | None:
    """From the value of the annotation gpu-extender.io/topology; None where it cannot be read or names no ids."""
    try:
        stated = annotation.decode(text)
    except annotation.TopologyError:
        return None
    if stated.uuids is None:
        return None
    shapes = LinkShapes()
    return Graph(stated.uuids, shapes, stated.intern(shapes, "arbitrary"))


class NodeGraph:
    """The last graph that the node's annotation stated. Any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._text = ""
        self._graph: Graph | None = None

    def put(self, node: Mapping[str, object]) -> None:
        """The node as the API server has it."""
        metadata = node.get("metadata")
        annotations = metadata.get("annotations") if isinstance(metadata, Mapping) else None
        text = annotations.get(annotation.KEY, "") if isinstance(annotations, Mapping) else ""
        with self._lock:
            if text != self._text:
                self._text, self._graph = text, graph(text) if text else None

    def replace(self, nodes: Sequence[Mapping[str, object]]) -> None:
        """The list of the API server: this node, or nothing where it has no object."""
        self.put(nodes[0] if nodes else {})

    def drop(self, uid: str) -> None:
        """The object was deleted: its graph is unknown."""
        self.put({})

    def get(self) -> Graph | None:
        """The graph; None while it is unknown."""
        with self._lock:
            return self._graph


def _natural(device: str) -> tuple[str, int, str]:
    name, _, replica = device.partition("::")
    return (name, int(replica), "") if replica.isdigit() else (name, -1, replica)


def _mask(gpus: Iterable[int]) -> int:
    return sum(1 << gpu for gpu in gpus)


def _members(mask: int) -> frozenset[int]:
    return frozenset(gpu for gpu in range(mask.bit_length()) if mask >> gpu & 1)
