"""What drivers publish for nodes, read as kube-scheduler reads it: of a pool only the slices of the highest generation
count, only once all of them are there, and only where no two devices have one name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import product
from types import MappingProxyType
from typing import Final, NamedTuple

from extender.cluster.numbered import take_out
from extender.objects.cel import DeviceKind, DeviceProperties, selects
from extender.objects.devices import (
    FENCE,
    AllocatedDevice,
    Attribute,
    DeviceClassRecord,
    DeviceRecord,
    DeviceTaintRuleRecord,
    ResourceSliceRecord,
)
from extender.objects.resources import nano
from extender.objects.selectors import Labels, Taint

_PCI: Final = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.ASCII | re.IGNORECASE)
NIC_DRIVERS: Final = frozenset({"dra.net"})
"""Drivers that publish network devices."""
PoolKey = tuple[str, str]
"""Driver and name of a pool."""


class Published(NamedTuple):
    """A device on its node. `id`, `place`: as of GpuDevice; `whole`: it is a whole GPU, which one claim gets alone."""

    id: str
    driver: str
    device: DeviceRecord
    whole: bool
    place: int = -1


class Touched(NamedTuple):
    """What a slice is or was about: names of nodes, and GpuDevice.id of whole GPUs."""

    nodes: set[str]
    gpus: set[str]


class Slices:
    """The slices of all drivers, and what the drivers in question, and NIC_DRIVERS, publish. `records`: by name;
    `by_pool`: those of each pool, by name; none is empty. `node_of`: GpuDevice.id of a whole GPU -> its node; `kinds`:
    of the devices of all drivers, with their number; `of_any_node`: the slices that name no node, by driver in
    question."""

    def __init__(self, drivers: Mapping[str, Mark], rules: TaintRules) -> None:
        """`drivers`: those in question, with what marks their whole GPUs; `rules`: which devices are tainted beside
        what their slices state, kept up to date by the caller."""
        self.records: dict[str, ResourceSliceRecord] = {}
        self.by_pool: dict[PoolKey, dict[str, ResourceSliceRecord]] = {}
        self.node_of: dict[str, str] = {}
        self.kinds: Counter[PublishedKind] = Counter()
        self.of_any_node: Counter[str] = Counter()
        self._drivers, self._rules = drivers, rules
        self._nodes: dict[str, dict[PoolKey, list[Published]]] = {}  # what each pool has for a node; none is empty
        self._spread: dict[PoolKey, set[str]] = {}  # the nodes of each pool; none is empty
        self._size: dict[PoolKey, int] = {}  # by driver and node: its whole GPUs, from 1 on
        self._sizes: dict[str, Counter[int]] = {}  # by driver: how many nodes have so many

    @property
    def nodes(self) -> Collection[str]:
        """The nodes for which anything is published."""
        return self._nodes.keys()

    @property
    def smallest(self) -> Mapping[str, int]:
        """Driver -> the number of whole GPUs of the node with the fewest; none where no node has any."""
        return {driver: min(sizes) for driver, sizes in self._sizes.items() if sizes}

    @property
    def most(self) -> int | None:
        """The devices of the node with the most; None where devices are published that are not those of one node."""
        records = self.records.values()
        if any(not record.node and record.devices and self._reads(record.driver) for record in records):
            return None
        return max((sum(map(len, pools.values())) for pools in self._nodes.values()), default=0)

    def of(self, node: str) -> list[list[Published]]:
        """The devices of each pool of the node, in the order in which kube-scheduler looks at them."""
        return [devices for _, devices in sorted(self._nodes.get(node, {}).items())]

    def nics(self, node: str) -> tuple[tuple[str, str], ...]:
        """(name, PCIe root) of the network devices with RDMA of the node whose root is published."""
        pools = self._nodes.get(node, {}).items()
        nics = [published.device for (driver, _), devices in pools if driver in NIC_DRIVERS for published in devices]
        return tuple(sorted({(nic.name, nic.root) for nic in nics if nic.rdma and nic.root}))

    def taints(self, published: Published) -> tuple[Taint, ...]:
        """The taints that keep claims off the device."""
        return (*published.device.taints, *self._rules.keeping_off(device_of(published.id)))

    def any_tainted(self, node: str, gpus: Container[str]) -> bool:
        """Whether one of these GPUs of the node (GpuDevice.id) is tainted."""
        return any(self.taints(published) for pool in self.of(node) for published in pool if published.id in gpus)

    def invalid(self) -> dict[PoolKey, str]:
        """The pools of which no device is allocated, because two of them have this name."""
        repeated_names = {key: repeated(_complete(slices.values())) for key, slices in self._known_pools()}
        return {key: name for key, name in sorted(repeated_names.items()) if name}

    def skipped(self) -> Counter[str]:
        """How many slices, or devices of slices, do not count, by reason, for people."""
        reasons = Counter(
            f"ResourceSlices of driver {record.driver} (no draDriver of the settings)"
            for record in self.records.values()
            if not self._reads(record.driver)
        )
        for key, slices in self._known_pools():
            newest = max(record.generation for record in slices.values())
            current = [record for record in slices.values() if record.generation == newest]
            complete = _complete(slices.values())
            reasons["ResourceSlices of an older generation of their pool"] += len(slices) - len(current)
            if not complete:
                reasons[f"ResourceSlices of incomplete pools, such as {'/'.join(key)}"] += len(current)
            elif name := repeated(complete):
                reasons[f"ResourceSlices of pool {'/'.join(key)}, in which two devices have the name {name}"] += len(
                    current
                )
            reasons["devices without a name"] += sum(record.unnamed for record in current)
            gpus = [device for record in current for device in record.devices if self._kind(record, device).whole]
            reasons["GPUs without the attribute uuid (no topology by uuid finds them)"] += sum(
                not gpu.uuid for gpu in gpus
            )
        return +reasons

    def selected(self, driver: str, pool: str) -> set[str]:
        """The nodes of the pools with these names, "" for any."""
        if driver and pool:
            return set(self._spread.get((driver, pool), ()))
        pools = (nodes for (by, name), nodes in self._spread.items() if driver in ("", by) and pool in ("", name))
        return set().union(*pools)

    def where(self, devices: Iterable[AllocatedDevice]) -> set[str]:
        """The nodes of the pools of these devices."""
        return {node for device in devices for node in self._spread.get((device.driver, device.pool), ())}

    def update(self, record: ResourceSliceRecord, change: str) -> Touched:
        """A slice is "set", or there is a "delete"."""
        touched, keys = Touched(set(), set()), [(record.driver, record.pool)]
        before = self.records.pop(record.name, None)
        if before is not None:
            key = (before.driver, before.pool)
            take_out(self.by_pool, key, before.name)
            self._count(before, -1)
            if key not in keys:
                keys.append(key)
        if change == "set":
            self.records[record.name] = record
            self.by_pool.setdefault(keys[0], {})[record.name] = record
            self._count(record, 1)
        for key in keys:
            if self._reads(key[0]):
                self._renew(key, touched)
        return touched

    def _count(self, record: ResourceSliceRecord, by: int) -> None:
        kinds = [PublishedKind(record.driver)]
        if self._reads(record.driver):
            self.of_any_node[record.driver] += 0 if record.node else by
            kinds = [self._kind(record, device) for device in record.devices]
        for kind in kinds:
            self.kinds[kind] += by
            if not self.kinds[kind]:
                del self.kinds[kind]

    def _reads(self, driver: str) -> bool:
        return driver in self._drivers or driver in NIC_DRIVERS

    def _known_pools(self) -> Iterator[tuple[PoolKey, Mapping[str, ResourceSliceRecord]]]:
        """The pools of the drivers that are read, with their slices by name."""
        return ((key, slices) for key, slices in self.by_pool.items() if self._reads(key[0]))

    def _kind(self, record: ResourceSliceRecord, device: DeviceRecord) -> PublishedKind:
        return kind_of(device, record.driver, self._drivers.get(record.driver))

    def _renew(self, key: PoolKey, touched: Touched) -> None:
        """Read a pool again."""
        before = set(self._spread.get(key, ()))
        self._read_pool(key, touched)
        for node in before.union(self._spread.get(key, ())):
            self._count_gpus(key[0], node)

    def _count_gpus(self, driver: str, node: str) -> None:
        """How many whole GPUs the node has of the driver now."""
        pools = (devices for (by, _), devices in self._nodes.get(node, {}).items() if by == driver)
        whole = sum(published.whole for devices in pools for published in devices)
        sizes, before = self._sizes.setdefault(driver, Counter()), self._size.pop((driver, node), 0)
        if before:
            sizes[before] -= 1
            if not sizes[before]:
                del sizes[before]
        if whole:
            sizes[whole] += 1
            self._size[driver, node] = whole

    def _read_pool(self, key: PoolKey, touched: Touched) -> None:
        for node in self._spread.pop(key, ()):
            touched.nodes.add(node)
            for published in self._nodes[node].pop(key):
                if published.whole:
                    touched.gpus.add(published.id)
                    self.node_of.pop(published.id, None)
            if not self._nodes[node]:
                del self._nodes[node]
        slices = self.by_pool.get(key)
        if slices is None:
            return
        for record in _current(slices.values()):
            if record.node:
                touched.nodes.add(record.node)
                self._publish(key, record, touched.gpus)
        for node in self._spread.get(key, ()):
            self._nodes[node][key] = _placed(self._nodes[node][key])

    def _publish(self, key: PoolKey, record: ResourceSliceRecord, gpus: set[str]) -> None:
        driver, pool = key
        self._spread.setdefault(key, set()).add(record.node)
        devices_of_pool = self._nodes.setdefault(record.node, {}).setdefault(key, [])
        for device in record.devices:
            whole = self._kind(record, device).whole
            published = Published(identity(AllocatedDevice(driver, pool, device.name)), driver, device, whole)
            devices_of_pool.append(published)
            if whole:
                gpus.add(published.id)
                self.node_of[published.id] = record.node


def identity(device: AllocatedDevice) -> str:
    """GpuDevice.id of a device."""
    return "/".join(device)


def device_of(gpu: str) -> AllocatedDevice:
    """The device with this GpuDevice.id. Only the name of a pool may have a slash."""
    driver, _, rest = gpu.partition("/")
    pool, _, device = rest.rpartition("/")
    return AllocatedDevice(driver, pool, device)


def places(devices: Sequence[DeviceRecord]) -> list[int]:
    """For each GPU of a node its place in the order of the GPU indices: by the attribute index, or else by PCI address,
    the order in which NVIDIA numbers them; -1 for all where neither is published of each."""
    indices = [-1 if device.index is None else device.index for device in devices]
    if min(indices, default=0) >= 0 and len(set(indices)) == len(indices):
        return indices
    addresses = [_address(device.pci) for device in devices]
    if () in addresses or len(set(addresses)) != len(addresses):
        return [-1] * len(devices)
    at = {address: place for place, address in enumerate(sorted(addresses))}
    return [at[address] for address in addresses]


def _placed(devices: Sequence[Published]) -> list[Published]:
    """The devices of a node, the whole GPUs with their places."""
    places_of_gpus = iter(places([published.device for published in devices if published.whole]))
    return [published._replace(place=next(places_of_gpus)) if published.whole else published for published in devices]


def _current(slices: Collection[ResourceSliceRecord]) -> list[ResourceSliceRecord]:
    """The slices of which kube-scheduler allocates devices."""
    records = _complete(slices)
    return [] if repeated(records) else records


def _complete(slices: Collection[ResourceSliceRecord]) -> list[ResourceSliceRecord]:
    """Those of the highest generation, none where some of them are missing."""
    newest = max(record.generation for record in slices)
    newest_slices = sorted([record for record in slices if record.generation == newest], key=lambda record: record.name)
    return newest_slices if len(newest_slices) == newest_slices[0].slices else []


def repeated(slices: Iterable[ResourceSliceRecord]) -> str:
    """The first name that two devices of these slices have, "" for none."""
    names: set[str] = set()
    for name in (device.name for record in slices for device in record.devices):
        if name in names:
            return name
        names.add(name)
    return ""


def _address(text: str) -> tuple[int, ...]:
    match = _PCI.fullmatch(text)
    return tuple([int(part, 16) for part in match.groups()]) if match else ()


# -- DeviceTaintRules --------------------------------------------------------------------------------------------------


Selector = tuple[str, str, str]
"""Driver, pool and device, "" for any."""


class TaintRules:
    """The rules of the cluster. `records`: by name."""

    def __init__(self, *, plans: bool) -> None:
        """`plans`: the queue allocates devices, so its own fence keeps none of them from it."""
        self.records: dict[str, DeviceTaintRuleRecord] = {}
        self._plans = plans
        self._tainting: dict[Selector, dict[str, DeviceTaintRuleRecord]] = {}  # by name; none is empty

    def update(self, record: DeviceTaintRuleRecord, change: str) -> list[DeviceTaintRuleRecord]:
        """A rule is "set", or there is a "delete". Its versions before and after that taint devices."""
        versions: list[DeviceTaintRuleRecord] = []
        before = self.records.pop(record.name, None)
        if before is not None:
            versions.append(before)
            take_out(self._tainting, selector_of(before), before.name)
        if change == "set":
            self.records[record.name] = record
            versions.append(record)
            if record.taint:
                self._tainting.setdefault(selector_of(record), {})[record.name] = record
        return [version for version in versions if version.taint and not self._is_ours(version)]

    def keeping_off(self, device: AllocatedDevice) -> list[Taint]:
        """The taints of the device by rules that keep the queue off it too."""
        return [_taint(record) for record in self._selecting(device) if not self._is_ours(record)]

    def fences(self, device: AllocatedDevice) -> bool:
        """Whether a rule keeps kube-scheduler off the device, and leaves it to the queue."""
        return any(map(self._is_ours, self._selecting(device)))

    def of(self, device: AllocatedDevice) -> list[Taint]:
        """The taints of the device by rules, our fence with them."""
        return list(map(_taint, self._selecting(device)))

    def _selecting(self, device: AllocatedDevice) -> list[DeviceTaintRuleRecord]:
        """The rules that taint the device."""
        if not self._tainting:
            return []
        selectors = product((device.driver, ""), (device.pool, ""), (device.device, ""))
        return [record for selector in selectors for record in self._tainting.get(selector, {}).values()]

    def _is_ours(self, record: DeviceTaintRuleRecord) -> bool:
        return self._plans and record.taint == FENCE


def selector_of(record: DeviceTaintRuleRecord) -> Selector:
    """What the rule selects."""
    return record.driver, record.pool, record.device


def _taint(record: DeviceTaintRuleRecord) -> Taint:
    return Taint(record.taint, record.value, "NoExecute" if record.effect == "NoExecute" else "NoSchedule")


# -- which devices a DeviceClass selects, by kinds: it is evaluated once for all devices of a kind
#
# A kind is the driver, the attribute that marks its whole GPUs, and whether several claims may share the device. Where
# the selectors need more than that of a device, it is not known which devices of the kind they select.


NVIDIA: Final = "gpu.nvidia.com"
AMD: Final = "gpu.amd.com"
INTEL: Final = "gpu.intel.com"
Mark = tuple[str, str]
"""Name and value of the attribute of a device that is a whole GPU; ("", ""): every device is one."""
EVERY: Final[Mark] = ("", "")
WHOLE: Final[Mapping[str, Mark]] = {NVIDIA: ("type", "gpu"), AMD: ("type", "amdgpu"), INTEL: EVERY}
"""By driver. What is known without the settings."""
_OTHER_VALUES: Final = ("mig", "vfio", "(another)")  # of the mark, of devices that are no whole GPUs


class PublishedKind(NamedTuple):
    """Of devices. `whole`: they are whole GPUs, which one claim gets alone."""

    driver: str
    whole: bool = False
    shared: bool = False
    name: str = ""  # of the attribute that is known of them, "" for none
    value: Attribute | None = None  # of that attribute, None where they do not state it


class Selected(NamedTuple):
    """What a class selects. `driver`: of which it selects whole GPUs and nothing else, "" where that is not certain;
    `every`: whether it selects every whole GPU of it, as the class of the driver does."""

    driver: str = ""
    every: bool = False


def kind_of(device: DeviceRecord, driver: str, mark: Mark | None) -> PublishedKind:
    """`mark`: None where no device of the driver counts as a GPU."""
    if mark is None:
        return PublishedKind(driver)
    name, value = mark
    if not name:
        return PublishedKind(driver, not device.shared, device.shared)
    own = f"{driver}/{name}"
    stated = next((attribute for its, attribute in device.attributes if its in (name, own)), None)
    marked = stated is not None and value in (stated.value, str(stated.value).lower())
    return PublishedKind(driver, marked and not device.shared, device.shared, name, stated)


def selected(
    record: DeviceClassRecord, kinds: Collection[PublishedKind], marks: Mapping[str, Mark] = WHOLE
) -> Selected:
    """Of devices of these kinds, which are published. Of a class that selects none of them, of what drivers that have
    not published any may publish: whole GPUs and others."""
    drivers = {kind.driver for kind in kinds}
    expected = [kind for driver, mark in marks.items() if driver not in drivers for kind in _expected(driver, mark)]
    answers: dict[PublishedKind, bool | None] = {}
    perhaps: list[PublishedKind] = []
    for asked in (kinds, expected):
        if not perhaps:
            answers = {kind: selects(record.selectors, _device(kind)) for kind in asked}
            perhaps = [kind for kind, answer in answers.items() if answer is not False]
    if not perhaps or not all(kind.whole for kind in perhaps) or len({kind.driver for kind in perhaps}) > 1:
        return Selected()
    return Selected(perhaps[0].driver, all(answers[kind] is True for kind in perhaps))


def drivers_of(
    record: DeviceClassRecord, kinds: Collection[PublishedKind], marks: Mapping[str, Mark] = WHOLE
) -> set[str]:
    """The drivers of which the class may select devices of these kinds, or of those that drivers with whole GPUs may
    publish."""
    expected = (kind for driver, mark in marks.items() for kind in _expected(driver, mark))
    return {kind.driver for kind in (*kinds, *expected) if selects(record.selectors, _device(kind)) is not False}


def _expected(driver: str, mark: Mark) -> list[PublishedKind]:
    name, value = mark
    if not name:
        return [PublishedKind(driver, whole=True)]
    whole, others = Attribute("string", value), [Attribute("string", other) for other in _OTHER_VALUES]
    if value in ("true", "false"):
        whole, others = Attribute("bool", value == "true"), [Attribute("bool", value != "true")]
    return [PublishedKind(driver, attribute is whole, name=name, value=attribute) for attribute in (whole, *others)]


@lru_cache(maxsize=1024)
def _device(kind: PublishedKind) -> DeviceKind:
    return DeviceKind(kind.driver, {kind.name: kind.value} if kind.name else {}, multiple=kind.shared)


# -- the devices that kube-scheduler's allocator may take for a node, in the order in which it looks at them.
#
# Source: k8s.io/dynamic-resource-allocation v0.37.0, structured/internal/incubating/pools_incubating.go. Of a pool the
# slices of the highest generation among those for the node count, and only once all slices of it are there.


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
