"""The devices that kube-scheduler's allocator may take for a node, in the order in which it looks at them.

Source: k8s.io/dynamic-resource-allocation v0.37.0, structured/internal/incubating/pools_incubating.go. Of a pool the
slices of the highest generation among those for the node count, and only once all slices of it are there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from extender.cluster.dra.resource_slices import PoolKey, TaintRules, identity, repeated
from extender.objects.cel import DeviceProperties
from extender.objects.records import AllocatedDevice, DeviceRecord, ResourceSliceRecord
from extender.objects.resources import nano
from extender.objects.selectors import Labels, Taint

Counters = Mapping[tuple[str, str], int]
"""Counter set and counter -> amount, in billionths."""
NO_COUNTERS: Final[Counters] = MappingProxyType({})


class Candidate(NamedTuple):
    """A device of a pool. `id`: as of GpuDevice; `here`: whether it is a device of the node; `taints`: those that keep
    claims off."""

    id: str
    driver: str
    device: DeviceRecord
    properties: DeviceProperties
    here: bool
    taints: tuple[Taint, ...]
    consumes: Counters


class Pool(NamedTuple):
    """A pool as the allocator has it for one node. `closed`: why it gives no device now, "" where it does; `devices`:
    of its slices for the node; `others`: those of its other slices that consume counters; `counters`: what the pool has
    of them."""

    driver: str
    name: str
    closed: str = ""
    devices: tuple[Candidate, ...] = ()
    others: tuple[Candidate, ...] = ()
    counters: Counters = NO_COUNTERS


class NodePools:
    """The pools of nodes."""

    def __init__(self, slices: Mapping[PoolKey, Mapping[str, ResourceSliceRecord]], rules: TaintRules) -> None:
        """`slices`: of each pool, by name; `rules`: which devices are tainted beside what their slices state. The
        caller keeps both up to date."""
        self._slices, self._rules = slices, rules
        self._keys: dict[str, Counter[PoolKey]] = {}  # by node: how many slices of it alone; none is empty
        self._wide: Counter[PoolKey] = Counter()  # how many slices of several nodes; none is 0

    def update(self, before: ResourceSliceRecord | None, after: ResourceSliceRecord | None) -> set[str] | None:
        """A slice was this one, None for none, and is another one now. The nodes of which the pools may be others,
        None for any."""
        records = [(record, by) for record, by in ((before, -1), (after, 1)) if record is not None]
        keys = {(record.driver, record.pool) for record, _ in records}
        was_wide = any(key in self._wide for key in keys)
        for record, by in records:
            self._count(record, by)
        nodes = self.nodes_of(keys)
        return None if was_wide or nodes is None else nodes.union(record.place.node for record, _ in records)

    def nodes_of(self, keys: Iterable[PoolKey]) -> set[str] | None:
        """The nodes of these pools, None for any."""
        nodes: set[str] = set()
        for key in keys:
            if key in self._wide:
                return None
            nodes.update(record.place.node for record in self._slices.get(key, {}).values())
        return nodes

    def of(self, node: str, labels: Labels | None) -> tuple[Pool, ...]:
        """The pools of a node in order."""
        keys = {*self._keys.get(node, ()), *self._wide}
        return gather(node, labels, {key: self._slices[key].values() for key in keys}, self._taints)

    def _count(self, record: ResourceSliceRecord, by: int) -> None:
        node = "" if record.by_device else record.place.node
        counts = self._keys.setdefault(node, Counter()) if node else self._wide
        key = (record.driver, record.pool)
        counts[key] += by
        if not counts[key]:
            del counts[key]
        if node and not counts:
            del self._keys[node]

    def _taints(self, which: AllocatedDevice, device: DeviceRecord) -> tuple[Taint, ...]:
        return (*device.taints, *self._rules.of(which)) if self._rules.records else device.taints


def gather(
    node: str,
    labels: Labels | None,
    slices: Mapping[PoolKey, Collection[ResourceSliceRecord]],
    taints: Callable[[AllocatedDevice, DeviceRecord], tuple[Taint, ...]],
) -> tuple[Pool, ...]:
    """The pools of a node in order. `slices`: all of each pool that may have devices for it."""
    pools = [
        pool
        for key, records in sorted(slices.items())
        if (pool := _pool(key, node, labels, [record for record in records if not _is_grouped(record)], taints))
    ]
    return tuple(sorted(pools, key=lambda pool: any(candidate.device.conditions for candidate in pool.devices)))


def _is_grouped(record: ResourceSliceRecord) -> bool:
    """Whether the allocator ignores the slice: the feature gate of compatibility groups is alpha."""
    return any(device.grouped for device in record.devices)


def _is_for(record: ResourceSliceRecord, node: str, labels: Labels | None) -> bool:
    if record.by_device:
        return any(device.place.has(node, labels) for device in record.devices)
    return record.place.has(node, labels)


def _pool(
    key: PoolKey,
    node: str,
    labels: Labels | None,
    records: list[ResourceSliceRecord],
    taints: Callable[[AllocatedDevice, DeviceRecord], tuple[Taint, ...]],
) -> Pool | None:
    for_node = [record for record in records if _is_for(record, node, labels)]
    if not for_node:
        return None
    newest = max(record.generation for record in for_node)
    current = sorted([record for record in for_node if record.generation == newest], key=lambda record: record.name)
    number, others = current[0].slices, []
    if len(current) != number:
        if any(record.generation > newest for record in records):
            return None  # the driver is replacing the pool
        whole = [record for record in records if record.generation == newest]
        if len(whole) != number:
            return Pool(*key, closed="the driver has not published all slices of the pool")
        others = [record for record in whole if record not in current]
    stated = [part for record in (*current, *others) for part in record.counters]
    of_node = [record for record in current if not record.counters]
    elsewhere = [record for record in others if not record.counters]
    counters = {(name, counter): nano(amount) for name, amounts in stated for counter, amount in amounts}
    sets = [name for name, _ in stated]
    devices, rest = (_candidates(key, part, node, labels, taints) for part in (of_node, elsewhere))
    if repeated(of_node):
        return Pool(*key, closed="two devices of the pool have one name")
    unknown = any(consumed not in counters for entry in (*devices, *rest) for consumed in entry.consumes)
    unknown = unknown or any(name not in sets for entry in (*devices, *rest) for name in entry.device.counters)
    if unknown or len(set(sets)) < len(sets):
        return Pool(*key, closed="the counters of the pool are invalid")
    return Pool(*key, "", devices, tuple([entry for entry in rest if entry.consumes]), counters)


def _candidates(
    key: PoolKey,
    records: Iterable[ResourceSliceRecord],
    node: str,
    labels: Labels | None,
    taints: Callable[[AllocatedDevice, DeviceRecord], tuple[Taint, ...]],
) -> tuple[Candidate, ...]:
    candidates: list[Candidate] = []
    for record in records:
        for device in record.devices:
            which = AllocatedDevice(*key, device.name)
            here = not record.by_device or device.place.has(node, labels)
            consumed: dict[tuple[str, str], int] = {}
            for name, amounts in device.consumes:
                for counter, amount in amounts:
                    consumed[name, counter] = consumed.get((name, counter), 0) + nano(amount)
            candidates.append(
                Candidate(
                    identity(which), key[0], device, DeviceProperties(key[0], device), here, taints(which, device),
                    consumed or NO_COUNTERS,
                )
            )  # fmt: skip
    return tuple(candidates)
