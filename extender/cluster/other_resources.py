"""What nodes have left of resources that are no columns of the tables: ephemeral storage, huge pages, and what device
plugins offer besides GPUs (EFA, RDMA, shares of memory and cores).

As kube-scheduler counts them: what is allocatable, less what bound pods ask for. Few pods ask for one and any tenant
may invent names, so the amounts are kept by node and name of the pods that ask, and are looked at only for a pod that
asks itself. What a DeviceClass serves instead is not counted (`plain`).
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from extender.cluster.tables import MOST_AMOUNT
from extender.objects.records import DeviceClassRecord, NodeRecord, PodRecord
from extender.objects.resources import OF_CLASS

OtherAmounts = tuple[tuple[str, int], ...]
"""(resource, amount) by name; amounts are above 0."""
MOST_HELD: Final = 64
"""Different resources of a bound pod that are counted."""
MOST: Final = 16
"""Different resources that the pods of one question may ask for."""


class OtherResources:
    """What the pods hold and claim, by node."""

    def __init__(self) -> None:
        self._pods: dict[str, tuple[str, OtherAmounts]] = {}  # uid of a bound pod -> its node, and what it asks for
        self._used: dict[str, dict[str, int]] = {}  # node -> resource -> amount
        self._claimed: dict[str, dict[str, int]] = {}  # of assumed and nominated pods and seats, for one decision

    def hold(self, pod: PodRecord) -> None:
        """The pod is bound to its node."""
        self.release(pod.uid)
        if amounts := pod.others[:MOST_HELD]:
            self._pods[pod.uid] = pod.node, amounts
            _add(self._used, pod.node, amounts, 1)

    def release(self, uid: str) -> None:
        """The pod, which need not be known here, holds nothing any more."""
        held = self._pods.pop(uid, None)
        if held is not None:
            _add(self._used, *held, -1)

    def claim(self, node: str, amounts: OtherAmounts) -> None:
        """Count these amounts as taken until `drop_claims`."""
        _add(self._claimed, node, amounts, 1)

    def drop_claims(self) -> None:
        """Drop all claims."""
        self._claimed.clear()

    @contextmanager
    def without(self, uids: Iterable[str]) -> Iterator[None]:
        """These pods hold nothing; restored on leaving."""
        gone = [self._pods[uid] for uid in uids if uid in self._pods] if self._pods else []
        for node, amounts in gone:
            _add(self._used, node, amounts, -1)
        try:
            yield
        finally:
            for node, amounts in gone:
                _add(self._used, node, amounts, 1)

    def free(self, node: NodeRecord, resource: str) -> int:
        """What is left of the resource; below 0 where more is claimed than that."""
        taken = self._used.get(node.name, _NONE).get(resource, 0) + self._claimed.get(node.name, _NONE).get(resource, 0)
        return min(node.others.get(resource, 0), MOST_AMOUNT) - taken

    def short(self, node: NodeRecord, asked: OtherAmounts) -> list[tuple[str, int, int]]:
        """(resource, what is left, what is asked for) where too little is left."""
        amounts = [(name, self.free(node, name), wanted) for name, wanted in asked]
        return [entry for entry in amounts if entry[2] > entry[1]]

    def column(self, nodes: Iterable[NodeRecord], names: Sequence[str]) -> array[int]:
        """int64: what is left on each node of each resource."""
        return array("q", [self.free(node, name) for node in nodes for name in names])


_NONE: Final[Mapping[str, int]] = {}


def _add(sums: dict[str, dict[str, int]], node: str, amounts: OtherAmounts, times: int) -> None:
    of_node = sums.setdefault(node, {})
    for name, amount in amounts:
        count = of_node.get(name, 0) + times * min(amount, MOST_AMOUNT)
        if count:
            of_node[name] = count
        else:
            del of_node[name]
    if not of_node:
        del sums[node]


def plain(asked: OtherAmounts, classes: Iterable[DeviceClassRecord]) -> OtherAmounts:
    """Those of the amounts that nodes offer by number, and no driver of DRA; MOST of them."""
    if not asked:
        return ()
    served = {device_class.extended_resource_name for device_class in classes}
    counted = [(name, min(count, MOST_AMOUNT)) for name, count in asked if name not in served and OF_CLASS not in name]
    return tuple(counted[:MOST])


def named(asked: Collection[OtherAmounts]) -> tuple[str, ...]:
    """The names of these amounts, each once."""
    return tuple(sorted({name for amounts in asked for name, _ in amounts}))


def by_name(amounts: OtherAmounts, names: Sequence[str]) -> tuple[int, ...]:
    """The amounts of these resources, 0 where none is asked for."""
    stated = dict(amounts)
    return tuple([stated.get(name, 0) for name in names])
