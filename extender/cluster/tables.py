"""The tables that the kernels read: `Cluster` writes them, policies read them."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ext_core.hazard import Hazards
from ext_core.links import LinkShapes
from ext_core.places import Places
from ext_core.slots import Slots
from ext_core.table import NodeTable, PodTable
from extender.cluster.statements import MOST
from extender.objects.devices import DeviceClassRecord
from extender.objects.records import NodeRecord, PodRecord
from extender.objects.resources import OF_CLASS

SlotType = tuple[int, int, int, int, int, int, int]
"""A type of slots as `Slots.set_types` takes it."""


class ExpectedTypes(NamedTuple):
    """What the pods to come will ask for, by type. `weights`: how often, in any unit; `sizes`: GPUs, parts of one too;
    `names`: for people. As many of each as there are types."""

    types: list[SlotType]
    weights: list[float]
    sizes: list[float]
    names: list[str]


@dataclass(slots=True)
class Demand:
    """What the pods to come will ask for, by type; the columns are those of `ExpectedTypes`. A reader calls `renew`
    first: pods come more often than a reader asks for their demand. `source` returns what is
    expected, None where it is as in the call before; without a source only `set` writes."""

    slots: Slots = field(default_factory=Slots)
    source: Callable[[], ExpectedTypes | None] | None = None
    weights: array[float] = field(default_factory=lambda: array("d"))
    sizes: array[float] = field(default_factory=lambda: array("d"))
    names: tuple[str, ...] = ()
    types: list[SlotType] = field(default_factory=list)

    def renew(self) -> None:
        """Write what has changed at the source."""
        expected = self.source() if self.source is not None else None
        if expected is not None:
            self.set(*expected)

    def set(
        self, types: list[SlotType], weights: Iterable[float], sizes: Iterable[float], names: Iterable[str]
    ) -> None:
        """Write all types: other types than before make all slots be counted again. ValueError: columns of different
        length."""
        if types != self.types:
            self.slots.set_types(types)
            self.types = list(types)
        self.weights, self.sizes, self.names = array("d", weights), array("d", sizes), tuple(names)
        if not len(types) == len(self.weights) == len(self.sizes) == len(self.names):
            raise ValueError("one weight, size and name a type")


@dataclass(slots=True)
class GivenGpus:
    """Which GPUs kube-scheduler would allocate to the claims of the pod that is judged, and which no eviction gives it.
    `source`: (rows, codes) -> the column of `ClusterView.given_to_claims`; None: no pod is judged for which it is of
    use; `users`: uids of pods that use an advance reservation of others: what they hold counts as reserved again once
    they are gone."""

    source: Callable[[array[int], array[int]], array[int]] | None = None
    users: AbstractSet[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Tables:
    """What policies may read. `resources`: names by index (cpu, memory, pods, then the GPU resources)."""

    nodes: NodeTable
    pods: PodTable
    resources: tuple[str, ...]
    places: Places = field(default_factory=Places)
    hazards: Hazards = field(default_factory=Hazards)
    demand: Demand = field(default_factory=Demand)
    given: GivenGpus = field(default_factory=GivenGpus)

    @property
    def shapes(self) -> LinkShapes:
        """The link graphs that the nodes' shapes are ids of."""
        return self.nodes.shapes


# -- what pods ask for -------------------------------------------------------------------------------------------------


FIRST_GPU: Final = 3
"""The resources of the tables are CPU, memory and pod slots, then the GPU resources."""
MOST_AMOUNT: Final = 2**46
"""Milli-CPU or bytes (64 TiB) of one pod: beyond any node, and 2^15 pods of it on a node make no more than MOST_SUM."""
MOST_SUM: Final = 2**61
"""Of the pods of one node; with as much claimed on top, int64 does not wrap."""
MOST_COUNT: Final = 2**28
"""GPUs (or units of them) in columns of 32 bits."""


class Amounts:
    """What pods ask for of `resources`: cpu, memory, pods, then the GPU resources."""

    def __init__(self, resources: Sequence[str]) -> None:
        self._index = {name: i for i, name in enumerate(resources) if i >= FIRST_GPU}
        self._none = [0] * (len(resources) - FIRST_GPU)

    def of(self, pod: PodRecord) -> tuple[int, ...]:
        """R exact amounts. What no node can have is cut, so that sums stay within 64 bits."""
        gpus = self._none
        if pod.gpus:
            gpus = gpus.copy()
            for name, count in pod.gpus:
                at = self._index.get(name, 0) - FIRST_GPU
                if at >= 0:
                    gpus[at] = min(MOST, gpus[at] + count)
        cpu, memory = pod.cpu_milli, pod.memory
        if cpu > MOST_AMOUNT or memory > MOST_AMOUNT:
            cpu, memory = min(cpu, MOST_AMOUNT), min(memory, MOST_AMOUNT)
        return (cpu, memory, 1, *gpus)

    def total(self, amounts: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
        """The sum by resource, MOST_SUM at most."""
        zero = (0,) * (FIRST_GPU + len(self._none))
        return tuple([min(sum(column), MOST_SUM) for column in zip(zero, *amounts, strict=True)])


# -- what nodes have left of resources that are no columns of the tables: ephemeral storage, huge pages, and what device
# plugins offer besides GPUs (EFA, RDMA, shares of memory and cores).
#
# As kube-scheduler counts them: what is allocatable, less what bound pods ask for. Few pods ask for one and any tenant
# may invent names, so the amounts are kept by node and name of the pods that ask, and are looked at only for a pod that
# asks itself. What a DeviceClass serves instead is not counted (`plain`).


OtherAmounts = tuple[tuple[str, int], ...]
"""(resource, amount) by name; amounts are above 0."""
MOST_HELD: Final = 64
"""Different resources of a bound pod that are counted."""
MOST_OTHERS: Final = 16
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
    """Those of the amounts that nodes offer by number, and no driver of DRA; MOST_OTHERS of them."""
    if not asked:
        return ()
    served = {device_class.extended_resource_name for device_class in classes}
    counted = [(name, min(count, MOST_AMOUNT)) for name, count in asked if name not in served and OF_CLASS not in name]
    return tuple(counted[:MOST_OTHERS])


def named(asked: Collection[OtherAmounts]) -> tuple[str, ...]:
    """The names of these amounts, each once."""
    return tuple(sorted({name for amounts in asked for name, _ in amounts}))


def by_name(amounts: OtherAmounts, names: Sequence[str]) -> tuple[int, ...]:
    """The amounts of these resources, 0 where none is asked for."""
    stated = dict(amounts)
    return tuple([stated.get(name, 0) for name in names])
